//! Many tasks that take everything, give up, and are aborted, on a real Redis. Nothing stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use redis::Commands;
use redis_lock::{Guard, LockClient, LockOptions};

use super::common::{PATIENCE, Setup, client, options, within};

const TASKS: u64 = 16;
const ROUNDS: u64 = 40;
const PERMITS: i32 = 3;

/// How many are inside: readers, writers, holders of permits and of the lock; and the last token of
/// a writer.
#[derive(Default)]
struct Inside {
    readers: AtomicI32,
    writers: AtomicI32,
    permits: AtomicI32,
    owners: AtomicI32,
    written: AtomicU64,
}

/// Returns pseudorandom numbers.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Counts this holder while it is inside. The future is not dropped there: see `turn`.
async fn visit(guard: Guard, counter: &AtomicI32, most: i32, others: &[&AtomicI32], time: u64) {
    let inside = counter.fetch_add(1, SeqCst) + 1;
    assert!(
        inside <= most,
        "{inside} holders, and at most {most} are allowed"
    );
    assert!(
        others.iter().all(|other| other.load(SeqCst) == 0),
        "a reader and a writer at a time"
    );
    tokio::time::sleep(Duration::from_micros(time)).await;
    guard.check().unwrap();
    counter.fetch_sub(1, SeqCst);
    if time % 2 == 0 {
        guard.unlock().await.unwrap();
    } else {
        drop(guard);
    }
}

/// Takes one of them, for at most a short time, and holds it for a moment.
async fn turn(locks: &LockClient, inside: &Inside, options: LockOptions, state: &mut u64) {
    let Inside {
        readers,
        writers,
        permits,
        owners,
        written,
    } = inside;
    let (kind, time) = (random(state) % 8, random(state) % 2_000);
    let (patience, abort) = (
        Duration::from_micros(random(state) % 60_000),
        random(state) % 3 == 0,
    );
    let abort = Duration::from_micros(if abort {
        random(state) % 5_000
    } else {
        60_000_000
    });
    let rw_lock = locks.rw_lock_with("a", options.clone());
    // Dropping the future at a random time gives up.
    match kind {
        0..3 => {
            let taken =
                tokio::time::timeout(abort, async { rw_lock.read().lock_timeout(patience).await });
            let Ok(Some(guard)) = taken.await.map_or(Ok(None), |taken| taken) else {
                return;
            };
            assert!(
                guard.token() > written.load(SeqCst),
                "a token of a reader is too small"
            );
            visit(guard, readers, i32::MAX, &[writers], time).await;
        }
        3 => {
            let taken = tokio::time::timeout(abort, async {
                rw_lock.write().lock_timeout(patience).await
            });
            let Ok(Some(guard)) = taken.await.map_or(Ok(None), |taken| taken) else {
                return;
            };
            let before = written.swap(guard.token(), SeqCst);
            assert!(before < guard.token(), "a token of a writer is too small");
            visit(guard, writers, 1, &[readers], time).await;
        }
        4..6 => {
            let semaphore = locks.semaphore_with("a", PERMITS as u32, options);
            let taken = tokio::time::timeout(abort, semaphore.acquire_timeout(patience));
            let Ok(Some(guard)) = taken.await.map_or(Ok(None), |taken| taken) else {
                return;
            };
            visit(guard, permits, PERMITS, &[], time).await;
        }
        6 => {
            let mut lock = locks.lock_with("a", options);
            let taken = tokio::time::timeout(abort, lock.lock_timeout(patience));
            let Ok(Some(guard)) = taken.await.map_or(Ok(None), |taken| taken) else {
                return;
            };
            visit(guard, owners, 1, &[], time).await;
        }
        _ => {
            let mut all = locks.multi_lock_with(["b", "a"], options);
            let taken = tokio::time::timeout(abort, all.lock_timeout(patience));
            let Ok(Some(guard)) = taken.await.map_or(Ok(None), |taken| taken) else {
                return;
            };
            assert_eq!(owners.fetch_add(1, SeqCst), 0, "two owners at a time");
            tokio::time::sleep(Duration::from_micros(time)).await;
            owners.fetch_sub(1, SeqCst);
            guard.unlock().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_give_up_at_any_time_exclude_each_other_and_leave_nothing() {
    let Some(mut setup) = Setup::new("lock-mixed") else {
        return;
    };
    let other = client(&setup.server, &setup.timer);
    let inside = Arc::new(Inside::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let locks = if task % 2 == 0 {
                setup.locks.clone()
            } else {
                other.clone()
            };
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                let mut state = task;
                for round in 0..ROUNDS {
                    let fair = (task + round / 4) % 2 == 0;
                    turn(
                        &locks,
                        &inside,
                        options().lease(PATIENCE * 3).fair(fair),
                        &mut state,
                    )
                    .await;
                }
            })
        })
        .collect();
    for task in tasks {
        within(task).await.unwrap();
    }
    // Those who wait for everything get it, and the tokens are all that stays.
    for is_writer in [false, true] {
        let lock = setup.locks.rw_lock_with("a", options().lease(PATIENCE * 3));
        let mut owner = if is_writer { lock.write() } else { lock.read() };
        within(owner.lock()).await.unwrap().unlock().await.unwrap();
    }
    let only_tokens = |setup: &mut Setup| {
        let keys: Vec<String> = setup.redis.keys("*").unwrap();
        keys.iter().all(|key| key.ends_with(":tokens"))
    };
    setup.until("only tokens stay", only_tokens).await;
    let keys: Vec<String> = setup.redis.keys("*").unwrap();
    assert!(keys.len() >= 3, "{keys:?}");
    for key in keys {
        let seconds: i64 = setup.redis.ttl(&key).unwrap();
        assert!(
            (1..=86_400).contains(&seconds),
            "{key} stays for {seconds} s"
        );
    }
    // One timeout per client checks its connection for messages.
    setup
        .until("there is no other timeout", |setup| {
            setup.timer.pending_timeouts() <= 2
        })
        .await;
}

