//! The clients that each trigger one of the proxy's timeouts. They use tokio's timer, independent
//! of the timer of the proxy.

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
    /// Sends nothing.
    NoRequest,
    /// Sends a request, gets an answer, and then sends nothing.
    Silent,
    /// Sends the head of its request one byte at a time, and never the last byte.
    Slow,
    /// Sends a request that is never answered.
    Stuck,
    /// Sends a request whose answer never ends.
    Endless,
    /// Sends a request to an upstream that does not respond.
    Unreachable,
}

/// A connected client. Clients that get an answer first have received it.
pub(crate) struct Connected {
    client: Client,
    stream: TcpStream,
    /// The times before and after its last packet.
    since: [Instant; 2],
}

impl Client {
    pub(crate) fn timeout(self) -> Kind {
        match self {
            Self::NoRequest | Self::Silent | Self::Stuck => Kind::Idle,
            Self::Slow => Kind::Header,
            Self::Endless => Kind::Total,
            Self::Unreachable => Kind::Connect,
        }
    }

    /// Returns the beginning of the last message that it receives. Empty if it receives none.
    fn expected_answer(self) -> &'static str {
        match self {
            Self::NoRequest | Self::Silent => "",
            Self::Slow => "HTTP/1.1 408 ",
            Self::Stuck | Self::Unreachable => "HTTP/1.1 504 ",
            Self::Endless => "HTTP/1.1 200 ",
        }
    }

    fn path(self) -> Option<&'static str> {
        match self {
            Self::NoRequest | Self::Silent => None,
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
        Ok(Connected {
            client: self,
            stream,
            since: [before, Instant::now()],
        })
    }
}

impl Connected {
    /// Waits for the timeout. Returns how late the client was told or disconnected, or a
    /// description of the error.
    pub(crate) async fn watch(
        self,
        limits: Limits,
        max_late: Duration,
    ) -> Result<Duration, String> {
        let Self {
            client,
            mut stream,
            since: [mut before, mut after],
        } = self;
        let limit = limits.of(client.timeout());
        let (mut from, mut to) = stream.split();
        let begun = if let Some(path) = client.path() {
            let request = request(path);
            // The whole request, or only its first byte. The other bytes follow below.
            let begin = if client == Client::Slow {
                &request[..1]
            } else {
                &request
            };
            before = Instant::now();
            let begun = to.write_all(begin.as_bytes()).await;
            after = Instant::now();
            begun
        } else {
            Ok(())
        };
        let mut received = Vec::new();
        let send_slowly = async {
            if client != Client::Slow {
                std::future::pending::<()>().await;
            }
            loop {
                sleep(limit / 5).await;
                // An error means that the proxy has closed the connection. Then there is something
                // to read.
                let _ = to.write_all(b"E").await;
            }
        };
        let end = tokio::select! {
            end = from.read_to_end(&mut received) => end.map(drop),
            never = send_slowly => never,
            () = sleep((limit + max_late).saturating_sub(after.elapsed())) => Err(io::ErrorKind::TimedOut.into()),
        };
        let (earliest, late) = (before.elapsed(), after.elapsed().saturating_sub(limit));
        let received = String::from_utf8_lossy(&received);
        let expected = client.expected_answer();
        let is_right = received.starts_with(expected) && received.is_empty() == expected.is_empty();
        if begun.is_ok() && end.is_ok() && is_right && earliest >= limit {
            return Ok(late);
        }
        let received: String = received.chars().take(40).collect();
        Err(format!(
            "{client:?}, after {earliest:.2?} of {limit:?}: {received:?}, {end:?}"
        ))
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n")
}
