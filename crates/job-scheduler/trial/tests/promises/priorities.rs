//! Which of the runs that are due starts first.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_job_scheduler::{NewJob, RunInfo, RunState};
use tokio::sync::Semaphore;

use crate::fixture::{Fixture, MS, Task, eventually, gate_job, shut_down, with_gate};

/// Returns the jobs in the order in which their runs have started.
async fn order(fixture: &Fixture, count: usize) -> Vec<i64> {
    let text = format!(
        "SELECT job FROM {}.run WHERE state = 'done' ORDER BY started, id",
        fixture.schema
    );
    let mut order = Vec::new();
    eventually(async || {
        let rows = fixture.client.query(&text, &[]).await.unwrap();
        order = rows.iter().map(|row| row.get(0)).collect();
        order.len() == count
    })
    .await;
    order
}

#[tokio::test]
async fn backlog_starts_in_the_order_of_priorities_and_due_times() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let now: jiff::Timestamp = fixture
        .client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    let mut jobs = Vec::new();
    for number in 0..60_u32 {
        let (priority, age) = ((number * 7 % 11) as i16 - 5, MS * (number * 13 % 60));
        let job = NewJob::new(&Task::Sleep(2))
            .at(now - age)
            .priority(priority);
        jobs.push((
            -priority,
            u128::MAX - age.as_millis(),
            fixture.enqueue(job).await,
        ));
    }
    jobs.sort_unstable();
    // It reads them several times, and has one runner.
    let node = fixture
        .start(fixture.builder().runners(1).capacity(8))
        .await;
    let expected: Vec<_> = jobs.iter().map(|job| job.2).collect();
    assert_eq!(order(&fixture, 60).await, expected);
    shut_down(node).await;
}

#[tokio::test]
async fn urgent_run_is_first_on_a_node_that_has_read_as_much_as_it_may() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().runners(1).capacity(4), &gate))
        .await;
    let mut jobs = Vec::new();
    for _ in 0..10 {
        jobs.push(fixture.enqueue(gate_job().priority(-1)).await);
    }
    let held = format!(
        "SELECT count(*) FROM {}.run WHERE state IN ('claimed', 'running')",
        fixture.schema
    );
    let held = async || {
        fixture
            .client
            .query_one(&held, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
    };
    eventually(async || held().await == 4).await;
    let urgent = fixture.enqueue(gate_job()).await;
    fixture.until_state(urgent, RunState::Claimed).await;
    // The others still wait for their turn.
    assert_eq!(held().await, 5);
    gate.add_permits(2);
    assert_eq!(order(&fixture, 2).await[1], urgent);
    gate.close();
    order(&fixture, 11).await;
    shut_down(node).await;
}

/// Such a node looks for urgent runs at each beat, and compares them with those that it has: also
/// at the moment at which one of these is due.
#[tokio::test]
async fn beat_at_the_due_time_does_not_keep_a_run_from_starting() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let builder = fixture
        .builder()
        .runners(1)
        .capacity(1)
        .heartbeat(MS * 50)
        .prefetch(MS * 200);
    let node = fixture.start(builder).await;
    // The answer to a beat and the due time meet if this thread looks at both after a pause.
    let busy = tokio::spawn(async {
        loop {
            std::thread::sleep(MS * 7);
            tokio::time::sleep(MS).await;
        }
    });
    let job = fixture
        .enqueue(NewJob::new(&Task::Succeed).every(MS * 60))
        .await;
    let is_done = |run: &&RunInfo| run.state == RunState::Done;
    fixture
        .until(job, |runs| runs.iter().filter(is_done).count() >= 50)
        .await;
    busy.abort();
    shut_down(node).await;
}

#[tokio::test]
async fn urgent_run_is_first_among_those_that_wait_for_a_place() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let mut jobs = Vec::new();
    for priority in [0, -5, 0, 5, 1] {
        let job = fixture
            .enqueue(gate_job().limit("x", 1).priority(priority))
            .await;
        let state = if jobs.is_empty() {
            RunState::Running
        } else {
            RunState::Blocked
        };
        fixture.until_state(job, state).await;
        jobs.push(job);
    }
    gate.close();
    assert_eq!(
        order(&fixture, 5).await,
        [0, 3, 4, 2, 1].map(|index| jobs[index])
    );
    shut_down(node).await;
}

