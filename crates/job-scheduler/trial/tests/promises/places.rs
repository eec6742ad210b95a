//! Limits on runs that are running at a time, counted by their handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use hashed_wheel_job_scheduler::{
    KindLimits, NewJob, Overlap, RunError, RunState, SchedulerBuilder,
};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::fixture::{Fixture, LATER, MS, Task, eventually, gate_job, kill, shut_down, with_gate};

/// Long enough to show that something does not happen.
const UNEXPECTED: Duration = Duration::from_millis(1_500);

/// Counts what is executing, independently of the scheduler.
#[derive(Clone, Default)]
struct Counter(Arc<Counts>);

#[derive(Default)]
struct Counts {
    running: AtomicUsize,
    max: AtomicUsize,
    ended: AtomicUsize,
}

impl Counter {
    /// Adds the handler `count`, whose runs take 20 ms.
    fn add_to(&self, builder: SchedulerBuilder) -> SchedulerBuilder {
        let counter = self.clone();
        builder.handler_named("count", move |_, _| {
            let counter = counter.clone();
            async move {
                let begun = counter.begin();
                tokio::time::sleep(MS * 20).await;
                drop(begun);
                counter.0.ended.fetch_add(1, SeqCst);
                Ok::<_, RunError>(())
            }
        })
    }

    fn begin(&self) -> Running {
        let count = self.0.running.fetch_add(1, SeqCst) + 1;
        self.0.max.fetch_max(count, SeqCst);
        Running(self.0.clone())
    }

    fn max(&self) -> usize {
        self.0.max.load(SeqCst)
    }
}

/// An execution. It may end because its node is lost.
struct Running(Arc<Counts>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

fn count_job() -> NewJob {
    NewJob::named("count", Value::Null)
}

async fn state(fixture: &Fixture, job: i64) -> Option<RunState> {
    fixture.history(job).await.first().map(|run| run.state)
}

async fn count(fixture: &Fixture, condition: &str) -> i64 {
    let text = format!(
        "SELECT count(*) FROM {}.run WHERE {condition}",
        fixture.schema
    );
    fixture.client.query_one(&text, &[]).await.unwrap().get(0)
}

/// Whether this many runs are running, and this many blocked.
async fn are_running(fixture: &Fixture, running: i64, blocked: i64) -> bool {
    count(fixture, "state = 'running'").await == running
        && count(fixture, "state = 'blocked'").await == blocked
}

/// Jobs with a limit of 3 on three nodes, of which some are killed. Returns the largest number of
/// runs that were running at a time.
async fn count_under_kills(sabotage: &[(&str, &str)]) -> Option<usize> {
    let fixture = Fixture::sabotaged(sabotage).await?;
    let counter = Counter::default();
    let builder = |name: &str| counter.add_to(fixture.builder()).name(name);
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(fixture.start(builder(&number.to_string())).await);
    }
    const JOBS: usize = 150;
    for _ in 0..JOBS {
        fixture.enqueue(count_job().limit("api", 3)).await;
    }
    for number in 3..6 {
        let before = counter.0.ended.load(SeqCst);
        eventually(async || counter.0.ended.load(SeqCst) >= (before + 10).min(JOBS)).await;
        fixture
            .lose_only(nodes.remove(0), &(number - 3).to_string())
            .await;
        nodes.push(fixture.start(builder(&number.to_string())).await);
    }
    eventually(async || count(&fixture, "state = 'done'").await == JOBS as i64).await;
    fixture.until_no_place_is_taken().await;
    for node in nodes {
        shut_down(node).await;
    }
    Some(counter.max())
}

#[tokio::test]
async fn limit_of_a_name_holds_on_all_nodes_while_some_are_killed() {
    let Some(max) = count_under_kills(&[]).await else {
        return;
    };
    assert_eq!(max, 3);
    let no_place = [
        (
            "candidate.free[n] <= COALESCE((used ->> candidate.names[n])::integer, 0)",
            "false",
        ),
        ("AND slot.place BETWEEN 1 AND needed.places", ""),
    ];
    assert!(count_under_kills(&no_place).await > Some(3));
    // Without the numbers, the rows of the places are enough.
    assert_eq!(count_under_kills(&no_place[..1]).await, Some(3));
}

