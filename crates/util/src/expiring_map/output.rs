//! Where the entries go that leave a map.

use std::panic::AssertUnwindSafe;

use super::cause::{Cause, Causes, Removed};
use super::entry::Entry;
use super::receiver::Sender;

/// The destination of entries that leave a map, chosen by its constructor. Each method must be
/// called without a lock held, because it runs user code.
// `AssertUnwindSafe`: the engine catches the panics of a task, and a call on the map passes its
// panic on when it has done its work.
pub(super) struct Output<K, V> {
    take: AssertUnwindSafe<Box<Take<K, V>>>,
    /// Whether entries expire on the worker, even if there is a task executor.
    pub(super) runs_on_worker: bool,
    pub(super) causes: Causes,
}

type Take<K, V> = dyn Fn(Entry<K, V>, Cause) + Send + Sync;

impl<K, V> Output<K, V> {
    fn new(
        take: impl Fn(Entry<K, V>, Cause) + Send + Sync + 'static,
        runs_on_worker: bool,
    ) -> Self {
        Self {
            take: AssertUnwindSafe(Box::new(take)),
            runs_on_worker,
            causes: Causes::UNRETURNED,
        }
    }

    /// Drops the entries.
    pub(super) fn none() -> Self {
        Self::new(|_, _| (), false)
    }

    pub(super) fn handler(handler: impl Fn(Removed<K, V>) + Send + Sync + 'static) -> Self {
        Self::new(move |entry, cause| entry.pass_to(&handler, cause), false)
    }

    pub(super) fn sender(sender: Sender<K, V>) -> Self
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        Self::new(move |entry, cause| sender.send(entry, cause), true)
    }

    /// Passes on an entry that has left the map. Drops it if its cause was not chosen.
    pub(super) fn pass_on(&self, entry: Entry<K, V>, cause: Cause) {
        if self.causes.contains(cause) {
            (self.take)(entry, cause);
        }
    }

    /// Returns the value of a replaced entry if it was alive, unless it is passed on.
    pub(super) fn end_replaced(&self, entry: Entry<K, V>, was_alive: bool) -> Option<V> {
        if !was_alive {
            self.pass_on(entry, Cause::Expired);
            return None;
        }
        if self.causes.contains(Cause::Replaced) {
            (self.take)(entry, Cause::Replaced);
            return None;
        }
        Some(entry.into_value())
    }
}
