//! Counters of a timer, from which [`Stats`](crate::Stats) is made.

use crate::stats::{BUCKETS, Lateness};
use crate::sync::unmodelled::{AtomicU64, OnceLock};
use crate::sync::{Arc, CachePadded, Ordering, Stock};

#[derive(Default)]
pub(crate) struct Counters {
    // Rare events, counted by any thread.
    pub(crate) rejected: Counter,
    pub(crate) panics: Counter,
    pub(crate) dropped_tasks: Counter,
    pub(crate) periodic_runs: Counter,
    /// Periodic tasks that ended by a panic on another thread than the worker.
    pub(crate) ended_elsewhere: Counter,
    pub(crate) resets: StripedCounter,
    /// Written by the worker.
    pub(crate) worker: CachePadded<WorkerCounters>,
}

#[derive(Default)]
pub(crate) struct WorkerCounters {
    /// How many new timeouts the worker has seen.
    pub(crate) taken: Counter,
    /// How many timeouts ended when their task was handed to the executor, or run.
    pub(crate) expired: Counter,
    /// How many runs of periodic tasks were handed over, after which the task stayed in the wheel.
    /// This is a counter of its own, because the difference of two counters that are read one after
    /// the other is sometimes too large.
    pub(crate) runs: Counter,
    pub(crate) turns: Counter,
    pub(crate) wake_ups: Counter,
    /// The entries in the wheel when messages were last drained, plus the timeouts that had expired
    /// by then. An expiry removes its entry, so the sum stays valid until messages are drained
    /// again. The exception is a timeout that the worker found cancelled: its entry is released
    /// only when its message arrives.
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
    /// For the worker: returns how many tasks were handed to the executor, or run.
    #[inline]
    pub(crate) fn handed_over(&self) -> u64 {
        self.expired.get() + self.runs.get()
    }
}

#[derive(Default)]
pub(crate) struct LatenessCounters {
    max: Counter,
    counts: [Counter; BUCKETS],
}

impl LatenessCounters {
    /// Counts `count` tasks that were `late`. Both times are in nanoseconds. For one thread at a
    /// time.
    pub(crate) fn add_alone(&self, late: u64, tick: u64, count: u64) {
        self.counts[Lateness::bucket(late, tick)].add_alone(count);
        self.max.raise(late);
    }

    /// Returns the counts so far.
    pub(crate) fn get(&self, tick: u64) -> Lateness {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].get());
        Lateness::new(self.max.get(), tick, counts)
    }
}

/// The part of a [`StripedCounter`] that one thread writes. It costs two plain instructions. A
/// counter that threads share would cost as much as the rest of a `reset`.
#[derive(Default)]
pub(crate) struct ThreadCounter {
    resets: CachePadded<Counter>,
    next: OnceLock<Arc<ThreadCounter>>,
}

impl ThreadCounter {
    /// Adds to the count. Only for the thread that has taken this counter.
    #[inline]
    pub(crate) fn count_resets(&self, more: i64) {
        self.resets.set_alone(self.resets.get().wrapping_add_signed(more));
    }
}

/// Drops the list in a loop, because it may be long.
impl Drop for ThreadCounter {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(counter) = next {
            next = Arc::into_inner(counter).and_then(|mut counter| counter.next.take());
        }
    }
}

/// A counter with one part per thread: as many parts as threads have used the timer at the same
/// time. When a thread gives its part back, the next thread continues to count there.
pub(crate) struct StripedCounter {
    /// The head of the list of all parts. No part ever leaves the list.
    first: OnceLock<Arc<ThreadCounter>>,
    /// The parts that no thread has.
    free: Stock<Arc<ThreadCounter>>,
}

impl Default for StripedCounter {
    fn default() -> Self {
        Self { first: OnceLock::new(), free: Stock::new() }
    }
}

impl StripedCounter {
    /// Returns a part that no other thread writes until it is given back.
    pub(crate) fn take(&self) -> Arc<ThreadCounter> {
        self.free.pop().unwrap_or_else(|| {
            let counter = Arc::<ThreadCounter>::default();
            let mut place = &self.first;
            while place.set(Arc::clone(&counter)).is_err() {
                place = &place.get().expect("a cell that cannot be set is full").next;
            }
            counter
        })
    }

    /// Makes a part available to the next thread.
    pub(crate) fn give_back(&self, counter: Arc<ThreadCounter>) {
        self.free.push(counter);
    }

    /// Returns the sum of all parts.
    pub(crate) fn get(&self) -> u64 {
        let counters = std::iter::successors(self.first.get(), |counter| counter.next.get());
        counters.map(|counter| counter.resets.get()).sum()
    }
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one. Returns the new count.
    pub(crate) fn add_one(&self) -> u64 {
        self.add(1)
    }

    /// Adds any number. Returns the new count.
    pub(crate) fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }

    /// Adds one, to a counter with one writer at a time. This saves a locked instruction.
    pub(crate) fn add_one_alone(&self) -> u64 {
        self.add_alone(1)
    }

    /// Adds any number, to a counter with one writer at a time.
    pub(crate) fn add_alone(&self, more: u64) -> u64 {
        let count = self.0.load(Ordering::Relaxed) + more;
        self.set_alone(count);
        count
    }

    /// Raises a counter that keeps a maximum.
    pub(crate) fn raise(&self, to: u64) {
        if to > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(to, Ordering::Release);
        }
    }

    /// Sets a counter with one writer at a time.
    pub(crate) fn set_alone(&self, to: u64) {
        // Release, paired with the Acquire in `get`: a thread that sees an event counted here also
        // sees it in the word with the number pending.
        self.0.store(to, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
