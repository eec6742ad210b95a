//! Draws the results as an SVG figure.

#[path = "../compare/src/figure/labels.rs"]
mod labels;

use std::error::Error;
use std::ops::Range;

use labels::{Area, FONT, Label};
use plotters::prelude::*;

use crate::measure::{Each, NAMES};
use crate::table::power_of_ten;
use crate::{BySize, Results};

const SIZE: (u32, u32) = (1_640, 1_000);

/// The height of the line above the charts.
const TOP: u32 = 40;

/// The width of the names at the ends of the lines, and the length of the lines that lead to them.
const LABELS: u32 = 106;
const LEADERS: i32 = 16;

/// Colours of the palette of Okabe and Ito, which colour-blind readers can distinguish. In the
/// order of `NAMES`.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// One small chart with one line per competitor.
struct Panel {
    title: String,
    x: &'static str,
    y: &'static str,
    /// The values of all competitors at each x.
    points: Vec<(f64, Each)>,
}

pub fn svg(results: &Results) -> Result<String, Box<dyn Error>> {
    let by_size = |title: &str, y, cost: fn(&BySize) -> Each| Panel {
        title: title.into(),
        x: "pending entries",
        y,
        points: results.by_size.iter().map(|by_size| (by_size.pending as f64, cost(by_size))).collect(),
    };
    let panels = [
        by_size("insert", "ns", |results| results.long.insert),
        by_size("cancel", "ns", |results| results.long.cancel),
        by_size("cancel one and insert another", "ns", |results| results.long.replace),
        by_size("expire", "ns", |results| results.long.expire),
        by_size("insert, delays up to 1 round", "ns", |results| results.short.insert),
        by_size("cancel, delays up to 1 round", "ns", |results| results.short.cancel),
        by_size("cancel and insert, delays up to 1 round", "ns", |results| results.short.replace),
        by_size("expire, delays up to 1 round", "ns", |results| results.short.expire),
        Panel {
            title: format!("expire, {} pending", power_of_ten(results.pending as f64)),
            x: "mean delay, in rounds of the wheel",
            y: "ns",
            points: results.by_delay.iter().map(|(rounds, costs)| (*rounds, costs.expire)).collect(),
        },
        by_size("longest step of expiry", "µs", |results| results.long.longest_step),
        by_size("tick with nothing due", "ns", |results| results.long.empty_tick),
        by_size("memory per entry", "bytes", |results| results.long.bytes),
    ];

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, rest) = root.split_vertically(TOP);
        let areas = rest.split_evenly((3, 4));
        for (panel, area) in panels.iter().zip(&areas) {
            // All panels with the same unit have the same scale, so that they can be compared.
            chart(panel, area, scale(panels.iter().filter(|other| other.y == panel.y)))?;
        }
        let text = "Delays are up to 2 048 rounds of the wheel unless stated otherwise.";
        top.draw(&Text::new(text, (66, 14), FONT.into_text_style(&top)))?;
        root.present()?;
    }
    // Removes the blank lines that Plotters writes: a Markdown renderer would end the figure there.
    Ok(svg.lines().filter(|line| !line.trim().is_empty()).flat_map(|line| [line, "\n"]).collect())
}

/// Returns a range that covers all points, with a margin. It covers at least one power of ten,
/// because Plotters labels only powers of ten.
fn scale<'a>(panels: impl Iterator<Item = &'a Panel>) -> Range<f64> {
    let all = panels.flat_map(|panel| &panel.points).flat_map(|(_, each)| *each);
    let (min, max) = all.fold((f64::MAX, 0.0_f64), |(min, max), y| (min.min(y), max.max(y)));
    let (below, above) = (10_f64.powf(min.log10().floor()), 10_f64.powf(max.log10().ceil()));
    let is_narrow = above <= below * 10.0;
    if is_narrow { below..above } else { min / 1.5..max * 1.5 }
}

fn chart(panel: &Panel, area: &Area<'_>, y: Range<f64>) -> Result<(), Box<dyn Error>> {
    let (first, last) = (panel.points[0].0, panel.points[panel.points.len() - 1].0);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, FONT)
        .margin(8)
        .margin_right(LABELS)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d((first..last).log_scale(), y.log_scale())?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_labels(6)
        .y_labels(12)
        .x_label_formatter(&|&x| power_of_ten(x))
        .y_label_formatter(&|&y| if is_labelled(y) { power_of_ten(y) } else { String::new() })
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_desc(panel.x)
        .y_desc(panel.y)
        .draw()?;
    for (competitor, colour) in COLOURS.into_iter().enumerate() {
        let line = panel.points.iter().map(|(x, each)| (*x, each[competitor]));
        chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
        chart.draw_series(line.map(|at| marker(competitor, at)))?;
    }
    let (base, (last, costs)) = (area.get_base_pixel(), &panel.points[panel.points.len() - 1]);
    let label = |competitor: usize| {
        let (x, y) = chart.backend_coord(&(*last, costs[competitor]));
        let at = (x - base.0, y - base.1);
        Label { name: NAMES[competitor].into(), colour: COLOURS[competitor], at }
    };
    let left = area.dim_in_pixel().0 as i32 - LABELS as i32 + LEADERS;
    labels::draw(area, left, (0..NAMES.len()).map(label).collect())
}

/// Whether the first digit is 1, 2 or 5. Labels at the other digits would overlap.
fn is_labelled(y: f64) -> bool {
    let first = y / 10_f64.powf((y.log10() + 1e-9).floor());
    [1.0, 2.0, 5.0].iter().any(|digit| (first - digit).abs() < 1e-6)
}

/// Returns the marker of a competitor. The shapes differ, for readers who cannot distinguish the
/// colours.
fn marker<'a, At: Clone + 'static>(competitor: usize, at: At) -> DynElement<'static, SVGBackend<'a>, At> {
    let colour = COLOURS[competitor];
    match competitor {
        0 => Circle::new(at, 4, colour.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 5, colour.filled()).into_dyn(),
        2 => Cross::new(at, 4, colour.stroke_width(2)).into_dyn(),
        _ => Circle::new(at, 5, colour.stroke_width(2)).into_dyn(),
    }
}
