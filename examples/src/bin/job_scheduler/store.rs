//! The tables, and all that is ever said to them.
//!
//! Two things hold whatever stops where, and all else follows from them:
//!
//! - **A run that is claimed or running has an owner with a row in `scheduler`.** A run is given to a scheduler only in a
//!   transaction that holds a lock on that row ([`RENEW`] takes it), and a row goes only in one that has locked it and has
//!   then seen that no such run is left. So what is read ahead while the lease runs out is either seen by who takes over,
//!   or it is not written at all.
//! - **Only its owner begins a run or ends it**, by an `UPDATE` that says so. It and the one that takes the run over meet at
//!   the run's row: whoever comes second sees what the first has written. So a run that was claimed and never begun
//!   begins at one place. A run that was begun by somebody who is lost begins again, and says so: its `attempt` is one more.
//!
//! A statement whose answer is lost may have been done or not. Nobody asks: the scheduler is over then, begins anew as
//! another, and what it had is taken over.

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

/// Not once the lease has run out, for then somebody may be about to take over.
const RENEW: &str = "
    UPDATE scheduler SET alive_until = clock_timestamp() + make_interval(secs => $2)
    WHERE id = $1 AND alive_until > clock_timestamp()
    RETURNING clock_timestamp()";

/// It has nothing left.
const LEAVE: &str = "UPDATE scheduler SET alive_until = clock_timestamp() WHERE id = $1";

/// Who is about to renew, to read ahead or to take over has its own row locked, and is passed over.
const LOCK_DEAD: &str = "
    SELECT id FROM scheduler WHERE alive_until <= clock_timestamp()
    FOR UPDATE SKIP LOCKED";

/// A statement of its own: it has to see all that the dead have written before they were locked.
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

/// Those that have nothing left. The others are for whoever has room.
const BURY: &str = "
    DELETE FROM scheduler WHERE id = ANY($1)
    AND NOT EXISTS (SELECT FROM run WHERE owner = scheduler.id AND state IN ('claimed', 'running'))";

const LOCK_DUE: &str = "
    SELECT id, schedule, misfire, next_run FROM job
    WHERE enabled AND next_run <= $1
    ORDER BY next_run LIMIT $2
    FOR UPDATE SKIP LOCKED";

/// A due time is there once, even where somebody has set `next_run` back.
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

/// That it is the owner is what keeps a run from beginning twice; that it is alive keeps it from beginning what will be taken
/// over in the middle.
const START: &str = "
    UPDATE run SET state = 'running', started = clock_timestamp()
    WHERE job = $1 AND due = $2 AND owner = $3 AND state = 'claimed'
    AND EXISTS (SELECT FROM scheduler WHERE id = $3 AND alive_until > clock_timestamp())";

const FINISH: &str = "
    UPDATE run SET state = $4, result = $5, finished = clock_timestamp()
    WHERE job = $1 AND due = $2 AND owner = $3 AND state = 'running'";

const ADD: &str = "INSERT INTO job (task, schedule, misfire, next_run) VALUES ($1, $2, $3, $4) RETURNING id";

/// A run that is ours.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) job: i64,
    /// What is to be done.
    pub(crate) task: String,
    pub(crate) due: Timestamp,
    /// From 2 on, it may have been done before, in part or in whole.
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
    /// The server waits for no longer than the lease for a scheduler that has locked something and says no more. A scheduler
    /// that is cut off from the server learns it within two leases (three seconds if these are shorter: TCP counts in whole
    /// ones). But a server that stands still, and whose kernel answers for it, is waited for; what was begun meanwhile is taken
    /// over.
    pub(crate) fn connect(config: &Config, lease: Duration) -> Result<Self, Error> {
        let mut config = config.clone();
        // Less than a second would be none, which is refused.
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

    /// A new scheduler.
    pub(crate) fn register(&mut self) -> Result<(i64, Reading), Error> {
        let asked = Instant::now();
        let row = self.client.query_one(REGISTER, &[&self.lease.as_secs_f64()])?;
        Ok((row.get(0), reading(&row, 1, asked)))
    }

    /// Begins a transaction in which this scheduler is alive. None: its lease has run out.
    pub(crate) fn beat(&mut self, scheduler: i64) -> Result<Option<Beat<'_>>, Error> {
        let read_committed = IsolationLevel::ReadCommitted;
        let mut transaction = self.client.build_transaction().isolation_level(read_committed).start()?;
        let asked = Instant::now();
        let renewed = transaction.query_opt(&self.renew, &[&scheduler, &self.lease.as_secs_f64()])?;
        Ok(renewed.map(|row| Beat { transaction, scheduler, reading: reading(&row, 0, asked) }))
    }

    /// Whether the run begins here. False: it is another's, or about to be.
    pub(crate) fn start(&mut self, scheduler: i64, run: &Run) -> Result<bool, Error> {
        Ok(self.client.execute(&self.start, &[&run.job, &run.due, &scheduler])? == 1)
    }

    /// Writes the result. False: it took too long, and the run is another's.
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
        // PostgreSQL's text takes no NUL: whoever ran this would be lost, one after the other.
        let result = result.replace('\0', "\u{fffd}");
        Ok(self.client.execute(&self.finish, &[&run.job, &run.due, &scheduler, &state, &result])? == 1)
    }

    /// What is left to a scheduler with nothing left.
    pub(crate) fn leave(&mut self, scheduler: i64) -> Result<(), Error> {
        self.client.execute(LEAVE, &[&scheduler]).map(drop)
    }

    /// A new job, and its number. It runs first at `time` or, of a cron job, when the pattern first fits after that.
    pub(crate) fn add(
        &mut self,
        task: &str,
        schedule: &str,
        misfire: &str,
        time: Timestamp,
    ) -> Result<i64, Box<dyn std::error::Error>> {
        let first = schedule.parse::<Schedule>()?.first(time).ok_or("it never falls due")?;
        misfire.parse::<Misfire>()?;
        Ok(self.client.query_one(ADD, &[&task, &schedule, &misfire, &first])?.get(0))
    }
}

/// The transaction in which a scheduler renews its lease, and may take more upon itself. Dropped, it has not happened.
pub(crate) struct Beat<'a> {
    transaction: postgres::Transaction<'a>,
    scheduler: i64,
    pub(crate) reading: Reading,
}

impl Beat<'_> {
    /// What the dead have left, at most `room` runs of it.
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

    /// What falls due within the window and is nobody's yet: the first `room` runs of it.
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
        // Of each job, the first for which there is no room comes next.
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

fn reading(row: &Row, column: usize, asked: Instant) -> Reading {
    let at = Instant::now();
    Reading { clock: row.get(column), at, trip: at - asked }
}
