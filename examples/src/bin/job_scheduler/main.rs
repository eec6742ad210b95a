//! A distributed job scheduler like xxl-job: durable jobs in PostgreSQL, several schedulers that
//! share them, and in each scheduler a wheel for the last seconds before a job is due.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin job_scheduler
//! ```
//!
//! This design extends the timer to several machines. A job is a row with a cron pattern, a fixed
//! rate, or a single time. Each scheduler reads the runs of the next 5 s in advance with
//! `FOR UPDATE SKIP LOCKED`, so that no two schedulers get the same run. It schedules them on its
//! wheel, starts each one when it is due by the clock of the database, and writes the result. When
//! a scheduler is lost, others take over its runs after its lease has ended.
//!
//! Here the schedulers are processes: this program starts itself again. For a minute one after the
//! other is killed, as by `kill -9`, or stopped for longer than its lease and then continued. Then
//! all are killed, and new ones start after a while. A separate table records the effect of each
//! run. At the end the effects are compared with the due times. Each due time must have exactly one
//! effect. If a scheduler was lost during a run, it must have at least one, and the run must be
//! marked. Due times without any scheduler must follow the misfire policy of their job.
//!
//! The program needs PostgreSQL (tested with 15). If it is installed, the program starts it in a
//! temporary folder on a free port. With `--url` it uses another server, where it creates and drops
//! its own schema.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options, 77 means that there is no PostgreSQL. `schema.sql`, `schedule.rs`, `clock.rs`,
//! `store.rs` and `scheduler.rs` are the parts to copy.

mod clock;
mod database;
mod jobs;
mod process;
mod schedule;
mod scheduler;
mod store;
mod tally;
mod trial;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use hashed_wheel_examples::server::{Missing, NO_SERVER};
use hashed_wheel_examples::top::Top;
use postgres::{Config, NoTls};

use crate::database::Database;
use crate::scheduler::Settings;
use crate::tally::Tally;

/// Schedulers that share the jobs in a PostgreSQL database, while one after the other is killed
#[derive(Debug, Parser)]
#[command(
    name = "job_scheduler",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 means that there is no PostgreSQL."
)]
struct Options {
    /// For how many seconds schedulers are killed
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// How many schedulers there are at a time; each one has 9 connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    schedulers: u32,

    /// How many jobs there are
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,

    /// How far in advance a scheduler reads
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    lead: Duration,

    /// The runs of a scheduler that has not renewed its lease for this time are taken over
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    lease: Duration,

    /// A due time without a scheduler is a misfire when it is older than this
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    misfire_after: Duration,

    /// The URL of a running PostgreSQL server, without TLS:
    /// postgresql://user:password@host/database
    #[arg(long, value_name = "URL")]
    url: Option<Config>,

    /// FAIL if the 99th percentile of the lateness is higher, without runs that were taken over
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    max_late: Duration,

    /// Determines which scheduler is killed, and when
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    top: Top,

    /// Omit something, to show that it is detected
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,

    /// Run as a scheduler, with the tables in this schema
    #[arg(long, hide = true)]
    scheduler_in: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Sabotage {
    /// A scheduler does not check whether it still owns a run before it starts it.
    NoCheck,
    /// The runs of a lost scheduler are not taken over.
    NoTakeover,
}

impl Options {
    fn settings(&self) -> Settings {
        Settings {
            lead: self.lead,
            lease: self.lease,
            misfire_after: self.misfire_after,
            max_runs: 25 * process::THREADS,
            is_unchecked: self.sabotage == Some(Sabotage::NoCheck),
        }
    }

    /// Returns what is wrong with a combination of valid options.
    fn check(&self) -> Result<(), String> {
        let Self { lead, lease, misfire_after, .. } = *self;
        let a_minute = Duration::from_secs(60);
        if lease < Duration::from_millis(500)
            || [lead, lease, misfire_after].iter().any(|&time| time > a_minute)
        {
            return Err("--lease must be at least 500ms, and all times at most one minute".into());
        }
        if lead < lease {
            return Err(format!(
                "--lead {lead:?} is shorter than --lease {lease:?}: runs that are due between two reads would be late"
            ));
        }
        if misfire_after < lease {
            return Err(format!(
                "--misfire-after {misfire_after:?} is shorter than --lease {lease:?}: runs of a lost scheduler \
                 would misfire"
            ));
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(wrong) = options.check() {
        Options::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    let result = match (&options.scheduler_in, &options.url) {
        (Some(schema), Some(url)) => {
            Ok(process::main(&with_schema(url, schema), &options.settings(), &options.top))
        }
        _ => serve(&options),
    };
    result.unwrap_or_else(|error| match error.downcast::<Missing>() {
        Ok(missing) => {
            eprintln!("{missing}");
            ExitCode::from(NO_SERVER)
        }
        Err(error) => {
            println!("\nFAIL\n  {}", chain(&*error));
            ExitCode::FAILURE
        }
    })
}

/// Formats an error and its sources: the error of a database call contains only its kind.
fn chain(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

fn serve(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // Dropped at the end.
    let own = if options.url.is_some() { None } else { Some(Database::start()?) };
    let schema = format!("job_scheduler_{}_{:x}", std::process::id(), fastrand::u32(..));
    let mut more = vec!["--scheduler-in".to_string(), schema.clone()];
    let url = match (&options.url, &own) {
        (Some(url), _) => url.clone(),
        (None, Some(own)) => {
            more.extend(["--url".to_string(), own.url.clone()]);
            own.url.parse()?
        }
        (None, None) => unreachable!("without --url a server has been started"),
    };
    let config = with_schema(&url, &schema);
    let mut client = config.connect(NoTls)?;
    let version: String = client.query_one("SHOW server_version", &[])?.get(0);
    println!("PostgreSQL {version} at {}", own.as_ref().map_or("--url", |own| &own.url));
    let Options { schedulers, lead, lease, jobs, seconds, seed, .. } = options;
    println!(
        "{schedulers} schedulers read {jobs} jobs {lead:?} in advance, with a lease of {lease:?}. For {seconds} s they are killed \
         or stopped one after the other (seed {seed}).\n"
    );
    client.batch_execute(&format!("CREATE SCHEMA {schema}"))?;
    let result = trial::create_tables(&mut client, options.sabotage != Some(Sabotage::NoTakeover))
        .map_err(Into::into)
        .and_then(|()| trial::run(options, &config, &mut client, &more))
        .and_then(|outcome| Ok((Tally::count(&mut client, &outcome)?, outcome)));
    let drop_schema = format!("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE");
    let dropped = client.batch_execute(&drop_schema);
    let (tally, outcome) = result?;
    dropped?;
    Ok(tally.report(options, &outcome))
}

/// Sets the schema for names without one.
fn with_schema(url: &Config, schema: &str) -> Config {
    let mut config = url.clone();
    let options = url.get_options().unwrap_or_default();
    config.options(&format!("{options} -c search_path={schema}")).application_name("job_scheduler");
    config
}
