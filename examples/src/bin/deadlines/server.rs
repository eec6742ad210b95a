//! The server. Most answers take a few milliseconds, some take long and some never arrive. Some
//! connections are dropped.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, TimeoutError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request. It is sent as one line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) id: u32,
    /// How often the request was sent, including this time.
    pub(crate) number: u32,
    /// Must not be done twice.
    pub(crate) is_write: bool,
}

impl Request {
    pub(crate) fn line(&self) -> String {
        let verb = if self.is_write { "write" } else { "read" };
        format!("{verb} {} {}\n", self.id, self.number)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let is_write = words.next()? == "write";
        Some(Self { id: words.next()?.parse().ok()?, number: words.next()?.parse().ok()?, is_write })
    }

    pub(crate) fn answer(&self) -> String {
        format!("answer to {}\n", self.id)
    }

    /// Whether the record is lost: no request for it is ever answered.
    pub(crate) fn is_lost(&self) -> bool {
        self.id % 500 == 7
    }

    /// Returns what happens to the request. It depends only on the seed and the request, not on the
    /// order of requests.
    fn behaviour(&self, seed: u64) -> Behaviour {
        let name = (u64::from(self.id) << 32) | u64::from(self.number);
        let mut random = Rng::with_seed(Rng::with_seed(seed).u64(..) ^ name);
        match random.u32(..1_000) {
            _ if self.is_lost() => Behaviour::Silence,
            0..5 => Behaviour::Silence,
            5..10 => Behaviour::Drop,
            10..30 => Behaviour::Answer(Duration::from_millis(random.u64(100..200))),
            _ => Behaviour::Answer(Duration::from_micros(random.u64(1_000..5_000))),
        }
    }
}

/// What happens to a request.
enum Behaviour {
    Answer(Duration),
    Silence,
    Drop,
}

#[derive(Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    /// Requests whose client had disconnected before the answer.
    pub(crate) abandoned: u64,
    pub(crate) dropped: u64,
    /// Writes that were done more than once.
    pub(crate) repeated: u64,
}

pub(crate) struct Server {
    seed: u64,
    /// The server's own timer, so that the client's timer counts only the client's timeouts.
    timer: HashedWheelTimer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: Counts,
    /// How often each write was done.
    writes: HashMap<u32, u32>,
}

impl Server {
    /// Starts the server on a free port.
    pub(crate) async fn start(seed: u64) -> io::Result<(Arc<Self>, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
        let server = Arc::new(Self { seed, timer, state: Mutex::default() });
        let accepting = Arc::clone(&server);
        tokio::spawn(async move {
            // An error affects only one connection, and its client sees it too.
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    let server = Arc::clone(&accepting);
                    tokio::spawn(async move { drop(server.serve(stream).await) });
                }
            }
        });
        Ok((server, address))
    }

    pub(crate) fn counts(&self) -> Counts {
        self.with(|state| state.counts)
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        // The client has disconnected before it sent a request.
        let Some(request) = Request::parse(&line) else { return Ok(()) };
        self.with(|state| {
            state.counts.requests += 1;
            if request.is_write {
                let times = state.writes.entry(request.id).or_default();
                *times += 1;
                state.counts.repeated += u64::from(*times == 2);
            }
        });
        let delay = match request.behaviour(self.seed) {
            Behaviour::Drop => {
                self.with(|state| state.counts.dropped += 1);
                return Ok(());
            }
            Behaviour::Answer(delay) => delay,
            Behaviour::Silence => Duration::MAX,
        };
        // The client sends nothing more. The read ends when it disconnects.
        match self.timer.timeout(delay, stream.read_u8()).await {
            Err(TimeoutError::Elapsed) => {
                stream.write_all(request.answer().as_bytes()).await?;
                self.with(|state| state.counts.answered += 1);
            }
            _ => self.with(|state| state.counts.abandoned += 1),
        }
        Ok(())
    }
}
