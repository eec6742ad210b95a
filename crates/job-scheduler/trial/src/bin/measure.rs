//! Measures the scheduler on a PostgreSQL server that it starts: with fsync, unlike the tests.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-job-scheduler-trial --bin measure
//! # Only some of it.
//! cargo run --release -p hashed-wheel-job-scheduler-trial --bin measure -- throughput clients
//! ```
//!
//! Nodes, server and this program share the machine. Lateness is that of the start in the database
//! (`run.started`), compared with the due time.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use hashed_wheel_job_scheduler::{Context, Jobs, KindLimits, NewJob, RunError, Scheduler};
use hashed_wheel_trial::{Lateness, exit_code};
use jiff::Timestamp;
use job_scheduler_trial::Database;
use serde_json::Value;
use tokio_postgres::{Client, Config, NoTls};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The number of runs for the throughput.
const MANY: u64 = 10_000;

/// The number of clients that enqueue at the same time.
const CLIENTS: u32 = 32;

/// The number of nodes for the cost of notifications.
const NODES: usize = 20;

static RUNS: AtomicU64 = AtomicU64::new(0);

type Measured = Result<(), Box<dyn Error>>;

/// Measures the job scheduler on a PostgreSQL server that it starts
#[derive(Debug, Parser)]
struct Options {
    /// The parts to measure: by default, all of them
    parts: Vec<Part>,
}

/// In the order in which they are measured: idle first, because autovacuum commits too after the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    Idle,
    DueNow,
    Lateness,
    Throughput,
    Limited,
    Rates,
    Batch,
    Clients,
    Nodes,
    Takeover,
}

fn main() -> ExitCode {
    let Options { parts } = Options::parse();
    let measured = || {
        let database = Database::start_durable()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(measure(&database.url, &parts))
    };
    exit_code(measured().map(|()| ExitCode::SUCCESS))
}

async fn measure(url: &str, parts: &[Part]) -> Measured {
    let config: Config = url.parse()?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
    println!("PostgreSQL {version}, with fsync; one node with default settings\n");
    for part in Part::value_variants() {
        if !parts.is_empty() && !parts.contains(part) {
            continue;
        }
        match part {
            Part::Idle => idle(&config, &client).await?,
            Part::DueNow => due_now(&config, &client).await?,
            Part::Lateness => lateness(&config, &client).await?,
            Part::Throughput => {
                throughput(&config, &client, "throughput", job, "one-off jobs").await?
            }
            Part::Limited => {
                let limited = || job().limit("five", 5);
                throughput(&config, &client, "limited", limited, "with a limit of 5").await?;
            }
            Part::Rates => rates(&config, &client).await?,
            Part::Batch => batch(&config, &client).await?,
            Part::Clients => clients(&config).await?,
            Part::Nodes => nodes(&config, &client).await?,
            Part::Takeover => takeover(&config, &client).await?,
        }
    }
    Ok(())
}

async fn node(
    config: &Config,
    schema: &str,
) -> Result<Scheduler, hashed_wheel_job_scheduler::Error> {
    Scheduler::builder()
        .schema(schema)
        .handler_named("count", |_: Context, _| async {
            RUNS.fetch_add(1, Relaxed);
            Ok::<_, RunError>(())
        })
        .handler_named("sleep", |_: Context, _| async {
            tokio::time::sleep(SECOND * 60).await;
            Ok::<_, RunError>(())
        })
        .start(config.clone(), NoTls)
        .await
}

fn job() -> NewJob {
    NewJob::named("count", Value::Null)
}

/// One-off jobs that are all due at once.
async fn throughput(
    config: &Config,
    client: &Client,
    schema: &str,
    job: impl Fn() -> NewJob,
    what: &str,
) -> Measured {
    let jobs = Jobs::new(schema)?;
    node(config, schema).await?.shutdown(SECOND).await?;
    jobs.enqueue_all(client, (0..MANY).map(|_| job())).await?;
    let begin = Instant::now();
    let before = RUNS.load(Relaxed);
    let node = node(config, schema).await?;
    while RUNS.load(Relaxed) - before < MANY {
        tokio::time::sleep(MS).await;
    }
    let rate = MANY as f64 / begin.elapsed().as_secs_f64();
    println!("throughput          {rate:.0} runs per second ({MANY} jobs, {what})");
    Ok(node.shutdown(SECOND * 10).await?)
}

