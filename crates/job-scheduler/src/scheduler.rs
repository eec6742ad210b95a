//! A node: its builder and its handle.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, Socket};

use crate::caught::caught;
use crate::connect::{Connector, round_trip};
use crate::error::Error;
use crate::execution::Executions;
use crate::handler::{Context, Handlers, RunError};
use crate::health::{self, Ended, Health, Monitor, Vitals};
use crate::hosts::within;
use crate::job::Payload;
use crate::jobs::Jobs;
use crate::node;
use crate::session::{Previous, Session, Stop};
use crate::settings::{Settings, Shared};
use crate::shares::Shares;
use crate::sql::Names;
use crate::testing::Inline;

/// The time limit of migrations, among them those of other nodes that start at the same time.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The settings of a [`Scheduler`].
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Context, Payload, RunError, Scheduler};
/// use serde::{Deserialize, Serialize};
/// use tokio_postgres::NoTls;
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Payload for SendMail {
///     const HANDLER: &'static str = "send-mail";
/// }
///
/// async fn send(_: Context, mail: SendMail) -> Result<(), RunError> {
///     println!("to {}", mail.to);
///     Ok(())
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = "postgresql://user@localhost/shop".parse()?;
/// let scheduler = Scheduler::builder().schema("jobs").handler(send).start(config, NoTls).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a node runs after `start`"]
pub struct SchedulerBuilder {
    settings: Settings,
    schema: String,
    handlers: Handlers,
    timer: Option<HashedWheelTimer>,
}

impl SchedulerBuilder {
    /// The schema of the tables. It is created if it does not exist. Nodes with the same database
    /// and schema share the jobs. Lower-case letters, digits and underscores. The default is
    /// `job_scheduler`.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// The name of this node in [`Jobs::nodes`]. The default is empty.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Executes the jobs with payloads of this type.
    ///
    /// A node reads only jobs for which it has a handler. The others wait for another node, for
    /// example during the roll-out of a new version.
    ///
    /// The handler is a task of the runtime. Code that blocks belongs into
    /// [`spawn_blocking`](tokio::task::spawn_blocking). The output is stored as JSON. It is a
    /// failure without a retry if it has more than 4 MiB or more than 127 levels. An `Err` or a
    /// panic is a failure, and the first 64 KiB of its text are stored. The future is dropped at an
    /// `.await` if it exceeds its [`timeout`](crate::NewJob::timeout), if the run is
    /// [cancelled](Context::cancelled), or if the node loses its lease.
    ///
    /// A job runs at least once for each due time. It runs more than once if a node is lost, if
    /// that is after the effect and before the result is written. See [`Context::interrupted`].
    pub fn handler<P, F, Fut, R>(mut self, function: F) -> Self
    where
        P: Payload,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, RunError>> + Send + 'static,
        R: Serialize,
    {
        self.handlers.add(P::HANDLER.to_owned(), function);
        self
    }

    /// Like [`handler`](Self::handler), for jobs of [`NewJob::named`](crate::NewJob::named).
    pub fn handler_named<F, Fut, R>(mut self, name: impl Into<String>, function: F) -> Self
    where
        F: Fn(Context, serde_json::Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, RunError>> + Send + 'static,
        R: Serialize,
    {
        self.handlers.add(name.into(), function);
        self
    }

    /// How far in advance runs are read: from the heartbeat to one minute. The default is 5 s.
    pub fn prefetch(mut self, prefetch: Duration) -> Self {
        self.settings.prefetch = prefetch;
        self
    }

    /// The runs of a node that has not renewed its lease for this time are taken over: from 500 ms
    /// to one minute. The default is 3 s.
    ///
    /// A run of a lost node starts elsewhere at most `lease + heartbeat` after the last beat of the
    /// lost node, if another node has capacity. The same durations limit how long a call of the
    /// database may take. The lease must be at least six times the round trip to the database.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// The longest time between two renewals of the lease, and between two regular reads: from
    /// 50 ms to half of the lease. The default is a third of the lease.
    ///
    /// The time is random between half of this and this. An idle node commits twice each time.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.settings.heartbeat = Some(heartbeat);
        self
    }

    /// A due time that no node could read is a [misfire](crate::Misfire) when it is older than
    /// this. At least the lease. The default is one minute, as in Quartz.
    pub fn misfire_after(mut self, age: Duration) -> Self {
        self.settings.misfire_after = age;
        self
    }

    /// The maximum number of runs that are read at a time. The default is 512.
    pub fn batch(mut self, count: usize) -> Self {
        self.settings.batch = count;
        self
    }

    /// The maximum number of runs that the node has at a time: read ahead, waiting for a runner, or
    /// running. Other nodes get the rest. Runs that wait for the locks of an application do not
    /// count. The default is 1024.
    ///
    /// If the node has several handlers, each takes one more place only if it has less than seven
    /// times the free ones. So a backlog of one handler takes at most seven eighths, and that of another
    /// one seven eighths of the rest. With the default, four handlers with backlogs can take all.
    pub fn capacity(mut self, count: usize) -> Self {
        self.settings.capacity = count;
        self
    }

    /// The maximum number of runs that execute at a time. The default is 64.
    ///
    /// A runner that becomes free is for the handler with the fewest executions. So a backlog of
    /// slow runs delays other handlers by one of its runs, and not by all of them. If these take
    /// minutes, give their handler a [limit](crate::KindLimits::running) that is lower than the
    /// number of runners.
    ///
    /// If all of them are busy for longer than a lease, the node gives the runs that have not
    /// started to other nodes, and reads no more until a run has ended. If there are no others, it
    /// reads on.
    pub fn runners(mut self, count: usize) -> Self {
        self.settings.runners = count;
        self
    }

    /// The results of runs are removed when they are older than this, and finished jobs with them.
    /// At least one second. The default is 7 days.
    pub fn retention(mut self, age: Duration) -> Self {
        self.settings.retention = age;
        self
    }

    /// How long a handler may continue after its run is [cancelled](Jobs::cancel). Then its future
    /// is dropped, at its next `.await`. At most one hour. The default is 500 ms.
    ///
    /// A handler that has to clean up uses [`Context::cancelled`], and ends before.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.settings.cancel_grace = grace;
        self
    }

    /// Neither notifications nor anything else that belongs to a session of PostgreSQL: so this
    /// node may connect through a pooler in transaction mode, such as `PgBouncer`.
    ///
    /// The node learns of jobs and of [cancellations](Jobs::cancel) when it reads the next time,
    /// after at most a [`heartbeat`](Self::heartbeat), instead of some milliseconds. Runs that are
    /// due after that are on time, because they are read in advance.
    ///
    /// **If all nodes of a schema are built so, nothing in this schema sends a notification**:
    /// neither enqueuing nor another call. Transactions that notify commit only one after the
    /// other, in all databases of a server. See
    /// [`NewJob::without_notification`](crate::NewJob::without_notification) for single jobs.
    ///
    /// The `default_transaction_isolation` of the role must be `read committed`, and its
    /// `default_transaction_read_only` off. The time limits of a node for its statements apply to
    /// its transactions only.
    pub fn without_notifications(mut self) -> Self {
        self.settings.listens = false;
        self
    }

    /// The timer for the runs of the next seconds. The scheduler does not stop it. The default is a
    /// timer of its own, with a tick of one millisecond.
    pub fn timer(mut self, timer: HashedWheelTimer) -> Self {
        self.timer = Some(timer);
        self
    }

    /// Executes a job with the handlers of this builder, without a database and nodes, in a test.
    /// See [`testing`](crate::testing).
    pub fn inline(&self) -> Inline<'_> {
        Inline::new(&self.handlers, self.settings.cancel_grace)
    }

    /// Checks the settings, as [`start`](Self::start) does first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] says which setting is invalid, and what is valid.
    pub fn check(&self) -> Result<(), Error> {
        Names::new(&self.schema)?;
        if let Some(name) = &self.handlers.duplicate {
            return Err(Error::Invalid(format!(
                "there are two handlers for '{name}'"
            )));
        }
        self.settings.check()
    }

    /// Connects, creates or updates the tables, registers the node, and starts it as a task of the
    /// current tokio runtime.
    ///
    /// `tls` is [`NoTls`](tokio_postgres::NoTls), or the connector of a TLS library for
    /// tokio-postgres. A node has four connections, directly to PostgreSQL: they have settings, as
    /// `options` of the start-up message, and one of them listens. (Except
    /// [`without_notifications`](Self::without_notifications).) Several nodes can start at the same
    /// time.
    ///
    /// `config` may have several hosts, of which one is the primary: with
    /// `target_session_attrs=read-write`, the node uses the one that accepts writes, and finds the
    /// other one after a failover. It tries them in their order. Each of them gets an equal part of
    /// the lease to answer (of a minute for the first connection), and each address of its name an
    /// equal part of that, or less by `connect_timeout`: see [`hosts`](crate::hosts).
    ///
    /// # Errors
    ///
    /// If a setting is invalid, if a round trip to the database takes longer than a sixth of the
    /// lease ([`Error::Invalid`]), if the database cannot be reached ([`Error::Unconnected`] if it
    /// has several addresses), is behind a pooler ([`Error::Pooler`]) or older than PostgreSQL 12
    /// ([`Error::ServerTooOld`]), if it does not allow to create the tables, or if they belong to
    /// another version of this crate.
    ///
    /// # Panics
    ///
    /// If it is not called in a tokio runtime with I/O and time enabled.
    pub async fn start<T>(self, config: Config, tls: T) -> Result<Scheduler, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.check()?;
        let jobs = Jobs::new(&self.schema)?;
        let names = jobs.names.clone();
        let own_timer = self.timer.is_none();
        // All of its timeouts are due within a minute.
        let timer = self
            .timer
            .unwrap_or_else(|| HashedWheelTimer::new(Duration::from_millis(1), 8_192));
        let connector = Connector::new(config, tls, self.settings.listens, timer.clone());
        let connected = connector.connect(MIGRATION_TIMEOUT, |_, _| {}, Arc::default());
        let mut client = connected.await?;
        let migration = async {
            jobs.migrate(&mut client).await?;
            self.settings.check_network(round_trip(&client).await?)
        };
        within(&timer, MIGRATION_TIMEOUT, migration).await?;
        let vitals = Arc::new(Vitals::new(self.settings.lease));
        let (announcer, monitor) = health::announcer(vitals.clone());
        let (settings, handlers) = (self.settings, self.handlers);
        let shared = Arc::new(Shared {
            settings,
            names,
            handlers,
            connector,
            timer,
            vitals,
            held: Shares::default(),
            executing: Shares::default(),
        });
        let (executions, results) = Executions::new(shared.clone());
        let first = Session::open(shared.clone(), &executions, &mut Previous::default()).await?;
        let (stop, stopped) = watch::channel(Stop::No);
        let task = tokio::spawn(async move {
            let node = caught(node::run(
                shared, first, executions, results, stopped, own_timer,
            ));
            let result = node
                .await
                .unwrap_or_else(|message| Err(Error::Panic(message)));
            announcer.announce(&result);
            result
        });
        Ok(Scheduler {
            jobs,
            stop,
            monitor,
            task: Some(task),
        })
    }
}

