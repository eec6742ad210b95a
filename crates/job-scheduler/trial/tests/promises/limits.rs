//! Handlers that fail in the worst ways, and the limits on what they can do to a node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel_job_scheduler::{Context, NewJob, Overlap, RunError, RunInfo, RunState};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::fixture::{Fixture, MS, Task, eventually, shut_down};

/// A value that panics in every method that the scheduler calls.
#[derive(Debug)]
struct Panics;

impl fmt::Display for Panics {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("Display panicked")
    }
}

impl std::error::Error for Panics {}

impl Serialize for Panics {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("Serialize panicked")
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("Drop panicked");
    }
}

async fn panic_somewhere(_: Context, place: Value) -> Result<Panics, RunError> {
    match place.as_str() {
        Some("text of the error") => Err(Panics.into()),
        Some("end of the future") => {
            let _guard = PanicsWhenDropped;
            std::future::pending().await
        }
        _ => Ok(Panics),
    }
}

#[tokio::test]
async fn panics_of_user_code_are_failures_of_the_run_only() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(fixture.builder().handler_named("panic", panic_somewhere))
        .await;
    for (place, error) in [
        (
            "text of the error",
            "the handler panicked: Display panicked",
        ),
        ("end of the future", "timed out after 50ms"),
        ("output", "the handler panicked: Serialize panicked"),
    ] {
        let job = NewJob::named("panic", json!(place))
            .timeout(MS * 50)
            .overlap(Overlap::Wait);
        let run = fixture
            .until_state(fixture.enqueue(job).await, RunState::Failed)
            .await;
        assert_eq!(run.error.as_deref(), Some(error), "{place}");
    }
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    assert_eq!(fixture.until_done(job, 1).await[0].node, Some(1));
    shut_down(node).await;
}

#[tokio::test]
async fn run_that_was_interrupted_too_often_is_abandoned() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let job = NewJob::new(&Task::Sleep(600_000)).after(Duration::from_secs(3_600));
    let job = job.overlap(Overlap::Wait).max_interruptions(1);
    fixture.migrate().await;
    let job = fixture.enqueue(job).await;
    let run = fixture
        .jobs
        .run_now(&fixture.client, job)
        .await
        .unwrap()
        .unwrap();
    let next = fixture
        .jobs
        .run_now(&fixture.client, job)
        .await
        .unwrap()
        .unwrap();
    for interrupted in 0..2 {
        let node = fixture.start(fixture.mortal()).await;
        let is_running =
            |run: &RunInfo| run.state == RunState::Running && run.interrupted >= interrupted;
        fixture.until(job, |runs| runs.iter().any(is_running)).await;
        // As if the run had ended the process.
        drop(node);
    }
    let node = fixture.node().await;
    // The run that waited for it starts.
    let states = |runs: &[RunInfo]| {
        let state = |id| runs.iter().find(|run| run.id == id).map(|run| run.state);
        (state(run), state(next))
    };
    let abandoned = (Some(RunState::Abandoned), Some(RunState::Running));
    let runs = fixture.until(job, |runs| states(runs) == abandoned).await;
    let run = runs.iter().find(|info| info.id == run).unwrap();
    assert!(run.interrupted >= 2 && run.finished.is_some(), "{run:?}");
    assert_eq!(
        run.error,
        Some(format!("interrupted {} times", run.interrupted))
    );
    drop(node);
}

#[tokio::test]
async fn runs_that_wait_are_limited() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let now: jiff::Timestamp = fixture
        .client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    let job = NewJob::new(&Task::Sleep(600_000))
        .at(now - MS * 1_500)
        .every(MS)
        .overlap(Overlap::Wait);
    let job = fixture.enqueue(job).await;
    let error = "1000 runs of the job were waiting";
    let skipped = format!(
        "SELECT FROM {}.run WHERE error = $1 LIMIT 1",
        fixture.schema
    );
    eventually(async || {
        !fixture
            .client
            .query(&skipped, &[&error])
            .await
            .unwrap()
            .is_empty()
    })
    .await;
    fixture
        .jobs
        .clone()
        .pause(&mut fixture.client, job)
        .await
        .unwrap();
    let blocked = format!(
        "SELECT count(*) FROM {}.run WHERE state = 'cancelled'",
        fixture.schema
    );
    let blocked: i64 = fixture
        .client
        .query_one(&blocked, &[])
        .await
        .unwrap()
        .get(0);
    // Those of one batch are counted together.
    assert!((1_000..1_300).contains(&blocked), "{blocked}");
    drop(node);
}

