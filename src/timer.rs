//! The handle to a timer.

use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::engine::{Inner, Timeout};
use crate::error::{NewTimeoutError, TryNewTimeoutError};
use crate::sync::{Arc, Ordering};
use crate::task::{TimerTask, schedule_closure, schedule_task, try_schedule_task};

/// A timer for very many coarse timeouts: Netty's `HashedWheelTimer`.
///
/// This type is a handle. Clones refer to the same timer. A process needs one timer, or a few;
/// share a timer by cloning its handle.
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
///
/// # Dropping the last handle joins a thread
///
/// Dropping the last handle stops the timer, as [`stop`](Self::stop) does: it cancels all pending
/// timeouts, waits for a task that is running on the worker, and joins the worker thread. If a task
/// drops the last handle on the worker, the timer stops too, but the drop does not wait. With
/// [`Builder::detach_on_drop`](crate::Builder::detach_on_drop) it never waits.
///
/// A [`Timeout`] is not a handle to the timer: it does not keep the worker alive. But
/// [`Timeout::timer`] returns a handle. While a task has one, yours is not the last, and its drop
/// does not wait. [`stop`](Self::stop) waits in any case.
///
/// # When a timeout fires
///
/// Time is divided into ticks, counted from the moment the timer was built. A timeout fires at the
/// first tick boundary at or after its deadline that has not been processed yet. It is never early
/// by the timer's clock, and at most one tick late, plus the time that the operating system takes
/// to wake a thread. (The default clock assumes that the system's clock is not slewed by more than
/// a thousandth. While chrony slews it at its default rate, a timeout may be 21 µs early.)
///
/// Timeouts of one thread for the same tick fire in the order in which it has scheduled them.
///
/// After a delay (a slow task, a suspended machine) the worker catches up with everything that is
/// due, in tick order. It drains at most 100 000 messages (new timeouts, cancellations, resets) at
/// a time. If more are waiting, the order holds within each batch, and the worker thread's next
/// batches take a portion of each thread's messages, in about a quarter of a tick.
///
/// # After `fork`
///
/// After `fork`, the child has the timer's memory but not its thread. If the thread was started
/// before, nothing fires in the child: pending timeouts neither run nor are returned there. The
/// copy accepts no timeout, and the error says why: [`Forked`](NewTimeoutError::Forked). (Except on
/// Linux, the thread that has forked gets no error if it has used the timer before.) Make a new
/// timer in the child. [`global`](Self::global) does that itself, on Linux. In the child
/// [`stop`](Self::stop) and [`shutdown`](Self::shutdown) return an empty `Vec` at once and call no
/// hook, so that nothing ends both there and in the parent. Dropping the last handle does the same.
/// Memory of the timer is not freed in the child. A [`reset`](Timeout::reset) there may return
/// true, and has no effect.
///
/// A timer whose thread was not started, or a [driven](crate::Builder::build_driven) one, works in
/// the child as in the parent. As for every library with locks, another thread of the parent must
/// not be within a call of this library at the moment of the fork: the child could wait for it
/// forever. The worker thread may be anywhere but in the few nanoseconds in which it gives back
/// nodes to all threads, or falls asleep.
#[doc(alias("Timer", "TimerWheel", "TimingWheel"))]
pub struct HashedWheelTimer {
    pub(crate) inner: Arc<Inner>,
    /// Whether `Inner::handles` counts this handle. False if [`Timeout::timer`] made it
    /// after the last counted handle was dropped.
    pub(crate) counts: bool,
}

impl HashedWheelTimer {
    /// Makes a handle and counts it.
    pub(crate) fn from_shared(inner: Arc<Inner>) -> Self {
        inner.handles.add();
        Self {
            inner,
            counts: true,
        }
    }

