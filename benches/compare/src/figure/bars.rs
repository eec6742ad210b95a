//! Bars: one value per timer, or one per timer and number of threads.

use super::svg::{Anchor, Chart, LINE, Svg, WIDTH};
use super::{name, series};
use crate::peers::{PEERS, Peer};
use crate::plan::{Operation, Row};
use crate::report::{self, short};
use crate::summary::Summary;

/// The bars of a timer, each with what is written after its value.
type Group = (&'static Peer, Vec<(f64, String)>);

pub(super) fn memory(summary: &Summary<'_>) -> String {
    let groups = groups(|peer| {
        let value = summary.spread("memory", "bytes", peer.name);
        value
            .map(|value| (value.median, " bytes".into()))
            .into_iter()
            .collect()
    });
    draw(
        summary,
        "Memory per pending timeout",
        "A million timeouts, each with a task of one word. Netty: the used heap. Shorter is better.",
        &groups,
    )
}

/// The throughput of an operation with each number of threads.
pub(super) fn threads(summary: &Summary<'_>, operation: &Operation, title: &str) -> String {
    let this = operation.this();
    let groups = groups(|peer| {
        let value = |threads| {
            let row = Row::of_threads(operation, threads);
            let value = summary.spread(&row.workload, row.key, peer.name)?;
            let plural = if threads == 1 { "" } else { "s" };
            let ratio = report::ratio(summary, &row, this, peer.name);
            let ratio = ratio.filter(|_| peer.name != this);
            let ratio = ratio.map(|ratio| format!(" ({})", short(ratio.median)));
            let text = format!(
                " with {threads} thread{plural}{}",
                ratio.unwrap_or_default()
            );
            Some((value.median, text))
        };
        summary.threads().into_iter().filter_map(value).collect()
    });
    let note = "Million per second of all threads: longer is better. In parentheses our cost as a multiple of the other's: below 1, ours is better.";
    draw(summary, title, note, &groups)
}

/// Returns the bars of all timers that have some.
fn groups(bars: impl Fn(&Peer) -> Vec<(f64, String)>) -> Vec<Group> {
    PEERS
        .iter()
        .map(|peer| (peer, bars(peer)))
        .filter(|(_, bars)| !bars.is_empty())
        .collect()
}

fn draw(summary: &Summary<'_>, title: &str, note: &str, groups: &[Group]) -> String {
    const TOP: f64 = 64.0;
    const NAMES: f64 = 250.0;
    /// The room right of a bar for its value.
    const VALUES: f64 = 180.0;
    const GAP: f64 = 12.0;
    /// A bar is a little lower than a line of text.
    const BAR: f64 = 14.0;

    let count: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = TOP + count as f64 * LINE + groups.len() as f64 * GAP + 8.0;
    let max = groups
        .iter()
        .flat_map(|(_, bars)| bars)
        .map(|(value, _)| *value)
        .fold(0.0, f64::max);
    let chart = Chart {
        left: NAMES,
        top: TOP,
        width: WIDTH - NAMES - VALUES,
        height: height - TOP - 12.0,
    };
    let mut svg = Svg::new(title, height);
    svg.text((16.0, 26.0), Anchor::Start, "title", title);
    svg.text((16.0, 48.0), Anchor::Start, "note", note);
    let mut y = TOP + GAP / 2.0;
    for (peer, bars) in groups {
        let middle = y + bars.len() as f64 * LINE / 2.0;
        svg.text(
            (NAMES - 10.0, middle + 3.0),
            Anchor::End,
            "",
            &name(summary, peer),
        );
        for (value, unit) in bars {
            let width = value / max * chart.width;
            svg.rect((chart.left, y), (width, BAR), &series(peer));
            let text = format!("{}{unit}", short(*value));
            svg.text(
                (chart.left + width + 6.0, y + BAR - 2.5),
                Anchor::Start,
                "",
                &text,
            );
            y += LINE;
        }
        y += GAP;
    }
    svg.path(&[chart.at(0.0, 0.0), chart.at(0.0, 1.0)], "axis");
    svg.end()
}
