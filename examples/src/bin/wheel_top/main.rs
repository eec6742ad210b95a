//! A view of a live timer in a terminal, as `top` is of processes: how full the wheel is, how many timeouts are pending, what
//! happens in a second, how late it is, and how busy the worker.
//!
//! ```sh
//! # In one terminal something that has a timer:
//! cargo run --release -p hashed-wheel-examples --bin idle_connections -- --seconds 60 --top 127.0.0.1:7070
//! # And in another:
//! cargo run --release -p hashed-wheel-examples --bin wheel-top -- 127.0.0.1:7070
//! ```
//!
//! Without an address it shows two timers of its own, with something to do. It waits for a program that is not there yet, says
//! when it has ended, and shows the next one. `q`, Esc or Ctrl-C leave, and so do the signals that ask a program to end.
//!
//! Exit status: 0 when it was left, 1 if there is no terminal (or, with `--once`, nobody at that address or no such timer), 2 is
//! bad options. To let a program of your own be watched, copy `examples/src/top.rs`.

mod attach;
mod demo;
mod draw;
#[cfg(unix)]
mod signals;
mod state;
#[cfg(test)]
mod tests;
mod wheel;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use clap::Parser;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::attach::Heard;
use crate::state::State;

/// A view of a live timer.
#[derive(Debug, Parser)]
#[command(
    name = "wheel-top",
    after_help = "Keys: q, Esc or Ctrl-C leave; Tab shows the next timer.\n\
    Exit status: 0 when it was left, 1 if there is no terminal, or with --once nothing to look at, 2 is bad options."
)]
struct Options {
    /// Where a program shows its timer that was started with `--top ADDRESS`; without, timers of its own
    address: Option<SocketAddr>,

    /// Print one picture, as plain text, and leave
    #[arg(long)]
    once: bool,

    /// How large that is
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "100x32", value_parser = size, requires = "once")]
    size: (u16, u16),

    /// Which timer to show first, by its name
    #[arg(long, value_name = "NAME")]
    timer: Option<String>,
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let (columns, rows) = text.split_once('x').ok_or("it is two numbers, such as 100x32")?;
    let number = |text: &str| match text.parse() {
        Ok(number @ 1..=1_000) => Ok(number),
        _ => Err(format!("{text:?} is not a number from 1 to 1000")),
    };
    Ok((number(columns)?, number(rows)?))
}

/// How long one picture may take to come.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let options = Options::parse();
    let address = match options.address {
        Some(address) => address,
        None => match demo::start() {
            Ok(address) => address,
            Err(error) => return fail(&format!("the timers to look at: {error}")),
        },
    };
    let state = State::new(address, options.timer);
    let heard = attach::to(address);
    match (options.once, io::stdout().is_terminal()) {
        (true, _) => once(state, &heard, options.size),
        (false, true) => match live(state, &heard) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("the terminal: {error}")),
        },
        (false, false) => fail("there is no terminal here: --once prints a picture without one"),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

/// Until somebody leaves.
fn live(mut state: State, heard: &Receiver<Heard>) -> io::Result<()> {
    let told_to_end = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    signals::listen(Arc::clone(&told_to_end))?;
    // Also restores it where this panics.
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if told_to_end.load(Relaxed) {
            break Ok(());
        }
        state.hear_all(heard, Instant::now());
        let drawn = terminal.draw(|frame| draw::all(&state, frame.area(), frame.buffer_mut()));
        match drawn.and_then(|_| key()) {
            Ok(Some(Key::Leave)) => break Ok(()),
            Ok(Some(Key::Next)) => state.show_next(),
            Ok(None) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore().and(result)
}

enum Key {
    Leave,
    Next,
}

/// What was pressed, if anything was for a while.
fn key() -> io::Result<Option<Key>> {
    if !event::poll(hashed_wheel_examples::top::INTERVAL)? {
        return Ok(None);
    }
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event::read()? else {
        return Ok(None);
    };
    Ok(match code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Leave),
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Leave),
        KeyCode::Tab => Some(Key::Next),
        _ => None,
    })
}

/// A picture as soon as there is something to see in it.
fn once(mut state: State, heard: &Receiver<Heard>, (columns, rows): (u16, u16)) -> ExitCode {
    let began = Instant::now();
    while !state.has_rates() && began.elapsed() < PATIENCE {
        match heard.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
            Ok(one) => state.hear(one, Instant::now()),
            Err(_) => break,
        }
    }
    if state.shown().is_none() {
        return fail(&state.status());
    }
    if let Some(name) = state.wanted() {
        return fail(&format!("no timer there is named {name:?}"));
    }
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("nothing is written");
    terminal.draw(|frame| draw::all(&state, frame.area(), frame.buffer_mut())).expect("nothing is written");
    let rows = terminal.backend().buffer().content().chunks(columns.into());
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let picture: String = rows.map(|row| row.trim_end().to_owned() + "\n").collect();
    match io::stdout().write_all(picture.as_bytes()) {
        // Who reads no more has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&format!("the picture: {error}")),
        _ => ExitCode::SUCCESS,
    }
}
