//! Runs that match a filter, and changes of all of them.

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::jobs::Jobs;
use crate::pages::{RunSummary, run_summary, summary_columns};
use crate::records::{RunState, count};
use crate::sql::{Named, Parameter};

/// The number of runs that a call examines at most, among those of which `SEARCH` speaks.
const EXAMINED: i64 = 10_000;

/// `$1`, `$2`: before the run with this time and number. `$3`: since this time. `$4`: the states.
/// `$5` to `$9`: the rest of the filter. `$10`: how many to return. The state decides which index
/// is read. Of runs that have not ended, only those with the state, the handler and the time count
/// as examined: no page continues behind the others. One row if there is none, so that the end of
/// what was read is known.
const SEARCH: &str = concat!(
    "WITH examined AS MATERIALIZED (
        SELECT id, job, handler, due, start_at, state, attempt, interrupted, owner, started, finished, error,
            {time} AS moment FROM @run
        WHERE {states} AND ({has_ended} OR $5::text IS NULL OR handler = $5)
            AND ({time}, id) < (COALESCE($1, 'infinity'), $2) AND {time} >= COALESCE($3, '-infinity') ORDER BY {order} LIMIT {examined}
    ), found AS (
        SELECT * FROM examined WHERE state = ANY ($4)
            AND ($5::text IS NULL OR handler = $5) AND ($6::bigint IS NULL OR owner = $6)
            AND ($7::text IS NULL OR COALESCE((SELECT starts_with(job.key, $7) FROM @job job
                WHERE job.id = examined.job), false))
            AND ($8::text IS NULL OR COALESCE((SELECT job.limits ? $8 FROM @job job
                WHERE job.id = examined.job), false))
            AND ($9::text IS NULL OR strpos(lower(error), lower($9)) > 0)
        ORDER BY moment DESC, id DESC LIMIT $10
    )
    SELECT ",
    summary_columns!(),
    ", run.moment, examined.count, examined.last, examined.last_id
    FROM (SELECT count(*), min(moment) AS last, (array_agg(id ORDER BY moment, id))[1] AS last_id FROM examined) AS examined
        LEFT JOIN found AS run ON true
    ORDER BY run.moment DESC, run.id DESC"
);

/// Locks the jobs first, in the order of their keys, and then the runs in the order of numbers, as
/// `put_jobs` does. Those whose state is another one when they are locked are left out.
const CHANGE: &str = "
    WITH locked AS MATERIALIZED (
        SELECT job.id FROM @job job WHERE job.id = ANY (ARRAY(SELECT run.job FROM @run run WHERE run.id = ANY ($1)))
        ORDER BY job.key, job.id FOR KEY SHARE
    ), listed AS MATERIALIZED (
        SELECT run.id FROM @run run
        WHERE (SELECT count(*) FROM locked) > 0 AND run.id = ANY ($1) {state}
        ORDER BY run.id FOR UPDATE
    )
    SELECT count(*) FROM (SELECT {call} AS changed FROM listed) AS called WHERE changed";

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
    /// 10 000 runs that have not ended were examined, and others may match that no page has. A
    /// filter with their handler or their time finds them.
    pub is_cut: bool,
}

/// What [`Jobs::change_runs`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunChange {
    /// See [`Jobs::retry`].
    Retry,
    /// See [`Jobs::cancel`]. It changes only those that are in this state when it locks them.
    /// `None`: all that have not ended.
    Cancel(Option<RunState>),
    /// Removes runs that have ended, and their jobs that have no further due time and no other run.
    /// If a job is paused while an earlier due time has not started, a due time whose run was
    /// removed may run again.
    Delete,
}

impl RunFilter {
    fn has_ended(&self) -> bool {
        !matches!(
            self.state,
            Some(RunState::Waiting | RunState::Claimed | RunState::Running | RunState::Blocked)
        )
    }

    /// Returns the statement, which reads one index.
    fn search(&self) -> String {
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
            // The first of these conditions is that of the index.
            Some(RunState::Claimed | RunState::Running) => (
                "start_at",
                "state IN ('claimed', 'running') AND owner IN (SELECT id FROM @node)
                    AND state = ANY ($4) AND ($6::bigint IS NULL OR owner = $6)",
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
        SEARCH
            .replace("{examined}", if is_simple { "$10" } else { "10000" })
            .replace("{has_ended}", &self.has_ended().to_string())
            .replace("{time}", time)
            .replace("{states}", states)
            .replace("{order}", order)
    }
}

impl Jobs {
    /// Returns at most `limit` runs that match the filter, the latest first: by their end, and
    /// those that have not ended by their start. `before`: only those that come after this one in
    /// this order.
    ///
    /// A call examines at most 10 000 runs. Of those that have ended, these are the latest ones of
    /// the time of the filter. A page may therefore have fewer than `limit`, even none, and not be
    /// the last one: [`RunPage::next`] says where the next call continues. Of those that have not
    /// ended, these are some that match the state, the handler and the time of the filter, and for
    /// claimed and running ones its node: a call may read past others in an index. If there may be
    /// more, [`RunPage::is_cut`] is true. Results are removed after the
    /// [`retention`](crate::SchedulerBuilder::retention).
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
        let until = filter.until.map(|until| (until, i64::MIN));
        let (time, id) = until.into_iter().chain(before).min().unzip();
        let (id, most) = (id.unwrap_or(i64::MAX), i64::from(limit));
        let states = match filter.state {
            Some(state) => vec![state.name()],
            None => vec!["failed", "abandoned"],
        };
        let parameters: [Parameter<'_>; 10] = [
            &time,
            &id,
            &filter.since,
            &states,
            &filter.handler,
            &filter.node,
            &filter.key,
            &filter.limit,
            &filter.error,
            &most,
        ];
        let mut page = RunPage {
            runs: Vec::new(),
            next: None,
            is_cut: false,
        };
        let put = |row: &Row| {
            if let Some(id) = row.try_get(0)? {
                page.runs.push(run_summary(row)?);
                page.next = Some((row.try_get("moment")?, id));
            }
            let has_more = row.try_get::<_, i64>("count")? == EXAMINED;
            page.is_cut = has_more && !filter.has_ended();
            if page.runs.len() < limit as usize {
                page.next = match has_more && !page.is_cut {
                    true => Some((row.try_get("last")?, row.try_get("last_id")?)),
                    false => None,
                };
            }
            Ok(())
        };
        self.rows(client, &filter.search(), parameters, put).await?;
        Ok(page)
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
    /// let page = jobs.search_runs(&transaction, &filter, None, 10_000).await?;
    /// let runs: Vec<_> = page.runs.iter().map(|run| run.id).collect();
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
        let mut condition = String::new();
        let text = match change {
            RunChange::Retry => CHANGE.replace("{call}", "@retry_run(id)"),
            RunChange::Cancel(state) => {
                let is = |state: RunState| {
                    format!("AND run.state IS NOT DISTINCT FROM '{}'", state.name())
                };
                condition = state.map(is).unwrap_or_default();
                CHANGE.replace("{call}", "@cancel_run(id) IN ('cancelled', 'requested')")
            }
            RunChange::Delete => "SELECT @delete_runs($1, true)".into(),
        };
        let text = text.replace("{state}", &condition);
        let count = self
            .row(client, &text, [&runs], |row| count(row, 0))
            .await?;
        Ok(count.unwrap_or_default())
    }
}
