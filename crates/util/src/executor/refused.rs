//! The answers to a task that an executor refuses.

use std::time::Duration;

use hashed_wheel::{ExpiredTask, TaskExecutor, Timeout, TimerTask};

use crate::sync::{Arc, Weak};

/// Says what happens to the tasks that an executor refuses: those that
/// [`execute`](TaskExecutor::execute) returns. Java's `RejectedExecutionHandler`.
///
/// Without one of these, a refused task is dropped, reported and counted in
/// [`Stats::dropped_tasks`](hashed_wheel::Stats::dropped_tasks). The timeout of a refused task has
/// expired, so it cannot be cancelled. If the task is [periodic](hashed_wheel::Periodic), all this
/// is about the one run.
///
/// # Examples
///
/// A queue with room for 100 tasks. The worker runs those for which there is no room:
///
/// ```
/// use hashed_wheel::{ExpiredTask, HashedWheelTimer, executor};
/// use hashed_wheel_util::executor::TaskExecutorExt;
/// use std::sync::mpsc::{TrySendError, sync_channel};
/// use std::thread;
///
/// let (queue, tasks) = sync_channel::<ExpiredTask>(100);
/// thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
/// let pool = executor::from_fn(move |task| {
///     queue.try_send(task).map_err(|(TrySendError::Full(task) | TrySendError::Disconnected(task))| task)
/// });
/// let timer = HashedWheelTimer::builder().task_executor(pool.or_run_here()).build()?;
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
pub trait TaskExecutorExt: TaskExecutor + Sized {
    /// Runs a refused task where it was refused, which is the timer's worker. Java's
    /// `CallerRunsPolicy`.
    ///
    /// All other timeouts wait for it. So an overloaded pool makes the timer late, and loses
    /// nothing.
    fn or_run_here(self) -> OrRunHere<Self> {
        OrRunHere { executor: self }
    }

    /// Offers a refused task to the executor again after `delay`, as often as it is refused.
    ///
    /// The task waits as a timeout of its own on the same timer, which fires at the first tick at
    /// or after the delay. It counts in [`Stats`](hashed_wheel::Stats) and
    /// [`pending_timeouts`](hashed_wheel::HashedWheelTimer::pending_timeouts), and takes a place
    /// under the [limit](hashed_wheel::Builder::max_pending_timeouts).
    ///
    /// If the timer rejects that timeout, or ends meanwhile, the task is dropped and counted. A
    /// timer that is being shut down rejects it.
    /// [`cancel_all`](hashed_wheel::HashedWheelTimer::cancel_all) and
    /// [`stop`](hashed_wheel::HashedWheelTimer::stop) cancel it, and it is among the timeouts that
    /// `stop` returns. If a periodic task is cancelled meanwhile, its run is not offered again once
    /// it is refused.
    ///
    /// The worker has a handle of the timer while it schedules that timeout. If you drop the last
    /// other handle at this moment, your drop does not wait, and the worker stops the timer. Call
    /// `stop` if you have to wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{ExpiredTask, HashedWheelTimer, executor};
    /// use hashed_wheel_util::executor::TaskExecutorExt;
    /// use std::sync::mpsc::{TrySendError, sync_channel};
    /// use std::time::Duration;
    ///
    /// let (queue, tasks) = sync_channel::<ExpiredTask>(1);
    /// let pool = executor::from_fn(move |task| {
    ///     queue.try_send(task).map_err(|(TrySendError::Full(task) | TrySendError::Disconnected(task))| task)
    /// });
    /// let timer = HashedWheelTimer::builder()
    ///     .tick(Duration::from_millis(1))
    ///     .task_executor(pool.or_retry(Duration::from_millis(2)))
    ///     .build()?;
    /// for number in [1, 2] {
    ///     timer.new_timeout(move |_| println!("task {number}"), Duration::from_millis(5))?;
    /// }
    /// tasks.recv()?.run();
    /// tasks.recv()?.run(); // it was refused, until there was room again
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn or_retry(self, delay: Duration) -> OrRetry<Self> {
        OrRetry {
            retried: Arc::new(Retried {
                executor: self,
                delay,
            }),
        }
    }

