//! The clients, each on a thread of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::PATIENCE;
use crate::server::IDLE;

const LINE: &[u8] = b"hello\n";

/// How often a busy client sends, and for how long.
const EVERY: Duration = Duration::from_millis(50);
const LENGTH: Duration = IDLE.saturating_mul(2);

/// What the clients saw.
#[derive(Default)]
pub(crate) struct Seen {
    /// Fell silent and were closed when the time was over.
    pub(crate) closed: u64,
    /// Were busy and served to their end.
    pub(crate) kept: u64,
    /// The longest time that a busy client left between two packets. It tells a slow machine from a wrong timer.
    pub(crate) longest_gap: Duration,
}

/// So many clients of each kind.
pub(crate) fn run(server: SocketAddr, silent: u64, busy: u64) -> io::Result<Seen> {
    thread::scope(|scope| {
        let silent: Vec<_> = (0..silent).map(|_| scope.spawn(move || be_silent(server))).collect();
        let busy: Vec<_> = (0..busy).map(|_| scope.spawn(move || be_busy(server))).collect();
        let mut seen = Seen::default();
        for client in silent {
            seen.closed += u64::from(client.join().expect("no client panics")?);
        }
        for client in busy {
            let (kept, gap) = client.join().expect("no client panics")?;
            seen.kept += u64::from(kept);
            seen.longest_gap = seen.longest_gap.max(gap);
        }
        Ok(seen)
    })
}

/// Sends one line. Returns whether it was closed then, and not early.
fn be_silent(server: SocketAddr) -> io::Result<bool> {
    let mut stream = connect(server)?;
    let sent = Instant::now();
    let echoed = say_hello(&mut stream)?;
    let is_closed = stream.read(&mut [0]).is_ok_and(|read| read == 0);
    Ok(echoed && is_closed && sent.elapsed() >= IDLE)
}

/// Sends lines. Returns whether each came back, and the longest time between two.
fn be_busy(server: SocketAddr) -> io::Result<(bool, Duration)> {
    let mut stream = connect(server)?;
    let began = Instant::now();
    let (mut sent, mut longest_gap) = (began, Duration::ZERO);
    while began.elapsed() < LENGTH {
        let kept = say_hello(&mut stream).unwrap_or(false);
        longest_gap = longest_gap.max(sent.elapsed());
        sent = Instant::now();
        if !kept {
            return Ok((false, longest_gap));
        }
        thread::sleep(EVERY);
    }
    Ok((true, longest_gap))
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Whether the line comes back.
fn say_hello(stream: &mut TcpStream) -> io::Result<bool> {
    let mut line = [0; LINE.len()];
    stream.write_all(LINE)?;
    stream.read_exact(&mut line)?;
    Ok(line == LINE)
}
