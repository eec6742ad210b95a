//! Patterns of Quartz, which xxl-job has too.
//!
//! `quartz.txt` has the times at which Quartz 2.3.2 fires, as its `CronExpression` computes them.

use croner::{YEAR_LOWER_LIMIT, YEAR_UPPER_LIMIT};

use super::{DAY, Pattern, WEEKDAY};

/// The names of the weekdays, which Quartz numbers from 1.
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

/// The smallest and the largest value of each field.
const FIELDS: [(u32, u32); 7] = [
    (0, 59),
    (0, 59),
    (0, 23),
    (1, 31),
    (1, 12),
    (0, 6),
    (YEAR_LOWER_LIMIT as u32, YEAR_UPPER_LIMIT as u32),
];

/// The field of the months, and of the years.
const MONTH: usize = 4;
const YEAR: usize = 6;

/// Translates a pattern of Quartz exactly, or says why that is not possible.
pub(crate) fn translate(pattern: &str) -> Result<String, String> {
    let text = pattern
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .to_ascii_uppercase();
    let translated = to_cron(&text);
    match check(&text).and_then(|()| Pattern::read(&translated)) {
        Ok(_) => Ok(translated),
        Err(reason) => Err(format!("Quartz pattern '{pattern}': {reason}")),
    }
}

/// Checks what Quartz rejects, and what it accepts and reads in an unexpected way.
fn check(text: &str) -> Result<(), String> {
    let fields: Vec<_> = text.split(' ').collect();
    if !(6..=7).contains(&fields.len()) {
        return Err(
            "must have 6 or 7 fields: second, minute, hour, day of the month, month, day of the week, \
            and optionally the year"
                .into(),
        );
    }
    if (fields[DAY] == "?") == (fields[WEEKDAY] == "?") {
        return Err(
            "Quartz requires '?' as the day of the month or as the day of the week, and not as both. \
            For every day write '* * ?', for a weekday '? * MON'"
                .into(),
        );
    }
    for (index, field) in fields.iter().enumerate() {
        let is_special = |item: &str| match index {
            DAY => item.contains(['L', 'W']),
            WEEKDAY => item.ends_with('L') || item.contains('#'),
            _ => false,
        };
        if field.contains(',') && field.split(',').any(is_special) {
            return Err(format!(
                "'{field}': Quartz supports no list with 'L', 'W' or '#'. Add a job for each"
            ));
        }
        if index == DAY && ["29W", "30W", "31W"].contains(field) {
            return Err(format!(
                "'{field}': in shorter months Quartz sometimes fires on the last weekday, and sometimes not. \
                Write 'LW' or '28W'"
            ));
        }
        if index == WEEKDAY && field.ends_with("#L") {
            return Err(format!(
                "'{field}': write '{}' for the last one of a month",
                field.replace("#L", "L")
            ));
        }
        if index == WEEKDAY && field.starts_with("L-") {
            return Err(format!(
                "'{field}': Quartz ignores what follows 'L' here. Write 'L' for Saturdays"
            ));
        }
        for item in field.split(',') {
            let Some((start, step)) = item.split_once('/') else {
                continue;
            };
            if index == WEEKDAY && start.contains(|c: char| c.is_ascii_alphabetic()) {
                return Err(format!(
                    "'{item}': Quartz ignores a step after the name of a weekday. Write '{start}', or the days as a list"
                ));
            }
            let (min, max) = FIELDS[index];
            let limit = if min == 0 && index != WEEKDAY {
                max
            } else {
                max - min + 1
            };
            if index != YEAR
                && !step
                    .parse()
                    .is_ok_and(|step: u32| (1..=limit).contains(&step))
            {
                return Err(format!("'{item}': a step must be from 1 to {limit} here"));
            }
        }
    }
    let is_day = |number: &str| {
        number
            .parse()
            .map_or(true, |number: u32| (1..=7).contains(&number))
    };
    let days = fields[WEEKDAY].split(',').flat_map(|item| {
        item.split(['#', '/'])
            .next()
            .unwrap_or_default()
            .trim_end_matches('L')
            .split('-')
    });
    match days.into_iter().find(|day| !is_day(day)) {
        Some(day) => Err(format!(
            "'{day}': a weekday must be from 1 for Sunday to 7 for Saturday"
        )),
        None => Ok(()),
    }
}

