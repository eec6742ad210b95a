//! Safeguards whose absence the trial with its processes detects too seldom. Each test runs twice:
//! as it is, and without the safeguard, which must make a difference.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{NewJob, RunInfo, RunState};
use tokio::sync::Semaphore;

use crate::fixture::{DELAYS, Fixture, MS, Task, eventually, gate_job, with_gate};

/// How long a test waits for something that must not happen.
const UNEXPECTED: Duration = Duration::from_secs(1);

/// How long it waits for what must happen.
const EXPECTED: Duration = Duration::from_secs(30);

/// A node that runs a job while another node takes the run over. Returns the state of the run
/// afterwards.
async fn finish_without_owning(sabotage: Option<(&str, &str)>) -> Option<RunState> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let job = fixture.enqueue(gate_job()).await;
    fixture.until_state(job, RunState::Running).await;
    let schema = &fixture.schema;
    let take_over = format!(
        "INSERT INTO {schema}.node (name, alive_until) VALUES ('other', clock_timestamp() + interval '1 hour'); \
         UPDATE {schema}.run SET owner = (SELECT max(id) FROM {schema}.node), state = 'claimed', attempt = 2, \
         interrupted = 1, start_at = clock_timestamp() + interval '1 hour'"
    );
    fixture.client.batch_execute(&take_over).await.unwrap();
    gate.close();
    // The node writes the result, or begins anew under another number.
    eventually(async || {
        let nodes = fixture.jobs.nodes(&fixture.client).await.unwrap();
        fixture.history(job).await[0].state == RunState::Done
            || nodes.iter().any(|node| node.id > 2)
    })
    .await;
    let state = fixture.history(job).await[0].state;
    drop(node);
    Some(state)
}

#[tokio::test]
async fn result_of_a_run_of_another_node_is_not_written() {
    let Some(state) = finish_without_owning(None).await else {
        return;
    };
    assert_eq!(state, RunState::Claimed);
    let no_owner = (
        "AND (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'running')",
        "",
    );
    assert_eq!(
        finish_without_owning(Some(no_owner)).await,
        Some(RunState::Done)
    );
}

/// A job that is due at once, on a node that reads every 15 seconds at most. Returns whether it has
/// started some time before that.
async fn starts_immediately(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let node = fixture
        .start(
            fixture
                .builder()
                .heartbeat(MS * 30_000)
                .prefetch(MS * 30_000),
        )
        .await;
    tokio::time::sleep(MS * 1_000).await;
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let (begin, limit) = (
        Instant::now(),
        if sabotage.is_some() {
            MS * 3_000
        } else {
            MS * 12_000
        },
    );
    let mut has_started = false;
    while !has_started && begin.elapsed() < limit {
        tokio::time::sleep(MS * 10).await;
        has_started = !fixture.history(job).await.is_empty();
    }
    drop(node);
    Some(has_started)
}

#[tokio::test]
async fn new_jobs_need_the_notification() {
    let Some(has_started) = starts_immediately(None).await else {
        return;
    };
    assert!(has_started);
    let no_notify = ("PERFORM pg_notify('@channel', NEW.handler)", "NULL");
    assert_eq!(starts_immediately(Some(no_notify)).await, Some(false));
}

/// Waits for something that is expected, or not, after this delay. Returns whether it happens.
async fn happens(delay: Duration, is_expected: bool, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let limit = delay + if is_expected { EXPECTED } else { UNEXPECTED };
    let begin = Instant::now();
    while !holds().await {
        if begin.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(MS * 10).await;
    }
    true
}

