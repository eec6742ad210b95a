//! Cron patterns: their syntax, and their due times in a time zone.

use croner::parser::{CronParser, Seconds};
use croner::{Cron, CronComponent, Weekday, YEAR_LOWER_LIMIT, YEAR_UPPER_LIMIT};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// The names of the weekdays, which Quartz numbers from 1.
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The smallest and the largest value of each field.
const FIELDS: [(u32, u32); 7] =
    [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (YEAR_LOWER_LIMIT as u32, YEAR_UPPER_LIMIT as u32)];

/// The field of the weekdays.
const WEEKDAY: usize = 5;

/// The number of days that match, but have no time that matches, after which a search ends. Each of
/// them has a change of the clock. If a pattern matches only times that are omitted in each year,
/// it has no due time.
const MAX_DAYS_WITHOUT_TIME: u32 = 30;

/// Reads a pattern with seconds. If it is written for Quartz, the error has a pattern that means
/// the same here.
pub(crate) fn parse(pattern: &str) -> Result<Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Required).build();
    let translated = from_quartz(pattern);
    let reason = match parser.parse(pattern) {
        Ok(cron) if !pattern.contains('?') || weekdays(pattern) == weekdays(&translated) => return Ok(cron),
        Ok(_) => {
            "'?' is Quartz syntax, in which 1 is Sunday and 7 is Saturday, but here 1 is Monday and 7 is Sunday"
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    let is_useful = translated != pattern && parser.parse(&translated).is_ok();
    let hint =
        if is_useful { format!(". In the syntax of this crate: '{translated}'") } else { String::new() };
    Err(format!("cron pattern '{pattern}': {reason}{hint}"))
}

/// Returns the field of the weekdays, in which `?` and `*` are equal.
fn weekdays(pattern: &str) -> Option<String> {
    Some(pattern.split_whitespace().nth(WEEKDAY)?.replace('?', "*"))
}

/// Translates what Quartz writes in another way: `0/5`, `?`, and, in patterns with a `?`, numbers
/// of weekdays.
fn from_quartz(pattern: &str) -> String {
    let is_quartz = pattern.contains('?');
    let field = |(index, field): (usize, &str)| {
        let items = field.split(',').map(|item| match (item, index) {
            ("?", _) => "*".to_owned(),
            (item, WEEKDAY) if is_quartz => item_from_quartz(&weekday_names(item), index),
            (item, _) => item_from_quartz(item, index),
        });
        items.collect::<Vec<_>>().join(",")
    };
    pattern.split_whitespace().enumerate().map(field).collect::<Vec<_>>().join(" ")
}

/// Translates `0/5`, which means "from 0 in steps of 5".
fn item_from_quartz(item: &str, field: usize) -> String {
    let (Some((start, step)), Some((min, max))) = (item.split_once('/'), FIELDS.get(field)) else {
        return item.to_owned();
    };
    let max = if field == WEEKDAY { "SAT".to_owned() } else { max.to_string() };
    match start {
        "" => format!("*/{step}"),
        "SUN" => format!("*/{step}"),
        start if start == min.to_string() => format!("*/{step}"),
        start if start.contains(['*', '-']) => item.to_owned(),
        start => format!("{start}-{max}/{step}"),
    }
}

/// Replaces the numbers of weekdays by their names. The number after `#` or `/` is none.
fn weekday_names(item: &str) -> String {
    if item == "L" {
        return "SAT".to_owned();
    }
    let (days, rest) = item.split_at(item.find(['#', '/']).unwrap_or(item.len()));
    let name = |text: &str| {
        let (number, last) = text.split_at(text.find('L').filter(|_| text.len() == 2).unwrap_or(text.len()));
        let number = number.parse().ok().and_then(|number: usize| WEEKDAYS.get(number.wrapping_sub(1)));
        number.map_or_else(|| text.to_owned(), |name| format!("{name}{last}"))
    };
    days.split('-').map(name).collect::<Vec<_>>().join("-") + rest
}

/// Returns the first time at or after `time` that matches the pattern, if there is one.
///
/// The search of croner visits each day until the year 5000, and each second of a time that a
/// change of the clock omits. Therefore this function looks for a day first, and croner searches
/// only in the year of that day.
pub(crate) fn occurrence(cron: &Cron, zone: &TimeZone, time: Timestamp) -> Option<Timestamp> {
    // Rounded up, because patterns have no fractions of a second.
    let second = -(-time.as_nanosecond()).div_euclid(1_000_000_000);
    let time = Timestamp::from_second(second.try_into().ok()?).ok()?;
    let mut day = time.to_zoned(zone.clone()).date();
    for _ in 0..MAX_DAYS_WITHOUT_TIME {
        day = matching_day(cron, day)?;
        // A change of the clock may omit the first hour of the day. Then it is earlier.
        let begin = zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0)).earlier().ok()?;
        let start = begin.max(time).to_zoned(zone.clone());
        if let Ok(next) = within_year(cron, day.year()).find_next_occurrence(&start, true) {
            return Some(next.timestamp());
        }
        // The rest of the day has no such time, or the zone does not have the day, as in Samoa in
        // 2011.
        day = day.tomorrow().ok()?;
    }
    None
}

