//! For the tests of applications: runs a job inline, and looks for jobs that were enqueued.
//!
//! [`SchedulerBuilder::inline`](crate::SchedulerBuilder::inline) calls a handler without a database
//! and without nodes, as a node would: with the payload as JSON, and with the timeout and the
//! retries of the job, whose times are whole microseconds as in the database. With tokio's paused
//! clock, waiting takes no time.
//!
//! ```
//! use hashed_wheel_job_scheduler::jiff::Timestamp;
//! use hashed_wheel_job_scheduler::testing::Ended;
//! use hashed_wheel_job_scheduler::{Context, NewJob, RunError, Scheduler};
//! use serde_json::json;
//! use std::time::Duration;
//!
//! async fn poll(context: Context, _: serde_json::Value) -> Result<String, RunError> {
//!     if context.attempt == 1 {
//!         return Err("not ready".into());
//!     }
//!     tokio::time::sleep(Duration::from_secs(3_600)).await;
//!     Ok(context.due.to_string())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), hashed_wheel_job_scheduler::Error> {
//! // In a test: #[tokio::test(start_paused = true)]
//! tokio::time::pause();
//! let builder = Scheduler::builder().handler_named("poll", poll);
//! let job = || NewJob::named("poll", json!(7)).retries(3, Duration::from_secs(10), Duration::from_secs(60));
//!
//! let ended = builder.inline().run(job()).await?;
//! assert_eq!(ended, Ended::Retried { error: "not ready".into(), pause: Duration::from_secs(10) });
//!
//! let due: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
//! let ended = builder.inline().due(due).attempt(2).run(job()).await?;
//! assert_eq!(ended, Ended::Done(json!("2027-01-01T00:00:00Z")));
//!
//! let ended = builder.inline().attempt(2).run(job().timeout(Duration::from_secs(60))).await?;
//! assert!(matches!(ended, Ended::Retried { error, .. } if error == "timed out after 60s"));
//! # Ok(())
//! # }
//! ```
//!
//! [`Wanted`] finds a job in the transaction of a test that has enqueued it. The transaction need
//! not commit.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cancel;
use crate::caught::caught;
use crate::client::JobClient;
use crate::error::{Error, ensure};
use crate::execution::backoff;
use crate::handler::{Handlers, Kind, Link};
use crate::job::{Checked, NewJob, Payload};
use crate::jobs::Jobs;
use crate::json::decode_or_text;
use crate::perform::Failure;
use crate::sql::Names;
use crate::store::Run;

/// The due time without [`Inline::due`] and [`NewJob::at`]: the beginning of 2000.
const DUE: i64 = 946_684_800;

/// The number of jobs in the message of a failed assertion.
const SHOWN: i64 = 20;

const FIND: &str = "
    SELECT job.id, '' FROM @job job, (SELECT $1::jsonb AS wanted) AS x
    WHERE job.handler = wanted ->> 'handler' AND job.key IS NOT DISTINCT FROM COALESCE(wanted ->> 'key', job.key)
        AND (NOT wanted ? 'payload' OR jsonb_contains(job.payload, wanted -> 'payload'))
    ORDER BY job.id";

const SHOW: &str = "
    SELECT job.id, format('job %s: %s, key %s, %s, due %s, payload %s', job.id, job.handler,
        COALESCE(job.key, 'none'), job.schedule, COALESCE(job.next_run::text, 'never'), left(job.payload::text, 200))
    FROM @job job ORDER BY job.handler <> ($1::jsonb ->> 'handler'), job.id DESC LIMIT ($1::jsonb ->> 'shown')::bigint";

/// How an execution has ended: what a node would store. See the [module](self).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// The run is done, with this output.
    Done(Value),
    /// The handler has failed, and the run is repeated after this pause.
    Retried {
        /// The text of the error.
        error: String,
        /// The time until the next execution.
        pause: Duration,
    },
    /// The handler has postponed the run: see [`RunError::snooze`](crate::RunError::snooze).
    Snoozed {
        /// The time until the next execution.
        pause: Duration,
    },
    /// The run has failed.
    Failed {
        /// The text of the error.
        error: String,
    },
    /// The run was cancelled: see [`Inline::cancel_after`].
    Cancelled {
        /// What the handler has returned: the output, or the text of the error.
        result: Result<Value, String>,
    },
}

/// An execution without a database and without a node. See the [module](self).
#[derive(Debug, Clone)]
#[must_use = "`run` executes a job"]
pub struct Inline<'a> {
    handlers: &'a Handlers,
    due: Option<Timestamp>,
    attempt: u32,
    interrupted: u32,
    cancel_after: Option<Duration>,
    cancel_grace: Duration,
}