/// Pauses a job after a node has read its run ahead. Returns whether it ran nevertheless.
async fn runs_although_paused(sabotage: &[(&str, &str)]) -> Option<bool> {
    let mut fixture = Fixture::sabotaged(sabotage).await?;
    let node = fixture.node().await;
    for delay in DELAYS {
        let job = fixture
            .enqueue(NewJob::new(&Task::Succeed).after(delay))
            .await;
        let due = fixture.until(job, |runs| !runs.is_empty()).await[0].due;
        fixture
            .jobs
            .clone()
            .pause(&mut fixture.client, job)
            .await
            .unwrap();
        if !fixture.is_before(due).await {
            continue;
        }
        let has_run = async || {
            fixture
                .history(job)
                .await
                .iter()
                .any(|run| run.state == RunState::Done)
        };
        let has_run = happens(delay, !sabotage.is_empty(), has_run).await;
        drop(node);
        return Some(has_run);
    }
    panic!("this machine is too busy");
}

#[tokio::test]
async fn pause_needs_to_cancel_what_was_read() {
    let Some(has_run) = runs_although_paused(&[]).await else {
        return;
    };
    assert!(!has_run);
    let no_cancel = (
        "WHERE run.job = the_job AND run.state IN",
        "WHERE false AND run.state IN",
    );
    let no_delete = (
        "WHERE job.id = the_job AND run.job = the_job",
        "WHERE job.id = the_job AND false",
    );
    // The start of a run checks it too. That is for repetitions, see below.
    let no_verdict = ("WHEN NOT job.enabled AND", "WHEN false AND");
    assert_eq!(
        runs_although_paused(&[no_cancel, no_delete, no_verdict]).await,
        Some(true)
    );
}

/// A node that has read a run ahead, while another node takes it over. Returns the state of the run
/// after its due time.
async fn start_without_owning(sabotage: Option<(&str, &str)>) -> Option<RunState> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let node = fixture.node().await;
    let schema = &fixture.schema;
    for delay in DELAYS {
        let job = fixture
            .enqueue(NewJob::new(&Task::Sleep(600_000)).after(delay))
            .await;
        let due = fixture.until(job, |runs| !runs.is_empty()).await[0].due;
        let take_over = format!(
            "INSERT INTO {schema}.node (name, alive_until) VALUES ('other', clock_timestamp() + interval '1 hour'); \
             UPDATE {schema}.run SET owner = (SELECT max(id) FROM {schema}.node) WHERE job = {job}"
        );
        fixture.client.batch_execute(&take_over).await.unwrap();
        if !fixture.is_before(due).await {
            continue;
        }
        let is_running = async || fixture.history(job).await[0].state == RunState::Running;
        happens(delay, sabotage.is_some(), is_running).await;
        let state = fixture.history(job).await[0].state;
        drop(node);
        return Some(state);
    }
    panic!("this machine is too busy");
}

#[tokio::test]
async fn run_of_another_node_is_not_started() {
    let Some(state) = start_without_owning(None).await else {
        return;
    };
    assert_eq!(state, RunState::Claimed);
    let no_check = (
        "AND (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'claimed')",
        "",
    );
    assert_eq!(
        start_without_owning(Some(no_check)).await,
        Some(RunState::Running)
    );
}

/// A node that is lost during a run, which another node repeats. Returns the mark of the run.
async fn repeat(sabotage: Option<(&str, &str)>) -> Option<(i32, i32)> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    // The first node creates the functions.
    let lost = fixture.node().await;
    let job = fixture.enqueue(NewJob::new(&Task::Sleep(600_000))).await;
    fixture.until_state(job, RunState::Running).await;
    fixture.lose(lost).await;
    let other = fixture.node().await;
    let is_again = |run: &RunInfo| run.state == RunState::Running && run.taken_over == 1;
    let run = &fixture
        .until(job, |runs| matches!(runs, [run] if is_again(run)))
        .await[0];
    drop(other);
    Some((run.attempt, run.interrupted))
}

#[tokio::test]
async fn repeated_run_is_marked() {
    let Some(mark) = repeat(None).await else {
        return;
    };
    assert_eq!(mark, (2, 1));
    let no_mark = (
        "WHEN 'running' THEN 1 ELSE 0",
        "WHEN 'running' THEN 0 ELSE 0",
    );
    assert_eq!(repeat(Some(no_mark)).await, Some((1, 0)));
}
