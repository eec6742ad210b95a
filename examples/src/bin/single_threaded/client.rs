//! The client. It sends a request again if no answer arrives, doubles the waiting time each time,
//! and finally gives up.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hashed_wheel::wheel::Key;
use hashed_wheel_trial::Lateness;
use mio::net::UdpSocket;

use crate::server::if_ready;
use crate::timers::{TICK, Timers};
use crate::{Id, Timer};

/// The maximum number of open requests. Fewer datagrams than that always fit into a socket's
/// buffer, so only the server drops any.
const MAX_OPEN: usize = 100;

/// The time until the first retransmission.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// The time limit of a request, from its first transmission.
const LIMIT: Duration = Duration::from_millis(500);

pub(crate) struct Client {
    pub(crate) socket: UdpSocket,
    /// The number of requests that have not started.
    unstarted: u64,
    /// The requests that have not ended.
    open: HashMap<Id, Request>,
    pub(crate) counts: Counts,
}

struct Request {
    /// How long to wait for the answer before the next retransmission.
    wait: Duration,
    retransmit_at: Instant,
    retransmit: Key,
    expires_at: Instant,
    fail: Key,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) retransmitted: u64,
    /// Answers to requests that have already ended.
    pub(crate) stray: u64,
    pub(crate) cancelled: u64,
    /// Timers that expired too early.
    pub(crate) early: u64,
    /// Timers that did not expire although a later timer did, or that could not be cancelled
    /// although they had not expired.
    pub(crate) missed: u64,
    pub(crate) lateness: Lateness,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, requests: u64) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        socket.connect(server)?;
        Ok(Self { socket, unstarted: requests, open: HashMap::new(), counts: Counts::default() })
    }

    /// Starts as many requests as the limit permits.
    pub(crate) fn begin(&mut self, timers: &mut Timers<Timer>) -> io::Result<()> {
        while self.unstarted > 0 && self.open.len() < MAX_OPEN {
            let id = self.unstarted.to_be_bytes();
            self.unstarted -= 1;
            self.socket.send(&id)?;
            let now = Instant::now();
            let (retransmit_at, expires_at) = (now + FIRST_WAIT, now + LIMIT);
            let request = Request {
                wait: FIRST_WAIT,
                retransmit_at,
                retransmit: timers.at(retransmit_at, Timer::AskAgain(id)),
                expires_at,
                fail: timers.at(expires_at, Timer::GiveUp(id)),
            };
            self.open.insert(id, request);
        }
        Ok(())
    }

    /// Handles answers. Most timers end here.
    pub(crate) fn readable(&mut self, timers: &mut Timers<Timer>) -> io::Result<()> {
        let mut id = Id::default();
        while if_ready(self.socket.recv(&mut id))?.is_some() {
            let Some(request) = self.open.remove(&id) else {
                self.counts.stray += 1;
                continue;
            };
            self.counts.answered += 1;
            for timer in [request.retransmit, request.fail] {
                match timers.cancel(timer) {
                    Some(_) => self.counts.cancelled += 1,
                    None => self.counts.missed += 1,
                }
            }
        }
        Ok(())
    }

    pub(crate) fn retransmit(&mut self, id: Id, timers: &mut Timers<Timer>) -> io::Result<()> {
        // The request may have ended since the wheel returned this timer, because of an earlier
        // timer in the same list.
        let Some(request) = self.open.get_mut(&id) else { return Ok(()) };
        self.counts.record_expiry(request.retransmit_at);
        self.counts.retransmitted += 1;
        self.socket.send(&id)?;
        request.wait *= 2;
        request.retransmit_at = Instant::now() + request.wait;
        request.retransmit = timers.at(request.retransmit_at, Timer::AskAgain(id));
        Ok(())
    }

    pub(crate) fn fail(&mut self, id: Id, timers: &mut Timers<Timer>) {
        let Some(request) = self.open.remove(&id) else {
            // The answer must have cancelled this timer.
            self.counts.missed += 1;
            return;
        };
        self.counts.failed += 1;
        self.counts.record_expiry(request.expires_at);
        self.counts.cancelled += u64::from(timers.cancel(request.retransmit).is_some());
        // Even on a busy machine, timers expire in the order of their ticks.
        let was_due_before = request.retransmit_at + TICK <= request.expires_at;
        self.counts.missed += u64::from(was_due_before);
    }
}

impl Counts {
    fn record_expiry(&mut self, due: Instant) {
        let now = Instant::now();
        self.early += u64::from(now < due);
        self.lateness.record(now.saturating_duration_since(due));
    }
}
