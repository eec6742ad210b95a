//! Nodes of the job scheduler that share the jobs in a PostgreSQL database, while one after the
//! other is killed.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-job-scheduler-trial
//! ```
//!
//! Here the nodes are processes: this program starts itself again. For a minute one after the other
//! is killed, as by `kill -9`, or stopped for longer than its lease and then continued, or shut
//! down and replaced. In between there are accidents: the server is killed and started again, then
//! it ends by an immediate shutdown, then its disk is full for longer than a lease, and then clocks
//! are set. The wall clocks of half of the nodes are set forward and back by an hour, which has no
//! effect. The clock of the server is set back by an hour, returns, and is set forward by an hour.
//!
//! The full disk is a real one: the server's data are on a small file system (tmpfs) in a mount
//! namespace of its own, which is filled up. That needs root. The clocks are those of the server
//! and of the nodes only: a preloaded library (`clock.c`) adds an offset to the time that the
//! system returns. That needs Linux and a C compiler. Accidents that are not possible are
//! skipped, with a message.
//!
//! Then all nodes are killed, and new ones start after a while. A separate table records the effect
//! of each execution. At the end the effects are compared with the due times. Each due time must
//! have exactly one effect. If a node was lost during a run, it must have at least one, and the run
//! must be marked. The effect of some runs is in the transaction of their result: they must have
//! exactly one, whatever happens to their node. Due times without any node must follow the misfire
//! policy of their job. Runs of a job that must not overlap must not. Some jobs have a common limit
//! of executions at a time, and others a rate: neither may be exceeded.
//!
//! With `--strain` no node is killed, and there are no accidents. Instead, the network is slow at
//! times, SQL adds thousands of cron jobs at once, and a limit changes while many runs wait for it. No
//! node may lose its lease.
//!
//! The program needs PostgreSQL 12 or newer. If it is installed, the program starts it in a
//! temporary folder on a free port. With `--url` it uses another server, where it creates and drops
//! its own schemas, and which it does not kill.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options, 77 means that there is no PostgreSQL.

mod accident;
mod connection;
mod jobs;
mod process;
mod report;
mod strain;
mod tally;
mod trial;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use hashed_wheel_job_scheduler::{Scheduler, SchedulerBuilder};
use hashed_wheel_trial::exit_code;
use hashed_wheel_trial::options::positive_duration;
use job_scheduler_trial::{Database, Faults, WallClock, disk};
use tokio_postgres::Config;

use crate::accident::Accident;
use crate::process::Launch;
use crate::strain::Network;
use crate::tally::Tally;

/// The maximum number of runs that a node executes at a time.
const RUNNERS: usize = 4;

/// The time that a node gets to finish its runs.
const GRACE: Duration = Duration::from_secs(20);

/// Nodes of the job scheduler that share the jobs in a PostgreSQL database, while one after the
/// other is killed
#[derive(Debug, Parser)]
#[command(
    name = "job_scheduler",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 means that there is no PostgreSQL."
)]
struct Options {
    /// For how long nodes are killed
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = positive_duration)]
    duration: Duration,

    /// How many nodes there are at a time; each one has 5 connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    nodes: u32,

    /// How many jobs there are
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,

    /// How far in advance a node reads
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_duration)]
    prefetch: Duration,

    /// The runs of a node that has not renewed its lease for this time are taken over
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = positive_duration)]
    lease: Duration,

    /// A due time without a node is a misfire when it is older than this
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_duration)]
    misfire_after: Duration,

    /// The URL of a running PostgreSQL server, without TLS:
    /// postgresql://user:password@host/database
    #[arg(long, value_name = "URL")]
    url: Option<Config>,

    /// The accidents of the server and of the clocks, in this order, without --url
    #[arg(
        long,
        value_enum,
        value_name = "WHAT,...",
        value_delimiter = ',',
        default_value = "kill,immediate,disk,clock"
    )]
    accidents: Vec<Accident>,

    /// Kill no node, and have no accidents: strain the nodes by a slow network, jobs by SQL and
    /// changing limits. FAIL if one loses its lease. Without --url
    #[arg(long)]
    strain: bool,

    /// FAIL if the 99th percentile of the lateness is higher, without runs that were taken over
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = positive_duration)]
    max_late: Duration,

    /// Determines which node is killed, and when
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// For how long the end may wait while the number of runs that are left does not fall, before
    /// these are missing; in all, ten times as long
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = positive_duration)]
    patience: Duration,

    /// Run as a node, with the tables in this schema
    #[arg(long, hide = true)]
    node_in: Option<String>,

    /// As a node, connect through this relay
    #[arg(long, hide = true)]
    through: Option<Config>,

    /// As a node, use no notifications
    #[arg(long, hide = true)]
    poll: bool,
}

