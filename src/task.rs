//! What a timer runs, and who runs it.

use std::any::type_name;
use std::fmt;
use std::mem::needs_drop;

use crate::engine::{DispatchedTask, SharedFields, Timeout};
use crate::node::Task;

/// A task that is a type. Closures go to [`new_timeout`](crate::HashedWheelTimer::new_timeout) as they are.
///
/// Both methods take the task by value: each timeout ends once, and whoever ends it owns the task. A task can put itself
/// on the timer again.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock, Timeout, TimerTask};
/// use std::time::Duration;
///
/// struct Retry {
///     left: u32,
/// }
///
/// impl TimerTask for Retry {
///     fn run(mut self, timeout: &Timeout) {
///         if self.left > 0 {
///             self.left -= 1;
///             // An error here means that the timer was stopped: there is nothing left to do.
///             let _ = timeout.timer().new_timeout_task(self, Duration::from_secs(1));
///         }
///     }
///
///     fn cancelled(self, _: &Timeout) {
///         println!("given up with {} tries left", self.left);
///     }
/// }
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// timer.new_timeout_task(Retry { left: 2 }, Duration::from_secs(1))?;
///
/// let mut runs = 0;
/// while let Some(wait) = driver.next_turn() {
///     clock.advance(wait);
///     runs += driver.turn();
/// }
/// assert_eq!(runs, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TimerTask: Send + 'static {
    /// The delay is over. Called once, by whoever [executes](TaskExecutor) the task: by default the worker.
    ///
    /// A panic is reported and counted, and harms no other timeout.
    fn run(self, timeout: &Timeout);

    /// The timeout was cancelled: called in place of [`run`](Self::run), on the thread whose
    /// [`cancel`](Timeout::cancel) or [`stop`](crate::HashedWheelTimer::stop) ended it, before that returns; on the worker,
    /// if a task there dropped the last handle.
    ///
    /// Netty's `TimerTask.cancelled`, which Netty calls on its worker up to a tick later. A panic is reported and counted.
    fn cancelled(self, timeout: &Timeout)
    where
        Self: Sized,
    {
        let _ = timeout;
    }
}

pub(crate) struct Closure<F>(pub(crate) F);

impl<F: FnOnce(&Timeout) + Send + 'static> Task<SharedFields> for Closure<F> {
    const IS_PLAIN: bool = !needs_drop::<F>();

    fn run(self, timeout: &Timeout) {
        (self.0)(timeout);
    }

    fn cancelled(self, _: &Timeout) {}

    fn name() -> &'static str {
        type_name::<F>()
    }
}

pub(crate) struct OfType<T>(pub(crate) T);

impl<T: TimerTask> Task<SharedFields> for OfType<T> {
    const IS_PLAIN: bool = false;

    fn run(self, timeout: &Timeout) {
        self.0.run(timeout);
    }

    fn cancelled(self, timeout: &Timeout) {
        self.0.cancelled(timeout);
    }

    fn name() -> &'static str {
        type_name::<T>()
    }
}

/// Where expired tasks run: a thread pool, a runtime, or by default the worker itself.
///
/// Any `Fn(ExpiredTask)` is one. Netty's `Executor` argument.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{ExpiredTask, HashedWheelTimer};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let (to_pool, tasks) = mpsc::channel::<ExpiredTask>();
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(1))
///     .task_executor(move |task| drop(to_pool.send(task)))
///     .build()?;
///
/// timer.new_timeout(|_| println!("in the pool"), Duration::from_millis(5))?;
/// tasks.recv()?.run();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TaskExecutor: Send + Sync + 'static {
    /// Takes a task whose delay is over. Called on the worker, which waits until this returns.
    ///
    /// An executor that cannot take the task may drop it: that is reported and counted. A panic is too.
    ///
    /// If this blocks until a pool has room, no task in that pool may call [`stop`](crate::HashedWheelTimer::stop) or
    /// [`shutdown`](crate::HashedWheelTimer::shutdown), or drop the last handle of the timer: these wait for the worker.
    fn execute(&self, task: ExpiredTask);
}

impl<F: Fn(ExpiredTask) + Send + Sync + 'static> TaskExecutor for F {
    fn execute(&self, task: ExpiredTask) {
        self(task);
    }
}

/// A task whose delay is over and that has not run yet.
///
/// Dropped without having been [run](Self::run), it takes its task with it, or, of a [periodic](crate::Periodic) task, this
/// one run; that is reported, and counted in [`Stats::dropped_tasks`](crate::Stats::dropped_tasks).
#[must_use = "a task that is dropped does not run"]
pub struct ExpiredTask {
    /// `None` once it has run.
    task: Option<DispatchedTask>,
}

impl ExpiredTask {
    pub(crate) fn new(task: DispatchedTask) -> Self {
        Self { task: Some(task) }
    }

    /// Runs the task on this thread. Its panic is caught here, reported and counted.
    ///
    /// If it is a [periodic](crate::Periodic) task that makes up for missed runs, those that were due by the end of this one
    /// follow at once.
    pub fn run(mut self) {
        if let Some(task) = self.task.take() {
            task.run();
        }
    }
}

impl Drop for ExpiredTask {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.reject();
        }
    }
}

impl fmt::Debug for ExpiredTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiredTask")
            .field("timeout", &self.task.as_ref().map(DispatchedTask::timeout))
            .finish_non_exhaustive()
    }
}
