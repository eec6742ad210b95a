//! Formats the measurements as Markdown: the page in docs/, and the table of the README.

use crate::machine::Environment;
use crate::measure::Measurements;
use crate::peers::{NETTY, NETTY_JAR, OURS, PEERS, Peer};
use crate::plan::{Row, TOPICS, rows};
use crate::summary::{Spread, Summary};

/// The cell of a missing value.
const MISSING: &str = "–";

/// Formats a value with about three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

fn head(columns: &[&str]) -> String {
    format!(
        "{}|---|{}\n",
        line(columns.iter().map(|&column| column.into())),
        "--:|".repeat(columns.len() - 1)
    )
}

fn title(row: &Row) -> String {
    format!("{}, {}", row.title, row.unit)
}

/// Returns the median, or the best value if the row shows that.
fn value(summary: &Summary<'_>, row: &Row, peer: &str) -> Option<f64> {
    let Spread { median, min, .. } = summary.spread(row.workload, row.key_of(peer), peer)?;
    Some(if row.is_best { min } else { median })
}

fn cell(summary: &Summary<'_>, row: &Row, peer: &str) -> String {
    value(summary, row, peer).map_or(MISSING.into(), short)
}

/// Returns the ratio to a peer, and the range and number of its repetitions.
fn ratio_cell(summary: &Summary<'_>, row: &Row, peer: &str) -> String {
    let times = [OURS, peer].map(|peer| summary.repetitions(row.workload, peer).count());
    let values = value(summary, row, OURS).zip(value(summary, row, peer));
    let all = ratio(summary, row, peer).zip(values).zip(times.into_iter().min());
    all.map_or(MISSING.into(), |((Spread { median, min, max }, (ours, theirs)), times)| {
        let best = || format!("{}, {times}", short(ours / theirs));
        let range = || format!("{} [{} to {}], {times}", short(median), short(min), short(max));
        if row.is_best { best() } else { range() }
    })
}

/// Returns the ratios of this crate to a peer, computed per repetition.
pub(crate) fn ratio(summary: &Summary<'_>, row: &Row, peer: &str) -> Option<Spread> {
    summary.ratio(row.workload, (OURS, row.key), (peer, row.key_of(peer)))
}

fn absent_netty(measurements: &Measurements) -> String {
    let why = measurements.missing.get(NETTY);
    why.map_or_else(String::new, |why| format!("**Netty was not measured**: {why}.\n\n"))
}

/// Returns the table for the README: medians, and the ratios to Netty.
pub(crate) fn compact(measurements: &Measurements, environment: &Environment) -> String {
    /// The timer that this one replaces, and the timer of a program that needs no other.
    const COLUMNS: [&str; 3] = [OURS, NETTY, "tokio-sleep"];

    let summary = Summary { measurements };
    let versions = COLUMNS.iter().filter_map(|peer| measurements.versions.get(*peer)).cloned();
    let versions = versions.collect::<Vec<_>>().join("; ");
    let mut text = format!("{}; `{}`. {versions}.\n\n", environment.text(), environment.get("command"));
    text += &absent_netty(measurements);
    text += &head(&["", "hashed-wheel", "Netty", "tokio `Sleep`", "hashed-wheel / Netty"]);
    for row in rows().filter(|row| row.is_in_readme) {
        let ratio = ratio(&summary, row, NETTY).map_or(MISSING.into(), |ratio| short(ratio.median));
        let cells = COLUMNS.map(|peer| cell(&summary, row, peer));
        text += &line([title(row)].into_iter().chain(cells).chain([ratio]));
    }
    text
}

