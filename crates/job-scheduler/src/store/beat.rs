//! The transaction of a beat: takes over, and reads ahead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row, Transaction};

use super::rows::{Run, run};
use super::statements::{Parameter, Statements};
use crate::clock::Reading;
use crate::misfire::{Misfire, Planned, Window};
use crate::schedule::Schedule;

/// A node that is renewing its lease, claiming runs or taking over has locked its own row, and is
/// skipped.
const LOCK_DEAD: &str = "
    SELECT id FROM @node WHERE alive_until <= clock_timestamp()
    FOR UPDATE SKIP LOCKED";

/// A separate statement, because it must see everything that the lost nodes wrote before they were
/// locked. A run that another client has locked is taken over at a later beat. One that starts
/// after a pause waits for any node.
const TAKE_OVER: &str = "
    WITH taken AS (
        UPDATE @run run
        SET owner = CASE WHEN left_over.pause IS NULL THEN $1::bigint END,
            state = CASE WHEN left_over.pause IS NULL THEN 'claimed' ELSE 'waiting' END,
            start_at = COALESCE(clock_timestamp() + left_over.pause, start_at), taken_over = taken_over + 1,
            attempt = attempt + CASE run.state WHEN 'running' THEN 1 ELSE 0 END,
            interrupted = interrupted + CASE run.state WHEN 'running' THEN 1 ELSE 0 END,
            excused = excused + CASE WHEN left_over.counts THEN 0 ELSE 1 END
        FROM (
            SELECT owned.id, owned.counts, CASE WHEN owned.counts AND owned.state = 'running'
                THEN @pause_of(owned.job, owned.interrupted - owned.excused + 1) END AS pause
            FROM (
                SELECT id, job, state, interrupted, excused, state <> 'running' OR @counts(id, owner) AS counts
                FROM @run
                WHERE owner = ANY ($2) AND state IN ('claimed', 'running') AND handler = ANY ($4)
                ORDER BY priority DESC, start_at LIMIT $3
                FOR UPDATE SKIP LOCKED
            ) AS owned
        ) AS left_over
        WHERE run.id = ANY (ARRAY[left_over.id])
        RETURNING run.id, run.job, run.handler, run.due, run.start_at, run.attempt, run.interrupted,
            run.excused, run.misses_until, run.priority, run.state
    )
    SELECT * FROM taken WHERE state = 'claimed'";

/// Deletes lost nodes without runs. The runs of the others are for nodes with free capacity.
const BURY: &str = "
    DELETE FROM @node node WHERE id = ANY ($1) AND COALESCE((
        SELECT false FROM @run WHERE owner = node.id AND state IN ('claimed', 'running') LIMIT 1), true)";

