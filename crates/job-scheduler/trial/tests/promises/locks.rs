//! Transactions of the application that hold locks for longer than a lease: no node and no other
//! caller waits for them.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_job_scheduler::{NewJob, Outcome, Overlap, RunInfo, RunState};

use tokio::sync::Semaphore;

use crate::fixture::{
    DELAYS, Fixture, MS, Task, connect, eventually, gate_job, shut_down, with_gate,
};

const AN_HOUR: Duration = Duration::from_secs(3_600);

const LEASE: Duration = Duration::from_millis(2_500);

/// Longer than the lease of the nodes.
const HOLD: Duration = Duration::from_millis(4_000);

/// A transaction pauses, replaces and deletes jobs, and is rolled back after [`HOLD`]. Returns the
/// number of the node at the end: 1, if it has not lost its lease. Meanwhile another job runs.
///
/// `None`: there is no server, or the machine was too busy to change the jobs before they are due.
async fn hold_locks(sabotage: &[(&str, &str)], delay: Duration) -> Option<i64> {
    let mut fixture = Fixture::sabotaged(sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().lease(LEASE), &gate))
        .await;
    let running = fixture.enqueue(gate_job().overlap(Overlap::Wait)).await;
    let slow = fixture.enqueue(gate_job()).await;
    let other = fixture
        .enqueue(NewJob::new(&Task::Succeed).every(MS * 200))
        .await;
    for job in [running, slow] {
        fixture.until_state(job, RunState::Running).await;
    }
    let soon = |name: &str| NewJob::new(&Task::Succeed).after(delay).key(name);
    let [paused, replaced, deleted] = [
        fixture.enqueue(soon("a")).await,
        fixture.enqueue(soon("b")).await,
        fixture.enqueue(soon("c")).await,
    ];
    let first = fixture
        .until(paused, |runs| !runs.is_empty())
        .await
        .remove(0);
    for job in [replaced, deleted] {
        fixture.until(job, |runs| !runs.is_empty()).await;
    }
    let jobs = fixture.jobs.clone();
    let mut transaction = fixture.client.transaction().await.unwrap();
    let mut found = vec![jobs.pause(&mut transaction, paused).await.unwrap()];
    let later = soon("b").after(AN_HOUR).replace_existing();
    let outcome = jobs.enqueue(&transaction, later).await.unwrap();
    found.push(outcome.job == replaced && outcome.outcome == Outcome::Replaced);
    for job in [deleted, running, slow] {
        found.push(jobs.delete(&transaction, job).await.unwrap());
    }
    let now: jiff::Timestamp = transaction
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    if now >= first.due {
        return None;
    }
    assert_eq!(found, [true; 5]);
    gate.close();
    tokio::time::sleep(delay + HOLD).await;
    transaction.rollback().await.unwrap();
    // As if nothing had happened: also the results of those that were running are written.
    for job in [paused, replaced, deleted, running, slow] {
        fixture
            .until(
                job,
                |runs| matches!(runs, [run] if run.state == RunState::Done),
            )
            .await;
    }
    let done = fixture
        .until(other, |runs| {
            runs.iter().any(|run| run.state == RunState::Done)
        })
        .await;
    let nodes = fixture.jobs.nodes(&fixture.client).await.unwrap();
    if sabotage.is_empty() {
        // Runs of the other job started while the locks were held.
        let late = |run: &RunInfo| run.started?.duration_since(run.start_at).try_into().ok();
        let punctual = done
            .iter()
            .filter_map(late)
            .filter(|late: &Duration| *late < HOLD / 2)
            .count();
        assert!(punctual > 5, "{done:?}");
        shut_down(node).await;
    }
    nodes.last().map(|node| node.id)
}

#[tokio::test]
async fn locks_of_an_application_do_not_cost_a_node_its_lease() {
    let mut nodes = Vec::new();
    // On a busy machine, a node may lose its lease for another reason.
    for delay in DELAYS {
        nodes.extend(hold_locks(&[], delay).await);
        if nodes.last() == Some(&1) {
            break;
        }
    }
    if Fixture::new().await.is_none() {
        return;
    }
    assert_eq!(nodes.last(), Some(&1), "{nodes:?}");
    let waits = [
        (
            "ORDER BY run.id FOR UPDATE SKIP LOCKED",
            "ORDER BY run.id FOR UPDATE",
        ),
        ("SET lock_timeout = '100ms'", ""),
    ];
    let mut nodes = None;
    for delay in DELAYS {
        if nodes.is_none() {
            nodes = hold_locks(&waits, delay).await;
        }
    }
    assert!(nodes > Some(1), "{nodes:?}");
}

