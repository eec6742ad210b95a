//! `pingora-timeout`, which stands in for `tokio::time::timeout`: the clock thread is one for the process, ticks each 10 ms, and
//! all timeouts of a thread that are due in one tick share an entry, which stays until then though all were cancelled.
//!
//! As with [`super::tokio_sleep`] a timeout is a future that is polled once; only where one is to fire there is a task.

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
    /// Tokio's timer has those of more than a quarter of an hour.
    _entered: EnterGuard<'a>,
}

/// With the task, which is what the one who awaits would do.
type Unpolled = (Pin<Box<Timeout<Pending<()>, FastOrTokioTimeout>>>, Task);

impl Competitor for Pingora {
    type Handle = Unpolled;

    type Caller<'a> = Entered<'a>;

    const HANDLE_IS_TIMEOUT: bool = true;

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
    type Handle = Unpolled;

    fn schedule(&mut self, delay: Duration, task: Task) -> Unpolled {
        let mut timeout = Box::pin(fast_timeout(delay, pending()));
        _ = tokio_sleep::poll_once(timeout.as_mut());
        (timeout, task)
    }

    fn cancel(&mut self, handle: Unpolled) {
        drop(handle);
    }

    /// There is nothing better.
    fn rearm(&mut self, handle: &mut Unpolled, delay: Duration) {
        *handle = self.schedule(delay, Task::count());
    }

    fn let_fire(&mut self, delay: Duration, task: Task) {
        self.runtime.spawn(async move {
            fast_sleep(delay).await;
            task.run();
        });
    }
}
