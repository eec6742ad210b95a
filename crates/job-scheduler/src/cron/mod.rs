//! Cron patterns: their syntax, and their due times in a time zone.

pub(crate) mod quartz;

use croner::parser::{CronParser, Seconds};
use croner::{Cron, CronComponent, Weekday, YEAR_LOWER_LIMIT, YEAR_UPPER_LIMIT};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// The fields of the days of the month, and of the weekdays.
const DAY: usize = 3;
const WEEKDAY: usize = 5;

/// The number of days that match, but have no time that matches, after which a search ends. Each of
/// them has a change of the clock. If a pattern matches only times that are omitted in each year,
/// it has no due time.
const MAX_DAYS_WITHOUT_TIME: u32 = 30;

/// A pattern with seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pattern {
    /// As it was given, with single spaces.
    text: String,
    /// Without `L-3`, which croner does not know: then it has `L` there.
    cron: Cron,
    before_last: Option<BeforeLast>,
}

/// The days of the month `L-3` or `L-3W`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BeforeLast {
    days: i8,
    /// The nearest day from Monday to Friday in the same month.
    is_weekday: bool,
}

impl Pattern {
    /// Reads a pattern. If it is written for Quartz, the error has a pattern that means the same
    /// here.
    pub(crate) fn parse(pattern: &str) -> Result<Self, String> {
        let text = pattern.split_whitespace().collect::<Vec<_>>().join(" ");
        let translated = quartz::to_cron(&text);
        let reason = match Self::read(&text) {
            Ok(read) if !text.contains('?') || weekdays(&text) == weekdays(&translated) => return Ok(read),
            Ok(_) => {
                "'?' is Quartz syntax, in which 1 is Sunday and 7 is Saturday, but here 1 is Monday and 7 is \
                Sunday. `NewJob::quartz_cron` takes such patterns"
                    .to_owned()
            }
            Err(error) => error,
        };
        let is_useful = translated != text && Self::read(&translated).is_ok();
        let hint = if is_useful {
            format!(". In the syntax of this crate: '{translated}'")
        } else {
            String::new()
        };
        Err(format!("cron pattern '{pattern}': {reason}{hint}"))
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut fields: Vec<_> = text.split(' ').collect();
        let before_last = fields.get(DAY).and_then(|field| BeforeLast::parse(field));
        if before_last.is_some() {
            fields[DAY] = "L";
            if !matches!(fields.get(WEEKDAY), Some(&("*" | "?"))) {
                return Err(
                    "days before the last day of the month cannot be combined with weekdays".into(),
                );
            }
        }
        let weekday = fields.get(WEEKDAY).map(|field| format!("+{field}"));
        if let Some(weekday) = weekday.as_deref().filter(|_| needs_both_days(&fields)) {
            fields[WEEKDAY] = weekday;
        }
        let cron = parser()
            .parse(&fields.join(" "))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            text: text.to_owned(),
            cron,
            before_last,
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    fn matches_day(&self, day: Date) -> Option<bool> {
        if let Some(before_last) = self.before_last {
            return Some(before_last.day(day) == Some(day.day()));
        }
        let weekday = Weekday::from_days_from_sunday(
            day.weekday().to_sunday_zero_offset().unsigned_abs().into(),
        );
        let [month, number] = [day.month(), day.day()].map(|number| number.unsigned_abs().into());
        self.cron
            .pattern
            .day_match(day.year().into(), month, number, weekday)
            .ok()
    }

    /// Returns the pattern of croner without its other years. With `L-3`, without its other days.
    fn near(&self, day: Date) -> Cron {
        if self.before_last.is_some() {
            let time = self.text.split(' ').take(DAY).collect::<Vec<_>>().join(" ");
            let pattern = format!("{time} {} {} * {}", day.day(), day.month(), day.year());
            return parser().parse(&pattern).expect("the pattern has this time");
        }
        let mut years = CronComponent::new(YEAR_LOWER_LIMIT as u16, YEAR_UPPER_LIMIT as u16, 0, 0);
        years
            .parse(&day.year().to_string())
            .expect("the pattern has this year");
        let mut cron = self.cron.clone();
        cron.pattern.years = years;
        cron
    }
}

/// As in Vixie's cron: a day must match both fields of days if one of them begins with `*`, such as
/// `*/2`, and otherwise one of them. (croner knows that of `*` only.)
fn needs_both_days(fields: &[&str]) -> bool {
    let days = [DAY, WEEKDAY].map(|index| fields.get(index).copied().unwrap_or_default());
    days.iter().any(|field| field.starts_with('*'))
        && !days.iter().any(|field| ["*", "?"].contains(field))
        && !days[1].starts_with('+')
}

fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Required).build()
}

