//! A reverse proxy with every timeout that a proxy has, for thousands of connections, on one wheel; and the same proxy on
//! tokio's timer beside it.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin proxy
//! ```
//!
//! Connect, header, idle and total timeouts: `proxy.rs` says what each is. The load is `wrk`, from the system's packages
//! (`apt install wrk`), on thousands of connections that are kept. Beside it thousands of connections are idle, each
//! guarded by its timeout, and hundreds of clients each run into one of the others: they send the head of a request a byte at
//! a time, or ask for what is never answered, what never ends, and what cannot be reached.
//!
//! A proxy is a process of its own, which this program starts: one on the wheel, with tokio's timer not even started; one on a
//! wheel without a thread, which a task of the runtime turns; and one on tokio's timer; in turn, several times over, and each
//! time another one first. The code is the same but for `timers.rs`. The table at the end has medians.
//!
//! At the end it says PASS or FAIL and why: each timeout has fired as often as it should, when it should, and wrk has seen
//! no error; who is faster has no part in it. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on
//! open files, 77 is that there is no wrk. `proxy.rs` and `timers.rs` (and `http.rs`) are the part to copy. For Linux.

mod clients;
mod http;
mod load;
mod process;
mod proxy;
mod report;
mod timers;
mod trial;
mod upstream;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use hashed_wheel::{Builder, HashedWheelTimer};
use hashed_wheel_examples::Verdict;
use hashed_wheel_examples::server::NO_SERVER;
use hashed_wheel_examples::top::Top;
use indicatif::HumanCount;

use crate::process::On;
use crate::proxy::Limits;
use crate::report::Report;
use crate::trial::Turn;
use crate::upstream::Unreachable;

const A_DAY: Duration = Duration::from_secs(86_400);

/// A proxy's timeouts on the wheel, and on tokio's timer, under load.
#[derive(Debug, Parser)]
#[command(
    name = "proxy",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on open files, 77 is that there is no wrk."
)]
struct Options {
    /// How many connections the load comes on
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,

    /// How many connections are idle beside it
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(..=20_000))]
    idle: u32,

    /// How many clients run into each of the other timeouts
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=5_000))]
    offenders: u32,

    /// How long there is load, each time. What is to fire under it has to be shorter
    #[arg(long, value_name = "S", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,

    /// How often each proxy has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Whose timers the proxies take, one proxy after the other
    #[arg(long, value_name = "WHOSE", value_delimiter = ',', default_value = "wheel,task,tokio")]
    timers: Vec<On>,

    /// How long the upstream may take to accept a connection
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    connect_timeout: Duration,

    /// How long a client may take for the head of a request
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    header_timeout: Duration,

    /// How long nothing may come from either side
    #[arg(long, value_name = "TIME", default_value = "7s", value_parser = humantime::parse_duration)]
    idle_timeout: Duration,

    /// How long a request may take with all that belongs to it
    #[arg(long, value_name = "TIME", default_value = "9s", value_parser = humantime::parse_duration)]
    total_timeout: Duration,

    /// The wheel's tick. tokio's is 1 ms
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = humantime::parse_duration)]
    tick: Duration,

    /// FAIL if a timeout is seen to fire later than that: what a busy machine takes
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    max_late: Duration,

    #[command(flatten)]
    top: Top,

    /// Has the proxy do something wrong, to show that it is noticed
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,

    /// This is the process of the proxy
    #[arg(long, hide = true)]
    proxy_on: Option<On>,

    /// What the proxy has behind it
    #[arg(long, hide = true, value_delimiter = ',')]
    upstreams: Vec<SocketAddr>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sabotage {
    /// All timeouts fire in half the time.
    Early,
    /// Nobody looks for idle connections.
    NeverIdle,
}

impl Options {
    /// What is wrong with options that are right one by one.
    fn check(&self) -> Result<(), String> {
        let Limits { connect, header, idle, total } = self.limits();
        if connect.is_zero() || header.is_zero() || connect.max(header) >= idle || idle >= total {
            return Err("--connect-timeout and --header-timeout have to be shorter than --idle-timeout, and that shorter than \
                        --total-timeout: otherwise it is not known which one has to fire"
                .into());
        }
        if total.max(self.max_late) > A_DAY {
            return Err("a day is the longest".into());
        }
        self.wheel().build().map_err(|wrong| format!("--tick: {wrong}")).map(drop)
    }

