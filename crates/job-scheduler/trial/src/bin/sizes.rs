//! Measures what jobs, runs and an idle node cost the database, on a PostgreSQL server that it
//! starts.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-job-scheduler-trial --bin sizes
//! ```
//!
//! Sizes are those of `pg_total_relation_size`, per job: right after the runs, as the default
//! autovacuum has left them, and after `VACUUM FULL`, which is the size of the rows alone. The
//! journal is the write-ahead log: `pg_current_wal_lsn`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use hashed_wheel_job_scheduler::{Context, Jobs, NewJob, RunError, Scheduler};
use hashed_wheel_trial::exit_code;
use job_scheduler_trial::Database;
use serde_json::{Value, json};
use tokio_postgres::{Client, Config, NoTls};

const SECOND: Duration = Duration::from_secs(1);

/// The number of jobs, which have one run each.
const JOBS: i64 = 100_000;

/// How many of them are enqueued by one call.
const BATCH: i64 = 1_000;

const IDLE: Duration = Duration::from_secs(15);

type Measured = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let measured = || {
        let database = Database::start_durable()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(measure(&database.url))
    };
    exit_code(measured().map(|()| ExitCode::SUCCESS))
}

async fn measure(url: &str) -> Measured {
    let config: Config = url.parse()?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
    println!("PostgreSQL {version}; {JOBS} one-off jobs, with payloads of 60 bytes\n");
    let node = start(&config).await?;
    idle(&client).await?;
    node.shutdown(SECOND).await?;

    let jobs = Jobs::new("job_scheduler")?;
    let payload = json!({ "to": "somebody@example.com", "subject": "Your order 8175" });
    let before = journal(&client).await?;
    for _ in 0..JOBS / BATCH {
        jobs.enqueue_all(
            &client,
            (0..BATCH).map(|_| NewJob::named("mail", payload.clone())),
        )
        .await?;
    }
    let enqueued = journal(&client).await?;
    println!(
        "enqueued     job {}; journal {} bytes per job, in calls of {BATCH}",
        size(&client, "job").await?,
        (enqueued - before) / JOBS
    );

    let node = start(&config).await?;
    let ended = "SELECT count(*) FROM job_scheduler.run WHERE finished IS NOT NULL";
    while client.query_one(ended, &[]).await?.get::<_, i64>(0) < JOBS {
        tokio::time::sleep(SECOND / 4).await;
    }
    let executed = journal(&client).await?;
    println!(
        "executed     job {}, run {}; journal {} bytes per run",
        size(&client, "job").await?,
        size(&client, "run").await?,
        (executed - enqueued) / JOBS
    );
    node.shutdown(SECOND).await?;
    for table in ["job", "run"] {
        // Alone, because a batch would be a transaction.
        client
            .batch_execute(&format!("VACUUM FULL job_scheduler.{table}"))
            .await?;
    }
    println!(
        "rows alone   job {}, run {}",
        size(&client, "job").await?,
        size(&client, "run").await?
    );
    Ok(())
}

async fn start(config: &Config) -> Result<Scheduler, hashed_wheel_job_scheduler::Error> {
    let mail = |_: Context, _: Value| async { Ok::<_, RunError>(()) };
    Scheduler::builder()
        .handler_named("mail", mail)
        .start(config.clone(), NoTls)
        .await
}

/// Returns the size of a table per job.
async fn size(client: &Client, table: &str) -> Result<String, tokio_postgres::Error> {
    let text =
        "SELECT pg_total_relation_size($1::text::regclass), pg_indexes_size($1::text::regclass)";
    let row = client
        .query_one(text, &[&format!("job_scheduler.{table}")])
        .await?;
    let [all, indexes] = [0, 1].map(|column| row.get::<_, i64>(column) / JOBS);
    Ok(format!("{all} bytes ({indexes} in indexes)"))
}

async fn journal(client: &Client) -> Result<i64, tokio_postgres::Error> {
    let text = "SELECT (pg_current_wal_lsn() - '0/0')::bigint";
    Ok(client.query_one(text, &[]).await?.get(0))
}

async fn idle(client: &Client) -> Measured {
    let commits = async || {
        let text = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        client
            .query_one(text, &[])
            .await
            .map(|row| row.get::<_, i64>(0))
    };
    // A connection that becomes idle publishes its statistics within ten seconds.
    tokio::time::sleep(SECOND * 12).await;
    let before = (commits().await?, journal(client).await?);
    tokio::time::sleep(IDLE).await;
    let seconds = IDLE.as_secs_f64();
    println!(
        "idle node    {:.2} commits and {:.0} bytes of the journal per second",
        (commits().await? - before.0) as f64 / seconds,
        (journal(client).await? - before.1) as f64 / seconds
    );
    Ok(())
}
