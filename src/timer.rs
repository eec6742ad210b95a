//! The handle to a timer.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::ending::Ending;
use crate::engine::{Shared, Timeout};
use crate::error::{NewTimeoutError, TryNewTimeoutError};
use crate::stats::{Occupancy, PendingTimeout, Stats};
use crate::sync::{Arc, Ordering};
use crate::task::{TimerTask, schedule_closure, schedule_task, try_schedule_task};
use crate::ticks;

/// A timer for very many coarse timeouts: Netty's `HashedWheelTimer`.
///
/// This type is a handle. Clones refer to the same timer. A process needs one timer, or a few;
/// share a timer by cloning its handle.
///
/// # Dropping the last handle joins a thread
///
/// Dropping the last handle stops the timer, as [`stop`](Self::stop) does: it cancels all pending
/// timeouts, waits for a task that is running on the worker, and joins the worker thread. If a task
/// drops the last handle on the worker, the timer stops too, but the drop does not wait. With
/// [`Builder::detach_on_drop`](crate::Builder::detach_on_drop) it never waits.
///
/// A [`Timeout`] is not a handle to the timer: it does not keep the worker alive.
///
/// # When a timeout fires
///
/// Time is divided into ticks, counted from the moment the timer was built. A timeout fires at the
/// first tick boundary at or after its deadline that has not been processed yet. It is never early
/// by the timer's clock, and at most one tick late, plus the time that the operating system takes
/// to wake a thread. (The default clock assumes that the system's clock is not slewed by more than
/// a thousandth. While chrony slews it at its default rate, a timeout may be 21 µs early.)
///
/// Timeouts that one thread schedules for the same tick fire in the order in which they were
/// scheduled.
///
/// After a delay (a slow task, a suspended machine) the worker catches up with everything that is
/// due, in tick order. It drains at most 100 000 messages at a time. Messages of all kinds count:
/// new timeouts, cancellations, resets. If more messages are waiting, the order holds within each
/// batch.
///
/// # After `fork`
///
/// A child process that `fork` makes has a copy of the timer and not its thread. So if the thread
/// was started before, the copy does nothing: what is pending there neither runs nor is returned.
/// Make a new timer in the child; [`global`](Self::global) is a copy too. In the child
/// [`stop`](Self::stop) and [`shutdown`](Self::shutdown) return an empty `Vec` at once and call no
/// hook, so that nothing ends both there and in the parent. Dropping the last handle does the same.
/// Memory of the timer is not freed in the child.
///
/// A timer whose thread was not started, or a [driven](crate::Builder::build_driven) one, works in
/// the child as in the parent. As for every library with locks, another thread of the parent must
/// not be within a call of this library at the moment of the fork: the child could wait for it
/// forever. The worker thread may be anywhere.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
/// let (fired, wait) = mpsc::channel();
/// timer.new_timeout(move |_| fired.send("ring").unwrap(), Duration::from_millis(50))?;
/// let never = timer.new_timeout(|_| unreachable!(), Duration::from_secs(60))?;
///
/// assert!(never.cancel());
/// assert_eq!(wait.recv()?, "ring");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HashedWheelTimer {
    pub(crate) shared: Arc<Shared>,
    /// Whether `SharedFields::handles` counts this handle. False if [`Timeout::timer`] made it
    /// after the last counted handle was dropped.
    counts: bool,
}