/// Returns the page, without the single repetitions.
pub(crate) fn full(measurements: &Measurements, environment: &Environment) -> String {
    let summary = &Summary { measurements };
    let mut netties = vec![(NETTY, "Netty")];
    if let Some(version) = measurements.versions.get(NETTY_JAR) {
        netties.push((NETTY_JAR, version.split(" (").next().unwrap_or(version)));
    }
    let netty = measurements.versions.get(NETTY).map_or("Netty", |version| version);
    let mut text = format!(
        "# Benchmarks\n\n{}. {netty}. The command (with `NETTY_JAR`, another Netty is measured beside it: benches/compare/netty/run):\n\n    {}\n\n",
        environment.text(),
        environment.get("command")
    );
    text += &absent_netty(measurements);
    text += "Each number is the median of several repetitions. Each repetition measures all timers one after the other, and a ratio \
             divides the value of hashed-wheel by that of the other timer in the same repetition; in brackets, the smallest and the largest ratio, and the number of \
             repetitions. Unless stated otherwise: a million timeouts, with delays from 30 to 90 s, on a timer with a tick of 10 ms \
             and 512 slots; wall time; ns per timeout, pair or re-arm.\n\n";
    text += "[All repetitions](benchmarks.json). Plot: [lateness](benchmarks-lateness.svg).\n\n";
    text += "## Beside Netty\n\n";
    let columns = netties.iter().flat_map(|(_, title)| [*title, "ratio"]);
    text += &head(&["", "hashed-wheel"].into_iter().chain(columns).chain(["name"]).collect::<Vec<_>>());
    for row in rows().filter(|row| value(summary, row, OURS).is_some()) {
        let theirs =
            netties.iter().flat_map(|(peer, _)| [cell(summary, row, peer), ratio_cell(summary, row, peer)]);
        let ours = [title(row), cell(summary, row, OURS)].into_iter();
        text += &line(ours.chain(theirs).chain([format!("`{}`", row.workload)]));
    }
    text += &others(summary);
    text += "\n## What the rows measure\n\n";
    for topic in &TOPICS {
        let names: Vec<_> =
            topic.rows.iter().map(|row| row.workload.split(' ').next().unwrap_or_default()).collect();
        let mut distinct = names.clone();
        distinct.dedup();
        text += &format!("- `{}`: {}.\n", distinct.join("`, `"), topic.meaning);
    }
    text + &details(summary, environment)
}

/// Returns the section of the other timers: medians. Nothing if none was measured.
fn others(summary: &Summary<'_>) -> String {
    const ENOUGH: usize = 5;

    let is_other = |peer: &&Peer| peer.name != OURS && !peer.is_netty();
    let is_measured = |peer: &&Peer| rows().any(|row| summary.has_answered(row.workload, peer.name));
    let peers: Vec<_> = PEERS.iter().filter(is_other).filter(is_measured).collect();
    if peers.is_empty() {
        return String::new();
    }
    let columns: Vec<_> = [""].into_iter().chain(peers.iter().map(|peer| peer.title)).collect();
    let mut text =
        String::from("\n## Other timers\n\nA number in parentheses was measured fewer than five times.\n\n");
    text += &head(&columns);
    // (A row with another way of Netty repeats the values of the row before it.)
    for row in rows().filter(|row| row.key == row.netty_key) {
        let cells: Vec<_> = peers
            .iter()
            .map(|peer| {
                let cell = cell(summary, row, peer.name);
                let is_enough = summary.repetitions(row.workload, peer.name).count() >= ENOUGH;
                if is_enough || cell == MISSING { cell } else { format!("({cell})") }
            })
            .collect();
        if cells.iter().any(|cell| cell != MISSING) {
            text += &line([title(row)].into_iter().chain(cells));
        }
    }
    text
}

/// Says what was measured where, and what was not.
fn details(summary: &Summary<'_>, environment: &Environment) -> String {
    let mut text = format!("\n## Environment\n\n{}", environment.details());
    text += "\n\n";
    for (peer, version) in &summary.measurements.versions {
        text += &format!("- {peer}: {version}\n");
    }
    for failure in summary.failures() {
        text += &format!("- failed: {failure}\n");
    }
    for ((peer, why), workloads) in summary.unsupported() {
        text += &format!("- {peer} does not support {}: {why}\n", workloads.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn values_have_about_three_digits() {
        let texts = [0.0, 0.004, 0.25, 3.456, 31.24, 640.7, 1_234.5].map(short);
        assert_eq!(texts, ["0", "0.004", "0.250", "3.46", "31.2", "641", "1234"]);
    }
}
