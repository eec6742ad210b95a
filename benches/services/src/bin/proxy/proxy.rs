//! The proxy. Each client connection has a connection to the upstream. Messages are passed on
//! unchanged. (A client that is disconnected in the middle of an answer can detect that only if the
//! answer has a length.)
//!
//! | timeout | counts | when it is over |
//! |---|---|---|
//! | connect | from the attempt to reach the upstream | 504 |
//! | header | from the first byte of a request to the end of its head | 408 |
//! | idle | from the last byte on either side, also between requests | 408 until the request is sent, then 504 until an answer has begun, or nothing |
//! | total | from the first byte of a request to the last of its answer | the same |
//!
//! An invalid or ambiguous message is a 400 if it came from the client, and a 502 if it came from
//! the upstream.
//!
//! A general-purpose proxy needs more features than this one. It does not support empty lines
//! before a request, `OPTIONS *`, absolute URLs in place of paths, transfer encodings other than
//! `chunked`, and upgrades to other protocols. It detects that a client has disconnected at the
//! next write or timeout, but not while it waits for the upstream.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf, copy_buf, sink,
};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::http::{Body, Head};
use crate::timers::{Sleep, Timers};

/// The time that a client has to notice the end before its connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time until the next attempt after a connection could not be accepted, for example because of
/// the limit on open files.
const RETRY_DELAY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) header: Duration,
    pub(crate) idle: Duration,
    pub(crate) total: Duration,
}

/// The kind of a timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Connect,
    Header,
    Idle,
    Total,
}

impl Limits {
    pub(crate) fn of(self, kind: Kind) -> Duration {
        [self.connect, self.header, self.idle, self.total][kind as usize]
    }
}

pub(crate) struct Proxy<T> {
    pub(crate) timers: T,
    pub(crate) limits: Limits,
    /// The prefix of a path, and the upstream for it.
    pub(crate) routes: Vec<(String, SocketAddr)>,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) ended: AtomicU64,
    /// Requests whose answer was passed on completely.
    pub(crate) answered: AtomicU64,
    /// The number of timeouts by [`Kind`].
    pub(crate) timed_out: [AtomicU64; 4],
}

/// Why a connection ends.
enum End {
    TimedOut(Kind),
    /// The client has sent an invalid message or has disconnected.
    InvalidRequest,
    /// The upstream is unreachable or has sent an invalid answer.
    InvalidAnswer,
    /// Both sides have finished.
    Finished,
}

/// The progress of a request.
struct Progress {
    waits_for: Side,
    /// Whether the answer has started. After that the client cannot get another one.
    is_answered: bool,
}

enum Side {
    /// The client has to send its request.
    Client,
    /// The upstream has to be reached and to answer.
    Upstream,
}

impl<T: Timers> Proxy<T> {
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    self.counts.accepted.fetch_add(1, Relaxed);
                    let proxy = Arc::clone(&self);
                    tokio::spawn(async move {
                        if let End::TimedOut(kind) = proxy.connection(client).await {
                            proxy.counts.timed_out[kind as usize].fetch_add(1, Relaxed);
                        }
                        proxy.counts.ended.fetch_add(1, Relaxed);
                    });
                }
                Err(_) => drop(
                    self.timers
                        .timeout(RETRY_DELAY, std::future::pending::<()>())
                        .await,
                ),
            }
        }
    }

    /// Handles the requests of a connection one after the other.
    async fn connection(&self, client: TcpStream) -> End {
        let idle = Idle::new(&self.timers, self.limits.idle);
        let mut client = Endpoint::new(client, &idle);
        let mut upstream = None;
        loop {
            match idle.guard(client.from.fill_buf()).await {
                None => return End::TimedOut(Kind::Idle),
                Some(Err(_) | Ok([])) => return End::Finished,
                Some(Ok(_)) => {}
            }
            let mut progress = Progress {
                waits_for: Side::Client,
                is_answered: false,
            };
            let request = self.request(&idle, &mut client, &mut upstream, &mut progress);
            let end = match self
                .timers
                .timeout(self.limits.total, idle.guard(request))
                .await
            {
                None => Err(End::TimedOut(Kind::Total)),
                Some(None) => Err(End::TimedOut(Kind::Idle)),
                Some(Some(end)) => end,
            };
            if let Err(cut) = end {
                drop(upstream);
                self.timers
                    .timeout(CLOSE_TIMEOUT, client.close(cut.status(&progress)))
                    .await;
                return cut;
            }
        }
    }

    async fn request<'a>(
        &self,
        idle: &'a Idle<T::Sleep>,
        client: &mut Endpoint<'a, T::Sleep>,
        upstream: &mut Option<(SocketAddr, Endpoint<'a, T::Sleep>)>,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let head = self
            .timers
            .timeout(self.limits.header, Head::request(&mut client.from))
            .await;
        let request = head
            .ok_or(End::TimedOut(Kind::Header))?
            .map_err(|_| End::InvalidRequest)?;

        progress.waits_for = Side::Upstream;
        let address = self.route(request.word(1))?;
        let (_, upstream) = match upstream.take() {
            Some(open) if open.0 == address && open.1.is_quiet() => upstream.insert(open),
            _ => {
                let stream = self
                    .timers
                    .timeout(self.limits.connect, TcpStream::connect(address))
                    .await;
                let stream = stream.ok_or(End::TimedOut(Kind::Connect))??;
                upstream.insert((address, Endpoint::new(stream, idle)))
            }
        };

        let there = async {
            upstream.to.write_all(&request.bytes).await?;
            request
                .body()
                .copy(&mut client.from, &mut upstream.to)
                .await
        };
        let back = async {
            let answer = loop {
                let answer = Head::answer(&mut upstream.from).await?;
                let status = answer.word(1);
                if status == b"101" {
                    return Err(io::Error::from(io::ErrorKind::Unsupported));
                }
                // An interim answer such as 100 or 103: another answer follows.
                let is_last = !status.starts_with(b"1");
                progress.is_answered = is_last;
                client.to.write_all(&answer.bytes).await?;
                if is_last {
                    break answer;
                }
            };
            let body = request.body_of(&answer);
            body.copy(&mut upstream.from, &mut client.to).await?;
            Ok(answer.keeps_alive() && body != Body::Rest)
        };
        // The upstream may answer before it has read the whole request. Then it does not want the
        // rest.
        tokio::pin!(there, back);
        progress.waits_for = Side::Client;
        let mut sent = None;
        let stays = loop {
            tokio::select! {
                biased;
                end = &mut back => break end?,
                end = &mut there, if sent.is_none() => {
                    sent = Some(match end {
                        Ok(()) => true,
                        // A broken pipe means that the upstream has disconnected. There may still
                        // be an answer to read.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => false,
                        Err(_) => return Err(End::InvalidRequest),
                    });
                    progress.waits_for = Side::Upstream;
                }
            }
        };
        self.counts.answered.fetch_add(1, Relaxed);
        if stays && sent == Some(true) && request.keeps_alive() {
            Ok(())
        } else {
            Err(End::Finished)
        }
    }

    fn route(&self, path: &[u8]) -> io::Result<SocketAddr> {
        let route = self
            .routes
            .iter()
            .find(|(beginning, _)| path.starts_with(beginning.as_bytes()));
        route
            .map(|&(_, address)| address)
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}

