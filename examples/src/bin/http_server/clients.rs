//! The clients. Each one is a connection. Most behave well; some send the head of their request so
//! slowly that it never ends.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::Lateness;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::Limits;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Client {
    /// Sends a request and gets an answer.
    Quick,
    /// Requests work that never ends.
    Stuck,
    /// Sends a byte from time to time, but never the last one.
    Slow,
}

/// The results of some clients.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) served: u64,
    pub(crate) told_too_late: u64,
    pub(crate) cut_off: u64,
    /// Clients that sent their request after the time limit for it, because the machine was busy,
    /// and that were therefore disconnected.
    pub(crate) starved: u64,
    /// Descriptions of connections that ended too early, or in the wrong way.
    pub(crate) wrong: Vec<String>,
    /// The lateness of connections that the timer ended.
    pub(crate) lateness: Lateness,
}

impl Client {
    /// Connects after a delay, runs the client and returns its result. It sends its request after
    /// `stall`, as if the machine was busy.
    pub(crate) async fn run(
        self,
        after: Duration,
        stall: Duration,
        server: SocketAddr,
        timer: HashedWheelTimer,
        limits: Limits,
    ) -> io::Result<Counts> {
        timer.sleep(after).await.map_err(io::Error::other)?;
        let mut counts = Counts::default();
        let began = Instant::now();
        let stream = TcpStream::connect(server).await?;
        // The server's time starts at some point between these two.
        let connected = Instant::now();
        timer.sleep(stall).await.map_err(io::Error::other)?;
        let mut sent = None;
        let talk = self.talk(stream, &timer, limits, &mut sent);
        let end = timer.timeout(patience(limits), talk).await;
        let (time, late) = (began.elapsed(), connected.elapsed());
        let was_starved = sent.is_some_and(|sent| sent - began >= limits.header);
        let (count, limit, answer) = match self {
            Self::Quick => (&mut counts.served, Duration::ZERO, "HTTP/1.1 200"),
            Self::Stuck => (&mut counts.told_too_late, limits.answer, "HTTP/1.1 504"),
            Self::Slow => (&mut counts.cut_off, limits.header, ""),
        };
        match end {
            Ok(Ok(text))
                if text.starts_with(answer) && text.is_empty() == answer.is_empty() && time >= limit =>
            {
                *count += 1;
                if !limit.is_zero() {
                    counts.lateness.record(late.saturating_sub(limit));
                }
            }
            Ok(Ok(text)) if text.is_empty() && was_starved => counts.starved += 1,
            end => counts.wrong.push(format!("{self:?} after {time:.1?}: {end:?}")),
        }
        Ok(counts)
    }

    /// Talks until the server closes the connection, and returns the answer; nothing if the server
    /// did not wait for the request. Sets when the request was `sent`.
    async fn talk(
        self,
        mut stream: TcpStream,
        timer: &HashedWheelTimer,
        limits: Limits,
        sent: &mut Option<Instant>,
    ) -> io::Result<String> {
        let (mut from, mut to) = stream.split();
        let path = if matches!(self, Self::Stuck) { "/stuck" } else { "/" };
        let head = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n");
        let mut answer = String::new();
        if matches!(self, Self::Slow) {
            let mut read = std::pin::pin!(from.read_to_string(&mut answer));
            for byte in head.bytes().cycle() {
                // The client is waiting here when the server disconnects it.
                match timer.timeout(limits.header / 5, &mut read).await {
                    Ok(end) => {
                        end.or_else(is_closed)?;
                        break;
                    }
                    // An error means that the server has closed the connection.
                    Err(_) => drop(to.write_all(&[if byte.is_ascii_control() { b'x' } else { byte }]).await),
                }
            }
        } else {
            // An error means that the server has closed the connection.
            let _ = to.write_all(format!("{head}\r\n").as_bytes()).await;
            *sent = Some(Instant::now());
            from.read_to_string(&mut answer).await.or_else(is_closed)?;
        }
        // A server that does not wait may answer 408 or simply close the connection.
        Ok(if answer.starts_with("HTTP/1.1 408") { String::new() } else { answer })
    }
}

/// Returns how long a client waits for the server: longer than the time limits of the server, which
/// ends each connection.
fn patience(limits: Limits) -> Duration {
    limits.header.max(limits.answer) + Duration::from_secs(60)
}

/// Treats an error because of a closed connection as the end of the input.
fn is_closed(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::ConnectionReset { Ok(0) } else { Err(error) }
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.served += other.served;
        self.told_too_late += other.told_too_late;
        self.cut_off += other.cut_off;
        self.starved += other.starved;
        self.wrong.extend(other.wrong);
        self.lateness.add(&other.lateness);
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel_trial::options::A_DAY;

    use super::*;

    #[test]
    fn clients_wait_longer_than_the_server() {
        let [short, long] = [Duration::from_millis(1), A_DAY];
        for (header, answer) in [(short, short), (short, long), (long, short), (long, long)] {
            let waits = patience(Limits { header, answer });
            assert!(waits > header && waits > answer, "{waits:?}: {header:?}, {answer:?}");
        }
    }
}
