//! Listening to a program, and to the next one when it has ended.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use hashed_wheel_examples::top::Frame;

/// What comes of it.
pub(crate) enum Heard {
    Frame(Frame),
    /// It was there, and is gone.
    Ended,
    /// It is not there.
    Nobody,
    /// It says something else.
    Nonsense,
}

/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(300);

const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn to(address: SocketAddr) -> Receiver<Heard> {
    let (say, heard) = mpsc::channel();
    thread::spawn(move || {
        while listen(address, &say).is_ok_and(|end| say.send(end).is_ok()) {
            thread::sleep(PAUSE);
        }
    });
    heard
}

/// To the end; says what that is, or that nobody wants to know.
fn listen(address: SocketAddr, say: &Sender<Heard>) -> Result<Heard, mpsc::SendError<Heard>> {
    let Ok(stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return Ok(Heard::Nobody) };
    let mut lines = BufReader::new(stream).lines();
    // An error is an end: what was killed says no more than that.
    while let Some(Ok(line)) = lines.next() {
        match serde_json::from_str(&line) {
            Ok(frame) => say.send(Heard::Frame(frame))?,
            // Cut off, or from somebody else.
            Err(error) if error.is_eof() => break,
            Err(_) => return Ok(Heard::Nonsense),
        }
    }
    Ok(Heard::Ended)
}
