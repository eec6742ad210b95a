//! Tasks that run again and again.
//!
//! Such a task is one timeout, in one node, from its first run to its last. While it runs, the node says `DEADLINE_RUNNING`
//! ([`node`](crate::node) has the table); the run over, the node gets the next deadline and the worker puts it where that
//! belongs. So there is one chain whatever races, and nothing is allocated for a run.

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
/// Cheap to clone; clones name the same task. Dropping a handle does not cancel the task, and holding one does not keep the
/// timer running.
///
/// # Runs
///
/// No two runs overlap: the next one becomes due when one is over. The task is one of
/// [`pending_timeouts`](HashedWheelTimer::pending_timeouts) as long as it is going to run, and while it runs; and one of
/// what [`stop`](HashedWheelTimer::stop) returns. A task that panics runs no more, as in Java: that is reported, and
/// [`has_panicked`](Self::has_panicked) says so. A run that the [task executor](crate::TaskExecutor) refuses is left out and
/// reported, and the next one comes in its time.
///
/// # Examples
///
/// A task that ends itself is given its handle once there is one:
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
/// let retry = itself.get_or_init(|| timer.schedule_at_fixed_rate(task, second, second).expect("a running timer"));
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
    chain: Arc<Chain>,
}

/// What is known of a chain of runs, also when it is over. Published by nothing, and publishing nothing.
struct Chain {
    runs: AtomicU64,
    has_panicked: AtomicBool,
}

impl Periodic {
    /// Ends it for good, if it has not ended: true for exactly one caller.
    ///
    /// When this returns, at most the run that has begun already goes on (it is not interrupted, nor waited for), and none
    /// follows. The task is dropped on this thread, or where that run is, once it is over. Takes no lock and may be called
    /// by the task itself.
    ///
    /// False if it was cancelled before, by this or by [`stop`](HashedWheelTimer::stop), or has panicked.
    pub fn cancel(&self) -> bool {
        self.timeout.cancel()
    }

    /// Whether [`cancel`](Self::cancel) or [`stop`](HashedWheelTimer::stop) ended it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.timeout.is_cancelled()
    }

    /// Whether a run has panicked, so that there are no more.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.chain.has_panicked.load(Ordering::Relaxed)
    }

    /// How many runs have begun.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.chain.runs.load(Ordering::Relaxed)
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
    /// Runs `task` again and again: first after `initial_delay`, then each `period` after the run before was due, without
    /// drift. What is late by a period or more is made up for ([`MissedTick::Burst`](crate::MissedTick::Burst)); see
    /// [`schedule_periodic`](Self::schedule_periodic) for the other ways. `ScheduledExecutorService.scheduleAtFixedRate`.
    ///
    /// # Errors
    ///
    /// [`ZeroPeriod`](NewTimeoutError::ZeroPeriod), or as for [`new_timeout`](Self::new_timeout). The task has been dropped
    /// then.
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

    /// Runs `task` again and again: first after `initial_delay`, then each time `delay` after the run before has ended.
    /// `ScheduledExecutorService.scheduleWithFixedDelay`.
    ///
    /// # Errors
    ///
    /// As for [`schedule_at_fixed_rate`](Self::schedule_at_fixed_rate), of a `delay` of zero.
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

    /// Runs `task` again and again as `schedule` says.
    ///
    /// # Errors
    ///
    /// As for [`schedule_at_fixed_rate`](Self::schedule_at_fixed_rate).
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
    /// // The machine was asleep:
    /// clock.advance(Duration::from_secs(3_600));
    /// driver.turn();
    /// assert_eq!(report.runs(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_periodic<F>(&self, task: F, schedule: Schedule) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut() + Send + 'static,
    {
        let recurrence = match schedule.begin(self.shared.time.now_or_soon()) {
            Ok(recurrence) => recurrence,
            Err(error) => {
                self.shared.guard("when it was dropped", type_name::<F>, || drop(task));
                return Err(error);
            }
        };
        let chain = Arc::new(Chain { runs: AtomicU64::new(0), has_panicked: AtomicBool::new(false) });
        let deadline = recurrence.deadline();
        let task = Repeating { task, recurrence, chain: Arc::clone(&chain) };
        let timeout = self.shared.schedule_by(task, deadline)?;
        Ok(Periodic { timeout, chain })
    }
}

/// The task, in its node.
struct Repeating<F> {
    task: F,
    recurrence: Recurrence,
    chain: Arc<Chain>,
}

impl<F: FnMut() + Send + 'static> Task<SharedFields> for Repeating<F> {
    const IS_PLAIN: bool = false;
    const IS_PERIODIC: bool = true;

    fn run(self, _: &Timeout) {}

    fn cancelled(self, _: &Timeout) {}

    fn repeat(&mut self, timer: &Shared, runs: bool) -> Option<NextRun> {
        let mut next = None;
        timer.guard("in run, and runs no more", Self::name, || {
            if runs {
                self.chain.runs.fetch_add(1, Ordering::Relaxed);
                timer.counters.periodic_runs.add_one();
                (self.task)();
            }
            let now = timer.time.now();
            let deadline = self.recurrence.advance(now, timer.ticks);
            next = Some(NextRun { deadline, tick_began: timer.ticks.begun(now) });
        });
        if next.is_none() {
            self.chain.has_panicked.store(true, Ordering::Relaxed);
        }
        next
    }

    fn name() -> &'static str {
        type_name::<F>()
    }
}
