//! A schema of its own for each test.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{
    Context, Job, JobFilter, JobSummary, Jobs, NewJob, Payload, RunError, RunInfo, RunState,
    Scheduler, SchedulerBuilder,
};
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::Database;
use job_scheduler_trial::rewrite::Relay;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Config, GenericClient, NoTls};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Longer than a test, and less than the longest prefetch.
pub(crate) const LATER: Duration = Duration::from_secs(50);

/// The delays of a job that a test changes after a node has read it, and before it is due. If the
/// machine was too busy for one of them, the test tries the next one.
pub(crate) const DELAYS: [Duration; 5] = [
    Duration::from_millis(800),
    Duration::from_millis(1_600),
    Duration::from_millis(3_200),
    Duration::from_millis(6_400),
    Duration::from_millis(12_800),
];

/// Far more than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The payload of most tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    Succeed,
    Fail,
    FailPermanently,
    Panic,
    /// Fails before this attempt.
    FailUntil(u32),
    Sleep(u64),
    /// The first attempt does not end.
    HangOnce,
}

impl Payload for Task {
    const HANDLER: &'static str = "task";
}

thread_local! {
    static BEGUN: Cell<usize> = const { Cell::new(0) };
}

/// How many executions of [`perform`] have begun on this thread.
pub(crate) fn begun() -> usize {
    BEGUN.get()
}

pub(crate) async fn perform(context: Context, task: Task) -> Result<u32, RunError> {
    BEGUN.set(begun() + 1);
    match task {
        Task::Fail => return Err("failed".into()),
        Task::FailPermanently => return Err(RunError::permanent("failed for ever")),
        Task::Panic => panic!("panicked"),
        Task::FailUntil(attempt) if context.attempt < attempt => return Err("too early".into()),
        Task::Sleep(millis) => tokio::time::sleep(MS * millis as u32).await,
        Task::HangOnce if context.attempt == 1 => std::future::pending().await,
        Task::Succeed | Task::FailUntil(_) | Task::HangOnce => {}
    }
    Ok(context.attempt)
}

/// A schema, with a connection.
pub(crate) struct Fixture {
    pub(crate) client: Client,
    pub(crate) config: Config,
    pub(crate) schema: String,
    pub(crate) jobs: Jobs,
    /// Between `config` and the server, if there are changes of statements.
    _relay: Option<Relay>,
}