/// While a key is in use, it expires too, in case all its users die.
#[tokio::test]
async fn each_key_in_use_expires() {
    let Some(mut setup) = Setup::new("lock-keys") else {
        return;
    };
    let (lease, poll) = (PATIENCE * 3, PATIENCE);
    let options = options().lease(lease).poll(poll);
    let lock = setup
        .locks
        .lock_with("a", options.clone())
        .lock()
        .await
        .unwrap();
    let semaphore = setup.locks.semaphore_with("a", 1, options.clone());
    let permit = semaphore.acquire().await.unwrap();
    let rw_lock = setup.locks.rw_lock_with("a", options.clone());
    let (reader, mut writer) = (rw_lock.read().lock().await.unwrap(), rw_lock.write());
    let mut next = setup.locks.lock_with("a", options);
    let waiting = tokio::spawn(async move {
        _ = tokio::join!(next.lock(), semaphore.acquire(), writer.lock());
    });
    let families = ["lock", "semaphore", "rwlock"];
    for family in families {
        let queue = format!("{{{family}:a}}:queue");
        setup
            .until("it waits", |setup| {
                setup.redis.zcard::<_, usize>(&queue).unwrap() == 1
            })
            .await;
    }
    let mut keys: Vec<String> = setup.redis.keys("*").unwrap();
    keys.sort();
    let mut all: Vec<_> = families
        .iter()
        .flat_map(|family| {
            ["", ":queue", ":seen", ":tokens"].map(|part| format!("{{{family}:a}}{part}"))
        })
        .collect();
    all.sort();
    assert_eq!(keys, all);
    for key in keys {
        let millis: i64 = setup.redis.pttl(&key).unwrap();
        let most = if key.ends_with(":tokens") {
            Duration::from_secs(86_400)
        } else if key.ends_with('}') {
            lease + Duration::from_millis(1)
        } else {
            (poll * 2 + lease) * 2
        };
        assert!(
            (1..=most.as_millis() as i64).contains(&millis),
            "{key} expires after {millis} ms"
        );
    }
    waiting.abort();
    drop((lock, permit, reader));
}
