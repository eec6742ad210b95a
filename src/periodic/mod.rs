//! Periodic tasks.
//!
//! A periodic task is one timeout, in one node, from its first run to its last. While it runs, the
//! node's deadline is `DEADLINE_RUNNING` (`node/word.rs` has the table). After the run the node
//! gets the next deadline, and the worker inserts it into the wheel again. So there is one sequence
//! of runs, whatever operations race, and no run allocates.
//!
//! | the runner, and | before the run's end | after it |
//! |---|---|---|
//! | cancel | does not get the task; the end of the run finds `CANCELLED`, and the runner drops the task | gets the task, as with any timeout |
//! | `stop`, the run on the worker | waits for the lock | the node is in the wheel again, and `stop` ends it |
//! | `stop`, the run on another thread | finds the node in the wheel, at a tick that never comes, and cancels it without the task; the runner drops the task | `IN_FLIGHT`: cancels it, and leaves the wheel's reference to the message that is under way |
//! | a panic, or a task that ends itself | the run ends as `EXPIRED`, unless a cancel came first | – |
//! | `shutdown`, and a task that does not continue after it | a run that has begun continues | the next deadline is one that never comes: it stays pending, and `stop` returns it |
//! | the worker, the run on another thread | does not meet the node | the message moves the node to its next tick |
//!
//! | file | content |
//! |---|---|
//! | `schedule` | when runs are due: arithmetic |
//! | `run` | what a task sees of its run |

mod run;
mod schedule;

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
#[cfg(doc)]
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::cancel::{Cancel, CancelOnDrop, forward_cancel};
use crate::engine::{Inner, Timeout};
use crate::error::NewTimeoutError;
use crate::node::{NextRun, OnCancel, Task};
use crate::sync::unmodelled::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Ordering};
use crate::ticks::{DEADLINE_NEVER, DEADLINE_RUNNING};
use crate::timer::HashedWheelTimer;

pub use run::{PeriodicOutput, PeriodicRun};
pub(crate) use schedule::Recurrence;
pub use schedule::{MissedTick, Schedule};

/// A handle to a periodic task: `java.util.concurrent.ScheduledFuture`.
///
/// A handle is cheap to clone. Clones refer to the same task. Dropping a handle does not cancel the
/// task. Holding a handle does not keep the timer running.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
///
/// let second = Duration::from_secs(1);
/// let begin = timer.now();
/// let heartbeat = timer.schedule_at_fixed_rate(|| println!("alive"), second, second)?;
/// assert_eq!(heartbeat.next_run(), Some(begin + second));
/// clock.advance(second);
/// driver.turn();
/// assert_eq!(heartbeat.runs(), 1);
/// assert_eq!(heartbeat.next_run(), Some(begin + second * 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Runs
///
/// Runs do not overlap: the next run becomes due after one has ended.
///
/// The task counts as one of [`pending_timeouts`](HashedWheelTimer::pending_timeouts) while it is
/// going to run and while it runs. It is also one of the timeouts that
/// [`stop`](HashedWheelTimer::stop) returns.
///
/// The task ends when it is [cancelled](Self::cancel), when the timer is stopped, or when a run
/// returns [`ControlFlow::Break`].
///
/// A task that panics does not run again, as in Java. The panic is reported, and
/// [`has_panicked`](Self::has_panicked) returns true.
///
/// If the [task executor](crate::TaskExecutor) drops a run, that run is skipped and reported. The
/// next run comes at its time.
#[derive(Clone)]
#[doc(alias("ScheduledFuture", "Ticker"))]
pub struct Periodic {
    timeout: Timeout,
    progress: Arc<Progress>,
}

/// The progress of a periodic task, also after its last run. The loads and stores order nothing
/// else, so all of them are `Relaxed`.
#[derive(Default)]
struct Progress {
    runs: AtomicU64,
    has_panicked: AtomicBool,
}

