//! The value that a map keeps under a key.

/// The key and the value of an item, in memory of their own, which the caller fills. They may be
/// too large for the worker's stack, so the worker moves only the pointer.
///
/// Keys and values are the user's. Whatever drops one must be called without a lock held.
pub(super) struct Entry<K, V>(Box<(K, V)>);

impl<K, V> Entry<K, V> {
    pub(super) fn new(key: K, value: V) -> Self {
        Self(Box::new((key, value)))
    }

    pub(super) fn key(&self) -> &K {
        &self.0.0
    }

    pub(super) fn value(&self) -> &V {
        &self.0.1
    }

    pub(super) fn parts(&mut self) -> (&K, &mut V) {
        let (key, value) = &mut *self.0;
        (key, value)
    }

    /// Returns the value, and drops the key. If that panics, the value is dropped too.
    pub(super) fn into_value(self) -> V {
        let (key, value) = *self.0;
        drop(key);
        value
    }

    pub(super) fn into_pair(self) -> (K, V) {
        *self.0
    }

    /// Calls `handler` with the key and the value, which are moved to the stack for that.
    pub(super) fn pass_to(self, handler: &impl Fn(K, V)) {
        let (key, value) = *self.0;
        handler(key, value);
    }
}
