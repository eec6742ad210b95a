//! Pages of jobs and runs, for views of tables of any size.

use std::fmt;

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::jobs::Jobs;
use crate::records::{Job, RunInfo, RunState, run_columns, run_info};
use crate::sql::{Named, Parameter, Parsed, named};

/// The number of jobs that a search with a filter reads at most. There is no index for the filters,
/// because each index makes each new job slower.
const EXAMINED: u32 = 10_000;

/// `$1`: after this job. `$2`: how many to read. `$3`, `$4`: the filter. `$5`: how many to return.
/// One row if there is none, so that the end of what was read is known.
const SEARCH: &str = "
    WITH examined AS MATERIALIZED (
        SELECT id, key, handler, schedule, time_zone, next_run, disabled_reason,
            CASE WHEN NOT enabled AND disabled_reason IS NULL THEN 'paused'
                WHEN NOT enabled THEN 'disabled'
                WHEN next_run IS NULL THEN 'no next run' ELSE 'scheduled' END AS state
        FROM @job WHERE id > $1 ORDER BY id LIMIT $2
    ), found AS (
        SELECT * FROM examined
        WHERE ($3 IS NULL OR handler = $3) AND ($4 IS NULL OR state = $4) ORDER BY id LIMIT $5
    )
    SELECT found.id, found.key, found.handler, found.schedule, found.time_zone, found.next_run,
        found.disabled_reason, found.state, examined.count, examined.last,
        (SELECT state FROM (SELECT run.state, run.finished FROM @run run WHERE run.job = found.id
            ORDER BY run.due DESC LIMIT 20) AS latest WHERE finished IS NOT NULL LIMIT 1)
    FROM (SELECT count(*), max(id) AS last FROM examined) AS examined LEFT JOIN found ON true
    ORDER BY found.id";

/// The columns of `run` that [`run_summary`] reads.
macro_rules! summary_columns {
    () => {
        "run.id, run.job, run.handler, run.due, run.start_at, run.state, run.attempt, run.interrupted, run.owner,
        run.started, run.finished, left(run.error, 300), (SELECT job.key FROM @job job WHERE job.id = run.job)"
    };
}
pub(crate) use summary_columns;

const RUNS: &str = concat!(
    "SELECT ",
    summary_columns!(),
    " FROM @run run WHERE job = $1 AND due < COALESCE($2, 'infinity') ORDER BY due DESC LIMIT $3"
);

const RUN: &str = concat!("SELECT ", run_columns!(), " FROM @run WHERE id = $1");

/// Whether a job has further due times, and if not, why. See [`JobFilter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It has a due time that no node has read yet.
    Scheduled,
    /// It is enabled, and nodes have read its last due time. Its last run may not have ended.
    NoNextRun,
    /// It was paused.
    Paused,
    /// A node has disabled it, because its schedule is invalid.
    Disabled,
}

/// Which jobs [`Jobs::search`] returns. The default: all.
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::{JobFilter, JobState};
///
/// let mut filter = JobFilter::default();
/// filter.state = Some(JobState::Paused);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobFilter {
    /// Only jobs with this handler.
    pub handler: Option<String>,
    /// Only jobs in this state.
    pub state: Option<JobState>,
}

/// A part of the jobs. See [`Jobs::search`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobPage {
    /// The jobs, in the order of their numbers.
    pub jobs: Vec<JobSummary>,
    /// The `after` of the next page. `None`: this is the last one.
    pub next: Option<i64>,
}

/// A stored job without its payload, which may be large. See [`Jobs::search`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobSummary {
    /// Its number.
    pub id: i64,
    /// Its unique key.
    pub key: Option<String>,
    /// The name of its handler.
    pub handler: String,
    /// Its schedule, for example `once`, `every 500ms` or `cron 0 30 3 * * *`.
    pub schedule: String,
    /// The time zone of a cron pattern.
    pub time_zone: String,
    /// The first due time that no node has read yet. `None`: there is none.
    pub next_run: Option<Timestamp>,
    /// Whether it has further due times.
    pub state: JobState,
    /// Why a node has disabled it.
    pub disabled_reason: Option<String>,
    /// How the latest of its runs has ended, among the last 20.
    pub last_result: Option<RunState>,
}

/// A run without its output, which may be large. See [`Jobs::runs`] and [`Jobs::search_runs`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunSummary {
    /// Its number.
    pub id: i64,
    /// The number of its job.
    pub job: i64,
    /// The name of its handler.
    pub handler: String,
    /// Its due time by the schedule.
    pub due: Timestamp,
    /// It starts not earlier than this: the due time and the jitter, or the time of a retry.
    pub start_at: Timestamp,
    /// Its state.
    pub state: RunState,
    /// The number of its last execution: 1, plus the failures and the interruptions before it.
    pub attempt: i32,
    /// How many executions were interrupted because their node was lost.
    pub interrupted: i32,
    /// The number of its last node.
    pub node: Option<i64>,
    /// When its last execution has started.
    pub started: Option<Timestamp>,
    /// When it has ended.
    pub finished: Option<Timestamp>,
    /// The first 300 characters of the reason why the last execution failed, or why the run was
    /// skipped.
    pub error: Option<String>,
    /// The unique key of its job.
    pub key: Option<String>,
}

