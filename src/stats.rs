//! Counters, and where they are counted.

use std::fmt;
use std::time::Duration;

use crate::sync::unmodelled::{AtomicU64, OnceLock};
use crate::sync::{Arc, CachePadded, Ordering, SegQueue};

/// What a timer has done since it was built: [`HashedWheelTimer::stats`](crate::HashedWheelTimer::stats).
///
/// The counters are read one after the other while the timer goes on; once it is quiet, they add up:
/// `scheduled = expired + cancelled + pending`, and the counts of [`lateness`](Self::lateness) are `expired` together (and
/// the runs of periodic tasks, but for those that a task executor makes up for by itself).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Timeouts that `new_timeout` accepted. A periodic task is one timeout.
    pub scheduled: u64,
    /// Timeouts whose task was handed to the executor. A periodic task is among them once it has panicked.
    pub expired: u64,
    /// Runs of periodic tasks.
    pub periodic_runs: u64,
    /// Timeouts ended by `cancel`, or by `stop` and what else ends the timer.
    pub cancelled: u64,
    /// Timeouts that have not ended.
    pub pending: u64,
    /// Timeouts that were cancelled and whose place, in the wheel or on the way there, the worker has not taken back yet: it
    /// does so at its next turn. While a turn is in progress this is as near as can be said without waiting for it.
    pub cancelled_not_reclaimed: u64,
    /// Calls of `new_timeout` that returned an error.
    pub rejected: u64,
    /// Calls of [`Timeout::reset`](crate::Timeout::reset) that returned true.
    pub resets: u64,
    /// Panics caught: in `run`, in `cancelled`, when a task was dropped, in the executor, or of the clock in a turn.
    pub panics: u64,
    /// Tasks that the executor dropped without running them.
    pub dropped_tasks: u64,
    /// Tasks that took the worker longer than the [threshold](crate::Builder::slow_task_threshold). Zero if there is none.
    pub slow_tasks: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// Times that the worker thread came out of a sleep. Zero for a driven timer.
    pub wake_ups: u64,
    /// Turns that took longer than a tick, so that the next one was late for it.
    pub long_turns: u64,
    /// What the longest turn has taken, its tasks included. (Turns with nothing to do are not timed.)
    pub longest_turn: Duration,
    /// What those turns have taken in all: the worker's load is what this grows by in a second.
    pub busy_time: Duration,
    /// How late timeouts were handed to the executor.
    pub lateness: Lateness,
}

/// How late a timer has handed expired tasks to the executor: [`Stats::lateness`].
///
/// A timeout is due at the beginning of a tick, and this is how long after that its turn came: what the operating system
/// took to wake the worker, and what the tasks before it took. (The time between the deadline and the beginning of the
/// tick, less than a tick, is not in it.) The clock is looked at once a turn, and again after every 64 tasks, so what fewer
/// tasks than that take shows in the tick after them.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(10)).clock(clock.clone());
/// let (timer, mut driver) = builder.build_driven()?;
///
/// // Due at 20 ms, and turned at 23.
/// timer.new_timeout(|_| (), Duration::from_millis(15))?;
/// clock.advance(Duration::from_millis(23));
/// driver.turn();
///
/// let lateness = timer.stats().lateness;
/// assert_eq!(lateness.max, Duration::from_millis(3));
/// // It is between a quarter of a tick and half of one.
/// let (upper_bound, _) = lateness.buckets().find(|(_, count)| *count == 1).unwrap();
/// assert_eq!(upper_bound, Some(Duration::from_millis(5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lateness {
    /// The greatest.
    pub max: Duration,
    tick: u64,
    counts: [u64; BUCKETS],
}

/// One for each bound, and one for what is above all of them.
const BUCKETS: usize = 16;

/// The first bound is a tick divided by two so often; each further one is twice that before it.
const FIRST_BOUND: usize = 4;

/// In nanoseconds; `None` for the last bucket.
fn bound(tick: u64, bucket: usize) -> Option<u64> {
    let bound = match bucket.checked_sub(FIRST_BOUND) {
        None => tick >> (FIRST_BOUND - bucket),
        Some(doubled) => tick.saturating_mul(1 << doubled),
    };
    (bucket < BUCKETS - 1).then_some(bound)
}

