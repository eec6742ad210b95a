//! What passes through the proxy, over real sockets; the upstream is a few lines for each case.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Counts, Limits, Proxy};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const LONG: Duration = Duration::from_secs(60);
/// Long enough for a machine that has other things to do.
const SHORT: Duration = Duration::from_secs(1);
const PATIENT: Limits = Limits { connect: LONG, header: LONG, idle: LONG, total: LONG };

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(test)
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A client of a proxy with that behind it.
async fn client(limits: Limits, upstream: SocketAddr) -> TcpStream {
    let timers = HashedWheelTimer::new(Duration::from_millis(1), 512);
    let routes = vec![("/".into(), upstream)];
    let proxy = Arc::new(Proxy { timers, limits, routes, counts: Counts::default() });
    let (listener, address) = listen().await;
    tokio::spawn(proxy.serve(listener));
    TcpStream::connect(address).await.unwrap()
}

async fn says(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn hears(stream: &mut TcpStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

/// To the end of the connection.
async fn last_words(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[test]
fn messages_are_passed_on_as_they_are_one_after_the_other() {
    run(async {
        let (listener, address) = listen().await;
        let mut client = client(PATIENT, address).await;
        let upload = "PUT /a HTTP/1.1\r\nexpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
        says(&mut client, upload).await;
        let (mut upstream, _) = listener.accept().await.unwrap();
        hears(&mut upstream, upload).await;
        says(&mut upstream, "HTTP/1.1 100 Continue\r\n\r\n").await;
        hears(&mut client, "HTTP/1.1 100 Continue\r\n\r\n").await;
        // The next one comes at once, and has to wait.
        let (body, next) = ("2\r\nhi\r\n0\r\n\r\n", "HEAD /b HTTP/1.1\r\n\r\n");
        says(&mut client, &format!("{body}{next}")).await;
        hears(&mut upstream, body).await;
        says(&mut upstream, OK).await;
        hears(&mut client, OK).await;
        hears(&mut upstream, next).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n";
        says(&mut upstream, head).await;
        hears(&mut client, head).await;
        // And the last one.
        says(&mut client, "GET /c HTTP/1.1\r\nConnection: close\r\n\r\n").await;
        hears(&mut upstream, "GET /c HTTP/1.1\r\nConnection: close\r\n\r\n").await;
        says(&mut upstream, OK).await;
        assert_eq!(last_words(client).await, OK);
        assert_eq!(last_words(upstream).await, "");
    });
}

#[test]
fn an_answer_may_come_before_all_of_the_request_or_last_as_long_as_its_connection() {
    run(async {
        let (listener, address) = listen().await;
        let upload = "POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n";
        for answer in [OK, "HTTP/1.1 200 OK\r\n\r\nall of this"] {
            let mut client = client(PATIENT, address).await;
            says(&mut client, &format!("{upload}some of it")).await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            hears(&mut upstream, upload).await;
            says(&mut upstream, answer).await;
            upstream.shutdown().await.unwrap();
            assert_eq!(last_words(client).await, answer);
        }
    });
}

#[test]
fn an_upstream_that_has_hung_up_is_called_again() {
    run(async {
        let (listener, address) = listen().await;
        let mut client = client(PATIENT, address).await;
        for _ in 0..3 {
            says(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            hears(&mut upstream, "GET / HTTP/1.1\r\n\r\n").await;
            says(&mut upstream, OK).await;
            hears(&mut client, OK).await;
            drop(upstream);
            // Until the proxy can see that.
            HashedWheelTimer::global().sleep(SHORT / 10).await.unwrap();
        }
    });
}

#[test]
fn errors_have_a_status_each_and_end_the_connection() {
    run(async {
        let (listener, nobody) = listen().await;
        drop(listener);
        let (_listener, stuck) = listen().await;
        let impatient = |kind| match kind {
            "header" => Limits { header: SHORT, ..PATIENT },
            "idle" => Limits { idle: SHORT, ..PATIENT },
            "total" => Limits { total: SHORT, ..PATIENT },
            _ => PATIENT,
        };
        let cases = [
            ("", stuck, "no request\r\n\r\n", "400"),
            ("", stuck, "GET http://elsewhere/ HTTP/1.1\r\n\r\n", "502"),
            ("", nobody, "GET / HTTP/1.1\r\n\r\n", "502"),
            ("header", stuck, "GET /", "408"),
            ("idle", stuck, "GET /", "408"),
            ("total", stuck, "GET /", "408"),
            ("idle", stuck, "GET / HTTP/1.1\r\n\r\n", "504"),
            ("total", stuck, "GET / HTTP/1.1\r\n\r\n", "504"),
            ("idle", stuck, "", ""),
        ];
        let cases = cases.map(|(kind, upstream, request, status)| {
            tokio::spawn(async move {
                let mut client = client(impatient(kind), upstream).await;
                says(&mut client, request).await;
                let words = last_words(client).await;
                let heard = words.split(' ').nth(1).unwrap_or_default();
                assert_eq!(heard, status, "{kind} {request:?}: {words}");
            })
        });
        for case in cases {
            case.await.unwrap();
        }
    });
}

#[test]
fn an_answer_that_has_begun_is_cut_off_in_time() {
    run(async {
        let (listener, address) = listen().await;
        for limits in [Limits { idle: SHORT, ..PATIENT }, Limits { total: SHORT, ..PATIENT }] {
            let mut client = client(limits, address).await;
            says(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfive";
            says(&mut upstream, half).await;
            assert_eq!(last_words(client).await, half);
        }
    });
}
