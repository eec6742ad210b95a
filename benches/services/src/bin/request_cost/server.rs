//! The service. Its timers are a parameter.
//!
//! | timeout | scheduled and cancelled | re-armed |
//! |---|---|---|
//! | hyper's, for the head of a request | once per request | – |
//! | the handler's, for the answer | once per request | – |
//! | of a connection that receives nothing | once per connection | by each read |
//! | of a connection that is idle in both directions | once per connection | by each read and write |
//!
//! The last two are as in Netty's `IdleStateHandler`.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::Timer;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;

use crate::timers::{Sleep, Timers};

/// No timeout fires during a measurement: a connection that gets no request waits for minutes.
const HEAD_LIMIT: Duration = Duration::from_secs(600);
const READ_LIMIT: Duration = Duration::from_secs(900);
const IDLE_LIMIT: Duration = Duration::from_secs(1_200);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

pub(crate) const BODY: &str = "this is the answer\n";

pub(crate) async fn serve<T: Timers>(
    listener: TcpListener,
    timers: Arc<T>,
    hypers: impl Timer + Send + Sync + 'static,
) -> io::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(hypers).header_read_timeout(HEAD_LIMIT);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let stream = TimedStream::new(stream, &*timers);
        let timers = Arc::clone(&timers);
        let service = service_fn(move |request| answer(Arc::clone(&timers), request));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        // An error means that the client has disconnected.
        tokio::spawn(async move { drop(connection.await) });
    }
}

async fn answer<T: Timers>(
    timers: Arc<T>,
    _: Request<Incoming>,
) -> Result<Response<String>, Infallible> {
    // Stands for a query. It has to wait once, because a future that is ready at once needs no
    // timeout.
    let query = async {
        yield_now().await;
        BODY
    };
    Ok(match timers.timeout(ANSWER_LIMIT, query).await {
        Some(body) => Response::new(body.into()),
        None => {
            let mut late = Response::new(String::new());
            *late.status_mut() = StatusCode::GATEWAY_TIMEOUT;
            late
        }
    })
}

/// A connection that ends after some time without traffic.
struct TimedStream<S> {
    stream: TcpStream,
    without_read: Pin<Box<S>>,
    idle: Pin<Box<S>>,
}

impl<S: Sleep> TimedStream<S> {
    fn new(stream: TcpStream, timers: &impl Timers<Sleep = S>) -> Self {
        let [without_read, idle] =
            [READ_LIMIT, IDLE_LIMIT].map(|limit| Box::pin(timers.sleep(limit)));
        Self {
            stream,
            without_read,
            idle,
        }
    }

    fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_over = [&mut self.without_read, &mut self.idle]
            .map(|limit| limit.as_mut().poll(context).is_ready())
            .contains(&true);
        if is_over {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        } else {
            Poll::Pending
        }
    }
}

impl<S: Sleep> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Poll::Ready(end) = Pin::new(&mut self.stream).poll_read(context, buffer) else {
            return self.poll_limits(context);
        };
        self.without_read.as_mut().reset(READ_LIMIT);
        self.idle.as_mut().reset(IDLE_LIMIT);
        Poll::Ready(end)
    }
}

impl<S: Sleep> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.idle.as_mut().reset(IDLE_LIMIT);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
