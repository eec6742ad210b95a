//! Limits on how many runs are running: of jobs that share a name, and of a handler.

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::job::{check_count, check_handler};
use crate::jobs::Jobs;

/// Without limits, the row is removed.
const SET_KIND: &str = "
    WITH removed AS (DELETE FROM @kind WHERE handler = $1 AND $2::integer IS NULL)
    INSERT INTO @kind (handler, running) SELECT $1, $2 WHERE $2 IS NOT NULL
    ON CONFLICT (handler) DO UPDATE SET running = excluded.running";

const KINDS: &str = "SELECT handler, running FROM @kind ORDER BY handler";

/// The limits of all jobs of a handler. See [`Jobs::set_kind`].
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::KindLimits;
///
/// let five_at_a_time = KindLimits::new().running(5);
/// # let _ = five_at_a_time;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "limits are stored by `Jobs::set_kind`"]
#[non_exhaustive]
pub struct KindLimits {
    /// How many runs are running at a time, on all nodes together. `None`: no limit.
    pub running: Option<u32>,
}

/// A handler that has limits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindInfo {
    /// The name of the handler.
    pub handler: String,
    /// Its limits.
    pub limits: KindLimits,
}

impl KindLimits {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most this many runs are running at a time, on all nodes together: from 1 to 1 000. It
    /// holds as strictly as [`NewJob::limit`](crate::NewJob::limit).
    pub fn running(mut self, count: u32) -> Self {
        self.running = Some(count);
        self
    }

    fn check(self) -> Result<Self, Error> {
        if let Some(count) = self.running {
            check_count("running runs", count)?;
        }
        Ok(self)
    }
}

impl Jobs {
    /// Sets the limits of all jobs of a handler, and replaces those that it had. The handler need not
    /// exist yet.
    ///
    /// They hold for runs that start after the commit. Runs that are executing continue, and count.
    /// Runs that wait for a limit that has grown or was removed start within a
    /// [`heartbeat`](crate::SchedulerBuilder::heartbeat) and some milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] says which name or number is invalid, and what is valid. [`Error::Database`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, KindLimits};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Jobs::new("jobs")?;
    /// jobs.set_kind(&client, "call-api", KindLimits::new().running(5)).await?;
    /// // No limit any more:
    /// jobs.set_kind(&client, "call-api", KindLimits::new()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_kind(
        &self,
        client: &impl GenericClient,
        handler: &str,
        limits: KindLimits,
    ) -> Result<(), Error> {
        check_handler(handler)?;
        let running = limits.check()?.running.map(|count| count as i32);
        let parameters = [(&handler as _, Type::TEXT), (&running as _, Type::INT4)];
        client.query_typed(&self.names.complete(SET_KIND), &parameters).await?;
        Ok(())
    }

    /// Returns the handlers that have limits, in the order of their names.
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
    /// for kind in Jobs::new("jobs")?.kinds(&client).await? {
    ///     println!("{}: {:?}", kind.handler, kind.limits);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn kinds(&self, client: &impl GenericClient) -> Result<Vec<KindInfo>, Error> {
        let rows = client.query_typed(&self.names.complete(KINDS), &[]).await?;
        Ok(rows.iter().map(kind_info).collect::<Result<_, _>>()?)
    }
}

fn kind_info(row: &Row) -> Result<KindInfo, tokio_postgres::Error> {
    let running: Option<i32> = row.try_get(1)?;
    let running = running.map(i32::unsigned_abs);
    Ok(KindInfo { handler: row.try_get(0)?, limits: KindLimits { running } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_limits_of_a_kind_say_what_is_wrong() {
        assert_eq!(KindLimits::new().running(1_000).check().unwrap().running, Some(1_000));
        for (limits, reason) in [
            (KindLimits::new().running(0), "running runs of 0: must be from 1 to 1000"),
            (KindLimits::new().running(1_001), "running runs of 1001: must be from 1 to 1000"),
        ] {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