impl Fixture {
    /// `None`: there is no server. Then it prints how to install it.
    pub(crate) async fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let config = url()?.parse().expect("a valid URL");
        let schema = format!("test_{}", COUNT.fetch_add(1, Relaxed));
        Some(Self::at(config, &schema).await)
    }

    pub(crate) async fn at(config: Config, schema: &str) -> Self {
        Self {
            client: connect(&config).await,
            config,
            jobs: Jobs::new(schema).expect("a valid name"),
            schema: schema.to_owned(),
            _relay: None,
        }
    }

    /// What connects later makes these changes of statements. Each leaves a safeguard out. If one of
    /// them has changed nothing at the end, that is a panic.
    pub(crate) async fn sabotaged<'a>(
        changes: impl IntoIterator<Item = &'a (&'a str, &'a str)>,
    ) -> Option<Self> {
        let mut fixture = Self::new().await?;
        let schema = &fixture.schema;
        let complete = |text: &str| {
            text.replace("@channel", &format!("{schema}_jobs"))
                .replace('@', &format!("\"{schema}\"."))
        };
        let changes = changes.into_iter();
        let changes = changes.map(|(from, to)| (complete(from), complete(to)));
        let relay = Relay::start(&fixture.config, changes).expect("a relay");
        fixture.config = relay.url.parse().expect("a valid URL");
        fixture._relay = Some(relay);
        Some(fixture)
    }

    /// The address of the database, for clients that do not take a `Config`.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgresql://postgres@127.0.0.1:{}/postgres",
            self.config.get_ports()[0]
        )
    }

    /// Settings with the handler of [`Task`], and with a lease that does not end, however busy the
    /// machine is.
    pub(crate) fn builder(&self) -> SchedulerBuilder {
        Scheduler::builder()
            .schema(&self.schema)
            .lease(MS * 60_000)
            .heartbeat(MS * 300)
            .handler(perform)
    }

    /// For nodes that will be lost. On a busy machine, they may lose their lease before.
    pub(crate) fn mortal(&self) -> SchedulerBuilder {
        self.builder().lease(MS * 1_500)
    }

    pub(crate) async fn node(&self) -> Scheduler {
        self.start(self.builder()).await
    }

    pub(crate) async fn start(&self, builder: SchedulerBuilder) -> Scheduler {
        builder
            .start(self.config.clone(), NoTls)
            .await
            .expect("a node starts")
    }

    pub(crate) async fn enqueue(&self, job: NewJob) -> i64 {
        self.jobs
            .enqueue(&self.client, job)
            .await
            .expect("a valid job")
            .job
    }

    /// Creates the tables, for tests that enqueue before they start a node.
    pub(crate) async fn migrate(&self) {
        shut_down(self.node().await).await;
    }

    /// Sets the next due time of a job to now.
    pub(crate) async fn make_due(&self, job: i64) {
        let update = format!(
            "UPDATE {}.job SET next_run = clock_timestamp() WHERE id = $1",
            self.schema
        );
        assert_eq!(
            self.client
                .execute(&update, &[&job])
                .await
                .expect("an update"),
            1
        );
    }

    /// Sets the start of the only run of a job to now, for the next node that claims it.
    pub(crate) async fn make_start(&self, job: i64) {
        let update = format!(
            "UPDATE {}.run SET start_at = clock_timestamp() WHERE job = $1",
            self.schema
        );
        assert_eq!(
            self.client
                .execute(&update, &[&job])
                .await
                .expect("an update"),
            1
        );
    }

    /// The clock of the database.
    pub(crate) async fn now(&self) -> jiff::Timestamp {
        let row = self.client.query_one("SELECT clock_timestamp()", &[]).await;
        row.expect("an answer").get(0)
    }

    /// Whether the clock of the database has not reached this time.
    pub(crate) async fn is_before(&self, time: jiff::Timestamp) -> bool {
        let row = self
            .client
            .query_one("SELECT clock_timestamp() < $1", &[&time])
            .await;
        row.expect("an answer").get(0)
    }

    /// Ends a node as if its process were killed, and the leases of all nodes with it.
    pub(crate) async fn lose(&self, node: Scheduler) {
        drop(node);
        let update = format!(
            "UPDATE {}.node SET alive_until = clock_timestamp()",
            self.schema
        );
        self.client.execute(&update, &[]).await.expect("an update");
    }

    /// Ends a node as if its process were killed, and only the lease of this node.
    pub(crate) async fn lose_only(&self, node: Scheduler, name: &str) {
        kill(node).await;
        self.set_lease(&self.client, name, "0").await;
    }

    /// Sets the end of the lease of a node, from now.
    pub(crate) async fn set_lease(&self, client: &impl GenericClient, name: &str, rest: &str) {
        let schema = &self.schema;
        let update = format!(
            "UPDATE {schema}.node SET alive_until = clock_timestamp() + $2::text::interval WHERE name = $1"
        );
        client
            .execute(&update, &[&name, &rest])
            .await
            .expect("an update");
    }

    /// Adds a job, and waits until its only run has this state.
    pub(crate) async fn enqueue_until(&self, job: NewJob, state: RunState) -> i64 {
        let job = self.enqueue(job).await;
        self.until_state(job, state).await;
        job
    }

    /// Waits until no run has a place, and none waits for one.
    pub(crate) async fn until_no_place_is_taken(&self) {
        let slots = format!(
            "SELECT format('%s: %s', slot.*, run.*) FROM {0}.slot LEFT JOIN {0}.run ON run.id = slot.run",
            self.schema
        );
        let begin = Instant::now();
        loop {
            let rows = self.client.query(&slots, &[]).await.expect("an answer");
            if rows.is_empty() {
                return;
            }
            let left: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert!(begin.elapsed() < TIMEOUT, "places are left: {left:#?}");
            tokio::time::sleep(MS * 10).await;
        }
    }

    /// Closes the connections of the nodes of this schema.
    pub(crate) async fn close_connections(&self) {
        let close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query LIKE $1 AND pid <> pg_backend_pid()";
        self.client
            .query(close, &[&format!("%\"{}\".%", self.schema)])
            .await
            .expect("an answer");
    }

    pub(crate) async fn history(&self, job: i64) -> Vec<RunInfo> {
        self.jobs
            .history(&self.client, job, 1_000)
            .await
            .expect("a history")
    }

    pub(crate) async fn all_jobs(&self) -> Vec<JobSummary> {
        let page = self
            .jobs
            .search(&self.client, &JobFilter::default(), 0, 2_000)
            .await;
        page.expect("an answer").jobs
    }

    pub(crate) async fn job(&self, job: i64) -> Job {
        self.jobs
            .get(&self.client, job)
            .await
            .expect("an answer")
            .expect("a job")
    }

    /// Waits until a job has runs for which this holds.
    pub(crate) async fn until(&self, job: i64, holds: impl Fn(&[RunInfo]) -> bool) -> Vec<RunInfo> {
        let begin = Instant::now();
        loop {
            let runs = self.history(job).await;
            if holds(&runs) {
                return runs;
            }
            assert!(begin.elapsed() < TIMEOUT, "this takes too long: {runs:#?}");
            tokio::time::sleep(MS * 5).await;
        }
    }

    /// Waits until the only run of a job has this state.
    pub(crate) async fn until_state(&self, job: i64, state: RunState) -> RunInfo {
        self.until(job, |runs| matches!(runs, [run] if run.state == state))
            .await
            .remove(0)
    }

    /// Waits until a job has this many finished runs, and no others.
    pub(crate) async fn until_done(&self, job: i64, count: usize) -> Vec<RunInfo> {
        let is_done = |run: &RunInfo| run.state == RunState::Done;
        self.until(job, |runs| runs.len() == count && runs.iter().all(is_done))
            .await
    }
}

