//! The clients, each a connection: most behave, some send the head of their request so slowly that it never ends.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_examples::Lateness;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::Limits;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Client {
    /// Asks, and is answered.
    Quick,
    /// Asks for what takes for ever.
    Stuck,
    /// Sends a byte now and then, and never the last one.
    Slow,
}

/// What became of some clients.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) served: u64,
    pub(crate) told_too_late: u64,
    pub(crate) cut_off: u64,
    /// Before their time, or never.
    pub(crate) wrong: Vec<String>,
    /// Of what the timer ended.
    pub(crate) lateness: Lateness,
}

impl Client {
    /// Comes after a while and goes through with it; what came of it.
    pub(crate) async fn run(
        self,
        after: Duration,
        server: SocketAddr,
        timer: HashedWheelTimer,
        limits: Limits,
    ) -> io::Result<Counts> {
        timer.sleep(after).await.map_err(io::Error::other)?;
        let mut counts = Counts::default();
        let began = Instant::now();
        let stream = TcpStream::connect(server).await?;
        // The server counts from some moment between the two.
        let connected = Instant::now();
        let end = timer.timeout(Duration::from_secs(60), self.talk(stream, &timer, limits)).await;
        let (time, late) = (began.elapsed(), connected.elapsed());
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
            end => counts.wrong.push(format!("{self:?} after {time:.1?}: {end:?}")),
        }
        Ok(counts)
    }

    /// Until the server closes the connection; what it said.
    async fn talk(
        self,
        mut stream: TcpStream,
        timer: &HashedWheelTimer,
        limits: Limits,
    ) -> io::Result<String> {
        let (mut from, mut to) = stream.split();
        let path = if matches!(self, Self::Stuck) { "/stuck" } else { "/" };
        let head = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n");
        let mut answer = String::new();
        if matches!(self, Self::Slow) {
            let mut read = std::pin::pin!(from.read_to_string(&mut answer));
            for byte in head.bytes().cycle() {
                // Until it is cut off, which is while it waits.
                match timer.timeout(limits.header / 5, &mut read).await {
                    Ok(end) => {
                        end.or_else(is_closed)?;
                        break;
                    }
                    // It may be too late for this one.
                    Err(_) => drop(to.write_all(&[if byte.is_ascii_control() { b'x' } else { byte }]).await),
                }
            }
            // A server has something to say to that, or just closes.
            return Ok(if answer.starts_with("HTTP/1.1 408") { String::new() } else { answer });
        }
        to.write_all(format!("{head}\r\n").as_bytes()).await?;
        from.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// Who sends while the other one closes is told so.
fn is_closed(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::ConnectionReset { Ok(0) } else { Err(error) }
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.served += other.served;
        self.told_too_late += other.told_too_late;
        self.cut_off += other.cut_off;
        self.wrong.extend(other.wrong);
        self.lateness.add(&other.lateness);
    }
}
