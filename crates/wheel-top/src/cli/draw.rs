//! Draws the state into an area of a buffer of any size. It never draws outside of the area.

use std::time::Duration;

use crate::frame::MAX_TIMERS;
use indicatif::HumanCount;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph, Sparkline, Widget, Wrap};

use super::state::{LATENESS, PAST, State, Timer};
use super::style::{BAD, DIM, FAIR, GOOD, bars, panel, span};
use super::{legend, wheel};

/// The minimum number of columns for two panels side by side.
const MIN_TWO_COLUMNS: u16 = 64;

/// The minimum number of rows for the wheel as a circle.
const MIN_CIRCLE_HEIGHT: u16 = 20;

/// The number of columns of the panels with numbers.
const NUMBERS: u16 = 40;

pub(crate) fn all(state: &State, area: Rect, buf: &mut Buffer) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    header(state, head, buf);
    match state.shown() {
        None => {
            let [_, middle, _] = Layout::vertical([
                Constraint::Fill(1),
                Constraint::Length(2),
                Constraint::Fill(1),
            ])
            .areas(body);
            Paragraph::new(state.status())
                .centered()
                .wrap(Wrap { trim: true })
                .render(middle, buf);
        }
        Some(timer) if body.width < MIN_TWO_COLUMNS => {
            let wheel = wheel::min_height(timer).min(body.height);
            let [above, below] =
                Layout::vertical([Constraint::Length(wheel), Constraint::Min(0)]).areas(body);
            wheel::strips(timer, above, buf);
            numbers(timer, below, buf);
        }
        Some(timer) => {
            // A circle has twice as many columns as rows.
            let circle = body.height.saturating_mul(2).min(body.width * 11 / 20);
            let left = circle
                .min(body.width.saturating_sub(NUMBERS))
                .max(body.width / 3);
            let [left, right] =
                Layout::horizontal([Constraint::Length(left), Constraint::Min(0)]).areas(body);
            if body.height >= MIN_CIRCLE_HEIGHT && wheel::is_one_ring(timer) {
                let strip = (body.height / 5).max(5);
                let [above, below] =
                    Layout::vertical([Constraint::Min(0), Constraint::Length(strip)]).areas(left);
                wheel::circle(timer, above, buf);
                wheel::strips(timer, below, buf);
            } else {
                wheel::strips(timer, left, buf);
            }
            numbers(timer, right, buf);
        }
    }
    if state.shows_legend() {
        legend::draw(body, buf);
    }
}

fn header(state: &State, area: Rect, buf: &mut Buffer) {
    let mut left = vec![
        " wheel-top ".bold().reversed(),
        " ".into(),
        escaped(state.program()).bold(),
    ];
    if let Some(timer) = state.shown() {
        left.push(format!(": {}", escaped(&timer.now.name)).into());
        if let (place, count @ 2..) = state.position_of_shown() {
            // A frame contains no more.
            let first = if count == MAX_TIMERS {
                "the first "
            } else {
                ""
            };
            left.push(format!(" ({place} of {first}{count}, Tab: the next)").fg(DIM));
        }
    }
    let status = match state.shown() {
        None => Span::raw(""),
        Some(_) if !state.is_live() => format!("■ {}", state.status()).fg(BAD),
        Some(timer) if timer.now.is_stopped => "■ the timer is stopped".fg(FAIR),
        Some(timer) => match timer.long_turn() {
            Some(time) => format!("● {}", in_a_turn(time)).fg(BAD),
            None => "● live".fg(GOOD),
        },
    };
    let right = Line::from(vec![" ".into(), status, "  ?: legend  q: quit ".fg(DIM)]);
    let [start, end] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(right.width() as u16)])
            .areas(area);
    Line::from(left).render(start, buf);
    right.render(end, buf);
}

