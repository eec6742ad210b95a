//! Rows of the tables, as users see them: jobs and runs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::Json;

use crate::job::Overlap;
use crate::json::decode_or_text;
use crate::misfire::Misfire;
use crate::sql::{Named, Parse, Parsed, named};

/// The columns that [`job`] reads.
macro_rules! job_columns {
    () => {
        "id, key, handler, payload, schedule, time_zone, next_run, enabled, disabled_reason, priority,
        overlap, misfire, retries, timeout_us,
        (SELECT jsonb_object_agg(entry.key, COALESCE((SELECT named.running FROM @named_limit named
            WHERE named.name = entry.key), entry.value::integer))
        FROM jsonb_each_text(limits) AS entry) AS limits"
    };
}

/// The columns that [`run_info`] reads.
macro_rules! run_columns {
    () => {
        "id, job, due, state, attempt, interrupted, taken_over, misses_until, owner, start_at,
        started, finished, output, error, is_cancelled, blocked_on, failures"
    };
}

pub(crate) use {job_columns, run_columns};

/// A stored job.
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::Jobs;
///
/// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let jobs = Jobs::new("jobs")?;
/// if let Some(job) = jobs.get(&client, 7).await? {
///     println!("{}: {}", job.handler, job.state());
///     for run in jobs.history(&client, job.id, 20).await? {
///         println!("{}: {} attempts have failed", run.state, run.failures.len());
///     }
/// }
/// # Ok(())
/// # }
/// ```
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
    /// Due runs with a higher priority start first.
    pub priority: i16,
    /// The treatment of a run that is due while another one is running.
    pub overlap: Overlap,
    /// Its [limits](crate::NewJob::limit) by their names: its own numbers, or those that were set
    /// by [`Jobs::set_limit`](crate::Jobs::set_limit).
    pub limits: BTreeMap<String, u32>,
    /// The treatment of due times that had no node for too long.
    pub misfire: Misfire,
    /// How often a failed run is repeated.
    pub retries: u32,
    /// How long an execution may take. `None`: no limit.
    pub timeout: Option<Duration>,
}

/// The state of a run. See [`RunFilter`](crate::RunFilter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunState {
    /// Any node may claim it.
    Waiting,
    /// A node has read it ahead and will start it.
    Claimed,
    /// It is executing, or its node was lost and it is not taken over yet.
    Running,
    /// It waits for other runs, or for its turn: see [`RunInfo::blocked_on`].
    Blocked,
    /// It has succeeded.
    Done,
    /// It has failed, and has no retry left.
    Failed,
    /// It was a misfire, or another run of the job was running.
    Skipped,
    /// It was [cancelled](crate::Jobs::cancel), or its job was paused or replaced.
    Cancelled,
    /// Its node was lost during the run more often than
    /// [`max_interruptions`](crate::NewJob::max_interruptions): probably because of it.
    Abandoned,
}

named!(RunState, "state of a run": Waiting = "waiting", Claimed = "claimed", Running = "running",
    Blocked = "blocked", Done = "done", Failed = "failed", Skipped = "skipped", Cancelled = "cancelled",
    Abandoned = "abandoned");

/// Its name in English, as in the table: `waiting`.
impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a [`Blocked`](RunState::Blocked) run waits for. Its text is in English: `the limit 'bank'`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockedOn {
    /// The end of another run of its job: see [`Overlap`].
    Job,
    /// The end of a run of its handler: see [`KindLimits::running`](crate::KindLimits::running).
    Kind,
    /// The end of a run with a [limit](crate::NewJob::limit) of this name.
    Limit(String),
    /// Its turn: see [`KindLimits::rate`](crate::KindLimits::rate).
    Rate,
}

/// Reads the name of a place.
impl Parse for BlockedOn {
    fn parse(name: &str) -> Result<Self, String> {
        match name.split_once(' ') {
            Some(("job", _)) => Ok(Self::Job),
            Some(("kind", _)) => Ok(Self::Kind),
            Some(("key", name)) => Ok(Self::Limit(name.to_owned())),
            Some(("rate", _)) => Ok(Self::Rate),
            _ => Err(format!("'{name}' is no job, kind, key or rate")),
        }
    }
}

