//! Batched reference counts without a timer.

use super::{Counted, SharedCount};
use crate::sync::Arc;
use crate::sync::inside::{Access, Count};

/// A value with a count of its own, which loom sees. loom also sees each use of the value, and its
/// drop.
pub struct SharedValue<T> {
    references: SharedCount,
    access: Access,
    value: T,
}

// SAFETY: `access` stores nothing. loom reports accesses that are concurrent.
unsafe impl<T: Sync> Sync for SharedValue<T> {}

// SAFETY: `references` is a field, which no other value has.
unsafe impl<T> Counted for SharedValue<T> {
    fn count(&self) -> &SharedCount {
        &self.references
    }
}

impl<T> SharedValue<T> {
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self {
            references: SharedCount(Count::modelled()),
            access: Access::new(),
            value,
        })
    }

    /// Uses the value.
    pub fn get(&self) -> &T {
        self.access.look();
        &self.value
    }
}

impl<T> Drop for SharedValue<T> {
    fn drop(&mut self) {
        self.access.change();
    }
}

/// See [`TimerRef`](super::TimerRef).
pub struct TimerRef<T>(super::TimerRef<SharedValue<T>>);

impl<T> TimerRef<T> {
    pub fn new(value: &Arc<SharedValue<T>>) -> Self {
        Self(super::TimerRef::new(value))
    }

    /// Uses the value.
    pub fn get(&self) -> &T {
        self.0.get().get()
    }
}

impl<T> Clone for TimerRef<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// See [`LocalCount`](super::LocalCount).
pub struct LocalCount<T>(super::LocalCount<SharedValue<T>>);

impl<T> LocalCount<T> {
    pub fn new(value: &Arc<SharedValue<T>>) -> Self {
        Self(super::LocalCount::new(Arc::downgrade(value)))
    }

    pub fn take(&mut self) -> TimerRef<T> {
        TimerRef(self.0.take())
    }

    pub fn put(&mut self, reference: TimerRef<T>) {
        self.0.put(reference.0);
    }
}