impl<'a> Inline<'a> {
    pub(crate) fn new(handlers: &'a Handlers, cancel_grace: Duration) -> Self {
        Self {
            handlers,
            due: None,
            attempt: 1,
            interrupted: 0,
            cancel_after: None,
            cancel_grace,
        }
    }

    /// The due time in the [`Context`](crate::Context). The default is the time of
    /// [`NewJob::at`], or 2000-01-01T00:00:00Z.
    pub fn due(mut self, time: Timestamp) -> Self {
        self.due = Some(time);
        self
    }

    /// The number of the execution in the [`Context`](crate::Context): from 1, the default.
    pub fn attempt(mut self, number: u32) -> Self {
        self.attempt = number;
        self
    }

    /// How many executions were interrupted before. The default is 0. At most the executions before
    /// this one.
    pub fn interrupted(mut self, count: u32) -> Self {
        self.interrupted = count;
        self
    }

    /// Cancels the run when it has been executing for this time, as [`Jobs::cancel`] does: see
    /// [`Context::cancelled`](crate::Context::cancelled). A handler that does not end within the
    /// [`cancel_grace`](crate::SchedulerBuilder::cancel_grace) is dropped. By default it is not
    /// cancelled.
    pub fn cancel_after(mut self, time: Duration) -> Self {
        self.cancel_after = Some(time);
        self
    }

    /// Checks a job as [`Jobs::enqueue`] does, and executes it once, in this task. The numbers of
    /// the job and the run are 1. A panic of the handler is a failure, as on a node.
    ///
    /// [`Context::complete`](crate::Context::complete) needs a node: here it returns an error.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a setting of the job or of this execution is invalid, or if there is
    /// no handler of this name. [`Error::Payload`].
    ///
    /// # Panics
    ///
    /// If the job has a [`timeout`](NewJob::timeout) or is [cancelled](Self::cancel_after), and the
    /// runtime has no time enabled.
    pub async fn run(self, job: NewJob) -> Result<Ended, Error> {
        let Checked {
            job,
            payload,
            start,
            ..
        } = job.check()?;
        let names = self.handlers.names();
        ensure(names.contains(&job.handler), || {
            format!("there is no handler '{}', only {names:?}", job.handler)
        })?;
        let [attempt, interrupted] = [self.attempt, self.interrupted].map(i32::try_from);
        let (Ok(attempt @ 1..), Ok(interrupted)) = (attempt, interrupted) else {
            return Err(Error::Invalid("attempt: must be from 1 to 2^31 - 1".into()));
        };
        ensure(interrupted < attempt, || {
            format!(
                "interrupted: must be less than the attempt {attempt}, because each interruption is one"
            )
        })?;
        let due = self.due.or(start).unwrap_or(Timestamp::constant(DUE, 0));
        let run = Run {
            id: 1,
            job: 1,
            handler: job.handler,
            due,
            start_at: due,
            attempt,
            interrupted,
            excused: 0,
            misses_until: None,
            priority: job.priority,
            place: None,
        };
        let (canceller, cancelled) = cancel::pair();
        let names = Names::new("job_scheduler")?;
        let link = Link {
            cancelled: cancelled.clone(),
            names,
            run: run.id,
            attempt,
            started: due,
        };
        let execution = caught(self.handlers.execute(&run, payload, link));
        let execution = async {
            match job.timeout {
                None => Ok(execution.await),
                Some(limit) => tokio::time::timeout(limit, execution)
                    .await
                    .map_err(|_| limit),
            }
        };
        let grace_ended = async {
            let Some(time) = self.cancel_after else {
                return std::future::pending().await;
            };
            tokio::time::sleep(time).await;
            canceller.cancel();
            tokio::time::sleep(self.cancel_grace).await;
        };
        let result = tokio::select! {
            biased;
            result = execution => match result {
                Ok(Ok(result)) => result.map_err(Failure::from),
                Ok(Err(message)) => Err(Failure::panicked(&message)),
                Err(limit) => Err(Failure::timed_out(limit)),
            },
            () = grace_ended => Err(Failure::not_ended_within(self.cancel_grace)),
        };
        if cancelled.is_cancelled() {
            let result = result
                .map(|output| decode_or_text(&output))
                .map_err(|failure| failure.text);
            return Ok(Ended::Cancelled { result });
        }
        let failure = match result {
            Ok(output) => return Ok(Ended::Done(decode_or_text(&output))),
            Err(failure) => failure,
        };
        let failures = (attempt - interrupted).unsigned_abs();
        let error = failure.text;
        Ok(match failure.kind {
            Kind::Snooze(pause) => Ended::Snoozed { pause },
            Kind::Failure if failures <= job.retries => Ended::Retried {
                error,
                pause: backoff(job.backoff, failures),
            },
            _ => Ended::Failed { error },
        })
    }
}

