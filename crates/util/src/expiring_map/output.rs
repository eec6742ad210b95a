//! Where the expired entries of a map go, and who is told of the others.

use std::panic::AssertUnwindSafe;

use super::cause::Cause;
use super::entry::Entry;
use super::receiver::Sender;

/// The destination of entries that leave a map, chosen by its constructor. Each method must be
/// called without a lock held, because it runs user code.
// `AssertUnwindSafe`: the engine catches the panics of a task, and a call on the map passes its
// panic on when it has done its work.
pub(super) struct Output<K, V> {
    expired: AssertUnwindSafe<Box<TakeExpired<K, V>>>,
    /// Whether entries expire on the worker, even if there is a task executor.
    pub(super) runs_on_worker: bool,
    pub(super) listener: Option<Listener<K, V>>,
}

/// Is told of each entry that leaves the map.
pub(super) struct Listener<K, V>(AssertUnwindSafe<Box<Listen<K, V>>>);

type TakeExpired<K, V> = dyn Fn(Entry<K, V>) + Send + Sync;
type Listen<K, V> = dyn Fn(&K, &V, Cause) + Send + Sync;

impl<K, V> Listener<K, V> {
    pub(super) fn new(listener: impl Fn(&K, &V, Cause) + Send + Sync + 'static) -> Self {
        Self(AssertUnwindSafe(Box::new(listener)))
    }
}

impl<K, V> Output<K, V> {
    fn new(expired: impl Fn(Entry<K, V>) + Send + Sync + 'static, runs_on_worker: bool) -> Self {
        Self {
            expired: AssertUnwindSafe(Box::new(expired)),
            runs_on_worker,
            listener: None,
        }
    }

    /// Drops the entries.
    pub(super) fn none() -> Self {
        Self::new(|_| (), false)
    }

    pub(super) fn handler(handler: impl Fn(K, V) + Send + Sync + 'static) -> Self {
        Self::new(move |entry| entry.pass_to(&handler), false)
    }

    pub(super) fn sender(sender: Sender<K, V>) -> Self
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        Self::new(move |entry| sender.send(entry), true)
    }

    /// Tells the listener why an entry has left the map.
    pub(super) fn tell(&self, entry: &Entry<K, V>, cause: Cause) {
        if let Some(Listener(listen)) = &self.listener {
            listen(entry.key(), entry.value(), cause);
        }
    }

    /// Passes on an entry whose time has come.
    pub(super) fn expire(&self, entry: Entry<K, V>) {
        self.tell(&entry, Cause::Expired);
        (self.expired)(entry);
    }

    /// Returns the value of an entry that has left the map for this cause.
    pub(super) fn value_of(&self, entry: Entry<K, V>, cause: Cause) -> V {
        self.tell(&entry, cause);
        entry.into_value()
    }
}
