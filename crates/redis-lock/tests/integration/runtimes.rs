//! The lock on several runtimes and without one, and with a timer that is stopped or full.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use redis::Client;
use redis_lock::{LockClient, LockError, LockOptions, Loss};

use super::common::{Setup, client, long, options, patience, runtime, take, within};

/// Runs a future without any runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

// Runtimes.

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_does_not_depend_on_the_callers_runtime() {
    let Some(mut setup) = Setup::new("lock-runtimes") else {
        return;
    };
    let mut lock = setup.locks.lock_with("a", long());
    // The first call opens the connection.
    let (mut lock, guard) = thread::spawn(move || {
        let guard = block_on(lock.lock()).unwrap();
        (lock, guard)
    })
    .join()
    .unwrap();
    let again = thread::spawn(move || runtime().block_on(lock.lock()).unwrap())
        .join()
        .unwrap();
    let connections = |setup: &mut Setup| {
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("stats")
            .query(&mut setup.redis)
            .unwrap();
        info.get::<u64>("total_connections_received").unwrap()
    };
    let before = connections(&mut setup);
    again.unlock().await.unwrap();
    thread::spawn(move || block_on(guard.unlock()).unwrap())
        .join()
        .unwrap();
    assert_eq!(connections(&mut setup), before);
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_may_be_dropped_outside_of_a_runtime() {
    let Some(mut setup) = Setup::new("lock-drop-outside") else {
        return;
    };
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    thread::spawn(move || drop(guard)).join().unwrap();
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;
}

#[test]
fn after_the_end_of_the_runtime_the_holder_is_told_and_calls_fail() {
    let first = runtime();
    let Some(setup) = first.block_on(async { Setup::new("lock-runtime-end") }) else {
        return;
    };
    let lease = Duration::from_millis(600);
    let [mut held, mut dropped] =
        ["a", "b"].map(|name| setup.locks.lock_with(name, options().lease(lease)));
    let guard = first.block_on(take(&mut held));
    let other = first.block_on(take(&mut dropped));
    drop(first);
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |loss| tell.send(loss).unwrap());
    drop(other);
    let loss = told.recv_timeout(patience()).unwrap();
    assert!(matches!(loss, Loss::LeaseEnded(_)), "{loss:?}");
    let second = runtime();
    let unlocked = second.block_on(async { within(guard.unlock()).await });
    assert!(
        matches!(unlocked, Err(LockError::Lost(Loss::LeaseEnded(_)))),
        "{unlocked:?}"
    );
    for mut lock in [held, dropped] {
        let failed = second.block_on(async { within(lock.lock()).await });
        assert!(matches!(failed, Err(LockError::Redis(_))), "{failed:?}");
    }
}

// The timer.

#[tokio::test]
async fn a_stopped_timer_does_not_prevent_the_release() {
    let Some(mut setup) = Setup::new("lock-timer-stop") else {
        return;
    };
    // Redis does not know the script of the release yet.
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    setup.timer.stop();
    drop(guard);
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;
}

#[tokio::test]
async fn a_timer_at_its_limit_is_an_error_and_leaves_no_lock() {
    let Some(mut setup) = Setup::new("lock-timer-limit") else {
        return;
    };
    // A held lock needs both timeouts.
    let timer = HashedWheelTimer::builder()
        .max_pending_timeouts(Some(2))
        .build()
        .unwrap();
    let locks = client(&setup.server, &timer);
    let guard = locks.lock_with("a", long()).lock().await.unwrap();
    let failed = within(locks.lock_with("b", long()).lock()).await;
    assert!(matches!(failed, Err(LockError::Timer(_))), "{failed:?}");
    setup
        .until("it is free", |setup| setup.holder("b").is_none())
        .await;
    guard.unlock().await.unwrap();
    locks
        .lock_with("b", long())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    setup
        .until("there is no timeout", |_| timer.pending_timeouts() == 0)
        .await;
}

/// The timer is full at the moment at which the connection for messages is opened.
#[tokio::test]
async fn messages_are_received_after_the_timer_was_full() {
    let Some(mut setup) = Setup::new("lock-timer-full") else {
        return;
    };
    let timer = HashedWheelTimer::builder()
        .max_pending_timeouts(Some(8))
        .build()
        .unwrap();
    let locks = client(&setup.server, &timer);
    // Opens the connection for calls.
    locks
        .lock("warm up")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    // One timeout is left. The caller that waits for the connection has it.
    let others = [(); 7].map(|()| {
        timer
            .new_timeout(|_| (), Duration::from_secs(3_600))
            .unwrap()
    });
    let mut impatient = locks.lock_with("a", long());
    match within(impatient.lock_timeout(Duration::from_millis(50))).await {
        Ok(None) | Err(LockError::Timer(_)) => {}
        taken => panic!("{taken:?}"),
    }
    // The connection needs no timeout.
    setup
        .until("messages are received", |setup| {
            setup.server.subscribed_channels("lock-wake:*").unwrap() == 1
        })
        .await;
    others.iter().for_each(|other| assert!(other.cancel()));
    let mut waiting = locks.lock_with("a", long());
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    guard.unlock().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn leases_below_three_ticks_are_rejected() {
    let tick = Duration::from_millis(100);
    let timer = HashedWheelTimer::new(tick, 64);
    let locks = LockClient::builder(Client::open("redis://127.0.0.1:1/").unwrap())
        .timer(&timer)
        .build()
        .unwrap();
    for (lease, is_valid) in [(0, false), (299, false), (300, true), (86_400_000, true)] {
        let options = LockOptions::new()
            .lease(Duration::from_millis(lease))
            .max_hold(Duration::MAX);
        let failed = locks
            .lock_with("a", options)
            .lock_timeout(Duration::MAX)
            .await;
        let reached_redis = matches!(failed, Err(LockError::Redis(_)));
        assert_eq!(reached_redis, is_valid, "{failed:?}");
        assert_eq!(
            matches!(failed, Err(LockError::Options(_))),
            !is_valid,
            "{failed:?}"
        );
    }
}
