//! What is asked of every competitor in the same way, and timed.

mod calls;
mod expiry;
mod rest;

use std::time::Duration;

use crate::command::{Answer, Command};
use crate::competitors::Competitor;
use crate::session::Session;

type Answered = Result<Answer, String>;

/// Carries out a command.
pub(crate) fn answer<C: Competitor>(session: &mut Session<C>, command: &Command) -> Answer {
    if let Some(why) = C::lacks(&command.workload) {
        return Answer::Unsupported(why.into());
    }
    let answer = match &*command.workload {
        "W1" => calls::schedule(session, command),
        "W2" => calls::schedule_and_cancel(session, command),
        "W2s" => calls::steady(session, command),
        "W2b" => calls::cancel(session, command),
        "W3" => calls::schedule_together(session, command),
        "W4" => expiry::spread(session, command),
        "W4p" => expiry::at_once(session, command),
        "W5" => rest::pending(session, command),
        "W6" => rest::memory(session, command),
        "W7" => expiry::lateness(session, command),
        "W8" => rest::idle(session, command),
        "W9" => calls::rearm(session, command),
        "W10" => calls::among_many(session, command),
        "MIX" => calls::mixed(session, command),
        other => return Answer::Unsupported(format!("no workload {other}")),
    };
    answer.unwrap_or_else(Answer::Failed)
}

/// Nanoseconds for each of so many.
fn each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}
