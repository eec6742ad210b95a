//! Nodes that start, end and are lost.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_job_scheduler::{
    Context, Error, NewJob, NodeInfo, Overlap, RunError, RunInfo, RunState, Scheduler,
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_postgres::{Config, NoTls};

use crate::fixture::{Fixture, LATER, MS, Task, eventually, gate_job, shut_down, with_gate};

/// A handler that does nothing.
async fn nothing(_: Context, _: Value) -> Result<(), RunError> {
    Ok(())
}

#[tokio::test]
async fn nodes_that_start_at_once_create_the_tables_once() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let starting: Vec<_> = (0..6)
        .map(|number| {
            let builder = fixture.builder().name(format!("node {number}"));
            tokio::spawn(builder.start(fixture.config.clone(), NoTls))
        })
        .collect();
    let mut nodes = Vec::new();
    for node in starting {
        nodes.push(node.await.unwrap().expect("it starts"));
    }
    let versions = format!("SELECT version FROM {}.migration", fixture.schema);
    assert_eq!(fixture.client.query(&versions, &[]).await.unwrap().len(), 1);
    let alive = fixture.jobs.nodes(&fixture.client).await.unwrap();
    assert_eq!(
        alive
            .iter()
            .filter(|node| node.is_alive && node.name.starts_with("node "))
            .count(),
        6
    );
    for node in nodes {
        shut_down(node).await;
    }
}

/// A server answers that its version is 11.22, or does not know a setting, as it would.
#[tokio::test]
async fn server_that_is_too_old_is_refused() {
    let number = ("current_setting('server_version_num')", "'110022'");
    let version = ("current_setting('server_version')", "'11.22'");
    let Some(fixture) = Fixture::sabotaged(&[number, version]).await else {
        return;
    };
    let start = async |config: &Config| {
        let node = fixture.builder().start(config.clone(), NoTls);
        let error = node.await.unwrap_err();
        assert!(matches!(error, Error::ServerTooOld(_)), "{error}");
        error.to_string()
    };
    assert_eq!(
        start(&fixture.config).await,
        "PostgreSQL 12 or newer is required: the server has version 11.22"
    );
    let mut config = fixture.config.clone();
    config.options("-c plan_cache_modes=auto");
    assert_eq!(
        start(&config).await,
        "PostgreSQL 12 or newer is required: unrecognized configuration parameter \"plan_cache_modes\""
    );
    let text = "SELECT to_regnamespace($1) IS NULL";
    let row = fixture.client.query_one(text, &[&fixture.schema]).await;
    assert!(row.unwrap().get::<_, bool>(0), "it has created the schema");
}

#[tokio::test]
async fn tables_of_a_newer_version_are_not_touched() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    shut_down(fixture.node().await).await;
    let newer = format!("INSERT INTO {}.migration VALUES (1000)", fixture.schema);
    fixture.client.execute(&newer, &[]).await.unwrap();
    let error = fixture
        .builder()
        .start(fixture.config.clone(), NoTls)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::SchemaTooNew { found: 1000, .. }),
        "{error}"
    );
}

/// Such as those of an unreleased version, which have other columns, or no checksums.
#[tokio::test]
async fn tables_of_another_program_are_not_touched() {
    for change in [
        "UPDATE @migration SET checksum = '0'",
        "ALTER TABLE @migration DROP checksum",
    ] {
        let Some(fixture) = Fixture::new().await else {
            return;
        };
        shut_down(fixture.node().await).await;
        shut_down(fixture.node().await).await;
        let change = change.replace('@', &format!("{}.", fixture.schema));
        fixture.client.batch_execute(&change).await.unwrap();
        let error = fixture
            .builder()
            .start(fixture.config.clone(), NoTls)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::SchemaDiffers { version: 1 }),
            "{error}"
        );
    }
}

/// All settings that a role, a database or a URL may have, with which a statement could mean
/// something else or fail.
const SETTINGS: &str = "-c standard_conforming_strings=off -c default_transaction_read_only=on \
    -c default_transaction_isolation=serializable -c lock_timeout=1 -c statement_timeout=1 \
    -c idle_in_transaction_session_timeout=1 -c search_path=nowhere -c DateStyle=German,DMY \
    -c IntervalStyle=sql_standard -c TimeZone=Asia/Kathmandu -c bytea_output=escape -c row_security=off \
    -c check_function_bodies=off -c extra_float_digits=-15 -c plpgsql.variable_conflict=use_variable \
    -c transform_null_equals=on -c array_nulls=off -c enable_indexscan=off -c enable_nestloop=off";

