//! The clients: one process, one thread, one event loop.
//!
//! Nothing here uses the timer that is on trial. All clients send equally often, so whose turn it is to send can be had
//! by counting.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::options::Options;

/// How many connections may be on their way at a time: less than any listener's backlog.
const AT_A_TIME: usize = 100;

/// How long to wait for the next connection, and for a closing that is overdue.
const PATIENCE: Duration = Duration::from_secs(10);

const PACKET: &[u8] = b"still here\n";

/// What the clients saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// Fell silent and were closed, as it should be.
    pub(crate) closed: u64,
    /// Fell silent and were not closed.
    pub(crate) forgotten: u64,
    /// Were not silent, and still connected at the end, as it should be.
    pub(crate) kept: u64,
    /// Were not silent, and closed all the same.
    pub(crate) wronged: u64,
    /// Fell silent and were closed before the idle time was over.
    pub(crate) early: u64,
    /// The longest time that a client that was not silent left between two packets, in milliseconds. It tells a slow
    /// machine from a wrong timer.
    pub(crate) longest_gap: u64,
}

/// One line, for the other process.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { closed, forgotten, kept, wronged, early, longest_gap } = self;
        write!(f, "{closed} {forgotten} {kept} {wronged} {early} {longest_gap}")
    }
}

impl Seen {
    /// What the clients' process said: this, or why it failed.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next().and_then(Result::ok).ok_or(line);
        Ok(Self {
            closed: next()?,
            forgotten: next()?,
            kept: next()?,
            wronged: next()?,
            early: next()?,
            longest_gap: next()?,
        })
    }

    fn note_gap(&mut self, gap: Duration) {
        self.longest_gap = self.longest_gap.max(gap.as_millis() as u64);
    }
}

/// The whole of the clients' process. What it has to say it says in one line: what the clients saw, or why they failed.
pub(crate) fn main(options: &Options, server: SocketAddr) -> ExitCode {
    let clients = Clients::new(options, server).and_then(Clients::run);
    let (line, status) = match &clients {
        Ok(clients) => (clients.seen().to_string(), ExitCode::SUCCESS),
        Err(error) => (error.to_string(), ExitCode::FAILURE),
    };
    // Nobody may be there to read it any more. Only now are the connections closed that are left.
    let _ = writeln!(io::stdout(), "{line}");
    drop(clients);
    status
}

struct Client {
    /// `None` once it is closed.
    stream: Option<TcpStream>,
    /// When, after the start, it falls silent.
    silent: Option<Duration>,
    /// Its last packet. `None` until the server has greeted it.
    sent: Option<Instant>,
}

struct Clients<'a> {
    options: &'a Options,
    server: SocketAddr,
    poll: Poll,
    clients: Vec<Client>,
    /// Those that are not connected yet: when they fall silent.
    to_come: VecDeque<Option<Duration>>,
    greeted: usize,
    last_greeted: Instant,
    began: Instant,
    /// When all were connected: from here on some fall silent.
    start: Option<Instant>,
    /// How often it was a client's turn to send.
    turns: u64,
    open: usize,
    /// Those that are open and have to be closed.
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
            turns: 0,
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
                self.hear(event.token().0)?;
            }
        }
        Ok(self)
    }

    fn is_over(&self) -> io::Result<bool> {
        match self.start {
            Some(start) => {
                let length = self.options.length();
                let patience = length + self.options.allowed() + PATIENCE;
                Ok(self.open == 0
                    || start.elapsed() >= length && self.to_close == 0
                    || start.elapsed() >= patience)
            }
            None if self.last_greeted.elapsed() < PATIENCE => Ok(false),
            None => Err(io::Error::other(format!(
                "{} of {} clients are connected, and the server has accepted no other for {PATIENCE:?}",
                self.greeted, self.options.connections
            ))),
        }
    }

    /// Opens connections, but not more at a time than the server's backlog takes.
    fn connect(&mut self) -> io::Result<()> {
        while self.clients.len() - self.greeted < AT_A_TIME {
            let Some(silent) = self.to_come.pop_front() else { break };
            let id = self.clients.len();
            let mut stream =
                TcpStream::connect(self.server).map_err(|error| self.not_connected(id, &error))?;
            // When the greeting can be read, the connection is made.
            self.poll.registry().register(&mut stream, Token(id), Interest::READABLE)?;
            self.clients.push(Client { stream: Some(stream), silent, sent: None });
            self.open += 1;
        }
        Ok(())
    }

    fn not_connected(&self, id: usize, error: &io::Error) -> io::Error {
        let hint = match error.kind() {
            io::ErrorKind::AddrNotAvailable => " (no local port is left: use fewer --connections)",
            _ => "",
        };
        io::Error::other(format!("client {} of {}: {error}{hint}", id + 1, self.options.connections))
    }

    /// Sends all packets that are due. The clients take turns, evenly; who has missed a turn altogether sends once.
    fn send(&mut self) {
        let clients = u64::from(self.options.connections);
        let turns_per_nano = clients as f64 / self.options.packet_every.as_nanos() as f64;
        let due = (self.began.elapsed().as_nanos() as f64 * turns_per_nano) as u64;
        for turn in self.turns.max(due.saturating_sub(clients))..due {
            self.send_one((turn % clients) as usize);
        }
        self.turns = due;
    }

    fn send_one(&mut self, id: usize) {
        let now = Instant::now();
        let silent = |client: &Client| client.is_silent(self.start, now);
        let Some(client) = self.clients.get_mut(id).filter(|client| !silent(client)) else { return };
        let (Some(stream), Some(sent)) = (&mut client.stream, client.sent) else { return };
        // If the connection is gone, `hear` will be told.
        if stream.write(PACKET).is_ok() {
            client.sent = Some(now);
            // Counted until the packet is out for certain: this thread may have had to wait.
            self.seen.note_gap(sent.elapsed());
        }
    }

    /// The server has greeted a client, or closed the connection.
    fn hear(&mut self, id: usize) -> io::Result<()> {
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
            self.seen.wronged += 1;
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
        Seen { forgotten: self.to_close as u64, kept: open as u64, ..self.seen }
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
