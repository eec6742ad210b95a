//! The due times of periodic tasks and intervals: arithmetic only, without a clock or a timer.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::error::NewTimeoutError;
use crate::ticks;

/// The policy for missed runs of a task at a fixed rate. A run is missed if it should have begun by
/// the time the previous run ends: that run took longer than the period, or the machine was
/// suspended.
///
/// For an interval, a tick is missed if its time has come before the interval returned the previous
/// tick. A caller that is late for one tick gets that tick immediately. The policy applies only to
/// the ticks after it, as with tokio's `MissedTickBehavior`. Unlike here, tokio's `Delay` restarts
/// the period after any late tick.
///
/// For a task, the timer's tick decides what is missed: a run is missed once the timer's tick at
/// which it would have expired has begun. With a smaller delay nothing is missed, and under all
/// policies the runs stay at multiples of the period. If a timer tick is longer than the period,
/// `Delay` and `Skip` run the task once per timer tick.
///
/// # Examples
///
/// A task with a period of 10 seconds, whose first run lasts from 10 s to 45 s. All other runs are
/// short:
///
/// ```text
/// seconds  0         10        20        30        40        50        60        70
/// Burst              [==================================]***  *         *         *
/// Delay              [==================================]         *         *
/// Skip               [==================================]    *         *         *
/// ```
///
/// The same with a clock that the program controls:
///
/// ```
/// use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, MissedTick, PeriodicRun, Schedule};
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// fn runs(policy: MissedTick) -> Vec<u64> {
///     let clock = ManualClock::new();
///     let builder = HashedWheelTimer::builder().tick(Duration::from_secs(1));
///     let (timer, mut driver) = builder.clock(clock.clone()).build_driven().unwrap();
///     let starts = Arc::new(Mutex::new(Vec::new()));
///     let task = {
///         let (clock, starts) = (clock.clone(), starts.clone());
///         move |_: &PeriodicRun<'_>| {
///             let mut starts = starts.lock().unwrap();
///             starts.push(clock.now().as_secs());
///             if starts.len() == 1 {
///                 clock.advance(Duration::from_secs(35));
///             }
///         }
///     };
///     let schedule = Schedule::at_fixed_rate(Duration::from_secs(10)).missed_tick(policy);
///     timer.schedule_periodic(schedule, task).unwrap();
///     while clock.now() < Duration::from_secs(74) {
///         if driver.turn() == 0 {
///             clock.advance(Duration::from_secs(1));
///         }
///     }
///     let starts = starts.lock().unwrap();
///     starts.clone()
/// }
///
/// assert_eq!(runs(MissedTick::Burst), [10, 45, 45, 45, 50, 60, 70]);
/// assert_eq!(runs(MissedTick::Delay), [10, 55, 65]);
/// assert_eq!(runs(MissedTick::Skip), [10, 50, 60, 70]);
/// ```
#[doc(alias("MissedTickBehavior"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MissedTick {
    /// Runs all missed runs, one after the other without a pause. This is the default, and the
    /// behaviour of Java's `ScheduledExecutorService.scheduleAtFixedRate`.
    ///
    /// A task that always takes longer than its period never catches up. If it runs on the worker,
    /// it delays all other timeouts more and more. An interval is ready without a pause.
    #[default]
    Burst,
    /// Omits the missed runs. The next run is one period after the end of the late run.
    Delay,
    /// Omits the missed runs. The next run is at the next multiple of the period.
    Skip,
}

/// Describes when a periodic task is due, for
/// [`schedule_periodic`](crate::HashedWheelTimer::schedule_periodic).
///
/// The two usual cases have methods of their own:
/// [`schedule_at_fixed_rate`](crate::HashedWheelTimer::schedule_at_fixed_rate) and
/// [`schedule_with_fixed_delay`](crate::HashedWheelTimer::schedule_with_fixed_delay).
///
/// # Examples
///
/// ```
/// use hashed_wheel::{MissedTick, Schedule};
/// use std::time::Duration;
///
/// // A heartbeat: the first immediately, then one every ten seconds, and no burst after a stall.
/// // Each is up to one second late, so that not all machines send theirs at the same time.
/// let heartbeat = Schedule::at_fixed_rate(Duration::from_secs(10))
///     .initial_delay(Duration::ZERO)
///     .missed_tick(MissedTick::Skip)
///     .jitter(Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Schedule {
    period: Duration,
    first: FirstRun,
    /// `None` for a fixed delay: the period begins at the end of a run.
    missed_tick: Option<MissedTick>,
    jitter: Duration,
    pub(super) continues_after_shutdown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstRun {
    After(Duration),
    At(Instant),
}

