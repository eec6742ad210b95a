//! Connections through a pooler in transaction mode.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_job_scheduler::{
    Cancellation, Error, JobFilter, NewJob, Overlap, RunInfo, RunState, SchedulerBuilder,
};
use hashed_wheel_trial::server::{self, Missing, Scratch, Server};
use hashed_wheel_trial::testing::server_or_skip;
use tokio::sync::Semaphore;
use tokio_postgres::{Config, NoTls};

use crate::fixture::{
    Fixture, LATER, MS, Task, connect, eventually, gate_job, shut_down, with_gate,
};

const MISSING: Missing = Missing {
    program: "pgbouncer",
    package: "pgbouncer",
    instead: "read the documentation of `Jobs`",
};

/// Its clients share two connections.
struct Pooler {
    config: Config,
    _server: Server,
}

impl Pooler {
    /// Starts it before the server of this configuration.
    fn start(
        config: &Config,
        name: &str,
        settings: &str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let program = server::find("pgbouncer", [PathBuf::from("/usr/sbin")]).ok_or(MISSING)?;
        let scratch = Scratch::new(
            &format!("job_scheduler_{name}"),
            "TERM",
            &["postgres", "nobody"],
        )?;
        let (port, database) = (server::free_port()?, config.get_ports()[0]);
        let file = scratch.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={database} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n{settings}\n"
        );
        fs::write(&file, text)?;
        let mut command = scratch.command(program);
        let log = fs::File::create(scratch.path().join("log"))?;
        command.arg(&file).stdout(log.try_clone()?).stderr(log);
        let is_ready = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let server = Server::start(&scratch, &mut command, Duration::from_secs(30), is_ready)?;
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(port)
            .user("postgres")
            .dbname("postgres");
        Ok(Self {
            config,
            _server: server,
        })
    }
}

#[tokio::test]
async fn node_refuses_a_pooler_and_leaves_no_settings_there() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    for (name, settings, reason) in [
        ("strict", "", "startup parameter"),
        (
            "lax",
            "ignore_startup_parameters = options",
            "has no effect",
        ),
    ] {
        let Some(pooler) = server_or_skip(Pooler::start(&fixture.config, name, settings)) else {
            return;
        };
        let started = fixture.builder().start(pooler.config.clone(), NoTls).await;
        let error = started.map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Pooler(why) if why.contains(reason)),
            "{error}"
        );
        assert_no_settings(&pooler).await;
    }
}

/// The pooler gives these connections to others.
async fn assert_no_settings(pooler: &Pooler) {
    let client = connect(&pooler.config).await;
    for name in [
        "statement_timeout",
        "enable_seqscan",
        "idle_in_transaction_session_timeout",
    ] {
        let text =
            format!("SELECT setting = reset_val, source FROM pg_settings WHERE name = '{name}'");
        let row = client.query_typed_one(&text, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), (true, "default"), "{name}");
    }
}

/// Each statement may be executed on another connection.
#[tokio::test]
async fn applications_may_use_a_pooler() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let Some(pooler) = server_or_skip(Pooler::start(&fixture.config, "jobs", "")) else {
        return;
    };
    let node = fixture.node().await;
    let jobs = &fixture.jobs;
    let use_all = async || {
        let mut client = connect(&pooler.config).await;
        for _ in 0..5 {
            let job = jobs
                .enqueue(&client, NewJob::new(&Task::Succeed).after(LATER))
                .await
                .unwrap()
                .job;
            let cron = NewJob::new(&Task::Succeed)
                .cron("0 0 0 1 1 *")
                .key("cron")
                .replace_existing();
            let cron = jobs.enqueue(&client, cron).await.unwrap().job;
            assert_eq!(jobs.find(&client, "cron").await.unwrap(), Some(cron));
            assert!(jobs.pause(&mut client, job).await.unwrap());
            assert!(!jobs.get(&client, job).await.unwrap().unwrap().enabled);
            assert!(jobs.resume(&mut client, job).await.unwrap());
            assert!(jobs.run_now(&client, job).await.unwrap().is_some());
            fixture
                .until(job, |runs| {
                    runs.iter().any(|run| run.state == RunState::Done)
                })
                .await;
            assert!(!jobs.history(&client, job, 10).await.unwrap().is_empty());
            let all = JobFilter::default();
            let page = jobs.search(&client, &all, 0, 10).await.unwrap();
            assert!(!page.jobs.is_empty());
            assert_eq!(jobs.nodes(&client).await.unwrap().len(), 1);
            assert_eq!(jobs.overview(&client, 10).await.unwrap().nodes.len(), 1);
            assert!(jobs.delete(&client, job).await.unwrap());
            tokio::time::sleep(MS * fastrand::u32(0..5)).await;
        }
    };
    tokio::join!(use_all(), use_all(), use_all());
    shut_down(node).await;
}

