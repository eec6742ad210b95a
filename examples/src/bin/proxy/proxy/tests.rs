//! What passes through the proxy, over real sockets; the upstream is a few lines for each case.

use std::future::{pending, ready};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, ManualClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, sink};
use tokio::net::{TcpListener, TcpStream};

use super::{Counts, Heard, Idle, Limits, Proxy};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const LONG: Duration = Duration::from_secs(60);
/// Long enough for a machine that has other things to do.
const SHORT: Duration = Duration::from_secs(1);
const PATIENT: Limits = Limits { connect: LONG, header: LONG, idle: LONG, total: LONG };

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    // What only a patient timeout ends has not ended as it should.
    runtime.block_on(HashedWheelTimer::global().timeout(LONG / 2, test)).expect("a test takes a few seconds")
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

/// Many times, for it takes a proxy that writes just when the upstream closes.
#[test]
fn an_answer_is_heard_from_an_upstream_that_leaves_the_rest_of_the_request_unread() {
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
            let (mut from, mut to) = client(PATIENT, address).await.into_split();
            let upload =
                format!("POST / HTTP/1.1\r\ncontent-length: 99000000\r\n\r\n{}", "x".repeat(1_000_000));
            let mut text = String::new();
            // Whether all of it is taken does not matter.
            let (_, heard) = tokio::join!(to.write_all(upload.as_bytes()), from.read_to_string(&mut text));
            heard.unwrap();
            assert_eq!(text, OK);
        }
        upstream.join().unwrap();
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
            ("", stuck, "PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfive\r\n", "400"),
            ("", stuck, "GET http://elsewhere/ HTTP/1.1\r\n\r\n", "502"),
            ("", nobody, "GET / HTTP/1.1\r\n\r\n", "502"),
            ("header", stuck, "GET /", "408"),
            ("idle", stuck, "GET /", "408"),
            ("total", stuck, "GET /", "408"),
            ("idle", stuck, "PUT / HTTP/1.1\r\ncontent-length: 10\r\n\r\nfive.", "408"),
            ("total", stuck, "PUT / HTTP/1.1\r\ncontent-length: 10\r\n\r\nfive.", "408"),
            ("idle", stuck, "PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\nfive.", "504"),
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

/// To close while something comes would take back what it has not read yet.
#[test]
fn who_goes_on_writing_is_still_told_what_was_wrong() {
    run(async {
        let (_listener, stuck) = listen().await;
        let mut client = client(PATIENT, stuck).await;
        let more = "x".repeat(100_000);
        says(&mut client, &format!("no request\r\n\r\n{more}")).await;
        hears(&mut client, "HTTP/1.1 400 ").await;
        says(&mut client, &more).await;
        assert!(last_words(client).await.starts_with("Bad Request\r\n"));
    });
}

#[test]
fn an_answer_that_cannot_be_passed_on_is_a_502() {
    run(async {
        let (listener, address) = listen().await;
        for answer in ["HTTP/1.1 101 Switching Protocols\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
            let mut client = client(PATIENT, address).await;
            says(&mut client, "GET / HTTP/1.1\r\nconnection: upgrade\r\n\r\n").await;
            let (mut upstream, _) = listener.accept().await.unwrap();
            says(&mut upstream, answer).await;
            let words = last_words(client).await;
            assert!(words.starts_with("HTTP/1.1 502 "), "{words}");
        }
    });
}

#[test]
fn what_is_read_or_written_puts_off_the_idle_timeout() {
    run(async {
        let clock = ManualClock::new();
        let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
        let idle = Idle::new(&timer, SHORT);
        let (mut from, mut to) = (Heard { io: &[0; 4][..], idle: &idle }, Heard { io: sink(), idle: &idle });
        for n in 0..8 {
            tokio::select! {
                biased;
                _ = idle.guard(pending::<()>()) => panic!("it was not idle"),
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
