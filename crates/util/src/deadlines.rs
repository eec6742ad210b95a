//! Deadlines as numbers: nanoseconds of a timer's clock.

use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;

/// The deadline that is never reached.
pub(crate) const NEVER: u64 = (1 << 62) - 1;

/// The latest time of a timer's clock, which stops there after 146 years.
const LAST: u64 = NEVER - 2;

/// Returns `nanos` as a deadline: [`NEVER`] if it is not reached.
fn or_never(nanos: u64) -> u64 {
    if nanos > LAST { NEVER } else { nanos }
}

/// Returns `duration` in nanoseconds, or [`NEVER`].
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().map_or(NEVER, or_never)
}

/// Returns the deadline `delay` after `now`.
pub(crate) fn after(now: u64, delay: Duration) -> u64 {
    or_never(now + nanos(delay))
}

/// The deadlines of a timer.
pub(crate) trait Deadlines {
    /// The present.
    fn now_nanos(&self) -> u64;

    /// The deadline after `delay`.
    fn deadline_after(&self, delay: Duration) -> u64;

    /// The deadline at `instant`; the present if that has passed.
    fn deadline_at(&self, instant: Instant) -> u64;

    /// The `Instant` of a deadline.
    fn instant_of(&self, deadline: u64) -> Instant;

    /// The time until a deadline.
    fn until(&self, deadline: u64) -> Duration;
}

impl Deadlines for HashedWheelTimer {
    fn now_nanos(&self) -> u64 {
        nanos(self.clock().now())
    }

    fn deadline_after(&self, delay: Duration) -> u64 {
        after(self.now_nanos(), delay)
    }

    fn deadline_at(&self, instant: Instant) -> u64 {
        nanos(self.clock().time_at(instant)).max(self.now_nanos())
    }

    fn instant_of(&self, deadline: u64) -> Instant {
        self.clock().instant_at(Duration::from_nanos(deadline))
    }

    fn until(&self, deadline: u64) -> Duration {
        match deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.now_nanos())),
        }
    }
}
