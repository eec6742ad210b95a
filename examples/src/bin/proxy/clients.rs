//! The clients that each run into one of the proxy's timeouts. They wait by tokio's timer, whichever the proxy has.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, sink};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::http::Head;
use crate::proxy::{Kind, Limits};
use crate::upstream::{ENDLESS, STUCK, UNREACHABLE};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// Says nothing at all.
    Mute,
    /// Asks, is answered, and says nothing any more.
    Silent,
    /// Sends the head of its request a byte at a time, and never the last one.
    Slow,
    /// Asks for what is never answered.
    Stuck,
    /// Asks for what never ends.
    Endless,
    /// Asks for what nobody answers.
    Unreachable,
}

/// One that is connected, and has been answered if it is one who wants that.
pub(crate) struct Connected {
    client: Client,
    stream: TcpStream,
    /// Before the last that was heard of it, and after.
    since: [Instant; 2],
}

impl Client {
    pub(crate) fn timeout(self) -> Kind {
        match self {
            Self::Mute | Self::Silent | Self::Stuck => Kind::Idle,
            Self::Slow => Kind::Header,
            Self::Endless => Kind::Total,
            Self::Unreachable => Kind::Connect,
        }
    }

    /// How the last that it hears begins; nothing if that is nothing.
    fn last_words(self) -> &'static str {
        match self {
            Self::Mute | Self::Silent => "",
            Self::Slow => "HTTP/1.1 408 ",
            Self::Stuck | Self::Unreachable => "HTTP/1.1 504 ",
            Self::Endless => "HTTP/1.1 200 ",
        }
    }

    fn asks_for(self) -> Option<&'static str> {
        match self {
            Self::Mute | Self::Silent => None,
            Self::Slow => Some("/"),
            Self::Stuck => Some(STUCK),
            Self::Endless => Some(ENDLESS),
            Self::Unreachable => Some(UNREACHABLE),
        }
    }

    pub(crate) async fn connect(self, proxy: SocketAddr) -> io::Result<Connected> {
        let before = Instant::now();
        let mut stream = TcpStream::connect(proxy).await?;
        stream.set_nodelay(true)?;
        if self == Self::Silent {
            stream.write_all(request("/").as_bytes()).await?;
            let mut from = BufReader::new(&mut stream);
            let answer = Head::answer(&mut from).await?;
            answer.body().copy(&mut from, &mut sink()).await?;
        }
        Ok(Connected { client: self, stream, since: [before, Instant::now()] })
    }
}

impl Connected {
    /// How late it was told, or hung up on; or what was wrong with that.
    pub(crate) async fn watch(self, limits: Limits, max_late: Duration) -> Result<Duration, String> {
        let Self { client, mut stream, since: [mut before, mut after] } = self;
        let limit = limits.of(client.timeout());
        let (mut from, mut to) = stream.split();
        let begun = if let Some(path) = client.asks_for() {
            let request = request(path);
            // All of it; or a byte, and the others below.
            let begin = if client == Client::Slow { &request[..1] } else { &request };
            before = Instant::now();
            let begun = to.write_all(begin.as_bytes()).await;
            after = Instant::now();
            begun
        } else {
            Ok(())
        };
        let mut heard = Vec::new();
        let slowly = async {
            if client != Client::Slow {
                std::future::pending::<()>().await;
            }
            loop {
                sleep(limit / 5).await;
                // It may be too late for this one; then there is something to read.
                let _ = to.write_all(b"E").await;
            }
        };
        let end = tokio::select! {
            end = from.read_to_end(&mut heard) => end.map(drop),
            never = slowly => never,
            () = sleep((limit + max_late).saturating_sub(after.elapsed())) => Err(io::ErrorKind::TimedOut.into()),
        };
        let (earliest, late) = (before.elapsed(), after.elapsed().saturating_sub(limit));
        let heard = String::from_utf8_lossy(&heard);
        let words = client.last_words();
        let is_right = heard.starts_with(words) && heard.is_empty() == words.is_empty();
        if begun.is_ok() && end.is_ok() && is_right && earliest >= limit {
            return Ok(late);
        }
        let heard: String = heard.chars().take(40).collect();
        Err(format!("{client:?}, after {earliest:.2?} of {limit:?}: {heard:?}, {end:?}"))
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n")
}
