//! The current items of a shard, in a hash table that stores the hash of each.
//!
//! An item is *alive* until its deadline. The clock decides that, and not the timer, which is up to
//! a tick late. A dead item stays where it is until its task takes it. If a new item needs its
//! place, it is set aside for the task. With a limit it is removed instead, because dead items
//! count for the limit too.
//!
//! It never asks for a hash, also when it grows or shrinks. The callers' tests find an item among
//! those with the same hash. They are the only user code that may run in the table, and each runs
//! before the table changes.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::mem;

use hashbrown::HashTable;

use super::items::Current;
use super::room::{MAX_IDLE, smaller_room};

/// How many used items in a row an eviction passes over.
const MAX_CHANCES: usize = 64;

pub(super) struct Table<K, V> {
    items: HashTable<Current<K, V>>,
    /// Dead items by their numbers. With a limit there are none.
    aside: BTreeMap<u64, Current<K, V>>,
    /// The present. See [`see`](Self::see).
    now: u64,
    max_items: Option<usize>,
    /// The order of eviction. That of a table without a limit is empty.
    order: VecDeque<Place>,
    /// At least one for each item, not later than its deadline. Without a limit there are none.
    deadlines: BinaryHeap<Reverse<(u64, Place)>>,
}

/// Where an item is. An item that has left the table leaves its places behind in the order of
/// eviction and in the deadlines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    hash: u64,
    item: u64,
}

impl Place {
    fn of<K, V>(item: &Current<K, V>) -> Self {
        let Current { hash, item, .. } = *item;
        Self { hash, item }
    }
}

impl<K, V> Table<K, V> {
    pub(super) fn new(max_items: Option<usize>) -> Self {
        Self {
            items: HashTable::new(),
            aside: BTreeMap::new(),
            now: 0,
            max_items,
            order: VecDeque::new(),
            deadlines: BinaryHeap::new(),
        }
    }

