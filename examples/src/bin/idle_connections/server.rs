//! The server: an event loop on one thread, and a timer that tells it which connections are idle.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout};
use hdrhistogram::Histogram;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

/// Connections have the tokens from 0 up.
const LISTENER: Token = Token(usize::MAX - 1);
const BELL: Token = Token(usize::MAX - 2);

/// In nanoseconds: no lateness is longer.
const A_DAY: u64 = 86_400_000_000_000;

pub(crate) struct Server {
    timer: HashedWheelTimer,
    /// How long a connection may be silent.
    limit: Duration,
    poll: Poll,
    listener: TcpListener,
    /// By number. A closed one leaves `None`, and its number is not used again.
    connections: Vec<Option<Connection>>,
    bell: Bell,
    idle: Receiver<Idle>,
    pub(crate) counts: Counts,
}

struct Connection {
    stream: TcpStream,
    /// Closes the connection unless it is re-armed in time.
    timeout: Timeout,
    last_read: Instant,
}

/// Word from the timer: this timeout of this connection fired at this time.
struct Idle {
    id: usize,
    timeout: Timeout,
    at: Instant,
}

/// How the timer's thread reaches the event loop.
#[derive(Clone)]
struct Bell {
    idle: Sender<Idle>,
    waker: Arc<Waker>,
}

/// What the server has seen.
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) rearms: u64,
    /// A packet came when the timeout had just fired, and before the connection was closed.
    pub(crate) rescued: u64,
    /// Closed for silence.
    pub(crate) closed: u64,
    /// Of these, before the time was over.
    pub(crate) early: u64,
    /// Closed by the peer.
    pub(crate) left: u64,
    /// Nanoseconds from when a connection should have been closed until the timer said so, and until it was.
    pub(crate) fired_late: Histogram<u64>,
    pub(crate) closed_late: Histogram<u64>,
}

impl Server {
    pub(crate) fn new(timer: HashedWheelTimer, limit: Duration) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), BELL)?);
        let (sender, idle) = mpsc::channel();
        Ok(Self {
            timer,
            limit,
            poll,
            listener,
            connections: Vec::new(),
            bell: Bell { idle: sender, waker },
            idle,
            counts: Counts::default(),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(crate) fn open(&self) -> u64 {
        self.counts.accepted - self.counts.closed - self.counts.left
    }

    /// One turn of the event loop, which waits for at most so long.
    pub(crate) fn turn(&mut self, events: &mut Events, wait: Duration) -> io::Result<()> {
        match self.poll.poll(events, Some(wait)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        // First what the peers sent, then who is idle: a packet that is here in time counts.
        for event in &*events {
            match event.token() {
                LISTENER => self.accept()?,
                BELL => {}
                Token(id) => self.readable(id)?,
            }
        }
        while let Ok(idle) = self.idle.try_recv() {
            self.fired(&idle)?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            };
            let id = self.connections.len();
            self.poll.registry().register(&mut stream, Token(id), Interest::READABLE)?;
            let last_read = Instant::now();
            let timeout = self.arm(id)?;
            // Tells the client that it is in. If it has gone away, reading will show.
            let _ = stream.write(b"hello\n");
            self.connections.push(Some(Connection { stream, timeout, last_read }));
            self.counts.accepted += 1;
        }
    }

    /// A new timeout for a connection. Its task runs on the timer's thread, so it leaves the work to the event loop.
    fn arm(&self, id: usize) -> io::Result<Timeout> {
        let bell = self.bell.clone();
        let task =
            move |timeout: &Timeout| bell.ring(Idle { id, timeout: timeout.clone(), at: Instant::now() });
        self.timer.new_timeout(task, self.limit).map_err(io::Error::other)
    }

    fn readable(&mut self, id: usize) -> io::Result<()> {
        // `None`: closed by an earlier event of the same turn.
        let Some(connection) = &mut self.connections[id] else { return Ok(()) };
        match read(&mut connection.stream) {
            Heard::Nothing => {}
            Heard::Packet => self.rearm(id)?,
            Heard::End => self.left(id),
        }
        Ok(())
    }

    /// A packet came: the time begins anew.
    fn rearm(&mut self, id: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connections[id] else { return Ok(()) };
        connection.last_read = Instant::now();
        self.counts.rearms += 1;
        if !connection.timeout.reset(self.limit) {
            // It has fired, and word of it is on its way; but the packet was here first. With a new timeout the
            // connection lives on, and `fired` will see that the word is about the old one.
            let timeout = self.arm(id)?;
            self.connections[id].as_mut().expect("it is open").timeout = timeout;
            self.counts.rescued += 1;
        }
        Ok(())
    }

    /// The timer says that a connection is idle.
    fn fired(&mut self, idle: &Idle) -> io::Result<()> {
        let Some(connection) = &mut self.connections[idle.id] else {
            // The peer was faster.
            return Ok(());
        };
        if connection.timeout != idle.timeout {
            return Ok(());
        }
        // A last look: what came while this word was on its way has not been read yet.
        match read(&mut connection.stream) {
            Heard::Nothing => self.close_idle(idle),
            Heard::Packet => self.rearm(idle.id)?,
            Heard::End => self.left(idle.id),
        }
        Ok(())
    }

    fn close_idle(&mut self, idle: &Idle) {
        let Some(connection) = self.take(idle.id) else { return };
        let due = connection.last_read + self.limit;
        drop(connection);
        let counts = &mut self.counts;
        counts.closed += 1;
        counts.early += u64::from(idle.at < due);
        counts.fired_late.saturating_record(nanos(idle.at.saturating_duration_since(due)));
        counts.closed_late.saturating_record(nanos(due.elapsed()));
    }

    /// The peer has closed the connection.
    fn left(&mut self, id: usize) {
        let Some(connection) = self.take(id) else { return };
        // False if it has just fired: then `fired` will find the connection gone.
        connection.timeout.cancel();
        self.counts.left += 1;
    }

    fn take(&mut self, id: usize) -> Option<Connection> {
        let mut connection = self.connections[id].take()?;
        // Closing it does the same on some systems, not on all. There is nothing to be done about a failure.
        let _ = self.poll.registry().deregister(&mut connection.stream);
        Some(connection)
    }
}

impl Bell {
    fn ring(&self, idle: Idle) {
        // Either fails only when the event loop is gone.
        let _ = self.idle.send(idle);
        let _ = self.waker.wake();
    }
}

impl Default for Counts {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(A_DAY, 3).expect("3 digits can be had");
        Self {
            accepted: 0,
            rearms: 0,
            rescued: 0,
            closed: 0,
            early: 0,
            left: 0,
            fired_late: histogram.clone(),
            closed_late: histogram,
        }
    }
}

enum Heard {
    Nothing,
    Packet,
    End,
}

/// Reads all there is.
fn read(stream: &mut TcpStream) -> Heard {
    let mut heard = Heard::Nothing;
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return Heard::End,
            Ok(_) => heard = Heard::Packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return heard,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Heard::End,
        }
    }
}

/// Whether `accept` failed for a reason that says nothing about the next connection.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
