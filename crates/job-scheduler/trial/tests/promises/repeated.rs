//! Runs that are repeated by hand, and runs that ask to be called again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel_job_scheduler::{Context, NewJob, Outcome, Overlap, RunError, RunInfo, RunState};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::control::job;
use crate::fixture::{Fixture, LATER, MS, Task, shut_down};

#[tokio::test]
async fn failed_run_is_repeated_by_hand() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let id = fixture.enqueue(NewJob::new(&Task::FailUntil(2))).await;
    let failed = fixture.until_state(id, RunState::Failed).await;
    // Although the job is paused.
    assert!(
        fixture
            .jobs
            .clone()
            .pause(&mut fixture.client, id)
            .await
            .unwrap()
    );
    assert!(fixture.retry(failed.id).await);
    let run = fixture.until_done(id, 1).await.remove(0);
    assert_eq!(
        (run.id, run.due, run.attempt, run.error),
        (failed.id, failed.due, 2, None)
    );
    assert!(!fixture.retry(failed.id).await);
    assert!(!fixture.retry(failed.id + 1).await);
    shut_down(node).await;
}

/// A run that fails without a retry has the retries that were left.
#[tokio::test]
async fn run_that_is_repeated_by_hand_has_the_retries_that_were_left() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let permanent = fixture
        .enqueue(NewJob::new(&Task::FailPermanently).retries(5, MS, MS))
        .await;
    let exhausted = fixture
        .enqueue(NewJob::new(&Task::Fail).retries(2, MS, MS))
        .await;
    for (id, before, after) in [(permanent, 1, 2), (exhausted, 3, 4)] {
        let run = fixture.until_state(id, RunState::Failed).await;
        assert_eq!(run.attempt, before);
        assert!(fixture.retry(run.id).await);
        fixture
            .until(id, |runs| {
                runs[0].state == RunState::Failed && runs[0].attempt == after
            })
            .await;
    }
    shut_down(node).await;
}

#[tokio::test]
async fn cancelled_and_abandoned_runs_are_repeated_by_hand() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let lost = fixture.node().await;
    let abandoned = fixture
        .enqueue(NewJob::new(&Task::HangOnce).max_interruptions(0))
        .await;
    fixture.running(abandoned).await;
    let cancelled = fixture.enqueue(NewJob::new(&Task::HangOnce)).await;
    let run = fixture.running(cancelled).await;
    fixture.cancel(run).await;
    let cancelled = fixture.until_state(cancelled, RunState::Cancelled).await;
    fixture.lose(lost).await;
    let node = fixture.node().await;
    let abandoned = fixture.until_state(abandoned, RunState::Abandoned).await;
    for (run, interrupted) in [(cancelled, 0), (abandoned, 1)] {
        assert!(fixture.retry(run.id).await);
        let run = fixture.until_done(run.job, 1).await.remove(0);
        assert_eq!(
            (run.attempt, run.interrupted, run.is_cancelled),
            (2, interrupted, false)
        );
    }
    shut_down(node).await;
}

/// The changes of a job that has failed once.
fn new_job() -> NewJob {
    job("new").key("k").after(LATER * 10).replace_existing()
}

async fn return_new(_: Context, _: Value) -> Result<&'static str, RunError> {
    Ok("new")
}

#[tokio::test]
async fn run_of_a_replaced_job_is_repeated_as_the_job_is_now() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let id = fixture.enqueue(NewJob::new(&Task::Fail).key("k")).await;
    let failed = fixture.until_state(id, RunState::Failed).await;
    // The repetition does not start without a node. The job is unfinished by it.
    shut_down(node).await;
    assert!(fixture.retry(failed.id).await);
    let replaced = fixture
        .jobs
        .enqueue(&fixture.client, new_job())
        .await
        .unwrap();
    assert_eq!((replaced.job, replaced.outcome), (id, Outcome::Replaced));
    assert_eq!(fixture.history(id).await[0].state, RunState::Cancelled);
    let node = fixture
        .start(fixture.builder().handler_named("new", return_new))
        .await;
    assert!(fixture.retry(failed.id).await);
    assert_eq!(
        fixture.until_state(id, RunState::Done).await.output,
        Some(json!("new"))
    );
    shut_down(node).await;
}