impl Options {
    /// Returns the settings of a node.
    fn builder(&self, schema: &str) -> SchedulerBuilder {
        let builder = Scheduler::builder()
            .schema(schema)
            .prefetch(self.prefetch)
            .lease(self.lease)
            .misfire_after(self.misfire_after)
            .runners(RUNNERS)
            .capacity(25 * RUNNERS);
        if self.poll {
            builder.without_notifications()
        } else {
            builder
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match (&options.node_in, &options.url) {
        (Some(schema), Some(url)) => {
            let config = with_effects(url, schema);
            let through = options.through.as_ref();
            let through = through.map(|url| with_effects(url, schema));
            process::main(&config, through, options.builder(schema), GRACE)
        }
        _ => serve(&options),
    };
    exit_code(result)
}

fn serve(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let schema = format!("trial_{}_{:x}", std::process::id(), fastrand::u32(..));
    if let Err(error) = options.builder(&schema).check() {
        Options::command()
            .error(ErrorKind::ValueValidation, error)
            .exit();
    }
    if options.strain && options.url.is_some() {
        Options::command()
            .error(ErrorKind::ArgumentConflict, "--strain is without --url")
            .exit();
    }
    let accidents = if options.url.is_some() || options.strain {
        Vec::new()
    } else {
        possible(&options.accidents)
    };
    let has = |accident| accidents.contains(&accident);
    let faults = Faults {
        disk: has(Accident::Disk),
        clock: has(Accident::Clock),
    };
    // Dropped at the end.
    let mut own = if options.url.is_some() {
        None
    } else {
        Some(Database::start_with(faults)?)
    };
    let mut more = vec!["--node-in".to_string(), schema.clone()];
    let url = match (&options.url, &own) {
        (Some(url), _) => url.clone(),
        (None, Some(own)) => {
            more.extend(["--url".to_string(), own.url.clone()]);
            own.url.parse()?
        }
        (None, None) => unreachable!("without --url a server has been started"),
    };
    let network = options.strain.then(|| Network::start(&url)).transpose()?;
    if let Some(network) = &network {
        more.extend(["--through".to_string(), network.url.clone()]);
    }
    let config = with_effects(&url, &schema);
    let mut client = connection::connect(&config)?;
    let version: String = client.query_one("SHOW server_version", &[])?.get(0);
    println!(
        "PostgreSQL {version} at {}",
        own.as_ref().map_or("--url", |own| &own.url)
    );
    let Options {
        nodes,
        prefetch,
        lease,
        jobs,
        duration,
        seed,
        ..
    } = options;
    println!(
        "{nodes} nodes read {jobs} jobs {prefetch:?} in advance, with a lease of {lease:?}. For {duration:?} {} (seed {seed}).\n",
        if network.is_some() {
            "they are strained"
        } else {
            "they are killed, stopped or replaced one after the other"
        }
    );
    let launch = Launch::new(
        more,
        own.as_mut()
            .and_then(Database::clocks)
            .map(|clocks| &clocks.nodes),
    );
    let own = own.as_mut().map(|own| (own, &accidents[..]));
    let result =
        trial::run(options, &schema, &config, own, network.as_ref(), &launch).and_then(|outcome| {
            Ok((
                Tally::count(&mut connection::connect(&config)?, &outcome, options.lease)?,
                outcome,
            ))
        });
    let drop_schemas = format!(
        "SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE; DROP SCHEMA IF EXISTS {schema}_effects CASCADE"
    );
    let dropped = connection::connect(&config)?.batch_execute(&drop_schemas);
    let (tally, outcome) = result?;
    dropped?;
    Ok(tally.report(options, &outcome))
}

/// Returns the accidents that are possible on this machine, and says why others are not.
fn possible(accidents: &[Accident]) -> Vec<Accident> {
    let mut possible = accidents.to_vec();
    let mut skip = |accident, what, reason: Result<(), String>| {
        if let (true, Err(reason)) = (accidents.contains(&accident), reason) {
            println!("SKIPPED: {what} ({reason})");
            possible.retain(|&other| other != accident);
        }
    };
    if accidents.contains(&Accident::Disk) {
        let what = "the disk does not become full, because a disk of its own needs root";
        skip(Accident::Disk, what, disk::in_own_namespace());
    }
    if accidents.contains(&Accident::Clock) {
        let what = "no clock is set, because that needs Linux and a C compiler";
        skip(Accident::Clock, what, WallClock::is_possible());
    }
    possible
}

/// Sets the schemas for names without one: that of the effects, and that of the nodes.
fn with_effects(url: &Config, schema: &str) -> Config {
    let mut config = url.clone();
    let options = url.get_options().unwrap_or_default();
    config
        .options(format!(
            "{options} -c search_path={schema}_effects,{schema}"
        ))
        .application_name("job_scheduler");
    config
}
