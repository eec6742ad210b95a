//! Sessions that end by an error, again and again: what is executing on the node is not
//! interrupted, while the node can renew its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel_job_scheduler::{Context, NewJob, RunError, RunInfo, RunState, Scheduler};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

use crate::fixture::{Fixture, MS, Task, eventually, gate_job, shut_down, with_gate};
use crate::network::{Link, Relay};

/// So long that it does not end because the machine is busy.
const LEASE: Duration = Duration::from_secs(8);

impl Fixture {
    /// Returns the number of the newest node.
    async fn last_node(&self) -> i64 {
        let nodes = self.jobs.nodes(&self.client).await.unwrap();
        nodes.iter().map(|node| node.id).max().unwrap_or(0)
    }

    /// Starts a node with a lease that may end, and a run that must not be interrupted, until the
    /// gate is closed.
    async fn execute_until_closed(&self) -> (Arc<Semaphore>, Scheduler, i64) {
        let gate = Arc::new(Semaphore::new(0));
        let builder = self.builder().lease(LEASE);
        let node = self.start(with_gate(builder, &gate)).await;
        let job = gate_job().max_interruptions(0);
        let job = self.enqueue_until(job, RunState::Running).await;
        (gate, node, job)
    }

    /// Waits for the end of the only run of a job, which must be done or abandoned.
    async fn end_of(&self, job: i64) -> RunInfo {
        let ended = [RunState::Done, RunState::Abandoned];
        self.until(job, |runs| ended.contains(&runs[0].state))
            .await
            .remove(0)
    }
}

/// Closes the connections of a node three times while a run is executing that must not be
/// interrupted. Returns the end of the run.
async fn close_connections_again_and_again(sabotage: Option<(&str, &str)>) -> Option<RunInfo> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let job = fixture.enqueue(gate_job().max_interruptions(0)).await;
    fixture.until_state(job, RunState::Running).await;
    for number in 1..=3 {
        fixture.close_connections().await;
        eventually(async || fixture.last_node().await > number).await;
    }
    gate.close();
    let run = fixture.end_of(job).await;
    drop(node);
    Some(run)
}

#[tokio::test]
async fn connections_that_are_closed_again_and_again_interrupt_nothing() {
    let Some(run) = close_connections_again_and_again(None).await else {
        return;
    };
    assert_eq!(
        (run.state, run.attempt, run.interrupted, run.taken_over),
        (RunState::Done, 1, 0, 0)
    );
    let no_adoption = (
        "WHERE owner = ANY ($2) AND state = 'running'",
        "WHERE false AND owner = ANY ($2) AND state = 'running'",
    );
    let run = close_connections_again_and_again(Some(no_adoption))
        .await
        .unwrap();
    assert_eq!(run.state, RunState::Abandoned);
}

/// Commits, and closes the connection if the last registration has one of these numbers.
fn commit_and_close(numbers: &str) -> String {
    format!(
        "COMMIT; DO $$ BEGIN
            IF (SELECT max(id) IN ({numbers}) FROM @node) THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
        END $$\0"
    )
}

/// The server commits the second and the third registration of a process, and closes their
/// connections. Returns the end of the run that is executing meanwhile, and the number of the node.
async fn lose_the_answers_to_registrations(
    sabotage: Option<(&str, &str)>,
) -> Option<(RunInfo, i64)> {
    let close = commit_and_close("2, 3");
    // Otherwise the registrations of the changed form take most of the lease.
    let pause = ("pg_sleep($3)", "pg_sleep(0 * $3)");
    let changes = [Some(("COMMIT\0", &*close)), Some(pause), sabotage];
    let fixture = Fixture::sabotaged(changes.iter().flatten()).await?;
    let (gate, node, job) = fixture.execute_until_closed().await;
    fixture.close_connections().await;
    eventually(async || fixture.last_node().await == 4).await;
    gate.close();
    let run = fixture.end_of(job).await;
    shut_down(node).await;
    Some((run, fixture.last_node().await))
}

