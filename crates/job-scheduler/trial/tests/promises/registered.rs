//! Programs that register their jobs at each start: what `replace_existing` changes, and what not.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{Enqueued, Misfire, NewJob, Outcome, Overlap, RunError, RunState};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fixture::{Fixture, LATER, MS, Task, gate_job, shut_down, with_gate};

const AN_HOUR: Duration = Duration::from_secs(3_600);

fn job() -> NewJob {
    NewJob::new(&Task::Succeed)
}

/// Returns a fixture with tables.
async fn new() -> Option<Fixture> {
    let fixture = Fixture::new().await?;
    fixture.migrate().await;
    Some(fixture)
}

/// Registers a job, as a program does at its start.
async fn register(fixture: &Fixture, job: NewJob) -> Enqueued {
    fixture
        .jobs
        .enqueue(&fixture.client, job.key("k").replace_existing())
        .await
        .unwrap()
}

/// Sets the next due time of a job to some time ago, as if no node had been there. Returns it.
async fn miss(fixture: &Fixture, job: i64, ago: Duration) -> Timestamp {
    let update = format!(
        "UPDATE {}.job SET next_run = missed,
            first_run = CASE WHEN delay_us IS NULL THEN first_run ELSE LEAST(first_run, missed) END
        FROM (SELECT clock_timestamp() - make_interval(secs => $2) AS missed) AS x WHERE id = $1 RETURNING next_run",
        fixture.schema
    );
    fixture
        .client
        .query_one(&update, &[&job, &ago.as_secs_f64()])
        .await
        .unwrap()
        .get(0)
}

async fn next_run(fixture: &Fixture, job: i64) -> Timestamp {
    fixture.job(job).await.next_run.expect("a due time")
}

/// The year in a job with the start `at`.
#[derive(Clone, Copy)]
enum Year {
    Past = 2_001,
    Future = 2_090,
}

/// The number of [`schedule`]s.
const SCHEDULES: usize = 8;

/// Returns a job with one of the kinds of schedule and start.
fn schedule(kind: usize, year: Year) -> NewJob {
    let time: Timestamp = format!("{}-02-03T04:05:06Z", year as i32).parse().unwrap();
    match kind {
        0 => job().after(AN_HOUR),
        1 => job().at(time),
        2 => job().every(AN_HOUR * 2),
        3 => job().every(AN_HOUR).after(AN_HOUR),
        4 => job().every(AN_HOUR).at(time),
        5 => job().cron("0 0 3 1 1 *"),
        6 => job().cron("0 0 3 1 1 *").after(AN_HOUR),
        _ => job().cron("0 0 3 1 1 *").at(time).time_zone("Asia/Tokyo"),
    }
}

#[tokio::test]
async fn equal_definition_changes_nothing() {
    let Some(fixture) = new().await else { return };
    let mut missed = Vec::new();
    for kind in 0..SCHEDULES {
        let key = kind.to_string();
        let put = async || {
            let job = schedule(kind, Year::Past).key(&key).replace_existing();
            fixture.jobs.enqueue(&fixture.client, job).await.unwrap()
        };
        let id = put().await.job;
        let before = next_run(&fixture, id).await;
        assert_eq!(put().await.outcome, Outcome::Found, "{kind}");
        assert_eq!(next_run(&fixture, id).await, before);
        // The same while a due time is missed.
        missed.push((id, miss(&fixture, id, MS * 20_000).await));
        assert_eq!(put().await.outcome, Outcome::Found, "{kind}");
    }
    let node = fixture.node().await;
    for (id, missed) in missed {
        assert_eq!(fixture.until_done(id, 1).await[0].due, missed);
    }
    shut_down(node).await;
}

#[tokio::test]
async fn equal_definition_does_not_touch_runs() {
    let Some(fixture) = new().await else { return };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().prefetch(MS * 60_000), &gate))
        .await;
    let gated = || gate_job().every(LATER).overlap(Overlap::Wait);
    let id = register(&fixture, gated()).await.job;
    fixture
        .until(id, |runs| {
            runs.len() == 2 && runs[1].state == RunState::Running
        })
        .await;
    let before = fixture.history(id).await;
    assert_eq!(register(&fixture, gated()).await.outcome, Outcome::Found);
    let after = fixture.history(id).await;
    assert_eq!(
        before.iter().map(|run| run.id).collect::<Vec<_>>(),
        after.iter().map(|run| run.id).collect::<Vec<_>>()
    );
    gate.close();
    shut_down(node).await;
}

