//! The schedulers: how each one is set up, gets jobs, and runs.

use std::error::Error;
use std::time::Duration;

use apalis::prelude::{
    BackendExt, BoxDynError, IntervalStrategy, ParallelizeExt, Strategy, TaskBuilder, WorkerBuilder,
};
use apalis_postgres::{Config as ApalisConfig, PgPool, PostgresStorage};
use chrono::DateTime;
use clap::ValueEnum;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions,
    WorkerRecoveryConfig,
};
use hashed_wheel_job_scheduler::{Context, Jobs, NewJob, RunError, Scheduler};
use jiff::Timestamp;
use riverqueue::migrate::PostgresMigrator;
use riverqueue::{InsertOpts, MaintenanceConfig, QueueConfig, WorkContext, WorkOutcome, Workers};
use tokio_postgres::{Client, NoTls};

use crate::work::Work;

pub(crate) type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A node that is lost is detected after this time, in the tuned settings. It is the default of
/// this crate.
const LEASE: Duration = Duration::from_secs(3);

/// The time between two heartbeats, in the tuned settings.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The time between two polls, in the tuned settings.
const POLL: Duration = Duration::from_millis(10);

/// The time between two polls in the example of apalis-postgres.
const APALIS_POLL: Duration = Duration::from_secs(5);

/// A scheduler with settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    Own,
    Apalis,
    ApalisTuned,
    Graphile,
    GraphileTuned,
    River,
    RiverTuned,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "hashed-wheel-job-scheduler",
            Self::Apalis | Self::ApalisTuned => "apalis-postgres 1.0",
            Self::Graphile | Self::GraphileTuned => "graphile_worker 0.14",
            Self::River | Self::RiverTuned => "riverqueue 0.5",
        }
    }

    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::Own | Self::Graphile => "defaults",
            Self::Apalis | Self::River => "as in its README",
            Self::ApalisTuned | Self::GraphileTuned | Self::RiverTuned => "tuned",
        }
    }

    /// Whether due times are whole seconds.
    pub(crate) fn has_whole_seconds(self) -> bool {
        matches!(self, Self::Apalis | Self::ApalisTuned)
    }

    /// Why the takeover of a lost node is not measured.
    pub(crate) fn no_takeover(self) -> Option<&'static str> {
        match self {
            Self::Apalis => Some("after 300 s"),
            Self::Graphile => Some("none"),
            Self::River | Self::RiverTuned => Some("after 1 h"),
            _ => None,
        }
    }

    /// Executes the jobs until the future is dropped.
    pub(crate) async fn run(self, url: String) -> Fallible<()> {
        match self {
            Self::Own => {
                let handler = |_: Context, work: Work| async move {
                    work.execute().await;
                    Ok::<_, RunError>(())
                };
                let _node = Scheduler::builder()
                    .handler(handler)
                    .start(url.parse()?, NoTls)
                    .await?;
                std::future::pending().await
            }
            Self::Apalis | Self::ApalisTuned => self.run_apalis(&url).await,
            Self::Graphile | Self::GraphileTuned => {
                Ok(self.graphile(&url).init().await?.run().await?)
            }
            Self::River | Self::RiverTuned => {
                let client = self.river(PgPool::connect(&url).await?)?;
                Ok(client.start()?.wait().await?)
            }
        }
    }

    async fn run_apalis(self, url: &str) -> Fallible<()> {
        async fn handler(work: Work) -> Result<(), BoxDynError> {
            work.execute().await;
            Ok(())
        }
        let pool = PgPool::connect(url).await?;
        let storage = PostgresStorage::new(&pool);
        let name = format!("node-{}", std::process::id());
        let config = ApalisConfig::default().queue(QUEUE);
        if self == Self::Apalis {
            let strategy = Strategy::new().interval(APALIS_POLL);
            let backend = storage
                .with_config(config)
                .with_pubsub()
                .poll_with_strategy(strategy);
            WorkerBuilder::new(name)
                .backend(backend)
                .build(handler)
                .run()
                .await?;
        } else {
            let missed = LEASE.as_secs() / HEARTBEAT.as_secs();
            let config = config
                .heartbeat_interval(HEARTBEAT)
                .missed_heartbeats(missed as usize);
            let config = config.batch_size(100).lock_tasks(false);
            let backend = storage.with_config(config).with_pubsub();
            let backend =
                backend.poll_with_strategy(Strategy::new().apply(IntervalStrategy::new(POLL)));
            let worker = WorkerBuilder::new(name)
                .backend(backend)
                .parallelize(tokio::spawn);
            worker.build(handler).run().await?;
        }
        Ok(())
    }

    fn graphile(self, url: &str) -> WorkerOptions {
        let options = WorkerOptions::default()
            .database_url(url)
            .listen_os_shutdown_signals(false)
            .define_job::<Work>();
        if self == Self::Graphile {
            return options;
        }
        let recovery = WorkerRecoveryConfig::default()
            .heartbeat_interval(HEARTBEAT)
            .sweep_interval(HEARTBEAT)
            .sweep_threshold(LEASE)
            .recovery_delay(Duration::ZERO);
        options
            .concurrency(16)
            .poll_interval(POLL)
            .local_queue(LocalQueueConfig::default().with_size(100))
            .complete_job_batch_delay(Duration::from_millis(5))
            .worker_recovery(recovery)
    }

    fn river(self, pool: PgPool) -> Fallible<riverqueue::Client> {
        let mut workers = Workers::new();
        workers.add_fn(async |_: WorkContext, job: riverqueue::Job<Work>| {
            job.args.execute().await;
            Ok::<_, BoxDynError>(WorkOutcome::Complete)
        })?;
        let client = riverqueue::Client::builder(pool).workers(workers);
        let client = if self == Self::River {
            client.queue(RIVER_QUEUE, QueueConfig::new(10))
        } else {
            let queue = QueueConfig::new(100)
                .with_fetch_cooldown(riverqueue::FETCH_COOLDOWN_MIN)
                .with_fetch_poll_interval(POLL);
            client
                .queue(RIVER_QUEUE, queue)
                .maintenance(MaintenanceConfig::default().with_scheduler_interval(POLL))
        };
        Ok(client.build()?)
    }
}

