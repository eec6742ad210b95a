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
//! | pending | ended | the timeout: rejected, cancelled by `stop`, or dropped by the executor. `arm` takes the value |
//! | current | started | the timeout: its task has the value |
//! | current | dropped | the timeout: cancelled by `stop`, or dropped by the executor |
//! | current | replaced, removed | `arm`, `remove`, `retain`, `clear`, the drop of the map: they have the value |
//!
//! A timeout that expires and finds its item in neither place is too late: it does not run the
//! task. So each item ends once. It makes no difference whether the timeout can still be cancelled
//! or waits in an executor's queue already. And no item is left behind: however the timeout ends,
//! it starts or drops the [`Registration`] in its task, and that removes the item.
//!
//! With a lock held, no user code runs except the keys' `Hash`, `Eq` and `Clone`, and the closures
//! of `with` and `retain`. The timer, which calls the clock and the waker, is called without a
//! lock. Removed items are dropped after the lock is released.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::{any, mem};

use super::expired::OnExpired;
use crate::engine::{SharedFields, Timeout};
use crate::error::{InsertError, NewTimeoutError};
use crate::node::Task;
use crate::sync::{Arc, CachePadded, Mutex};
use crate::task::TimerTask;

/// A shard's map shrinks if it has room for more keys than this, and for so many times the keys
/// that it has.
pub(super) const MAX_IDLE_KEYS: usize = 64;
const MAX_ROOM: usize = 8;

/// A part of the keys, and their lock.
pub(super) struct Shard<K, V> {
    pub(super) items: CachePadded<Mutex<Items<K, V>>>,
    /// Here, because the task of an item has its shard anyway.
    pub(super) on_expired: Arc<OnExpired<K, V>>,
}

/// The items of one shard.
pub(super) struct Items<K, V> {
    /// The items of calls of `arm` that are in progress.
    pending: PendingItems<V>,
    pub(super) current: HashMap<K, Current<V>>,
}

/// A list, because there are few.
struct PendingItems<V> {
    /// The number of the next item.
    next: u64,
    items: Vec<(u64, PendingState<V>)>,
}

enum PendingState<V> {
    /// The timeout does not exist yet, or has not ended.
    Armed(V),
    /// The task has begun. It has replaced this value, if one was current.
    Started(Option<V>),
    /// The task was dropped.
    Ended(V),
}

/// The item under a key.
pub(super) struct Current<V> {
    pub(super) item: u64,
    pub(super) timeout: Timeout,
    pub(super) value: V,
}

impl<K, V> Shard<K, V> {
    pub(super) fn new(on_expired: Arc<OnExpired<K, V>>) -> Self {
        let pending = PendingItems { next: 0, items: Vec::new() };
        let items = Items { pending, current: HashMap::new() };
        Self { items: CachePadded::new(Mutex::new(items)), on_expired }
    }
}

impl<V> PendingItems<V> {
    /// Returns the number of the new item.
    fn add(&mut self, value: V) -> u64 {
        let item = self.next;
        self.next += 1;
        self.items.push((item, PendingState::Armed(value)));
        item
    }

    fn find(&mut self, item: u64) -> Option<&mut PendingState<V>> {
        self.items.iter_mut().find(|(number, _)| *number == item).map(|(_, state)| state)
    }

    fn remove(&mut self, item: u64) -> Option<PendingState<V>> {
        let at = self.items.iter().position(|(number, _)| *number == item)?;
        Some(self.items.swap_remove(at).1)
    }
}

impl<K: Hash + Eq, V> Items<K, V> {
    /// Removes the current item of a key, if there is one.
    pub(super) fn remove<Q>(&mut self, key: &Q) -> Option<(K, Current<V>)>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        // First: if a key's `Hash` panics, the item must stay, because its timeout would not be
        // cancelled.
        self.shrink();
        self.current.remove_entry(key)
    }

    /// Removes the item, if it is the current one of its key. Its timeout has ended.
    fn remove_current(&mut self, key: &K, item: u64) -> Option<(K, Current<V>)> {
        self.current.get(key).filter(|current| current.item == item)?;
        let removed = self.current.remove_entry(key);
        // Last: if a key's `Hash` panics, the item must not stay, because its timeout has ended.
        self.shrink();
        removed
    }

    /// Frees room that is not needed, which calls the `Hash` of all keys.
    pub(super) fn shrink(&mut self) {
        let (count, room) = (self.current.len(), self.current.capacity());
        // Most of the room was removed since the map grew, so the cost per removal is constant.
        if room > MAX_IDLE_KEYS && count < room / MAX_ROOM {
            self.current.shrink_to(2 * count);
        }
    }
}