impl HashedWheelTimer {
    /// Makes a handle and counts it.
    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self { shared, counts: true }
    }

    /// Makes a handle for [`Timeout::timer`]. It is counted, unless the count is zero already: then
    /// the timer stops or has stopped, which must not happen twice.
    pub(crate) fn from_timeout(shared: Arc<Shared>) -> Self {
        let one_more = |handles| (handles > 0).then_some(handles + 1);
        let counts = shared.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok();
        Self { shared, counts }
    }

    /// Starts the worker thread now, instead of at the first [`new_timeout`](Self::new_timeout).
    /// Netty's `start`.
    ///
    /// Does nothing if the thread runs already, or if the timer is
    /// [driven](crate::Builder::build_driven).
    ///
    /// # Errors
    ///
    /// - [`Stopped`](NewTimeoutError::Stopped): the timer is stopped, or is being [shut
    ///   down](Self::shutdown).
    /// - [`Spawn`](NewTimeoutError::Spawn): the operating system refused a thread. The next call
    ///   tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// let timer = HashedWheelTimer::default();
    /// timer.start()?; // reports a missing thread here, and not at the first timeout
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn start(&self) -> Result<(), NewTimeoutError> {
        self.shared.start()
    }

    /// Schedules `task` to run once, `delay` from now. Netty's `newTimeout`.
    ///
    /// The task runs on the worker, or on the [task executor](crate::Builder::task_executor) if the
    /// timer has one. A task on the worker should be short, because all other timeouts wait for it.
    ///
    /// The first call starts the worker thread, unless [`start`](Self::start) did.
    ///
    /// # Deadline
    ///
    /// The calling thread fixes the deadline, in nanoseconds. With a delay of zero the task runs at
    /// the next tick boundary. With a delay too large to represent it never runs.
    ///
    /// # Blocking
    ///
    /// Once the worker runs, this call takes no lock that another thread could hold. It wakes the
    /// worker thread at most once per tick, and not under steady traffic. For a driven timer, see
    /// [`Builder::waker`](crate::Builder::waker).
    ///
    /// # Errors
    ///
    /// The task has been dropped, on this thread, when this call returns one of these:
    ///
    /// - [`Stopped`](NewTimeoutError::Stopped): the timer is stopped, or is being [shut
    ///   down](Self::shutdown).
    /// - [`TooManyPending`](NewTimeoutError::TooManyPending): as many timeouts are pending as
    ///   [`max_pending_timeouts`](crate::Builder::max_pending_timeouts) allows.
    /// - [`Spawn`](NewTimeoutError::Spawn): the worker thread could not be started. The next call
    ///   tries again.
    ///
    /// # Out of memory
    ///
    /// The process ends if there is no memory, as for any allocation. It also ends when one timer
    /// has nearly 2^32 timeouts (256 GiB), ended ones that still have a handle included.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let late = timer.new_timeout(|_| println!("no answer"), Duration::from_secs(5))?;
    /// // The answer arrives in time:
    /// assert!(late.cancel());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn new_timeout<F>(&self, task: F, delay: Duration) -> Result<Timeout, NewTimeoutError>
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        schedule_closure(&self.shared, task, self.shared.deadline_after(delay))
    }

    /// Schedules a [`TimerTask`] to run once, `delay` from now.
    ///
    /// This is [`new_timeout`](Self::new_timeout) for a task with a type of its own. Such a task
    /// can schedule itself again, and is told when it is [cancelled](TimerTask::cancelled).
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](Self::new_timeout).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask};
    /// use std::time::Duration;
    ///
    /// struct Lease(u32);
    ///
    /// impl TimerTask for Lease {
    ///     fn run(self, _: &Timeout) {
    ///         println!("lease {} has run out", self.0);
    ///     }
    ///
    ///     fn cancelled(self, _: &Timeout) {
    ///         println!("lease {} was given back", self.0);
    ///     }
    /// }
    ///
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout_task(Lease(7), Duration::from_secs(30))?;
    /// lease.cancel(); // prints "lease 7 was given back"
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn new_timeout_task<T: TimerTask>(
        &self,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, NewTimeoutError> {
        schedule_task(&self.shared, task, self.shared.deadline_after(delay))
    }

    /// Schedules `task` to run once, at `deadline`.
    ///
    /// This is [`new_timeout`](Self::new_timeout) with a deadline instead of a delay. The task runs
    /// at the first tick boundary at or after `deadline`. A deadline in the past means a delay of
    /// zero: the task runs at the next boundary. A deadline too far in the future to represent
    /// never comes.
    ///
    /// With the default clock the conversion is exact, whenever the call is made: timeouts with the
    /// same deadline belong to the same tick. This also holds with a
    /// [`ManualClock`](crate::ManualClock), whose `Instant`s are those of [`now`](Self::now). Any
    /// other clock says itself [how it converts](crate::Clock::time_at) an `Instant`.
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](Self::new_timeout).
    ///
    /// # Examples
    ///
    /// One deadline for several steps:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::{Duration, Instant};
    /// # let timer = HashedWheelTimer::default();
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// for step in ["resolve", "connect", "ask"] {
    ///     let late = timer.new_timeout_at(move |_| println!("no time left to {step}"), deadline)?;
    ///     // … the step …
    ///     late.cancel();
    /// }
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn new_timeout_at<F>(&self, task: F, deadline: Instant) -> Result<Timeout, NewTimeoutError>
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        schedule_closure(&self.shared, task, self.shared.time.at_or_now(deadline))
    }

    /// Schedules a [`TimerTask`] to run once, at `deadline`.
    ///
    /// This is [`new_timeout_at`](Self::new_timeout_at) for a task with a type of its own, as
    /// [`new_timeout_task`](Self::new_timeout_task) is for [`new_timeout`](Self::new_timeout).
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](Self::new_timeout).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask};
    /// use std::time::Duration;
    ///
    /// struct Lease(u32);
    ///
    /// impl TimerTask for Lease {
    ///     fn run(self, _: &Timeout) {
    ///         println!("lease {} has run out", self.0);
    ///     }
    /// }
    ///
    /// let timer = HashedWheelTimer::default();
    /// let end = timer.now() + Duration::from_secs(30);
    /// let lease = timer.new_timeout_task_at(Lease(7), end)?;
    /// assert_eq!(lease.deadline(), end);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn new_timeout_task_at<T: TimerTask>(
        &self,
        task: T,
        deadline: Instant,
    ) -> Result<Timeout, NewTimeoutError> {
        schedule_task(&self.shared, task, self.shared.time.at_or_now(deadline))
    }

    /// Schedules a [`TimerTask`] to run once, `delay` from now, or gives it back.
    ///
    /// This is [`new_timeout_task`](Self::new_timeout_task), except that the error contains the
    /// task, also if another thread closes the timer during the call.
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](Self::new_timeout), together with the task. Its
    /// [`cancelled`](TimerTask::cancelled) hook is not called, because it was never scheduled.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask};
    /// use std::time::Duration;
    ///
    /// struct Resend(String);
    ///
    /// impl TimerTask for Resend {
    ///     fn run(self, _: &Timeout) {
    ///         println!("sends {} again", self.0);
    ///     }
    /// }
    ///
    /// let timer = HashedWheelTimer::default();
    /// timer.stop();
    /// let message = Resend("hello".to_owned());
    /// let rejected = timer.try_new_timeout_task(message, Duration::from_secs(5)).unwrap_err();
    /// println!("cannot send {} again: {}", rejected.task.0, rejected.error);
    /// ```
    #[inline]
    pub fn try_new_timeout_task<T: TimerTask>(
        &self,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, TryNewTimeoutError<T>> {
        let deadline = ticks::deadline(self.shared.time.now_or_soon(), delay);
        try_schedule_task(&self.shared, task, deadline)
    }

    /// Schedules a [`TimerTask`] to run once, at `deadline`, or gives it back.
    ///
    /// This is [`try_new_timeout_task`](Self::try_new_timeout_task) with a deadline instead of a
    /// delay. The deadline is converted as by [`new_timeout_at`](Self::new_timeout_at).
    ///
    /// # Errors
    ///
    /// As for [`try_new_timeout_task`](Self::try_new_timeout_task).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask};
    /// # use std::time::Duration;
    /// # struct Resend(String);
    /// # impl TimerTask for Resend {
    /// #     fn run(self, _: &Timeout) {}
    /// # }
    /// let timer = HashedWheelTimer::default();
    /// let message = Resend("hello".to_owned());
    /// if let Err(rejected) = timer.try_new_timeout_task_at(message, timer.now()) {
    ///     println!("cannot send {} again: {}", rejected.task.0, rejected.error);
    /// }
    /// ```
    #[inline]
    pub fn try_new_timeout_task_at<T: TimerTask>(
        &self,
        task: T,
        deadline: Instant,
    ) -> Result<Timeout, TryNewTimeoutError<T>> {
        try_schedule_task(&self.shared, task, self.shared.time.at_or_now(deadline))
    }

    /// Cancels all pending timeouts, and returns how many these were. The timer continues.
    ///
    /// Each timeout ends as by its own [`cancel`](Timeout::cancel), on this thread: its
    /// [`cancelled`](TimerTask::cancelled) hook is called, and it counts as cancelled. That
    /// includes periodic tasks.
    ///
    /// It does not include futures that wait, and other tasks that [are
    /// awaited](TimerTask::IS_AWAITED). They belong to the code that awaits them: drop them to
    /// cancel them. They stay [pending](Self::pending_timeouts).
    ///
    /// # Concurrent calls
    ///
    /// Each timeout ends once, whatever races. A timeout that another thread schedules meanwhile
    /// may or may not be cancelled. If that call has returned before this one began, it is, unless
    /// another thread ends it. A timeout that another thread cancels meanwhile may still be pending
    /// when this call returns: until that `cancel` returns.
    ///
    /// # Blocking
    ///
    /// The call waits for a task that is running on the worker, and for the turn that the worker is
    /// in. During a storm, when very many timeouts are due at once, that turn first runs all of
    /// them, so the call may wait for seconds and find nothing left to cancel. A limit of
    /// [`max_tasks_per_turn`](crate::Builder::max_tasks_per_turn) ends the turn sooner.
    ///
    /// The call holds the worker up while it looks at all timeouts, for some ten nanoseconds each.
    /// The hooks are called after that.
    ///
    /// On a timer that is stopped, or was never started, it returns zero.
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if a task calls it on the worker, because the call would wait for
    /// that task. No timeout is cancelled then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// timer.new_timeout(|_| println!("expired too"), Duration::from_secs(60))?;
    /// assert_eq!(timer.cancel_all(), 2);
    /// assert!(lease.is_cancelled());
    ///
    /// // The timer goes on:
    /// timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel_all(&self) -> usize {
        if self.would_wait_for_itself("cancel_all") { 0 } else { self.shared.cancel_all() }
    }

    /// Returns the time of the timer's clock as an `Instant`. `tokio::time::Instant::now`.
    ///
    /// With the default clock this is [`Instant::now`]. With another one, such as a
    /// [`ManualClock`](crate::ManualClock) in a test, it is the `Instant` that this clock
    /// [gives](crate::Clock::instant_at) its present time. So code that computes deadlines from
    /// this method can be tested without real time.
    ///
    /// # Panics
    ///
    /// On a platform without a clock `Instant` does not work: `wasm32-unknown-unknown`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let begin = timer.now();
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(timer.now() - begin, Duration::from_secs(5));
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.time.now_as_instant()
    }

    /// Stops the timer permanently and returns the timeouts that had not ended. Netty's `stop`.
    ///
    /// Each returned timeout is cancelled, and its [`cancelled`](TimerTask::cancelled) hook has
    /// been called.
    ///
    /// # Blocking
    ///
    /// The call waits for a task that is running on the worker; the task is never interrupted. Then
    /// it joins the worker thread. On a driven timer it waits for a turn that is in progress. It
    /// does not wait for tasks that a [task executor](crate::Builder::task_executor) has accepted.
    ///
    /// The call drops the task executor once no task can be handed to it any more. If dropping a
    /// thread pool waits for the pool's threads, a task in that pool should not be the one to stop
    /// the timer.
    ///
    /// # Concurrent and later calls
    ///
    /// Only the first call returns the timeouts. Concurrent and later calls wait until all timeouts
    /// have ended and return an empty `Vec`. They do not wait for the thread or for the drop of the
    /// executor.
    ///
    /// A call on a timer that was never started returns an empty `Vec`. So does a call from a
    /// `cancelled` hook that `stop` itself has called, and one [after `fork`](Self#after-fork) in
    /// the child.
    ///
    /// Dropping the last handle or the [`Driver`](crate::Driver) counts as a call, and may be the
    /// first. An event loop that ends because [`is_stopped`](crate::Driver::is_stopped) is true
    /// does not take the timeouts from the thread that stopped the timer.
    ///
    /// # Panics
    ///
    /// If a task calls it on the worker, because the call would wait for that task. The timer is
    /// unchanged then. (Netty: `IllegalStateException`.)
    ///
    /// Do not call it in a `Drop` that may run on the worker: if the task is panicking already, a
    /// second panic ends the process. Dropping a handle never panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// assert_eq!(timer.stop(), [lease.clone()]);
    /// assert!(lease.is_cancelled());
    /// assert!(timer.stop().is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn stop(&self) -> Vec<Timeout> {
        if self.would_wait_for_itself("stop") { Vec::new() } else { self.shared.stop() }
    }

    /// Runs what falls due within `grace` from now, then [stops](Self::stop) the timer. Returns the
    /// timeouts that are left.
    ///
    /// # What runs
    ///
    /// From this call on the timer rejects new timeouts as a [stopped](NewTimeoutError::Stopped)
    /// timer does, also those of its own tasks. `cancel` and `reset` work as always.
    ///
    /// A pending timeout whose deadline is at most `grace` from now still runs, at its tick. So
    /// this call may take one tick longer than `grace`, and the rest of that tick runs too. A grace
    /// of zero is for what should have run by now. A grace of `Duration::MAX` waits for everything
    /// that ever falls due.
    ///
    /// A timeout that falls due later is returned, with two exceptions:
    ///
    /// - A slow task has held up the worker until the timeout was due.
    /// - The timeout fell due before this call had seen that everything within `grace` has run.
    ///   That takes about a millisecond, or 0.1 µs per pending timeout if there are millions.
    ///
    /// [Periodic](crate::Periodic) tasks keep running meanwhile, unless their schedule [says
    /// otherwise](crate::Schedule::continue_after_shutdown). They do not prolong the wait, and are
    /// among the returned timeouts.
    ///
    /// # Blocking
    ///
    /// The call waits no longer than it has to. It stops the timer once nothing that is pending
    /// falls due in time, also if that is because timeouts were cancelled or re-armed. It notices
    /// within about 10 ms, or 0.1 µs per pending timeout if there are millions.
    ///
    /// Like `stop` it waits for a task that runs on the worker, and not for tasks that a [task
    /// executor](crate::Builder::task_executor) has accepted.
    ///
    /// The timer's [clock](crate::Builder::clock) measures the grace. If that clock stands still,
    /// or falls behind real time by more than a tick and 10 ms, real time decides.
    ///
    /// # Concurrent calls
    ///
    /// Until the grace is over the timer [is not stopped](Self::is_stopped). Another thread can
    /// stop it earlier: by `stop`, by dropping the [`Driver`](crate::Driver), or by a `shutdown`
    /// with less grace. That call gets the timeouts that are left. This one waits until all
    /// timeouts have ended and returns an empty `Vec`.
    ///
    /// # Driven timers
    ///
    /// Only the event loop that turns a driven timer can let time pass, so this call does not wait.
    /// It runs what is due now, on the calling thread, and stops the timer. To give grace, the loop
    /// keeps turning the driver until the grace is over.
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if a task calls it on the worker. The timer is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let answer = timer.new_timeout(|_| println!("last answer"), Duration::from_millis(20))?;
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(3_600))?;
    ///
    /// // Takes 20 ms, because nothing else falls due within the second.
    /// assert_eq!(timer.shutdown(Duration::from_secs(1)), [lease]);
    /// assert!(answer.is_expired());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn shutdown(&self, grace: Duration) -> Vec<Timeout> {
        if self.would_wait_for_itself("shutdown") { Vec::new() } else { self.shared.shutdown(grace) }
    }

    /// Stops the timer, but waits at most for `limit`. tokio's `Runtime::shutdown_timeout`.
    ///
    /// This is [`stop`](Self::stop) with a bound that holds whatever a running task does. `limit`
    /// is in real time. From this call on the timer rejects new timeouts.
    ///
    /// Another thread stops the timer, which calls the hooks and drops the task executor. If the
    /// operating system refuses that thread, this call stops the timer itself and may take longer.
    ///
    /// # Errors
    ///
    /// If the timer has not ended in time, the error is the [`Ending`]. It says what is known of
    /// the task that runs, and it can wait further for the timeouts that are left. The end goes on
    /// also if it is dropped. The drop of the last handle does not wait for it.
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if a task calls it on the worker. The timer is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// match timer.stop_timeout(Duration::from_secs(1)) {
    ///     Ok(left) => assert_eq!(left, [lease]),
    ///     Err(ending) => eprintln!("a task does not end: {:?}", ending.running_task()),
    /// }
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn stop_timeout(&self, limit: Duration) -> Result<Vec<Timeout>, Ending> {
        if self.would_wait_for_itself("stop_timeout") {
            return Ok(Vec::new());
        }
        self.begin_stop().wait_timeout(limit)
    }

    /// Runs what falls due within `grace`, then stops the timer, but waits at most for `limit`.
    ///
    /// This is [`shutdown`](Self::shutdown) with a bound that holds whatever a running task does.
    /// `limit` is in real time and bounds the whole call. If it is shorter than the grace, the
    /// timer is still being shut down when this call returns.
    ///
    /// Another thread ends the timer, as for [`stop_timeout`](Self::stop_timeout). It also runs
    /// what is due on a [driven timer](Self::shutdown).
    ///
    /// # Errors
    ///
    /// As for [`stop_timeout`](Self::stop_timeout).
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if a task calls it on the worker. The timer is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let [grace, limit] = [100, 200].map(Duration::from_millis);
    /// if let Err(ending) = timer.shutdown_timeout(grace, limit) {
    ///     eprintln!("a task does not end: {:?}", ending.running_task());
    /// }
    /// ```
    pub fn shutdown_timeout(&self, grace: Duration, limit: Duration) -> Result<Vec<Timeout>, Ending> {
        if self.would_wait_for_itself("shutdown_timeout") {
            return Ok(Vec::new());
        }
        self.begin_shutdown(grace).wait_timeout(limit)
    }

    pub(crate) fn begin_stop(&self) -> Ending {
        self.shared.close();
        Ending::begin(&self.shared, None)
    }

    pub(crate) fn begin_shutdown(&self, grace: Duration) -> Ending {
        let grace = self.shared.begin_shutdown(grace);
        Ending::begin(&self.shared, Some(grace))
    }

    /// Returns whether the caller is a `cancelled` hook that the end of the timer runs on this
    /// thread. Panics if the caller is a task on the worker.
    fn would_wait_for_itself(&self, method: &str) -> bool {
        let is_mine = self.shared.is_worker();
        assert!(
            !is_mine || self.shared.worker.is_calling_hooks(),
            "HashedWheelTimer::{method} was called by a task on the timer's own worker, and would wait for that task to \
             end: call it from another thread, or drop the last handle"
        );
        is_mine
    }

    /// Returns the timer's clock. Its time is zero when the timer is built, and stops after 146
    /// years.
    ///
    /// For code that keeps many deadlines of its own, and schedules only the first of them: a
    /// number is smaller than an `Instant`, and does not move if the clock is slower or faster than
    /// the machine's.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// clock.advance(Duration::from_secs(9));
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(timer.clock().now(), Duration::from_secs(5));
    /// assert_eq!(timer.clock().instant_at(Duration::from_secs(5)), timer.now());
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &self.shared.time
    }

    /// Whether this thread is the worker at the moment: it runs a turn of this timer, or the hooks
    /// that the end of the timer calls. A call that waits for a task of this timer would wait for
    /// itself then.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, Timeout};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let (send, receive) = mpsc::channel();
    /// let task = move |timeout: &Timeout| send.send(timeout.timer().is_worker_thread()).unwrap();
    /// timer.new_timeout(task, Duration::ZERO)?;
    /// assert!(receive.recv()?);
    /// assert!(!timer.is_worker_thread());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_worker_thread(&self) -> bool {
        self.shared.is_worker()
    }

    /// Returns whether the timer is stopped.
    ///
    /// These stop a timer: [`stop`](Self::stop), the end of a [`shutdown`](Self::shutdown),
    /// dropping the last handle or the [`Driver`](crate::Driver), and a panic of its
    /// [`Clock`] on the worker thread.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// let timer = HashedWheelTimer::default();
    /// assert!(!timer.is_stopped());
    /// timer.stop();
    /// assert!(timer.is_stopped());
    /// ```
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.state.snapshot().is_stopped()
    }

    /// Returns whether the timer rejects new timeouts: it is [being shut down](Self::shutdown), or
    /// [stopped](Self::is_stopped). `ExecutorService.isShutdown`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// assert!(!timer.is_shutting_down());
    /// timer.shutdown(Duration::ZERO);
    /// assert!(timer.is_shutting_down());
    /// ```
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shared.state.snapshot().is_closing()
    }

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
    pub fn pending_timeouts(&self) -> usize {
        self.shared.pending() as usize
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
        self.shared.stats()
    }

    /// Returns how full each slot of the wheel is: to draw a live timer, or to find out why it is
    /// slow.
    ///
    /// Returns `None` while another thread uses the wheel, which is a turn or another `occupancy`;
    /// so also for a task on the worker. Returns `None` once the timer is stopped, and if there is
    /// no memory for the numbers.
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
    /// assert_eq!(timer.occupancy().unwrap().queued, 2);
    ///
    /// driver.turn();
    /// let wheel = &timer.occupancy().unwrap().levels[0];
    /// assert_eq!(wheel.slots, [0, 0, 0, 2, 0, 0, 0, 0]);
    /// assert_eq!(wheel.current_slot, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn occupancy(&self) -> Option<Occupancy> {
        self.shared.occupancy()
    }

    /// Returns the `limit` pending timeouts that fire first, in that order: the type of the task,
    /// and the time left. To find out what a service waits for.
    ///
    /// Returns `None` while another thread uses the wheel, which is a turn, an
    /// [`occupancy`](Self::occupancy) or another `pending`; so also for a task on the worker.
    /// Returns `None` once the timer is stopped. While very much is due, turns follow each other
    /// without a pause, so nearly every call returns `None`.
    ///
    /// A periodic task is one timeout, and is left out while it runs. Timeouts with the same
    /// deadline come in no particular order. The result includes all timeouts that this thread has
    /// scheduled, unless more than 100 000 messages are waiting in the queue. What other threads do
    /// during the call may or may not be included.
    ///
    /// # Cost
    ///
    /// This call never waits. But the worker and `stop` wait for it. Under the worker's lock it
    /// takes in what is in the queue, which the next turn need not do then. After that it looks at
    /// each occupied slot, and then at the timeouts slot by slot, until no further slot can contain
    /// an earlier one. So it looks at little more than `limit` timeouts if most delays are shorter
    /// than a round, and on a [hierarchical](crate::Builder::hierarchical) wheel also if they are
    /// longer. In the worst case it looks at all that are pending.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, Timeout, TimerTask};
    /// use std::time::Duration;
    ///
    /// struct Lease;
    ///
    /// impl TimerTask for Lease {
    ///     fn run(self, _: &Timeout) {}
    /// }
    ///
    /// let builder = HashedWheelTimer::builder().clock(ManualClock::new());
    /// let (timer, _driver) = builder.build_driven()?;
    /// timer.new_timeout_task(Lease, Duration::from_secs(30))?;
    /// timer.new_timeout_task(Lease, Duration::from_secs(20))?;
    /// timer.new_timeout(|_| (), Duration::from_secs(60))?;
    ///
    /// let first = timer.pending(2).unwrap();
    /// assert!(first[0].task_type.ends_with("Lease"));
    /// assert_eq!(first[0].remaining, Duration::from_secs(20));
    /// assert_eq!(first[1].remaining, Duration::from_secs(30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pending(&self, limit: usize) -> Option<Vec<PendingTimeout>> {
        self.shared.earliest(limit)
    }

    /// Returns the length of a tick.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// assert_eq!(HashedWheelTimer::default().tick_duration(), Duration::from_millis(100));
    /// ```
    #[must_use]
    pub fn tick_duration(&self) -> Duration {
        self.shared.ticks.duration()
    }

    /// Returns how many slots the wheel has, or the lowest level of a hierarchical wheel.
    ///
    /// This is the number given to the builder, rounded up to a power of two. A hierarchical wheel
    /// has at least two.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(10), 1_000);
    /// assert_eq!(timer.ticks_per_wheel(), 1_024);
    /// ```
    #[must_use]
    pub fn ticks_per_wheel(&self) -> usize {
        self.shared.ticks_per_wheel
    }
}

