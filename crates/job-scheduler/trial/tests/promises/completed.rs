//! Results that are written in the transaction of the work: exactly once, wherever the node is
//! lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashed_wheel_job_scheduler::{
    Cancellation, Context, Error, NewJob, Overlap, RunError, RunState, SchedulerBuilder,
};
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::sync::Semaphore;
use tokio_postgres::Config;

use crate::fixture::{Fixture, MS, connect, eventually, shut_down};

/// Where the first execution stops until its gate is closed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stop {
    BeforeTheWork,
    BeforeTheCommit,
    AfterTheCommit,
}

/// A handler whose work is a row in the table `effect`.
#[derive(Clone)]
struct Work {
    config: Config,
    schema: String,
    stop: Stop,
    gate: Arc<Semaphore>,
    /// The executions that have come to the point where the first one stops.
    arrived: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
    /// The error that each call of `complete` has returned.
    lost: Arc<AtomicUsize>,
}

impl Work {
    async fn new(fixture: &Fixture, stop: Stop) -> Self {
        let create = format!(
            "CREATE TABLE IF NOT EXISTS {}_effect (run bigint)",
            fixture.schema
        );
        fixture.client.batch_execute(&create).await.unwrap();
        Self {
            config: fixture.config.clone(),
            schema: fixture.schema.clone(),
            stop,
            gate: Arc::new(Semaphore::new(0)),
            arrived: Arc::default(),
            begun: Arc::default(),
            lost: Arc::default(),
        }
    }

    async fn effects(&self, fixture: &Fixture) -> i64 {
        let count = format!("SELECT count(*) FROM {}_effect", self.schema);
        fixture.client.query_one(&count, &[]).await.unwrap().get(0)
    }

    async fn wait(&self, is_first: bool, stop: Stop) {
        if is_first && self.stop == stop {
            self.arrived.fetch_add(1, Relaxed);
            let _ = self.gate.acquire().await;
        }
    }

    async fn perform(self, context: Context) -> Result<&'static str, RunError> {
        let is_first = self.begun.fetch_add(1, Relaxed) == 0;
        self.wait(is_first, Stop::BeforeTheWork).await;
        let mut client = connect(&self.config).await;
        let transaction = client.transaction().await?;
        let insert = format!("INSERT INTO {}_effect VALUES ($1)", self.schema);
        transaction.execute(&insert, &[&context.run]).await?;
        if let Err(error) = context.complete(&transaction, &context.attempt).await {
            assert!(matches!(error, Error::RunLost), "{error}");
            self.lost.fetch_add(1, Relaxed);
            return Err(error.into());
        }
        self.wait(is_first, Stop::BeforeTheCommit).await;
        transaction.commit().await?;
        self.wait(is_first, Stop::AfterTheCommit).await;
        Ok("ignored")
    }

    /// Adds the handler `work`. With `detached`, it continues when its future is dropped, as if its
    /// whole process were stopped and continued later.
    fn handler(&self, builder: SchedulerBuilder, detached: bool) -> SchedulerBuilder {
        let work = self.clone();
        builder.handler_named("work", move |context, _: Value| {
            let work = work.clone();
            async move {
                let performed = work.perform(context);
                if detached {
                    tokio::spawn(performed).await?
                } else {
                    performed.await
                }
            }
        })
    }
}

fn job() -> NewJob {
    NewJob::named("work", Value::Null)
}

#[tokio::test]
async fn result_is_that_of_the_transaction() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let work = Work::new(&fixture, Stop::AfterTheCommit).await;
    let node = fixture.start(work.handler(fixture.builder(), false)).await;
    let id = fixture.enqueue(job().overlap(Overlap::Wait)).await;
    // Before the handler returns.
    let run = fixture.until_done(id, 1).await.remove(0);
    assert_eq!(
        (run.output, run.error, run.attempt),
        (Some(json!(1)), None, 1)
    );
    assert_eq!(
        fixture.jobs.cancel(&fixture.client, run.id).await.unwrap(),
        Some(Cancellation::Ended)
    );
    // The run has ended, so another one may start.
    fixture.jobs.run_now(&fixture.client, id).await.unwrap();
    fixture.until_done(id, 2).await;
    work.gate.close();
    shut_down(node).await;
    // The values that the handlers have returned were not written.
    assert!(
        fixture
            .history(id)
            .await
            .iter()
            .all(|run| run.output == Some(json!(1)))
    );
    assert_eq!(work.effects(&fixture).await, 2);
}