impl BeforeLast {
    fn parse(field: &str) -> Option<Self> {
        let field = field.to_ascii_uppercase();
        let number = field.strip_prefix("L-")?;
        let (number, is_weekday) = match number.strip_suffix('W') {
            Some(number) => (number, true),
            None => (number, false),
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let days = number
            .parse()
            .ok()
            .filter(|days| is_number && (1..=30).contains(days))?;
        Some(Self { days, is_weekday })
    }

    /// Returns the day in the month of this date, if the month is long enough.
    fn day(self, date: Date) -> Option<i8> {
        let last = date.days_in_month();
        let day = last.checked_sub(self.days).filter(|day| *day > 0)?;
        if !self.is_weekday {
            return Some(day);
        }
        Some(match date.with().day(day).build().ok()?.weekday() {
            jiff::civil::Weekday::Saturday if day > 1 => day - 1,
            jiff::civil::Weekday::Saturday => day + 2,
            // It is not the last one.
            jiff::civil::Weekday::Sunday => day + 1,
            _ => day,
        })
    }
}

/// Returns the field of the weekdays, in which `?` and `*` are equal.
fn weekdays(pattern: &str) -> Option<String> {
    Some(pattern.split_whitespace().nth(WEEKDAY)?.replace('?', "*"))
}

/// Returns the first time at or after `time` that matches the pattern, if there is one.
///
/// The search of croner visits each day until the year 5000, and each second of a time that a
/// change of the clock omits. Therefore this function looks for a day first, and croner searches
/// only in the year of that day.
pub(crate) fn occurrence(pattern: &Pattern, zone: &TimeZone, time: Timestamp) -> Option<Timestamp> {
    // Rounded up, because patterns have no fractions of a second.
    let second = -(-time.as_nanosecond()).div_euclid(1_000_000_000);
    let time = Timestamp::from_second(second.try_into().ok()?).ok()?;
    let mut day = time.to_zoned(zone.clone()).date();
    for _ in 0..MAX_DAYS_WITHOUT_TIME {
        day = matching_day(pattern, day)?;
        // A change of the clock may omit the first hour of the day. Then it is earlier.
        let begin = zone
            .to_ambiguous_timestamp(day.at(0, 0, 0, 0))
            .earlier()
            .ok()?;
        let start = begin.max(time).to_zoned(zone.clone());
        if let Ok(next) = pattern.near(day).find_next_occurrence(&start, true) {
            return Some(next.timestamp());
        }
        // The rest of the day has no such time, or the zone does not have the day, as in Samoa in
        // 2011.
        day = day.tomorrow().ok()?;
    }
    None
}

/// Returns the first day from `from` on that matches the pattern.
fn matching_day(pattern: &Pattern, from: Date) -> Option<Date> {
    // The calendars, by leap year and weekday of the first day, that do not have such a day.
    let mut have_none = [[false; 7]; 2];
    for year in from.year()..=YEAR_UPPER_LIMIT as i16 {
        if !pattern.cron.pattern.year_match(year.into()).ok()? {
            continue;
        }
        let first = Date::new(year, 1, 1).ok()?;
        let weekday = first.weekday().to_sunday_zero_offset() as usize;
        let has_none = &mut have_none[usize::from(first.in_leap_year())][weekday];
        if *has_none {
            continue;
        }
        let begin = first.max(from);
        if let Some(day) = matching_day_of_year(pattern, begin) {
            return Some(day);
        }
        *has_none = begin == first;
    }
    None
}

/// The same until the end of the year.
fn matching_day_of_year(pattern: &Pattern, from: Date) -> Option<Date> {
    let mut day = from;
    while day.year() == from.year() {
        let month = day.month().unsigned_abs().into();
        if !pattern.cron.pattern.month_match(month).ok()? {
            day = day.last_of_month().tomorrow().ok()?;
            continue;
        }
        if pattern.matches_day(day)? {
            return Some(day);
        }
        day = day.tomorrow().ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use jiff::SignedDuration;

    use super::*;

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn next(pattern: &str, name: &str, from: &str) -> Option<String> {
        let pattern = Pattern::parse(pattern).unwrap();
        occurrence(&pattern, &zone(name), from.parse().unwrap()).map(|time| time.to_string())
    }

    #[test]
    fn patterns_without_a_due_time_are_recognised_soon() {
        let begin = Instant::now();
        for _ in 0..2 {
            for (pattern, name) in [
                ("0 0 0 30 2 *", "UTC"),
                ("0 0 0 31 2,4,6,9,11 *", "America/New_York"),
                ("0 0 0 30W 2 *", "UTC"),
                ("* * * 30,31 2 *", "UTC"),
                // Never both: the fifth Monday is after the 28th.
                ("0 0 0 1-28 * +MON#5", "UTC"),
                ("0 0 0 29 2 * 2027", "UTC"),
                ("0 0 0 * * * 2001", "UTC"),
                // This hour of the last Sunday of March is always omitted.
                ("0 0,30 2 * 3 SUN#L", "Europe/Berlin"),
                ("* * 2 * 3 SUN#L", "Europe/Berlin"),
            ] {
                assert_eq!(
                    next(pattern, name, "2026-11-25T00:00:00Z"),
                    None,
                    "{pattern}"
                );
            }
        }
        // About a hundred times what it takes.
        assert!(
            begin.elapsed() < Duration::from_secs(100),
            "{:?}",
            begin.elapsed()
        );
    }

    #[test]
    fn rare_due_times_are_found() {
        for (pattern, from, due) in [
            (
                "0 0 0 29 2 *",
                "2096-03-01T00:00:00Z",
                "2104-02-29T00:00:00Z",
            ),
            (
                "0 0 0 29 2 +MON",
                "2025-01-01T00:00:00Z",
                "2044-02-29T00:00:00Z",
            ),
            // Across 2100, which is no leap year.
            (
                "0 0 0 29 2 +FRI",
                "2092-03-01T00:00:00Z",
                "2104-02-29T00:00:00Z",
            ),
            (
                "0 0 0 1 1 * 4999",
                "2026-01-01T00:00:00Z",
                "4999-01-01T00:00:00Z",
            ),
            (
                "59 59 23 31 12 *",
                "2026-12-31T23:59:59Z",
                "2026-12-31T23:59:59Z",
            ),
            (
                "58 59 23 31 12 *",
                "2026-12-31T23:59:59Z",
                "2027-12-31T23:59:58Z",
            ),
        ] {
            assert_eq!(
                next(pattern, "UTC", from).as_deref(),
                Some(due),
                "{pattern}"
            );
        }
        // In 2027 and 2032 this day has the change of the clock.
        assert_eq!(
            next("0 0,30 2 28 3 *", "Europe/Berlin", "2027-01-01T00:00:00Z").as_deref(),
            Some("2028-03-28T00:00:00Z")
        );
    }

    /// Days in January 2027, which begins on a Friday, as Vixie's cron has them.
    #[test]
    fn fields_of_days_are_combined_as_in_vixie_cron() {
        let odd: Vec<i8> = (1..=31).step_by(2).collect();
        for (fields, days) in [
            ("13 * FRI", vec![1, 8, 13, 15, 22, 29]),
            ("13 * +FRI", vec![]),
            ("15 * +FRI", vec![15]),
            ("*/2 * *", odd.clone()),
            ("*/2 * ?", odd.clone()),
            ("*/10 * FRI", vec![1]),
            ("*/7 * FRI", vec![1, 8, 15, 22, 29]),
            ("*/7 * +FRI", vec![1, 8, 15, 22, 29]),
            ("1-31/10 * FRI", vec![1, 8, 11, 15, 21, 22, 29, 31]),
            ("8,9 * */3", vec![9]),
            (
                "* * */3",
                vec![2, 3, 6, 9, 10, 13, 16, 17, 20, 23, 24, 27, 30, 31],
            ),
        ] {
            assert_eq!(days_of_january(fields), days, "{fields}");
        }
        let both: Vec<_> = odd
            .into_iter()
            .filter(|&day| days_of_january("* * */2").contains(&day))
            .collect();
        assert_eq!(days_of_january("*/2 * */2"), both);
        assert_eq!(both, [3, 5, 7, 9, 17, 19, 21, 23, 31]);
    }

    fn days_of_january(fields: &str) -> Vec<i8> {
        let pattern = Pattern::parse(&format!("0 0 12 {fields} 2027")).unwrap();
        let mut days = Vec::new();
        let mut time: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        while let Some(next) = occurrence(&pattern, &TimeZone::UTC, time) {
            let date = next.to_zoned(TimeZone::UTC).date();
            if date.month() > 1 {
                break;
            }
            days.push(date.day());
            time = next + SignedDuration::from_secs(1);
        }
        days
    }

    /// For patterns with frequent due times, the search of croner is right and fast.
    #[test]
    fn search_by_days_agrees_with_that_of_croner() {
        let patterns = [
            "0 30 2 * * *",
            "0 0 0 * * *",
            "0 */15 1-3 * * *",
            "0 0,30 2 * * SUN",
            "0 0 12 L * *",
            "0 0 0 15W * *",
            "0 0 23 LW 2,3,10,11 *",
            "7 7 2 * * MON#2",
            "0 0 3 1-7 3,11 +SUN",
            "30 59 23 31 12 *",
        ];
        for name in [
            "UTC",
            "Europe/Berlin",
            "America/Sao_Paulo",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
        ] {
            let zone = zone(name);
            for pattern in patterns {
                let pattern = Pattern::parse(pattern).unwrap();
                let mut time: Timestamp = "2017-12-30T00:00:00Z".parse().unwrap();
                for _ in 0..200 {
                    let expected = pattern
                        .cron
                        .find_next_occurrence(&time.to_zoned(zone.clone()), true)
                        .unwrap();
                    assert_eq!(
                        occurrence(&pattern, &zone, time),
                        Some(expected.timestamp()),
                        "{name} {pattern:?} {time}"
                    );
                    time += SignedDuration::from_secs(200_000 + 7_919);
                }
            }
        }
    }

    #[test]
    fn days_before_the_last_one() {
        for (pattern, from, due) in [
            (
                "0 0 0 L-1 * *",
                "2027-02-01T00:00:00Z",
                "2027-02-27T00:00:00Z",
            ),
            (
                "0 0 0 l-3 * ?",
                "2027-02-26T00:00:00Z",
                "2027-03-28T00:00:00Z",
            ),
            // Only months of 31 days have the day, and May begins on a Saturday.
            (
                "0 0 0 L-30 * *",
                "2027-04-01T00:00:00Z",
                "2027-05-01T00:00:00Z",
            ),
            (
                "0 0 0 L-30W * *",
                "2027-04-01T00:00:00Z",
                "2027-05-03T00:00:00Z",
            ),
            // A Saturday, and a Sunday.
            (
                "0 0 0 L-1W 1 *",
                "2027-01-01T00:00:00Z",
                "2027-01-29T00:00:00Z",
            ),
            (
                "0 0 0 L-1W 5 *",
                "2027-05-01T00:00:00Z",
                "2027-05-31T00:00:00Z",
            ),
            (
                "0 0 12 L-2 2 * 2028",
                "2026-01-01T00:00:00Z",
                "2028-02-27T12:00:00Z",
            ),
        ] {
            assert_eq!(
                next(pattern, "UTC", from).as_deref(),
                Some(due),
                "{pattern}"
            );
        }
        assert_eq!(next("0 0 0 L-30 2 *", "UTC", "2026-01-01T00:00:00Z"), None);
        // A time that the clock skips on the last Sunday of March, which is L-3 in 2027.
        assert_eq!(
            next("0 30 2 L-3 3 *", "Europe/Berlin", "2027-03-01T00:00:00Z").as_deref(),
            Some("2027-03-28T01:00:00Z")
        );
        for pattern in [
            "0 0 0 L-0 * *",
            "0 0 0 L-31 * *",
            "0 0 0 L- * *",
            "0 0 0 L-+1 * *",
            "0 0 0 L-1,L-3 * *",
        ] {
            Pattern::parse(pattern).unwrap_err();
        }
        let error = Pattern::parse("0 0 0 L-3 * MON").unwrap_err();
        assert!(
            error.contains("cannot be combined with weekdays"),
            "{error}"
        );
    }

    #[test]
    fn weekdays_are_numbered_from_sunday() {
        // A Sunday.
        for (number, name) in [("0", "SUN"), ("7", "SUN"), ("1", "MON"), ("6", "SAT")] {
            let [by_number, by_name] = [number, name].map(|day| {
                next(&format!("0 0 0 * * {day}"), "UTC", "2026-11-22T00:00:00Z").unwrap()
            });
            assert_eq!(by_number, by_name);
        }
    }
}