#[tokio::test]
async fn limit_of_a_name_can_be_changed_while_runs_wait() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let set = async |count| {
        fixture
            .jobs
            .set_limit(&fixture.client, "bank", count)
            .await
            .unwrap()
    };
    for _ in 0..6 {
        fixture.enqueue(gate_job().limit("bank", 2)).await;
    }
    eventually(async || are_running(&fixture, 2, 4).await).await;
    set(Some(4)).await;
    let limits = async || fixture.jobs.limits(&fixture.client, "", 10).await.unwrap();
    assert_eq!(limits().await, [("bank".to_owned(), 4)]);
    eventually(async || are_running(&fixture, 4, 2).await).await;
    // A new job with a larger number does not overtake them.
    fixture.enqueue(gate_job().limit("bank", 9)).await;
    eventually(async || are_running(&fixture, 4, 3).await).await;
    // The numbers of the jobs hold again: the first of the old ones waits, and so do all behind it.
    set(None).await;
    assert!(limits().await.is_empty());
    gate.add_permits(1);
    eventually(async || are_running(&fixture, 3, 3).await).await;
    tokio::time::sleep(UNEXPECTED).await;
    assert!(are_running(&fixture, 3, 3).await);
    gate.add_permits(6);
    eventually(async || count(&fixture, "state = 'done'").await == 7).await;
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
}

#[tokio::test]
async fn run_has_one_place_although_it_was_handed_one_beyond_the_limit() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    let job = fixture
        .enqueue(gate_job().after(LATER).limit("bank", 2))
        .await;
    let run = fixture
        .jobs
        .run_now(&fixture.client, job)
        .await
        .unwrap()
        .unwrap();
    // The limit was higher, and all others have ended.
    let places = format!(
        "INSERT INTO {}.slot VALUES ('key bank', 1, NULL), ('key bank', 3, {run})",
        fixture.schema
    );
    fixture.client.batch_execute(&places).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    fixture.until_state(job, RunState::Running).await;
    let places = format!(
        "SELECT place FROM {}.slot WHERE run = {run}",
        fixture.schema
    );
    let places = fixture.client.query(&places, &[]).await.unwrap();
    assert_eq!(
        places
            .iter()
            .map(|row| row.get::<_, i32>(0))
            .collect::<Vec<_>>(),
        [1]
    );
    gate.add_permits(1);
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
}

#[tokio::test]
async fn limit_of_a_kind_can_be_changed_while_runs_wait() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let other = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let set = async |limits| {
        fixture
            .jobs
            .set_kind(&fixture.client, "gate", limits)
            .await
            .unwrap()
    };
    set(KindLimits::new().running(2)).await;
    let kinds = async || fixture.jobs.kinds(&fixture.client, "", 10).await.unwrap();
    let (kind, limits) = kinds().await.remove(0);
    assert_eq!((&*kind, limits.running), ("gate", Some(2)));
    for _ in 0..8 {
        fixture.enqueue(gate_job()).await;
    }
    eventually(async || are_running(&fixture, 2, 6).await).await;
    set(KindLimits::new().running(5)).await;
    eventually(async || are_running(&fixture, 5, 3).await).await;
    // Those that are running continue.
    set(KindLimits::new().running(1)).await;
    tokio::time::sleep(UNEXPECTED).await;
    assert!(are_running(&fixture, 5, 3).await);
    gate.add_permits(4);
    eventually(async || are_running(&fixture, 1, 3).await).await;
    tokio::time::sleep(UNEXPECTED).await;
    assert!(are_running(&fixture, 1, 3).await);
    set(KindLimits::new()).await;
    assert!(kinds().await.is_empty());
    eventually(async || are_running(&fixture, 4, 0).await).await;
    gate.close();
    eventually(async || count(&fixture, "state = 'done'").await == 8).await;
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
    shut_down(other).await;
}

