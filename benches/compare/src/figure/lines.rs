//! Line chart of the distribution of the lateness.

use std::ops::Range;

use plotters::prelude::*;

use super::Drawn;
use super::labels::{self, Area, FONT, Label};
use crate::command::Answer;
use crate::measure::Repetition;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// The colours of the palette of Okabe and Ito, which colour-blind readers can distinguish, and one
/// more. In the order of `PEERS`.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 0, 120),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
    RGBColor(240, 228, 66),
    RGBColor(0, 0, 0),
];

/// The width of the labels at the ends of the lines, and of the lines that lead to them.
const LABELS: i32 = 230;
const LEADERS: i32 = 20;

/// The points of a peer.
type Line = (&'static Peer, Vec<(f64, f64)>);

/// Returns the lines of all peers that have points.
fn lines(points: impl Fn(&Peer) -> Vec<(f64, f64)>) -> Vec<Line> {
    PEERS.iter().map(|peer| (peer, points(peer))).filter(|(_, points)| !points.is_empty()).collect()
}

/// Draws the cumulative distribution of the lateness: of each peer, the repetition with the median
/// of all medians.
pub(super) fn lateness(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    /// In milliseconds. The axis ends here, and the names of the lines begin at their ends.
    const LAST: f64 = 6.0;

    let lines = lines(|peer| {
        let distribution = |repetition: &Repetition| {
            let Answer::Figures(figures) = &repetition.answer else { return None };
            let points = figures.get("cdf")?.as_array()?.iter();
            let points =
                points.filter_map(|pair| Some((pair.get(0)?.as_f64()?, 100.0 * pair.get(1)?.as_f64()?)));
            Some((figures.get("p50")?.as_f64()?, points.filter(|(ms, _)| *ms <= LAST).collect::<Vec<_>>()))
        };
        let mut all: Vec<_> = summary.repetitions("W7", peer.name).filter_map(distribution).collect();
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let middle = all.len() / 2;
        all.into_iter().nth(middle).map_or(Vec::new(), |(_, points)| points)
    });
    let first = lines.iter().flat_map(|(_, line)| line).map(|(ms, _)| *ms).fold(0.0, f64::min);
    let names = ["lateness in ms, with delays of up to 1 s at a tick of 1 ms", "% of the timeouts"];
    draw(area, &lines, first..LAST, names)
}

fn draw(area: &Area<'_>, lines: &[Line], x: Range<f64>, [x_name, y_name]: [&str; 2]) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(LABELS as u32)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(x, 0.0..100.0)?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_labels(12)
        .y_labels(12)
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_desc(x_name)
        .y_desc(y_name)
        .draw()?;
    // In reverse order, so that the lines of this crate are on top.
    for (peer, line) in lines.iter().rev() {
        chart.draw_series(LineSeries::new(line.iter().copied(), colour(peer).stroke_width(2)))?;
        chart.draw_series(line.iter().map(|&at| Circle::new(at, 2, colour(peer).filled())))?;
    }
    let (left, top) = area.get_base_pixel();
    let end = |(peer, line): &Line| {
        let (x, y) = chart.backend_coord(line.last()?);
        Some(Label { name: peer.title.replace('`', ""), colour: colour(peer), at: (x - left, y - top) })
    };
    let ends = lines.iter().filter_map(end).collect();
    labels::draw(area, area.dim_in_pixel().0 as i32 - LABELS + LEADERS, ends)
}

fn colour(peer: &Peer) -> RGBColor {
    let index = PEERS.iter().position(|other| other.name == peer.name);
    COLOURS[index.unwrap_or(0)]
}
