//! Task executors for tokio and rayon, and what happens to a task that an executor refuses:
//! [`TaskExecutorExt`].
//!
//! Each executor hands a task over without waiting. A task that panics harms no other task. Tasks
//! that expire in the same tick may run concurrently and in any order.
//!
//! | executor | feature | runs tasks on | may a task block? | how many can wait | when the runtime or pool is shut down |
//! |---|---|---|---|---|---|
//! | `TokioSpawnBlocking` | `tokio` | tokio's threads for blocking work | yes | any number | some waiting tasks run; the others are dropped, and all later ones |
//! | `TokioSpawn` | `tokio` | tokio's worker threads | no | any number | all are dropped |
//! | `RayonGlobal` | `rayon` | rayon's global pool | it delays others | any number | it is never shut down |
//! | `RayonPool` | `rayon` | a pool | it delays others | any number | not before the timer has stopped; all tasks run |
//!
//! A *dropped* task is dropped with everything that it holds. That is reported, and counted in
//! [`Stats::dropped_tasks`](hashed_wheel::Stats::dropped_tasks), as for every
//! [`ExpiredTask`](hashed_wheel::ExpiredTask). The timer continues.
//!
//! None of these executors refuses a task, however many are waiting. (A runtime that was shut down
//! drops it, which is not a refusal.) If you need a bound, hand the tasks to a bounded queue, as
//! the example `pool_executor` in the repository does, and say by [`TaskExecutorExt`] what happens
//! to the tasks for which there is no room.
//!
//! [`TokioSpawnBlocking`] and [`TokioSpawn`] need the feature `tokio`, [`RayonGlobal`] and
//! [`RayonPool`] the feature `rayon`.

#![cfg_attr(
    not(all(feature = "tokio", feature = "rayon")),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "the table links to items of other features"
    )
)]

#[cfg(feature = "rayon")]
mod rayon;
mod refused;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "rayon")]
pub use rayon::{RayonGlobal, RayonPool};
pub use refused::{OrElse, OrRetry, OrRunHere, TaskExecutorExt};
#[cfg(feature = "tokio")]
pub use tokio::{TokioSpawn, TokioSpawnBlocking};
