//! Runs that are cancelled, and runs that are repeated by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{
    Cancellation, Context, NewJob, Overlap, RunError, RunInfo, RunState, SchedulerBuilder,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fixture::{
    Fixture, LATER, MS, Task, connect, eventually, gate_job, shut_down, with_gate,
};

/// Much less than half of the longest heartbeat, after which a node reads without a notification.
const SOON: Duration = Duration::from_secs(12);

/// A heartbeat of 15 to 30 seconds.
fn rarely(builder: SchedulerBuilder) -> SchedulerBuilder {
    builder.heartbeat(MS * 30_000).prefetch(MS * 30_000)
}

/// Ends when its run is cancelled.
async fn obey(context: Context, _: Value) -> Result<&'static str, RunError> {
    context.cancelled().await;
    assert!(context.is_cancelled());
    Ok("halfway")
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) fn job(handler: &str) -> NewJob {
    NewJob::named(handler, Value::Null)
}

impl Fixture {
    pub(crate) async fn cancel(&self, run: i64) -> Option<Cancellation> {
        self.jobs.cancel(&self.client, run).await.unwrap()
    }

    pub(crate) async fn retry(&self, run: i64) -> bool {
        self.jobs.retry(&self.client, run).await.unwrap()
    }

    pub(crate) async fn running(&self, job: i64) -> i64 {
        self.until_state(job, RunState::Running).await.id
    }

    /// Waits until no run has a slot.
    pub(crate) async fn until_no_slots(&self) {
        let slots = format!("SELECT FROM {}.slot", self.schema);
        eventually(async || self.client.query(&slots, &[]).await.unwrap().is_empty()).await;
    }
}

/// By a notification, because the heartbeat is long. The other node does not have the run.
#[tokio::test]
async fn handler_learns_of_the_cancellation_and_the_run_ends_as_cancelled() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let builder = || {
        rarely(fixture.builder())
            .handler_named("obey", obey)
            .cancel_grace(MS * 60_000)
    };
    let nodes = [
        fixture.start(builder()).await,
        fixture.start(builder()).await,
    ];
    let id = fixture.enqueue(job("obey").retries(5, MS, MS)).await;
    let run = fixture.running(id).await;
    let begin = Instant::now();
    assert_eq!(fixture.cancel(run).await, Some(Cancellation::Requested));
    let ended = fixture.until_state(id, RunState::Cancelled).await;
    assert!(begin.elapsed() < SOON);
    assert_eq!(
        (ended.output, ended.error, ended.attempt),
        (Some(json!("halfway")), None, 1)
    );
    assert!(ended.is_cancelled && ended.finished.is_some());
    assert_eq!(fixture.cancel(run).await, Some(Cancellation::Ended));
    assert_eq!(fixture.cancel(run + 1).await, None);
    for node in nodes {
        shut_down(node).await;
    }
}

#[tokio::test]
async fn handler_that_ignores_the_cancellation_is_dropped_after_the_grace() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = dropped.clone();
    let ignore = move |_, _: Value| {
        let flag = Dropped(flag.clone());
        async move {
            let _flag = flag;
            std::future::pending::<Result<(), RunError>>().await
        }
    };
    let builder = fixture
        .builder()
        .handler_named("ignore", ignore)
        .cancel_grace(MS * 300);
    let node = fixture.start(builder).await;
    let id = fixture.enqueue(job("ignore").retries(5, MS, MS)).await;
    let run = fixture.running(id).await;
    let begin = Instant::now();
    assert_eq!(fixture.cancel(run).await, Some(Cancellation::Requested));
    let ended = fixture.until_state(id, RunState::Cancelled).await;
    assert!(begin.elapsed() >= MS * 300);
    assert_eq!(
        ended.error.as_deref(),
        Some("cancelled, and did not end within 300ms")
    );
    assert!(dropped.load(Relaxed));
    shut_down(node).await;
}

/// The next beat finds it.
#[tokio::test]
async fn cancellation_needs_no_notification() {
    let silent = (
        "PERFORM pg_notify('@channel_cancel', found_run.owner::text)",
        "NULL",
    );
    let Some(fixture) = Fixture::sabotaged(&[silent]).await else {
        return;
    };
    let node = fixture
        .start(fixture.builder().handler_named("obey", obey))
        .await;
    let id = fixture.enqueue(job("obey")).await;
    let run = fixture.running(id).await;
    assert_eq!(fixture.cancel(run).await, Some(Cancellation::Requested));
    fixture.until_state(id, RunState::Cancelled).await;
    shut_down(node).await;
}

