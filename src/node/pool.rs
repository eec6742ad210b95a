//! The memory of a timer's nodes, and what identifies it.

#![allow(unsafe_code)]

use super::arena::Arena;
use super::task::TaskContext;
use super::timer_ref::SharedCount;
use crate::sync::unmodelled::AtomicU64;
use crate::sync::{Arc, Ordering, Weak};

/// Identifies a [`Pool`]: no other pool of the process has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolId(u64);

impl PoolId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The field of a timer `S` for its nodes: their memory, and the count of their references to the
/// timer.
///
/// A timer is in an `Arc`. Each [`Handle`](super::Handle) has a reference to it, so the memory of
/// the nodes lives as long as any of them.
pub(crate) struct Pool<S: TaskContext> {
    id: PoolId,
    /// The timer that has this pool.
    pub(super) timer: Weak<S>,
    pub(super) references: SharedCount,
    pub(super) arena: Arena<S>,
}

impl<S: TaskContext> Pool<S> {
    pub(super) fn new(id: PoolId, timer: Weak<S>) -> Self {
        Self {
            id,
            timer,
            references: SharedCount::default(),
            arena: Arena::new(),
        }
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    /// The timer that has this pool.
    ///
    /// # Panics
    ///
    /// If it is being dropped.
    pub(crate) fn timer(&self) -> Arc<S> {
        self.timer.upgrade().expect("the caller has the timer")
    }
}