#[tokio::test]
async fn registrations_that_are_not_answered_interrupt_nothing() {
    let only_the_first = (
        "WHERE owner = ANY ($2) AND state = 'running' AND id = ANY ($3)",
        "WHERE owner = ($2::bigint[])[1] AND state = 'running' AND id = ANY ($3)",
    );
    let (end, sabotaged) = tokio::join!(
        lose_the_answers_to_registrations(None),
        lose_the_answers_to_registrations(Some(only_the_first)),
    );
    let (Some((run, node)), Some((sabotaged, _))) = (end, sabotaged) else {
        return;
    };
    assert_eq!(
        (run.state, run.attempt, run.interrupted, run.taken_over),
        (RunState::Done, 1, 0, 0)
    );
    assert_eq!(node, 4);
    assert_eq!(sabotaged.state, RunState::Abandoned);
}

/// The number of a registration that was not answered is then the number of another node, whose
/// lease ends later. Returns whether that node is alive after the next registration.
async fn register_beside_the_same_number(sabotage: Option<(&str, &str)>) -> Option<bool> {
    let other = "UPDATE @node SET name = 'other', alive_until = alive_until + interval '1 hour'
            WHERE id = 2 AND name <> 'other';";
    let other = other.to_owned() + &commit_and_close("2");
    let changes = [Some(("COMMIT\0", &*other)), sabotage];
    let fixture = Fixture::sabotaged(changes.iter().flatten()).await?;
    let node = fixture.node().await;
    fixture.close_connections().await;
    eventually(async || fixture.last_node().await == 3).await;
    let nodes = fixture.jobs.nodes(&fixture.client).await.unwrap();
    shut_down(node).await;
    Some(nodes.iter().any(|node| node.id == 2 && node.is_alive))
}

#[tokio::test]
async fn registration_does_not_end_another_node_with_the_same_number() {
    let Some(is_alive) = register_beside_the_same_number(None).await else {
        return;
    };
    assert!(is_alive);
    let any_time = (
        "known.alive_until) IS NOT FALSE",
        "known.alive_until) IS NOT NULL OR true",
    );
    assert_eq!(
        register_beside_the_same_number(Some(any_time)).await,
        Some(false)
    );
}

/// Counts its end, also if it is dropped.
struct Execution(Arc<AtomicUsize>);