/// Returns whether the handler of a node that reads rarely has learnt it some time before.
async fn learns_soon(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let builder = rarely(fixture.builder());
    let node = fixture.start(builder.handler_named("obey", obey)).await;
    let id = fixture.enqueue(job("obey")).await;
    let run = fixture.running(id).await;
    // Not in the beat that has found the run.
    tokio::time::sleep(MS * 500).await;
    fixture.cancel(run).await;
    let (begin, limit) = (
        Instant::now(),
        if sabotage.is_some() { MS * 3_000 } else { SOON },
    );
    let mut has_ended = false;
    while !has_ended && begin.elapsed() < limit {
        tokio::time::sleep(MS * 10).await;
        has_ended = fixture.history(id).await[0].state == RunState::Cancelled;
    }
    drop(node);
    Some(has_ended)
}

#[tokio::test]
async fn handler_learns_it_at_once_by_the_notification() {
    let Some(has_ended) = learns_soon(None).await else {
        return;
    };
    assert!(has_ended);
    let silent = (
        "PERFORM pg_notify('@channel_cancel', found_run.owner::text)",
        "NULL",
    );
    assert_eq!(learns_soon(Some(silent)).await, Some(false));
}

#[tokio::test]
async fn runs_that_have_not_started_are_cancelled_in_the_database() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().prefetch(MS * 60_000), &gate))
        .await;
    let claimed = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(LATER))
        .await;
    let claimed = fixture.until_state(claimed, RunState::Claimed).await;
    // A retry, later than the prefetch.
    let waiting = NewJob::new(&Task::Fail).retries(1, LATER * 2, LATER * 2);
    let waiting = fixture
        .until_state(fixture.enqueue(waiting).await, RunState::Waiting)
        .await;
    let jammed = fixture.enqueue(gate_job().overlap(Overlap::Wait)).await;
    fixture.running(jammed).await;
    for _ in 0..2 {
        fixture.jobs.run_now(&fixture.client, jammed).await.unwrap();
    }
    let count = |runs: &[RunInfo], state| runs.iter().filter(|run| run.state == state).count();
    let runs = fixture
        .until(jammed, |runs| count(runs, RunState::Blocked) == 2)
        .await;
    for run in [&claimed, &waiting, &runs[0]] {
        assert_eq!(fixture.cancel(run.id).await, Some(Cancellation::Cancelled));
        let run = fixture
            .history(run.job)
            .await
            .into_iter()
            .find(|other| other.id == run.id)
            .unwrap();
        assert!(
            run.state == RunState::Cancelled && run.finished.is_some() && !run.is_cancelled,
            "{run:?}"
        );
    }
    assert_eq!(fixture.cancel(claimed.id).await, Some(Cancellation::Ended));
    // The other ones of the job are not affected.
    gate.close();
    let runs = fixture
        .until(jammed, |runs| count(runs, RunState::Done) == 2)
        .await;
    assert_eq!(count(&runs, RunState::Cancelled), 1);
    fixture.until_no_slots().await;
    // The job is finished, and its key is free.
    assert!(
        fixture
            .jobs
            .get(&fixture.client, claimed.job)
            .await
            .unwrap()
            .unwrap()
            .next_run
            .is_none()
    );
    shut_down(node).await;
}

#[tokio::test]
async fn all_runs_of_a_job_are_cancelled() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(fixture.builder().handler_named("obey", obey))
        .await;
    let id = fixture.enqueue(job("obey").overlap(Overlap::Wait)).await;
    fixture.running(id).await;
    for _ in 0..3 {
        fixture.jobs.run_now(&fixture.client, id).await.unwrap();
    }
    let is_blocked = |run: &&RunInfo| run.state == RunState::Blocked;
    fixture
        .until(id, |runs| runs.iter().filter(is_blocked).count() == 3)
        .await;
    assert_eq!(
        fixture.jobs.cancel_all(&fixture.client, id).await.unwrap(),
        4
    );
    fixture
        .until(id, |runs| {
            runs.iter().all(|run| run.state == RunState::Cancelled)
        })
        .await;
    fixture.until_no_slots().await;
    assert_eq!(
        fixture.jobs.cancel_all(&fixture.client, id).await.unwrap(),
        0
    );
    shut_down(node).await;
}