    /// Hands a refused task to another executor. A function can be one:
    /// [`from_fn`](hashed_wheel::executor::from_fn).
    ///
    /// # Examples
    ///
    /// The tasks that the pool refuses go to a pool for the overflow:
    ///
    /// ```
    /// use hashed_wheel::{ExpiredTask, HashedWheelTimer, executor};
    /// use hashed_wheel_util::executor::TaskExecutorExt;
    /// use std::sync::mpsc::{TrySendError, channel, sync_channel};
    ///
    /// let (pool, _tasks) = sync_channel::<ExpiredTask>(100);
    /// let (overflow, _more_tasks) = channel::<ExpiredTask>();
    /// let pool = executor::from_fn(move |task| {
    ///     pool.try_send(task).map_err(|(TrySendError::Full(task) | TrySendError::Disconnected(task))| task)
    /// });
    /// let overflow = executor::from_fn(move |task| overflow.send(task).map_err(|error| error.0));
    /// let timer = HashedWheelTimer::builder().task_executor(pool.or_else(overflow)).build()?;
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    fn or_else<O: TaskExecutor>(self, other: O) -> OrElse<Self, O> {
        OrElse {
            executor: self,
            other,
        }
    }
}

impl<E: TaskExecutor> TaskExecutorExt for E {}

/// The executor of [`TaskExecutorExt::or_run_here`].
#[derive(Debug, Clone)]
pub struct OrRunHere<E> {
    executor: E,
}

impl<E: TaskExecutor> TaskExecutor for OrRunHere<E> {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        self.executor.execute(task).or_else(|task| {
            task.run();
            Ok(())
        })
    }
}

/// The executor of [`TaskExecutorExt::or_retry`]. Clones share the executor.
#[derive(Debug)]
pub struct OrRetry<E> {
    retried: Arc<Retried<E>>,
}

#[derive(Debug)]
struct Retried<E> {
    executor: E,
    delay: Duration,
}

impl<E> Clone for OrRetry<E> {
    fn clone(&self) -> Self {
        Self {
            retried: Arc::clone(&self.retried),
        }
    }
}

impl<E: TaskExecutor> TaskExecutor for OrRetry<E> {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        let Err(task) = self.retried.executor.execute(task) else {
            return Ok(());
        };
        if task.timeout().is_cancelled() {
            // A periodic task, cancelled since this run was due: the run would not begin.
            return Err(task);
        }
        let timer = task.timeout().timer();
        let retry = Retry {
            task,
            retried: Arc::downgrade(&self.retried),
        };
        match timer.try_new_timeout_task(retry, self.retried.delay) {
            Ok(_) => Ok(()),
            Err(rejected) => Err(rejected.task.task),
        }
    }
}

/// A refused task that waits to be offered to the executor again.
struct Retry<E> {
    task: ExpiredTask,
    /// Does not keep the executor, which the timer drops when it stops.
    retried: Weak<Retried<E>>,
}

impl<E: TaskExecutor> TimerTask for Retry<E> {
    // It is not for the executor itself, which might refuse it.
    const RUNS_ON_WORKER: bool = true;

    fn run(self, _: &Timeout) {
        if let Some(retried) = self.retried.upgrade() {
            drop(OrRetry { retried }.execute(self.task));
        }
    }
}

/// The executor of [`TaskExecutorExt::or_else`].
#[derive(Debug, Clone)]
pub struct OrElse<E, O> {
    executor: E,
    other: O,
}

impl<E: TaskExecutor, O: TaskExecutor> TaskExecutor for OrElse<E, O> {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        self.executor
            .execute(task)
            .or_else(|task| self.other.execute(task))
    }
}
