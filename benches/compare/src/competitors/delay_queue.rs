//! tokio-util's `DelayQueue` behind a mutex, with one task that removes and runs the expired
//! timeouts. The mutex and the task are not part of tokio-util: `DelayQueue` itself is not shared
//! between threads.
//!
//! A channel of commands would be an alternative, but then the caller would get a key only after
//! the task has answered.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio_util::time::delay_queue::{DelayQueue, Key};

use super::{Caller, Competitor, Setup, tokio_sleep};
use crate::task::Task;

/// How many expired timeouts are removed while the lock is held. Their tasks run without the lock.
const BATCH: usize = 256;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<DelayQueue<Task>>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, DelayQueue<Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the tasks of all expired timeouts and returns `Pending`. An insertion with an earlier
    /// deadline wakes the task that polled last.
    fn run_expired(&self, context: &mut Context<'_>, due: &mut Vec<Task>) -> Poll<()> {
        loop {
            let mut queue = self.lock();
            while due.len() < BATCH {
                let Poll::Ready(Some(expired)) = queue.poll_expired(context) else {
                    break;
                };
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
        let (shared, runtime) = (Shared::default(), tokio_sleep::runtime());
        let (task_shared, mut due) = (shared.clone(), Vec::with_capacity(BATCH));
        runtime.spawn(poll_fn(move |context| {
            task_shared.run_expired(context, &mut due)
        }));
        Self { shared, runtime }
    }

    fn caller(&self) -> Entered<'_> {
        Entered {
            shared: &self.shared,
            _runtime: self.runtime.enter(),
        }
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