/// How many runs of a backlog start, of those that the rate of their handler allows.
async fn rates(config: &Config, client: &Client) -> Measured {
    for (allowed, burst) in [(20, 1), (50, 1), (100, 1), (200, 1), (200, 10), (1_000, 50)] {
        let schema = format!("rate_{allowed}_{burst}");
        let jobs = Jobs::new(&schema)?;
        let node = node(config, &schema).await?;
        jobs.set_kind(
            client,
            "count",
            KindLimits::new().rate(allowed, SECOND).burst(burst),
        )
        .await?;
        jobs.enqueue_all(client, (0..allowed * 8).map(|_| job()))
            .await?;
        // The beginning, with the burst, does not count.
        tokio::time::sleep(SECOND).await;
        let (before, begin) = (RUNS.load(Relaxed), Instant::now());
        tokio::time::sleep(SECOND * 4).await;
        let rate = (RUNS.load(Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
        println!("rate                {rate:.1} of {allowed} per second, with a burst of {burst}");
        node.shutdown(SECOND * 10).await?;
    }
    Ok(())
}

/// 100 jobs, each once per second.
async fn lateness(config: &Config, client: &Client) -> Measured {
    let jobs = Jobs::new("lateness")?;
    let node = node(config, "lateness").await?;
    let now: Timestamp = client
        .query_one("SELECT clock_timestamp()", &[])
        .await?
        .get(0);
    for number in 0..100 {
        jobs.enqueue(
            client,
            job().at(now + SECOND + MS * 10 * number).every(SECOND),
        )
        .await?;
    }
    tokio::time::sleep(SECOND * 11).await;
    println!(
        "lateness            {} at 100 per second",
        read_lateness(client, "lateness").await?
    );
    Ok(node.shutdown(SECOND * 10).await?)
}

/// Jobs that are due when they are enqueued, at most 20 per second.
async fn due_now(config: &Config, client: &Client) -> Measured {
    let jobs = Jobs::new("due_now")?;
    let node = node(config, "due_now").await?;
    for _ in 0..100 {
        jobs.enqueue(client, job()).await?;
        tokio::time::sleep(MS * 50).await;
    }
    println!(
        "due when enqueued   {}",
        read_lateness(client, "due_now").await?
    );
    Ok(node.shutdown(SECOND * 10).await?)
}

/// Many jobs in one call, with and without keys, and found again.
async fn batch(config: &Config, client: &Client) -> Measured {
    let jobs = Jobs::new("batch")?;
    node(config, "batch").await?.shutdown(SECOND).await?;
    let keyed = || (0..MANY).map(|number| job().after(SECOND * 3_600).key(number.to_string()));
    for (name, batch) in [
        (
            "in one call",
            (0..MANY)
                .map(|_| job().after(SECOND * 3_600))
                .collect::<Vec<_>>(),
        ),
        (
            "in one call, due at once",
            (0..MANY).map(|_| job()).collect(),
        ),
        ("in one call, with keys", keyed().collect()),
        (
            "in one call, with the same keys",
            keyed().map(NewJob::replace_existing).collect(),
        ),
    ] {
        let begin = Instant::now();
        let count = jobs.enqueue_all(client, batch).await?.len();
        println!(
            "batch               {count} jobs {name} in {:.2?}",
            begin.elapsed()
        );
    }
    Ok(())
}

/// Clients that each enqueue one job after the other, each in a transaction of its own.
async fn clients(config: &Config) -> Measured {
    let node = node(config, "clients").await?;
    for (name, delay, notifies) in [
        ("due at once", Duration::ZERO, true),
        ("due at once, without notifications", Duration::ZERO, false),
        ("due in an hour", SECOND * 3_600, true),
    ] {
        let end = Instant::now() + SECOND * 5;
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(connection);
            let jobs = Jobs::new("clients")?;
            tasks.push(tokio::spawn(async move {
                let mut count = 0_u32;
                while Instant::now() < end {
                    let job = job().after(delay);
                    let job = if notifies {
                        job
                    } else {
                        job.without_notification()
                    };
                    jobs.enqueue(&client, job).await.expect("a valid job");
                    count += 1;
                }
                count
            }));
        }
        let mut count = 0;
        for task in tasks {
            count += task.await?;
        }
        println!(
            "enqueued            {} per second by {CLIENTS} clients, {name}",
            count / 5
        );
    }
    Ok(node.shutdown(SECOND * 10).await?)
}

/// Many nodes, and few jobs.
async fn nodes(config: &Config, client: &Client) -> Measured {
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(node(config, "nodes").await?);
    }
    let jobs = Jobs::new("nodes")?;
    // As in `idle`.
    tokio::time::sleep(SECOND * 12).await;
    let (before, written, begin) = (
        commits(client).await?,
        writes(client).await?,
        Instant::now(),
    );
    for _ in 0..15 * 15 {
        jobs.enqueue(client, job()).await?;
        tokio::time::sleep(SECOND / 15).await;
    }
    let counts = [
        commits(client).await? - before,
        writes(client).await? - written,
    ];
    let [all, written] = counts.map(|count| count as f64 / begin.elapsed().as_secs_f64());
    println!(
        "{NODES} nodes            {all:.0} commits per second, of which {written:.0} write, 15 jobs per second"
    );
    println!(
        "                    {}",
        read_lateness(client, "nodes").await?
    );
    for node in nodes {
        node.shutdown(SECOND * 10).await?;
    }
    Ok(())
}