impl fmt::Display for BlockedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job => f.write_str("another run of the job"),
            Self::Kind => f.write_str("the limit of the handler"),
            Self::Limit(name) => write!(f, "the limit '{name}'"),
            Self::Rate => f.write_str("the rate of the handler"),
        }
    }
}

/// A run of a job. See [`Job`].
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
    /// What it waits for. `None`: it is not [`Blocked`](RunState::Blocked).
    pub blocked_on: Option<BlockedOn>,
    /// Its last executions that have failed, at most 20, the latest one last. An execution that was
    /// interrupted, because its node was lost, is not among them.
    pub failures: Vec<FailedAttempt>,
}

/// An execution that has failed. See [`RunInfo::failures`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The number of this execution, from 1.
    pub attempt: i64,
    /// The number of its node.
    pub node: i64,
    /// When it has started.
    pub started: Timestamp,
    /// When it has ended.
    pub ended: Timestamp,
    /// The first 2 000 characters of the reason.
    pub error: String,
}

/// Reads a count.
pub(crate) fn count(row: &Row, column: usize) -> Result<u64, tokio_postgres::Error> {
    Ok(row.try_get::<_, i64>(column)?.unsigned_abs())
}

pub(crate) fn job(row: &Row) -> Result<Job, tokio_postgres::Error> {
    let Json(payload): Json<&RawValue> = row.try_get("payload")?;
    let limits: Option<Json<BTreeMap<String, u32>>> = row.try_get("limits")?;
    let timeout: Option<i64> = row.try_get("timeout_us")?;
    Ok(Job {
        id: row.try_get("id")?,
        key: row.try_get("key")?,
        handler: row.try_get("handler")?,
        payload: decode_or_text(payload),
        schedule: row.try_get("schedule")?,
        time_zone: row.try_get("time_zone")?,
        next_run: row.try_get("next_run")?,
        enabled: row.try_get("enabled")?,
        disabled_reason: row.try_get("disabled_reason")?,
        priority: row.try_get("priority")?,
        overlap: row.try_get::<_, Parsed<_>>("overlap")?.0,
        limits: limits.map_or_else(BTreeMap::new, |Json(limits)| limits),
        misfire: row.try_get::<_, Parsed<_>>("misfire")?.0,
        retries: row.try_get::<_, i32>("retries")?.unsigned_abs(),
        timeout: timeout.map(|micros| Duration::from_micros(micros.unsigned_abs())),
    })
}

pub(crate) fn run_info(row: &Row) -> Result<RunInfo, tokio_postgres::Error> {
    let output: Option<Json<&RawValue>> = row.try_get("output")?;
    let failures: Option<Json<Vec<Value>>> = row.try_get("failures")?;
    let failures = failures.iter().flat_map(|Json(entries)| entries);
    Ok(RunInfo {
        id: row.try_get("id")?,
        job: row.try_get("job")?,
        due: row.try_get("due")?,
        state: row.try_get::<_, Parsed<_>>("state")?.0,
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
        blocked_on: row
            .try_get::<_, Option<Parsed<_>>>("blocked_on")?
            .map(|read| read.0),
        failures: failures.filter_map(failed_attempt).collect(),
    })
}

fn failed_attempt(entry: &Value) -> Option<FailedAttempt> {
    let time = |name: &str| entry[name].as_str()?.parse().ok();
    Some(FailedAttempt {
        attempt: entry["attempt"].as_i64()?,
        node: entry["node"].as_i64()?,
        started: time("started")?,
        ended: time("ended")?,
        error: entry["error"].as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_places_are_read() {
        for (name, blocked_on, text) in [
            ("job 17", BlockedOn::Job, "another run of the job"),
            (
                "kind send mail",
                BlockedOn::Kind,
                "the limit of the handler",
            ),
            (
                "key kind of bank",
                BlockedOn::Limit("kind of bank".into()),
                "the limit 'kind of bank'",
            ),
            ("rate send mail", BlockedOn::Rate, "the rate of the handler"),
        ] {
            let read = BlockedOn::parse(name).unwrap();
            assert_eq!((read.to_string(), read), (text.into(), blocked_on));
        }
        let error = BlockedOn::parse("node 17").unwrap_err();
        assert!(error.starts_with("'node 17' is no job"), "{error}");
    }
}
