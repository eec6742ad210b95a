//! The counters of a timer, per timer and per worker. (The counters of each thread are in
//! [`pending`](super::pending).) `stats.rs` makes [`Stats`](crate::Stats) of it.
//!
//! Two of these counters are part of a protocol: `expired` and `ended_on_executor` are ends of
//! timeouts. The number of pending timeouts, and with it `stop`, relies on their orders: see
//! [`pending`](super::pending). No other thread's progress depends on any other counter here.

use crate::report;
use crate::sync::unmodelled::AtomicU64;
use crate::sync::{CachePadded, Ordering};
use crate::ticks::Ticks;

/// The number of buckets of a lateness histogram: one per bound, and one above all bounds.
pub(crate) const LATENESS_BUCKETS: usize = 16;

/// The first bound is a tick / 2^`HALVINGS_OF_FIRST_BOUND`. Each further bound is twice the one
/// before.
const HALVINGS_OF_FIRST_BOUND: usize = 4;

/// Returns the upper bound of a bucket in nanoseconds; `None` for the last one.
pub(crate) fn lateness_bound(tick: u64, bucket: usize) -> Option<u64> {
    let bound = match bucket.checked_sub(HALVINGS_OF_FIRST_BOUND) {
        None => tick >> (HALVINGS_OF_FIRST_BOUND - bucket),
        Some(doublings) => tick.saturating_mul(1 << doublings),
    };
    (bucket < LATENESS_BUCKETS - 1).then_some(bound)
}

#[derive(Default)]
pub(crate) struct Counters {
    // Each of these is rarely written.
    pub(crate) rejected: Counter,
    pub(crate) panics: Counter,
    pub(crate) dropped_tasks: Counter,
    pub(crate) periodic_runs: Counter,
    /// Periodic tasks that ended themselves, or panicked, on a thread of the executor.
    pub(crate) ended_on_executor: Counter,
    /// Written by the worker.
    pub(crate) worker: CachePadded<WorkerCounters>,
}

impl Counters {
    /// Runs user code for a task, and returns its result. A panic is reported and counted.
    #[inline]
    pub(crate) fn guard<'a, R>(
        &self,
        doing: &str,
        task: impl FnOnce() -> &'a str,
        code: impl FnOnce() -> R,
    ) -> Option<R> {
        report::guard(code, |panic| {
            self.panics.add(1);
            report::task_panicked(doing, task(), panic);
        })
    }

    /// Drops what a user has given. `name` returns the name of its type.
    #[inline]
    pub(crate) fn guard_drop<'a>(&self, name: impl FnOnce() -> &'a str, drop: impl FnOnce()) {
        self.guard("when it was dropped", name, drop);
    }
}

#[derive(Default)]
pub(crate) struct WorkerCounters {
    /// New timeouts that were taken in.
    pub(crate) taken: Counter,
    /// Timeouts that ended when their task was handed to the executor, or run.
    pub(crate) expired: Counter,
    /// Runs of periodic tasks, which stay in the wheel. It is a counter of its own, because the
    /// difference of two counters that are read one after the other is sometimes too large.
    pub(crate) runs: Counter,
    pub(crate) turns: Counter,
    pub(crate) wake_ups: Counter,
    /// The number of nodes in the wheel when messages were last taken, plus `expired` at that time.
    /// An expiry takes a node out of the wheel, so the sum holds until messages are taken again. (A
    /// node that the worker finds cancelled counts until its message arrives.)
    pub(crate) in_wheel_or_expired: Counter,
    pub(crate) slow_tasks: Counter,
    pub(crate) long_turns: Counter,
    /// In nanoseconds.
    pub(crate) longest_turn: Counter,
    /// In nanoseconds.
    pub(crate) busy_time: Counter,
    pub(crate) lateness: LatenessCounters,
}

impl WorkerCounters {
    /// For the worker: how many tasks were handed to the executor, or run.
    #[inline]
    pub(crate) fn handed_over(&self) -> u64 {
        self.expired.get() + self.runs.get()
    }
}

#[derive(Default)]
pub(crate) struct LatenessCounters {
    /// In nanoseconds.
    pub(crate) max: Counter,
    pub(crate) buckets: [Counter; LATENESS_BUCKETS],
}

