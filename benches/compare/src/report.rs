//! Formats the measurements as Markdown: in full for docs/, and a summary for the README.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::machine::{self, Environment};
use crate::measure::{Measurements, Repetition};
use crate::peers::{NETTY, OURS, PEERS, Peer};
use crate::rows::{MEANINGS, Outcome, ROWS, Row};
use crate::summary::{Spread, Summary};

/// The cell of a missing value.
const MISSING: &str = "–";

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

/// Returns the peers that get a column: the selected ones that could be started, and Netty if it is
/// selected.
fn columns<'a>(
    measurements: &'a Measurements,
    peers: &'a [&Peer],
) -> impl Iterator<Item = &'static Peer> + 'a {
    let is_selected = |peer: &&Peer| peers.iter().any(|other| other.name == peer.name);
    let has_column = |peer: &&Peer| peer.name == NETTY || !measurements.missing.contains_key(peer.name);
    PEERS.iter().filter(is_selected).filter(has_column)
}

/// Returns the rows with at least one value.
fn rows<'a>(summary: &'a Summary<'a>) -> impl Iterator<Item = &'static Row> + 'a {
    ROWS.iter().filter(|row| PEERS.iter().any(|peer| row.spread(summary, peer.name).is_some()))
}

fn head(columns: impl Iterator<Item = String>) -> String {
    let columns: Vec<_> = columns.collect();
    format!("| {} |\n|---|{}\n", columns.join(" | "), "--:|".repeat(columns.len() - 1))
}

fn line(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

fn title(row: &Row) -> String {
    if row.unit.is_empty() { row.title.into() } else { format!("{}, {}", row.title, row.unit) }
}

/// The competitors in the table of the README: the timer that this one replaces, and the timer of a
/// program that needs no other.
const IN_README: [&str; 3] = [OURS, NETTY, "tokio-sleep"];

/// Returns the table for the README: medians, and the ratios to Netty.
pub(crate) fn compact(measurements: &Measurements, peers: &[&Peer], environment: &Environment) -> String {
    let summary = Summary { measurements };
    let peers: Vec<_> = columns(measurements, peers).filter(|peer| IN_README.contains(&peer.name)).collect();
    let columns = ["".into()].into_iter().chain(peers.iter().map(|peer| peer.title.into()));
    let versions = peers.iter().filter_map(|peer| measurements.versions.get(peer.name));
    let versions: Vec<_> = versions.map(|version| version.to_string()).collect();
    let mut text = format!("{}. {}.\n\n", environment.text(), versions.join("; "));
    text += &absent_netty(measurements);
    text += &head(columns.chain(["hashed-wheel / Netty".into()]));
    for row in rows(&summary).filter(|row| row.is_in_readme) {
        let cell = |peer: &&Peer| {
            row.spread(&summary, peer.name).map_or(MISSING.into(), |spread| short(spread.median))
        };
        let ratio = row.ratio(&summary, NETTY).map_or(MISSING.into(), |ratio| short(ratio.median));
        text += &line([title(row)].into_iter().chain(peers.iter().map(cell)).chain([ratio]));
    }
    text
}

fn absent_netty(measurements: &Measurements) -> String {
    measurements.missing.get(NETTY).map_or_else(String::new, |why| {
        format!("**Netty was not measured**: {why}. Therefore there are no ratios to Netty, and the goals that need them were not checked.\n\n")
    })
}

/// Returns the full report, without the single repetitions.
pub(crate) fn full(measurements: &Measurements, peers: &[&Peer], environment: &Environment) -> String {
    let summary = Summary { measurements };
    let peers: Vec<_> = columns(measurements, peers).collect();
    let mut text = String::from("# Benchmarks\n\n");
    text += &format!("{}.\n\n", environment.text());
    text += &absent_netty(measurements);
    text += &format!(
        "Each cell is a median, with the minimum and the maximum in brackets if there was more than one repetition. {} Each \
         repetition measures all timers one after the other. A ratio compares the same repetition of both timers, and its cell \
         is the median of these ratios. Times are wall time unless stated otherwise.\n\n",
        repetitions(measurements),
    );
    text += "Plots: [ratios](benchmarks-ratios.svg), [lateness](benchmarks-lateness.svg), \
             [cost by number of pending timeouts](benchmarks-pending.svg), [throughput by number of threads](benchmarks-scaling.svg). \
             All repetitions: [benchmarks.json](benchmarks.json).\n\n";
    text += &format!("## What the rows measure\n\n{}\n", meanings(&summary));
    text += &format!("## Ours compared with Netty\n\n{}", goals(&summary));
    text += &format!("\n## All values\n\n{}", values(&summary, &peers));
    text += &format!("\n## Ours / others\n\n{}", ratios(&summary, &peers));
    text += &format!("\n## Missing values\n\n{}", missing(&summary, &peers));
    text += &format!("\n## Environment\n\n{}", details(measurements, environment));
    text
}

/// Says how often each workload was measured: the peers that the goals refer to, and the others.
fn repetitions(measurements: &Measurements) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for repetition in measurements.repetitions.iter().filter(|repetition| repetition.number.is_some()) {
        *counts.entry((&repetition.workload, repetition.peer)).or_default() += 1;
    }
    let range = |is_primary| {
        let is_counted = |name| PEERS.iter().any(|peer| peer.name == name && peer.is_primary() == is_primary);
        let counts = || counts.iter().filter(|((_, name), _)| is_counted(*name)).map(|(_, &count)| count);
        let (min, max) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        if min == max { min.to_string() } else { format!("{min} to {max}") }
    };
    format!(
        "Depending on the row, hashed-wheel and Netty were measured {} times, the other timers {} times; benchmarks.json \
         has each repetition.",
        range(true),
        range(false),
    )
}