impl Timeout {
    /// Returns a handle to the timer.
    ///
    /// If the last handle has been dropped, the timer of the returned handle is stopped, or about
    /// to be.
    ///
    /// A task should call this instead of capturing a clone of the handle. A captured clone keeps
    /// the timer running until the task ends.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let second = Duration::from_secs(1);
    /// timer.new_timeout(
    ///     move |timeout| {
    ///         // Schedules a second step. An error means that the timer is stopped.
    ///         let _ = timeout.timer().new_timeout(|_| println!("done"), second);
    ///     },
    ///     second,
    /// )?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn timer(&self) -> HashedWheelTimer {
        HashedWheelTimer::from_timeout(self.handle.to_arc())
    }
}

/// Makes another handle to the same timer.
impl Clone for HashedWheelTimer {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        if self.counts { Self::from_shared(shared) } else { Self { shared, counts: false } }
    }
}

/// Stops the timer if this is the last handle. Waits and joins the worker thread as
/// [`stop`](HashedWheelTimer::stop) does, but not if a task drops it on the worker, or if an
/// [`Ending`] has begun.
impl Drop for HashedWheelTimer {
    fn drop(&mut self) {
        if !self.counts || !self.shared.drop_handle() {
            return;
        }
        if self.shared.is_ended_elsewhere.load(Ordering::Relaxed) {
            return;
        }
        if self.shared.detaches_on_drop && !self.shared.is_worker() {
            drop(self.begin_stop());
        } else {
            self.shared.stop_from_anywhere();
        }
    }
}

impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.debug("HashedWheelTimer", f)
    }
}
