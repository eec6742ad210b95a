//! The workloads, which are the same for all competitors.

mod calls;
mod expiry;
mod idle;
pub(crate) mod maps;
mod threads;

use std::future::{pending, ready};
use std::hint::black_box;
use std::pin::pin;
use std::time::Duration;

use crate::command::{Answer, Command};
use crate::competitors::{Caller, Competitor, poll_once};
use crate::task::Task;

pub(crate) type WorkloadResult = Result<Answer, String>;

/// Executes a command.
pub(crate) fn answer<C: Competitor>(command: &Command) -> Answer {
    if let Some(why) = C::unsupported_reason(&command.workload) {
        return Answer::unsupported(why);
    }
    let answer = match &*command.workload {
        "burst" => idle::memory_after_burst::<C>(command),
        "schedule" => calls::schedule::<C>(command),
        "random-cancel" => calls::cancel::<C>(command),
        "expire" => expiry::spread::<C>(command),
        "memory" => idle::memory::<C>(command),
        "lateness" => expiry::lateness::<C>(command),
        "idle" => idle::empty::<C>(command),
        "rearm" => calls::rearm::<C>(command),
        "schedule-many" => threads::timer::<C>(command, |caller, handles, delay| {
            handles.keep(caller.schedule(delay, Task::count()));
        }),
        "schedule-cancel" => threads::timer::<C>(command, |caller, _, delay| {
            let handle = black_box(caller.schedule(delay, Task::count()));
            caller.cancel(handle);
        }),
        "mixed" => threads::timer::<C>(command, |caller, handles, delay| {
            let handle = caller.schedule(delay, Task::count());
            if let Some(old) = handles.replace(handle) {
                caller.cancel(old);
            }
        }),
        "sleep" | "timeout-ready" | "timeout-pending" if !C::HAS_FUTURES => {
            return Answer::unsupported("it has no futures");
        }
        "sleep" => threads::timer::<C>(command, |caller, _, delay| {
            poll_once(pin!(caller.sleep(delay)));
        }),
        "timeout-ready" => threads::timer::<C>(command, |caller, _, delay| {
            poll_once(pin!(caller.timeout(delay, ready(()))));
        }),
        "timeout-pending" => threads::timer::<C>(command, |caller, _, delay| {
            poll_once(pin!(caller.timeout(delay, pending::<()>())));
        }),
        _ => return Answer::unsupported("unknown workload"),
    };
    answer.unwrap_or_else(Answer::failed)
}

/// Returns the nanoseconds per operation.
fn nanos_each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}
