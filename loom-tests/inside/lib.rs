//! What the models see of the library's inside. `inside/FILE` is a module in the copy of `src/FILE`, and sees what is private there.

use std::sync::LazyLock;

pub use crate::engine::inside::{Lane, Lanes};
pub use crate::node::inside::{FreeNode, LocalCount, Nodes, SharedValue, TimerRef, WheelRef};
pub use crate::sync::inside::take_spawned;

/// What the environment asks for: a mutant, or an order to weaken. Each is a process of its own, for it may end as it likes.
pub(crate) static ASKED: LazyLock<Option<String>> =
    LazyLock::new(|| std::env::var("HASHED_WHEEL_MUTANT").ok());

/// Whether this process runs this mutant.
pub fn mutant(name: &str) -> bool {
    ASKED.as_ref().is_some_and(|asked| asked == name)
}
