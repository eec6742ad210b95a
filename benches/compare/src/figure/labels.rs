//! Names next to the lines of a chart, so that it needs no legend. benches/which includes this file
//! too.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Plotters scales the size down: 15 here is a font of 12 pixels.
pub(crate) const FONT: (&str, f64) = ("sans-serif", 15.0);

/// The distance of two labels, one above the other.
const DISTANCE: i32 = 15;

/// The distance of a name from the line that leads to it.
const GAP: i32 = 4;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) struct Label {
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    /// The point of the line that the label names, in pixels of the area.
    pub(crate) at: (i32, i32),
}

/// Draws the names in a column, each with a thin line that leads from the point to it. The names
/// begin right of `left`.
pub(crate) fn draw(area: &Area<'_>, left: i32, mut labels: Vec<Label>) -> Result<(), Box<dyn Error>> {
    let max = area.dim_in_pixel().1 as i32 - DISTANCE;
    labels.sort_by_key(|label| label.at.1);
    let heights = spread_out(labels.iter().map(|label| label.at.1).collect(), DISTANCE, max);
    for (Label { name, colour, at }, y) in labels.into_iter().zip(heights) {
        area.draw(&PathElement::new([at, (left, y)], colour.mix(0.4)))?;
        text(area, name, (left + GAP, y), colour)?;
    }
    Ok(())
}

/// Draws the name of a line of this colour right of a point. It covers the grid.
pub(crate) fn text(
    area: &Area<'_>,
    name: String,
    (x, y): (i32, i32),
    colour: RGBColor,
) -> Result<(), Box<dyn Error>> {
    let colour = darker(colour);
    let style = FONT.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center)).color(&colour);
    let (width, half) = (area.estimate_text_size(&name, &style)?.0 as i32, DISTANCE / 2);
    area.draw(&Rectangle::new([(x - 2, y - half), (x + width, y + half)], WHITE.filled()))?;
    area.draw(&Text::new(name, (x, y), style))?;
    Ok(())
}

/// Returns the colour of the text next to a line of this colour: thin strokes need more contrast.
fn darker(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    RGBColor(red / 3 * 2, green / 3 * 2, blue / 3 * 2)
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

#[cfg(test)]
mod tests {
    #[test]
    fn labels_do_not_overlap() {
        // (In here: benches/which is built without a test harness, and so without this function.)
        use super::spread_out;

        assert_eq!(spread_out(vec![10, 40, 70], 15, 90), [10, 40, 70]);
        assert_eq!(spread_out(vec![10, 11, 12], 15, 90), [10, 25, 40]);
        assert_eq!(spread_out(vec![10, 88, 89], 15, 90), [10, 75, 90]);
        assert!(spread_out(vec![], 15, 90).is_empty());
    }
}
