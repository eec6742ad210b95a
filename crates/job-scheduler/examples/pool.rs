//! Jobs in transactions of an application, on connections of a pool.
//!
//! ```sh
//! cargo run -p hashed-wheel-job-scheduler --example pool -- postgresql://postgres@localhost/postgres
//! ```

use std::error::Error;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use hashed_wheel_job_scheduler::{Context, Jobs, NewJob, Payload, RunError, Scheduler};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_postgres::{Config, NoTls};

#[derive(Serialize, Deserialize)]
struct Welcome {
    account: i64,
}

impl Payload for Welcome {
    const HANDLER: &'static str = "welcome";
}

static WELCOMED: Notify = Notify::const_new();

async fn welcome(_: Context, job: Welcome) -> Result<(), RunError> {
    println!("welcome, account {}", job.account);
    WELCOMED.notify_one();
    Ok(())
}

/// Stores the account and its job, or neither of them.
async fn open_account(pool: &Pool, jobs: &Jobs, name: &str) -> Result<i64, Box<dyn Error>> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    let insert = "INSERT INTO account (name) VALUES ($1) RETURNING id";
    let account = transaction.query_one(insert, &[&name]).await?.try_get(0)?;
    // The transaction of the pool dereferences to the one of tokio-postgres.
    jobs.enqueue(&*transaction, NewJob::new(&Welcome { account }))
        .await?;
    transaction.commit().await?;
    Ok(account)
}

pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let config: Config = url.parse()?;
    // A node has four connections of its own, because it listens. The pool is for the application.
    let node = Scheduler::builder()
        .handler(welcome)
        .start(config.clone(), NoTls)
        .await?;
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(8)
        .build()?;
    let table = "CREATE TABLE IF NOT EXISTS account (id bigserial PRIMARY KEY, name text NOT NULL)";
    pool.get().await?.batch_execute(table).await?;
    println!(
        "opened account {}",
        open_account(&pool, node.jobs(), "ann").await?
    );
    WELCOMED.notified().await;
    Ok(node.shutdown(Duration::from_secs(10)).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args()
        .nth(1)
        .ok_or("an argument is missing: postgresql://user@host/database")?)
    .await
}
