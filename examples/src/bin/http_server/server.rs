//! The server: all of its timeouts are the timer's.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// How long a client may take for the head of a request, and the server for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) header: Duration,
    pub(crate) answer: Duration,
}

pub(crate) async fn serve(listener: TcpListener, timer: HashedWheelTimer, limits: Limits) -> io::Result<()> {
    // hyper's own timeouts: all that it takes is to name the timer.
    let mut http = http1::Builder::new();
    http.timer(timer.clone()).header_read_timeout(limits.header);
    loop {
        let (stream, _) = listener.accept().await?;
        let timer = timer.clone();
        let service = service_fn(move |request| answer(timer.clone(), limits.answer, request));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        // It ends with an error where a client was cut off.
        tokio::spawn(async move { drop(connection.await) });
    }
}

/// And the server's: work that takes too long is given up.
async fn answer(
    timer: HashedWheelTimer,
    limit: Duration,
    request: Request<Incoming>,
) -> Result<Response<String>, Infallible> {
    let work = work(&timer, request.uri().path());
    Ok(match timer.timeout(limit, work).await {
        Ok(body) => Response::new(body),
        Err(error) => {
            let mut late = Response::new(format!("{error}\n"));
            *late.status_mut() = StatusCode::GATEWAY_TIMEOUT;
            late
        }
    })
}

async fn work(timer: &HashedWheelTimer, path: &str) -> String {
    if path == "/stuck" {
        std::future::pending::<()>().await;
    }
    // A database, say.
    let _ = timer.sleep(Duration::from_millis(5)).await;
    format!("hello from {path}\n")
}
