//! The current items of a shard, in a hash table that stores the hash of each.
//!
//! It never asks for a hash, also when it grows or shrinks. The callers' tests find an item among
//! those with the same hash. They are the only user code that may run in the table, and each runs
//! before the table changes.

use hashbrown::HashTable;

use super::items::Current;
use super::room::smaller_room;

pub(super) struct Table<K, V>(HashTable<Current<K, V>>);

impl<K, V> Table<K, V> {
    pub(super) fn new() -> Self {
        Self(HashTable::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Finds the item with this hash that passes the test.
    pub(super) fn find(&self, hash: u64, test: impl Fn(&Current<K, V>) -> bool) -> Option<&Current<K, V>> {
        self.0.find(hash, test)
    }

    pub(super) fn find_mut(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<&mut Current<K, V>> {
        self.0.find_mut(hash, test)
    }

    /// Inserts an item that is not in the table.
    pub(super) fn insert(&mut self, item: Current<K, V>) {
        self.0.insert_unique(item.hash, item, |item| item.hash);
    }

    /// Removes the item with this hash that passes the test. Frees room that is not needed.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        test: impl Fn(&Current<K, V>) -> bool,
    ) -> Option<Current<K, V>> {
        let (removed, _) = self.0.find_entry(hash, test).ok()?.remove();
        if let Some(room) = smaller_room(self.len(), self.room()) {
            self.0.shrink_to(room, |item| item.hash);
        }
        Some(removed)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Current<K, V>> {
        self.0.iter()
    }

    pub(super) fn items_mut(&mut self) -> impl Iterator<Item = &mut Current<K, V>> {
        self.0.iter_mut()
    }

    pub(super) fn into_items(self) -> impl Iterator<Item = Current<K, V>> {
        self.0.into_iter()
    }

    /// Returns for how many items there is room.
    pub(super) fn room(&self) -> usize {
        self.0.capacity()
    }
}
