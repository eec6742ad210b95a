//! Everything at once on real threads: whatever races with what, each timeout ends in exactly one way.

#![allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::Duration;

use common::ms;
use hashed_wheel::{ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask};

/// What became of one timeout.
#[derive(Default)]
struct Fate {
    runs: AtomicUsize,
    hooks: AtomicUsize,
    drops: AtomicUsize,
    cancels: AtomicUsize,
    returned: AtomicUsize,
}

struct Task(Arc<Fate>);

impl TimerTask for Task {
    fn run(self, timeout: &Timeout) {
        assert!(timeout.is_expired());
        self.0.runs.fetch_add(1, SeqCst);
    }

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.0.hooks.fetch_add(1, SeqCst);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
    }
}

/// Schedules, cancels and re-arms as fast as it can until the timer refuses. Returns what it was given.
fn produce(timer: &HashedWheelTimer, seed: u64, limit: usize) -> Vec<(Timeout, Arc<Fate>)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut mine = Vec::new();
    loop {
        let fate = Arc::new(Fate::default());
        let delay = Duration::from_micros(random.u64(0..5_000));
        match timer.new_timeout_task(Task(fate.clone()), delay) {
            Ok(timeout) => mine.push((timeout, fate)),
            Err(NewTimeoutError::TooManyPending { .. }) => {
                assert_eq!(fate.drops.load(SeqCst), 1, "a refused task is dropped");
                thread::yield_now();
            }
            Err(NewTimeoutError::Stopped) => {
                assert_eq!(fate.drops.load(SeqCst), 1, "a refused task is dropped");
                return mine;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(limit == 0 || timer.pending_timeouts() <= limit, "a reader never sees more than the limit");
        for _ in 0..random.u8(0..3) {
            if mine.is_empty() {
                break;
            }
            // Mostly a young one, so that it meets the worker on its way.
            let back = random.usize(0..mine.len().min(20));
            let (timeout, fate) = &mine[mine.len() - 1 - back];
            match random.u8(0..4) {
                0 => drop(fate.cancels.fetch_add(usize::from(timeout.cancel()), SeqCst)),
                1 => drop(timeout.reset(Duration::from_micros(random.u64(0..500)))),
                2 => drop(timeout.reset(Duration::from_micros(random.u64(5_000..50_000)))),
                _ => {
                    let twin = timeout.clone();
                    fate.cancels.fetch_add(usize::from(timeout.cancel()), SeqCst);
                    fate.cancels.fetch_add(usize::from(twin.cancel()), SeqCst);
                }
            }
        }
    }
}

fn race(seed: u64, limit: usize, executor: bool, turner: bool) {
    let mut builder = HashedWheelTimer::builder()
        .tick(Duration::from_micros(200))
        .ticks_per_wheel(4)
        .max_pending_timeouts(limit);
    if executor {
        builder = builder.task_executor(ExpiredTask::run);
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut driver = None;
    let timer = if turner {
        let (timer, driven) = builder.build_driven().unwrap();
        driver = Some(driven);
        timer
    } else {
        builder.build().unwrap()
    };
    let turner = driver.map(|mut driver| {
        let over = over.clone();
        thread::spawn(move || {
            while !over.load(SeqCst) {
                driver.turn();
                let _ = driver.next_turn();
            }
        })
    });
    let producers: Vec<_> = (0..3)
        .map(|n| {
            let timer = timer.clone();
            thread::spawn(move || produce(&timer, seed * 10 + n, limit))
        })
        .collect();
    sleep(ms(fastrand::Rng::with_seed(seed).u64(0..30)));
    let other = timer.clone();
    let stopper = thread::spawn(move || other.stop());
    let mut returned = timer.stop();
    assert_eq!(timer.pending_timeouts(), 0, "seed {seed}: zero after stop");
    returned.extend(stopper.join().unwrap());
    over.store(true, SeqCst);
    if let Some(turner) = turner {
        turner.join().unwrap();
    }

    let timeouts: HashMap<_, _> =
        producers.into_iter().flat_map(|producer| producer.join().unwrap()).collect();
    for timeout in &returned {
        assert!(timeout.is_cancelled());
        timeouts[timeout].returned.fetch_add(1, SeqCst);
    }
    let (mut expired, mut cancelled) = (0, 0);
    for (timeout, fate) in &timeouts {
        let [runs, hooks, drops, cancels, returned] =
            [&fate.runs, &fate.hooks, &fate.drops, &fate.cancels, &fate.returned]
                .map(|count| count.load(SeqCst));
        assert_eq!(
            runs + cancels + returned,
            1,
            "seed {seed}: {runs} runs, {cancels} cancels, {returned} returned"
        );
        assert_eq!(hooks, cancels + returned, "seed {seed}: each cancelled one's hook, once");
        assert_eq!(drops, 1, "seed {seed}: the task is gone");
        assert_eq!((timeout.is_expired(), timeout.is_cancelled()), (runs == 1, hooks == 1), "seed {seed}");
        assert!(!timeout.cancel() && !timeout.reset(ms(1)), "seed {seed}");
        expired += runs as u64;
        cancelled += hooks as u64;
    }
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.cancelled, stats.pending), (expired, cancelled, 0), "seed {seed}");
    assert_eq!((stats.panics, stats.dropped_tasks), (0, 0), "seed {seed}");
}

