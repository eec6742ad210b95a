//! Several locks as one, on a real Redis.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use redis::Commands;
use redis_lock::{LockError, Loss, MultiGuard};

use super::common::{ANOTHER, LEASE, Setup, client, long, options, take_away, within};

#[tokio::test]
async fn all_locks_are_taken_or_none() {
    let Some(mut setup) = Setup::new("lock-multi") else {
        return;
    };
    let mut locks = setup.locks.multi_lock_with(["c", "a", "b", "a"], long());
    assert!(locks.names().eq(["a", "b", "c"]));
    let guard = locks.try_lock().await.unwrap().expect("all are free");
    let tokens: Vec<_> = guard
        .tokens()
        .map(|(name, token)| (name.to_owned(), token))
        .collect();
    for (name, token) in &tokens {
        assert_eq!(setup.last_token(&format!("{{lock:{name}}}")), *token);
        assert!(setup.locks.lock(name).try_lock().await.unwrap().is_none());
    }
    assert_eq!(tokens.len(), 3);
    guard.check().unwrap();
    // The owner may take them again.
    locks.lock().await.unwrap().unlock().await.unwrap();
    assert!(setup.holder("a").is_some());
    guard.unlock().await.unwrap();

    let held = setup.locks.lock_with("b", long()).lock().await.unwrap();
    assert!(locks.try_lock().await.unwrap().is_none());
    assert_eq!([setup.holder("a"), setup.holder("c")], [None, None]);
    assert!(
        locks
            .lock_timeout(Duration::from_millis(50))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!([setup.holder("a"), setup.holder("c")], [None, None]);
    setup
        .until("it has left the queue", |setup| setup.queue_len("b") == 0)
        .await;
    let waiting = tokio::spawn(async move { locks.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("b") == 1)
        .await;
    held.unlock().await.unwrap();
    drop(within(waiting).await.unwrap().unwrap());
    for name in ["a", "b", "c"] {
        setup
            .until("the dropped guard has released it", |setup| {
                setup.holder(name).is_none()
            })
            .await;
    }
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() <= 1
        })
        .await;
    let failed = setup.locks.multi_lock(<[&str; 0]>::default()).lock().await;
    let Err(LockError::Options(why)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(why, "a lock of several has no names; it needs at least one");
}

#[tokio::test]
async fn locks_are_taken_in_the_order_of_their_names() {
    let Some(mut setup) = Setup::new("lock-multi-order") else {
        return;
    };
    let held = setup.locks.lock_with("b", long()).lock().await.unwrap();
    let mut locks = setup.locks.multi_lock_with(["c", "b", "a"], long());
    let waiting = tokio::spawn(async move { locks.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("b") == 1)
        .await;
    assert!(setup.holder("a").is_some() && setup.holder("c").is_none());
    waiting.abort();
    setup
        .until("none is held", |setup| setup.holder("a").is_none())
        .await;
    setup
        .until("it has left the queue", |setup| setup.queue_len("b") == 0)
        .await;
    held.unlock().await.unwrap();
}

/// Each takes two of three locks, and names them in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_never_wait_in_a_circle() {
    const ROUNDS: u32 = 50;
    let Some(setup) = Setup::new("lock-multi-circle") else {
        return;
    };
    let inside = Arc::new([(); 3].map(|()| AtomicU32::new(0)));
    let tasks: Vec<_> = [[0, 1], [1, 2], [2, 0], [1, 0]]
        .into_iter()
        .map(|pair| {
            let names = pair.map(|number| format!("circle-{number}"));
            let (mut locks, inside) = (
                setup.locks.multi_lock_with(names, long()),
                Arc::clone(&inside),
            );
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = locks.lock().await.unwrap();
                    assert!(
                        pair.iter()
                            .all(|&number| inside[number].fetch_add(1, SeqCst) == 0)
                    );
                    tokio::task::yield_now().await;
                    pair.iter()
                        .for_each(|&number| _ = inside[number].fetch_sub(1, SeqCst));
                    guard.unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        within(task).await.unwrap();
    }
}

#[tokio::test]
async fn one_lost_lock_is_a_loss() {
    let Some(mut setup) = Setup::new("lock-multi-lost") else {
        return;
    };
    let guard = setup
        .locks
        .multi_lock_with(["a", "b"], options().lease(LEASE))
        .lock()
        .await
        .unwrap();
    let losses = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&losses);
    guard.on_lost(move |loss| record.lock().unwrap().push(loss));
    let () = setup.redis.del("{lock:b}").unwrap();
    let loss = within(guard.lost()).await;
    // On a machine that stalls for two thirds of the lease, the lease ends first.
    assert!(
        matches!(loss, Loss::NoOwner | Loss::LeaseEnded(_)),
        "{loss:?}"
    );
    assert!(matches!(guard.check(), Err(LockError::Lost(_))));
    setup
        .until("it was called", |_| !losses.lock().unwrap().is_empty())
        .await;
    assert!(setup.holder("a").is_some(), "the other one is held");
    assert!(matches!(guard.unlock().await, Err(LockError::Lost(_))));
    assert_eq!(setup.holder("a"), None);
    assert_eq!(*losses.lock().unwrap(), [loss]);
}

#[tokio::test]
async fn a_lock_that_is_lost_while_others_are_awaited_ends_the_waiting() {
    let Some(mut setup) = Setup::new("lock-multi-early") else {
        return;
    };
    let held = setup.locks.lock_with("b", long()).lock().await.unwrap();
    let mut locks = setup
        .locks
        .multi_lock_with(["a", "b"], options().lease(LEASE));
    let waiting = tokio::spawn(async move { locks.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("b") == 1)
        .await;
    take_away(&mut setup.redis, "a");
    let failed = within(waiting).await.unwrap();
    assert!(matches!(failed, Err(LockError::Lost(_))), "{failed:?}");
    setup
        .until("it has left the queue", |setup| setup.queue_len("b") == 0)
        .await;
    assert_eq!(setup.holder("a").as_deref(), Some(ANOTHER));
    held.unlock().await.unwrap();
}

/// The timer's thread is blocked, so it reports no end of a lease.
#[tokio::test]
async fn a_lease_that_has_ended_while_others_were_awaited_is_a_loss() {
    let Some(mut setup) = Setup::new("lock-multi-late") else {
        return;
    };
    let held = setup.locks.lock_with("b", long()).lock().await.unwrap();
    let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
    let locks = client(&setup.server, &timer);
    let mut both = locks.multi_lock_with(["a", "b"], options().lease(LEASE / 2).watchdog(false));
    let waiting = tokio::spawn(async move { both.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("b") == 1)
        .await;
    let (free, blocked) = mpsc::channel::<()>();
    let _blocks = timer
        .new_timeout(move |_| _ = blocked.recv(), Duration::ZERO)
        .unwrap();
    setup
        .until("the first lease has ended", |setup| {
            setup.holder("a").is_none()
        })
        .await;
    held.unlock().await.unwrap();
    let failed = within(waiting).await.unwrap();
    drop(free);
    assert!(
        matches!(failed, Err(LockError::Lost(Loss::LeaseEnded(_)))),
        "{failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_runs_under_all_locks_and_returns_its_output() {
    let Some(mut setup) = Setup::new("lock-multi-work") else {
        return;
    };
    let mut locks = setup.locks.multi_lock_with(["a", "b"], long());
    let [mut a, mut b] = ["a", "b"].map(|name| setup.locks.lock_with(name, long()));
    let working = tokio::spawn(async move {
        let work = async |guard: &MultiGuard| {
            assert!(a.try_lock().await.unwrap().is_none() && b.try_lock().await.unwrap().is_none());
            guard.check().unwrap();
            guard.tokens().count()
        };
        locks.with_lock(work).await
    });
    assert_eq!(within(working).await.unwrap().unwrap(), 2);
    assert_eq!([setup.holder("a"), setup.holder("b")], [None, None]);
    let guard = setup
        .locks
        .multi_lock_with(["a", "b"], long())
        .try_lock()
        .await
        .unwrap()
        .unwrap();
    let failed: Result<u8, &str> = guard.run(async |_| Err("of the work")).await.unwrap();
    assert_eq!(failed, Err("of the work"));
}

#[tokio::test]
async fn work_is_cancelled_when_one_of_the_locks_is_lost() {
    let Some(mut setup) = Setup::new("lock-multi-cancel") else {
        return;
    };
    let mut locks = setup
        .locks
        .multi_lock_with(["a", "b"], options().lease(LEASE));
    let (tell, told) = tokio::sync::oneshot::channel();
    let (canary, dropped) = tokio::sync::oneshot::channel::<()>();
    let working = tokio::spawn(async move {
        let work = async move |_: &MultiGuard| {
            let _canary = canary;
            tell.send(()).unwrap();
            pending::<()>().await;
        };
        locks.with_lock(work).await
    });
    within(told).await.unwrap();
    take_away(&mut setup.redis, "b");
    let ended = within(working).await.unwrap();
    // On a machine that stalls for two thirds of the lease, the lease ends first.
    let is_lost = matches!(
        ended,
        Err(LockError::Lost(Loss::OtherOwner | Loss::LeaseEnded(_)))
    );
    assert!(is_lost, "{ended:?}");
    within(dropped).await.unwrap_err();
    setup
        .until("the other one is free", |setup| setup.holder("a").is_none())
        .await;
    assert_eq!(setup.holder("b").as_deref(), Some(ANOTHER));
}

/// The work ends, but another owner has one of the locks.
#[tokio::test]
async fn a_loss_of_one_lock_that_the_release_finds_is_an_error() {
    let Some(mut setup) = Setup::new("lock-multi-release") else {
        return;
    };
    let redis = &mut setup.redis;
    let work = async |_: &MultiGuard| take_away(redis, "b");
    let ended = setup
        .locks
        .multi_lock_with(["a", "b"], long())
        .with_lock(work)
        .await;
    assert!(
        matches!(ended, Err(LockError::Lost(Loss::OtherOwner))),
        "{ended:?}"
    );
    assert_eq!(setup.holder("a"), None);
}
