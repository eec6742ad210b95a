//! xxl-job's scheduler: durable jobs in PostgreSQL, any number of schedulers that share them, and in each a wheel for the last
//! seconds before a job is due.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin job_scheduler
//! ```
//!
//! This is how the timer's users grow past one machine. A job is a row: with a cron pattern, at a fixed rate, or once. Each
//! scheduler reads ahead what is due in the next 5 s with `FOR UPDATE SKIP LOCKED`, so that no two have the same; puts it on
//! the wheel; runs it when it is due, by the database's clock; and writes the result. When a scheduler is lost, others take
//! over what it had once its lease has run out.
//!
//! Here schedulers are processes (this program starts itself again), and for a minute one after the other is killed, as by
//! `kill -9`, or stopped for longer than its lease and let go on. Then all are gone for a while, and others come. What each run
//! did is in a table of its own, and is held against what was due: exactly once, or, where a runner was lost half way, at
//! least once and marked so; and what nobody was there for as each job's misfire policy says.
//!
//! Needs PostgreSQL (tried with 15): one that is installed here, which is started on a scratch folder and a free port, or with
//! `--url` any other, in which a schema of its own is made and dropped.
//!
//! At the end it says PASS or FAIL and why. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 is that there is no
//! PostgreSQL. `schema.sql`, `schedule.rs`, `clock.rs`, `store.rs` and `scheduler.rs` are the part to copy.

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

/// Schedulers that share the jobs in a PostgreSQL, while one after the other is killed.
#[derive(Debug, Parser)]
#[command(
    name = "job_scheduler",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options, 77 is that there is no PostgreSQL."
)]
struct Options {
    /// For how long schedulers are killed
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// How many schedulers there are at a time; each has 9 connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    schedulers: u32,

    /// How many jobs there are
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,

    /// How far a scheduler reads ahead
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    lead: Duration,

    /// What a scheduler has is taken over when nothing was heard of it for so long
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    lease: Duration,

    /// What fell due longer ago, and was nobody's, is a misfire
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    misfire_after: Duration,

    /// A PostgreSQL that is there already, without TLS: postgresql://user:password@host/database
    #[arg(long, value_name = "URL")]
    url: Option<Config>,

    /// FAIL if 1 in 100 of what nobody had to take over is later than this
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    max_late: Duration,

    /// Which scheduler is killed, and when
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    top: Top,

    /// Leaves something out, to show that it is noticed
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,

    /// This process is a scheduler, with its tables in this schema
    #[arg(long, hide = true)]
    scheduler_in: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Sabotage {
    /// A scheduler does not look whether what it begins is still its own.
    NoCheck,
    /// What a dead scheduler had stays where it is.
    NoTakeover,
}

impl Options {
    fn settings(&self) -> Settings {
        Settings {
            lead: self.lead,
            lease: self.lease,
            misfire_after: self.misfire_after,
            most: 25 * process::THREADS,
            is_unchecked: self.sabotage == Some(Sabotage::NoCheck),
        }
    }

    /// What is wrong with options that are right one by one.
    fn check(&self) -> Result<(), String> {
        let Self { lead, lease, misfire_after, .. } = *self;
        let a_minute = Duration::from_secs(60);
        if lease < Duration::from_millis(500)
            || [lead, lease, misfire_after].iter().any(|&time| time > a_minute)
        {
            return Err("--lease is at least 500ms, and no time is longer than a minute".into());
        }
        if lead < lease {
            return Err(format!(
                "--lead {lead:?} is shorter than --lease {lease:?}: what is due between two looks would be late"
            ));
        }
        if misfire_after < lease {
            return Err(format!(
                "--misfire-after {misfire_after:?} is shorter than --lease {lease:?}: what one scheduler holds up for \
                 so long would misfire"
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
    let done = match (&options.scheduler_in, &options.url) {
        (Some(schema), Some(url)) => {
            Ok(process::main(&with_schema(url, schema), &options.settings(), &options.top))
        }
        _ => serve(&options),
    };
    done.unwrap_or_else(|error| match error.downcast::<Missing>() {
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

/// An error and what it comes from: that of a database says only what kind of error it is.
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
        (None, None) => unreachable!("it is one or the other"),
    };
    let config = with_schema(&url, &schema);
    let mut client = config.connect(NoTls)?;
    let version: String = client.query_one("SHOW server_version", &[])?.get(0);
    println!("PostgreSQL {version} at {}", own.as_ref().map_or("--url", |own| &own.url));
    let Options { schedulers, lead, lease, jobs, seconds, seed, .. } = options;
    println!(
        "{schedulers} schedulers read {jobs} jobs {lead:?} ahead, with a lease of {lease:?}. For {seconds} s they are killed, \
         or stopped, one after the other (seed {seed}).\n"
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

/// Names without a schema are in this one.
fn with_schema(url: &Config, schema: &str) -> Config {
    let mut config = url.clone();
    let options = url.get_options().unwrap_or_default();
    config.options(&format!("{options} -c search_path={schema}")).application_name("job_scheduler");
    config
}
