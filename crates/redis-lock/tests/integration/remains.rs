//! Names, tokens, leases, and what a lock leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use redis::Commands;
use redis_lock::LockError;
use tokio::runtime::Handle;

use super::common::{PATIENCE, Setup, client, long, options, within};

/// A call that also renewed the locks with short leases would fail after a sixth of those.
#[tokio::test]
async fn locks_with_different_leases_do_not_share_calls() {
    let Some(mut setup) = Setup::new("lock-leases") else {
        return;
    };
    let mut redis = hashed_wheel_trial::redis_server::connect(&setup.server.url()).unwrap();
    let mut count = |command: &str| {
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut redis)
            .unwrap();
        let line: String = info.get(command).unwrap_or_default();
        line.trim_start_matches("calls=")
            .split(',')
            .next()
            .unwrap()
            .parse()
            .unwrap_or(0_usize)
    };
    let mut first = setup.locks.lock_with("a", long());
    let _long = first.lock().await.unwrap();
    // Redis knows the script of a renewal from now on.
    first.lock().await.unwrap().unlock().await.unwrap();
    let _short = setup
        .locks
        .lock_with("b", options().lease(Duration::from_secs(3)))
        .lock()
        .await
        .unwrap();
    let [calls, leases] = ["cmdstat_evalsha", "cmdstat_pexpire"].map(&mut count);
    setup
        .until("there is a renewal", |_| count("cmdstat_pexpire") > leases)
        .await;
    let leases = count("cmdstat_pexpire") - leases;
    let renewals = count("cmdstat_evalsha") - calls;
    assert!(
        leases <= renewals,
        "{renewals} calls have renewed {leases} leases"
    );
}