/// A transaction pauses, replaces and deletes jobs whose runs occupy all runners. The runners are
/// free when the handlers have ended, although no result can be written.
#[tokio::test]
async fn runs_that_are_locked_keep_no_runner_and_no_capacity() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let builder = with_gate(fixture.builder().runners(3).capacity(6), &gate);
    let node = fixture.start(builder).await;
    let job = |key: &str| gate_job().key(key).overlap(Overlap::Wait);
    let [paused, replaced, deleted] = [
        fixture.enqueue(job("a")).await,
        fixture.enqueue(job("b")).await,
        fixture.enqueue(gate_job()).await,
    ];
    for job in [paused, replaced, deleted] {
        fixture.until_state(job, RunState::Running).await;
    }
    // These are read ahead, and cannot start.
    let mut claimed = Vec::new();
    for _ in 0..3 {
        claimed.push(fixture.enqueue(gate_job().after(MS * 2_000)).await);
    }
    for &job in &claimed {
        fixture.until_state(job, RunState::Claimed).await;
    }
    let jobs = fixture.jobs.clone();
    let client = connect(&fixture.config).await;
    let mut transaction = fixture.client.transaction().await.unwrap();
    assert!(jobs.pause(&mut transaction, paused).await.unwrap());
    jobs.enqueue(&transaction, job("b").replace_existing().after(AN_HOUR))
        .await
        .unwrap();
    for &job in claimed.iter().chain([&deleted]) {
        assert!(jobs.delete(&transaction, job).await.unwrap());
    }
    gate.close();
    // More than the capacity.
    for _ in 0..8 {
        let other = jobs
            .enqueue(&client, NewJob::new(&Task::Succeed))
            .await
            .unwrap()
            .job;
        eventually(async || {
            let runs = jobs.history(&client, other, 1).await.unwrap();
            matches!(&runs[..], [run] if run.state == RunState::Done)
        })
        .await;
    }
    transaction.rollback().await.unwrap();
    for job in [paused, replaced, deleted].into_iter().chain(claimed) {
        fixture.until_done(job, 1).await;
    }
    assert_eq!(fixture.jobs.nodes(&fixture.client).await.unwrap().len(), 1);
    shut_down(node).await;
}

/// A node whose runners are all busy gives back what has not started, except what is locked.
#[tokio::test]
async fn run_that_is_locked_when_it_is_given_back_starts_later() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let (gate, lease) = (Arc::new(Semaphore::new(0)), MS * 3_000);
    let busy = with_gate(fixture.builder().lease(lease).runners(1), &gate);
    let busy = fixture.start(busy).await;
    fixture.enqueue_until(gate_job(), RunState::Running).await;
    let waiting = NewJob::new(&Task::Succeed);
    let waiting = fixture.enqueue_until(waiting, RunState::Claimed).await;
    let other = fixture.node().await;
    let mut client = connect(&fixture.config).await;
    let transaction = client.transaction().await.unwrap();
    let lock = format!(
        "SELECT FROM {}.run WHERE job = $1 FOR UPDATE",
        fixture.schema
    );
    assert_eq!(transaction.execute(&lock, &[&waiting]).await.unwrap(), 1);
    tokio::time::sleep(lease * 2).await;
    transaction.rollback().await.unwrap();
    fixture.until_done(waiting, 1).await;
    gate.close();
    shut_down(busy).await;
    shut_down(other).await;
}

#[tokio::test]
async fn job_with_a_place_that_is_locked_does_not_stop_the_others() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.start(fixture.builder().lease(LEASE)).await;
    let waiting = NewJob::new(&Task::Sleep(1_500))
        .after(AN_HOUR)
        .overlap(Overlap::Wait);
    let waiting = fixture.enqueue(waiting).await;
    let requested = fixture
        .jobs
        .run_now(&fixture.client, waiting)
        .await
        .unwrap()
        .unwrap();
    fixture.until_state(waiting, RunState::Running).await;
    // Only the job is locked, and not its place: the next run waits for it, or gets it.
    let jobs = fixture.jobs.clone();
    let mut transaction = fixture.client.transaction().await.unwrap();
    assert!(jobs.pause(&mut transaction, waiting).await.unwrap());
    let other = connect(&fixture.config).await;
    let second = jobs.run_now(&other, waiting).await.unwrap().unwrap();
    let job = jobs
        .enqueue(&other, NewJob::new(&Task::Succeed))
        .await
        .unwrap()
        .job;
    tokio::time::sleep(HOLD).await;
    let runs = jobs.history(&other, job, 9).await.unwrap();
    assert!(
        matches!(&runs[..], [run] if run.state == RunState::Done),
        "{runs:?}"
    );
    transaction.commit().await.unwrap();
    // The second one was requested after the pause, so the pause did not cancel it.
    let runs = fixture.until_done(waiting, 2).await;
    assert!(
        [requested, second]
            .iter()
            .all(|id| runs.iter().any(|run| run.id == *id))
    );
    shut_down(node).await;
}

