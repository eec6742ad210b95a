//! Shows and changes the jobs of a schema.

mod connect;
mod filter;
mod serve;
mod text;
mod time;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{
    Cancellation, Error, JobFilter, JobSummary, Jobs, KindLimits, RunChange, RunFilter, RunInfo,
};
use tokio_postgres::{Client, Config};

use self::connect::Connector;
use self::text::{Runs, escaped, print_line};
use self::time::Rounded;

/// Shows and changes the jobs of hashed-wheel-job-scheduler in a PostgreSQL database
#[derive(Debug, Parser)]
#[command(
    name = "job-scheduler",
    after_help = "Exit status: 0 is success, 1 an error, 2 bad options, 3 that there is no such job or run."
)]
struct Options {
    /// The URL of the server: `postgresql://user:password@host/database`
    ///
    /// With `?sslmode=require` the connection uses TLS, and the certificate of the server must be
    /// valid: signed by an authority of the system, or instead by one in the file `SSL_CERT_FILE`.
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    url: Config,

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
    /// With a count, all runs of the filter are changed, if they are exactly as many: up to 10000.
    /// They may be others than those that were listed before: `until=` keeps later ones out.
    Runs {
        /// `state=`, `kind=`, `node=`, `key=` (its beginning), `limit=` (a name), `since=`, `until=`
        /// (`2026-01-31`, `2026-01-31T12:00+01:00`, or `8h` ago) and `error=` (a part of it)
        #[arg(value_name = "NAME=TEXT", value_parser = field)]
        filter: Vec<(String, String)>,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// Retry all of them
        #[arg(long, value_name = "COUNT", group = "change")]
        retry: Option<usize>,
        /// Cancel all of them
        #[arg(long, value_name = "COUNT", group = "change")]
        cancel: Option<usize>,
        /// Delete all of them
        #[arg(long, value_name = "COUNT", group = "change")]
        delete: Option<usize>,
    },
    /// Cancel a run: it does not start, or its handler learns that it should end
    Cancel { run: i64 },
    /// Repeat a run that has failed, or was cancelled or abandoned
    Retry { run: i64 },
    /// Show the limits of handlers, and those of names
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
        #[arg(long, value_name = "N", default_value_t = 1)]
        burst: u32,
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
    if let Command::Serve(page) = options.command {
        serve::run(jobs, &options.schema, options.url, page).await?;
        return Ok(Found::Yes);
    }
    let (mut client, _) = Connector::new(options.url)?
        .connect()
        .await
        .map_err(Error::from)?;
    match options.command {
        Command::List { after, limit } => {
            print_line!(
                "{:>8}  {:11}  {:30}  {:24}  NEXT RUN",
                "JOB",
                "STATE",
                "SCHEDULE",
                "HANDLER"
            );
            let all = JobFilter::default();
            let page = jobs.search(&client, &all, after, limit).await?;
            page.jobs.iter().for_each(line);
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
            let filter = filter::filter(&filter.into_iter().collect(), now)?;
            let changes = [
                (RunChange::Retry, retry),
                (RunChange::Cancel, cancel),
                (RunChange::Delete, delete),
            ];
            let asked = |(change, count): (_, Option<usize>)| Some((change, count?));
            match changes.into_iter().find_map(asked) {
                Some((change, count)) => {
                    change_runs(&jobs, &mut client, &filter, change, count).await?;
                }
                None => list_runs(&jobs, &client, &filter, limit).await?,
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
            for (handler, limits) in jobs.kinds(&client).await? {
                let running = limits
                    .running
                    .map_or_else(|| "any".into(), |count| count.to_string());
                let interval = limits
                    .interval
                    .map_or_else(|| "any".into(), |time| format!("{time:?}"));
                let burst = limits.burst;
                print_line!("{running:>8}  {interval:>12}  {burst:>6}  {handler}");
            }
            print_line!("{:>8}  NAME", "RUNNING");
            jobs.limits(&client)
                .await?
                .iter()
                .for_each(|(name, running)| print_line!("{running:>8}  {name}"));
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
            let mut limits = KindLimits::new().burst(burst);
            limits.running = running;
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

fn field(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(name, _)| filter::NAMES.contains(name))
        .map(|(name, text)| (name.into(), text.into()))
        .ok_or_else(|| format!("must be like 'kind=mail', with one of {:?}", filter::NAMES))
}

async fn list_runs(
    jobs: &Jobs,
    client: &Client,
    filter: &RunFilter,
    mut limit: u32,
) -> Result<(), Error> {
    let mut next = None;
    loop {
        let page = jobs.search_runs(client, filter, next, limit).await?;
        for run in &page.runs {
            let time = run.finished.unwrap_or(run.start_at);
            let state = run.state;
            print_line!(
                "{:>8}  job {}  {time:.0}  {state:9}  node {}  attempt {}  {}  {}  {}",
                run.id,
                run.job,
                run.node.unwrap_or(0),
                run.attempt,
                run.handler,
                run.key.as_deref().unwrap_or("-"),
                run.error.as_deref().unwrap_or_default()
            );
        }
        limit -= page.runs.len() as u32;
        next = page.next;
        if limit == 0 || next.is_none() {
            return Ok(());
        }
    }
}

/// Changes exactly this many runs, or none.
async fn change_runs(
    jobs: &Jobs,
    client: &mut Client,
    filter: &RunFilter,
    change: RunChange,
    count: usize,
) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    let runs = jobs.select_runs(&transaction, filter, None).await?;
    if runs.len() != count {
        let matching = Runs(runs.len() as u64);
        return Err(
            format!("the filter matches {matching}, not {count}: nothing is changed").into(),
        );
    }
    let changed = jobs.change_runs(&transaction, change, &runs).await?;
    if changed != count as u64 {
        return Err(format!("only {changed} of them can be changed: nothing is changed").into());
    }
    Ok(transaction.commit().await?)
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
    print_line!(
        "{:>8}  {:11}  {:30}  {:24}  {}",
        job.id,
        job.state,
        job.schedule,
        job.handler,
        next_run(job.next_run)
    );
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
}
