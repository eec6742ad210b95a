//! An HTTP server on hyper and tokio that uses this timer for its timeouts: hyper's own timeouts
//! for request heads, and those of the handlers.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin http_server
//! ```
//!
//! Real clients send requests concurrently. Most are answered. Some send the head of their request
//! one byte at a time, which would keep a connection open forever without a timeout: the server
//! disconnects them. Some request work that never ends, and get an error after the time limit.
//! tokio's timer is not even enabled; the clients use this timer too.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options. `server.rs` is the part to copy.

mod clients;
mod server;

use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::{duration, positive_duration};
use indicatif::HumanCount;
use tokio::net::TcpListener;

use crate::clients::{Client, Counts};
use crate::server::{Limits, serve};

/// All clients connect within this number of milliseconds. If they connected at the same time, some
/// connections would fail at first.
const ARRIVAL: u64 = 300;

/// An HTTP server that disconnects clients with slow headers, and aborts work that takes too long
#[derive(Debug, Parser)]
#[command(name = "http_server", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many clients there are; each one needs two open files
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    clients: u32,

    /// The time limit for the head of a request
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    header_timeout: Duration,

    /// The time limit for an answer
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    answer_timeout: Duration,

    /// FAIL if the 99th percentile of the lateness is higher: a tick, and what a busy machine needs
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    max_late: Duration,

    /// Determines which clients are slow
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The first client sends its request so late, as if the machine was busy
    #[arg(long, hide = true, default_value = "0s", value_parser = duration)]
    stall: Duration,

    #[command(flatten)]
    top: Top,
}

fn main() -> ExitCode {
    let options = Options::parse();
    // Raises the limit as far as possible. If it is still too low, the error says so.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    match run(&options) {
        Ok(outcome) => outcome.report(&options),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Outcome {
    expected: [u64; 3],
    counts: Counts,
    time: Duration,
    /// The number of pending timeouts after the last client has disconnected.
    pending: usize,
    scheduled: u64,
}

fn run(options: &Options) -> io::Result<Outcome> {
    let timer =
        HashedWheelTimer::builder().tick(Duration::from_millis(10)).build().map_err(io::Error::other)?;
    options.top.watch("requests", &timer);
    let limits = Limits { header: options.header_timeout, answer: options.answer_timeout };
    let mut random = Rng::with_seed(options.seed);
    let mut expected = [0; 3];
    let clients: Vec<_> = (0..options.clients)
        .map(|_| {
            let kind = [0, 0, 0, 1, 2][random.usize(..5)];
            expected[kind] += 1;
            let after = Duration::from_millis(random.u64(..ARRIVAL));
            ([Client::Quick, Client::Stuck, Client::Slow][kind], after)
        })
        .collect();
    println!(
        "{} clients: {} send their headers for more than {:?}, and {} request work that takes more than {:?}.",
        HumanCount(options.clients.into()),
        HumanCount(expected[2]),
        limits.header,
        HumanCount(expected[1]),
        limits.answer,
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let began = Instant::now();
    let counts = runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(serve(listener, timer.clone(), limits));
        let clients: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(n, (client, after))| {
                let stall = if n == 0 { options.stall } else { Duration::ZERO };
                tokio::spawn(client.run(after, stall, address, timer.clone(), limits))
            })
            .collect();
        let mut counts = Counts::default();
        for client in clients {
            counts.add(client.await??);
        }
        io::Result::Ok(counts)
    })?;
    let time = began.elapsed();
    // Drops the server and its connections, and thereby all of their timeouts.
    drop(runtime);
    let (pending, scheduled) = (timer.pending_timeouts(), timer.stats().scheduled);
    Ok(Outcome { expected, counts, time, pending, scheduled })
}

impl Outcome {
    fn report(&self, options: &Options) -> ExitCode {
        let Self { expected, counts, time, pending, scheduled } = self;
        let [quick, stuck, slow] = expected;
        let count = HumanCount;
        println!("served       {} of {} in {time:.1?}", count(counts.served), count(*quick));
        println!("cut off      {} of {} slow clients", count(counts.cut_off), count(*slow));
        println!(
            "given up     {} of {} requests that take too long",
            count(counts.told_too_late),
            count(*stuck)
        );
        if counts.starved > 0 {
            let starved = count(counts.starved);
            println!(
                "starved      {starved} clients sent their request after the time limit: the machine was busy"
            );
        }
        println!("lateness     {}", counts.lateness);
        println!("timeouts     {} scheduled, {pending} left", count(*scheduled));

        let mut verdict = Verdict::default();
        for wrong in counts.wrong.iter().take(5) {
            verdict.expect(false, wrong);
        }
        verdict.expect(counts.wrong.is_empty(), format!("{} clients got a wrong result", counts.wrong.len()));
        verdict.expect(counts.served > 0, "no client was served");
        verdict.expect(*pending == 0, format!("{pending} timeouts are still pending"));
        let late = counts.lateness.p99();
        verdict
            .expect(late <= options.max_late, format!("the 99th percentile of the lateness is {late:.1?}"));
        verdict.print()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_served_clients_does_not_pass() {
        let options = Options::parse_from(["http_server"]);
        let report = |served| {
            let counts = Counts { served, ..Counts::default() };
            let time = Duration::from_secs(1);
            Outcome { expected: [1, 0, 0], counts, time, pending: 0, scheduled: 0 }.report(&options)
        };
        assert_eq!(report(1), ExitCode::SUCCESS);
        assert_eq!(report(0), ExitCode::FAILURE);
    }
}
