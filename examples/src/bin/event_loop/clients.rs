//! The clients. Each one has its own thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::TIMEOUT;
use crate::server::IDLE;

const LINE: &[u8] = b"hello\n";

/// The interval between the packets of a busy client, and how long it sends.
const INTERVAL: Duration = Duration::from_millis(50);
const DURATION: Duration = IDLE.saturating_mul(2);

/// What the clients observed.
#[derive(Default)]
pub(crate) struct Seen {
    /// Clients that fell silent and were disconnected at the right time.
    pub(crate) closed: u64,
    /// Busy clients that stayed connected until they had finished.
    pub(crate) kept: u64,
    /// The longest pause of a busy client between two packets. It distinguishes a slow machine from
    /// an incorrect timer.
    pub(crate) longest_gap: Duration,
}

/// Runs the given numbers of silent and busy clients.
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

/// Sends one line. Returns whether the server then closed the connection, and not too early.
fn be_silent(server: SocketAddr) -> io::Result<bool> {
    let mut stream = connect(server)?;
    let sent = Instant::now();
    let echoed = say_hello(&mut stream)?;
    let is_closed = stream.read(&mut [0]).is_ok_and(|read| read == 0);
    Ok(echoed && is_closed && sent.elapsed() >= IDLE)
}

/// Sends lines. Returns whether each one was echoed, and the longest pause between two lines.
fn be_busy(server: SocketAddr) -> io::Result<(bool, Duration)> {
    let mut stream = connect(server)?;
    let began = Instant::now();
    let (mut sent, mut longest_gap) = (began, Duration::ZERO);
    while began.elapsed() < DURATION {
        let kept = say_hello(&mut stream).unwrap_or(false);
        longest_gap = longest_gap.max(sent.elapsed());
        sent = Instant::now();
        if !kept {
            return Ok((false, longest_gap));
        }
        thread::sleep(INTERVAL);
    }
    Ok((true, longest_gap))
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends a line and returns whether it is echoed.
fn say_hello(stream: &mut TcpStream) -> io::Result<bool> {
    let mut line = [0; LINE.len()];
    stream.write_all(LINE)?;
    stream.read_exact(&mut line)?;
    Ok(line == LINE)
}