    fn wheel(&self) -> Builder {
        HashedWheelTimer::builder().tick(self.tick)
    }

    fn limits(&self) -> Limits {
        Limits {
            connect: self.connect_timeout,
            header: self.header_timeout,
            idle: self.idle_timeout,
            total: self.total_timeout,
        }
    }

    /// Those that the proxy has.
    fn proxy_limits(&self) -> Limits {
        let Limits { connect, header, idle, total } = self.limits();
        match self.sabotage {
            None => self.limits(),
            Some(Sabotage::Early) => {
                Limits { connect: connect / 2, header: header / 2, idle: idle / 2, total: total / 2 }
            }
            Some(Sabotage::NeverIdle) => Limits { idle: A_DAY, ..self.limits() },
        }
    }

    /// How many files the proxy has open at most: nearly all connections have another one behind them.
    fn files(&self) -> u64 {
        let connections = self.connections + self.idle + 4 * self.offenders;
        2 * u64::from(connections) + 100
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: u32| HumanCount(n.into());
        let Limits { connect, header, idle, total } = self.limits();
        write!(
            f,
            "{} connections with load, {} idle ones, and {} clients for each of the other timeouts: {} turns of {} s.\n\
             Timeouts: connect {connect:?}, header {header:?}, idle {idle:?}, total {total:?}. The wheel's tick: {:?}.",
            count(self.connections),
            count(self.idle),
            count(self.offenders),
            self.rounds * self.timers.len() as u32,
            self.seconds,
            self.tick,
        )
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(wrong) = options.check() {
        Options::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    let end = match options.proxy_on {
        Some(on) => process::main(on, &options).map(|()| ExitCode::SUCCESS),
        None => compare(&options),
    };
    end.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn compare(options: &Options) -> io::Result<ExitCode> {
    let wrk = match load::find() {
        Ok(wrk) => wrk,
        Err(missing) => {
            println!("{missing}");
            return Ok(ExitCode::from(NO_SERVER));
        }
    };
    // The proxy and wrk inherit the limit.
    let (needed, limit) = (options.files(), rlimit::increase_nofile_limit(u64::MAX)?);
    if limit < needed {
        eprintln!(
            "error: {needed} open files are needed and {limit} allowed: ask for fewer --connections or --idle"
        );
        return Ok(ExitCode::from(2));
    }
    println!("{options}\n");
    let runtime = tokio::runtime::Runtime::new()?;
    let mut verdict = Verdict::default();
    // Who is told to end drops what runs, and so ends the proxy and wrk. (Who is killed leaves wrk, for the rest of its seconds.)
    let turns = async {
        tokio::select! {
            turns = take_turns(options, &wrk) => turns,
            end = told_to_end() => end.and(Err(io::ErrorKind::Interrupted.into())),
        }
    };
    match runtime.block_on(turns) {
        Ok(turns) => {
            print!("\n{}", Report(&turns));
            for (n, turn) in (0..).zip(&turns) {
                turn.judge(options, n / options.timers.len() as u32 + 1, &mut verdict);
            }
        }
        Err(error) => verdict.expect(false, error.to_string()),
    }
    Ok(verdict.print())
}

#[cfg(unix)]
async fn told_to_end() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn told_to_end() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

async fn take_turns(options: &Options, wrk: &Path) -> io::Result<Vec<Turn>> {
    let upstream = upstream::listen()?;
    let unreachable = Unreachable::new().await?;
    let upstreams = [upstream.local_addr()?, unreachable.address];
    // Often enough that it is never idle.
    tokio::spawn(upstream::serve(upstream, options.idle_timeout / 10));
    let (mut turns, mut proxies) = (Vec::new(), options.timers.clone());
    for round in 1..=options.rounds {
        for &on in &proxies {
            let turn = trial::run(options, wrk, on, upstreams).await?;
            let [connect, header, idle, total] = turn.said.timed_out.map(HumanCount);
            println!(
                "{round}. {on:<12}  {} requests; fired: connect {connect}, header {header}, idle {idle}, total {total}; \
                 late: {}",
                HumanCount(turn.load.requests),
                turn.lateness,
            );
            turns.push(turn);
        }
        // None is always the one after the other.
        proxies.rotate_left(1);
    }
    Ok(turns)
}
