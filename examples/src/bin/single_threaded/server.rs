//! The server. It also simulates the unreliable network: it drops some requests and answers others
//! late.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::UdpSocket;

use crate::timers::Timers;
use crate::{Id, Timer};

/// The share of late answers, and their maximum delay. Some of these answers arrive after a
/// retransmission, and some after the request has failed.
const LATE_SHARE: f64 = 0.1;
const LATE: Duration = Duration::from_millis(400);

pub(crate) struct Server {
    pub(crate) socket: UdpSocket,
    random: fastrand::Rng,
    drop_share: f64,
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) late: u64,
}

impl Server {
    pub(crate) fn new(drop_share: f64, seed: u64) -> io::Result<Self> {
        Ok(Self {
            socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into())?,
            random: fastrand::Rng::with_seed(seed),
            drop_share,
            received: 0,
            dropped: 0,
            late: 0,
        })
    }

    pub(crate) fn readable(&mut self, timers: &mut Timers<Timer>) -> io::Result<()> {
        let mut id = Id::default();
        while let Some((_, client)) = if_ready(self.socket.recv_from(&mut id))? {
            self.received += 1;
            if self.random.f64() < self.drop_share {
                self.dropped += 1;
            } else if self.random.f64() < LATE_SHARE {
                self.late += 1;
                let when = Instant::now() + LATE.mul_f64(self.random.f64());
                timers.at(when, Timer::Answer(id, client));
            } else {
                self.answer(id, client)?;
            }
        }
        Ok(())
    }

    pub(crate) fn answer(&self, id: Id, client: SocketAddr) -> io::Result<()> {
        self.socket.send_to(&id, client).map(drop)
    }
}

/// Returns `None` if the socket is not ready. mio reports when it is.
pub(crate) fn if_ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
