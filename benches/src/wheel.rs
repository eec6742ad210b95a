//! What is asked of every queue of deadlines in the same way: [`Wheel`] is the face that the wheels, and what others use
//! in their place, put on to be asked.

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel, Key};

pub use crate::btree::BTreeQueue;
pub use crate::heap::HeapQueue;

/// Netty's default.
pub const SLOTS: usize = 512;

/// Entries that come out when they are due: by deadline, and with the same one in the order in which they were inserted.
pub trait Wheel {
    const NAME: &'static str;

    type Key: Copy;

    fn new() -> Self;
    fn insert(&mut self, deadline: u64, value: u64) -> Self::Key;
    /// `None` if the entry has come out already; never another one.
    fn remove(&mut self, key: Self::Key) -> Option<u64>;
    fn advance(&mut self, now: u64, expired: impl FnMut(u64));
    /// A tick no later than the first deadline. After removals it may be too early.
    fn next_deadline(&self) -> Option<u64>;
}

/// Both have the same methods.
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
