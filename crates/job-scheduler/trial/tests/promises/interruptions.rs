//! Interruptions: which count, the pauses after them, and what is watched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{NewJob, RunInfo, RunState};
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

use crate::fixture::{Fixture, MS, Task, eventually, gate_job, shut_down, with_gate};
use crate::network::{Link, Relay};

/// Sets how often the only run of a job was interrupted, and makes it start now.
async fn interrupt(fixture: &Fixture, job: i64, count: i32) {
    let update = format!(
        "UPDATE {}.run SET interrupted = $2, attempt = $2 + 1, state = 'waiting', owner = NULL,
            start_at = clock_timestamp() WHERE job = $1",
        fixture.schema
    );
    assert_eq!(
        fixture
            .client
            .execute(&update, &[&job, &count])
            .await
            .unwrap(),
        1
    );
}

/// The number of interruptions of the only run of a job that do not count.
async fn excused(fixture: &Fixture, job: i64) -> i32 {
    let query = format!("SELECT excused FROM {}.run WHERE job = $1", fixture.schema);
    fixture
        .client
        .query_one(&query, &[&job])
        .await
        .unwrap()
        .get(0)
}

/// Adds a job for [`with_gate`] whose run was interrupted this often, before a node has started it.
pub(crate) async fn interrupted(fixture: &Fixture, count: i32) -> i64 {
    interrupted_job(fixture, gate_job(), count).await
}

async fn interrupted_job(fixture: &Fixture, job: NewJob, count: i32) -> i64 {
    let job = job.after(Duration::from_secs(3_600)).max_interruptions(5);
    let job = fixture.enqueue(job).await;
    // One transaction, because a node would start it in between.
    fixture.client.batch_execute("BEGIN").await.unwrap();
    fixture.jobs.run_now(&fixture.client, job).await.unwrap();
    interrupt(fixture, job, count).await;
    fixture.client.batch_execute("COMMIT").await.unwrap();
    job
}

