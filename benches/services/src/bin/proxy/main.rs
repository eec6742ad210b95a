//! A reverse proxy with connect, header, idle and total timeouts for thousands of connections on
//! one wheel, compared with the same proxy on tokio's timer.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-services --bin proxy
//! ```
//!
//! `proxy.rs` documents the timeouts. The load is `wrk`, from the system's packages
//! (`apt install wrk`), on thousands of persistent connections. At the same time thousands of
//! connections are idle, each with its idle timeout, and hundreds of clients trigger each of the
//! other timeouts. They send the head of a request one byte at a time, or send requests that are
//! never answered, whose answers never end, or whose upstream is unreachable.
//!
//! Each proxy is a separate process, which this program starts. There are three kinds. One uses a
//! wheel with a thread, with tokio's timer disabled. One uses a wheel without a thread, which a
//! task of the runtime drives. One uses tokio's timer. They are measured one after the other,
//! several times, in changing order. Their code differs only in `timers.rs`. The table at the end
//! contains medians.
//!
//! At the end the program prints PASS, or FAIL and the reasons. It passes if each timeout has fired
//! as often as expected and in time, and wrk has seen no error. The speed does not matter for that.
//! Exit status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on open files, 77 means
//! that there is no wrk, and 130 that the program was interrupted. For
//! Linux.

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
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::{A_DAY, duration, positive_duration};
use hashed_wheel_trial::server::NO_SERVER;
use indicatif::HumanCount;

use crate::proxy::Limits;
use crate::report::Report;
use crate::trial::Measurement;
use crate::upstream::Unreachable;
use hashed_wheel_services::On;

/// The exit status after SIGINT, as in a shell, and after SIGTERM.
const INTERRUPTED: u8 = 130;

/// A proxy's timeouts on the wheel, and on tokio's timer, under load
#[derive(Debug, Parser)]
#[command(
    name = "proxy",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options or too low a limit on open files, 77 means that there is no wrk, and 130 that the program was interrupted."
)]
struct Options {
    /// How many connections the load uses
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,

    /// How many idle connections there are in addition
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(..=20_000))]
    idle: u32,

    /// How many clients trigger each of the other timeouts
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=5_000))]
    offenders: u32,

    /// How long the load lasts, in whole seconds: at least as long as all timeouts, so that they
    /// fire under load
    #[arg(long, value_name = "TIME", default_value = "12s", value_parser = positive_duration)]
    duration: Duration,

    /// How often each proxy is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// The timers to measure, one proxy per timer
    #[arg(
        long,
        value_name = "WHOSE",
        value_delimiter = ',',
        default_value = "wheel,task,tokio"
    )]
    timers: Vec<On>,

    /// The time limit for a connection to the upstream
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = positive_duration)]
    connect_timeout: Duration,

    /// The time limit for the head of a request
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive_duration)]
    header_timeout: Duration,

    /// The time without data from either side after which a connection is closed
    #[arg(long, value_name = "TIME", default_value = "7s", value_parser = positive_duration)]
    idle_timeout: Duration,

    /// The time limit for a request and its answer
    #[arg(long, value_name = "TIME", default_value = "9s", value_parser = positive_duration)]
    total_timeout: Duration,

    /// The wheel's tick; tokio's is 1 ms
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = positive_duration)]
    tick: Duration,

    /// FAIL if a timeout fires later than this: what a busy machine needs
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    max_late: Duration,

    /// Make the proxy do something wrong, to show that it is detected
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,

    /// Run as the proxy
    #[arg(long, hide = true)]
    proxy_on: Option<On>,

    /// The upstreams of the proxy
    #[arg(long, hide = true, value_delimiter = ',')]
    upstreams: Vec<SocketAddr>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sabotage {
    /// All timeouts fire after half of their time.
    Early,
    /// The proxy has no idle timeout.
    NeverIdle,
}

