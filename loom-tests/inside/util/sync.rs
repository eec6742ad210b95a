//! Replaces `sync.rs` of hashed-wheel-util: the primitives of loom or shuttle.

use std::task::Waker;

pub(crate) use super::super::sync::{Arc, Mutex, MutexGuard, Weak};
/// For the timer of the module `time`, which no model uses.
pub(crate) use std::sync::OnceLock;
pub(crate) use std::thread::panicking;

/// Returns a number that it has not returned before. loom does not see it.
pub(crate) fn next_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Keys of one shard contend, and a model has few.
pub(crate) fn shards() -> usize {
    1
}

/// Parks the thread that makes it.
#[derive(Default)]
pub(crate) struct Parker(super::super::sync::Parker);

impl Parker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::new(super::super::sync::Unpark(
            self.0.unparker().clone(),
        )))
    }

    pub(crate) fn park(&self) {
        self.0.park();
    }
}
