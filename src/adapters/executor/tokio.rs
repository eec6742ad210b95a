//! Executors on a tokio runtime.

use tokio::runtime::Handle;

use crate::task::{ExpiredTask, TaskExecutor};

/// Runs each task by [`Handle::spawn_blocking`]: it may block, and use the runtime.
///
/// When the runtime is shut down, each task that waits runs or is dropped, as tokio sees fit; after that, each is dropped. A
/// handle keeps no runtime alive. (Where the operating system refuses the first thread that tokio asks for, tokio panics,
/// which is reported and counted like a panic of any executor; the task waits in tokio's queue.)
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel::executor::TokioSpawnBlocking;
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
/// timer.new_timeout(move |_| done.send(Handle::try_current().is_ok()).unwrap(), Duration::from_millis(5))?;
/// assert!(wait.recv()?, "in the runtime");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokioSpawnBlocking {
    runtime: Handle,
}

impl TokioSpawnBlocking {
    /// On this runtime; inside one, that is `Handle::current()`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl TaskExecutor for TokioSpawnBlocking {
    fn execute(&self, task: ExpiredTask) {
        // Nobody waits for it.
        drop(self.runtime.spawn_blocking(|| task.run()));
    }
}

/// Runs each task by [`Handle::spawn`], as a future that is ready at once: it must not block, and may use the runtime.
///
/// On a runtime of the current thread, tasks run while somebody is in its `block_on`. When a runtime is shut down, tasks that
/// wait are dropped, and after that all are. A handle keeps no runtime alive.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel::executor::TokioSpawn;
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
/// let task = move |_: &_| drop(tokio::spawn(async move { done.send("a task of the runtime's") }));
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
    /// On this runtime; inside one, that is `Handle::current()`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl TaskExecutor for TokioSpawn {
    fn execute(&self, task: ExpiredTask) {
        // Nobody waits for it.
        drop(self.runtime.spawn(async { task.run() }));
    }
}