#[tokio::test]
async fn job_that_a_transaction_has_found_keeps_running() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    // It reads ahead for less than the transaction takes.
    let node = fixture.start(fixture.builder().prefetch(MS * 500)).await;
    let job = || NewJob::new(&Task::Succeed).every(MS * 100).key("k");
    let id = fixture.enqueue(job()).await;
    let other = connect(&fixture.config).await;
    let jobs = fixture.jobs.clone();
    let transaction = fixture.client.transaction().await.unwrap();
    let found = jobs.enqueue(&transaction, job()).await.unwrap();
    assert_eq!((found.job, found.outcome), (id, Outcome::Found));
    let now: jiff::Timestamp = other
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    // Read after the job was found.
    eventually(async || {
        jobs.history(&other, id, 1)
            .await
            .unwrap()
            .iter()
            .any(|run| run.due > now + MS * 1_000)
    })
    .await;
    transaction.rollback().await.unwrap();
    shut_down(node).await;
}

#[tokio::test]
async fn no_caller_waits_for_a_transaction_that_has_enqueued() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = || NewJob::new(&Task::Succeed).after(AN_HOUR);
    let old = fixture.enqueue(job().key("old")).await;
    let mut other = connect(&fixture.config).await;
    other
        .batch_execute("SET lock_timeout = '2s'")
        .await
        .unwrap();
    let jobs = fixture.jobs.clone();
    let transaction = fixture.client.transaction().await.unwrap();
    for job in [
        job(),
        job().key("new"),
        job().key("old"),
        NewJob::new(&Task::Succeed),
    ] {
        jobs.enqueue(&transaction, job).await.unwrap();
    }
    for job in [
        job(),
        job().key("other"),
        job().key("old").replace_existing(),
    ] {
        jobs.enqueue(&other, job).await.unwrap();
    }
    assert!(jobs.pause(&mut other, old).await.unwrap());
    assert!(jobs.resume(&mut other, old).await.unwrap());
    assert!(jobs.run_now(&other, old).await.unwrap().is_some());
    assert!(jobs.delete(&other, old).await.unwrap());
    // Also no node: it starts another job.
    let done = jobs
        .enqueue(&other, NewJob::new(&Task::Succeed))
        .await
        .unwrap()
        .job;
    eventually(async || {
        jobs.history(&other, done, 1)
            .await
            .unwrap()
            .iter()
            .any(|run| run.state == RunState::Done)
    })
    .await;
    transaction.rollback().await.unwrap();
    shut_down(node).await;
}

/// A client locks the first runs of a handler, more than a node has room for: so many that the
/// search finds others behind them, or one, or none.
#[tokio::test]
async fn locked_runs_do_not_delay_those_behind_them() {
    for locked in [20, 63, 100] {
        let Some(fixture) = Fixture::new().await else {
            return;
        };
        fixture.migrate().await;
        let (mut runs, gate) = (Vec::new(), Arc::new(Semaphore::new(0)));
        for number in 0..locked + 8 {
            // The last ones have another handler.
            let job = match number < locked + 4 {
                true => NewJob::new(&Task::Succeed),
                false => gate_job(),
            };
            let job = fixture.enqueue(job.after(AN_HOUR)).await;
            fixture.jobs.run_now(&fixture.client, job).await.unwrap();
            runs.push(job);
        }
        let first = format!(
            "SELECT FROM {}.run WHERE job = ANY ($1) FOR UPDATE",
            fixture.schema
        );
        let mut other = connect(&fixture.config).await;
        let locks = other.transaction().await.unwrap();
        let rows = locks.query(&first, &[&&runs[..locked]]).await.unwrap();
        assert_eq!(rows.len(), locked);
        let builder = fixture.builder().runners(8).capacity(16);
        let node = fixture.start(with_gate(builder, &gate)).await;
        gate.close();
        for &job in &runs[locked..] {
            fixture.until_done(job, 1).await;
        }
        locks.rollback().await.unwrap();
        for job in runs {
            fixture.until_done(job, 1).await;
        }
        shut_down(node).await;
    }
}

