//! `tokio::time` for timeouts that run something by themselves: a task for each, which sleeps first.
//!
//! That is what its users write who, as with every other timer here, schedule something and go on. A caller that waits
//! itself has no need of a task: [`super::tokio_sleep`]. One worker, since all others here have one thread to serve their
//! timeouts; with more of them the tasks are shared out, and the callers' own work too.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

pub(crate) struct Spawned(Runtime);

/// What the competitors on tokio run on.
pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a thread can be had")
}

impl Competitor for Spawned {
    type Handle = JoinHandle<()>;

    type Caller<'a> = &'a Handle;

    fn lacks(workload: &str) -> Option<&'static str> {
        (workload == "W9").then_some("a Sleep in a task is the task's to reset: see `Sleep`")
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
        // Here, for by the time that the task is polled it is later.
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
        unreachable!("it lacks W9");
    }
}