#[tokio::test]
async fn backlog_of_a_name_delays_no_other_job() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().capacity(8).runners(4), &gate))
        .await;
    for _ in 0..100 {
        fixture
            .enqueue(gate_job().limit("tenant-1", 1).limit("bank", 2))
            .await;
    }
    // They hold neither runners nor capacity, nor a place of the other name.
    for name in ["tenant-2", "tenant-3"] {
        let job = NewJob::new(&Task::Succeed).limit(name, 1).limit("bank", 2);
        let job = fixture.enqueue(job).await;
        fixture.until_done(job, 1).await;
    }
    eventually(async || count(&fixture, "state = 'blocked'").await == 99).await;
    assert_eq!(count(&fixture, "state = 'running'").await, 1);
    gate.close();
    eventually(async || count(&fixture, "state = 'done'").await == 102).await;
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
}

/// Two names that are needed together and alone, on two nodes.
#[tokio::test]
async fn runs_with_several_names_end_although_each_name_is_full() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let counter = Counter::default();
    let builder = || counter.add_to(fixture.builder());
    let nodes = [
        fixture.start(builder()).await,
        fixture.start(builder()).await,
    ];
    fixture
        .jobs
        .set_kind(&fixture.client, "count", KindLimits::new().running(3))
        .await
        .unwrap();
    for number in 0..30 {
        let mut job = count_job().overlap(Overlap::Wait);
        for (bit, name) in [(1, "a"), (2, "b"), (4, "c")] {
            if number & bit != 0 {
                job = job.limit(name, 1);
            }
        }
        fixture.enqueue(job).await;
    }
    eventually(async || count(&fixture, "state = 'done'").await == 30).await;
    assert!(counter.max() <= 3);
    fixture.until_no_place_is_taken().await;
    for node in nodes {
        shut_down(node).await;
    }
}

/// A run that is deleted while it is executing, and whose node is lost after that. Returns whether
/// the next run with its name has started, before and after the loss.
async fn delete_and_lose(sabotage: Option<(&str, &str)>) -> Option<[bool; 2]> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let lost = fixture
        .start(with_gate(fixture.builder().name("lost"), &gate))
        .await;
    let deleted = fixture
        .enqueue_until(gate_job().limit("x", 1), RunState::Running)
        .await;
    let other = fixture.node().await;
    assert!(fixture.jobs.delete(&fixture.client, deleted).await.unwrap());
    let next = fixture
        .enqueue_until(NewJob::new(&Task::Succeed).limit("x", 1), RunState::Blocked)
        .await;
    tokio::time::sleep(UNEXPECTED).await;
    let before = state(&fixture, next).await != Some(RunState::Blocked);
    fixture.lose_only(lost, "lost").await;
    if sabotage.is_none() {
        fixture.until_done(next, 1).await;
    } else {
        tokio::time::sleep(UNEXPECTED).await;
    }
    let after = state(&fixture, next).await != Some(RunState::Blocked);
    drop(other);
    Some([before, after])
}

#[tokio::test]
async fn place_of_a_deleted_run_is_free_after_the_end_of_its_node() {
    let Some(started) = delete_and_lose(None).await else {
        return;
    };
    assert_eq!(started, [false, true]);
    assert_eq!(
        delete_and_lose(Some((
            "SELECT @settle(make_interval(secs => $1), $2, $3)",
            "SELECT '' FROM (SELECT make_interval(secs => $1), $2::text, $3::bigint) AS nothing"
        )))
        .await,
        Some([false, false])
    );
}

