//! The handlers of a node, and what a handler learns about its run.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cancel::Cancelled;
use crate::client::JobClient;
use crate::error::Error;
use crate::job::{A_CENTURY, truncated};
use crate::json;
use crate::sql::Names;
use crate::store::Run;

/// The run that a handler executes.
///
/// # Examples
///
/// A handler that does not repeat its effect after an interruption:
///
/// ```
/// use hashed_wheel_job_scheduler::{Context, RunError};
///
/// # async fn is_paid(_: i64) -> bool { true }
/// # async fn pay(_: i64) -> Result<(), std::io::Error> { Ok(()) }
/// async fn pay_once(context: Context, _: serde_json::Value) -> Result<(), RunError> {
///     if context.interrupted > 0 && is_paid(context.run).await {
///         return Ok(());
///     }
///     Ok(pay(context.run).await?)
/// }
/// # let _ = pay_once;
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Context {
    /// The number of the job.
    pub job: i64,
    /// The number of the run. It remains the same when the run is repeated.
    pub run: i64,
    /// The due time by the schedule, by the clock of the database.
    ///
    /// A job has at most one run for each due time. Thus `(job, due)` and `run` are suitable keys
    /// for effects that must not be repeated.
    pub due: Timestamp,
    /// The number of this execution: 1, plus the failures and the interruptions before it.
    pub attempt: u32,
    /// How many executions of this run were interrupted because their node was lost.
    ///
    /// From 1 on, the run may have been done before, partially or completely, and an execution on a
    /// node that was only stopped may still be in progress.
    pub interrupted: u32,
    /// For a misfire: the run stands for all due times before this one.
    pub misses_until: Option<Timestamp>,
    pub(crate) link: Arc<Link>,
}

/// The connection of an execution with its node and with the database.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) cancelled: Cancelled,
    pub(crate) names: Names,
    pub(crate) run: i64,
    pub(crate) attempt: i32,
    /// It differs for each execution of the run.
    pub(crate) started: Timestamp,
}

/// One parameter and these columns, because a [`JobClient`] executes no other statements.
const COMPLETE: &str = "
    SELECT (call ->> 'run')::bigint, @complete_run((call ->> 'run')::bigint, (call ->> 'attempt')::integer,
        (call ->> 'started')::timestamptz, call -> 'output')::text
    FROM CAST($1 AS jsonb) AS call";

impl Context {
    /// Waits until this run is [cancelled](crate::Jobs::cancel). Otherwise it waits forever.
    ///
    /// The handler has the time [`cancel_grace`](crate::SchedulerBuilder::cancel_grace) to end
    /// then, before its future is dropped. The run ends as cancelled, whatever the handler returns:
    /// an output or an error is stored with it. A handler that does not use this is dropped at an
    /// `.await` after this time.
    ///
    /// It does not block, and may be called by several tasks. It does not tell of a shutdown of the
    /// node, a timeout, or the loss of a lease: the future of the handler is dropped then.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_job_scheduler::{Context, RunError};
    /// use serde_json::Value;
    ///
    /// # async fn next_part(_: u32) -> bool { false }
    /// # async fn clean_up() {}
    /// async fn convert(context: Context, _: Value) -> Result<u32, RunError> {
    ///     let mut parts = 0;
    ///     loop {
    ///         tokio::select! {
    ///             has_more = next_part(parts) => {
    ///                 parts += 1;
    ///                 if !has_more {
    ///                     return Ok(parts);
    ///                 }
    ///             }
    ///             () = context.cancelled() => {
    ///                 clean_up().await;
    ///                 return Ok(parts);
    ///             }
    ///         }
    ///     }
    /// }
    /// # let _ = convert;
    /// ```
    pub async fn cancelled(&self) {
        self.link.cancelled.cancelled().await;
    }

