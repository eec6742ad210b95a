//! When a job falls due. Nothing but arithmetic.

use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone)]
pub(crate) enum Schedule {
    Once,
    /// At a fixed rate, without drift: counted from when it was due, not from when it ran.
    Every(SignedDuration),
    /// In UTC.
    Cron(Box<Cron>),
}

/// What becomes of what fell due when there was no scheduler for too long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Misfire {
    Skip,
    /// Once, now, for all that was missed.
    FireOnce,
}

/// The time that a scheduler looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// What fell due before this is a misfire.
    pub(crate) oldest: Timestamp,
    /// What falls due after this is for later.
    pub(crate) horizon: Timestamp,
}

/// A run that is to be.
#[derive(Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) due: Timestamp,
    /// Whether it is left out.
    pub(crate) is_skipped: bool,
    /// Of a misfire: it stands for all that fell due before this.
    pub(crate) misses_until: Option<Timestamp>,
}

impl Schedule {
    /// The first due time at `time` or after it.
    pub(crate) fn first(&self, time: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once | Self::Every(_) => Some(time),
            Self::Cron(cron) => occurrence(cron, time),
        }
    }

    /// The first due time after `due`, which is one, and not before `earliest`.
    fn next(&self, due: Timestamp, earliest: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once => None,
            Self::Every(period) => {
                let (behind, period) = (earliest.duration_since(due).as_nanos(), period.as_nanos());
                // Rounded up; what is negative, to zero.
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

    /// What is to be done of what falls due from `next_run` on, at most `room` runs of it, and where to go on.
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

/// The first time that fits the pattern, at `time` or after it. None: there is none.
fn occurrence(cron: &Cron, time: Timestamp) -> Option<Timestamp> {
    // Patterns know no fractions of a second: rounded up.
    let second = -(-time.as_nanosecond()).div_euclid(1_000_000_000);
    let time = Timestamp::from_second(second.try_into().ok()?).ok()?;
    let found = cron.find_next_occurrence(&time.to_zoned(TimeZone::UTC), true).ok()?;
    Some(found.timestamp())
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
                return Err("a period is at least 1ms, and microseconds are its finest part".into());
            }
            return Ok(Self::Every(period.try_into().map_err(|_| "that is too long a period")?));
        }
        if let Some(pattern) = text.strip_prefix("cron ") {
            let parser = CronParser::builder().seconds(Seconds::Required).build();
            let cron = parser.parse(pattern).map_err(|error| error.to_string())?;
            return Ok(Self::Cron(Box::new(cron)));
        }
        Err("a schedule is 'once', 'every 500ms' or 'cron 0 30 3 * * *'".into())
    }
}

impl FromStr for Misfire {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "skip" => Ok(Self::Skip),
            "fire once" => Ok(Self::FireOnce),
            _ => Err("a misfire is to 'skip' or to 'fire once'".into()),
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

    /// When it runs, and where it goes on.
    fn plan(schedule: &str, next_run: i64, window: Window, room: usize) -> (Vec<i64>, Option<i64>) {
        let schedule: Schedule = schedule.parse().unwrap();
        let (runs, next_run) = schedule.plan(Misfire::FireOnce, at(next_run), window, room);
        let due = runs.iter().map(|run| run.due.as_millisecond());
        (due.collect(), next_run.map(Timestamp::as_millisecond))
    }

    #[test]
    fn all_that_falls_due_up_to_the_horizon_is_planned() {
        assert_eq!(plan("once", 700, window(0, 700), 9), (vec![700], None));
        assert_eq!(plan("once", 700, window(0, 699), 9), (vec![], Some(700)));
        assert_eq!(plan("every 300ms", 700, window(0, 1_300), 9), (vec![700, 1_000, 1_300], Some(1_600)));
        let (runs, next) = plan("cron */2 * * * * *", 4_000, window(0, 8_500), 9);
        assert_eq!((runs, next), (vec![4_000, 6_000, 8_000], Some(10_000)));
    }

    #[test]
    fn what_there_is_no_room_for_is_left_for_later() {
        assert_eq!(plan("every 300ms", 700, window(0, 1_300), 2), (vec![700, 1_000], Some(1_300)));
        assert_eq!(plan("every 300ms", 700, window(0, 1_300), 0), (vec![], Some(700)));
    }

    #[test]
    fn what_is_too_old_is_one_run_or_none_for_all_of_it() {
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
    fn what_is_just_old_enough_is_no_misfire() {
        assert_eq!(plan("every 1s", 1_000, window(1_000, 2_500), 9), (vec![1_000, 2_000], Some(3_000)));
        assert_eq!(plan("every 1s", 999, window(1_000, 2_500), 9), (vec![999, 1_999], Some(2_999)));
    }

    #[test]
    fn the_first_time_is_as_asked_or_as_the_pattern_says() {
        for (schedule, first) in [("once", 1_234), ("every 1s", 1_234), ("cron */10 * * * * *", 10_000)] {
            assert_eq!(schedule.parse::<Schedule>().unwrap().first(at(1_234)), Some(at(first)));
        }
        let whole: Schedule = "cron * * * * * *".parse().unwrap();
        assert_eq!(whole.first(at(7_000)), Some(at(7_000)));
        // Before 1970 too.
        assert_eq!(whole.first(at(-7_500)), Some(at(-7_000)));
        let never: Schedule = "cron 0 0 0 30 2 *".parse().unwrap();
        assert_eq!(never.first(at(0)), None);
    }

    #[test]
    fn the_end_of_time_is_the_end() {
        let long: Schedule = "every 9000years".parse().unwrap();
        assert_eq!(long.next(Timestamp::MAX, at(0)), None);
        let short: Schedule = "every 1ms".parse().unwrap();
        assert_eq!(short.next(Timestamp::MIN, at(0)), Some(at(0)));
        assert_eq!(short.next(Timestamp::MIN, Timestamp::MAX), None);
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
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
