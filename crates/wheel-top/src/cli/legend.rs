//! The legend, which `?` shows above the picture.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget};

use super::style::{BAD, DIM, FAIR, GOOD, panel};
use super::wheel::{FAR, HAND, NEAR, SOON};

/// The number of columns of the first column.
const NAMES: usize = 10;

/// The number of columns of the whole legend, with its frame.
const WIDTH: u16 = 76;

fn entry(name: &str, meaning: Vec<Span<'static>>) -> Line<'static> {
    let name = format!("{name:<NAMES$}").bold();
    Line::from([vec![name], meaning].concat())
}

fn colored(text: &'static str, color: Color) -> Span<'static> {
    text.fg(color)
}

fn lines() -> Vec<Line<'static>> {
    vec![
        entry(
            "wheel",
            vec!["a bar per slot, or per some slots: how many entries it has".into()],
        ),
        entry(
            "",
            vec![
                "the hand reaches them within ".into(),
                colored("an eighth", SOON),
                ", ".into(),
                colored("half", NEAR),
                ", ".into(),
                colored("all", FAR),
                " of a round".into(),
            ],
        ),
        entry(
            "",
            vec![
                colored("the hand, or ▲", HAND),
                ": the slot of the current tick".into(),
            ],
        ),
        entry(
            "pending",
            vec!["timeouts that have not ended, in the last minute".into()],
        ),
        entry(
            "queued",
            vec!["new timeouts that the worker has not seen yet".into()],
        ),
        entry(
            "periodic",
            vec!["runs of periodic tasks, which are not in expired".into()],
        ),
        entry(
            "rejected",
            vec!["calls of new_timeout that returned an error".into()],
        ),
        entry(
            "busy",
            vec!["the share of the time that the worker was in turns".into()],
        ),
        entry(
            "turns",
            vec!["steps of the worker; a long one took longer than a tick".into()],
        ),
        entry("wake-ups", vec!["ends of the worker's sleeps".into()]),
        entry(
            "slow",
            vec!["tasks above the threshold, if the timer has one".into()],
        ),
        entry(
            "dropped",
            vec!["tasks that the executor has not run".into()],
        ),
        entry(
            "lateness",
            vec!["of timeouts and periodic runs, from the beginning of the tick at".into()],
        ),
        entry(
            "",
            vec![
                "which they are due: ".into(),
                colored("within a tick", GOOD),
                ", ".into(),
                colored("four ticks", FAIR),
                ", ".into(),
                colored("later", BAD),
            ],
        ),
        Line::from("Tab: the next timer   ?: the picture   q: quit".fg(DIM)),
    ]
}

/// Draws the legend in the middle of the area, or as much of it as fits.
pub(crate) fn draw(area: Rect, buf: &mut Buffer) {
    let lines = lines();
    let (width, height) = (
        WIDTH.min(area.width),
        (lines.len() as u16 + 2).min(area.height),
    );
    let (x, y) = (
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
    );
    let area = Rect {
        x,
        y,
        width,
        height,
    };
    Clear.render(area, buf);
    let inner = panel("legend", area, buf);
    Paragraph::new(lines).render(inner, buf);
}
