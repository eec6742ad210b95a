//! The figures in docs/: the ratios to Netty, the lateness, and the costs by the number of pending
//! timeouts and of threads.

mod labels;
mod lines;
mod ratios;

use std::error::Error;

use labels::Area;
use plotters::prelude::*;

use crate::measure::Measurements;
use crate::summary::Summary;

type Drawn = Result<(), Box<dyn Error>>;

/// Returns each figure with the name of its file.
pub(crate) fn all(measurements: &Measurements) -> Result<[(&'static str, String); 4], Box<dyn Error>> {
    let summary = &Summary { measurements };
    Ok([
        ("benchmarks-ratios.svg", svg((900, 620), |area| ratios::draw(area, summary))?),
        ("benchmarks-lateness.svg", svg((900, 520), |area| lines::lateness(area, summary))?),
        ("benchmarks-pending.svg", svg((900, 520), |area| lines::pending(area, summary))?),
        ("benchmarks-scaling.svg", svg((900, 520), |area| lines::scaling(area, summary))?),
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
