//! The cumulative distribution of the lateness.

use plotters::prelude::*;
use serde_json::Value;

use super::labels::{self, Area, FONT};
use super::{Drawn, colour, draw_message, line_label, name};
use crate::command::Answer;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// The range of the x-axis in milliseconds. It covers the relevant values at a tick of 1 ms, and
/// most of those of a timer with a fixed, coarser resolution.
const X_MIN: f64 = -1.5;
const X_MAX: f64 = 12.0;

/// Where the names of the steep curves begin, in milliseconds: all of these curves are left of it.
const NAMES: f64 = 3.2;

/// The heights at which the lines to these names begin. Further up the curves become flat.
const FIRST_NAME: f64 = 86.0;
const NAME_DISTANCE: f64 = 6.0;

/// Milliseconds and the percentage of the timeouts that are no later.
type Curve = Vec<(f64, f64)>;

pub(super) fn draw(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let curve = |peer| Some((peer, curve(summary, peer)?));
    let curves: Vec<(&Peer, Curve)> = PEERS.iter().filter_map(curve).collect();
    if curves.is_empty() {
        return draw_message(area, "The lateness was not measured.");
    }
    let mut chart = ChartBuilder::on(area)
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
    let (left, top) = area.get_base_pixel();
    let pixel = |at: &(f64, f64)| {
        let (x, y) = chart.backend_coord(at);
        (x - left, y - top)
    };
    let is_steep = |(_, curve): &&(&Peer, Curve)| point_at(curve, FIRST_NAME).is_some_and(|(x, _)| x < NAMES);
    let (steep, flat): (Vec<_>, Vec<_>) = curves.iter().partition(is_steep);
    let names = in_order(steep).into_iter().map(|(peer, at)| line_label(peer, pixel(&at)));
    let names: Vec<_> = names.collect();
    for name in &names {
        area.draw(&Circle::new(name.at, 3, name.colour.filled()))?;
    }
    labels::draw(area, pixel(&(NAMES, 0.0)).0, names)?;
    for (peer, curve) in flat {
        // Below the curve, because it rises to the right.
        let (x, y) = pixel(&curve[curve.len() / 2]);
        labels::text(area, name(peer), (x + 8, y + 12), colour(peer))?;
    }
    Ok(())
}

/// Returns the point of each curve at which the line to its name begins. The further left a curve
/// is, the higher is its name.
fn in_order<'a>(mut curves: Vec<&(&'a Peer, Curve)>) -> Vec<(&'a Peer, (f64, f64))> {
    let middle = |curve: &Curve| point_at(curve, 50.0).map_or(X_MAX, |(x, _)| x);
    curves.sort_by(|(_, a), (_, b)| middle(a).total_cmp(&middle(b)));
    let heights = (0..).map(|index| FIRST_NAME - NAME_DISTANCE * f64::from(index));
    let named = curves.into_iter().zip(heights);
    named.filter_map(|((peer, curve), height)| Some((*peer, point_at(curve, height)?))).collect()
}

fn point_at(curve: &Curve, height: f64) -> Option<(f64, f64)> {
    curve.iter().copied().find(|(_, y)| *y >= height)
}

/// Returns the distribution of the repetition with the median of all medians, without the points
/// outside of the axis.
fn curve(summary: &Summary<'_>, peer: &Peer) -> Option<Curve> {
    let median_and_points = |repetition: &crate::measure::Repetition| {
        let Answer::Figures(figures) = &repetition.answer else { return None };
        Some((figures.get("p50")?.as_f64()?, points(figures.get("cdf")?)?))
    };
    let mut repetitions: Vec<_> =
        summary.repetitions("W7", peer.name).filter_map(median_and_points).collect();
    repetitions.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let middle = repetitions.len() / 2;
    let (_, points) = repetitions.into_iter().nth(middle)?;
    let points: Curve = points.into_iter().filter(|(ms, _)| (X_MIN..X_MAX).contains(ms)).collect();
    (!points.is_empty()).then_some(points)
}

fn points(cdf: &Value) -> Option<Curve> {
    let point = |pair: &Value| Some((pair.get(0)?.as_f64()?, 100.0 * pair.get(1)?.as_f64()?));
    cdf.as_array()?.iter().map(point).collect()
}
