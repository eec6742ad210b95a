//! tokio-util's `DelayQueue` behind a mutex, with one task that takes out what is due: what is shared is not its own.
//!
//! A channel of commands would do too, but then a key is known only when the task has answered.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio_util::time::delay_queue::{DelayQueue, Key};

use super::{Caller, Competitor, Setup, tokio_spawn};
use crate::task::Task;

/// What is taken out with the lock held; the tasks run without it.
const LOT: usize = 256;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<DelayQueue<Task>>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, DelayQueue<Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never ready. An insertion wakes whoever has polled last, if it has to.
    fn run_what_is_due(&self, context: &mut Context<'_>, due: &mut Vec<Task>) -> Poll<()> {
        loop {
            let mut queue = self.lock();
            while due.len() < LOT {
                let Poll::Ready(Some(expired)) = queue.poll_expired(context) else { break };
                due.push(expired.into_inner());
            }
            drop(queue);
            if due.is_empty() {
                return Poll::Pending;
            }
            due.drain(..).for_each(Task::run);
        }
    }
}

pub(crate) struct Queue {
    shared: Shared,
    runtime: Runtime,
}

pub(crate) struct Entered<'a> {
    shared: &'a Shared,
    _runtime: EnterGuard<'a>,
}

impl Competitor for Queue {
    type Handle = Key;

    type Caller<'a> = Entered<'a>;

    fn start(_: Setup) -> Self {
        let (shared, runtime) = (Shared::default(), tokio_spawn::runtime());
        let (mine, mut due) = (shared.clone(), Vec::with_capacity(LOT));
        runtime.spawn(poll_fn(move |context| mine.run_what_is_due(context, &mut due)));
        Self { shared, runtime }
    }

    fn caller(&self) -> Entered<'_> {
        Entered { shared: &self.shared, _runtime: self.runtime.enter() }
    }

    fn stop(self) {
        drop(self.runtime);
    }
}

impl Caller for Entered<'_> {
    type Handle = Key;

    fn schedule(&mut self, delay: Duration, task: Task) -> Key {
        self.shared.lock().insert(task, delay)
    }

    fn cancel(&mut self, handle: Key) {
        self.shared.lock().try_remove(&handle);
    }

    fn rearm(&mut self, handle: &mut Key, delay: Duration) {
        self.shared.lock().reset(handle, delay);
    }
}
