//! The present work of all nodes, for a live view.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::jobs::Jobs;
use crate::records::{BlockedOn, RunState, count};
use crate::sql::Parsed;

/// Each part reads by an index, and no more rows than its limit. So it has the order of the index:
/// for a limit without an order, PostgreSQL may read the table.
const COUNTS: &str = "
    SELECT clock_timestamp(),
        (SELECT count(*) FROM (SELECT FROM @job ORDER BY id LIMIT 10000) AS counted),
        (SELECT count(*) FROM (SELECT FROM @run WHERE state = 'waiting' ORDER BY handler LIMIT 10000) AS counted),
        (SELECT count(*) FROM (SELECT FROM @run WHERE state = 'blocked' ORDER BY blocked_on LIMIT 10000) AS counted)";

/// With what the last 10 000 runs of the last hour tell about each node.
const NODES: &str = "
    WITH ended AS MATERIALIZED (
        SELECT owner, state, extract(epoch FROM finished - started) AS took,
            GREATEST(extract(epoch FROM started - start_at), 0) AS late
        FROM @run WHERE finished > statement_timestamp() - interval '1 hour' ORDER BY finished DESC, id DESC LIMIT 10000
    )
    SELECT node.id, node.name, node.alive_until, node.alive_until > clock_timestamp(), node.handlers,
        present.claimed, present.running, past.ended, past.failed, past.took::double precision, past.late::double precision
    FROM @node node, LATERAL (
        SELECT count(*) FILTER (WHERE run.state = 'claimed') AS claimed,
            count(*) FILTER (WHERE run.state = 'running') AS running
        FROM @run run WHERE run.owner = node.id AND run.state IN ('claimed', 'running')
    ) AS present, LATERAL (
        SELECT count(*) AS ended, count(*) FILTER (WHERE state IN ('failed', 'abandoned')) AS failed,
            COALESCE(percentile_disc(0.5) WITHIN GROUP (ORDER BY took), 0) AS took,
            COALESCE(percentile_disc(0.99) WITHIN GROUP (ORDER BY late), 0) AS late
        FROM ended WHERE ended.owner = node.id
    ) AS past ORDER BY node.id";

/// The last 60 minutes: the last 2 000 runs of each. Nothing is estimated, because some thousand runs
/// may have ended within milliseconds.
const HOUR: &str = "
    SELECT past.* FROM generate_series(59, 0, -1) AS ago, LATERAL (
        SELECT count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state IN ('failed', 'abandoned')),
            COALESCE(percentile_disc(0.99) WITHIN GROUP (ORDER BY late), 0)::double precision, count(*) = 2000
        FROM (
            SELECT state, CASE WHEN state IN ('done', 'failed') THEN
                GREATEST(extract(epoch FROM started - start_at), 0) END AS late
            FROM @run WHERE finished <= statement_timestamp() - ago * interval '1 minute'
                AND finished > statement_timestamp() - (ago + 1) * interval '1 minute'
            ORDER BY finished DESC LIMIT 2000
        ) AS ended
    ) AS past ORDER BY ago DESC";

/// What waits, at most 100 names of each sort, and at most 1 000 runs of each name. The names begin
/// with their sort. Those of jobs are the last ones, because there may be more of them.
const QUEUES: &str = "
    WITH RECURSIVE waiting (name) AS (
        SELECT min(handler) FROM @run WHERE state = 'waiting'
        UNION ALL
        SELECT (SELECT min(run.handler) FROM @run run WHERE run.state = 'waiting' AND run.handler > waiting.name)
        FROM waiting WHERE waiting.name IS NOT NULL
    ), blocked (sort, name, number) AS (
        SELECT sort, (SELECT min(run.blocked_on) FROM @run run WHERE run.state = 'blocked' AND run.blocked_on >= sort), 1
        FROM unnest(ARRAY['key ', 'kind ', 'rate ', 'job ']) AS sort
        UNION ALL
        SELECT sort, (SELECT min(run.blocked_on) FROM @run run WHERE run.state = 'blocked' AND run.blocked_on > blocked.name),
            number + 1
        FROM blocked WHERE starts_with(name, sort) AND number < 100
    )
    (SELECT NULL, waiting.name, counted.*, 0::bigint
    FROM (SELECT name FROM waiting WHERE name IS NOT NULL LIMIT 100) AS waiting, LATERAL (
        SELECT count(*), min(start_at) FROM (SELECT start_at FROM @run run WHERE run.state = 'waiting'
            AND run.handler = waiting.name ORDER BY run.priority LIMIT 1000) AS first) AS counted)
    UNION ALL
    (SELECT blocked.name, substr(blocked.name, length(sort) + 1), counted.*,
        (SELECT count(*) FROM @slot slot WHERE slot.name = blocked.name AND slot.run IS NOT NULL)
    FROM blocked, LATERAL (
        SELECT count(*), min(due) FROM (SELECT due FROM @run run WHERE run.state = 'blocked'
            AND run.blocked_on = blocked.name ORDER BY run.handler LIMIT 1000) AS first) AS counted
    WHERE starts_with(blocked.name, sort) ORDER BY sort = 'job ', blocked.name)";

