//! The end of a run, for a thread that waits for it: `cancel_and_wait`.
//!
//! A timeout can expire and its task not be over for two reasons.
//!
//! | the task | is over when |
//! |---|---|
//! | runs on the worker | the worker lock is free: the worker has held it since before the timeout expired. Nothing is recorded, so the runs on the worker cost no more for it |
//! | was handed to the task executor | its node has the mark `RUN_OVER` (`node/refs.rs`) |
//!
//! A waiter lists itself in `run_waiters` and then changes the mark. The thread that ends the run
//! changes the mark and then, if it was awaited, wakes all that are listed:
//!
//! | the first change of the mark | |
//! |---|---|
//! | of the waiter | the end of the run finds the mark awaited, and the waiter in the list |
//! | of the end of the run | the waiter finds the mark, and does not wait |
//!
//! A waiter that is woken by the end of another run lists itself again. The mark of a run of an
//! alarm is in the alarm's own state (`alarm/`).
//!
//! No thread waits for a task that it has itself. Each thread notes which one that is: the task
//! that it runs, or, on the worker, the one that it hands to the executor at this moment.

use std::cell::Cell;
use std::mem;

use super::inner::{Inner, Timeout};
use crate::node::End;
use crate::sync::{Parker, local};
use crate::ticks::DEADLINE_RUNNING;

local!(static CURRENT: Cell<usize> = Cell::new(0));

/// Added to the address of a node whose task is being handed to the executor.
pub(super) const HANDED_OVER: usize = 1;

/// Calls `run` while this is the task that the thread has: the address of its node, for a task that
/// the thread runs for a task executor.
pub(super) fn while_current<R>(task: usize, run: impl FnOnce() -> R) -> R {
    // (A thread that is ending has no cell.)
    let before = CURRENT.try_with(|current| current.replace(task));
    let result = run();
    if let Ok(before) = before {
        let _ = CURRENT.try_with(|current| current.set(before));
    }
    result
}

/// Whether this is the task that the thread has.
fn is_current(task: usize) -> bool {
    CURRENT
        .try_with(Cell::get)
        .is_ok_and(|current| current == task)
}

/// A task that was handed to the executor is over.
pub(super) fn end_run(timeout: &Timeout) {
    if timeout.handle.end_run() {
        timeout.handle.timer().wake_waiters();
    }
}

/// The wait for the end of a run.
impl Inner {
    /// Waits until the task of a timeout that has ended is over. Waits for nothing if this thread
    /// runs that task; on the worker, only for tasks that were handed to an executor.
    pub(crate) fn wait_for_run(&self, timeout: &Timeout) {
        let handle = &timeout.handle;
        // A cancelled timeout has a run only if it is periodic and was cancelled during that run.
        if handle.end() != Some(End::Expired) && handle.deadline() != DEADLINE_RUNNING {
            return;
        }
        if self.thread.is_in_parent_process() {
            // No task runs here, and the worker's lock may never be released.
            return;
        }
        if is_current(handle.as_ptr().addr()) {
            return;
        }
        if self.has_executor {
            self.wait_until(|| {
                let is_over = !handle.await_run();
                assert!(
                    is_over || !is_current(handle.as_ptr().addr() + HANDED_OVER),
                    "cancel_and_wait was called by a task executor for the task that it was given, and would wait for \
                     itself: run or drop the task, or hand it to another thread and return"
                );
                is_over
            });
        } else if !self.worker.is_held_by_this_thread() {
            drop(self.worker.lock());
        }
    }

    /// Waits until `is_over` returns true, which otherwise marks the run as awaited: its end calls
    /// [`wake_waiters`](Self::wake_waiters).
    pub(crate) fn wait_until(&self, is_over: impl Fn() -> bool) {
        if self.thread.is_in_parent_process() {
            // No task runs here.
            return;
        }
        let parker = Parker::default();
        // Unique among the waiters.
        let itself = std::ptr::from_ref(&parker).addr();
        loop {
            self.run_waiters.lock().push((itself, parker.unparker()));
            if is_over() {
                self.run_waiters
                    .lock()
                    .retain(|&(waiter, _)| waiter != itself);
                return;
            }
            parker.park();
        }
    }

    /// A run that is awaited is over.
    #[cold]
    pub(crate) fn wake_waiters(&self) {
        let waiters = mem::take(&mut *self.run_waiters.lock());
        waiters.iter().for_each(|(_, waiter)| waiter.unpark());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Driven, TICK};
    use crate::executor;

    #[test]
    fn a_waiter_whose_run_is_over_unlists_only_itself() {
        let runs = executor::from_fn(|task| {
            task.run();
            Ok(())
        });
        let mut t = Driven::with(|builder| builder.task_executor(runs));
        let timeout = t.schedule(TICK);
        assert_eq!(t.pass(TICK), 1);
        let another = Parker::default();
        t.inner().run_waiters.lock().push((1, another.unparker()));
        t.inner().wait_for_run(&timeout);
        assert!(
            t.inner()
                .run_waiters
                .lock()
                .iter()
                .map(|(waiter, _)| *waiter)
                .eq([1])
        );
    }
}
