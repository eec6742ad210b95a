//! The server. This timer provides all of its timeouts.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::HyperTimer;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// The time limits for the head of a request and for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) header: Duration,
    pub(crate) answer: Duration,
}

pub(crate) async fn serve(listener: TcpListener, timer: HashedWheelTimer, limits: Limits) -> io::Result<()> {
    // hyper's own timeouts need only the timer.
    let mut http = http1::Builder::new();
    http.timer(HyperTimer::new(&timer)).header_read_timeout(limits.header);
    loop {
        let (stream, _) = listener.accept().await?;
        let timer = timer.clone();
        let service = service_fn(move |request| answer(timer.clone(), limits.answer, request));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        // An error means that the client was disconnected.
        tokio::spawn(async move { drop(connection.await) });
    }
}

/// The timeout of a handler: work that takes too long is aborted.
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
    // Simulates a database query, for example.
    let _ = timer.sleep(Duration::from_millis(5)).await;
    format!("hello from {path}\n")
}