/// Returns the first day from `from` on that matches the pattern.
fn matching_day(cron: &Cron, from: Date) -> Option<Date> {
    // The calendars, by leap year and weekday of the first day, that do not have such a day.
    let mut have_none = [[false; 7]; 2];
    for year in from.year()..=YEAR_UPPER_LIMIT as i16 {
        if !cron.pattern.year_match(year.into()).ok()? {
            continue;
        }
        let first = Date::new(year, 1, 1).ok()?;
        let weekday = first.weekday().to_sunday_zero_offset() as usize;
        let has_none = &mut have_none[usize::from(first.in_leap_year())][weekday];
        if *has_none {
            continue;
        }
        let begin = first.max(from);
        if let Some(day) = matching_day_of_year(cron, begin) {
            return Some(day);
        }
        *has_none = begin == first;
    }
    None
}

/// The same until the end of the year.
fn matching_day_of_year(cron: &Cron, from: Date) -> Option<Date> {
    let mut day = from;
    while day.year() == from.year() {
        let month = day.month().unsigned_abs().into();
        if !cron.pattern.month_match(month).ok()? {
            day = day.last_of_month().tomorrow().ok()?;
            continue;
        }
        let weekday =
            Weekday::from_days_from_sunday(day.weekday().to_sunday_zero_offset().unsigned_abs().into());
        if cron.pattern.day_match(day.year().into(), month, day.day().unsigned_abs().into(), weekday).ok()? {
            return Some(day);
        }
        day = day.tomorrow().ok()?;
    }
    None
}

