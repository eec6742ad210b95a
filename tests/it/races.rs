//! All operations at once on real threads: whichever operations race, each timeout ends in exactly
//! one way.

#![allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::common::{Ends, Schedules, accepts_all, built_driven, ms};
use hashed_wheel::{
    ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};
use hashed_wheel_ledger::{Count, Kind, Ledger, Ticket, reported};

struct Task(Arc<Ticket>);

impl TimerTask for Task {
    fn run(self, timeout: &Timeout) {
        assert!(timeout.is_expired());
        self.0.expire();
    }

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.0.call_hook();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.count(Count::TaskDrop);
    }
}

/// Schedules, cancels and resets as fast as it can until the timer rejects a timeout because it is
/// stopped. Returns the timeouts that it scheduled.
fn produce(
    timer: &HashedWheelTimer,
    ledger: &Arc<Ledger>,
    seed: u64,
    limit: usize,
) -> Vec<(Timeout, Arc<Ticket>)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut mine = Vec::new();
    loop {
        let delay = Duration::from_micros(random.u64(0..5_000));
        let ticket = Arc::new(Ticket::new(ledger, Kind::Plain, ledger.after(delay)));
        match timer.new_timeout_task(Task(ticket.clone()), delay) {
            Ok(timeout) => mine.push((timeout, ticket)),
            Err(error) => {
                ticket.count(Count::Rejected);
                match error {
                    NewTimeoutError::TooManyPending { .. } => thread::yield_now(),
                    NewTimeoutError::Stopped => return mine,
                    error => panic!("{error}"),
                }
            }
        }
        assert!(
            limit == 0 || timer.pending_timeouts() <= limit,
            "a reader never sees more than the limit"
        );
        for _ in 0..random.u8(0..3) {
            if mine.is_empty() {
                break;
            }
            // Mostly a recent one, so that the operation races with the worker.
            let back = random.usize(0..mine.len().min(20));
            let (timeout, ticket) = &mine[mine.len() - 1 - back];
            let cancel = |timeout: &Timeout| {
                if timeout.cancel() {
                    ticket.cancel();
                }
            };
            match random.u8(0..4) {
                0 => cancel(timeout),
                choice @ (1 | 2) => {
                    let micros = if choice == 1 { 0..500 } else { 5_000..50_000 };
                    let delay = Duration::from_micros(random.u64(micros));
                    ticket.reset(delay, || timeout.reset(delay));
                }
                _ => {
                    let clone = timeout.clone();
                    cancel(timeout);
                    cancel(&clone);
                }
            }
        }
    }
}

fn race(seed: u64, limit: usize, executor: bool, turner: bool) {
    let mut builder = HashedWheelTimer::builder()
        .tick(Duration::from_micros(200))
        .ticks_per_wheel(4)
        .max_pending_timeouts((limit > 0).then_some(limit));
    if executor {
        builder = builder.task_executor(accepts_all(ExpiredTask::run));
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
    // By the clock of the timer.
    let (clock, origin) = (timer.clone(), timer.now());
    let ledger = Ledger::new(format!("seed {seed}"), Duration::MAX, move || {
        clock.now().saturating_duration_since(origin)
    });
    let producers: Vec<_> = (0..3)
        .map(|n| {
            let (timer, ledger) = (timer.clone(), ledger.clone());
            thread::spawn(move || produce(&timer, &ledger, seed * 10 + n, limit))
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

    let timeouts: HashMap<_, _> = producers
        .into_iter()
        .flat_map(|producer| producer.join().unwrap())
        .collect();
    for timeout in &returned {
        assert!(timeout.is_cancelled());
        timeouts[timeout].count(Count::Left);
    }
    for (timeout, ticket) in timeouts {
        assert_eq!(
            (timeout.is_expired(), timeout.is_cancelled()),
            (
                ticket.get(Count::Expired) == 1,
                ticket.get(Count::Hook) == 1
            ),
            "seed {seed}"
        );
        assert!(!timeout.cancel() && !timeout.reset(ms(1)), "seed {seed}");
    }
    let stats = timer.stats();
    ledger.close(reported!(&stats), Some(returned.len()), true);
    let (faults, _) = ledger.errors();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!((stats.panics, stats.dropped_tasks), (0, 0), "seed {seed}");
}

/// Fewer under Miri, which is far slower.
const SEEDS: u64 = if cfg!(miri) { 1 } else { 25 };

#[test]
fn exactly_one_end_on_the_worker_thread() {
    (0..SEEDS).for_each(|seed| race(seed, 0, false, false));
}

#[test]
fn exactly_one_end_with_a_limit() {
    (100..100 + SEEDS).for_each(|seed| race(seed, 50, false, false));
}

#[test]
fn exactly_one_end_with_an_executor() {
    (200..200 + SEEDS).for_each(|seed| race(seed, 0, true, false));
}

#[test]
fn exactly_one_end_on_a_driver() {
    (300..300 + SEEDS).for_each(|seed| race(seed, 0, false, true));
}

fn wait_for(flag: &AtomicBool) {
    for spins in 0.. {
        match flag.load(SeqCst) {
            true => return,
            false if spins < 500 => std::hint::spin_loop(),
            // The other thread may not be running.
            false => thread::yield_now(),
        }
    }
}

/// Two threads use one handle. The handle counts once, and neither thread may assume that it has
/// the only handle.
#[test]
fn two_threads_can_share_one_handle() {
    // No thread turns this timer. A scheduled timeout stays where its thread can take its message
    // back.
    let (timer, _driver) = built_driven(|builder| builder.tick(ms(1)).clock(ManualClock::new()));
    for iteration in 0..if cfg!(miri) { 50 } else { 4_000 } {
        let (ends, ready, go) = (Ends::new(), AtomicBool::new(false), AtomicBool::new(false));
        let timeout = timer.schedule_task(ends.task(), ms(60_000));
        let (cancelled, others, clone) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                ready.store(true, SeqCst);
                wait_for(&go);
                let clone = timeout.clone();
                (iteration % 2 == 0 && timeout.cancel(), clone)
            });
            wait_for(&ready);
            go.store(true, SeqCst);
            // The other thread sees the flag after a delay, so this thread waits as well.
            (0..iteration / 2 % 128).for_each(|_| std::hint::spin_loop());
            let cancelled = timeout.cancel();
            let (others, clone) = other.join().unwrap();
            (cancelled, others, clone)
        });
        let winners = usize::from(cancelled) + usize::from(others);
        assert_eq!(winners, 1, "exactly one cancel returns true");
        assert_eq!((ends.hooks(), ends.drops()), (1, 1), "exactly one end");
        drop(timeout);
        let next = timer.schedule(|_| (), ms(60_000));
        assert_ne!(clone, next, "a node that has a handle is not used again");
        assert!(clone.is_cancelled() && next.cancel());
    }
    assert_eq!(timer.pending_timeouts(), 0);
}