#[tokio::test]
async fn settings_of_the_role_change_nothing() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let mut config = fixture.config.clone();
    config.options(SETTINGS);
    let node = fixture
        .builder()
        .start(config.clone(), NoTls)
        .await
        .unwrap();
    // An application with the same role, which allows only itself to write, and to wait.
    let client = crate::fixture::connect(&config).await;
    client
        .batch_execute("SET default_transaction_read_only = off; SET lock_timeout = 0; SET statement_timeout = 0;
             SET idle_in_transaction_session_timeout = 0")
        .await
        .unwrap();
    let jobs = &fixture.jobs;
    let second = NewJob::new(&Task::Succeed).cron("* * * * * *");
    let added = jobs.enqueue(&client, second).await.unwrap();
    let add = format!(
        "SELECT job FROM {}.add_job('task', '\"Succeed\"', cron => ' *   * * * *\t* ', key => 'a\\b',
            limits => '{{\"a\": 1}}', retries => 1, retry_first => '1 s', retry_max => '1 min', timeout => '1 min')",
        fixture.schema
    );
    let by_sql = client.query_one(&add, &[]).await.unwrap().get(0);
    for job in [added.job, by_sql] {
        let is_done = |run: &RunInfo| run.state == RunState::Done;
        fixture.until(job, |runs| runs.iter().any(is_done)).await;
    }
    assert_eq!(fixture.job(by_sql).await.schedule, "cron * * * * * *");
    let interval = NewJob::new(&Task::FailUntil(2)).retries(1, MS, MS);
    let retried = jobs.enqueue(&client, interval).await.unwrap().job;
    fixture.until_done(retried, 1).await;
    shut_down(node).await;
    // It creates the tables too.
    let other =
        hashed_wheel_job_scheduler::Jobs::new(&format!("{}_other", fixture.schema)).unwrap();
    let mut client = client;
    client
        .batch_execute("SET default_transaction_read_only = on")
        .await
        .unwrap();
    other.migrate(&mut client).await.unwrap();
}

#[tokio::test]
async fn invalid_settings_are_reported_before_a_connection_is_opened() {
    let nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
        .parse::<tokio_postgres::Config>()
        .unwrap();
    for (builder, reason) in [
        (
            Scheduler::builder().schema("No"),
            "'No' is no name for a schema",
        ),
        (Scheduler::builder().lease(MS), "lease of 1ms"),
        (
            Scheduler::builder()
                .handler_named("a", nothing)
                .handler_named("a", nothing),
            "two handlers for 'a'",
        ),
    ] {
        let error = builder.start(nowhere.clone(), NoTls).await.unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(what) if what.contains(reason)),
            "{error}"
        );
    }
    let error = Scheduler::builder()
        .start(nowhere, NoTls)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("database error: error connecting"),
        "{error}"
    );
}

#[tokio::test]
async fn job_without_a_handler_waits_for_a_node_that_has_one() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let old = fixture.node().await;
    let job = fixture.enqueue(NewJob::named("new", Value::Null)).await;
    tokio::time::sleep(MS * 1_000).await;
    assert!(fixture.history(job).await.is_empty());
    let new = fixture.builder().handler_named("new", nothing);
    let new = fixture.start(new).await;
    fixture.until_done(job, 1).await;
    shut_down(old).await;
    shut_down(new).await;
}

#[tokio::test]
async fn shutdown_finishes_what_is_running_and_gives_back_the_rest() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().prefetch(MS * 60_000), &gate))
        .await;
    let running = fixture.enqueue(gate_job()).await;
    fixture.until_state(running, RunState::Running).await;
    let claimed = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(LATER))
        .await;
    fixture.until_state(claimed, RunState::Claimed).await;
    let open = async {
        fixture.until_state(claimed, RunState::Waiting).await;
        gate.close();
    };
    tokio::join!(shut_down(node), open);
    assert_eq!(fixture.history(running).await[0].state, RunState::Done);
    assert_eq!(fixture.history(claimed).await[0].state, RunState::Waiting);
    fixture.make_start(claimed).await;
    let other = fixture.node().await;
    let run = &fixture.until_done(claimed, 1).await[0];
    assert_eq!((run.attempt, run.taken_over, run.node), (1, 0, Some(2)));
    shut_down(other).await;
}

