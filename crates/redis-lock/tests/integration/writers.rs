//! Callers that wait for a read-write lock or a semaphore, and have died, on a real Redis.

use std::time::{Duration, Instant};

use redis::Commands;
use redis_lock::Guard;

use super::common::{LEASE, READ, Setup, client, long, options, runtime, within};

/// No other message tells the one that waits behind them, and its poll is longer than the patience.
#[tokio::test]
async fn what_is_released_passes_callers_that_died() {
    let Some(mut setup) = Setup::new("lock-die-behind") else {
        return;
    };
    for is_fair in [false, true] {
        let options = long().fair(is_fair);
        let (semaphore, lock) = (
            setup.locks.semaphore_with("a", 1, options.clone()),
            setup.locks.rw_lock_with("a", options),
        );
        let permit = semaphore.acquire().await.unwrap();
        let reading = lock.read().lock().await.unwrap();
        for number in 0..2 {
            setup.add_dead_caller("{semaphore:a}", &format!("a dead client:{number}/0"));
        }
        setup.add_dead_caller("{rwlock:a}", "a dead client:0/w");
        let mut reader = lock.read();
        let waiting = [
            tokio::spawn(async move { semaphore.acquire().await }),
            tokio::spawn(async move { reader.lock().await }),
        ];
        let both_wait = |setup: &mut Setup| {
            (setup.waiting("{semaphore:a}"), setup.waiting("{rwlock:a}")) == (3, 2)
        };
        setup.until("both wait", both_wait).await;
        for guard in [permit, reading] {
            guard.unlock().await.unwrap();
        }
        for waiting in waiting {
            let guard: Guard = within(waiting).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
        }
        let () = redis::cmd("FLUSHALL").query(&mut setup.redis).unwrap();
    }
}

/// The caller that was told to try next gives up. (If it is late, it has entered before.)
#[tokio::test]
async fn a_free_permit_passes_a_caller_that_died_and_one_that_gives_up() {
    let Some(mut setup) = Setup::new("lock-give-up") else {
        return;
    };
    let permit = setup
        .locks
        .semaphore_with("a", 1, long())
        .acquire()
        .await
        .unwrap();
    setup.add_dead_caller("{semaphore:a}", "a dead client:0/0");
    let mut waiting = Vec::new();
    for count in 2..4 {
        let semaphore = setup.locks.semaphore_with("a", 1, long());
        waiting.push(tokio::spawn(async move { semaphore.acquire().await }));
        setup
            .until("it waits", |setup| setup.waiting("{semaphore:a}") == count)
            .await;
    }
    permit.unlock().await.unwrap();
    waiting.remove(0).abort();
    within(waiting.remove(0))
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// A writer waits before them all, so they do not become the first.
#[tokio::test]
async fn callers_that_died_behind_a_waiting_writer_leave_the_queue() {
    let Some(mut setup) = Setup::new("lock-dead-behind") else {
        return;
    };
    let options = long().poll(Duration::from_millis(100));
    let lock = setup.locks.rw_lock_with("a", options);
    let reading = lock.read().lock().await.unwrap();
    let (mut writer, mut reader) = (lock.write(), lock.read());
    let writing = tokio::spawn(async move { writer.lock().await });
    setup
        .until("it waits", |setup| setup.waiting("{rwlock:a}") == 1)
        .await;
    let dead: Vec<_> = (0..6)
        .map(|number| format!("a dead client:{number}/{READ}"))
        .collect();
    let add = |setup: &mut Setup, dead: &[String]| {
        for owner in dead {
            let now = setup.clock() * 1_000;
            setup.add_dead_caller_at(now, "{rwlock:a}", owner);
        }
    };
    add(&mut setup, &dead[..3]);
    let reading_later = tokio::spawn(async move { reader.lock().await });
    setup
        .until("both wait", |setup| setup.waiting("{rwlock:a}") == 5)
        .await;
    add(&mut setup, &dead[3..]);
    for owner in &dead {
        let () = setup.redis.hset("{rwlock:a}:seen", owner, 1).unwrap();
    }
    setup
        .until("only they wait", |setup| setup.waiting("{rwlock:a}") == 2)
        .await;
    reading.unlock().await.unwrap();
    let guard = within(writing).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    let guard = within(reading_later).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}

/// The lease of the reader and the polls are longer than the patience.
#[tokio::test]
async fn a_waiting_writer_that_died_keeps_readers_out_for_a_lease() {
    let Some(mut setup) = Setup::new("lock-dead-writer") else {
        return;
    };
    for is_fair in [false, true] {
        let lock = setup.locks.rw_lock_with("a", long().fair(is_fair));
        let reading = lock.read().lock().await.unwrap();
        let doomed = runtime();
        let entered = doomed.enter();
        let others = client(&setup.server, &setup.timer);
        drop(entered);
        let mut writer = others
            .rw_lock_with("a", options().lease(LEASE).fair(is_fair))
            .write();
        doomed.spawn(async move { writer.lock().await.map(drop) });
        setup
            .until("it waits", |setup| setup.waiting("{rwlock:a}") == 1)
            .await;
        doomed.shutdown_background();
        assert!(
            lock.read().try_lock().await.unwrap().is_none(),
            "a reader overtook the writer"
        );
        within(lock.read().lock())
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        reading.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_writer_keeps_its_place_for_longer_than_a_lease() {
    let Some(mut setup) = Setup::new("lock-live-writer") else {
        return;
    };
    let lock = setup.locks.rw_lock_with("a", long());
    let reading = lock.read().lock().await.unwrap();
    // Long enough for calls on a machine that is busy.
    let lease = LEASE * 2;
    let mut writer = setup
        .locks
        .rw_lock_with("a", options().lease(lease))
        .write();
    let writing = tokio::spawn(async move { writer.lock().await });
    setup
        .until("it waits", |setup| setup.waiting("{rwlock:a}") == 1)
        .await;
    let begin = Instant::now();
    while begin.elapsed() < lease * 4 / 3 {
        assert!(
            lock.read().try_lock().await.unwrap().is_none(),
            "a reader overtook the writer"
        );
        tokio::time::sleep(lease / 20).await;
    }
    reading.unlock().await.unwrap();
    within(writing)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}
