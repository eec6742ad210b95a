//! How runs start, end, and are repeated.

use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{Misfire, NewJob, Overlap, RunInfo, RunState};
use serde_json::json;

use crate::fixture::{Fixture, MS, Task, eventually, shut_down};

#[tokio::test]
async fn new_job_runs_immediately_and_its_output_is_stored() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let run = fixture.until_state(job, RunState::Done).await;
    assert_eq!(
        (run.output, run.error, run.attempt),
        (Some(json!(1)), None, 1)
    );
    assert!(run.started >= Some(run.due));
    assert_eq!(fixture.job(job).await.next_run, None);
    shut_down(node).await;
}

/// Without notifications, the median would be half of the time between two reads: 5 to 10 s.
#[tokio::test]
async fn nodes_are_notified_of_new_jobs() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(
            fixture
                .builder()
                .heartbeat(MS * 20_000)
                .prefetch(MS * 30_000),
        )
        .await;
    let mut times = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        let job = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
        fixture.until_state(job, RunState::Done).await;
        times.push(begin.elapsed());
    }
    times.sort();
    assert!(times[2] < Duration::from_secs(3), "{times:?}");
    shut_down(node).await;
}

#[tokio::test]
async fn one_off_job_of_a_long_transaction_is_not_skipped() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(fixture.mortal().misfire_after(MS * 1_500))
        .await;
    let jobs = fixture.jobs.clone();
    let transaction = fixture.client.transaction().await.unwrap();
    let job = NewJob::new(&Task::Succeed).misfire(Misfire::Skip);
    let job = jobs.enqueue(&transaction, job).await.unwrap().job;
    tokio::time::sleep(MS * 2_000).await;
    transaction.commit().await.unwrap();
    fixture.until_state(job, RunState::Done).await;
    drop(node);
}

#[tokio::test]
async fn fixed_rate_has_no_drift_and_is_never_early() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = fixture
        .enqueue(NewJob::new(&Task::Succeed).every(MS * 50).jitter(MS * 20))
        .await;
    let runs = fixture
        .until(job, |runs| {
            runs.iter()
                .filter(|run| run.state == RunState::Done)
                .count()
                > 20
        })
        .await;
    let mut due: Vec<_> = runs.iter().map(|run| run.due).collect();
    due.sort();
    assert!(
        due.windows(2)
            .all(|pair| pair[1].duration_since(pair[0]).as_millis() == 50)
    );
    for run in runs {
        assert!(run.start_at >= run.due && run.start_at.duration_since(run.due).as_millis() < 20);
        assert!(
            run.started.is_none_or(|started| started >= run.start_at),
            "{run:?}"
        );
    }
    shut_down(node).await;
}

#[tokio::test]
async fn failures_are_repeated_up_to_the_limit() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let retries = |task: Task| NewJob::new(&task).retries(2, MS * 100, MS * 100);
    let succeeds = fixture.enqueue(retries(Task::FailUntil(3))).await;
    let fails = fixture.enqueue(retries(Task::Fail)).await;
    let permanent = fixture.enqueue(retries(Task::FailPermanently)).await;
    let panics = fixture.enqueue(NewJob::new(&Task::Panic)).await;
    // By any node, because it is later than the prefetch.
    let late = fixture
        .enqueue(NewJob::new(&Task::FailUntil(2)).retries(1, MS * 6_000, MS * 6_000))
        .await;

    let run = fixture.until_state(succeeds, RunState::Done).await;
    assert_eq!(
        (run.attempt, run.interrupted, run.output),
        (3, 0, Some(json!(3)))
    );
    assert!(run.started.unwrap().duration_since(run.due) >= (MS * 200).try_into().unwrap());
    let run = fixture.until_state(fails, RunState::Failed).await;
    assert_eq!((run.attempt, run.error.as_deref()), (3, Some("failed")));
    let run = fixture.until_state(permanent, RunState::Failed).await;
    assert_eq!(
        (run.attempt, run.error.as_deref()),
        (1, Some("failed for ever"))
    );
    let run = fixture.until_state(panics, RunState::Failed).await;
    assert_eq!(
        (run.attempt, run.error.as_deref()),
        (1, Some("the handler panicked: panicked"))
    );
    assert_eq!(fixture.until_state(late, RunState::Done).await.attempt, 2);
    shut_down(node).await;
}

