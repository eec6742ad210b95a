//! Rates of handlers: the times of all starts, on several nodes.

use std::time::Duration;

use hashed_wheel_job_scheduler::{Context, KindLimits, NewJob, RunError, RunState, Scheduler};
use serde_json::Value;

use crate::fixture::{Fixture, MS, connect, eventually, shut_down};

const INTERVAL: Duration = Duration::from_millis(40);

fn job() -> NewJob {
    NewJob::named("rated", Value::Null)
}

async fn node(fixture: &Fixture) -> Scheduler {
    let handler = |_: Context, _: Value| async { Ok::<_, RunError>(()) };
    fixture
        .start(fixture.builder().handler_named("rated", handler))
        .await
}

/// Returns the times at which this many runs have started.
async fn starts(fixture: &Fixture, count: usize) -> Vec<jiff::Timestamp> {
    let text = format!(
        "SELECT started FROM {}.run WHERE state = 'done' ORDER BY started",
        fixture.schema
    );
    let mut starts = Vec::new();
    eventually(async || {
        let rows = fixture.client.query(&text, &[]).await.unwrap();
        starts = rows.iter().map(|row| row.get(0)).collect();
        starts.len() == count
    })
    .await;
    starts
}

/// Whether any `burst + k` starts take at least `k` intervals.
fn conform(starts: &[jiff::Timestamp], burst: usize) -> bool {
    (burst..starts.len()).all(|last| {
        (0..=last - burst).all(|first| {
            let time: Duration = starts[last]
                .duration_since(starts[first])
                .try_into()
                .unwrap();
            time >= INTERVAL * (last - first + 1 - burst) as u32
        })
    })
}

/// A backlog on two nodes, one of which is replaced. Returns whether all starts conform.
async fn start_a_backlog(burst: u32, sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let [first, second] = [node(&fixture).await, node(&fixture).await];
    let limits = KindLimits::new()
        .rate(25, Duration::from_secs(1))
        .burst(burst);
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", limits)
        .await
        .unwrap();
    let kinds = fixture.jobs.kinds(&fixture.client, "", 10).await.unwrap();
    let expected = [("rated".to_owned(), limits)];
    assert_eq!(kinds, expected);
    for _ in 0..60 {
        fixture.enqueue(job()).await;
    }
    tokio::time::sleep(MS * 500).await;
    drop(first);
    // Its runs are taken over at once, and would start together.
    let lose = format!(
        "UPDATE {}.node SET alive_until = clock_timestamp() WHERE id = 1",
        fixture.schema
    );
    fixture.client.batch_execute(&lose).await.unwrap();
    let third = node(&fixture).await;
    let starts = starts(&fixture, 60).await;
    shut_down(second).await;
    shut_down(third).await;
    Some(conform(&starts, burst as usize))
}

#[tokio::test]
async fn backlog_starts_no_faster_than_its_rate_although_a_node_is_lost() {
    let Some(conforms) = start_a_backlog(1, None).await else {
        return;
    };
    assert!(conforms);
    assert_eq!(start_a_backlog(10, None).await, Some(true));
    let no_turns = (
        "IF has_blocked OR GREATEST(may_start, next_planned - slack) > the_time THEN",
        "IF false THEN",
    );
    assert_eq!(start_a_backlog(1, Some(no_turns)).await, Some(false));
}

/// The next time under the old rate is in an hour.
#[tokio::test]
async fn rate_that_is_raised_applies_to_runs_that_wait() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = node(&fixture).await;
    let set_rate = async |time| {
        let limits = KindLimits::new().rate(25, time);
        let set = fixture.jobs.set_kind(&fixture.client, "rated", limits);
        set.await.unwrap();
    };
    set_rate(Duration::from_secs(90_000)).await;
    for _ in 0..5 {
        fixture.enqueue(job()).await;
    }
    starts(&fixture, 1).await;
    set_rate(Duration::from_secs(1)).await;
    assert!(conform(&starts(&fixture, 5).await, 1));
    shut_down(node).await;
}

/// Runs that have got turns, and are late, so that all of them could start at once. Returns whether
/// their starts conform.
async fn start_late_turns(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let node = node(&fixture).await;
    let hourly = KindLimits::new().rate(1, Duration::from_secs(3_600));
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", hourly)
        .await
        .unwrap();
    for number in 0..10 {
        let id = fixture.enqueue(job()).await;
        fixture
            .until_state(
                id,
                if number == 0 {
                    RunState::Done
                } else {
                    RunState::Blocked
                },
            )
            .await;
    }
    let late =
        "BEGIN; UPDATE @kind SET interval_us = 40000; UPDATE @pace SET started = now(), planned = now();
        UPDATE @run SET state = 'waiting', blocked_on = NULL, has_turn = true, start_at = now()
        WHERE state = 'blocked'; COMMIT";
    fixture
        .client
        .batch_execute(&late.replace('@', &format!("{}.", fixture.schema)))
        .await
        .unwrap();
    let starts = starts(&fixture, 10).await;
    shut_down(node).await;
    Some(conform(&starts, 1))
}

#[tokio::test]
async fn turns_that_are_late_do_not_start_together() {
    let Some(conforms) = start_late_turns(None).await else {
        return;
    };
    assert!(conforms);
    let no_check = ("IF may_start > the_time THEN", "IF false THEN");
    assert_eq!(start_late_turns(Some(no_check)).await, Some(false));
}

