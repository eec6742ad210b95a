//! A manual clock, for tests.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Clock, instant_of, present, time_of};
use crate::platform::HAS_CLOCK;
use crate::sync::unmodelled::AtomicU64;
use crate::sync::{Arc, Ordering};

/// A clock for tests: its time changes only in [`advance`](Self::advance). Clones share the time.
///
/// Use it with a timer that has no thread: advance the clock, then [`turn`](crate::Driver::turn)
/// the driver. All tasks that are due have run when `turn` returns. Such a test does not sleep, and
/// does not depend on the speed of the machine.
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
///
/// # `Instant`s
///
/// The clock's time is also an [`Instant`], which [`instant`](Self::instant) and
/// [`HashedWheelTimer::now`](crate::HashedWheelTimer::now) return. A timer with this clock converts
/// such `Instant`s exactly. An `Instant` before time zero has passed, so a timeout with this
/// deadline is due at once.
///
/// The timer takes `Instant`s of the machine too: an `Instant` one hour from [`Instant::now`] is
/// one hour from the time of this clock, less what passes on the machine before the call. Time zero
/// of this clock is 70 000 years after the machine's time, and an `Instant` belongs to the nearer
/// one. So a timer with another clock takes an `Instant` of this clock for a deadline that never
/// comes. Another `ManualClock` has the same zero, except for the time between the two calls of
/// [`new`](Self::new).
#[derive(Clone)]
#[doc(alias("MockClock", "FakeClock", "MockTicker"))]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
    /// The `Instant` of time zero: [`FROM_MACHINE_TO_MANUAL`] after the clock was made. `None` on a
    /// platform that has no clock.
    origin: Option<Instant>,
}

/// The time from the present of the machine to time zero of a manual clock, which is 70 000 years.
/// Half of it is more than the 146 years of a timer. So every `Instant` of the machine up to there
/// is converted exactly, or never comes.
const FROM_MACHINE_TO_MANUAL: Duration = Duration::from_secs(1 << 41);

impl ManualClock {
    /// Makes a clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            nanos: Arc::default(),
            origin: HAS_CLOCK.then(|| Instant::now() + FROM_MACHINE_TO_MANUAL),
        }
    }

    /// Returns the clock's time as an `Instant`.
    ///
    /// A timer with this clock returns the same from
    /// [`HashedWheelTimer::now`](crate::HashedWheelTimer::now).
    ///
    /// # Panics
    ///
    /// If the platform has no clock, and so no `Instant`: `wasm32-unknown-unknown`.
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
    /// let deadline = clock.instant() + Duration::from_secs(5);
    /// let timeout = timer.new_timeout_at(|_| (), deadline)?;
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(clock.instant(), deadline);
    /// assert_eq!(driver.turn(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.instant_at(self.now())
    }

    /// Advances the time of this clock and of all its clones. The time stops at 2^64 − 1 ns, which
    /// is 584 years.
    ///
    /// This wakes no timer. Tasks run when their [`Driver`](crate::Driver) is turned.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let timeout = timer.new_timeout(|_| (), Duration::from_secs(5))?;
    /// clock.advance(Duration::from_secs(5));
    /// assert!(!timeout.is_expired());
    /// driver.turn();
    /// assert!(timeout.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let step = |nanos: u64| Some(nanos.saturating_add(by));
        // Release pairs with the Acquire load in `now`: a thread that reads the new time sees
        // everything that happened before this call.
        let _ = self
            .nanos
            .fetch_update(Ordering::Release, Ordering::Relaxed, step);
    }

    /// Returns time zero as an `Instant`, and as a time of this clock.
    fn zero(&self) -> (Instant, Duration) {
        let origin = self
            .origin
            .expect("this platform has no clock, so it has no `Instant`");
        (origin, Duration::ZERO)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    fn time_at(&self, instant: Instant) -> Duration {
        let zero = self.zero();
        let is_of_machine = zero.0.saturating_duration_since(instant) > FROM_MACHINE_TO_MANUAL / 2;
        time_of(if is_of_machine { present(self) } else { zero }, instant)
    }

    fn instant_at(&self, time: Duration) -> Instant {
        instant_of(self.zero(), time)
    }
}

/// As [`new`](ManualClock::new).
impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock")
            .field("now", &self.now())
            .finish()
    }
}
