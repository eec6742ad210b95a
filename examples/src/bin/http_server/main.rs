//! An HTTP server on hyper and tokio that takes its timeouts from this timer: hyper's own, for heads that never end, and
//! those of its handlers.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin http_server
//! ```
//!
//! Real clients ask it at once. Most are answered. Some send the head of their request a byte at a time, which keeps a
//! connection open for ever where nobody looks at the clock: these are cut off. Some ask for what takes for ever, and are told
//! that it took too long. tokio's timer is not even started; clients wait by this one too.
//!
//! At the end it says PASS or FAIL and why. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options. `server.rs` is the part
//! to copy.

mod clients;
mod server;

use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_examples::Verdict;
use hashed_wheel_examples::top::Top;
use indicatif::HumanCount;
use tokio::net::TcpListener;

use crate::clients::{Client, Counts};
use crate::server::{Limits, serve};

/// Within so many milliseconds all clients have come: all at once, some would have to knock twice.
const ARRIVAL: u64 = 300;

/// An HTTP server that cuts off who sends headers too slowly, and gives up work that takes too long.
#[derive(Debug, Parser)]
#[command(name = "http_server", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many clients there are; each is two open files
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,

    /// How long a client may take to send the head of a request
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    header_timeout: Duration,

    /// How long the server may take to answer
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    answer_timeout: Duration,

    /// FAIL if 1 in 100 is cut off, or told so, later than so many milliseconds: a tick, and what a busy machine takes
    #[arg(long, value_name = "MS", default_value_t = 500)]
    max_late: u64,

    /// Who is slow
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    top: Top,
}

fn main() -> ExitCode {
    let options = Options::parse();
    // As many as there may be; if these are too few, the error says so.
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
    /// When the last client has gone.
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
        "{} clients, of whom {} send their headers for more than {:?}, and {} ask for what takes more than {:?}.",
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
            .map(|(client, after)| tokio::spawn(client.run(after, address, timer.clone(), limits)))
            .collect();
        let mut counts = Counts::default();
        for client in clients {
            counts.add(client.await??);
        }
        io::Result::Ok(counts)
    })?;
    let time = began.elapsed();
    // With it go the server and its connections; what these have on the timer has gone with them.
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
        println!("cut off      {} of {} who were too slow", count(counts.cut_off), count(*slow));
        println!("given up     {} of {} answers", count(counts.told_too_late), count(*stuck));
        println!("lateness     {}", counts.lateness);
        println!("timeouts     {} scheduled, {pending} left", count(*scheduled));

        let mut verdict = Verdict::default();
        for wrong in counts.wrong.iter().take(5) {
            verdict.expect(false, wrong);
        }
        verdict.expect(
            [counts.served, counts.told_too_late, counts.cut_off] == *expected,
            format!("{} clients were treated as they should not be", counts.wrong.len()),
        );
        verdict.expect(*pending == 0, format!("{pending} timeouts are left"));
        let late = counts.lateness.p99();
        verdict.expect(late.as_millis() <= options.max_late.into(), format!("1 in 100 was {late:.1?} late"));
        verdict.pronounce()
    }
}