#[tokio::test]
async fn rate_can_be_changed_and_removed_while_runs_wait() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = node(&fixture).await;
    let hourly = KindLimits::new().rate(1, Duration::from_secs(3_600));
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", hourly)
        .await
        .unwrap();
    let first = fixture.enqueue(job()).await;
    fixture.until_done(first, 1).await;
    let mut jobs = Vec::new();
    for priority in [0, 5] {
        jobs.push(fixture.enqueue(job().priority(priority)).await);
        fixture
            .until_state(jobs[jobs.len() - 1], RunState::Blocked)
            .await;
    }
    // Other handlers are not delayed.
    let other = fixture
        .enqueue(NewJob::new(&crate::fixture::Task::Succeed))
        .await;
    fixture.until_done(other, 1).await;
    assert_eq!(fixture.history(jobs[0]).await[0].state, RunState::Blocked);
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", KindLimits::new())
        .await
        .unwrap();
    for job in jobs {
        fixture.until_done(job, 1).await;
    }
    let paces = format!("SELECT FROM {}.pace", fixture.schema);
    eventually(async || fixture.client.query(&paces, &[]).await.unwrap().is_empty()).await;
    shut_down(node).await;
}

/// Each attempt counts.
#[tokio::test]
async fn retries_count_for_the_rate() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let fail = |context: Context, _: Value| async move {
        if context.attempt < 4 {
            Err(RunError::from("again"))
        } else {
            Ok(())
        }
    };
    let node = fixture
        .start(fixture.builder().handler_named("rated", fail))
        .await;
    let limits = KindLimits::new().rate(1, MS * 300);
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", limits)
        .await
        .unwrap();
    let id = fixture.enqueue(job().retries(5, MS, MS)).await;
    let run = fixture.until_done(id, 1).await.remove(0);
    let took: Duration = run
        .started
        .unwrap()
        .duration_since(run.due)
        .try_into()
        .unwrap();
    assert!(took >= MS * 900, "{took:?}");
    shut_down(node).await;
}

/// A run that was cancelled after the loss of its node. Returns its state at the next node.
async fn cancel_a_lost_run(sabotage: Option<(&str, &str)>) -> Option<RunState> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let hang =
        |_: Context, _: Value| async { std::future::pending::<Result<(), RunError>>().await };
    let lost = fixture
        .start(fixture.builder().handler_named("rated", hang))
        .await;
    let hourly = KindLimits::new().rate(1, Duration::from_secs(3_600));
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", hourly)
        .await
        .unwrap();
    let id = fixture.enqueue(job()).await;
    let run = fixture.until_state(id, RunState::Running).await;
    fixture.lose(lost).await;
    fixture.jobs.cancel(&fixture.client, run.id).await.unwrap();
    let node = node(&fixture).await;
    let is_over = |state| [RunState::Cancelled, RunState::Blocked].contains(&state);
    let state = fixture.until(id, |runs| is_over(runs[0].state)).await[0].state;
    drop(node);
    Some(state)
}

/// It is not executed, so it needs no turn.
#[tokio::test]
async fn cancelled_run_of_a_lost_node_does_not_wait_for_the_rate() {
    let Some(state) = cancel_a_lost_run(None).await else {
        return;
    };
    assert_eq!(state, RunState::Cancelled);
    let needs_a_turn = (
        "run.verdict IS NULL AND run.is_rated AS is_rated",
        "run.is_rated",
    );
    assert_eq!(
        cancel_a_lost_run(Some(needs_a_turn)).await,
        Some(RunState::Blocked)
    );
}

/// Blocks a run of a new job on the rate.
async fn block(fixture: &Fixture) -> i64 {
    let hourly = KindLimits::new().rate(1, Duration::from_secs(3_600));
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", hourly)
        .await
        .unwrap();
    let first = fixture.enqueue(job()).await;
    fixture.until_done(first, 1).await;
    let id = fixture.enqueue(job()).await;
    fixture.until_state(id, RunState::Blocked).await;
    id
}

#[tokio::test]
async fn run_that_was_locked_when_its_rate_was_removed_starts() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = node(&fixture).await;
    let id = block(&fixture).await;
    let mut locker = connect(&fixture.config).await;
    let transaction = locker.transaction().await.unwrap();
    let lock = format!(
        "SELECT FROM {}.run WHERE job = $1 FOR UPDATE",
        fixture.schema
    );
    transaction.query_one(&lock, &[&id]).await.unwrap();
    fixture
        .jobs
        .set_kind(&fixture.client, "rated", KindLimits::new())
        .await
        .unwrap();
    // Longer than several heartbeats.
    tokio::time::sleep(MS * 1_200).await;
    transaction.rollback().await.unwrap();
    fixture.until_done(id, 1).await;
    shut_down(node).await;
}

/// It has no other run.
#[tokio::test]
async fn one_off_job_that_is_paused_while_its_run_is_blocked_runs_after_the_pause() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = node(&fixture).await;
    let id = block(&fixture).await;
    let jobs = fixture.jobs.clone();
    assert!(jobs.pause(&mut fixture.client, id).await.unwrap());
    assert!(fixture.history(id).await.is_empty());
    jobs.set_kind(&fixture.client, "rated", KindLimits::new())
        .await
        .unwrap();
    assert!(jobs.resume(&mut fixture.client, id).await.unwrap());
    fixture.until_done(id, 1).await;
    shut_down(node).await;
}