impl<V> Current<V> {
    /// Cancels the timeout of an item that was removed, and returns its value. Must be called
    /// without a lock held.
    pub(super) fn cancel(self) -> V {
        // If the timeout has expired already, its registration finds the item removed and does not
        // run the task.
        self.timeout.cancel();
        self.value
    }
}

/// Removed items of several keys.
pub(super) struct Removed<K, V>(pub(super) Vec<(K, Current<V>)>);

impl<K, V> Drop for Removed<K, V> {
    fn drop(&mut self) {
        // Cancel all of them before the first one is dropped, because dropping a key may panic.
        for (_, current) in &self.0 {
            current.timeout.cancel();
        }
    }
}

/// Makes an item, and its timeout by `schedule`. Cancels the item that is current, and returns its
/// value.
///
/// If the clock or a key's `Hash` or `Eq` panics, the new item is removed, and the current one
/// stays.
pub(super) fn arm<K: Hash + Eq + Clone, V>(
    shard: &Arc<Shard<K, V>>,
    key: K,
    value: V,
    schedule: impl FnOnce(Registration<K, V>) -> Result<Timeout, NewTimeoutError>,
) -> Result<Option<V>, InsertError<K, V>> {
    let copy = key.clone();
    let item = shard.items.lock().pending.add(value);
    let mut arming = Arming { shard, item: Some(item), timeout: None };
    match schedule(Registration { shard: Arc::clone(shard), key: Some(copy), item }) {
        Ok(timeout) => {
            arming.timeout = Some(timeout);
            Ok(arming.finish(item, key))
        }
        Err(error) => match arming.remove() {
            Some(PendingState::Ended(value)) => Err(InsertError { key, value, error }),
            _ => unreachable!("a rejected task is dropped"),
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

impl<K, V> Arming<'_, K, V> {
    /// Makes the item current. Returns the value that it replaces.
    fn finish(mut self, item: u64, key: K) -> Option<V>
    where
        K: Hash + Eq,
    {
        let mut items = self.shard.items.lock();
        let Items { pending, current } = &mut *items;
        let state = pending.find(item);
        if !matches!(state, Some(PendingState::Armed(_))) {
            return match state {
                Some(PendingState::Started(replaced)) => replaced.take(),
                _ => {
                    let old = current.remove_entry(&key);
                    drop(items);
                    old.map(|(_key, old)| old.cancel())
                }
            };
        }
        // The keys' `Hash` and `Eq` run before anything is changed, because they may panic.
        if let Some(current) = current.get_mut(&key) {
            let old = mem::replace(current, self.take(pending)?);
            drop(items);
            return Some(old.cancel());
        }
        if let Entry::Vacant(entry) = current.entry(key) {
            entry.insert(self.take(pending)?);
        }
        None
    }

    /// Takes the pending item out, to make it current.
    fn take(&mut self, pending: &mut PendingItems<V>) -> Option<Current<V>> {
        let (item, timeout) = (self.item.take()?, self.timeout.take()?);
        match pending.remove(item)? {
            PendingState::Armed(value) | PendingState::Ended(value) => Some(Current { item, timeout, value }),
            PendingState::Started(_) => None,
        }
    }

    fn remove(&mut self) -> Option<PendingState<V>> {
        let item = self.item.take()?;
        self.shard.items.lock().pending.remove(item)
    }
}

impl<K, V> Drop for Arming<'_, K, V> {
    fn drop(&mut self) {
        let removed = self.remove();
        if let Some(timeout) = &self.timeout {
            timeout.cancel();
        }
        drop(removed);
    }
}

/// A guard in the task of an item: it removes the item when the task starts or is dropped.
pub(super) struct Registration<K: Hash + Eq, V> {
    shard: Arc<Shard<K, V>>,
    /// `None` once the item is removed.
    key: Option<K>,
    item: u64,
}

impl<K: Hash + Eq, V> Registration<K, V> {
    /// Starts the item because its timeout has expired: removes it, or marks it as started if it is
    /// still pending. Returns the key and the value if the task is to run.
    fn start(&mut self) -> Option<(K, V)> {
        let key = self.key.take()?;
        let mut items = self.shard.items.lock();
        let Items { pending, current } = &mut *items;
        let Some(state) = pending.find(self.item) else {
            let own = items.remove_current(&key, self.item);
            drop(items);
            return own.map(|(_, own)| (key, own.value));
        };
        // `arm` has not gone on yet: do the rest of its work here. If a key's `Hash` panics, the
        // new item has ended, and the current one stays.
        let PendingState::Armed(value) = mem::replace(state, PendingState::Started(None)) else {
            unreachable!("a task starts once");
        };
        if let Some((_old_key, old)) = current.remove_entry(&key) {
            *state = PendingState::Started(Some(old.value));
            drop(items);
            old.timeout.cancel();
        }
        Some((key, value))
    }
}

impl<K: Hash + Eq, V> Drop for Registration<K, V> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let mut items = self.shard.items.lock();
        if let Some(state) = items.pending.find(self.item) {
            // `arm` takes the value.
            if let PendingState::Armed(value) = mem::replace(state, PendingState::Started(None)) {
                *state = PendingState::Ended(value);
            }
            return;
        }
        let removed = items.remove_current(&key, self.item);
        // Release the lock first, because dropping the key and the value is user code.
        drop(items);
        drop(removed);
    }
}

