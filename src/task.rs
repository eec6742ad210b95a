//! Tasks, and the executors that run them.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::time::Duration;

use crate::engine::{ExpiredTask, Inner, Timeout, drop_or_skip, run_dispatched};
use crate::error::{NewTimeoutError, TryNewTimeoutError};
use crate::node::{ClaimedTask, OnCancel, Task};
use crate::sync::Arc;
use crate::ticks;

/// A task with a type of its own: Netty's `TimerTask`.
///
/// Closures need no such type: [`new_timeout`](crate::HashedWheelTimer::new_timeout) takes them as
/// they are.
///
/// `run` and `cancelled` take the task by value, because each timeout ends once, and the thread
/// that ends it owns the task. So a task can schedule itself again.
///
/// By value also means that the task is moved to the stack of that thread, which is 2 MiB for the
/// worker by [default](crate::Builder::thread_stack_size). Box the large fields of a task. (A
/// closure runs where it is stored, whatever its size.)
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
///         println!("cancelled with {} tries left", self.left);
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
pub trait TimerTask: Send + Sized + 'static {
    /// Whether the worker always runs the task, even if the timer has a [task
    /// executor](TaskExecutor), which may refuse tasks. For tasks that only hand something on, such
    /// as the waker of a future.
    ///
    /// The worker runs no other task meanwhile, so such a task must be short. Default: `false`.
    const RUNS_ON_WORKER: bool = false;

    /// Whether a future waits for the task. [`cancel_all`](crate::HashedWheelTimer::cancel_all)
    /// does not cancel it then, because the code that awaits the future owns the timeout: it is
    /// cancelled when that code drops it. `stop` and `shutdown` end it as any other. Default:
    /// `false`.
    const IS_AWAITED: bool = false;

    /// Whether the worker asks [`postpone`](Self::postpone) before it runs the task. Default:
    /// `false`.
    const POSTPONES: bool = false;

    /// Returns how long the task still has to wait, if its delay is not over: the timeout is
    /// re-armed by that, and neither expires nor counts as another one. `HRTIMER_RESTART` of
    /// Linux's `hrtimer`.
    ///
    /// For a task whose deadline often becomes later, such as that of an idle connection: each use
    /// stores the new deadline beside the data that it touches anyway, and not in the timeout. The
    /// task compares them when the timeout is due. A timer that shuts down re-arms such a timeout
    /// too, and one with a limit needs no room for it.
    ///
    /// Called if [`POSTPONES`](Self::POSTPONES) is true, on the worker, even if there is a [task
    /// executor](TaskExecutor). It should be short, because nothing else expires meanwhile. It does
    /// not count for [`turn_at_most`](crate::Driver::turn_at_most) and
    /// [`max_tasks_per_turn`](crate::Builder::max_tasks_per_turn).
    ///
    /// Until it has returned, the deadline of the timeout is the present. If the timeout is
    /// cancelled meanwhile, that stays so, and the hook is called [on the
    /// worker](Self::cancelled). A [`reset`](Timeout::reset) of its own timeout returns false.
    ///
    /// A panic is reported and counted, and the task runs. If the timer is stopped meanwhile, the
    /// task does not run, whatever it answers: it is cancelled.
    ///
    /// # Blocking
    ///
    /// A `reset` of the timeout by another thread waits until this has returned. So it must not
    /// wait for such a thread: it must not take a lock that is held during a `reset`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, Timeout, TimerTask};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    ///
    /// /// The second of the last packet.
    /// #[derive(Default)]
    /// struct Connection(AtomicU64);
    ///
    /// const SILENCE: Duration = Duration::from_secs(30);
    ///
    /// struct Idle(Arc<Connection>);
    ///
    /// impl TimerTask for Idle {
    ///     const POSTPONES: bool = true;
    ///
    ///     fn postpone(&self, timeout: &Timeout) -> Option<Duration> {
    ///         let last = Duration::from_secs(self.0.0.load(Ordering::Relaxed));
    ///         let rest = (last + SILENCE).saturating_sub(timeout.timer().clock().now());
    ///         (!rest.is_zero()).then_some(rest)
    ///     }
    ///
    ///     fn run(self, _: &Timeout) {
    ///         println!("idle");
    ///     }
    /// }
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let connection = Arc::new(Connection::default());
    /// let idle = timer.new_timeout_task(Idle(Arc::clone(&connection)), SILENCE)?;
    /// clock.advance(Duration::from_secs(20));
    /// connection.0.store(20, Ordering::Relaxed);
    /// clock.advance(Duration::from_secs(29));
    /// assert_eq!(driver.turn(), 0);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(driver.turn(), 1);
    /// assert!(idle.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn postpone(&self, timeout: &Timeout) -> Option<Duration> {
        let _ = timeout;
        None
    }

    /// Runs the task: its delay is over.
    ///
    /// Called once, on the worker, or where the [task executor](TaskExecutor) calls
    /// [`ExpiredTask::run`].
    ///
    /// A panic is reported and counted, and harms no other timeout.
    fn run(self, timeout: &Timeout);

    /// Handles a cancellation. Called instead of [`run`](Self::run). Does nothing by default.
    ///
    /// Called on the thread whose [`cancel`](Timeout::cancel) or
    /// [`stop`](crate::HashedWheelTimer::stop) ended the timeout, before that call returns. If a
    /// task on the worker dropped the last handle of the timer, it is called on the worker. If the
    /// timer [ends on a thread of its own](crate::Ending), it is called there. If the worker
    /// [asks](Self::postpone) the task at that moment, it is called there, after the answer.
    ///
    /// Netty calls `TimerTask.cancelled` on its worker, up to one tick later.
    ///
    /// A panic is reported and counted.
    fn cancelled(self, timeout: &Timeout) {
        let _ = timeout;
    }
}

