//! The lateness by percentile, with the tail stretched: each step right is a tenth of the timeouts
//! of the step before it.

use super::svg::{Anchor, Chart, Point, Svg, WIDTH};
use super::{index, name};
use crate::command::Answer;
use crate::measure::Repetition;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// The last percentile that the answers of all timers have.
const LAST: f64 = 0.999;

const NAMES: [(f64, &str); 5] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
];

/// Returns the position of a fraction of the timeouts.
fn position(fraction: f64) -> f64 {
    (1.0 - fraction).log10() / (1.0 - LAST).log10()
}

/// Returns the points of the repetition with the median of all medians: fractions and milliseconds.
fn points(summary: &Summary<'_>, peer: &Peer) -> Vec<Point> {
    let distribution = |repetition: &Repetition| {
        let Answer::Figures(figures) = &repetition.answer else {
            return None;
        };
        let points = figures.get("cdf")?.as_array()?.iter();
        let points =
            points.filter_map(|pair| Some((pair.get(1)?.as_f64()?, pair.get(0)?.as_f64()?)));
        let points = points.filter(|(fraction, _)| *fraction <= LAST);
        Some((figures.get("p50")?.as_f64()?, points.collect()))
    };
    let all = summary.repetitions("lateness", peer.name);
    let mut all: Vec<(f64, Vec<_>)> = all.filter_map(distribution).collect();
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let middle = all.len() / 2;
    let median = all.into_iter().nth(middle);
    median.map_or(Vec::new(), |(_, points)| points)
}

pub(super) fn draw(summary: &Summary<'_>) -> String {
    const TITLE: &str = "Lateness, by the share of timeouts that are at most that late";
    const NOTE: &str = "Milliseconds from the deadline to the task, at a tick of 1 ms. Lower is better; below zero is too early.";

    let all = PEERS.each_ref().map(|peer| (peer, points(summary, peer)));
    let values = || all.iter().flat_map(|(_, points)| points).map(|(_, ms)| *ms);
    let first = values().fold(0.0, f64::min).floor();
    let last = values().fold(1.0, f64::max).ceil();
    let y = |ms: f64| (ms - first) / (last - first);
    let chart = Chart {
        left: 56.0,
        top: 70.0,
        width: WIDTH - 56.0 - 240.0,
        height: 330.0,
    };
    let mut svg = Svg::new(TITLE, 440.0);
    svg.text((16.0, 26.0), Anchor::Start, "title", TITLE);
    svg.text((16.0, 48.0), Anchor::Start, "note", NOTE);
    let milliseconds = first as i32..=last as i32;
    let milliseconds = milliseconds.map(|ms| (y(f64::from(ms)), ms.to_string()));
    let percentiles = NAMES.map(|(fraction, name)| (position(fraction), name.to_owned()));
    chart.grid(&mut svg, &percentiles, &milliseconds.collect::<Vec<_>>());
    let series = all.iter().filter(|(_, points)| !points.is_empty());
    let series = series.map(|(peer, points)| {
        let points = points.iter();
        let points = points.map(|&(fraction, ms)| (position(fraction), y(ms)));
        (name(summary, peer), index(peer), points.collect())
    });
    chart.lines(&mut svg, &series.collect::<Vec<_>>());
    svg.end()
}
