//! Rows of the tables, as users see them: jobs, runs and nodes.

use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::Json;

use crate::json::decode_or_text;

/// A stored job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// Its number.
    pub id: i64,
    /// Its unique key.
    pub key: Option<String>,
    /// The name of its handler.
    pub handler: String,
    /// Its data. PostgreSQL stores documents that `serde_json` does not read: with more than 127
    /// levels, and with numbers that no `f64` can have. They are strings with the text of the
    /// document here, and fail the run.
    pub payload: Value,
    /// Its schedule, for example `once`, `every 500ms` or `cron 0 30 3 * * *`.
    pub schedule: String,
    /// The time zone of a cron pattern.
    pub time_zone: String,
    /// The first due time that no node has read yet. `None`: there is none.
    pub next_run: Option<Timestamp>,
    /// False: it is paused, or a node has disabled it.
    pub enabled: bool,
    /// Why a node has disabled it.
    pub disabled_reason: Option<String>,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunState {
    /// Any node may claim it.
    Waiting,
    /// A node has read it ahead and will start it.
    Claimed,
    /// It is executing, or its node was lost and it is not taken over yet.
    Running,
    /// It waits until other runs have ended: of the job, of its handler, or with one of its limits.
    /// Or it waits for the rate of its handler.
    Blocked,
    /// It has succeeded.
    Done,
    /// It has failed, and has no retry left.
    Failed,
    /// It was a misfire, or another run of the job was running.
    Skipped,
    /// It was [cancelled](crate::Jobs::cancel), or its job was paused or replaced.
    Cancelled,
    /// It was interrupted more often than [`max_interruptions`](crate::NewJob::max_interruptions).
    Abandoned,
}

/// A run of a job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunInfo {
    /// Its number.
    pub id: i64,
    /// The number of its job.
    pub job: i64,
    /// Its due time by the schedule.
    pub due: Timestamp,
    /// Its state.
    pub state: RunState,
    /// The number of its last execution: 1, plus the failures and the interruptions before it.
    pub attempt: i32,
    /// How many executions were interrupted because their node was lost.
    pub interrupted: i32,
    /// How often another node took it over, whether it was running or only claimed.
    pub taken_over: i32,
    /// For a misfire: it stands for all due times before this one.
    pub misses_until: Option<Timestamp>,
    /// The number of its last node.
    pub node: Option<i64>,
    /// It starts not earlier than this: the due time and the jitter, or the time of a retry.
    pub start_at: Timestamp,
    /// When its last execution has started.
    pub started: Option<Timestamp>,
    /// When it has ended.
    pub finished: Option<Timestamp>,
    /// The value that the handler has returned. (A document that `serde_json` does not read, as in
    /// [`Job::payload`], is a string with its text.)
    pub output: Option<Value>,
    /// Why the last execution failed, or why it was skipped.
    pub error: Option<String>,
    /// It was [cancelled](crate::Jobs::cancel) while it was running.
    pub is_cancelled: bool,
}

/// A node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeInfo {
    /// Its number. A node gets a new one after an error of the database.
    pub id: i64,
    /// The name from [`SchedulerBuilder::name`](crate::SchedulerBuilder::name).
    pub name: String,
    /// The end of its lease, if it does not renew it.
    pub alive_until: Timestamp,
    /// Whether the lease has not ended.
    pub is_alive: bool,
}

pub(crate) fn job(row: &Row) -> Result<Job, tokio_postgres::Error> {
    let Json(payload): Json<&RawValue> = row.try_get(3)?;
    Ok(Job {
        id: row.try_get(0)?,
        key: row.try_get(1)?,
        handler: row.try_get(2)?,
        payload: decode_or_text(payload),
        schedule: row.try_get(4)?,
        time_zone: row.try_get(5)?,
        next_run: row.try_get(6)?,
        enabled: row.try_get(7)?,
        disabled_reason: row.try_get(8)?,
    })
}

pub(crate) fn node_info(row: &Row) -> Result<NodeInfo, tokio_postgres::Error> {
    Ok(NodeInfo {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        alive_until: row.try_get(2)?,
        is_alive: row.try_get(3)?,
    })
}

pub(crate) fn run_state(text: &str) -> RunState {
    match text {
        "waiting" => RunState::Waiting,
        "claimed" => RunState::Claimed,
        "running" => RunState::Running,
        "blocked" => RunState::Blocked,
        "done" => RunState::Done,
        "failed" => RunState::Failed,
        "skipped" => RunState::Skipped,
        "abandoned" => RunState::Abandoned,
        // The table has no other.
        _ => RunState::Cancelled,
    }
}

pub(crate) fn run_info(row: &Row) -> Result<RunInfo, tokio_postgres::Error> {
    let output: Option<Json<&RawValue>> = row.try_get("output")?;
    Ok(RunInfo {
        id: row.try_get("id")?,
        job: row.try_get("job")?,
        due: row.try_get("due")?,
        state: run_state(row.try_get("state")?),
        attempt: row.try_get("attempt")?,
        interrupted: row.try_get("interrupted")?,
        taken_over: row.try_get("taken_over")?,
        misses_until: row.try_get("misses_until")?,
        node: row.try_get("owner")?,
        start_at: row.try_get("start_at")?,
        started: row.try_get("started")?,
        finished: row.try_get("finished")?,
        output: output.map(|Json(text)| decode_or_text(text)),
        error: row.try_get("error")?,
        is_cancelled: row.try_get("is_cancelled")?,
    })
}
