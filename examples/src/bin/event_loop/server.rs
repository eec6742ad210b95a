//! The server: an event loop that drives a timer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use hashed_wheel::{Driver, HashedWheelTimer, Timeout};
use hashed_wheel_trial::Lateness;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::watch::Watch;

/// A connection without input for this time is closed.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(1);

/// Connections have the tokens from 0.
const LISTENER: Token = Token(usize::MAX - 1);
const WAKE: Token = Token(usize::MAX - 2);

pub(crate) struct Server {
    timer: HashedWheelTimer,
    driver: Driver,
    poll: Poll,
    listener: TcpListener,
    connections: HashMap<Token, Connection>,
    /// The token of the next connection. Tokens are not reused, because an idle message may arrive
    /// after its connection was closed.
    next_token: usize,
    /// Sends tokens of idle connections to the loop. Tasks run on this thread but cannot borrow the
    /// connections.
    to_close: Sender<Token>,
    idle: Receiver<Token>,
    watch: Arc<Watch>,
    counts: Counts,
}

struct Connection {
    stream: TcpStream,
    /// Reports the connection as idle unless it is reset in time.
    timeout: Timeout,
    last_read: Instant,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// Connections that were closed because of silence.
    pub(crate) closed: u64,
    /// Of these, connections that were closed too early.
    pub(crate) early: u64,
    /// Connections that the peer has closed.
    pub(crate) left: u64,
    pub(crate) lateness: Lateness,
}

impl Server {
    pub(crate) fn new(watch: Arc<Watch>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;

        let waker = Waker::new(poll.registry(), WAKE)?;
        let counters = Arc::clone(&watch);
        let wake = move || {
            counters.waker_called();
            // An error means that the loop has ended.
            let _ = waker.wake();
        };
        let (timer, driver) =
            HashedWheelTimer::builder().tick(TICK).waker(wake).build_driven().map_err(io::Error::other)?;

        let (to_close, idle) = mpsc::channel();
        Ok(Self {
            timer,
            driver,
            poll,
            listener,
            connections: HashMap::new(),
            next_token: 0,
            to_close,
            idle,
            watch,
            counts: Counts::default(),
        })
    }

    /// Returns a handle for other threads. The tasks that they schedule run in the loop.
    pub(crate) fn timer(&self) -> HashedWheelTimer {
        self.timer.clone()
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Runs the event loop. It ends when the timer is stopped, by any thread.
    pub(crate) fn run(mut self) -> io::Result<Counts> {
        let mut events = Events::with_capacity(256);
        while !self.driver.is_stopped() {
            let wait = self.driver.next_turn();
            self.watch.falls_asleep(wait);
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.watch.wakes_up();
            // Turns first, so that the timer knows that the loop is awake. Timeouts that the loop
            // schedules afterwards do not call the waker.
            let expired = self.driver.turn();
            if expired == 0 && events.is_empty() {
                self.watch.unneeded();
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    WAKE => {}
                    token => self.readable(token)?,
                }
            }
            while let Ok(token) = self.idle.try_recv() {
                self.close_if_idle(token);
            }
        }
        Ok(self.counts)
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let token = Token(self.next_token);
            self.next_token += 1;
            self.poll.registry().register(&mut stream, token, Interest::READABLE)?;
            let connection = Connection { stream, last_read: Instant::now(), timeout: self.arm(token)? };
            self.connections.insert(token, connection);
        }
    }

    fn arm(&self, token: Token) -> io::Result<Timeout> {
        let to_close = self.to_close.clone();
        let task = move |_: &Timeout| {
            // An error means that the loop has ended.
            let _ = to_close.send(token);
        };
        self.timer.new_timeout(task, IDLE).map_err(io::Error::other)
    }

    fn readable(&mut self, token: Token) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        if !echo(&mut connection.stream) {
            connection.timeout.cancel();
            self.connections.remove(&token);
            self.counts.left += 1;
            return Ok(());
        }
        connection.last_read = Instant::now();
        if !connection.timeout.reset(IDLE) {
            // The timeout has fired in this turn, but the packet arrived in time. `close_if_idle`
            // will see the new timeout.
            let timeout = self.arm(token)?;
            self.connections.get_mut(&token).expect("it is open").timeout = timeout;
        }
        Ok(())
    }

    /// Closes the connection, unless a packet has reset the timeout or the peer has closed it
    /// already.
    fn close_if_idle(&mut self, token: Token) {
        let Entry::Occupied(connection) = self.connections.entry(token) else { return };
        if !connection.get().timeout.is_expired() {
            return;
        }
        let connection = connection.remove();
        let (now, due) = (Instant::now(), connection.last_read + IDLE);
        self.counts.closed += 1;
        self.counts.early += u64::from(now < due);
        self.counts.lateness.record(now.saturating_duration_since(due));
    }
}

/// Echoes all input. Returns false if the peer has closed the connection.
fn echo(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            // The packets of these clients fit into the socket's buffer. A real server would have
            // to wait until the socket is writable.
            Ok(read) if stream.write_all(&buffer[..read]).is_err() => return false,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}
