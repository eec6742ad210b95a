//! Bar chart of the ratios of this crate to Netty. Each bar starts at a ratio of 1. Less is better
//! in all of them: a ratio of throughputs is inverted.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Drawn;
use super::labels::{Area, FONT};
use crate::peers::NETTY;
use crate::plan::{Row, rows};
use crate::report::ratio;
use crate::summary::{Spread, Summary};

const BETTER: RGBColor = RGBColor(0, 114, 178);
const WORSE: RGBColor = RGBColor(213, 94, 0);

/// The width of the column with the names of the rows.
const LEFT: i32 = 380;

/// The width of the column with the ratios.
const RIGHT: i32 = 60;

const TOP: i32 = 50;

pub(super) fn draw(area: &Area<'_>, summary: &Summary<'_>) -> Drawn {
    let inverted = |row: &'static Row| Some((row, less_is_better(row, ratio(summary, row, NETTY)?)));
    let is_drawn = |(row, ratio): &(&Row, Spread)| row.is_in_readme && ratio.min > 0.0;
    let bars: Vec<_> = rows().filter_map(inverted).filter(is_drawn).collect();
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width as i32 - LEFT - RIGHT, height as i32 - TOP - 40);
    let min = bars.iter().fold(0.5_f64, |min, (_, ratio)| min.min(ratio.min)) / 1.2;
    let max = bars.iter().fold(2.0_f64, |max, (_, ratio)| max.max(ratio.max)) * 1.2;
    let x = |ratio: f64| LEFT + (f64::from(width) * (ratio / min).ln() / (max / min).ln()) as i32;

    let text = |text: &str, at, horizontal| {
        let style = FONT.into_text_style(area).pos(Pos::new(horizontal, VPos::Center));
        area.draw(&Text::new(text.to_owned(), at, style))
    };
    text(
        "Ours / Netty, of throughputs Netty / ours. Less is better: blue. Thin line: minimum to maximum.",
        (20, 20),
        HPos::Left,
    )?;
    for ratio in [0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0] {
        if (min..max).contains(&ratio) {
            let colour = BLACK.mix(if ratio == 1.0 { 0.8 } else { 0.15 });
            area.draw(&PathElement::new([(x(ratio), TOP), (x(ratio), TOP + height)], colour))?;
            text(&ratio.to_string(), (x(ratio), TOP + height + 14), HPos::Center)?;
        }
    }
    let step = f64::from(height) / bars.len() as f64;
    for (index, (row, ratio)) in bars.iter().enumerate() {
        let middle = TOP + (step * (index as f64 + 0.5)) as i32;
        let half = (step * 0.3) as i32;
        let colour = if ratio.median <= 1.0 { BETTER } else { WORSE };
        let bar = [(x(1.0), middle - half), (x(ratio.median), middle + half)];
        area.draw(&Rectangle::new(bar, colour.mix(0.8).filled()))?;
        area.draw(&PathElement::new(
            [(x(ratio.min), middle), (x(ratio.max), middle)],
            BLACK.stroke_width(1),
        ))?;
        text(row.title, (LEFT - 12, middle), HPos::Right)?;
        text(&format!("{:.2}", ratio.median), (LEFT + width + 8, middle), HPos::Left)?;
    }
    Ok(())
}

fn less_is_better(row: &Row, ratio: Spread) -> Spread {
    let Spread { median, min, max } = ratio;
    if is_throughput(row) { Spread { median: 1.0 / median, min: 1.0 / max, max: 1.0 / min } } else { ratio }
}

/// Whether the row is a throughput, for which a higher value is better.
fn is_throughput(row: &Row) -> bool {
    row.unit == "M/s"
}