/// Explains the rows that the report has, one line per workload.
fn meanings(summary: &Summary<'_>) -> String {
    let mut text = String::from(
        "Unless stated otherwise a million timeouts, with delays from 30 to 90 s, on a timer with a tick of 10 ms and 512 slots. \
         `ns` are per timeout, pair or re-arm. In brackets: the name for `--only`.\n\n",
    );
    let is_shown = |family| rows(summary).any(|row| row.family() == family);
    for meaning in MEANINGS.iter().filter(|meaning| is_shown(meaning.workload)) {
        text += &format!("- **{}** (`{}`): {}.\n", meaning.title, meaning.workload, meaning.text);
    }
    text
}

fn goals(summary: &Summary<'_>) -> String {
    let columns = ["", "ours", "Netty", "ours / Netty", "goal", "measured", ""];
    let mut text = head(columns.into_iter().map(Into::into));
    for row in rows(summary) {
        let cell = |peer| row.spread(summary, peer).map_or(MISSING.into(), |spread| short(spread.median));
        let ratio = row.ratio(summary, NETTY).map_or(MISSING.into(), ratio);
        let [goal, measured, met] = match row.outcome(summary) {
            None => [const { String::new() }; 3],
            Some(Outcome { goal, measured, is_met }) => {
                let met = match is_met {
                    None => "not measured",
                    Some(true) => "**met**",
                    Some(false) => "**not met**",
                };
                [goal, measured, met.into()]
            }
        };
        text += &line([title(row), cell(OURS), cell(NETTY), ratio, goal, measured, met].into_iter());
    }
    text
}

fn ratio(Spread { median, min, max }: Spread) -> String {
    format!("{} [{}–{}]", short(median), short(min), short(max))
}

fn values(summary: &Summary<'_>, peers: &[&Peer]) -> String {
    let columns = ["".into()].into_iter().chain(peers.iter().map(|peer| peer.title.into()));
    let mut text = head(columns);
    for row in rows(summary) {
        let cell = |peer: &&Peer| {
            let Some(Spread { median, min, max }) = row.spread(summary, peer.name) else {
                return MISSING.into();
            };
            let is_disturbed = summary.repetitions(row.workload, peer.name).any(Repetition::is_disturbed);
            let mark = if is_disturbed { " *" } else { "" };
            format!("{} [{}–{}]{mark}", short(median), short(min), short(max))
        };
        text += &line([title(row)].into_iter().chain(peers.iter().map(cell)));
    }
    text + "\n\\* Other processes used more than 5 % of the machine in at least one repetition.\n"
}

fn ratios(summary: &Summary<'_>, peers: &[&Peer]) -> String {
    let peers: Vec<_> = peers.iter().filter(|peer| peer.name != OURS).collect();
    let mut text = head(["".into()].into_iter().chain(peers.iter().map(|peer| peer.title.into())));
    for row in rows(summary) {
        let cell = |peer: &&&Peer| row.ratio(summary, peer.name).map_or(MISSING.into(), ratio);
        text += &line([title(row)].into_iter().chain(peers.iter().map(cell)));
    }
    text
}

/// Lists the missing values. Each combination of a peer and a reason is one line with the titles of
/// the workloads.
fn missing(summary: &Summary<'_>, peers: &[&Peer]) -> String {
    let mut reasons: BTreeMap<(&str, &str, bool), Vec<&Row>> = BTreeMap::new();
    for peer in peers {
        for row in &ROWS {
            if let Some((why, has_failed)) = summary.absence(row.workload, peer.name) {
                let rows = reasons.entry((peer.title, why, has_failed)).or_default();
                // The first row of a workload stands for all rows of that workload.
                if !rows.iter().any(|known| known.workload == row.workload) {
                    rows.push(row);
                }
            }
        }
    }
    let mut text = String::new();
    for (&name, why) in &summary.measurements.missing {
        text += &format!("- {name}: not available. {why}\n");
        reasons.retain(|(_, reason, _), _| reason != why);
    }
    for ((title, why, has_failed), rows) in reasons {
        let status = if has_failed { "failed" } else { "not supported" };
        let workloads: Vec<_> = rows.iter().map(|row| row.title).collect();
        text += &format!("- {title}: {why} ({status}: {})\n", workloads.join("; "));
    }
    if text.is_empty() { "None.\n".into() } else { text }
}

fn details(measurements: &Measurements, environment: &Environment) -> String {
    let mut text = format!(
        "{} cores of an {}, {}, {}, {}. Load average {} at the beginning and {} at the end.\n\n",
        machine::cores(),
        machine::model(),
        machine::kernel(),
        machine::rustc(),
        machine::java(),
        environment.load_before,
        environment.load_after,
    );
    let counted: Vec<_> =
        measurements.repetitions.iter().filter(|repetition| repetition.number.is_some()).collect();
    let disturbed = counted.iter().filter(|repetition| repetition.is_disturbed()).count();
    let seconds: f64 = counted.iter().map(|repetition| repetition.seconds).sum();
    let others: f64 = counted.iter().map(|repetition| repetition.others * repetition.seconds).sum();
    let share = if seconds > 0.0 { 100.0 * others / seconds } else { 0.0 };
    // Writing to a string cannot fail.
    _ = writeln!(
        text,
        "Other processes and the hypervisor used {share:.1} % of the machine during the {} repetitions, and more than 5 % \
         in {disturbed} of them.\n",
        counted.len(),
    );
    for (name, version) in &measurements.versions {
        text += &format!("- {name}: {version}\n");
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
