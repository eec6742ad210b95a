//! Common to all parts of the picture: colours, frames, bars, spans of time.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Bar, BarChart, BarGroup, Block, BorderType, Widget};

pub(crate) const GOOD: Color = Color::Green;
pub(crate) const FAIR: Color = Color::Yellow;
pub(crate) const BAD: Color = Color::LightRed;
pub(crate) const DIM: Color = Color::DarkGray;

/// Draws a frame with a title and returns the area inside.
pub(crate) fn panel(name: impl Into<String>, area: Rect, buf: &mut Buffer) -> Rect {
    let name = Line::from(format!(" {} ", name.into())).style(Style::reset());
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(DIM)
        .title(name);
    let inner = block.inner(area);
    block.render(area, buf);
    inner
}

/// Draws adjacent bars of this width. Every value above zero is visible.
pub(crate) fn bars(bars: Vec<(u64, Color)>, width: u16, area: Rect, buf: &mut Buffer) {
    let highest = bars.iter().map(|(value, _)| *value).max().unwrap_or(0);
    // In eighths of a character.
    let max = u64::from(area.height) * 8;
    let bars: Vec<_> = bars
        .iter()
        .map(|&(value, color)| {
            let height = u128::from(value) * u128::from(max) / u128::from(highest.max(1));
            let height = if value > 0 { (height as u64).max(1) } else { 0 };
            Bar::default()
                .value(height)
                .text_value(String::new())
                .style(color)
        })
        .collect();
    let chart = BarChart::default()
        .data(BarGroup::default().bars(&bars))
        .bar_gap(0)
        .bar_width(width);
    chart.max(max.max(1)).render(area, buf);
}

/// Formats a time with three digits.
pub(crate) fn span(time: Duration) -> String {
    const UNITS: [(f64, &str); 8] = [
        (31_557_600.0, "y"),
        (86_400.0, "d"),
        (3_600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "µs"),
        (1e-9, "ns"),
    ];
    let seconds = time.as_secs_f64();
    // Values that would be rounded up to the next unit use that unit.
    let fits = |(unit, _): &&(f64, &str)| seconds >= unit * 0.9995;
    let Some((unit, name)) = UNITS.iter().find(fits) else {
        return "0".into();
    };
    let value = seconds / unit;
    let decimals = if value < 9.995 {
        2
    } else {
        usize::from(value < 99.95)
    };
    let digits = format!("{value:.decimals$}");
    let digits = if decimals > 0 {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        &digits
    };
    format!("{digits}{name}")
}
