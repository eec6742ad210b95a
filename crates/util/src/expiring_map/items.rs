//! The items of a map of timeouts, and how each of them ends.
//!
//! An *item* is a key, a value and a timeout. The timeout only says when. What happens to the item
//! is decided under the lock of its key's shard, by the thread that removes it from the place where
//! it is. There are two places: the list of pending items, and the map of current items, which has
//! at most one item per key. The value is in the same place as its item, so the thread that removes
//! the item owns the value.
//!
//! | from | to | by |
//! |---|---|---|
//! | – | pending | `arm`, before the timeout exists |
//! | pending | current | `arm`, once the timeout exists; removes the item that was current |
//! | pending | started | the timeout, if it expires before `arm` goes on; removes the item that was current in place of `arm` |
//! | pending | ended | the timeout: rejected, cancelled by `stop` or `cancel_all`, or dropped by the executor. `arm` takes the value |
//! | current | started | the timeout: its task has the value |
//! | current | dropped | the timeout: cancelled by `stop` or `cancel_all`, or dropped by the executor |
//! | current | replaced, removed | `arm`, `remove`, `retain`, `clear`, the drop of the map: they have the value |
//! | current | evicted | `arm` of another key, if the shard is full: it has the value |
//!
//! A timeout that expires and finds its item in neither place is too late: it does not run the
//! task. So each item ends once. It makes no difference whether the timeout can still be cancelled
//! or waits in an executor's queue already. And no item is left behind: however the timeout ends,
//! it starts or drops the [`Registration`] in its task, and that removes the item.
//!
//! With a lock held, no user code runs except the keys' `Eq` or `Equivalent`, `Clone` of keys in
//! `keys` and of values in `get`, and the closures of `with` and `retain`. Each of these may panic.
//! The items stay where they are until it has returned, so its panic drops no item under the lock.
//! The timer, which calls the clock and the waker, is called without a lock. The listener is told
//! of removed items, and they are dropped, after the lock is released.

use std::mem;

use equivalent::Equivalent;
use hashed_wheel::{Cancel, NewTimeoutError, Timeout, TimerTask};

use super::cause::Cause;
use super::entry::Entry;
use super::error::InsertError;
use super::output::Output;
use super::table::Table;
use crate::sync::{Arc, Mutex};

/// A part of the keys, and their lock. In cache lines of its own: processors prefetch pairs of
/// them.
#[repr(align(128))]
pub(super) struct Shard<K, V> {
    pub(super) items: Mutex<Items<K, V>>,
    /// Here, because the task of an item has its shard anyway.
    pub(super) output: Arc<Output<K, V>>,
}

/// The items of one shard.
pub(super) struct Items<K, V> {
    /// The items of calls of `arm` that are in progress.
    pending: PendingItems<K, V>,
    pub(super) current: Table<K, V>,
}

/// A list, because there are few.
struct PendingItems<K, V> {
    /// The number of the next item.
    next: u64,
    items: Vec<(u64, PendingState<K, V>)>,
}

enum PendingState<K, V> {
    /// The task has not begun. If the item has ended, it was dropped.
    Armed { entry: Entry<K, V>, has_ended: bool },
    /// The task has begun. It has replaced this entry, if one was current.
    Started(Option<Entry<K, V>>),
}

/// The item under a key.
pub(super) struct Current<K, V> {
    pub(super) hash: u64,
    pub(super) item: u64,
    pub(super) timeout: Timeout,
    pub(super) entry: Entry<K, V>,
    /// Since it was inserted, or since an eviction has passed it over.
    pub(super) is_used: bool,
}

impl<K, V> Shard<K, V> {
    pub(super) fn new(output: Arc<Output<K, V>>, max_entries: Option<usize>) -> Self {
        let pending = PendingItems {
            next: 0,
            items: Vec::new(),
        };
        let items = Items {
            pending,
            current: Table::new(max_entries),
        };
        Self {
            items: Mutex::new(items),
            output,
        }
    }
}

impl<K, V> PendingItems<K, V> {
    /// Returns the number of the new item.
    fn add(&mut self, entry: Entry<K, V>) -> u64 {
        let item = self.next;
        self.next += 1;
        self.items.push((
            item,
            PendingState::Armed {
                entry,
                has_ended: false,
            },
        ));
        item
    }

