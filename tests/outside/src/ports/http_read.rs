//! The timeouts of an HTTP client with blocking sockets, as of Java's `HttpURLConnection`: a read
//! that has waited for too long fails, and so does one after the deadline of the whole response.
//! The timeout shuts the socket down, which ends the read. `TcpStream::set_read_timeout` has no
//! deadline of the whole.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;

use super::{Driven, SECOND};

struct Response {
    socket: TcpStream,
    timer: HashedWheelTimer,
    read_timeout: Duration,
    deadline: Instant,
}

impl Read for Response {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let socket = self.socket.try_clone()?;
        let end = self.deadline.min(self.timer.now() + self.read_timeout);
        let timeout = self
            .timer
            .new_timeout_at(move |_| _ = socket.shutdown(Shutdown::Both), end)?;
        let result = self.socket.read(buffer);
        // Exactly one of the two happens: this cancel, or the shutdown.
        if timeout.cancel() {
            result
        } else {
            Err(ErrorKind::TimedOut.into())
        }
    }
}

/// The bytes that a client has read in one call.
type Part = io::Result<Vec<u8>>;

/// Makes a server that writes what it is told, and a client that reads for at most 2 s at a time,
/// and 5 s in all.
fn exchange(t: &Driven) -> (Sender<&'static [u8]>, Receiver<Part>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let (write, to_write) = channel::<&[u8]>();
    thread::spawn(move || {
        to_write
            .iter()
            .try_for_each(|bytes| server.write_all(bytes))
    });
    let (timer, deadline) = (t.timer.clone(), t.timer.now() + SECOND * 5);
    let mut response = Response {
        socket,
        timer,
        read_timeout: SECOND * 2,
        deadline,
    };
    let (send, parts) = channel();
    let client = thread::spawn(move || {
        let mut buffer = [0; 64];
        loop {
            let part = response
                .read(&mut buffer)
                .map(|count| buffer[..count].to_vec());
            let is_last = !matches!(&part, Ok(bytes) if !bytes.is_empty());
            send.send(part).unwrap();
            if is_last {
                break;
            }
        }
    });
    (write, parts, client)
}

/// Waits until the client waits in its next read: since the last one, one more timeout was
/// scheduled.
fn wait_for_read(t: &Driven, number: u64) {
    while t.timer.stats().scheduled < number || t.timer.pending_timeouts() == 0 {
        thread::yield_now();
    }
}

#[test]
fn read_that_waits_for_too_long_fails() {
    let mut t = Driven::new();
    let (write, parts, client) = exchange(&t);
    write.send(b"HTTP/1.1 200 OK\r\n").unwrap();
    assert_eq!(parts.recv().unwrap().unwrap(), b"HTTP/1.1 200 OK\r\n");
    wait_for_read(&t, 2);
    assert_eq!((t.pass(SECOND), t.pass(SECOND)), (0, 1));
    let error = parts.recv().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.join().unwrap();
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn response_that_trickles_fails_at_its_deadline() {
    let mut t = Driven::new();
    let (write, parts, client) = exchange(&t);
    for number in 1..=4 {
        wait_for_read(&t, number);
        t.pass(SECOND);
        write.send(b".").unwrap();
        assert_eq!(parts.recv().unwrap().unwrap(), b".");
    }
    wait_for_read(&t, 5);
    assert_eq!(t.pass(SECOND), 1, "the deadline of the whole response");
    let error = parts.recv().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.join().unwrap();
}

#[test]
fn response_that_ends_leaves_no_timeout() {
    let t = Driven::new();
    let (write, parts, client) = exchange(&t);
    write.send(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    drop(write);
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.unwrap()).collect();
    assert_eq!(bytes, b"HTTP/1.1 204 No Content\r\n\r\n");
    client.join().unwrap();
    let counts = (t.timer.pending_timeouts(), t.timer.stats().expired);
    assert_eq!(counts, (0, 0));
}
