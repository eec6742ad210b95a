//! The arguments and rows of the statements of a node.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio_postgres::types::Json;
use tokio_postgres::{Error, Row};

use crate::clock::Reading;
use crate::shares::Place;
use crate::sql::{Parsed, named};

/// The longest time in which a node starts no other run, because one of its runs is a suspect.
const MAX_WATCH: Duration = Duration::from_secs(60);

/// A run that this node owns.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: i64,
    pub(crate) job: i64,
    pub(crate) handler: String,
    pub(crate) due: Timestamp,
    pub(crate) start_at: Timestamp,
    pub(crate) attempt: i32,
    pub(crate) interrupted: i32,
    /// Of these, the interruptions that do not count.
    pub(crate) excused: i32,
    pub(crate) misses_until: Option<Timestamp>,
    pub(crate) priority: i16,
    /// While it counts for the capacity of the node.
    pub(crate) place: Option<Place>,
}

impl Run {
    /// How long a node watches this run after its start: as long as the pause before it, which
    /// doubles with each interruption that counts, but not longer than a minute. `None`: it is no
    /// suspect. See `migrations/1_interruptions.sql`.
    pub(crate) fn watch(&self) -> Option<Duration> {
        let doublings = u32::try_from(self.interrupted - self.excused - 2).ok()?;
        Some(Duration::from_secs(4 << doublings.min(4)).min(MAX_WATCH))
    }
}

/// A run with the data for its execution.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) id: i64,
    pub(crate) payload: Box<RawValue>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retries: u32,
    pub(crate) backoff: (Duration, Duration),
    /// By the clock of the database.
    pub(crate) at: Timestamp,
    /// If the run must not be executed: the state in which it ends.
    pub(crate) verdict: Option<Verdict>,
}

/// Why a run is not repeated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// It was cancelled after it had started.
    Cancelled,
    /// Its job was paused after it had started.
    Paused,
    /// It was interrupted more often than its job allows.
    Abandoned,
}

named!(Verdict, "verdict": Cancelled = "cancelled", Paused = "paused", Abandoned = "abandoned");

impl Verdict {
    /// The state of the run in the table.
    pub(crate) fn state(self) -> &'static str {
        match self {
            Self::Cancelled | Self::Paused => "cancelled",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The outcomes of a request to start runs.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    pub(crate) running: Vec<Started>,
    /// Skipped, or blocked until another run has ended.
    pub(crate) held_back: usize,
    /// A transaction of an application has locked them, or their jobs.
    pub(crate) locked: Vec<i64>,
    /// They have to be started by another statement, because their payloads are large.
    pub(crate) postponed: Vec<i64>,
    /// The rate of their handlers lets them start at this time.
    pub(crate) later: Vec<(i64, Timestamp)>,
    /// The lease of this node has ended. If this is false, the other runs were cancelled, released
    /// or deleted.
    pub(crate) is_lease_lost: bool,
}

/// The state of a run that is repeated without a failure, in [`Finished`].
pub(crate) const SNOOZED: &str = "snoozed";

/// The result of an execution.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) run: i64,
    /// The state of the run, if it is not repeated.
    pub(crate) state: &'static str,
    pub(crate) result: Result<Box<RawValue>, String>,
    /// The pause until the run is repeated.
    pub(crate) retry: Option<Duration>,
}

/// The outcomes of a request to write results. The others were written.
#[derive(Debug, Default)]
pub(crate) struct Finishes {
    /// The runs that this node has got by that: its own retries that are due within the prefetch,
    /// and runs that waited for the end of these.
    pub(crate) claimed: Vec<Run>,
    /// Of those that were written: the runs that were cancelled.
    pub(crate) cancelled: Vec<i64>,
    /// Those that the handler has ended as done in a transaction of its own.
    pub(crate) completed: Vec<i64>,
    /// A transaction of an application has locked them, or their jobs.
    pub(crate) locked: Vec<i64>,
}

/// What there is to do for a node.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Runs without an owner, or of a lost node.
    pub(crate) has_runs: bool,
    /// Jobs that are due within the prefetch.
    pub(crate) has_due: bool,
    /// Such jobs whose first due time is not computed.
    pub(crate) has_unplanned: bool,
    /// Whether this node settles the places of limited runs.
    pub(crate) must_settle: bool,
    /// No transaction was committing jobs without a notification.
    pub(crate) is_settled: bool,
    /// The runs of this node that were cancelled while they are running.
    pub(crate) cancelled: Vec<i64>,
}

/// What a node was before this session.
#[derive(Debug)]
pub(crate) struct Previous<'a> {
    /// Each with the end of its lease, if that is known and was never renewed.
    pub(crate) numbers: &'a mut Vec<(i64, Option<Timestamp>)>,
    /// The runs whose executions continue. `None`: those of these numbers have ended.
    pub(crate) executing: Option<Vec<i64>>,
    /// The runs that have ended because the lease could not be renewed.
    pub(crate) excused: Vec<i64>,
    /// The only run that it was starting when it failed.
    pub(crate) culprit: Option<i64>,
}

/// A node that has registered.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) id: i64,
    pub(crate) reading: Reading,
    /// The executions that it has got from the previous numbers of this node.
    pub(crate) kept: Vec<i64>,
}

pub(super) fn ids(rows: &[Row]) -> Result<Vec<i64>, Error> {
    rows.iter().map(|row| row.try_get(0)).collect()
}

pub(super) fn started(row: &Row) -> Result<Started, Error> {
    let duration = |column| Ok(Duration::from_micros(row.try_get::<_, i64>(column)? as u64));
    let timeout: Option<i64> = row.try_get(3)?;
    let verdict: Option<Parsed<_>> = row.try_get(8)?;
    Ok(Started {
        id: row.try_get(0)?,
        payload: row.try_get::<_, Json<_>>(2)?.0,
        timeout: timeout.map(|micros| Duration::from_micros(micros as u64)),
        retries: row.try_get::<_, i32>(4)? as u32,
        backoff: (duration(5)?, duration(6)?),
        at: row.try_get(7)?,
        verdict: verdict.map(|read| read.0),
    })
}

pub(super) fn look(row: &Row) -> Result<Look, Error> {
    Ok(Look {
        has_runs: row.try_get(0)?,
        has_due: row.try_get(1)?,
        has_unplanned: row.try_get(2)?,
        must_settle: row.try_get(3)?,
        is_settled: row.try_get(4)?,
        cancelled: row.try_get(5)?,
    })
}

pub(super) fn run(row: &Row) -> Result<Run, Error> {
    Ok(Run {
        id: row.try_get("id")?,
        job: row.try_get("job")?,
        handler: row.try_get("handler")?,
        due: row.try_get("due")?,
        start_at: row.try_get("start_at")?,
        attempt: row.try_get("attempt")?,
        interrupted: row.try_get("interrupted")?,
        excused: row.try_get("excused")?,
        misses_until: row.try_get("misses_until")?,
        priority: row.try_get("priority")?,
        place: None,
    })
}

pub(super) fn reading(row: &Row, column: usize, sent: Instant) -> Result<Reading, Error> {
    let at = Instant::now();
    Ok(Reading {
        clock: row.try_get(column)?,
        at,
        trip: at - sent,
    })
}