impl LatenessCounters {
    /// Counts `count` timeouts that were `late`. Both times are in nanoseconds.
    fn add_single_writer(&self, late: u64, tick: u64, count: u64) {
        let is_within =
            |bucket: &usize| lateness_bound(tick, *bucket).is_none_or(|bound| late <= bound);
        let bucket = (0..LATENESS_BUCKETS)
            .find(is_within)
            .expect("the last bucket has no bound");
        // In this order: a thread that sees the count sees the maximum.
        self.max.raise(late);
        self.buckets[bucket].add_single_writer(count);
    }
}

/// Measures how late a turn is with what it expires.
#[derive(Default)]
pub(crate) struct LatenessSampler {
    /// The time when the clock was read last.
    now: u64,
    /// How many tasks were ever counted.
    counted: u64,
    /// A tick of the wheel, and the tick from which those that come out at it may have been due,
    /// because they were carried over.
    first: Option<(u64, u64)>,
}

/// The clock is read again after this many tasks.
const TASKS_PER_SAMPLE: u64 = 64;

impl LatenessSampler {
    pub(super) fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Those that are counted at the tick `at` count as due at `first`, or at an earlier one that
    /// was set before.
    pub(super) fn set_first(&mut self, at: u64, first: u64) {
        self.first = Some((at, first.min(self.first_at(at))));
    }

    fn first_at(&self, tick: u64) -> u64 {
        match self.first {
            Some((at, first)) if at == tick => first,
            _ => tick,
        }
    }

    /// The sample ends when this many tasks were handed over.
    #[inline]
    pub(super) fn sample_end(&self) -> u64 {
        (self.counted / TASKS_PER_SAMPLE + 1) * TASKS_PER_SAMPLE
    }

    /// Counts the tasks that were handed over and are not counted yet, all of them at this tick.
    // Not in the worker's loop, which needs its registers.
    #[inline(never)]
    pub(super) fn count(&mut self, counters: &WorkerCounters, ticks: Ticks, tick: u64) {
        let handed_over = counters.handed_over();
        let count = handed_over - self.counted;
        if count > 0 {
            let late = ticks.since(self.first_at(tick), self.now);
            let lateness = &counters.lateness;
            lateness.add_single_writer(late, ticks.nanos(), count);
            self.counted = handed_over;
        }
    }
}

/// A task that runs on the worker.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    /// The name of its type.
    pub(crate) task: &'static str,
    /// When it began, by the timer's clock.
    pub(crate) began: u64,
}

/// The methods that end in `_single_writer` are for a counter with one writer at a time, and save
/// a locked instruction.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Returns the new count.
    pub(crate) fn add(&self, more: u64) -> u64 {
        // Release: as in `set_single_writer`.
        self.0.fetch_add(more, Ordering::Release).wrapping_add(more)
    }

    pub(super) fn add_single_writer(&self, more: u64) {
        self.set_single_writer(self.0.load(Ordering::Relaxed) + more);
    }

    /// For a counter of a maximum.
    pub(super) fn raise(&self, to: u64) {
        if to > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(to, Ordering::Release);
        }
    }

    pub(super) fn set_single_writer(&self, to: u64) {
        // Release: pairs with the `Acquire` in `get`. A thread that sees the count then sees what
        // was counted, and the registrations of timeouts that have ended.
        self.0.store(to, Ordering::Release);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_turn_that_hands_over_nothing_is_not_late() {
        let counters = WorkerCounters::default();
        let mut sampler = LatenessSampler::default();
        let ticks = Ticks::new(Duration::from_millis(10));
        sampler.set_now(90_000_000);
        sampler.count(&counters, ticks, 1);
        assert_eq!(counters.lateness.max.get(), 0);
        counters.expired.add_single_writer(1);
        sampler.count(&counters, ticks, 1);
        assert_eq!(counters.lateness.max.get(), 80_000_000);
    }

    #[test]
    fn a_maximum_is_raised_only_by_more() {
        let counter = Counter::default();
        let raised = [5, 5, 4, 6, 6].map(|to| {
            counter.raise(to);
            counter.get()
        });
        assert_eq!(raised, [5, 5, 5, 6, 6]);
    }
}
