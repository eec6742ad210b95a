//! The clients: one process with one thread and one event loop.
//!
//! The clients do not use the timer under test. All clients send at the same rate, so a counter
//! determines which client sends next.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::options::Options;

/// The maximum number of connection attempts at a time. It is less than the backlog of any
/// listener.
const MAX_CONNECTING: usize = 100;

/// How long to wait for the next connection, and for an overdue disconnection.
const TIMEOUT: Duration = Duration::from_secs(10);

const PACKET: &[u8] = b"still here\n";

/// What the clients observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// Clients that fell silent and were disconnected, as expected.
    pub(crate) closed: u64,
    /// Clients that fell silent and were not disconnected.
    pub(crate) not_closed: u64,
    /// Clients that were not silent and still connected at the end, as expected.
    pub(crate) kept: u64,
    /// Clients that were not silent but were disconnected.
    pub(crate) wrongly_closed: u64,
    /// Clients that fell silent and were disconnected before the idle time had passed.
    pub(crate) early: u64,
    /// The longest pause of an active client between two packets, in milliseconds. It distinguishes
    /// a slow machine from an incorrect timer.
    pub(crate) longest_gap: u64,
}

/// Formats the counts as one line that the other process parses.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { closed, not_closed, kept, wrongly_closed, early, longest_gap } = self;
        write!(f, "{closed} {not_closed} {kept} {wrongly_closed} {early} {longest_gap}")
    }
}

impl Seen {
    /// Parses the line that the clients' process printed: the counts, or the reason for its
    /// failure.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next().and_then(Result::ok).ok_or(line);
        Ok(Self {
            closed: next()?,
            not_closed: next()?,
            kept: next()?,
            wrongly_closed: next()?,
            early: next()?,
            longest_gap: next()?,
        })
    }

    fn note_gap(&mut self, gap: Duration) {
        self.longest_gap = self.longest_gap.max(gap.as_millis() as u64);
    }
}

/// The main function of the clients' process. It prints one line: what the clients observed, or why
/// they failed.
pub(crate) fn main(options: &Options, server: SocketAddr) -> ExitCode {
    let clients = Clients::new(options, server).and_then(Clients::run);
    let (line, status) = match &clients {
        Ok(clients) => (clients.seen().to_string(), ExitCode::SUCCESS),
        Err(error) => (error.to_string(), ExitCode::FAILURE),
    };
    // An error means that no process reads the line. The remaining connections are closed only
    // after it was printed.
    let _ = writeln!(io::stdout(), "{line}");
    drop(clients);
    status
}

struct Client {
    /// `None` after the connection was closed.
    stream: Option<TcpStream>,
    /// When the client falls silent, relative to the start.
    silent: Option<Duration>,
    /// When it sent its last packet. `None` until the server has greeted it.
    sent: Option<Instant>,
}

struct Clients<'a> {
    options: &'a Options,
    server: SocketAddr,
    poll: Poll,
    clients: Vec<Client>,
    /// The clients that are not connected yet: when each one falls silent.
    to_come: VecDeque<Option<Duration>>,
    greeted: usize,
    last_greeted: Instant,
    began: Instant,
    /// The time when all clients were connected. Clients fall silent only after it.
    start: Option<Instant>,
    /// The number of packets that were due so far.
    packets_due: u64,
    open: usize,
    /// The number of open connections that the server has to close.
    to_close: usize,
    seen: Seen,
}

