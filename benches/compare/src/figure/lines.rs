//! Line charts of a cost over the number of pending timeouts or threads.

use std::ops::Range;

use plotters::prelude::*;

use super::labels::{self, Area, FONT};
use super::{Drawn, colour, draw_message, line_label};
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// The width of the labels at the ends of the lines.
const LABELS: u32 = 230;

/// The length of the lines that lead to them.
const LEADERS: i32 = 20;

struct Panel {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// The values of the x-axis. Each is the same multiple of the previous one, so equal distances
    /// make a logarithmic axis.
    numbers: Vec<u32>,
    lines: Vec<Line>,
}

/// The points of a peer: the index in `Panel::numbers` and the value.
type Line = (&'static Peer, Vec<(f64, f64)>);

impl Panel {
    /// Collects the medians of all workloads whose names are `prefix` and a number, such as
    /// `W10 pending=1000`.
    fn new(summary: &Summary<'_>, prefix: &str, key: &str, [title, x, y]: [&'static str; 3]) -> Self {
        let mut numbers: Vec<u32> = Vec::new();
        for repetition in &summary.measurements.repetitions {
            let number = repetition.workload.strip_prefix(prefix).and_then(|number| number.parse().ok());
            numbers.extend(number.filter(|number| !numbers.contains(number)));
        }
        numbers.sort_unstable();
        let line = |peer: &'static Peer| {
            let point = |(index, number): (usize, &u32)| {
                Some((index as f64, summary.spread(&format!("{prefix}{number}"), key, peer.name)?.median))
            };
            (peer, numbers.iter().enumerate().filter_map(point).collect::<Vec<_>>())
        };
        let lines = PEERS.iter().map(line).filter(|(_, line)| !line.is_empty()).collect();
        Self { title, x, y, numbers, lines }
    }
}

pub(super) fn pending(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let names = ["schedule one and cancel another", "pending timeouts", "ns"];
    draw(area, &[Panel::new(summary, "W10 pending=", "ns", names)])
}

pub(super) fn scaling(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let panel = |title, workload: &str| {
        let names = [title, "threads", "million per second, all threads together"];
        Panel::new(summary, &format!("{workload} threads="), "mops", names)
    };
    draw(area, &[panel("schedule", "W3"), panel("schedule one and cancel another", "MIX")])
}

fn draw(area: &Area<'_>, panels: &[Panel]) -> Drawn {
    if panels.iter().all(|panel| panel.lines.is_empty()) {
        return draw_message(area, "This was not measured.");
    }
    for (panel, area) in panels.iter().zip(area.split_evenly((1, panels.len()))) {
        chart(&area, panel)?;
    }
    Ok(())
}

fn chart(area: &Area<'_>, panel: &Panel) -> Drawn {
    let figures = panel.lines.iter().flat_map(|(_, line)| line).map(|(_, figure)| *figure);
    let last = panel.numbers.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, FONT)
        .margin(10)
        .margin_right(LABELS)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.3..last + 0.3, scale(figures).log_scale())?;
    let label = |index: &f64| {
        let number = (index.fract() == 0.0).then(|| panel.numbers.get(*index as usize)).flatten();
        number.map_or(String::new(), |number| number_text(*number))
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_labels(panel.numbers.len())
        .x_label_formatter(&label)
        .y_labels(12)
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_desc(panel.x)
        .y_desc(panel.y)
        .draw()?;
    for (peer, line) in panel.lines.iter().rev() {
        chart.draw_series(LineSeries::new(line.iter().copied(), colour(peer).stroke_width(2)))?;
        chart.draw_series(line.iter().map(|&at| Circle::new(at, 3, colour(peer).filled())))?;
    }
    let (left, top) = area.get_base_pixel();
    let end = |(peer, line): &Line| {
        let (x, y) = chart.backend_coord(line.last()?);
        Some(line_label(peer, (x - left, y - top)))
    };
    let ends = panel.lines.iter().filter_map(end).collect();
    labels::draw(area, area.dim_in_pixel().0 as i32 - LABELS as i32 + LEADERS, ends)
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
fn scale(figures: impl Iterator<Item = f64>) -> Range<f64> {
    let usable = figures.filter(|figure| *figure > 0.0);
    let (min, max) =
        usable.fold((f64::MAX, 0.0_f64), |(min, max), figure| (min.min(figure), max.max(figure)));
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
        for figures in [vec![], vec![0.0], vec![4.7], vec![1.0], vec![99.0, 101.0], vec![3.0, 4_000.0]] {
            let Range { start, end } = scale(figures.iter().copied());
            let power = 10_f64.powf(start.log10().ceil());
            assert!(start > 0.0 && (start..=end).contains(&power), "{figures:?}: {start}..{end}");
        }
    }

    #[test]
    fn powers_of_ten_have_superscripts() {
        assert_eq!(
            [1, 2, 16, 1_000, 2_000, 10_000_000].map(number_text),
            ["1", "2", "16", "10³", "2000", "10⁷"]
        );
    }
}