impl Execution {
    fn count_in(executions: Arc<AtomicUsize>) -> Self {
        executions.fetch_add(1, Relaxed);
        Self(executions)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Without a network, the node cannot know whether another node repeats the run. (On a busy machine
/// the lease may end before the network does. Then the run is repeated.)
#[tokio::test]
async fn executions_end_with_the_lease() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    for link in [Link::Cut, Link::Frozen] {
        let relay = Relay::new(&fixture.config).await;
        let executions = Arc::new(AtomicUsize::new(0));
        let counter = executions.clone();
        let never = move |_: Context, _: Value| {
            let execution = Execution::count_in(counter.clone());
            async move {
                let _execution = execution;
                std::future::pending::<Result<(), RunError>>().await
            }
        };
        let builder = fixture.mortal().handler_named("never", never);
        let node = builder.start(relay.config.clone(), NoTls).await.unwrap();
        let job = fixture.enqueue(NewJob::named("never", Value::Null)).await;
        eventually(async || executions.load(Relaxed) == 1).await;
        relay.set(link);
        eventually(async || executions.load(Relaxed) == 0).await;
        drop(node);
        fixture.jobs.delete(&fixture.client, job).await.unwrap();
    }
}

/// The node was not lost. It returns after the end of its lease, and repeats the run, which may not
/// be repeated by a node after the loss of another one. Returns the end of the run.
async fn lose_the_network_for_longer_than_a_lease(
    sabotage: Option<(&str, &str)>,
) -> Option<RunInfo> {
    let fixture = Fixture::sabotaged(&sabotage).await?;
    let relay = Relay::new(&fixture.config).await;
    let gate = Arc::new(Semaphore::new(0));
    let builder = fixture.builder().lease(LEASE);
    let node = with_gate(builder, &gate)
        .start(relay.config.clone(), NoTls)
        .await
        .unwrap();
    let job = fixture.enqueue(gate_job().max_interruptions(0)).await;
    fixture.until_state(job, RunState::Running).await;
    // The node begins it once it has the answer of the database.
    tokio::time::sleep(MS * 1_000).await;
    relay.set(Link::Cut);
    tokio::time::sleep(LEASE + MS * 3_000).await;
    relay.set(Link::Passes);
    let is_next = |run: &RunInfo| run.interrupted > 0 && run.state != RunState::Claimed;
    fixture.until(job, |runs| is_next(&runs[0])).await;
    gate.close();
    let run = fixture.end_of(job).await;
    drop(node);
    Some(run)
}

#[tokio::test]
async fn network_that_fails_for_longer_than_a_lease_abandons_no_run() {
    let counts = ("run.interrupted - run.excused", "run.interrupted");
    let (run, sabotaged) = tokio::join!(
        lose_the_network_for_longer_than_a_lease(None),
        lose_the_network_for_longer_than_a_lease(Some(counts)),
    );
    let (Some(run), Some(sabotaged)) = (run, sabotaged) else {
        return;
    };
    assert_eq!(
        (run.state, run.attempt, run.interrupted),
        (RunState::Done, 2, 1)
    );
    assert_eq!(sabotaged.state, RunState::Abandoned);
}

/// Makes statements that set runs to a state take longer than a lease, if this holds.
async fn delay(fixture: &Fixture, state: &str, condition: &str) {
    let delay = format!(
        "CREATE FUNCTION @delay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(60);
            RETURN NEW;
        END $$;
        CREATE TRIGGER delay BEFORE UPDATE ON @run FOR EACH ROW
            WHEN (OLD.state <> NEW.state AND NEW.state = '{state}' AND {condition}) EXECUTE FUNCTION @delay()"
    );
    fixture
        .client
        .batch_execute(&delay.replace('@', &format!("{}.", fixture.schema)))
        .await
        .unwrap();
}

async fn long(_: Context, length: u32) -> Result<String, RunError> {
    Ok("a".repeat(length as usize))
}

/// As over a slow network. The node restarts, but nothing else is interrupted.
#[tokio::test]
async fn output_that_is_not_written_within_a_lease_is_a_failure_of_its_run_only() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let handler = |context, length: Value| long(context, length.as_u64().unwrap() as u32);
    let builder = with_gate(fixture.builder().lease(LEASE), &gate).handler_named("long", handler);
    let node = fixture.start(builder).await;
    let neighbour = fixture.enqueue(gate_job().max_interruptions(0)).await;
    fixture.until_state(neighbour, RunState::Running).await;
    delay(&fixture, "done", "octet_length(NEW.output::text) > 100000").await;
    let large = fixture
        .enqueue(NewJob::named("long", 200_000.into()).retries(5, MS, MS))
        .await;
    let run = fixture.until_state(large, RunState::Failed).await;
    let error = "the output of 200002 bytes could not be written within a lease";
    assert_eq!(
        (run.attempt, run.interrupted, run.error.as_deref()),
        (1, 0, Some(error))
    );
    gate.close();
    let run = fixture.until_state(neighbour, RunState::Done).await;
    assert_eq!((run.attempt, run.interrupted), (1, 0));
    let other = fixture.enqueue(NewJob::named("long", 50_000.into())).await;
    fixture.until_done(other, 1).await;
    shut_down(node).await;
}

/// Closes the connections of a node each time when one of its statements is delayed, five times.
async fn close_connections_of_delayed_statements(fixture: &Fixture) {
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE $1";
    let query = format!("%\"{}\".%_runs(%", fixture.schema);
    for number in 1..=5 {
        eventually(async || {
            fixture.last_node().await == number
                && fixture
                    .client
                    .query_one(sleeping, &[&query])
                    .await
                    .unwrap()
                    .get::<_, i64>(0)
                    > 0
        })
        .await;
        fixture.close_connections().await;
    }
}

/// Both are large, but it is not their fault that a statement fails at once.
#[tokio::test]
async fn payload_and_output_are_not_blamed_for_connections_that_are_closed() {
    for state in ["running", "done"] {
        let Some(fixture) = Fixture::new().await else {
            return;
        };
        let builder = fixture
            .builder()
            .lease(LEASE * 5)
            .handler_named("copy", |_, payload: Value| async {
                Ok::<_, RunError>(payload)
            });
        let node = fixture.start(builder).await;
        delay(&fixture, state, "NEW.owner <= 5").await;
        let job = NewJob::named("copy", "a".repeat(100_000).into()).max_interruptions(0);
        let job = fixture.enqueue(job).await;
        close_connections_of_delayed_statements(&fixture).await;
        let run = fixture
            .until(job, |runs| runs[0].finished.is_some())
            .await
            .remove(0);
        assert_eq!(
            (run.state, run.attempt, run.interrupted),
            (RunState::Done, 1, 0),
            "{state} {:?}",
            run.error
        );
        shut_down(node).await;
    }
}

/// The node asks in time, and the answer is late.
#[tokio::test]
async fn lease_that_a_slow_database_has_not_renewed_abandons_no_run() {
    let Some(mut fixture) = Fixture::new().await else {
        return;
    };
    let (gate, node, job) = fixture.execute_until_closed().await;
    let leases = format!(
        "UPDATE {}.node SET alive_until = alive_until RETURNING (clock_timestamp() < alive_until)",
        fixture.schema
    );
    // The renewal waits for this transaction, until it is too late.
    let transaction = fixture.client.transaction().await.unwrap();
    while transaction.query_one(&leases, &[]).await.unwrap().get(0) {
        tokio::time::sleep(MS * 5).await;
    }
    transaction.commit().await.unwrap();
    fixture
        .until(job, |runs| {
            runs[0].interrupted > 0 && runs[0].state != RunState::Claimed
        })
        .await;
    gate.close();
    let run = fixture
        .until(job, |runs| runs[0].finished.is_some())
        .await
        .remove(0);
    assert_eq!(
        (run.state, run.attempt, run.interrupted),
        (RunState::Done, 2, 1)
    );
    shut_down(node).await;
}

/// A run whose payload does not get through ends as one that ends its node.
#[tokio::test]
async fn payload_that_is_not_read_within_a_lease_ends_its_run_only() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    fixture.migrate().await;
    // It is not read when the run is abandoned.
    delay(&fixture, "running", "NEW.interrupted < 2 AND NEW.job = 1").await;
    let gate = Arc::new(Semaphore::new(0));
    let builder = with_gate(fixture.builder().lease(LEASE), &gate)
        .handler_named("ignore", |_, _: Value| async { Ok::<_, RunError>(()) });
    let node = fixture.start(builder).await;
    let first = fixture.last_node().await;
    let neighbour = NewJob::named("gate", Value::Null)
        .max_interruptions(0)
        .after(MS * 3_600_000);
    let payload = "a".repeat(100_000);
    let large = NewJob::named("ignore", payload.into()).max_interruptions(1);
    let large = fixture.enqueue(large.after(MS * 500)).await;
    assert_eq!(large, 1);
    let neighbour = fixture.enqueue(neighbour).await;
    fixture
        .jobs
        .run_now(&fixture.client, neighbour)
        .await
        .unwrap();
    fixture.until_state(neighbour, RunState::Running).await;
    let run = fixture.until_state(large, RunState::Abandoned).await;
    assert_eq!(
        (run.interrupted, run.error.as_deref()),
        (2, Some("interrupted 2 times"))
    );
    assert!(fixture.last_node().await >= first + 2);
    let small = fixture.enqueue(NewJob::new(&Task::Succeed)).await;
    fixture.until_done(small, 1).await;
    gate.close();
    let run = fixture.until_state(neighbour, RunState::Done).await;
    assert_eq!((run.attempt, run.interrupted), (1, 0));
    shut_down(node).await;
}
