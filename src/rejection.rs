//! What happens to a task that the task executor refuses.

use std::fmt;
use std::time::Duration;

use crate::engine::{DispatchedTask, Executor, SharedFields, Timeout};
use crate::node::Task;
use crate::sync::{Arc, Weak};
use crate::task::{ExpiredTask, refused_by};
use crate::ticks;

/// What happens to a task that the [task executor](crate::TaskExecutor) refuses:
/// [`Builder::rejection_policy`](crate::Builder::rejection_policy). Java's
/// `RejectedExecutionHandler`.
///
/// An executor refuses a task by dropping it before its [`execute`](crate::TaskExecutor::execute)
/// returns. For example, it drops the error of a `try_send`, which contains the task. The policy is
/// applied on the worker, after `execute` has returned.
///
/// Any task of the timer that is dropped on the worker while `execute` runs is refused, also one
/// that was handed over earlier: the oldest in a queue, say, which has to make room.
///
/// A task that is dropped at any other time was not refused: one that waits in a pool when the pool
/// is dropped, or one that is dropped because `execute` panics. It is dropped and counted, whatever
/// the policy.
///
/// The timeout of a refused task has expired, so it cannot be cancelled.
/// [`cancel_and_wait`](crate::Timeout::cancel_and_wait) waits for its task. If the task is
/// [periodic](crate::Periodic), the policy is about the one run.
///
/// # Examples
///
/// See [`Builder::rejection_policy`](crate::Builder::rejection_policy).
#[non_exhaustive]
#[derive(Default)]
pub enum RejectionPolicy {
    /// Drops the task, reports that, and counts it in
    /// [`Stats::dropped_tasks`](crate::Stats::dropped_tasks). This is the default.
    #[default]
    Drop,
    /// Runs the task on the worker. Java's `CallerRunsPolicy`.
    ///
    /// All other timeouts wait for it. So an overloaded pool makes the timer late, and loses
    /// nothing.
    RunOnWorker,
    /// Offers the task to the executor again after this delay, as often as it is refused.
    ///
    /// The task waits as a timeout of its own on the same timer, which fires at the first tick at
    /// or after the delay. It counts in [`Stats`](crate::Stats) and
    /// [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts), and takes a place under the
    /// [limit](crate::Builder::max_pending_timeouts).
    ///
    /// If the timer rejects that timeout, or ends meanwhile, the task is dropped and counted. A
    /// timer that is being shut down rejects it.
    /// [`cancel_all`](crate::HashedWheelTimer::cancel_all) and
    /// [`stop`](crate::HashedWheelTimer::stop) cancel it, and it is among the timeouts that `stop`
    /// returns.
    Retry(Duration),
    /// Calls a function with the task, on the worker: [`handler`](Self::handler).
    Handler(Handler),
}

/// The function of a [`RejectionPolicy::Handler`].
pub struct Handler(Box<dyn Fn(ExpiredTask) + Send + Sync>);

impl RejectionPolicy {
    /// Calls `handler` with each refused task, on the worker, which waits until it returns.
    ///
    /// The handler may run the task, keep it, or give it to another pool. If it drops the task,
    /// that is reported and counted. A panic of the handler is reported and counted. The function
    /// is dropped with the executor, when the timer stops.
    ///
    /// # Examples
    ///
    /// The tasks that the pool refuses go to a pool for the overflow:
    ///
    /// ```
    /// use hashed_wheel::{ExpiredTask, HashedWheelTimer, RejectionPolicy};
    /// use std::sync::mpsc;
    ///
    /// let (pool, _tasks) = mpsc::sync_channel::<ExpiredTask>(100);
    /// let (overflow, _more_tasks) = mpsc::channel::<ExpiredTask>();
    /// let timer = HashedWheelTimer::builder()
    ///     .task_executor(move |task| drop(pool.try_send(task)))
    ///     .rejection_policy(RejectionPolicy::handler(move |task| drop(overflow.send(task))))
    ///     .build()?;
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn handler(handler: impl Fn(ExpiredTask) + Send + Sync + 'static) -> Self {
        Self::Handler(Handler(Box::new(handler)))
    }

    /// Makes an executor that hands tasks to `executor`, and treats those that it refuses by this
    /// policy.
    pub(crate) fn wrap(self, executor: Executor) -> Executor {
        if let Self::Drop = self {
            return executor;
        }
        let executor =
            Arc::new_cyclic(|itself| WithPolicy { executor, policy: self, itself: itself.clone() });
        Box::new(move |task| executor.execute(task))
    }
}

impl fmt::Debug for RejectionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("Drop"),
            Self::RunOnWorker => f.write_str("RunOnWorker"),
            Self::Retry(delay) => f.debug_tuple("Retry").field(delay).finish(),
            Self::Handler(_) => f.debug_tuple("Handler").finish_non_exhaustive(),
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

/// An executor, and what happens to the tasks that it refuses.
struct WithPolicy {
    executor: Executor,
    policy: RejectionPolicy,
    itself: Weak<Self>,
}

impl WithPolicy {
    fn execute(&self, task: DispatchedTask) {
        for task in refused_by(task, |task| (self.executor)(task)) {
            match &self.policy {
                RejectionPolicy::Drop => drop(task),
                RejectionPolicy::RunOnWorker => watch(task, ExpiredTask::run),
                RejectionPolicy::Retry(delay) => self.retry_after(*delay, task),
                RejectionPolicy::Handler(Handler(handler)) => watch(task, handler),
            }
        }
    }

    fn retry_after(&self, delay: Duration, task: ExpiredTask) {
        let timer = task.timeout().handle.to_arc();
        let retry = Retry { task, executor: Weak::clone(&self.itself) };
        // If it is rejected, the task is dropped with it.
        let _ = timer.schedule_by(retry, ticks::deadline(timer.time.now_or_soon(), delay));
    }
}

/// Gives the task to `run` on the worker. That is reported if it is slow, or panics.
fn watch(task: ExpiredTask, run: impl FnOnce(ExpiredTask)) {
    let timeout = task.timeout().clone();
    let (timer, name) = (timeout.handle.timer(), timeout.handle.name());
    timer.watch(name, || timer.guard("after the executor has refused it", || name, || run(task)));
}

/// A refused task that waits to be offered to the executor again.
struct Retry {
    task: ExpiredTask,
    /// Does not keep the executor, which is dropped when the timer stops.
    executor: Weak<WithPolicy>,
}

impl Task<SharedFields> for Retry {
    const IS_PLAIN: bool = false;
    // It is not for the executor itself, which might refuse it.
    const RUNS_ON_WORKER: bool = true;

    fn run(self, _: &Timeout) {
        let Some(executor) = self.executor.upgrade() else { return };
        if let Some(task) = self.task.into_dispatched() {
            executor.execute(task);
        }
    }

    fn cancelled(self, _: &Timeout) {}

    fn name() -> &'static str {
        "(a task that the executor has refused)"
    }
}
