//! A future that waits for a timeout.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use timing_wheels::QueueSleep;

use crate::clock::TimerClock;
use crate::engine::{Inner, Timeout};
use crate::error::NewTimeoutError;
use crate::node::{End, OnCancel, Task, TimerHandle};

/// A future that is ready once a delay is over:
/// [`HashedWheelTimer::sleep`](crate::HashedWheelTimer::sleep).
///
/// The first poll schedules a timeout. If the deadline has been reached by then, the future is
/// ready at once. Otherwise it fires as any timeout does, at the first tick at or after its
/// deadline, never early. Futures are woken in tick order. Futures of the same tick that one thread
/// scheduled are woken in the order of their first polls.
///
/// # Examples
///
/// A test advances the clock to the next deadline whenever the code waits, so an hour takes no
/// time:
///
/// ```
/// use hashed_wheel::{Driver, HashedWheelTimer, ManualClock};
/// use std::pin::pin;
/// use std::task::{Context, Poll, RawWakerVTable, Waker};
/// use std::time::Duration;
///
/// /// Runs `future`, which waits for nothing but the timer.
/// fn block_on<T>(driver: &mut Driver, clock: &ManualClock, future: impl Future<Output = T>) -> T {
///     let mut future = pin!(future);
///     loop {
///         let mut context = Context::from_waker(Waker::noop());
///         if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
///             return output;
///         }
///         clock.advance(driver.next_turn().expect("the future waits for something else"));
///         driver.turn();
///     }
/// }
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// block_on(&mut driver, &clock, async {
///     timer.sleep(Duration::from_secs(3_600)).await?;
///     let late = timer.timeout(Duration::from_secs(5), std::future::pending::<()>()).await;
///     assert!(late.is_err());
///     Ok::<(), hashed_wheel::NewTimeoutError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # While it waits
///
/// The future counts as one of [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts). The
/// waker is stored in the timeout, without an allocation. To poll again costs one read of the
/// timeout's state.
///
/// A poll by another task replaces the waker. In [`Stats`](crate::Stats) this counts as one more
/// timeout scheduled and one more cancelled. It takes no second place under the limit, and cannot
/// be rejected. If it happens while the worker is in the turn in which the timeout is due, the
/// future may be woken in the next turn.
///
/// Dropping the future cancels the timeout immediately, as [`Timeout::cancel`] does, and wakes no
/// task.
///
/// # Where wakers are called
///
/// The worker calls the wakers, as it runs tasks by default: its thread,
/// [`Driver::turn`](crate::Driver::turn), or `stop` on its caller's thread. The [task
/// executor](crate::Builder::task_executor) is not used, because it might drop a waker. A
/// [reset](Self::reset) to a time that has passed calls the waker too, on the caller's thread.
///
/// A panic of a waker there is reported and counted, and harms no other future. If a waker polls
/// its task directly, that task runs on the worker, so it must not call
/// [`stop`](crate::HashedWheelTimer::stop).
///
/// A task on the worker must not block until a future of its own timer is ready, as `block_on`
/// does: it would wait for itself forever.
///
/// An overloaded runtime does better if one of its own tasks turns the timer: see
/// `tokio::build_on` of the crate hashed-wheel-util, and
/// [`build_hosted`](crate::Builder::build_hosted) for other runtimes.
///
/// # When the timer stops
///
/// Like a [`Timeout`], a waiting future does not keep the timer running. When the last handle is
/// dropped, or `stop` is called, the future is woken and resolves with an error. The timeouts that
/// `stop` returns include that of the future.
///
/// # Errors
///
/// - [`Stopped`](NewTimeoutError::Stopped): the timer was stopped before the timeout fired, or
///   before the first poll, whatever the deadline; or the first poll came during a
///   [shutdown](crate::HashedWheelTimer::shutdown).
/// - [`TooManyPending`](NewTimeoutError::TooManyPending) or [`Spawn`](NewTimeoutError::Spawn): the
///   first poll could not schedule the timeout.
///
/// A poll after an error tries again. Once the delay is over, the future stays ready until it is
/// [reset](Self::reset).
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    timer: TimerHandle<Inner>,
    /// In nanoseconds since the timer was built.
    deadline: u64,
    state: State,
}

enum State {
    /// There is no timeout: not polled yet, or the last poll returned an error.
    Idle,
    /// The task of the timeout is the waker that the id identifies.
    Waiting(Timeout, WakerId),
    Elapsed,
}

impl Sleep {
    pub(super) fn until(inner: &Inner, deadline: u64) -> Self {
        Self {
            timer: inner.handle(),
            deadline,
            state: State::Idle,
        }
    }

