//! The clock of a timer.

use std::mem;
use std::time::{Duration, Instant};

use super::Clock;
use super::counter::CounterClock;
use crate::report;
use crate::ticks::{self, DEADLINE_NEVER, DEADLINE_RUNNING};

/// `deadline_base` is ahead of the machine's clock by less than this, but not by a constant. In
/// nanoseconds.
const MAX_AHEAD: u64 = 1_000;

/// The clock of a timer. Its time is zero when the timer is built.
pub(crate) enum TimerClock {
    Counter(CounterClock),
    Given {
        clock: Box<dyn Clock>,
        origin: Duration,
    },
}

impl TimerClock {
    /// Starts the time of a timer. `None` selects the operating system's clock.
    pub(crate) fn of(clock: Option<Box<dyn Clock>>) -> Self {
        match clock {
            None => Self::Counter(CounterClock::new()),
            Some(clock) => Self::Given {
                origin: clock.now(),
                clock,
            },
        }
    }

    /// Returns the nanoseconds since the timer was built. The result is less than
    /// `DEADLINE_RUNNING`.
    pub(crate) fn now(&self) -> u64 {
        let nanos = match self {
            Self::Counter(counter) => counter.now(),
            Self::Given { clock, origin } => ticks::nanos(clock.now().saturating_sub(*origin)),
        };
        nanos.min(DEADLINE_RUNNING - 1)
    }

    /// Returns a time from which the rest of a delay is computed. It is never before the time from
    /// which [`deadline_base`](Self::deadline_base) made the deadline, so the rest is never more
    /// than the delay.
    pub(crate) fn now_upper_bound(&self) -> u64 {
        match self {
            Self::Counter(counter) => counter.now() + MAX_AHEAD,
            Self::Given { .. } => self.now(),
        }
    }

    /// Returns the time at which a delay begins. It is never before [`now`](Self::now), and after
    /// it by less than a microsecond.
    #[inline]
    pub(crate) fn deadline_base(&self) -> u64 {
        match self {
            Self::Counter(counter) => counter.deadline_base().min(DEADLINE_RUNNING - 1),
            Self::Given { .. } => self.now(),
        }
    }

    /// Returns the deadline after this delay.
    #[inline]
    pub(crate) fn deadline_after(&self, delay: Duration) -> u64 {
        ticks::deadline(self.deadline_base(), delay)
    }

    /// Returns how long it is until `deadline`.
    pub(crate) fn remaining(&self, deadline: u64) -> Duration {
        match deadline {
            DEADLINE_NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.now_upper_bound())),
        }
    }

    /// Returns whether `deadline` has been reached.
    #[cfg(feature = "async")]
    pub(crate) fn has_reached(&self, deadline: u64) -> bool {
        // `deadline_base` is cheap and never behind, so it rules out most cases. `now` is exact.
        self.deadline_base() >= deadline && self.now() >= deadline
    }

    /// Returns the deadline at `instant`, never early. It may have passed. It is zero if `instant`
    /// is before the timer was built.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        match self {
            Self::Counter(counter) => ticks::nanos(counter.clock.time_at(instant)),
            Self::Given { clock, origin } => {
                ticks::nanos(clock.time_at(instant).saturating_sub(*origin))
            }
        }
    }

    /// Returns the `Instant` of a deadline.
    pub(crate) fn instant_of(&self, deadline: u64) -> Instant {
        let deadline = Duration::from_nanos(deadline);
        match self {
            Self::Counter(counter) => counter.clock.instant_at(deadline),
            Self::Given { clock, origin } => clock.instant_at(origin.saturating_add(deadline)),
        }
    }

    /// Returns the current time as an `Instant`.
    pub(crate) fn instant_now(&self) -> Instant {
        match self {
            Self::Counter(_) => Instant::now(),
            Self::Given { clock, .. } => clock.instant_at(clock.now()),
        }
    }
}

/// The type behind [`HashedWheelTimer::clock`](crate::HashedWheelTimer::clock).
impl Clock for TimerClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now())
    }

    fn now_bounds(&self) -> (Duration, Duration) {
        let latest = self.deadline_base();
        let earliest = match self {
            Self::Counter(_) => latest.saturating_sub(MAX_AHEAD),
            Self::Given { .. } => latest,
        };
        (Duration::from_nanos(earliest), Duration::from_nanos(latest))
    }

    fn time_at(&self, instant: Instant) -> Duration {
        Duration::from_nanos(self.at(instant))
    }

    fn instant_at(&self, time: Duration) -> Instant {
        self.instant_of(ticks::nanos(time))
    }
}

impl Drop for TimerClock {
    fn drop(&mut self) {
        /// A placeholder for a clock that was taken out.
        struct NoClock;

        impl Clock for NoClock {
            fn now(&self) -> Duration {
                Duration::ZERO
            }
        }

        if let Self::Given { clock, .. } = self {
            report::guard_drop("(the clock)", mem::replace(clock, Box::new(NoClock)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::sync::thread::sleep;

    #[test]
    fn instant_is_converted_by_the_same_clock() {
        let time = CounterClock::new();
        let (origin, second) = (time.clock.origin, Duration::from_secs(1));
        let far = origin.checked_add(second * 200 * 366 * 86_400);
        let time = TimerClock::Counter(time);
        assert_eq!(time.at(origin + second), 1_000_000_000);
        assert_eq!(time.at(origin), 0);
        assert_eq!(
            origin
                .checked_sub(second)
                .map_or(0, |before| time.at(before)),
            0
        );
        assert_eq!(
            far.map_or(DEADLINE_NEVER, |far| time.at(far)),
            DEADLINE_NEVER
        );
        assert_eq!(time.instant_of(1_000_000_000), origin + second);
        assert_eq!(time.at(time.instant_of(DEADLINE_NEVER)), DEADLINE_NEVER);
    }

    #[test]
    fn time_stops_before_the_sentinel_deadline() {
        let clock = ManualClock::new();
        let given = TimerClock::of(Some(Box::new(clock.clone())));
        clock.advance(Duration::MAX);
        assert_eq!(
            [given.now(), given.deadline_base()],
            [DEADLINE_RUNNING - 1; 2]
        );
    }

    #[test]
    fn rest_of_a_delay_counts_from_a_microsecond_ahead() {
        let counter = CounterClock::new();
        sleep(Duration::from_millis(1));
        let before = counter.now();
        let time = TimerClock::Counter(counter);
        let later = time.now_upper_bound();
        assert!(
            (before + 1_000..=time.now() + 1_000).contains(&later),
            "{later} at {before}"
        );
    }
}
