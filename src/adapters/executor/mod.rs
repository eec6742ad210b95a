//! Task executors that are there already: tokio's threads and rayon's.
//!
//! Anything that is `Fn(ExpiredTask)` is a [`TaskExecutor`](crate::TaskExecutor) too; these are closures of one line with a name, and with what is
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
//! *Dropped* is what it says for every [`ExpiredTask`](crate::ExpiredTask): the task is dropped with all that it holds, that is reported, and
//! counted in [`Stats::dropped_tasks`](crate::Stats::dropped_tasks). The timer goes on. None of these refuses a task for there being too
//! many: who wants a bound hands tasks to a queue that has one, as `examples/src/bin/bounded_pool.rs` does.
//!
//! [`TokioSpawnBlocking`] and [`TokioSpawn`] need the feature `tokio`, [`RayonGlobal`] and [`RayonPool`] the feature `rayon`.

#![cfg_attr(
    not(all(feature = "tokio", feature = "rayon")),
    allow(rustdoc::broken_intra_doc_links, reason = "it names what is in other features")
)]

#[cfg(feature = "rayon")]
mod rayon;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "rayon")]
pub use rayon::{RayonGlobal, RayonPool};
#[cfg(feature = "tokio")]
pub use tokio::{TokioSpawn, TokioSpawnBlocking};