/// A description of a job that a test expects.
///
/// # Examples
///
/// ```no_run
/// use hashed_wheel_job_scheduler::Jobs;
/// use hashed_wheel_job_scheduler::testing::Wanted;
/// use serde_json::json;
///
/// # async fn sign_up(_: &tokio_postgres::Transaction<'_>) -> Result<(), tokio_postgres::Error> { Ok(()) }
/// # async fn test(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let jobs = Jobs::new("jobs")?;
/// let transaction = client.transaction().await?;
/// sign_up(&transaction).await?;
/// Wanted::named("send-mail").payload(json!({ "to": "you" })).assert_enqueued(&jobs, &transaction).await;
/// Wanted::named("send-invoice").assert_not_enqueued(&jobs, &transaction).await;
/// transaction.rollback().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "`assert_enqueued` looks for the job"]
pub struct Wanted {
    handler: String,
    key: Option<String>,
    payload: Option<Value>,
}

impl Wanted {
    /// A job with a payload of this type.
    pub fn of<P: Payload>() -> Self {
        Self::named(P::HANDLER)
    }

    /// A job for this handler.
    pub fn named(handler: impl Into<String>) -> Self {
        Self {
            handler: handler.into(),
            key: None,
            payload: None,
        }
    }

    /// With this key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// With a payload that contains this one, as PostgreSQL's `@>` does: an object contains its
    /// fields, an array its elements in any order.
    pub fn payload(mut self, part: Value) -> Self {
        self.payload = Some(part);
        self
    }

    /// Returns the numbers of the jobs that match, finished ones too, in their order.
    ///
    /// # Errors
    ///
    /// The errors of the database. The role must be allowed to read the tables.
    pub async fn find(&self, jobs: &Jobs, mut client: impl JobClient) -> Result<Vec<i64>, Error> {
        let rows = self.rows(jobs, &mut client, FIND).await?;
        Ok(rows.into_iter().map(|(id, _)| id).collect())
    }

    /// Asserts that a job matches. Returns the number of the first one.
    ///
    /// # Panics
    ///
    /// If there is none. The message has the last 20 jobs, those of the same handler first. Also
    /// after an error of the database.
    pub async fn assert_enqueued(&self, jobs: &Jobs, mut client: impl JobClient) -> i64 {
        let found = self.rows(jobs, &mut client, FIND).await;
        let found = found.unwrap_or_else(|error| panic!("cannot look for {self}: {error}"));
        match found.first() {
            Some(&(id, _)) => id,
            None => panic!(
                "{self} was not enqueued.\n{}",
                self.others(jobs, client).await
            ),
        }
    }

    /// Asserts that no job matches.
    ///
    /// # Panics
    ///
    /// If there is one. The message has the last 20 jobs. Also after an error of the database.
    pub async fn assert_not_enqueued(&self, jobs: &Jobs, mut client: impl JobClient) {
        let found = self.rows(jobs, &mut client, FIND).await;
        let found = found.unwrap_or_else(|error| panic!("cannot look for {self}: {error}"));
        if !found.is_empty() {
            let ids: Vec<_> = found.iter().map(|(id, _)| id).collect();
            panic!(
                "{self} was enqueued: {ids:?}.\n{}",
                self.others(jobs, client).await
            );
        }
    }

    async fn rows(
        &self,
        jobs: &Jobs,
        client: &mut impl JobClient,
        text: &str,
    ) -> Result<Vec<(i64, String)>, Error> {
        let wanted = self.to_json().to_string();
        client.rows(&jobs.names.complete(text), &wanted).await
    }

    fn to_json(&self) -> Value {
        let mut wanted = json!({ "handler": self.handler, "key": self.key, "shown": SHOWN });
        if let Some(payload) = &self.payload {
            wanted["payload"] = payload.clone();
        }
        wanted
    }

