//! `pingora-timeout`, a replacement for `tokio::time::timeout`. The process has one clock thread,
//! which ticks every 10 ms. All timeouts of a thread that are due in the same tick share an entry.
//! The entry stays until that tick, even if all of its timeouts are cancelled.
//!
//! As in [`super::tokio_sleep`], a timeout is a future that is polled once. Only a timeout that
//! should fire has a tokio task.

use std::future::{Pending, pending};
use std::pin::Pin;
use std::time::Duration;

use pingora_timeout::Timeout;
use pingora_timeout::fast_timeout::{FastOrTokioTimeout, fast_sleep, fast_timeout};
use tokio::runtime::{EnterGuard, Handle, Runtime};

use super::{Caller, Competitor, Setup, tokio_sleep, tokio_spawn};
use crate::task::Task;

pub(crate) struct Pingora(Runtime);

pub(crate) struct Entered<'a> {
    runtime: &'a Handle,
    /// pingora-timeout uses tokio's timer for delays of more than a quarter of an hour.
    _entered: EnterGuard<'a>,
}

/// The future, and the task that the awaiting code would run after the timeout.
type PolledTimeout = (Pin<Box<Timeout<Pending<()>, FastOrTokioTimeout>>>, Task);

impl Competitor for Pingora {
    type Handle = PolledTimeout;

    type Caller<'a> = Entered<'a>;

    const DROP_CANCELS: bool = true;

    fn start(_: Setup) -> Self {
        Self(tokio_spawn::runtime())
    }

    fn caller(&self) -> Entered<'_> {
        Entered { runtime: self.0.handle(), _entered: self.0.enter() }
    }

    fn stop(self) {
        drop(self.0);
    }
}

impl Caller for Entered<'_> {
    type Handle = PolledTimeout;

    fn schedule(&mut self, delay: Duration, task: Task) -> PolledTimeout {
        let mut timeout = Box::pin(fast_timeout(delay, pending()));
        _ = tokio_sleep::poll_once(timeout.as_mut());
        (timeout, task)
    }

    fn cancel(&mut self, handle: PolledTimeout) {
        drop(handle);
    }

    /// Replaces the timeout: the crate has no operation to reset one.
    fn rearm(&mut self, handle: &mut PolledTimeout, delay: Duration) {
        *handle = self.schedule(delay, Task::count());
    }

    fn schedule_uncancelled(&mut self, delay: Duration, task: Task) {
        self.runtime.spawn(async move {
            fast_sleep(delay).await;
            task.run();
        });
    }
}