/// The node of the first blocked runs is lost, and no other node has their handler. Returns whether
/// a later run with their name gets the place that becomes free.
async fn pass_over_a_lost_handler(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let first = fixture
        .enqueue_until(gate_job().limit("x", 1), RunState::Running)
        .await;
    let counter = Counter::default();
    let lost = fixture
        .start(counter.add_to(fixture.builder()).name("lost"))
        .await;
    let mut lost_runs = Vec::new();
    // If they got places, `settle` would take one at each heartbeat.
    for _ in 0..20 {
        lost_runs.push(fixture.enqueue(count_job().limit("x", 1)).await);
    }
    eventually(async || count(&fixture, "state = 'blocked'").await == 20).await;
    let last = fixture
        .enqueue_until(NewJob::new(&Task::Succeed).limit("x", 1), RunState::Blocked)
        .await;
    fixture.lose_only(lost, "lost").await;
    gate.add_permits(1);
    fixture.until_done(first, 1).await;
    if sabotage.is_some() {
        tokio::time::sleep(UNEXPECTED).await;
        drop(node);
        return Some(state(&fixture, last).await == Some(RunState::Done));
    }
    fixture.until_done(last, 1).await;
    assert_eq!(count(&fixture, "state = 'blocked'").await, 20);
    let back = fixture.start(counter.add_to(fixture.builder())).await;
    for run in lost_runs {
        fixture.until_done(run, 1).await;
    }
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
    shut_down(back).await;
    Some(true)
}

#[tokio::test]
async fn place_goes_to_a_run_whose_handler_a_node_has() {
    let Some(has_run) = pass_over_a_lost_handler(None).await else {
        return;
    };
    assert!(has_run);
    let also_others = (
        "SELECT unnest(node.handlers) FROM",
        "SELECT 'count' UNION SELECT unnest(node.handlers) FROM",
    );
    assert_eq!(
        pass_over_a_lost_handler(Some(also_others)).await,
        Some(false)
    );
}

/// A run that was handed a place, and waits for its node, which does not answer and then is lost.
/// Returns whether the next run gets the place.
async fn lose_the_heir(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    fixture
        .enqueue_until(gate_job().limit("x", 1), RunState::Running)
        .await;
    let lost = fixture
        .start(Counter::default().add_to(fixture.builder()).name("lost"))
        .await;
    let heir = fixture
        .enqueue_until(count_job().limit("x", 1), RunState::Blocked)
        .await;
    let next = fixture
        .enqueue_until(NewJob::new(&Task::Succeed).limit("x", 1), RunState::Blocked)
        .await;
    // Its lease has not ended.
    kill(lost).await;
    gate.add_permits(1);
    fixture.until_state(heir, RunState::Waiting).await;
    fixture.set_lease(&fixture.client, "lost", "0").await;
    if sabotage.is_none() {
        fixture.until_done(next, 1).await;
    } else {
        tokio::time::sleep(UNEXPECTED).await;
    }
    drop(node);
    Some(state(&fixture, next).await == Some(RunState::Done))
}

#[tokio::test]
async fn place_of_a_run_that_waits_for_a_lost_handler_is_handed_on() {
    let Some(has_run) = lose_the_heir(None).await else {
        return;
    };
    assert!(has_run);
    let no_check = (
        "WHEN 'waiting' THEN NOT @is_served(run.handler)",
        "WHEN 'waiting' THEN false",
    );
    assert_eq!(lose_the_heir(Some(no_check)).await, Some(false));
}

/// A node is lost with a run that no other node executes. Returns whether the next run with its
/// name gets the place.
async fn lose_the_only_handler(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    // The first node creates the functions.
    let lost = fixture
        .start(with_gate(fixture.builder().name("lost"), &gate))
        .await;
    let first = fixture
        .enqueue_until(gate_job().limit("x", 1), RunState::Running)
        .await;
    let node = fixture.node().await;
    let next = fixture
        .enqueue_until(NewJob::new(&Task::Succeed).limit("x", 1), RunState::Blocked)
        .await;
    fixture.lose_only(lost, "lost").await;
    if sabotage.is_some() {
        tokio::time::sleep(UNEXPECTED).await;
        drop(node);
        return Some(state(&fixture, next).await != Some(RunState::Blocked));
    }
    fixture.until_done(next, 1).await;
    // It takes a place again when it is executed again.
    let back = fixture.start(with_gate(fixture.builder(), &gate)).await;
    fixture
        .until(first, |runs| {
            runs[0].interrupted == 1 && runs[0].state == RunState::Running
        })
        .await;
    let other = fixture
        .enqueue_until(NewJob::new(&Task::Succeed).limit("x", 1), RunState::Blocked)
        .await;
    gate.close();
    fixture.until_done(first, 1).await;
    fixture.until_done(other, 1).await;
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
    shut_down(back).await;
    Some(true)
}

