//! The promises of the lock, on a real Redis.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use redis::{Client, Commands, Connection};
use redis_lock::{Guard, LockClient, LockError, LockOptions, Loss};

use super::common::{ANOTHER, LEASE, PATIENCE, Setup, client, options, take, take_away, within};

fn assert_is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn one_owner_at_a_time_with_increasing_tokens() {
    let Some(mut setup) = Setup::new("lock-one") else {
        return;
    };
    let other_client = client(&setup.server, &setup.timer);
    let mut owners = [
        setup.locks.lock_with("a", options()),
        setup.locks.lock_with("a", options()),
        other_client.lock("a"),
    ];
    let (mut last, mut names) = (0, Vec::new());
    for holder in [0, 1, 2, 0, 0] {
        let guard: Guard = assert_is_send(owners[holder].try_lock())
            .await
            .unwrap()
            .unwrap();
        for other in (0..3).filter(|&other| other != holder) {
            assert!(owners[other].try_lock().await.unwrap().is_none());
        }
        assert!(guard.token() > last);
        last = guard.token();
        let name = setup.holder("a").unwrap();
        assert!(!names.contains(&name), "an owner's name was used again");
        names.push(name);
        assert_is_send(guard.unlock()).await.unwrap();
        assert_eq!(setup.holder("a"), None);
    }
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
}

#[tokio::test]
async fn an_unlock_leaves_no_timeout() {
    let Some(setup) = Setup::new("lock-timeouts") else {
        return;
    };
    // No renewal is due during the test.
    let mut lock = setup.locks.lock_with("a", options().lease(PATIENCE * 3));
    let guard = lock.lock().await.unwrap();
    assert_eq!(
        setup.timer.pending_timeouts(),
        2,
        "the renewal, and the end of the lease"
    );
    guard.unlock().await.unwrap();
    assert_eq!(setup.timer.pending_timeouts(), 0);
}