/// A [`TimerTask`] as an object: `Box<dyn DynTimerTask>` is a `TimerTask` too. So tasks of
/// different types can be kept in one collection and scheduled later, as Java's `TimerTask` objects
/// can.
///
/// Every `TimerTask` implements it. Do not implement it yourself. The constants of the task do not
/// hold for the object: it runs in the task executor if there is one, and is not asked.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{DynTimerTask, HashedWheelTimer, Timeout, TimerTask};
/// use std::time::Duration;
///
/// struct Close(u32);
///
/// impl TimerTask for Close {
///     fn run(self, _: &Timeout) {
///         println!("close connection {}", self.0);
///     }
/// }
///
/// struct Ping(String);
///
/// impl TimerTask for Ping {
///     fn run(self, _: &Timeout) {
///         println!("ping {}", self.0);
///     }
/// }
///
/// let timer = HashedWheelTimer::default();
/// let tasks: Vec<Box<dyn DynTimerTask>> = vec![Box::new(Close(7)), Box::new(Ping("peer".into()))];
/// for task in tasks {
///     timer.new_timeout_task(task, Duration::from_secs(30))?;
/// }
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
pub trait DynTimerTask: Send + 'static {
    /// [`TimerTask::run`] of the task in the box.
    fn run_boxed(self: Box<Self>, timeout: &Timeout);

    /// [`TimerTask::cancelled`] of the task in the box.
    fn cancelled_boxed(self: Box<Self>, timeout: &Timeout);
}

impl<T: TimerTask> DynTimerTask for T {
    fn run_boxed(self: Box<Self>, timeout: &Timeout) {
        self.run(timeout);
    }

    fn cancelled_boxed(self: Box<Self>, timeout: &Timeout) {
        self.cancelled(timeout);
    }
}

impl TimerTask for Box<dyn DynTimerTask> {
    fn run(self, timeout: &Timeout) {
        self.run_boxed(timeout);
    }

    fn cancelled(self, timeout: &Timeout) {
        self.cancelled_boxed(timeout);
    }
}

/// A closure. Reports name it by the type `N`, which is the user's.
pub(crate) struct Closure<F, N>(pub(crate) F, pub(crate) PhantomData<fn() -> N>);

impl<F: FnOnce(&Timeout) + Send + 'static, N: 'static> Task<Inner> for Closure<F, N> {
    const ON_CANCEL: OnCancel = if needs_drop::<F>() {
        OnCancel::Drop
    } else {
        OnCancel::Nothing
    };

    fn run(self, timeout: &Timeout) {
        (self.0)(timeout);
    }

    fn cancelled(self, _: &Timeout) {}

    fn name() -> &'static str {
        type_name::<N>()
    }
}

