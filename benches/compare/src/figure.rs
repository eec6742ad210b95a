//! The figures in docs/.

mod bars;
mod lateness;
mod ratios;
mod svg;

use crate::machine::Environment;
use crate::measure::Measurements;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// Returns the name and the text of each file.
pub(crate) fn all(
    measurements: &Measurements,
    environment: &Environment,
) -> [(&'static str, String); 4] {
    let summary = &Summary { measurements };
    [
        ("benchmarks-netty.svg", ratios::draw(summary)),
        (
            "benchmarks-threads.svg",
            bars::threads(summary, &environment.cores()),
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

/// The number of a timer's colour.
fn index(peer: &Peer) -> usize {
    PEERS
        .iter()
        .position(|other| other.name == peer.name)
        .unwrap_or(0)
}

/// The class of a timer's colour.
fn series(peer: &Peer) -> String {
    format!("s{}", index(peer))
}
