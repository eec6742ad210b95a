//! Where the expired entries of a map go.

use std::panic::AssertUnwindSafe;

use super::entry::Entry;
use super::receiver::Sender;

/// What happens to expired entries: the constructor of a map decides it.
pub(super) struct Output<K, V> {
    pub(super) expired: OnExpired<K, V>,
    /// Whether it is called on the worker, even if there is a task executor.
    pub(super) runs_on_worker: bool,
}

/// Gets each expired entry. Must be called without a lock held.
// `AssertUnwindSafe`: the engine catches its panics, as those of a task.
pub(super) struct OnExpired<K, V>(AssertUnwindSafe<Box<Call<K, V>>>);

type Call<K, V> = dyn Fn(Entry<K, V>) + Send + Sync;

impl<K, V> OnExpired<K, V> {
    fn new(call: impl Fn(Entry<K, V>) + Send + Sync + 'static) -> Self {
        Self(AssertUnwindSafe(Box::new(call)))
    }

    pub(super) fn call(&self, entry: Entry<K, V>) {
        (self.0)(entry);
    }
}

impl<K, V> Output<K, V> {
    /// Drops the entries.
    pub(super) fn none() -> Self {
        Self { expired: OnExpired::new(|_| ()), runs_on_worker: false }
    }

    pub(super) fn handler(handler: impl Fn(K, V) + Send + Sync + 'static) -> Self {
        let expired = OnExpired::new(move |entry: Entry<K, V>| entry.pass_to(&handler));
        Self { expired, runs_on_worker: false }
    }

    pub(super) fn sender(sender: Sender<K, V>) -> Self
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let expired = OnExpired::new(move |entry| sender.send(entry));
        Self { expired, runs_on_worker: true }
    }
}
