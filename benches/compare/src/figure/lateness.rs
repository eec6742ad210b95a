//! How many timeouts were no later than so much.

use plotters::prelude::*;
use serde_json::Value;

use super::{Area, Drawn, FONT, colour, legend, say};
use crate::command::Answer;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// In milliseconds: all that matters at a tick of 1 ms, and room for one with a resolution of its own.
const EARLIEST: f64 = -1.5;
const LATEST: f64 = 12.0;

pub(super) fn draw(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let curves: Vec<_> = PEERS.iter().filter_map(|peer| Some((peer, curve(summary, peer)?))).collect();
    if curves.is_empty() {
        return say(area, "The lateness was not measured.");
    }
    let (top, rest) = area.split_vertically(70);
    let peers: Vec<_> = curves.iter().map(|(peer, _)| *peer).collect();
    legend(&top, &peers)?;
    let mut chart = ChartBuilder::on(&rest)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(EARLIEST..LATEST, 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .x_labels(14)
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_desc("lateness in ms, the task scheduled with a delay of up to 1 s at a tick of 1 ms")
        .y_desc("% of the timeouts")
        .draw()?;
    // Ours last, and so on top.
    for (peer, points) in curves.iter().rev() {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour(peer).stroke_width(2)))?;
    }
    Ok(())
}

/// Of the round that is the middle one by its median; whatever lies beyond the edge is cut off there.
fn curve(summary: &Summary<'_>, peer: &Peer) -> Option<Vec<(f64, f64)>> {
    let of = |round: &crate::measure::Round| {
        let Answer::Figures(figures) = &round.answer else { return None };
        Some((figures.get("p50")?.as_f64()?, points(figures.get("cdf")?)?))
    };
    let mut rounds: Vec<_> = summary.rounds("W7", peer.name).filter_map(of).collect();
    rounds.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let middle = rounds.len() / 2;
    let (_, points) = rounds.into_iter().nth(middle)?;
    Some(points.into_iter().filter(|(ms, _)| (EARLIEST..LATEST).contains(ms)).collect())
}

fn points(cdf: &Value) -> Option<Vec<(f64, f64)>> {
    let point = |pair: &Value| Some((pair.get(0)?.as_f64()?, 100.0 * pair.get(1)?.as_f64()?));
    cdf.as_array()?.iter().map(point).collect()
}
