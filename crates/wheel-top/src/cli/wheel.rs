//! Draws the wheel: a circle of bars with a rotating hand, or a row of bars per level.

use std::f64::consts::TAU;
use std::time::Duration;

use crate::frame::{Level, Wheel, merge};
use indicatif::HumanCount;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{self, Canvas, Context};

use super::state::Timer;
use super::style::{BAD, DIM, bars, panel, span};

/// The colour of the hand and of the current slot.
pub(crate) const HAND: Color = BAD;

/// The colours of slots that the hand reaches within an eighth, half, or all of a round.
pub(crate) const SOON: Color = Color::Yellow;
pub(crate) const NEAR: Color = Color::Green;
pub(crate) const FAR: Color = Color::Blue;

/// Returns the colour of a slot by the time until the hand reaches it. Near slots are more
/// prominent.
fn color(ahead: f64) -> Color {
    match ahead {
        ..0.125 => SOON,
        ..0.5 => NEAR,
        _ => FAR,
    }
}

/// Returns the position of the hand, from 0 at the first slot to 1 after the last slot.
fn hand(level: &Level) -> f64 {
    level.present as f64 / level.size.max(1) as f64
}

/// Returns the index of the part that contains the hand.
fn part_of_hand(level: &Level, parts: usize) -> usize {
    ((level.present + 1) * parts).saturating_sub(1) / level.size.max(1)
}

/// Divides the slots into at most `max` parts. Returns the number of entries and the colour of each
/// part.
fn parts(level: &Level, max: usize) -> Vec<(u64, Color)> {
    let parts = merge(&level.slots, max);
    let count = parts.len();
    // The hand returns to the current slot after a round. On a higher level, the current slot is
    // the next one whose entries move down.
    let after = usize::from(level.ticks_per_slot == 1);
    let present = part_of_hand(level, count);
    let colored = parts.into_iter().enumerate().map(|(part, entries)| {
        let ahead = (part + count - present - after) % count + after;
        (entries as u64, color(ahead as f64 / count as f64))
    });
    colored.collect()
}

/// Whether the wheel is drawn as a circle: a hashed wheel, or a hierarchical one that uses only one
/// level.
pub(crate) fn is_one_ring(timer: &Timer) -> bool {
    let levels = timer.wheel.as_ref().map_or(&[][..], |wheel| &wheel.levels);
    matches!(levels, [level] if level.ticks_per_slot == 1)
}

// --- the circle ----------------------------------------------------------------------------------

/// The inner end of the bars and their maximum length. The canvas extends from -1 to 1.
const INNER: f64 = 0.42;
const MAX_BAR: f64 = 0.44;

/// Returns a point at an angle from 0 to 1. The angle starts at the top and increases clockwise.
fn point(angle: f64, radius: f64) -> (f64, f64) {
    let angle = angle * TAU;
    (radius * angle.sin(), radius * angle.cos())
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), color: Color) -> canvas::Line {
    canvas::Line {
        x1,
        y1,
        x2,
        y2,
        color,
    }
}

pub(crate) fn circle(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let Some(Wheel { levels, tick, .. }) = &timer.wheel else {
        return;
    };
    let Some(level) = levels.first() else { return };
    let name = format!(
        "wheel: {} slots of {}",
        HumanCount(level.size as u64),
        span(timer.now.tick)
    );
    let inner = panel(name, area, buf);
    // A character is twice as high as wide, so the circle has twice as many columns as rows.
    let height = inner.height.min(inner.width / 2);
    let square = Rect {
        x: inner.x + (inner.width - height * 2) / 2,
        y: inner.y + (inner.height - height) / 2,
        width: height * 2,
        height,
    };
    // About two dots of the canvas per bar at its inner end.
    let max = (usize::from(height) * 4).next_power_of_two() / 2;
    let parts = parts(level, max.max(8));
    let canvas = Canvas::default()
        .marker(Marker::Braille)
        .x_bounds([-1.0, 1.0])
        .y_bounds([-1.0, 1.0]);
    canvas
        .paint(|context| rings(context, level, &parts))
        .render(square, buf);
    let middle = Rect {
        y: square.y + square.height / 2,
        height: u16::from(height > 0),
        ..square
    };
    Line::from(
        HumanCount(level.slots.iter().sum::<usize>() as u64)
            .to_string()
            .bold(),
    )
    .centered()
    .render(middle, buf);
    let below = Rect {
        y: middle.y + 1,
        ..middle
    }
    .intersection(square);
    Line::from("entries".fg(DIM)).centered().render(below, buf);
    let corner = Rect {
        y: inner.bottom().saturating_sub(1),
        height: 1,
        ..inner
    }
    .intersection(inner);
    Line::from(format!("tick {}", HumanCount(*tick)).fg(DIM)).render(corner, buf);
}

