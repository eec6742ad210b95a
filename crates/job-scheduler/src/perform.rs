//! The task of an execution: it calls the handler, and sends the result.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::TimeoutError;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::cancel::Cancelled;
use crate::caught::caught;
use crate::handler::{Kind, Link, RunError, error_text};
use crate::observe;
use crate::settings::Shared;
use crate::shares::Place;
use crate::store::{Run, Started, Verdict};

/// The size of a result without its text, in bytes, rounded up.
const OVERHEAD: usize = 1 << 10;

/// The end of an execution.
pub(crate) struct Execution {
    pub(crate) run: Run,
    /// Not that of the run or of its attempt: the same attempt may be executed again.
    pub(crate) number: u64,
    /// Without the payload.
    pub(crate) started: Started,
    pub(crate) result: Result<Box<RawValue>, Failure>,
    pub(crate) took: Duration,
    /// How often it was written alone.
    pub(crate) writes: u32,
    pub(crate) _place: OwnedSemaphorePermit,
}

/// A [`RunError`] as text, because the code that makes the text is the user's.
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) kind: Kind,
}

impl Failure {
    pub(crate) fn permanent(text: String) -> Self {
        RunError::permanent(text).into()
    }

    /// The execution has exceeded the timeout of its job.
    pub(crate) fn timed_out(limit: Duration) -> Self {
        RunError::from(format!("timed out after {limit:?}")).into()
    }

    /// The run was cancelled, and its handler has not ended.
    pub(crate) fn not_ended_within(grace: Duration) -> Self {
        Self::permanent(format!("cancelled, and did not end within {grace:?}"))
    }

    pub(crate) fn panicked(message: &str) -> Self {
        RunError::from(format!("the handler {message}")).into()
    }
}

impl From<RunError> for Failure {
    fn from(RunError { error, kind }: RunError) -> Self {
        Self {
            text: error_text(&error.to_string()),
            kind,
        }
    }
}

/// A runner, and the share that a handler has of the runners.
pub(crate) struct Runner {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) _place: Place,
}

/// The state of the task of an execution.
pub(crate) struct Executing {
    pub(crate) shared: Arc<Shared>,
    pub(crate) run: Run,
    pub(crate) number: u64,
    pub(crate) cancelled: Cancelled,
    pub(crate) runner: Runner,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) results: mpsc::UnboundedSender<Execution>,
}

impl Executing {
    /// Executes a run that has started.
    pub(crate) async fn execute(self, mut started: Started) {
        let began = Instant::now();
        let interrupted = self.run.interrupted;
        let result = match started.verdict {
            None => self.perform(&mut started).await,
            Some(Verdict::Cancelled) => Err(Failure::permanent("cancelled".into())),
            Some(Verdict::Paused) => Err(Failure::permanent("the job is paused".into())),
            Some(Verdict::Abandoned) => {
                let text = format!("interrupted {interrupted} times");
                Err(Failure::permanent(text))
            }
        };
        let took = began.elapsed();
        let Self {
            mut run,
            number,
            runner,
            places,
            results,
            ..
        } = self;
        // Less than all places: outputs and texts of errors are limited.
        let size = (bytes(&result) + OVERHEAD) as u32;
        let place = places.acquire_many_owned(size).await;
        let place = place.expect("it is never closed");
        // Another run may start, although this result is not written.
        drop(runner);
        run.place = None;
        // If it fails, the node has ended.
        let _ = results.send(Execution {
            run,
            number,
            started,
            result,
            took,
            writes: 0,
            _place: place,
        });
    }

    /// Calls the handler. Every panic of the user's code is caught, also that of a recorder of
    /// metrics: otherwise the run would have no result while its node is alive, and no node would
    /// repeat it.
    async fn perform(&self, started: &mut Started) -> Result<Box<RawValue>, Failure> {
        let Shared {
            handlers,
            timer,
            settings,
            names,
            ..
        } = &*self.shared;
        let link = Link {
            cancelled: self.cancelled.clone(),
            names: names.clone(),
            run: self.run.id,
            attempt: self.run.attempt,
            started: started.at,
        };
        let payload = mem::take(&mut started.payload);
        let late = started.at.duration_since(self.run.start_at);
        let late = late.try_into().unwrap_or_default();
        let mut handler = handlers.execute(&self.run, payload, link);
        let execution = caught(async {
            observe::started(&self.run, late);
            // The text of an error is made here, because that may panic too.
            handler.as_mut().await.map_err(Failure::from)
        });
        let execution = async {
            match started.timeout {
                None => Ok(execution.await),
                Some(limit) => timer.timeout(limit, execution).await,
            }
        };
        let grace = settings.cancel_grace;
        let result = tokio::select! {
            biased;
            result = execution => match result {
                Ok(result) => result.unwrap_or_else(|message| Err(Failure::panicked(&message))),
                Err(TimeoutError::Timer(error)) => Err(RunError::from(error).into()),
                Err(_) => Err(Failure::timed_out(started.timeout.unwrap_or_default())),
            },
            () = self.cancelled.grace_ended(timer, grace) => {
                Err(Failure::not_ended_within(grace))
            }
        };
        // Before the result is written: then another run of this job may start.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
            mem::forget(panic);
        }
        result
    }
}

pub(crate) fn bytes(result: &Result<Box<RawValue>, Failure>) -> usize {
    result
        .as_ref()
        .map_or_else(|failure| failure.text.len(), |output| output.get().len())
}