#[tokio::test]
async fn new_priority_of_a_job_concerns_runs_that_were_read() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = || {
        NewJob::new(&Task::Succeed)
            .after(Duration::from_secs(40))
            .key("k")
    };
    let id = fixture.enqueue(job()).await;
    let priority = format!("SELECT priority FROM {}.run", fixture.schema);
    let priority = async || {
        let rows = fixture.client.query(&priority, &[]).await.unwrap();
        rows.iter()
            .map(|row| row.get::<_, i16>(0))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        fixture
            .jobs
            .run_now(&fixture.client, id)
            .await
            .unwrap()
            .map(|_| ()),
        Some(())
    );
    assert_eq!(priority().await, [0]);
    fixture.until_done(id, 1).await;
    assert_eq!(
        fixture.enqueue(job().priority(3).replace_existing()).await,
        id
    );
    fixture.jobs.run_now(&fixture.client, id).await.unwrap();
    fixture.until_done(id, 2).await;
    let mut priorities = priority().await;
    priorities.sort_unstable();
    assert_eq!(priorities, [0, 3]);
    shut_down(node).await;
}

/// A backlog of one handler, whose runs take this long. Then other jobs are due.
async fn others_beside_a_backlog(lease: Duration, length: Duration, backlog: usize) {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let slow = |_| NewJob::new(&Task::Sleep(length.as_millis() as u64));
    let slow = (0..backlog).map(slow).collect::<Vec<_>>();
    fixture
        .jobs
        .enqueue_all(&fixture.client, slow)
        .await
        .unwrap();
    let gate = Arc::new(Semaphore::new(0));
    gate.close();
    let builder = fixture.builder().lease(lease).runners(8).capacity(16);
    let node = fixture.start(with_gate(builder, &gate)).await;
    let done = format!(
        "SELECT count(*) FILTER (WHERE handler = 'gate'), count(*) FILTER (WHERE handler = 'task')
         FROM {}.run WHERE state = 'done'",
        fixture.schema
    );
    let done = async || {
        let row = fixture.client.query_one(&done, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    eventually(async || done().await.1 >= 8).await;
    // The next ones have just started.
    tokio::time::sleep(length * 3 / 4).await;
    let before = done().await.1;
    for _ in 0..10 {
        fixture.enqueue(gate_job()).await;
    }
    eventually(async || done().await.0 == 10).await;
    // They start when the first of the slow ones ends, and not after all of them.
    let meanwhile = done().await.1 - before;
    assert!(
        meanwhile * 2 < backlog as i64,
        "{meanwhile} slow runs have ended first"
    );
    assert!(before + meanwhile < backlog as i64);
    drop(node);
}

#[tokio::test]
async fn backlog_of_a_handler_does_not_delay_others() {
    others_beside_a_backlog(MS * 60_000, MS * 400, 200).await;
}

/// All runners are busy for longer than a lease.
#[tokio::test]
async fn backlog_of_slow_runs_does_not_delay_others() {
    others_beside_a_backlog(MS * 1_500, MS * 4_000, 80).await;
}

/// Returns how many runs of one handler a node with room for 16 has. There are runs that wait and
/// jobs that are due, and perhaps runs of a lost node.
async fn share_of_a_handler(has_lost: bool) -> Option<i64> {
    let fixture = Fixture::new().await?;
    fixture.migrate().await;
    let gate = Arc::new(Semaphore::new(0));
    let builder = || with_gate(fixture.builder(), &gate).runners(8);
    let add = async |job: fn() -> NewJob| {
        let jobs = (0..20).map(|_| job());
        let added = fixture.jobs.enqueue_all(&fixture.client, jobs).await;
        added.unwrap()
    };
    let lost = match has_lost {
        true => Some(fixture.start(builder().capacity(10)).await),
        false => None,
    };
    let owned = format!(
        "SELECT count(*) FROM {}.run WHERE owner IS NOT NULL",
        fixture.schema
    );
    let owned = async || -> i64 {
        let row = fixture.client.query_one(&owned, &[]).await.unwrap();
        row.get(0)
    };
    fixture.client.batch_execute("BEGIN").await.unwrap();
    for job in add(|| gate_job().after(Duration::from_secs(3_600))).await {
        fixture
            .jobs
            .run_now(&fixture.client, job.job)
            .await
            .unwrap();
    }
    add(gate_job).await;
    fixture.client.batch_execute("COMMIT").await.unwrap();
    if let Some(lost) = lost {
        eventually(async || owned().await >= 9).await;
        fixture.lose(lost).await;
    }
    let node = fixture.start(builder().capacity(16)).await;
    eventually(async || owned().await >= 14).await;
    // Some heartbeats.
    tokio::time::sleep(MS * 1_000).await;
    let owned = owned().await;
    drop(node);
    Some(owned)
}

/// Whatever they come from: runs that wait, jobs that are due, and a lost node.
#[tokio::test]
async fn handler_never_takes_all_places() {
    for has_lost in [false, true] {
        let Some(owned) = share_of_a_handler(has_lost).await else {
            return;
        };
        assert_eq!(owned, 14, "has lost: {has_lost}");
    }
}
