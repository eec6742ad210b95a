//! The answer as Markdown: for docs/, and in short for the README.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::machine::{self, Circumstances};
use crate::measure::{Measured, Round};
use crate::peers::{NETTY, OURS, PEERS, Peer};
use crate::rows::{Outcome, ROWS, Row};
use crate::summary::{Spread, Summary};

/// What is not there.
const NOTHING: &str = "–";

/// Three digits or so.
pub(crate) fn short(figure: f64) -> String {
    let digits = match figure.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{figure:.digits$}")
}

/// Those of which anything was asked at all.
fn asked<'a>(measured: &'a Measured, peers: &'a [&Peer]) -> impl Iterator<Item = &'static Peer> + 'a {
    let is_asked = |peer: &&Peer| peers.iter().any(|other| other.name == peer.name);
    let is_known = |peer: &&Peer| peer.name == NETTY || !measured.missing.contains_key(peer.name);
    PEERS.iter().filter(is_asked).filter(is_known)
}

/// The rows of which there is anything.
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

/// For the README: medians, and ours beside Netty.
pub(crate) fn compact(measured: &Measured, peers: &[&Peer], circumstances: &Circumstances) -> String {
    let summary = Summary { measured };
    let peers: Vec<_> = asked(measured, peers).collect();
    let columns = ["".into()].into_iter().chain(peers.iter().map(|peer| peer.title.into()));
    let mut text = format!("{}\n\n", circumstances.text());
    text += &absent_netty(measured);
    text += &head(columns.chain(["ours / Netty".into()]));
    for row in rows(&summary).filter(|row| row.is_in_readme) {
        let cell = |peer: &&Peer| {
            row.spread(&summary, peer.name).map_or(NOTHING.into(), |spread| short(spread.median))
        };
        let ratio =
            row.ratio(&summary, NETTY).map_or(NOTHING.into(), |ratio| format!("**{}**", short(ratio.median)));
        text += &line([title(row)].into_iter().chain(peers.iter().map(cell)).chain([ratio]));
    }
    text
}

fn absent_netty(measured: &Measured) -> String {
    measured.missing.get(NETTY).map_or_else(String::new, |why| {
        format!("**Netty was not measured**: {why}. So there are no ratios, and no goal that needs one was checked.\n\n")
    })
}

/// All of it, but for the rounds themselves.
pub(crate) fn full(measured: &Measured, peers: &[&Peer], circumstances: &Circumstances) -> String {
    let summary = Summary { measured };
    let peers: Vec<_> = asked(measured, peers).collect();
    let mut text = String::from("# hashed-wheel beside the others\n\n");
    text += &format!("{}.\n\n", circumstances.text());
    text += &absent_netty(measured);
    text += "Each cell is the median of some rounds, with the least and the most in brackets. In each round all take their turns, \
             and a ratio is the median of the ratios of a round of ours to the same round of the other. Times are wall time \
             where nothing else is said.\n\n";
    text += "Plots: [ratios](compare-ratios.svg), [lateness](compare-lateness.svg), \
             [cost over the number pending](compare-pending.svg), [threads](compare-scaling.svg). \
             All rounds: [compare.json](compare.json).\n\n";
    text += &format!("## Ours beside Netty\n\n{}", goals(&summary));
    text += &format!("\n## All figures\n\n{}", figures(&summary, &peers));
    text += &format!("\n## Ours / others\n\n{}", ratios(&summary, &peers));
    text += &format!("\n## What is missing\n\n{}", missing(&summary, &peers));
    text += &format!("\n## Circumstances\n\n{}", details(measured, circumstances));
    text
}

fn goals(summary: &Summary<'_>) -> String {
    let columns = ["", "ours", "Netty", "ours / Netty", "goal", "found", ""];
    let mut text = head(columns.into_iter().map(Into::into));
    for row in rows(summary) {
        let cell = |peer| row.spread(summary, peer).map_or(NOTHING.into(), |spread| short(spread.median));
        let ratio = row.ratio(summary, NETTY).map_or(NOTHING.into(), ratio);
        let [goal, found, met] = match row.outcome(summary) {
            None => [const { String::new() }; 3],
            Some(Outcome { goal, found, is_met }) => {
                let met = match is_met {
                    None => "not measured",
                    Some(true) => "**met**",
                    Some(false) => "**not met**",
                };
                [goal, found, met.into()]
            }
        };
        text += &line([title(row), cell(OURS), cell(NETTY), ratio, goal, found, met].into_iter());
    }
    text
}

