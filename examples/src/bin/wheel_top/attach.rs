//! Listening to a program, and to the next one when it has ended.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use hashed_wheel_examples::top::{Frame, Level, MAX_SENT_SLOTS, Snapshot};

/// What comes of it.
pub(crate) enum Heard {
    Frame(Frame),
    Gone(Why),
}

/// Why there is no program to be heard.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Why {
    /// It was there, and is gone.
    Ended,
    /// It is not there.
    Nobody,
    /// Somebody is, who has said nothing.
    Silent,
    /// It says something else.
    Nonsense,
}

/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(300);

const PATIENCE: Duration = Duration::from_secs(2);

/// No more than this waits to be seen: who says more has to wait for that.
pub(crate) const WAITING: usize = 64;

/// Of a frame, in bytes.
const LONGEST: u64 = 1 << 20;

pub(crate) fn to(address: SocketAddr) -> Receiver<Heard> {
    let (say, heard) = mpsc::sync_channel(WAITING);
    thread::spawn(move || {
        while listen(address, &say).is_ok_and(|why| say.send(Heard::Gone(why)).is_ok()) {
            thread::sleep(PAUSE);
        }
    });
    heard
}

/// To the end; says why that is, or that nobody wants to know.
fn listen(address: SocketAddr, say: &SyncSender<Heard>) -> Result<Why, mpsc::SendError<Heard>> {
    let Ok(stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return Ok(Why::Nobody) };
    let mut stream = BufReader::new(stream);
    let mut end = Why::Silent;
    say.send(Heard::Gone(end))?;
    loop {
        let mut line = Vec::new();
        // An error is an end: what was killed says no more than that.
        let _ = stream.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        match serde_json::from_slice(&line) {
            Ok(frame) if is_sane(&frame) => say.send(Heard::Frame(frame))?,
            Err(error) if error.is_eof() && (line.len() as u64) < LONGEST => return Ok(end),
            _ => return Ok(Why::Nonsense),
        }
        end = Why::Ended;
    }
}

/// Whether it can be drawn: what is added up or multiplied there does not overflow, and there is not too much of it.
pub(crate) fn is_sane(frame: &Frame) -> bool {
    const MOST: u64 = 1 << 48;
    const MOST_ROWS: usize = 64;

    let level_is_sane = |level: &Level| {
        level.present < level.size
            && (level.size as u64) < MOST
            && level.slots.len() <= MAX_SENT_SLOTS.min(level.size)
            && level.slots.iter().all(|entries| (*entries as u64) < MOST)
    };
    let is_sane = |timer: &Snapshot| {
        let levels = timer.wheel.as_ref().map_or(&[][..], |wheel| &wheel.levels);
        timer.pending < MOST
            && timer.tick.as_secs() < MOST
            && timer.lateness.len() <= MOST_ROWS
            && timer.lateness.iter().all(|(_, count)| *count < MOST)
            && levels.len() <= MOST_ROWS
            && levels.iter().all(level_is_sane)
    };
    frame.timers.iter().all(is_sane)
}
