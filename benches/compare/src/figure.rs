//! The figures in docs/, and the functions that they share.

mod labels;
mod lateness;
mod lines;
mod ratios;

use std::error::Error;

use labels::{Area, FONT, Label};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::measure::Measurements;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

type Drawn = Result<(), Box<dyn Error>>;

/// First the colours of the palette of Okabe and Ito, which colour-blind readers can distinguish,
/// then other colours. In the order of `PEERS`.
const COLOURS: [RGBColor; 13] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 0, 120),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// Returns each figure with the name of its file.
pub(crate) fn all(measurements: &Measurements) -> Result<[(&'static str, String); 4], Box<dyn Error>> {
    let summary = &Summary { measurements };
    Ok([
        ("benchmarks-ratios.svg", svg((900, 620), |area| ratios::draw(area, summary))?),
        ("benchmarks-lateness.svg", svg((900, 520), |area| lateness::draw(area, summary))?),
        ("benchmarks-pending.svg", svg((1_060, 520), |area| lines::pending(area, summary))?),
        ("benchmarks-scaling.svg", svg((1_560, 520), |area| lines::scaling(area, summary))?),
    ])
}

fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        draw(&root)?;
        root.present()?;
    }
    // Removes the blank lines that Plotters writes: a Markdown renderer would end the figure there.
    Ok(svg.lines().filter(|line| !line.trim().is_empty()).flat_map(|line| [line, "\n"]).collect())
}

fn colour(peer: &Peer) -> RGBColor {
    let index = PEERS.iter().position(|other| other.name == peer.name);
    COLOURS[index.unwrap_or(0)]
}

/// Returns the title of a peer without Markdown.
fn name(peer: &Peer) -> String {
    peer.title.replace('`', "")
}

/// Returns the label of the line of a peer. `at` is in pixels of the area.
fn line_label(peer: &Peer, at: (i32, i32)) -> Label {
    Label { name: name(peer), colour: colour(peer), at }
}

/// Draws a message instead of a chart without data.
fn draw_message(area: &Area<'_>, text: &str) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let style = FONT.into_text_style(area).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(text, (width as i32 / 2, height as i32 / 2), style))?;
    Ok(())
}