/// All that a node does, on two connections of the server.
#[tokio::test]
async fn nodes_without_notifications_may_use_a_pooler() {
    let Some(fixture) = Fixture::new().await else {
        return;
    };
    let Some(pooler) = server_or_skip(Pooler::start(&fixture.config, "nodes", "")) else {
        return;
    };
    let gate = Arc::new(Semaphore::new(0));
    let start = async |builder: SchedulerBuilder| {
        let builder = with_gate(builder.without_notifications(), &gate);
        builder.start(pooler.config.clone(), NoTls).await.unwrap()
    };
    let lost = start(fixture.builder()).await;
    let taken_over = fixture.enqueue(NewJob::new(&Task::HangOnce)).await;
    fixture.until_state(taken_over, RunState::Running).await;
    fixture.lose(lost).await;
    let node = start(fixture.builder().heartbeat(MS * 1_000).prefetch(MS * 5_000)).await;
    assert_eq!(fixture.until_done(taken_over, 1).await[0].interrupted, 1);

    // Within a heartbeat, if they are due when they are enqueued, and otherwise on time.
    let every = fixture
        .enqueue(
            NewJob::new(&Task::Succeed)
                .every(MS * 100)
                .after(MS * 2_000),
        )
        .await;
    let waiting = NewJob::new(&Task::Sleep(20))
        .every(MS * 50)
        .overlap(Overlap::Wait);
    let waiting = fixture.enqueue(waiting).await;
    let retried = fixture
        .enqueue(NewJob::new(&Task::FailUntil(3)).retries(2, MS, MS))
        .await;
    let cancelled = fixture.enqueue(gate_job()).await;
    let run = fixture.until_state(cancelled, RunState::Running).await.id;
    let outcome = fixture.jobs.cancel(&fixture.client, run).await.unwrap();
    assert_eq!(outcome, Some(Cancellation::Requested));
    fixture.until_state(cancelled, RunState::Cancelled).await;
    assert_eq!(fixture.until_done(retried, 1).await[0].attempt, 3);
    let count = |runs: &[RunInfo]| {
        runs.iter()
            .filter(|run| run.state == RunState::Done)
            .count()
    };
    fixture.until(waiting, |runs| count(runs) > 20).await;
    let runs = fixture.until(every, |runs| count(runs) > 20).await;
    let late = |run: &RunInfo| {
        run.started
            .map(|started| started.duration_since(run.start_at))
    };
    let mut late: Vec<_> = runs.iter().filter_map(late).collect();
    late.sort();
    // With polls only, the median would be half a second.
    assert!(
        late[late.len() / 2] < (MS * 250).try_into().unwrap(),
        "{late:?}"
    );

    // It starts again, and keeps what it executes.
    let kept = fixture.enqueue(gate_job().max_interruptions(0)).await;
    fixture.until_state(kept, RunState::Running).await;
    // The pooler hides the end of a connection from its clients, unless one of them is using it.
    for _ in 0..30 {
        fixture.close_connections().await;
        tokio::time::sleep(MS * 3).await;
    }
    let is_new = async || {
        fixture
            .jobs
            .nodes(&fixture.client)
            .await
            .unwrap()
            .iter()
            .all(|node| node.id > 2)
    };
    eventually(is_new).await;
    gate.close();
    let run = fixture.until_state(kept, RunState::Done).await;
    assert_eq!((run.attempt, run.interrupted), (1, 0));
    shut_down(node).await;
    assert_no_settings(&pooler).await;
}

#[tokio::test]
async fn node_without_notifications_needs_the_usual_transactions() {
    for (setting, reason) in [
        ("isolation=serializable", "must be 'read committed'"),
        (
            "read_only=on",
            "default_transaction_read_only of 'on': must be 'off'",
        ),
    ] {
        let Some(fixture) = Fixture::new().await else {
            return;
        };
        let mut config = fixture.config.clone();
        config.options(format!("-c default_transaction_{setting}"));
        let started = fixture
            .builder()
            .without_notifications()
            .start(config.clone(), NoTls)
            .await;
        let error = started.map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(why) if why.contains(reason)),
            "{error}"
        );
        // Others set it.
        shut_down(fixture.builder().start(config, NoTls).await.unwrap()).await;
    }
}