/// A run that fails after it is cancelled. Returns its state after that.
async fn fail_after_the_cancellation(sabotage: Option<(&str, &str)>) -> Option<RunInfo> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let fail = async |context: Context, _: Value| {
        context.cancelled().await;
        Err::<(), _>(RunError::from("stopped"))
    };
    let builder = fixture.builder().handler_named("fail", fail);
    let node = fixture.start(builder).await;
    let id = fixture.enqueue(job("fail").retries(5, LATER, LATER)).await;
    let run = fixture.running(id).await;
    fixture.cancel(run).await;
    let run = fixture
        .until(id, |runs| runs[0].state != RunState::Running)
        .await
        .remove(0);
    drop(node);
    Some(run)
}

#[tokio::test]
async fn cancelled_run_is_not_repeated_if_it_fails() {
    let Some(run) = fail_after_the_cancellation(None).await else {
        return;
    };
    assert_eq!(
        (run.state, run.attempt, run.error.as_deref()),
        (RunState::Cancelled, 1, Some("stopped"))
    );
    let keeps = (
        "CASE WHEN run.is_cancelled THEN 'cancelled'",
        "CASE WHEN false THEN NULL",
    );
    let run = fail_after_the_cancellation(Some(keeps)).await.unwrap();
    assert_ne!(run.state, RunState::Cancelled);
}

/// A node that is lost after one of its runs is cancelled. Returns the run at its end, and how
/// often its handler was called.
async fn lose_the_node_after_the_cancellation(
    sabotage: Option<(&str, &str)>,
) -> Option<(RunInfo, usize)> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let builder = |builder: SchedulerBuilder| {
        let calls = calls.clone();
        builder.cancel_grace(MS * 60_000).handler_named(
            "count",
            move |context: Context, _: Value| {
                calls.fetch_add(1, Relaxed);
                async move {
                    match context.interrupted {
                        0 => std::future::pending().await,
                        _ => Ok::<_, RunError>(()),
                    }
                }
            },
        )
    };
    // It creates the functions.
    let lost = fixture.start(builder(fixture.builder())).await;
    let id = fixture.enqueue(job("count")).await;
    let run = fixture.running(id).await;
    eventually(async || calls.load(Relaxed) == 1).await;
    assert_eq!(fixture.cancel(run).await, Some(Cancellation::Requested));
    fixture.lose(lost).await;
    let node = fixture.start(builder(fixture.builder())).await;
    let run = fixture
        .until(id, |runs| runs[0].finished.is_some())
        .await
        .remove(0);
    drop(node);
    Some((run, calls.load(Relaxed)))
}

#[tokio::test]
async fn cancelled_run_of_a_lost_node_is_not_repeated() {
    let Some((run, calls)) = lose_the_node_after_the_cancellation(None).await else {
        return;
    };
    assert_eq!(
        (run.state, run.error.as_deref(), calls),
        (RunState::Cancelled, Some("cancelled"), 1)
    );
    assert_eq!(run.interrupted, 1);
    let no_verdict = (
        "CASE WHEN run.is_cancelled THEN 'cancelled'\n",
        "CASE WHEN false THEN 'cancelled'\n",
    );
    let (_, calls) = lose_the_node_after_the_cancellation(Some(no_verdict))
        .await
        .unwrap();
    assert_eq!(calls, 2);
}