impl Options {
    /// Returns what is wrong with a combination of valid options.
    fn check(&self) -> Result<(), String> {
        let Limits {
            connect,
            header,
            idle,
            total,
        } = self.limits();
        if connect.max(header) >= idle || idle >= total {
            return Err("--connect-timeout and --header-timeout have to be shorter than --idle-timeout, and that has to be shorter than \
                        --total-timeout: otherwise it is undefined which one fires"
                .into());
        }
        let duration = self.duration;
        if duration.subsec_nanos() != 0 {
            return Err(format!(
                "--duration {duration:?} is not a number of whole seconds, as wrk needs it"
            ));
        }
        if total > duration {
            return Err(format!(
                "--total-timeout {total:?} is longer than --duration {duration:?}: it would not fire under load"
            ));
        }
        self.wheel()
            .build()
            .map_err(|wrong| format!("--tick: {wrong}"))
            .map(drop)
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

    /// Returns the limits of the proxy, which sabotage may change.
    fn proxy_limits(&self) -> Limits {
        let Limits {
            connect,
            header,
            idle,
            total,
        } = self.limits();
        match self.sabotage {
            None => self.limits(),
            Some(Sabotage::Early) => Limits {
                connect: connect / 2,
                header: header / 2,
                idle: idle / 2,
                total: total / 2,
            },
            Some(Sabotage::NeverIdle) => Limits {
                idle: A_DAY,
                ..self.limits()
            },
        }
    }

    /// Returns the maximum number of open files of the proxy: nearly all connections have a second
    /// one to the upstream.
    fn files(&self) -> u64 {
        let connections = self.connections + self.idle + 4 * self.offenders;
        2 * u64::from(connections) + 100
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: u32| HumanCount(n.into());
        let Limits {
            connect,
            header,
            idle,
            total,
        } = self.limits();
        write!(
            f,
            "{} connections with load, {} idle ones, and {} clients for each of the other timeouts: {} measurements of {:?}.\n\
             Timeouts: connect {connect:?}, header {header:?}, idle {idle:?}, total {total:?}. The wheel's tick: {:?}.",
            count(self.connections),
            count(self.idle),
            count(self.offenders),
            self.rounds * self.timers.len() as u32,
            self.duration,
            self.tick,
        )
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(wrong) = options.check() {
        Options::command()
            .error(ErrorKind::ValueValidation, wrong)
            .exit();
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
            "error: the limit on open files is {limit}, but {needed} are needed: use fewer --connections or --idle"
        );
        return Ok(ExitCode::from(2));
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let terminated = {
        let _context = runtime.enter();
        termination_signal()?
    };
    println!("{options}\n");
    let mut verdict = Verdict::default();
    // On a signal, this function returns and drops the running future, which ends the proxy and
    // wrk. (After `kill -9`, wrk continues for its remaining time.)
    let measurements = async {
        tokio::select! {
            measurements = measure_all(options, &wrk) => measurements.map(Some),
            () = terminated => Ok(None),
        }
    };
    match runtime.block_on(measurements) {
        Ok(Some(measurements)) => {
            print!("\n{}", Report(&measurements));
            for (n, measurement) in (0..).zip(&measurements) {
                measurement.check(options, n / options.timers.len() as u32 + 1, &mut verdict);
            }
        }
        Ok(None) => {
            eprintln!("interrupted");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error) => verdict.expect(false, error.to_string()),
    }
    Ok(verdict.print())
}

/// Begins to catch the signals that end a program. The future waits for one.
#[cfg(unix)]
fn termination_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn termination_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async { _ = tokio::signal::ctrl_c().await })
}

async fn measure_all(options: &Options, wrk: &Path) -> io::Result<Vec<Measurement>> {
    let upstream = upstream::listen()?;
    let unreachable = Unreachable::new().await?;
    let upstreams = [upstream.local_addr()?, unreachable.address];
    // It sends often enough that the connection is never idle.
    tokio::spawn(upstream::serve(upstream, options.idle_timeout / 10));
    let (mut measurements, mut proxies) = (Vec::new(), options.timers.clone());
    for round in 1..=options.rounds {
        for &on in &proxies {
            let measurement = trial::run(options, wrk, on, upstreams).await?;
            let [connect, header, idle, total] = measurement.counters.timed_out.map(HumanCount);
            println!(
                "{round}. {on:<12}  {} requests; fired: connect {connect}, header {header}, idle {idle}, total {total}; \
                 late: {}",
                HumanCount(measurement.load.requests),
                measurement.lateness,
            );
            measurements.push(measurement);
        }
        // The order changes, so that no proxy always follows the same other one.
        proxies.rotate_left(1);
    }
    Ok(measurements)
}
