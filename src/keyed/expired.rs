//! Where the expired entries of a map go.

use std::panic::AssertUnwindSafe;
use std::{any, mem};

use super::entry::Entry;
#[cfg(feature = "async")]
use super::receiver::Sender;
use crate::engine::{EndCall, Timeout};
use crate::sync::{Arc, Mutex};

/// What happens to expired entries: the constructor of a map decides it.
pub(super) struct Output<K, V> {
    pub(super) expired: OnExpired<K, V>,
    /// Whether it is called on the worker, even if there is a task executor.
    pub(super) runs_on_worker: bool,
}

/// Gets each expired entry, and its timeout. Must be called without a lock held.
// `AssertUnwindSafe`: the engine catches its panics, as those of a task.
pub(super) struct OnExpired<K, V>(AssertUnwindSafe<Box<Call<K, V>>>);

type Call<K, V> = dyn Fn(Entry<K, V>, &Timeout) + Send + Sync;

impl<K, V> OnExpired<K, V> {
    fn new(call: impl Fn(Entry<K, V>, &Timeout) + Send + Sync + 'static) -> Self {
        Self(AssertUnwindSafe(Box::new(call)))
    }

    pub(super) fn call(&self, entry: Entry<K, V>, timeout: &Timeout) {
        (self.0)(entry, timeout);
    }
}

impl<K, V> Output<K, V> {
    /// Drops the entries.
    pub(super) fn none() -> Self {
        Self { expired: OnExpired::new(|_, _| ()), runs_on_worker: false }
    }

    pub(super) fn handler(handler: impl Fn(K, V) + Send + Sync + 'static) -> Self {
        let expired = OnExpired::new(move |entry: Entry<K, V>, _| entry.pass_to(&handler));
        Self { expired, runs_on_worker: false }
    }

    /// Collects the entries that expire in a turn, for `handler` at its end.
    pub(super) fn batch<F>(handler: F) -> Self
    where
        F: Fn(Vec<(K, V)>) + Send + Sync + 'static,
        K: Send + 'static,
        V: Send + 'static,
    {
        let batch = Arc::new((Mutex::new(Vec::new()), handler));
        let expired = OnExpired::new(move |entry: Entry<K, V>, timeout| {
            let mut entries = batch.0.lock();
            entry.append_to(&mut *entries);
            if entries.len() > 1 {
                return;
            }
            drop(entries);
            let batch = Arc::clone(&batch);
            let deliver = move || {
                let (entries, handler) = &*batch;
                let entries = mem::take(&mut *entries.lock());
                handler(entries);
            };
            let call = EndCall { name: any::type_name::<F>(), call: Box::new(deliver) };
            timeout.handle.timer().at_end_of_turn(call);
        });
        Self { expired, runs_on_worker: true }
    }

    #[cfg(feature = "async")]
    pub(super) fn sender(sender: Sender<K, V>) -> Self
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let expired = OnExpired::new(move |entry, _| sender.send(entry));
        Self { expired, runs_on_worker: true }
    }
}
