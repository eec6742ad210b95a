//! The program `wheel-top`: a live timer in a terminal, with the content of the wheel, the number
//! of pending timeouts, the rates, the lateness and the load of the worker.
//!
//! ```sh
//! wheel-top 127.0.0.1:7070
//! ```
//!
//! Without an address it shows two timers of its own, which have some load. It waits for a program
//! that has not started yet, reports when a program has ended, and then shows the next one. `?`
//! shows a legend. `q`, Esc and Ctrl-C quit, and so do the signals that ask a program to terminate.
//!
//! Exit status: 0 after quitting, 1 if there is no terminal (or, with `--once`, nothing to show), 2
//! if the options are invalid.

mod attach;
mod demo;
mod draw;
mod legend;
#[cfg(unix)]
mod signals;
mod state;
mod style;
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

use crate::frame::INTERVAL;

use self::attach::Message;
use self::state::State;

/// Shows a live timer
#[derive(Debug, Parser)]
#[command(
    name = "wheel-top",
    version,
    after_help = "Keys: q, Esc or Ctrl-C quit; Tab shows the next timer; ? shows a legend.\n\
    Exit status: 0 after quitting, 1 if there is no terminal, or with --once nothing to show, 2 if the\n\
    options are invalid."
)]
struct Options {
    /// The address on which the program shows its timers, such as 127.0.0.1:7070: the result of
    /// `wheel_top::watch` (default: two timers of `wheel-top` itself)
    address: Option<SocketAddr>,

    /// Print one picture as plain text and quit
    #[arg(long)]
    once: bool,

    /// The size of that picture
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "100x32", value_parser = size, requires = "once")]
    size: (u16, u16),

    /// The name of the timer to show first
    #[arg(long, value_name = "NAME")]
    timer: Option<String>,
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let (columns, rows) = text
        .split_once('x')
        .ok_or("the size must be two numbers, such as 100x32")?;
    let number = |text: &str| match text.parse() {
        Ok(number @ 1..=1_000) => Ok(number),
        _ => Err(format!("{text:?} is not a number from 1 to 1000")),
    };
    Ok((number(columns)?, number(rows)?))
}

/// The time limit for one picture.
const PICTURE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the program with the command line of this process, and returns its exit status.
///
/// Blocks until the user quits. Ends the process itself for `--help`, `--version` and invalid
/// options.
///
/// # Examples
///
/// A copy of the program in another package:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     wheel_top::cli::main()
/// }
/// ```
#[must_use]
pub fn main() -> ExitCode {
    let options = Options::parse();
    let address = match options.address {
        Some(address) => address,
        None => match demo::start() {
            Ok(address) => address,
            Err(error) => return fail(&format!("cannot start the timers: {error}")),
        },
    };
    let state = State::new(address, options.timer);
    let messages = attach::to(address);
    match (options.once, io::stdout().is_terminal()) {
        (true, _) => once(state, &messages, options.size),
        (false, true) => match run(state, &messages) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("terminal error: {error}")),
        },
        (false, false) => fail("there is no terminal: use --once to print a picture without one"),
    }
}

fn fail(why: &str) -> ExitCode {
    // Unlike `eprintln!`, without a panic if the reader has closed the pipe.
    let _ = writeln!(io::stderr(), "error: {why}");
    ExitCode::FAILURE
}

/// Runs until the user quits.
fn run(mut state: State, messages: &Receiver<Message>) -> io::Result<()> {
    let is_terminated = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    signals::listen(Arc::clone(&is_terminated))?;
    // Also restores the terminal if this function panics.
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if is_terminated.load(Relaxed) {
            break Ok(());
        }
        state.receive_all(messages, Instant::now());
        let drawn = terminal.draw(|frame| draw::all(&state, frame.area(), frame.buffer_mut()));
        match drawn.and_then(|_| key()) {
            Ok(Some(Key::Leave)) => break Ok(()),
            Ok(Some(Key::Next)) => state.show_next(),
            Ok(Some(Key::Legend)) => state.switch_legend(),
            Ok(None) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore().and(result)
}

enum Key {
    Leave,
    Next,
    Legend,
}

/// Returns the key that was pressed, if one was pressed within a short time.
fn key() -> io::Result<Option<Key>> {
    if !event::poll(INTERVAL)? {
        return Ok(None);
    }
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press,
        ..
    }) = event::read()?
    else {
        return Ok(None);
    };
    Ok(match code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Leave),
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Leave),
        KeyCode::Tab => Some(Key::Next),
        KeyCode::Char('?') => Some(Key::Legend),
        _ => None,
    })
}

/// Prints one picture as soon as there is enough to show.
fn once(mut state: State, messages: &Receiver<Message>, (columns, rows): (u16, u16)) -> ExitCode {
    let began = Instant::now();
    while !state.has_rates() && began.elapsed() < PICTURE_TIMEOUT {
        match messages.recv_timeout(PICTURE_TIMEOUT.saturating_sub(began.elapsed())) {
            Ok(one) => state.receive(one, Instant::now()),
            Err(_) => break,
        }
    }
    if state.shown().is_none() {
        return fail(&state.status());
    }
    if let Some(name) = state.wanted() {
        return fail(&format!("there is no timer named {name:?}"));
    }
    let mut terminal =
        Terminal::new(TestBackend::new(columns, rows)).expect("the backend is in memory");
    terminal
        .draw(|frame| draw::all(&state, frame.area(), frame.buffer_mut()))
        .expect("the backend is in memory");
    let rows = terminal.backend().buffer().content().chunks(columns.into());
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let picture: String = rows.map(|row| row.trim_end().to_owned() + "\n").collect();
    match io::stdout().write_all(picture.as_bytes()) {
        // A broken pipe is no error: the reader has closed it.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            fail(&format!("cannot print the picture: {error}"))
        }
        _ => ExitCode::SUCCESS,
    }
}