/// Fewer under Miri, which takes a thousand times as long.
const ROUNDS: u64 = if cfg!(miri) { 1 } else { 25 };

#[test]
fn exactly_one_end_on_the_worker_thread() {
    (0..ROUNDS).for_each(|seed| race(seed, 0, false, false));
}

#[test]
fn exactly_one_end_with_a_limit() {
    (100..100 + ROUNDS).for_each(|seed| race(seed, 50, false, false));
}

#[test]
fn exactly_one_end_with_an_executor() {
    (200..200 + ROUNDS).for_each(|seed| race(seed, 0, true, false));
}

#[test]
fn exactly_one_end_on_a_driver() {
    (300..300 + ROUNDS).for_each(|seed| race(seed, 0, false, true));
}

fn wait_for(flag: &AtomicBool) {
    for spins in 0.. {
        match flag.load(SeqCst) {
            true => return,
            false if spins < 500 => std::hint::spin_loop(),
            // It may be without a processor.
            false => thread::yield_now(),
        }
    }
}

/// One handle in two threads' hands: it counts once, and neither is alone with its timeout.
#[test]
fn a_handle_can_be_lent() {
    // Nobody turns the timer: what is scheduled waits where its thread can take it back.
    let (timer, _driver) =
        HashedWheelTimer::builder().tick(ms(1)).clock(ManualClock::new()).build_driven().unwrap();
    for round in 0..if cfg!(miri) { 50 } else { 4_000 } {
        let (fate, ready, go) = (Arc::new(Fate::default()), AtomicBool::new(false), AtomicBool::new(false));
        let timeout = timer.new_timeout_task(Task(fate.clone()), ms(60_000)).unwrap();
        let (cancelled, others, clone) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                ready.store(true, SeqCst);
                wait_for(&go);
                let clone = timeout.clone();
                (round % 2 == 0 && timeout.cancel(), clone)
            });
            wait_for(&ready);
            go.store(true, SeqCst);
            // It takes the other one a while to see that.
            (0..round / 2 % 128).for_each(|_| std::hint::spin_loop());
            let cancelled = timeout.cancel();
            let (others, clone) = other.join().unwrap();
            (cancelled, others, clone)
        });
        assert_eq!(usize::from(cancelled) + usize::from(others), 1, "exactly one wins");
        assert_eq!((fate.hooks.load(SeqCst), fate.drops.load(SeqCst)), (1, 1), "exactly one end");
        drop(timeout);
        let next = timer.new_timeout(|_| (), ms(60_000)).unwrap();
        assert_ne!(clone, next, "what somebody has a handle of is not used again");
        assert!(clone.is_cancelled() && next.cancel());
    }
    assert_eq!(timer.pending_timeouts(), 0);
}