    /// Returns whether this run is cancelled, without waiting. For code without an `.await`, such
    /// as that of [`spawn_blocking`](tokio::task::spawn_blocking).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.link.cancelled.is_cancelled()
    }

    /// Ends this run as done, in the transaction of its work: **exactly once**, if the effect of
    /// the handler is only in this transaction. Either it commits, and then the effect and the
    /// result are stored, and the run is not repeated, even if the node is lost before the handler
    /// returns. Or it does not commit, and the run ends or is repeated as if this had not been
    /// called.
    ///
    /// `transaction` must be a transaction in the database of the scheduler, on a connection of the
    /// application, of tokio-postgres or of sqlx (see [`JobClient`]), through a pooler or not. (A
    /// client without a transaction writes the result alone.) With the isolation levels
    /// `REPEATABLE READ` and `SERIALIZABLE`, it may fail and has to be repeated. It waits for nodes
    /// for some milliseconds only.
    ///
    /// When the transaction has committed, what the handler returns is ignored, also an error. The
    /// run has ended then: another run of a job with [`Overlap::Wait`](crate::Overlap) may start,
    /// and a [cancellation](crate::Jobs::cancel) is too late. So the handler should return soon.
    ///
    /// # Errors
    ///
    /// [`Error::RunLost`] if this execution no longer has the run, because it was cancelled, or
    /// another node repeats it, or its job was deleted. [`Error::Invalid`] if the output has more
    /// than 4 MiB of JSON or more than 127 levels. The errors of the database. After an error, the
    /// transaction must not commit. (If the error is returned by `?`, it is rolled back.)
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_job_scheduler::tokio_postgres::{Config, NoTls};
    /// use hashed_wheel_job_scheduler::{Context, RunError};
    /// use serde_json::Value;
    ///
    /// async fn pay(context: Context, config: Config) -> Result<(), RunError> {
    ///     let (mut client, connection) = config.connect(NoTls).await?;
    ///     tokio::spawn(connection);
    ///     let transaction = client.transaction().await?;
    ///     transaction.execute("UPDATE account SET balance = balance - 1", &[]).await?;
    ///     context.complete(&transaction, &"paid").await?;
    ///     transaction.commit().await?;
    ///     Ok(())
    /// }
    /// # let _ = pay;
    /// ```
    pub async fn complete<R: Serialize>(
        &self,
        mut transaction: impl JobClient,
        output: &R,
    ) -> Result<(), Error> {
        let output = encode(output).map_err(|why| Error::Invalid(format!("the output {why}")))?;
        let Link {
            names,
            run,
            attempt,
            started,
            ..
        } = &*self.link;
        let call = format!(
            "{{\"run\":{run},\"attempt\":{attempt},\"started\":\"{started}\",\"output\":{}}}",
            output.get()
        );
        let rows = transaction.rows(&names.complete(COMPLETE), &call).await?;
        let is_done = rows.iter().any(|(_, is_done)| is_done == "true");
        is_done.then_some(()).ok_or(Error::RunLost)
    }
}

/// Why a handler failed.
///
/// Any error converts into it by `?`. A run that fails with it is repeated if its job has
/// [`retries`](crate::NewJob::retries) left.
///
/// # Examples
///
/// ```
/// use hashed_wheel_job_scheduler::{Context, RunError};
///
/// async fn parse(_: Context, text: String) -> Result<i64, RunError> {
///     if text.is_empty() {
///         return Err(RunError::permanent("there is no number in it, ever"));
///     }
///     Ok(text.parse()?)
/// }
/// # let _ = parse;
/// ```
#[derive(Debug)]
pub struct RunError {
    pub(crate) error: Box<dyn StdError + Send + Sync>,
    pub(crate) kind: Kind,
}

/// The consequence of an error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// The run is repeated if its job has retries left.
    Failure,
    /// The run is not repeated.
    Permanent,
    /// No error. The run is repeated after this pause.
    Snooze(Duration),
}

impl RunError {
    /// An error that another execution would not change. The run is not repeated.
    pub fn permanent(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            error: error.into(),
            kind: Kind::Permanent,
        }
    }

    /// No error: the handler cannot do its work yet, and the same run should be executed again
    /// after this pause, on any node. A pause of more than a century is one of a century, and
    /// fractions of a microsecond are dropped.
    ///
    /// This counts neither as a failure nor as one of the [`retries`](crate::NewJob::retries), and
    /// [`Context::attempt`] remains the same. So it may be repeated without a limit: to give up,
    /// look at [`Context::due`]. Meanwhile the run is [`Waiting`](crate::RunState::Waiting): it can
    /// be [cancelled](crate::Jobs::cancel), and is cancelled when its job is paused. Other runs of
    /// the job may start, as if it had ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_job_scheduler::{Context, RunError};
    /// use serde_json::Value;
    /// use std::time::Duration;
    ///
    /// # async fn is_ready() -> bool { true }
    /// async fn export(_: Context, _: Value) -> Result<(), RunError> {
    ///     if !is_ready().await {
    ///         return Err(RunError::snooze(Duration::from_secs(60)));
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = export;
    /// ```
    #[must_use]
    pub fn snooze(pause: Duration) -> Self {
        let pause = truncated(pause.min(A_CENTURY));
        Self {
            error: format!("again in {pause:?}").into(),
            kind: Kind::Snooze(pause),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// Like `anyhow::Error`, it does not implement `Error`, so that this conversion is possible.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for RunError {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            kind: Kind::Failure,
        }
    }
}

