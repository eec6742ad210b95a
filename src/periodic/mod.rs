//! Periodic tasks.
//!
//! A periodic task is one timeout, in one node, from its first run to its last. While it runs, the
//! node's deadline is `DEADLINE_RUNNING` (`node/word.rs` has the table). After the run the node
//! gets the next deadline, and the worker inserts it into the wheel again. So there is one sequence
//! of runs, whatever operations race, and no run allocates.

mod schedule;

use std::any::type_name;
use std::fmt;
use std::time::Duration;

use crate::engine::{Shared, SharedFields, Timeout};
use crate::error::NewTimeoutError;
use crate::node::{NextRun, Task};
use crate::sync::unmodelled::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Ordering};
use crate::timer::HashedWheelTimer;

pub(crate) use schedule::Recurrence;
pub use schedule::{MissedTick, Schedule};

/// A handle to a periodic task: `java.util.concurrent.ScheduledFuture`.
///
/// A handle is cheap to clone. Clones refer to the same task. Dropping a handle does not cancel the
/// task. Holding a handle does not keep the timer running.
///
/// # Runs
///
/// Runs do not overlap: the next run becomes due after one has ended.
///
/// The task counts as one of [`pending_timeouts`](HashedWheelTimer::pending_timeouts) while it is
/// going to run and while it runs. It is also one of the timeouts that
/// [`stop`](HashedWheelTimer::stop) returns.
///
/// A task that panics does not run again, as in Java. The panic is reported, and
/// [`has_panicked`](Self::has_panicked) returns true.
///
/// If the [task executor](crate::TaskExecutor) drops a run, that run is skipped and reported. The
/// next run comes at its time.
///
/// # Examples
///
/// A task that ends itself needs its handle, which exists only after it is scheduled:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock, Periodic};
/// use std::sync::{Arc, OnceLock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
///
/// let itself = Arc::new(OnceLock::<Periodic>::new());
/// let mut left = 3;
/// let task = {
///     let itself = Arc::clone(&itself);
///     move || {
///         left -= 1;
///         if let (0, Some(itself)) = (left, itself.get()) {
///             itself.cancel();
///         }
///     }
/// };
/// let second = Duration::from_secs(1);
/// let retry = timer.schedule_at_fixed_rate(task, second, second)?;
/// itself.set(retry.clone()).unwrap();
///
/// clock.advance(Duration::from_secs(10));
/// driver.turn();
/// assert_eq!(retry.runs(), 3);
/// assert!(retry.is_cancelled());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Periodic {
    timeout: Timeout,
    progress: Arc<Progress>,
}

/// The progress of a periodic task, also after its last run. The loads and stores order nothing
/// else, so all of them are `Relaxed`.
struct Progress {
    runs: AtomicU64,
    has_panicked: AtomicBool,
}

impl Periodic {
    /// Cancels the task, if it has not ended. `java.util.concurrent.Future.cancel`, without an
    /// interrupt.
    ///
    /// Returns true for exactly one caller. Returns false if the task was cancelled before, by this
    /// method or by [`stop`](HashedWheelTimer::stop), or if it has panicked.
    ///
    /// When this returns, no further run begins. A run that has begun continues: it is not
    /// interrupted, and this call does not wait for it. The task is dropped on this thread, or on
    /// the thread of that run when it ends.
    ///
    /// Takes no lock. The task itself may call it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let minute = Duration::from_secs(60);
    /// let sweep = timer.schedule_at_fixed_rate(|| println!("swept"), minute, minute)?;
    /// assert!(sweep.cancel());
    /// assert!(sweep.is_cancelled());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel(&self) -> bool {
        self.timeout.cancel()
    }

    /// Returns whether [`cancel`](Self::cancel) or [`stop`](HashedWheelTimer::stop) ended the task.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.timeout.is_cancelled()
    }

    /// Returns whether a run has panicked. Then the task does not run again.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.progress.has_panicked.load(Ordering::Relaxed)
    }

    /// Returns how many runs have begun.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.progress.runs.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("timeout", &self.timeout)
            .field("runs", &self.runs())
            .field("has_panicked", &self.has_panicked())
            .finish_non_exhaustive()
    }
}

