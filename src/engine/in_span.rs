//! A task with the span in which it was scheduled: [`Builder::task_spans`], feature `tracing`.
//!
//! [`Builder::task_spans`]: crate::Builder::task_spans

use super::shared::{Shared, SharedFields, Timeout};
use crate::node::{NextRun, Task};
use crate::report::TaskSpan;

pub(super) struct InSpan<T> {
    task: T,
    span: TaskSpan,
}

impl<T> InSpan<T> {
    /// Takes the span of this thread.
    pub(super) fn new(task: T) -> Self {
        Self { task, span: TaskSpan::current() }
    }

    pub(super) fn into_task(self) -> T {
        self.task
    }
}

impl<T: Task<SharedFields>> Task<SharedFields> for InSpan<T> {
    const IS_PLAIN: bool = false;
    const IS_PERIODIC: bool = T::IS_PERIODIC;

    fn run(self, timeout: &Timeout) {
        self.span.run(|| self.task.run(timeout));
    }

    fn cancelled(self, timeout: &Timeout) {
        self.span.run(|| self.task.cancelled(timeout));
    }

    fn repeat(&mut self, timer: &Shared, runs: bool) -> Option<NextRun> {
        self.span.run(|| self.task.repeat(timer, runs))
    }

    fn name() -> &'static str {
        T::name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::Nothing;

    #[test]
    fn a_task_in_a_span_is_reported_under_its_own_name() {
        assert_eq!(InSpan::<Nothing>::name(), "nothing");
    }
}
