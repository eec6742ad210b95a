//! The value that a map keeps under a key.

use super::cause::{Cause, Removed};

/// The key and the value of an item, in memory of their own, which the caller fills. They may be
/// too large for the worker's stack, so the worker moves only the pointer.
///
/// Keys and values are the user's. Whatever drops one must be called without a lock held.
pub(super) struct Entry<K, V>(Box<Removed<K, V>>);

impl<K, V> Entry<K, V> {
    pub(super) fn new(key: K, value: V) -> Self {
        // Set when it leaves the map.
        let cause = Cause::Removed;
        Self(Box::new(Removed { key, value, cause }))
    }

    pub(super) fn key(&self) -> &K {
        &self.0.key
    }

    pub(super) fn parts(&mut self) -> (&K, &mut V) {
        let Removed { key, value, .. } = &mut *self.0;
        (key, value)
    }

    /// Returns the value, and drops the key. If that panics, the value is dropped too.
    pub(super) fn into_value(self) -> V {
        let Removed { key, value, .. } = *self.0;
        drop(key);
        value
    }

    pub(super) fn into_pair(self) -> (K, V) {
        let Removed { key, value, .. } = *self.0;
        (key, value)
    }

    pub(super) fn into_removed(mut self, cause: Cause) -> Removed<K, V> {
        self.0.cause = cause;
        *self.0
    }

    /// Calls `handler` with the entry, which is moved to the stack for that.
    pub(super) fn pass_to(mut self, handler: &impl Fn(Removed<K, V>), cause: Cause) {
        self.0.cause = cause;
        handler(*self.0);
    }
}