    fn find(&mut self, item: u64) -> Option<&mut PendingState<K, V>> {
        self.items
            .iter_mut()
            .find(|(number, _)| *number == item)
            .map(|(_, state)| state)
    }

    fn remove(&mut self, item: u64) -> Option<PendingState<K, V>> {
        let at = self.items.iter().position(|(number, _)| *number == item)?;
        Some(self.items.swap_remove(at).1)
    }
}

impl<K, V> Items<K, V> {
    /// Removes the item, if it is the current one of its key.
    pub(super) fn remove_current(&mut self, hash: u64, item: u64) -> Option<Current<K, V>> {
        self.current.remove(hash, |current| current.item == item)
    }
}

impl<K, V> Current<K, V> {
    /// Whether the item is under this key.
    pub(super) fn has_key(&self, key: &(impl Equivalent<K> + ?Sized)) -> bool {
        key.equivalent(self.entry.key())
    }

    /// Cancels the timeout of an item that was removed, and returns its value. Must be called
    /// without a lock held.
    pub(super) fn end(self, output: &Output<K, V>, cause: Cause) -> V {
        // If the timeout has expired already, its registration finds the item removed and does not
        // run the task.
        self.timeout.cancel_and_drop();
        output.value_of(self.entry, cause)
    }
}

/// Cancels the timeouts of removed items. Must be called without a lock held, and before the first
/// one is dropped, because dropping a key may panic.
pub(super) fn cancel_all<K, V>(removed: &[Current<K, V>]) {
    removed
        .iter()
        .for_each(|current| _ = current.timeout.cancel());
}

/// Ends removed items: cancels their timeouts, and tells the listener.
pub(super) fn end_all<K, V>(removed: &[Current<K, V>], output: &Output<K, V>) {
    cancel_all(removed);
    removed
        .iter()
        .for_each(|current| output.tell(&current.entry, Cause::Removed));
}

/// Makes an item, and its timeout by `schedule`. Cancels the item that is current, and returns its
/// value. If none is, and the shard is full, cancels another item.
///
/// If the clock or a key's `Eq` panics, the new item is removed, and the current one stays.
pub(super) fn arm<K: Eq, V>(
    shard: &Arc<Shard<K, V>>,
    hash: u64,
    entry: Entry<K, V>,
    schedule: impl FnOnce(Registration<K, V>) -> Result<Timeout, NewTimeoutError>,
) -> Result<Option<V>, InsertError<K, V>> {
    let item = shard.items.lock().pending.add(entry);
    let mut arming = Arming {
        shard,
        item: Some(item),
        timeout: None,
    };
    match schedule(Registration {
        shard: Some(Arc::clone(shard)),
        hash,
        item,
    }) {
        Ok(timeout) => {
            arming.timeout = Some(timeout);
            Ok(arming.finish(item, hash))
        }
        Err(error) => match arming.remove() {
            Some(PendingState::Armed { entry, .. }) => {
                let (key, value) = entry.into_pair();
                Err(InsertError { key, value, error })
            }
            _ => unreachable!("a rejected task does not start"),
        },
    }
}

/// A call of [`arm`]. If it ends early, its item is removed and its timeout cancelled.
struct Arming<'a, K, V> {
    shard: &'a Shard<K, V>,
    /// `None` once the item is not pending any more.
    item: Option<u64>,
    timeout: Option<Timeout>,
}

impl<K: Eq, V> Arming<'_, K, V> {
    /// Makes the item current. Returns the value that it replaces.
    fn finish(mut self, item: u64, hash: u64) -> Option<V> {
        let mut items = self.shard.items.lock();
        let Items { pending, current } = &mut *items;
        let removed = match pending.find(item)? {
            PendingState::Started(replaced) => {
                let replaced = replaced.take();
                drop(items);
                return replaced.map(|old| self.shard.output.value_of(old, Cause::Replaced));
            }
            PendingState::Armed { entry, has_ended } if !*has_ended => {
                let key = entry.key();
                if let Some(old) = current.find_mut(hash, |current| current.has_key(key)) {
                    let replaced = mem::replace(old, self.take(pending, hash)?);
                    current.enqueue(hash, item);
                    Some((replaced, Cause::Replaced))
                } else {
                    let evicted = current.insert(self.take(pending, hash)?);
                    evicted.map(|evicted| (evicted, Cause::Evicted))
                }
            }
            PendingState::Armed { entry, .. } => current
                .remove(hash, |current| current.has_key(entry.key()))
                .map(|replaced| (replaced, Cause::Replaced)),
        };
        drop(items);
        let (removed, cause) = removed?;
        let value = removed.end(&self.shard.output, cause);
        (cause == Cause::Replaced).then_some(value)
    }
}

