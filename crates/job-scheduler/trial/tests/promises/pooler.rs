//! Connections through a pooler in transaction mode.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use hashed_wheel_job_scheduler::{Error, NewJob, RunState};
use hashed_wheel_trial::server::{self, Missing, Scratch, Server};
use hashed_wheel_trial::testing::server_or_skip;
use tokio_postgres::{Config, NoTls};

use crate::fixture::{Fixture, LATER, MS, Task, connect, shut_down};

const MISSING: Missing =
    Missing { program: "pgbouncer", package: "pgbouncer", instead: "read the documentation of `Jobs`" };

/// Its clients share two connections.
struct Pooler {
    config: Config,
    _server: Server,
}

impl Pooler {
    /// Starts it before the server of this configuration.
    fn start(config: &Config, name: &str, settings: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let program = server::find("pgbouncer", [PathBuf::from("/usr/sbin")]).ok_or(MISSING)?;
        let scratch = Scratch::new(&format!("job_scheduler_{name}"), "TERM", &["postgres", "nobody"])?;
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
        config.host("127.0.0.1").port(port).user("postgres").dbname("postgres");
        Ok(Self { config, _server: server })
    }
}

#[tokio::test]
async fn node_refuses_a_pooler_and_leaves_no_settings_there() {
    let Some(fixture) = Fixture::new().await else { return };
    for (name, settings, reason) in
        [("strict", "", "startup parameter"), ("lax", "ignore_startup_parameters = options", "has no effect")]
    {
        let Some(pooler) = server_or_skip(Pooler::start(&fixture.config, name, settings)) else { return };
        let started = fixture.builder().start(pooler.config.clone(), NoTls).await;
        let error = started.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Pooler(why) if why.contains(reason)), "{error}");
        let client = connect(&pooler.config).await;
        for name in ["statement_timeout", "enable_seqscan", "idle_in_transaction_session_timeout"] {
            let text = format!("SELECT setting = reset_val, source FROM pg_settings WHERE name = '{name}'");
            let row = client.query_typed_one(&text, &[]).await.unwrap();
            assert_eq!((row.get(0), row.get(1)), (true, "default"), "{name}");
        }
    }
}

/// Each statement may be executed on another connection.
#[tokio::test]
async fn applications_may_use_a_pooler() {
    let Some(fixture) = Fixture::new().await else { return };
    let Some(pooler) = server_or_skip(Pooler::start(&fixture.config, "jobs", "")) else { return };
    let node = fixture.node().await;
    let jobs = &fixture.jobs;
    let use_all = async || {
        let mut client = connect(&pooler.config).await;
        for _ in 0..5 {
            let job = jobs.enqueue(&client, NewJob::new(&Task::Succeed).after(LATER)).await.unwrap().job;
            let cron = NewJob::new(&Task::Succeed).cron("0 0 0 1 1 *").key("cron").replace_existing();
            let cron = jobs.enqueue(&client, cron).await.unwrap().job;
            assert_eq!(jobs.find(&client, "cron").await.unwrap(), Some(cron));
            assert!(jobs.pause(&mut client, job).await.unwrap());
            assert!(!jobs.get(&client, job).await.unwrap().unwrap().enabled);
            assert!(jobs.resume(&mut client, job).await.unwrap());
            assert!(jobs.run_now(&client, job).await.unwrap().is_some());
            fixture.until(job, |runs| runs.iter().any(|run| run.state == RunState::Done)).await;
            assert!(!jobs.history(&client, job, 10).await.unwrap().is_empty());
            assert!(!jobs.list(&client, 0, 10).await.unwrap().is_empty());
            assert_eq!(jobs.nodes(&client).await.unwrap().len(), 1);
            assert_eq!(jobs.overview(&client, 10).await.unwrap().nodes.len(), 1);
            assert!(jobs.delete(&client, job).await.unwrap());
            tokio::time::sleep(MS * fastrand::u32(0..5)).await;
        }
    };
    tokio::join!(use_all(), use_all(), use_all());
    shut_down(node).await;
}