impl HashedWheelTimer {
    /// Runs `task` periodically, at a fixed rate. `ScheduledExecutorService.scheduleAtFixedRate`.
    ///
    /// The first run is due after `initial_delay`. Each further run is due one `period` after the
    /// run before it was due, so there is no drift. Runs that are late by a period or more are made
    /// up for ([`MissedTick::Burst`]). [`schedule_periodic`](Self::schedule_periodic) offers the
    /// other policies.
    ///
    /// # Errors
    ///
    /// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod) if `period` is zero; otherwise as for
    /// [`new_timeout`](Self::new_timeout). The task has been dropped then.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let second = Duration::from_secs(1);
    /// let heartbeat = timer.schedule_at_fixed_rate(|| println!("alive"), Duration::ZERO, second)?;
    /// // … until the connection closes:
    /// heartbeat.cancel();
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn schedule_at_fixed_rate<F>(
        &self,
        task: F,
        initial_delay: Duration,
        period: Duration,
    ) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut() + Send + 'static,
    {
        self.schedule_periodic(task, Schedule::at_fixed_rate(period).initial_delay(initial_delay))
    }

    /// Runs `task` periodically, with a fixed delay between runs.
    /// `ScheduledExecutorService.scheduleWithFixedDelay`.
    ///
    /// The first run is due after `initial_delay`. Each further run is due `delay` after the run
    /// before it has ended.
    ///
    /// # Errors
    ///
    /// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod) if `delay` is zero; otherwise as for
    /// [`new_timeout`](Self::new_timeout). The task has been dropped then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let minute = Duration::from_secs(60);
    /// let sweep = timer.schedule_with_fixed_delay(|| println!("swept"), minute, minute)?;
    /// assert_eq!(timer.pending_timeouts(), 1);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn schedule_with_fixed_delay<F>(
        &self,
        task: F,
        initial_delay: Duration,
        delay: Duration,
    ) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut() + Send + 'static,
    {
        self.schedule_periodic(task, Schedule::with_fixed_delay(delay).initial_delay(initial_delay))
    }

    /// Runs `task` periodically, according to `schedule`.
    ///
    /// The [`Schedule`] says when the first run is due, how the next run follows from the last, and
    /// what happens to runs that were missed.
    ///
    /// # Errors
    ///
    /// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod) if the period or delay of `schedule` is zero;
    /// otherwise as for [`new_timeout`](Self::new_timeout). The task has been dropped then.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, MissedTick, Schedule};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    ///
    /// let each_second = Schedule::at_fixed_rate(Duration::from_secs(1)).missed_tick(MissedTick::Skip);
    /// let report = timer.schedule_periodic(|| println!("still here"), each_second)?;
    /// clock.advance(Duration::from_secs(1));
    /// driver.turn();
    /// // The machine was suspended:
    /// clock.advance(Duration::from_secs(3_600));
    /// driver.turn();
    /// assert_eq!(report.runs(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_periodic<F>(&self, task: F, schedule: Schedule) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut() + Send + 'static,
    {
        let time = &self.shared.time;
        let now = time.now_or_soon();
        let recurrence = match schedule.begin(now, |start| time.at(start)) {
            Ok(recurrence) => recurrence,
            Err(error) => {
                self.shared.guard("when it was dropped", type_name::<F>, || drop(task));
                return Err(error);
            }
        };
        let progress = Arc::new(Progress { runs: AtomicU64::new(0), has_panicked: AtomicBool::new(false) });
        // A start time may have passed.
        let deadline = recurrence.deadline().max(now);
        let task = Box::new(PeriodicTask { task, recurrence, progress: Arc::clone(&progress) });
        let timeout = self.shared.schedule_by(task, deadline)?;
        Ok(Periodic { timeout, progress })
    }
}

/// The task as its node holds it, in a box: it does not fit into the node.
struct PeriodicTask<F> {
    task: F,
    recurrence: Recurrence,
    progress: Arc<Progress>,
}

impl<F: FnMut() + Send + 'static> Task<SharedFields> for Box<PeriodicTask<F>> {
    const IS_PLAIN: bool = false;
    const IS_PERIODIC: bool = true;

    fn run(self, _: &Timeout) {}

    fn cancelled(self, _: &Timeout) {}

    fn repeat(&mut self, timer: &Shared, runs: bool) -> Option<NextRun> {
        let mut next = None;
        timer.guard("in run, and runs no more", Self::name, || {
            if runs {
                self.progress.runs.fetch_add(1, Ordering::Relaxed);
                timer.counters.periodic_runs.add_one();
                (self.task)();
            }
            let now = timer.time.now();
            let deadline = self.recurrence.advance(now, timer.ticks);
            next = Some(NextRun { deadline, tick_began: timer.ticks.begun(now) });
        });
        if next.is_none() {
            self.progress.has_panicked.store(true, Ordering::Relaxed);
        }
        next
    }

    fn name() -> &'static str {
        type_name::<F>()
    }
}
