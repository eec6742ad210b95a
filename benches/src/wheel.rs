//! The interface of the benchmarked queues of deadlines, [`Wheel`]. The wheels implement it, and so
//! do the heap and the B-tree, which other timers use instead of a wheel.

use timing_wheels::{HashedWheel, HierarchicalWheel, Key};

/// Netty's default.
pub const SLOTS: usize = 512;

/// A queue whose entries expire at their deadlines. Entries with the same deadline expire in the
/// order of insertion.
pub trait Wheel {
    const NAME: &'static str;

    type Key: Copy;

    fn new() -> Self;
    fn insert(&mut self, deadline: u64, value: u64) -> Self::Key;
    /// Returns `None` if the entry has expired or was removed. A key never refers to another entry.
    fn remove(&mut self, key: Self::Key) -> Option<u64>;
    fn advance(&mut self, now: u64, expired: impl FnMut(u64));
    /// Returns a tick that is not later than the first deadline. After removals it may be earlier
    /// than that.
    fn next_deadline(&self) -> Option<u64>;
}

/// Implements [`Wheel`] for a wheel of this crate. Both wheels have the same methods.
macro_rules! wheel {
    ($wheel:ident, $name:literal) => {
        impl Wheel for $wheel<u64> {
            const NAME: &'static str = $name;

            type Key = Key;

            fn new() -> Self {
                Self::new(SLOTS)
            }

            fn insert(&mut self, deadline: u64, value: u64) -> Key {
                self.insert(deadline, value)
            }

            fn remove(&mut self, key: Key) -> Option<u64> {
                self.remove(key)
            }

            fn advance(&mut self, now: u64, expired: impl FnMut(u64)) {
                self.advance(now, expired);
            }

            fn next_deadline(&self) -> Option<u64> {
                self.next_deadline()
            }
        }
    };
}

wheel!(HashedWheel, "hashed");
wheel!(HierarchicalWheel, "hierarchical");
