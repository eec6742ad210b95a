//! The client: asks again when no answer comes, each time after twice as long, and gives up in the end.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hashed_wheel::wheel::Key;
use hashed_wheel_examples::Lateness;
use mio::net::UdpSocket;

use crate::server::if_ready;
use crate::timers::{TICK, Timers};
use crate::{Id, Timer};

/// How many requests are on their way at a time: fewer than datagrams fit in a socket's buffer, so that only the server
/// drops any.
const AT_A_TIME: usize = 100;

/// When to ask for the second time.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// When to give up, counted from the first time.
const LIMIT: Duration = Duration::from_millis(500);

pub(crate) struct Client {
    pub(crate) socket: UdpSocket,
    /// How many requests have not been begun.
    to_come: u64,
    /// Those that have not ended.
    open: HashMap<Id, Request>,
    pub(crate) counts: Counts,
}

struct Request {
    /// How long to wait for the answer before asking again.
    wait: Duration,
    ask_again_at: Instant,
    ask_again: Key,
    give_up_at: Instant,
    give_up: Key,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) given_up: u64,
    pub(crate) asked_again: u64,
    /// Answers that came when the request had ended: to a second asking, or too late.
    pub(crate) stray: u64,
    pub(crate) cancelled: u64,
    /// Timers that came out before their time.
    pub(crate) early: u64,
    /// Timers that did not come out, though their time had come before that of one that did; or that were not there to
    /// be cancelled, though they had not come out.
    pub(crate) missed: u64,
    pub(crate) lateness: Lateness,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, requests: u64) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        socket.connect(server)?;
        Ok(Self { socket, to_come: requests, open: HashMap::new(), counts: Counts::default() })
    }

    /// Begins as many requests as may be on their way.
    pub(crate) fn begin(&mut self, timers: &mut Timers<Timer>) -> io::Result<()> {
        while self.to_come > 0 && self.open.len() < AT_A_TIME {
            let id = self.to_come.to_be_bytes();
            self.to_come -= 1;
            self.socket.send(&id)?;
            let now = Instant::now();
            let (ask_again_at, give_up_at) = (now + FIRST_WAIT, now + LIMIT);
            let request = Request {
                wait: FIRST_WAIT,
                ask_again_at,
                ask_again: timers.at(ask_again_at, Timer::AskAgain(id)),
                give_up_at,
                give_up: timers.at(give_up_at, Timer::GiveUp(id)),
            };
            self.open.insert(id, request);
        }
        Ok(())
    }

    /// Answers have come. Here nearly all timers end.
    pub(crate) fn readable(&mut self, timers: &mut Timers<Timer>) -> io::Result<()> {
        let mut id = Id::default();
        while if_ready(self.socket.recv(&mut id))?.is_some() {
            let Some(request) = self.open.remove(&id) else {
                self.counts.stray += 1;
                continue;
            };
            self.counts.answered += 1;
            for timer in [request.ask_again, request.give_up] {
                match timers.cancel(timer) {
                    Some(_) => self.counts.cancelled += 1,
                    None => self.counts.missed += 1,
                }
            }
        }
        Ok(())
    }

    pub(crate) fn ask_again(&mut self, id: Id, timers: &mut Timers<Timer>) -> io::Result<()> {
        // It may have ended since this timer came out of the wheel: by the one before it in the list.
        let Some(request) = self.open.get_mut(&id) else { return Ok(()) };
        self.counts.came_out(request.ask_again_at);
        self.counts.asked_again += 1;
        self.socket.send(&id)?;
        request.wait *= 2;
        request.ask_again_at = Instant::now() + request.wait;
        request.ask_again = timers.at(request.ask_again_at, Timer::AskAgain(id));
        Ok(())
    }

    pub(crate) fn give_up(&mut self, id: Id, timers: &mut Timers<Timer>) {
        let Some(request) = self.open.remove(&id) else {
            // The answer has cancelled it.
            self.counts.missed += 1;
            return;
        };
        self.counts.given_up += 1;
        self.counts.came_out(request.give_up_at);
        self.counts.cancelled += u64::from(timers.cancel(request.ask_again).is_some());
        // However busy the machine is, what is due first comes out first, tick by tick.
        let was_due_before = request.ask_again_at + TICK <= request.give_up_at;
        self.counts.missed += u64::from(was_due_before);
    }
}

impl Counts {
    fn came_out(&mut self, due: Instant) {
        let now = Instant::now();
        self.early += u64::from(now < due);
        self.lateness.record(now.saturating_duration_since(due));
    }
}
