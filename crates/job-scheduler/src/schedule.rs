//! Schedules and their due times. Only arithmetic.

use std::fmt;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::cron::{self, Pattern};

/// The tables store only earlier times: the beginning of 30 December 9999 in UTC, in seconds.
const END: i64 = 253_402_128_000;

/// The longest cron pattern in bytes. A node reads many at a time.
const MAX_PATTERN: usize = 1_900;

/// When a job is due.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Schedule {
    Once,
    /// At a fixed rate without drift: relative to the due time, not to the time of the run.
    Every(SignedDuration),
    /// In a time zone.
    Cron(Box<Pattern>, TimeZone),
}

impl Schedule {
    /// `every` is at least one millisecond, and a whole number of microseconds, because that is the
    /// precision of PostgreSQL.
    pub(crate) fn every(period: Duration) -> Result<Self, String> {
        let is_too_fine = period < Duration::from_millis(1) || period.subsec_nanos() % 1_000 != 0;
        if is_too_fine {
            return Err(format!(
                "a period of {period:?}: must be at least 1ms and a multiple of 1us"
            ));
        }
        let period = period
            .try_into()
            .map_err(|_| format!("a period of {period:?} is too long"))?;
        Ok(Self::Every(period))
    }

    pub(crate) fn cron(pattern: &str, time_zone: &str) -> Result<Self, String> {
        if pattern.len() > MAX_PATTERN {
            return Err(format!(
                "a cron pattern must have at most {MAX_PATTERN} bytes"
            ));
        }
        let pattern = Pattern::parse(pattern)?;
        let zone = TimeZone::get(time_zone).map_err(|error| error.to_string())?;
        Ok(Self::Cron(Box::new(pattern), zone))
    }

    /// Reads the text that [`Display`](fmt::Display) writes.
    pub(crate) fn parse(text: &str, time_zone: &str) -> Result<Self, String> {
        if text == "once" {
            Ok(Self::Once)
        } else if let Some(period) = text.strip_prefix("every ") {
            Self::every(parse_duration(period).ok_or_else(|| format!("'{period}' is no period"))?)
        } else if let Some(pattern) = text.strip_prefix("cron ") {
            Self::cron(pattern, time_zone)
        } else {
            Err(format!(
                "'{text}': must be like 'once', 'every 500ms' or 'cron 0 30 3 * * *'"
            ))
        }
    }

    /// Returns the first due time at or after `time`.
    pub(crate) fn first(&self, time: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once | Self::Every(_) => Some(time),
            Self::Cron(pattern, zone) => cron::occurrence(pattern, zone, time),
        }
    }

    /// Returns the first due time of a job whose `first_run` is only the start of its pattern, and
    /// its next due time: that one, or an earlier one that an earlier schedule has missed.
    pub(crate) fn plan_first(
        &self,
        first_run: Timestamp,
        next_run: Option<Timestamp>,
    ) -> Result<(Timestamp, Option<Timestamp>), String> {
        let none = || format!("'{self}' has no due time after {first_run}");
        let first = self.first(first_run).ok_or_else(none)?;
        let next_run = next_run.map(|next| if next < first_run { next } else { first });
        Ok((first, next_run))
    }

    /// Returns the first due time that is after `due` and not before `earliest`. `due` is a due
    /// time of this schedule, whose first one is `first`, or one of an earlier schedule of the job.
    pub(crate) fn next(
        &self,
        due: Timestamp,
        first: Timestamp,
        earliest: Timestamp,
    ) -> Option<Timestamp> {
        match self {
            Self::Once => None,
            _ if due < first && earliest <= first => Some(first),
            Self::Every(period) => {
                let due = due.max(first);
                let (behind, period) = (earliest.duration_since(due).as_nanos(), period.as_nanos());
                // Rounded up. Negative values become zero.
                let periods = (behind + period - 1).div_euclid(period).max(1);
                let ahead = SignedDuration::from_nanos_i128(periods * period);
                // The tables store no times after that.
                due.checked_add(ahead)
                    .ok()
                    .filter(|due| due.as_second() < END)
            }
            Self::Cron(pattern, zone) => {
                let after = due
                    .max(first)
                    .checked_add(SignedDuration::from_nanos(1))
                    .ok()?;
                cron::occurrence(pattern, zone, after.max(earliest))
            }
        }
    }
}

