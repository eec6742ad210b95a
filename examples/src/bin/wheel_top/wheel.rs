//! The wheel: a circle of bars with a hand that turns, or a row of bars for each level.

use std::f64::consts::TAU;
use std::time::Duration;

use hashed_wheel_examples::top::{Level, Wheel, merge};
use indicatif::HumanCount;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{self, Canvas, Context};

use crate::draw::{BAD, QUIET, bars, panel, span};
use crate::state::Timer;

/// The hand, and the slot that it points to.
const HAND: Color = BAD;

/// Of a slot, by how soon the hand comes to it: what is soon stands out.
fn color(ahead: f64) -> Color {
    match ahead {
        ..0.125 => Color::Yellow,
        ..0.5 => Color::Green,
        _ => Color::Blue,
    }
}

/// Where the hand is, from 0 at the first slot to 1 beyond the last.
fn hand(level: &Level) -> f64 {
    level.present as f64 / level.size.max(1) as f64
}

/// In which of so many parts it is.
fn part_of_hand(level: &Level, parts: usize) -> usize {
    ((level.present + 1) * parts).saturating_sub(1) / level.size.max(1)
}

/// The slots in so many parts: how much is in each, and its colour.
fn parts(level: &Level, most: usize) -> Vec<(u64, Color)> {
    let parts = merge(&level.slots, most);
    let count = parts.len();
    // Where the hand is it comes again a turn later; but of a higher level that slot is the next one to be moved down.
    let after = usize::from(level.ticks_per_slot == 1);
    let present = part_of_hand(level, count);
    let colored = parts.into_iter().enumerate().map(|(part, entries)| {
        let ahead = (part + count - present - after) % count + after;
        (entries as u64, color(ahead as f64 / count as f64))
    });
    colored.collect()
}

/// Whether it is to be drawn as a circle: the hashed wheel is, and a hierarchical one while it needs one level.
pub(crate) fn is_one_ring(timer: &Timer) -> bool {
    let levels = timer.wheel.as_ref().map_or(&[][..], |wheel| &wheel.levels);
    matches!(levels, [level] if level.ticks_per_slot == 1)
}

// --- the circle -------------------------------------------------------------------------------------------------------

/// Where bars begin, and how long they can be. The canvas reaches from -1 to 1.
const INNER: f64 = 0.42;
const LONGEST: f64 = 0.44;

/// A turn that starts at the top, with the hand going as a clock's does.
fn point(turn: f64, radius: f64) -> (f64, f64) {
    let angle = turn * TAU;
    (radius * angle.sin(), radius * angle.cos())
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), color: Color) -> canvas::Line {
    canvas::Line { x1, y1, x2, y2, color }
}

pub(crate) fn circle(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let Some(Wheel { levels, tick, .. }) = &timer.wheel else { return };
    let Some(level) = levels.first() else { return };
    let name = format!("wheel: {} slots of {}", HumanCount(level.size as u64), span(timer.now.tick));
    let inner = panel(name, area, buf);
    // As wide as it is high: a character is twice as high as it is wide.
    let height = inner.height.min(inner.width / 2);
    let square = Rect {
        x: inner.x + (inner.width - height * 2) / 2,
        y: inner.y + (inner.height - height) / 2,
        width: height * 2,
        height,
    };
    // About two dots of the canvas for each, where they begin.
    let most = (usize::from(height) * 4).next_power_of_two() / 2;
    let parts = parts(level, most.max(8));
    let canvas = Canvas::default().marker(Marker::Braille).x_bounds([-1.0, 1.0]).y_bounds([-1.0, 1.0]);
    canvas.paint(|context| rings(context, level, &parts)).render(square, buf);
    let middle = Rect { y: square.y + square.height / 2, height: u16::from(height > 0), ..square };
    Line::from(HumanCount(level.slots.iter().sum::<usize>() as u64).to_string().bold())
        .centered()
        .render(middle, buf);
    let below = Rect { y: middle.y + 1, ..middle }.intersection(square);
    Line::from("entries".fg(QUIET)).centered().render(below, buf);
    let corner = Rect { y: inner.bottom().saturating_sub(1), height: 1, ..inner }.intersection(inner);
    Line::from(format!("tick {}", HumanCount(*tick)).fg(QUIET)).render(corner, buf);
}

