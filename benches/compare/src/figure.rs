//! The figures in docs/.

mod bars;
mod lateness;
mod ratios;
mod svg;

use crate::measure::Measurements;
use crate::peers::{PEERS, Peer};
use crate::plan::OPERATIONS;
use crate::summary::Summary;

/// Returns the name and the text of each file.
pub(crate) fn all(measurements: &Measurements) -> [(&'static str, String); 6] {
    let summary = &Summary { measurements };
    let threads = |name, title| {
        let operation = OPERATIONS.iter().find(|operation| operation.name == name);
        operation.map_or(String::new(), |operation| {
            bars::threads(summary, operation, title)
        })
    };
    [
        ("benchmarks-netty.svg", ratios::draw(summary)),
        (
            "benchmarks-threads.svg",
            threads(
                "mixed",
                "Schedule one timeout and cancel another, by threads",
            ),
        ),
        (
            "benchmarks-sleep.svg",
            threads("sleep", "Poll a Sleep once and drop it, by threads"),
        ),
        (
            "benchmarks-map.svg",
            threads("map-touch", "Touch a random entry of a million, by threads"),
        ),
        ("benchmarks-memory.svg", bars::memory(summary)),
        ("benchmarks-lateness.svg", lateness::draw(summary)),
    ]
}

/// The name of a timer, without Markdown. Versions of Netty differ by their numbers.
fn name(summary: &Summary<'_>, peer: &Peer) -> String {
    let version = summary
        .measurements
        .versions
        .get(peer.name)
        .filter(|_| peer.is_netty());
    let number = version.and_then(|version| version.split(" (").next());
    number.unwrap_or(peer.title).replace('`', "")
}

/// The number of a timer's colour. Timers and maps are in different figures.
fn index(peer: &Peer) -> usize {
    let position = PEERS.iter().position(|other| other.name == peer.name);
    position.unwrap_or(0) % svg::COLOURS.len()
}

/// The class of a timer's colour.
fn series(peer: &Peer) -> String {
    format!("s{}", index(peer))
}