/// The timer's task of an item that has a task of its own.
pub(super) struct Scheduled<K: Hash + Eq, F> {
    // First, so that it is dropped first: the key is free when the task's own `Drop` runs.
    pub(super) registration: Registration<K, ()>,
    pub(super) task: F,
}

impl<K, F> TimerTask for Scheduled<K, F>
where
    K: Hash + Eq + Send + 'static,
    F: FnOnce(K) + Send + 'static,
{
    fn run(mut self, _: &Timeout) {
        if let Some((key, ())) = self.registration.start() {
            (self.task)(key);
        }
    }
}

/// The timer's task of an item that goes to the output of its map.
pub(super) struct Expire<K: Hash + Eq, V, const ON_WORKER: bool>(pub(super) Registration<K, V>);

impl<K, V, const ON_WORKER: bool> Task<SharedFields> for Expire<K, V, ON_WORKER>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
{
    const IS_PLAIN: bool = false;
    const RUNS_ON_WORKER: bool = ON_WORKER;

    fn run(mut self, timeout: &Timeout) {
        if let Some((key, value)) = self.0.start() {
            self.0.shard.on_expired.call(key, value, timeout);
        }
    }

    fn cancelled(self, _: &Timeout) {}

    fn name() -> &'static str {
        any::type_name::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::timer::HashedWheelTimer;

    #[test]
    fn map_with_room_for_many_more_keys_shrinks() {
        let (timer, _driver) =
            HashedWheelTimer::builder().clock(ManualClock::new()).build_driven().expect("a driven timer");
        let map = |keys, room| {
            let pending = PendingItems { next: 0, items: Vec::new() };
            let mut items = Items { pending, current: HashMap::with_capacity(room) };
            for key in 0..keys {
                let timeout = timer.new_timeout(|_| (), Duration::ZERO).expect("a timeout");
                items.current.insert(key, Current { item: 0, timeout, value: () });
            }
            let before = items.current.capacity();
            items.shrink();
            (before, items.current.capacity())
        };
        // The table of std may have more room than was asked for.
        let room = map(0, 400).0;
        let least = room.div_ceil(MAX_ROOM);
        assert_eq!(map(least, room), (room, room), "an eighth is used");
        let (_, left) = map(least - 5, room);
        assert!((2 * (least - 5)..room).contains(&left), "room for {left} after {room}");
        assert!(map(least - 1, room).1 < room, "less than an eighth is used");
        let small = map(1, MAX_IDLE_KEYS / 2);
        assert!(small.0 <= MAX_IDLE_KEYS && small.0 == small.1, "{small:?}");
    }
}
