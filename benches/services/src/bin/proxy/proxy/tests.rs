//! Tests of the proxy over real sockets. Each test implements its own small upstream.

use std::future::{pending, ready};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, sink};
use tokio::net::{TcpListener, TcpStream};

use super::{Counts, Idle, Limits, Proxy, Tracked};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const LONG: Duration = Duration::from_secs(60);
/// Long enough for a busy machine.
const SHORT: Duration = Duration::from_secs(1);
const LONG_LIMITS: Limits = Limits {
    connect: LONG,
    header: LONG,
    idle: LONG,
    total: LONG,
};

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    // A test fails if only one of the long timeouts ends it.
    runtime
        .block_on(HashedWheelTimer::global().timeout(LONG / 2, test))
        .expect("a test takes a few seconds")
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns a client of a proxy for this upstream.
async fn client(limits: Limits, upstream: SocketAddr) -> TcpStream {
    let timers = HashedWheelTimer::new(Duration::from_millis(1), 512);
    let routes = vec![("/".into(), upstream)];
    let proxy = Arc::new(Proxy {
        timers,
        limits,
        routes,
        counts: Counts::default(),
    });
    let (listener, address) = listen().await;
    tokio::spawn(proxy.serve(listener));
    TcpStream::connect(address).await.unwrap()
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn expect(stream: &mut TcpStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

/// Reads until the connection ends.
async fn read_to_end(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[test]
fn messages_are_passed_on_unchanged_and_in_order() {
    run(async {
        let (listener, address) = listen().await;
        let mut client = client(LONG_LIMITS, address).await;
        let upload =
            "PUT /a HTTP/1.1\r\nexpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
        send(&mut client, upload).await;
        let (mut upstream, _) = listener.accept().await.unwrap();
        expect(&mut upstream, upload).await;
        send(&mut upstream, "HTTP/1.1 100 Continue\r\n\r\n").await;
        expect(&mut client, "HTTP/1.1 100 Continue\r\n\r\n").await;
        // The next request is sent immediately and has to wait.
        let (body, next) = ("2\r\nhi\r\n0\r\n\r\n", "HEAD /b HTTP/1.1\r\n\r\n");
        send(&mut client, &format!("{body}{next}")).await;
        expect(&mut upstream, body).await;
        send(&mut upstream, OK).await;
        expect(&mut client, OK).await;
        expect(&mut upstream, next).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n";
        send(&mut upstream, head).await;
        expect(&mut client, head).await;
        // The last request.
        send(&mut client, "GET /c HTTP/1.1\r\nConnection: close\r\n\r\n").await;
        expect(
            &mut upstream,
            "GET /c HTTP/1.1\r\nConnection: close\r\n\r\n",
        )
        .await;
        send(&mut upstream, OK).await;
        assert_eq!(read_to_end(client).await, OK);
        assert_eq!(read_to_end(upstream).await, "");
    });
}

#[test]
fn answer_may_precede_the_end_of_the_request_or_end_with_its_connection() {
    run(async {
        let (listener, address) = listen().await;
        let upload = "POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n";
        for answer in [OK, "HTTP/1.1 200 OK\r\n\r\nall of this"] {
            let mut client = client(LONG_LIMITS, address).await;
            send(&mut client, &format!("{upload}some of it")).await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            expect(&mut upstream, upload).await;
            send(&mut upstream, answer).await;
            upstream.shutdown().await.unwrap();
            assert_eq!(read_to_end(client).await, answer);
        }
    });
}

/// Many times, because the proxy has to write exactly when the upstream closes.
#[test]
fn answer_is_passed_on_if_the_upstream_does_not_read_the_whole_request() {
    run(async {
        let upstream = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = upstream.local_addr().unwrap();
        let times = 100;
        let upstream = thread::spawn(move || {
            for _ in 0..times {
                let (mut stream, _) = upstream.accept().unwrap();
                stream.read_exact(&mut [0; 1_000]).unwrap();
                stream.write_all(OK.as_bytes()).unwrap();
            }
        });
        for _ in 0..times {
            let (mut from, mut to) = client(LONG_LIMITS, address).await.into_split();
            let upload = format!(
                "POST / HTTP/1.1\r\ncontent-length: 99000000\r\n\r\n{}",
                "x".repeat(1_000_000)
            );
            let mut text = String::new();
            // It does not matter whether all of it is read.
            let (_, status_code) = tokio::join!(
                to.write_all(upload.as_bytes()),
                from.read_to_string(&mut text)
            );
            status_code.unwrap();
            assert_eq!(text, OK);
        }
        upstream.join().unwrap();
    });
}

#[test]
fn closed_upstream_connection_is_replaced() {
    run(async {
        let (listener, address) = listen().await;
        let mut client = client(LONG_LIMITS, address).await;
        for _ in 0..3 {
            send(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            expect(&mut upstream, "GET / HTTP/1.1\r\n\r\n").await;
            send(&mut upstream, OK).await;
            expect(&mut client, OK).await;
            drop(upstream);
            // Waits until the proxy can detect that.
            HashedWheelTimer::global().sleep(SHORT / 10).await.unwrap();
        }
    });
}

#[test]
fn errors_have_a_status_and_end_the_connection() {
    run(async {
        let (listener, unreachable) = listen().await;
        drop(listener);
        let (_listener, stuck) = listen().await;
        let limits_with_short = |kind| match kind {
            "header" => Limits {
                header: SHORT,
                ..LONG_LIMITS
            },
            "idle" => Limits {
                idle: SHORT,
                ..LONG_LIMITS
            },
            "total" => Limits {
                total: SHORT,
                ..LONG_LIMITS
            },
            _ => LONG_LIMITS,
        };
        let cases = [
            ("", stuck, "no request\r\n\r\n", "400"),
            (
                "",
                stuck,
                "PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfive\r\n",
                "400",
            ),
            ("", stuck, "GET http://elsewhere/ HTTP/1.1\r\n\r\n", "502"),
            ("", unreachable, "GET / HTTP/1.1\r\n\r\n", "502"),
            ("header", stuck, "GET /", "408"),
            ("idle", stuck, "GET /", "408"),
            ("total", stuck, "GET /", "408"),
            (
                "idle",
                stuck,
                "PUT / HTTP/1.1\r\ncontent-length: 10\r\n\r\nfive.",
                "408",
            ),
            (
                "total",
                stuck,
                "PUT / HTTP/1.1\r\ncontent-length: 10\r\n\r\nfive.",
                "408",
            ),
            (
                "idle",
                stuck,
                "PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\nfive.",
                "504",
            ),
            ("idle", stuck, "GET / HTTP/1.1\r\n\r\n", "504"),
            ("total", stuck, "GET / HTTP/1.1\r\n\r\n", "504"),
            ("idle", stuck, "", ""),
        ];
        let cases = cases.map(|(kind, upstream, request, status)| {
            tokio::spawn(async move {
                let mut client = client(limits_with_short(kind), upstream).await;
                send(&mut client, request).await;
                let answer = read_to_end(client).await;
                let status_code = answer.split(' ').nth(1).unwrap_or_default();
                assert_eq!(status_code, status, "{kind} {request:?}: {answer}");
            })
        });
        for case in cases {
            case.await.unwrap();
        }
    });
}

/// Closing the connection while data arrives could make the client lose unread data.
#[test]
fn client_that_still_writes_receives_the_error() {
    run(async {
        let (_listener, stuck) = listen().await;
        let mut client = client(LONG_LIMITS, stuck).await;
        let more = "x".repeat(100_000);
        send(&mut client, &format!("no request\r\n\r\n{more}")).await;
        expect(&mut client, "HTTP/1.1 400 ").await;
        send(&mut client, &more).await;
        assert!(read_to_end(client).await.starts_with("Bad Request\r\n"));
    });
}

#[test]
fn invalid_answer_is_a_502() {
    run(async {
        let (listener, address) = listen().await;
        for answer in [
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
        ] {
            let mut client = client(LONG_LIMITS, address).await;
            send(&mut client, "GET / HTTP/1.1\r\nconnection: upgrade\r\n\r\n").await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            send(&mut upstream, answer).await;
            let answer = read_to_end(client).await;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        }
    });
}

#[test]
fn reads_and_writes_reset_the_idle_timeout() {
    run(async {
        let clock = ManualClock::new();
        let (timer, mut driver) = HashedWheelTimer::builder()
            .clock(clock.clone())
            .build_driven()
            .unwrap();
        let idle = Idle::new(&timer, SHORT);
        let (mut from, mut to) = (
            Tracked {
                io: &[0; 4][..],
                idle: &idle,
            },
            Tracked {
                io: sink(),
                idle: &idle,
            },
        );
        for n in 0..8 {
            tokio::select! {
                biased;
                _ = idle.guard(pending::<()>()) => panic!("the connection was not idle"),
                () = ready(()) => {}
            }
            clock.advance(SHORT * 3 / 4);
            driver.turn();
            if n < 4 {
                from.read_u8().await.unwrap();
            } else {
                to.write_u8(0).await.unwrap();
            }
        }
        clock.advance(SHORT * 2);
        driver.turn();
        assert!(idle.guard(pending::<()>()).await.is_none());
    });
}

#[test]
fn started_answer_is_aborted_by_a_timeout() {
    run(async {
        let (listener, address) = listen().await;
        for limits in [
            Limits {
                idle: SHORT,
                ..LONG_LIMITS
            },
            Limits {
                total: SHORT,
                ..LONG_LIMITS
            },
        ] {
            let mut client = client(limits, address).await;
            send(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfive";
            send(&mut upstream, half).await;
            assert_eq!(read_to_end(client).await, half);
        }
    });
}
