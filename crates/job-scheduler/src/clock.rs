//! An estimate of the database's clock.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// A time that the database returned. The answer arrived `at`, and the request was sent `trip`
/// earlier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) clock: Timestamp,
    pub(crate) at: Instant,
    pub(crate) trip: Duration,
}

impl Reading {
    pub(crate) fn sent(&self) -> Instant {
        self.at - self.trip
    }
}

/// Converts between the database's clock and this process's monotonic clock. The wall clock of this
/// machine is never used.
///
/// The database has read its clock at some time during the trip. This type assumes that it was when
/// the answer arrived. Therefore the estimate is late by at most the trip, and never early. Of
/// several readings, the one with the shortest trip counts. Its value decreases over time, because
/// two clocks do not run at exactly the same speed.
///
/// The database's clock may be adjusted. Then the next reading contradicts the estimate and
/// replaces it. Runs that are already on the wheel were scheduled by the old estimate. If the clock
/// was set forward, they are late by at most the few seconds of the wheel. If it was set back, they
/// are early: the thread that takes such a run from the wheel detects that and schedules it again.
/// (Runs between the adjustment and the reading are early.) Leases last longer by the same amount,
/// so the runs of lost schedulers are taken over later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    best: Reading,
}

impl Clock {
    pub(crate) fn new(reading: Reading) -> Self {
        Self { best: reading }
    }

    pub(crate) fn learn(&mut self, reading: Reading) {
        // One part in a thousand is far more than the speeds of two clocks differ, even if one is
        // being corrected.
        let uncertainty =
            self.best.trip + reading.at.saturating_duration_since(self.best.at) / 1_000;
        let off = self
            .at(reading.at)
            .duration_since(reading.clock)
            .unsigned_abs();
        if reading.trip <= uncertainty || off > uncertainty + reading.trip {
            self.best = reading;
        }
    }

    /// Returns the database's time at a time of this process.
    fn at(&self, time: Instant) -> Timestamp {
        let since = SignedDuration::try_from(time.saturating_duration_since(self.best.at))
            .unwrap_or_default();
        self.best
            .clock
            .saturating_add(since)
            .expect("a duration has no calendar units")
    }

    /// Returns the time of this process at which the database's clock shows `time`. For times long
    /// ago, it returns some time in the past.
    pub(crate) fn instant(&self, time: Timestamp) -> Instant {
        let ahead = Duration::try_from(time.duration_since(self.best.clock)).unwrap_or_default();
        self.best.at + ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn reading(origin: Instant, clock: i64, at: u32, trip: u32) -> Reading {
        let clock = Timestamp::from_millisecond(clock).unwrap();
        Reading {
            clock,
            at: origin + MS * at,
            trip: MS * trip,
        }
    }

    /// Returns when the clock will show 100 000, in milliseconds from `origin`.
    fn when(clock: &Clock, origin: Instant) -> u128 {
        let time = Timestamp::from_millisecond(100_000).unwrap();
        clock.instant(time).duration_since(origin).as_millis()
    }

    #[test]
    fn reading_with_the_shortest_trip_counts() {
        let origin = Instant::now();
        let mut clock = Clock::new(reading(origin, 50_000, 0, 4));
        assert_eq!(when(&clock, origin), 50_000);
        // Requested at 2, answered at 10. Read at 3 if the first reading is exact.
        clock.learn(reading(origin, 50_003, 10, 8));
        assert_eq!(when(&clock, origin), 50_000);
        // Read at most 1 ms before the answer arrived.
        clock.learn(reading(origin, 50_022, 20, 1));
        assert_eq!(when(&clock, origin), 49_998);
    }

    #[test]
    fn old_readings_lose_precision() {
        let origin = Instant::now();
        let mut clock = Clock::new(reading(origin, 50_000, 0, 1));
        clock.learn(reading(origin, 53_996, 4_000, 6));
        assert_eq!(when(&clock, origin), 50_000);
        clock.learn(reading(origin, 55_996, 6_000, 6));
        assert_eq!(when(&clock, origin), 50_004);
    }

    #[test]
    fn adjusted_clock_replaces_the_estimate() {
        for set_to in [10_000, 90_000] {
            let origin = Instant::now();
            let mut clock = Clock::new(reading(origin, 50_000, 0, 1));
            clock.learn(reading(origin, set_to, 20, 15));
            assert_eq!(when(&clock, origin), 100_000 - set_to as u128 + 20);
        }
    }

    #[test]
    fn past_times_are_in_the_past() {
        let origin = Instant::now();
        let clock = Clock::new(reading(origin, 50_000, 0, 1));
        assert!(clock.instant(Timestamp::MIN) <= origin);
    }
}
