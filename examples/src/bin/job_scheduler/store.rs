//! The tables, and all statements on them.
//!
//! Two invariants hold even if any process stops at any point. All guarantees follow from them:
//!
//! - **A run that is claimed or running has an owner with a row in `scheduler`.** A run is assigned
//!   to a scheduler only in a transaction that holds a lock on that row ([`RENEW`] takes it). A row
//!   is deleted only in a transaction that has locked it and then found no such run. Therefore a
//!   run that is claimed while the lease ends is either visible to the scheduler that takes over,
//!   or it is not written at all.
//! - **Only its owner starts or finishes a run**, with an `UPDATE` that checks the owner. This
//!   `UPDATE` and the one that takes over the run conflict on the row of the run: the later one
//!   sees the changes of the earlier one. Therefore a run that was claimed and never started is
//!   started once. A run that was started by a lost scheduler is started again and marked: its
//!   `attempt` is incremented.
//!
//! If the answer to a statement is lost, it is unknown whether it was executed. There is no need to
//! find out. The scheduler ends, a new one is started, and the runs of the old one are taken over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres::types::ToSql;
use postgres::{Client, Config, Error, IsolationLevel, NoTls, Row, Statement};

use crate::clock::Reading;
use crate::schedule::{Misfire, Schedule, Window};

pub(crate) const SCHEMA: &str = include_str!("schema.sql");

const REGISTER: &str = "
    INSERT INTO scheduler (alive_until) VALUES (clock_timestamp() + make_interval(secs => $1))
    RETURNING id, clock_timestamp()";

/// Fails after the lease has ended, because another scheduler may be about to take over.
const RENEW: &str = "
    UPDATE scheduler SET alive_until = clock_timestamp() + make_interval(secs => $2)
    WHERE id = $1 AND alive_until > clock_timestamp()
    RETURNING clock_timestamp()";

/// The scheduler has no runs left.
const LEAVE: &str = "UPDATE scheduler SET alive_until = clock_timestamp() WHERE id = $1";

/// A scheduler that is renewing its lease, claiming runs or taking over has locked its own row, and
/// is skipped.
const LOCK_DEAD: &str = "
    SELECT id FROM scheduler WHERE alive_until <= clock_timestamp()
    FOR UPDATE SKIP LOCKED";

/// A separate statement, because it must see everything that the lost schedulers wrote before they
/// were locked.
const TAKE_OVER: &str = "
    UPDATE run
    SET owner = $1, state = 'claimed', taken_over = taken_over + 1,
        attempt = attempt + CASE run.state WHEN 'running' THEN 1 ELSE 0 END
    FROM job, (
        SELECT job, due FROM run
        WHERE owner = ANY($2) AND state IN ('claimed', 'running')
        ORDER BY due LIMIT $3
        FOR UPDATE
    ) AS left_over
    WHERE run.job = left_over.job AND run.due = left_over.due AND job.id = run.job
    RETURNING run.job, task, run.due, attempt";

/// Deletes lost schedulers without runs. The runs of the others are for schedulers with free
/// capacity.
const BURY: &str = "
    DELETE FROM scheduler WHERE id = ANY($1)
    AND NOT EXISTS (SELECT FROM run WHERE owner = scheduler.id AND state IN ('claimed', 'running'))";

const LOCK_DUE: &str = "
    SELECT id, schedule, misfire, next_run FROM job
    WHERE enabled AND next_run <= $1
    ORDER BY next_run LIMIT $2
    FOR UPDATE SKIP LOCKED";

/// A due time has one row, even if `next_run` was set back.
const CLAIM: &str = "
    WITH claimed AS (
        INSERT INTO run (job, due, state, owner, misses_until)
        SELECT job, due, CASE WHEN is_skipped THEN 'skipped' ELSE 'claimed' END, $1, misses_until
        FROM unnest($2::bigint[], $3::timestamptz[], $4::boolean[], $5::timestamptz[])
            AS planned (job, due, is_skipped, misses_until)
        ON CONFLICT DO NOTHING
        RETURNING job, due, attempt, state
    )
    SELECT claimed.job, task, due, attempt FROM claimed JOIN job ON job.id = claimed.job
    WHERE state = 'claimed'";

const MOVE_ON: &str = "
    UPDATE job SET next_run = moved.next_run
    FROM unnest($1::bigint[], $2::timestamptz[]) AS moved (id, next_run)
    WHERE job.id = moved.id";

