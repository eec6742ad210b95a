//! The figures of a timer: its statistics, and how full its wheel is.

use std::fmt;
use std::time::Duration;

use crate::engine::{Inner, LATENESS_BUCKETS, lateness_bound};
use crate::error::Unavailable;
use crate::timer::HashedWheelTimer;
use timing_wheels::order::SlotCounts;

/// The statistics of a timer since it was built:
/// [`HashedWheelTimer::stats`](crate::HashedWheelTimer::stats).
///
/// The counters are read one after the other while the timer runs. Once it is idle they add up:
///
/// - `scheduled = expired + cancelled + pending`.
/// - The counts of [`lateness`](Self::lateness) cover `expired` and the runs of periodic tasks,
///   except runs that a task executor makes up for by itself.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::default();
/// timer.new_timeout(|_| (), Duration::from_secs(5))?.cancel();
/// timer.new_timeout(|_| (), Duration::from_secs(5))?;
/// let stats = timer.stats();
/// assert_eq!((stats.scheduled, stats.cancelled, stats.pending), (2, 1, 1));
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Timeouts that `new_timeout` accepted. A periodic task is one timeout.
    pub scheduled: u64,
    /// Timeouts whose task was handed to the executor. A periodic task counts here once it has
    /// ended by itself, or has panicked.
    pub expired: u64,
    /// Runs of periodic tasks.
    pub periodic_runs: u64,
    /// Timeouts ended by `cancel`, by `stop`, or by another end of the timer.
    pub cancelled: u64,
    /// Timeouts that have not ended.
    pub pending: u64,
    /// Cancelled timeouts whose entry, in the wheel or in the queue, the worker has not removed
    /// yet. It does so at its next turn. While a turn is in progress the number is approximate,
    /// because it is read without waiting.
    pub cancelled_not_reclaimed: u64,
    /// Calls of `new_timeout` that returned an error.
    pub rejected: u64,
    /// Panics caught: in `run`, `cancelled` and `postpone`, in the drop of a task, in the executor
    /// and its drop, in the waker and the hooks of the thread, and of the clock in a turn.
    pub panics: u64,
    /// Tasks that the executor refused, or dropped without running them.
    pub dropped_tasks: u64,
    /// Tasks, or calls of the executor, that took longer on the worker than the
    /// [threshold](crate::Builder::slow_task_threshold). Zero without a threshold.
    pub slow_tasks: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// Times that the worker thread woke from a sleep. Zero for a driven timer.
    pub wake_ups: u64,
    /// Turns that took longer than a tick, so that the next turn was late.
    pub long_turns: u64,
    /// The duration of the longest turn, its tasks included. Turns with nothing to do are not
    /// timed.
    pub longest_turn: Duration,
    /// The total duration of these turns. Its growth per second is the worker's load.
    pub busy_time: Duration,
    /// How late timeouts were handed to the executor.
    pub lateness: Lateness,
}

/// How late a timer hands expired tasks to the executor: [`Stats::lateness`].
///
/// A timeout is due at the beginning of a tick. Its lateness is the time from then until its task
/// is handed over: the time that the operating system takes to wake the worker, and the time that
/// the tasks before it take. The time between the deadline and the beginning of the tick, which is
/// less than a tick, is not included.
///
/// The worker reads the clock once per turn, and again after every 64 tasks. So the time that fewer
/// than 64 tasks take shows only in the next tick. If more messages have waited than a turn takes,
/// those that have become due meanwhile all count from the first tick that was due, or from the
/// beginning of the backlog if one was scheduled with a deadline that had passed.
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
/// // Due at the tick at 20 ms; the turn comes at 23 ms.
/// timer.new_timeout(|_| (), Duration::from_millis(15))?;
/// clock.advance(Duration::from_millis(23));
/// driver.turn();
///
/// let lateness = timer.stats().lateness;
/// assert_eq!(lateness.max, Duration::from_millis(3));
/// // This is between a quarter of a tick and half a tick.
/// let (upper_bound, _) = lateness.buckets().find(|(_, count)| *count == 1).unwrap();
/// assert_eq!(upper_bound, Some(Duration::from_millis(5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lateness {
    /// The greatest lateness.
    pub max: Duration,
    tick: u64,
    counts: [u64; LATENESS_BUCKETS],
}

