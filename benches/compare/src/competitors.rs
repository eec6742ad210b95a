//! The interface of a competitor, and all competitors.

mod delay_queue;
mod hierarchical_hash_wheel_timer;
mod ours;
mod tokio_sleep;
#[cfg(feature = "util")]
mod util_delay_queue;

use std::future::pending;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread::Scope;
use std::time::Duration;

pub(crate) use delay_queue::Queue as DelayQueue;
pub(crate) use hierarchical_hash_wheel_timer::QuadWheel;
pub(crate) use ours::Ours;
pub(crate) use tokio_sleep::Sleeps;
#[cfg(feature = "util")]
pub(crate) use util_delay_queue::UtilQueue;

use crate::task::Task;

/// The parameters of a timer. A competitor with a fixed resolution or number of slots ignores them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Setup {
    pub(crate) tick: Duration,
    pub(crate) slots: usize,
    /// The number of callers.
    pub(crate) threads: usize,
}

/// A timer that runs until it is stopped.
pub(crate) trait Competitor: Sized + Sync + 'static {
    /// The handle that cancels a timeout.
    type Handle: Send;

    type Caller<'a>: Caller<Handle = Self::Handle>
    where
        Self: 'a;

    /// Whether dropping the handle cancels the timeout. If so, a workload must keep the handles of
    /// pending timeouts.
    const DROP_CANCELS: bool = false;

    /// Whether [`Caller::sleep`] and [`Caller::timeout`] are of this competitor.
    const HAS_FUTURES: bool = false;

    /// Whether the timer has a thread that is no caller's.
    const HAS_WORKER: bool = true;

    /// Returns the reason if the competitor does not support the workload.
    fn unsupported_reason(_workload: &str) -> Option<&'static str> {
        None
    }

    /// Creates the timer and starts its worker.
    fn start(setup: Setup) -> Self;

    /// Returns the interface for the calling thread.
    fn caller(&self) -> Self::Caller<'_>;

    /// Schedules a task that records its lateness.
    fn probe(&self, delay: Duration) {
        self.caller().schedule(delay, Task::record(delay));
    }

    /// Calls `work` until it returns false, on a thread. If the timer belongs to a runtime, it is
    /// one of the runtime.
    fn run_caller<'s, 'e>(
        &'e self,
        scope: &'s Scope<'s, 'e>,
        mut work: impl FnMut(&mut Self::Caller<'_>) -> bool + Send + 'static,
    ) {
        scope.spawn(move || {
            let mut caller = self.caller();
            while work(&mut caller) {}
        });
    }

    /// Stops the timer's threads and drops all pending timeouts.
    fn stop(self);
}

/// The interface of one thread to the timer.
pub(crate) trait Caller {
    type Handle;

    fn schedule(&mut self, delay: Duration, task: Task) -> Self::Handle;

    /// Cancels the timeout and drops the handle: the cost of dropping it is part of the measured
    /// operation.
    fn cancel(&mut self, handle: Self::Handle);

    /// Moves the deadline to `delay` from now.
    fn rearm(&mut self, handle: &mut Self::Handle, delay: Duration);

    fn sleep(&self, _delay: Duration) -> impl Future {
        pending::<()>()
    }

    /// Limits the time of `future`.
    fn timeout<F: Future>(&self, _delay: Duration, future: F) -> impl Future {
        future
    }
}

/// Polls a future, with a waker that does nothing.
pub(crate) fn poll_once(future: Pin<&mut impl Future>) {
    _ = future.poll(&mut Context::from_waker(Waker::noop()));
}