const DISABLE: &str = "UPDATE job SET enabled = false, trouble = $2 WHERE id = $1";

/// The check of the owner prevents that a run is started twice. The check of the lease prevents
/// that a scheduler starts a run that will be taken over during its execution.
const START: &str = "
    UPDATE run SET state = 'running', started = clock_timestamp()
    WHERE job = $1 AND due = $2 AND owner = $3 AND state = 'claimed'
    AND EXISTS (SELECT FROM scheduler WHERE id = $3 AND alive_until > clock_timestamp())";

const FINISH: &str = "
    UPDATE run SET state = $4, result = $5, finished = clock_timestamp()
    WHERE job = $1 AND due = $2 AND owner = $3 AND state = 'running'";

const ADD: &str = "INSERT INTO job (task, schedule, misfire, next_run) VALUES ($1, $2, $3, $4) RETURNING id";

/// A run that this scheduler owns.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) job: i64,
    /// What to do.
    pub(crate) task: String,
    pub(crate) due: Timestamp,
    /// If it is 2 or more, the run may have been done before, partially or completely.
    pub(crate) attempt: i32,
}

/// A connection.
pub(crate) struct Store {
    client: Client,
    lease: Duration,
    renew: Statement,
    start: Statement,
    finish: Statement,
}

impl Store {
    /// Opens a connection. The server waits for at most a lease for a scheduler that has locked
    /// rows and sends nothing. A scheduler that is disconnected from the server detects it within
    /// two leases (or three seconds if that is longer, because TCP options are in whole seconds). A
    /// stopped server whose kernel still answers is not detected. The runs that were started
    /// meanwhile are taken over.
    pub(crate) fn connect(config: &Config, lease: Duration) -> Result<Self, Error> {
        let mut config = config.clone();
        // Zero seconds would be rejected.
        let [idle, interval] = [lease, lease / 3].map(|time| time.max(Duration::from_secs(1)));
        config.connect_timeout(lease).tcp_user_timeout(lease);
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(2);
        let mut client = config.connect(NoTls)?;
        let millis = lease.as_millis();
        client.batch_execute(&format!(
            "SET idle_in_transaction_session_timeout = {millis}; SET statement_timeout = {millis}; \
             SET default_transaction_isolation = 'read committed'"
        ))?;
        let [renew, start, finish] = [RENEW, START, FINISH].map(|text| client.prepare(text));
        Ok(Self { renew: renew?, start: start?, finish: finish?, client, lease })
    }

    /// Registers a new scheduler.
    pub(crate) fn register(&mut self) -> Result<(i64, Reading), Error> {
        let sent = Instant::now();
        let row = self.client.query_one(REGISTER, &[&self.lease.as_secs_f64()])?;
        Ok((row.get(0), reading(&row, 1, sent)))
    }

    /// Starts a transaction in which this scheduler is alive. Returns `None` if its lease has
    /// ended.
    pub(crate) fn beat(&mut self, scheduler: i64) -> Result<Option<Beat<'_>>, Error> {
        let read_committed = IsolationLevel::ReadCommitted;
        let mut transaction = self.client.build_transaction().isolation_level(read_committed).start()?;
        let sent = Instant::now();
        let renewed = transaction.query_opt(&self.renew, &[&scheduler, &self.lease.as_secs_f64()])?;
        Ok(renewed.map(|row| Beat { transaction, scheduler, reading: reading(&row, 0, sent) }))
    }

    /// Starts a run. Returns false if another scheduler owns it or is about to take it over.
    pub(crate) fn start(&mut self, scheduler: i64, run: &Run) -> Result<bool, Error> {
        Ok(self.client.execute(&self.start, &[&run.job, &run.due, &scheduler])? == 1)
    }

    /// Writes the result. Returns false if it took too long and another scheduler owns the run.
    pub(crate) fn finish(
        &mut self,
        scheduler: i64,
        run: &Run,
        result: &Result<String, String>,
    ) -> Result<bool, Error> {
        let (state, result) = match result {
            Ok(result) => ("done", result),
            Err(why) => ("failed", why),
        };
        // PostgreSQL's text type does not support NUL. Without the replacement, every scheduler
        // that runs this job would fail.
        let result = result.replace('\0', "\u{fffd}");
        Ok(self.client.execute(&self.finish, &[&run.job, &run.due, &scheduler, &state, &result])? == 1)
    }

    /// Ends a scheduler that has no runs left.
    pub(crate) fn leave(&mut self, scheduler: i64) -> Result<(), Error> {
        self.client.execute(LEAVE, &[&scheduler]).map(drop)
    }

    /// Adds a job and returns its number. Its first run is at `time`. The first run of a cron job
    /// is when its pattern first matches after that.
    pub(crate) fn add(
        &mut self,
        task: &str,
        schedule: &str,
        misfire: &str,
        time: Timestamp,
    ) -> Result<i64, Box<dyn std::error::Error>> {
        let first = schedule.parse::<Schedule>()?.first(time).ok_or("the schedule has no due time")?;
        misfire.parse::<Misfire>()?;
        Ok(self.client.query_one(ADD, &[&task, &schedule, &misfire, &first])?.get(0))
    }
}