/// A blocked run is cancelled while the run ends for which it waits. Returns its state at the end.
///
/// The transaction that cancels it commits when a node waits for its locks, which it must not, or
/// after some time.
async fn cancel_the_heir(sabotage: Option<(&str, &str)>) -> Option<RunState> {
    let mut fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let id = fixture.enqueue(gate_job().overlap(Overlap::Wait)).await;
    let first = fixture.running(id).await;
    let blocked = fixture
        .jobs
        .run_now(&fixture.client, id)
        .await
        .unwrap()
        .unwrap();
    fixture
        .until(id, |runs| {
            runs.iter().any(|run| run.state == RunState::Blocked)
        })
        .await;
    let other = connect(&fixture.config).await;
    let jobs = fixture.jobs.clone();
    let transaction = fixture.client.transaction().await.unwrap();
    assert_eq!(
        jobs.cancel(&transaction, blocked).await.unwrap(),
        Some(Cancellation::Cancelled)
    );
    gate.close();
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let query = format!("%\"{}\".finish_runs(%", fixture.schema);
    let begin = Instant::now();
    let limit = if sabotage.is_some() { LATER } else { MS * 500 };
    while begin.elapsed() < limit && other.query(waits, &[&query]).await.unwrap().is_empty() {
        tokio::time::sleep(MS).await;
    }
    transaction.commit().await.unwrap();
    let is_done = |runs: &[RunInfo]| {
        runs.iter()
            .all(|run| run.id != first || run.state == RunState::Done)
    };
    fixture.until(id, is_done).await;
    fixture.until_no_slots().await;
    let runs = fixture
        .until(id, |runs| runs.iter().all(|run| run.finished.is_some()))
        .await;
    drop(node);
    runs.iter()
        .find(|run| run.id == blocked)
        .map(|run| run.state)
}

#[tokio::test]
async fn cancelled_run_does_not_get_the_place_of_a_run_that_ends() {
    let Some(state) = cancel_the_heir(None).await else {
        return;
    };
    assert_eq!(state, RunState::Cancelled);
    let no_lock = (
        "run.id LIMIT room FOR UPDATE SKIP LOCKED",
        "run.id LIMIT room",
    );
    // On a busy machine the statement of the node may reach its time limit before the transaction
    // commits. Then the node finds that the run is cancelled.
    for _ in 0..3 {
        if cancel_the_heir(Some(no_lock)).await == Some(RunState::Done) {
            return;
        }
    }
    panic!("the run was cancelled although nothing locks it");
}

/// Runs of milliseconds, that are cancelled at any time. Each ends as the answer says.
#[tokio::test]
async fn cancellations_race_with_starts_and_ends() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let builder = || fixture.builder().cancel_grace(Duration::ZERO);
    let nodes = [
        fixture.start(builder()).await,
        fixture.start(builder()).await,
    ];
    let waiting = fixture
        .enqueue(NewJob::new(&Task::Sleep(3)).overlap(Overlap::Wait))
        .await;
    let other = fixture
        .enqueue(NewJob::new(&Task::Sleep(3)).retries(1, MS, MS))
        .await;
    let mut tasks = Vec::new();
    for seed in 0..4 {
        let (client, jobs) = (connect(&fixture.config).await, fixture.jobs.clone());
        tasks.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut outcomes = Vec::new();
            for _ in 0..100 {
                let job = *random.choice(&[waiting, other]).unwrap();
                let run = jobs.run_now(&client, job).await.unwrap().unwrap();
                tokio::time::sleep(MS * random.u32(0..20)).await;
                outcomes.push((run, jobs.cancel(&client, run).await.unwrap().unwrap()));
            }
            outcomes
        }));
    }
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.extend(task.await.unwrap());
    }
    let mut counts = [0; 3];
    for job in [waiting, other] {
        let runs = fixture
            .until(job, |runs| runs.iter().all(|run| run.finished.is_some()))
            .await;
        for run in runs {
            let Some((_, outcome)) = outcomes.iter().find(|(id, _)| *id == run.id) else {
                continue;
            };
            let (state, index) = match outcome {
                Cancellation::Cancelled => (RunState::Cancelled, 0),
                Cancellation::Requested => (RunState::Cancelled, 1),
                _ => (RunState::Done, 2),
            };
            assert_eq!(run.state, state, "{run:?}");
            counts[index] += 1;
        }
    }
    assert_eq!(counts.iter().sum::<usize>(), 400);
    fixture.until_no_slots().await;
    // No node has lost its lease by that.
    let numbers: Vec<_> = fixture
        .jobs
        .nodes(&fixture.client)
        .await
        .unwrap()
        .iter()
        .map(|node| node.id)
        .collect();
    assert_eq!(numbers, [1, 2]);
    for node in nodes {
        shut_down(node).await;
    }
}
