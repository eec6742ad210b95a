//! A TCP server that closes a connection after a second without a packet.
//!
//! ```text
//! the server has received 30 bytes
//! the server has closed the silent connection: true
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;

const IDLE: Duration = Duration::from_secs(1);

/// Serves one connection. Each packet moves the deadline of the same timeout.
fn serve(timer: &HashedWheelTimer, stream: TcpStream) -> io::Result<usize> {
    let stream = Arc::new(stream);
    let closed = Arc::clone(&stream);
    let idle = timer.new_timeout(move |_| drop(closed.shutdown(Shutdown::Both)), IDLE);
    // Cancels the timeout when the connection ends first.
    let idle = idle.map_err(io::Error::other)?.cancel_on_drop();
    let (mut received, mut buffer) = (0, [0; 64]);
    loop {
        match (&*stream).read(&mut buffer)? {
            0 => return Ok(received),
            bytes => received += bytes,
        }
        if !idle.reset(IDLE) {
            return Ok(received); // too late: the connection is being closed
        }
    }
}

fn main() -> io::Result<()> {
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let server = thread::spawn(move || serve(&timer, listener.accept()?.0));

    let mut last_packet = Instant::now();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(20));
        last_packet = Instant::now();
        client.write_all(b"still here")?;
    }
    let end = client.read(&mut [0])?;
    println!(
        "the server has received {} bytes",
        server.join().expect("it does not panic")?
    );
    println!(
        "the server has closed the silent connection: {}",
        end == 0 && last_packet.elapsed() >= IDLE
    );
    Ok(())
}
