//! Tasks that the executor refuses.

use std::time::Duration;

use hashed_wheel::{Builder, ExpiredTask, executor};
use hashed_wheel_util::executor::TaskExecutorExt;

use super::{Kind, Model, Script, State};

/// The model's policy.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Policy {
    Drop,
    RunHere,
    Retry(Duration),
    Handler,
}

impl Policy {
    pub(super) fn of(choice: u64, tick: u64) -> Self {
        match choice {
            0 => Self::Drop,
            1 => Self::RunHere,
            2 => Self::Handler,
            retry => Self::Retry(Duration::from_nanos((retry - 3) * tick / 2)),
        }
    }

    /// The timer's builder with an executor that runs the script, and treats refused tasks so.
    pub(super) fn set_executor(self, builder: Builder, script: &Script) -> Builder {
        let (executing, handling) = (script.clone(), script.clone());
        let executor = executor::from_fn(move |task| executing.execute(task));
        match self {
            Self::Drop => builder.task_executor(executor),
            Self::RunHere => builder.task_executor(executor.or_run_here()),
            Self::Retry(delay) => builder.task_executor(executor.or_retry(delay)),
            Self::Handler => {
                builder.task_executor(executor.or_else(executor::from_fn(move |task| {
                    handling.handle_refused(task);
                    Ok(())
                })))
            }
        }
    }
}

impl Model {
    /// Schedules a timeout for a refused task, which may be rejected. The policy does so
    /// when the executor has returned.
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
            self.records[id].drop_task();
            self.skip_run(original);
        }
    }

    /// The executor gets the task of this timeout. If it has waited to be offered again, returns
    /// its own timeout.
    pub(super) fn offered(&mut self, id: usize) -> usize {
        let Kind::Retry(original) = self.records[id].kind else {
            return id;
        };
        self.records[id].end(State::Ran);
        original
    }
}

impl Script {
    /// The executor refuses a task.
    pub(super) fn refuse(&self, id: usize, task: ExpiredTask) -> Result<(), ExpiredTask> {
        let mut model = self.model();
        let is_periodic = model.records[id].is_periodic();
        match model.policy {
            Policy::Drop => {
                model.skip_run(id);
                model.schedule_next_run(id);
            }
            Policy::RunHere if !is_periodic => {}
            Policy::Handler => model.refused = Some(id),
            Policy::Retry(delay) if !is_periodic && model.has_room_for_hidden(usize::MAX, None) => {
                model.retry(id, delay);
            }
            // The model could not tell when a periodic task is over, or which task is offered
            // again.
            Policy::RunHere | Policy::Retry(_) => {
                drop(model);
                self.finish_task(id, task, true);
                return Ok(());
            }
        }
        Err(task)
    }

    /// The handler of refused tasks.
    fn handle_refused(&self, task: ExpiredTask) {
        let (id, choice) = {
            let mut model = self.model();
            (
                model
                    .refused
                    .take()
                    .expect("the executor has refused a task"),
                model.bytes.up_to(3),
            )
        };
        match choice {
            0 | 1 => self.finish_task(id, task, true),
            2 => self.model().queue.push((id, task)),
            _ => self.finish_task(id, task, false),
        }
    }
}
