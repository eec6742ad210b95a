//! `tokio::time` for the timeout of an awaited operation: `timeout(delay, request).await`.
//!
//! That code creates a `Sleep`. It polls the `Sleep` once if the request is not ready immediately,
//! and drops it when the request is ready. An expired `Sleep` runs no code: it wakes the task that
//! awaits it. Here no task awaits it, so the waker does nothing, which is the cheapest case for
//! tokio.

use std::pin::Pin;
use std::thread::Scope;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::task::{unconstrained, yield_now};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::{Caller, Competitor, Setup, poll_once};
use crate::task::Task;

/// With `ALTERNATIVE`, the timer that each worker of the runtime has for itself: only a build with
/// `RUSTFLAGS="--cfg tokio_unstable"` has it.
pub(crate) struct Sleeps<const ALTERNATIVE: bool>(Runtime);

/// Returns a runtime with one worker, because all other timers here have one thread too.
pub(super) fn runtime() -> Runtime {
    build(Builder::new_multi_thread().worker_threads(1))
}

fn build(builder: &mut Builder) -> Runtime {
    builder.enable_time().build().expect("the threads start")
}

impl<const ALTERNATIVE: bool> Competitor for Sleeps<ALTERNATIVE> {
    /// The future, and the task that the awaiting code would run after the timeout.
    type Handle = (Pin<Box<Sleep>>, Task);

    type Caller<'a> = EnterGuard<'a>;

    const DROP_CANCELS: bool = true;

    const HAS_FUTURES: bool = true;

    /// The workers are the callers.
    const HAS_WORKER: bool = false;

    fn unsupported_reason(workload: &str) -> Option<&'static str> {
        ["expire", "lateness"]
            .contains(&workload)
            .then_some("a `Sleep` wakes a task and runs no code")
    }

    fn start(setup: Setup) -> Self {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(setup.threads);
        #[cfg(tokio_unstable)]
        if ALTERNATIVE {
            builder.enable_alt_timer();
        }
        Self(build(&mut builder))
    }

    fn caller(&self) -> EnterGuard<'_> {
        self.0.enter()
    }

    fn probe(&self, delay: Duration) {
        let task = Task::record(delay);
        self.0.spawn(async move {
            sleep(delay).await;
            task.run();
        });
    }

    fn run_caller<'s, 'e>(
        &'e self,
        _: &'s Scope<'s, 'e>,
        mut work: impl FnMut(&mut EnterGuard<'_>) -> bool + Send + 'static,
    ) {
        let handle = self.0.handle().clone();
        self.0.spawn(unconstrained(async move {
            while work(&mut handle.enter()) {
                yield_now().await;
            }
        }));
    }

    fn stop(self) {
        drop(self.0);
    }
}

impl Caller for EnterGuard<'_> {
    type Handle = (Pin<Box<Sleep>>, Task);

    fn schedule(&mut self, delay: Duration, task: Task) -> Self::Handle {
        let mut sleep = Box::pin(sleep(delay));
        poll_once(sleep.as_mut());
        (sleep, task)
    }

    fn cancel(&mut self, handle: Self::Handle) {
        drop(handle);
    }

    fn rearm(&mut self, (sleep, _): &mut Self::Handle, delay: Duration) {
        sleep.as_mut().reset(Instant::now() + delay);
        poll_once(sleep.as_mut());
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        sleep(delay)
    }

    fn timeout<F: Future>(&self, delay: Duration, future: F) -> impl Future {
        timeout(delay, future)
    }
}
