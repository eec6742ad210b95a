//! Schedules and their due times. Only arithmetic.

use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone)]
pub(crate) enum Schedule {
    Once,
    /// At a fixed rate without drift: relative to the due time, not to the time of the run.
    Every(SignedDuration),
    /// In UTC.
    Cron(Box<Cron>),
}

/// What happens to due times that had no scheduler for too long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Misfire {
    Skip,
    /// Runs once, now, for all missed due times.
    FireOnce,
}

/// The period that a scheduler reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Earlier due times are misfires.
    pub(crate) oldest: Timestamp,
    /// Later due times are not read yet.
    pub(crate) horizon: Timestamp,
}

/// A planned run.
#[derive(Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) due: Timestamp,
    /// Whether the run is skipped.
    pub(crate) is_skipped: bool,
    /// For a misfire: it stands for all due times before this one.
    pub(crate) misses_until: Option<Timestamp>,
}

impl Schedule {
    /// Returns the first due time at or after `time`.
    pub(crate) fn first(&self, time: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once | Self::Every(_) => Some(time),
            Self::Cron(cron) => occurrence(cron, time),
        }
    }

    /// Returns the first due time that is after `due` and not before `earliest`. `due` is a due
    /// time.
    fn next(&self, due: Timestamp, earliest: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once => None,
            Self::Every(period) => {
                let (behind, period) = (earliest.duration_since(due).as_nanos(), period.as_nanos());
                // Rounded up. Negative values become zero.
                let periods = (behind + period - 1).div_euclid(period).max(1);
                let ahead = SignedDuration::from_nanos_i128(periods * period);
                due.checked_add(ahead).ok()
            }
            Self::Cron(cron) => {
                let after = due.checked_add(SignedDuration::from_nanos(1)).ok()?;
                occurrence(cron, after.max(earliest))
            }
        }
    }

    /// Returns the runs that are due from `next_run` on, at most `room`, and the next due time
    /// after them.
    pub(crate) fn plan(
        &self,
        misfire: Misfire,
        next_run: Timestamp,
        window: Window,
        room: usize,
    ) -> (Vec<Planned>, Option<Timestamp>) {
        let mut runs = Vec::new();
        let mut next_run = Some(next_run);
        while let Some(due) = next_run.filter(|&due| due <= window.horizon && runs.len() < room) {
            let is_missed = due < window.oldest;
            runs.push(Planned {
                due,
                is_skipped: is_missed && misfire == Misfire::Skip,
                misses_until: is_missed.then_some(window.oldest),
            });
            next_run = self.next(due, window.oldest);
        }
        (runs, next_run)
    }
}

/// Returns the first time at or after `time` that matches the pattern, if there is one.
fn occurrence(cron: &Cron, time: Timestamp) -> Option<Timestamp> {
    // Rounded up, because patterns have no fractions of a second.
    let second = -(-time.as_nanosecond()).div_euclid(1_000_000_000);
    let time = Timestamp::from_second(second.try_into().ok()?).ok()?;
    let next = cron.find_next_occurrence(&time.to_zoned(TimeZone::UTC), true).ok()?;
    Some(next.timestamp())
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "once" {
            return Ok(Self::Once);
        }
        if let Some(period) = text.strip_prefix("every ") {
            let period = humantime::parse_duration(period).map_err(|error| error.to_string())?;
            let is_too_fine = period < Duration::from_millis(1) || period.subsec_nanos() % 1_000 != 0;
            if is_too_fine {
                return Err("a period must be at least 1ms and a multiple of 1us".into());
            }
            return Ok(Self::Every(period.try_into().map_err(|_| "the period is too long")?));
        }
        if let Some(pattern) = text.strip_prefix("cron ") {
            let parser = CronParser::builder().seconds(Seconds::Required).build();
            let cron = parser.parse(pattern).map_err(|error| error.to_string())?;
            return Ok(Self::Cron(Box::new(cron)));
        }
        Err("a schedule must be like 'once', 'every 500ms' or 'cron 0 30 3 * * *'".into())
    }
}

