//! The reports of a node to `tracing` and `metrics`. Each is an optional feature.

use std::time::Duration;

use crate::error::Error;
use crate::store::Run;

/// How an execution ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Done,
    Failed,
    Retried,
    /// Executed again later, and no failure.
    Snoozed,
    /// Not executed again: its job was paused.
    Cancelled,
    /// Not executed again: it was interrupted too often.
    Abandoned,
}

/// A run has started, this long after it should have.
pub(crate) fn started(run: &Run, late: Duration) {
    let _ = (run, late);
    #[cfg(feature = "metrics")]
    {
        let handler = run.handler.clone();
        metrics::counter!("job_scheduler_runs_started_total", "handler" => handler.clone())
            .increment(1);
        metrics::histogram!("job_scheduler_lateness_seconds", "handler" => handler)
            .record(late.as_secs_f64());
    }
}

/// An execution has ended.
pub(crate) fn ended(run: &Run, end: End, took: Duration, error: Option<&str>) {
    let _ = (run, end, took, error);
    #[cfg(feature = "metrics")]
    {
        let name = match end {
            End::Done => "done",
            End::Failed => "failed",
            End::Retried => "retried",
            End::Snoozed => "snoozed",
            End::Cancelled => "cancelled",
            End::Abandoned => "abandoned",
        };
        let handler = run.handler.clone();
        metrics::counter!("job_scheduler_runs_ended_total", "handler" => handler.clone(), "end" => name)
            .increment(1);
        metrics::histogram!("job_scheduler_duration_seconds", "handler" => handler)
            .record(took.as_secs_f64());
    }
    #[cfg(feature = "tracing")]
    if let (Some(error), false) = (error, matches!(end, End::Cancelled | End::Snoozed)) {
        let will_retry = matches!(end, End::Retried);
        tracing::warn!(
            job = run.job,
            run = run.id,
            handler = run.handler,
            attempt = run.attempt,
            will_retry,
            error,
            "a run failed"
        );
    }
}

/// Runs of lost nodes were taken over. Some of them were interrupted, others had not started.
pub(crate) fn taken_over(count: usize) {
    let _ = count;
    #[cfg(feature = "metrics")]
    metrics::counter!("job_scheduler_taken_over_total").increment(count as u64);
    #[cfg(feature = "tracing")]
    if count > 0 {
        tracing::warn!(count, "took over the runs of a lost node");
    }
}

/// A duty of the node has taken this time. The server may have ended it because it was too long.
pub(crate) fn duty(name: &'static str, took: Duration, was_ended: bool) {
    let _ = (name, took, was_ended);
    #[cfg(feature = "metrics")]
    {
        metrics::histogram!("job_scheduler_duty_seconds", "duty" => name)
            .record(took.as_secs_f64());
        metrics::counter!("job_scheduler_duty_timeouts_total", "duty" => name)
            .increment(u64::from(was_ended));
    }
    #[cfg(feature = "tracing")]
    if was_ended {
        tracing::warn!(
            duty = name,
            ?took,
            "a duty takes too long, and is repeated with less"
        );
    }
}

/// The number of runs that the node holds.
pub(crate) fn held(count: usize) {
    let _ = count;
    #[cfg(feature = "metrics")]
    metrics::gauge!("job_scheduler_runs_held").set(count as f64);
}

/// The node has renewed its lease, in this time.
pub(crate) fn beat(took: Duration) {
    duty("lease", took, false);
    #[cfg(feature = "metrics")]
    {
        metrics::gauge!("job_scheduler_session_up").set(1.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        metrics::gauge!("job_scheduler_last_beat_timestamp_seconds")
            .set(now.unwrap_or_default().as_secs_f64());
    }
}

/// The node has no connections now.
pub(crate) fn disconnected() {
    #[cfg(feature = "metrics")]
    metrics::gauge!("job_scheduler_session_up").set(0.0);
}

/// The node starts again under another number.
pub(crate) fn restarted(error: &Error) {
    let _ = error;
    #[cfg(feature = "metrics")]
    metrics::counter!("job_scheduler_restarts_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "the scheduler starts again");
}
