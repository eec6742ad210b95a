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
        return Answer::Unsupported { unsupported: why.into() };
    }
    let answer = match &*command.workload {
        "BURST" => idle::memory_after_burst::<C>(command),
        "WAKES" => idle::wake_ups::<C>(command),
        "W1" => calls::schedule::<C>(command),
        "W2" => calls::schedule_and_cancel::<C>(command),
        "W2s" => calls::steady::<C>(command),
        "W2b" => calls::cancel::<C>(command),
        "W3" => calls::schedule_concurrently::<C>(command),
        "W4" => expiry::spread::<C>(command),
        "W4p" => expiry::at_once::<C>(command),
        "W5" => idle::pending::<C>(command),
        "W6" => idle::memory::<C>(command),
        "W7" => expiry::lateness::<C>(command),
        "W8" => idle::empty::<C>(command),
        "W9" => calls::rearm::<C>(command),
        "W10" => calls::replace_among_pending::<C>(command),
        "MIX" => calls::mixed::<C>(command),
        "SLEEP" | "READY" | "PENDING" if !C::HAS_FUTURES => {
            return Answer::Unsupported { unsupported: "it has no futures".into() };
        }
        "SLEEP" => calls::futures::<C>(command, |caller, delay| poll_once(pin!(caller.sleep(delay)))),
        "READY" => {
            calls::futures::<C>(command, |caller, delay| poll_once(pin!(caller.timeout(delay, ready(())))))
        }
        "PENDING" => calls::futures::<C>(command, |caller, delay| {
            poll_once(pin!(caller.timeout(delay, pending::<()>())));
        }),
        other => return Answer::Unsupported { unsupported: format!("unknown workload {other}") },
    };
    answer.unwrap_or_else(Answer::failed)
}

/// Returns the nanoseconds per operation.
fn nanos_each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}
