//! Users enqueue, change and inspect jobs.

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::records::{Job, RunInfo, job, job_columns, run_columns, run_info};
use crate::schedule::Schedule;
use crate::sql::{Names, Parameter, Typed};

const PAUSE: &str = "
    WITH paused AS (UPDATE @job SET enabled = false, disabled_reason = NULL WHERE id = $1 RETURNING id)
    SELECT id FROM paused";

const CANCEL: &str = "SELECT @cancel_runs($1)";

const LOCK: &str = "
    SELECT schedule, time_zone, next_run, clock_timestamp(), enabled, first_run, is_planned FROM @job
    WHERE id = $1
    FOR NO KEY UPDATE";

const RESUME: &str = "
    UPDATE @job SET enabled = true, disabled_reason = NULL, next_run = $2, first_run = $3, is_planned = true
    WHERE id = $1";

const DELETE: &str = "
    WITH job AS (DELETE FROM @job WHERE id = $1 RETURNING id)
    SELECT id FROM job";

/// Locked first, because a replacement may be about to change the handler.
const RUN_NOW: &str = "
    WITH named AS (SELECT id, handler, priority FROM @job WHERE id = $1 FOR KEY SHARE)
    INSERT INTO @run (job, handler, due, start_at, state, is_manual, priority)
    SELECT id, handler, now, now, 'waiting', true, priority FROM named, clock_timestamp() AS now
    RETURNING id";

const GET: &str = concat!("SELECT ", job_columns!(), " FROM @job WHERE id = $1");

const FIND: &str = "SELECT id FROM @job WHERE key = $1";

const HISTORY: &str = concat!(
    "SELECT ",
    run_columns!(),
    " FROM @run WHERE job = $1 ORDER BY due DESC LIMIT $2"
);

/// The jobs of a schema.
///
/// This handle has no connection. Each call takes a client or a transaction, so that jobs can be
/// enqueued and changed in a transaction of the application: they exist if and only if it commits.
/// If a due time is before the next regular read of a node, the nodes are notified at that time.
/// See [`NewJob::without_notification`](crate::NewJob::without_notification).
///
/// Until a transaction that has replaced, paused, resumed or deleted a job commits, the runs of
/// this job do not start, and results of those that are executing may not be written. Other jobs
/// are not affected, and no node waits: it tries again. (If the results that a node cannot write
/// have 64 MiB, further executions keep their runners.) A transaction that has only enqueued jobs
/// delays nothing, except another call with the same new key.
///
/// The client may be connected through a pooler in transaction mode, such as `PgBouncer`: no method
/// prepares statements or changes a setting of the session. (A node must be connected directly,
/// unless it is one [`without_notifications`](crate::SchedulerBuilder::without_notifications).)
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Jobs, NewJob, Payload};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     order: i64,
/// }
///
/// impl Payload for SendMail {
///     const HANDLER: &'static str = "send-mail";
/// }
///
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let jobs = Jobs::new("jobs")?;
/// let transaction = client.transaction().await?;
/// let order = transaction.query_one("INSERT INTO orders DEFAULT VALUES RETURNING id", &[]).await?;
/// jobs.enqueue(&transaction, NewJob::new(&SendMail { order: order.get(0) })).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Jobs {
    pub(crate) names: Names,
}

/// The effect of [`Jobs::enqueue`].
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Jobs, NewJob, Outcome};
///
/// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let job = NewJob::named("report", serde_json::json!({ "department": 7 })).key("report-7");
/// let enqueued = Jobs::new("jobs")?.enqueue(&client, job).await?;
/// if enqueued.outcome == Outcome::Found {
///     println!("job {} is still unfinished", enqueued.job);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The number of the job.
    pub job: i64,
    /// Whether the job was stored, or already there.
    pub outcome: Outcome,
}

/// Whether a job was stored. See [`Enqueued`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is a new job.
    Added,
    /// There is an unfinished job with this key. It has not changed.
    Found,
    /// There was an unfinished job with this key, and its definition has changed to the new one.
    Replaced,
}

impl Jobs {
    /// Returns the jobs in this schema. The schema is created when the first
    /// [`Scheduler`](crate::Scheduler) starts there.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the name has other characters than lower-case letters, digits and
    /// underscores, or is too long.
    pub fn new(schema: &str) -> Result<Self, Error> {
        Ok(Self {
            names: Names::new(schema)?,
        })
    }

