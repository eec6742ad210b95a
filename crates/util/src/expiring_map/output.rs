//! Where the entries go that leave a map.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use hashed_wheel::NewTimeoutError;

use super::cause::{Cause, Causes, Removed};
use super::receiver::Sender;
use super::shard::Leaving;
use crate::sync::Arc;

/// The destination of entries that leave a map, chosen by its constructor. Each method must be
/// called without a lock held, because it runs user code.
// `AssertUnwindSafe`: the engine catches the panics of a task, and a call on the map passes its
// panic on when it has done its work.
pub(super) struct Output<K, V> {
    take: AssertUnwindSafe<Box<Take<K, V>>>,
    /// Whether entries expire on the worker, even if there is a task executor.
    pub(super) runs_on_worker: bool,
    /// Whether the key of an entry stays reserved until the output has done with it.
    pub(super) reserves_keys: bool,
    pub(super) causes: Causes,
    /// The receiver, and how many entries it takes.
    bound: Option<(Arc<Sender<K, V>>, usize)>,
}

type Take<K, V> = dyn Fn(Leaving<K, V>) + Send + Sync;

impl<K: Send + 'static, V: Send + 'static> Output<K, V> {
    fn new(take: impl Fn(Leaving<K, V>) + Send + Sync + 'static) -> Self {
        Self {
            take: AssertUnwindSafe(Box::new(take)),
            runs_on_worker: false,
            reserves_keys: false,
            causes: Causes::UNRETURNED,
            bound: None,
        }
    }

    /// Drops the entries.
    pub(super) fn none() -> Self {
        Self::new(|_| ())
    }

    /// `reserves_keys`: the keys stay reserved until `handler` has returned.
    pub(super) fn handler(
        reserves_keys: bool,
        handler: impl Fn(Removed<K, V>) + Send + Sync + 'static,
    ) -> Self {
        // The entry is moved to the stack for that.
        let mut output = Self::new(move |leaving| {
            let _reservation = leaving.reservation;
            handler(leaving.item.into_removed(leaving.cause));
        });
        output.reserves_keys = reserves_keys;
        output
    }

    pub(super) fn sender(sender: Sender<K, V>, capacity: Option<usize>) -> Self {
        let sender = Arc::new(sender);
        let queue = Arc::clone(&sender);
        let mut output =
            Self::new(move |leaving| sender.send(leaving.item.into_removed(leaving.cause)));
        output.runs_on_worker = true;
        output.bound = capacity.map(|most| (queue, most));
        output
    }

    /// The keys stay reserved until the futures have ended, which `spawn` runs.
    pub(super) fn async_write_back<F>(
        spawn: impl Fn(BoxFuture) + Send + Sync + 'static,
        handler: impl Fn(Removed<K, V>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let take = move |leaving: Leaving<K, V>| {
            // The key is free when the future has ended, or was dropped.
            let entry = leaving.item.into_removed(leaving.cause);
            let write = (handler(entry), leaving.reservation);
            spawn(Box::pin(async move {
                let (write, _reservation) = write;
                write.await;
            }));
        };
        let mut output = Self::new(take);
        output.reserves_keys = true;
        output
    }
}

impl<K, V> Output<K, V> {
    /// Returns the error of an insertion if the receiver is full.
    pub(super) fn check(&self) -> Result<(), NewTimeoutError> {
        match &self.bound {
            &Some((ref queue, limit)) if queue.len() >= limit => {
                Err(NewTimeoutError::TooManyPending { limit })
            }
            _ => Ok(()),
        }
    }

    /// Passes on an entry that has left the map. Drops it if its cause was not chosen.
    pub(super) fn pass_on(&self, mut leaving: Leaving<K, V>) {
        leaving.item.cancel();
        if self.causes.contains(leaving.cause) {
            (self.take)(leaving);
        }
    }

    /// Ends a replaced entry. Returns its value, unless it is passed on.
    pub(super) fn end_replaced(&self, leaving: Leaving<K, V>) -> Option<V> {
        if !self.causes.contains(Cause::Replaced) {
            return Some(leaving.item.into_value());
        }
        self.pass_on(leaving);
        None
    }
}

/// A future of a handler, for a function that runs futures.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