#[tokio::test]
async fn each_name_is_another_lock() {
    let Some(mut setup) = Setup::new("lock-names") else {
        return;
    };
    let long_name = "x".repeat(10_000);
    let names = [
        "",
        " ",
        "a",
        "{a}",
        "a}",
        "}",
        "{",
        "a}b",
        "a:token",
        "a}:tokens",
        "a\n\0b",
        "schloß",
        &long_name,
    ];
    let mut guards = Vec::new();
    for name in names {
        let [mut lock, mut other] = [(); 2].map(|()| setup.locks.lock_with(name, long()));
        assert_eq!(lock.name(), name);
        guards.push(
            lock.try_lock()
                .await
                .unwrap()
                .expect("no other name has this lock"),
        );
        assert!(other.try_lock().await.unwrap().is_none(), "{name}");
    }
    let mut waiting = setup.locks.lock_with("a}b", long());
    let waiting = tokio::spawn(async move { waiting.lock().await.unwrap().unlock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a}b") == 1)
        .await;
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    within(waiting).await.unwrap().unwrap();
    assert_eq!(
        redis::cmd("DBSIZE").query(&mut setup.redis),
        Ok(names.len()),
        "only the tokens"
    );
}

#[tokio::test]
async fn a_token_without_successor_is_an_error() {
    let Some(mut setup) = Setup::new("lock-last-token") else {
        return;
    };
    let () = setup
        .redis
        .hset("{lock:a}:tokens", "", (1_u64 << 53) - 2)
        .unwrap();
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    assert_eq!(guard.token(), (1 << 53) - 1);
    guard.unlock().await.unwrap();
    let failed = lock.lock().await;
    assert!(matches!(failed, Err(LockError::Redis(_))), "{failed:?}");
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_token_is_kept_until_the_clock_has_passed_it() {
    let Some(mut setup) = Setup::new("lock-token-ahead") else {
        return;
    };
    let now: (u64, u64) = redis::cmd("TIME").query(&mut setup.redis).unwrap();
    let () = setup
        .redis
        .hset("{lock:a}:tokens", "", (now.0 + 10_000_000) * 1_000_000)
        .unwrap();
    setup
        .locks
        .lock("a")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let seconds: i64 = setup.redis.ttl("{lock:a}:tokens").unwrap();
    assert!(seconds > 10_000_000, "{seconds}");
}

#[tokio::test]
async fn names_that_are_used_once_leave_only_their_tokens() {
    const NAMES: usize = 2_000;
    let Some(mut setup) = Setup::new("lock-once") else {
        return;
    };
    for number in 0..NAMES {
        let guard = setup
            .locks
            .lock_with(&number.to_string(), long())
            .lock()
            .await
            .unwrap();
        guard.unlock().await.unwrap();
    }
    assert_eq!(setup.timer.pending_timeouts(), 0);
    let keys: Vec<String> = setup.redis.keys("*").unwrap();
    assert_eq!(keys.len(), NAMES);
    for key in keys {
        assert!(key.ends_with("}:tokens"), "{key}");
        let seconds: i64 = setup.redis.ttl(&key).unwrap();
        assert!((1..=86_400).contains(&seconds), "{key}: {seconds}");
    }
}

/// Redis has evicted a queue, without the times until when its callers keep their places.
#[tokio::test]
async fn the_times_of_a_lost_queue_are_forgotten() {
    let Some(mut setup) = Setup::new("lock-lost-queue") else {
        return;
    };
    setup.add_dead_caller("{lock:a}", "a dead client:0/w");
    let () = setup.redis.del("{lock:a}:queue").unwrap();
    let guard = setup.locks.lock("a").lock().await.unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(setup.redis.exists("{lock:a}:seen"), Ok(false));
}

#[tokio::test]
async fn clients_that_are_dropped_leave_nothing() {
    let Some(mut setup) = Setup::new("lock-clients") else {
        return;
    };
    let tasks = Handle::current().metrics().num_alive_tasks();
    let clients: Vec<_> = (0..20)
        .map(|_| client(&setup.server, &setup.timer))
        .collect();
    for locks in &clients {
        let guard = locks.lock_with("a", long()).lock().await.unwrap();
        let waited = locks
            .lock_with("a", long())
            .lock_timeout(Duration::from_millis(1))
            .await;
        assert!(waited.unwrap().is_none());
        guard.unlock().await.unwrap();
    }
    let guard = clients[0].lock_with("a", long()).lock().await.unwrap();
    drop(clients);
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    // Those of the client of the setup, which has not connected, are there from the beginning.
    setup
        .until("all tasks have ended", |_| {
            Handle::current().metrics().num_alive_tasks() <= tasks
        })
        .await;
    setup
        .until("all connections are closed", |setup| {
            let list: String = redis::cmd("CLIENT")
                .arg("LIST")
                .query(&mut setup.redis)
                .unwrap();
            list.lines().count() == 1
        })
        .await;
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
}

/// Callers lock, enter again, give up at a random time, and drop or unlock in any order.
#[tokio::test(flavor = "multi_thread")]
async fn random_callers_exclude_each_other_and_leave_nothing() {
    let Some(mut setup) = Setup::new("lock-random") else {
        return;
    };
    let is_held = Arc::new(AtomicBool::new(false));
    let (turns, mut tasks) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    let other_client = client(&setup.server, &setup.timer);
    for seed in 0..8_u64 {
        let locks = if seed % 2 == 0 {
            &setup.locks
        } else {
            &other_client
        };
        let mut lock = locks.lock_with("a", long().fair(seed % 4 == 0));
        let (is_held, turns) = (Arc::clone(&is_held), Arc::clone(&turns));
        tasks.push(tokio::spawn(async move {
            let mut random = seed * 7_919 + 1;
            let mut next = |limit: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % limit
            };
            for _ in 0..40 {
                let patience = Duration::from_micros(next(20_000));
                let guard = match next(3) {
                    0 => lock.try_lock().await.unwrap(),
                    1 => lock.lock_timeout(patience).await.unwrap(),
                    _ => tokio::time::timeout(patience, lock.lock())
                        .await
                        .ok()
                        .map(Result::unwrap),
                };
                let Some(guard) = guard else { continue };
                assert!(!is_held.swap(true, SeqCst), "two owners at a time");
                turns.fetch_add(1, SeqCst);
                let again = if next(2) == 0 {
                    lock.try_lock().await.unwrap()
                } else {
                    None
                };
                tokio::time::sleep(Duration::from_micros(next(1_000))).await;
                guard.check().unwrap();
                is_held.store(false, SeqCst);
                drop(again);
                match next(3) {
                    0 => drop(guard),
                    1 => guard.unlock().await.unwrap(),
                    _ => {
                        _ = tokio::time::timeout(Duration::from_micros(next(500)), guard.unlock())
                            .await;
                    }
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE * 3, task)
            .await
            .expect("it ends in time")
            .unwrap();
    }
    assert!(turns.load(SeqCst) >= 8);
    setup
        .until("nothing is left", |setup| {
            setup.holder("a").is_none() && setup.queue_len("a") == 0
        })
        .await;
    // A call that was dropped may be executed late, and is then undone.
    within(setup.locks.lock_with("a", long()).lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}