    /// Re-arms the future: it is now due `delay` from now, whether it waits, is ready, or was never
    /// polled. `tokio::time::Sleep::reset`.
    ///
    /// A waiting future is moved as by [`Timeout::reset`] and keeps its waker. Any other future has
    /// to be polled to be scheduled.
    ///
    /// # A time that has passed
    ///
    /// With a delay of zero, the future is ready at once, even if it waits: this call cancels its
    /// timeout and calls its waker, on this thread. Do not hold a lock that the waker takes. In
    /// [`Stats`](crate::Stats) the timeout counts as cancelled. The same holds for a deadline that
    /// has passed, in [`reset_at`](Self::reset_at).
    ///
    /// # Examples
    ///
    /// A connection is closed after a minute without a packet:
    ///
    /// ```no_run
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::{Duration, Instant};
    /// # enum Next { Packet, Silence }
    /// # async fn packet_or(sleep: &mut hashed_wheel::Sleep) -> Next { Next::Silence }
    /// # async fn serve(timer: HashedWheelTimer) {
    /// const IDLE: Duration = Duration::from_secs(60);
    ///
    /// let mut idle = timer.sleep(IDLE);
    /// // Waits for whichever comes first, as `select!` does:
    /// while let Next::Packet = packet_or(&mut idle).await {
    ///     idle.reset(IDLE);
    /// }
    /// # }
    /// ```
    pub fn reset(&mut self, delay: Duration) {
        self.reset_to(deadline(self.time(), delay), delay.is_zero());
    }

    /// Re-arms the future: it is now due at `deadline`. `tokio::time::Sleep::reset`.
    ///
    /// This is [`reset`](Self::reset) with a deadline instead of a delay. The deadline is converted
    /// as by [`new_timeout_at`](crate::HashedWheelTimer::new_timeout_at).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::Duration;
    /// async fn extend(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let begin = timer.now();
    ///     let mut lease = timer.sleep_until(begin + Duration::from_secs(5));
    ///     lease.reset_at(begin + Duration::from_secs(60));
    ///     assert_eq!(lease.deadline(), begin + Duration::from_secs(60));
    ///     lease.await
    /// }
    /// ```
    pub fn reset_at(&mut self, deadline: Instant) {
        let deadline = self.time().at(deadline);
        self.reset_to(deadline, self.time().has_reached(deadline));
    }

    pub(super) fn reset_to(&mut self, deadline: u64, has_passed: bool) {
        self.deadline = deadline;
        let was_ended = match &self.state {
            // The task that waits may be another one than the caller, so this calls the waker.
            State::Waiting(timeout, _) if has_passed => timeout.cancel(),
            State::Waiting(timeout, _) if self.timer().reset(timeout, deadline, || ()) => return,
            State::Waiting(..) | State::Idle | State::Elapsed => false,
        };
        let is_over = has_passed && (was_ended || !self.timer().state.snapshot().is_closing());
        self.state = if is_over { State::Elapsed } else { State::Idle };
    }

    /// Returns when the future is due. `tokio::time::Sleep::deadline`.
    ///
    /// The future is ready up to one tick later. A deadline before the timer was built is returned
    /// as the moment at which it was built. One too far away to represent is returned as by
    /// [`Timeout::deadline`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let deadline = timer.now() + Duration::from_secs(5);
    /// assert_eq!(timer.sleep_until(deadline).deadline(), deadline);
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.time().instant_of(self.deadline)
    }

    /// Returns the time left until the deadline, to a microsecond.
    ///
    /// Returns zero once the future is due, and `Duration::MAX` if it never will be. The future is
    /// ready up to one tick after the deadline.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.timer().clock.remaining(self.deadline)
    }

    /// Returns whether the timer has seen the delay end: the next poll is ready, or the last one
    /// was. `tokio::time::Sleep::is_elapsed`.
    ///
    /// A future that was never polled is not elapsed, whatever its deadline. After a reset to a
    /// time that has passed, it is.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let mut sleep = timer.sleep(Duration::from_secs(5));
    /// assert!(!sleep.is_elapsed());
    /// sleep.reset(Duration::ZERO);
    /// assert!(sleep.is_elapsed());
    /// ```
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        match &self.state {
            State::Idle => false,
            State::Waiting(timeout, _) => timeout.is_expired(),
            State::Elapsed => true,
        }
    }

    /// Cancels the timeout. The waker is dropped, and not called.
    pub(super) fn disarm(&mut self) {
        match mem::replace(&mut self.state, State::Idle) {
            State::Waiting(timeout, _) => self.timer().discard_without_hook(timeout),
            other => self.state = other,
        }
    }

    /// Returns the timer's clock.
    pub(super) fn time(&self) -> &TimerClock {
        &self.timer().clock
    }

    fn timer(&self) -> &Inner {
        self.timer.get()
    }

    /// Schedules the timeout, unless the deadline has been reached.
    fn schedule(&mut self, waker: &Waker) -> Poll<Result<(), NewTimeoutError>> {
        if self.time().has_reached(self.deadline) {
            // As `schedule_by` does: a future that is rejected before its deadline is also rejected
            // after it.
            if self.timer().state.snapshot().is_closing() {
                return Poll::Ready(Err(self.timer().thread.closed_error()));
            }
            self.state = State::Elapsed;
            return Poll::Ready(Ok(()));
        }
        let (wake, id) = Wake::with(waker);
        let timeout = self.timer().schedule_by(wake, self.deadline)?;
        self.state = State::Waiting(timeout, id);
        Poll::Pending
    }
}