/// Schedules a closure. One that does not fit into a node is boxed here, and not where the node is
/// filled: each function in between would move it on the stack, which may be too small for that.
#[inline]
pub(crate) fn schedule_closure<F: FnOnce(&Timeout) + Send + 'static>(
    timer: &Inner,
    task: F,
    deadline: u64,
) -> Result<Timeout, NewTimeoutError> {
    let name = PhantomData::<fn() -> F>;
    if Closure::<F, F>::FITS {
        timer.schedule_by(Closure(task, name), deadline)
    } else {
        // A call through `dyn` runs the closure in its box. A call of the `F` in there would move
        // it to the stack first.
        let task: Box<dyn FnOnce(&Timeout) + Send> = Box::new(task);
        timer.schedule_by(Closure(task, name), deadline)
    }
}

/// A [`TimerTask`].
pub(crate) struct TypedTask<T>(pub(crate) T);

impl<T: TimerTask> Task<Inner> for TypedTask<T> {
    const ON_CANCEL: OnCancel = OnCancel::CallHook;
    const RUNS_ON_WORKER: bool = T::RUNS_ON_WORKER;
    const IS_AWAITED: bool = T::IS_AWAITED;
    const POSTPONES: bool = T::POSTPONES;

    fn run(self, timeout: &Timeout) {
        self.0.run(timeout);
    }

    fn cancelled(self, timeout: &Timeout) {
        self.0.cancelled(timeout);
    }

    fn postpone(&self, timeout: &Timeout) -> Option<u64> {
        postpone(&self.0, timeout)
    }

    fn name() -> &'static str {
        type_name::<T>()
    }
}

/// A [`TimerTask`] that does not fit into a node.
impl<T: TimerTask> Task<Inner> for Box<TypedTask<T>> {
    const ON_CANCEL: OnCancel = OnCancel::CallHook;
    const RUNS_ON_WORKER: bool = T::RUNS_ON_WORKER;
    const IS_AWAITED: bool = T::IS_AWAITED;
    const POSTPONES: bool = T::POSTPONES;

    fn run(self, timeout: &Timeout) {
        self.0.run(timeout);
    }

    fn cancelled(self, timeout: &Timeout) {
        self.0.cancelled(timeout);
    }

    fn postpone(&self, timeout: &Timeout) -> Option<u64> {
        postpone(&self.0, timeout)
    }

    fn name() -> &'static str {
        type_name::<T>()
    }
}

/// Asks a task whether it postpones itself.
fn postpone<T: TimerTask>(task: &T, timeout: &Timeout) -> Option<u64> {
    let (timer, mut next) = (timeout.handle.timer(), None);
    let ask = || {
        let rest = task.postpone(timeout);
        next = rest.map(|rest| ticks::deadline(timer.clock.now(), rest));
    };
    let guarded = || timer.counters.guard("in postpone", type_name::<T>, ask);
    timer.watch(type_name::<T>, guarded);
    next
}

/// Schedules a [`TimerTask`], as [`schedule_closure`] does a closure.
#[inline]
pub(crate) fn schedule_task<T: TimerTask>(
    timer: &Inner,
    task: T,
    deadline: u64,
) -> Result<Timeout, NewTimeoutError> {
    if TypedTask::<T>::FITS {
        timer.schedule_by(TypedTask(task), deadline)
    } else {
        timer.schedule_by(Box::new(TypedTask(task)), deadline)
    }
}

/// [`schedule_task`] that gives a rejected task back.
#[inline]
pub(crate) fn try_schedule_task<T: TimerTask>(
    timer: &Inner,
    task: T,
    deadline: u64,
) -> Result<Timeout, TryNewTimeoutError<T>> {
    let rejected = |(TypedTask(task), error)| TryNewTimeoutError { task, error };
    if TypedTask::<T>::FITS {
        let scheduled = timer.try_schedule_by(TypedTask(task), deadline);
        scheduled.map_err(rejected)
    } else {
        let scheduled = timer.try_schedule_by(Box::new(TypedTask(task)), deadline);
        scheduled.map_err(|(task, error)| rejected((*task, error)))
    }
}

