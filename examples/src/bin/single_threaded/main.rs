//! An event loop that owns a plain wheel: one thread, no timer, no lock and no atomic operations.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin single_threaded
//! ```
//!
//! libco manages its timeouts in the same way, with the same number of slots. The loop sleeps in
//! epoll until the next deadline, advances the wheel to the current millisecond, and handles the
//! expired entries. Here they belong to a client that sends requests to a server over UDP. It sends
//! a request again after 20 ms, after 40 ms more and so on, and gives up after 500 ms. When the
//! answer arrives, it removes both timers from the wheel. The server runs in the same loop. It
//! drops some requests, chosen by a seed, and answers others late, with the same wheel.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options. `timers.rs` is the part to copy, and `run` below shows how to use it.

mod client;
mod server;
mod timers;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::duration;
use indicatif::HumanCount;
use mio::{Events, Interest, Poll, Token};

use crate::client::Client;
use crate::server::Server;
use crate::timers::Timers;

const CLIENT: Token = Token(0);
const SERVER: Token = Token(1);

/// The number of a request: the only content of a datagram.
type Id = [u8; 8];

/// The action of a timer.
enum Timer {
    AskAgain(Id),
    GiveUp(Id),
    Answer(Id, SocketAddr),
}

/// An event loop on one thread that manages its timeouts in a plain wheel: a client with
/// retransmissions, and a network that loses datagrams
#[derive(Debug, Parser)]
#[command(name = "single_threaded", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many requests are made
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,

    /// The share of the datagrams that the server drops, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.3", value_parser = share)]
    drop: f64,

    /// FAIL if the 99th percentile of the lateness is higher: what the machine needs to wake a
    /// thread
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    max_late: Duration,

    /// Determines which datagrams are dropped, and which answers are late
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    println!(
        "{} requests over UDP; {} % of the datagrams are lost (seed {}).",
        HumanCount(options.requests.into()),
        options.drop * 100.0,
        options.seed
    );
    match run(&options) {
        Ok(outcome) => outcome.report(&options),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".into()),
    }
}

struct Outcome {
    client: client::Counts,
    server: Server,
    /// The number of entries that are left in the wheel.
    left: usize,
    time: Duration,
    wake_ups: u64,
    /// Wake-ups without a ready socket or a due entry.
    unneeded: u64,
}

fn run(options: &Options) -> io::Result<Outcome> {
    let mut server = Server::new(options.drop, options.seed)?;
    let mut client = Client::new(server.socket.local_addr()?, options.requests.into())?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut client.socket, CLIENT, Interest::READABLE)?;
    poll.registry().register(&mut server.socket, SERVER, Interest::READABLE)?;

    let mut timers = Timers::new();
    let mut due = Vec::new();
    let mut events = Events::with_capacity(16);
    let (mut wake_ups, mut unneeded) = (0, 0);
    let began = Instant::now();
    client.begin(&mut timers)?;
    // There is a timer as long as a request is open or an answer is delayed.
    while let Some(wait) = timers.wait() {
        match poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => wake_ups += 1,
        }
        // Handles datagrams before due entries: an answer that has arrived in time counts.
        for event in &events {
            match event.token() {
                CLIENT => client.readable(&mut timers)?,
                _ => server.readable(&mut timers)?,
            }
        }
        timers.take_due(&mut due);
        unneeded += u64::from(events.is_empty() && due.is_empty());
        for timer in due.drain(..) {
            match timer {
                Timer::AskAgain(id) => client.retransmit(id, &mut timers)?,
                Timer::GiveUp(id) => client.fail(id, &mut timers),
                Timer::Answer(id, to) => server.answer(id, to)?,
            }
        }
        client.begin(&mut timers)?;
    }
    let (time, left) = (began.elapsed(), timers.len());
    // The last retransmission may have been sent before the answer arrived.
    server.readable(&mut timers)?;
    Ok(Outcome { client: client.counts, server, left, time, wake_ups, unneeded })
}

impl Outcome {
    fn report(&self, options: &Options) -> ExitCode {
        let Self { client, server, left, time, wake_ups, unneeded } = self;
        let count = HumanCount;
        let requests = u64::from(options.requests);
        let sent = requests + client.retransmitted;
        println!(
            "answered     {} of {} in {time:.1?}; {} failed",
            count(client.answered),
            count(requests),
            count(client.failed)
        );
        println!(
            "sent again   {} times; {} answers were no longer needed",
            count(client.retransmitted),
            count(client.stray)
        );
        println!(
            "server       received {} datagrams (expected {}), dropped {}, answered {} late",
            count(server.received),
            count(sent),
            count(server.dropped),
            count(server.late)
        );
        let out = client.retransmitted + client.failed;
        println!("timers       {} cancelled, {} expired, {left} left", count(client.cancelled), count(out));
        println!("lateness     {}", client.lateness);
        println!("wake-ups     {}, {} of them without a reason", count(*wake_ups), count(*unneeded));

        let mut verdict = Verdict::default();
        let late = client.lateness.p99();
        verdict.expect(client.answered + client.failed == requests, "not every request ended exactly once");
        // A server that drops everything shows what happens if none is there.
        verdict.expect(client.answered > 0 || options.drop == 1.0, "no request was answered");
        verdict.expect(server.received == sent, "the server did not receive all datagrams that were sent");
        verdict.expect(client.early == 0, format!("{} timers expired early", client.early));
        verdict.expect(client.missed == 0, format!("{} timers were missed", client.missed));
        verdict.expect(*left == 0, format!("{left} timers are still in the wheel"));
        verdict
            .expect(late <= options.max_late, format!("the 99th percentile of the lateness is {late:.1?}"));
        verdict.print()
    }
}