/// Returns the deadline of a delay. A delay of zero is a deadline that has been reached, although
/// delays are counted from slightly later than now.
pub(super) fn deadline(time: &TimerClock, delay: Duration) -> u64 {
    if delay.is_zero() {
        time.now()
    } else {
        time.deadline_after(delay)
    }
}

/// One sleep for all values of a queue of one owner.
///
/// # Panics
///
/// `poll_elapsed`, if the timer rejects the sleep or is stopped. tokio's sleeps panic too if their
/// runtime has ended.
impl QueueSleep for Sleep {
    type Instant = Instant;

    fn now(&self) -> Instant {
        self.time().instant_now()
    }

    fn reset_at(&mut self, deadline: Instant) {
        Self::reset_at(self, deadline);
    }

    fn poll_elapsed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let ended = Pin::new(self).poll(context);
        ended.map(|ended| ended.unwrap_or_else(|error| panic!("the sleep of a queue: {error}")))
    }
}

impl Future for Sleep {
    type Output = Result<(), NewTimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let waker = context.waker();
        let (timeout, id) = match &this.state {
            State::Elapsed => return Poll::Ready(Ok(())),
            State::Idle => return this.schedule(waker),
            State::Waiting(timeout, id) => (timeout, id),
        };
        let end = match timeout.handle.end() {
            // Check this first: the id identifies the waker only as long as the timeout has not
            // ended.
            Some(end) => end,
            None if *id == waker_id(waker) => return Poll::Pending,
            None => {
                let (wake, id) = Wake::with(waker);
                if let Some(replaced) = this.timer().replace(timeout, wake) {
                    this.state = State::Waiting(replaced, id);
                    return Poll::Pending;
                }
                let end = timeout.handle.end();
                end.expect("a timeout that cannot be replaced has ended")
            }
        };
        match end {
            End::Expired => {
                this.state = State::Elapsed;
                Poll::Ready(Ok(()))
            }
            // By `stop`, because no other handle to this timeout exists.
            End::Cancelled => {
                this.state = State::Idle;
                Poll::Ready(Err(this.timer().thread.closed_error()))
            }
        }
    }
}

/// Cancels the timeout immediately.
impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Idle => "idle",
            State::Waiting(..) => "waiting",
            State::Elapsed => "elapsed",
        };
        let mut sleep = f.debug_struct("Sleep");
        sleep.field("state", &format_args!("{state}"));
        match self.remaining() {
            Duration::MAX => sleep.field("remaining", &format_args!("forever")),
            remaining => sleep.field("remaining", &remaining),
        };
        sleep.finish_non_exhaustive()
    }
}

/// The task of a timeout that a future waits for: it wakes the future.
struct Wake(Waker);

impl Wake {
    /// Clones `waker`. Call this before anything is changed, because the clone is user code and may
    /// panic.
    fn with(waker: &Waker) -> (Self, WakerId) {
        let clone = waker.clone();
        let id = waker_id(&clone);
        (Self(clone), id)
    }
}

impl Task<Inner> for Wake {
    const ON_CANCEL: OnCancel = OnCancel::CallHook;
    const RUNS_ON_WORKER: bool = true;
    const IS_AWAITED: bool = true;

    fn run(self, _: &Timeout) {
        self.0.wake();
    }

    /// Called by `stop`: wakes the future, so that it resolves with an error.
    fn cancelled(self, _: &Timeout) {
        self.0.wake();
    }

    fn name() -> &'static str {
        "(the waker of a future)"
    }
}

/// Identifies the waker in a timeout, to tell whether another waker would wake the same task, as
/// [`Waker::will_wake`] does. It saves a second clone to compare with.
///
/// The id holds an address, which may be used again once the waker is dropped. As long as the
/// timeout has not ended, its waker exists, and so does the object at that address: another waker
/// of the same kind with the same address is a clone. A thread that could see a reused address also
/// sees that the timeout has ended, because a timeout ends before its waker is dropped.
///
/// The table is compared by its contents: one kind of waker may have several tables, and a clone
/// another one than its original.
type WakerId = (usize, &'static RawWakerVTable);

fn waker_id(waker: &Waker) -> WakerId {
    (waker.data().addr(), waker.vtable())
}
