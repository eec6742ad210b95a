//! Replaces `sync.rs` of hashed-wheel-util: the primitives of loom or shuttle.

use std::task::Waker;

pub(crate) use super::super::sync::{Arc, Mutex, MutexGuard, Weak};

/// Parks the thread that makes it.
#[derive(Default)]
pub(crate) struct Parker(super::super::sync::Parker);

impl Parker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::new(super::super::sync::Unpark(self.0.unparker())))
    }

    pub(crate) fn park(&self) {
        self.0.park();
    }
}
