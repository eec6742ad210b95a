//! The lock when something fails: connections, runtimes, the timer, Redis, tasks, callbacks.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use redis::{Client, Commands};
use redis_lock::{Lock, LockClient, LockError, LockOptions, Loss};
use tokio::runtime::{Builder, Handle, Runtime};

use super::common::{Answers, LEASE, PATIENCE, Proxy, Setup, client, options, patience, take, within};

/// So long that no test sees its end, and that no renewal is due.
const LONG: Duration = Duration::from_secs(100);

fn long() -> LockOptions {
    options().lease(LONG)
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

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

// Connections.

#[tokio::test]
async fn a_lock_that_was_granted_is_not_lost_with_the_connection() {
    let Some(mut setup) = Setup::new("lock-cut") else { return };
    let proxy = Proxy::new(&setup.server);
    let locks = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer).build().unwrap();
    locks.lock("warm up").lock().await.unwrap().unlock().await.unwrap();
    proxy.set(Answers::Cut);
    let guard = within(locks.lock_with("a", long()).lock()).await.unwrap();
    assert!(proxy.has_cut());
    assert_eq!(setup.redis.get::<_, u64>("{lock:a}:token").unwrap(), guard.token());
    // The release is executed, but the client cannot know that.
    proxy.set(Answers::Cut);
    let unlocked = within(guard.unlock()).await;
    assert!(matches!(unlocked, Err(LockError::Redis(_))), "{unlocked:?}");
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_lock_whose_answer_never_comes_is_released() {
    let Some(mut setup) = Setup::new("lock-swallow") else { return };
    let proxy = Proxy::new(&setup.server);
    let locks = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer).build().unwrap();
    locks.lock("warm up").lock().await.unwrap().unlock().await.unwrap();
    proxy.set(Answers::Swallow);
    // A call may take 5 s.
    let mut lock = locks.lock_with("a", options().lease(Duration::from_secs(30)));
    let begin = Instant::now();
    let taking = tokio::spawn(async move { lock.lock().await.map(drop) });
    setup.until("Redis has granted it", |setup| setup.holder("a").is_some()).await;
    let failed = within(taking).await.unwrap();
    assert!(matches!(&failed, Err(LockError::Redis(error)) if error.is_timeout()), "{failed:?}");
    proxy.set(Answers::Forward);
    setup.until("it is free", |setup| setup.holder("a").is_none()).await;
    assert!(begin.elapsed() < Duration::from_secs(30), "the lease has ended: {:?}", begin.elapsed());
}

#[tokio::test]
async fn calls_survive_a_connection_that_was_closed_between_them() {
    let Some(mut setup) = Setup::new("lock-closed") else { return };
    let mut close = || {
        let kill = &["KILL", "TYPE", "normal"];
        let closed: i64 = redis::cmd("CLIENT").arg(kill).query(&mut setup.redis).unwrap();
        assert_eq!(closed, 1);
    };
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    close();
    let again = lock.lock().await.unwrap();
    close();
    again.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_release_is_repeated_after_an_outage() {
    let Some(mut setup) = Setup::new("lock-outage") else { return };
    // The release is repeated after 4 s. The lease ends after the patience.
    let lease = Duration::from_secs(24);
    let guard = setup.locks.lock_with("a", options().lease(lease)).lock().await.unwrap();
    setup.server.kill().unwrap();
    let unlocked = within(guard.unlock()).await;
    assert!(matches!(unlocked, Err(LockError::Redis(_))), "{unlocked:?}");
    setup.server.restart().unwrap();
    setup.redis = hashed_wheel_trial::redis_server::connect(&setup.server.url()).unwrap();
    setup.until("it is free", |setup| setup.holder("a").is_none()).await;
}

#[tokio::test]
async fn a_failed_renewal_is_repeated_after_a_sixth_of_the_lease() {
    let Some(mut setup) = Setup::new("lock-sixth") else { return };
    let proxy = Proxy::new(&setup.server);
    let locks = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer).build().unwrap();
    let guard = locks.lock_with("a", options().lease(Duration::from_secs(12))).lock().await.unwrap();
    assert_eq!(proxy.connections(), 1);
    setup.server.kill().unwrap();
    let loss = within(guard.lost()).await;
    assert!(matches!(loss, Loss::LeaseEnded(Some(_))), "{loss:?}");
    // The first renewal finds a closed connection, and opens another one. Each of the others opens
    // two. They are made 4, 6, 8 and 10 s after the acquisition. One may be missing.
    let connections = proxy.connections();
    assert!(connections >= 6, "{connections}");
}