#[tokio::test]
async fn changed_option_keeps_the_due_times() {
    let Some(fixture) = new().await else { return };
    let base = || job().every(AN_HOUR);
    let id = register(&fixture, base()).await.job;
    let missed = miss(&fixture, id, MS * 20_000).await;
    let changes: [fn(NewJob) -> NewJob; 7] = [
        |job| job.jitter(MS),
        |job| job.misfire(Misfire::RunAll),
        |job| job.overlap(Overlap::Skip),
        |job| job.retries(1, MS, MS),
        |job| job.retries(1, MS, MS * 2),
        |job| job.timeout(LATER),
        |job| job.max_interruptions(3),
    ];
    for change in changes {
        assert_eq!(
            register(&fixture, change(base())).await.outcome,
            Outcome::Replaced
        );
        assert_eq!(
            register(&fixture, change(base())).await.outcome,
            Outcome::Found
        );
        assert_eq!(next_run(&fixture, id).await, missed);
    }
    let other = NewJob::new(&Task::FailUntil(1)).every(AN_HOUR);
    assert_eq!(register(&fixture, other).await.outcome, Outcome::Replaced);
    assert_eq!(fixture.job(id).await.payload, json!({ "FailUntil": 1 }));
    let node = fixture.node().await;
    assert_eq!(fixture.until_done(id, 1).await[0].due, missed);
    shut_down(node).await;
}

async fn echo(_: hashed_wheel_job_scheduler::Context, payload: Value) -> Result<Value, RunError> {
    if payload == "fail" {
        Err("failed".into())
    } else {
        Ok(payload)
    }
}

#[tokio::test]
async fn runs_that_were_read_ahead_start_as_the_job_is_now() {
    let Some(fixture) = new().await else { return };
    let echo_job =
        |handler: &str, payload: &str| NewJob::named(handler, json!(payload)).after(LATER);
    let builder = |handler: &str| {
        fixture
            .builder()
            .prefetch(MS * 60_000)
            .handler_named(handler, echo)
    };
    let node = fixture.start(builder("echo")).await;
    let id = register(&fixture, echo_job("echo", "old")).await.job;
    let claimed = fixture.until_state(id, RunState::Claimed).await;
    assert_eq!(
        register(&fixture, echo_job("echo", "new")).await.outcome,
        Outcome::Replaced
    );
    assert_eq!(
        fixture.until_state(id, RunState::Claimed).await.id,
        claimed.id
    );
    // The node has no handler for this.
    assert_eq!(
        register(&fixture, echo_job("other", "newest"))
            .await
            .outcome,
        Outcome::Replaced
    );
    assert_eq!(
        fixture.until_state(id, RunState::Waiting).await.due,
        claimed.due
    );
    let other = fixture.start(builder("other")).await;
    fixture.until_state(id, RunState::Claimed).await;
    shut_down(other).await;
    fixture.make_start(id).await;
    let other = fixture.start(builder("other")).await;
    let done = fixture.until_done(id, 1).await.remove(0);
    assert_eq!(
        (done.id, done.due, done.output),
        (claimed.id, claimed.due, Some(json!("newest")))
    );
    shut_down(node).await;
    shut_down(other).await;
}

#[tokio::test]
async fn retry_that_waits_starts_as_the_job_is_now() {
    let Some(fixture) = new().await else { return };
    let node = fixture
        .start(fixture.builder().handler_named("echo", echo))
        .await;
    let echo_job = |payload: &str| {
        NewJob::named("echo", json!(payload))
            .every(AN_HOUR)
            .retries(9, AN_HOUR, AN_HOUR)
    };
    let id = register(&fixture, echo_job("fail")).await.job;
    fixture
        .until(id, |runs| matches!(runs, [run] if run.attempt == 2))
        .await;
    assert_eq!(
        register(&fixture, echo_job("repaired")).await.outcome,
        Outcome::Replaced
    );
    shut_down(node).await;
    fixture.make_start(id).await;
    let node = fixture
        .start(fixture.builder().handler_named("echo", echo))
        .await;
    assert_eq!(
        fixture.until_done(id, 1).await[0].output,
        Some(json!("repaired"))
    );
    shut_down(node).await;
}

#[tokio::test]
async fn changed_schedule_has_new_due_times() {
    let Some(fixture) = new().await else { return };
    for (old, new) in (0..SCHEDULES).flat_map(|old| (0..SCHEDULES).map(move |new| (old, new))) {
        // A job that is due at once has missed that, see below.
        if old == new || old == 2 {
            continue;
        }
        let put = async |kind| {
            let job = schedule(kind, Year::Future)
                .key(format!("{old} {new}"))
                .replace_existing();
            fixture.jobs.enqueue(&fixture.client, job).await.unwrap()
        };
        let expected = fixture.enqueue(schedule(new, Year::Future)).await;
        let id = put(old).await.job;
        assert_eq!(put(new).await.outcome, Outcome::Replaced, "{old} {new}");
        let (expected, actual) = (
            next_run(&fixture, expected).await,
            next_run(&fixture, id).await,
        );
        // Both may be relative to the present.
        assert!(
            actual.duration_since(expected).as_secs().abs() < 600,
            "{old} {new}: {actual} {expected}"
        );
    }
}

