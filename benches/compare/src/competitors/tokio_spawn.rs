//! `tokio::time` for timeouts that run code: each timeout is a task that sleeps and then runs it.
//!
//! Users write this if they schedule something and continue, as with all other timers here. A
//! caller that waits for the timeout needs no task: see [`super::tokio_sleep`]. The runtime has one
//! worker, because all other timers here have one thread too. With more workers, tokio would
//! distribute the tasks over them, and also the callers' own work.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

pub(crate) struct Spawned(Runtime);

/// Returns the runtime of the competitors that use tokio.
pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("the thread starts")
}

impl Competitor for Spawned {
    type Handle = JoinHandle<()>;

    type Caller<'a> = &'a Handle;

    fn unsupported_reason(workload: &str) -> Option<&'static str> {
        (workload == "W9").then_some("only the task itself can reset its `Sleep`, see `Sleep`")
    }

    fn start(_: Setup) -> Self {
        Self(runtime())
    }

    fn caller(&self) -> &Handle {
        self.0.handle()
    }

    fn stop(self) {
        drop(self.0);
    }
}

impl Caller for &Handle {
    type Handle = JoinHandle<()>;

    fn schedule(&mut self, delay: Duration, task: Task) -> JoinHandle<()> {
        // The deadline is computed here, because the task is first polled some time later.
        let deadline = Instant::now() + delay;
        self.spawn(async move {
            sleep_until(deadline).await;
            task.run();
        })
    }

    fn cancel(&mut self, handle: JoinHandle<()>) {
        handle.abort();
    }

    fn rearm(&mut self, _: &mut JoinHandle<()>, _: Duration) {
        unreachable!("`unsupported_reason` excludes W9");
    }
}
