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
            tracing::error!(live, "many timers are alive: one serves a whole process, share it by cloning");
        });
    }

    pub(crate) fn tick_raised(tick: Duration, to: Duration) {
        guard_quietly(|| tracing::warn!(?tick, "a tick this short cannot be kept, using {to:?}"));
    }
}

#[cfg(not(feature = "tracing"))]
pub(crate) use unsaid::*;

#[cfg(not(feature = "tracing"))]
mod unsaid {
    use std::time::Duration;

    pub(crate) fn task_panicked(_: &str, _: &str, _: &str) {}
    pub(crate) fn task_dropped(_: &str) {}
    pub(crate) fn clock_panicked(_: &str) {}
    pub(crate) fn too_many_timers(_: usize) {}
    pub(crate) fn tick_raised(_: Duration, _: Duration) {}
}
