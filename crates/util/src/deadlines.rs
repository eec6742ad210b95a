//! Deadlines as numbers: nanoseconds of a timer's clock.

use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;

use crate::sync::OnceLock;

/// The deadline that is never reached.
pub(crate) const NEVER: u64 = (1 << 62) - 1;

/// The latest time of a timer's clock, which stops there after 146 years.
const LAST: u64 = NEVER - 2;

/// In nanoseconds.
const CENTURY: i64 = 100 * 365 * 86_400 * 1_000_000_000;

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

fn to_i64(nanos: u64) -> i64 {
    nanos.try_into().unwrap_or(i64::MAX)
}

/// The deadlines of a timer.
pub(crate) trait Deadlines {
    /// The present.
    fn now_nanos(&self) -> u64;

    /// The deadline after `delay`.
    fn deadline_after(&self, delay: Duration) -> u64;

    /// The time of the clock at `instant`, in nanoseconds. It is negative before the timer was
    /// built.
    fn time_at(&self, instant: Instant) -> i64;

    /// The `Instant` of a time of the clock.
    fn instant_of(&self, time: i64) -> Instant;

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

    fn time_at(&self, instant: Instant) -> i64 {
        match nanos(self.clock().time_at(instant)) {
            0 => match nanos(self.instant_of(0).saturating_duration_since(instant)) {
                // An `Instant` of the machine, from which those of a manual clock are far away. It
                // counts as long ago, in the order of the machine's clock.
                NEVER => {
                    static BEGIN: OnceLock<Instant> = OnceLock::new();
                    let begin = *BEGIN.get_or_init(Instant::now);
                    let before = to_i64(nanos(begin.saturating_duration_since(instant)));
                    let after = to_i64(nanos(instant.saturating_duration_since(begin)));
                    (after - before - CENTURY).min(-1)
                }
                before => -to_i64(before),
            },
            time => to_i64(time),
        }
    }

    fn instant_of(&self, time: i64) -> Instant {
        let distance = Duration::from_nanos(time.unsigned_abs());
        if time >= 0 {
            return self.clock().instant_at(distance);
        }
        let origin = self.clock().instant_at(Duration::ZERO);
        origin.checked_sub(distance).unwrap_or(origin)
    }

    fn until(&self, deadline: u64) -> Duration {
        match deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.now_nanos())),
        }
    }
}