const RUNNING: &str = "
    SELECT id, job, handler, state, start_at, started, attempt, interrupted, owner FROM @run
    WHERE state IN ('claimed', 'running') AND owner IN (SELECT id FROM @node) AND state = 'running'
    ORDER BY started LIMIT $1";

/// Those that nodes have read ahead, those that any node may read, and those that are not read yet.
/// They are read for each priority and handler on its own, because the indexes are for that.
const NEXT: &str = "
    WITH RECURSIVE known (handler) AS (
        SELECT min(handler) FROM @job WHERE enabled AND next_run IS NOT NULL AND is_planned
        UNION ALL
        SELECT (SELECT min(job.handler) FROM @job job
            WHERE job.enabled AND job.next_run IS NOT NULL AND job.is_planned AND job.handler > known.handler)
        FROM known WHERE known.handler IS NOT NULL
    ), waiting (handler) AS (
        SELECT min(handler) FROM @run WHERE state = 'waiting'
        UNION ALL
        SELECT (SELECT min(run.handler) FROM @run run WHERE run.state = 'waiting' AND run.handler > waiting.handler)
        FROM waiting WHERE waiting.handler IS NOT NULL
    )
    (SELECT id, job, handler, state, start_at, started, attempt, interrupted, owner FROM @run
    WHERE state IN ('claimed', 'running') AND owner IN (SELECT id FROM @node) AND state = 'claimed'
    ORDER BY start_at LIMIT $1)
    UNION ALL
    (SELECT next.* FROM waiting, generate_series(-5, 5) AS level (priority), LATERAL (
        SELECT id, job, handler, state, start_at, started, attempt, interrupted, owner FROM @run run
        WHERE state = 'waiting' AND run.handler = waiting.handler AND run.priority = level.priority
        ORDER BY start_at LIMIT $1
    ) AS next)
    UNION ALL
    (SELECT NULL, due.id, due.handler, NULL, due.next_run, NULL, 1, 0, NULL
    FROM known, generate_series(-5, 5) AS level (priority), LATERAL (
        SELECT job.id, job.handler, job.next_run FROM @job job
        WHERE job.handler = known.handler AND job.priority = level.priority AND job.enabled AND job.next_run IS NOT NULL
            AND job.is_planned
        ORDER BY job.next_run LIMIT $1
    ) AS due)
    ORDER BY start_at LIMIT $1";

/// The present work of all nodes. See [`Jobs::overview`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Overview {
    /// The time by the clock of the database.
    pub now: Timestamp,
    /// The number of jobs, at most 10 000.
    pub jobs: u64,
    /// The number of runs that any node may claim, at most 10 000.
    pub waiting: u64,
    /// The number of runs that wait for the end of other runs, or for a rate, at most 10 000.
    pub blocked: u64,
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<NodeInfo>,
    /// The last 60 minutes, the latest one last.
    pub hour: Vec<Minute>,
    /// The runs that are executing, the longest first.
    pub running: Vec<ActiveRun>,
    /// The runs that start next.
    pub next: Vec<ActiveRun>,
}

/// A node and its runs. See [`Jobs::nodes`].
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
    /// The names of the handlers whose runs it executes. None: it is ending, or lost.
    pub handlers: Vec<String>,
    /// The number of runs that it has read ahead and not started.
    pub claimed: u64,
    /// The number of its runs that are executing.
    pub running: u64,
    /// The number of runs that it has ended in the last hour, of the last 10 000 of all nodes. The
    /// fields after this one are about these runs.
    pub ended: u64,
    /// How many of them have failed or were abandoned.
    pub failed: u64,
    /// The median of their durations.
    pub duration: Duration,
    /// The 99th percentile of how much later than they should they have started.
    pub lateness: Duration,
}

/// What has ended in a minute: among its last 2 000 runs. See [`Jobs::overview`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Minute {
    /// The number of runs that have succeeded.
    pub done: u64,
    /// The number of runs that have failed or were abandoned.
    pub failed: u64,
    /// The 99th percentile of how much later than they should they have started. Zero: none has.
    pub lateness: Duration,
    /// Whether 2 000 runs have ended, or more, which are not counted.
    pub has_more: bool,
}

/// Runs that wait for the same. See [`Jobs::queues`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Queue {
    /// What they wait for. `None`: for a node that has their handler.
    pub waits_for: Option<BlockedOn>,
    /// The name of the handler or of the limit, or the number of the job.
    pub name: String,
    /// How many wait, at most 1 000.
    pub waiting: u64,
    /// The earliest time of these 1 000: of the start, and if they are blocked, the due time.
    pub first: Timestamp,
    /// How many runs have a place of the limit.
    pub running: u64,
}

