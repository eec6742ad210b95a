//! The items of a shard, in a hash table that stores the hash of each.
//!
//! An item is *alive* until its deadline. The clock decides that, and not the timer, which is up to
//! a tick late. A dead item stays where it is until its task takes it, and no call finds it. With a
//! limit it is removed when a new item needs its place, because dead items count for the limit too.
//!
//! The items are in the slots themselves. So when they have left, their memory is free for the
//! whole process, and not only inside the allocator.
//!
//! It never asks for a hash, also when it grows or shrinks. The callers' tests find an item among
//! those with the same hash. They are the only user code that may run in the table, and each runs
//! before the table changes.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use hashbrown::HashTable;
use hashed_wheel::Timeout;

use super::item::Item;
use super::room::{MAX_IDLE, smaller_room};
use super::time::Now;

/// How many used items in a row an eviction passes over.
const MAX_CHANCES: usize = 64;

pub(super) struct Table<K, V> {
    items: HashTable<Item<K, V>>,
    /// The present. See [`see`](Self::see).
    now: Now,
    limit: Limit,
    /// The weight of all items.
    weight: u64,
    /// The number of the next item.
    next: u16,
    /// The order of eviction. That of a table without a limit is empty.
    order: VecDeque<Place>,
    /// At least one for each item, not later than its deadline. Without a limit there are none.
    deadlines: BinaryHeap<Reverse<(u64, Place)>>,
}

/// How many items there may be, and how much they may weigh together.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) entries: Option<usize>,
    pub(super) weight: Option<u64>,
}

/// Where an item is. An item that has left the table leaves its places behind in the order of
/// eviction and in the deadlines. (Another item is taken for it only if it has the same hash, and
/// 2^16 items came in between. Then that one may be evicted early.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    hash: u64,
    number: u16,
}

impl Place {
    fn of<K, V>(item: &Item<K, V>) -> Self {
        let Item { hash, number, .. } = *item;
        Self { hash, number }
    }

    fn has<K, V>(self, item: &Item<K, V>) -> bool {
        item.number == self.number
    }
}

impl<K, V> Table<K, V> {
    pub(super) fn new(limit: Limit) -> Self {
        Self {
            items: HashTable::new(),
            now: Now::default(),
            limit,
            weight: 0,
            next: 0,
            order: VecDeque::new(),
            deadlines: BinaryHeap::new(),
        }
    }

    /// Sets the present to the time that a call has read before it took the lock. It does not go
    /// back: otherwise a call that has waited for the lock could still find an item alive that
    /// another call has found dead.
    pub(super) fn see(&mut self, now: Now) {
        self.now = self.now.max(now);
    }

