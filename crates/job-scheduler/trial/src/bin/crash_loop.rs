//! A process that crashes in a loop, because of one of its runs.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-job-scheduler-trial --bin crash_loop
//! ```
//!
//! The process of a node executes some long runs, a job that is due four times per second, and a
//! run that aborts the process. It is started again each time. The guilty run must be abandoned.
//! The long runs must be done: an interruption counts for them only before the guilty one is a
//! suspect, see `migrations/1_interruptions.sql`. (The pauses are a quarter of the usual ones.)
//!
//! `--sabotage` omits the safeguard, to show that the program detects that.

use std::error::Error;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{
    Context, Jobs, NewJob, RunError, RunInfo, RunState, Scheduler, SchedulerBuilder,
};
use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::{exit_code, when_parent_ends};
use job_scheduler_trial::Database;
use job_scheduler_trial::rewrite::Relay;
use serde_json::{Value, json};
use tokio_postgres::{Client, Config, NoTls};

const MS: Duration = Duration::from_millis(1);

/// Longer than a node watches one of them before the next suspect may start.
const LONG: Duration = Duration::from_secs(20);

/// The number of long runs.
const INNOCENT: usize = 3;

const MAX_INTERRUPTIONS: u32 = 4;

/// About four times what it takes.
const TIMEOUT: Duration = Duration::from_secs(300);

const PERIOD: Duration = Duration::from_millis(250);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let is_sabotaged = arguments.iter().any(|argument| argument == "--sabotage");
    let node = arguments
        .iter()
        .find(|argument| argument.starts_with("postgresql:"));
    let result = match node {
        Some(url) => execute(url).map(|()| ExitCode::SUCCESS),
        None => Database::start().and_then(|database| {
            let faster = ("interval '4 s'", "interval '1 s'");
            let omitted = ("SELECT node.suspect = the_run", "SELECT true");
            let changes = [faster].into_iter().chain(is_sabotaged.then_some(omitted));
            crash(&Relay::start(&database.url.parse()?, changes)?.url)
        }),
    };
    exit_code(result)
}

fn builder() -> SchedulerBuilder {
    Scheduler::builder().lease(MS * 500)
}

async fn abort(_: Context, _: Value) -> Result<(), RunError> {
    tokio::time::sleep(MS * 200).await;
    std::process::abort()
}

/// The process of the node. It ends by itself when its parent ends.
#[tokio::main]
async fn execute(url: &str) -> Result<(), Box<dyn Error>> {
    when_parent_ends(|| std::process::exit(0));
    let node = builder()
        .handler_named("guilty", abort)
        .handler_named("innocent", |_, _: Value| async {
            tokio::time::sleep(LONG).await;
            Ok::<_, RunError>(())
        })
        .handler_named("tick", |_, _: Value| async { Ok::<_, RunError>(()) })
        .start(url.parse()?, NoTls)
        .await?;
    node.ended().await;
    Ok(())
}

#[tokio::main]
async fn crash(url: &str) -> Result<ExitCode, Box<dyn Error>> {
    let config: Config = url.parse()?;
    // Creates the tables.
    builder()
        .start(config.clone(), NoTls)
        .await?
        .shutdown(TIMEOUT)
        .await?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let jobs = Jobs::new("job_scheduler")?;
    let add = async |job: NewJob| -> Result<i64, hashed_wheel_job_scheduler::Error> {
        let job = job.max_interruptions(MAX_INTERRUPTIONS);
        Ok(jobs.enqueue(&client, job).await?.job)
    };
    let mut innocent = Vec::new();
    for number in 0..INNOCENT {
        innocent.push(add(NewJob::named("innocent", json!(number))).await?);
    }
    let tick = add(NewJob::named("tick", Value::Null).every(PERIOD)).await?;
    let guilty = add(NewJob::named("guilty", Value::Null).after(MS * 1_000)).await?;

    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(url).stdin(Stdio::piped());
        // What an abort prints.
        Process::start(command.stderr(Stdio::null()))
    };
    let (mut node, begin) = (start()?, Instant::now());
    let mut crashes = 0;
    let (mut runs, mut has_ended) = (Vec::new(), false);
    while !has_ended && begin.elapsed() < TIMEOUT {
        if node.try_wait()?.is_some() {
            crashes += 1;
            node = start()?;
        }
        tokio::time::sleep(MS * 50).await;
        runs.clear();
        for &job in innocent.iter().chain([&guilty]) {
            runs.extend(jobs.history(&client, job, 1).await?);
        }
        has_ended = runs.len() == INNOCENT + 1 && runs.iter().all(|run| run.finished.is_some());
    }
    node.kill()?;
    println!("{crashes} crashes in {:.1?}", begin.elapsed());
    let errors = check(&client, &runs, tick).await?;
    for error in &errors {
        println!("{error}");
    }
    println!("{}", if errors.is_empty() { "PASS" } else { "FAIL" });
    Ok(ExitCode::from(u8::from(!errors.is_empty())))
}

/// Returns what is wrong.
async fn check(
    client: &Client,
    runs: &[RunInfo],
    tick: i64,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut errors = Vec::new();
    let Some((guilty, innocent)) = runs.split_last() else {
        return Ok(vec!["there are no runs".into()]);
    };
    let counted = async |run: i64| -> Result<i32, tokio_postgres::Error> {
        let count = "SELECT interrupted - excused FROM job_scheduler.run WHERE id = $1";
        Ok(client.query_one(count, &[&run]).await?.get(0))
    };
    println!(
        "guilty     {:?} after {} interruptions",
        guilty.state, guilty.interrupted
    );
    if guilty.state != RunState::Abandoned {
        errors.push("the guilty run is not abandoned".into());
    }
    for run in innocent {
        let count = counted(run.id).await?;
        let (state, interrupted) = (run.state, run.interrupted);
        println!("innocent   {state:?} after {interrupted} interruptions, {count} of which count");
        if state != RunState::Done {
            errors.push("an innocent run is not done".into());
        }
        // The guilty run is a suspect after two.
        if count > 2 {
            errors.push("an interruption by the suspect counts for an innocent run".into());
        }
    }
    if innocent.iter().all(|run| run.interrupted <= 2) {
        errors.push("no innocent run was beside the guilty one after it was a suspect".into());
    }
    let ticks = "SELECT count(*), count(*) FILTER (WHERE state = 'abandoned'),
        max(extract(epoch FROM started - due))::float8 FROM job_scheduler.run WHERE job = $1 AND finished IS NOT NULL";
    let row = client.query_one(ticks, &[&tick]).await?;
    let (count, abandoned, late): (i64, i64, Option<f64>) = (row.get(0), row.get(1), row.get(2));
    let late = late.unwrap_or_default();
    println!("ticks      {count} done, at most {late:.1} s late");
    // The longest watch is 16 seconds.
    if count == 0 || abandoned > 0 || late > 30.0 {
        errors.push(format!(
            "of {count} ticks, {abandoned} were abandoned; the last one was {late} s late"
        ));
    }
    Ok(errors)
}
