//! Counters, and where they are counted.

use crate::sync::unmodelled::AtomicU64;
use crate::sync::{CachePadded, Ordering};

/// What a timer has done since it was built: [`HashedWheelTimer::stats`](crate::HashedWheelTimer::stats).
///
/// The counters are read one after the other while the timer goes on; once it is quiet, they add up:
/// `scheduled = expired + cancelled + pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Timeouts that `new_timeout` accepted. A periodic task is one timeout.
    pub scheduled: u64,
    /// Timeouts whose task was handed to the executor. A periodic task is among them once it has panicked.
    pub expired: u64,
    /// Runs of periodic tasks.
    pub periodic_runs: u64,
    /// Timeouts ended by `cancel` or by `stop`.
    pub cancelled: u64,
    /// Timeouts that have not ended.
    pub pending: u64,
    /// Calls of `new_timeout` that returned an error.
    pub refused: u64,
    /// Panics caught: in `run`, in `cancelled`, when a task was dropped, or in the executor.
    pub panicked: u64,
    /// Tasks that the executor dropped without running them.
    pub dropped: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// Times that the worker thread came out of a sleep. Zero for a driven timer.
    pub wake_ups: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    /// Rare.
    pub(crate) refused: Counter,
    pub(crate) panicked: Counter,
    pub(crate) dropped: Counter,
    pub(crate) periodic_runs: Counter,
    /// Periodic tasks that have panicked.
    pub(crate) died: Counter,
    /// Written by the worker.
    pub(crate) worker: CachePadded<WorkerCounters>,
}

#[derive(Default)]
pub(crate) struct WorkerCounters {
    /// How many new timeouts it has taken over.
    pub(crate) taken: Counter,
    pub(crate) expired: Counter,
    pub(crate) turns: Counter,
    pub(crate) wake_ups: Counter,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// For a counter with one writer at a time, which saves a locked instruction.
    pub(crate) fn add_one_alone(&self) {
        self.add_alone(1);
    }

    /// As [`add_one_alone`](Self::add_one_alone).
    pub(crate) fn add_alone(&self, more: u64) {
        // Release, with the Acquire of `get`: who sees it counted sees in the life's word what it counts.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
