//! The hierarchical wheel: all that both wheels have to do, and what only this one does.

mod wheel;

use hashed_wheel::wheel::HierarchicalWheel as Wheel;

const LEAST_SLOTS: u64 = 2;
