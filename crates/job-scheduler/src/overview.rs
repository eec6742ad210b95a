//! The present work of all nodes, for a live view.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::jobs::Jobs;
use crate::records::{NodeInfo, RunState, node_info, run_state};

/// Each part reads by an index, and no more rows than its limit. `$1`: the length of the lists.
const COUNTS: &str = "
    SELECT clock_timestamp(),
        (SELECT count(*) FROM (SELECT FROM @job LIMIT 10000) AS counted),
        (SELECT count(*) FROM (SELECT FROM @run WHERE state = 'waiting' LIMIT 10000) AS counted),
        (SELECT count(*) FROM (SELECT FROM @run WHERE state = 'blocked' LIMIT 10000) AS counted)";

const NODES: &str = "
    SELECT node.id, node.name, node.alive_until, node.alive_until > clock_timestamp(),
        count(*) FILTER (WHERE run.state = 'claimed'), count(*) FILTER (WHERE run.state = 'running')
    FROM @node node LEFT JOIN @run run ON run.owner = node.id AND run.state IN ('claimed', 'running')
    GROUP BY node.id ORDER BY node.id";

/// The runs of the last ten seconds, among the last 10 000 that have ended.
const ENDED: &str = "
    SELECT count(*) FILTER (WHERE state = 'done'),
        count(*) FILTER (WHERE state IN ('failed', 'abandoned')),
        count(*) FILTER (WHERE state IN ('skipped', 'cancelled')),
        COALESCE(percentile_disc(0.5) WITHIN GROUP (ORDER BY late), 0)::double precision,
        COALESCE(percentile_disc(0.99) WITHIN GROUP (ORDER BY late), 0)::double precision,
        COALESCE(max(late), 0)::double precision
    FROM (
        SELECT state, CASE WHEN state IN ('done', 'failed') THEN
            GREATEST(extract(epoch FROM started - start_at), 0) END AS late
        FROM @run WHERE finished > clock_timestamp() - interval '10 seconds'
        ORDER BY finished DESC LIMIT 10000
    ) AS ended";

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
        SELECT (SELECT min(run.handler) FROM @run run
            WHERE run.state = 'waiting' AND run.handler > waiting.handler)
        FROM waiting WHERE waiting.handler IS NOT NULL
    )
    SELECT * FROM (
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
    ) AS next ORDER BY start_at LIMIT $1";

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
    pub nodes: Vec<NodeLoad>,
    /// The number of runs that have succeeded in the last ten seconds. This and the following
    /// numbers are those of the last 10 000 runs that have ended.
    pub done: u64,
    /// The number of runs that have failed or were abandoned in the last ten seconds.
    pub failed: u64,
    /// The number of runs that were skipped or cancelled in the last ten seconds.
    pub omitted: u64,
    /// How much later than they should the runs of the last ten seconds have started: median, 99th
    /// percentile, and maximum. Zero if there are none.
    pub lateness: [Duration; 3],
    /// The runs that are executing, the longest first.
    pub running: Vec<ActiveRun>,
    /// The runs that start next.
    pub next: Vec<ActiveRun>,
}

/// A node and its runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeLoad {
    /// The node.
    pub node: NodeInfo,
    /// The number of runs that it has read ahead and not started.
    pub claimed: u64,
    /// The number of its runs that are executing.
    pub running: u64,
}

/// A run that is executing or due soon.
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
    /// `job-scheduler top` shows.
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
    /// for load in overview.nodes {
    ///     println!("node {}: {} running, {} claimed", load.node.id, load.running, load.claimed);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn overview(
        &self,
        client: &impl GenericClient,
        limit: u32,
    ) -> Result<Overview, Error> {
        let limit = i64::from(limit);
        let query = async |text: &str| {
            client
                .query_typed_one(&self.names.complete(text), &[])
                .await
        };
        let list = async |text: &str| -> Result<Vec<ActiveRun>, Error> {
            let rows = client
                .query_typed(&self.names.complete(text), &[(&limit, Type::INT8)])
                .await?;
            Ok(rows.iter().map(active_run).collect::<Result<_, _>>()?)
        };
        let counts = query(COUNTS).await?;
        let ended = query(ENDED).await?;
        let nodes = client.query_typed(&self.names.complete(NODES), &[]).await?;
        let lateness = |column| Ok::<_, Error>(Duration::from_secs_f64(ended.try_get(column)?));
        Ok(Overview {
            now: counts.try_get(0)?,
            jobs: count(&counts, 1)?,
            waiting: count(&counts, 2)?,
            blocked: count(&counts, 3)?,
            nodes: nodes.iter().map(node_load).collect::<Result<_, _>>()?,
            done: count(&ended, 0)?,
            failed: count(&ended, 1)?,
            omitted: count(&ended, 2)?,
            lateness: [lateness(3)?, lateness(4)?, lateness(5)?],
            running: list(RUNNING).await?,
            next: list(NEXT).await?,
        })
    }
}

fn count(row: &Row, column: usize) -> Result<u64, tokio_postgres::Error> {
    Ok(row.try_get::<_, i64>(column)?.unsigned_abs())
}

fn node_load(row: &Row) -> Result<NodeLoad, tokio_postgres::Error> {
    Ok(NodeLoad {
        node: node_info(row)?,
        claimed: count(row, 4)?,
        running: count(row, 5)?,
    })
}

fn active_run(row: &Row) -> Result<ActiveRun, tokio_postgres::Error> {
    Ok(ActiveRun {
        run: row.try_get(0)?,
        job: row.try_get(1)?,
        handler: row.try_get(2)?,
        state: row.try_get::<_, Option<&str>>(3)?.map(run_state),
        start_at: row.try_get(4)?,
        started: row.try_get(5)?,
        attempt: row.try_get(6)?,
        interrupted: row.try_get(7)?,
        node: row.try_get(8)?,
    })
}
