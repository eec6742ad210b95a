//! The face that a competitor puts on to be asked, and all who do.

mod btree;
mod delay_queue;
mod hashed_wheel_timer;
mod heap;
mod hierarchical_hash_wheel_timer;
mod locked;
mod ours;
mod pingora;
mod tokio_sleep;
mod tokio_spawn;

use std::time::Duration;

pub(crate) use btree::ByDeadline;
pub(crate) use delay_queue::Queue as DelayQueue;
pub(crate) use hashed_wheel_timer::WithoutCancel;
pub(crate) use heap::Heap;
pub(crate) use hierarchical_hash_wheel_timer::QuadWheel;
pub(crate) use locked::Locked;
pub(crate) use ours::{Hashed, Hierarchical, Ours};
pub(crate) use pingora::Pingora;
pub(crate) use tokio_sleep::Sleeps;
pub(crate) use tokio_spawn::Spawned;

use crate::task::Task;

/// What a timer is built with. Who has a resolution or a number of slots of his own ignores it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Setup {
    pub(crate) tick: Duration,
    pub(crate) slots: usize,
}

/// A timer that is at work until it is stopped.
pub(crate) trait Competitor: Sized + Sync {
    /// What cancels a timeout.
    type Handle: Send;

    type Caller<'a>: Caller<Handle = Self::Handle>
    where
        Self: 'a;

    /// Whether a timeout ends when its handle is dropped, so that who wants it pending has to keep that.
    const HANDLE_IS_TIMEOUT: bool = false;

    /// Why it cannot do a workload, if it cannot.
    fn lacks(_workload: &str) -> Option<&'static str> {
        None
    }

    /// With its worker running.
    fn start(setup: Setup) -> Self;

    /// For the thread that calls this.
    fn caller(&self) -> Self::Caller<'_>;

    /// Ends its threads and drops what is pending.
    fn stop(self);
}

/// What a thread needs to schedule timeouts and to end them.
pub(crate) trait Caller {
    type Handle;

    fn schedule(&mut self, delay: Duration, task: Task) -> Self::Handle;

    /// The caller is done with it: dropping the handle is part of it.
    fn cancel(&mut self, handle: Self::Handle);

    /// Puts it off to `delay` from now.
    fn rearm(&mut self, handle: &mut Self::Handle, delay: Duration);

    /// Schedules one that nobody cancels: its task is to run.
    fn let_fire(&mut self, delay: Duration, task: Task) {
        self.schedule(delay, task);
    }
}
