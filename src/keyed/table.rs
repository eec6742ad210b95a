//! A hash table that stores the hash of each item.
//!
//! It never asks for a hash, also when it grows or shrinks. The callers' tests find an item among
//! those with the same hash. They are the only user code that may run in the table, and each runs
//! before the table changes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// The table shrinks if it has room for more items than this, and for this many times the items
/// that it has.
pub(super) const MAX_IDLE: usize = 64;
const MAX_ROOM: usize = 8;

pub(super) struct Table<T> {
    /// One item of each hash.
    first: HashMap<u64, T, BuildHasherDefault<StoredHash>>,
    /// The items that found another item of the same hash in `first`. There are none, unless the
    /// keys' `Hash` is poor: hashes have 64 bits.
    others: Vec<(u64, T)>,
}

/// Returns the hash that it is given.
#[derive(Default)]
struct StoredHash(u64);

impl Hasher for StoredHash {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys of the inner table are of type `u64`")
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self { first: HashMap::default(), others: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.others.len()
    }

    /// Finds the item with this hash that passes the test.
    pub(super) fn find(&self, hash: u64, test: impl Fn(&T) -> bool) -> Option<&T> {
        match self.first.get(&hash) {
            Some(item) if test(item) => Some(item),
            _ => self.others.iter().find(|other| other.0 == hash && test(&other.1)).map(|other| &other.1),
        }
    }

    pub(super) fn find_mut(&mut self, hash: u64, test: impl Fn(&T) -> bool) -> Option<&mut T> {
        match self.first.get_mut(&hash) {
            Some(item) if test(item) => Some(item),
            _ => {
                let found = self.others.iter_mut().find(|other| other.0 == hash && test(&other.1));
                found.map(|other| &mut other.1)
            }
        }
    }

    /// Inserts an item that is not in the table.
    pub(super) fn insert(&mut self, hash: u64, item: T) {
        match self.first.entry(hash) {
            Entry::Vacant(first) => _ = first.insert(item),
            Entry::Occupied(_) => self.others.push((hash, item)),
        }
    }

    /// Removes the item with this hash that passes the test. Frees room that is not needed.
    pub(super) fn remove(&mut self, hash: u64, test: impl Fn(&T) -> bool) -> Option<T> {
        let removed = match self.first.get(&hash) {
            Some(item) if test(item) => self.first.remove(&hash),
            _ => {
                let at = self.others.iter().position(|other| other.0 == hash && test(&other.1));
                at.map(|at| self.others.swap_remove(at).1)
            }
        };
        self.shrink();
        removed
    }

    /// Returns the items with their hashes, in no particular order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let first = self.first.iter_mut().map(|(hash, item)| (*hash, item));
        first.chain(self.others.iter_mut().map(|(hash, item)| (*hash, item)))
    }

    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.first.into_values().chain(self.others.into_iter().map(|(_, item)| item))
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &T> {
        self.first.values().chain(self.others.iter().map(|(_, item)| item))
    }

    /// Most of the room was removed since the table grew, so the cost per removal is constant.
    fn shrink(&mut self) {
        if has_idle_room(self.first.len(), self.first.capacity()) {
            self.first.shrink_to(2 * self.first.len());
        }
        if has_idle_room(self.others.len(), self.others.capacity()) {
            self.others.shrink_to(2 * self.others.len());
        }
    }

    /// Returns for how many items there is room.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.first.capacity() + self.others.capacity()
    }
}

fn has_idle_room(count: usize, room: usize) -> bool {
    room > MAX_IDLE && count < room / MAX_ROOM
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 1_000;

    /// A table with the numbers below [`COUNT`], and this many different hashes.
    fn table(hashes: u64) -> Table<u64> {
        let mut table = Table::new();
        (0..COUNT).for_each(|number| table.insert(number % hashes, number));
        table
    }

    #[test]
    fn items_are_found_and_removed_whatever_their_hashes() {
        for hashes in [1, 7, COUNT] {
            let mut table = table(hashes);
            assert_eq!(table.len(), COUNT as usize);
            assert!((0..COUNT).all(|number| table.find(number % hashes, |item| *item == number).is_some()));
            assert!(
                (0..COUNT).all(|number| table.find(number % hashes + 1, |item| *item == number).is_none())
            );
            *table.find_mut(0, |item| *item == 0).expect("the first item") += COUNT;
            for number in (1..COUNT).rev() {
                let hash = number % hashes;
                assert_eq!(table.remove(hash, |item| *item == number), Some(number));
                assert_eq!(table.remove(hash, |item| *item == number), None);
                assert!(table.find_mut(hash, |item| *item == number).is_none());
            }
            assert!(table.iter_mut().eq([(0, &mut COUNT.clone())]));
            assert!(table.items().eq([&COUNT]));
            assert!(table.into_items().eq([COUNT]));
        }
    }

    /// The first item of a hash may go before the others.
    #[test]
    fn each_item_is_there_once() {
        for removed in [0, 1, COUNT / 2, COUNT - 1] {
            let mut table = table(1);
            assert!(table.remove(0, |item| *item == removed).is_some());
            table.insert(0, removed);
            let mut numbers: Vec<_> = table.items().copied().collect();
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..COUNT));
            assert!(table.find(0, |item| *item == removed).is_some());
        }
    }

    #[test]
    fn a_table_with_room_for_many_more_items_shrinks() {
        for hashes in [1, COUNT] {
            let mut table = table(hashes);
            let room = table.room();
            assert!(room >= COUNT as usize);
            let mut removed = 0;
            // The inner table does not count all places from which items were removed as room.
            while table.room() > room / 2 {
                assert!(table.remove(removed % hashes, |item| *item == removed).is_some());
                removed += 1;
            }
            let left = table.len();
            assert!((room / 20..room / MAX_ROOM).contains(&left), "{left} left, room for {room}");
            (removed..COUNT).for_each(|number| _ = table.remove(number % hashes, |item| *item == number));
            assert!(table.len() == 0 && table.room() <= 2 * MAX_IDLE, "room for {}", table.room());
        }
    }

    #[test]
    fn a_small_table_keeps_its_room() {
        assert!(!has_idle_room(0, MAX_IDLE) && has_idle_room(0, MAX_IDLE + 1));
        let room = MAX_ROOM * MAX_IDLE;
        assert!(has_idle_room(MAX_IDLE - 1, room) && !has_idle_room(MAX_IDLE, room));
    }
}