/// A node, which runs until it is shut down.
///
/// Errors of the database do not end it: it tries again until the database is back, under another
/// number.
///
/// If this value is dropped without [`shutdown`](Self::shutdown), the node ends as if its process
/// were killed: handlers are dropped at their next `.await`, and other nodes take over its runs
/// after its lease.
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Context, RunError, Scheduler};
/// use std::time::Duration;
/// use tokio_postgres::NoTls;
///
/// async fn greet(_: Context, name: serde_json::Value) -> Result<(), RunError> {
///     println!("hello {name}");
///     Ok(())
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = "postgresql://user@localhost/shop".parse()?;
/// let node = Scheduler::builder().handler_named("greet", greet).start(config, NoTls).await?;
/// // Until the process should end:
/// node.shutdown(Duration::from_secs(10)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Scheduler {
    jobs: Jobs,
    stop: watch::Sender<Stop>,
    monitor: Monitor,
    task: Option<JoinHandle<Result<(), Error>>>,
}

impl Scheduler {
    /// Returns a builder with the default settings and no handler.
    pub fn builder() -> SchedulerBuilder {
        SchedulerBuilder {
            settings: Settings::default(),
            schema: "job_scheduler".into(),
            handlers: Handlers::default(),
            timer: None,
        }
    }

    /// Returns the jobs of this node's schema.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Returns the state of this node, without blocking and without a call of the database: for
    /// probes and alerts.
    ///
    /// A node whose database cannot be reached tries again until it is back: it is alive and not
    /// ready. One that has [`ended`](Self::ended) is neither.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Scheduler;
    ///
    /// fn status(node: &Scheduler) -> String {
    ///     let health = node.health();
    ///     match (health.is_alive, health.is_ready) {
    ///         (true, true) => "ok".into(),
    ///         (true, false) => format!("no connection: {}", health.last_error.unwrap_or_default()),
    ///         _ => format!("dead: the last sign is {:?} old", health.last_beat),
    ///     }
    /// }
    /// # let _ = status;
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.monitor.health()
    }

    /// Waits until this node has ended, and returns why. It never starts again then.
    ///
    /// Errors of the database and panics of handlers do not end a node. It ends by
    /// [`shutdown`](Self::shutdown), when this value or the runtime is dropped, or when its
    /// [`timer`](SchedulerBuilder::timer) is stopped. The future does not borrow this value, and
    /// may be awaited by any number of tasks. After that, `shutdown` returns the error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(node: hashed_wheel_job_scheduler::Scheduler) {
    /// let ended = node.ended();
    /// tokio::spawn(async move {
    ///     eprintln!("the node has ended: {:?}", ended.await);
    ///     std::process::exit(1);
    /// });
    /// # }
    /// ```
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + 'static + use<> {
        self.monitor.ended()
    }

    /// Returns a handle with [`health`](Self::health) and [`ended`](Self::ended) for other tasks.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Ends the node. Runs that have not started are given back at once, and other nodes start
    /// them. Runs that are executing get the time `grace` to end. After that their futures are
    /// dropped, and other nodes repeat them as interrupted, which does not count for
    /// [`max_interruptions`](crate::NewJob::max_interruptions).
    ///
    /// It returns within `grace` and about three leases, even if the database cannot be reached.
    ///
    /// # Errors
    ///
    /// If the database fails meanwhile. The node has ended then too, and other nodes take over its
    /// runs after its lease.
    pub async fn shutdown(mut self, grace: Duration) -> Result<(), Error> {
        let now = Instant::now();
        // Far enough away.
        let end = now
            .checked_add(grace)
            .unwrap_or(now + Duration::from_secs(1 << 32));
        // An error means that the task has ended already.
        let _ = self.stop.send(Stop::At(end));
        // Only this method takes it.
        let Some(task) = self.task.take() else {
            return Ok(());
        };
        match task.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Ok(()),
            },
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