/// A client locks a finished job whose results are the oldest, as many as are removed at a time.
#[tokio::test]
async fn results_of_a_locked_job_do_not_stay_before_others() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(fixture.enqueue(NewJob::new(&Task::Succeed)).await);
        fixture.until_done(jobs[jobs.len() - 1], 1).await;
    }
    shut_down(node).await;
    let mut other = connect(&fixture.config).await;
    let locks = other.transaction().await.unwrap();
    let lock = format!(
        "SELECT FROM {}.job WHERE id = $1 FOR UPDATE",
        fixture.schema
    );
    assert_eq!(locks.execute(&lock, &[&jobs[0]]).await.unwrap(), 1);
    let clean = format!("SELECT {}.clean('0', 1)", fixture.schema);
    let removed: i64 = fixture.client.query_one(&clean, &[]).await.unwrap().get(0);
    assert_eq!(removed, 1);
    let left = |job| fixture.jobs.history(&fixture.client, job, 9);
    assert_eq!(left(jobs[0]).await.unwrap().len(), 1);
    assert!(left(jobs[1]).await.unwrap().is_empty());
    locks.rollback().await.unwrap();
    let removed: i64 = fixture.client.query_one(&clean, &[]).await.unwrap().get(0);
    assert_eq!(removed, 1);
}

/// Runs of a handler that are more than it may have leave room for another one, whose first runs an
/// application has locked.
#[tokio::test]
async fn runs_that_are_too_many_leave_room_for_others_behind_locked_ones() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let complete = |text: &str| text.replace('@', &format!("{}.", fixture.schema));
    let text = "
        INSERT INTO @node (name, alive_until, handlers) VALUES ('n', now() + interval '1 hour', '{a,b}');
        SELECT @add_job('a', delay => '1 hour');
        INSERT INTO @run (job, due, start_at, handler, state, priority)
            SELECT job.id, now() + n * interval '1 day', now(), run.handler, 'waiting', run.priority
            FROM @job job, (VALUES (1, 'a', 1), (2, 'a', 1), (3, 'b', 0), (4, 'b', 0), (5, 'b', 0))
                AS run (n, handler, priority)";
    fixture.client.batch_execute(&complete(text)).await.unwrap();
    let mut other = connect(&fixture.config).await;
    let locks = other.transaction().await.unwrap();
    let first = "SELECT FROM @run WHERE handler = 'b' ORDER BY due LIMIT 2 FOR UPDATE";
    assert_eq!(locks.execute(&complete(first), &[]).await.unwrap(), 2);
    let claim = "SELECT array_agg(run.handler ORDER BY run.handler) FROM @node node, LATERAL
        @claim_runs(node.id, '{a,b}', 10000000, 2, -5, '{1,2}') AS run";
    let row = fixture
        .client
        .query_one(&complete(claim), &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, Vec<String>>(0), ["a", "b"]);
    locks.rollback().await.unwrap();
}

/// A handler may have fewer runs than are locked for it while there is room.
#[tokio::test]
async fn claim_has_as_many_runs_of_a_handler_as_there_are_places() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let text = "
        INSERT INTO @node (name, alive_until, handlers) VALUES ('n', now() + interval '1 hour', '{a,b}');
        SELECT @add_job('a', delay => '1 hour');
        INSERT INTO @run (job, due, start_at, handler, state)
            SELECT job.id, now() + interval '1 day' + n * interval '1 us', now(), 'a', 'waiting'
            FROM @job job, generate_series(1, 500) AS n";
    let text = text.replace('@', &format!("{}.", fixture.schema));
    fixture.client.batch_execute(&text).await.unwrap();
    for (room, of_a) in [(144_i64, 16_i64), (16, 3), (20, 2), (8, 2), (8, 8)] {
        let claim = "SELECT run.handler, count(*) FROM @node node, LATERAL
            @claim_runs(node.id, '{a,b}', 1000000, $1, -5, ARRAY[$2::bigint, 7]) AS run GROUP BY run.handler";
        let claim = claim.replace('@', &format!("{}.", fixture.schema));
        let rows = fixture.client.query(&claim, &[&room, &of_a]).await.unwrap();
        let counts: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(counts, [("a".to_owned(), of_a)], "{room}");
    }
}
