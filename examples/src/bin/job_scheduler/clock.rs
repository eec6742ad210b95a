//! The database's clock, seen from here.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// What the database's clock said, in an answer that came `at` and that had been asked for `trip` before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) clock: Timestamp,
    pub(crate) at: Instant,
    pub(crate) trip: Duration,
}

/// Knows by our monotonic clock when it is what time for the database. The wall clock of this machine is never looked at.
///
/// The database has read its clock at some time of the trip, so taking that for the moment when the answer came is to be
/// late by no more than the trip, and never early. Of several readings that with the shortest trip counts; how much it is
/// worth wears off, for two clocks do not run at quite the same speed.
///
/// Somebody may set the database's clock. Then the next reading contradicts what was known, and replaces it. What is on the
/// wheel by then was put there by the old one. Set forward, the clock makes it late, by no more than the wheel's few seconds;
/// set back, it makes it early, which who takes it from the wheel sees, and puts it back. (What is taken between the set and
/// the reading runs early.) And leases last longer by what it was set back: what the dead have is taken over so much later.
#[derive(Debug)]
pub(crate) struct Clock {
    best: Reading,
}

impl Clock {
    pub(crate) fn new(reading: Reading) -> Self {
        Self { best: reading }
    }

    pub(crate) fn learn(&mut self, reading: Reading) {
        // One part in a thousand is far more than two clocks differ in speed, also where one is being corrected.
        let worn = self.best.trip + reading.at.saturating_duration_since(self.best.at) / 1_000;
        let off = self.at(reading.at).duration_since(reading.clock).unsigned_abs();
        if reading.trip <= worn || off > worn + reading.trip {
            self.best = reading;
        }
    }

    /// What time it is for the database, at a time of ours.
    fn at(&self, time: Instant) -> Timestamp {
        let since =
            SignedDuration::try_from(time.saturating_duration_since(self.best.at)).unwrap_or_default();
        self.best.clock.saturating_add(since).expect("a duration is added, no calendar unit")
    }

    /// When it is `time` for the database. What is long past is some time that has passed.
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
        Reading { clock, at: origin + MS * at, trip: MS * trip }
    }

    /// When the clock will show 100 000, in milliseconds from `origin`.
    fn when(clock: &Clock, origin: Instant) -> u128 {
        let time = Timestamp::from_millisecond(100_000).unwrap();
        clock.instant(time).duration_since(origin).as_millis()
    }

    #[test]
    fn the_shortest_trip_counts() {
        let origin = Instant::now();
        let mut clock = Clock::new(reading(origin, 50_000, 0, 4));
        assert_eq!(when(&clock, origin), 50_000);
        // Asked for at 2, answered at 10; read at 3, if the first is right.
        clock.learn(reading(origin, 50_003, 10, 8));
        assert_eq!(when(&clock, origin), 50_000);
        // Read at most 1 ms before the answer came.
        clock.learn(reading(origin, 50_022, 20, 1));
        assert_eq!(when(&clock, origin), 49_998);
    }

    #[test]
    fn what_was_read_long_ago_is_worth_less() {
        let origin = Instant::now();
        let mut clock = Clock::new(reading(origin, 50_000, 0, 1));
        clock.learn(reading(origin, 53_996, 4_000, 6));
        assert_eq!(when(&clock, origin), 50_000);
        clock.learn(reading(origin, 55_996, 6_000, 6));
        assert_eq!(when(&clock, origin), 50_004);
    }

    #[test]
    fn a_clock_that_was_set_is_believed() {
        for set_to in [10_000, 90_000] {
            let origin = Instant::now();
            let mut clock = Clock::new(reading(origin, 50_000, 0, 1));
            clock.learn(reading(origin, set_to, 20, 15));
            assert_eq!(when(&clock, origin), 100_000 - set_to as u128 + 20);
        }
    }

    #[test]
    fn what_is_past_is_past() {
        let origin = Instant::now();
        let clock = Clock::new(reading(origin, 50_000, 0, 1));
        assert!(clock.instant(Timestamp::MIN) <= origin);
    }
}
