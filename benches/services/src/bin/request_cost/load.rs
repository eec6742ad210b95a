//! The load: persistent connections, and requests at a steady rate. Beside them a probe measures
//! how long an answer takes.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::server::BODY;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";

/// An answer is read this time after its request was sent. It has arrived by then, so this process
/// need not wait for thousands of sockets.
const ANSWER_TIME: Duration = Duration::from_millis(20);

/// How long to wait for an answer that has not arrived.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Of this many connections one after the other gets a request. It has no factor in common with
/// most numbers of connections, so that each connection gets its turn.
const STRIDE: usize = 7_919;

/// The time between two requests of the probe.
const PROBE_GAP: Duration = Duration::from_millis(1);

pub(crate) struct Load {
    connections: Vec<TcpStream>,
    probe: TcpStream,
    next: usize,
    /// The time between two requests.
    gap: Duration,
}

impl Load {
    pub(crate) fn connect(server: SocketAddr, count: u32, rate: u32) -> io::Result<Self> {
        let connections: io::Result<_> = (0..count).map(|_| connect(server)).collect();
        Ok(Self {
            connections: connections?,
            probe: connect(server)?,
            next: 0,
            gap: Duration::from_secs(1) / rate,
        })
    }

    /// Sends requests for this time. Returns how many, and how long each answer to the probe took.
    /// All of them were answered.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<(u64, Vec<Duration>)> {
        let (has_ended, mut probe) = (AtomicBool::new(false), self.probe.try_clone()?);
        thread::scope(|scope| {
            let probe = scope.spawn(|| {
                let mut answers = Vec::new();
                while !has_ended.load(Relaxed) {
                    let begin = Instant::now();
                    probe.write_all(REQUEST)?;
                    read_answer(&mut probe)?;
                    answers.push(begin.elapsed());
                    sleep(PROBE_GAP);
                }
                io::Result::Ok(answers)
            });
            let sent = self.send(time);
            has_ended.store(true, Relaxed);
            let answers = probe.join().expect("the probe does not panic")?;
            Ok((sent? + answers.len() as u64, answers))
        })
    }

    fn send(&mut self, time: Duration) -> io::Result<u64> {
        let (start, mut unanswered, mut sent) = (Instant::now(), VecDeque::new(), 0);
        while self.gap * sent < time {
            let due = self.gap * sent;
            sleep(due.saturating_sub(start.elapsed()));
            self.next = (self.next + STRIDE) % self.connections.len();
            self.connections[self.next].write_all(REQUEST)?;
            sent += 1;
            unanswered.push_back((due, self.next));
            while let Some(&(_, next)) = unanswered
                .front()
                .filter(|(then, _)| *then + ANSWER_TIME < due)
            {
                unanswered.pop_front();
                read_answer(&mut self.connections[next])?;
            }
        }
        unanswered
            .into_iter()
            .try_for_each(|(_, next)| read_answer(&mut self.connections[next]))?;
        Ok(sent.into())
    }
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn read_answer(connection: &mut TcpStream) -> io::Result<()> {
    let (mut answer, mut length) = ([0; 512], 0);
    while !answer[..length].ends_with(BODY.as_bytes()) {
        match connection.read(&mut answer[length..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => length += more,
            // This process was stopped and continued.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if answer.starts_with(b"HTTP/1.1 200") {
        Ok(())
    } else {
        Err(io::Error::other("the answer is an error"))
    }
}