impl Schedule {
    /// Makes a schedule with a run every `period`. The first run is due one period after the task
    /// is scheduled.
    ///
    /// Each run is due one period after the previous run *was due*. So the schedule does not drift
    /// if runs take long or are late. A period of zero is an error when the task is scheduled:
    /// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod).
    ///
    /// # Examples
    ///
    /// See [`Schedule`].
    pub fn at_fixed_rate(period: Duration) -> Self {
        Self {
            period,
            first: FirstRun::After(period),
            missed_tick: Some(MissedTick::default()),
            jitter: Duration::ZERO,
            continues_after_shutdown: true,
        }
    }

    /// Makes a schedule in which a run is due `delay` after the previous run has *ended*. The first
    /// run is due `delay` after the task is scheduled.
    ///
    /// No run can be missed. A delay of zero is an error when the task is scheduled:
    /// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod).
    ///
    /// # Examples
    ///
    /// A task that takes three seconds:
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, PeriodicRun, Schedule};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let (sender, starts) = mpsc::channel();
    /// let (began, clock_of_task) = (timer.now(), clock.clone());
    /// let task = move |_: &PeriodicRun<'_>| {
    ///     sender.send((clock_of_task.instant() - began).as_secs()).unwrap();
    ///     clock_of_task.advance(Duration::from_secs(3));
    /// };
    /// timer.schedule_periodic(Schedule::with_fixed_delay(Duration::from_secs(10)), task)?;
    /// for _ in 0..3 {
    ///     clock.advance(driver.next_turn().unwrap());
    ///     driver.turn();
    /// }
    /// // At a fixed rate: 10, 20 and 30.
    /// assert_eq!(starts.try_iter().collect::<Vec<_>>(), [10, 23, 36]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_fixed_delay(delay: Duration) -> Self {
        Self {
            missed_tick: None,
            ..Self::at_fixed_rate(delay)
        }
    }

    /// Sets the delay of the first run. With zero, it is due at the timer's next tick. Replaces a
    /// [start time](Self::start_at).
    ///
    /// # Examples
    ///
    /// See [`Schedule`].
    pub fn initial_delay(mut self, delay: Duration) -> Self {
        self.first = FirstRun::After(delay);
        self
    }

    /// Sets the time at which the first run is due. Replaces an [initial
    /// delay](Self::initial_delay). The `start` of `tokio::time::interval_at`, and Quartz's
    /// `startAt`.
    ///
    /// Tasks with the same start and period run in the same ticks, whenever they are scheduled.
    /// `start` is an `Instant` of the timer's clock: see
    /// [`HashedWheelTimer::now`](crate::HashedWheelTimer::now).
    ///
    /// If `start` has passed, the first run is due at the timer's next tick. At a fixed rate the
    /// runs that should have followed since `start` are missed, so [`MissedTick`] decides about
    /// them: the default makes up for all of them. A start before the timer was built means the
    /// moment at which it was built.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, Schedule};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    ///
    /// let minute = Duration::from_secs(60);
    /// let each_minute = Schedule::at_fixed_rate(minute).start_at(timer.now() + minute);
    /// let first = timer.schedule_periodic(each_minute, |_| println!("first"))?;
    /// clock.advance(minute / 2);
    /// let second = timer.schedule_periodic(each_minute, |_| println!("second"))?;
    /// clock.advance(minute / 2);
    /// driver.turn();
    /// assert_eq!((first.runs(), second.runs()), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_at(mut self, start: Instant) -> Self {
        self.first = FirstRun::At(start);
        self
    }

    /// Sets the policy for missed runs. It has no effect with a fixed delay, because no run can be
    /// missed.
    ///
    /// # Examples
    ///
    /// See [`MissedTick`].
    #[doc(alias("set_missed_tick_behavior"))]
    pub fn missed_tick(mut self, policy: MissedTick) -> Self {
        self.missed_tick = self.missed_tick.map(|_| policy);
        self
    }

    /// Delays each run by a random time from zero to `max`, inclusive. This spreads the load if
    /// many machines have the same schedule.
    ///
    /// The schedule itself does not move, so the jitter of different runs does not add up. If `max`
    /// is longer than the period, a delayed run can make the next run a missed one.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, Schedule};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    ///
    /// // Due at a random time from 10 s to 12 s, then from 20 s to 22 s, and so on.
    /// let schedule = Schedule::at_fixed_rate(Duration::from_secs(10)).jitter(Duration::from_secs(2));
    /// let report = timer.schedule_periodic(schedule, |_| println!("report"))?;
    /// for (seconds, runs) in [(9, 0), (13, 1), (19, 1), (23, 2)] {
    ///     clock.advance(Duration::from_secs(seconds) - clock.now());
    ///     driver.turn();
    ///     assert_eq!(report.runs(), runs);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn jitter(mut self, max: Duration) -> Self {
        self.jitter = max;
        self
    }

    /// Sets whether the task keeps running while the timer [shuts
    /// down](crate::HashedWheelTimer::shutdown). Default: true.
    /// `ScheduledThreadPoolExecutor.setContinueExistingPeriodicTasksAfterShutdownPolicy`, whose
    /// default is false.
    ///
    /// A heartbeat or the renewal of a lease should continue until the last request has ended; a
    /// sweep need not. So this is a setting of the task, and not of the timer.
    ///
    /// With `false` no run begins once `shutdown` has begun, except one that begins at that very
    /// moment. A run that has begun continues. The task stays pending, and is one of the timeouts
    /// that `shutdown` cancels and returns. With `true` the task runs within the grace. With either
    /// value it does not prolong the wait.
    ///
    /// It has no effect on an interval (`HashedWheelTimer::interval_on`).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, Schedule};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let each_second = Schedule::at_fixed_rate(Duration::from_secs(1));
    /// let renewal = timer.schedule_periodic(each_second, |_| println!("renewed"))?;
    /// let sweep = timer.schedule_periodic(each_second.continue_after_shutdown(false), |_| println!("swept"))?;
    /// let request = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(1))?;
    /// clock.advance(Duration::from_secs(1));
    ///
    /// // The request falls due in time, and so do the runs.
    /// let rest = timer.shutdown(Duration::ZERO);
    /// assert!(request.is_expired() && rest.len() == 2);
    /// assert_eq!((renewal.runs(), sweep.runs()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn continue_after_shutdown(mut self, continues: bool) -> Self {
        self.continues_after_shutdown = continues;
        self
    }

    /// Starts the schedule at the time `now`. `time_at` converts an `Instant`.
    pub(crate) fn begin(
        self,
        now: u64,
        time_at: impl FnOnce(Instant) -> u64,
    ) -> Result<Recurrence, NewTimeoutError> {
        if self.period.is_zero() {
            return Err(NewTimeoutError::ZeroPeriod);
        }
        Ok(Recurrence {
            due: match self.first {
                FirstRun::After(delay) => ticks::deadline(now, delay),
                FirstRun::At(start) => time_at(start),
            },
            last_run: None,
            period: ticks::nanos(self.period),
            missed_tick: self.missed_tick,
            jitter: ticks::nanos(self.jitter),
            random: RandomState::new(),
        })
    }
}