impl<'a> Clients<'a> {
    fn new(options: &'a Options, server: SocketAddr) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            options,
            server,
            poll: Poll::new()?,
            clients: Vec::new(),
            to_come: options.silences().into(),
            greeted: 0,
            last_greeted: now,
            began: now,
            start: None,
            packets_due: 0,
            open: 0,
            to_close: options.silent() as usize,
            seen: Seen::default(),
        })
    }

    fn run(mut self) -> io::Result<Self> {
        let mut events = Events::with_capacity(1024);
        while !self.is_over()? {
            self.connect()?;
            self.send();
            match self.poll.poll(&mut events, Some(Duration::from_millis(1))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                self.receive(event.token().0)?;
            }
        }
        Ok(self)
    }

    fn is_over(&self) -> io::Result<bool> {
        match self.start {
            Some(start) => {
                let length = self.options.duration;
                let timeout = length + self.options.allowed() + TIMEOUT;
                Ok(self.open == 0
                    || start.elapsed() >= length && self.to_close == 0
                    || start.elapsed() >= timeout)
            }
            None if self.last_greeted.elapsed() < TIMEOUT => Ok(false),
            None => Err(io::Error::other(format!(
                "{} of {} clients are connected; the server has accepted no further connection for {TIMEOUT:?}",
                self.greeted, self.options.connections
            ))),
        }
    }

    /// Opens connections, but not more at a time than the server's backlog accepts.
    fn connect(&mut self) -> io::Result<()> {
        while self.clients.len() - self.greeted < MAX_CONNECTING {
            let Some(silent) = self.to_come.pop_front() else { break };
            let id = self.clients.len();
            let mut stream =
                TcpStream::connect(self.server).map_err(|error| self.not_connected(id, &error))?;
            // The connection is established when the greeting arrives.
            self.poll.registry().register(&mut stream, Token(id), Interest::READABLE)?;
            self.clients.push(Client { stream: Some(stream), silent, sent: None });
            self.open += 1;
        }
        Ok(())
    }

    fn not_connected(&self, id: usize, error: &io::Error) -> io::Error {
        let hint = match error.kind() {
            io::ErrorKind::AddrNotAvailable => " (no free local port: use fewer --connections)",
            _ => "",
        };
        io::Error::other(format!("client {} of {}: {error}{hint}", id + 1, self.options.connections))
    }

    /// Sends all packets that are due. The clients send one after the other at equal intervals. A
    /// client that has missed its time sends only once.
    fn send(&mut self) {
        let clients = u64::from(self.options.connections);
        let packets_per_nano = clients as f64 / self.options.packet_every.as_nanos() as f64;
        let due = (self.began.elapsed().as_nanos() as f64 * packets_per_nano) as u64;
        for turn in self.packets_due.max(due.saturating_sub(clients))..due {
            self.send_one((turn % clients) as usize);
        }
        self.packets_due = due;
    }

    fn send_one(&mut self, id: usize) {
        let now = Instant::now();
        let silent = |client: &Client| client.is_silent(self.start, now);
        let Some(client) = self.clients.get_mut(id).filter(|client| !silent(client)) else { return };
        let (Some(stream), Some(sent)) = (&mut client.stream, client.sent) else { return };
        // If the connection is closed, `receive` handles that.
        if stream.write(PACKET).is_ok() {
            client.sent = Some(now);
            // The gap is measured after the write, because this thread may have been delayed before
            // it.
            self.seen.note_gap(sent.elapsed());
        }
    }

    /// Handles the greeting of the server, or the end of the connection.
    fn receive(&mut self, id: usize) -> io::Result<()> {
        let client = &mut self.clients[id];
        let Some(stream) = &mut client.stream else { return Ok(()) };
        let end = loop {
            match stream.read(&mut [0; 16]) {
                Ok(0) => break io::ErrorKind::UnexpectedEof.into(),
                Ok(_) if client.sent.is_none() => {
                    stream.set_nodelay(true)?;
                    self.last_greeted = Instant::now();
                    client.sent = Some(self.last_greeted);
                    stream.write_all(PACKET)?;
                    self.greeted += 1;
                    if self.greeted == self.options.connections as usize {
                        self.start = Some(self.last_greeted);
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        self.closed(id, &end)
    }

    fn closed(&mut self, id: usize, how: &io::Error) -> io::Result<()> {
        let now = Instant::now();
        let client = &mut self.clients[id];
        let Some(sent) = client.sent else { return Err(self.not_connected(id, how)) };
        client.stream = None;
        self.open -= 1;
        self.to_close -= usize::from(client.silent.is_some());
        if !client.is_silent(self.start, now) {
            self.seen.wrongly_closed += 1;
            self.seen.note_gap(now - sent);
        } else if now < sent + self.options.idle {
            self.seen.early += 1;
        } else {
            self.seen.closed += 1;
        }
        Ok(())
    }

    fn seen(&self) -> Seen {
        let open = self.open - self.to_close;
        Seen { not_closed: self.to_close as u64, kept: open as u64, ..self.seen }
    }
}

impl Client {
    fn is_silent(&self, start: Option<Instant>, now: Instant) -> bool {
        match (start, self.silent) {
            (Some(start), Some(silent)) => now >= start + silent,
            _ => false,
        }
    }
}