impl FromStr for Misfire {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "skip" => Ok(Self::Skip),
            "fire once" => Ok(Self::FireOnce),
            _ => Err("a misfire policy must be 'skip' or 'fire once'".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    fn window(oldest: i64, horizon: i64) -> Window {
        Window { oldest: at(oldest), horizon: at(horizon) }
    }

    /// Returns the due times of the runs, and the next due time.
    fn plan(schedule: &str, next_run: i64, window: Window, room: usize) -> (Vec<i64>, Option<i64>) {
        let schedule: Schedule = schedule.parse().unwrap();
        let (runs, next_run) = schedule.plan(Misfire::FireOnce, at(next_run), window, room);
        let due = runs.iter().map(|run| run.due.as_millisecond());
        (due.collect(), next_run.map(Timestamp::as_millisecond))
    }

    #[test]
    fn all_due_times_up_to_the_horizon_are_planned() {
        assert_eq!(plan("once", 700, window(0, 700), 9), (vec![700], None));
        assert_eq!(plan("once", 700, window(0, 699), 9), (vec![], Some(700)));
        assert_eq!(plan("every 300ms", 700, window(0, 1_300), 9), (vec![700, 1_000, 1_300], Some(1_600)));
        let (runs, next) = plan("cron */2 * * * * *", 4_000, window(0, 8_500), 9);
        assert_eq!((runs, next), (vec![4_000, 6_000, 8_000], Some(10_000)));
    }

    #[test]
    fn runs_beyond_the_room_are_planned_later() {
        assert_eq!(plan("every 300ms", 700, window(0, 1_300), 2), (vec![700, 1_000], Some(1_300)));
        assert_eq!(plan("every 300ms", 700, window(0, 1_300), 0), (vec![], Some(700)));
    }

    #[test]
    fn misfires_become_one_run_or_one_skipped_run() {
        for (misfire, is_skipped) in [(Misfire::Skip, true), (Misfire::FireOnce, false)] {
            for (schedule, dues, next) in [
                ("once", vec![1_000], None),
                ("every 1500ms", vec![1_000, 5_500, 7_000], Some(8_500)),
                ("cron * * * * * *", vec![1_000, 5_000, 6_000, 7_000], Some(8_000)),
            ] {
                let schedule: Schedule = schedule.parse().unwrap();
                let (runs, next_run) = schedule.plan(misfire, at(1_000), window(4_200, 7_900), 9);
                let first = Planned { due: at(1_000), is_skipped, misses_until: Some(at(4_200)) };
                assert_eq!(runs[0], first);
                let due: Vec<_> = runs.iter().map(|run| run.due.as_millisecond()).collect();
                assert_eq!((due, next_run), (dues, next.map(at)));
                assert!(runs[1..].iter().all(|run| !run.is_skipped && run.misses_until.is_none()));
            }
        }
    }

    #[test]
    fn due_time_at_the_limit_is_no_misfire() {
        assert_eq!(plan("every 1s", 1_000, window(1_000, 2_500), 9), (vec![1_000, 2_000], Some(3_000)));
        assert_eq!(plan("every 1s", 999, window(1_000, 2_500), 9), (vec![999, 1_999], Some(2_999)));
    }

    #[test]
    fn first_due_time_is_the_given_time_or_matches_the_pattern() {
        for (schedule, first) in [("once", 1_234), ("every 1s", 1_234), ("cron */10 * * * * *", 10_000)] {
            assert_eq!(schedule.parse::<Schedule>().unwrap().first(at(1_234)), Some(at(first)));
        }
        let whole: Schedule = "cron * * * * * *".parse().unwrap();
        assert_eq!(whole.first(at(7_000)), Some(at(7_000)));
        // Also before 1970.
        assert_eq!(whole.first(at(-7_500)), Some(at(-7_000)));
        let never: Schedule = "cron 0 0 0 30 2 *".parse().unwrap();
        assert_eq!(never.first(at(0)), None);
    }

    #[test]
    fn due_times_end_at_the_largest_timestamp() {
        let long: Schedule = "every 9000years".parse().unwrap();
        assert_eq!(long.next(Timestamp::MAX, at(0)), None);
        let short: Schedule = "every 1ms".parse().unwrap();
        assert_eq!(short.next(Timestamp::MIN, at(0)), Some(at(0)));
        assert_eq!(short.next(Timestamp::MIN, Timestamp::MAX), None);
    }

    #[test]
    fn invalid_schedules_are_rejected() {
        for text in [
            "",
            "sometimes",
            "every day",
            "every 0s",
            "every 1us",
            "every 1ms 1ns",
            "cron",
            "cron 61 * * * * *",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }
}
