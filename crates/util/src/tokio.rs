//! Timers that a task of a tokio runtime turns, and the runtime's clock: feature `tokio`.

use std::time::{Duration, Instant};

use hashed_wheel::{BuildError, Builder, Clock, Driver, HashedWheelTimer, MonotonicClock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{self, timeout};

use crate::sync::{Arc, AtomicU64, Ordering};

/// Builds a timer without a thread: a task of a tokio runtime turns it.
///
/// Tasks of the timer, and the wakers of its futures, run in that task of the runtime, so they
/// must not block. Everything else is as with any other timer, and its handles can be used on
/// any thread.
///
/// The first timer of a process [may block](Builder::build) this call for up to 200 ms.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::tokio::build_on;
/// use std::time::Duration;
/// use tokio::runtime::Handle;
/// use tokio::sync::oneshot;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
/// let timer = build_on(builder, &Handle::current())?;
///
/// let (send, receive) = oneshot::channel();
/// timer.new_timeout(|_| drop(send.send("fired")), Duration::from_millis(20))?;
/// assert_eq!(receive.await?, "fired");
/// timer.sleep(Duration::from_millis(20)).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A test with `#[tokio::test(start_paused = true)]`, where an hour takes no time:
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use hashed_wheel_util::tokio::build_on;
/// # use std::time::Duration;
/// # use tokio::runtime::Handle;
/// # let mut paused = tokio::runtime::Builder::new_current_thread();
/// # paused.enable_time().start_paused(true).build()?.block_on(async {
/// let timer = build_on(HashedWheelTimer::builder(), &Handle::current())?;
/// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(3_600))?;
/// tokio::time::sleep(Duration::from_secs(3_601)).await;
/// assert!(lease.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Thread or task
///
/// The task is better than a [thread](Builder::build) if the runtime is overloaded, because an
/// overloaded runtime runs those tasks last that other threads wake. Use a tick of one
/// millisecond, so that few tasks are woken at a time. If the runtime is not overloaded, a
/// thread is more punctual: the task sleeps by tokio's own timer, which is up to two
/// milliseconds late.
///
/// The task yields to the runtime after each turn. On a current-thread runtime nothing happens
/// while no thread is in `block_on`.
///
/// # Which clock
///
/// If the [clock of the runtime](TokioClock) differs from the machine's at this call, the timer
/// follows it. This is so on a runtime that was built with `start_paused`, and after
/// `tokio::time::pause`: then `tokio::time::advance` fires timeouts, and auto-advance moves to
/// the next timeout when all tasks wait. Otherwise the timer uses the machine's clock, as any
/// timer does. For a clock that is paused after this call, set
/// [`clock`](Builder::clock)`(`[`TokioClock::new`]`(…))`.
///
/// A clock that was set is used. It should run at the pace of the runtime's clock, by which the
/// task sleeps.
///
/// On a paused clock a timeout that was cancelled may still be the next one to which
/// auto-advance moves: the worker sees a cancellation at its next turn.
///
/// # The end of the runtime
///
/// When the runtime is dropped, or its task is dropped for another reason, the timer
/// [stops](HashedWheelTimer::stop): each pending timeout is cancelled, its hook is called, and
/// waiting futures resolve with [`Stopped`](hashed_wheel::NewTimeoutError::Stopped). A later `stop`
/// returns an empty `Vec`, and a later `new_timeout` is an error. The timer is stopped from the
/// start if the runtime was dropped before this call.
///
/// [`shutdown`](HashedWheelTimer::shutdown) waits in real time for the task of the runtime. On
/// the only thread of the runtime use [`begin_shutdown`](HashedWheelTimer::begin_shutdown): a
/// call that blocks this thread waits for the whole grace, while nothing runs.
///
/// The timer does not keep the runtime alive. The task ends when the timer is stopped. If
/// `stop` is still calling hooks on another thread, the end of the task waits for them, as the
/// [drop of a driver](Driver) does.
///
/// # Errors
///
/// As for [`build_hosted`](Builder::build_hosted).
///
/// # Panics
///
/// - If the runtime has no timer: its builder needs `enable_time` or `enable_all`. tokio's own
///   `sleep` panics likewise.
/// - In the destructor of a thread-local, if tokio's own thread-locals have been destroyed. A
///   panic there ends the process. A timer that was built before [can be used](TokioClock).
#[track_caller]
pub fn build_on(builder: Builder, runtime: &Handle) -> Result<HashedWheelTimer, BuildError> {
    let builder = match builder.has_clock() {
        false if has_own_time(runtime) => builder.clock(TokioClock::new(runtime.clone())),
        _ => builder,
    };
    {
        let _context = runtime.enter();
        // Panics here, and not later in the task, if the runtime has no timer.
        drop(time::sleep(Duration::ZERO));
    }
    let notify = Arc::new(Notify::new());
    let waker = Arc::clone(&notify);
    let (timer, driver) = builder.build_hosted(move || waker.notify_one())?;
    runtime.spawn(turn(driver, notify));
    Ok(timer)
}

/// Turns the driver until the timer stops. The drop of this future stops it.
async fn turn(mut driver: Driver, notify: Arc<Notify>) {
    while !driver.is_stopped() {
        driver.turn();
        // Before the sleep is announced: until then no caller has to wake this task.
        yield_now().await;
        let next = driver.next_turn();
        if driver.is_stopped() {
            // A task of the timer may have dropped the last handle, which does not notify this
            // task.
            return;
        }
        match next {
            // tokio would round it up to a millisecond.
            Some(Duration::ZERO) => {}
            // Whether the sleep ends or is ended, a turn is next.
            Some(wait) => _ = timeout(wait, notify.notified()).await,
            None => notify.notified().await,
        }
    }
}

/// The clock of a tokio runtime: `tokio::time::Instant`. It is paused and advanced by
/// `tokio::time`.
///
/// [`build_on`] uses it by itself if it differs from the machine's clock at that
/// time. [Set](Builder::clock) it for a clock that is paused later, or for a
/// [driver](Builder::build_driven) of your own. A tokio `Instant` is converted exactly:
/// `timer.sleep_until(instant.into_std())`.
///
/// It can be read on any thread, also outside the runtime. To read it costs more than the machine's
/// clock, because that enters the runtime's context. Without tokio's feature `test-util` it is the
/// machine's clock.
///
/// In the destructor of a thread-local there may be no context to enter, because tokio's own
/// thread-locals have been destroyed. There the time is the last one that was read, plus the real
/// time since. This is exact unless the clock was paused, advanced or resumed since. A paused clock
/// stands still, so a timeout that is scheduled there is late by that real time.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::tokio::{TokioClock, build_on};
/// use std::time::Duration;
/// use tokio::runtime::Handle;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let clock = TokioClock::new(Handle::current());
/// let timer = build_on(HashedWheelTimer::builder().clock(clock), &Handle::current())?;
///
/// tokio::time::pause();
/// let deadline = tokio::time::Instant::now() + Duration::from_secs(3_600);
/// timer.sleep_until(deadline.into_std()).await?;
/// assert!(tokio::time::Instant::now() >= deadline);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokioClock {
    runtime: Handle,
    /// The `Instant` of time zero.
    origin: Instant,
    /// The machine's clock, with the same time zero.
    machine: MonotonicClock,
    /// The last time that was read, minus the machine's time then, in nanoseconds.
    lead: Arc<AtomicU64>,
}

