//! The queue of a lock, when callers in it are late or have died.

use std::time::{Duration, Instant};

use redis::{Client, Commands};
use redis_lock::{Lock, LockClient};
use tokio::runtime::Runtime;

use super::common::{
    LEASE, PATIENCE, Setup, client, long, options, restricted_user, runtime, take, within,
};

/// The first of the queue is told, but tries after its time to take the lock is over.
#[tokio::test]
async fn a_late_caller_takes_a_free_fair_lock() {
    let Some(mut setup) = Setup::new("lock-late") else {
        return;
    };
    let fair = long().fair(true);
    let guard = setup
        .locks
        .lock_with("a", fair.clone())
        .lock()
        .await
        .unwrap();
    let mut late = setup
        .locks
        .lock_with("a", fair.poll(Duration::from_millis(100)));
    let late = tokio::spawn(async move { late.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    let [(owner, arrival)]: [(String, f64); 1] = setup
        .redis
        .zrange_withscores("{lock:a}:queue", 0, 0)
        .unwrap();
    let () = redis::pipe()
        .atomic()
        .del("{lock:a}")
        .hset("{lock:a}:seen", owner, 1)
        .zadd("{lock:a}:queue", "a stalled client:0/w", arrival + 1.0)
        .hset("{lock:a}:seen", "a stalled client:0/w", 1_u64 << 52)
        .query(&mut setup.redis)
        .unwrap();
    let late = within(late).await.unwrap().unwrap();
    assert_eq!(
        setup.queue_len("a"),
        1,
        "the next of the queue had to die first"
    );
    late.unlock().await.unwrap();
    assert!(guard.unlock().await.is_err());
}

/// The first of the queue was told, and has died. The others were not told.
#[tokio::test]
async fn a_refused_caller_passes_a_free_fair_lock_on() {
    let Some(mut setup) = Setup::new("lock-pass-on") else {
        return;
    };
    let fair = options().lease(PATIENCE * 3).fair(true);
    let guard = setup
        .locks
        .lock_with("a", fair.clone())
        .lock()
        .await
        .unwrap();
    let mut second = setup.locks.lock_with("a", fair.clone());
    let second = tokio::spawn(async move { second.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    let () = redis::pipe()
        .atomic()
        .del("{lock:a}")
        .zadd("{lock:a}:queue", "a dead client:0/w", 1)
        .hset("{lock:a}:seen", "a dead client:0/w", 1)
        .query(&mut setup.redis)
        .unwrap();
    assert!(
        setup
            .locks
            .lock_with("a", fair.clone())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    within(second)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(guard.unlock().await.is_err());

    // If the second one has died too, it loses its place soon.
    let () = redis::pipe()
        .atomic()
        .zadd("{lock:b}:queue", "a dead client:0/w", 1)
        .hset("{lock:b}:seen", "a dead client:0/w", 1)
        .zadd("{lock:b}:queue", "a dead client:1/w", 2)
        .hset("{lock:b}:seen", "a dead client:1/w", 1_u64 << 52)
        .query(&mut setup.redis)
        .unwrap();
    let mut third = setup.locks.lock_with("b", fair);
    within(third.lock()).await.unwrap().unlock().await.unwrap();
}

/// A client whose process dies with its runtime: it releases nothing, and leaves no queue.
fn doomed_client(setup: &Setup) -> (Runtime, LockClient) {
    let doomed = runtime();
    let entered = doomed.enter();
    let locks = client(&setup.server, &setup.timer);
    drop(entered);
    (doomed, locks)
}

/// Makes a caller wait on a runtime, behind `before` others.
async fn wait_on(doomed: &Runtime, mut lock: Lock, before: usize, setup: &mut Setup) {
    doomed.spawn(async move { std::mem::forget(take(&mut lock).await) });
    setup
        .until("it waits", |setup| setup.queue_len("a") == before + 1)
        .await;
}

/// No release offers the lock to the callers that died, and their places would be kept for longer
/// than the patience. The next caller gets no messages: it has no rights for the channels.
#[tokio::test]
async fn a_free_fair_lock_passes_callers_that_died_with_its_holder() {
    const DEAD: usize = 8;
    let Some(mut setup) = Setup::new("lock-die-together") else {
        return;
    };
    let fair = options().lease(LEASE / 2).fair(true);
    let (doomed, locks) = doomed_client(&setup);
    std::mem::forget(take(&mut locks.lock_with("a", fair.clone())).await);
    for before in 0..DEAD {
        wait_on(
            &doomed,
            locks.lock_with("a", fair.clone()),
            before,
            &mut setup,
        )
        .await;
    }
    let url = restricted_user(
        &setup.server.url(),
        "poll",
        "resetchannels -publish -subscribe",
    );
    let silent = LockClient::builder(Client::open(url).unwrap())
        .timer(&setup.timer)
        .build()
        .unwrap();
    let mut next = silent.lock_with("a", fair);
    let next = tokio::spawn(async move { take(&mut next).await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == DEAD + 1)
        .await;
    doomed.shutdown_background();
    within(next).await.unwrap().unlock().await.unwrap();
}

/// Neither a release nor the first waiting caller wakes the next one, and places are kept for
/// longer than the patience. So it tries at the end of the lease.
#[tokio::test]
async fn a_crash_of_the_holder_and_the_first_waiting_caller_costs_the_rest_of_the_lease() {
    let Some(mut setup) = Setup::new("lock-crash") else {
        return;
    };
    for is_fair in [false, true] {
        let options = options().lease(LEASE / 2).fair(is_fair);
        let (doomed, locks) = doomed_client(&setup);
        std::mem::forget(take(&mut locks.lock_with("a", options.clone())).await);
        wait_on(
            &doomed,
            locks.lock_with("a", options.clone()),
            0,
            &mut setup,
        )
        .await;
        let mut next = setup.locks.lock_with("a", options);
        let next = tokio::spawn(async move { take(&mut next).await });
        setup
            .until("both wait", |setup| setup.queue_len("a") == 2)
            .await;
        doomed.shutdown_background();
        let left: i64 = setup.redis.pttl("{lock:a}").unwrap();
        let crash = Instant::now();
        let guard = within(next).await.unwrap();
        // 50 ms, and 500 ms if it is fair. The rest is for a busy machine.
        let most = Duration::from_millis(left.max(0) as u64) + LEASE / 2;
        assert!(
            crash.elapsed() < most,
            "{:?}, not within {most:?}",
            crash.elapsed()
        );
        guard.unlock().await.unwrap();
    }
}

/// Two callers of one client were the first ones. The next one has a poll and a lease that are
/// longer than the patience.
#[tokio::test]
async fn a_released_lock_passes_callers_that_died() {
    let Some(mut setup) = Setup::new("lock-die-released") else {
        return;
    };
    for is_fair in [false, true] {
        let options = long().fair(is_fair);
        let guard = setup
            .locks
            .lock_with("a", options.clone())
            .lock()
            .await
            .unwrap();
        let (doomed, locks) = doomed_client(&setup);
        for before in 0..2 {
            wait_on(
                &doomed,
                locks.lock_with("a", options.clone()),
                before,
                &mut setup,
            )
            .await;
        }
        let mut next = setup.locks.lock_with("a", options);
        let next = tokio::spawn(async move { next.lock().await });
        setup
            .until("all wait", |setup| setup.queue_len("a") == 3)
            .await;
        doomed.shutdown_background();
        guard.unlock().await.unwrap();
        within(next).await.unwrap().unwrap().unlock().await.unwrap();
        let () = redis::cmd("FLUSHALL").query(&mut setup.redis).unwrap();
    }
}

/// The lock is not released: Redis evicts or deletes it, alone or with its queue.
#[tokio::test]
async fn a_deleted_lock_passes_a_caller_that_died() {
    let Some(mut setup) = Setup::new("lock-die-deleted") else {
        return;
    };
    let deletions = [
        &["DEL", "{lock:a}"][..],
        &["DEL", "{lock:a}", "{lock:a}:seen"],
        &["FLUSHALL"],
    ];
    for (deletion, is_fair) in deletions
        .into_iter()
        .flat_map(|deletion| [(deletion, false), (deletion, true)])
    {
        let options = long().poll(Duration::from_millis(200)).fair(is_fair);
        let guard = setup
            .locks
            .lock_with("a", options.clone())
            .lock()
            .await
            .unwrap();
        let (doomed, locks) = doomed_client(&setup);
        wait_on(
            &doomed,
            locks.lock_with("a", options.clone()),
            0,
            &mut setup,
        )
        .await;
        let mut second = setup.locks.lock_with("a", options);
        let second = tokio::spawn(async move { second.lock().await });
        setup
            .until("both wait", |setup| setup.queue_len("a") == 2)
            .await;
        doomed.shutdown_background();
        let () = redis::cmd(deletion[0])
            .arg(&deletion[1..])
            .query(&mut setup.redis)
            .unwrap();
        within(second)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        assert!(guard.unlock().await.is_err());
        let () = redis::cmd("FLUSHALL").query(&mut setup.redis).unwrap();
    }
}