#[tokio::test]
async fn run_that_was_executing_when_its_job_was_replaced_is_repeated_as_it_was() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let fail = move |_, _: Value| {
        let opened = opened.clone();
        async move {
            let _permit = opened.acquire().await;
            Err::<(), RunError>("failed".into())
        }
    };
    let builder = fixture
        .builder()
        .handler_named("fail", fail)
        .handler_named("new", return_new);
    let node = fixture.start(builder).await;
    let id = fixture.enqueue(job("fail").key("k")).await;
    let run = fixture.running(id).await;
    let replaced = fixture
        .jobs
        .enqueue(&fixture.client, new_job())
        .await
        .unwrap();
    assert_eq!((replaced.job, replaced.outcome), (id, Outcome::Replaced));
    gate.close();
    fixture.until_state(id, RunState::Failed).await;
    assert!(fixture.retry(run).await);
    let repeated = fixture.until_state(id, RunState::Failed).await;
    assert_eq!(
        (repeated.attempt, repeated.error.as_deref()),
        (2, Some("failed"))
    );
    shut_down(node).await;
}

/// The new job has the key, and the old one remains as it was.
#[tokio::test]
async fn run_of_a_finished_job_is_repeated_although_its_key_is_that_of_another_job() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let id = fixture.enqueue(NewJob::new(&Task::Fail).key("k")).await;
    let failed = fixture.until_state(id, RunState::Failed).await;
    let added = fixture
        .jobs
        .enqueue(&fixture.client, new_job())
        .await
        .unwrap();
    assert_eq!(added.outcome, Outcome::Added);
    assert_ne!(added.job, id);
    assert!(fixture.retry(failed.id).await);
    let repeated = fixture
        .until(id, |runs| {
            runs[0].attempt == 2 && runs[0].finished.is_some()
        })
        .await;
    assert_eq!(repeated[0].error.as_deref(), Some("failed"));
    shut_down(node).await;
}

/// Asks twice to be called again, and then fails once.
#[tokio::test]
async fn snooze_is_neither_a_failure_nor_a_retry() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let handler = move |context: Context, _: Value| {
        let call = count.fetch_add(1, Relaxed);
        async move {
            match call {
                // By this node, and by any node, because it is later than the prefetch.
                0 => Err(RunError::snooze(MS * 100)),
                1 => Err(RunError::snooze(MS * 6_000)),
                2 => Err("failed".into()),
                _ => Ok(context.attempt),
            }
        }
    };
    let node = fixture
        .start(fixture.builder().handler_named("snooze", handler))
        .await;
    let id = fixture.enqueue(job("snooze").retries(1, MS, MS)).await;
    let is_waiting = |runs: &[RunInfo]| matches!(runs, [run] if run.state == RunState::Waiting);
    let run = fixture.until(id, is_waiting).await.remove(0);
    assert_eq!((run.attempt, run.error, run.finished), (1, None, None));
    assert!(run.start_at.duration_since(run.started.unwrap()) >= (MS * 5_900).try_into().unwrap());
    let run = fixture.until_done(id, 1).await.remove(0);
    assert_eq!(
        (run.attempt, run.output, calls.load(Relaxed)),
        (2, Some(json!(2)), 4)
    );
    assert!(run.started.unwrap().duration_since(run.due) >= (MS * 6_000).try_into().unwrap());
    shut_down(node).await;
}

/// It was executed, so it is not as if it had not been read.
#[tokio::test]
async fn pause_cancels_a_run_that_snoozes() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let handler = |_, _: Value| async { Err::<(), _>(RunError::snooze(Duration::MAX)) };
    let node = fixture
        .start(fixture.builder().handler_named("snooze", handler))
        .await;
    let id = fixture.enqueue(job("snooze").overlap(Overlap::Wait)).await;
    let run = fixture.until_state(id, RunState::Waiting).await;
    assert!(run.start_at.duration_since(run.due).as_hours() > 99 * 365 * 24);
    fixture.until_no_slots().await;
    assert!(
        fixture
            .jobs
            .clone()
            .pause(&mut fixture.client, id)
            .await
            .unwrap()
    );
    fixture.until_state(id, RunState::Cancelled).await;
    shut_down(node).await;
}
