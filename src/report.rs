//! Panics of user code, and what the crate has to say. Nothing else in it catches or logs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code. `panicked` is told of a panic; its own panics, and that of the payload's `Drop`, end here as well.
///
/// Whoever calls this owns nothing that the code could leave half changed: tasks run between changes, never in one.
pub(crate) fn guard(code: impl FnOnce(), panicked: impl FnOnce(&str)) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(code)) else { return };
    let aftermath = catch_unwind(AssertUnwindSafe(|| {
        panicked(message(&*payload));
        drop(payload);
    }));
    // A payload that panics when it is dropped gets no second chance.
    std::mem::forget(aftermath);
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
pub(crate) fn task_panicked(doing: &str, task: &str, panic: &str) {
    tracing::error!(task, panic, "a timer task panicked {doing}");
}

#[cfg(feature = "tracing")]
pub(crate) fn task_dropped(task: &str) {
    tracing::error!(task, "the task executor dropped a task without running it");
}

#[cfg(feature = "tracing")]
pub(crate) fn worker_panicked(panic: &str) {
    tracing::error!(panic, "the clock panicked on a timer's worker thread; the timer is stopped");
}

#[cfg(feature = "tracing")]
pub(crate) fn too_many_timers(live: usize) {
    tracing::error!(
        live,
        "many timers are alive, each with a thread of its own; one timer serves a whole process, share it by cloning"
    );
}

#[cfg(feature = "tracing")]
pub(crate) fn tick_raised(tick: std::time::Duration, to: std::time::Duration) {
    tracing::warn!(?tick, "a tick this short cannot be kept, using {to:?}");
}

#[cfg(not(feature = "tracing"))]
pub(crate) use silent::*;

#[cfg(not(feature = "tracing"))]
mod silent {
    pub(crate) fn task_panicked(_: &str, _: &str, _: &str) {}
    pub(crate) fn task_dropped(_: &str) {}
    pub(crate) fn worker_panicked(_: &str) {}
    pub(crate) fn too_many_timers(_: usize) {}
    pub(crate) fn tick_raised(_: std::time::Duration, _: std::time::Duration) {}
}