impl End {
    /// Returns the status for the client. `None` if an answer has started.
    fn status(&self, progress: &Progress) -> Option<&'static str> {
        match (self, &progress.waits_for) {
            _ if progress.is_answered => None,
            (Self::Finished, _) => None,
            (Self::InvalidRequest, _) => Some("400 Bad Request"),
            (Self::InvalidAnswer, _) => Some("502 Bad Gateway"),
            (Self::TimedOut(_), Side::Client) => Some("408 Request Timeout"),
            (Self::TimedOut(_), Side::Upstream) => Some("504 Gateway Timeout"),
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::InvalidAnswer
    }
}

/// The idle timeout of a client connection and its upstream connection: one sleep, which each byte
/// resets.
struct Idle<S> {
    limit: Duration,
    /// Only one task uses the mutex, so it is never contended.
    sleep: Mutex<Pin<Box<S>>>,
}

impl<S: Sleep> Idle<S> {
    fn new(timers: &impl Timers<Sleep = S>, limit: Duration) -> Self {
        Self {
            limit,
            sleep: Mutex::new(Box::pin(timers.sleep(limit))),
        }
    }

    /// Runs the future. Returns `None` if the connections are idle for too long before it is ready.
    async fn guard<F: Future>(&self, future: F) -> Option<F::Output> {
        let over = std::future::poll_fn(|context| self.sleep().as_mut().poll(context));
        tokio::select! {
            biased;
            output = future => Some(output),
            () = over => None,
        }
    }

    fn activity(&self) {
        self.sleep().as_mut().reset(self.limit);
    }

    fn sleep(&self) -> MutexGuard<'_, Pin<Box<S>>> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the two connections.
struct Endpoint<'a, S> {
    from: BufReader<Tracked<'a, OwnedReadHalf, S>>,
    to: Tracked<'a, OwnedWriteHalf, S>,
}

impl<'a, S: Sleep> Endpoint<'a, S> {
    fn new(stream: TcpStream, idle: &'a Idle<S>) -> Self {
        // An error only makes the connection slower.
        let _ = stream.set_nodelay(true);
        let (from, to) = stream.into_split();
        // A small buffer, because most connections transfer little data.
        Self {
            from: BufReader::with_capacity(4096, Tracked { io: from, idle }),
            to: Tracked { io: to, idle },
        }
    }

    /// Whether the connection is open and has no unread data.
    fn is_quiet(&self) -> bool {
        let read = self.from.get_ref().io.try_read(&mut [0]);
        self.from.buffer().is_empty()
            && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends the last answer, if there is one, and waits until the peer has disconnected. If the
    /// proxy closed the connection while the peer still sends, the peer might lose data that it has
    /// not read yet.
    async fn close(&mut self, status: Option<&str>) -> io::Result<()> {
        if let Some(status) = status {
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            self.to.write_all(answer.as_bytes()).await?;
        }
        self.to.shutdown().await?;
        copy_buf(&mut self.from, &mut sink()).await.map(drop)
    }
}

/// Resets the idle timeout when data was read or written.
struct Tracked<'a, I, S> {
    io: I,
    idle: &'a Idle<S>,
}

impl<I: AsyncRead + Unpin, S: Sleep> AsyncRead for Tracked<'_, I, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let end = Pin::new(&mut self.io).poll_read(context, buffer);
        if end.is_ready() {
            self.idle.activity();
        }
        end
    }
}

impl<I: AsyncWrite + Unpin, S: Sleep> AsyncWrite for Tracked<'_, I, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let end = Pin::new(&mut self.io).poll_write(context, bytes);
        if end.is_ready() {
            self.idle.activity();
        }
        // The error may be a connection reset, which a read can return too. The kind `BrokenPipe`
        // marks errors of writes.
        end.map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