#[tokio::test]
async fn due_time_that_the_old_schedule_has_missed_follows_the_misfire_policy() {
    let Some(fixture) = new().await else { return };
    let mut jobs = Vec::new();
    for misfire in [Misfire::Skip, Misfire::RunOnce, Misfire::RunAll] {
        for ago in [MS * 20_000, AN_HOUR * 30] {
            let key = format!("{misfire:?} {ago:?}");
            let put = async |job: NewJob| {
                let job = job.misfire(misfire).key(&key).replace_existing();
                fixture.jobs.enqueue(&fixture.client, job).await.unwrap()
            };
            // It has missed a due time each hour.
            let id = put(job().every(AN_HOUR).after(AN_HOUR)).await.job;
            let missed = miss(&fixture, id, ago).await;
            let changed = put(job().every(AN_HOUR * 2).after(AN_HOUR)).await;
            assert_eq!((changed.job, changed.outcome), (id, Outcome::Replaced));
            jobs.push((id, missed, misfire == Misfire::Skip && ago > AN_HOUR));
        }
    }
    let node = fixture.node().await;
    for (id, missed, is_skipped) in jobs {
        let state = if is_skipped {
            RunState::Skipped
        } else {
            RunState::Done
        };
        assert_eq!(fixture.until_state(id, state).await.due, missed);
        // The first due time of the new schedule, about an hour after now.
        let next = next_run(&fixture, id).await;
        assert!(fixture.is_before(next).await);
        assert!(!fixture.is_before(next - AN_HOUR).await);
    }
    shut_down(node).await;
}

#[tokio::test]
async fn postponed_one_off_job_has_one_run() {
    let Some(fixture) = new().await else { return };
    let id = register(&fixture, job().after(AN_HOUR)).await.job;
    miss(&fixture, id, MS * 20_000).await;
    let now: Timestamp = fixture
        .client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    let later = now + MS * 500;
    // The delay of `after` would be the same each time.
    assert_eq!(
        register(&fixture, job().at(later)).await.outcome,
        Outcome::Replaced
    );
    let node = fixture.node().await;
    let done = fixture.until_done(id, 1).await;
    assert!(done[0].due > now, "{done:?}");
    shut_down(node).await;
}

#[tokio::test]
async fn paused_job_stays_paused() {
    let Some(mut fixture) = new().await else {
        return;
    };
    let id = register(&fixture, job().every(AN_HOUR)).await.job;
    assert!(
        fixture
            .jobs
            .clone()
            .pause(&mut fixture.client, id)
            .await
            .unwrap()
    );
    for (job, outcome) in [
        (job().every(AN_HOUR), Outcome::Found),
        (job().every(AN_HOUR).retries(1, MS, MS), Outcome::Replaced),
        (job().every(MS), Outcome::Replaced),
    ] {
        assert_eq!(register(&fixture, job).await.outcome, outcome);
        assert!(!fixture.job(id).await.enabled);
    }
    // The due times during the pause are omitted, also those of the first schedule.
    assert!(
        fixture
            .jobs
            .clone()
            .resume(&mut fixture.client, id)
            .await
            .unwrap()
    );
    assert!(fixture.job(id).await.enabled);
}

/// For example, by a node that did not know the time zone.
#[tokio::test]
async fn job_that_a_node_has_disabled_is_enabled() {
    let Some(fixture) = new().await else { return };
    let id = register(&fixture, job().every(AN_HOUR)).await.job;
    let missed = miss(&fixture, id, MS * 20_000).await;
    let disable = format!(
        "UPDATE {}.job SET enabled = false, disabled_reason = 'unknown'",
        fixture.schema
    );
    fixture.client.batch_execute(&disable).await.unwrap();
    for outcome in [Outcome::Replaced, Outcome::Found] {
        assert_eq!(
            register(&fixture, job().every(AN_HOUR)).await.outcome,
            outcome
        );
        let job = fixture.job(id).await;
        assert_eq!(
            (job.enabled, job.disabled_reason, job.next_run),
            (true, None, Some(missed))
        );
    }
}

#[tokio::test]
async fn one_off_job_that_is_changed_during_its_run_runs_again() {
    let Some(fixture) = new().await else { return };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let id = register(&fixture, gate_job()).await.job;
    fixture.until_state(id, RunState::Running).await;
    assert_eq!(register(&fixture, gate_job()).await.outcome, Outcome::Found);
    assert_eq!(
        register(&fixture, NewJob::named("gate", json!("new")))
            .await
            .outcome,
        Outcome::Replaced
    );
    gate.close();
    fixture.until_done(id, 2).await;
    shut_down(node).await;
}
