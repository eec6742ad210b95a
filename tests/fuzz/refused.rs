//! What happens to tasks that the executor refuses, by the timer's `RejectionPolicy`.

use std::cell::Cell;
use std::time::Duration;

use hashed_wheel::{ExpiredTask, RejectionPolicy};

use super::{Kind, Model, Script, State};

/// The model's policy.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Policy {
    Drop,
    RunOnWorker,
    Retry(Duration),
    Handler,
}

impl Policy {
    pub(super) fn of(choice: u64, tick: u64) -> Self {
        match choice {
            0 => Self::Drop,
            1 => Self::RunOnWorker,
            2 => Self::Handler,
            retry => Self::Retry(Duration::from_nanos((retry - 3) * tick / 2)),
        }
    }

    pub(super) fn policy(self, script: &Script) -> RejectionPolicy {
        let script = script.clone();
        match self {
            Self::Drop => RejectionPolicy::Drop,
            Self::RunOnWorker => RejectionPolicy::RunOnWorker,
            Self::Retry(delay) => RejectionPolicy::Retry(delay),
            Self::Handler => RejectionPolicy::handler(move |task| script.handle_refused(task)),
        }
    }
}

thread_local! {
    /// How many calls of executors this thread is in, of timers with a policy.
    static EXECUTING: Cell<usize> = const { Cell::new(0) };
}

/// A call of the executor of a timer with a policy. A task of that timer that is dropped meanwhile
/// is refused. (The model drops none, of whichever timer.)
pub(super) struct ExecutorCall(());

impl ExecutorCall {
    pub(super) fn begin() -> Self {
        EXECUTING.set(EXECUTING.get() + 1);
        Self(())
    }

    pub(super) fn is_in_progress() -> bool {
        EXECUTING.get() > 0
    }
}

impl Drop for ExecutorCall {
    fn drop(&mut self) {
        EXECUTING.set(EXECUTING.get() - 1);
    }
}

impl Model {
    /// Schedules a timeout for a refused task, which may be rejected. The timer does so when the
    /// executor has returned.
    fn retry(&mut self, id: usize, delay: Duration) {
        let deadline = self.deadline(delay);
        let retry = self.schedule(Kind::Retry(id), deadline);
        if self.records[retry].state == State::Rejected {
            self.drop_retried(retry);
        }
    }

    /// If this is the timeout of a task that waits to be offered again, that task is dropped.
    pub(super) fn drop_retried(&mut self, id: usize) {
        if let Kind::Retry(original) = self.records[id].kind {
            self.records[id].task_is_dropped = true;
            self.skip_run(original);
        }
    }

    /// The executor gets the task of this timeout. If it has waited to be offered again, returns
    /// its own timeout.
    pub(super) fn offered(&mut self, id: usize) -> usize {
        let Kind::Retry(original) = self.records[id].kind else { return id };
        let record = &mut self.records[id];
        (record.state, record.task_is_dropped) = (State::Ran, true);
        original
    }
}

impl Script {
    /// The executor refuses a task.
    pub(super) fn refuse(&self, id: usize, task: ExpiredTask) {
        let mut model = self.model();
        let is_periodic = model.records[id].is_periodic();
        match model.policy {
            Policy::Drop => {
                drop(model);
                self.finish_task(id, task, false);
            }
            Policy::RunOnWorker if !is_periodic => {
                drop(model);
                drop(task);
            }
            Policy::Handler => {
                model.refused = Some(id);
                drop(model);
                drop(task);
            }
            Policy::Retry(delay) if !is_periodic && model.has_room_for_hidden(usize::MAX, None) => {
                model.retry(id, delay);
                drop(model);
                drop(task);
            }
            // The model could not tell when a periodic task is over, or which task is offered
            // again.
            Policy::RunOnWorker | Policy::Retry(_) => {
                drop(model);
                self.finish_task(id, task, true);
            }
        }
    }

    /// The handler of refused tasks.
    fn handle_refused(&self, task: ExpiredTask) {
        let (id, choice) = {
            let mut model = self.model();
            (model.refused.take().expect("the executor has refused a task"), model.bytes.up_to(3))
        };
        match choice {
            0 | 1 => self.finish_task(id, task, true),
            2 => self.model().queue.push((id, task)),
            _ => self.finish_task(id, task, false),
        }
    }
}