type Execution = Pin<Box<dyn Future<Output = Result<Box<RawValue>, RunError>> + Send>>;
type Handler = Arc<dyn Fn(Context, Box<RawValue>) -> Execution + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_name: BTreeMap<String, Handler>,
    /// A name that has two of them.
    pub(crate) duplicate: Option<String>,
}

impl Handlers {
    pub(crate) fn add<P, F, Fut, R>(&mut self, name: String, function: F)
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, RunError>> + Send + 'static,
        R: Serialize,
    {
        let function = Arc::new(function);
        let handler = move |context, payload: Box<RawValue>| {
            let function = function.clone();
            Box::pin(async move {
                // It does not become readable by waiting.
                let payload = serde_json::from_str(payload.get()).map_err(|error| {
                    RunError::permanent(format!("the handler cannot read the payload: {error}"))
                })?;
                let output = function(context, payload).await?;
                encode(&output).map_err(|why| RunError::permanent(format!("the output {why}")))
            }) as Execution
        };
        let earlier = self.by_name.insert(name.clone(), Arc::new(handler));
        if earlier.is_some() {
            self.duplicate = Some(name);
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    /// Executes a run. Its job has a handler here, because a node reads no other jobs.
    pub(crate) fn execute(&self, run: &Run, payload: Box<RawValue>, link: Link) -> Execution {
        let context = Context {
            job: run.job,
            run: run.id,
            due: run.due,
            attempt: run.attempt.try_into().unwrap_or(0),
            interrupted: run.interrupted.try_into().unwrap_or(0),
            misses_until: run.misses_until,
            link: Arc::new(link),
        };
        match self.by_name.get(&run.handler) {
            Some(handler) => handler(context, payload),
            None => {
                let error = format!("this node has no handler '{}'", run.handler);
                Box::pin(std::future::ready(Err(RunError::from(error))))
            }
        }
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

/// Converts an output to text. The error says why it must not be stored.
fn encode(output: &impl Serialize) -> Result<Box<RawValue>, String> {
    let output = serde_json::to_value(output)
        .map_err(|error| format!("cannot be converted to JSON: {error}"))?;
    json::encode(&without_nul(output))
}

/// The maximum length of the text of an error in the database, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// Returns the text of an error for the database. A long one is cut: a statement that writes it
/// must end well within a lease.
pub(crate) fn error_text(text: &str) -> String {
    let end = (0..=MAX_ERROR.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    let cut = if text.len() > MAX_ERROR { " ..." } else { "" };
    text_without_nul(&text[..end.unwrap_or(0)]) + cut
}

/// PostgreSQL's types `text` and `jsonb` do not support NUL. Without the replacement, every node
/// that runs this job would fail.
fn text_without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn without_nul(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text_without_nul(&text)),
        Value::Array(values) => values.into_iter().map(without_nul).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (text_without_nul(&name), without_nul(value)))
            .collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_errors_are_cut() {
        assert_eq!(error_text("a\0b"), "a\u{fffd}b");
        assert_eq!(error_text(&"a".repeat(MAX_ERROR)).len(), MAX_ERROR);
        // Characters of three bytes, of which the last one does not fit.
        let text = error_text(&"€".repeat(MAX_ERROR));
        assert_eq!(text, "€".repeat(MAX_ERROR / 3) + " ...");
    }

    #[test]
    fn nul_is_replaced_everywhere() {
        let value = json!({ "a\0": ["b\0", 1, null], "c": "d" });
        assert_eq!(
            without_nul(value),
            json!({ "a\u{fffd}": ["b\u{fffd}", 1, null], "c": "d" })
        );
    }
}
