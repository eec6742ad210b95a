//! Changes of jobs take effect immediately, also on runs that were read ahead.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_job_scheduler::{NewJob, Overlap, RunState};

use tokio::sync::Semaphore;

use crate::fixture::{DELAYS, Fixture, MS, Task, eventually, gate_job, shut_down, with_gate};

/// Enqueues a job, and pauses it after at least `count` of its runs were read and before the first
/// one is due. Returns its number, and the time from the first read to its first due time.
async fn pause_after_read(
    fixture: &mut Fixture,
    job: impl Fn() -> NewJob,
    count: usize,
) -> (i64, Duration) {
    for delay in DELAYS {
        let id = fixture.enqueue(job().after(delay)).await;
        let runs = fixture.until(id, |runs| runs.len() >= count).await;
        let due = runs.iter().map(|run| run.due).min().unwrap();
        assert!(
            fixture
                .jobs
                .clone()
                .pause(&mut fixture.client, id)
                .await
                .unwrap()
        );
        if fixture.is_before(due).await {
            return (id, delay);
        }
    }
    panic!("this machine is too busy");
}

#[tokio::test]
async fn paused_job_does_not_start_although_it_was_read() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = || NewJob::new(&Task::Succeed).every(MS * 100);
    let (job, delay) = pause_after_read(&mut fixture, job, 6).await;
    assert!(fixture.history(job).await.is_empty());
    tokio::time::sleep(delay + MS * 700).await;
    assert!(fixture.history(job).await.is_empty());
    // The due times during the pause are omitted.
    assert!(
        fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, job)
            .await
            .unwrap()
    );
    let resumed = fixture.job(job).await;
    assert!(resumed.enabled);
    let runs = fixture
        .until(job, |runs| {
            runs.iter().any(|run| run.state == RunState::Done)
        })
        .await;
    let first = runs.iter().map(|run| run.due).min().unwrap();
    assert!(resumed.next_run.is_none_or(|next_run| next_run >= first));
    assert!(runs.iter().all(|run| run.misses_until.is_none()));
    assert!(
        !fixture
            .jobs
            .clone()
            .pause(&mut fixture.client, job + 1)
            .await
            .unwrap()
    );
    assert!(
        !fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, job + 1)
            .await
            .unwrap()
    );
    shut_down(node).await;
}

#[tokio::test]
async fn paused_one_off_job_runs_after_the_pause() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let (job, delay) = pause_after_read(&mut fixture, || NewJob::new(&Task::Succeed), 1).await;
    tokio::time::sleep(delay + MS * 300).await;
    assert!(fixture.history(job).await.is_empty());
    assert!(
        fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, job)
            .await
            .unwrap()
    );
    fixture.until_done(job, 1).await;
    shut_down(node).await;
}

#[tokio::test]
async fn resume_does_not_change_a_job_that_is_enabled() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    // Its due times wait for a node.
    let job = fixture.enqueue(NewJob::new(&Task::Succeed).every(MS)).await;
    let before = fixture.job(job).await.next_run;
    tokio::time::sleep(MS * 10).await;
    assert!(
        fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, job)
            .await
            .unwrap()
    );
    assert_eq!(fixture.job(job).await.next_run, before);
}

#[tokio::test]
async fn pause_cancels_retries_and_runs_that_wait() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = NewJob::new(&Task::Sleep(2_000))
        .every(MS * 300)
        .overlap(Overlap::Wait);
    let job = fixture.enqueue(job).await;
    let failing = NewJob::new(&Task::Fail).retries(1, MS * 4_000, MS * 4_000);
    let failing = fixture.enqueue(failing).await;
    fixture
        .until(job, |runs| {
            runs.iter().any(|run| run.state == RunState::Blocked)
        })
        .await;
    fixture
        .until(failing, |runs| matches!(runs, [run] if run.attempt == 2))
        .await;
    for job in [job, failing] {
        assert!(
            fixture
                .jobs
                .clone()
                .pause(&mut fixture.client, job)
                .await
                .unwrap()
        );
    }
    fixture.until_state(failing, RunState::Cancelled).await;
    let ended = [RunState::Done, RunState::Cancelled];
    let runs = fixture
        .until(job, |runs| {
            runs.iter().all(|run| ended.contains(&run.state))
        })
        .await;
    assert_eq!(
        runs.iter()
            .filter(|run| run.state == RunState::Done)
            .count(),
        1,
        "{runs:?}"
    );
    // The slot is free.
    assert!(
        fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, job)
            .await
            .unwrap()
    );
    fixture
        .until(job, |runs| {
            runs.iter()
                .filter(|run| run.state == RunState::Done)
                .count()
                > 1
        })
        .await;
    shut_down(node).await;
}

#[tokio::test]
async fn job_that_has_run_can_be_deleted_also_while_it_is_running() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let done = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let running = fixture.enqueue(gate_job().overlap(Overlap::Wait)).await;
    let claimed = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(MS * 1_500))
        .await;
    fixture.until_done(done, 1).await;
    fixture.until_state(running, RunState::Running).await;
    // On a busy machine it may be done already.
    fixture.until(claimed, |runs| !runs.is_empty()).await;
    for job in [done, running, claimed] {
        assert!(fixture.jobs.delete(&fixture.client, job).await.unwrap());
        assert!(!fixture.jobs.delete(&fixture.client, job).await.unwrap());
        assert!(fixture.history(job).await.is_empty());
    }
    gate.close();
    tokio::time::sleep(MS * 2_000).await;
    // The node has not lost anything by that.
    let nodes = fixture.jobs.nodes(&fixture.client).await.unwrap();
    assert!(
        matches!(&nodes[..], [node] if node.is_alive && node.id == 1),
        "{nodes:?}"
    );
    let slots = format!("SELECT FROM {}.slot", fixture.schema);
    eventually(async || fixture.client.query(&slots, &[]).await.unwrap().is_empty()).await;
    shut_down(node).await;
}

#[tokio::test]
async fn invalid_schedule_in_the_table_disables_the_job() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(Duration::from_secs(3_600)))
        .await;
    let update = format!(
        "UPDATE {}.job SET schedule = 'now and then', next_run = clock_timestamp()",
        fixture.schema
    );
    fixture.client.execute(&update, &[]).await.unwrap();
    while fixture.job(job).await.enabled {
        tokio::time::sleep(MS * 10).await;
    }
    let disabled_reason = fixture.job(job).await.disabled_reason.unwrap();
    assert!(
        disabled_reason.starts_with("'now and then': must be like"),
        "{disabled_reason}"
    );
    assert!(
        fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, job)
            .await
            .is_err()
    );
    shut_down(node).await;
}
