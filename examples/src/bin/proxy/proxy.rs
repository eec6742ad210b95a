//! The proxy. Each connection of a client has one to the upstream behind it, and what is said on them is passed on as it is.
//! (Who is cut off in an answer without a length cannot tell: that is what the length is for.)
//!
//! | timeout | counts | when it is over |
//! |---|---|---|
//! | connect | from the attempt to reach the upstream | 504 |
//! | header | from the first byte of a request to the end of its head | 408 |
//! | idle | from the last byte on either side, also between requests | 408 until the request is sent, then 504 until an answer has begun, or nothing |
//! | total | from the first byte of a request to the last of its answer | the same |
//!
//! What cannot be read, or might be read in two ways, is a 400 where the client has said it and a 502 where the upstream has.
//!
//! A proxy for all the world has more to do than this one. It takes no empty lines before a request, no `OPTIONS *`, no whole
//! addresses in place of paths, and of transfer encodings only `chunked`; it does not upgrade to other protocols. That a client
//! has left it sees when it next writes to it or when a timeout is over, and not while the upstream thinks.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf, copy_buf, sink};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::http::{Body, Head};
use crate::timers::{Sleep, Timers};

/// How long a client has to take note of the end before its connection goes.
const LINGER: Duration = Duration::from_secs(1);

/// Until the next try when a connection cannot be accepted: for want of files, say.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) header: Duration,
    pub(crate) idle: Duration,
    pub(crate) total: Duration,
}

/// Of a timeout.
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
    /// How a path begins, and who answers.
    pub(crate) routes: Vec<(String, SocketAddr)>,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) ended: AtomicU64,
    /// Requests that were answered by the upstream, to the end.
    pub(crate) answered: AtomicU64,
    /// By [`Kind`].
    pub(crate) timed_out: [AtomicU64; 4],
}

/// Why a connection ends.
enum Cut {
    TimedOut(Kind),
    /// The client says what cannot be understood, or nothing any more.
    Refused,
    /// The upstream cannot be reached, or does not answer as it should.
    Failed,
    /// As both sides wanted it.
    Over,
}

/// How far a request has got.
struct Progress {
    waits_for: Side,
    /// From then on the client can be told nothing else.
    is_answered: bool,
}

enum Side {
    /// To send its request.
    Client,
    /// To be reached, and to answer.
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
                        if let Cut::TimedOut(kind) = proxy.connection(client).await {
                            proxy.counts.timed_out[kind as usize].fetch_add(1, Relaxed);
                        }
                        proxy.counts.ended.fetch_add(1, Relaxed);
                    });
                }
                Err(_) => drop(self.timers.timeout(PAUSE, std::future::pending::<()>()).await),
            }
        }
    }

    /// One request after the other.
    async fn connection(&self, client: TcpStream) -> Cut {
        let idle = Idle::new(&self.timers, self.limits.idle);
        let mut client = Leg::new(client, &idle);
        let mut upstream = None;
        loop {
            match idle.guard(client.from.fill_buf()).await {
                None => return Cut::TimedOut(Kind::Idle),
                Some(Err(_) | Ok([])) => return Cut::Over,
                Some(Ok(_)) => {}
            }
            let mut progress = Progress { waits_for: Side::Client, is_answered: false };
            let request = self.request(&idle, &mut client, &mut upstream, &mut progress);
            let end = match self.timers.timeout(self.limits.total, idle.guard(request)).await {
                None => Err(Cut::TimedOut(Kind::Total)),
                Some(None) => Err(Cut::TimedOut(Kind::Idle)),
                Some(Some(end)) => end,
            };
            if let Err(cut) = end {
                drop(upstream);
                self.timers.timeout(LINGER, client.hang_up(cut.status(&progress))).await;
                return cut;
            }
        }
    }

    async fn request<'a>(
        &self,
        idle: &'a Idle<T::Sleep>,
        client: &mut Leg<'a, T::Sleep>,
        upstream: &mut Option<(SocketAddr, Leg<'a, T::Sleep>)>,
        progress: &mut Progress,
    ) -> Result<(), Cut> {
        let head = self.timers.timeout(self.limits.header, Head::request(&mut client.from)).await;
        let request = head.ok_or(Cut::TimedOut(Kind::Header))?.map_err(|_| Cut::Refused)?;

        progress.waits_for = Side::Upstream;
        let address = self.route(request.word(1))?;
        let (_, upstream) = match upstream.take() {
            Some(open) if open.0 == address && open.1.is_quiet() => upstream.insert(open),
            _ => {
                let stream = self.timers.timeout(self.limits.connect, TcpStream::connect(address)).await;
                let stream = stream.ok_or(Cut::TimedOut(Kind::Connect))??;
                upstream.insert((address, Leg::new(stream, idle)))
            }
        };

        let there = async {
            upstream.to.write_all(&request.bytes).await?;
            request.body().copy(&mut client.from, &mut upstream.to).await
        };
        let back = async {
            let answer = loop {
                let answer = Head::answer(&mut upstream.from).await?;
                let status = answer.word(1);
                if status == b"101" {
                    return Err(io::Error::from(io::ErrorKind::Unsupported));
                }
                // "Go on", "early hints": there is another one to come.
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
        // The upstream may have answered before it has read all: then it does not want the rest.
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
                        // Nor then, if it has hung up; there may still be an answer to read.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => false,
                        Err(_) => return Err(Cut::Refused),
                    });
                    progress.waits_for = Side::Upstream;
                }
            }
        };
        self.counts.answered.fetch_add(1, Relaxed);
        if stays && sent == Some(true) && request.keeps_alive() { Ok(()) } else { Err(Cut::Over) }
    }

    fn route(&self, path: &[u8]) -> io::Result<SocketAddr> {
        let route = self.routes.iter().find(|(beginning, _)| path.starts_with(beginning.as_bytes()));
        route.map(|&(_, address)| address).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}