impl Periodic {
    /// Cancels the task, if it has not ended. `java.util.concurrent.Future.cancel`, without an
    /// interrupt.
    ///
    /// Returns true for exactly one caller. Returns false if the task was cancelled before, by this
    /// method or by [`stop`](HashedWheelTimer::stop), or if it has panicked or ended itself.
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
    #[doc(alias("clearInterval"))]
    pub fn cancel(&self) -> bool {
        self.timeout.cancel()
    }

    /// Cancels the task, and waits until it does not run. Linux's `timer_delete_sync`.
    ///
    /// Returns what [`cancel`](Self::cancel) returns. When this returns, no run is in progress, and
    /// none will begin. Otherwise as [`Timeout::cancel_and_wait`]. If the task has ended itself or
    /// was cancelled during its last run, the call may wait for the end of a turn although no run
    /// is in progress.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let minute = Duration::from_secs(60);
    /// let sweep = timer.schedule_at_fixed_rate(|| println!("swept"), minute, minute)?;
    /// assert!(sweep.cancel_and_wait());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel_and_wait(&self) -> bool {
        self.timeout.cancel_and_wait()
    }

    /// Returns whether [`cancel`](Self::cancel) or [`stop`](HashedWheelTimer::stop) ended the task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let sweep = timer.schedule_with_fixed_delay(|| (), Duration::ZERO, Duration::from_secs(60))?;
    /// timer.stop();
    /// assert!(sweep.is_cancelled() && sweep.is_finished());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.timeout.is_cancelled()
    }

    /// Returns whether a run has panicked. Then the task does not run again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let minute = Duration::from_secs(60);
    /// let sweep = timer.schedule_at_fixed_rate(|| panic!("the table is gone"), minute, minute)?;
    /// clock.advance(minute * 5);
    /// driver.turn();
    /// assert!(sweep.has_panicked() && sweep.is_finished());
    /// assert_eq!((sweep.runs(), timer.stats().panics), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.progress.has_panicked.load(Ordering::Relaxed)
    }

    /// Returns how many runs have begun.
    ///
    /// # Examples
    ///
    /// See [`Periodic`].
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.progress.runs.load(Ordering::Relaxed)
    }

    /// Returns whether the task has ended: no further run begins.
    /// `java.util.concurrent.Future.isDone`, and tokio's `JoinHandle::is_finished`.
    ///
    /// If it was neither [cancelled](Self::is_cancelled) nor [has panicked](Self::has_panicked), it
    /// has ended itself. A task that is cancelled during a run has ended before that run has.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock, Schedule};
    /// use std::ops::ControlFlow;
    /// # use std::time::Duration;
    ///
    /// # let clock = ManualClock::new();
    /// # let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let second = Duration::from_secs(1);
    /// let three = timer.schedule_periodic(Schedule::at_fixed_rate(second), |run| match run.number() {
    ///     ..3 => ControlFlow::Continue(()),
    ///     _ => ControlFlow::Break(()),
    /// })?;
    /// clock.advance(second * 9);
    /// driver.turn();
    /// assert!(three.is_finished() && !three.is_cancelled());
    /// assert_eq!(three.runs(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.timeout.handle.end().is_some()
    }

    /// Returns when the next run is due, on the timer's [clock](HashedWheelTimer::now).
    /// `ScheduledFuture.getDelay`, as an `Instant`.
    ///
    /// The run begins at the first tick boundary at or after this time, so the time may have
    /// passed. It includes the [jitter](Schedule::jitter).
    ///
    /// Returns `None` if no further run is known: while a run is in progress or waits for the [task
    /// executor](crate::TaskExecutor), because its end decides about the next one; if the task has
    /// ended; or if the run is never due.
    ///
    /// # Examples
    ///
    /// See [`Periodic`].
    #[must_use]
    pub fn next_run(&self) -> Option<Instant> {
        let handle = &self.timeout.handle;
        // The end is read second: if there is none, the deadline was that of a pending run.
        let deadline = handle.deadline();
        let is_known = deadline < DEADLINE_RUNNING && handle.end().is_none();
        is_known.then(|| handle.timer().clock.instant_of(deadline))
    }

    /// Turns the handle into a guard that cancels the task when the guard is dropped, as
    /// [`Timeout::cancel_on_drop`] does a timeout.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// let second = Duration::from_secs(1);
    /// {
    ///     let heartbeat = timer.schedule_at_fixed_rate(|| println!("alive"), second, second)?;
    ///     let _guard = heartbeat.cancel_on_drop();
    ///     // … a connection, until it closes …
    /// }
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel_on_drop(self) -> CancelOnDrop<Self> {
        CancelOnDrop::new(self)
    }
}

