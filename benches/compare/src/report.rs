//! Formats the measurements as text: the tables of the page in docs/ and of the README, and all
//! values for a terminal.

use crate::command::Answer;
use crate::machine::Environment;
use crate::measure::Measurements;
use crate::peers::{NETTY, OURS};
use crate::plan::{ROWS, Row};
use crate::summary::{Spread, Summary};

/// The cell of a missing value.
const MISSING: &str = "–";

/// The timers in the table of the page, with the names of the columns.
const COLUMNS: [(&str, &str); 5] = [
    (OURS, "hashed-wheel"),
    (NETTY, "Netty"),
    ("tokio-sleep", "tokio `Sleep`"),
    ("delay-queue", "`DelayQueue`"),
    ("hhwt", "hhwt"),
];

/// In the table of the README: the timer that this one replaces, and the timer of a program that
/// needs no other.
const README_COLUMNS: usize = 3;

/// Formats a value with about three significant digits.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    format!(
        "| {} |\n",
        cells.into_iter().collect::<Vec<_>>().join(" | ")
    )
}

fn head(columns: &[&str]) -> String {
    let names = line([""].iter().chain(columns).map(|&column| column.into()));
    format!("{names}|---|{}\n", "--:|".repeat(columns.len()))
}

fn title(row: &Row) -> String {
    format!("{}, {}", row.title, row.unit)
}

fn value(summary: &Summary<'_>, row: &Row, peer: &str) -> Option<Spread> {
    summary.spread(row.workload, row.key_of(peer), peer)
}

/// Returns the cost of this crate as a multiple of Netty's, computed per repetition. The cost of a
/// rate is its reciprocal, so below 1 this crate is better in each row.
pub(crate) fn ratio(summary: &Summary<'_>, row: &Row) -> Option<Spread> {
    let ratio = summary.ratio(row.workload, (OURS, row.key), (NETTY, row.key_of(NETTY)))?;
    Some(if row.is_rate() { ratio.recip() } else { ratio })
}

/// Returns a table, and the sentences that say what its numbers are.
fn table(summary: &Summary<'_>, columns: &[(&str, &str)], rows: &[&Row]) -> String {
    let numbers = || {
        rows.iter().flat_map(|row| {
            columns
                .iter()
                .filter_map(|(peer, _)| value(summary, row, peer))
        })
    };
    let usual = numbers().map(|value| value.count).max().unwrap_or(0);
    let is_usual = numbers().all(|value| value.count == usual);
    let names = columns.iter().map(|(_, name)| *name).chain(["× Netty"]);
    let mut table = head(&names.collect::<Vec<_>>());
    for row in rows {
        let cells = columns
            .iter()
            .map(|(peer, _)| match value(summary, row, peer) {
                None => MISSING.into(),
                Some(Spread { median, count, .. }) if count == usual => short(median),
                Some(Spread { median, count, .. }) => format!("{} ({count})", short(median)),
            });
        let cells: Vec<_> = [title(row)].into_iter().chain(cells).collect();
        let ratio = ratio(summary, row).map_or(MISSING.into(), |ratio| short(ratio.median));
        table += &line(cells.into_iter().chain([ratio]));
    }
    let others = if is_usual {
        ""
    } else {
        ", or of as many as the number in parentheses says"
    };
    let counts = rows
        .iter()
        .filter_map(|row| Some(ratio(summary, row)?.count));
    let pairs = match (counts.clone().min(), counts.max()) {
        (Some(min), Some(max)) if min < max => format!("{min} to {max} pairs"),
        (_, max) => format!("{} pairs", max.unwrap_or(0)),
    };
    format!(
        "Each number is the median of {usual} repetitions{others}. M/s are millions per second: more is better. Otherwise less is. *× Netty* is hashed-wheel's cost as a multiple of Netty's, the median of {pairs} of repetitions: below 1, hashed-wheel is better.\n\n{table}"
    )
}

