//! Callers that wait for a read-write lock or a semaphore, and have died, on a real Redis.

use redis_lock::Guard;

use super::common::{READ, Setup, long, within};

/// No other message tells the one that waits behind them, and its poll is longer than the patience.
#[tokio::test]
async fn what_is_released_passes_callers_that_died() {
    let Some(mut setup) = Setup::new("lock-die-behind") else { return };
    for is_fair in [false, true] {
        let options = long().fair(is_fair);
        let (semaphore, lock) =
            (setup.locks.semaphore_with("a", 1, options.clone()), setup.locks.rw_lock_with("a", options));
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
