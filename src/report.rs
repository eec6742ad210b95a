//! Panics of user code, and what the crate has to say. Nothing else in it catches or logs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code. `panicked` is told of a panic; that of its payload's `Drop` ends here as well.
///
/// Whoever calls this owns nothing that the code could leave half changed: tasks run between changes, never in one.
#[inline]
pub(crate) fn guard(code: impl FnOnce(), panicked: impl FnOnce(&str)) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        caught(payload, panicked);
    }
}

#[cold]
fn caught(payload: Box<dyn Any + Send>, panicked: impl FnOnce(&str)) {
    panicked(message(&*payload));
    guard_quietly(|| drop(payload));
}

/// Runs what may panic without anybody's hearing of it: it is itself the last resort.
fn guard_quietly(code: impl FnOnce()) {
    // The payload of this panic gets no chance to panic in turn.
    std::mem::forget(catch_unwind(AssertUnwindSafe(code)));
}

fn message(payload: &(dyn Any + Send)) -> &str {
    if let Some(message) = payload.downcast_ref::<&str>() {
        message
    } else if let Some(message) = payload.downcast_ref::<String>() {
        message
    } else {
        "(no message)"
    }
}

#[cfg(feature = "tracing")]
pub(crate) use said::*;

/// Subscribers are user code too, and a report has nobody to report to.
#[cfg(feature = "tracing")]
mod said {
    use std::time::Duration;

    use super::guard_quietly;
    use crate::error::NewTimeoutError;

    pub(crate) fn task_panicked(doing: &str, task: &str, panic: &str) {
        guard_quietly(|| tracing::error!(task, panic, "a timer task panicked {doing}"));
    }

    pub(crate) fn task_dropped(task: &str) {
        guard_quietly(|| tracing::error!(task, "the task executor dropped a task without running it"));
    }

    pub(crate) fn clock_panicked(panic: &str) {
        guard_quietly(|| {
            tracing::error!(panic, "the clock panicked on a timer's worker; the timer is stopped");
        });
    }

    pub(crate) fn too_many_timers(live: usize) {
        guard_quietly(|| {
            tracing::warn!(live, "many timers are alive: one serves a whole process, share it by cloning");
        });
    }

    pub(crate) fn tick_raised(tick: Duration, to: Duration) {
        guard_quietly(|| tracing::warn!(?tick, "a tick this short cannot be kept, using {to:?}"));
    }

    pub(crate) fn slow_task(task: &str, took: Duration, threshold: Duration) {
        guard_quietly(|| tracing::warn!(task, ?took, ?threshold, "a timer task held the worker up"));
    }

    pub(crate) fn refused(timer: &str, error: &NewTimeoutError, refused: u64) {
        if is_worth_saying(refused) {
            guard_quietly(|| tracing::warn!(timer, %error, rejected = refused, "a timer refuses timeouts"));
        }
    }

    pub(crate) fn long_turn(timer: &str, took: Duration, tick: Duration, long_turns: u64) {
        if is_worth_saying(long_turns) {
            guard_quietly(|| {
                tracing::warn!(
                    timer,
                    ?took,
                    ?tick,
                    long_turns,
                    "a turn took longer than a tick, and made the next late"
                );
            });
        }
    }

    pub(crate) fn thread_started(thread: &str) {
        guard_quietly(|| tracing::debug!(thread, "a timer's worker started"));
    }

    pub(crate) fn thread_ended(thread: &str) {
        guard_quietly(|| tracing::debug!(thread, "a timer's worker ended"));
    }

    /// What happens often is said when it has happened once, twice, four times and so on: who has too much to do already is
    /// not to be flooded.
    fn is_worth_saying(times: u64) -> bool {
        times.is_power_of_two()
    }
}

#[cfg(not(feature = "tracing"))]
pub(crate) use unsaid::*;

#[cfg(not(feature = "tracing"))]
mod unsaid {
    use std::time::Duration;

    use crate::error::NewTimeoutError;

    pub(crate) fn task_panicked(_: &str, _: &str, _: &str) {}
    pub(crate) fn task_dropped(_: &str) {}
    pub(crate) fn clock_panicked(_: &str) {}
    pub(crate) fn too_many_timers(_: usize) {}
    pub(crate) fn tick_raised(_: Duration, _: Duration) {}
    pub(crate) fn slow_task(_: &str, _: Duration, _: Duration) {}
    pub(crate) fn refused(_: &str, _: &NewTimeoutError, _: u64) {}
    pub(crate) fn long_turn(_: &str, _: Duration, _: Duration, _: u64) {}
    pub(crate) fn thread_started(_: &str) {}
    pub(crate) fn thread_ended(_: &str) {}
}
