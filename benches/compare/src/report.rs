//! Formats the measurements as Markdown: the page in docs/, and the table of the README.

use crate::machine::Environment;
use crate::measure::Measurements;
use crate::peers::{NETTY, OURS, PEERS, Peer};
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

fn median(summary: &Summary<'_>, row: &Row, peer: &str) -> String {
    let spread = summary.spread(row.workload, row.key_of(peer), peer);
    spread.map_or(MISSING.into(), |spread| short(spread.median))
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
        let cells = COLUMNS.map(|peer| median(&summary, row, peer));
        text += &line([title(row)].into_iter().chain(cells).chain([ratio]));
    }
    text
}

/// Returns the page, without the single repetitions.
pub(crate) fn full(measurements: &Measurements, environment: &Environment) -> String {
    let summary = &Summary { measurements };
    let netty = measurements.versions.get(NETTY).map_or("Netty", |version| version);
    let mut text = format!(
        "# Benchmarks\n\n{}. {netty}. The command:\n\n    {}\n\n",
        environment.text(),
        environment.get("command")
    );
    text += &absent_netty(measurements);
    text += "Each number is the median of several repetitions. Each repetition measures all timers one after the other, and a ratio \
             compares the same repetition of both timers; in brackets, the smallest and the largest ratio, and the number of \
             repetitions. Unless stated otherwise: a million timeouts, with delays from 30 to 90 s, on a timer with a tick of 10 ms \
             and 512 slots; wall time; ns per timeout, pair or re-arm.\n\n";
    text += "[All repetitions](benchmarks.json). Plots: [ratios](benchmarks-ratios.svg), [lateness](benchmarks-lateness.svg), \
             [cost by number of pending timeouts](benchmarks-pending.svg), [throughput by number of threads](benchmarks-scaling.svg).\n\n";
    text += "## Beside Netty\n\n";
    text += &head(&["", "hashed-wheel", "Netty", "hashed-wheel / Netty", "name"]);
    for row in rows().filter(|row| summary.has_answered(row.workload, OURS)) {
        let times = summary.repetitions(row.workload, OURS).count();
        let ratio = ratio(summary, row, NETTY).map_or(MISSING.into(), |Spread { median, min, max }| {
            format!("{} [{} to {}], {times}", short(median), short(min), short(max))
        });
        let [ours, netty] = [OURS, NETTY].map(|peer| median(summary, row, peer));
        text += &line([title(row), ours, netty, ratio, format!("`{}`", row.workload)]);
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

    let is_other = |peer: &&Peer| ![OURS, NETTY].contains(&peer.name);
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
                let cell = median(summary, row, peer.name);
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