    /// Returns what `read` reads from the rows of a statement.
    pub(crate) async fn rows<T, const N: usize>(
        &self,
        client: &impl GenericClient,
        text: &str,
        parameters: [Parameter<'_>; N],
        read: impl FnMut(&Row) -> Result<T, tokio_postgres::Error>,
    ) -> Result<Vec<T>, Error> {
        let text = self.names.complete(text);
        let parameters = parameters.map(Typed::typed);
        let rows = client.query_typed(&text, &parameters).await?;
        Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
    }

    /// The same for a statement that has one row, or none.
    pub(crate) async fn row<T, const N: usize>(
        &self,
        client: &impl GenericClient,
        text: &str,
        parameters: [Parameter<'_>; N],
        read: impl FnMut(&Row) -> Result<T, tokio_postgres::Error>,
    ) -> Result<Option<T>, Error> {
        Ok(self.rows(client, text, parameters, read).await?.pop())
    }

    /// Pauses a job: its runs that have not started do not start, although a node may have read
    /// them. Those that are running continue, but are not repeated if they fail or are interrupted.
    /// Returns false if there is no such job.
    ///
    /// It is atomic, and `client` may be a transaction with other changes.
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
    /// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// if let Some(job) = jobs.find(&client, "report-7").await? {
    ///     jobs.pause(&mut client, job).await?;
    ///     // Later:
    ///     jobs.resume(&mut client, job).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause(&self, client: &mut impl GenericClient, job: i64) -> Result<bool, Error> {
        let transaction = client.transaction().await?;
        let found = self.row(&transaction, PAUSE, [&job], ignore).await?;
        if found.is_some() {
            self.row(&transaction, CANCEL, [&job], ignore).await?;
        }
        transaction.commit().await?;
        Ok(found.is_some())
    }

    /// Resumes a paused or disabled job. Due times during the pause are omitted; a job that is due
    /// once and was not run is due immediately. Does not change a job that is enabled. Returns
    /// false if there is no such job.
    ///
    /// # Errors
    ///
    /// [`Error::Database`], or [`Error::Invalid`] if the schedule in the table is invalid.
    pub async fn resume(&self, client: &mut impl GenericClient, job: i64) -> Result<bool, Error> {
        let transaction = client.transaction().await?;
        let Some(row) = transaction
            .query_typed_opt(&self.names.complete(LOCK), &[job.typed()])
            .await?
        else {
            return Ok(false);
        };
        if row.try_get(4)? {
            return Ok(true);
        }
        let schedule = Schedule::parse(row.try_get(0)?, row.try_get(1)?).map_err(Error::Invalid)?;
        let (next_run, now): (Option<Timestamp>, Timestamp) = (row.try_get(2)?, row.try_get(3)?);
        let (mut first_run, mut next_run): (Timestamp, _) = (row.try_get(5)?, next_run);
        if !row.try_get::<_, bool>(6)? {
            (first_run, next_run) = schedule
                .plan_first(first_run, next_run)
                .map_err(Error::Invalid)?;
        }
        let next_run = next_run.and_then(|next_run| match schedule {
            _ if next_run >= now => Some(next_run),
            Schedule::Once => Some(now),
            _ => schedule.next(next_run, first_run, now),
        });
        let resume = [&job as Parameter<'_>, &next_run, &first_run];
        self.row(&transaction, RESUME, resume, ignore).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Deletes a job and its runs, also their results. Runs that have not started do not start. One
    /// that is executing continues, but its result is lost. Returns false if there is no such job.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn delete(&self, client: &impl GenericClient, job: i64) -> Result<bool, Error> {
        let found = self.row(client, DELETE, [&job], ignore).await?;
        Ok(found.is_some())
    }

    /// Runs a job immediately, in addition to its schedule, even if it is paused. Returns the
    /// number of the run, or `None` if there is no such job.
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
    /// let run = jobs.run_now(&client, 7).await?;
    /// for info in jobs.history(&client, 7, 10).await? {
    ///     println!("{} {:?} {:?}", info.due, info.state, info.error);
    /// }
    /// # let _ = run;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_now(
        &self,
        client: &impl GenericClient,
        job: i64,
    ) -> Result<Option<i64>, Error> {
        self.row(client, RUN_NOW, [&job], |row| row.try_get(0))
            .await
    }

    /// Returns a job.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn get(&self, client: &impl GenericClient, id: i64) -> Result<Option<Job>, Error> {
        self.row(client, GET, [&id], job).await
    }

    /// Returns the number of the job with this key. It may be finished.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn find(&self, client: &impl GenericClient, key: &str) -> Result<Option<i64>, Error> {
        self.row(client, FIND, [&key], |row| row.try_get(0)).await
    }

    /// Returns the last runs of a job, at most `limit`, the latest due time first. Results are
    /// removed after the [`retention`](crate::SchedulerBuilder::retention).
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn history(
        &self,
        client: &impl GenericClient,
        job: i64,
        limit: u32,
    ) -> Result<Vec<RunInfo>, Error> {
        let limit = i64::from(limit);
        self.rows(client, HISTORY, [&job, &limit], run_info).await
    }
}

/// Reads a row of which only its existence counts.
pub(crate) fn ignore(_: &Row) -> Result<(), tokio_postgres::Error> {
    Ok(())
}
