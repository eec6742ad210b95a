//! One run of a periodic task: what the task sees of it, and what it returns.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Instant;

use super::Recurrence;
#[cfg(doc)]
use super::{MissedTick, Periodic, Schedule};
use crate::clock::TimerClock;
#[cfg(doc)]
use crate::timer::HashedWheelTimer;

/// The current run, as its periodic task sees it:
/// [`schedule_periodic`](HashedWheelTimer::schedule_periodic).
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock, MissedTick, PeriodicRun, Schedule};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let second = Duration::from_secs(1);
/// let report = |run: &PeriodicRun<'_>| {
///     println!("run {}, due at {:?}, {} missed", run.number(), run.deadline(), run.missed());
/// };
/// let each_second = Schedule::at_fixed_rate(second).missed_tick(MissedTick::Skip);
/// let reports = timer.schedule_periodic(each_second, report)?;
/// clock.advance(second);
/// driver.turn(); // run 1, 0 missed
/// clock.advance(second * 5);
/// driver.turn();
/// clock.advance(second);
/// driver.turn();
/// assert_eq!(reports.runs(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PeriodicRun<'a> {
    pub(super) clock: &'a TimerClock,
    pub(super) recurrence: &'a Recurrence,
    pub(super) number: u64,
}

impl PeriodicRun<'_> {
    /// Returns the number of this run: 1 is the first. [`Periodic::runs`] returns the same during
    /// the run.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns when this run was due, on the timer's [clock](HashedWheelTimer::now). The `Instant`
    /// that `tokio::time::Interval::tick` returns, and Quartz's `getScheduledFireTime`.
    ///
    /// It is not later than the beginning of the run, and includes the [jitter](Schedule::jitter).
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.clock.instant_of(self.recurrence.deadline())
    }

    /// Returns how many runs were left out between the previous run and this one.
    ///
    /// At a fixed rate these are the runs that [`MissedTick::Skip`] or [`MissedTick::Delay`] has
    /// omitted, and those that the [task executor](crate::TaskExecutor) has dropped. The runs that
    /// [`MissedTick::Burst`] makes up for are not left out. With a fixed delay it is always zero,
    /// and so it is for the first run.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, MissedTick, Schedule};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let second = Duration::from_secs(1);
    /// let (sender, runs) = mpsc::channel();
    /// let skip = Schedule::at_fixed_rate(second).missed_tick(MissedTick::Skip);
    /// timer.schedule_periodic(skip, move |run| sender.send((run.number(), run.missed())).unwrap())?;
    /// // The run that is due after two seconds is four and a half seconds late. The runs that are
    /// // due after three, four, five and six seconds are left out.
    /// for seconds in [1.0, 5.5, 0.5] {
    ///     clock.advance(Duration::from_secs_f64(seconds));
    ///     driver.turn();
    /// }
    /// assert_eq!(runs.try_iter().collect::<Vec<_>>(), [(1, 0), (2, 0), (3, 4)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.recurrence.missed()
    }
}

/// The result of a [periodic task](HashedWheelTimer::schedule_periodic): nothing, and it goes on;
/// or [`ControlFlow<()>`](ControlFlow), which says whether it does. As `std::process::Termination`
/// is for `main`, except that no other type can implement it.
pub trait PeriodicOutput: Output + 'static {}

impl PeriodicOutput for () {}

impl PeriodicOutput for ControlFlow<()> {}

/// Seals [`PeriodicOutput`].
pub trait Output {
    fn ends_task(self) -> bool;
}

impl Output for () {
    fn ends_task(self) -> bool {
        false
    }
}

impl Output for ControlFlow<()> {
    fn ends_task(self) -> bool {
        self.is_break()
    }
}

impl fmt::Debug for PeriodicRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeriodicRun")
            .field("number", &self.number())
            .field("deadline", &self.deadline())
            .field("missed", &self.missed())
            .finish()
    }
}