#[tokio::test]
async fn node_without_a_free_runner_gives_its_runs_to_others() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let busy = fixture.start(fixture.mortal().runners(1)).await;
    let never_ends = fixture.enqueue(NewJob::new(&Task::Sleep(600_000))).await;
    fixture.until_state(never_ends, RunState::Running).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(fixture.enqueue(NewJob::new(&Task::Succeed)).await);
    }
    let free = fixture.node().await;
    for job in waiting {
        let run = &fixture.until_done(job, 1).await[0];
        assert_ne!(run.node, Some(1), "{run:?}");
    }
    drop(busy);
    drop(free);
}

/// Returns the data of its job at the second attempt. The first one fails.
async fn fail_once(context: Context, payload: Value) -> Result<Value, RunError> {
    tokio::time::sleep(MS * 1_500).await;
    if context.attempt == 1 && payload == "old" {
        return Err("the first attempt".into());
    }
    Ok(payload)
}

#[tokio::test]
async fn run_of_a_replaced_job_is_repeated_with_its_own_data() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(fixture.builder().handler_named("data", fail_once))
        .await;
    let now: jiff::Timestamp = fixture
        .client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    // The same due time, which has a run already.
    let job = |data| {
        NewJob::named("data", json!(data))
            .key("k")
            .at(now)
            .retries(1, MS, MS)
    };
    let id = fixture.enqueue(job("old")).await;
    fixture.until_state(id, RunState::Running).await;
    assert_eq!(fixture.enqueue(job("new").replace_existing()).await, id);
    let runs = fixture.until_done(id, 2).await;
    let mut outputs: Vec<_> = runs
        .iter()
        .map(|run| (run.due, run.attempt, run.output.clone()))
        .collect();
    outputs.sort_by_key(|output| output.0);
    assert_eq!((outputs[0].1, &outputs[0].2), (2, &Some(json!("old"))));
    assert_eq!((outputs[1].1, &outputs[1].2), (1, &Some(json!("new"))));
    shut_down(node).await;
}

#[tokio::test]
async fn run_of_a_paused_job_is_not_repeated() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(fixture.mortal().handler_named("data", fail_once))
        .await;
    let failing = NewJob::named("data", json!("old")).retries(9, MS, MS);
    let failing = fixture.enqueue(failing).await;
    let interrupted = fixture
        .enqueue(NewJob::new(&Task::Sleep(600_000)).overlap(Overlap::Wait))
        .await;
    for job in [failing, interrupted] {
        fixture.until_state(job, RunState::Running).await;
        assert!(
            fixture
                .jobs
                .clone()
                .pause(&mut fixture.client, job)
                .await
                .unwrap()
        );
    }
    let run = fixture.until_state(failing, RunState::Cancelled).await;
    assert_eq!(run.error.as_deref(), Some("the job is paused"));
    drop(node);
    let other = fixture.node().await;
    let run = fixture.until_state(interrupted, RunState::Cancelled).await;
    assert!(run.interrupted >= 1, "{run:?}");
    // A request is executed nevertheless, and the slot is free.
    let request = fixture
        .jobs
        .run_now(&fixture.client, interrupted)
        .await
        .unwrap();
    let is_running = |run: &RunInfo| Some(run.id) == request && run.state == RunState::Running;
    fixture
        .until(interrupted, |runs| runs.iter().any(is_running))
        .await;
    drop(other);
}