/// Returns the pattern without its other years.
fn within_year(cron: &Cron, year: i16) -> Cron {
    let mut years = CronComponent::new(YEAR_LOWER_LIMIT as u16, YEAR_UPPER_LIMIT as u16, 0, 0);
    years.parse(&year.to_string()).expect("the pattern has this year");
    let mut cron = cron.clone();
    cron.pattern.years = years;
    cron
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
        let cron = parse(pattern).unwrap();
        occurrence(&cron, &zone(name), from.parse().unwrap()).map(|time| time.to_string())
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
                assert_eq!(next(pattern, name, "2026-11-25T00:00:00Z"), None, "{pattern}");
            }
        }
        // About a hundred times what it takes.
        assert!(begin.elapsed() < Duration::from_secs(100), "{:?}", begin.elapsed());
    }

    #[test]
    fn rare_due_times_are_found() {
        for (pattern, from, due) in [
            ("0 0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
            ("0 0 0 29 2 +MON", "2025-01-01T00:00:00Z", "2044-02-29T00:00:00Z"),
            // Across 2100, which is no leap year.
            ("0 0 0 29 2 +FRI", "2092-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
            ("0 0 0 1 1 * 4999", "2026-01-01T00:00:00Z", "4999-01-01T00:00:00Z"),
            ("59 59 23 31 12 *", "2026-12-31T23:59:59Z", "2026-12-31T23:59:59Z"),
            ("58 59 23 31 12 *", "2026-12-31T23:59:59Z", "2027-12-31T23:59:58Z"),
        ] {
            assert_eq!(next(pattern, "UTC", from).as_deref(), Some(due), "{pattern}");
        }
        // In 2027 and 2032 this day has the change of the clock.
        assert_eq!(
            next("0 0,30 2 28 3 *", "Europe/Berlin", "2027-01-01T00:00:00Z").as_deref(),
            Some("2028-03-28T00:00:00Z")
        );
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
        for name in ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Africa/Casablanca"]
        {
            let zone = zone(name);
            for pattern in patterns {
                let cron = parse(pattern).unwrap();
                let mut time: Timestamp = "2017-12-30T00:00:00Z".parse().unwrap();
                for _ in 0..200 {
                    let expected = cron.find_next_occurrence(&time.to_zoned(zone.clone()), true).unwrap();
                    assert_eq!(
                        occurrence(&cron, &zone, time),
                        Some(expected.timestamp()),
                        "{name} {pattern} {time}"
                    );
                    time += SignedDuration::from_secs(200_000 + 7_919);
                }
            }
        }
    }

    #[test]
    fn patterns_of_quartz_are_rejected_with_one_that_means_the_same() {
        for (pattern, here) in [
            ("0 0/5 * * * ?", "0 */5 * * * *"),
            ("0 0/5 * * * *", "0 */5 * * * *"),
            ("0 /5 * * * ?", "0 */5 * * * *"),
            ("5/20 3/10 2,8/4 * * ?", "5-59/20 3-59/10 2,8-23/4 * * *"),
            ("0 0 12 1/5 * ?", "0 0 12 */5 * *"),
            ("0 0 12 1 3/3 ?", "0 0 12 1 3-12/3 *"),
            ("0 0 12 ? * 2-6", "0 0 12 * * MON-FRI"),
            ("0 0 12 ? * 1,7", "0 0 12 * * SUN,SAT"),
            ("0 0 12 ? * 6L", "0 0 12 * * FRIL"),
            ("0 0 12 ? * L", "0 0 12 * * SAT"),
            ("0 0 12 ? * 6#3", "0 0 12 * * FRI#3"),
            ("0 0 12 ? * 2/2", "0 0 12 * * MON-SAT/2"),
            ("0 0 12 ? * MON/2", "0 0 12 * * MON-SAT/2"),
            ("0 0 12 ? * 1/2 2026/2", "0 0 12 * * */2 2026-5000/2"),
        ] {
            let error = parse(pattern).unwrap_err();
            assert!(error.starts_with(&format!("cron pattern '{pattern}': ")), "{error}");
            assert!(error.ends_with(&format!("In the syntax of this crate: '{here}'")), "{error}");
            parse(here).unwrap();
        }
        // Their numbers of weekdays would be shifted.
        assert!(parse("0 0 12 ? * 2").unwrap_err().contains("1 is Sunday"));
    }

    #[test]
    fn patterns_that_mean_the_same_in_quartz_are_accepted() {
        for pattern in
            ["0 0 12 * * ?", "0 0 12 ? * *", "0 0 12 ? * MON-FRI", "0 0 12 ? * MON#2", "0 0 12 ? * FRIL"]
        {
            parse(pattern).unwrap();
        }
    }

    #[test]
    fn error_without_a_translation_has_none() {
        for pattern in ["0 0 12 L-3 * ?", "0 0 12 ? * FRI-MON", "61 * * * * *", "*/5 * * * *", ""] {
            let error = parse(pattern).unwrap_err();
            assert!(!error.contains("In the syntax"), "{error}");
        }
    }

    #[test]
    fn weekdays_are_numbered_from_sunday() {
        // A Sunday.
        for (number, name) in [("0", "SUN"), ("7", "SUN"), ("1", "MON"), ("6", "SAT")] {
            let [by_number, by_name] = [number, name]
                .map(|day| next(&format!("0 0 0 * * {day}"), "UTC", "2026-11-22T00:00:00Z").unwrap());
            assert_eq!(by_number, by_name);
        }
    }
}