/// Runs that were given back, or that are repeated, or that were requested. They are searched for
/// each handler on its own, one priority after the other, as in [`LOCK_DUE`], and then locked until
/// there are enough: more of them are found than needed, because other nodes lock the first ones.
const CLAIM_WAITING: &str = "
    UPDATE @run run SET owner = $1, state = 'claimed'
    FROM (
        SELECT run.id FROM @run run
        WHERE run.id = ANY (ARRAY(
            SELECT first.id FROM unnest($4::text[]) AS known (handler), LATERAL (
                SELECT found.* FROM generate_series(5, $5::integer, -1) AS level (priority), LATERAL (
                    SELECT run.id, run.priority, run.start_at FROM @run run
                    WHERE run.state = 'waiting' AND run.handler = known.handler
                        AND run.priority = level.priority AND run.start_at <= $2
                    ORDER BY run.start_at LIMIT 4 * $3::bigint
                ) AS found
                LIMIT 4 * $3::bigint
            ) AS first
            ORDER BY first.priority DESC, first.start_at LIMIT 4 * $3::bigint
        )) AND run.state = 'waiting'
        ORDER BY run.priority DESC, run.start_at LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS waiting
    WHERE run.id = ANY (ARRAY[waiting.id])
    RETURNING run.id, run.job, run.handler, run.due, run.start_at, run.attempt, run.interrupted,
        run.excused, run.misses_until, run.priority";

/// For each handler on its own, in the order of an index, so that neither jobs without a handler on
/// this node nor a large number of jobs that are due are read each time. Jobs beyond the limit that
/// are locked by this are unlocked some milliseconds later.
///
/// First those that are due now, in the order of their priorities: a lower one is only read if
/// there are not enough with a higher one. If there is room, then those that are due soon, in the
/// order of their due times, because a run that is due in some seconds must not take the place of
/// others.
const LOCK_DUE: &str = "
    WITH due AS MATERIALIZED (
        SELECT first.* FROM unnest($3::text[]) AS known (handler), LATERAL (
            SELECT found.* FROM generate_series(5, $5::integer, -1) AS level (priority), LATERAL (
                SELECT id, handler, schedule, time_zone, misfire, jitter_us, next_run, first_run, priority,
                    is_planned
                FROM @job job
                WHERE job.enabled AND job.handler = known.handler AND job.priority = level.priority
                    AND job.next_run <= $4
                ORDER BY job.next_run LIMIT $2
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS found
            LIMIT $2
        ) AS first
        ORDER BY priority DESC, next_run LIMIT $2
    ), soon AS MATERIALIZED (
        SELECT found.* FROM unnest($3::text[]) AS known (handler),
            generate_series(5, $5::integer, -1) AS level (priority), LATERAL (
                SELECT id, handler, schedule, time_zone, misfire, jitter_us, next_run, first_run, priority,
                    is_planned
                FROM @job job
                WHERE job.enabled AND job.handler = known.handler AND job.priority = level.priority
                    AND job.next_run > $4 AND job.next_run <= $1
                ORDER BY job.next_run LIMIT $2 - (SELECT count(*) FROM due)
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS found
        ORDER BY next_run LIMIT $2 - (SELECT count(*) FROM due)
    )
    SELECT * FROM due UNION ALL SELECT * FROM soon";

/// A due time has one row, even if `next_run` was set back. A run that starts after the horizon,
/// because of its jitter, waits without an owner: otherwise it would take the place of runs that
/// start earlier.
const CLAIM: &str = "
    WITH claimed AS (
        INSERT INTO @run (job, handler, due, start_at, state, owner, misses_until, finished, priority)
        SELECT job, handler, due, start_at, CASE WHEN is_skipped THEN 'skipped'
                WHEN start_at > $8 THEN 'waiting' ELSE 'claimed' END,
            CASE WHEN is_skipped OR start_at <= $8 THEN $1::bigint END, misses_until, CASE WHEN is_skipped THEN clock_timestamp() END,
            priority
        FROM unnest($2::bigint[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::boolean[],
            $7::timestamptz[], $9::smallint[])
            AS planned (job, handler, due, start_at, is_skipped, misses_until, priority)
        ON CONFLICT DO NOTHING
        RETURNING *
    )
    SELECT * FROM claimed WHERE state = 'claimed'";

const MOVE_ON: &str = "
    UPDATE @job job SET next_run = moved.next_run
    FROM unnest($1::bigint[], $2::timestamptz[]) AS moved (id, next_run)
    WHERE job.id = ANY (ARRAY[moved.id])";

/// A job that SQL has added, with a cron pattern.
const PLAN_FIRST: &str = "
    UPDATE @job SET first_run = $2, next_run = $3, is_planned = true WHERE id = $1";

const DISABLE: &str = "UPDATE @job SET enabled = false, disabled_reason = $2 WHERE id = $1";

/// The statements of this file.
pub(super) const STATEMENTS: [&str; 9] = [
    LOCK_DEAD,
    TAKE_OVER,
    BURY,
    CLAIM_WAITING,
    LOCK_DUE,
    CLAIM,
    MOVE_ON,
    PLAN_FIRST,
    DISABLE,
];

/// The transaction in which a node renews its lease and may claim more runs. Dropping it is a
/// rollback.
pub(crate) struct Beat<'a> {
    transaction: Transaction<'a>,
    statements: &'a Statements,
    node: i64,
    pub(crate) reading: Reading,
    /// The runs of this node that were cancelled while they are running.
    pub(crate) cancelled: Vec<i64>,
    /// Whether this node settles the places of limited runs after the beat.
    pub(crate) must_settle: bool,
}

/// The runs that a node may claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) window: Window,
    /// The maximum number of runs.
    pub(crate) room: usize,
    pub(crate) handlers: &'a [String],
    /// By the clock of the database.
    pub(crate) now: Timestamp,
    /// Only runs and jobs with this priority or a higher one.
    pub(crate) min_priority: i16,
}

/// A planned run of a job.
struct Plan {
    job: i64,
    handler: String,
    start_at: Timestamp,
    priority: i16,
    planned: Planned,
}

impl<'a> Beat<'a> {
    pub(super) fn new(
        transaction: Transaction<'a>,
        statements: &'a Statements,
        node: i64,
        reading: Reading,
        cancelled: Vec<i64>,
        must_settle: bool,
    ) -> Self {
        Self {
            transaction,
            statements,
            node,
            reading,
            cancelled,
            must_settle,
        }
    }

    /// Takes over runs of lost nodes.
    pub(crate) async fn take_over(&self, limits: Limits<'_>) -> Result<Vec<Run>, Error> {
        let dead = self.query(LOCK_DEAD, &[]).await?;
        if dead.is_empty() {
            return Ok(Vec::new());
        }
        let dead = dead
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<Vec<i64>, _>>()?;
        let room = limits.room as i64;
        let take_over: [Parameter<'_>; 4] = [
            (&self.node, Type::INT8),
            (&dead, Type::INT8_ARRAY),
            (&room, Type::INT8),
            (&limits.handlers, Type::TEXT_ARRAY),
        ];
        let runs = self.query(TAKE_OVER, &take_over).await?;
        self.query(BURY, &[(&dead, Type::INT8_ARRAY)]).await?;
        runs.iter().map(run).collect()
    }

    /// Claims runs without an owner.
    pub(crate) async fn claim_waiting(&self, limits: Limits<'_>) -> Result<Vec<Run>, Error> {
        let Limits {
            window,
            room,
            handlers,
            min_priority,
            ..
        } = limits;
        let claim: [Parameter<'_>; 5] = [
            (&self.node, Type::INT8),
            (&window.horizon, Type::TIMESTAMPTZ),
            (&(room as i64), Type::INT8),
            (&handlers, Type::TEXT_ARRAY),
            (&i32::from(min_priority), Type::INT4),
        ];
        let runs = self.query(CLAIM_WAITING, &claim).await?;
        runs.iter().map(run).collect()
    }

    /// Claims the first due times within the window that are not claimed. Also returns the number
    /// of due times that it has read, among them those that are skipped or start later.
    pub(crate) async fn read_ahead(&self, limits: Limits<'_>) -> Result<(Vec<Run>, usize), Error> {
        let Limits {
            window,
            room,
            handlers,
            now,
            min_priority,
        } = limits;
        let mut jobs = Vec::new();
        // The next due time of each job: first the highest priority of those that are due now, then
        // the earliest one.
        let mut next = BinaryHeap::new();
        let rank = |due: Timestamp, priority: i16| if due <= now { -priority } else { i16::MAX };
        let lock: [Parameter<'_>; 5] = [
            (&window.horizon, Type::TIMESTAMPTZ),
            (&(room as i64), Type::INT8),
            (&handlers, Type::TEXT_ARRAY),
            (&now, Type::TIMESTAMPTZ),
            (&i32::from(min_priority), Type::INT4),
        ];
        for row in self.query(LOCK_DUE, &lock).await? {
            let id: i64 = row.try_get(0)?;
            match read(&row) {
                Ok(Due {
                    first_run,
                    next_run,
                    is_planned,
                    schedule,
                    misfire,
                }) => {
                    if !is_planned {
                        let plan: [Parameter<'_>; 3] = [
                            (&id, Type::INT8),
                            (&first_run, Type::TIMESTAMPTZ),
                            (&next_run, Type::TIMESTAMPTZ),
                        ];
                        self.query(PLAN_FIRST, &plan).await?;
                    }
                    if next_run <= window.horizon {
                        next.push(Reverse((
                            rank(next_run, row.try_get(8)?),
                            next_run,
                            jobs.len(),
                        )));
                        jobs.push((row, first_run, schedule, misfire));
                    }
                }
                Err(reason) => {
                    self.query(DISABLE, &[(&id, Type::INT8), (&reason, Type::TEXT)])
                        .await?;
                }
            }
        }
        let mut plans = Vec::new();
        let mut next_runs = BTreeMap::new();
        while plans.len() < room {
            let Some(Reverse((_, due, index))) = next.pop() else {
                break;
            };
            let (row, first_run, schedule, misfire) = &jobs[index];
            let (planned, next_run) = schedule.plan(*misfire, due, *first_run, window);
            let (job, priority) = (row.try_get(0)?, row.try_get(8)?);
            plans.push(Plan {
                job,
                handler: row.try_get(1)?,
                start_at: due.saturating_add(jitter(row.try_get(5)?)).unwrap_or(due),
                priority,
                planned,
            });
            next_runs.insert(job, next_run);
            let more = next_run.filter(|&due| due <= window.horizon);
            next.extend(more.map(|due| Reverse((rank(due, priority), due, index))));
        }
        if plans.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let (jobs, next_runs): (Vec<_>, Vec<_>) = next_runs.into_iter().unzip();
        let moved: [Parameter<'_>; 2] = [
            (&jobs, Type::INT8_ARRAY),
            (&next_runs, Type::TIMESTAMPTZ_ARRAY),
        ];
        self.query(MOVE_ON, &moved).await?;
        Ok((self.claim(&plans, window.horizon).await?, plans.len()))
    }

    async fn claim(&self, plans: &[Plan], horizon: Timestamp) -> Result<Vec<Run>, Error> {
        let jobs: Vec<_> = plans.iter().map(|plan| plan.job).collect();
        let handlers: Vec<_> = plans.iter().map(|plan| &plan.handler).collect();
        let due: Vec<_> = plans.iter().map(|plan| plan.planned.due).collect();
        let start_at: Vec<_> = plans.iter().map(|plan| plan.start_at).collect();
        let is_skipped: Vec<_> = plans.iter().map(|plan| plan.planned.is_skipped).collect();
        let misses_until: Vec<_> = plans.iter().map(|plan| plan.planned.misses_until).collect();
        let priorities: Vec<_> = plans.iter().map(|plan| plan.priority).collect();
        let columns: [Parameter<'_>; 9] = [
            (&self.node, Type::INT8),
            (&jobs, Type::INT8_ARRAY),
            (&handlers, Type::TEXT_ARRAY),
            (&due, Type::TIMESTAMPTZ_ARRAY),
            (&start_at, Type::TIMESTAMPTZ_ARRAY),
            (&is_skipped, Type::BOOL_ARRAY),
            (&misses_until, Type::TIMESTAMPTZ_ARRAY),
            (&horizon, Type::TIMESTAMPTZ),
            (&priorities, Type::INT2_ARRAY),
        ];
        self.query(CLAIM, &columns).await?.iter().map(run).collect()
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.transaction.commit().await
    }

    async fn query(&self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.statements
            .query(&self.transaction, text, parameters)
            .await
    }
}

/// A job with its next due time.
struct Due {
    first_run: Timestamp,
    next_run: Timestamp,
    is_planned: bool,
    schedule: Schedule,
    misfire: Misfire,
}

fn read(row: &Row) -> Result<Due, String> {
    let text = |column| {
        row.try_get::<_, &str>(column)
            .map_err(|error| error.to_string())
    };
    let time = |column| {
        row.try_get::<_, Timestamp>(column)
            .map_err(|error| error.to_string())
    };
    let (schedule, misfire) = (Schedule::parse(text(2)?, text(3)?)?, text(4)?.parse()?);
    let (mut first_run, mut next_run) = (time(7)?, time(6)?);
    let is_planned: bool = row.try_get(9).map_err(|error| error.to_string())?;
    if !is_planned {
        let (first, next) = schedule.plan_first(first_run, Some(next_run))?;
        (first_run, next_run) = (first, next.unwrap_or(first));
    }
    Ok(Due {
        first_run,
        next_run,
        is_planned,
        schedule,
        misfire,
    })
}

/// Returns a random duration below the limit.
fn jitter(limit_us: i64) -> SignedDuration {
    let limit = Duration::from_micros(limit_us as u64);
    SignedDuration::try_from(limit.mul_f64(fastrand::f64())).unwrap_or_default()
}
