//! A timeout that a future waits for.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use crate::engine::Timeout;
use crate::engine::{Shared, SharedFields};
use crate::error::NewTimeoutError;
use crate::node::End;
use crate::node::Task;
use crate::sync::Arc;
use crate::ticks;

/// A future that is ready once a delay is over: [`HashedWheelTimer::sleep`](crate::HashedWheelTimer::sleep).
///
/// It is put on the timer when it is first polled, and then fires as any timeout does, at the first tick at or after its
/// deadline: never early. (If the deadline has been reached by the first poll, it is ready at once.) Wake-ups come in the
/// order of the ticks; those for one tick in the order in which one thread has put them there.
///
/// While it waits it is one of [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts). The waker lies in the timeout
/// itself: nothing is allocated, and to poll it again costs a look at the timeout's state. Polled by another task it forgets
/// the one before; that counts as one more timeout scheduled and one more cancelled in [`Stats`](crate::Stats), but takes
/// no second place under the limit, and cannot be refused. (If that happens while the worker is in the turn in which it is due, it
/// may fire in the next one.) Dropping it ends the timeout there and then, as
/// [`Timeout::cancel`] does, and wakes nobody.
///
/// Wakers are called where tasks run by default: on the worker, out of [`Driver::turn`](crate::Driver::turn), or by `stop`
/// on its caller's thread; whatever the [task executor](crate::Builder::task_executor), for that might refuse them. A
/// panic of a waker there is reported and counted, and harms nobody else. A waker that polls its task at once, then and there,
/// makes that task one on the worker, which may not call [`stop`](crate::HashedWheelTimer::stop). (Where a runtime has more
/// to do than it can, they are better called by one of its own tasks: [`Driver`](crate::Driver) has that.)
///
/// It keeps the timer going no more than a [`Timeout`] does: when the last handle goes, or `stop` is called (which returns its
/// timeout among the others), it is woken and resolves with an error.
///
/// # Errors
///
/// It resolves with [`Stopped`](NewTimeoutError::Stopped) if the timer was stopped before it fired, or before it was
/// polled, whatever the deadline; and if it is first polled while the timer is being
/// [shut down](crate::HashedWheelTimer::shutdown). Where a timeout would be refused, the first poll resolves with
/// [`TooManyPending`](NewTimeoutError::TooManyPending) or [`Spawn`](NewTimeoutError::Spawn). Polled again after an
/// error it tries again; once the delay is over it is ready for ever, or until it is [reset](Self::reset).
///
/// # Examples
///
/// In a test, the clock goes where the timer wants it, as often as the code waits: an hour takes no time.
///
/// ```
/// use hashed_wheel::{Driver, HashedWheelTimer, ManualClock};
/// use std::pin::pin;
/// use std::task::{Context, Poll, RawWakerVTable, Waker};
/// use std::time::Duration;
///
/// /// Runs `future`, which waits for the timer and for nothing else.
/// fn block_on<T>(driver: &mut Driver, clock: &ManualClock, future: impl Future<Output = T>) -> T {
///     let mut future = pin!(future);
///     loop {
///         if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
///             return output;
///         }
///         clock.advance(driver.next_turn().expect("it waits for something that is not on the timer"));
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
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    shared: Arc<Shared>,
    /// In nanoseconds since the timer was built.
    deadline: u64,
    state: State,
}

enum State {
    /// Not on the timer: not polled yet, or refused.
    Idle,
    Waiting(Timeout, WakerId),
    Elapsed,
}

impl Sleep {
    pub(super) fn new(shared: &Arc<Shared>, delay: Duration) -> Self {
        Self::until(shared, deadline(shared, delay))
    }

    pub(super) fn at(shared: &Arc<Shared>, moment: Instant) -> Self {
        Self::until(shared, deadline_at(shared, moment))
    }

    pub(super) fn until(shared: &Arc<Shared>, deadline: u64) -> Self {
        Self { shared: Arc::clone(shared), deadline, state: State::Idle }
    }

    /// Re-arms it: it is now due `delay` from now, whether it waits, is over, or was never polled. One that waits is moved as
    /// [`Timeout::reset`] does it, and stays with its waker; any other has to be polled to be put on the timer.
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
    /// // Whichever is first, as with `select!`:
    /// while let Next::Packet = packet_or(&mut idle).await {
    ///     idle.reset(IDLE);
    /// }
    /// # }
    /// ```
    pub fn reset(&mut self, delay: Duration) {
        self.reset_to(deadline(&self.shared, delay));
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn reset_at(&mut self, moment: Instant) {
        self.reset_to(deadline_at(&self.shared, moment));
    }

    pub(super) fn reset_to(&mut self, deadline: u64) {
        self.deadline = deadline;
        let still_waits = match &self.state {
            State::Waiting(timeout, _) => self.shared.reset_to(timeout, deadline),
            State::Idle | State::Elapsed => false,
        };
        if !still_waits {
            self.state = State::Idle;
        }
    }

    /// How long it is until the deadline, to a microsecond: zero once it is due, `Duration::MAX` if it never will be. It is
    /// ready up to a tick after the deadline.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.shared.remaining(self.deadline)
    }