/// The transaction in which a scheduler renews its lease and may claim more runs. Dropping it is a
/// rollback.
pub(crate) struct Beat<'a> {
    transaction: postgres::Transaction<'a>,
    scheduler: i64,
    pub(crate) reading: Reading,
}

impl Beat<'_> {
    /// Takes over runs of lost schedulers, at most `room`.
    pub(crate) fn take_over(&mut self, room: usize) -> Result<Vec<Run>, Error> {
        let dead = self.transaction.query(LOCK_DEAD, &[])?;
        if dead.is_empty() {
            return Ok(Vec::new());
        }
        let dead: Vec<i64> = dead.iter().map(|row| row.get(0)).collect();
        let runs = self.transaction.query(TAKE_OVER, &[&self.scheduler, &dead, &(room as i64)])?;
        self.transaction.execute(BURY, &[&dead])?;
        Ok(runs.iter().map(run).collect())
    }

    /// Claims the first `room` unclaimed runs that are due within the window.
    pub(crate) fn read_ahead(&mut self, window: Window, room: usize) -> Result<Vec<Run>, Error> {
        let mut planned = Vec::new();
        let mut next_runs = BTreeMap::new();
        for row in self.transaction.query(LOCK_DUE, &[&window.horizon, &(room as i64)])? {
            let (job, next_run): (i64, Timestamp) = (row.get(0), row.get(3));
            match read(row.get(1), row.get(2)) {
                Ok((schedule, misfire)) => {
                    let (runs, next_run) = schedule.plan(misfire, next_run, window, room);
                    planned.extend(runs.into_iter().map(|run| (job, run)));
                    next_runs.insert(job, next_run);
                }
                Err(trouble) => drop(self.transaction.execute(DISABLE, &[&job, &trouble])?),
            }
        }
        if planned.is_empty() {
            return Ok(Vec::new());
        }
        planned.sort_by_key(|(_, run)| run.due);
        // The first run of each job that exceeds the room determines the next due time of the job.
        for (job, run) in planned.drain(room.min(planned.len())..).rev() {
            next_runs.insert(job, Some(run.due));
        }
        let (jobs, next_runs): (Vec<_>, Vec<_>) = next_runs.into_iter().unzip();
        self.transaction.execute(MOVE_ON, &[&jobs, &next_runs])?;

        let of_job: Vec<_> = planned.iter().map(|&(job, _)| job).collect();
        let due: Vec<_> = planned.iter().map(|(_, run)| run.due).collect();
        let is_skipped: Vec<_> = planned.iter().map(|(_, run)| run.is_skipped).collect();
        let misses_until: Vec<_> = planned.iter().map(|(_, run)| run.misses_until).collect();
        let columns: [&(dyn ToSql + Sync); 5] = [&self.scheduler, &of_job, &due, &is_skipped, &misses_until];
        Ok(self.transaction.query(CLAIM, &columns)?.iter().map(run).collect())
    }

    pub(crate) fn commit(self) -> Result<(), Error> {
        self.transaction.commit()
    }
}

fn read(schedule: &str, misfire: &str) -> Result<(Schedule, Misfire), String> {
    Ok((schedule.parse()?, misfire.parse()?))
}

fn run(row: &Row) -> Run {
    Run { job: row.get(0), task: row.get(1), due: row.get(2), attempt: row.get(3) }
}

fn reading(row: &Row, column: usize, sent: Instant) -> Reading {
    let at = Instant::now();
    Reading { clock: row.get(column), at, trip: at - sent }
}
