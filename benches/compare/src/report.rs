//! Formats the measurements as text: the tables of the page in docs/ and of the README, and all
//! values for a terminal.

use crate::command::Answer;
use crate::machine::Environment;
use crate::measure::Measurements;
use crate::peers::{NETTY, OURS, PEERS, TOKIO};
use crate::plan::{OPERATIONS, ROWS, Row};
use crate::summary::{Spread, Summary};

/// The cell of a missing value.
const MISSING: &str = "–";

/// The timers in the tables, with the names of the columns: the timer that this one replaces, and
/// the timer of a program that needs no other.
const COLUMNS: [(&str, &str); 3] = [
    (OURS, "hashed-wheel"),
    (NETTY, "Netty"),
    (TOKIO, "tokio `Sleep`"),
];

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

fn head(columns: &[String]) -> String {
    let names = line([String::new()].iter().chain(columns).cloned());
    format!("{names}|---|{}\n", "--:|".repeat(columns.len()))
}

fn title(row: &Row) -> String {
    format!("{}, {}", row.title, row.unit)
}

fn value(summary: &Summary<'_>, row: &Row, peer: &str) -> Option<Spread> {
    summary.spread(&row.workload, row.key_of(peer), peer)
}

/// Returns the cost of `this` as a multiple of the peer's, computed per repetition. The cost of a
/// rate is its reciprocal, so below 1 `this` is better in each row.
pub(crate) fn ratio(summary: &Summary<'_>, row: &Row, this: &str, peer: &str) -> Option<Spread> {
    let ratio = summary.ratio(&row.workload, (this, row.key), (peer, row.key_of(peer)))?;
    Some(if row.is_rate() { ratio.recip() } else { ratio })
}

/// Returns the rows of timers by number of threads.
pub(crate) fn thread_rows(summary: &Summary<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for operation in &OPERATIONS {
        for threads in summary.threads() {
            let row = Row::of_threads(operation, threads);
            if summary.has_answered(&row.workload, OURS) {
                rows.push(row);
            }
        }
    }
    rows
}

/// Returns a table, and the sentences that say what its numbers are.
fn table(summary: &Summary<'_>, rows: &[Row]) -> String {
    let numbers = || {
        rows.iter().flat_map(|row| {
            COLUMNS
                .iter()
                .filter_map(|(peer, _)| value(summary, row, peer))
        })
    };
    let usual = numbers().map(|value| value.count).max().unwrap_or(0);
    let is_usual = numbers().all(|value| value.count == usual);
    let others = COLUMNS[1..].iter();
    let names = COLUMNS.iter().map(|(_, name)| (*name).to_owned());
    let names = names.chain(others.clone().map(|(_, name)| format!("× {name}")));
    let mut table = head(&names.collect::<Vec<_>>());
    for row in rows {
        let cells = COLUMNS
            .iter()
            .map(|(peer, _)| match value(summary, row, peer) {
                None => MISSING.into(),
                Some(Spread { median, count, .. }) if count == usual => short(median),
                Some(Spread { median, count, .. }) => format!("{} ({count})", short(median)),
            });
        let cells: Vec<_> = [title(row)].into_iter().chain(cells).collect();
        let ratios = others.clone().map(|(peer, _)| {
            let ratio = ratio(summary, row, OURS, peer);
            ratio.map_or(MISSING.into(), |ratio| short(ratio.median))
        });
        table += &line(cells.into_iter().chain(ratios));
    }
    let rates = if rows.iter().any(Row::is_rate) {
        "M/s: millions per second, more is better. "
    } else {
        ""
    };
    let others = if is_usual {
        ""
    } else {
        ", or of as many as the number in parentheses says"
    };
    format!(
        "Medians of {usual} repetitions{others}. {rates}*×*: our cost divided by the other's in the same repetition; below 1 is better.\n\n{table}"
    )
}

