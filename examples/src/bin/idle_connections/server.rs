//! The server: an event loop on one thread, and a timer that reports idle connections to it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout};
use hdrhistogram::Histogram;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

/// Connections have the tokens from 0.
const LISTENER: Token = Token(usize::MAX - 1);
const WAKE: Token = Token(usize::MAX - 2);

/// The largest lateness that the histograms record, in nanoseconds.
const A_DAY: u64 = 86_400_000_000_000;

pub(crate) struct Server {
    timer: HashedWheelTimer,
    /// How long a connection may be silent.
    limit: Duration,
    poll: Poll,
    listener: TcpListener,
    /// The connections by number. A closed connection leaves `None`, and its number is not reused.
    connections: Vec<Option<Connection>>,
    notifier: Notifier,
    idle: Receiver<Idle>,
    pub(crate) counts: Counts,
}

struct Connection {
    stream: TcpStream,
    /// Closes the connection unless it is reset in time.
    timeout: Timeout,
    last_read: Instant,
}

/// A message of the timer: this timeout of this connection fired at this time.
struct Idle {
    id: usize,
    timeout: Timeout,
    at: Instant,
}

/// Sends messages from the timer's thread to the event loop.
#[derive(Clone)]
struct Notifier {
    idle: Sender<Idle>,
    waker: Arc<Waker>,
}

/// What the server has observed.
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) rearms: u64,
    /// Connections that received a packet after their timeout had fired and before they were
    /// closed.
    pub(crate) rescued: u64,
    /// Connections that were closed because of silence.
    pub(crate) closed: u64,
    /// Of these, connections that were closed too early.
    pub(crate) early: u64,
    /// Connections that the peer has closed.
    pub(crate) left: u64,
    /// The nanoseconds from the deadline of a connection until its timeout fired, and until it was
    /// closed.
    pub(crate) fired_late: Histogram<u64>,
    pub(crate) closed_late: Histogram<u64>,
}

impl Server {
    pub(crate) fn new(timer: HashedWheelTimer, limit: Duration) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (sender, idle) = mpsc::channel();
        Ok(Self {
            timer,
            limit,
            poll,
            listener,
            connections: Vec::new(),
            notifier: Notifier { idle: sender, waker },
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

    /// Runs one step of the event loop. It waits for events for at most `wait`.
    pub(crate) fn turn(&mut self, events: &mut Events, wait: Duration) -> io::Result<()> {
        match self.poll.poll(events, Some(wait)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        // Handles packets before idle connections: a packet that has arrived in time counts.
        for event in &*events {
            match event.token() {
                LISTENER => self.accept()?,
                WAKE => {}
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
            // Tells the client that it is connected. A read will show if it has disconnected
            // already.
            let _ = stream.write(b"hello\n");
            self.connections.push(Some(Connection { stream, timeout, last_read }));
            self.counts.accepted += 1;
        }
    }

    /// Returns a new timeout for a connection. Its task runs on the timer's thread, so it delegates
    /// the work to the event loop.
    fn arm(&self, id: usize) -> io::Result<Timeout> {
        let notifier = self.notifier.clone();
        let task = move |timeout: &Timeout| {
            notifier.notify(Idle { id, timeout: timeout.clone(), at: Instant::now() })
        };
        self.timer.new_timeout(task, self.limit).map_err(io::Error::other)
    }

    fn readable(&mut self, id: usize) -> io::Result<()> {
        // `None`: an earlier event of the same step has closed the connection.
        let Some(connection) = &mut self.connections[id] else { return Ok(()) };
        match read(&mut connection.stream) {
            Input::Nothing => {}
            Input::Packet => self.rearm(id)?,
            Input::End => self.left(id),
        }
        Ok(())
    }

    /// Resets the timeout after a packet.
    fn rearm(&mut self, id: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connections[id] else { return Ok(()) };
        connection.last_read = Instant::now();
        self.counts.rearms += 1;
        if !connection.timeout.reset(self.limit) {
            // The timeout has fired and its message is in the channel, but the packet arrived
            // before that. The connection gets a new timeout. `fired` will see that the message
            // refers to the old one.
            let timeout = self.arm(id)?;
            self.connections[id].as_mut().expect("it is open").timeout = timeout;
            self.counts.rescued += 1;
        }
        Ok(())
    }

    /// Handles the message that a connection is idle.
    fn fired(&mut self, idle: &Idle) -> io::Result<()> {
        let Some(connection) = &mut self.connections[idle.id] else {
            // The peer has closed it already.
            return Ok(());
        };
        if connection.timeout != idle.timeout {
            return Ok(());
        }
        // Reads once more, because input that arrived while the message was in the channel has not
        // been read yet.
        match read(&mut connection.stream) {
            Input::Nothing => self.close_idle(idle),
            Input::Packet => self.rearm(idle.id)?,
            Input::End => self.left(idle.id),
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

    /// Handles a connection that the peer has closed.
    fn left(&mut self, id: usize) {
        let Some(connection) = self.take(id) else { return };
        // Returns false if the timeout has just fired. Then `fired` will not find the connection.
        connection.timeout.cancel();
        self.counts.left += 1;
    }

    fn take(&mut self, id: usize) -> Option<Connection> {
        let mut connection = self.connections[id].take()?;
        // On some systems closing the stream deregisters it, but not on all. An error has no
        // consequence.
        let _ = self.poll.registry().deregister(&mut connection.stream);
        Some(connection)
    }
}

impl Notifier {
    fn notify(&self, idle: Idle) {
        // Both fail only if the event loop has ended.
        let _ = self.idle.send(idle);
        let _ = self.waker.wake();
    }
}

impl Default for Counts {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(A_DAY, 3).expect("3 significant digits are supported");
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

enum Input {
    Nothing,
    Packet,
    End,
}

/// Reads all available input.
fn read(stream: &mut TcpStream) -> Input {
    let mut input = Input::Nothing;
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return Input::End,
            Ok(_) => input = Input::Packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return input,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Input::End,
        }
    }
}

/// Whether `accept` failed for a reason that concerns only one connection.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
