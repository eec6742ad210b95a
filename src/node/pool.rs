//! A timer together with the memory of its nodes: what all references of a timer point to.

#![allow(unsafe_code)]

use std::ops::Deref;
use std::panic::RefUnwindSafe;

use super::arena::Arena;
use super::task::TaskContext;
use super::timer_ref::{Counted, SharedCount};
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicU64;

/// Identifies a [`Pool`]: no other pool of the process has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolId(u64);

impl PoolId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The nodes of a timer, and `S`, what else its handles and its worker share.
///
/// A pool is in an `Arc`. Each [`Handle`](super::Handle) has a reference to it too, so the memory
/// of the nodes lives as long as any of them.
pub(crate) struct Pool<S: TaskContext> {
    shared: S,
    id: PoolId,
    references: SharedCount,
    // Dropped after `shared`, which has the wheel.
    pub(super) arena: Arena<S>,
}

// User code runs only where everything is consistent, so its panic leaves nothing half done.
impl<S: TaskContext> RefUnwindSafe for Pool<S> {}

impl<S: TaskContext> Pool<S> {
    pub(super) fn new(id: PoolId, shared: S) -> Self {
        Self { shared, id, references: SharedCount::default(), arena: Arena::new() }
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }
}

impl<S: TaskContext> Deref for Pool<S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.shared
    }
}

// SAFETY: `references` is a field, which no other value has.
unsafe impl<S: TaskContext> Counted for Pool<S> {
    fn count(&self) -> &SharedCount {
        &self.references
    }
}
