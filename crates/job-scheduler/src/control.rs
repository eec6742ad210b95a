//! Users cancel and retry single runs.

use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::jobs::Jobs;
use crate::records::count;

const CANCEL: &str = "SELECT @cancel_run($1)";

/// Locks the job first, because a deletion locks its runs in another order.
const CANCEL_ALL: &str = "
    WITH locked AS MATERIALIZED (SELECT job.id FROM @job job WHERE job.id = $1 FOR KEY SHARE)
    SELECT count(*) FROM (
        SELECT @cancel_run(unfinished.id) AS outcome FROM (
            SELECT run.id FROM @run run
            WHERE run.job = $1 AND run.state IN ('waiting', 'claimed', 'running', 'blocked')
            ORDER BY run.id
        ) AS unfinished WHERE (SELECT count(*) FROM locked) > 0
    ) AS called WHERE outcome IN ('cancelled', 'requested')";

const RETRY: &str = "SELECT @retry_run($1)";

/// The effect of [`Jobs::cancel`].
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::{Cancellation, Jobs};
///
/// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// match Jobs::new("jobs")?.cancel(&client, 7).await? {
///     None => println!("there is no such run"),
///     Some(Cancellation::Ended) => println!("too late"),
///     Some(_) => println!("it will not be repeated"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancellation {
    /// It had not started, and is [`Cancelled`](crate::RunState::Cancelled) now.
    Cancelled,
    /// It is running. Its handler learns it, and the run ends as
    /// [`Cancelled`](crate::RunState::Cancelled).
    Requested,
    /// It had ended before, and has not changed.
    Ended,
}

impl Jobs {
    /// Cancels a run, on whatever node it is. Returns `None` if there is no such run.
    ///
    /// A run that has not started ends immediately. The handler of a run that is executing learns
    /// it by [`Context::cancelled`](crate::Context::cancelled), and its future is dropped after the
    /// [`cancel_grace`](crate::SchedulerBuilder::cancel_grace). The node is notified; without
    /// notifications, it finds the request at its next
    /// [`heartbeat`](crate::SchedulerBuilder::heartbeat).
    ///
    /// After [`Requested`](Cancellation::Requested), the run ends as
    /// [`Cancelled`](crate::RunState::Cancelled): whatever its handler returns, and even if the
    /// node is lost meanwhile. An output or an error of the handler is stored with it. The run is
    /// not repeated, except by [`retry`](Self::retry).
    ///
    /// The other runs of the job are not affected: see [`cancel_all`](Self::cancel_all) and
    /// [`pause`](Self::pause). `client` may be a transaction with other changes. Until it commits,
    /// this run does not start or end, and others do.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, RunState};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// for run in jobs.history(&client, 7, 10).await? {
    ///     if run.state == RunState::Running {
    ///         jobs.cancel(&client, run.id).await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(
        &self,
        client: &impl GenericClient,
        run: i64,
    ) -> Result<Option<Cancellation>, Error> {
        let outcome = |row: &Row| {
            let outcome: Option<&str> = row.try_get(0)?;
            Ok(outcome.map(|outcome| match outcome {
                "cancelled" => Cancellation::Cancelled,
                "requested" => Cancellation::Requested,
                _ => Cancellation::Ended,
            }))
        };
        let cancelled = self.row(client, CANCEL, [&run], outcome).await?;
        Ok(cancelled.flatten())
    }

    /// Cancels all runs of a job that have not ended, as [`cancel`](Self::cancel) does. Returns
    /// their number.
    ///
    /// Later due times of the job are not affected. To prevent them too, [`pause`](Self::pause) the
    /// job first, in the same transaction.
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
    /// let mut transaction = client.transaction().await?;
    /// jobs.pause(&mut transaction, 7).await?;
    /// let running = jobs.cancel_all(&transaction, 7).await?;
    /// transaction.commit().await?;
    /// println!("{running} runs are ending");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel_all(&self, client: &impl GenericClient, job: i64) -> Result<u64, Error> {
        let count = self
            .row(client, CANCEL_ALL, [&job], |row| count(row, 0))
            .await?;
        Ok(count.unwrap_or_default())
    }

    /// Repeats a run that has failed, or was cancelled or abandoned, immediately. Returns false if
    /// there is no such run: it is unknown, has not ended, or has ended in another way.
    ///
    /// It is the same run: it keeps its number and its due time, and waits for a node, even if its
    /// job is paused. Its [`attempt`](crate::Context::attempt) continues, so it has the
    /// [`retries`](crate::NewJob::retries) that were left, and at least this one execution. The
    /// interruptions before do not count for
    /// [`max_interruptions`](crate::NewJob::max_interruptions).
    ///
    /// It runs as its job is now, unless the job was replaced while the run was executing. A
    /// finished job is unfinished again, with its [`key`](crate::NewJob::key); but if a new job has
    /// got this key meanwhile, both exist, and the old one has none. The
    /// [`retention`](crate::SchedulerBuilder::retention) of the run begins again when it ends; a
    /// run that was removed cannot be repeated. The [`Overlap`](crate::Overlap) of the job applies:
    /// with `Skip`, the run is skipped if another one is running.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, RunState};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// for run in jobs.history(&client, 7, 10).await? {
    ///     if run.state == RunState::Failed {
    ///         jobs.retry(&client, run.id).await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn retry(&self, client: &impl GenericClient, run: i64) -> Result<bool, Error> {
        let is_repeated = self
            .row(client, RETRY, [&run], |row| row.try_get(0))
            .await?;
        Ok(is_repeated.unwrap_or_default())
    }
}