impl Cancel for Periodic {
    fn cancel_and_drop(self) -> bool {
        Inner::discard(self.timeout)
    }

    forward_cancel!(Self);
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
    /// A task that runs on the worker for longer than its period is always due again, so the worker
    /// runs it over and over, and all other timeouts are late. If that can happen, leave out the
    /// missed runs with [`MissedTick::Skip`], or run the task by a [task
    /// executor](crate::Builder::task_executor).
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
    #[doc(alias("scheduleAtFixedRate", "setInterval"))]
    pub fn schedule_at_fixed_rate<F>(
        &self,
        task: F,
        initial_delay: Duration,
        period: Duration,
    ) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut() + Send + 'static,
    {
        let schedule = Schedule::at_fixed_rate(period).initial_delay(initial_delay);
        self.schedule_runs::<F, _>(schedule, without_run(task))
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
    #[doc(alias("scheduleWithFixedDelay"))]
    pub fn schedule_with_fixed_delay<F>(
        &self,
        task: F,
        initial_delay: Duration,
        delay: Duration,
    ) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut() + Send + 'static,
    {
        let schedule = Schedule::with_fixed_delay(delay).initial_delay(initial_delay);
        self.schedule_runs::<F, _>(schedule, without_run(task))
    }

    /// Runs `task` periodically, according to `schedule`.
    ///
    /// The [`Schedule`] says when the first run is due, how the next run follows from the last, and
    /// what happens to runs that were missed. The task sees its run. It returns nothing, or whether
    /// it goes on ([`PeriodicOutput`]): after [`ControlFlow::Break`] it does not run again and is
    /// dropped. Then it [is finished](Periodic::is_finished), and not
    /// [cancelled](Periodic::is_cancelled). If it is cancelled during that run, the cancellation
    /// counts.
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
    /// let report = timer.schedule_periodic(each_second, |_| println!("still here"))?;
    /// clock.advance(Duration::from_secs(1));
    /// driver.turn();
    /// // The machine was suspended:
    /// clock.advance(Duration::from_secs(3_600));
    /// driver.turn();
    /// assert_eq!(report.runs(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Three tries at most:
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock, Schedule};
    /// use std::ops::ControlFlow;
    /// # use std::time::Duration;
    ///
    /// # fn connect() -> bool { false }
    /// # let clock = ManualClock::new();
    /// # let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let each_second = Schedule::at_fixed_rate(Duration::from_secs(1));
    /// let retry = timer.schedule_periodic(each_second, |run| {
    ///     match connect() || run.number() == 3 {
    ///         true => ControlFlow::Break(()),
    ///         false => ControlFlow::Continue(()),
    ///     }
    /// })?;
    /// # clock.advance(Duration::from_secs(10));
    /// # driver.turn();
    /// # assert_eq!(retry.runs(), 3);
    /// # assert!(retry.is_finished() && !retry.is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("setInterval", "every", "NewTicker"))]
    pub fn schedule_periodic<F, R>(
        &self,
        schedule: Schedule,
        task: F,
    ) -> Result<Periodic, NewTimeoutError>
    where
        F: FnMut(&PeriodicRun<'_>) -> R + Send + 'static,
        R: PeriodicOutput,
    {
        self.schedule_runs::<F, R>(schedule, task)
    }

    /// Schedules a task, which reports name as of type `N`.
    fn schedule_runs<N: 'static, R: PeriodicOutput>(
        &self,
        schedule: Schedule,
        mut task: impl FnMut(&PeriodicRun<'_>) -> R + Send + 'static,
    ) -> Result<Periodic, NewTimeoutError> {
        let (time, counters) = (&self.inner.clock, &self.inner.counters);
        let now = time.deadline_base();
        let recurrence = match schedule.begin(now, |start| time.at(start)) {
            Ok(recurrence) => recurrence,
            Err(error) => {
                counters.guard_drop(type_name::<N>, || drop(task));
                return Err(error);
            }
        };
        let progress = Arc::<Progress>::default();
        // A start time may have passed.
        let deadline = recurrence.deadline().max(now);
        let task = Box::new(PeriodicTask {
            task: move |run: &PeriodicRun<'_>| task(run).ends_task(),
            recurrence,
            continues_after_shutdown: schedule.continues_after_shutdown,
            progress: Arc::clone(&progress),
            name: PhantomData::<fn() -> N>,
        });
        let timeout = self.inner.schedule_by(task, deadline)?;
        Ok(Periodic { timeout, progress })
    }
}

/// A task of Java's methods, which does not see its run.
fn without_run(mut task: impl FnMut()) -> impl FnMut(&PeriodicRun<'_>) {
    move |_| task()
}

/// The task as its node holds it, in a box: it does not fit into the node.
struct PeriodicTask<F, N> {
    /// Returns whether the task ends.
    task: F,
    recurrence: Recurrence,
    continues_after_shutdown: bool,
    progress: Arc<Progress>,
    /// The type that reports name: the user's closure.
    name: PhantomData<fn() -> N>,
}

impl<F: FnMut(&PeriodicRun<'_>) -> bool, N> PeriodicTask<F, N> {
    /// Runs the task once, or leaves out this run. Returns when the next run is due, unless the
    /// task has ended itself.
    fn step(&mut self, timer: &Inner, runs: bool) -> Option<NextRun> {
        if runs {
            let number = self.progress.runs.fetch_add(1, Ordering::Relaxed) + 1;
            timer.counters.periodic_runs.add(1);
            let run = PeriodicRun {
                clock: &timer.clock,
                recurrence: &self.recurrence,
                number,
            };
            if (self.task)(&run) {
                return None;
            }
            self.recurrence.set_run();
        }
        let now = timer.clock.now();
        let tick_began = timer.ticks.begun(now);
        Some(NextRun {
            deadline: self.recurrence.advance(now, tick_began),
            tick_began,
        })
    }
}

impl<F, N> Task<Inner> for Box<PeriodicTask<F, N>>
where
    F: FnMut(&PeriodicRun<'_>) -> bool + Send + 'static,
    N: 'static,
{
    const ON_CANCEL: OnCancel = OnCancel::Drop;
    const IS_PERIODIC: bool = true;

    fn run(self, _: &Timeout) {}

    fn cancelled(self, _: &Timeout) {}

    fn repeat(&mut self, timer: &Inner, runs: bool) -> Option<NextRun> {
        if !self.continues_after_shutdown && timer.state.snapshot().is_closing() {
            // It runs no more, and is pending until the `stop` at the end of the shutdown.
            return Some(NextRun {
                deadline: DEADLINE_NEVER,
                tick_began: 0,
            });
        }
        let (counters, mut next) = (&timer.counters, None);
        let step = || next = Some(self.step(timer, runs));
        counters.guard("in run, and runs no more", Self::name, step);
        if next.is_none() {
            // The step has not returned.
            self.progress.has_panicked.store(true, Ordering::Relaxed);
        }
        next.flatten()
    }

    fn name() -> &'static str {
        type_name::<N>()
    }
}
