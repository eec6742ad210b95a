//! The library's internals, as far as the models see them. `inside/FILE` becomes a module of the
//! copy of `src/FILE`, so it can use the private items of that file.

use std::sync::LazyLock;

pub use crate::clock::inside::{COUNTER_VALIDITY, Drift, ModelledCounterClock, manual_clock};
pub use crate::engine::inside::{Lane, Lanes, ModelledCounters, TimerMemory, end_thread};
pub use crate::node::inside::{FreeNode, LocalCount, Nodes, SharedValue, TimerRef, WheelRef};
pub use crate::node::inside::{Pages, UsedNodes};
pub use crate::sync::inside::{Threads, take_spawned};

/// The request in the environment: the name of a mutant, or an order to weaken. Each request runs
/// in a process of its own, because the process may abort.
pub(crate) static REQUEST: LazyLock<Option<String>> =
    LazyLock::new(|| std::env::var("HASHED_WHEEL_MUTANT").ok());

/// Returns whether this process runs with this mutant.
pub fn mutant(name: &str) -> bool {
    REQUEST.as_ref().is_some_and(|requested| requested == name)
}
