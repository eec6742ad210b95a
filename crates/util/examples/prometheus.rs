//! The counters of a timer as a page for Prometheus.
//! hashed-wheel-util needs `features = ["metrics"]`.
//!
//! ```text
//! hashed_wheel_cancelled_total{timer="requests"} 2
//! hashed_wheel_expired_total{timer="requests"} 0
//! hashed_wheel_pending{timer="requests"} 1
//! hashed_wheel_scheduled_total{timer="requests"} 3
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::metrics::publish;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Answers one request. A service with an HTTP server adds a route instead.
fn serve(
    listener: &TcpListener,
    timer: &HashedWheelTimer,
    page: &PrometheusHandle,
) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let _ = stream.read(&mut [0; 1_024])?;
    // Reads the counters now. Between two requests nothing is done.
    publish(&timer.stats(), "requests");
    let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
    write!(stream, "{head}{}", page.render())
}

fn main() -> Result<(), Box<dyn Error>> {
    let page = PrometheusBuilder::new().install_recorder()?;
    let timer = HashedWheelTimer::default();
    for is_answered in [true, true, false] {
        let deadline = timer.new_timeout(|_| (), Duration::from_secs(60))?;
        if is_answered {
            deadline.cancel();
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let server = thread::spawn(move || serve(&listener, &timer, &page));
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    server.join().expect("it does not panic")?;

    let names = [
        "scheduled_total{",
        "cancelled_total{",
        "expired_total{",
        "pending{",
    ];
    let mut lines: Vec<_> = answer
        .lines()
        .filter(|line| names.iter().any(|name| line.contains(name)))
        .collect();
    lines.sort_unstable();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}