/// Runs expired tasks: a thread pool, a runtime, or anything else. Netty's `Executor` argument.
///
/// [`Builder::task_executor`](crate::Builder::task_executor) sets it. Without one the worker runs
/// the tasks itself. [`executor::from_fn`](crate::executor::from_fn) makes one of a closure. An
/// `Arc`, a `Box` and a `&'static` of an executor are executors too.
///
/// # Examples
///
/// A pool of one thread, with room for 100 waiting tasks:
///
/// ```
/// use hashed_wheel::{ExpiredTask, HashedWheelTimer, TaskExecutor};
/// use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
/// use std::thread;
/// use std::time::Duration;
///
/// struct Pool(SyncSender<ExpiredTask>);
///
/// impl TaskExecutor for Pool {
///     fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
///         let refused = |(TrySendError::Full(task) | TrySendError::Disconnected(task))| task;
///         self.0.try_send(task).map_err(refused)
///     }
/// }
///
/// let (queue, tasks) = sync_channel(100);
/// let pool = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(1))
///     .task_executor(Pool(queue))
///     .build()?;
///
/// timer.new_timeout(|_| println!("in the pool"), Duration::from_millis(5))?;
/// # while timer.stats().expired == 0 { thread::yield_now() }
/// timer.stop(); // drops the executor, so the pool's thread ends
/// pool.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TaskExecutor: Send + Sync + 'static {
    /// Accepts an expired task, or gives it back. Called on the worker, which waits until this
    /// returns.
    ///
    /// If the executor has no room, it returns the task as the error. The timer drops it then, as
    /// any [`ExpiredTask`] that does not run: that is reported and counted in
    /// [`Stats::dropped_tasks`](crate::Stats::dropped_tasks). An executor that wraps another one
    /// can do something else with it. The crate hashed-wheel-util has such wrappers: they run the
    /// task on the worker, retry later, or ask another executor. Java's `RejectedExecutionHandler`.
    ///
    /// A panic is reported and counted.
    ///
    /// # Errors
    ///
    /// The task, if it was not accepted.
    ///
    /// # Deadlocks
    ///
    /// [`stop`](crate::HashedWheelTimer::stop), [`shutdown`](crate::HashedWheelTimer::shutdown) and
    /// the drop of the last handle wait for the worker, and so does
    /// [`cancel_all`](crate::HashedWheelTimer::cancel_all). So if this method blocks until a pool
    /// has room, no task in that pool may do any of the four.
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask>;
}

impl<E: TaskExecutor + ?Sized> TaskExecutor for Arc<E> {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        (**self).execute(task)
    }
}

impl<E: TaskExecutor + ?Sized> TaskExecutor for Box<E> {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        (**self).execute(task)
    }
}

impl<E: TaskExecutor + ?Sized> TaskExecutor for &'static E {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        (**self).execute(task)
    }
}

impl ExpiredTask {
    /// Runs the task on this thread. A panic of the task is caught here, reported and counted.
    ///
    /// A [periodic](crate::Periodic) task that makes up for missed runs runs again immediately, as
    /// often as it was due by the end of this run.
    pub fn run(mut self) {
        if let Some(claimed) = self.claimed.take() {
            run_dispatched(claimed);
        }
    }

    /// Returns the timeout of the task. It has expired, so [`cancel`](Timeout::cancel) and
    /// [`reset`](Timeout::reset) return false.
    ///
    /// The timeout of a [periodic task](crate::Periodic) has not expired: it is pending from its
    /// first run to its last. `cancel` ends the task, as
    /// [`Periodic::cancel`](crate::Periodic::cancel) does. `reset` returns false, because the
    /// schedule decides when the task is due.
    ///
    /// # Examples
    ///
    /// An executor that logs what it refuses:
    ///
    /// ```
    /// use hashed_wheel::{ExpiredTask, executor};
    /// use std::sync::mpsc::SyncSender;
    ///
    /// # fn example(queue: SyncSender<ExpiredTask>) -> impl hashed_wheel::TaskExecutor {
    /// executor::from_fn(move |task| {
    ///     queue.send(task).map_err(|refused| {
    ///         eprintln!("the pool has ended: {:?} does not run", refused.0.timeout());
    ///         refused.0
    ///     })
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn timeout(&self) -> &Timeout {
        match &self.claimed {
            Some(claimed) => claimed.timeout(),
            None => unreachable!("only `run` and the drop take the task: both end this value"),
        }
    }
}

impl Drop for ExpiredTask {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            drop_or_skip(claimed);
        }
    }
}

impl fmt::Debug for ExpiredTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiredTask")
            .field("timeout", &self.claimed.as_ref().map(ClaimedTask::timeout))
            .finish_non_exhaustive()
    }
}