#[tokio::test]
async fn place_of_a_lost_run_is_free_if_no_node_has_its_handler() {
    let Some(has_run) = lose_the_only_handler(None).await else {
        return;
    };
    assert!(has_run);
    let no_check = ("AND NOT @is_served(run.handler)", "AND false");
    assert_eq!(lose_the_only_handler(Some(no_check)).await, Some(false));
}

/// The end of a node's lease passes while a transaction renews it. Returns whether the place of its
/// run is handed on.
async fn renew_slowly(sabotage: &[(&str, &str)]) -> Option<bool> {
    let fixture = Fixture::sabotaged(sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let slow = fixture
        .start(with_gate(fixture.builder().name("slow"), &gate))
        .await;
    fixture
        .enqueue_until(gate_job().limit("x", 1), RunState::Running)
        .await;
    let node = fixture.node().await;
    let next = fixture
        .enqueue_until(NewJob::new(&Task::Succeed).limit("x", 1), RunState::Blocked)
        .await;
    kill(slow).await;
    fixture.set_lease(&fixture.client, "slow", "2 s").await;
    let mut client = crate::fixture::connect(&fixture.config).await;
    let transaction = client.transaction().await.unwrap();
    fixture.set_lease(&transaction, "slow", "1 hour").await;
    tokio::time::sleep(MS * 2_000 + UNEXPECTED).await;
    let state = state(&fixture, next).await;
    transaction.commit().await.unwrap();
    drop(node);
    Some(state != Some(RunState::Blocked))
}

#[tokio::test]
async fn node_that_is_renewing_its_lease_keeps_its_places() {
    let Some(is_handed_on) = renew_slowly(&[]).await else {
        return;
    };
    assert!(!is_handed_on);
    let no_lock = [
        (
            "WHERE node.alive_until <= clock_timestamp() FOR UPDATE SKIP LOCKED",
            "WHERE node.alive_until <= clock_timestamp()",
        ),
        (
            "WHERE node.id = ANY (lost) AND node.handlers <> '{}';",
            "WHERE false;",
        ),
    ];
    assert_eq!(renew_slowly(&no_lock).await, Some(true));
}

/// A transaction that pauses the job of a blocked run while its place becomes free.
#[tokio::test]
async fn place_is_not_lost_if_the_run_that_waits_is_locked() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let jobs = fixture.jobs.clone();
    for is_paused in [false, true] {
        let first = fixture
            .enqueue_until(gate_job().limit("x", 1), RunState::Running)
            .await;
        let second = fixture
            .enqueue_until(gate_job().limit("x", 1), RunState::Blocked)
            .await;
        let client = crate::fixture::connect(&fixture.config).await;
        let mut transaction = fixture.client.transaction().await.unwrap();
        assert!(jobs.pause(&mut transaction, second).await.unwrap());
        gate.add_permits(1);
        let is_done =
            async || jobs.history(&client, first, 1).await.unwrap()[0].state == RunState::Done;
        eventually(is_done).await;
        // Others with this name are not delayed.
        let other = jobs
            .enqueue(&client, NewJob::new(&Task::Succeed).limit("x", 1))
            .await
            .unwrap()
            .job;
        let is_done = async || {
            jobs.history(&client, other, 1)
                .await
                .unwrap()
                .iter()
                .any(|run| run.state == RunState::Done)
        };
        eventually(is_done).await;
        if is_paused {
            transaction.commit().await.unwrap();
            // It is as if no node had read its due time.
            assert_eq!(state(&fixture, second).await, None);
        } else {
            transaction.rollback().await.unwrap();
            fixture.until_state(second, RunState::Running).await;
            gate.add_permits(1);
            fixture.until_done(second, 1).await;
        }
    }
    fixture.until_no_place_is_taken().await;
    shut_down(node).await;
}
