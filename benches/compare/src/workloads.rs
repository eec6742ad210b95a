//! The workloads, which are the same for all competitors.

mod calls;
mod expiry;
mod idle;

use std::time::Duration;

use crate::command::{Answer, Command};
use crate::competitors::Competitor;
use crate::session::Session;

type WorkloadResult = Result<Answer, String>;

/// Executes a command.
pub(crate) fn answer<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answer {
    if let Some(why) = C::unsupported_reason(&command.workload) {
        return Answer::Unsupported(why.into());
    }
    let answer = match &*command.workload {
        "BURST" => idle::memory_after_burst(session, command),
        "GROWTH" => calls::growth(session, command),
        "SCALE" => calls::scaling(session, command),
        "THREADS" => idle::idle_threads(session, command),
        "TIMERS" => calls::several_timers(session, command),
        "WAKES" => idle::wake_ups(session, command),
        "W1" => calls::schedule(session, command),
        "W2" => calls::schedule_and_cancel(session, command),
        "W2s" => calls::steady(session, command),
        "W2b" => calls::cancel(session, command),
        "W3" => calls::schedule_concurrently(session, command),
        "W4" => expiry::spread(session, command),
        "W4p" => expiry::at_once(session, command),
        "W5" => idle::pending(session, command),
        "W6" => idle::memory(session, command),
        "W7" => expiry::lateness(session, command),
        "W8" => idle::empty(session, command),
        "W9" => calls::rearm(session, command),
        "W10" => calls::replace_among_pending(session, command),
        "MIX" => calls::mixed(session, command),
        other => return Answer::Unsupported(format!("unknown workload {other}")),
    };
    answer.unwrap_or_else(Answer::Failed)
}

/// Returns the nanoseconds per operation.
fn nanos_each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}
