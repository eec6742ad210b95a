//! Runs that match a filter, and changes of all of them.

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::jobs::Jobs;
use crate::pages::{RunSummary, run_summary, summary_columns};
use crate::records::{RunState, count};
use crate::sql::{Named, Parameter};

/// The number of runs that a call examines at most.
const EXAMINED: i64 = 10_000;

/// `$1`, `$2`: before the run with this time and number. `$3`: since this time. `$4`: the states.
/// `$5` to `$9`: the rest of the filter. `$10`: how many to return. The
/// state decides which index is read.
const EXAMINE: &str = "
    WITH examined AS MATERIALIZED (
        SELECT id, job, handler, due, start_at, state, attempt, interrupted, owner, started, finished, error,
            {time} AS moment FROM @run
        WHERE {states} AND ({time}, id) < (COALESCE($1, 'infinity'), $2) AND {time} >= COALESCE($3, '-infinity') ORDER BY {order} LIMIT {examined}
    ), found AS (
        SELECT * FROM examined WHERE state = ANY ($4)
            AND ($5::text IS NULL OR handler = $5) AND ($6::bigint IS NULL OR owner = $6)
            AND ($7::text IS NULL OR COALESCE((SELECT starts_with(job.key, $7) FROM @job job
                WHERE job.id = examined.job), false))
            AND ($8::text IS NULL OR COALESCE((SELECT job.limits ? $8 FROM @job job
                WHERE job.id = examined.job), false))
            AND ($9::text IS NULL OR strpos(lower(error), lower($9)) > 0)
        ORDER BY moment DESC, id DESC LIMIT $10
    )";

/// One row if there is none, so that the end of what was read is known.
const PAGE: &str = concat!(
    "SELECT ",
    summary_columns!(),
    ", run.moment, examined.count, examined.last, examined.last_id
    FROM (SELECT count(*), min(moment) AS last, (array_agg(id ORDER BY moment, id))[1] AS last_id FROM examined) AS examined
        LEFT JOIN found AS run ON true
    ORDER BY run.moment DESC, run.id DESC"
);

/// Locks the jobs first, in the order of their keys, and then the runs in the order of numbers, as
/// `put_jobs` does.
const CHANGE: &str = "
    WITH locked AS MATERIALIZED (
        SELECT job.id FROM @job job WHERE job.id = ANY (ARRAY(SELECT run.job FROM @run run WHERE run.id = ANY ($1)))
        ORDER BY job.key, job.id FOR KEY SHARE
    )
    SELECT count(*) FROM (
        SELECT {call} AS changed FROM (SELECT id FROM unnest($1) AS listed (id) ORDER BY id) AS listed
        WHERE (SELECT count(*) FROM locked) > 0
    ) AS called WHERE changed";

/// Which runs [`Jobs::search_runs`] returns. The default: those that have failed or were abandoned.
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::{RunFilter, RunState};
///
/// let mut filter = RunFilter::default();
/// filter.key = Some("tenant-7/".into());
/// filter.state = Some(RunState::Cancelled);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunFilter {
    /// Only runs in this state.
    pub state: Option<RunState>,
    /// Only those of this handler.
    pub handler: Option<String>,
    /// Only those whose last node has this number.
    pub node: Option<i64>,
    /// Only those of jobs whose key begins with this text.
    pub key: Option<String>,
    /// Only those of jobs with a [`limit`](crate::NewJob::limit) of this name.
    pub limit: Option<String>,
    /// Only those that have ended at this time or later. For runs that have not ended, the time is
    /// that of their start.
    pub since: Option<Timestamp>,
    /// Only those that have ended before this time.
    pub until: Option<Timestamp>,
    /// Only those whose error contains this text, in upper or lower case.
    pub error: Option<String>,
}

/// A part of the runs. See [`Jobs::search_runs`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunPage {
    /// The runs, the latest first.
    pub runs: Vec<RunSummary>,
    /// The `before` of the next page. `None`: this is the last one.
    pub next: Option<(Timestamp, i64)>,
}

/// What [`Jobs::change_runs`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunChange {
    /// See [`Jobs::retry`].
    Retry,
    /// See [`Jobs::cancel`]. It changes runs that have not ended.
    Cancel,
    /// Removes runs that have ended, and their jobs that have no further due time and no other run.
    /// If a job is paused while an earlier due time has not started, a due time whose run was
    /// removed may run again.
    Delete,
}

impl RunFilter {
    /// Returns a statement about the runs that match. Each reads 10 000 rows of one index at most.
    fn text(&self, select: &str) -> String {
        let (time, states, order) = match self.state {
            Some(RunState::Waiting) => (
                "start_at",
                "state = 'waiting'",
                "handler, priority, start_at",
            ),
            Some(RunState::Blocked) => (
                "start_at",
                "state = 'blocked'",
                "blocked_on, handler, priority DESC, due, id",
            ),
            Some(RunState::Claimed | RunState::Running) => (
                "start_at",
                "state IN ('claimed', 'running') AND owner IN (SELECT id FROM @node)",
                "owner",
            ),
            None | Some(RunState::Failed | RunState::Abandoned) => (
                "finished",
                "state IN ('failed', 'abandoned')",
                "finished DESC, id DESC",
            ),
            _ => ("finished", "finished IS NOT NULL", "finished DESC, id DESC"),
        };
        // The first rows are those that are wanted, if nothing but the time is asked for.
        let is_simple = *self
            == Self {
                since: self.since,
                until: self.until,
                ..Self::default()
            };
        let examined = if is_simple { "$10" } else { "10000" };
        let examine = EXAMINE
            .replace("{examined}", examined)
            .replace("{time}", time)
            .replace("{states}", states)
            .replace("{order}", order);
        examine + select
    }