impl Lateness {
    /// How many timeouts were so late: above the bound before (or on time), and at most the one that they come with. The
    /// bounds are 1/16 of a tick, 1/8, and so on up to 1 024 ticks; the last count, with `None`, is of what was later than that.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + use<> {
        let Self { tick, counts, .. } = *self;
        (0..BUCKETS).map(move |bucket| (bound(tick, bucket).map(Duration::from_nanos), counts[bucket]))
    }

    /// An upper bound of what this part of the timeouts were late at most: `0.99` is for all but the latest hundredth. It
    /// is the bound of a bucket, so it may be twice the truth; or `max`, where that is less. Zero if nothing has expired.
    ///
    /// `part` is taken to be 0 if it is less (or not a number), and 1 if it is more.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let all: u64 = self.counts.iter().sum();
        let rank = (part.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let reached = self.buckets().find(|(_, count)| {
            so_far += count;
            so_far >= rank
        });
        reached.and_then(|(bound, _)| bound).map_or(self.max, |bound| bound.min(self.max))
    }
}

/// Those buckets that have something in them.
impl fmt::Debug for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lateness = f.debug_struct("Lateness");
        lateness.field("max", &self.max);
        for (bound, count) in self.buckets().filter(|(_, count)| *count > 0) {
            match bound {
                Some(bound) => lateness.field(&format!("up to {bound:?}"), &count),
                None => lateness.field("more", &count),
            };
        }
        lateness.finish()
    }
}

/// How full each slot of a timer's wheel is: [`HashedWheelTimer::occupancy`](crate::HashedWheelTimer::occupancy).
///
/// It counts entries, which is not quite [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts): what was cancelled
/// is in its slot until the next turn, and what was re-armed to a later deadline until the worker meets it there.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::builder().hierarchical().build()?;
/// timer.new_timeout(|_| (), Duration::from_secs(3_600))?;
/// if let Some(wheel) = timer.occupancy() {
///     for level in &wheel.levels {
///         let fullest = level.slots.iter().max().unwrap();
///         println!("slots of {} ticks: now at {}, at most {fullest} in one", level.ticks_per_slot, level.current_slot);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// The tick that it is, by the timer's clock. The worker, which sleeps while nothing is due, may have come less far.
    pub tick: u64,
    /// The one level of the hashed wheel; of the hierarchical one, from the lowest up, the levels that something has needed
    /// so far.
    pub levels: Vec<LevelOccupancy>,
    /// New timeouts that the worker has not seen yet, those included that were cancelled meanwhile.
    pub queued: usize,
}

/// One ring of slots: part of an [`Occupancy`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelOccupancy {
    /// How many ticks a slot stands for: one, or in a higher level all that the slots of the level below do.
    pub ticks_per_slot: u64,
    /// How many entries each slot has. (Of all rounds: what is further off than a turn of the hashed wheel has its slot too.)
    pub slots: Vec<usize>,
    /// The slot that it is now: the time goes from here to the end, and on from the beginning.
    pub current_slot: usize,
}

#[derive(Default)]
pub(crate) struct Counters {
    /// Rare.
    pub(crate) refused: Counter,
    pub(crate) panicked: Counter,
    pub(crate) dropped: Counter,
    pub(crate) periodic_runs: Counter,
    /// Periodic tasks that have panicked elsewhere.
    pub(crate) died: Counter,
    pub(crate) tallies: Tallies,
    /// Written by the worker.
    pub(crate) worker: CachePadded<WorkerCounters>,
}

#[derive(Default)]
pub(crate) struct WorkerCounters {
    /// How many new timeouts it has taken over.
    pub(crate) taken: Counter,
    /// How many timeouts ended when their task was handed to the executor, or run.
    pub(crate) expired: Counter,
    /// How often a task that repeats was, and stayed in the wheel. A counter of its own: what is the difference of two that
    /// are read one after the other is now and then too much.
    pub(crate) stays: Counter,
    pub(crate) turns: Counter,
    pub(crate) wake_ups: Counter,
    /// How many entries the wheel had when messages were last taken, and how many had expired by then. Who expires leaves
    /// the wheel, so it holds until messages are taken again; but for what was found cancelled there, whose place is not
    /// given back before its message comes.
    pub(crate) placed_or_expired: Counter,
    pub(crate) slow: Counter,
    pub(crate) long_turns: Counter,
    /// In nanoseconds.
    pub(crate) longest_turn: Counter,
    /// In nanoseconds too.
    pub(crate) busy: Counter,
    pub(crate) lateness: LatenessCounters,
}