/// A [`Schedule`] that has started.
#[derive(Debug)]
pub(crate) struct Recurrence {
    /// The time at which the next run is due, without jitter.
    due: u64,
    /// What `due` was at the last run that was not left out. An interval does not set it.
    last_run: Option<u64>,
    period: u64,
    missed_tick: Option<MissedTick>,
    jitter: u64,
    random: RandomState,
}

impl Recurrence {
    /// Returns the time at which the next run is due. The result is the same until
    /// [`advance`](Self::advance).
    pub(crate) fn deadline(&self) -> u64 {
        match self.jitter {
            0 => self.due,
            // A hash of the due time instead of a random number, so that each call returns the
            // same.
            jitter => ticks::or_never(self.due + self.random.hash_one(self.due) % (jitter + 1)),
        }
    }

    /// Returns how many runs of a fixed rate were due after the last one that was not left out, and
    /// before the next one.
    pub(super) fn missed(&self) -> u64 {
        match (self.missed_tick, self.last_run) {
            (Some(_), Some(last)) => ((self.due - last) / self.period).saturating_sub(1),
            _ => 0,
        }
    }

    /// Records that the run that is due is not left out.
    pub(super) fn set_run(&mut self) {
        self.last_run = Some(self.due);
    }

    /// Returns whether the next run is due a fixed delay after the end of the previous one.
    #[cfg(feature = "async")]
    pub(crate) fn is_fixed_delay(&self) -> bool {
        self.missed_tick.is_none()
    }

