//! Where the time comes from.

use std::fmt;
use std::time::{Duration, Instant};

use crate::sync::unmodelled::AtomicU64;
use crate::sync::{Arc, Ordering};

/// A source of monotonic time.
///
/// A timer asks once for each [`new_timeout`](crate::HashedWheelTimer::new_timeout) and
/// [`reset`](crate::Timeout::reset), on the caller's thread, for each [`remaining`](crate::Timeout::remaining) and `Debug` of
/// a timeout, and once or twice a turn. It never asks with anything locked that a caller could wait for.
///
/// The worker thread sleeps in real time. A timer whose clock does not run at the pace of real time should be built with
/// [`Builder::build_driven`](crate::Builder::build_driven), and turned by whoever moves the clock.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{Clock, HashedWheelTimer};
/// use std::time::{Duration, Instant};
///
/// /// Everything takes half as long.
/// struct Hurry(Instant);
///
/// impl Clock for Hurry {
///     fn now(&self) -> Duration {
///         self.0.elapsed() * 2
///     }
/// }
///
/// let (timer, driver) = HashedWheelTimer::builder().clock(Hurry(Instant::now())).build_driven()?;
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
pub trait Clock: Send + Sync + 'static {
    /// The time since any fixed origin. Never less than what an earlier call returned, on whatever thread. (A timer
    /// takes a step back for standing still.)
    ///
    /// A timer counts from the moment it was built, up to 146 years; there its time stands still.
    ///
    /// Must not panic: a panic here comes out of whatever method asked for the time; on the worker thread it is reported
    /// and stops the timer.
    fn now(&self) -> Duration;
}

/// `std::time::Instant`: the operating system's monotonic clock.
pub(crate) struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A clock that stands still until it is told to move, for tests. Clones share the time.
///
/// It goes with a timer that has no thread: move the clock, then [`turn`](crate::Driver::turn) the driver, and all that
/// is due has run when `turn` returns. Nothing sleeps and nothing depends on the machine.
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
/// let lease = timer.new_timeout(|_| println!("the lease has run out"), Duration::from_secs(3_600))?;
/// clock.advance(Duration::from_secs(3_599));
/// assert_eq!(driver.turn(), 0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(driver.turn(), 1);
/// assert!(lease.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time on, for all clones. It stops at 2^64 − 1 ns, which are 584 years.
    ///
    /// Wakes nobody: a [`Driver`](crate::Driver) has to be turned for anything to happen.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let step = |nanos: u64| Some(nanos.saturating_add(by));
        // Release, with the Acquire in `now`: who sees the new time sees what was done before it.
        let _ = self.nanos.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish()
    }
}
