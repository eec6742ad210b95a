//! Transactions and unique keys.

use std::time::Duration;

use hashed_wheel_job_scheduler::{Error, NewJob, Outcome, RunState};

use crate::fixture::{Fixture, LATER, MS, Task, connect, shut_down};

const AN_HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn job_exists_if_and_only_if_its_transaction_commits() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let jobs = fixture.jobs.clone();
    let rolled_back = fixture.client.transaction().await.unwrap();
    let lost = jobs
        .enqueue(&rolled_back, NewJob::new(&Task::Succeed))
        .await
        .unwrap()
        .job;
    rolled_back.rollback().await.unwrap();
    let committed = fixture.client.transaction().await.unwrap();
    let kept = jobs
        .enqueue(&committed, NewJob::new(&Task::Succeed))
        .await
        .unwrap()
        .job;
    tokio::time::sleep(MS * 50).await;
    committed.commit().await.unwrap();
    fixture.until_done(kept, 1).await;
    assert!(jobs.get(&fixture.client, lost).await.unwrap().is_none());
    shut_down(node).await;
}

#[tokio::test]
async fn unfinished_job_with_the_same_key_is_found() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = |delay| NewJob::new(&Task::Succeed).key("k").after(delay);
    let first = fixture
        .jobs
        .enqueue(&fixture.client, job(AN_HOUR))
        .await
        .unwrap();
    assert_eq!(first.outcome, Outcome::Added);
    let second = fixture
        .jobs
        .enqueue(&fixture.client, job(AN_HOUR))
        .await
        .unwrap();
    assert_eq!((second.job, second.outcome), (first.job, Outcome::Found));
    assert_eq!(
        fixture.jobs.find(&fixture.client, "k").await.unwrap(),
        Some(first.job)
    );
    fixture.make_due(first.job).await;
    fixture.until_done(first.job, 1).await;
    // It is finished, so the key can be used again, for another job.
    let third = fixture
        .jobs
        .enqueue(&fixture.client, job(MS))
        .await
        .unwrap();
    assert_eq!(third.outcome, Outcome::Added);
    assert_ne!(third.job, first.job);
    fixture.until_done(third.job, 1).await;
    assert_eq!(fixture.history(first.job).await.len(), 1);
    assert_eq!(
        fixture.jobs.find(&fixture.client, "k").await.unwrap(),
        Some(third.job)
    );
    shut_down(node).await;
}

#[tokio::test]
async fn of_concurrent_jobs_with_one_key_one_is_stored() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (client, jobs) = (connect(&fixture.config).await, fixture.jobs.clone());
        tasks.push(tokio::spawn(async move {
            let mut added = 0;
            for number in 0..20 {
                let job = NewJob::new(&Task::Succeed)
                    .key(number.to_string())
                    .after(AN_HOUR);
                let outcome = jobs.enqueue(&client, job).await.unwrap().outcome;
                added += u32::from(outcome == Outcome::Added);
            }
            added
        }));
    }
    let mut added = 0;
    for task in tasks {
        added += task.await.unwrap();
    }
    assert_eq!(added, 20);
    assert_eq!(fixture.all_jobs().await.len(), 20);
    shut_down(node).await;
}

#[tokio::test]
async fn replaced_job_runs_only_as_it_is_now() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.start(fixture.builder().prefetch(MS * 60_000)).await;
    let old = fixture
        .enqueue(NewJob::new(&Task::Fail).key("k").after(LATER))
        .await;
    // It has been read ahead.
    fixture.until_state(old, RunState::Claimed).await;
    let new = NewJob::new(&Task::Succeed)
        .key("k")
        .after(MS * 300)
        .replace_existing();
    let replaced = fixture.jobs.enqueue(&fixture.client, new).await.unwrap();
    assert_eq!((replaced.job, replaced.outcome), (old, Outcome::Replaced));
    fixture.until_done(old, 1).await;
    shut_down(node).await;
}

#[tokio::test]
async fn pattern_without_a_due_time_is_rejected() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let job = NewJob::new(&Task::Succeed).cron("0 0 0 30 2 *");
    let error = fixture
        .jobs
        .enqueue(&fixture.client, job)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(what) if what.contains("has no due time")),
        "{error}"
    );
}
