//! Two types of `tokio::time` for builds without tokio.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::{Duration, Instant as StdInstant};
use std::{fmt, time};

/// A moment of the machine's clock: `tokio::time::Instant`, which this is with feature `tokio`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time::Instant;
/// use std::time::Duration;
///
/// let begin = Instant::now();
/// let deadline = begin + Duration::from_secs(5);
/// assert_eq!(deadline - begin, Duration::from_secs(5));
/// assert_eq!(Instant::from_std(deadline.into_std()), deadline);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(StdInstant);

impl Instant {
    /// Returns the present.
    #[must_use]
    pub fn now() -> Self {
        Self(StdInstant::now())
    }

    /// Converts from std's type.
    #[must_use]
    pub fn from_std(std: StdInstant) -> Self {
        Self(std)
    }

    /// Converts into std's type.
    #[must_use]
    pub fn into_std(self) -> StdInstant {
        self.0
    }

    /// Returns the time since `earlier`, or zero if that is later.
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the time since `earlier`, or `None` if that is later.
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        self.0.checked_duration_since(earlier.0)
    }

    /// Returns the time since `earlier`, or zero if that is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time that has passed since this moment.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Adds `duration`, or returns `None` if the result cannot be represented.
    #[must_use]
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }

    /// Subtracts `duration`, or returns `None` if the result cannot be represented.
    #[must_use]
    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.0.checked_sub(duration).map(Self)
    }
}

impl From<StdInstant> for Instant {
    fn from(std: StdInstant) -> Self {
        Self(std)
    }
}

impl From<Instant> for time::Instant {
    fn from(instant: Instant) -> Self {
        instant.0
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0 - duration)
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        self.0 -= duration;
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens to ticks that were missed: `tokio::time::MissedTickBehavior`, which this is with
/// feature `tokio`. See [`set_missed_tick_behavior`](super::Interval::set_missed_tick_behavior).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissedTickBehavior {
    /// They come one after the other, until the interval has caught up.
    #[default]
    Burst,
    /// The ticks after a late one are at multiples of the period after it.
    Delay,
    /// They are left out: all ticks stay at multiples of the period after the first.
    Skip,
}