fn rings(context: &mut Context<'_>, level: &Level, parts: &[(u64, Color)]) {
    /// A bar is so many lines beside each other.
    const LINES: usize = 8;

    let width = 1.0 / parts.len() as f64;
    for part in 0..parts.len() {
        let [from, to] = [part, part + 1].map(|end| point(end as f64 * width, INNER));
        context.draw(&line(from, to, QUIET));
    }
    let highest = parts.iter().map(|(entries, _)| *entries).max().unwrap_or(0).max(1) as f64;
    for (part, &(entries, color)) in parts.iter().enumerate().filter(|(_, (entries, _))| *entries > 0) {
        let outer = INNER + 0.03 + LONGEST * entries as f64 / highest;
        for beside in 0..LINES {
            // Not quite as wide as there is room, so that neighbours stay apart.
            let turn = (part as f64 + 0.15 + 0.6 * beside as f64 / (LINES - 1) as f64) * width;
            context.draw(&line(point(turn, INNER + 0.03), point(turn, outer), color));
        }
    }
    context.layer();
    let turn = hand(level);
    context.draw(&line(point(turn, INNER * 0.5), point(turn, 1.0), HAND));
    for quarter in 0..4 {
        let (x, y) = point(f64::from(quarter) / 4.0, 0.98);
        let slot = (level.size * quarter as usize / 4).to_string();
        // A text begins where it is put.
        let x = x.min(1.0 - 0.05 * slot.len() as f64);
        context.print(x, y, slot.fg(QUIET));
    }
}

// --- rows -------------------------------------------------------------------------------------------------------------

/// What a level needs: its name, bars, the hand.
const ROW: u16 = 3;

/// How high an area for [`strips`] has to be for all levels.
pub(crate) fn least_height(timer: &Timer) -> u16 {
    let levels = timer.wheel.as_ref().map_or(0, |wheel| wheel.levels.len());
    2 + ROW * u16::try_from(levels).unwrap_or(u16::MAX / ROW).clamp(1, 8)
}

/// A row for each level, the lowest first, as far as there is room.
pub(crate) fn strips(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let levels = timer.wheel.as_ref().map_or(&[][..], |wheel| &wheel.levels);
    let name = match levels.len() {
        _ if is_one_ring(timer) => "slots".into(),
        0 => "wheel".into(),
        1 => format!("wheel: 1 level of {} slots", timer.now.ticks_per_wheel),
        count => format!("wheel: {count} levels of {} slots", timer.now.ticks_per_wheel),
    };
    let inner = panel(name, area, buf);
    if levels.is_empty() {
        let why = match timer.wheel {
            _ if timer.now.is_stopped => "the timer is stopped",
            _ if timer.now.has_too_many_slots() => "too many slots to look at",
            None => "the worker is in a turn",
            Some(_) => "nothing was put in so far",
        };
        return Line::from(why.fg(QUIET)).render(inner, buf);
    }
    // By hand, for there may be 64 of them, which is more than the solver of `Layout` takes lightly.
    let fitting = (inner.height / ROW).clamp(1, u16::try_from(levels.len()).unwrap_or(u16::MAX));
    let edge = |row: usize| inner.y + (usize::from(inner.height) * row / usize::from(fitting)) as u16;
    for (row, level) in levels.iter().take(fitting.into()).enumerate() {
        let area = Rect { y: edge(row), height: edge(row + 1) - edge(row), ..inner };
        strip(timer, level, area, buf);
    }
}

fn strip(timer: &Timer, level: &Level, area: Rect, buf: &mut Buffer) {
    let rows = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [name, chart, hand] = Layout::vertical(rows).areas(area);
    let length = timer.now.tick.as_secs_f64() * level.ticks_per_slot as f64;
    let length = Duration::try_from_secs_f64(length).unwrap_or(Duration::MAX);
    let entries = level.slots.iter().sum::<usize>() as u64;
    Line::from(vec![
        format!("{}", HumanCount(entries)).bold(),
        format!(" in slots of {}", span(length)).fg(QUIET),
    ])
    .render(name, buf);

    let parts = parts(level, chart.width.max(1).into());
    // A level of few slots has wide ones.
    let width = (usize::from(chart.width) / parts.len().max(1)).clamp(1, 8) as u16;
    let chart = Rect { width: (width * parts.len() as u16).min(chart.width), ..chart };
    let column = part_of_hand(level, parts.len()) as u16 * width;
    bars(parts, width, chart, buf);

    let marker = format!("▲ {}", level.present);
    let space = usize::from(column);
    let marker = if space + marker.chars().count() <= usize::from(hand.width) {
        format!("{:space$}{marker}", "")
    } else {
        // To its left, where there is no room to its right.
        format!("{:>end$}", format!("{} ▲", level.present), end = space + 1)
    };
    Line::from(marker.fg(HAND)).render(hand, buf);
}
