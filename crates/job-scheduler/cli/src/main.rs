//! Shows and changes the jobs of a schema.

mod connect;
mod filter;
mod runs;
mod serve;
mod text;
mod time;

use std::error::Error as _;
use std::mem::discriminant;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{
    BlockedOn, Cancellation, Error, JobFilter, JobSummary, Jobs, KindLimits, Queue, RunChange,
    RunInfo,
};
use tokio_postgres::{Client, Config};

use self::text::{escaped, print_line};
use self::time::{Rounded, time_between};

/// Shows and changes the jobs of hashed-wheel-job-scheduler in a PostgreSQL database
#[derive(Debug, Parser)]
#[command(
    name = "job-scheduler",
    after_help = "Exit status: 0 is success, 1 an error, 2 bad options, 3 that there is no such job or run, \
        or that the run has ended or is in another state that does not allow the command."
)]
struct Options {
    /// The URL of the server: `postgresql://user:password@host/database`
    ///
    /// With `?sslmode=require` the connection uses TLS, and the certificate of the server must be
    /// valid: signed by an authority of the system, or instead by one in the file `SSL_CERT_FILE`.
    ///
    /// Each of several hosts (`one,two`) has an equal share of 30 seconds to accept a connection,
    /// and each address of a host an equal part of that, at most `connect_timeout`. A statement may
    /// take 120 seconds, and wait 5 seconds for a lock. A pooler may drop these two settings: then
    /// a command ends when the database has been silent for 125 seconds.
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    // Not read by clap, whose error would contain the password.
    url: String,