    /// The present, as the last call has seen it.
    pub(super) fn now(&self) -> Now {
        self.now
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn has_limit(&self) -> bool {
        self.limit.entries.is_some() || self.limit.weight.is_some()
    }

    /// Finds the living item with this hash that passes the test.
    pub(super) fn find(
        &mut self,
        hash: u64,
        test: impl Fn(&Item<K, V>) -> bool,
    ) -> Option<&mut Item<K, V>> {
        let now = self.now;
        self.items
            .find_mut(hash, |item| item.is_alive(now) && test(item))
    }

    /// Finds the item of a timeout, alive or dead.
    pub(super) fn find_own(&mut self, hash: u64, own: &Timeout) -> Option<&mut Item<K, V>> {
        self.items.find_mut(hash, |item| item.is_of(own))
    }

    /// Returns the timeout of an item with this hash, if it has ended.
    pub(super) fn ended(&self, hash: u64) -> Option<Timeout> {
        let ended = self.items.find(hash, Item::has_ended);
        ended.map(|item| item.timeout().clone())
    }

    /// Inserts an item whose key is free. Returns items for which there is no room.
    pub(super) fn insert(&mut self, mut item: Item<K, V>) -> Vec<Item<K, V>> {
        let mut removed = Vec::new();
        if self.has_limit() {
            // First, so that it does not evict the new item.
            while self.is_full(u64::from(item.weight)) {
                let fits = self
                    .limit
                    .weight
                    .is_none_or(|most| u64::from(item.weight) <= most);
                let is_useful = item.is_alive(self.now) && fits;
                let other = self.take_dead();
                match other.or_else(|| is_useful.then(|| self.evict())?) {
                    Some(other) => removed.push(other),
                    None => {
                        removed.push(item);
                        return removed;
                    }
                }
            }
            item.is_used = false;
            item.number = self.next;
            self.next = self.next.wrapping_add(1);
            self.weight += u64::from(item.weight);
            self.order.push_back(Place::of(&item));
        }
        let (place, deadline) = (Place::of(&item), item.deadline);
        self.items.insert_unique(place.hash, item, |item| item.hash);
        self.hasten(place.hash, place.number, deadline);
        removed
    }

    /// Whether there is no room for an item of this weight.
    fn is_full(&self, weight: u64) -> bool {
        let Limit {
            entries,
            weight: most,
        } = self.limit;
        entries.is_some_and(|most| self.len() >= most)
            || most.is_some_and(|most| self.weight + weight > most)
    }

    /// An item has a new deadline, perhaps an earlier one.
    pub(super) fn hasten(&mut self, hash: u64, number: u16, deadline: u64) {
        if self.has_limit() {
            let place = Place { hash, number };
            self.deadlines.push(Reverse((deadline, place)));
            self.trim();
        }
    }

    /// Removes an item that was not used recently.
    fn evict(&mut self) -> Option<Item<K, V>> {
        let mut chances = MAX_CHANCES;
        loop {
            let place = self.order.pop_front()?;
            let Some(found) = self.items.find_mut(place.hash, |item| place.has(item)) else {
                continue;
            };
            if chances == 0 || !mem::take(&mut found.is_used) {
                return self.remove(place.hash, |item| place.has(item));
            }
            chances -= 1;
            self.order.push_back(place);
        }
    }

    /// Removes a dead item.
    fn take_dead(&mut self) -> Option<Item<K, V>> {
        loop {
            let mut first = self.deadlines.peek_mut()?;
            let Reverse((deadline, place)) = *first;
            if deadline > self.now.earliest {
                return None;
            }
            match self.items.find(place.hash, |item| place.has(item)) {
                // It was touched.
                Some(found) if found.is_alive(self.now) => first.0.0 = found.deadline,
                found => {
                    PeekMut::pop(first);
                    if found.is_some() {
                        return self.remove(place.hash, |item| place.has(item));
                    }
                }
            }
        }
    }

    /// Removes the living item with this hash that passes the test.
    pub(super) fn remove_living(
        &mut self,
        hash: u64,
        test: impl Fn(&Item<K, V>) -> bool,
    ) -> Option<Item<K, V>> {
        let now = self.now;
        self.remove(hash, |item| item.is_alive(now) && test(item))
    }

    /// Removes the item with this hash that passes the test, alive or dead. Frees room that is not
    /// needed.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        test: impl Fn(&Item<K, V>) -> bool,
    ) -> Option<Item<K, V>> {
        let found = self.items.find_entry(hash, |item| test(item));
        let (item, _) = found.ok()?.remove();
        self.weight -= u64::from(item.weight);
        self.free_room();
        self.trim();
        Some(item)
    }

    /// Frees room that is not needed.
    fn free_room(&mut self) {
        if let Some(room) = smaller_room(self.len(), self.room()) {
            self.items.shrink_to(room, |item| item.hash);
        }
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
        order.retain(|place| items.find(place.hash, |item| place.has(item)).is_some());
        order.shrink_to(2 * items.len());
        self.deadlines = items
            .iter()
            .map(|item| Reverse((item.deadline, Place::of(item))))
            .collect();
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Item<K, V>> {
        self.items.iter().filter(|item| item.is_alive(self.now))
    }

    /// Removes the items that pass the test, which gets the present too.
    pub(super) fn take(
        &mut self,
        mut test: impl FnMut(&mut Item<K, V>, Now) -> bool,
    ) -> Vec<Item<K, V>> {
        // First all tests, because one may panic.
        let items = self.items.iter_mut();
        let passed: Vec<_> = items.map(|item| test(item, self.now)).collect();
        let mut passed = passed.into_iter();
        let taken = self.items.extract_if(|_| passed.next() == Some(true));
        let taken: Vec<_> = taken.collect();
        self.weight -= taken.iter().map(|item| u64::from(item.weight)).sum::<u64>();
        self.free_room();
        if self.has_limit() {
            self.drop_places();
        }
        taken
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