#[tokio::test]
async fn a_failed_re_entry_does_not_count() {
    let Some(mut setup) = Setup::new("lock-reentry-down") else { return };
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    setup.server.kill().unwrap();
    for _ in 0..3 {
        let again = within(lock.lock()).await;
        assert!(matches!(again, Err(LockError::Redis(_))), "{again:?}");
    }
    setup.server.restart().unwrap();
    setup.redis = hashed_wheel_trial::redis_server::connect(&setup.server.url()).unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test]
async fn a_call_ends_however_long_the_lease_is() {
    let Some(setup) = Setup::new("lock-day") else { return };
    let guard = setup.locks.lock("a").lock().await.unwrap();
    setup.server.freeze().unwrap();
    let day = Duration::from_secs(86_400);
    let failed = within(setup.locks.lock_with("b", options().lease(day)).lock()).await;
    assert!(matches!(&failed, Err(LockError::Redis(error)) if error.is_timeout()), "{failed:?}");
    setup.server.thaw().unwrap();
    drop(guard);
}

#[tokio::test]
async fn without_a_subscription_callers_poll() {
    let Some(mut setup) = Setup::new("lock-no-subscription") else { return };
    let proxy = Proxy::new(&setup.server);
    let locks = LockClient::builder(Client::open(&*proxy.url).unwrap()).timer(&setup.timer).build().unwrap();
    // A call may take 10 s.
    let options = long().poll(Duration::from_millis(100));
    let guard = locks.lock_with("a", options.clone()).lock().await.unwrap();
    proxy.set(Answers::SwallowNew);
    let mut other = locks.lock_with("a", options);
    let begin = Instant::now();
    assert!(within(other.lock_timeout(Duration::from_millis(50))).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { other.lock().await });
    setup.until("it waits", |setup| setup.queue_len("a") == 1).await;
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    guard.unlock().await.unwrap();
    within(waiting).await.unwrap().unwrap().unlock().await.unwrap();
}

// The queue.

/// The first of the queue is told, but tries after its time to take the lock is over.
#[tokio::test]
async fn a_late_caller_takes_a_free_fair_lock() {
    let Some(mut setup) = Setup::new("lock-late") else { return };
    let fair = long().fair(true);
    let guard = setup.locks.lock_with("a", fair.clone()).lock().await.unwrap();
    let mut late = setup.locks.lock_with("a", fair.poll(Duration::from_millis(100)));
    let late = tokio::spawn(async move { late.lock().await });
    setup.until("it waits", |setup| setup.queue_len("a") == 1).await;
    let [(owner, arrival)]: [(String, f64); 1] =
        setup.redis.zrange_withscores("{lock:a}:queue", 0, 0).unwrap();
    let () = redis::pipe()
        .atomic()
        .del("{lock:a}")
        .hset("{lock:a}:seen", owner, 1)
        .zadd("{lock:a}:queue", "a stalled client:0", arrival + 1.0)
        .hset("{lock:a}:seen", "a stalled client:0", 1_u64 << 52)
        .query(&mut setup.redis)
        .unwrap();
    let late = within(late).await.unwrap().unwrap();
    assert_eq!(setup.queue_len("a"), 1, "the next of the queue had to die first");
    late.unlock().await.unwrap();
    assert!(guard.unlock().await.is_err());
}

/// The first of the queue was told, and has died. The others were not told.
#[tokio::test]
async fn a_refused_caller_passes_a_free_fair_lock_on() {
    let Some(mut setup) = Setup::new("lock-pass-on") else { return };
    let fair = options().lease(PATIENCE * 3).fair(true);
    let guard = setup.locks.lock_with("a", fair.clone()).lock().await.unwrap();
    let mut second = setup.locks.lock_with("a", fair.clone());
    let second = tokio::spawn(async move { second.lock().await });
    setup.until("it waits", |setup| setup.queue_len("a") == 1).await;
    let () = redis::pipe()
        .atomic()
        .del("{lock:a}")
        .zadd("{lock:a}:queue", "a dead client:0", 1)
        .hset("{lock:a}:seen", "a dead client:0", 1)
        .query(&mut setup.redis)
        .unwrap();
    assert!(setup.locks.lock_with("a", fair.clone()).try_lock().await.unwrap().is_none());
    within(second).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(guard.unlock().await.is_err());

    // If the second one has died too, it loses its place soon.
    let () = redis::pipe()
        .atomic()
        .zadd("{lock:b}:queue", "a dead client:0", 1)
        .hset("{lock:b}:seen", "a dead client:0", 1)
        .zadd("{lock:b}:queue", "a dead client:1", 2)
        .hset("{lock:b}:seen", "a dead client:1", 1_u64 << 52)
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
    setup.until("it waits", |setup| setup.queue_len("a") == before + 1).await;
}

