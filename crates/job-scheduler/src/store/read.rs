//! Claims runs, reads ahead, and plans.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::task::yield_now;
use tokio_postgres::Error;

use super::Store;
use super::rows::{Run, run};
use crate::misfire::{Misfire, Window};
use crate::schedule::Schedule;
use crate::sql::{Parameter, Parse};

/// Claims runs without an owner, and takes over. Its locks last as long as the server executes it.
pub(super) const CLAIM_RUNS: &str = "SELECT * FROM @claim_runs($1, $2, $3, $4, $5, $6)";

/// Locks the row of a node that is alive, until the end of the transaction: until then no other
/// node takes its runs over. The renewal of the lease does not wait for this lock.
pub(super) const IS_MINE: &str = "
    SELECT FROM @node WHERE id = $1 AND alive_until > clock_timestamp() FOR KEY SHARE";

/// For each handler on its own, in the order of an index, so that neither jobs without a handler on
/// this node nor a large number of jobs that are due are read each time. Jobs beyond the limit that
/// are locked by this are unlocked some milliseconds later.
///
/// First those that are due now, in the order of their priorities: a lower one is only read if
/// there are not enough with a higher one. If there is room, then those that are due soon, in the
/// order of their due times, because a run that is due in some seconds must not take the place of
/// others.
pub(super) const LOCK_DUE: &str = "
    WITH due AS MATERIALIZED (
        SELECT first.* FROM unnest($3::text[], $5::bigint[]) AS known (handler, most), LATERAL (
            SELECT found.* FROM generate_series(5, $4::integer, -1) AS level (priority), LATERAL (
                SELECT id, handler, schedule, time_zone, misfire, jitter_us, next_run, first_run, priority
                FROM @job job
                WHERE job.enabled AND job.is_planned AND job.handler = known.handler AND job.priority = level.priority
                    AND job.next_run <= statement_timestamp()
                ORDER BY job.next_run LIMIT $2
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS found
            LIMIT LEAST($2, known.most)
        ) AS first
        ORDER BY priority DESC, next_run LIMIT $2
    ), soon AS MATERIALIZED (
        SELECT found.* FROM unnest($3::text[], $5::bigint[]) AS known (handler, most),
            generate_series(5, $4::integer, -1) AS level (priority), LATERAL (
                SELECT id, handler, schedule, time_zone, misfire, jitter_us, next_run, first_run, priority
                FROM @job job
                WHERE job.enabled AND job.is_planned AND job.handler = known.handler AND job.priority = level.priority
                    AND job.next_run > statement_timestamp()
                    AND job.next_run <= statement_timestamp() + $1::bigint * interval '1 microsecond'
                ORDER BY job.next_run LIMIT LEAST(known.most, $2 - (SELECT count(*) FROM due))
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS found
        ORDER BY next_run LIMIT $2 - (SELECT count(*) FROM due)
    )
    SELECT due.*, statement_timestamp() AS now FROM due
    UNION ALL SELECT soon.*, statement_timestamp() FROM soon";

/// A due time has one row, even if `next_run` was set back. A run that starts after the horizon,
/// because of its jitter, waits without an owner: otherwise it would take the place of runs that
/// start earlier.
pub(super) const CLAIM: &str = "
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

/// Also the first due time of a job that SQL has added, with a cron pattern.
pub(super) const MOVE_ON: &str = "
    UPDATE @job job SET first_run = moved.first_run, next_run = moved.next_run, is_planned = true
    FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[]) AS moved (id, first_run, next_run)
    WHERE job.id = ANY (ARRAY[moved.id])";

const DISABLE: &str = "
    UPDATE @job job SET enabled = false, disabled_reason = wrong.reason
    FROM unnest($1::bigint[], $2::text[]) AS wrong (id, reason) WHERE job.id = ANY (ARRAY[wrong.id])";

/// Jobs that SQL has added, with a cron pattern. They are read for each handler on its own, in the
/// order of an index.
pub(super) const LOCK_UNPLANNED: &str = "
    SELECT found.* FROM unnest($2::text[]) AS known (handler), LATERAL (
        SELECT id, schedule, time_zone, first_run, next_run FROM @job job
        WHERE job.enabled AND NOT job.is_planned AND job.handler = known.handler
            AND job.next_run <= statement_timestamp() + $1::bigint * interval '1 microsecond'
        ORDER BY job.next_run LIMIT $3
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
    ORDER BY next_run LIMIT $3";

/// The number of rows of a duty at a time. It follows the time that they take: an attempt that the
/// server has ended is repeated with half of them, and then there are more again.
#[derive(Debug)]
pub(crate) struct Portion {
    pub(crate) rows: usize,
    least: usize,
    most: usize,
}

impl Portion {
    pub(crate) fn new(least: usize, most: usize) -> Self {
        Self {
            rows: most,
            least,
            most,
        }
    }

    pub(crate) fn learn(&mut self, was_ended: bool) {
        self.rows = if was_ended {
            (self.rows / 2).max(self.least)
        } else {
            self.most.min(self.rows + self.rows / 8 + 1)
        };
    }
}

/// The runs that a node may claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The maximum number of runs.
    pub(crate) room: usize,
    pub(crate) handlers: &'a [String],
    /// The maximum number of runs of each of them.
    pub(crate) rooms: &'a [i64],
    /// How soon they start.
    pub(crate) ahead: Duration,
    /// Only runs and jobs with this priority or a higher one.
    pub(crate) min_priority: i16,
    /// Earlier due times are misfires.
    pub(crate) misfire_after: Duration,
    /// The time of each statement. The computation of due times gets a part of it.
    pub(crate) limit: Duration,
}

/// The due times that a node has read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Those that this node has claimed.
    pub(crate) runs: Vec<Run>,
    /// The number of all, among them those that are skipped or start later.
    pub(crate) count: usize,
    /// There was no time for more.
    pub(crate) is_cut: bool,
}