#[tokio::test]
async fn shutdown_starts_no_blocked_runs() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().prefetch(MS * 60_000), &gate))
        .await;
    let job = fixture.enqueue(gate_job().overlap(Overlap::Wait)).await;
    fixture.until_state(job, RunState::Running).await;
    for _ in 0..5 {
        fixture.jobs.run_now(&fixture.client, job).await.unwrap();
    }
    let count = |runs: &[RunInfo], state| runs.iter().filter(|run| run.state == state).count();
    fixture
        .until(job, |runs| count(runs, RunState::Blocked) == 5)
        .await;
    let claimed = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(LATER))
        .await;
    fixture.until_state(claimed, RunState::Claimed).await;
    let open = async {
        fixture.until_state(claimed, RunState::Waiting).await;
        gate.close();
    };
    tokio::join!(shut_down(node), open);
    let runs = fixture.history(job).await;
    let states = [RunState::Done, RunState::Blocked].map(|state| count(&runs, state));
    assert_eq!(states, [1, 5], "{runs:?}");
}

#[tokio::test]
async fn blocked_run_of_a_replaced_job_waits_for_a_node_with_its_handler() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let old = fixture.start(with_gate(fixture.builder(), &gate)).await;
    let job = fixture
        .enqueue(gate_job().overlap(Overlap::Wait).key("k"))
        .await;
    fixture.until_state(job, RunState::Running).await;
    let new = fixture
        .start(fixture.builder().handler_named("new", nothing))
        .await;
    let replacement = NewJob::named("new", Value::Null)
        .overlap(Overlap::Wait)
        .key("k")
        .replace_existing();
    assert_eq!(fixture.enqueue(replacement).await, job);
    fixture
        .until(job, |runs| {
            runs.iter().any(|run| run.state == RunState::Blocked)
        })
        .await;
    gate.close();
    let runs = fixture.until_done(job, 2).await;
    assert_ne!(runs[0].node, runs[1].node, "{runs:?}");
    shut_down(old).await;
    shut_down(new).await;
}

#[tokio::test]
async fn shutdown_interrupts_what_exceeds_the_grace_and_marks_it() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let node = fixture.node().await;
    let job = fixture.enqueue(NewJob::new(&Task::HangOnce)).await;
    fixture.until_state(job, RunState::Running).await;
    node.shutdown(MS * 100).await.unwrap();
    let other = fixture.node().await;
    let run = fixture
        .until(job, |runs| runs[0].interrupted == 1)
        .await
        .remove(0);
    assert_eq!((run.attempt, run.taken_over), (2, 1));
    fixture.until_done(job, 1).await;
    shut_down(other).await;
}

#[tokio::test]
async fn runs_of_a_lost_node_are_taken_over_within_the_bound() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let lost = fixture
        .start(fixture.builder().lease(MS * 8_000).prefetch(MS * 60_000))
        .await;
    let interrupted = fixture.enqueue(NewJob::new(&Task::HangOnce)).await;
    fixture.until_state(interrupted, RunState::Running).await;
    let claimed = fixture
        .enqueue(NewJob::new(&Task::Succeed).after(LATER))
        .await;
    fixture.until_state(claimed, RunState::Claimed).await;
    drop(lost);
    fixture.make_start(claimed).await;
    let other = fixture.node().await;
    let run = &fixture.until_done(interrupted, 1).await[0];
    assert_eq!((run.attempt, run.interrupted, run.taken_over), (2, 1, 1));
    let run = &fixture.until_done(claimed, 1).await[0];
    assert_eq!((run.attempt, run.interrupted, run.taken_over), (1, 0, 1));
    // The bound is 8.3 s after its last beat. The rest is for a busy machine.
    let late = run.started.unwrap().duration_since(run.start_at);
    assert!(
        late < Duration::from_secs(20).try_into().unwrap(),
        "{late:?}"
    );
    assert_eq!(fixture.jobs.nodes(&fixture.client).await.unwrap().len(), 1);
    shut_down(other).await;
}

/// A run that is executing is not interrupted, because the node is back before the end of its
/// lease.
#[tokio::test]
async fn node_whose_connections_are_closed_starts_again_under_another_number() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let node = fixture
        .start(with_gate(fixture.builder().name("n"), &gate))
        .await;
    let job = fixture.enqueue(gate_job().max_interruptions(0)).await;
    fixture.until_state(job, RunState::Running).await;
    fixture.close_connections().await;
    let is_new = |node: &NodeInfo| node.id == 2 && node.name == "n";
    eventually(
        async || matches!(&fixture.jobs.nodes(&fixture.client).await.unwrap()[..], [node] if is_new(node)),
    )
    .await;
    gate.close();
    let run = fixture.until_state(job, RunState::Done).await;
    assert_eq!(
        (run.attempt, run.interrupted, run.taken_over, run.node),
        (1, 0, 0, Some(2))
    );
    shut_down(node).await;
}