/// No release offers the lock to the callers that died, and their places would be kept for longer
/// than the patience. Each of them delays the others by a second.
#[tokio::test]
async fn a_free_fair_lock_passes_callers_that_died_with_its_holder() {
    const DEAD: usize = 8;
    let Some(mut setup) = Setup::new("lock-die-together") else { return };
    let fair = options().lease(LEASE / 2).fair(true);
    let (doomed, locks) = doomed_client(&setup);
    std::mem::forget(take(&mut locks.lock_with("a", fair.clone())).await);
    for before in 0..DEAD {
        wait_on(&doomed, locks.lock_with("a", fair.clone()), before, &mut setup).await;
    }
    let mut next = setup.locks.lock_with("a", fair);
    let next = tokio::spawn(async move { take(&mut next).await });
    setup.until("it waits", |setup| setup.queue_len("a") == DEAD + 1).await;
    doomed.shutdown_background();
    within(next).await.unwrap().unlock().await.unwrap();
}

/// Neither a release nor the first waiting caller wakes the next one, and places are kept for
/// longer than the patience. So it tries at the end of the lease.
#[tokio::test]
async fn a_crash_of_the_holder_and_the_first_waiting_caller_costs_the_rest_of_the_lease() {
    let Some(mut setup) = Setup::new("lock-crash") else { return };
    for is_fair in [false, true] {
        let options = options().lease(LEASE / 2).fair(is_fair);
        let (doomed, locks) = doomed_client(&setup);
        std::mem::forget(take(&mut locks.lock_with("a", options.clone())).await);
        wait_on(&doomed, locks.lock_with("a", options.clone()), 0, &mut setup).await;
        let mut next = setup.locks.lock_with("a", options);
        let next = tokio::spawn(async move { take(&mut next).await });
        setup.until("both wait", |setup| setup.queue_len("a") == 2).await;
        doomed.shutdown_background();
        let left: i64 = setup.redis.pttl("{lock:a}").unwrap();
        let crash = Instant::now();
        let guard = within(next).await.unwrap();
        // 50 ms, and 500 ms if it is fair. The rest is for a busy machine.
        let most = Duration::from_millis(left.max(0) as u64) + LEASE / 2;
        assert!(crash.elapsed() < most, "{:?}, not within {most:?}", crash.elapsed());
        guard.unlock().await.unwrap();
    }
}

/// The lock is not released: Redis evicts or deletes it, alone or with its queue.
#[tokio::test]
async fn a_deleted_lock_passes_a_caller_that_died() {
    let Some(mut setup) = Setup::new("lock-die-deleted") else { return };
    let deletions = [&["DEL", "{lock:a}"][..], &["DEL", "{lock:a}", "{lock:a}:seen"], &["FLUSHALL"]];
    for (deletion, is_fair) in
        deletions.into_iter().flat_map(|deletion| [(deletion, false), (deletion, true)])
    {
        let options = long().poll(Duration::from_millis(200)).fair(is_fair);
        let guard = setup.locks.lock_with("a", options.clone()).lock().await.unwrap();
        let (doomed, locks) = doomed_client(&setup);
        wait_on(&doomed, locks.lock_with("a", options.clone()), 0, &mut setup).await;
        let mut second = setup.locks.lock_with("a", options);
        let second = tokio::spawn(async move { second.lock().await });
        setup.until("both wait", |setup| setup.queue_len("a") == 2).await;
        doomed.shutdown_background();
        let () = redis::cmd(deletion[0]).arg(&deletion[1..]).query(&mut setup.redis).unwrap();
        within(second).await.unwrap().unwrap().unlock().await.unwrap();
        assert!(guard.unlock().await.is_err());
        let () = redis::cmd("FLUSHALL").query(&mut setup.redis).unwrap();
    }
}

