//! The server: most answers take a few milliseconds, some take long, some never come, and some connections are dropped.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, TimeoutError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request, as it is sent: a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) id: u32,
    /// How often it was sent, this time included.
    pub(crate) number: u32,
    /// Not to be done twice.
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

    /// What lies where nobody answers, however often it is asked for.
    pub(crate) fn is_lost(&self) -> bool {
        self.id % 500 == 7
    }

    /// The same in each run with the same seed, whatever comes first.
    fn fate(&self, seed: u64) -> Fate {
        let name = (u64::from(self.id) << 32) | u64::from(self.number);
        let mut random = Rng::with_seed(Rng::with_seed(seed).u64(..) ^ name);
        match random.u32(..1_000) {
            _ if self.is_lost() => Fate::Silence,
            0..5 => Fate::Silence,
            5..10 => Fate::Drop,
            10..30 => Fate::Answer(Duration::from_millis(random.u64(100..200))),
            _ => Fate::Answer(Duration::from_micros(random.u64(1_000..5_000))),
        }
    }
}

/// What becomes of a request.
enum Fate {
    Answer(Duration),
    Silence,
    Drop,
}

#[derive(Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    /// Whose client had gone before there was an answer.
    pub(crate) abandoned: u64,
    pub(crate) dropped: u64,
    /// Writes that were done more than once.
    pub(crate) repeated: u64,
}

pub(crate) struct Server {
    seed: u64,
    /// Its own: the client's counts its timeouts alone.
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
    /// Starts it on a free port.
    pub(crate) async fn start(seed: u64) -> io::Result<(Arc<Self>, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
        let server = Arc::new(Self { seed, timer, state: Mutex::default() });
        let accepting = Arc::clone(&server);
        tokio::spawn(async move {
            // An error is of one connection, whose client sees it too.
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
        // Who has gone before it was sent.
        let Some(request) = Request::parse(&line) else { return Ok(()) };
        self.with(|state| {
            state.counts.requests += 1;
            if request.is_write {
                let times = state.writes.entry(request.id).or_default();
                *times += 1;
                state.counts.repeated += u64::from(*times == 2);
            }
        });
        let delay = match request.fate(self.seed) {
            Fate::Drop => {
                self.with(|state| state.counts.dropped += 1);
                return Ok(());
            }
            Fate::Answer(delay) => delay,
            Fate::Silence => Duration::MAX,
        };
        // Nothing more comes, but the end.
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