#[tokio::test]
async fn executions_that_take_too_long_are_failures() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = NewJob::new(&Task::Sleep(120_000))
        .timeout(MS * 100)
        .retries(1, MS, MS);
    let run = fixture
        .until_state(fixture.enqueue(job).await, RunState::Failed)
        .await;
    assert_eq!(
        (run.attempt, run.error.as_deref()),
        (2, Some("timed out after 100ms"))
    );
    shut_down(node).await;
}

#[tokio::test]
async fn unreadable_payload_fails_without_a_retry() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = NewJob::named("task", json!({ "no": "task" })).retries(5, MS, MS);
    let run = fixture
        .until_state(fixture.enqueue(job).await, RunState::Failed)
        .await;
    assert_eq!(run.attempt, 1);
    assert!(
        run.error
            .unwrap()
            .starts_with("the handler cannot read the payload: ")
    );
    shut_down(node).await;
}

/// Returns how many pairs of runs overlapped.
fn overlaps(runs: &[RunInfo]) -> usize {
    let mut times: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run.started?, run.finished?)))
        .collect();
    times.sort();
    times
        .windows(2)
        .filter(|pair| pair[1].0 < pair[0].1)
        .count()
}

#[tokio::test]
async fn runs_that_wait_for_each_other_do_not_overlap_and_keep_their_order() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let nodes = [fixture.node().await, fixture.node().await];
    let job = NewJob::new(&Task::Sleep(100))
        .every(MS * 40)
        .overlap(Overlap::Wait);
    let job = fixture.enqueue(job).await;
    fixture.until(job, |runs| runs.len() > 20).await;
    // No more due times. Those that were read run.
    fixture
        .client
        .execute(
            &format!("UPDATE {}.job SET next_run = NULL", fixture.schema),
            &[],
        )
        .await
        .unwrap();
    let unfinished = [
        RunState::Waiting,
        RunState::Claimed,
        RunState::Running,
        RunState::Blocked,
    ];
    let mut runs = fixture
        .until(job, |runs| {
            !runs.iter().any(|run| unfinished.contains(&run.state))
        })
        .await;
    assert!(
        runs.iter().all(|run| run.state == RunState::Done),
        "{runs:?}"
    );
    assert_eq!(overlaps(&runs), 0);
    // A run that is due when another one ends may overtake those that are blocked behind that one,
    // but not more.
    runs.sort_by_key(|run| run.started);
    let due: Vec<_> = runs.iter().map(|run| run.due).collect();
    assert!(due.is_sorted(), "{due:?}");
    for node in nodes {
        shut_down(node).await;
    }
}

#[tokio::test]
async fn runs_that_would_overlap_are_skipped() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = NewJob::new(&Task::Sleep(150))
        .every(MS * 50)
        .overlap(Overlap::Skip);
    let job = fixture.enqueue(job).await;
    let has = |runs: &[RunInfo], state| runs.iter().filter(|run| run.state == state).count() > 3;
    let runs = fixture
        .until(job, |runs| {
            has(runs, RunState::Done) && has(runs, RunState::Skipped)
        })
        .await;
    assert_eq!(overlaps(&runs), 0);
    let skipped = runs
        .iter()
        .find(|run| run.state == RunState::Skipped)
        .unwrap();
    assert_eq!(
        skipped.error.as_deref(),
        Some("another run of the job was running")
    );
    shut_down(node).await;
}

#[tokio::test]
async fn run_can_be_requested() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(Duration::from_secs(3_600)))
        .await;
    let run = fixture.jobs.run_now(&fixture.client, job).await.unwrap();
    assert_eq!(run, Some(fixture.until_done(job, 1).await[0].id));
    assert!(fixture.job(job).await.next_run.is_some());
    assert_eq!(
        fixture
            .jobs
            .run_now(&fixture.client, job + 1)
            .await
            .unwrap(),
        None
    );
    shut_down(node).await;
}

#[tokio::test]
async fn old_results_and_finished_jobs_are_removed() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture
        .start(fixture.builder().retention(Duration::from_secs(1)))
        .await;
    let once = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let later = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(Duration::from_secs(3_600)))
        .await;
    // Only with its last result.
    eventually(async || {
        fixture
            .jobs
            .get(&fixture.client, once)
            .await
            .unwrap()
            .is_none()
    })
    .await;
    fixture.job(later).await;
    shut_down(node).await;
}