/// A run that is executing or due soon. See [`Jobs::overview`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ActiveRun {
    /// Its number. `None`: no node has read it yet.
    pub run: Option<i64>,
    /// The number of its job.
    pub job: i64,
    /// The name of its handler.
    pub handler: String,
    /// Its state. `None`: no node has read it yet.
    pub state: Option<RunState>,
    /// It starts not earlier than this.
    pub start_at: Timestamp,
    /// When its last execution has started.
    pub started: Option<Timestamp>,
    /// The number of this execution: 1, plus the failures and the interruptions before it.
    pub attempt: i32,
    /// How many executions were interrupted because their node was lost.
    pub interrupted: i32,
    /// The number of its node.
    pub node: Option<i64>,
}

impl Jobs {
    /// Returns what all nodes are doing now, with at most `limit` runs in each list. This is what
    /// `job-scheduler serve` shows.
    ///
    /// It may be called every second on tables of any size, because each part reads only the rows
    /// of active or recent runs. The parts are read one after the other, so they may contradict
    /// each other if `client` is no transaction with the isolation level `REPEATABLE READ`.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let overview = Jobs::new("jobs")?.overview(&client, 10).await?;
    /// println!("{} runs wait for {} nodes", overview.waiting, overview.nodes.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn overview(
        &self,
        client: &impl GenericClient,
        limit: u32,
    ) -> Result<Overview, Error> {
        let limit = i64::from(limit);
        let counts = client
            .query_typed_one(&self.names.complete(COUNTS), &[])
            .await?;
        Ok(Overview {
            now: counts.try_get(0)?,
            jobs: count(&counts, 1)?,
            waiting: count(&counts, 2)?,
            blocked: count(&counts, 3)?,
            nodes: self.nodes(client).await?,
            hour: self.rows(client, HOUR, [], minute).await?,
            running: self.rows(client, RUNNING, [&limit], active_run).await?,
            next: self.rows(client, NEXT, [&limit], active_run).await?,
        })
    }

    /// Returns the nodes, among them lost ones whose runs are not taken over yet. Reads at most the
    /// last 10 000 runs that have ended, by an index. The role needs `SELECT` on `node` and `run`.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for node in Jobs::new("jobs")?.nodes(&client).await? {
    ///     println!("{}: {} runs, {:?} late", node.name, node.ended, node.lateness);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn nodes(&self, client: &impl GenericClient) -> Result<Vec<NodeInfo>, Error> {
        self.rows(client, NODES, [], node_info).await
    }

    /// Returns what waits, by what it waits for: for a node, at most 100 handlers; and at most 100
    /// limits of names, 100 limits of handlers, 100 rates, and 100 jobs.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::Jobs;
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for queue in Jobs::new("jobs")?.queues(&client).await? {
    ///     println!("{} runs wait since {} for {}", queue.waiting, queue.first, queue.name);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn queues(&self, client: &impl GenericClient) -> Result<Vec<Queue>, Error> {
        self.rows(client, QUEUES, [], queue).await
    }
}

fn node_info(row: &Row) -> Result<NodeInfo, tokio_postgres::Error> {
    Ok(NodeInfo {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        alive_until: row.try_get(2)?,
        is_alive: row.try_get(3)?,
        handlers: row.try_get(4)?,
        claimed: count(row, 5)?,
        running: count(row, 6)?,
        ended: count(row, 7)?,
        failed: count(row, 8)?,
        duration: seconds(row, 9)?,
        lateness: seconds(row, 10)?,
    })
}

/// Zero if a clock was set back meanwhile.
fn seconds(row: &Row, column: usize) -> Result<Duration, tokio_postgres::Error> {
    Ok(Duration::try_from_secs_f64(row.try_get(column)?).unwrap_or_default())
}

fn minute(row: &Row) -> Result<Minute, tokio_postgres::Error> {
    Ok(Minute {
        done: count(row, 0)?,
        failed: count(row, 1)?,
        lateness: seconds(row, 2)?,
        has_more: row.try_get(3)?,
    })
}

fn queue(row: &Row) -> Result<Queue, tokio_postgres::Error> {
    Ok(Queue {
        waits_for: row.try_get::<_, Option<Parsed<_>>>(0)?.map(|read| read.0),
        name: row.try_get(1)?,
        waiting: count(row, 2)?,
        first: row.try_get(3)?,
        running: count(row, 4)?,
    })
}

fn active_run(row: &Row) -> Result<ActiveRun, tokio_postgres::Error> {
    Ok(ActiveRun {
        run: row.try_get(0)?,
        job: row.try_get(1)?,
        handler: row.try_get(2)?,
        state: row.try_get::<_, Option<Parsed<_>>>(3)?.map(|read| read.0),
        start_at: row.try_get(4)?,
        started: row.try_get(5)?,
        attempt: row.try_get(6)?,
        interrupted: row.try_get(7)?,
        node: row.try_get(8)?,
    })
}