/// Adds the handler `gate`, whose runs end when this semaphore is closed.
pub(crate) fn with_gate(builder: SchedulerBuilder, gate: &Arc<Semaphore>) -> SchedulerBuilder {
    let gate = gate.clone();
    builder.handler_named("gate", move |_, _| {
        let gate = gate.clone();
        async move {
            let _ = gate.acquire().await.map(|permit| permit.forget());
            Ok::<_, RunError>(())
        }
    })
}

/// A job for the handler of [`with_gate`].
pub(crate) fn gate_job() -> NewJob {
    NewJob::named("gate", serde_json::Value::Null)
}

pub(crate) async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("the server is running");
    tokio::spawn(connection);
    client
}

/// Ends a node as if its process were killed.
pub(crate) async fn kill(node: Scheduler) {
    drop(node);
    // The executions end when the runtime drops them.
    tokio::time::sleep(MS * 50).await;
}

pub(crate) async fn shut_down(node: Scheduler) {
    node.shutdown(TIMEOUT).await.expect("it ends regularly");
}

/// The server is not dropped. It ends with this process.
fn url() -> Option<String> {
    static SERVER: OnceLock<Option<Mutex<Database>>> = OnceLock::new();
    // In a thread without a runtime, because it uses a blocking client.
    let server = SERVER.get_or_init(|| {
        std::thread::scope(|scope| scope.spawn(start).join().expect("the server starts"))
    });
    let server = server
        .as_ref()?
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    Some(server.url.clone())
}

fn start() -> Option<Mutex<Database>> {
    server_or_skip(Database::start()).map(Mutex::new)
}

/// Waits until this holds.
pub(crate) async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < TIMEOUT, "this takes too long");
        tokio::time::sleep(MS * 10).await;
    }
}