impl TokioClock {
    /// Makes a clock of `runtime` whose time is zero now. Inside a runtime, pass
    /// `Handle::current()`.
    ///
    /// # Panics
    ///
    /// In the destructor of a thread-local, if tokio's own thread-locals have been destroyed.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        let (machine, origin) = (MonotonicClock::new(), now_in(&runtime));
        let origin = origin.expect("tokio's thread-locals have been destroyed");
        Self {
            runtime,
            origin,
            machine,
            lead: Arc::default(),
        }
    }
}

/// Every platform can represent an `Instant` that is so far away. tokio limits its delays to it.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 86_400);

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Returns the time of the runtime's clock. `None` in the destructor of a thread-local, if tokio's
/// own have been destroyed.
fn now_in(runtime: &Handle) -> Option<Instant> {
    if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
        return None;
    }
    // tokio reads the clock of the runtime whose context the thread is in. Outside of one it reads
    // the machine's.
    let _context = runtime.enter();
    Some(time::Instant::now().into_std())
}

/// Whether the runtime's clock is paused, or was, so that it is behind or ahead of the machine's.
fn has_own_time(runtime: &Handle) -> bool {
    let before = Instant::now();
    now_in(runtime).is_some_and(|now| !(before..=Instant::now()).contains(&now))
}

impl Clock for TokioClock {
    fn now(&self) -> Duration {
        // Before the other clock: time that passes between the two makes the lead greater, so that
        // a deadline that is computed from it is later, not earlier.
        let by_machine = nanos(self.machine.now());
        let Some(now) = now_in(&self.runtime) else {
            return Duration::from_nanos(
                by_machine.wrapping_add(self.lead.load(Ordering::Relaxed)),
            );
        };
        let now = self.time_at(now);
        self.lead
            .store(nanos(now).wrapping_sub(by_machine), Ordering::Relaxed);
        now
    }

    fn time_at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.origin)
    }

    fn instant_at(&self, time: Duration) -> Instant {
        let at = self.origin.checked_add(time);
        at.unwrap_or_else(|| self.origin + FAR_FUTURE)
    }
}
