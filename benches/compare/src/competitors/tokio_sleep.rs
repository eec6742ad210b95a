//! `tokio::time` for timeouts of something that is awaited: `timeout(delay, request).await`.
//!
//! That makes a `Sleep`, polls it once when the request is not ready at once, and drops it when it is. Nothing runs by itself
//! when one is due: the task that awaits it is woken. Here nobody awaits, so the waker does nothing, which is the cheapest.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio::time::{Instant, Sleep, sleep};

use super::{Caller, Competitor, Setup, tokio_spawn};
use crate::task::Task;

pub(crate) struct Sleeps(Runtime);

impl Competitor for Sleeps {
    /// With the task, which is what the one who awaits would do.
    type Handle = (Pin<Box<Sleep>>, Task);

    type Caller<'a> = EnterGuard<'a>;

    const HANDLE_IS_TIMEOUT: bool = true;

    fn lacks(workload: &str) -> Option<&'static str> {
        ["W4", "W4p", "W7"]
            .contains(&workload)
            .then_some("a Sleep wakes a task, it runs nothing: see `spawn`")
    }

    fn start(_: Setup) -> Self {
        Self(tokio_spawn::runtime())
    }

    fn caller(&self) -> EnterGuard<'_> {
        self.0.enter()
    }

    fn stop(self) {
        drop(self.0);
    }
}

/// Makes it known to the timer.
pub(super) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

impl Caller for EnterGuard<'_> {
    type Handle = (Pin<Box<Sleep>>, Task);

    fn schedule(&mut self, delay: Duration, task: Task) -> Self::Handle {
        let mut sleep = Box::pin(sleep(delay));
        _ = poll_once(sleep.as_mut());
        (sleep, task)
    }

    fn cancel(&mut self, handle: Self::Handle) {
        drop(handle);
    }

    fn rearm(&mut self, (sleep, _): &mut Self::Handle, delay: Duration) {
        sleep.as_mut().reset(Instant::now() + delay);
        _ = poll_once(sleep.as_mut());
    }
}
