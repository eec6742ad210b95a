//! The cumulative distribution of the lateness.

use plotters::prelude::*;
use serde_json::Value;

use super::{Area, Drawn, FONT, colour, draw_message, legend};
use crate::command::Answer;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// The range of the x-axis in milliseconds. It covers the relevant values at a tick of 1 ms, and
/// most of those of a timer with a fixed, coarser resolution.
const X_MIN: f64 = -1.5;
const X_MAX: f64 = 12.0;

pub(super) fn draw(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let curves: Vec<_> = PEERS.iter().filter_map(|peer| Some((peer, curve(summary, peer)?))).collect();
    if curves.is_empty() {
        return draw_message(area, "The lateness was not measured.");
    }
    let (top, rest) = area.split_vertically(70);
    let peers: Vec<_> = curves.iter().map(|(peer, _)| *peer).collect();
    legend(&top, &peers)?;
    let mut chart = ChartBuilder::on(&rest)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(X_MIN..X_MAX, 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .x_labels(14)
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_desc("lateness in ms, with delays of up to 1 s at a tick of 1 ms")
        .y_desc("% of the timeouts")
        .draw()?;
    // In reverse order, so that the lines of this crate are on top.
    for (peer, points) in curves.iter().rev() {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour(peer).stroke_width(2)))?;
    }
    Ok(())
}

/// Returns the distribution of the repetition with the median of all medians, without the points
/// outside of the axis.
fn curve(summary: &Summary<'_>, peer: &Peer) -> Option<Vec<(f64, f64)>> {
    let median_and_points = |repetition: &crate::measure::Repetition| {
        let Answer::Figures(figures) = &repetition.answer else { return None };
        Some((figures.get("p50")?.as_f64()?, points(figures.get("cdf")?)?))
    };
    let mut repetitions: Vec<_> =
        summary.repetitions("W7", peer.name).filter_map(median_and_points).collect();
    repetitions.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let middle = repetitions.len() / 2;
    let (_, points) = repetitions.into_iter().nth(middle)?;
    Some(points.into_iter().filter(|(ms, _)| (X_MIN..X_MAX).contains(ms)).collect())
}

fn points(cdf: &Value) -> Option<Vec<(f64, f64)>> {
    let point = |pair: &Value| Some((pair.get(0)?.as_f64()?, 100.0 * pair.get(1)?.as_f64()?));
    cdf.as_array()?.iter().map(point).collect()
}
