//! Enqueues jobs, by a function in the database that SQL programs call too.

use jiff::Timestamp;

use crate::client::JobClient;
use crate::error::{Error, ensure};
use crate::job::{Checked, NewJob};
use crate::jobs::{Enqueued, Jobs, Outcome};
use crate::schedule::Schedule;

/// The maximum length of the payloads of a call, in bytes of JSON.
const MAX_BYTES: usize = 64 << 20;

const PUT: &str = "SELECT id, outcome FROM @put_jobs($1::jsonb) ORDER BY number";

const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, $1";

impl Jobs {
    /// Stores a job. A job that is due within milliseconds after the commit starts then.
    ///
    /// With a [`key`](NewJob::key), an unfinished job with this key is found, and not locked. With
    /// [`replace_existing`](NewJob::replace_existing), it is changed, unless it is already like the
    /// new one. If the job with this key is finished, it loses the key to the new job, which has
    /// another number.
    ///
    /// `client` is a connection or a transaction of tokio-postgres or of sqlx: see [`JobClient`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a setting is invalid, if the pattern has no due time, or if the
    /// payload has more than 4 MiB of JSON or more than 127 levels. [`Error::Payload`], and the
    /// errors of the database.
    pub async fn enqueue(&self, client: impl JobClient, job: NewJob) -> Result<Enqueued, Error> {
        Ok(self.enqueue_all(client, [job]).await?.remove(0))
    }

    /// Stores many jobs by one statement: all of them, or none after an error. Returns what it has
    /// done with each, in the order of `jobs`.
    ///
    /// Of jobs with the same [`key`](NewJob::key), the first one is stored, and the others find or
    /// replace it. Two calls with the same keys wait for each other, in any order of keys.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the payloads have more than 64 MiB of JSON together; otherwise as
    /// [`enqueue`](Self::enqueue). The error of an invalid job does not say which one it is.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use hashed_wheel_job_scheduler::{Jobs, NewJob};
    ///
    /// # async fn example(client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mails = (1..=10_000).map(|user| NewJob::named("newsletter", user.into()));
    /// let enqueued = Jobs::new("jobs")?.enqueue_all(&client, mails).await?;
    /// assert_eq!(enqueued.len(), 10_000);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enqueue_all(
        &self,
        mut client: impl JobClient,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Enqueued>, Error> {
        let jobs = jobs
            .into_iter()
            .map(NewJob::check)
            .collect::<Result<Vec<_>, _>>()?;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let bytes: usize = jobs.iter().map(|job| job.payload.get().len()).sum();
        ensure(bytes <= MAX_BYTES, || {
            format!(
                "the payloads of a call have {bytes} bytes of JSON: must be at most {MAX_BYTES}"
            )
        })?;
        let needs_now =
            |job: &Checked| matches!(job.schedule, Schedule::Cron(..)) && job.start.is_none();
        let now = match jobs.iter().any(needs_now) {
            true => client.rows(NOW, "").await?[0].0,
            false => 0,
        };
        let entries = (1..).zip(jobs).map(|(number, job)| entry(number, job, now));
        let entries = entries.collect::<Result<Vec<_>, _>>()?.join(",");
        let rows = client
            .rows(&self.names.complete(PUT), &format!("[{entries}]"))
            .await?;
        let enqueued = rows.iter().map(|&(job, ref outcome)| {
            let outcome = match outcome.as_str() {
                "found" => Outcome::Found,
                "replaced" => Outcome::Replaced,
                _ => Outcome::Added,
            };
            Enqueued { job, outcome }
        });
        Ok(enqueued.collect())
    }
}

/// Returns a job as the database reads it. `now` is the database's present in microseconds.
fn entry(number: u64, mut job: Checked, now: i64) -> Result<String, Error> {
    let first_run = match job.schedule {
        Schedule::Cron(..) => Some(first_match(&job, now)?),
        _ => job.start,
    };
    job.columns["number"] = number.into();
    job.columns["first_run"] = first_run.map(|time| time.to_string()).into();
    let mut text = job.columns.to_string();
    // As it is: a `Value` has other numbers.
    text.truncate(text.len() - 1);
    Ok(text + ",\"payload\":" + job.payload.get() + "}")
}

/// Returns the first due time of a cron job.
fn first_match(job: &Checked, now: i64) -> Result<Timestamp, Error> {
    let after_delay =
        || Timestamp::from_microsecond(now.saturating_add(job.delay.unwrap_or_default()));
    let start = job
        .start
        .map_or_else(after_delay, Ok)
        .map_err(|error| Error::Invalid(error.to_string()))?;
    let none = || Error::Invalid(format!("'{}' has no due time after {start}", job.schedule));
    job.schedule.first(start).ok_or_else(none)
}
