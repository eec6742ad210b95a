//! The upstream. Depending on the path it answers, never answers, answers without end, or is
//! unreachable.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader, copy_buf, sink};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::http::Head;

pub(crate) const STUCK: &str = "/stuck";
pub(crate) const ENDLESS: &str = "/endless";
pub(crate) const UNREACHABLE: &str = "/unreachable";

/// The length of its answer in bytes, without the head.
const PAGE: usize = 500;

/// Thousands of clients connect at the same time. The system may impose a lower limit.
const BACKLOG: u32 = 4096;

/// Returns a listener on a free port of the loopback interface.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    socket.listen(BACKLOG)
}

/// Serves requests. `every` is the interval between the bytes of the endless answer.
pub(crate) async fn serve(listener: TcpListener, every: Duration) {
    loop {
        match listener.accept().await {
            // An error means that the proxy has closed the connection.
            Ok((stream, _)) => drop(tokio::spawn(
                async move { drop(answer(stream, every).await) },
            )),
            Err(error) => {
                eprintln!("the upstream cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, every: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.split();
    let mut from = BufReader::with_capacity(1024, from);
    let page = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {PAGE}\r\n\r\n{}",
        "x".repeat(PAGE)
    );
    loop {
        let request = Head::request(&mut from).await?;
        let path = request.word(1);
        if path == STUCK.as_bytes() {
            return copy_buf(&mut from, &mut sink()).await.map(drop);
        }
        if path == ENDLESS.as_bytes() {
            to.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                .await?;
            loop {
                to.write_all(b"1\r\nx\r\n").await?;
                sleep(every).await;
            }
        }
        to.write_all(page.as_bytes()).await?;
    }
}

/// A listener that accepts no connection and whose backlog is full. On Linux, an attempt to connect
/// to it gets no answer.
pub(crate) struct Unreachable {
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Unreachable {
    pub(crate) async fn new() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(0)?;
        let address = listener.local_addr()?;
        let mut waiting = Vec::new();
        while let Ok(stream) =
            timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            waiting.push(stream?);
            if waiting.len() > 100 {
                return Err(io::Error::other(
                    "this system answers connections to a listener with a full backlog",
                ));
            }
        }
        Ok(Self {
            address,
            _listener: listener,
            _waiting: waiting,
        })
    }
}