    async fn query<T>(
        &self,
        jobs: &Jobs,
        client: &impl GenericClient,
        before: Option<(Timestamp, i64)>,
        limit: i64,
        select: &str,
        read: impl FnMut(&Row) -> Result<T, tokio_postgres::Error>,
    ) -> Result<Vec<T>, Error> {
        let until = self.until.map(|until| (until, i64::MIN));
        let (time, id) = until.into_iter().chain(before).min().unzip();
        let id = id.unwrap_or(i64::MAX);
        let states = match self.state {
            Some(state) => vec![state.name()],
            None => vec!["failed", "abandoned"],
        };
        let parameters: [Parameter<'_>; 10] = [
            &time,
            &id,
            &self.since,
            &states,
            &self.handler,
            &self.node,
            &self.key,
            &self.limit,
            &self.error,
            &limit,
        ];
        jobs.rows(client, &self.text(select), parameters, read)
            .await
    }
}

impl Jobs {
    /// Returns at most `limit` runs that match the filter, the latest first: by their end, and
    /// those that have not ended by their start. `before`: only those that come after this one in
    /// this order.
    ///
    /// A call examines at most 10 000 runs. A page of ended runs may therefore have fewer than
    /// `limit`, even none, and not be the last one: [`RunPage::next`] says where the next call
    /// continues. Of runs that have not ended, there is no more than these 10 000. Results are
    /// removed after the [`retention`](crate::SchedulerBuilder::retention).
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, RunFilter};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// let mut next = None;
    /// loop {
    ///     let page = jobs.search_runs(&client, &RunFilter::default(), next, 100).await?;
    ///     page.runs.iter().for_each(|run| println!("{} {:?} {:?}", run.id, run.key, run.error));
    ///     next = page.next;
    ///     if next.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn search_runs(
        &self,
        client: &impl GenericClient,
        filter: &RunFilter,
        before: Option<(Timestamp, i64)>,
        limit: u32,
    ) -> Result<RunPage, Error> {
        let mut page = RunPage {
            runs: Vec::new(),
            next: None,
        };
        let has_ended = !matches!(
            filter.state,
            Some(RunState::Waiting | RunState::Claimed | RunState::Running | RunState::Blocked)
        );
        let put = |row: &Row| {
            if let Some(id) = row.try_get(0)? {
                page.runs.push(run_summary(row)?);
                page.next = Some((row.try_get("moment")?, id));
            }
            if page.runs.len() < limit as usize {
                let is_cut = row.try_get::<_, i64>("count")? == EXAMINED && has_ended;
                page.next = match is_cut {
                    true => Some((row.try_get("last")?, row.try_get("last_id")?)),
                    false => None,
                };
            }
            Ok(())
        };
        filter
            .query(self, client, before, limit.into(), PAGE, put)
            .await?;
        Ok(page)
    }

    /// Returns the numbers of the runs that match the filter, among the 10 000 that a
    /// [search](Self::search_runs) examines.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn select_runs(
        &self,
        client: &impl GenericClient,
        filter: &RunFilter,
        before: Option<(Timestamp, i64)>,
    ) -> Result<Vec<i64>, Error> {
        let select = "SELECT id FROM found ORDER BY id";
        let id = |row: &Row| row.try_get(0);
        filter
            .query(self, client, before, EXAMINED, select, id)
            .await
    }

    /// Changes all these runs, and returns how many it has changed. The others do not exist, or
    /// their states do not allow it, or they should be deleted while another transaction has locked
    /// their finished job. In a transaction, a caller can roll back if there are any.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, RunChange, RunFilter};
    ///
    /// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// let mut filter = RunFilter::default();
    /// filter.limit = Some("bank".into());
    /// let transaction = client.transaction().await?;
    /// let runs = jobs.select_runs(&transaction, &filter, None).await?;
    /// jobs.change_runs(&transaction, RunChange::Retry, &runs).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change_runs(
        &self,
        client: &impl GenericClient,
        change: RunChange,
        runs: &[i64],
    ) -> Result<u64, Error> {
        let text = match change {
            RunChange::Retry => CHANGE.replace("{call}", "@retry_run(id)"),
            RunChange::Cancel => {
                CHANGE.replace("{call}", "@cancel_run(id) IN ('cancelled', 'requested')")
            }
            RunChange::Delete => "SELECT @delete_runs($1, true)".into(),
        };
        let count = self
            .row(client, &text, [&runs], |row| count(row, 0))
            .await?;
        Ok(count.unwrap_or_default())
    }
}
