//! Task executors on rayon's pools: feature `rayon`.

use rayon_core::ThreadPool;

use hashed_wheel::{ExpiredTask, TaskExecutor};

use crate::sync::Arc;

/// Runs each task by `rayon::spawn`, in the global pool. On a driven timer that is turned inside a
/// pool, the tasks run in that pool.
///
/// The global pool lives as long as the process. If it has no threads because the operating system
/// refused them, rayon panics. That is reported and counted, as a panic of any executor. The task
/// is dropped.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::executor::RayonGlobal;
/// # use rayon_core as rayon;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
/// let timer = builder.task_executor(RayonGlobal).build()?;
/// let (done, wait) = mpsc::channel();
/// let task = move |_: &_| done.send(rayon::current_thread_index()).unwrap();
/// timer.new_timeout(task, Duration::from_millis(5))?;
/// assert!(wait.recv()?.is_some(), "in the pool");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RayonGlobal;

impl TaskExecutor for RayonGlobal {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        rayon_core::spawn(|| task.run());
        Ok(())
    }
}

/// Runs each task by `ThreadPool::spawn`. The timer keeps the pool alive until it
/// [stops](hashed_wheel::HashedWheelTimer::stop).
///
/// Each task that the pool has accepted runs, even if the timer was the pool's last owner: rayon's
/// threads end when there is no work left, and no thread waits for them.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::executor::RayonPool;
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
/// let task = move |_: &_| done.send(rayon::current_num_threads()).unwrap();
/// timer.new_timeout(task, Duration::from_millis(5))?;
/// assert_eq!(wait.recv()?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RayonPool {
    pool: Arc<ThreadPool>,
}

impl RayonPool {
    /// Makes an executor on `pool`.
    #[must_use]
    pub fn new(pool: Arc<ThreadPool>) -> Self {
        Self { pool }
    }
}

impl TaskExecutor for RayonPool {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        self.pool.spawn(|| task.run());
        Ok(())
    }
}
