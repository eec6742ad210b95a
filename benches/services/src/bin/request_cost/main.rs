//! The CPU time of a request in a small HTTP service, with its timeouts on this crate's timer and
//! on tokio's.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-services --bin request_cost
//! ```
//!
//! The service (`server.rs`) is hyper on tokio. A request schedules and cancels two timeouts, and
//! re-arms two others three times. Requests come at a steady rate on thousands of persistent
//! connections, most of which are idle. No timeout fires, so this measures what timeouts cost that
//! are there in case of need.
//!
//! Each service is a separate process, which this program starts. There are four kinds: a wheel
//! with a thread, with tokio's timer disabled; a wheel that a task of the runtime drives;
//! `hashed_wheel_util::time` in place of `tokio::time`; tokio's timer. All of them run at the same
//! time. They get the requests in turns of a second, in changing order, because the cost of a
//! system call changes from one second to the next on a virtual machine. The table at the end
//! contains medians, and medians of the ratios in each round.
//!
//! With 18 000 connections per service (`ulimit -n 60000`, as root):
//!
//! ```sh
//! cargo run --release -p hashed-wheel-services --bin request_cost -- --connections 18000 --rounds 30
//! ```
//!
//! At the end the program prints PASS, or FAIL and the reasons. It passes if each request was
//! answered and took as many timeouts as expected. The CPU time does not matter for that. Exit
//! status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on open files. For Linux.

mod load;
mod process;
mod report;
mod server;
mod timers;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::positive_duration;
use indicatif::HumanCount;

use crate::load::Load;
use crate::process::Process;
use crate::report::{Measurement, Report};
use hashed_wheel_services::On;

/// How many timeouts a request has to schedule.
const EXPECTED: f64 = 2.0;

/// How long a service gets requests before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// How far the count per request may be off, because a connection schedules timeouts too.
const TOLERANCE: f64 = 0.1;

/// The CPU time of a request in a small HTTP service, on this crate's timer and on tokio's
#[derive(Debug, Parser)]
#[command(
    name = "request_cost",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on open files."
)]
struct Options {
    /// How many connections each service has
    #[arg(long, value_name = "N", default_value_t = 6_000, value_parser = clap::value_parser!(u32).range(100..=60_000))]
    connections: u32,

    /// How many requests are sent per second, on all connections together
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,

    /// How long a turn lasts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    duration: Duration,

    /// How many turns each service has
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,

    /// The timers to measure, one service per timer
    #[arg(
        long,
        value_name = "WHOSE",
        value_delimiter = ',',
        default_value = "wheel,task,module,tokio"
    )]
    timers: Vec<On>,

    /// The wheel's tick; tokio's is 1 ms
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = positive_duration)]
    tick: Duration,

    /// How many threads the runtime of a service has; one per core if this is not set
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,

    /// Run as the service
    #[arg(long, hide = true)]
    serve_on: Option<On>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let end = match options.serve_on {
        Some(on) => process::main(on, options.tick, options.threads.map(usize::from))
            .map(|()| ExitCode::SUCCESS),
        None => compare(&options),
    };
    end.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn compare(options: &Options) -> io::Result<ExitCode> {
    // The services inherit the limit. This program has the connections of all of them.
    let connections = u64::from(options.connections) * options.timers.len() as u64;
    let (needed, limit) = (connections + 100, rlimit::increase_nofile_limit(u64::MAX)?);
    if limit < needed {
        eprintln!(
            "error: the limit on open files is {limit}, but {needed} are needed: use fewer --connections"
        );
        return Ok(ExitCode::from(2));
    }
    let Options {
        connections,
        rate,
        duration,
        rounds,
        tick,
        ..
    } = options;
    println!(
        "{} connections per service, {} requests per second: {rounds} rounds of {duration:?} per service. The wheel's tick: {tick:?}.\n",
        HumanCount((*connections).into()),
        HumanCount((*rate).into()),
    );
    let mut services = options
        .timers
        .iter()
        .map(|&on| Service::start(on, options))
        .collect::<io::Result<Vec<_>>>()?;
    let (mut verdict, mut measurements) = (Verdict::default(), Vec::new());
    for round in 1..=*rounds {
        for service in &mut services {
            let measurement = service.measure(options, round)?;
            measurement.check(&mut verdict);
            measurements.push(measurement);
        }
        // The order changes, so that no service always follows the same other one.
        services.rotate_left(1);
    }
    print!("{}", Report(&measurements));
    Ok(verdict.print())
}

struct Service {
    on: On,
    process: Process,
    load: Load,
}

impl Service {
    fn start(on: On, options: &Options) -> io::Result<Self> {
        let mut process = Process::start(on)?;
        let load = Load::connect(process.address, options.connections, options.rate).and_then(
            |mut load| {
                // The first requests on a connection cost more.
                load.run(WARM_UP)?;
                Ok(load)
            },
        );
        let load = load.map_err(|error| process.explain(error))?;
        Ok(Self { on, process, load })
    }

    fn measure(&mut self, options: &Options, round: u32) -> io::Result<Measurement> {
        let time = options.duration;
        let before = self.process.ask()?;
        let (requests, answers) = self
            .load
            .run(time)
            .map_err(|error| self.process.explain(error))?;
        let used = self.process.ask()?.since(&before);
        Ok(Measurement {
            on: self.on,
            round,
            requests,
            time,
            answers,
            used,
        })
    }
}