// Runtimes.

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_does_not_depend_on_the_callers_runtime() {
    let Some(mut setup) = Setup::new("lock-runtimes") else { return };
    let mut lock = setup.locks.lock_with("a", long());
    // The first call opens the connection.
    let (mut lock, guard) = thread::spawn(move || {
        let guard = block_on(lock.lock()).unwrap();
        (lock, guard)
    })
    .join()
    .unwrap();
    let again = thread::spawn(move || runtime().block_on(lock.lock()).unwrap()).join().unwrap();
    let connections = |setup: &mut Setup| {
        let info: redis::InfoDict = redis::cmd("INFO").arg("stats").query(&mut setup.redis).unwrap();
        info.get::<u64>("total_connections_received").unwrap()
    };
    let before = connections(&mut setup);
    again.unlock().await.unwrap();
    thread::spawn(move || block_on(guard.unlock()).unwrap()).join().unwrap();
    assert_eq!(connections(&mut setup), before);
    assert_eq!(setup.holder("a"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_may_be_dropped_outside_of_a_runtime() {
    let Some(mut setup) = Setup::new("lock-drop-outside") else { return };
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    thread::spawn(move || drop(guard)).join().unwrap();
    setup.until("it is free", |setup| setup.holder("a").is_none()).await;
}

#[test]
fn after_the_end_of_the_runtime_the_holder_is_told_and_calls_fail() {
    let first = runtime();
    let Some(setup) = first.block_on(async { Setup::new("lock-runtime-end") }) else { return };
    let lease = Duration::from_millis(600);
    let [mut held, mut dropped] = ["a", "b"].map(|name| setup.locks.lock_with(name, options().lease(lease)));
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
    assert!(matches!(unlocked, Err(LockError::Lost(Loss::LeaseEnded(_)))), "{unlocked:?}");
    for mut lock in [held, dropped] {
        let failed = second.block_on(async { within(lock.lock()).await });
        assert!(matches!(failed, Err(LockError::Redis(_))), "{failed:?}");
    }
}

// The timer.

#[tokio::test]
async fn a_stopped_timer_does_not_prevent_the_release() {
    let Some(mut setup) = Setup::new("lock-timer-stop") else { return };
    // Redis does not know the script of the release yet.
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    setup.timer.stop();
    drop(guard);
    setup.until("it is free", |setup| setup.holder("a").is_none()).await;
}

#[tokio::test]
async fn a_timer_at_its_limit_is_an_error_and_leaves_no_lock() {
    let Some(mut setup) = Setup::new("lock-timer-limit") else { return };
    // A held lock needs both timeouts.
    let timer = HashedWheelTimer::builder().max_pending_timeouts(Some(2)).build().unwrap();
    let locks = client(&setup.server, &timer);
    let guard = locks.lock_with("a", long()).lock().await.unwrap();
    let failed = within(locks.lock_with("b", long()).lock()).await;
    assert!(matches!(failed, Err(LockError::Timer(_))), "{failed:?}");
    setup.until("it is free", |setup| setup.holder("b").is_none()).await;
    guard.unlock().await.unwrap();
    locks.lock_with("b", long()).lock().await.unwrap().unlock().await.unwrap();
    setup.until("there is no timeout", |_| timer.pending_timeouts() == 0).await;
}

#[tokio::test]
async fn leases_below_three_ticks_are_rejected() {
    let tick = Duration::from_millis(100);
    let timer = HashedWheelTimer::new(tick, 64);
    let locks =
        LockClient::builder(Client::open("redis://127.0.0.1:1/").unwrap()).timer(&timer).build().unwrap();
    for (lease, is_valid) in [(0, false), (299, false), (300, true), (86_400_000, true)] {
        let options = LockOptions::new().lease(Duration::from_millis(lease)).max_hold(Duration::MAX);
        let failed = locks.lock_with("a", options).lock_timeout(Duration::MAX).await;
        let reached_redis = matches!(failed, Err(LockError::Redis(_)));
        assert_eq!(reached_redis, is_valid, "{failed:?}");
        assert_eq!(matches!(failed, Err(LockError::Options(_))), !is_valid, "{failed:?}");
    }
}

// Losses.

#[tokio::test]
async fn re_entry_detects_another_owner() {
    let Some(mut setup) = Setup::new("lock-reentry-other") else { return };
    let mut lock = setup.locks.lock_with("a", long());
    let guard = lock.lock().await.unwrap();
    let () = setup.redis.set("{lock:a}", "another owner").unwrap();
    let again = lock.lock().await;
    assert!(matches!(again, Err(LockError::Lost(Loss::OtherOwner))), "{again:?}");
    assert_eq!(setup.timer.pending_timeouts(), 0, "the lost lock is still watched");
    assert!(matches!(guard.unlock().await, Err(LockError::Lost(Loss::OtherOwner))));
}

#[tokio::test]
async fn an_unlock_says_who_has_the_lock() {
    let Some(mut setup) = Setup::new("lock-unlock-other") else { return };
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    let () = setup.redis.set("{lock:a}", "another owner").unwrap();
    assert!(matches!(guard.unlock().await, Err(LockError::Lost(Loss::OtherOwner))));
    let guard = setup.locks.lock_with("b", long()).lock().await.unwrap();
    let () = setup.redis.del("{lock:b}").unwrap();
    assert!(matches!(guard.unlock().await, Err(LockError::Lost(Loss::NoOwner))));
}

#[tokio::test]
async fn a_lost_lock_is_not_renewed() {
    let Some(mut setup) = Setup::new("lock-lost-renewal") else { return };
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
    setup.until("there is no renewal", |setup| setup.timer.pending_timeouts() == 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(setup.timer.pending_timeouts(), 0);
    setup.server.thaw().unwrap();
}

#[tokio::test]
async fn the_maximum_holding_time_is_the_reason() {
    let Some(setup) = Setup::new("lock-max-reason") else { return };
    let [lease, max_hold] = [3_000, 3_200].map(Duration::from_millis);
    // On a machine that stalls for the length of the lease, the lease ends first.
    for _ in 0..4 {
        let mut lock = setup.locks.lock_with("a", options().lease(lease).max_hold(max_hold));
        let begin = Instant::now();
        let guard = take(&mut lock).await;
        // The watchdog has no part in it.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let Ok(again) = lock.lock().await else { continue };
        let loss = within(guard.lost()).await;
        assert!(begin.elapsed() >= max_hold - Duration::from_millis(2), "{:?}", begin.elapsed());
        drop((guard, again));
        if loss == Loss::HeldTooLong {
            return;
        }
    }
    panic!("the reason was never {:?}", Loss::HeldTooLong);
}

/// Returns what `lock` returns to a task that is stalled for longer than the lease while it waits
/// for the answer. Returns `None` if the answer comes before the stall.
async fn lock_while_stalled(setup: &mut Setup, name: &str, lease: Duration) -> Option<Result<(), LockError>> {
    let mut lock = setup.locks.lock_with(name, options().lease(lease));
    let mut taking = pin!(lock.lock());
    let was_stalled = Cell::new(false);
    let taken = std::future::poll_fn(|context| {
        let polled = taking.as_mut().poll(context);
        if polled.is_pending() && !was_stalled.replace(true) {
            let begin = Instant::now();
            while !setup.redis.exists::<_, bool>(format!("{{lock:{name}}}:token")).unwrap() {
                assert!(begin.elapsed() < patience(), "Redis has not granted the lock");
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
    let Some(mut setup) = Setup::new("lock-stall") else { return };
    setup.locks.lock("a").lock().await.unwrap().unlock().await.unwrap();
    // On a busy machine the answer may come before the stall, or after it.
    for name in (0..100).map(|number| number.to_string()) {
        match lock_while_stalled(&mut setup, &name, Duration::from_millis(500)).await {
            None | Some(Err(LockError::Redis(_))) => {}
            Some(Err(LockError::Lost(loss))) => {
                assert_eq!(loss, Loss::LeaseEnded(None));
                return setup.until("it is free", |setup| setup.holder(&name).is_none()).await;
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

    let Some(mut setup) = Setup::new("lock-callback-drop") else { return };
    let drops = Arc::new(AtomicUsize::new(0));
    let guard = setup.locks.lock_with("a", long()).lock().await.unwrap();
    for _ in 0..2 {
        let on_drop = PanicOnDrop(Arc::clone(&drops));
        guard.on_lost(move |_| drop(on_drop));
    }
    guard.unlock().await.unwrap();
    assert_eq!(drops.load(SeqCst), 2);
    assert_eq!((setup.holder("a"), setup.timer.pending_timeouts()), (None, 0));
}

/// It has the last reference to it.
#[tokio::test]
async fn a_callback_may_use_and_drop_its_guard() {
    let Some(setup) = Setup::new("lock-callback-guard") else { return };
    let lease = Duration::from_millis(300);
    let guard = take(&mut setup.locks.lock_with("a", options().lease(lease).watchdog(false))).await;
    let guard = Arc::new(guard);
    let (own, (tell, told)) = (Arc::clone(&guard), mpsc::channel());
    guard.on_lost(move |loss| {
        let is_lost = own.check().is_err();
        own.on_lost(move |again| tell.send((loss, again, is_lost)).unwrap());
    });
    drop(guard);
    let told = tokio::task::spawn_blocking(move || told.recv_timeout(patience())).await.unwrap();
    assert_eq!(told, Ok((Loss::LeaseEnded(None), Loss::LeaseEnded(None), true)));
}

/// A call that also renewed the locks with short leases would fail after a sixth of those.
#[tokio::test]
async fn locks_with_different_leases_do_not_share_calls() {
    let Some(mut setup) = Setup::new("lock-leases") else { return };
    let mut redis = hashed_wheel_trial::redis_server::connect(&setup.server.url()).unwrap();
    let mut count = |command: &str| {
        let info: redis::InfoDict = redis::cmd("INFO").arg("commandstats").query(&mut redis).unwrap();
        let line: String = info.get(command).unwrap_or_default();
        line.trim_start_matches("calls=").split(',').next().unwrap().parse().unwrap_or(0_usize)
    };
    let mut first = setup.locks.lock_with("a", long());
    let _long = first.lock().await.unwrap();
    // Redis knows the script of a renewal from now on.
    first.lock().await.unwrap().unlock().await.unwrap();
    let [calls, leases] = ["cmdstat_evalsha", "cmdstat_pexpire"].map(&mut count);
    let _short = setup.locks.lock_with("b", options().lease(Duration::from_secs(3))).lock().await.unwrap();
    setup.until("there is a renewal", |_| count("cmdstat_pexpire") > leases).await;
    let leases = count("cmdstat_pexpire") - leases;
    // One call has taken the second lock.
    let renewals = count("cmdstat_evalsha") - calls - 1;
    assert!(leases <= renewals, "{renewals} calls have renewed {leases} leases");
}

// Names, tokens, remains.

#[tokio::test]
async fn each_name_is_another_lock() {
    let Some(mut setup) = Setup::new("lock-names") else { return };
    let long_name = "x".repeat(10_000);
    let names =
        ["", " ", "a", "{a}", "a}", "}", "{", "a}b", "a:token", "a}:token", "a\n\0b", "schloß", &long_name];
    let mut guards = Vec::new();
    for name in names {
        let [mut lock, mut other] = [(); 2].map(|()| setup.locks.lock_with(name, long()));
        assert_eq!(lock.name(), name);
        guards.push(lock.try_lock().await.unwrap().expect("no other name has this lock"));
        assert!(other.try_lock().await.unwrap().is_none(), "{name}");
    }
    let mut waiting = setup.locks.lock_with("a}b", long());
    let waiting = tokio::spawn(async move { waiting.lock().await.unwrap().unlock().await });
    setup.until("it waits", |setup| setup.queue_len("a}b") == 1).await;
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    within(waiting).await.unwrap().unwrap();
    assert_eq!(redis::cmd("DBSIZE").query(&mut setup.redis), Ok(names.len()), "only the tokens");
}

#[tokio::test]
async fn a_token_without_successor_is_an_error() {
    let Some(mut setup) = Setup::new("lock-last-token") else { return };
    let () = setup.redis.set("{lock:a}:token", (1_u64 << 53) - 2).unwrap();
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
    let Some(mut setup) = Setup::new("lock-token-ahead") else { return };
    let now: (u64, u64) = redis::cmd("TIME").query(&mut setup.redis).unwrap();
    let () = setup.redis.set("{lock:a}:token", (now.0 + 10_000_000) * 1_000_000).unwrap();
    setup.locks.lock("a").lock().await.unwrap().unlock().await.unwrap();
    let seconds: i64 = setup.redis.ttl("{lock:a}:token").unwrap();
    assert!(seconds > 10_000_000, "{seconds}");
}

#[tokio::test]
async fn names_that_are_used_once_leave_only_their_tokens() {
    const NAMES: usize = 2_000;
    let Some(mut setup) = Setup::new("lock-once") else { return };
    for number in 0..NAMES {
        let guard = setup.locks.lock_with(&number.to_string(), long()).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    assert_eq!(setup.timer.pending_timeouts(), 0);
    let keys: Vec<String> = setup.redis.keys("*").unwrap();
    assert_eq!(keys.len(), NAMES);
    for key in keys {
        assert!(key.ends_with("}:token"), "{key}");
        let seconds: i64 = setup.redis.ttl(&key).unwrap();
        assert!((1..=86_400).contains(&seconds), "{key}: {seconds}");
    }
}

#[tokio::test]
async fn clients_that_are_dropped_leave_nothing() {
    let Some(mut setup) = Setup::new("lock-clients") else { return };
    let tasks = Handle::current().metrics().num_alive_tasks();
    let clients: Vec<_> = (0..20).map(|_| client(&setup.server, &setup.timer)).collect();
    for locks in &clients {
        let guard = locks.lock_with("a", long()).lock().await.unwrap();
        let waited = locks.lock_with("a", long()).lock_timeout(Duration::from_millis(1)).await;
        assert!(waited.unwrap().is_none());
        guard.unlock().await.unwrap();
    }
    let guard = clients[0].lock_with("a", long()).lock().await.unwrap();
    drop(clients);
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    // Those of the client of the setup, which has not connected, are there from the beginning.
    setup.until("all tasks have ended", |_| Handle::current().metrics().num_alive_tasks() <= tasks).await;
    setup
        .until("all connections are closed", |setup| {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut setup.redis).unwrap();
            list.lines().count() == 1
        })
        .await;
    setup.until("there is no timeout", |setup| setup.timer.pending_timeouts() == 0).await;
}

// All at once.

/// Callers lock, enter again, give up at a random time, and drop or unlock in any order.
#[tokio::test(flavor = "multi_thread")]
async fn random_callers_exclude_each_other_and_leave_nothing() {
    let Some(mut setup) = Setup::new("lock-random") else { return };
    let is_held = Arc::new(AtomicBool::new(false));
    let (turns, mut tasks) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    let other_client = client(&setup.server, &setup.timer);
    for seed in 0..8_u64 {
        let locks = if seed % 2 == 0 { &setup.locks } else { &other_client };
        let mut lock = locks.lock_with("a", long().fair(seed % 4 == 0));
        let (is_held, turns) = (Arc::clone(&is_held), Arc::clone(&turns));
        tasks.push(tokio::spawn(async move {
            let mut random = seed * 7_919 + 1;
            let mut next = |limit: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % limit
            };
            for _ in 0..40 {
                let patience = Duration::from_micros(next(20_000));
                let guard = match next(3) {
                    0 => lock.try_lock().await.unwrap(),
                    1 => lock.lock_timeout(patience).await.unwrap(),
                    _ => tokio::time::timeout(patience, lock.lock()).await.ok().map(Result::unwrap),
                };
                let Some(guard) = guard else { continue };
                assert!(!is_held.swap(true, SeqCst), "two owners at a time");
                turns.fetch_add(1, SeqCst);
                let again = if next(2) == 0 { lock.try_lock().await.unwrap() } else { None };
                tokio::time::sleep(Duration::from_micros(next(1_000))).await;
                guard.check().unwrap();
                is_held.store(false, SeqCst);
                drop(again);
                match next(3) {
                    0 => drop(guard),
                    1 => guard.unlock().await.unwrap(),
                    _ => _ = tokio::time::timeout(Duration::from_micros(next(500)), guard.unlock()).await,
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE * 3, task).await.expect("it ends in time").unwrap();
    }
    assert!(turns.load(SeqCst) >= 8);
    setup.until("nothing is left", |setup| setup.holder("a").is_none() && setup.queue_len("a") == 0).await;
    // A call that was dropped may be executed late, and is then undone.
    within(setup.locks.lock_with("a", long()).lock()).await.unwrap().unlock().await.unwrap();
}
