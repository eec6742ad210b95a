//! The library's internals, as far as the models see them. `inside/FILE` becomes a module of the
//! copy of `src/FILE`, so it can use the private items of that file.

pub use crate::clock::inside::{COUNTER_VALIDITY, Drift, ModelledCounterClock, manual_clock};
pub use crate::engine::inside::{Lane, Lanes, ModelledCounters, TimerMemory, end_thread};
pub use crate::node::inside::{FreeNode, LocalCount, Nodes, SharedValue, TimerRef, WheelRef};
pub use crate::node::inside::{Pages, UsedNodes};
pub use crate::sync::inside::{Threads, take_spawned};