#[tokio::test]
async fn tokens_increase_when_the_clock_is_behind() {
    let Some(mut setup) = Setup::new("lock-clock") else {
        return;
    };
    let () = setup
        .redis
        .hset("{lock:a}:tokens", "", 8_000_000_000_000_000_u64)
        .unwrap();
    let mut lock = setup.locks.lock_with("a", options());
    for token in [8_000_000_000_000_001, 8_000_000_000_000_002] {
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.token(), token);
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn an_owner_may_take_its_lock_again() {
    let Some(mut setup) = Setup::new("lock-again") else {
        return;
    };
    let [mut owner, mut other] = [(); 2].map(|()| setup.locks.lock_with("a", options()));
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(owner.lock().await.unwrap());
    }
    assert!(
        guards
            .iter()
            .all(|guard| guard.token() == guards[0].token())
    );
    for guard in guards {
        assert!(other.try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
    }
    assert!(other.try_lock().await.unwrap().is_some());
    setup
        .until("the dropped guard has released the lock", |setup| {
            setup.holder("a").is_none()
        })
        .await;
}

#[tokio::test]
async fn re_entry_detects_a_lost_lock() {
    let Some(mut setup) = Setup::new("lock-reentry-lost") else {
        return;
    };
    let mut lock = setup.locks.lock_with("a", options());
    let guard = lock.lock().await.unwrap();
    let () = setup.redis.del("{lock:a}").unwrap();
    let again = lock.lock().await;
    assert!(
        matches!(again, Err(LockError::Lost(Loss::NoOwner))),
        "{again:?}"
    );
    assert!(matches!(
        guard.unlock().await,
        Err(LockError::Lost(Loss::NoOwner))
    ));
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_was_taken_away_is_reported_and_left_to_its_owner() {
    let Some(mut setup) = Setup::new("lock-taken") else {
        return;
    };
    let mut lock = setup
        .locks
        .lock_with("a", options().lease(Duration::from_millis(900)));
    let guard = take(&mut lock).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&calls);
    guard.on_lost(|_| panic!("on purpose"));
    guard.on_lost(move |loss| record.lock().unwrap().push(loss));
    take_away(&mut setup.redis, "a");
    let loss = within(guard.lost()).await;
    // On a machine that stalls for two thirds of the lease, the lease ends first.
    assert!(
        matches!(loss, Loss::OtherOwner | Loss::LeaseEnded(_)),
        "{loss:?}"
    );
    assert!(matches!(guard.check(), Err(LockError::Lost(_))));
    let late = Arc::clone(&calls);
    guard.on_lost(move |loss| late.lock().unwrap().push(loss));
    // The callback may run after `lost` has returned.
    setup
        .until("both were called", |_| calls.lock().unwrap().len() == 2)
        .await;
    assert_eq!(*calls.lock().unwrap(), [loss.clone(), loss]);
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
    assert!(matches!(guard.unlock().await, Err(LockError::Lost(_))));
    assert_eq!(setup.holder("a").as_deref(), Some(ANOTHER));
    let left: i64 = setup.redis.pttl("{lock:a}").unwrap();
    assert_eq!(left, -1, "the lock of another owner was changed");
}

#[tokio::test]
async fn an_unlock_does_not_release_the_lock_of_the_next_owner() {
    let Some(mut setup) = Setup::new("lock-next") else {
        return;
    };
    let mut lock = setup.locks.lock_with("a", options().lease(PATIENCE * 3));
    let guard = lock.lock().await.unwrap();
    take_away(&mut setup.redis, "a");
    assert!(matches!(guard.unlock().await, Err(LockError::Lost(_))));
    assert_eq!(setup.holder("a").as_deref(), Some(ANOTHER));
}

#[tokio::test]
async fn without_a_watchdog_the_lock_is_lost_with_its_lease() {
    let Some(mut setup) = Setup::new("lock-lease") else {
        return;
    };
    let lease = Duration::from_secs(3);
    let mut lock = setup
        .locks
        .lock_with("a", options().lease(lease).watchdog(false));
    let begin = Instant::now();
    let guard = take(&mut lock).await;
    setup
        .until("only the end of the lease is pending", |setup| {
            setup.timer.pending_timeouts() <= 1
        })
        .await;
    assert_eq!(within(guard.lost()).await, Loss::LeaseEnded(None));
    assert!(begin.elapsed() >= lease, "{:?}", begin.elapsed());
    setup
        .until("Redis has ended the lease", |setup| {
            setup.holder("a").is_none()
        })
        .await;
}

#[tokio::test]
async fn the_watchdog_renews_until_the_maximum_holding_time() {
    let Some(mut setup) = Setup::new("lock-max") else {
        return;
    };
    let (lease, max_hold) = (Duration::from_millis(600), Duration::from_millis(2_500));
    let begin = Instant::now();
    let mut lock = setup
        .locks
        .lock_with("a", options().lease(lease).max_hold(max_hold));
    let guard = take(&mut lock).await;
    let loss = within(guard.lost()).await;
    let held = begin.elapsed();
    // On a machine that stalls for two thirds of the lease, the lease ends first.
    if !matches!(loss, Loss::LeaseEnded(_)) {
        assert_eq!(loss, Loss::HeldTooLong);
        assert!(held >= max_hold - Duration::from_millis(2), "{held:?}");
    }
    drop(guard);
    setup
        .until("the lock is free", |setup| setup.holder("a").is_none())
        .await;
}

#[tokio::test]
async fn a_waiting_caller_is_woken() {
    let Some(mut setup) = Setup::new("lock-woken") else {
        return;
    };
    let other_client = client(&setup.server, &setup.timer);
    for locks in [setup.locks.clone(), other_client] {
        let guard = setup
            .locks
            .lock_with("a", options().lease(PATIENCE * 3))
            .lock()
            .await
            .unwrap();
        let mut waiting = locks.lock_with("a", options().lease(PATIENCE * 3));
        let waiting = tokio::spawn(async move { waiting.lock().await });
        setup
            .until("it waits", |setup| setup.queue_len("a") == 1)
            .await;
        guard.unlock().await.unwrap();
        let guard = within(waiting).await.unwrap().unwrap();
        assert_eq!(setup.queue_len("a"), 0);
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn the_end_of_a_dead_holders_lease_wakes() {
    let Some(mut setup) = Setup::new("lock-dead") else {
        return;
    };
    setup.add_dead_holder("{lock:a}", "a dead client:0/w", Duration::from_millis(700));
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut lock = setup.locks.lock_with("a", options());
            tokio::spawn(async move { lock.lock().await.unwrap().unlock().await })
        })
        .collect();
    for waiting in waiting {
        within(waiting).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_next_waiting_caller_learns_when_the_new_lease_ends() {
    let Some(mut setup) = Setup::new("lock-next-lease") else {
        return;
    };
    let long = options().lease(PATIENCE * 3);
    let guard = setup
        .locks
        .lock_with("a", long.clone())
        .lock()
        .await
        .unwrap();
    let mut first = setup
        .locks
        .lock_with("a", options().lease(LEASE).watchdog(false));
    let first = tokio::spawn(async move { std::mem::forget(take(&mut first).await) });
    setup
        .until("the first waits", |setup| setup.queue_len("a") == 1)
        .await;
    let mut second = setup.locks.lock_with("a", long);
    let second = tokio::spawn(async move { second.lock().await });
    setup
        .until("both wait", |setup| setup.queue_len("a") == 2)
        .await;
    // The end of the time to take the lock is told to a caller of another client.
    setup.add_dead_caller_at(1 << 52, "{lock:a}", "a dead client:0/w");
    guard.unlock().await.unwrap();
    within(first).await.unwrap();
    within(second)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn waiting_callers_survive_the_loss_of_their_messages() {
    let Some(mut setup) = Setup::new("lock-messages") else {
        return;
    };
    let guard = setup
        .locks
        .lock_with("a", options().lease(PATIENCE * 3))
        .lock()
        .await
        .unwrap();
    let mut waiting = setup.locks.lock_with("a", options().lease(PATIENCE * 3));
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    let killed: i64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .query(&mut setup.redis)
        .unwrap();
    assert_eq!(killed, 1);
    guard.unlock().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Another caller takes the free lock before the first of the queue, and releases it after that has
/// lost its place.
#[tokio::test]
async fn a_caller_that_is_slow_to_read_its_messages_tries() {
    let Some(mut setup) = Setup::new("lock-slow") else {
        return;
    };
    let long = options().lease(PATIENCE * 3);
    let guard = setup
        .locks
        .lock_with("a", long.clone())
        .lock()
        .await
        .unwrap();
    let mut waiting = setup.locks.lock_with("a", long);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    let [owner]: [String; 1] = setup.redis.zrange("{lock:a}:queue", 0, 0).unwrap();
    let channel = format!("lock-wake:{}", setup.locks.name());
    // Both messages arrive together, and its task runs after that of the connection.
    let () = redis::pipe()
        .atomic()
        .del("{lock:a}")
        .publish(&channel, format!("{owner} 0"))
        .publish(&channel, format!("{owner} {}", (PATIENCE * 3).as_millis()))
        .query(&mut setup.redis)
        .unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(guard.unlock().await.is_err());
}

#[tokio::test]
async fn a_poll_wakes_without_messages() {
    let Some(mut setup) = Setup::new("lock-poll") else {
        return;
    };
    let options = options()
        .lease(PATIENCE * 3)
        .poll(Duration::from_millis(100));
    let guard = setup
        .locks
        .lock_with("a", options.clone())
        .lock()
        .await
        .unwrap();
    let mut waiting = setup.locks.lock_with("a", options);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    // The release of a client without permission to publish.
    let () = setup.redis.del("{lock:a}").unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(guard.unlock().await.is_err());
}

#[tokio::test]
async fn a_fair_lock_is_granted_in_order() {
    let Some(mut setup) = Setup::new("lock-fair") else {
        return;
    };
    let fair = options().fair(true);
    let guard = setup
        .locks
        .lock_with("a", fair.clone())
        .lock()
        .await
        .unwrap();
    let (order, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for number in 0..5 {
        let (mut lock, order) = (setup.locks.lock_with("a", fair.clone()), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            order.lock().unwrap().push(number);
            guard.unlock().await.unwrap();
        }));
        setup
            .until("it waits", |setup| setup.queue_len("a") == number + 1)
            .await;
    }
    guard.unlock().await.unwrap();
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn nobody_overtakes_the_queue_of_a_fair_lock() {
    let Some(mut setup) = Setup::new("lock-overtake") else {
        return;
    };
    let now: (u64, u64) = redis::cmd("TIME").query(&mut setup.redis).unwrap();
    let () = setup
        .redis
        .zadd("{lock:a}:queue", "a stalled client:0/w", 1)
        .unwrap();
    let expires = now.0 * 1_000 + 1_000_000;
    let () = setup
        .redis
        .hset("{lock:a}:seen", "a stalled client:0/w", expires)
        .unwrap();
    let fair = options().fair(true);
    assert!(
        setup
            .locks
            .lock_with("a", fair.clone())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    let not_fair = options().lease(LEASE);
    let guard = setup
        .locks
        .lock_with("a", not_fair)
        .try_lock()
        .await
        .unwrap()
        .expect("it is not fair");

    // The unlock wakes the first of the queue, which does not react, and then loses its place.
    let mut waiting = setup.locks.lock_with("a", fair);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 2)
        .await;
    guard.unlock().await.unwrap();
    // It was behind the first one, so it tries again half a second after the end of the lease.
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_nothing() {
    let Some(mut setup) = Setup::new("lock-give-up") else {
        return;
    };
    let guard = setup
        .locks
        .lock_with("a", options().lease(PATIENCE * 3))
        .lock()
        .await
        .unwrap();
    let mut impatient = setup.locks.lock_with("a", options());
    let begin = Instant::now();
    assert!(
        impatient
            .lock_timeout(Duration::from_millis(50))
            .await
            .unwrap()
            .is_none()
    );
    assert!(begin.elapsed() >= Duration::from_millis(50));
    setup
        .until("it has left the queue", |setup| setup.queue_len("a") == 0)
        .await;

    let mut aborted = setup.locks.lock_with("a", options());
    let mut next = setup.locks.lock_with("a", options());
    let aborted = tokio::spawn(async move { aborted.lock().await });
    setup
        .until("it waits", |setup| setup.queue_len("a") == 1)
        .await;
    let next = tokio::spawn(async move { next.lock().await });
    setup
        .until("both wait", |setup| setup.queue_len("a") == 2)
        .await;
    aborted.abort();
    setup
        .until("the first has left the queue", |setup| {
            setup.queue_len("a") == 1
        })
        .await;
    guard.unlock().await.unwrap();
    within(next).await.unwrap().unwrap().unlock().await.unwrap();
    setup
        .until("nothing is left", |setup| {
            setup.queue_len("a") == 0 && setup.holder("a").is_none()
        })
        .await;
    assert_eq!(setup.timer.stats().panics, 0);
}

#[tokio::test]
async fn a_call_that_is_dropped_at_any_point_leaves_the_lock_free() {
    let Some(mut setup) = Setup::new("lock-drop") else {
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
    for microseconds in (0..1_000).step_by(20) {
        let mut lock = setup.locks.lock("a");
        let taken = tokio::time::timeout(Duration::from_micros(microseconds), lock.lock()).await;
        if let Ok(guard) = taken {
            guard.unwrap().unlock().await.unwrap();
        }
    }
    setup
        .until("the lock is free", |setup| {
            setup.holder("a").is_none() && setup.queue_len("a") == 0
        })
        .await;
}

#[tokio::test]
async fn without_redis_calls_fail_and_holders_are_told() {
    let Some(mut setup) = Setup::new("lock-down") else {
        return;
    };
    let lease = Duration::from_secs(9);
    let [mut held, mut other] =
        ["a", "b"].map(|name| setup.locks.lock_with(name, options().lease(lease)));
    let begin = Instant::now();
    let guard = take(&mut held).await;
    setup.server.kill().unwrap();
    let failed = within(other.lock()).await;
    assert!(matches!(failed, Err(LockError::Redis(_))), "{failed:?}");
    let loss = within(guard.lost()).await;
    assert!(matches!(loss, Loss::LeaseEnded(Some(_))), "{loss:?}");
    assert!(begin.elapsed() >= lease, "{:?}", begin.elapsed());
    setup.server.restart().unwrap();
    other.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_redis_that_does_not_answer_is_noticed() {
    let Some(setup) = Setup::new("lock-frozen") else {
        return;
    };
    let [mut held, mut other] =
        ["a", "b"].map(|name| setup.locks.lock_with(name, options().lease(LEASE)));
    let guard = take(&mut held).await;
    setup.server.freeze().unwrap();
    let failed = within(other.lock()).await;
    let unlocked = within(guard.unlock()).await;
    setup.server.thaw().unwrap();
    assert!(
        matches!(&failed, Err(LockError::Redis(error)) if error.is_timeout()),
        "{failed:?}"
    );
    assert!(
        matches!(unlocked, Err(LockError::Redis(_) | LockError::Lost(_))),
        "{unlocked:?}"
    );
    drop(within(take(&mut other)).await);
    // At the latest when the lease ends.
    drop(within(take(&mut held)).await);
}

#[tokio::test]
async fn lost_data_is_noticed() {
    let Some(mut setup) = Setup::new("lock-data") else {
        return;
    };
    let mut lock = setup.locks.lock_with("a", options().lease(LEASE));
    let guard = lock.lock().await.unwrap();
    setup.server.kill().unwrap();
    setup.server.lose_data().unwrap();
    setup.server.restart().unwrap();
    let loss = within(guard.lost()).await;
    // On a machine that stalls, the lease ends first.
    assert!(
        matches!(loss, Loss::NoOwner | Loss::LeaseEnded(_)),
        "{loss:?}"
    );
    let token = guard.token();
    assert!(guard.unlock().await.is_err());
    assert!(
        lock.lock().await.unwrap().token() > token,
        "the tokens restarted"
    );
}

#[tokio::test]
async fn a_stopped_timer_is_a_loss_and_an_error() {
    let Some(mut setup) = Setup::new("lock-timer") else {
        return;
    };
    let [mut held, mut other] = ["a", "b"].map(|name| setup.locks.lock_with(name, options()));
    let guard = held.lock().await.unwrap();
    setup.timer.stop();
    assert_eq!(within(guard.lost()).await, Loss::Timer);
    assert!(matches!(
        within(other.lock()).await,
        Err(LockError::Timer(_))
    ));
    assert_eq!(setup.holder("b"), None);
}

#[tokio::test]
async fn renewals_of_many_locks_share_calls() {
    const LOCKS: usize = 600;
    let Some(mut setup) = Setup::new("lock-batches") else {
        return;
    };
    let lost = Arc::new(AtomicU32::new(0));
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        let options = options().lease(LEASE);
        let guard = setup
            .locks
            .lock_with(&number.to_string(), options)
            .lock()
            .await
            .unwrap();
        let lost = Arc::clone(&lost);
        guard.on_lost(move |_| _ = lost.fetch_add(1, SeqCst));
        guards.push(guard);
    }
    let calls = |redis: &mut Connection| {
        let info: redis::InfoDict = redis::cmd("INFO").arg("commandstats").query(redis).unwrap();
        let count = |command| {
            let line: String = info.get(command).unwrap_or_default();
            line.trim_start_matches("calls=")
                .split(',')
                .next()
                .unwrap()
                .parse()
                .unwrap_or(0_usize)
        };
        [count("cmdstat_evalsha"), count("cmdstat_pexpire")]
    };
    let [scripts, leases] = calls(&mut setup.redis);
    tokio::time::sleep(LEASE * 3 / 2).await;
    let [scripts, leases] = {
        let now = calls(&mut setup.redis);
        [now[0] - scripts, now[1] - leases]
    };
    assert_eq!(lost.load(SeqCst), 0);
    assert!(leases >= 3 * LOCKS, "{leases} renewals");
    // At most 256 per call; the first round takes locks before they are due.
    assert!(
        scripts * 150 <= leases,
        "{leases} renewals in {scripts} calls"
    );
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    setup
        .until("there is no timeout", |setup| {
            setup.timer.pending_timeouts() == 0
        })
        .await;
}

#[tokio::test]
async fn times_that_are_not_valid_are_rejected() {
    let timer = HashedWheelTimer::default();
    let locks = LockClient::builder(Client::open("redis://127.0.0.1:1/").unwrap())
        .timer(&timer)
        .build()
        .unwrap();
    for (options, reason) in [
        (
            LockOptions::new().lease(Duration::from_millis(99)),
            "a lease of 99ms",
        ),
        (
            LockOptions::new().lease(Duration::from_secs(86_401)),
            "a lease of",
        ),
        (
            LockOptions::new().max_hold(Duration::ZERO),
            "a maximum holding time",
        ),
        (LockOptions::new().poll(Duration::ZERO), "a poll of 0ns"),
    ] {
        let failed = locks.lock_with("a", options).lock().await;
        let Err(LockError::Options(why)) = failed else {
            panic!("{failed:?}")
        };
        assert!(why.starts_with(reason), "{why}");
    }
    let failed = locks.lock("a").lock().await;
    assert!(matches!(failed, Err(LockError::Redis(_))), "{failed:?}");
}

#[test]
fn a_client_needs_a_runtime() {
    let client = Client::open("redis://127.0.0.1:1/").unwrap();
    let made = LockClient::new(client);
    assert!(matches!(made, Err(LockError::NoRuntime)), "{made:?}");
}
