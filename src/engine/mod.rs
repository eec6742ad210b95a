//! One timer: from a caller's thread to the worker, and to the task.
//!
//! ```text
//! callers' threads                                   the worker
//! ----------------                                   ----------
//! caller.rs: schedule, cancel, reset                 worker.rs: a turn
//!   │                                                  drain messages ─► wheel ─► expire
//!   ▼                                                  ▲                            │
//! thread_cache.rs: free nodes, lane ──► timeouts.rs ───┘                            ▼
//!                                       (a lane per thread)               dispatch.rs: task
//! ```
//!
//! The two sides share [`Shared`] (`shared.rs`): the state word (`state.rs`), new lanes, the number
//! of pending timeouts (`pending.rs`), the counters (`counters.rs`) and the memory of the nodes
//! (`node/`). The worker itself is there too, behind its lock (`worker_lock.rs`). A thread becomes
//! the worker by taking that lock: the worker thread (`thread.rs`), a `Driver` in its loop, a
//! `stop` or a `shutdown`.
//!
//! Two protocols have a file each, with word, table and proof: `sleep.rs` (no wake-up is lost) and
//! `end.rs` (no timeout is lost). Both rest on the fences of `state.rs`. How one timeout ends is in
//! `node/word.rs`, how a thread waits for the end of its run in `run_end.rs`.
//!
//! # Words for giving something up
//!
//! *Cancel* a timeout; *drop* a task; *release* a reference; *recycle* a node; *withdraw* a new
//! timeout that a closing timer does not accept; *retire* a lane.
//!
//! # The import cycle
//!
//! `shared.rs`, `sleep.rs`, `thread.rs` and `worker.rs` import each other: the shared state has the
//! worker, the thread and the waker, and their methods take the shared state. It stays because a
//! task receives `&Timeout`, by which it can schedule, cancel and stop: the worker calls into the
//! callers' side. All other imports of the crate lead from the API to the engine, to `node/`, to
//! the wheels and the foundation; `tests/structure.rs` checks that.
//!
//! The engine has no `unsafe` code.

mod caller;
mod counters;
mod dispatch;
mod end;
mod end_of_turn;
mod in_span;
mod pending;
mod run_end;
mod shared;
mod sleep;
mod state;
mod thread;
mod thread_cache;
mod timeouts;
mod timer_index;
mod worker;
mod worker_lock;

pub(crate) use counters::{LATENESS_BUCKETS, LatenessCounters, lateness_bound};
pub(crate) use end::Grace;
pub(crate) use end_of_turn::EndCall;
pub(crate) use pending::Balance;
pub use shared::Timeout;
pub(crate) use shared::{DispatchedTask, Executor, Settings, Shared, SharedFields};
pub(crate) use sleep::{Waker, time_until};
pub(crate) use thread::{ThreadHook, ThreadSettings};