// The names that `SEARCH` returns.
named!(JobState, "state of a job": Scheduled = "scheduled", NoNextRun = "no next run", Paused = "paused",
    Disabled = "disabled");

/// Its name in English: `no next run`.
impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Job {
    /// Whether it has further due times.
    #[must_use]
    pub fn state(&self) -> JobState {
        match (self.enabled, &self.disabled_reason, self.next_run) {
            (false, None, _) => JobState::Paused,
            (false, Some(_), _) => JobState::Disabled,
            (true, _, None) => JobState::NoNextRun,
            (true, ..) => JobState::Scheduled,
        }
    }
}

impl Jobs {
    /// Returns at most `limit` jobs that match the filter, and whose number is greater than
    /// `after`, in the order of numbers. They have no payloads, unlike that of [`get`](Self::get).
    ///
    /// A call reads at most 10 000 jobs. With a filter, a page may therefore have fewer jobs than
    /// `limit`, even none, and not be the last one: [`JobPage::next`] says where the next call
    /// continues.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{JobFilter, JobState, Jobs};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let (jobs, mut paused) = (Jobs::new("jobs")?, JobFilter::default());
    /// paused.state = Some(JobState::Paused);
    /// let mut after = Some(0);
    /// while let Some(start) = after {
    ///     let page = jobs.search(&client, &paused, start, 100).await?;
    ///     page.jobs.iter().for_each(|job| println!("{} {}", job.id, job.handler));
    ///     after = page.next;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn search(
        &self,
        client: &impl GenericClient,
        filter: &JobFilter,
        after: i64,
        limit: u32,
    ) -> Result<JobPage, Error> {
        let limit = limit.min(EXAMINED);
        let has_filter = *filter != JobFilter::default();
        let examined = i64::from(if has_filter { EXAMINED } else { limit });
        let returned = i64::from(limit);
        let state = filter.state.map(Named::name);
        let parameters: [Parameter<'_>; 5] =
            [&after, &examined, &filter.handler, &state, &returned];
        let mut page = JobPage {
            jobs: Vec::new(),
            next: None,
        };
        let put = |row: &Row| {
            if row.try_get::<_, Option<i64>>(0)?.is_some() {
                page.jobs.push(job_summary(row)?);
            }
            // There may be more than it has read.
            if row.try_get::<_, i64>(8)? == examined {
                page.next = row.try_get(9)?;
            }
            Ok(())
        };
        self.rows(client, SEARCH, parameters, put).await?;
        // Runs that it has read after the last job are read again.
        if page.jobs.len() == limit as usize {
            page.next = page.jobs.last().map(|job| job.id);
        }
        Ok(page)
    }

    /// Returns at most `limit` runs of a job, the latest due time first. `before`: only those with
    /// an earlier due time. They have no outputs, unlike those of [`history`](Self::history).
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
    /// let jobs = Jobs::new("jobs")?;
    /// let first = jobs.runs(&client, 7, None, 20).await?;
    /// let second = jobs.runs(&client, 7, first.last().map(|run| run.due), 20).await?;
    /// # let _ = second;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn runs(
        &self,
        client: &impl GenericClient,
        job: i64,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<RunSummary>, Error> {
        let limit = i64::from(limit);
        let parameters: [Parameter<'_>; 3] = [&job, &before, &limit];
        self.rows(client, RUNS, parameters, run_summary).await
    }

    /// Returns a run.
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
    /// if let Some(run) = Jobs::new("jobs")?.get_run(&client, 70).await? {
    ///     println!("{:?} {:?}", run.state, run.output);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_run(
        &self,
        client: &impl GenericClient,
        run: i64,
    ) -> Result<Option<RunInfo>, Error> {
        self.row(client, RUN, [&run], run_info).await
    }
}

fn job_summary(row: &Row) -> Result<JobSummary, tokio_postgres::Error> {
    Ok(JobSummary {
        id: row.try_get(0)?,
        key: row.try_get(1)?,
        handler: row.try_get(2)?,
        schedule: row.try_get(3)?,
        time_zone: row.try_get(4)?,
        next_run: row.try_get(5)?,
        disabled_reason: row.try_get(6)?,
        state: row.try_get::<_, Parsed<_>>(7)?.0,
        last_result: row.try_get::<_, Option<Parsed<_>>>(10)?.map(|read| read.0),
    })
}

pub(crate) fn run_summary(row: &Row) -> Result<RunSummary, tokio_postgres::Error> {
    Ok(RunSummary {
        id: row.try_get(0)?,
        job: row.try_get(1)?,
        handler: row.try_get(2)?,
        due: row.try_get(3)?,
        start_at: row.try_get(4)?,
        state: row.try_get::<_, Parsed<_>>(5)?.0,
        attempt: row.try_get(6)?,
        interrupted: row.try_get(7)?,
        node: row.try_get(8)?,
        started: row.try_get(9)?,
        finished: row.try_get(10)?,
        error: row.try_get(11)?,
        key: row.try_get(12)?,
    })
}
