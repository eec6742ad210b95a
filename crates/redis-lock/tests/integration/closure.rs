//! The closure form: the work is cancelled when the lock is lost.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use redis::Client;
use redis_lock::{Guard, LockClient, LockError, Loss};

use super::common::{ANOTHER, LEASE, Setup, long, options, take_away, within};

/// Says when it is dropped.
struct Canary(Arc<AtomicBool>);

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Tasks of a runtime with several threads run it, with borrowed and with moved values.
#[tokio::test(flavor = "multi_thread")]
async fn work_runs_in_tasks_under_the_lock_and_returns_its_output() {
    let Some(mut setup) = Setup::new("closure-tasks") else {
        return;
    };
    let (is_held, turns) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let (locks, is_held, turns) = (
                setup.locks.clone(),
                Arc::clone(&is_held),
                Arc::clone(&turns),
            );
            tokio::spawn(async move {
                let mut last = 0;
                for _ in 0..10 {
                    let name = String::from("a");
                    let work = async |guard: &Guard| {
                        assert!(!is_held.swap(true, SeqCst), "two owners at a time");
                        tokio::time::sleep(Duration::from_micros(200)).await;
                        guard.check().unwrap();
                        is_held.store(false, SeqCst);
                        turns.fetch_add(1, SeqCst);
                        guard.token()
                    };
                    let token = if number % 2 == 0 {
                        locks.with_lock(&name, work).await.unwrap()
                    } else {
                        locks
                            .lock_with(&name, long())
                            .with_lock(work)
                            .await
                            .unwrap()
                    };
                    assert!(token > last);
                    last = token;
                }
            })
        })
        .collect();
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(turns.load(SeqCst), 40);
    assert_eq!(setup.holder("a"), None);
    // Directly, without a block around it.
    let locks = setup.locks.clone();
    let mut lock = locks.lock_with("a", long());
    let spawned = tokio::spawn(async move { lock.with_lock(async |guard| guard.token()).await });
    let failed: Result<u8, &str> = locks
        .with_lock("b", async |_| Err("of the work"))
        .await
        .unwrap();
    assert_eq!(failed, Err("of the work"));
    assert!(within(spawned).await.unwrap().unwrap() > 0);
}

#[tokio::test]
async fn work_is_cancelled_when_the_lock_is_lost() {
    let Some(mut setup) = Setup::new("closure-lost") else {
        return;
    };
    let is_dropped = Arc::new(AtomicBool::new(false));
    let (tell, told) = tokio::sync::oneshot::channel();
    let (mut lock, canary) = (
        setup.locks.lock_with("a", options().lease(LEASE)),
        Arc::clone(&is_dropped),
    );
    let working = tokio::spawn(async move {
        lock.with_lock(async move |_| {
            let _canary = Canary(canary);
            tell.send(()).unwrap();
            pending::<()>().await;
        })
        .await
    });
    within(told).await.unwrap();
    assert!(!is_dropped.load(SeqCst));
    take_away(&mut setup.redis, "a");
    let ended = within(working).await.unwrap();
    // On a machine that stalls for two thirds of the lease, the lease ends first.
    let is_lost = matches!(
        ended,
        Err(LockError::Lost(Loss::OtherOwner | Loss::LeaseEnded(_)))
    );
    assert!(is_lost, "{ended:?}");
    assert!(is_dropped.load(SeqCst));
    assert_eq!(setup.holder("a").as_deref(), Some(ANOTHER));
}

/// The timer's thread is blocked, so it reports no end of a lease.
#[tokio::test]
async fn work_is_not_polled_after_the_end_of_the_lease() {
    let Some(setup) = Setup::new("closure-late") else {
        return;
    };
    let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
    let client = Client::open(setup.server.url()).unwrap();
    let locks = LockClient::builder(client).timer(&timer).build().unwrap();
    let lease = Duration::from_secs(3);
    let guard = locks
        .lock_with("a", options().lease(lease).watchdog(false))
        .lock()
        .await
        .unwrap();
    let (free, blocked) = mpsc::channel::<()>();
    let _blocks = timer
        .new_timeout(move |_| _ = blocked.recv(), Duration::ZERO)
        .unwrap();
    let ended = guard
        .run(async |_| {
            tokio::task::yield_now().await;
            // The task stalls, and is woken after that.
            thread::sleep(lease);
            tokio::task::yield_now().await;
            unreachable!("it is polled after the end of the lease");
        })
        .await;
    drop(free);
    let ended: Result<(), _> = ended;
    assert!(
        matches!(ended, Err(LockError::Lost(Loss::LeaseEnded(_)))),
        "{ended:?}"
    );
}

/// The work ends, but another owner has the lock.
#[tokio::test]
async fn a_loss_that_the_release_finds_is_an_error() {
    let Some(mut setup) = Setup::new("closure-release") else {
        return;
    };
    let redis = &mut setup.redis;
    let work = async |_: &Guard| take_away(redis, "a");
    let ended = setup.locks.lock_with("a", long()).with_lock(work).await;
    assert!(
        matches!(ended, Err(LockError::Lost(Loss::OtherOwner))),
        "{ended:?}"
    );
}

/// The work was done under the lock, and the release is repeated in the background.
#[tokio::test]
async fn a_release_without_an_answer_keeps_the_output() {
    let Some(mut setup) = Setup::new("closure-down") else {
        return;
    };
    let server = &mut setup.server;
    let work = async |_: &Guard| server.kill().unwrap();
    within(
        setup
            .locks
            .lock_with("a", options().lease(LEASE))
            .with_lock(work),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn a_dropped_future_and_a_panic_release_the_lock() {
    let Some(mut setup) = Setup::new("closure-drop") else {
        return;
    };
    let is_dropped = Arc::new(AtomicBool::new(false));
    let (mut lock, canary) = (setup.locks.lock_with("a", long()), Arc::clone(&is_dropped));
    let (tell, told) = tokio::sync::oneshot::channel();
    let working = tokio::spawn(async move {
        let work = async move |_: &Guard| {
            let _canary = Canary(canary);
            tell.send(()).unwrap();
            pending::<()>().await;
        };
        lock.with_lock(work).await
    });
    within(told).await.unwrap();
    working.abort();
    assert!(within(working).await.unwrap_err().is_cancelled());
    assert!(is_dropped.load(SeqCst));
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;

    let mut lock = setup.locks.lock_with("a", long());
    let panicking =
        tokio::spawn(async move { lock.with_lock(async |_| panic!("on purpose")).await });
    let ended: Result<Result<(), _>, _> = within(panicking).await;
    assert!(ended.unwrap_err().is_panic());
    setup
        .until("it is free", |setup| setup.holder("a").is_none())
        .await;
}