#[tokio::test]
async fn run_is_completed_in_a_transaction_of_sqlx() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let url = fixture.url();
    let handler = move |context: Context, commits: Value| {
        let url = url.clone();
        async move {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            let mut transaction = connection.begin().await?;
            context.complete(&mut *transaction, &"done").await?;
            let repeated = context.complete(&mut *transaction, &"again").await;
            assert!(matches!(repeated, Err(Error::RunLost)), "{repeated:?}");
            match commits == true {
                true => transaction.commit().await?,
                false => transaction.rollback().await?,
            }
            Err::<(), _>(RunError::from("failed"))
        }
    };
    let node = fixture
        .start(fixture.builder().handler_named("work", handler))
        .await;
    for (commits, state, output) in [
        (true, RunState::Done, Some(json!("done"))),
        (false, RunState::Failed, None),
    ] {
        let id = fixture.enqueue(NewJob::named("work", json!(commits))).await;
        let run = fixture.until_state(id, state).await;
        assert_eq!(run.output, output);
    }
    shut_down(node).await;
}

/// A handler that ends after the commit in another way, or instead of it.
#[tokio::test]
async fn handler_that_fails_has_done_its_work_if_and_only_if_the_transaction_has_committed() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let config = fixture.config.clone();
    let handler = move |context: Context, commits: Value| {
        let config = config.clone();
        async move {
            let mut client = connect(&config).await;
            let transaction = client.transaction().await?;
            context.complete(&transaction, &"done").await?;
            match commits.as_bool() {
                Some(true) => transaction.commit().await?,
                Some(false) => transaction.rollback().await?,
                // It is rolled back, and the node writes the result.
                None => return Ok(()),
            }
            Err(RunError::from("failed"))
        }
    };
    let node = fixture
        .start(fixture.builder().handler_named("work", handler))
        .await;
    let enqueue = async |payload: Value| fixture.enqueue(NewJob::named("work", payload)).await;
    let run = fixture
        .until_state(enqueue(true.into()).await, RunState::Done)
        .await;
    assert_eq!((run.output, run.error), (Some(json!("done")), None));
    let run = fixture
        .until_state(enqueue(false.into()).await, RunState::Failed)
        .await;
    assert_eq!((run.output, run.error.as_deref()), (None, Some("failed")));
    let run = fixture
        .until_state(enqueue(Value::Null).await, RunState::Done)
        .await;
    assert_eq!((run.output, run.error), (Some(json!(null)), None));
    shut_down(node).await;
}

/// The node is lost between the commit and the return of the handler, or before the commit. Returns
/// the number of effects, and of executions.
async fn lose_the_node(stop: Stop, sabotage: Option<(&str, &str)>) -> Option<(i64, usize)> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let work = Work::new(&fixture, stop).await;
    let lost = fixture.start(work.handler(fixture.builder(), false)).await;
    let id = fixture.enqueue(job()).await;
    eventually(async || work.arrived.load(Relaxed) == 1).await;
    fixture.lose(lost).await;
    let node = fixture.start(work.handler(fixture.builder(), false)).await;
    // It has taken over what there was.
    let other = fixture.enqueue(job()).await;
    for id in [id, other] {
        fixture.until_done(id, 1).await;
    }
    shut_down(node).await;
    Some((
        work.effects(&fixture).await - 1,
        work.begun.load(Relaxed) - 1,
    ))
}

#[tokio::test]
async fn node_that_is_lost_after_the_commit_has_done_the_work_once() {
    let Some(counts) = lose_the_node(Stop::AfterTheCommit, None).await else {
        return;
    };
    assert_eq!(counts, (1, 1));
    assert_eq!(
        lose_the_node(Stop::BeforeTheCommit, None).await,
        Some((1, 2))
    );
    let no_end = (
        "SET state = 'done', finished = clock_timestamp(), output = the_output",
        "SET output = the_output",
    );
    assert_eq!(
        lose_the_node(Stop::AfterTheCommit, Some(no_end)).await,
        Some((2, 2))
    );
}

