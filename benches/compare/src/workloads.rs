//! The workloads, which are the same for all competitors.

mod calls;
mod expiry;
mod idle;

use std::future::{pending, ready};
use std::pin::pin;
use std::time::Duration;

use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor, poll_once};

pub(crate) type WorkloadResult = Result<Answer, String>;

/// Executes a command.
pub(crate) fn answer<C: Competitor>(command: &Command) -> Answer {
    if let Some(why) = C::unsupported_reason(&command.workload) {
        return Answer::Unsupported {
            unsupported: why.into(),
        };
    }
    let answer = match &*command.workload {
        "burst" => idle::memory_after_burst::<C>(command),
        "schedule" => calls::schedule::<C>(command),
        "schedule-cancel" => calls::schedule_and_cancel::<C>(command),
        "random-cancel" => calls::cancel::<C>(command),
        "concurrent-schedule" => calls::schedule_concurrently::<C>(command),
        "expire" => expiry::spread::<C>(command),
        "memory" => idle::memory::<C>(command),
        "lateness" => expiry::lateness::<C>(command),
        "idle" => idle::empty::<C>(command),
        "rearm" => calls::rearm::<C>(command),
        "mixed" => calls::mixed::<C>(command),
        "sleep" | "timeout-ready" | "timeout-pending" if !C::HAS_FUTURES => {
            return Answer::Unsupported {
                unsupported: "it has no futures".into(),
            };
        }
        "sleep" => calls::futures::<C>(command, |caller, delay| {
            poll_once(pin!(caller.sleep(delay)));
        }),
        "timeout-ready" => calls::futures::<C>(command, |caller, delay| {
            poll_once(pin!(caller.timeout(delay, ready(()))));
        }),
        "timeout-pending" => calls::futures::<C>(command, |caller, delay| {
            poll_once(pin!(caller.timeout(delay, pending::<()>())));
        }),
        other => {
            return Answer::Unsupported {
                unsupported: format!("unknown workload {other}"),
            };
        }
    };
    answer.unwrap_or_else(Answer::failed)
}

/// Returns the nanoseconds per operation.
fn nanos_each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}