/// The planned runs of jobs, by column.
#[derive(Default)]
struct Plans {
    jobs: Vec<i64>,
    handlers: Vec<String>,
    due: Vec<Timestamp>,
    start_at: Vec<Timestamp>,
    is_skipped: Vec<bool>,
    misses_until: Vec<Option<Timestamp>>,
    priorities: Vec<i16>,
}

/// What becomes of jobs.
#[derive(Default)]
struct Moves {
    /// The first due time, and the next one, by job.
    moved: BTreeMap<i64, (Timestamp, Option<Timestamp>)>,
    /// Jobs that are disabled, and why.
    disabled: Vec<i64>,
    reasons: Vec<String>,
}

impl Moves {
    fn disable(&mut self, job: i64, reason: String) {
        self.disabled.push(job);
        self.reasons.push(reason);
    }
}

impl Store {
    /// Claims runs without an owner, or takes over those of lost nodes. Returns how many it has taken
    /// over first, among them those that pause and are for any node.
    pub(crate) async fn claim(
        &self,
        node: i64,
        wanted: Wanted<'_>,
    ) -> Result<(usize, Vec<Run>), Error> {
        let (ahead, room) = (wanted.ahead.as_micros() as i64, wanted.room as i64);
        let min_priority = i32::from(wanted.min_priority);
        let Wanted {
            handlers, rooms, ..
        } = wanted;
        let claim: [Parameter<'_>; 6] = [&node, &handlers, &ahead, &room, &min_priority, &rooms];
        let rows = self.query_limited(wanted.limit, CLAIM_RUNS, claim).await?;
        let (mut taken_over, mut runs) = (0, Vec::new());
        for row in &rows {
            taken_over += usize::from(row.try_get::<_, bool>("is_taken_over")?);
            if row.try_get("is_mine")? {
                runs.push(run(row)?);
            }
        }
        Ok((taken_over, runs))
    }

    async fn or_roll_back<T>(
        &self,
        duty: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = duty.await;
        if result.is_err() {
            // If that fails, so does the next statement. The reason is the first error.
            let _ = self.client.batch_execute("ROLLBACK").await;
        }
        result
    }

    /// Claims the first due times that are not claimed. `None`: the lease has ended.
    pub(crate) async fn read_ahead(
        &self,
        node: i64,
        wanted: Wanted<'_>,
    ) -> Result<Option<Read>, Error> {
        self.or_roll_back(self.try_read_ahead(node, wanted)).await
    }

    async fn try_read_ahead(&self, node: i64, wanted: Wanted<'_>) -> Result<Option<Read>, Error> {
        let Wanted {
            handlers, rooms, ..
        } = wanted;
        let (ahead, room) = (wanted.ahead.as_micros() as i64, wanted.room as i64);
        let min_priority = i32::from(wanted.min_priority);
        let began = Instant::now();
        let ((), mine, rows) = in_order!(
            begun = self.begin(wanted.limit),
            mine = self.query(IS_MINE, [&node]),
            rows = self.query(LOCK_DUE, [&ahead, &room, &handlers, &min_priority, &rooms])
        );
        let (false, Some(first)) = (mine.is_empty(), rows.first()) else {
            self.commit().await?;
            return Ok((!mine.is_empty()).then(Read::default));
        };
        let now: Timestamp = first.try_get("now")?;
        let window = Window {
            oldest: now - wanted.misfire_after,
            horizon: now + wanted.ahead,
        };
        let mut budget = Budget::new(wanted.limit / 4);
        let mut moves = Moves::default();
        let mut jobs = Vec::new();
        // The next due time of each job: first the highest priority of those that are due now, then
        // the earliest one.
        let mut next = BinaryHeap::new();
        let rank = |due: Timestamp, priority: i16| if due <= now { -priority } else { i16::MAX };
        for row in &rows {
            let (id, due, priority) = (row.try_get(0)?, row.try_get(6)?, row.try_get(8)?);
            let schedule = Schedule::parse(row.try_get(2)?, row.try_get(3)?);
            let misfire = Misfire::parse(row.try_get(4)?);
            match schedule.and_then(|schedule| Ok((schedule, misfire?))) {
                Ok((schedule, misfire)) => {
                    next.push(Reverse((rank(due, priority), due, jobs.len())));
                    jobs.push((row, schedule, misfire));
                }
                Err(reason) => moves.disable(id, reason),
            }
        }
        let names = handlers.iter().map(String::as_str);
        let mut rooms: BTreeMap<_, _> = names.zip(rooms.iter().copied()).collect();
        let mut plans = Plans::default();
        let mut is_cut = false;
        while let (false, Some(Reverse((_, due, index)))) =
            (is_cut || plans.jobs.len() == wanted.room, next.pop())
        {
            let (row, schedule, misfire) = &jobs[index];
            match rooms.get_mut(row.try_get::<_, &str>(1)?) {
                Some(room) if *room > 0 => *room -= 1,
                _ => continue,
            }
            let first_run: Timestamp = row.try_get(7)?;
            let (planned, next_run) = schedule.plan(*misfire, due, first_run, window);
            let (job, priority) = (row.try_get(0)?, row.try_get(8)?);
            plans.jobs.push(job);
            plans.handlers.push(row.try_get(1)?);
            plans.due.push(planned.due);
            let start_at = due.saturating_add(jitter(row.try_get(5)?));
            plans.start_at.push(start_at.unwrap_or(due));
            plans.is_skipped.push(planned.is_skipped);
            plans.misses_until.push(planned.misses_until);
            plans.priorities.push(priority);
            moves.moved.insert(job, (first_run, next_run));
            let more = next_run.filter(|&due| due <= window.horizon);
            next.extend(more.map(|due| Reverse((rank(due, priority), due, index))));
            is_cut = budget.is_spent().await;
        }
        let columns: [Parameter<'_>; 9] = [
            &node,
            &plans.jobs,
            &plans.handlers,
            &plans.due,
            &plans.start_at,
            &plans.is_skipped,
            &plans.misses_until,
            &window.horizon,
            &plans.priorities,
        ];
        // Not less than a part, because a smaller portion does not make the round trip shorter.
        let left = wanted.limit.saturating_sub(began.elapsed());
        let ((), claimed, ()) = in_order!(
            limited = self.limit(left.max(wanted.limit / 4)),
            claimed = self.query(CLAIM, columns),
            moved = self.move_on(moves)
        );
        Ok(Some(Read {
            runs: claimed.iter().map(run).collect::<Result<_, _>>()?,
            count: plans.jobs.len(),
            is_cut,
        }))
    }

    /// Computes the first due times of jobs that SQL has added with a cron pattern, of at most this
    /// many, and in a small part of the limit, because that takes the time of a thread. Returns
    /// whether some jobs were planned, and there was time for all.
    pub(crate) async fn plan(&self, wanted: Wanted<'_>) -> Result<bool, Error> {
        self.or_roll_back(self.try_plan(wanted)).await
    }

    async fn try_plan(&self, wanted: Wanted<'_>) -> Result<bool, Error> {
        let (ahead, room) = (wanted.ahead.as_micros() as i64, wanted.room as i64);
        let ((), rows) = in_order!(
            begun = self.begin(wanted.limit),
            rows = self.query(LOCK_UNPLANNED, [&ahead, &wanted.handlers, &room])
        );
        let mut budget = Budget::new(wanted.limit / 10);
        let mut moves = Moves::default();
        let mut is_cut = false;
        for row in &rows {
            let (id, first_run, next_run) = (row.try_get(0)?, row.try_get(3)?, row.try_get(4)?);
            let planned = Schedule::parse(row.try_get(1)?, row.try_get(2)?)
                .and_then(|schedule| schedule.plan_first(first_run, Some(next_run)));
            match planned {
                Ok(planned) => drop(moves.moved.insert(id, planned)),
                Err(reason) => moves.disable(id, reason),
            }
            is_cut = budget.is_spent().await;
            if is_cut {
                break;
            }
        }
        self.move_on(moves).await?;
        Ok(!is_cut && !rows.is_empty())
    }

    /// Commits what becomes of the jobs that the transaction has locked.
    async fn move_on(&self, moves: Moves) -> Result<(), Error> {
        let jobs: Vec<_> = moves.moved.keys().copied().collect();
        let (first, next): (Vec<_>, Vec<_>) = moves.moved.into_values().unzip();
        let disable = async {
            match moves.disabled[..] {
                [] => Ok(Vec::new()),
                _ => self.query(DISABLE, [&moves.disabled, &moves.reasons]).await,
            }
        };
        let move_on = self.query(MOVE_ON, [&jobs, &first, &next]);
        in_order!(
            moved = move_on,
            disabled = disable,
            committed = self.commit()
        );
        Ok(())
    }
}

/// The time in which due times are computed, because that of a pattern may be hard to find. In
/// between, other tasks of the thread get a turn.
struct Budget {
    end: Instant,
    turn: Instant,
}

impl Budget {
    fn new(limit: Duration) -> Self {
        let turn = Instant::now();
        Self {
            end: turn + limit,
            turn,
        }
    }

    async fn is_spent(&mut self) -> bool {
        if self.turn.elapsed() > Duration::from_millis(1) {
            yield_now().await;
            self.turn = Instant::now();
        }
        Instant::now() >= self.end
    }
}

/// Returns a random duration below the limit.
fn jitter(limit_us: i64) -> SignedDuration {
    let limit = Duration::from_micros(limit_us as u64);
    SignedDuration::try_from(limit.mul_f64(fastrand::f64())).unwrap_or_default()
}