    /// The schema of the jobs
    #[arg(long, value_name = "NAME", default_value = "job_scheduler")]
    schema: String,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the jobs
    List {
        /// Only jobs with a greater number
        #[arg(long, value_name = "JOB", default_value_t = 0)]
        after: i64,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Show a job
    Show { job: i64 },
    /// Run a job immediately, in addition to its schedule
    Run { job: i64 },
    /// Pause a job: its runs that have not started do not start
    Disable { job: i64 },
    /// Resume a job that is paused, or that a node has disabled
    Enable { job: i64 },
    /// Delete a job and its history
    Delete { job: i64 },
    /// Show the last runs of a job
    History {
        job: i64,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u32,
    },
    /// List the runs that have failed, or those of another state, the latest first
    ///
    /// The last line says how many match. With this count, all of them are changed, up to 10000,
    /// also those that are not listed. If it is another number when the command begins, nothing is
    /// changed. They may be others than those that were listed: `until=` keeps later ones out.
    Runs {
        /// `state=`, `kind=`, `node=`, `key=` (its beginning), `limit=` (a name), `error=` (a part),
        /// `since=` and `until=` (`2026-01-31` in UTC, `2026-01-31T12:00+01:00`, or `8h` ago)
        #[arg(value_name = "NAME=TEXT", value_parser = runs::field)]
        filter: Vec<(String, String)>,
        /// List at most this many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// Retry all of them
        #[arg(long, value_name = "COUNT", group = "change")]
        retry: Option<usize>,
        /// Cancel all of them, except those that have ended or changed meanwhile
        #[arg(long, value_name = "COUNT", group = "change")]
        cancel: Option<usize>,
        /// Delete all of them, and their jobs that have no further due time and no other run
        #[arg(long, value_name = "COUNT", group = "change")]
        delete: Option<usize>,
    },
    /// Cancel a run: it does not start, or its handler learns that it should end
    Cancel { run: i64 },
    /// Repeat a run that has failed, or was cancelled or abandoned
    Retry { run: i64 },
    /// Show the limits of handlers, those of names, and what waits
    ///
    /// WAITING and FIRST (the earliest time) are of at most 1000 runs that wait for the same. RUNNING
    /// runs have a place of the limit.
    Limits,
    /// Set how many runs with a limit of this name may be running, for all jobs
    LimitName {
        name: String,
        /// At most this many runs at a time. Without this option, the numbers of the jobs hold
        #[arg(long, value_name = "N")]
        running: Option<u32>,
    },
    /// Set the limits of all jobs of a handler, and remove those that are not given
    LimitKind {
        handler: String,
        /// At most this many runs at a time, on all nodes together
        #[arg(long, value_name = "N")]
        running: Option<u32>,
        /// At most this many runs start per period: `100/1s`
        #[arg(long, value_name = "N/PERIOD", value_parser = rate)]
        rate: Option<(u32, Duration)>,
        /// How many of them may start at once
        #[arg(long, value_name = "N", requires = "rate")]
        burst: Option<u32>,
    },
    /// Show the nodes, and what they have done in the last hour
    ///
    /// ENDED, FAILED, MEDIAN (duration) and LATE (99th percentile of the delay of starts) are of the
    /// last hour, among the last 10000 runs of all nodes. KINDS are those whose runs the node
    /// executes; none: it is ending, or lost.
    Nodes,
    /// Serve a page that shows nodes, jobs, runs, lateness and failures
    ///
    /// It is read-only unless changes are allowed. It has no TLS: put it behind a proxy that has,
    /// if it is not used on this machine only. Programs send the token as `Authorization: Bearer
    /// TOKEN`.
    Serve(serve::Options),
}

impl Command {
    /// Whether it changes something in the database.
    fn changes(&self) -> bool {
        match self {
            Self::Runs {
                retry,
                cancel,
                delete,
                ..
            } => retry.or(*cancel).or(*delete).is_some(),
            Self::List { .. } | Self::Show { .. } | Self::History { .. } => false,
            Self::Limits | Self::Nodes | Self::Serve(_) => false,
            _ => true,
        }
    }
}

/// Why a command failed.
type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(options).await {
        Ok(Found::Yes) => ExitCode::SUCCESS,
        Ok(Found::No(what)) => {
            eprintln!("{what}");
            ExitCode::from(3)
        }
        Err(error) => {
            eprintln!("{}", escaped(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Whether there is what the command is for.
enum Found {
    Yes,
    /// The thing that was not found.
    No(&'static str),
}

impl Found {
    fn job(is_found: bool) -> Self {
        if is_found {
            Self::Yes
        } else {
            Self::No("there is no such job")
        }
    }
}

async fn run(options: Options) -> Result<Found, Failure> {
    let jobs = Jobs::new(&options.schema)?;
    let config = server(&options.url)?;
    if let Command::Serve(page) = options.command {
        serve::run(jobs, &options.schema, config, page).await?;
        return Ok(Found::Yes);
    }
    let client = connect::connect(config).await?;
    let changes = options.command.changes();
    connect::limited(changes, execute(jobs, client, options.command)).await
}

async fn execute(jobs: Jobs, mut client: Client, command: Command) -> Result<Found, Failure> {
    match command {
        Command::List { after, limit } => {
            print_line!(
                "{:>8}  {:11}  {:30}  {:24}  {:9}  {:20}  KEY",
                "JOB",
                "STATE",
                "SCHEDULE",
                "HANDLER",
                "RESULT",
                "NEXT RUN"
            );
            list_jobs(&jobs, &client, after, limit).await?;
            Ok(Found::Yes)
        }
        Command::Show { job } => Ok(Found::job(show(&jobs, &client, job).await?)),
        Command::Run { job } => {
            let run = jobs.run_now(&client, job).await?;
            run.iter().for_each(|run| print_line!("run {run}"));
            Ok(Found::job(run.is_some()))
        }
        Command::Disable { job } => Ok(Found::job(jobs.pause(&mut client, job).await?)),
        Command::Enable { job } => Ok(Found::job(jobs.resume(&mut client, job).await?)),
        Command::Delete { job } => Ok(Found::job(jobs.delete(&client, job).await?)),
        Command::History { job, limit } => {
            jobs.history(&client, job, limit)
                .await?
                .iter()
                .for_each(run_line);
            Ok(Found::job(jobs.get(&client, job).await?.is_some()))
        }
        Command::Runs {
            filter,
            limit,
            retry,
            cancel,
            delete,
        } => {
            let now = Timestamp::now();
            let filter = filter::filter(&runs::fields(filter)?, now)?;
            let changes = [
                (RunChange::Retry, retry),
                (RunChange::Cancel(filter.state), cancel),
                (RunChange::Delete, delete),
            ];
            let asked = |(change, count): (_, Option<usize>)| Some((change, count?));
            match changes.into_iter().find_map(asked) {
                Some((change, count)) => {
                    runs::change(&jobs, &mut client, &filter, change, count).await?;
                }
                None => runs::list(&jobs, &client, &filter, limit).await?,
            }
            Ok(Found::Yes)
        }
        Command::Cancel { run } => Ok(match jobs.cancel(&client, run).await? {
            None => Found::No("there is no such run"),
            Some(Cancellation::Ended) => Found::No("the run has ended"),
            Some(Cancellation::Requested) => {
                print_line!("it is running, and ends");
                Found::Yes
            }
            Some(_) => Found::Yes,
        }),
        Command::Retry { run } => Ok(match jobs.retry(&client, run).await? {
            true => Found::Yes,
            false => {
                Found::No("there is no such run that has failed, or was cancelled or abandoned")
            }
        }),
        Command::Limits => {
            print_line!(
                "{:>8}  {:>12}  {:>6}  HANDLER",
                "RUNNING",
                "INTERVAL",
                "BURST"
            );
            for (handler, limits) in jobs.kinds(&client, "", u32::MAX).await? {
                let running = limits
                    .running
                    .map_or_else(|| "any".into(), |count| count.to_string());
                let interval = limits
                    .interval
                    .map_or_else(|| "any".into(), |time| format!("{time:?}"));
                let burst = limits.burst.unwrap_or(1);
                print_line!("{running:>8}  {interval:>12}  {burst:>6}  {handler}");
            }
            print_line!("{:>8}  NAME", "RUNNING");
            jobs.limits(&client, "", u32::MAX)
                .await?
                .iter()
                .for_each(|(name, running)| print_line!("{running:>8}  {name}"));
            print_line!(
                "{:>8}  {:>8}  {:20}  WAITING FOR",
                "WAITING",
                "RUNNING",
                "FIRST"
            );
            let queues = jobs.queues(&client).await?;
            queues.iter().for_each(queue_line);
            if may_be_cut(&queues) {
                eprintln!("there may be more: 100 names at most are shown of each sort");
            }
            Ok(Found::Yes)
        }
        Command::LimitName { name, running } => {
            jobs.set_limit(&client, &name, running).await?;
            Ok(Found::Yes)
        }
        Command::LimitKind {
            handler,
            running,
            rate,
            burst,
        } => {
            let mut limits = KindLimits::new();
            (limits.running, limits.burst) = (running, burst);
            if let Some((count, period)) = rate {
                limits = limits.rate(count, period);
            }
            jobs.set_kind(&client, &handler, limits).await?;
            Ok(Found::Yes)
        }
        Command::Nodes => {
            print_line!(
                "{:>8}  {:5}  {:20}  {:>7}  {:>7}  {:>6}  {:>6}  {:>6}  NAME  KINDS",
                "NODE",
                "LEASE",
                "UNTIL",
                "RUNNING",
                "ENDED",
                "FAILED",
                "MEDIAN",
                "LATE"
            );
            for node in jobs.nodes(&client).await? {
                print_line!(
                    "{:>8}  {:5}  {:.0}  {:>7}  {:>7}  {:>6}  {:>6}  {:>6}  {}  {}",
                    node.id,
                    if node.is_alive { "alive" } else { "lost" },
                    node.alive_until,
                    node.running,
                    node.ended,
                    node.failed,
                    Rounded(node.duration).to_string(),
                    Rounded(node.lateness).to_string(),
                    node.name,
                    node.handlers.join(", ")
                );
            }
            Ok(Found::Yes)
        }
        // It has its own connections.
        Command::Serve(_) => Ok(Found::Yes),
    }
}

/// Reads the URL of the server. The error contains no part of it, because any part may be one of
/// the password.
fn server(url: &str) -> Result<Config, String> {
    url.parse().map_err(|error: tokio_postgres::Error| {
        let why = error.source().map(ToString::to_string);
        // This has only the name of an option. Others quote the text that they do not know.
        let why = why.filter(|why| why.starts_with("invalid value for option"));
        format!(
            "the URL of the server: {}. It must be like postgresql://user:password@host/database, \
             with special characters of the password as in %40 for @, and may end with ?sslmode=MODE: \
             disable, prefer or require",
            why.as_deref()
                .unwrap_or("it cannot be read, or has an unknown option")
        )
    })
}

async fn list_jobs(
    jobs: &Jobs,
    client: &Client,
    mut after: i64,
    mut limit: u32,
) -> Result<(), Error> {
    let all = JobFilter::default();
    while limit > 0 {
        let page = jobs.search(client, &all, after, limit).await?;
        page.jobs.iter().for_each(line);
        limit -= page.jobs.len() as u32;
        let Some(next) = page.next else {
            return Ok(());
        };
        after = next;
    }
    if !jobs.search(client, &all, after, 1).await?.jobs.is_empty() {
        eprintln!("there are more jobs: --after {after}");
    }
    Ok(())
}

/// Reads a number of runs and a duration.
fn rate(text: &str) -> Result<(u32, Duration), String> {
    let (count, period) = text.split_once('/').ok_or("must be like '100/1s'")?;
    let count = count
        .parse()
        .map_err(|error| format!("'{count}': {error}"))?;
    let period =
        humantime::parse_duration(period).map_err(|error| format!("'{period}': {error}"))?;
    Ok((count, period))
}

fn next_run(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "none".into(), |time| time.to_string())
}

fn line(job: &JobSummary) {
    let last = job.last_result.map(|state| state.to_string());
    print_line!(
        "{:>8}  {:11}  {:30}  {:24}  {:9}  {:20}  {}",
        job.id,
        job.state,
        job.schedule,
        job.handler,
        last.as_deref().unwrap_or("-"),
        next_run(job.next_run),
        job.key.as_deref().unwrap_or("-")
    );
}

/// Whether there may be more: the library returns at most 100 names that wait for the same sort of
/// thing.
fn may_be_cut(queues: &[Queue]) -> bool {
    let sort = |queue: &Queue| queue.waits_for.as_ref().map(discriminant);
    let mut sorts = queues.chunk_by(|one, next| sort(one) == sort(next));
    sorts.any(|queues| queues.len() == 100)
}

fn queue_line(queue: &Queue) {
    let Queue { waiting, name, .. } = queue;
    let what = match &queue.waits_for {
        None => format!("a node with the handler {name}"),
        Some(what @ BlockedOn::Limit(_)) => what.to_string(),
        Some(what) => format!("{what} {name}"),
    };
    // The library counts no more.
    let more = if *waiting == 1_000 { "+" } else { "" };
    let waiting = format!("{waiting}{more}");
    let (running, first) = (queue.running, queue.first);
    print_line!("{waiting:>8}  {running:>8}  {first:.0}  {what}");
}

async fn show(jobs: &Jobs, client: &Client, id: i64) -> Result<bool, Error> {
    let Some(job) = jobs.get(client, id).await? else {
        return Ok(false);
    };
    print_line!("job        {}", job.id);
    print_line!("key        {}", job.key.as_deref().unwrap_or("none"));
    print_line!("state      {}", job.state());
    if let Some(reason) = &job.disabled_reason {
        print_line!("disabled   {reason}");
    }
    print_line!("schedule   {}", job.schedule);
    print_line!("time zone  {}", job.time_zone);
    print_line!("next run   {}", next_run(job.next_run));
    print_line!("handler    {}", job.handler);
    print_line!("priority   {}", job.priority);
    print_line!("overlap    {:?}", job.overlap);
    print_line!("misfire    {:?}", job.misfire);
    print_line!("retries    {}", job.retries);
    print_line!(
        "timeout    {}",
        job.timeout
            .map_or_else(|| "none".into(), |timeout| format!("{timeout:?}"))
    );
    job.limits
        .iter()
        .for_each(|(name, count)| print_line!("limit      {count} of '{name}'"));
    print_line!("payload    {}", job.payload);
    Ok(true)
}

fn run_line(run: &RunInfo) {
    let result = match (&run.blocked_on, &run.error, &run.output) {
        (Some(what), ..) => format!("waits for {what}"),
        (None, Some(error), _) => error.clone(),
        (None, None, Some(output)) => output.to_string(),
        (None, None, None) => String::new(),
    };
    let state = run.state;
    let RunInfo {
        id,
        due,
        attempt,
        interrupted,
        ..
    } = run;
    print_line!(
        "{id:>8}  {due}  {state:9}  attempt {attempt}, interrupted {interrupted}  {result}"
    );
    for failure in &run.failures {
        print_line!(
            "{:>8}  {:.0}  attempt {} failed on node {} after {}: {}",
            "",
            failure.ended,
            failure.attempt,
            failure.node,
            Rounded(time_between(failure.started, failure.ended)),
            failure.error
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_change_something_are_known() {
        for (arguments, expected) in [
            ("list", false),
            ("show 1", false),
            ("history 1", false),
            ("runs state=waiting", false),
            ("limits", false),
            ("nodes", false),
            ("runs state=waiting --cancel 1", true),
            ("runs --retry 1", true),
            ("runs --delete 0", true),
            ("run 1", true),
            ("disable 1", true),
            ("enable 1", true),
            ("delete 1", true),
            ("cancel 1", true),
            ("retry 1", true),
            ("limit-name bank", true),
            ("limit-kind mail", true),
        ] {
            let program = ["job-scheduler", "--url", "host=localhost"].into_iter();
            let options = Options::parse_from(program.chain(arguments.split(' ')));
            assert_eq!(options.command.changes(), expected, "{arguments}");
        }
    }
}
