//! `hierarchical_hash_wheel_timer`, with its thread. The caller chooses an identifier for each
//! timeout.
//!
//! The state is a type of this package instead of the crate's boxed closure. That saves an
//! allocation.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{OneshotState, PeriodicClosureState, Timer};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

#[derive(Debug)]
pub(crate) struct State {
    id: u64,
    task: Task,
}

impl OneshotState for State {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.id
    }

    fn trigger(self) {
        self.task.run();
    }
}

type Periodic = PeriodicClosureState<u64>;

pub(crate) struct QuadWheel {
    timer: TimerWithThread<u64, State, Periodic>,
    callers: AtomicU64,
}

pub(crate) struct Numbered {
    timer: TimerRef<u64, State, Periodic>,
    /// The next identifier. Each caller has its own range of identifiers, so that callers do not
    /// share a counter.
    next: u64,
}

impl Competitor for QuadWheel {
    type Handle = u64;

    type Caller<'a> = Numbered;

    fn start(_: Setup) -> Self {
        let timer = TimerWithThread::new().expect("the thread starts");
        Self {
            timer,
            callers: AtomicU64::new(0),
        }
    }

    fn caller(&self) -> Numbered {
        Numbered {
            timer: self.timer.timer_ref(),
            next: self.callers.fetch_add(1, Relaxed) << 40,
        }
    }

    fn stop(self) {
        self.timer
            .shutdown()
            .expect("the timer's thread has not panicked");
    }
}

impl Caller for Numbered {
    type Handle = u64;

    fn schedule(&mut self, delay: Duration, task: Task) -> u64 {
        let id = self.next;
        self.next += 1;
        self.timer.schedule_once(delay, State { id, task });
        id
    }

    fn cancel(&mut self, handle: u64) {
        self.timer.cancel(&handle);
    }

    /// Cancels and schedules again: the crate has no operation to reset a timeout.
    fn rearm(&mut self, handle: &mut u64, delay: Duration) {
        self.cancel(*handle);
        *handle = self.schedule(delay, Task::count());
    }
}