    /// Returns the jobs that there are, as text.
    async fn others(&self, jobs: &Jobs, mut client: impl JobClient) -> String {
        match self.rows(jobs, &mut client, SHOW).await {
            Ok(rows) if rows.is_empty() => "There are no jobs.".into(),
            Ok(rows) => {
                let text = "There are:".to_owned();
                rows.iter().fold(text, |text, (_, line)| text + "\n" + line)
            }
            Err(error) => format!("The jobs cannot be listed: {error}"),
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a job for '{}'", self.handler)?;
        if let Some(key) = &self.key {
            write!(f, " with the key '{key}'")?;
        }
        self.payload.as_ref().map_or(Ok(()), |payload| {
            write!(f, " whose payload contains {payload}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, RunError, Scheduler};

    fn builder() -> crate::SchedulerBuilder {
        Scheduler::builder().handler_named("echo", |context: Context, payload: Value| async move {
            match payload.as_str() {
                Some("fail") => Err("failed".into()),
                Some("later") => Err(RunError::snooze(Duration::new(5, 999))),
                Some("never") => Err(RunError::permanent("failed for ever")),
                Some("panic") => panic!("at the disco"),
                Some("until cancelled") => {
                    context.cancelled().await;
                    Ok(json!("half done"))
                }
                Some("for ever") => std::future::pending().await,
                _ => Ok(json!([
                    context.attempt,
                    context.interrupted,
                    context.due.to_string(),
                    payload
                ])),
            }
        })
    }

    fn job(payload: &str) -> NewJob {
        NewJob::named("echo", payload.into()).retries(
            2,
            Duration::from_secs(1),
            Duration::from_secs(60),
        )
    }

    #[tokio::test]
    async fn context_is_the_chosen_one() {
        let builder = builder();
        let ended = builder.inline().run(job("a")).await.unwrap();
        assert_eq!(
            ended,
            Ended::Done(json!([1, 0, "2000-01-01T00:00:00Z", "a"]))
        );
        let time: Timestamp = "2027-02-03T04:05:06Z".parse().unwrap();
        let ended = builder
            .inline()
            .attempt(3)
            .interrupted(2)
            .run(job("a").at(time))
            .await
            .unwrap();
        assert_eq!(
            ended,
            Ended::Done(json!([3, 2, "2027-02-03T04:05:06Z", "a"]))
        );
    }

    #[tokio::test]
    async fn failures_are_repeated_as_by_a_node() {
        let builder = builder();
        let secs = Duration::from_secs;
        let retried = |pause| Ended::Retried {
            error: "failed".into(),
            pause,
        };
        for (attempt, interrupted, ended) in [
            (1, 0, retried(secs(1))),
            (2, 0, retried(secs(2))),
            // An interruption is no failure.
            (3, 1, retried(secs(2))),
            (
                3,
                0,
                Ended::Failed {
                    error: "failed".into(),
                },
            ),
        ] {
            let inline = builder.inline().attempt(attempt).interrupted(interrupted);
            assert_eq!(inline.run(job("fail")).await.unwrap(), ended);
        }
        let ended = builder.inline().run(job("never")).await.unwrap();
        assert_eq!(
            ended,
            Ended::Failed {
                error: "failed for ever".into()
            }
        );
        let ended = builder.inline().run(job("later")).await.unwrap();
        assert_eq!(ended, Ended::Snoozed { pause: secs(5) });
        let ended = builder
            .inline()
            .run(job("panic").retries(0, secs(0), secs(0)))
            .await
            .unwrap();
        assert!(
            matches!(&ended, Ended::Failed { error } if error.contains("at the disco")),
            "{ended:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn times_are_whole_microseconds_as_in_the_database() {
        let builder = builder();
        let [first, max, timeout] = [1_999, 3_001, 1_234_567].map(Duration::from_nanos);
        let job = |payload| job(payload).retries(3, first, max).timeout(timeout);
        for (attempt, payload, error, micros) in [
            (1, "fail", "failed", 1),
            (2, "fail", "failed", 2),
            (3, "fail", "failed", 3),
            (1, "for ever", "timed out after 1.234ms", 1),
        ] {
            let inline = builder.inline().attempt(attempt);
            let pause = Duration::from_micros(micros);
            let error = error.into();
            let ended = inline.run(job(payload)).await.unwrap();
            assert_eq!(ended, Ended::Retried { error, pause });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_handler_has_its_grace() {
        let second = Duration::from_secs(1);
        let builder = builder().cancel_grace(second * 5);
        for (payload, result, took) in [
            ("until cancelled", Ok(json!("half done")), second),
            (
                "for ever",
                Err("cancelled, and did not end within 5s".into()),
                second * 6,
            ),
        ] {
            let began = tokio::time::Instant::now();
            let ended = builder
                .inline()
                .cancel_after(second)
                .run(job(payload))
                .await
                .unwrap();
            assert_eq!(ended, Ended::Cancelled { result });
            assert_eq!(began.elapsed(), took);
        }
        // It had ended before.
        let ended = builder
            .inline()
            .cancel_after(second)
            .run(job("fail"))
            .await
            .unwrap();
        assert!(matches!(ended, Ended::Retried { .. }), "{ended:?}");
    }

    #[tokio::test]
    async fn invalid_executions_say_what_is_wrong() {
        let builder = builder();
        for (result, reason) in [
            (
                builder
                    .inline()
                    .run(NewJob::named("ecko", Value::Null))
                    .await,
                "there is no handler 'ecko', only [\"echo\"]",
            ),
            (
                builder.inline().run(job("a").timeout(Duration::ZERO)).await,
                "a timeout must be",
            ),
            (
                builder.inline().attempt(0).run(job("a")).await,
                "attempt: must be from 1",
            ),
            (
                builder.inline().interrupted(1).run(job("a")).await,
                "less than the attempt 1",
            ),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