/// Reads a whole number of the units `us`, `ms` or `s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = text[..digits].parse().ok()?;
    match &text[digits..] {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once => f.write_str("once"),
            Self::Every(period) => match period.as_micros() {
                micros if micros % 1_000_000 == 0 => write!(f, "every {}s", micros / 1_000_000),
                micros if micros % 1_000 == 0 => write!(f, "every {}ms", micros / 1_000),
                micros => write!(f, "every {micros}us"),
            },
            Self::Cron(pattern, _) => write!(f, "cron {}", pattern.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Schedule {
        Schedule::parse(text, "UTC").unwrap()
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn first_due_time_is_the_given_time_or_matches_the_pattern() {
        for (schedule, first) in [
            ("once", 1_234),
            ("every 1s", 1_234),
            ("cron */10 * * * * *", 10_000),
        ] {
            assert_eq!(parse(schedule).first(at(1_234)), Some(at(first)));
        }
        let whole = parse("cron * * * * * *");
        assert_eq!(whole.first(at(7_000)), Some(at(7_000)));
        // Also before 1970.
        assert_eq!(whole.first(at(-7_500)), Some(at(-7_000)));
        let never = parse("cron 0 0 0 30 2 *");
        assert_eq!(never.first(at(0)), None);
    }

    #[test]
    fn first_due_time_follows_those_that_an_earlier_schedule_has_missed() {
        let next =
            |schedule: &str, earliest| parse(schedule).next(at(1_000), at(5_500), at(earliest));
        assert_eq!(parse("once").next(at(1_000), at(5_500), at(1_000)), None);
        for (schedule, second) in [("every 2s", 7_500), ("cron * * * * * *", 6_000)] {
            assert_eq!(next(schedule, 1_000), Some(at(5_500)));
            assert_eq!(next(schedule, 5_500), Some(at(5_500)));
            assert_eq!(next(schedule, 5_501), Some(at(second)));
        }
    }

    #[test]
    fn due_times_end_where_those_of_the_tables_end() {
        let long = parse("every 284018400000s");
        assert_eq!(long.next(Timestamp::MAX, at(0), at(0)), None);
        let short = parse("every 1ms");
        assert_eq!(
            short.next(Timestamp::MIN, Timestamp::MIN, at(0)),
            Some(at(0))
        );
        assert_eq!(
            short.next(Timestamp::MIN, Timestamp::MIN, Timestamp::MAX),
            None
        );
        let last: Timestamp = "9999-12-29T23:59:59.999Z".parse().unwrap();
        assert_eq!(
            short.next(last - SignedDuration::from_millis(1), at(0), at(0)),
            Some(last)
        );
        assert_eq!(short.next(last, at(0), at(0)), None);
    }

    #[test]
    fn invalid_schedules_are_rejected() {
        for text in [
            "",
            "sometimes",
            "every day",
            "every 0s",
            "every 1us",
            "every 1500",
            "once ",
            "cron",
            "cron 61 * * * * *",
        ] {
            assert!(Schedule::parse(text, "UTC").is_err(), "{text}");
        }
    }

    #[test]
    fn text_of_a_schedule_is_read_again() {
        for text in [
            "once",
            "every 1s",
            "every 90s",
            "every 1500ms",
            "every 1001us",
            "cron 0 30 3 * * *",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    /// Returns the next three due times from a time on.
    fn berlin(pattern: &str, from: &str) -> Vec<String> {
        due_times("Europe/Berlin", pattern, from)
    }

    #[test]
    fn patterns_follow_the_time_zone() {
        // 03:30 is 02:30 UTC in winter and 01:30 UTC in summer.
        assert_eq!(
            berlin("0 30 3 * * *", "2026-03-27T12:00:00Z"),
            [
                "2026-03-28T02:30:00Z",
                "2026-03-29T01:30:00Z",
                "2026-03-30T01:30:00Z"
            ]
        );
    }

    #[test]
    fn time_that_the_clock_skips_runs_after_the_gap() {
        // On 29 March the clock goes from 02:00 to 03:00, which is 01:00 UTC.
        assert_eq!(
            berlin("0 30 2 * * *", "2026-03-27T12:00:00Z"),
            [
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:30:00Z"
            ]
        );
    }

    #[test]
    fn time_that_the_clock_repeats_runs_once() {
        // On 25 October the clock goes from 03:00 (01:00 UTC) back to 02:00.
        assert_eq!(
            berlin("0 30 2 * * *", "2026-10-24T12:00:00Z"),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-26T01:30:00Z",
                "2026-10-27T01:30:00Z"
            ]
        );
        // A pattern with a wildcard runs in both hours.
        assert_eq!(
            berlin("0 */30 * * * *", "2026-10-25T00:30:00Z"),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z"
            ]
        );
    }

    /// Returns the next due times from a time on, at most three.
    fn due_times(zone: &str, pattern: &str, from: &str) -> Vec<String> {
        let schedule = Schedule::cron(pattern, zone).unwrap();
        let first = schedule.first(from.parse().unwrap());
        let times = std::iter::successors(first, |&due| schedule.next(due, due, due));
        times.take(3).map(|time| time.to_string()).collect()
    }

    #[test]
    fn changes_at_midnight_and_by_half_an_hour_are_no_exception() {
        // On 4 November the clock goes from 00:00 to 01:00, which is 03:00 UTC.
        assert_eq!(
            due_times("America/Sao_Paulo", "0 0 0 * * *", "2018-11-03T00:00:00Z"),
            [
                "2018-11-03T03:00:00Z",
                "2018-11-04T03:00:00Z",
                "2018-11-05T02:00:00Z"
            ]
        );
        // On 4 October the clock goes from 02:00 to 02:30, which is 15:30 UTC on the day before...
        assert_eq!(
            due_times(
                "Australia/Lord_Howe",
                "0 15 2 * * *",
                "2026-10-02T20:00:00Z"
            ),
            [
                "2026-10-03T15:30:00Z",
                "2026-10-04T15:15:00Z",
                "2026-10-05T15:15:00Z"
            ]
        );
        // ... and on 5 April from 02:00 back to 01:30, which is 15:00 UTC on the day before.
        assert_eq!(
            due_times(
                "Australia/Lord_Howe",
                "0 45 1 * * *",
                "2026-04-03T20:00:00Z"
            ),
            [
                "2026-04-04T14:45:00Z",
                "2026-04-05T15:15:00Z",
                "2026-04-06T15:15:00Z"
            ]
        );
    }

    #[test]
    fn list_is_no_fixed_time() {
        // In the hour that the clock skips, and in the one that it repeats.
        assert_eq!(
            due_times("Europe/Berlin", "0 0,30 2 * * *", "2026-03-29T00:00:00Z")[0],
            "2026-03-30T00:00:00Z"
        );
        assert_eq!(
            due_times("Europe/Berlin", "0 0,30 2 * * *", "2026-10-25T00:15:00Z"),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z"
            ]
        );
    }

    #[test]
    fn day_that_a_zone_skips_does_not_end_the_job() {
        // Samoa had no 30 December in 2011.
        assert_eq!(
            due_times("Pacific/Apia", "0 0 12 * * *", "2011-12-29T00:00:00Z"),
            [
                "2011-12-29T22:00:00Z",
                "2011-12-30T22:00:00Z",
                "2011-12-31T22:00:00Z"
            ]
        );
        assert_eq!(
            due_times("Pacific/Apia", "0 0 12 30 12 *", "2011-12-01T00:00:00Z")[0],
            "2012-12-29T22:00:00Z"
        );
    }

    #[test]
    fn due_times_move_forward_in_every_zone() {
        let patterns = [
            "0 30 2 * * *",
            "0 0 0 * * *",
            "0 */15 * * * *",
            "30 5 1-3 * * *",
            "0 0 12 L * *",
        ];
        let zones = [
            "Africa/Casablanca",
            "America/Santiago",
            "America/St_Johns",
            "Antarctica/Troll",
            "Asia/Kathmandu",
            "Asia/Tehran",
            "Europe/Dublin",
            "Europe/London",
            "Pacific/Apia",
            "Pacific/Chatham",
        ];
        for zone in zones {
            for pattern in patterns {
                let schedule = Schedule::cron(pattern, zone).unwrap();
                // The days around the changes of many zones.
                for from in [
                    "2011-12-28",
                    "2024-03-08",
                    "2024-03-29",
                    "2024-04-05",
                    "2024-10-04",
                    "2024-10-25",
                ] {
                    let mut due: Timestamp = format!("{from}T00:00:00Z").parse().unwrap();
                    for _ in 0..300 {
                        let next = schedule.next(due, due, due).expect("it has no end");
                        assert!(next > due, "{zone} {pattern}: {next} after {due}");
                        due = next;
                    }
                }
            }
        }
    }

    #[test]
    fn patterns_have_an_optional_year_and_an_end() {
        assert_eq!(
            due_times("UTC", "0 0 0 1 1 * 2099", "2026-01-01T00:00:00Z"),
            ["2099-01-01T00:00:00Z"]
        );
        let yearly = parse("cron 0 0 0 1 1 *");
        let late = |year: u32| format!("{year}-06-01T00:00:00Z").parse().unwrap();
        assert!(yearly.first(late(4_998)).is_some());
        assert_eq!(yearly.first(late(9_998)), None);
        assert!(yearly.first(Timestamp::MIN).is_some());
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        for pattern in [
            "",
            "* * * * *",
            "60 * * * * *",
            "* * 24 * * *",
            "* * * 0 * *",
            "* * * 32 * *",
            "* * * * 13 *",
            "* * * * * 8",
            "*/0 * * * * *",
            "a b c d e f",
            "5-1 * * * * *",
            "* * * * * MON#6",
            "* * * * * * * *",
        ] {
            let error = Schedule::cron(pattern, "UTC").unwrap_err();
            assert!(
                error.starts_with(&format!("cron pattern '{pattern}': ")),
                "{error}"
            );
        }
    }

    #[test]
    fn unknown_time_zones_are_rejected() {
        let error = Schedule::cron("* * * * * *", "Mars/Olympus").unwrap_err();
        assert!(error.contains("Mars/Olympus"), "{error}");
    }
}