/// Returns the rows by number of threads, as text in columns.
pub(crate) fn threads(summary: &Summary<'_>) -> String {
    let numbers = summary.threads();
    let Some(most) = numbers.last() else {
        return String::new();
    };
    let mut text = "\
Million operations per second of all threads, the medians; in parentheses our cost as a multiple of
the other's: below 1, ours is better. Then, with the most threads: CPU time of the process per
operation; lateness of a few other timeouts meanwhile, at a tick of 1 ms; the worker's share of the
CPU time.

"
    .to_owned();
    text += &format!("{:<28}", "threads");
    for number in &numbers {
        text += &format!("{number:<15}");
    }
    text += "CPU     late, ms        worker\n";
    text += &format!("{:<28}", "");
    text += &format!("{:<15}", "M/s (×)").repeat(numbers.len());
    text += "ns      p50     p99     %\n";
    for operation in &OPERATIONS {
        let mut lines = String::new();
        let last = Row::of_threads(operation, *most);
        let this = operation.this();
        for peer in &PEERS {
            let figure = |key| {
                let value = summary.spread(&last.workload, key, peer.name);
                format!(
                    "{:<8}",
                    value.map_or(MISSING.into(), |value| short(value.median))
                )
            };
            let cell = |number: &usize| {
                let row = Row::of_threads(operation, *number);
                let rate = value(summary, &row, peer.name)?;
                let ratio = ratio(summary, &row, this, peer.name);
                let ratio = ratio.filter(|_| peer.name != this);
                let ratio = ratio.map(|ratio| format!(" ({})", short(ratio.median)));
                let cell = format!("{}{}", short(rate.median), ratio.unwrap_or_default());
                Some(format!("{cell:<15}"))
            };
            // A peer that the limit has cut off has some of the cells.
            if numbers.iter().any(|number| cell(number).is_some()) {
                let cells = numbers.iter().map(cell);
                let cells = cells.map(|cell| cell.unwrap_or(format!("{MISSING:<15}")));
                let name = peer.title.replace('`', "");
                let figures = ["cpu_ns", "late_p50", "late_p99", "worker_percent"].map(figure);
                let line = format!(
                    "  {name:<26}{}{}",
                    cells.collect::<String>(),
                    figures.concat()
                );
                lines += line.trim_end();
                lines += "\n";
            }
        }
        if !lines.is_empty() {
            text += &format!("\n{}\n{lines}", operation.title.replace('`', ""));
        }
    }
    for peer in PEERS.iter().filter(|peer| peer.is_map()) {
        if let Some(bytes) = summary.spread("map-memory", "bytes", peer.name) {
            let name = peer.title.replace('`', "");
            text += &format!("\nbytes per entry of {name}: {}", short(bytes.median));
        }
    }
    text += "\n";
    text + &failures(summary)
}

/// Returns the versions of these peers.
fn versions<'a>(measurements: &Measurements, peers: impl IntoIterator<Item = &'a str>) -> String {
    let version = |peer| measurements.versions.get(peer).cloned();
    let mut versions: Vec<_> = peers.into_iter().filter_map(version).collect();
    versions.sort();
    versions.dedup();
    versions.join("; ")
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
    let summary = &Summary { measurements };
    let rows: Vec<_> = thread_rows(summary)
        .into_iter()
        .chain(ROWS)
        .filter(|row| row.is_in_readme)
        .collect();
    let versions = versions(measurements, COLUMNS.map(|(peer, _)| peer));
    let environment = format!("{}; `{}`.", environment.text(), environment.get("command"));
    let table = table(summary, &rows);
    let (numbers, table) = table.split_once("\n\n").expect("the table follows");
    let text = wrapped(&format!("{environment} {versions}. {numbers}"));
    format!("{text}\n{table}{}", failures(summary))
}

/// Returns the text in lines of at most 100 columns, each with its end.
fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 100;

    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 {
            let fits = column + 1 + length <= COLUMNS;
            lines.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        lines += word;
        column += length;
    }
    lines + "\n"
}

/// Returns the generated part of the page.
pub(crate) fn page(measurements: &Measurements, environment: &Environment) -> String {
    let summary = &Summary { measurements };
    format!(
        "    {}\n\n{}{}\n{}. {}.\n{}.\n",
        environment.get("command"),
        table(summary, &ROWS),
        failures(summary),
        environment.text(),
        environment.details(),
        versions(measurements, PEERS.iter().map(|peer| peer.name)),
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

    #[test]
    fn lines_have_at_most_100_columns() {
        let word = |length| "×".repeat(length);
        let text = [word(60), word(39), word(1), word(101), word(2)].join(" ");
        let lengths: Vec<_> = wrapped(&text)
            .lines()
            .map(|line| line.chars().count())
            .collect();
        assert_eq!(lengths, [100, 1, 101, 2]);
    }

    /// Twice Netty's time is 2, and twice its rate is a half.
    #[test]
    fn ratio_below_one_is_better_in_each_row() {
        let rate = Row::of_threads(&OPERATIONS[0], 2);
        for row in ROWS.iter().chain([&rate]) {
            let repetition = |peer: &str, key, value| Repetition {
                workload: row.workload.clone().into(),
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
            let ratio = ratio(&summary, row, OURS, NETTY).unwrap().median;
            assert_eq!(ratio, expected, "{}", row.title);
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
        let mut measurements = Measurements {
            repetitions: repetitions.into(),
            ..Measurements::default()
        };
        let text = |measurements: &_| table(&Summary { measurements }, &ROWS[..1]);
        let unequal = text(&measurements);
        let says_usual = unequal.contains("of 2 repetitions, or of as many as");
        assert!(says_usual, "{unequal}");
        let has_count = unequal.ends_with("| schedule, ns | 7.00 | 7.00 (1) | – | 1.00 | – |\n");
        assert!(has_count, "{unequal}");
        measurements.repetitions.remove(2);
        let equal = text(&measurements);
        assert!(equal.starts_with("Medians of 2 repetitions. "), "{equal}");
        let has_none = equal.ends_with("| schedule, ns | 7.00 | – | – | – | – |\n");
        assert!(has_none, "{equal}");
    }
}