impl Lateness {
    /// Returns the buckets of a histogram, each with its upper bound and its count.
    ///
    /// A bucket counts the timeouts whose lateness is above the bound before it (or zero) and at
    /// most its own bound. The bounds are 1/16 of a tick, 1/8 of a tick, and so on up to 1 024
    /// ticks. The last bucket has the bound `None` and counts everything above.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// let lateness = HashedWheelTimer::default().stats().lateness;
    /// for (bound, count) in lateness.buckets() {
    ///     println!("up to {bound:?}: {count}");
    /// }
    /// assert_eq!(lateness.buckets().count(), 16);
    /// ```
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + use<> {
        let Self { tick, counts, .. } = *self;
        let bound = move |bucket| lateness_bound(tick, bucket).map(Duration::from_nanos);
        (0..LATENESS_BUCKETS).map(move |bucket| (bound(bucket), counts[bucket]))
    }

    /// Returns an upper bound of the lateness of this fraction of the timeouts.
    ///
    /// `0.99` gives a bound that all timeouts but the latest hundredth keep. The result is the
    /// bound of a bucket, so it may be twice the exact value, or [`max`](Self::max) where that is
    /// less. It is zero if nothing has expired.
    ///
    /// A `part` below 0, or one that is not a number, counts as 0; one above 1 counts as 1.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// let lateness = HashedWheelTimer::default().stats().lateness;
    /// println!("99 % of the timeouts were at most {:?} late", lateness.quantile(0.99));
    /// ```
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let all: u64 = self.counts.iter().sum();
        let rank = (part.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let reached = self.buckets().find(|(_, count)| {
            so_far += count;
            so_far >= rank
        });
        reached
            .and_then(|(bound, _)| bound)
            .map_or(self.max, |bound| bound.min(self.max))
    }
}

/// Prints the buckets that are not empty.
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

/// How full each slot of a timer's wheel is:
/// [`HashedWheelTimer::occupancy`](crate::HashedWheelTimer::occupancy).
///
/// It counts entries of the wheel, which differs from
/// [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts). A cancelled timeout keeps its
/// entry until the next turn. A timeout that was re-armed to a later deadline keeps its old slot
/// until the worker reaches that slot.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::builder().hierarchical(true).build()?;
/// timer.new_timeout(|_| (), Duration::from_secs(3_600))?;
/// if let Ok(wheel) = timer.occupancy() {
///     for level in &wheel.levels {
///         let fullest = level.slots.iter().max().unwrap();
///         println!(
///             "slots of {} ticks: now at {}, at most {fullest} entries in one",
///             level.ticks_per_slot, level.current_slot
///         );
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// The current tick, by the timer's clock. The worker, which sleeps while nothing is due, may
    /// not have reached it.
    pub tick: u64,
    /// The levels. A hashed wheel has one. A hierarchical wheel has, from the lowest up, the levels
    /// that have been needed so far. Its first entries, up to 32, need none: each counts for the
    /// slot that it would have.
    pub levels: Vec<SlotCounts>,
    /// New timeouts in the queue, which the worker has not seen yet. Those that were cancelled
    /// meanwhile are included.
    ///
    /// The rest of the tick at which a [limited turn](crate::Driver::turn_at_most) has stopped is
    /// neither here nor in a slot.
    pub queued: usize,
}

impl Stats {
    fn of(timer: &Inner) -> Self {
        let counters = &timer.counters;
        let worker = &counters.worker;
        let lateness = &worker.lateness;
        let is_ended = timer.state.snapshot().is_ended();
        let (balance, cancelled_not_reclaimed) = timer
            .pending_counts
            .balance_and_unreclaimed(counters, is_ended);
        Self {
            scheduled: balance.registered,
            expired: balance.expired,
            cancelled: balance.cancelled,
            pending: balance.pending,
            cancelled_not_reclaimed,
            rejected: counters.rejected.get(),
            periodic_runs: counters.periodic_runs.get(),
            panics: counters.panics.get(),
            dropped_tasks: counters.dropped_tasks.get(),
            slow_tasks: worker.slow_tasks.get(),
            turns: worker.turns.get(),
            wake_ups: worker.wake_ups.get(),
            long_turns: worker.long_turns.get(),
            longest_turn: Duration::from_nanos(worker.longest_turn.get()),
            busy_time: Duration::from_nanos(worker.busy_time.get()),
            lateness: Lateness {
                // Before the maximum, which is then at least that of all that is counted.
                counts: lateness.buckets.each_ref().map(|bucket| bucket.get()),
                max: Duration::from_nanos(lateness.max.get()),
                tick: timer.ticks.nanos(),
            },
        }
    }
}