/// Translates what Quartz writes in another way: `0/5`, `?`, ranges such as `FRI-MON`, and, in
/// patterns with a `?`, numbers of weekdays.
pub(super) fn to_cron(pattern: &str) -> String {
    let is_quartz = pattern.contains('?');
    let field = |(index, field): (usize, &str)| {
        let items = field.split(',').map(|item| match (item, index) {
            ("?", _) => "*".to_owned(),
            (item, WEEKDAY) if is_quartz => item_to_cron(&weekday_names(item), index),
            (item, _) => item_to_cron(item, index),
        });
        items.collect::<Vec<_>>().join(",")
    };
    pattern
        .split_whitespace()
        .enumerate()
        .map(field)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Translates a range that ends before it begins, which Quartz continues at the first value.
fn wrapped_range(item: &str, field: usize) -> Option<String> {
    let (range, step) = item.split_once('/').unwrap_or((item, "1"));
    let (start, end) = range.split_once('-')?;
    let (min, max) = *FIELDS.get(field).filter(|_| field != YEAR)?;
    let value = |text: &str| {
        let names: &[&str] = match field {
            MONTH => &MONTHS,
            WEEKDAY => &WEEKDAYS,
            _ => &[],
        };
        let named = names
            .iter()
            .position(|name| *name == text)
            .map(|index| index as u32 + min);
        named
            .or_else(|| text.parse().ok())
            .filter(|value| (min..=max).contains(value))
    };
    let (start, end, step) = (
        value(start)?,
        value(end)?,
        step.parse().ok().filter(|step| *step > 0)?,
    );
    if start <= end {
        return None;
    }
    let count = max - min + 1;
    let values = (start..=end + count)
        .step_by(step)
        .map(|value| if value > max { value - count } else { value });
    let name = |value: u32| match field {
        WEEKDAY => WEEKDAYS[value as usize].to_owned(),
        _ => value.to_string(),
    };
    Some(values.map(name).collect::<Vec<_>>().join(","))
}

/// Translates `0/5`, which means "from 0 in steps of 5".
fn item_to_cron(item: &str, field: usize) -> String {
    if let Some(list) = wrapped_range(item, field) {
        return list;
    }
    let (Some((start, step)), Some((min, max))) = (item.split_once('/'), FIELDS.get(field)) else {
        return item.to_owned();
    };
    let max = if field == WEEKDAY {
        "SAT".to_owned()
    } else {
        max.to_string()
    };
    match start {
        "" | "SUN" => format!("*/{step}"),
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
        let (number, last) = text.split_at(
            text.find('L')
                .filter(|_| text.len() == 2)
                .unwrap_or(text.len()),
        );
        let number = number
            .parse()
            .ok()
            .and_then(|number: usize| WEEKDAYS.get(number.wrapping_sub(1)));
        number.map_or_else(|| text.to_owned(), |name| format!("{name}{last}"))
    };
    days.split('-').map(name).collect::<Vec<_>>().join("-") + rest
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use jiff::{SignedDuration, Timestamp};

    use super::super::occurrence;
    use super::*;

    /// Each line has a pattern, and the first four times from 25 November 2026 on at which Quartz
    /// fires, or `ERROR`.
    const TABLE: &str = include_str!("quartz.txt");

    #[test]
    fn patterns_fire_when_quartz_does() {
        let mut count = 0;
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let (pattern, times) = line.split_once(" | ").unwrap();
            if times == "ERROR" {
                translate(pattern).unwrap_err();
                continue;
            }
            let translated = translate(pattern).unwrap_or_else(|error| panic!("{error}"));
            let cron = Pattern::parse(&translated).unwrap();
            let mut from: Timestamp = "2026-11-25T00:00:00Z".parse().unwrap();
            for time in times.split(' ') {
                let time: Timestamp = time.parse().unwrap();
                let found = occurrence(&cron, &TimeZone::UTC, from);
                assert_eq!(found, Some(time), "{pattern}: {translated}");
                from = time + SignedDuration::from_secs(1);
            }
            count += 1;
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn patterns_that_quartz_reads_in_an_unexpected_way_say_what_to_write() {
        for (pattern, reason) in [
            (
                "0 0 12 ? * MON/2",
                "'MON/2': Quartz ignores a step after the name of a weekday. Write 'MON'",
            ),
            (
                "0 0 12 ? * MON-FRI/2",
                "Write 'MON-FRI', or the days as a list",
            ),
            (
                "0 0 12 ? * 2,6#3",
                "'2,6#3': Quartz supports no list with 'L', 'W' or '#'. Add a job for each",
            ),
            ("0 0 12 ? * MON,FRIL", "no list"),
            ("0 0 12 1,15W * ?", "no list"),
            ("0 0 12 L,15 * ?", "no list"),
            ("0 0 12 30W * ?", "Write 'LW' or '28W'"),
            ("0 0 12 ? * L-2", "Write 'L' for Saturdays"),
            ("0 0 12 * * *", "Quartz requires '?'"),
            ("0 0 12 15 * MON", "Quartz requires '?'"),
            ("0 0 12 ? * 6#L", "write '6L' for the last one"),
            ("0 0 12 ? * 0", "a weekday must be from 1 for Sunday"),
            ("0 0 12 ? * 8", "a weekday must be from 1 for Sunday"),
            ("0/60 * * * * ?", "a step must be from 1 to 59 here"),
            ("* * * * ?", "must have 6 or 7 fields"),
            ("61 * * * * ?", "Quartz pattern '61 * * * * ?': "),
        ] {
            let error = translate(pattern).unwrap_err();
            assert!(error.contains(reason), "{pattern}: {error}");
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
            ("0 0 12 ? * FRI-MON", "0 0 12 * * FRI,SAT,SUN,MON"),
            ("0 0 22-2/2 1 NOV-FEB *", "0 0 22,0,2 1 11,12,1,2 *"),
            ("0 0 12 ? * 1/2 2026/2", "0 0 12 * * */2 2026-5000/2"),
        ] {
            let error = Pattern::parse(pattern).unwrap_err();
            assert!(
                error.starts_with(&format!("cron pattern '{pattern}': ")),
                "{error}"
            );
            assert!(
                error.ends_with(&format!("In the syntax of this crate: '{here}'")),
                "{error}"
            );
            Pattern::parse(here).unwrap();
        }
        // Their numbers of weekdays would be shifted.
        assert!(
            Pattern::parse("0 0 12 ? * 2")
                .unwrap_err()
                .contains("1 is Sunday")
        );
    }

    #[test]
    fn patterns_that_mean_the_same_in_quartz_are_accepted() {
        for pattern in [
            "0 0 12 * * ?",
            "0 0 12 ? * *",
            "0 0 12 ? * MON-FRI",
            "0 0 12 ? * MON#2",
            "0 0 12 ? * FRIL",
        ] {
            Pattern::parse(pattern).unwrap();
        }
    }

    #[test]
    fn error_without_a_translation_has_none() {
        for pattern in ["0 0 12 L-31 * ?", "61 * * * * *", "*/5 * * * *", ""] {
            let error = Pattern::parse(pattern).unwrap_err();
            assert!(!error.contains("In the syntax"), "{error}");
        }
    }
}
