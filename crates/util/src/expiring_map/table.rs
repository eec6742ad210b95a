//! The current items of a shard, in a hash table that stores the hash of each.
//!
//! It never asks for a hash, also when it grows or shrinks. The callers' tests find an item among
//! those with the same hash. They are the only user code that may run in the table, and each runs
//! before the table changes.

use std::collections::VecDeque;
use std::mem;

use hashbrown::HashTable;

use super::items::Current;
use super::room::{MAX_IDLE, smaller_room};

/// How many used items in a row an eviction passes over.
const MAX_CHANCES: usize = 64;

pub(super) struct Table<K, V> {
    items: HashTable<Current<K, V>>,
    /// That of a table without a limit is empty.
    order: VecDeque<Place>,
    max_items: Option<usize>,
}

/// The place of an item in the order of eviction. An item that has left the table leaves its place
/// behind.
struct Place {
    hash: u64,
    item: u64,
}

impl<K, V> Table<K, V> {
    pub(super) fn new(max_items: Option<usize>) -> Self {
        Self {
            items: HashTable::new(),
            order: VecDeque::new(),
            max_items,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Finds the item with this hash that passes the test.
    pub(super) fn find(
        &self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<&Current<K, V>> {
        self.items.find(hash, test)
    }

    pub(super) fn find_mut(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<&mut Current<K, V>> {
        self.items.find_mut(hash, test)
    }

    /// Finds an item that is used now.
    pub(super) fn find_used(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<&mut Current<K, V>> {
        let found = self.find_mut(hash, test)?;
        found.is_used = true;
        Some(found)
    }

    /// Inserts an item that is not in the table. Returns the one that it evicts, if the table was
    /// full.
    pub(super) fn insert(&mut self, item: Current<K, V>) -> Option<Current<K, V>> {
        // First, so that it does not evict the new item.
        let evicted = self.evict();
        let Current {
            hash, item: number, ..
        } = item;
        self.items.insert_unique(hash, item, |item| item.hash);
        self.enqueue(hash, number);
        evicted
    }

    /// Appends an item of the table to the order of eviction.
    pub(super) fn enqueue(&mut self, hash: u64, item: u64) {
        if self.max_items.is_some() {
            self.order.push_back(Place { hash, item });
            self.trim_order();
        }
    }

    /// If the table is full, removes an item that was not used recently.
    fn evict(&mut self) -> Option<Current<K, V>> {
        if self.len() < self.max_items? {
            return None;
        }
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

    /// Removes the item with this hash that passes the test. Frees room that is not needed.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<Current<K, V>> {
        let (removed, _) = self.items.find_entry(hash, test).ok()?.remove();
        if let Some(room) = smaller_room(self.len(), self.room()) {
            self.items.shrink_to(room, |item| item.hash);
        }
        self.trim_order();
        Some(removed)
    }

    /// Drops the places of items that have left, once most places are such.
    fn trim_order(&mut self) {
        let Self { items, order, .. } = self;
        if order.len() > 2 * items.len() + MAX_IDLE {
            order.retain(|place| {
                items
                    .find(place.hash, |current| current.item == place.item)
                    .is_some()
            });
            order.shrink_to(2 * items.len());
        }
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Current<K, V>> {
        self.items.iter()
    }

    pub(super) fn items_mut(&mut self) -> impl Iterator<Item = &mut Current<K, V>> {
        self.items.iter_mut()
    }

    /// Removes all items.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Current<K, V>> + use<K, V> {
        self.order = VecDeque::new();
        mem::replace(&mut self.items, HashTable::new()).into_iter()
    }

    /// Returns for how many items there is room.
    pub(super) fn room(&self) -> usize {
        self.items.capacity()
    }

    /// Returns for how many places the order of eviction has room.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.order.capacity()
    }
}