    /// Makes the next run due at `due`, without regard to the runs before. Returns the same as
    /// [`deadline`](Self::deadline).
    #[cfg(feature = "async")]
    pub(crate) fn restart(&mut self, due: u64) -> u64 {
        self.due = due;
        self.deadline()
    }

    /// Returns the period, or the fixed delay; `Duration::MAX` if it is too large to represent.
    #[cfg(feature = "async")]
    pub(crate) fn period(&self) -> Duration {
        match self.period {
            ticks::DEADLINE_NEVER => Duration::MAX,
            period => Duration::from_nanos(period),
        }
    }

    /// Records that the run that was due has ended at `now`, in a tick that has begun at `begun`.
    /// Returns the time at which the next run is due.
    pub(crate) fn advance(&mut self, now: u64, begun: u64) -> u64 {
        let next = self.due + self.period;
        let next = match self.missed_tick {
            Some(MissedTick::Burst) => next,
            // Not missed, because its tick has not begun.
            Some(_) if next > begun => next,
            Some(MissedTick::Skip) => next + ((begun - next) / self.period + 1) * self.period,
            // At least `due`: if the clock has stepped back, every run would otherwise be due
            // immediately.
            Some(MissedTick::Delay) | None => now.max(self.due) + self.period,
        };
        self.due = ticks::or_never(next);
        self.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticks::{DEADLINE_NEVER, Ticks};

    const SECOND: u64 = 1_000_000_000;

    fn no_start(_: Instant) -> u64 {
        unreachable!("the schedule has no start time")
    }

    /// A run has ended, in a tick of a nanosecond.
    fn advance(recurrence: &mut Recurrence, end: u64) -> u64 {
        recurrence.advance(end, end)
    }

    /// Returns the seconds at which runs are due if they end at the seconds `ends`. The first is
    /// due at 10 s.
    fn dues(schedule: Schedule, ends: &[u64]) -> Vec<u64> {
        let mut recurrence = schedule.begin(0, no_start).unwrap();
        let mut dues = vec![recurrence.deadline()];
        dues.extend(
            ends.iter()
                .map(|end| advance(&mut recurrence, end * SECOND)),
        );
        dues.into_iter().map(|due| due / SECOND).collect()
    }

    #[test]
    fn runs_that_are_not_missed_stay_at_multiples_of_the_period() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10));
        for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
            assert_eq!(
                dues(rate.missed_tick(policy), &[10, 29, 33]),
                [10, 20, 30, 40]
            );
        }
    }

    #[test]
    fn missed_runs_follow_the_policy() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10));
        assert_eq!(dues(rate, &[45, 45, 46]), [10, 20, 30, 40]);
        assert_eq!(
            dues(rate.missed_tick(MissedTick::Delay), &[45, 56]),
            [10, 55, 65]
        );
        assert_eq!(
            dues(rate.missed_tick(MissedTick::Skip), &[45, 51, 60]),
            [10, 50, 60, 70]
        );
        // A run that is due at the end of the previous run is missed too.
        assert_eq!(dues(rate.missed_tick(MissedTick::Delay), &[20]), [10, 30]);
        assert_eq!(dues(rate.missed_tick(MissedTick::Skip), &[20]), [10, 30]);
    }

    #[test]
    fn run_is_not_missed_before_its_tick() {
        let coarse = Ticks::new(Duration::from_secs(10));
        for policy in [MissedTick::Delay, MissedTick::Skip] {
            let rate = Schedule::at_fixed_rate(Duration::from_secs(10)).missed_tick(policy);
            let mut recurrence = rate.begin(5 * SECOND, no_start).unwrap();
            // The runs are due at 15, 25, ... and expire at 20, 30, ... Each ends late in its tick.
            let mut advance = |end: u64| {
                let end = end * SECOND;
                recurrence.advance(end, coarse.begun(end)) / SECOND
            };
            assert_eq!([29, 39, 49].map(&mut advance), [25, 35, 45]);
            let next = if policy == MissedTick::Skip { 65 } else { 70 };
            assert_eq!(advance(60), next);
        }
    }

    #[test]
    fn fixed_delay_begins_at_the_end_of_a_run() {
        let delay = Schedule::with_fixed_delay(Duration::from_secs(10));
        assert_eq!(dues(delay, &[12, 100]), [10, 22, 110]);
        assert_eq!(
            dues(delay.missed_tick(MissedTick::Burst), &[12, 100]),
            [10, 22, 110]
        );
    }

    #[test]
    fn clock_that_steps_back_makes_no_run_due_immediately() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10));
        for schedule in [Schedule::with_fixed_delay(Duration::from_secs(10)), rate] {
            for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
                assert_eq!(
                    dues(schedule.missed_tick(policy), &[3, 0, 5]),
                    [10, 20, 30, 40]
                );
            }
        }
    }

    #[test]
    fn jitter_is_within_bounds_and_does_not_add_up() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10)).jitter(Duration::from_secs(4));
        let mut recurrence = rate.begin(0, no_start).unwrap();
        let mut seen = [false; 4];
        for run in 1..=1_000 {
            let deadline = recurrence.deadline();
            assert_eq!(deadline, recurrence.deadline());
            let late = deadline - run * 10 * SECOND;
            assert!(late <= 4 * SECOND);
            seen[(late / SECOND).min(3) as usize] = true;
            advance(&mut recurrence, deadline);
        }
        assert_eq!(seen, [true; 4]);
    }

    #[test]
    fn advance_does_not_overflow() {
        for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
            let rate = Schedule::at_fixed_rate(Duration::MAX)
                .missed_tick(policy)
                .jitter(Duration::MAX);
            let mut recurrence = rate.begin(DEADLINE_NEVER - 1, no_start).unwrap();
            assert_eq!(recurrence.deadline(), DEADLINE_NEVER);
            assert_eq!(advance(&mut recurrence, DEADLINE_NEVER - 1), DEADLINE_NEVER);
            let mut recurrence = rate
                .initial_delay(Duration::ZERO)
                .begin(DEADLINE_NEVER - 1, no_start)
                .unwrap();
            assert_eq!(advance(&mut recurrence, DEADLINE_NEVER - 1), DEADLINE_NEVER);
            let often = Schedule::at_fixed_rate(Duration::from_nanos(1)).missed_tick(policy);
            let mut recurrence = often.begin(0, no_start).unwrap();
            assert!(advance(&mut recurrence, DEADLINE_NEVER - 1) <= DEADLINE_NEVER);
        }
    }

    #[test]
    fn period_of_zero_is_an_error() {
        for schedule in [Schedule::at_fixed_rate, Schedule::with_fixed_delay] {
            assert!(matches!(
                schedule(Duration::ZERO).begin(0, no_start),
                Err(NewTimeoutError::ZeroPeriod)
            ));
        }
    }

    #[test]
    fn jitter_is_between_zero_and_its_limit_inclusive() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10)).jitter(Duration::from_nanos(2));
        let mut recurrence = rate.begin(0, no_start).unwrap();
        let mut offsets = std::collections::BTreeSet::new();
        // Each of the three is left out with a probability of less than 2^-100.
        for run in 1..200 {
            let deadline = advance(&mut recurrence, run * 10 * SECOND);
            offsets.insert(deadline.checked_sub(recurrence.due));
        }
        assert!(offsets.into_iter().eq([0, 1, 2].map(Some)));
    }
}