/// The default queue of riverqueue.
const RIVER_QUEUE: &str = "default";

impl riverqueue::JobArgs for Work {
    const KIND: &'static str = "work";
}

/// The name of the queue of apalis.
const QUEUE: &str = "work";

impl TaskHandler for Work {
    const IDENTIFIER: &'static str = "work";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        self.execute().await;
        Ok::<(), String>(())
    }
}

/// The side that enqueues.
pub(crate) enum Queue {
    Own(Client, Jobs),
    Apalis(PgPool),
    Graphile(Box<graphile_worker::Worker>),
    River(riverqueue::Client),
}

impl Queue {
    /// Connects, and creates the tables.
    pub(crate) async fn open(peer: Peer, url: &str) -> Fallible<Self> {
        Ok(match peer {
            Peer::Own => {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                tokio::spawn(connection);
                // The tables are created by a node.
                Scheduler::builder()
                    .start(url.parse()?, NoTls)
                    .await?
                    .shutdown(LEASE)
                    .await?;
                Self::Own(client, Jobs::new("job_scheduler")?)
            }
            Peer::Apalis | Peer::ApalisTuned => {
                let pool = PgPool::connect(url).await?;
                PostgresStorage::setup(&pool).await?;
                Self::Apalis(pool)
            }
            Peer::Graphile | Peer::GraphileTuned => {
                Self::Graphile(Box::new(peer.graphile(url).init().await?))
            }
            Peer::River | Peer::RiverTuned => {
                let pool = PgPool::connect(url).await?;
                PostgresMigrator::new(pool.clone()).migrate_up().await?;
                Self::River(peer.river(pool)?)
            }
        })
    }

    /// Adds jobs in one transaction. `is_due`: immediately, and otherwise at their due times.
    pub(crate) async fn push(&mut self, works: &[Work], is_due: bool) -> Fallible<()> {
        match self {
            Self::Own(client, jobs) => {
                let transaction = client.transaction().await?;
                for work in works {
                    let job = NewJob::new(work);
                    let due = Timestamp::from_microsecond(work.due as i64)?;
                    jobs.enqueue(&transaction, if is_due { job } else { job.at(due) })
                        .await?;
                }
                transaction.commit().await?;
            }
            Self::Apalis(pool) => {
                let tasks = works.iter().map(|work| {
                    let task =
                        TaskBuilder::new(serde_json::to_vec(work).expect("it is a plain value"));
                    if is_due {
                        task
                    } else {
                        task.run_at_timestamp(work.due / 1_000_000)
                    }
                    .build()
                });
                let mut transaction = pool.begin().await?;
                apalis_postgres::queries::push_tasks(&mut *transaction, QUEUE, tasks.collect())
                    .await?;
                transaction.commit().await?;
            }
            Self::Graphile(worker) => {
                let spec = |work: &Work| match DateTime::from_timestamp_micros(work.due as i64) {
                    Some(due) if !is_due => JobSpec::builder().run_at(due).build(),
                    _ => JobSpec::default(),
                };
                let specs: Vec<_> = works.iter().map(|work| (*work, spec(work))).collect();
                let specs: Vec<_> = specs.iter().map(|(work, spec)| (*work, spec)).collect();
                worker.create_utils().add_jobs(&specs).await?;
            }
            Self::River(client) => {
                let mut jobs = Vec::new();
                for &work in works {
                    let due = Timestamp::from_microsecond(work.due as i64)?;
                    let options = InsertOpts::default();
                    jobs.push(if is_due {
                        (work, options)
                    } else {
                        (work, options.with_scheduled_at(due))
                    });
                }
                client.insert_many(jobs).await?;
            }
        }
        Ok(())
    }
}