fn rings(context: &mut Context<'_>, level: &Level, parts: &[(u64, Color)]) {
    /// The number of adjacent lines per bar.
    const LINES: usize = 8;

    let width = 1.0 / parts.len() as f64;
    for part in 0..parts.len() {
        let [from, to] = [part, part + 1].map(|end| point(end as f64 * width, INNER));
        context.draw(&line(from, to, DIM));
    }
    let highest = parts
        .iter()
        .map(|(entries, _)| *entries)
        .max()
        .unwrap_or(0)
        .max(1) as f64;
    for (part, &(entries, color)) in parts
        .iter()
        .enumerate()
        .filter(|(_, (entries, _))| *entries > 0)
    {
        let outer = INNER + 0.03 + MAX_BAR * entries as f64 / highest;
        for index in 0..LINES {
            // Narrower than the available width, so that adjacent bars are separated.
            let angle = (part as f64 + 0.15 + 0.6 * index as f64 / (LINES - 1) as f64) * width;
            context.draw(&line(
                point(angle, INNER + 0.03),
                point(angle, outer),
                color,
            ));
        }
    }
    context.layer();
    let angle = hand(level);
    context.draw(&line(point(angle, INNER * 0.5), point(angle, 1.0), HAND));
    for quarter in 0..4 {
        let (x, y) = point(f64::from(quarter) / 4.0, 0.98);
        let slot = (level.size * quarter as usize / 4).to_string();
        // A text starts at its position.
        let x = x.min(1.0 - 0.05 * slot.len() as f64);
        context.print(x, y, slot.fg(DIM));
    }
}

// --- rows ----------------------------------------------------------------------------------------

/// The rows of a level: its name, bars, the hand.
const ROW: u16 = 3;

/// Returns the minimum height of an area for [`strips`] that shows all levels.
pub(crate) fn min_height(timer: &Timer) -> u16 {
    let levels = timer.wheel.as_ref().map_or(0, |wheel| wheel.levels.len());
    2 + ROW * u16::try_from(levels).unwrap_or(u16::MAX / ROW).clamp(1, 8)
}

/// Draws a row per level, the lowest level first, as far as they fit.
pub(crate) fn strips(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let levels = timer.wheel.as_ref().map_or(&[][..], |wheel| &wheel.levels);
    let name = match levels.len() {
        _ if is_one_ring(timer) => "slots".into(),
        0 => "wheel".into(),
        1 => format!("wheel: 1 level of {} slots", timer.now.ticks_per_wheel),
        count => format!(
            "wheel: {count} levels of {} slots",
            timer.now.ticks_per_wheel
        ),
    };
    let inner = panel(name, area, buf);
    if levels.is_empty() {
        let why = match timer.wheel {
            _ if timer.now.is_stopped => "the timer is stopped",
            _ if timer.now.has_too_many_slots() => "too many slots to show",
            None => "the worker is in a turn",
            Some(_) => "the wheel was never used",
        };
        return Line::from(why.fg(DIM)).render(inner, buf);
    }
    // Without `Layout`, whose solver is slow for up to 64 levels.
    let fitting = (inner.height / ROW).clamp(1, u16::try_from(levels.len()).unwrap_or(u16::MAX));
    let edge =
        |row: usize| inner.y + (usize::from(inner.height) * row / usize::from(fitting)) as u16;
    for (row, level) in levels.iter().take(fitting.into()).enumerate() {
        let area = Rect {
            y: edge(row),
            height: edge(row + 1) - edge(row),
            ..inner
        };
        strip(timer, level, area, buf);
    }
}

fn strip(timer: &Timer, level: &Level, area: Rect, buf: &mut Buffer) {
    let rows = [
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [name, chart, hand] = Layout::vertical(rows).areas(area);
    let length = timer.now.tick.as_secs_f64() * level.ticks_per_slot as f64;
    let length = Duration::try_from_secs_f64(length).unwrap_or(Duration::MAX);
    let entries = level.slots.iter().sum::<usize>() as u64;
    Line::from(vec![
        format!("{}", HumanCount(entries)).bold(),
        format!(" in slots of {}", span(length)).fg(DIM),
    ])
    .render(name, buf);

    let parts = parts(level, chart.width.max(1).into());
    // A level with few slots has wide bars.
    let width = (usize::from(chart.width) / parts.len().max(1)).clamp(1, 8) as u16;
    let chart = Rect {
        width: (width * parts.len() as u16).min(chart.width),
        ..chart
    };
    let column = part_of_hand(level, parts.len()) as u16 * width;
    bars(parts, width, chart, buf);

    let marker = format!("▲ {}", level.present);
    let space = usize::from(column);
    let marker = if space + marker.chars().count() <= usize::from(hand.width) {
        format!("{:space$}{marker}", "")
    } else {
        // To the left of the hand if there is no space to the right.
        format!("{:>end$}", format!("{} ▲", level.present), end = space + 1)
    };
    Line::from(marker.fg(HAND)).render(hand, buf);
}