/// Returns the pause of a run after this interruption, and its state.
async fn pause_after(sabotage: &[(&str, &str)], interruption: i32) -> Option<(f64, RunState)> {
    let fixture = Fixture::sabotaged(sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let builder = || with_gate(fixture.builder(), &gate);
    shut_down(fixture.start(builder()).await).await;
    let job = interrupted(&fixture, interruption - 1).await;
    let lost = fixture.start(builder()).await;
    fixture.until_state(job, RunState::Running).await;
    fixture.lose(lost).await;
    let before = fixture.now().await;
    let node = fixture.start(builder()).await;
    let is_next = |run: &RunInfo| run.interrupted == interruption && run.state != RunState::Claimed;
    let run = fixture.until(job, |runs| is_next(&runs[0])).await.remove(0);
    assert_eq!((run.attempt, run.taken_over), (interruption + 1, 1));
    drop(node);
    Some((run.start_at.duration_since(before).as_secs_f64(), run.state))
}

#[tokio::test]
async fn pauses_after_interruptions_double() {
    for (interruption, pause) in [(1, None), (2, Some(4.0)), (3, Some(8.0)), (5, Some(32.0))] {
        let Some((measured, state)) = pause_after(&[], interruption).await else {
            return;
        };
        match pause {
            // As much again at random, and the time until it is taken over.
            Some(pause) => {
                assert!(
                    (pause..pause * 1.5 + 10.0).contains(&measured),
                    "{measured}"
                );
                // A node may read it ahead, and has started it after the pause.
                assert!(
                    [RunState::Waiting, RunState::Running].contains(&state),
                    "{state:?}"
                );
            }
            None => {
                assert!(measured < 0.0, "{measured}");
                assert_eq!(state, RunState::Running);
            }
        }
    }
    // It starts only to end.
    let (pause, state) = pause_after(&[], 6).await.unwrap();
    assert!(pause < 0.0, "{pause}");
    assert!(
        [RunState::Running, RunState::Abandoned].contains(&state),
        "{state:?}"
    );
    let no_pause = ("interruptions BETWEEN 2 AND", "false AND 0 <");
    let (pause, state) = pause_after(&[no_pause], 3).await.unwrap();
    assert!(pause < 0.0, "{pause}");
    assert_eq!(state, RunState::Running);
}

#[derive(Clone, Copy)]
enum End {
    Lost,
    ShutDown,
    /// It has no network for longer than a lease.
    Network,
}

/// A node ends while it watches a suspect, beside another run. Returns how many interruptions do
/// not count, of the suspect and of the other one.
async fn lose_beside_a_suspect(sabotage: &[(&str, &str)], end: End) -> Option<(i32, i32)> {
    let fixture = Fixture::sabotaged(sabotage).await?;
    let relay = Relay::new(&fixture.config).await;
    let gate = Arc::new(Semaphore::new(0));
    let builder = || with_gate(fixture.builder(), &gate);
    let first = match end {
        End::Network => builder().lease(MS * 2_500),
        _ => builder(),
    };
    let first = first.start(relay.config.clone(), NoTls).await.unwrap();
    let innocent = fixture.enqueue_until(gate_job(), RunState::Running).await;
    let suspect = interrupted(&fixture, 2).await;
    fixture.until_state(suspect, RunState::Running).await;
    // The node begins it once it has the answer of the database.
    tokio::time::sleep(MS * 1_000).await;
    let node = match end {
        End::Lost => {
            fixture.lose(first).await;
            fixture.start(builder()).await
        }
        End::ShutDown => {
            first.shutdown(MS * 10).await.unwrap();
            fixture.start(builder()).await
        }
        End::Network => {
            relay.set(Link::Cut);
            tokio::time::sleep(MS * 5_500).await;
            relay.set(Link::Passes);
            first
        }
    };
    fixture
        .until(innocent, |runs| runs[0].interrupted == 1)
        .await;
    fixture
        .until(suspect, |runs| runs[0].interrupted == 3)
        .await;
    drop(node);
    Some((
        excused(&fixture, suspect).await,
        excused(&fixture, innocent).await,
    ))
}

#[tokio::test]
async fn runs_beside_a_suspect_are_excused() {
    let Some(excused) = lose_beside_a_suspect(&[], End::Lost).await else {
        return;
    };
    assert_eq!(excused, (0, 1));
    let no_watch = ("SET suspect = $2", "SET suspect = NULL");
    let excused = lose_beside_a_suspect(&[no_watch], End::Lost).await;
    assert_eq!(excused, Some((0, 0)));
}

#[tokio::test]
async fn no_interruption_is_excused_twice() {
    for end in [End::ShutDown, End::Network] {
        let Some(excused) = lose_beside_a_suspect(&[], end).await else {
            return;
        };
        assert_eq!(excused, (1, 1));
    }
}

/// The renewal of the lease does not wait until a large payload of a suspect has arrived.
#[tokio::test]
async fn start_of_a_suspect_does_not_lock_its_node() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let gate = Arc::new(Semaphore::new(0));
    gate.close();
    // 512 KiB in a second.
    let relay = Relay::with_pace(&fixture.config, Duration::from_micros(2)).await;
    let builder = with_gate(fixture.builder(), &gate);
    let node = builder.start(relay.config.clone(), NoTls).await.unwrap();
    let large = NewJob::named("gate", "a".repeat((4 << 20) - 2).into());
    let job = interrupted_job(&fixture, large, 2).await;
    let (began, mut free) = (Instant::now(), Instant::now());
    let mut longest = Duration::ZERO;
    let unlocked = format!(
        "SELECT id FROM {}.node FOR NO KEY UPDATE SKIP LOCKED",
        fixture.schema
    );
    while fixture.history(job).await[0].state != RunState::Done {
        if fixture.client.query(&unlocked, &[]).await.unwrap().len() == 1 {
            free = Instant::now();
        }
        longest = longest.max(free.elapsed());
        tokio::time::sleep(MS * 10).await;
    }
    assert!(began.elapsed() > MS * 5_000, "{:?}", began.elapsed());
    assert!(longest < MS * 1_000, "it was locked for {longest:?}");
    shut_down(node).await;
}

/// A suspect that is blocked is not watched.
#[tokio::test]
async fn suspect_that_does_not_start_is_not_watched() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    fixture
        .enqueue_until(gate_job().limit("x", 1), RunState::Running)
        .await;
    let suspect = interrupted_job(&fixture, gate_job().limit("x", 1), 2).await;
    fixture.until_state(suspect, RunState::Blocked).await;
    let watched = format!("SELECT suspect FROM {}.node", fixture.schema);
    eventually(async || {
        let node = fixture.client.query_one(&watched, &[]).await.unwrap();
        node.get::<_, Option<i64>>(0).is_none()
    })
    .await;
    gate.close();
    shut_down(node).await;
}