    /// Sets the present to the time that a call has read before it took the lock. It does not go
    /// back: otherwise a call that has waited for the lock could still find an item alive that
    /// another call has found dead.
    pub(super) fn see(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Finds the living item with this hash that passes the test.
    pub(super) fn find(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<&mut Current<K, V>> {
        let now = self.now;
        self.items
            .find_mut(hash, test)
            .filter(|found| found.is_alive(now))
    }

    /// Inserts an item whose key is free. If the table is full, returns one for which there is no
    /// room: a dead item, perhaps the new one, or else one that was not used recently.
    pub(super) fn insert(&mut self, item: Current<K, V>) -> Option<Current<K, V>> {
        // First, so that it does not evict the new item.
        let mut removed = None;
        if self.max_items.is_some_and(|max| self.len() >= max) {
            removed = self.take_dead();
            if removed.is_none() && !item.is_alive(self.now) {
                return Some(item);
            }
            removed = removed.or_else(|| self.evict());
        }
        let (place, deadline) = (Place::of(&item), item.deadline);
        self.items.insert_unique(place.hash, item, |item| item.hash);
        if self.max_items.is_some() {
            self.order.push_back(place);
            self.hasten(place.hash, place.item, deadline);
        }
        removed
    }

    /// An item has a new deadline, perhaps an earlier one.
    pub(super) fn hasten(&mut self, hash: u64, item: u64, deadline: u64) {
        if self.max_items.is_some() {
            self.deadlines
                .push(Reverse((deadline, Place { hash, item })));
            self.trim();
        }
    }

    /// Removes an item that was not used recently.
    fn evict(&mut self) -> Option<Current<K, V>> {
        let mut chances = MAX_CHANCES;
        loop {
            let place = self.order.pop_front()?;
            let Ok(mut found) = self
                .items
                .find_entry(place.hash, |current| current.item == place.item)
            else {
                continue;
            };
            if chances == 0 || !mem::take(&mut found.get_mut().is_used) {
                return Some(found.remove().0);
            }
            chances -= 1;
            self.order.push_back(place);
        }
    }

    /// Removes a dead item.
    fn take_dead(&mut self) -> Option<Current<K, V>> {
        loop {
            let mut first = self.deadlines.peek_mut()?;
            let Reverse((deadline, place)) = *first;
            if deadline > self.now {
                return None;
            }
            let found = self
                .items
                .find_entry(place.hash, |current| current.item == place.item);
            match found {
                // It was touched.
                Ok(found) if found.get().is_alive(self.now) => {
                    first.0.0 = found.get().deadline;
                }
                found => {
                    PeekMut::pop(first);
                    if let Ok(dead) = found {
                        return Some(dead.remove().0);
                    }
                }
            }
        }
    }

    /// Frees a key for a new item: removes the item with this hash that passes the test. Returns it
    /// if it is alive, and in a table with a limit also if it is dead.
    pub(super) fn vacate(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<Current<K, V>> {
        let old = self.remove(hash, test)?;
        if self.max_items.is_some() || old.is_alive(self.now) {
            return Some(old);
        }
        self.aside.insert(old.item, old);
        None
    }

    /// Removes the living item with this hash that passes the test.
    pub(super) fn remove_living(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<Current<K, V>> {
        let now = self.now;
        self.remove(hash, |current| test(current) && current.is_alive(now))
    }

    /// Removes an item, alive or dead.
    pub(super) fn remove_item(&mut self, hash: u64, item: u64) -> Option<Current<K, V>> {
        self.remove(hash, |current| current.item == item)
            .or_else(|| self.aside.remove(&item))
    }

    /// Removes the item with this hash that passes the test. Frees room that is not needed.
    fn remove(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<Current<K, V>> {
        let (removed, _) = self.items.find_entry(hash, test).ok()?.remove();
        if let Some(room) = smaller_room(self.len(), self.room()) {
            self.items.shrink_to(room, |item| item.hash);
        }
        self.trim();
        Some(removed)
    }

    /// Drops the places of items that have left, once most places are such.
    fn trim(&mut self) {
        let most = 2 * self.len() + MAX_IDLE;
        if self.order.len().max(self.deadlines.len()) > most {
            self.drop_places();
        }
    }

    fn drop_places(&mut self) {
        let Self { items, order, .. } = self;
        order.retain(|place| {
            items
                .find(place.hash, |current| current.item == place.item)
                .is_some()
        });
        order.shrink_to(2 * items.len());
        self.deadlines = items
            .iter()
            .map(|item| Reverse((item.deadline, Place::of(item))))
            .collect();
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Current<K, V>> {
        self.items.iter().filter(|item| item.is_alive(self.now))
    }

    pub(super) fn living_mut(&mut self) -> impl Iterator<Item = &mut Current<K, V>> {
        let now = self.now;
        self.items.iter_mut().filter(move |item| item.is_alive(now))
    }

    /// Removes all living items.
    pub(super) fn take_living(&mut self) -> Vec<Current<K, V>> {
        let now = self.now;
        let all = mem::replace(&mut self.items, HashTable::new());
        let (living, dead): (Vec<_>, Vec<_>) = all.into_iter().partition(|item| item.is_alive(now));
        for dead in dead {
            self.items.insert_unique(dead.hash, dead, |item| item.hash);
        }
        if self.max_items.is_some() {
            self.drop_places();
        }
        living
    }

    /// Removes all items, alive and dead.
    pub(super) fn take_all(&mut self) -> Vec<Current<K, V>> {
        let dead = mem::take(&mut self.aside).into_values();
        mem::take(&mut self.items).into_iter().chain(dead).collect()
    }

    /// The present, as the last call has seen it.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Returns for how many items there is room.
    pub(super) fn room(&self) -> usize {
        self.items.capacity()
    }

    /// Returns for how many places the order of eviction and the deadlines have room.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.order.capacity().max(self.deadlines.capacity())
    }
}