    /// Whether the timer has ended it, its delay over: the next poll is ready, or the last one was.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        match &self.state {
            State::Idle => false,
            State::Waiting(timeout, _) => timeout.is_expired(),
            State::Elapsed => true,
        }
    }

    /// Takes it off the timer. The waker is dropped, and not called.
    pub(super) fn disarm(&mut self) {
        if let State::Waiting(timeout, _) = &self.state {
            self.shared.cancel_quietly(timeout);
            self.state = State::Idle;
        }
    }

    /// To count from.
    pub(super) fn now(&self) -> u64 {
        self.shared.time.now_or_soon()
    }

    fn begin(&mut self, waker: &Waker) -> Poll<Result<(), NewTimeoutError>> {
        // The one is cheap and never behind, the other says whether it is so.
        let time = &self.shared.time;
        if time.now_or_soon() >= self.deadline && time.now() >= self.deadline {
            // As `schedule_by` would: who is refused before its deadline is not let in after it.
            if self.shared.state.snapshot().is_closing() {
                return Poll::Ready(Err(NewTimeoutError::Stopped));
            }
            self.state = State::Elapsed;
            return Poll::Ready(Ok(()));
        }
        let (wake, id) = Wake::with(waker);
        match self.shared.schedule_by(wake, self.deadline) {
            Ok(timeout) => {
                self.state = State::Waiting(timeout, id);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// No delay is a deadline that has been reached, also to the clock that counts a delay from a little later than now.
fn deadline(shared: &Shared, delay: Duration) -> u64 {
    if delay.is_zero() { 0 } else { ticks::deadline(shared.time.now_or_soon(), delay) }
}

/// The same for a moment.
fn deadline_at(shared: &Shared, moment: Instant) -> u64 {
    if moment <= Instant::now() { 0 } else { shared.time.at(moment) }
}

impl Future for Sleep {
    type Output = Result<(), NewTimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let waker = context.waker();
        let (timeout, id) = match &this.state {
            State::Elapsed => return Poll::Ready(Ok(())),
            State::Idle => return this.begin(waker),
            State::Waiting(timeout, id) => (timeout, id),
        };
        let end = match timeout.handle.end() {
            // First, for a waker says nothing of itself once it may be gone: see `WakerId`.
            Some(end) => end,
            None if *id == WakerId::of(waker) => return Poll::Pending,
            None => {
                let (wake, id) = Wake::with(waker);
                if let Some(replaced) = this.shared.replace(timeout, wake) {
                    this.state = State::Waiting(replaced, id);
                    return Poll::Pending;
                }
                timeout.handle.end().expect("what cannot be replaced has ended")
            }
        };
        match end {
            End::Expired => {
                this.state = State::Elapsed;
                Poll::Ready(Ok(()))
            }
            // By `stop`: nobody else has a handle.
            End::Cancelled => {
                this.state = State::Idle;
                Poll::Ready(Err(NewTimeoutError::Stopped))
            }
        }
    }
}

/// Takes it off the timer there and then.
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
            Duration::MAX => sleep.field("remaining", &format_args!("for ever")),
            remaining => sleep.field("remaining", &remaining),
        };
        sleep.finish_non_exhaustive()
    }
}

/// The task of a timeout that a future waits for.
struct Wake(Waker);

impl Wake {
    /// With a clone of `waker`, which is made before anything has changed: it is the user's code, and may panic.
    fn with(waker: &Waker) -> (Self, WakerId) {
        let clone = waker.clone();
        let id = WakerId::of(&clone);
        (Self(clone), id)
    }
}

impl Task<SharedFields> for Wake {
    const IS_PLAIN: bool = false;
    const RUNS_ON_WORKER: bool = true;

    fn run(self, _: &Timeout) {
        self.0.wake();
    }

    /// By `stop`: the future has to be told that nothing comes any more.
    fn cancelled(self, _: &Timeout) {
        self.0.wake();
    }

    fn name() -> &'static str {
        "(the waker of a future)"
    }
}

/// Tells whether a waker would wake the same task as one that is in a timeout, as [`Waker::will_wake`] does, without a
/// second clone of that to ask.
///
/// What it has is an address, which may be used again once that waker is gone. But while the timeout has not ended, the waker
/// is there, and so is what it points to: another one of its kind at the same address is its clone. And that the timeout
/// has ended is seen by who could come upon a place that was used again, for its end was before the waker went.
#[derive(PartialEq)]
struct WakerId {
    data: usize,
    /// Compared by what is in it: there may be several of one kind of waker, and a clone with another one than its original.
    vtable: &'static RawWakerVTable,
}

impl WakerId {
    fn of(waker: &Waker) -> Self {
        Self { data: waker.data().addr(), vtable: waker.vtable() }
    }
}