/// Returns the beginning of a name from another program, with escapes instead of characters that
/// control the terminal, cannot be seen, or reverse the text after them.
fn escaped(name: &str) -> String {
    /// Of characters. A column may have any number of them: accents, for example.
    const MAX_LENGTH: usize = 64;

    let mut escaped = String::new();
    for (position, character) in name.chars().enumerate() {
        if position == MAX_LENGTH {
            escaped.push('…');
            break;
        }
        if character.is_control() || is_format(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Whether a character has an effect on other characters but no shape of its own.
fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

fn in_a_turn(time: Duration) -> String {
    format!("in a turn for {}s", time.as_secs())
}

/// Draws as many panels as fit, in order of importance.
fn numbers(timer: &Timer, area: Rect, buf: &mut Buffer) {
    type Panel = fn(&Timer, Rect, &mut Buffer);

    // The minimum height of each panel, and its share of the remaining rows.
    let panels: [(u16, u16, Panel); 4] = [
        (4, 1, pending),
        (2 + counters(timer).len() as u16, 0, rates),
        (6, 0, worker),
        (6, 1, lateness),
    ];
    let mut left = area.height;
    let fitting = panels.iter().take_while(|(height, ..)| {
        let fits = left >= *height;
        left = left.saturating_sub(*height);
        fits
    });
    let fitting: Vec<_> = fitting.collect();
    let rest: u16 = area
        .height
        .saturating_sub(fitting.iter().map(|(height, ..)| height).sum());
    let shares: u16 = fitting.iter().map(|(_, share, _)| share).sum();
    let heights = fitting.iter().map(|(height, share, _)| {
        Constraint::Length(height + if *share > 0 { rest * share / shares } else { 0 })
    });
    let areas = Layout::vertical(heights).split(area);
    fitting
        .iter()
        .zip(areas.iter())
        .for_each(|((_, _, draw), area)| draw(timer, *area, buf));
}

fn pending(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let inner = panel(format!("pending, {}s", PAST.as_secs()), area, buf);
    let [line, history] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(inner);
    let mut text = vec![count(timer.now.pending).bold()];
    if let Some(wheel) = timer.wheel.as_ref().filter(|wheel| wheel.on_the_way > 0) {
        let on_the_way = format!(", {} queued", HumanCount(wheel.on_the_way as u64));
        text.push(on_the_way.fg(DIM));
    }
    Line::from(text).render(line, buf);
    let past = timer.pending(history.width.into());
    // The latest value is at the right end.
    let width = (past.len() as u16).min(history.width);
    let history = Rect {
        x: history.right() - width,
        width,
        ..history
    };
    Sparkline::default()
        .data(&past)
        .style(Color::Cyan)
        .render(history, buf);
}

/// Returns the name of each counter of timeouts, its value, and its increase per second.
fn counters(timer: &Timer) -> Vec<(&'static str, u64, f64)> {
    let now = &timer.now;
    let mut counters = vec![
        (
            "scheduled",
            now.scheduled,
            timer.rate(|timer| timer.scheduled),
        ),
        ("expired", now.expired, timer.rate(|timer| timer.expired)),
        (
            "cancelled",
            now.cancelled,
            timer.rate(|timer| timer.cancelled),
        ),
        ("rejected", now.refused, timer.rate(|timer| timer.refused)),
    ];
    // Many timers have no periodic tasks.
    if now.periodic_runs > 0 {
        let rate = timer.rate(|timer| timer.periodic_runs);
        counters.insert(2, ("periodic", now.periodic_runs, rate));
    }
    counters
}

fn rates(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let inner = panel("timeouts", area, buf);
    let lines = counters(timer).into_iter().map(|(name, all, rate)| {
        let line = format!(
            "{name:<10}{:>11}/s{:>15}",
            per_second(rate),
            HumanCount(all).to_string()
        );
        let is_bad = name == "rejected" && all > 0;
        Line::styled(
            line,
            if is_bad {
                Style::from(FAIR)
            } else {
                Style::new()
            },
        )
    });
    Paragraph::new(lines.collect::<Vec<_>>()).render(inner, buf);
}

fn worker(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let inner = panel("worker", area, buf);
    let [busy, below] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(inner);
    let load = timer.load().clamp(0.0, 1.0);
    let color = if load < 0.5 { GOOD } else { BAD };
    let label = match timer.long_turn() {
        Some(time) => in_a_turn(time),
        None => format!("busy {:.1} % of the time", load * 100.0),
    };
    let style = Style::new().fg(color).bg(Color::Black);
    Gauge::default()
        .ratio(load)
        .label(label)
        .gauge_style(style)
        .use_unicode(true)
        .render(busy, buf);
    let now = &timer.now;
    let [turns, wake_ups] = [
        timer.rate(|timer| timer.turns),
        timer.rate(|timer| timer.wake_ups),
    ];
    let problems = [
        ("long turns", now.long_turns),
        ("slow tasks", now.slow),
        ("panics", now.panicked),
        ("dropped", now.dropped),
    ];
    let named = problems.iter().filter(|(_, count)| *count > 0);
    let named: Vec<_> = named
        .map(|(name, count)| format!("{name} {}", HumanCount(*count)))
        .collect();
    let lines = vec![
        Line::raw(format!(
            "{} turns/s, {} wake-ups/s",
            per_second(turns),
            per_second(wake_ups)
        )),
        Line::raw(format!("longest turn {}", span(now.longest_turn))),
        Line::from(named.join(", ").fg(FAIR)),
    ];
    Paragraph::new(lines).render(below, buf);
}

fn lateness(timer: &Timer, area: Rect, buf: &mut Buffer) {
    let worst = span(timer.now.worst_lateness);
    let inner = panel(
        format!("lateness, {}s (maximum {worst})", LATENESS.as_secs()),
        area,
        buf,
    );
    let [line, chart, axis] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(inner);
    let lately = timer.lateness();
    let is_none = lately.iter().all(|(_, count)| *count == 0);
    let [half, max] = [0.5, 0.99].map(|part| span(timer.quantile(part)));
    let text = match is_none {
        true => "nothing has expired".fg(DIM).into(),
        false => Line::raw(format!("median ≤ {half}, p99 ≤ {max}")),
    };
    text.render(line, buf);

    // A column per bucket, with a label where the colour changes.
    let width = (chart.width / lately.len().max(1) as u16).max(1);
    let columns = lately.iter().map(|(bound, count)| {
        let color = match bound {
            Some(bound) if *bound <= timer.now.tick => GOOD,
            Some(bound) if *bound <= timer.now.tick * 4 => FAIR,
            _ => BAD,
        };
        (*count, color)
    });
    bars(columns.collect(), width, chart, buf);
    for (column, (bound, _)) in lately.iter().enumerate().step_by(4) {
        if let (Some(bound), Ok(column)) = (bound, u16::try_from(column)) {
            let x = axis.x.saturating_add(column * width);
            let room = (width * 4).min(axis.right().saturating_sub(x));
            let label = Line::from(format!("≤{}", span(*bound)).fg(DIM));
            label.render(
                Rect {
                    x,
                    width: room,
                    ..axis
                }
                .intersection(axis),
                buf,
            );
        }
    }
}

fn count(count: u64) -> Span<'static> {
    HumanCount(count).to_string().into()
}

fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 {
        format!("{rate:.1}")
    } else {
        HumanCount(rate.round() as u64).to_string()
    }
}
