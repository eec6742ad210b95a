//! The figure in docs/: the lateness.

mod labels;
mod lines;

use std::error::Error;

use labels::Area;
use plotters::prelude::*;

use crate::measure::Measurements;
use crate::summary::Summary;

type Drawn = Result<(), Box<dyn Error>>;

/// Returns the name of the file, and the figure.
pub(crate) fn lateness(measurements: &Measurements) -> Result<(&'static str, String), Box<dyn Error>> {
    let summary = &Summary { measurements };
    Ok(("benchmarks-lateness.svg", svg((900, 520), |area| lines::lateness(area, summary))?))
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
