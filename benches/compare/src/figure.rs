//! The figures in docs/, and the functions that they share.

mod lateness;
mod lines;
mod ratios;

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::measure::Measurements;
use crate::peers::{PEERS, Peer};
use crate::summary::Summary;

/// Plotters scales the size down: 15 here is a font of 12 pixels.
const FONT: (&str, f64) = ("sans-serif", 15.0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
        ("benchmarks-lateness.svg", svg((900, 560), |area| lateness::draw(area, summary))?),
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

/// Draws a line with a marker for each peer, in as many columns as fit.
fn legend(area: &Area<'_>, peers: &[&Peer]) -> Drawn {
    const WIDTH: i32 = 220;

    let style = FONT.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    let columns = (area.dim_in_pixel().0 as i32 / WIDTH).max(1);
    for (index, peer) in peers.iter().enumerate() {
        let (x, y) = (20 + WIDTH * (index as i32 % columns), 14 + 20 * (index as i32 / columns));
        area.draw(&PathElement::new([(x, y), (x + 22, y)], colour(peer).stroke_width(2)))?;
        area.draw(&Circle::new((x + 11, y), 3, colour(peer).filled()))?;
        area.draw(&Text::new(name(peer), (x + 28, y), style.clone()))?;
    }
    Ok(())
}

/// The width of the labels at the ends of lines.
const LABELS: u32 = 230;

/// The distance of two labels, one above the other.
const LABEL_DISTANCE: i32 = 15;

/// Draws the name of each peer next to the end of its line. `ends` are in pixels of the area.
fn end_labels(area: &Area<'_>, mut ends: Vec<(&Peer, (i32, i32))>) -> Drawn {
    let style = FONT.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    let (width, height) = area.dim_in_pixel();
    let left = width as i32 - LABELS as i32;
    ends.sort_by_key(|(_, (_, y))| *y);
    let wanted: Vec<_> = ends.iter().map(|(_, (_, y))| *y).collect();
    let labels = spread_out(wanted, LABEL_DISTANCE, height as i32 - LABEL_DISTANCE);
    for ((peer, end), y) in ends.into_iter().zip(labels) {
        let colour = colour(peer);
        area.draw(&PathElement::new([end, (left + 20, y)], colour.mix(0.4)))?;
        area.draw(&Text::new(name(peer), (left + 24, y), style.color(&colour)))?;
    }
    Ok(())
}

/// Moves ascending positions apart, so that two are at least `distance` from each other. None is
/// above `max` if there is room.
fn spread_out(mut positions: Vec<i32>, distance: i32, max: i32) -> Vec<i32> {
    for index in 1..positions.len() {
        positions[index] = positions[index].max(positions[index - 1] + distance);
    }
    let mut limit = max;
    for position in positions.iter_mut().rev() {
        *position = limit.min(*position);
        limit = *position - distance;
    }
    positions
}

/// Draws a message instead of a chart without data.
fn draw_message(area: &Area<'_>, text: &str) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let style = FONT.into_text_style(area).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(text, (width as i32 / 2, height as i32 / 2), style))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::spread_out;

    #[test]
    fn labels_do_not_overlap() {
        assert_eq!(spread_out(vec![10, 40, 70], 15, 90), [10, 40, 70]);
        assert_eq!(spread_out(vec![10, 11, 12], 15, 90), [10, 25, 40]);
        assert_eq!(spread_out(vec![10, 88, 89], 15, 90), [10, 75, 90]);
        assert!(spread_out(vec![], 15, 90).is_empty());
    }
}