    /// Makes a handle for [`Timeout::timer`] or a [`WeakTimer`](crate::WeakTimer). It is counted,
    /// unless the count is zero: then the timer stops or has stopped, which must not happen twice.
    pub(crate) fn unless_ended(inner: Arc<Inner>) -> Self {
        let counts = inner.handles.add_unless_zero();
        Self { inner, counts }
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
    /// - [`Forked`](NewTimeoutError::Forked): the thread is in the parent process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// let timer = HashedWheelTimer::default();
    /// timer.start()?; // reports a missing thread here, and not at the first timeout
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("start_thread"))]
    pub fn start(&self) -> Result<(), NewTimeoutError> {
        self.inner.start()
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
    /// - [`Forked`](NewTimeoutError::Forked): the worker thread is in the parent process.
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
    #[doc(alias("newTimeout", "setTimeout", "AfterFunc", "schedule", "set_timeout"))]
    pub fn new_timeout<F>(&self, task: F, delay: Duration) -> Result<Timeout, NewTimeoutError>
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        schedule_closure(&self.inner, task, self.inner.clock.deadline_after(delay))
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
    #[doc(alias("newTimeout", "TimerTask", "schedule"))]
    pub fn new_timeout_task<T: TimerTask>(
        &self,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, NewTimeoutError> {
        schedule_task(&self.inner, task, self.inner.clock.deadline_after(delay))
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
    #[doc(alias("runAt"))]
    pub fn new_timeout_at<F>(&self, task: F, deadline: Instant) -> Result<Timeout, NewTimeoutError>
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        schedule_closure(&self.inner, task, self.inner.clock.at(deadline))
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
    /// See [`new_timeout_task`](Self::new_timeout_task) and
    /// [`new_timeout_at`](Self::new_timeout_at).
    #[inline]
    pub fn new_timeout_task_at<T: TimerTask>(
        &self,
        task: T,
        deadline: Instant,
    ) -> Result<Timeout, NewTimeoutError> {
        schedule_task(&self.inner, task, self.inner.clock.at(deadline))
    }

    /// Schedules a [`TimerTask`] to run once, `delay` from now, or gives it back.
    ///
    /// This is [`new_timeout_task`](Self::new_timeout_task), except that the error contains the
    /// task, even if another thread closes the timer during the call.
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
        try_schedule_task(&self.inner, task, self.inner.clock.deadline_after(delay))
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
        self.inner.clock.instant_now()
    }

    /// Returns a deadline that is at least `delay` from now, and later by at most `slack`. Pass it
    /// to a method that takes an `Instant`. Timeouts with the same slack share wake-ups: there is
    /// at most one per `slack`. Linux's timer slack, Apple's leeway.
    ///
    /// The deadline is the next multiple of `slack` since the timer was built, so choose slacks
    /// that are multiples of each other. `slack` counts in whole ticks; one of less than a tick
    /// changes nothing. With a [`Clock`] that does not override
    /// [`time_at`](Clock::time_at), timeouts may miss the shared wake-up by a tick.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let ms = Duration::from_millis;
    /// let builder = HashedWheelTimer::builder().tick(ms(1)).clock(ManualClock::new());
    /// let (timer, driver) = builder.build_driven()?;
    /// for delay in [1_001, 1_020, 1_049] {
    ///     timer.new_timeout_at(|_| println!("idle"), timer.deadline_within(ms(delay), ms(50)))?;
    /// }
    /// assert_eq!(driver.next_turn(), Some(ms(1_050))); // all three
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[doc(alias("slack", "leeway", "tolerance", "coalesce"))]
    pub fn deadline_within(&self, delay: Duration, slack: Duration) -> Instant {
        let Inner { clock, ticks, .. } = &*self.inner;
        clock.instant_of(ticks.align(clock.deadline_after(delay), slack))
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
        &self.inner.clock
    }

    /// Returns the time of the [clock](Self::clock) in nanoseconds, by its bounds: it is not before
    /// the first, and not after the second. Neither goes back.
    ///
    /// To read the machine's clock exactly, a processor waits until its earlier instructions are
    /// done. This reads the processor's counter instead, and the two are a microsecond apart. With
    /// a [clock of your own](crate::Builder::clock), both are its time.
    ///
    /// # Examples
    ///
    /// ```
    /// let timer = hashed_wheel::HashedWheelTimer::default();
    /// let (earliest, latest) = timer.now_bounds();
    /// let now = timer.clock().now().as_nanos() as u64;
    /// assert!(earliest <= now && latest - earliest <= 1_000);
    /// ```
    #[inline]
    #[must_use]
    pub fn now_bounds(&self) -> (u64, u64) {
        self.inner.clock.now_bounds()
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
        self.inner.is_worker()
    }

    /// Returns whether the timer is stopped.
    ///
    /// A [`stop`](Self::stop) does that, the end of a [`shutdown`](Self::shutdown), the drop of the
    /// last handle or of the [`Driver`](crate::Driver), and a panic of the thread's [`Clock`].
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
        self.inner.state.snapshot().is_stopped()
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
    #[doc(alias("tickDuration"))]
    pub fn tick_duration(&self) -> Duration {
        self.inner.ticks.duration()
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
    #[doc(alias("ticksPerWheel", "wheelSize"))]
    pub fn ticks_per_wheel(&self) -> usize {
        self.inner.ticks_per_wheel
    }
}

/// Makes another handle to the same timer.
impl Clone for HashedWheelTimer {
    fn clone(&self) -> Self {
        if self.counts {
            self.inner.handles.add();
        }
        Self {
            inner: Arc::clone(&self.inner),
            counts: self.counts,
        }
    }
}

/// Stops the timer if this is the last handle. Waits and joins the worker thread as
/// [`stop`](HashedWheelTimer::stop) does, but not if a task drops it on the worker, or if an
/// [`Ending`](crate::Ending) has begun.
impl Drop for HashedWheelTimer {
    fn drop(&mut self) {
        let is_last = self.counts && self.inner.handles.remove();
        if !is_last || self.inner.has_ending_thread.load(Ordering::Relaxed) {
            return;
        }
        if self.inner.options.detaches_on_drop && !self.inner.is_worker() {
            drop(self.begin_stop());
        } else {
            self.inner.stop_on_any_thread();
        }
    }
}

impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.debug("HashedWheelTimer", f)
    }
}
