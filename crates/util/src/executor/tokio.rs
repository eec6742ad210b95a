//! Task executors on a tokio runtime: feature `tokio`.

use tokio::runtime::Handle;

use hashed_wheel::{ExpiredTask, TaskExecutor};

/// Runs each task by [`Handle::spawn_blocking`]. A task may block, and may use the runtime.
///
/// When the runtime is shut down, each waiting task runs or is dropped, as tokio decides. After
/// that each task is dropped. The executor does not keep the runtime alive.
///
/// If the operating system refuses the first thread that tokio requests, tokio panics. That is
/// reported and counted, as a panic of any executor. The task waits in tokio's queue.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::executor::TokioSpawnBlocking;
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tokio::runtime::{Builder, Handle};
///
/// let runtime = Builder::new_current_thread().build()?;
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(1))
///     .task_executor(TokioSpawnBlocking::new(runtime.handle().clone()))
///     .build()?;
/// let (done, wait) = mpsc::channel();
/// let task = move |_: &_| done.send(Handle::try_current().is_ok()).unwrap();
/// timer.new_timeout(task, Duration::from_millis(5))?;
/// assert!(wait.recv()?, "in the runtime");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokioSpawnBlocking {
    runtime: Handle,
}

impl TokioSpawnBlocking {
    /// Makes an executor on `runtime`. Inside a runtime, pass `Handle::current()`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl TaskExecutor for TokioSpawnBlocking {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        // No caller waits for the result.
        drop(self.runtime.spawn_blocking(|| task.run()));
        Ok(())
    }
}

/// Runs each task by [`Handle::spawn`], as a future that is ready at its first poll. A task must
/// not block, and may use the runtime.
///
/// On a current-thread runtime, tasks run while a thread is in its `block_on`. When the runtime is
/// shut down, waiting tasks are dropped. After that all tasks are. The executor does not keep the
/// runtime alive.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::executor::TokioSpawn;
/// use std::time::Duration;
/// use tokio::runtime::Builder;
/// use tokio::task::yield_now;
///
/// let runtime = Builder::new_current_thread().build()?;
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(1))
///     .task_executor(TokioSpawn::new(runtime.handle().clone()))
///     .build()?;
/// let (done, wait) = std::sync::mpsc::channel();
/// let task = move |_: &_| drop(tokio::spawn(async move { done.send("spawned by the task") }));
/// timer.new_timeout(task, Duration::from_millis(5))?;
/// runtime.block_on(async {
///     while wait.try_recv().is_err() {
///         yield_now().await;
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokioSpawn {
    runtime: Handle,
}

impl TokioSpawn {
    /// Makes an executor on `runtime`. Inside a runtime, pass `Handle::current()`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl TaskExecutor for TokioSpawn {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        // No caller waits for the result.
        drop(self.runtime.spawn(async { task.run() }));
        Ok(())
    }
}
