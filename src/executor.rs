//! Task executors that are there already: tokio's threads and rayon's.
//!
//! Anything that is `Fn(ExpiredTask)` is a [`TaskExecutor`] too; these are closures of one line with a name, and with what is
//! known of their end. To each, a task is handed over without waiting, and a task that panics harms nobody. Tasks that
//! expire in the same tick may run at the same time, and in any order.
//!
//! | | runs tasks on | may a task block? | how many wait | when the runtime or pool is shut down |
//! |---|---|---|---|---|
//! | `TokioSpawnBlocking` | tokio's threads for what blocks | yes | any number | some of those that wait run; the others are dropped, and all that come later |
//! | `TokioSpawn` | tokio's own threads | no | any number | all are dropped |
//! | `RayonGlobal` | rayon's global pool | it holds up others | any number | it never is |
//! | `RayonPool` | a pool | the same | any number | it is not before the timer has stopped; all run |
//!
//! *Dropped* is what it says for every [`ExpiredTask`]: the task is dropped with all that it holds, that is reported, and
//! counted in [`Stats::dropped`](crate::Stats::dropped). The timer goes on. None of these refuses a task for there being too
//! many: who wants a bound hands tasks to a queue that has one, as `examples/src/bin/bounded_pool.rs` does.
//!
//! [`TokioSpawnBlocking`] and [`TokioSpawn`] need the feature `tokio`, [`RayonGlobal`] and [`RayonPool`] the feature `rayon`.

#![cfg_attr(
    not(all(feature = "tokio", feature = "rayon")),
    allow(rustdoc::broken_intra_doc_links, reason = "it names what is in other features")
)]

#[cfg(feature = "rayon")]
use rayon_core::ThreadPool;
#[cfg(feature = "tokio")]
use tokio::runtime::Handle;

#[cfg(feature = "rayon")]
use crate::sync::Arc;
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
#[cfg(feature = "tokio")]
#[derive(Debug, Clone)]
pub struct TokioSpawnBlocking {
    runtime: Handle,
}

#[cfg(feature = "tokio")]
impl TokioSpawnBlocking {
    /// On this runtime; inside one, that is `Handle::current()`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

#[cfg(feature = "tokio")]
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
#[cfg(feature = "tokio")]
#[derive(Debug, Clone)]
pub struct TokioSpawn {
    runtime: Handle,
}

#[cfg(feature = "tokio")]
impl TokioSpawn {
    /// On this runtime; inside one, that is `Handle::current()`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

#[cfg(feature = "tokio")]
impl TaskExecutor for TokioSpawn {
    fn execute(&self, task: ExpiredTask) {
        // Nobody waits for it.
        drop(self.runtime.spawn(async { task.run() }));
    }
}

/// Runs each task by `rayon::spawn`, in the global pool; on a driven timer that is turned in a pool, in that one.
///
/// The global pool lives as long as the process. (If it has no threads because the operating system refused them, rayon
/// panics, which is reported and counted like a panic of any executor; the task is dropped.)
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel::executor::RayonGlobal;
/// # use rayon_core as rayon;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(1)).task_executor(RayonGlobal).build()?;
/// let (done, wait) = mpsc::channel();
/// timer.new_timeout(move |_| done.send(rayon::current_thread_index()).unwrap(), Duration::from_millis(5))?;
/// assert!(wait.recv()?.is_some(), "in the pool");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "rayon")]
#[derive(Debug, Clone, Copy, Default)]
pub struct RayonGlobal;

#[cfg(feature = "rayon")]
impl TaskExecutor for RayonGlobal {
    fn execute(&self, task: ExpiredTask) {
        rayon_core::spawn(|| task.run());
    }
}

/// Runs each task by `ThreadPool::spawn`, in a pool that the timer keeps alive until it [stops](crate::HashedWheelTimer::stop).
///
/// Whatever it was handed runs, also when that was the pool's last owner: rayon's threads end when nothing is left
/// to do, and nobody waits for them.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel::executor::RayonPool;
/// # use rayon_core as rayon;
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
///
/// let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build()?);
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(1))
///     .task_executor(RayonPool::new(Arc::clone(&pool)))
///     .build()?;
/// let (done, wait) = mpsc::channel();
/// timer.new_timeout(move |_| done.send(rayon::current_num_threads()).unwrap(), Duration::from_millis(5))?;
/// assert_eq!(wait.recv()?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "rayon")]
#[derive(Debug, Clone)]
pub struct RayonPool {
    pool: Arc<ThreadPool>,
}

#[cfg(feature = "rayon")]
impl RayonPool {
    /// In this pool.
    #[must_use]
    pub fn new(pool: Arc<ThreadPool>) -> Self {
        Self { pool }
    }
}

#[cfg(feature = "rayon")]
impl TaskExecutor for RayonPool {
    fn execute(&self, task: ExpiredTask) {
        self.pool.spawn(|| task.run());
    }
}
