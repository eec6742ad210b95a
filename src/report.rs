//! Panics of user code, and log messages. No other module catches panics or logs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code and returns its result. Catches its panic, and calls `panicked` with the panic's
/// message.
///
/// A panic in the `Drop` of the payload is caught too, and ignored.
///
/// `AssertUnwindSafe` is correct because the timer calls user code only while its own state is
/// consistent. A panic cannot leave that state half changed.
#[inline]
pub(crate) fn guard<R>(code: impl FnOnce() -> R, panicked: impl FnOnce(&str)) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(result) => Some(result),
        Err(payload) => {
            handle_panic(payload, panicked);
            None
        }
    }
}

/// Drops a part of a timer that the user has provided, after the timer's end. A panic is reported.
pub(crate) fn guard_drop<T>(name: &str, dropped: T) {
    guard(
        || drop(dropped),
        |panic| task_panicked("when it was dropped", name, panic),
    );
}

#[cold]
fn handle_panic(payload: Box<dyn Any + Send>, panicked: impl FnOnce(&str)) {
    panicked(message(&*payload));
    guard_quietly(|| drop(payload));
}

/// Runs code and ignores its panic. For code that runs because of a report, so that its panic
/// cannot be reported.
fn guard_quietly(code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        drop_payload(payload);
    }
}

#[cold]
fn drop_payload(payload: Box<dyn Any + Send>) {
    // If its `Drop` panics again, that panic's payload is leaked, because this could go on.
    std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    let made = || payload.downcast_ref::<String>().map(String::as_str);
    literal.or_else(made).unwrap_or("(no message)")
}

/// Logs a message, if the feature `tracing` is enabled. A subscriber is user code, and its panic
/// cannot be reported, so each call is guarded.
macro_rules! log {
    ($level:ident, $($message:tt)*) => {
        #[cfg(feature = "tracing")]
        guard_quietly(|| tracing::$level!($($message)*));
    };
}

pub(crate) use messages::*;

#[cfg_attr(not(feature = "tracing"), expect(unused_variables))]
mod messages {
    use std::fmt::Display;
    use std::time::Duration;

    #[cfg(feature = "tracing")]
    use super::guard_quietly;

    pub(crate) fn task_panicked(doing: &str, task: &str, panic: &str) {
        log!(error, task, panic, "a timer task panicked {doing}");
    }

    pub(crate) fn task_dropped(task: &str) {
        log!(
            error,
            task,
            "the task executor refused or dropped a task, which does not run"
        );
    }

    pub(crate) fn clock_panicked(panic: &str) {
        log!(
            error,
            panic,
            "the clock panicked on a timer's worker; the timer is stopped"
        );
    }

    pub(crate) fn too_many_timers(live: usize) {
        log!(
            warn,
            live,
            "many timers are alive: one timer is enough for a process, share it by cloning"
        );
    }

    pub(crate) fn tick_raised(tick: Duration, to: Duration) {
        log!(warn, ?tick, "the tick is too short, using {to:?} instead");
    }

    pub(crate) fn slow_task(task: &str, took: Duration, threshold: Duration) {
        log!(
            warn,
            task,
            ?took,
            ?threshold,
            "a slow timer task delayed the worker"
        );
    }

    pub(crate) fn timeout_rejected(timer: &str, error: &dyn Display, rejected: u64) {
        if should_log(rejected) {
            log!(warn, timer, %error, rejected, "a timer rejects timeouts");
        }
    }

    pub(crate) fn long_turn(timer: &str, took: Duration, tick: Duration, long_turns: u64) {
        if should_log(long_turns) {
            log!(
                warn,
                timer,
                ?took,
                ?tick,
                long_turns,
                "a turn took longer than a tick and delayed the next turn"
            );
        }
    }

    pub(crate) fn thread_started(thread: &str) {
        log!(debug, thread, "a timer's worker started");
    }

    pub(crate) fn thread_ended(thread: &str) {
        log!(debug, thread, "a timer's worker ended");
    }

    /// Returns whether to log the `count`-th occurrence of a frequent event: the first, second,
    /// fourth, eighth and so on. An overloaded process must not spend its time on logging.
    fn should_log(count: u64) -> bool {
        count.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::resume_unwind;

    use super::*;
    use crate::sync::Arc;

    #[test]
    fn payloads_of_panics_are_dropped() {
        /// Panics with the next payload when it is dropped.
        struct Payload {
            _counted: Arc<()>,
            next: Option<Box<dyn Any + Send>>,
        }
        impl Drop for Payload {
            fn drop(&mut self) {
                if let Some(next) = self.next.take() {
                    resume_unwind(next);
                }
            }
        }
        thread_local!(static IS_LEAKED: Cell<bool> = const { Cell::new(true) });
        /// Has no memory, so that no checker of leaks finds it.
        struct Leaked;
        impl Drop for Leaked {
            fn drop(&mut self) {
                IS_LEAKED.set(false);
            }
        }
        let counted = Arc::new(());
        let payload = |next| -> Box<dyn Any + Send> {
            Box::new(Payload {
                _counted: Arc::clone(&counted),
                next,
            })
        };

        guard_quietly(|| resume_unwind(payload(None)));
        assert_eq!(Arc::strong_count(&counted), 1);
        guard(|| resume_unwind(payload(Some(payload(None)))), |_| ());
        assert_eq!(Arc::strong_count(&counted), 1);
        guard_quietly(|| resume_unwind(payload(Some(Box::new(Leaked)))));
        assert_eq!((Arc::strong_count(&counted), IS_LEAKED.get()), (1, true));
    }
}
