//! An axum server with three times: for a handler, for a connection without traffic, and for the
//! head of a request. The idle time is longer than that of a handler, during which nothing is sent.
//! hashed-wheel-util needs `features = ["http", "hyper", "tokio"]`, hyper `["http1", "server"]`,
//! hyper-util `["service", "tokio"]`, tokio `["io-util", "macros", "net", "rt-multi-thread"]`.
//!
//! ```text
//! a slow handler: HTTP/1.1 504 Gateway Timeout
//! the same connection without a request: closed
//! a head of one byte at a time: closed
//! ```

use axum::{Router, error_handling::HandleErrorLayer, routing::get};
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::tower::{BoxError, TimeoutLayer, http_status};
use hashed_wheel_util::{HyperTimer, IdleIo, time};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use std::{io, time::Duration, time::Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HANDLER: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_millis(500);
const HEAD: Duration = Duration::from_millis(1_000);

async fn serve(listener: TcpListener, timer: HashedWheelTimer) -> io::Result<()> {
    let status = HandleErrorLayer::new(|error: BoxError| async move { http_status(&*error) });
    let app = Router::new()
        .route("/", get(|| time::sleep(IDLE)))
        .layer((status, TimeoutLayer::new(&timer, HANDLER)));
    let mut server = http1::Builder::new();
    server.timer(HyperTimer::new(&timer));
    server.header_read_timeout(HEAD);
    loop {
        let stream = IdleIo::new(listener.accept().await?.0, &timer, IDLE);
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    tokio::spawn(serve(listener, timer));

    let (mut answer, begin) = (String::new(), Instant::now());
    let mut client = TcpStream::connect(address).await?;
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await?;
    client.read_to_string(&mut answer).await?; // until the server closes the connection
    println!("a slow handler: {}", answer.lines().next().unwrap());
    assert!(begin.elapsed() >= HANDLER + IDLE);
    println!("the same connection without a request: closed");

    let (mut client, begin) = (TcpStream::connect(address).await?, Instant::now());
    while client.write_all(b"a").await.is_ok() {
        time::sleep(IDLE / 10).await;
    }
    assert!(begin.elapsed() >= HEAD);
    println!("a head of one byte at a time: closed");
    Ok(())
}
