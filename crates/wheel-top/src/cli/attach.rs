//! Receives frames from a program, and from the next one after it has ended.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use crate::frame::{Frame, Level, MAX_SENT_SLOTS, MAX_TIMERS, Snapshot};

/// A frame, or the end of a connection.
pub(crate) enum Message {
    Frame(Frame),
    Gone(Why),
}

/// Why there are no frames.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Why {
    /// The program was there and has ended.
    Ended,
    /// No program listens on the address.
    NotListening,
    /// The program has sent nothing, or nothing for a long time.
    Silent,
    /// The program has sent a frame that is too long.
    TooLong,
    /// The program has sent something else.
    Invalid,
}

/// The time until the next attempt.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// The time limit for a connection.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The connection to a program that has sent nothing for this long is replaced by another one: the
/// end of a program may not be reported, such as that of a whole machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The capacity of the channel. If it is full, the receiving thread waits.
pub(crate) const CAPACITY: usize = 8;

/// The maximum length of a frame in bytes. The maximum number of timers fits, unless their names
/// are very long.
pub(crate) const MAX_LENGTH: u64 = 1 << 22;

pub(crate) fn to(address: SocketAddr) -> Receiver<Message> {
    let (sender, messages) = mpsc::sync_channel(CAPACITY);
    thread::spawn(move || {
        let listen = || listen(address, PATIENCE, &sender);
        while listen().is_ok_and(|why| sender.send(Message::Gone(why)).is_ok()) {
            thread::sleep(RETRY_DELAY);
        }
    });
    messages
}

/// Receives frames until the connection ends. Returns the reason, or an error if the receiver of
/// the channel was dropped.
fn listen(
    address: SocketAddr,
    patience: Duration,
    sender: &SyncSender<Message>,
) -> Result<Why, mpsc::SendError<Message>> {
    let Ok(stream) = connect(address, patience) else {
        return Ok(Why::NotListening);
    };
    let mut stream = BufReader::new(stream);
    let mut end = Why::Silent;
    sender.send(Message::Gone(end))?;
    loop {
        let mut line = Vec::new();
        let read = stream
            .by_ref()
            .take(MAX_LENGTH)
            .read_until(b'\n', &mut line);
        // Another error counts as the end: the connection of a killed program is reset.
        if read.is_err_and(|error| is_timeout(error.kind())) {
            return Ok(Why::Silent);
        }
        match serde_json::from_slice(&line) {
            Ok(frame) if is_valid(&frame) => sender.send(Message::Frame(frame))?,
            Err(error) if error.is_eof() && (line.len() as u64) < MAX_LENGTH => return Ok(end),
            Err(error) if error.is_eof() => return Ok(Why::TooLong),
            _ => return Ok(Why::Invalid),
        }
        end = Why::Ended;
    }
}

fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    // While no program listens, the system may choose the port of the address for this end too.
    // Then the stream is connected to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Whether a read has ended because of its time limit. The kind depends on the system.
fn is_timeout(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Whether the frame can be drawn: its numbers must not cause overflows, and there must not be too
/// many of them.
pub(crate) fn is_valid(frame: &Frame) -> bool {
    const MAX: u64 = 1 << 48;
    const MAX_ROWS: usize = 64;

    let is_level_valid = |level: &Level| {
        level.present < level.size
            && (level.size as u64) < MAX
            && level.slots.len() <= MAX_SENT_SLOTS.min(level.size)
            && level.slots.iter().all(|entries| (*entries as u64) < MAX)
    };
    let is_valid = |timer: &Snapshot| {
        let levels = timer.wheel.as_ref().map_or(&[][..], |wheel| &wheel.levels);
        timer.pending < MAX
            && timer.tick.as_secs() < MAX
            && timer.lateness.len() <= MAX_ROWS
            && timer.lateness.iter().all(|(_, count)| *count < MAX)
            && levels.len() <= MAX_ROWS
            && levels.iter().all(is_level_valid)
    };
    frame.timers.len() <= MAX_TIMERS && frame.timers.iter().all(is_valid)
}

#[cfg(test)]
mod tests;
