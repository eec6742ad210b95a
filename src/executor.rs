//! A [task executor](TaskExecutor) made of a closure.

use crate::engine::ExpiredTask;
use crate::task::TaskExecutor;

struct FromFn<F>(F);

impl<F> TaskExecutor for FromFn<F>
where
    F: Fn(ExpiredTask) -> Result<(), ExpiredTask> + Send + Sync + 'static,
{
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        (self.0)(task)
    }
}

/// Makes a [task executor](TaskExecutor) of a closure, whose result is that of
/// [`execute`](TaskExecutor::execute): the task, if it was not accepted.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, executor};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let (to_pool, tasks) = mpsc::channel();
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(1))
///     .task_executor(executor::from_fn(move |task| to_pool.send(task).map_err(|error| error.0)))
///     .build()?;
///
/// timer.new_timeout(|_| println!("in the pool"), Duration::from_millis(5))?;
/// tasks.recv()?.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn from_fn<F>(execute: F) -> impl TaskExecutor
where
    F: Fn(ExpiredTask) -> Result<(), ExpiredTask> + Send + Sync + 'static,
{
    FromFn(execute)
}