/// However many suspects there are, each process starts others before.
#[tokio::test]
async fn others_start_before_the_first_suspect() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let gate = Arc::new(Semaphore::new(0));
    let suspect = interrupted(&fixture, 5).await;
    let other = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let suspect = fixture.until_state(suspect, RunState::Running).await;
    // If the suspect were first, it would be watched for 32 seconds.
    let other = fixture.history(other).await.remove(0);
    assert_eq!(other.state, RunState::Done);
    assert!(other.started < suspect.started);
    drop(node);
}

/// After a suspect has been watched, the next start of another run ends that.
#[tokio::test]
async fn suspect_starts_alone() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let suspects = [
        interrupted(&fixture, 2).await,
        interrupted(&fixture, 3).await,
    ];
    let are_running = async |count: usize| {
        let mut running = Vec::new();
        for job in suspects {
            running.extend(fixture.history(job).await.remove(0).started);
        }
        (running.len() == count).then_some(running)
    };
    eventually(async || are_running(1).await.is_some()).await;
    let other = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let first = are_running(1).await.unwrap()[0];
    let other = fixture
        .until_done(other, 1)
        .await
        .remove(0)
        .started
        .unwrap();
    eventually(async || are_running(2).await.is_some()).await;
    let second = *are_running(2).await.unwrap().iter().max().unwrap();
    let after = |time: jiff::Timestamp| time.duration_since(first).as_secs_f64();
    // The watch of the first one, and as long for others. It has 2 interruptions, or 3.
    assert!((4.0..20.0).contains(&after(other)), "{}", after(other));
    assert!((8.0..40.0).contains(&after(second)), "{}", after(second));
    // The watch ends with the run.
    gate.close();
    for job in suspects {
        fixture.until_done(job, 1).await;
    }
    let last = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    let last = fixture.until_done(last, 1).await.remove(0);
    let late = last.started.unwrap().duration_since(last.due);
    assert!(late.as_secs_f64() < 3.0, "{late:?}");
    shut_down(node).await;
}

/// Shuts a node down again and again, while a run is executing that may not be interrupted.
async fn shut_down_often(sabotage: Option<(&str, &str)>) -> Option<RunInfo> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let builder = || with_gate(fixture.builder(), &gate);
    let mut node = fixture.start(builder()).await;
    let job = fixture.enqueue(gate_job().max_interruptions(0)).await;
    let is_next = |number: i32, run: &RunInfo| {
        run.interrupted == number && run.state == RunState::Running
            || run.state == RunState::Abandoned
    };
    for number in 0..3 {
        fixture
            .until(job, |runs| runs.len() == 1 && is_next(number, &runs[0]))
            .await;
        node.shutdown(MS * 10).await.unwrap();
        node = fixture.start(builder()).await;
    }
    let run = fixture
        .until(job, |runs| is_next(3, &runs[0]))
        .await
        .remove(0);
    drop(node);
    Some(run)
}

#[tokio::test]
async fn shutdown_does_not_count() {
    let Some(run) = shut_down_often(None).await else {
        return;
    };
    assert_eq!((run.state, run.interrupted), (RunState::Running, 3));
    let counts = (
        "SET excused = excused + 1 FROM unlocked",
        "SET excused = 0 FROM unlocked",
    );
    let run = shut_down_often(Some(counts)).await.unwrap();
    assert_eq!(run.state, RunState::Abandoned);
}

/// A run that pauses leaves its place to others.
#[tokio::test]
async fn place_of_a_run_that_pauses_is_handed_on() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let builder = || {
        let builder = fixture.builder().prefetch(MS * 300);
        with_gate(builder, &gate)
    };
    shut_down(fixture.start(builder()).await).await;
    let job = gate_job().after(Duration::from_secs(3_600)).limit("x", 1);
    let job = fixture.enqueue(job).await;
    fixture.jobs.run_now(&fixture.client, job).await.unwrap();
    interrupt(&fixture, job, 4).await;
    let lost = fixture.start(builder()).await;
    fixture.until_state(job, RunState::Running).await;
    fixture.lose(lost).await;
    let node = fixture.start(builder()).await;
    fixture.until_state(job, RunState::Waiting).await;
    let other = fixture
        .enqueue(NewJob::new(&Task::Succeed).limit("x", 1))
        .await;
    fixture.until_done(other, 1).await;
    assert_eq!(fixture.history(job).await[0].state, RunState::Waiting);
    drop(node);
}