impl HashedWheelTimer {
    /// Returns how many timeouts have not ended. Netty's `pendingTimeouts`.
    ///
    /// Each thread counts for itself, so that threads do not slow each other down, and this is the
    /// sum. It is exact whenever no other call is in progress, is never negative, includes all that
    /// the calling thread did, and is zero after [`stop`](Self::stop). While timeouts end on other
    /// threads, it may include some of them. With a [limit](crate::Builder::max_pending_timeouts)
    /// the number is exact at every moment, and never exceeds the limit.
    ///
    /// A cancelled timeout does not count from the moment `cancel` returns; Netty counts it for up
    /// to a tick longer. The call takes some nanoseconds per thread that has used the timer.
    ///
    /// An expired timeout leaves the count before its task runs. Another thread may see it
    /// [expired](crate::Timeout::is_expired) an instant earlier.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let timeout = timer.new_timeout(|_| (), Duration::from_secs(5))?;
    /// assert_eq!(timer.pending_timeouts(), 1);
    /// timeout.cancel();
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    #[doc(alias("pendingTimeouts"))]
    pub fn pending_timeouts(&self) -> usize {
        let timer = &*self.inner;
        let is_ended = timer.state.snapshot().is_ended();
        timer.pending_counts.pending(&timer.counters, is_ended) as usize
    }

    /// Returns what the timer has done since it was built: counters, the worker's load, lateness.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// timer.new_timeout(|_| (), Duration::from_secs(5))?.cancel();
    /// let stats = timer.stats();
    /// assert_eq!((stats.scheduled, stats.cancelled, stats.pending), (1, 1, 0));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.inner)
    }

    /// Returns how full each slot of the wheel is: to draw a live timer, or to find out why it is
    /// slow.
    ///
    /// # Errors
    ///
    /// [`Unavailable`]: `Busy` also for a task on the worker.
    ///
    /// # Cost
    ///
    /// This call never waits. But the worker and `stop` wait for it: it reads all
    /// [`ticks_per_wheel`](Self::ticks_per_wheel) slots, and those of further levels, under the
    /// worker's lock, and allocates eight bytes per slot. A few calls per second cost next to
    /// nothing for a wheel of thousands of slots. For a wheel of millions they make timeouts late.
    /// Do not call it on a hot path.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(10)).ticks_per_wheel(8);
    /// let (timer, mut driver) = builder.clock(ManualClock::new()).build_driven()?;
    /// timer.new_timeout(|_| (), Duration::from_millis(30))?;
    /// timer.new_timeout(|_| (), Duration::from_millis(110))?; // one round later
    /// assert_eq!(timer.occupancy()?.queued, 2);
    ///
    /// driver.turn();
    /// let wheel = &timer.occupancy()?.levels[0];
    /// assert_eq!(wheel.slots, [0, 0, 0, 2, 0, 0, 0, 0]);
    /// assert_eq!(wheel.current_slot, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn occupancy(&self) -> Result<Occupancy, Unavailable> {
        let timer = &*self.inner;
        // Without any lock, because the clock may be the user's.
        let now = timer.ticks.reached(timer.clock.now());
        let Some(worker) = timer.look_at_wheel() else {
            return Err(match self.is_stopped() {
                true => Unavailable::Stopped,
                false => Unavailable::Busy,
            });
        };
        let occupancy = worker.occupancy(timer, now);
        let (tick, levels, queued) = occupancy.ok_or(Unavailable::NoMemory)?;
        Ok(Occupancy {
            tick,
            levels,
            queued,
        })
    }
}

/// Statistics: what the timer has counted.
impl Inner {
    /// `Debug` of a timer and of its driver.
    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = Stats::of(self);
        let mut debug = f.debug_struct(name);
        debug
            .field("life", &self.state.snapshot())
            .field("pending", &stats.pending);
        if let Some(limit) = self.pending_counts.limit() {
            debug.field("limit", &limit);
        }
        debug
            .field("scheduled", &stats.scheduled)
            .field("expired", &stats.expired)
            .field("cancelled", &stats.cancelled)
            .field("tick", &self.ticks.duration())
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .field("wheel", &format_args!("{}", self.wheel));
        match self.options.kind.is_driven() {
            true => debug.field("worker", &format_args!("driven")),
            false => debug.field("worker", &format_args!("thread {:?}", self.thread.name())),
        };
        debug.finish_non_exhaustive()
    }
}
