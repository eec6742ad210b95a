//! The answer as a figure.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::measure::{Each, NAMES};
use crate::table::power_of_ten;
use crate::{BySize, Found};

const SIZE: (u32, u32) = (1_320, 1_000);

const LEGEND: u32 = 40;

/// Of Okabe and Ito's palette, whom the colour-blind owe it to. In the order of `NAMES`.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Plotters takes a font's height for more than its size: this one is 12 pixels.
const FONT: (&str, f64) = ("sans-serif", 15.0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One small chart: a figure for each competitor at each place on the x-axis.
struct Panel {
    title: String,
    x: &'static str,
    y: &'static str,
    lines: Vec<(f64, Each)>,
}

pub fn svg(found: &Found) -> Result<String, Box<dyn Error>> {
    let by_size = |title: &str, y, of: fn(&BySize) -> Each| Panel {
        title: title.into(),
        x: "pending entries",
        y,
        lines: found.by_size.iter().map(|by_size| (by_size.pending as f64, of(by_size))).collect(),
    };
    let panels = [
        by_size("insert", "ns", |found| found.long.insert),
        by_size("cancel", "ns", |found| found.long.cancel),
        by_size("cancel one and insert another", "ns", |found| found.long.replace),
        by_size("expire", "ns", |found| found.long.expire),
        by_size("insert, delays up to 1 turn", "ns", |found| found.short.insert),
        by_size("cancel, delays up to 1 turn", "ns", |found| found.short.cancel),
        by_size("the same, delays up to 1 turn", "ns", |found| found.short.replace),
        by_size("expire, delays up to 1 turn", "ns", |found| found.short.expire),
        Panel {
            title: format!("expire, {} pending", power_of_ten(found.pending as f64)),
            x: "mean delay, in turns of the wheel",
            y: "ns",
            lines: found.by_delay.iter().map(|(turns, costs)| (*turns, costs.expire)).collect(),
        },
        by_size("the longest step of expiry", "µs", |found| found.long.longest),
        by_size("a tick with nothing due", "ns", |found| found.long.still),
        by_size("memory of an entry", "bytes", |found| found.long.bytes),
    ];

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, rest) = root.split_vertically(LEGEND);
        let areas = rest.split_evenly((3, 4));
        for (panel, area) in panels.iter().zip(&areas) {
            // The same scale for all that has one unit: what is high is slow.
            chart(panel, area, scale(panels.iter().filter(|other| other.y == panel.y)))?;
        }
        legend(&top)?;
        root.present()?;
    }
    // Plotters leaves blank lines in it, where a Markdown renderer would see the end of the figure.
    Ok(svg.lines().filter(|line| !line.trim().is_empty()).flat_map(|line| [line, "\n"]).collect())
}

/// From the least to the most with something above and below, and at least from one power of ten to another: only these
/// have labels.
fn scale<'a>(panels: impl Iterator<Item = &'a Panel>) -> Range<f64> {
    let all = panels.flat_map(|panel| &panel.lines).flat_map(|(_, each)| *each);
    let (least, most) = all.fold((f64::MAX, 0.0_f64), |(least, most), y| (least.min(y), most.max(y)));
    let (below, above) = (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()));
    let is_narrow = above <= below * 10.0;
    if is_narrow { below..above } else { least / 1.5..most * 1.5 }
}

fn legend(area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let style = FONT.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    for (competitor, name) in NAMES.into_iter().enumerate() {
        let (x, y) = (66 + 140 * competitor as i32, LEGEND as i32 / 2);
        area.draw(&PathElement::new([(x, y), (x + 26, y)], COLOURS[competitor].stroke_width(2)))?;
        area.draw(&mark(competitor, (x + 13, y)))?;
        area.draw(&Text::new(name, (x + 34, y), style.clone()))?;
    }
    let text = "Delays are up to 2 048 turns of the wheel where nothing else is said.";
    area.draw(&Text::new(text, (726, LEGEND as i32 / 2), style))?;
    Ok(())
}

fn chart(panel: &Panel, area: &Area<'_>, y: Range<f64>) -> Result<(), Box<dyn Error>> {
    let (first, last) = (panel.lines[0].0, panel.lines[panel.lines.len() - 1].0);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, FONT)
        .margin(8)
        .margin_right(18)
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
        let line = panel.lines.iter().map(|(x, each)| (*x, each[competitor]));
        chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
        chart.draw_series(line.map(|at| mark(competitor, at)))?;
    }
    Ok(())
}

/// Whether it begins with 1, 2 or 5: the others stand too close.
fn is_labelled(y: f64) -> bool {
    let first = y / 10_f64.powf((y.log10() + 1e-9).floor());
    [1.0, 2.0, 5.0].iter().any(|digit| (first - digit).abs() < 1e-6)
}

/// A shape for each competitor, for those who see no colours.
fn mark<'a, At: Clone + 'static>(competitor: usize, at: At) -> DynElement<'static, SVGBackend<'a>, At> {
    let colour = COLOURS[competitor];
    match competitor {
        0 => Circle::new(at, 4, colour.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 5, colour.filled()).into_dyn(),
        2 => Cross::new(at, 4, colour.stroke_width(2)).into_dyn(),
        _ => Circle::new(at, 5, colour.stroke_width(2)).into_dyn(),
    }
}