impl<K, V> Arming<'_, K, V> {
    /// Takes the pending item out, to make it current.
    fn take(&mut self, pending: &mut PendingItems<K, V>, hash: u64) -> Option<Current<K, V>> {
        let (item, timeout) = (self.item.take()?, self.timeout.take()?);
        match pending.remove(item)? {
            PendingState::Armed { entry, .. } => Some(Current {
                hash,
                item,
                timeout,
                entry,
                is_used: false,
            }),
            PendingState::Started(_) => None,
        }
    }

    fn remove(&mut self) -> Option<PendingState<K, V>> {
        let item = self.item.take()?;
        self.shard.items.lock().pending.remove(item)
    }
}

impl<K, V> Drop for Arming<'_, K, V> {
    fn drop(&mut self) {
        let removed = self.remove();
        if let Some(timeout) = self.timeout.take() {
            timeout.cancel_and_drop();
        }
        drop(removed);
    }
}

/// A guard in the task of an item: it removes the item when the task starts or is dropped.
pub(super) struct Registration<K, V> {
    /// `None` once the item is removed.
    shard: Option<Arc<Shard<K, V>>>,
    hash: u64,
    item: u64,
}

type Started<K, V> = (Entry<K, V>, Arc<Shard<K, V>>);

impl<K: Eq, V> Registration<K, V> {
    /// Starts the item because its timeout has expired: removes it, or marks it as started if it is
    /// still pending. Returns the entry if the task is to run, and the shard.
    fn start(&mut self) -> Option<Started<K, V>> {
        // If a key's `Eq` panics, the item ends with this guard.
        let entry = self.shard.as_ref()?.start(self.hash, self.item);
        let shard = self.shard.take()?;
        Some((entry?, shard))
    }
}

impl<K: Eq, V> Shard<K, V> {
    fn start(&self, hash: u64, item: u64) -> Option<Entry<K, V>> {
        let mut items = self.items.lock();
        let Items { pending, current } = &mut *items;
        let Some(state) = pending.find(item) else {
            let own = items.remove_current(hash, item);
            drop(items);
            return own.map(|own| own.entry);
        };
        let PendingState::Armed { entry, .. } = state else {
            unreachable!("a task starts once")
        };
        // `arm` has not gone on yet: do the rest of its work here.
        let replaced = current.remove(hash, |current| current.has_key(entry.key()));
        let (old, timeout) = replaced.map(|old| (old.entry, old.timeout)).unzip();
        let state = mem::replace(state, PendingState::Started(old));
        drop(items);
        if let Some(timeout) = timeout {
            timeout.cancel_and_drop();
        }
        match state {
            PendingState::Armed { entry, .. } => Some(entry),
            PendingState::Started(_) => None,
        }
    }
}

impl<K, V> Drop for Registration<K, V> {
    fn drop(&mut self) {
        let Some(shard) = self.shard.take() else {
            return;
        };
        let mut items = shard.items.lock();
        if let Some(state) = items.pending.find(self.item) {
            // `arm` takes the entry.
            if let PendingState::Armed { has_ended, .. } = state {
                *has_ended = true;
            }
            return;
        }
        let removed = items.remove_current(self.hash, self.item);
        // Release the lock first, because dropping the key and the value is user code.
        drop(items);
        drop(removed);
    }
}

/// The timer's task of an item.
pub(super) struct Expire<K, V, const ON_WORKER: bool>(pub(super) Registration<K, V>);

impl<K, V, const ON_WORKER: bool> TimerTask for Expire<K, V, ON_WORKER>
where
    K: Eq + Send + 'static,
    V: Send + 'static,
{
    const RUNS_ON_WORKER: bool = ON_WORKER;

    fn run(mut self, _: &Timeout) {
        if let Some((entry, shard)) = self.0.start() {
            shard.output.expire(entry);
        }
    }
}
