//! Line charts: a cost by the number of pending timeouts or threads, and the distribution of the
//! lateness.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::Drawn;
use super::labels::{self, Area, FONT, Label};
use crate::command::Answer;
use crate::measure::Repetition;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// The colours of the palette of Okabe and Ito, which colour-blind readers can distinguish, and one
/// more. In the order of `PEERS`.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 0, 120),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
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

pub(super) fn pending(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    by_number(
        area,
        summary,
        "W10 pending=",
        "ns",
        ["pending timeouts", "ns to schedule one and cancel another"],
    )
}

pub(super) fn scaling(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let y = "million per second: schedule one and cancel another";
    by_number(area, summary, "MIX threads=", "mops", ["threads", y])
}

/// Draws the medians of all workloads whose names are `prefix` and a number, such as `W10
/// pending=1000`. Each number is the same multiple of the previous one, so equal distances make a
/// logarithmic axis.
fn by_number(area: &Area<'_>, summary: &Summary<'_>, prefix: &str, key: &str, names: [&str; 2]) -> Drawn {
    let repetitions = summary.measurements.repetitions.iter();
    let number = |repetition: &Repetition| repetition.workload.strip_prefix(prefix)?.parse::<u32>().ok();
    let mut numbers: Vec<_> = repetitions.filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let lines = lines(|peer| {
        let median =
            |number| summary.spread(&format!("{prefix}{number}"), key, peer.name).map(|all| all.median);
        let points =
            numbers.iter().enumerate().filter_map(|(index, number)| Some((index as f64, median(number)?)));
        points.collect()
    });
    let x = -0.3..numbers.len().saturating_sub(1) as f64 + 0.3;
    let y = scale(lines.iter().flat_map(|(_, line)| line).map(|(_, value)| *value)).log_scale();
    let text = |index: &f64| {
        let number = (index.fract() == 0.0).then(|| numbers.get(*index as usize)).flatten();
        number.map_or(String::new(), |number| number_text(*number))
    };
    draw(area, &lines, x, y, numbers.len(), &text, names)
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
    draw(area, &lines, first..LAST, 0.0..100.0, 12, &|ms: &f64| ms.to_string(), names)
}

fn draw<Y>(
    area: &Area<'_>,
    lines: &[Line],
    x: Range<f64>,
    y: Y,
    x_labels: usize,
    x_text: &dyn Fn(&f64) -> String,
    [x_name, y_name]: [&str; 2],
) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(LABELS as u32)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_labels(x_labels.max(1))
        .x_label_formatter(&x_text)
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

/// Formats a power of ten from 10³ on with a superscript, and every other number in full.
fn number_text(number: u32) -> String {
    let exponent = number.max(1).ilog10();
    let is_power = number == 10_u32.pow(exponent) && exponent >= 3;
    let digit = "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(exponent as usize).filter(|_| is_power);
    digit.map_or_else(|| number.to_string(), |digit| format!("10{digit}"))
}

/// Returns a range that covers all values, with a margin. It contains at least one power of ten,
/// because Plotters labels only these. If there is none, Plotters searches for one in an endless
/// loop.
fn scale(values: impl Iterator<Item = f64>) -> Range<f64> {
    let usable = values.filter(|value| *value > 0.0);
    let (min, max) = usable.fold((f64::MAX, 0.0_f64), |(min, max), value| (min.min(value), max.max(value)));
    if max == 0.0 {
        return 1.0..10.0;
    }
    let (below, above) = (10_f64.powf(min.log10().floor()), 10_f64.powf(max.log10().ceil()));
    let is_narrow = above <= below * 10.0;
    if is_narrow { below..below * 10.0 } else { min / 1.5..max * 1.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_contains_a_power_of_ten() {
        for values in [vec![], vec![0.0], vec![4.7], vec![1.0], vec![99.0, 101.0], vec![3.0, 4_000.0]] {
            let Range { start, end } = scale(values.iter().copied());
            let power = 10_f64.powf(start.log10().ceil());
            assert!(start > 0.0 && (start..=end).contains(&power), "{values:?}: {start}..{end}");
        }
    }
}