fn ratio(Spread { median, least, most }: Spread) -> String {
    format!("{} [{}–{}]", short(median), short(least), short(most))
}

fn figures(summary: &Summary<'_>, peers: &[&Peer]) -> String {
    let columns = ["".into()].into_iter().chain(peers.iter().map(|peer| peer.title.into()));
    let mut text = head(columns);
    for row in rows(summary) {
        let cell = |peer: &&Peer| {
            let Some(Spread { median, least, most }) = row.spread(summary, peer.name) else {
                return NOTHING.into();
            };
            let is_disturbed = summary.rounds(row.workload, peer.name).any(Round::is_disturbed);
            let mark = if is_disturbed { " *" } else { "" };
            format!("{} [{}–{}]{mark}", short(median), short(least), short(most))
        };
        text += &line([title(row)].into_iter().chain(peers.iter().map(cell)));
    }
    text + "\n\\* In one round at least others used more than a twentieth of the machine.\n"
}

fn ratios(summary: &Summary<'_>, peers: &[&Peer]) -> String {
    let peers: Vec<_> = peers.iter().filter(|peer| peer.name != OURS).collect();
    let mut text = head(["".into()].into_iter().chain(peers.iter().map(|peer| peer.title.into())));
    for row in rows(summary) {
        let cell = |peer: &&&Peer| row.ratio(summary, peer.name).map_or(NOTHING.into(), ratio);
        text += &line([title(row)].into_iter().chain(peers.iter().map(cell)));
    }
    text
}

/// Who has not answered what, and why: each reason once.
fn missing(summary: &Summary<'_>, peers: &[&Peer]) -> String {
    let mut reasons: BTreeMap<(&str, &str, bool), Vec<&str>> = BTreeMap::new();
    for peer in peers {
        for row in &ROWS {
            if let Some((why, has_failed)) = summary.absence(row.workload, peer.name) {
                let workloads = reasons.entry((peer.title, why, has_failed)).or_default();
                if !workloads.contains(&row.workload) {
                    workloads.push(row.workload);
                }
            }
        }
    }
    let mut text = String::new();
    for (&name, why) in &summary.measured.missing {
        text += &format!("- {name}: not there. {why}\n");
        reasons.retain(|(_, reason, _), _| reason != why);
    }
    for ((title, why, has_failed), workloads) in reasons {
        let what = if has_failed { "failed" } else { "cannot" };
        text += &format!("- {title} {what} {}: {why}\n", workloads.join(", "));
    }
    if text.is_empty() { "Nothing.\n".into() } else { text }
}

fn details(measured: &Measured, circumstances: &Circumstances) -> String {
    let mut text = format!(
        "{} cores of an {}, {}, {}, {}. Load average {} at the beginning and {} at the end.\n\n",
        machine::cores(),
        machine::model(),
        machine::kernel(),
        machine::rustc(),
        machine::java(),
        circumstances.load_before,
        circumstances.load_after,
    );
    let counted: Vec<_> = measured.rounds.iter().filter(|round| round.number.is_some()).collect();
    let disturbed = counted.iter().filter(|round| round.is_disturbed()).count();
    let time: f64 = counted.iter().map(|round| round.seconds).sum();
    let others: f64 = counted.iter().map(|round| round.others * round.seconds).sum();
    let share = if time > 0.0 { 100.0 * others / time } else { 0.0 };
    // Writing to a string cannot fail.
    _ = writeln!(
        text,
        "Others, the hypervisor among them, used {share:.1} % of the machine during the {} rounds, and more than a \
         twentieth of it in {disturbed}.\n",
        counted.len(),
    );
    for (name, version) in &measured.versions {
        text += &format!("- {name}: {version}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn figures_have_three_digits_or_so() {
        let found = [0.0, 0.004, 0.25, 3.456, 31.24, 640.7, 1_234.5].map(short);
        assert_eq!(found, ["0", "0.004", "0.250", "3.46", "31.2", "641", "1234"]);
    }
}
