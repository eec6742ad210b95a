//! Losses of a lock, and the callbacks that tell of them.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use redis_lock::{LockError, Loss};

use super::common::{Setup, long, options, patience, take, take_away, within};

#[tokio::test]
async fn re_entry_detects_another_owner() {
    let Some(mut setup) = Setup::new("lock-reentry-other") else {
        return;
    };
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    take_away(&mut setup.redis, "a");
    let again = lock.lock().await;
    assert!(
        matches!(again, Err(LockError::Lost(Loss::OtherOwner))),
        "{again:?}"
    );
    assert_eq!(
        setup.timer.pending_timeouts(),
        0,
        "the lost lock is still watched"
    );
    assert!(matches!(
        guard.unlock().await,
        Err(LockError::Lost(Loss::OtherOwner))
    ));
}

#[tokio::test]
async fn an_unlock_says_who_has_the_lock() {
    let Some(mut setup) = Setup::new("lock-unlock-other") else {
        return;
    };
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    take_away(&mut setup.redis, "a");
    assert!(matches!(
        guard.unlock().await,
        Err(LockError::Lost(Loss::OtherOwner))
    ));
    let guard = setup.locks.lock_with("b", long()).lock().await.unwrap();
    let () = setup.redis.del("{lock:b}").unwrap();
    assert!(matches!(
        guard.unlock().await,
        Err(LockError::Lost(Loss::NoOwner))
    ));
}

/// Redis still has the lock.
#[tokio::test]
async fn an_unlock_of_a_lost_lock_does_not_wait_for_redis() {
    let Some(mut setup) = Setup::new("lock-unlock-lost") else {
        return;
    };
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    setup.timer.stop();
    assert_eq!(within(guard.lost()).await, Loss::Timer);
    let unlocked = pin!(guard.unlock()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(
        matches!(unlocked, Poll::Ready(Err(LockError::Lost(Loss::Timer)))),
        "{unlocked:?}"
    );
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;
}

#[tokio::test]
async fn a_lost_lock_is_not_renewed() {
    let Some(mut setup) = Setup::new("lock-lost-renewal") else {
        return;
    };
    let mut guards = Vec::new();
    for number in 0..8 {
        // Each lease has its own renewals.
        let options = options().lease(Duration::from_millis(600 + 37 * number));
        guards.push(take(&mut setup.locks.lock_with(&number.to_string(), options)).await);
    }
    // Nearly all the time, a renewal waits for its answer.
    setup.server.freeze().unwrap();
    for guard in &guards {
        let loss = within(guard.lost()).await;
        assert!(matches!(loss, Loss::LeaseEnded(_)), "{loss:?}");
    }
    setup
        .until("there is no renewal", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(setup.timer.pending_timeouts(), 0);
    setup.server.thaw().unwrap();
}

#[tokio::test]
async fn the_maximum_holding_time_is_the_reason() {
    let Some(setup) = Setup::new("lock-max-reason") else {
        return;
    };
    let [lease, max_hold] = [3_000, 3_200].map(Duration::from_millis);
    // On a machine that stalls for the length of the lease, the lease ends first.
    for _ in 0..4 {
        let mut lock = setup
            .locks
            .lock_with("a", options().lease(lease).max_hold(max_hold));
        let begin = Instant::now();
        let guard = take(&mut lock).await;
        // The watchdog has no part in it.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let Ok(again) = lock.lock().await else {
            continue;
        };
        let loss = within(guard.lost()).await;
        assert!(
            begin.elapsed() >= max_hold - Duration::from_millis(2),
            "{:?}",
            begin.elapsed()
        );
        drop((guard, again));
        if loss == Loss::HeldTooLong {
            return;
        }
    }
    panic!("the reason was never {:?}", Loss::HeldTooLong);
}

/// Returns what `lock` returns to a task that is stalled for longer than the lease while it waits
/// for the answer. Returns `None` if the answer comes before the stall.
async fn lock_while_stalled(
    setup: &mut Setup,
    name: &str,
    lease: Duration,
) -> Option<Result<(), LockError>> {
    let mut lock = setup.locks.lock_with(name, options().lease(lease));
    let mut taking = pin!(lock.lock());
    let was_stalled = Cell::new(false);
    let taken = std::future::poll_fn(|context| {
        let polled = taking.as_mut().poll(context);
        if polled.is_pending() && !was_stalled.replace(true) {
            let begin = Instant::now();
            while !setup
                .redis
                .exists::<_, bool>(format!("{{lock:{name}}}:tokens"))
                .unwrap()
            {
                assert!(
                    begin.elapsed() < patience(),
                    "Redis has not granted the lock"
                );
            }
            thread::sleep(lease + Duration::from_millis(100));
        }
        polled
    })
    .await;
    was_stalled.get().then(|| taken.map(drop))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_stalled_does_not_get_a_lock_that_is_over() {
    let Some(mut setup) = Setup::new("lock-stall") else {
        return;
    };
    setup
        .locks
        .lock("a")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    // On a busy machine the answer may come before the stall, or after it.
    for name in (0..100).map(|number| number.to_string()) {
        match lock_while_stalled(&mut setup, &name, Duration::from_millis(500)).await {
            None | Some(Err(LockError::Redis(_))) => {}
            Some(Err(LockError::Lost(loss))) => {
                assert_eq!(loss, Loss::LeaseEnded(None));
                return setup
                    .until("it is free", |setup| setup.holder(&name).is_none())
                    .await;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the answer never came in time");
}

// Callbacks.

#[tokio::test]
async fn a_callback_that_panics_while_it_is_dropped_has_no_effect() {
    struct PanicOnDrop(Arc<AtomicUsize>);

    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            panic!("on purpose");
        }
    }

    let Some(mut setup) = Setup::new("lock-callback-drop") else {
        return;
    };
    let drops = Arc::new(AtomicUsize::new(0));
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    for _ in 0..2 {
        let on_drop = PanicOnDrop(Arc::clone(&drops));
        guard.on_lost(move |_| drop(on_drop));
    }
    guard.unlock().await.unwrap();
    assert_eq!(drops.load(SeqCst), 2);
    assert_eq!(
        (setup.holder("a"), setup.timer.pending_timeouts()),
        (None, 0)
    );
}

/// It has the last reference to it.
#[tokio::test]
async fn a_callback_may_use_and_drop_its_guard() {
    let Some(setup) = Setup::new("lock-callback-guard") else {
        return;
    };
    let lease = Duration::from_millis(300);
    let guard = take(
        &mut setup
            .locks
            .lock_with("a", options().lease(lease).watchdog(false)),
    )
    .await;
    let guard = Arc::new(guard);
    let (own, (tell, told)) = (Arc::clone(&guard), mpsc::channel());
    guard.on_lost(move |loss| {
        let is_lost = own.check().is_err();
        own.on_lost(move |again| tell.send((loss, again, is_lost)).unwrap());
    });
    drop(guard);
    let told = tokio::task::spawn_blocking(move || told.recv_timeout(patience()))
        .await
        .unwrap();
    assert_eq!(
        told,
        Ok((Loss::LeaseEnded(None), Loss::LeaseEnded(None), true))
    );
}
