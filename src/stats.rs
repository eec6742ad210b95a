//! Counters, and where they are counted.

use std::fmt;
use std::time::Duration;

use crate::engine::{LATENESS_BUCKETS, LatenessCounters, MAX_PENDING, Shared, lateness_bound};
use crate::wheel::SlotCounts;

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
    counts: [u64; LATENESS_BUCKETS],
}

impl Lateness {
    fn of(counters: &LatenessCounters, tick: u64) -> Self {
        let counts = std::array::from_fn(|bucket| counters.buckets[bucket].get());
        Self { max: Duration::from_nanos(counters.max.get()), tick, counts }
    }

    /// How many timeouts were so late: above the bound before (or on time), and at most the one that they come with. The
    /// bounds are 1/16 of a tick, 1/8, and so on up to 1 024 ticks; the last count, with `None`, is of what was later than that.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + use<> {
        let Self { tick, counts, .. } = *self;
        (0..LATENESS_BUCKETS)
            .map(move |bucket| (lateness_bound(tick, bucket).map(Duration::from_nanos), counts[bucket]))
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

impl LevelOccupancy {
    fn of(SlotCounts { ticks_per_slot, slots, current_slot }: SlotCounts) -> Self {
        Self { ticks_per_slot, slots, current_slot }
    }
}

impl Shared {
    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
        // One word has the number of registrations and the number that are pending. A thread that ends
        // a timeout counts that before it deregisters it. So what ends between the reads is counted as
        // expired, and not as cancelled.
        let worker = &counters.worker;
        let (taken, in_wheel_or_expired) = (worker.taken.get(), worker.in_wheel_or_expired.get());
        let state = self.state.snapshot();
        let (scheduled, pending) = (state.registered(taken), state.pending());
        let expired = worker.expired.get();
        let not_reclaimed = in_wheel_or_expired.saturating_sub(expired) + (scheduled - taken);
        let expired = expired + counters.died.get();
        Stats {
            scheduled,
            expired,
            cancelled: scheduled.saturating_sub(pending + expired),
            pending,
            cancelled_not_reclaimed: not_reclaimed.saturating_sub(pending),
            rejected: counters.rejected.get(),
            periodic_runs: counters.periodic_runs.get(),
            resets: counters.resets.sum(),
            panics: counters.panics.get(),
            dropped_tasks: counters.dropped_tasks.get(),
            slow_tasks: worker.slow_tasks.get(),
            turns: worker.turns.get(),
            wake_ups: worker.wake_ups.get(),
            long_turns: worker.long_turns.get(),
            longest_turn: Duration::from_nanos(worker.longest_turn.get()),
            busy_time: Duration::from_nanos(worker.busy_time.get()),
            lateness: Lateness::of(&worker.lateness, self.ticks.nanos()),
        }
    }

    /// Returns `None` if another thread has the worker's lock, or the timer is stopped.
    pub(crate) fn occupancy(&self) -> Option<Occupancy> {
        // Without any lock, because the clock may be the user's.
        let now = self.ticks.reached(self.time.now());
        let worker = self.worker.try_look()?;
        // After the lock: a thread that stops the timer sets the bit, then empties the wheel under it.
        let state = self.state.snapshot();
        if state.is_stopped() {
            return None;
        }
        let (tick, levels, queued) = worker.occupancy(state, now);
        Some(Occupancy { tick, levels: levels.into_iter().map(LevelOccupancy::of).collect(), queued })
    }

    /// `Debug` of a timer and of its driver.
    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        let mut debug = f.debug_struct(name);
        debug.field("life", &self.state.snapshot()).field("pending", &stats.pending);
        if self.limit < MAX_PENDING {
            debug.field("limit", &self.limit);
        }
        debug
            .field("scheduled", &stats.scheduled)
            .field("expired", &stats.expired)
            .field("cancelled", &stats.cancelled)
            .field("tick", &self.ticks.duration())
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .field("wheel", &format_args!("{}", self.wheel));
        if self.is_driven {
            debug.field("worker", &format_args!("driven"));
        } else {
            debug.field("worker", &format_args!("thread {:?}", self.thread.name()));
        }
        debug.finish_non_exhaustive()
    }
}