/// Returns the versions of the timers in these columns.
fn versions(measurements: &Measurements, columns: &[(&str, &str)]) -> String {
    let version = |(peer, _): &(&str, &str)| measurements.versions.get(*peer).cloned();
    columns
        .iter()
        .filter_map(version)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Says which timers did not answer. A page without them would look as if all had.
fn failures(summary: &Summary<'_>) -> String {
    let failures: Vec<_> = summary.failures().collect();
    if failures.is_empty() {
        String::new()
    } else {
        format!("\nNot measured: {}.\n", failures.join("; "))
    }
}

/// Returns the generated part of the README.
pub(crate) fn readme(measurements: &Measurements, environment: &Environment) -> String {
    let (summary, columns) = (&Summary { measurements }, &COLUMNS[..README_COLUMNS]);
    let rows: Vec<_> = ROWS.iter().filter(|row| row.is_in_readme).collect();
    let versions = versions(measurements, columns);
    let environment = format!("{}; `{}`.", environment.text(), environment.get("command"));
    format!(
        "{environment} {versions}.\n{}{}",
        table(summary, columns, &rows),
        failures(summary)
    )
}

/// Returns the generated part of the page.
pub(crate) fn page(measurements: &Measurements, environment: &Environment) -> String {
    let summary = &Summary { measurements };
    let rows: Vec<_> = ROWS.iter().collect();
    format!(
        "    {}\n\n{}{}\n{}. {}.\n{}.\n",
        environment.get("command"),
        table(summary, &COLUMNS, &rows),
        failures(summary),
        environment.text(),
        environment.details(),
        versions(measurements, &COLUMNS),
    )
}

/// Returns all values: for each workload the median of each timer, its range and the number of
/// repetitions.
pub(crate) fn terminal(measurements: &Measurements) -> String {
    let summary = &Summary { measurements };
    let mut keys = Vec::new();
    for repetition in &measurements.repetitions {
        let Answer::Figures(figures) = &repetition.answer else {
            continue;
        };
        for (key, _) in figures.iter().filter(|(_, value)| value.is_number()) {
            let key = (&*repetition.workload, &**key, &*repetition.peer);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    let line = |(workload, key, peer): &(&str, &str, &str)| {
        let Spread {
            median,
            min,
            max,
            count,
        } = summary.spread(workload, key, peer)?;
        let range = format!("{} to {}, {count}", short(min), short(max));
        Some(format!(
            "{workload:<30} {key:<15} {peer:<17} {:>8} [{range}]\n",
            short(median)
        ))
    };
    keys.sort_by_key(|(workload, key, _)| {
        measurements
            .repetitions
            .iter()
            .position(|other| other.workload == *workload)
            .zip(Some(*key))
    });
    keys.iter().filter_map(line).collect::<String>() + &failures(summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Repetition;

    #[test]
    fn values_have_about_three_digits() {
        let texts = [0.0, 0.004, 0.25, 3.456, 31.24, 640.7, 1_234.5].map(short);
        assert_eq!(
            texts,
            ["0", "0.004", "0.250", "3.46", "31.2", "641", "1234"]
        );
    }

    /// Twice Netty's time is 2, and twice its rate is a half.
    #[test]
    fn ratio_below_one_is_better_in_each_row() {
        for row in &ROWS {
            let repetition = |peer: &str, key, value| Repetition {
                workload: row.workload.into(),
                command: String::new(),
                peer: peer.into(),
                number: Some(0),
                answer: Answer::new([(key, value)]),
            };
            let measurements = Measurements {
                repetitions: vec![
                    repetition(OURS, row.key, 10.0),
                    repetition(NETTY, row.key_of(NETTY), 5.0),
                ],
                ..Measurements::default()
            };
            let summary = Summary {
                measurements: &measurements,
            };
            let expected = if row.unit == "M/s" { 0.5 } else { 2.0 };
            assert_eq!(
                ratio(&summary, row).unwrap().median,
                expected,
                "{}",
                row.title
            );
        }
    }

    /// Two repetitions of one timer, and one of the other.
    #[test]
    fn cells_say_how_often_they_were_measured() {
        let repetition = |peer: &str, number| Repetition {
            workload: "schedule".into(),
            command: String::new(),
            peer: peer.into(),
            number: Some(number),
            answer: Answer::new([("ns", 7.0)]),
        };
        let repetitions =
            [(OURS, 0), (OURS, 1), (NETTY, 0)].map(|(peer, number)| repetition(peer, number));
        let measurements = Measurements {
            repetitions: repetitions.into(),
            ..Measurements::default()
        };
        let text = |columns| {
            table(
                &Summary {
                    measurements: &measurements,
                },
                columns,
                &[&ROWS[0]],
            )
        };
        let equal = text(&COLUMNS[..1]);
        assert!(
            equal.starts_with("Each number is the median of 2 repetitions. "),
            "{equal}"
        );
        assert!(
            equal.ends_with("| schedule, ns | 7.00 | 1.00 |\n"),
            "{equal}"
        );
        let unequal = text(&COLUMNS[..3]);
        assert!(
            unequal.contains("of 2 repetitions, or of as many as"),
            "{unequal}"
        );
        assert!(
            unequal.ends_with("| schedule, ns | 7.00 | 7.00 (1) | – | 1.00 |\n"),
            "{unequal}"
        );
    }
}