/// A node is stopped for longer than its lease, and another one repeats the run. Then the first one
/// continues. Returns the number of effects.
async fn continue_after_the_lease(sabotage: Option<(&str, &str)>) -> Option<i64> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let work = Work::new(&fixture, Stop::BeforeTheWork).await;
    let stopped = fixture.start(work.handler(fixture.builder(), true)).await;
    let id = fixture.enqueue(job()).await;
    eventually(async || work.arrived.load(Relaxed) == 1).await;
    // The handler is a task that continues.
    fixture.lose(stopped).await;
    let node = fixture.start(work.handler(fixture.builder(), false)).await;
    let run = fixture.until_done(id, 1).await.remove(0);
    assert_eq!((run.attempt, run.interrupted), (2, 1));
    work.gate.close();
    let effects = async || work.effects(&fixture).await;
    eventually(async || work.lost.load(Relaxed) == 1 || effects().await == 2).await;
    shut_down(node).await;
    Some(effects().await)
}

#[tokio::test]
async fn work_of_a_node_that_was_stopped_for_longer_than_its_lease_is_not_stored() {
    let Some(effects) = continue_after_the_lease(None).await else {
        return;
    };
    assert_eq!(effects, 1);
    let no_check = (
        "AND run.state = 'running' AND run.attempt = the_attempt\n        AND run.started = the_start AND NOT run.is_cancelled",
        "",
    );
    assert_eq!(continue_after_the_lease(Some(no_check)).await, Some(2));
}

/// A run is cancelled before the handler completes it. Returns the number of effects.
async fn cancel_before_the_work(sabotage: Option<(&str, &str)>) -> Option<i64> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let work = Work::new(&fixture, Stop::BeforeTheWork).await;
    let builder = fixture.builder().cancel_grace(MS * 60_000);
    let node = fixture.start(work.handler(builder, false)).await;
    let id = fixture.enqueue(job()).await;
    eventually(async || work.arrived.load(Relaxed) == 1).await;
    let run = fixture.history(id).await[0].id;
    assert_eq!(
        fixture.jobs.cancel(&fixture.client, run).await.unwrap(),
        Some(Cancellation::Requested)
    );
    work.gate.close();
    fixture.until(id, |runs| runs[0].finished.is_some()).await;
    shut_down(node).await;
    Some(work.effects(&fixture).await)
}

#[tokio::test]
async fn work_of_a_cancelled_run_is_not_stored() {
    let Some(effects) = cancel_before_the_work(None).await else {
        return;
    };
    assert_eq!(effects, 0);
    let no_check = (
        "AND run.started = the_start AND NOT run.is_cancelled",
        "AND run.started = the_start",
    );
    assert_eq!(cancel_before_the_work(Some(no_check)).await, Some(1));
}

/// The node was lost after its handler had completed the run. Others have deleted its row, and it
/// ends after it has sent the result.
#[tokio::test]
async fn place_of_a_completed_run_is_not_handed_to_a_node_that_is_lost() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let job = || NewJob::named("task", json!("Succeed")).limit("name", 1);
    let (holder, heir) = (fixture.enqueue(job()).await, fixture.enqueue(job()).await);
    let prepare = "
        UPDATE @job SET next_run = NULL;
        INSERT INTO @node (name, alive_until, handlers) VALUES ('other', now() + interval '1 hour', '{task}');
        INSERT INTO @run (job, handler, due, start_at, state, owner, finished)
        VALUES (HOLDER, 'task', now(), now(), 'done', 999, now());
        INSERT INTO @run (job, handler, due, start_at, state, blocked_on)
        VALUES (HEIR, 'task', now(), now(), 'blocked', 'key name');
        INSERT INTO @slot SELECT 'key name', 1, id, 999 FROM @run WHERE job = HOLDER;
        SELECT @finish_runs(999, 0, array_agg(id), '{done}', '{null}', '{null}', '{null}') FROM @run
        WHERE job = HOLDER;";
    let prepare = prepare.replace('@', &format!("{}.", fixture.schema));
    let prepare = prepare
        .replace("HOLDER", &holder.to_string())
        .replace("HEIR", &heir.to_string());
    fixture.client.batch_execute(&prepare).await.unwrap();
    assert_eq!(fixture.history(heir).await[0].state, RunState::Waiting);
    let node = fixture.node().await;
    fixture.until_done(heir, 1).await;
    shut_down(node).await;
}
