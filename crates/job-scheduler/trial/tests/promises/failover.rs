//! Failovers: a node with several hosts finds the standby that was promoted.

use std::time::Duration;

use hashed_wheel_job_scheduler::{Misfire, NewJob, RunInfo, RunState, Scheduler};
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::Database;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Config, NoTls};

use crate::fixture::{Fixture, MS, Task, eventually, shut_down};
use crate::network::{Link, Relay};

/// A primary, and a standby without which the primary commits nothing. So no commit is lost.
struct Pair {
    primary: Option<Database>,
    standby: Database,
}

impl Pair {
    fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let primary = Database::start()?;
        let standby = primary.start_standby()?;
        Ok(Self {
            primary: Some(primary),
            standby,
        })
    }

    /// Returns the two servers, the primary first.
    async fn fixtures(&self) -> [Fixture; 2] {
        let primary = self.primary.as_ref().unwrap();
        let fixtures = [
            fixture(&primary.url).await,
            fixture(&self.standby.url).await,
        ];
        for statement in [
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
        ] {
            fixtures[0].client.batch_execute(statement).await.unwrap();
        }
        let text = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
        eventually(async || {
            fixtures[0]
                .client
                .query_one(text, &[])
                .await
                .unwrap()
                .get(0)
        })
        .await;
        fixtures
    }
}

async fn fixture(url: &str) -> Fixture {
    Fixture::at(url.parse().unwrap(), "jobs").await
}

/// As an application writes it:
/// `postgresql://user@one,two/database?target_session_attrs=read-write`.
fn hosts(first: &Config, second: &Config) -> Config {
    let ports = [first, second].map(|config| config.get_ports()[0]);
    let [one, two] = ports.map(|port| format!("127.0.0.1:{port}"));
    format!("postgresql://postgres@{one},{two}/postgres?target_session_attrs=read-write")
        .parse()
        .unwrap()
}

/// In a thread without a runtime, because it uses a blocking client.
fn start_pair() -> Option<Pair> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| server_or_skip(Pair::start()))
            .join()
            .unwrap()
    })
}

/// Jobs on the primary, which is lost then.
struct Work {
    interrupted: i64,
    later: i64,
    every: i64,
}

impl Work {
    async fn start(primary: &Fixture, node: &Scheduler) -> Self {
        let done = primary.enqueue(NewJob::new(&Task::Succeed)).await;
        primary.until_done(done, 1).await;
        let interrupted = primary.enqueue(NewJob::new(&Task::HangOnce)).await;
        primary.until_state(interrupted, RunState::Running).await;
        let later = primary
            .enqueue(NewJob::new(&Task::Succeed).after(MS * 4_000))
            .await;
        let every = NewJob::new(&Task::Succeed)
            .every(MS * 100)
            .misfire(Misfire::RunAll);
        let every = primary.enqueue(every).await;
        primary
            .until(every, |runs| {
                runs.iter().any(|run| run.state == RunState::Done)
            })
            .await;
        assert!(node.health().is_ready);
        Self {
            interrupted,
            later,
            every,
        }
    }

    /// Promotes the standby, after the node has lost its lease.
    async fn continue_on(self, standby: &Fixture, node: &Scheduler, lease: Duration) {
        eventually(async || !node.health().is_ready).await;
        tokio::time::sleep(lease).await;
        standby
            .client
            .batch_execute("SELECT pg_promote()")
            .await
            .unwrap();
        let run = standby.until_done(self.interrupted, 1).await.remove(0);
        assert_eq!((run.attempt, run.interrupted), (2, 1));
        standby.until_done(self.later, 1).await;
        let new = standby.enqueue(NewJob::new(&Task::Succeed)).await;
        standby.until_done(new, 1).await;
        // Each due time has a run, also those without a server.
        let is_done = |run: &&RunInfo| run.state == RunState::Done;
        let runs = standby
            .until(self.every, |runs| runs.iter().filter(is_done).count() > 60)
            .await;
        let mut due: Vec<_> = runs.iter().map(|run| run.due).collect();
        due.sort();
        assert!(
            due.windows(2)
                .all(|pair| pair[1].duration_since(pair[0]).as_millis() == 100),
            "{due:?}"
        );
        assert!(node.health().is_ready);
    }
}

#[tokio::test]
async fn node_finds_the_standby_after_the_loss_of_the_primary() {
    let Some(mut pair) = start_pair() else { return };
    let [primary, standby] = pair.fixtures().await;
    let lease = MS * 1_500;
    // The first host is not the primary: it refuses to be used as one.
    let config = hosts(&standby.config, &primary.config);
    let node = primary
        .builder()
        .lease(lease)
        .start(config, NoTls)
        .await
        .unwrap();
    let work = Work::start(&primary, &node).await;
    drop(pair.primary.take());
    work.continue_on(&standby, &node, lease).await;
    shut_down(node).await;
}

#[tokio::test]
async fn node_finds_the_standby_while_the_primary_accepts_connections_and_does_not_answer() {
    let Some(pair) = start_pair() else { return };
    let [primary, standby] = pair.fixtures().await;
    let lease = MS * 3_000;
    let relay = Relay::new(&primary.config).await;
    let config = hosts(&relay.config, &standby.config);
    let node = primary
        .builder()
        .lease(lease)
        .start(config.clone(), NoTls)
        .await
        .unwrap();
    let work = Work::start(&primary, &node).await;
    relay.set(Link::Frozen);
    work.continue_on(&standby, &node, lease).await;
    // tokio-postgres waits for the first host, although it has a time limit for the connection.
    let mut limited = config;
    limited.connect_timeout(MS * 500);
    assert_eq!(
        limited.get_target_session_attrs(),
        TargetSessionAttrs::ReadWrite
    );
    assert!(
        tokio::time::timeout(MS * 1_500, limited.connect(NoTls))
            .await
            .is_err()
    );
    shut_down(node).await;
}