impl WorkerCounters {
    /// For the worker: how many tasks were handed to the executor, or run.
    #[inline]
    pub(crate) fn handed(&self) -> u64 {
        self.expired.get() + self.stays.get()
    }
}

#[derive(Default)]
pub(crate) struct LatenessCounters {
    max: Counter,
    counts: [Counter; BUCKETS],
}

impl LatenessCounters {
    /// So many expired so late, both times in nanoseconds.
    pub(crate) fn add_alone(&self, late: u64, tick: u64, count: u64) {
        let is_within = |bucket: &usize| bound(tick, *bucket).is_none_or(|bound| late <= bound);
        let bucket = (0..BUCKETS).find(is_within).expect("the last one has no bound");
        self.counts[bucket].add_alone(count);
        self.max.raise(late);
    }

    pub(crate) fn get(&self, tick: u64) -> Lateness {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].get());
        Lateness { max: Duration::from_nanos(self.max.get()), tick, counts }
    }
}

/// What a thread counts by itself: two plain instructions, where a counter that threads share costs what the rest of a
/// `reset` does.
#[derive(Default)]
pub(crate) struct Tally {
    resets: CachePadded<Counter>,
    next: OnceLock<Arc<Tally>>,
}

impl Tally {
    /// For the thread that has it.
    #[inline]
    pub(crate) fn count_resets(&self, more: i64) {
        self.resets.set_alone(self.resets.get().wrapping_add_signed(more));
    }
}

/// One after the other, for there may be many.
impl Drop for Tally {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(tally) = next {
            next = Arc::into_inner(tally).and_then(|mut tally| tally.next.take());
        }
    }
}

/// All tallies of a timer: as many as there ever were threads that used it at a time. When a thread lets go of its own, the
/// next one counts on where that was.
pub(crate) struct Tallies {
    /// It, its next, and so on are all there are. None ever leaves this list.
    first: OnceLock<Arc<Tally>>,
    /// Those that no thread has.
    free: SegQueue<Arc<Tally>>,
}

impl Default for Tallies {
    fn default() -> Self {
        Self { first: OnceLock::new(), free: SegQueue::new() }
    }
}

impl Tallies {
    /// One that nobody else writes, until it is given back.
    pub(crate) fn take(&self) -> Arc<Tally> {
        self.free.pop().unwrap_or_else(|| {
            let tally = Arc::<Tally>::default();
            let mut place = &self.first;
            while place.set(Arc::clone(&tally)).is_err() {
                place = &place.get().expect("it is taken").next;
            }
            tally
        })
    }

    pub(crate) fn give_back(&self, tally: Arc<Tally>) {
        self.free.push(tally);
    }

    pub(crate) fn resets(&self) -> u64 {
        let tallies = std::iter::successors(self.first.get(), |tally| tally.next.get());
        tallies.map(|tally| tally.resets.get()).sum()
    }
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Says how many there are now.
    pub(crate) fn add_one(&self) -> u64 {
        self.add(1)
    }

    /// The same for more than one.
    pub(crate) fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }

    /// The same, for a counter with one writer at a time, which saves a locked instruction.
    pub(crate) fn add_one_alone(&self) -> u64 {
        self.add_alone(1)
    }

    /// As [`add_one_alone`](Self::add_one_alone).
    pub(crate) fn add_alone(&self, more: u64) -> u64 {
        let count = self.0.load(Ordering::Relaxed) + more;
        self.set_alone(count);
        count
    }

    /// For a counter that keeps the greatest.
    pub(crate) fn raise(&self, to: u64) {
        if to > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(to, Ordering::Release);
        }
    }

    pub(crate) fn set_alone(&self, to: u64) {
        // Release, with the Acquire of `get`: who sees it counted sees in the life's word what it counts.
        self.0.store(to, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