impl Cut {
    /// What the client is told. Nothing, when an answer has begun.
    fn status(&self, progress: &Progress) -> Option<&'static str> {
        match (self, &progress.waits_for) {
            _ if progress.is_answered => None,
            (Self::Over, _) => None,
            (Self::Refused, _) => Some("400 Bad Request"),
            (Self::Failed, _) => Some("502 Bad Gateway"),
            (Self::TimedOut(_), Side::Client) => Some("408 Request Timeout"),
            (Self::TimedOut(_), Side::Upstream) => Some("504 Gateway Timeout"),
        }
    }
}

impl From<io::Error> for Cut {
    fn from(_: io::Error) -> Self {
        Self::Failed
    }
}

/// The idle timeout of a client's connection and of the one behind it: one sleep, which each byte re-arms.
struct Idle<S> {
    limit: Duration,
    /// All that use it are one task, so nobody waits for this.
    sleep: Mutex<Pin<Box<S>>>,
}

impl<S: Sleep> Idle<S> {
    fn new(timers: &impl Timers<Sleep = S>, limit: Duration) -> Self {
        Self { limit, sleep: Mutex::new(Box::pin(timers.sleep(limit))) }
    }

    /// `None` if nothing is heard for too long before it is ready.
    async fn guard<F: Future>(&self, future: F) -> Option<F::Output> {
        let over = std::future::poll_fn(|context| self.sleep().as_mut().poll(context));
        tokio::select! {
            biased;
            output = future => Some(output),
            () = over => None,
        }
    }

    fn heard(&self) {
        self.sleep().as_mut().reset(self.limit);
    }

    fn sleep(&self) -> MutexGuard<'_, Pin<Box<S>>> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the two connections.
struct Leg<'a, S> {
    from: BufReader<Heard<'a, OwnedReadHalf, S>>,
    to: Heard<'a, OwnedWriteHalf, S>,
}

impl<'a, S: Sleep> Leg<'a, S> {
    fn new(stream: TcpStream, idle: &'a Idle<S>) -> Self {
        // If it fails, it is slower.
        let _ = stream.set_nodelay(true);
        let (from, to) = stream.into_split();
        // Small, for most connections say little.
        Self { from: BufReader::with_capacity(4096, Heard { io: from, idle }), to: Heard { io: to, idle } }
    }

    /// Whether it is there, and says nothing unasked.
    fn is_quiet(&self) -> bool {
        let read = self.from.get_ref().io.try_read(&mut [0]);
        self.from.buffer().is_empty() && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Says what is left to say, and waits until the other side has gone: to close while that still sends would take back
    /// what it has not read yet.
    async fn hang_up(&mut self, status: Option<&str>) -> io::Result<()> {
        if let Some(status) = status {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            self.to.write_all(answer.as_bytes()).await?;
        }
        self.to.shutdown().await?;
        copy_buf(&mut self.from, &mut sink()).await.map(drop)
    }
}

/// Re-arms the idle timeout when something was read or written.
struct Heard<'a, I, S> {
    io: I,
    idle: &'a Idle<S>,
}

impl<I: AsyncRead + Unpin, S: Sleep> AsyncRead for Heard<'_, I, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let end = Pin::new(&mut self.io).poll_read(context, buffer);
        if end.is_ready() {
            self.idle.heard();
        }
        end
    }
}

impl<I: AsyncWrite + Unpin, S: Sleep> AsyncWrite for Heard<'_, I, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let end = Pin::new(&mut self.io).poll_write(context, bytes);
        if end.is_ready() {
            self.idle.heard();
        }
        // It may be a reset, which reading can end with too: so it is known which of the two has failed.
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