#[tokio::test]
async fn jitter_may_be_longer_than_the_period() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = NewJob::new(&Task::Succeed).every(MS * 50).jitter(MS * 500);
    let job = fixture.enqueue(job).await;
    let done = |runs: &[RunInfo]| {
        runs.iter()
            .filter(|run| run.state == RunState::Done)
            .count()
            > 30
    };
    let runs = fixture.until(job, done).await;
    assert!(
        runs.iter()
            .all(|run| run.started.is_none_or(|started| started >= run.start_at))
    );
    let mut started: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run.started?, run.due)))
        .collect();
    started.sort();
    assert!(
        !started.iter().map(|run| run.1).is_sorted(),
        "the jitter has changed the order"
    );
    shut_down(node).await;
}

#[tokio::test]
async fn result_that_the_database_rejects_is_a_failure_of_its_run_only() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let reject = "
        CREATE FUNCTION @reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'rejected' USING ERRCODE = 'program_limit_exceeded';
        END $$;
        CREATE TRIGGER reject BEFORE UPDATE ON @run FOR EACH ROW WHEN (NEW.output = '2')
            EXECUTE FUNCTION @reject()";
    let reject = reject.replace('@', &format!("{}.", fixture.schema));
    fixture.client.batch_execute(&reject).await.unwrap();
    // Its output is 2.
    let job = NewJob::new(&Task::FailUntil(2)).retries(1, MS, MS);
    let run = fixture
        .until_state(fixture.enqueue(job).await, RunState::Failed)
        .await;
    assert_eq!(
        run.error.as_deref(),
        Some("the database rejects the result, with SQLSTATE 54000")
    );
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    assert_eq!(fixture.until_done(job, 1).await[0].node, Some(1));
    shut_down(node).await;
}

#[tokio::test]
async fn jittered_runs_do_not_fill_the_capacity_before_they_start() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.start(fixture.builder().capacity(2)).await;
    let job = NewJob::new(&Task::Succeed)
        .every(MS * 500)
        .jitter(MS * 3_600_000);
    let jittered = fixture.enqueue(job).await;
    fixture.until(jittered, |runs| runs.len() > 4).await;
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_done(job, 1).await;
    shut_down(node).await;
}

/// The first execution blocks its node for longer than its lease, as a stopped process does.
async fn block_once(count: Arc<AtomicUsize>) -> Result<usize, RunError> {
    let number = count.fetch_add(1, Relaxed);
    if number == 0 {
        std::thread::sleep(MS * 4_000);
    }
    Ok(number)
}

#[test]
fn result_of_a_node_that_was_stopped_does_not_replace_the_repetition() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let count = Arc::new(AtomicUsize::new(0));
    let handler = move |_: Context, _: Value| block_once(count.clone());
    runtime().block_on(async {
        let Some(fixture) = Fixture::new().await else {
            return;
        };
        fixture.migrate().await;
        let stopped = fixture.mortal().handler_named("block", handler.clone());
        let builder = fixture.builder().handler_named("block", handler);
        let config = fixture.config.clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        // Its own runtime, which the handler blocks.
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let node = stopped.start(config, tokio_postgres::NoTls).await.unwrap();
                let _ = ended.await;
                drop(node);
            });
        });
        eventually(async || {
            !fixture
                .jobs
                .nodes(&fixture.client)
                .await
                .unwrap()
                .is_empty()
        })
        .await;
        let job = fixture.enqueue(NewJob::named("block", json!(null))).await;
        fixture.until_state(job, RunState::Running).await;
        let other = fixture.start(builder).await;
        let run = fixture.until_state(job, RunState::Done).await;
        assert_eq!(
            (&run.output, run.attempt, run.interrupted),
            (&Some(json!(1)), 2, 1)
        );
        // The first node continues after four seconds.
        tokio::time::sleep(MS * 4_000).await;
        let after = fixture.history(job).await.remove(0);
        assert_eq!(
            (after.output, after.finished, after.node),
            (run.output, run.finished, run.node)
        );
        let _ = end.send(());
        thread.join().unwrap();
        shut_down(other).await;
    });
}
