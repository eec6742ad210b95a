//! The process of a node: its main function, and its start by the trial.

use std::env;
use std::io;
use std::panic;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_job_scheduler::{Context, Error, RunError, SchedulerBuilder};
use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::when_parent_ends;
use jiff::Timestamp;
use job_scheduler_trial::WallClock;
use serde_json::Value;
use tokio::sync::{Mutex, oneshot};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row};

use crate::jobs::{BULK, EXACT, HANDLER, RATED, SNOOZE};

/// The maximum duration of a slow task in milliseconds.
const SLOW: u64 = 300;

/// The pause before another attempt, while the database is not there.
const PAUSE: Duration = Duration::from_millis(100);

/// An execution has one row, even if it is inserted again because the answer was lost.
const INSERT: &str = "
    INSERT INTO effect (job, due, attempt, interrupted, execution, began, wall)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT DO NOTHING";

/// Returns a row for the first execution.
const POSTPONE: &str =
    "INSERT INTO snooze (job, due) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING job";

/// The main function of the process. It runs until its standard input ends, because the parent has
/// closed it or has ended. `through`: how the node connects, if not as its executions.
pub(crate) fn main(
    config: &Config,
    through: Option<Config>,
    builder: SchedulerBuilder,
    grace: Duration,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (ended, stop) = oneshot::channel();
    when_parent_ends(|| _ = ended.send(()));
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 8_192);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let effects = Arc::new(Effects {
            config: config.clone(),
            client: Mutex::default(),
        });
        let handler = move |context, task| {
            let effects = effects.clone();
            async move { effects.execute(context, task).await }
        };
        let builder = builder.timer(timer.clone());
        let builder = builder
            .handler_named(HANDLER, handler.clone())
            .handler_named(RATED, handler);
        let builder = match through {
            Some(_) => builder.handler_named(BULK, async |_: Context, _: Value| {
                tokio::time::sleep(PAUSE / 20).await;
                Ok::<_, RunError>(())
            }),
            None => builder,
        };
        let through = through.as_ref().unwrap_or(config);
        let scheduler = loop {
            match builder.clone().start(through.clone(), NoTls).await {
                // The trial restarts the database, or the machine is busy.
                Err(
                    error @ (Error::Database(_)
                    | Error::NoAnswer(_)
                    | Error::Unconnected(_)
                    | Error::Invalid(_)),
                ) => {
                    eprintln!("a node cannot start yet: {error}");
                    tokio::time::sleep(PAUSE * 5).await;
                }
                started => break started?,
            }
        };
        let _ = stop.await;
        match scheduler.shutdown(grace).await {
            // The trial has stopped this process for longer than its lease, or the machine is so
            // busy that an answer took as long.
            Err(
                Error::LeaseLost | Error::NoAnswer(_) | Error::Unconnected(_) | Error::Database(_),
            ) => Ok(()),
            ended => ended,
        }
    });
    timer.stop();
    result?;
    Ok(ExitCode::SUCCESS)
}

/// Both handlers. Each execution inserts a row into a table that the scheduler does not use, on its
/// own connection.
struct Effects {
    config: Config,
    client: Mutex<Option<Arc<Client>>>,
}

impl Effects {
    async fn execute(&self, context: Context, task: Value) -> Result<&'static str, RunError> {
        let execution = fastrand::i64(..);
        let rows = self.query("SELECT clock_timestamp()", &[]).await;
        let began: Timestamp = rows[0].get(0);
        let wall = Timestamp::now();
        if task == "slow" {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..SLOW))).await;
        }
        if task == SNOOZE
            && !self
                .query(POSTPONE, &[&context.job, &context.due])
                .await
                .is_empty()
        {
            return Err(RunError::snooze(PAUSE));
        }
        let [attempt, interrupted] =
            [context.attempt, context.interrupted].map(|number| number as i32);
        let Context { job, due, .. } = context;
        let effect: [&(dyn ToSql + Sync); 7] = [
            &job,
            &due,
            &attempt,
            &interrupted,
            &execution,
            &began,
            &wall,
        ];
        if task == EXACT {
            return self.execute_exactly(&context, &effect).await;
        }
        self.query(INSERT, &effect).await;
        match task.as_str() {
            // Contains a character that PostgreSQL's text type does not support.
            Some("fail") => Err("intentional\0".into()),
            // A panic without a message on the terminal.
            Some("panic") => panic::resume_unwind(Box::new(())),
            Some("flaky") if attempt - interrupted == 1 => Err("once".into()),
            _ => Ok("did it\0"),
        }
    }

    /// The effect and the result of the run in one transaction. The node may be killed or stopped
    /// before it, in it, and after it.
    async fn execute_exactly(
        &self,
        context: &Context,
        effect: &[&(dyn ToSql + Sync)],
    ) -> Result<&'static str, RunError> {
        let pause = || tokio::time::sleep(Duration::from_millis(fastrand::u64(..SLOW / 3)));
        pause().await;
        let (mut client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        let transaction = client.transaction().await?;
        transaction.execute(INSERT, effect).await?;
        context.complete(&transaction, &"did it").await?;
        pause().await;
        transaction.commit().await?;
        pause().await;
        Ok("ignored")
    }

    /// Repeats a query until the database answers.
    async fn query(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        loop {
            if let Ok(client) = self.client().await {
                if let Ok(rows) = client.query(text, parameters).await {
                    return rows;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn client(&self) -> Result<Arc<Client>, tokio_postgres::Error> {
        let mut slot = self.client.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(slot.insert(Arc::new(client)).clone())
    }
}

/// How the processes of nodes are started.
pub(crate) struct Launch {
    /// Additional arguments.
    pub(crate) more: Vec<String>,
    /// The environment of every second node, which has another wall clock.
    environment: Vec<(&'static str, PathBuf)>,
}

impl Launch {
    pub(crate) fn new(more: Vec<String>, clock: Option<&WallClock>) -> Self {
        let environment = clock.iter().flat_map(|clock| clock.environment());
        Self {
            more,
            environment: environment
                .map(|(name, value)| (name, value.to_owned()))
                .collect(),
        }
    }

    /// Starts this program again as a node, with the same options and some more. One of four nodes
    /// has no notifications. The process ends by itself when the trial ends.
    pub(crate) fn start(&self, slot: u32) -> io::Result<Process> {
        let mut command = Command::new(env::current_exe()?);
        command
            .args(env::args_os().skip(1))
            .args(&self.more)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        if slot % 4 == 2 {
            command.arg("--poll");
        }
        if slot % 2 == 1 {
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        }
        Process::start(&mut command)
    }
}