/// Returns the number of transactions of the server that have written something.
async fn writes(client: &Client) -> Result<i64, tokio_postgres::Error> {
    Ok(client.query_one("SELECT txid_current()", &[]).await?.get(0))
}

/// Returns the number of transactions of the database, also of those that have only read.
/// PostgreSQL counts one for each notification that a connection receives.
async fn commits(client: &Client) -> Result<i64, tokio_postgres::Error> {
    let text = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    Ok(client.query_one(text, &[]).await?.get(0))
}

async fn idle(config: &Config, client: &Client) -> Measured {
    let node = node(config, "idle").await?;
    // A connection that becomes idle publishes its statistics within ten seconds.
    tokio::time::sleep(SECOND * 12).await;
    let before = commits(client).await?;
    tokio::time::sleep(SECOND * 15).await;
    let rate = (commits(client).await? - before) as f64 / 15.0;
    println!("idle node           {rate:.2} commits per second");
    Ok(node.shutdown(SECOND * 10).await?)
}

/// For the database, dropping a node is the same as `kill -9` of its process: its connections are
/// closed, and its lease ends.
async fn takeover(config: &Config, client: &Client) -> Measured {
    let jobs = Jobs::new("takeover")?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let lost = node(config, "takeover").await?;
        let job = jobs
            .enqueue(client, NewJob::named("sleep", Value::Null))
            .await?
            .job;
        wait_for_attempt(client, job, 1).await?;
        let other = node(config, "takeover").await?;
        tokio::time::sleep(SECOND + MS * fastrand::u32(..1_000)).await;
        let begin = Instant::now();
        drop(lost);
        wait_for_attempt(client, job, 2).await?;
        times.push(begin.elapsed());
        jobs.delete(client, job).await?;
        other.shutdown(Duration::ZERO).await?;
    }
    times.sort();
    let [median, max] = [times[times.len() / 2], times[times.len() - 1]];
    println!(
        "takeover            median {median:.2?}, max {max:.2?} after the loss (lease 3s, heartbeat 1s)"
    );
    Ok(())
}

async fn wait_for_attempt(
    client: &Client,
    job: i64,
    attempt: i32,
) -> Result<(), tokio_postgres::Error> {
    let text = "SELECT FROM takeover.run WHERE job = $1 AND attempt = $2 AND state = 'running'";
    while client.query_opt(text, &[&job, &attempt]).await?.is_none() {
        tokio::time::sleep(MS).await;
    }
    Ok(())
}

async fn read_lateness(client: &Client, schema: &str) -> Result<Lateness, tokio_postgres::Error> {
    let text = format!("SELECT started, due FROM {schema}.run WHERE started IS NOT NULL");
    let mut late = Lateness::default();
    for row in client.query(&text, &[]).await? {
        let [started, due]: [Timestamp; 2] = [row.get(0), row.get(1)];
        late.record(started.duration_since(due).unsigned_abs());
    }
    Ok(late)
}
