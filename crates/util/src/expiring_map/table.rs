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
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::mem;
use std::task::Waker;

use equivalent::Equivalent;
use hashbrown::HashTable;
use hashed_wheel::Timeout;

use super::cause::Removed;
use super::item::Item;
use super::room::{MAX_IDLE, smaller_room};
use super::time::Now;

/// How many used items in a row an eviction passes over.
const MAX_CHANCES: usize = 64;

pub(super) struct Table<K, V> {
    items: HashTable<Item<K, V>>,
    /// The reserved keys, by their hashes.
    pub(super) reserved: BTreeMap<u64, Reserved<K, V>>,
    /// The present, as the last call has seen it.
    pub(super) now: Now,
    pub(super) limit: Option<Limit>,
    /// The weight of all items.
    weight: u64,
    /// The number of the next item.
    next: u16,
    /// The order of eviction. That of a table without a limit is empty.
    order: VecDeque<Place>,
    /// At least one for each item, not later than its deadline. Without a limit there are none.
    deadlines: BinaryHeap<Reverse<(u64, Place)>>,
}

/// What waits for a reserved key.
pub(super) struct Reserved<K, V> {
    /// The entries that leave the map when it is free, in their order.
    pub(super) next: VecDeque<Removed<K, V>>,
    /// Those of the calls that wait.
    pub(super) waiters: Vec<Waker>,
    /// The timer asks again for the items of these.
    pub(super) timeouts: Vec<Timeout>,
    /// A thread is giving one of the entries to the output.
    pub(super) is_passing_on: bool,
    /// Meanwhile the output has done with that entry.
    pub(super) has_ended: bool,
}

/// How many items there may be, and how much they may weigh together.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) entries: usize,
    pub(super) weight: u64,
}

/// Where an item is. An item that has left the table leaves its places behind in the order of
/// eviction and in the deadlines. (Another item is taken for it only if it has the same hash, and
/// 2^16 items came in between. Then that one may be evicted early.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    hash: u64,
    number: u16,
}

impl Place {
    pub(super) fn of<K, V>(item: &Item<K, V>) -> Self {
        let Item { hash, number, .. } = *item;
        Self { hash, number }
    }

    fn has<K, V>(self, item: &Item<K, V>) -> bool {
        item.number == self.number
    }
}

impl<K, V> Table<K, V> {
    pub(super) fn new(limit: Option<Limit>) -> Self {
        Self {
            items: HashTable::new(),
            reserved: BTreeMap::new(),
            now: Now::default(),
            limit,
            weight: 0,
            next: 0,
            order: VecDeque::new(),
            deadlines: BinaryHeap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Finds the living item under this key.
    pub(super) fn find(
        &mut self,
        hash: u64,
        key: &(impl Equivalent<K> + ?Sized),
    ) -> Option<&mut Item<K, V>> {
        let now = self.now;
        let test = |item: &Item<K, V>| item.is_alive(now) && key.equivalent(&item.key);
        self.items.find_mut(hash, test)
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
        if let Some(limit) = self.limit {
            let weight = u64::from(item.weight);
            // First, so that it does not evict the new item.
            while self.len() >= limit.entries || self.weight + weight > limit.weight {
                let is_useful = item.is_alive(self.now) && weight <= limit.weight;
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
            self.weight += weight;
            self.order.push_back(Place::of(&item));
        }
        let (place, deadline) = (Place::of(&item), item.deadline);
        self.items.insert_unique(place.hash, item, |item| item.hash);
        self.hasten(place, deadline);
        removed
    }

    /// An item has a new deadline, perhaps an earlier one.
    pub(super) fn hasten(&mut self, place: Place, deadline: u64) {
        if self.limit.is_some() {
            self.deadlines.push(Reverse((deadline, place)));
            self.trim();
        }
    }

    /// Removes an item that was not used recently.
    fn evict(&mut self) -> Option<Item<K, V>> {
        let mut chances = MAX_CHANCES;
        loop {
            let place = self.order.pop_front()?;
            let found = self.items.find_mut(place.hash, |item| place.has(item));
            match found.map(|item| mem::take(&mut item.is_used)) {
                None => {}
                Some(true) if chances > 0 => {
                    chances -= 1;
                    self.order.push_back(place);
                }
                Some(_) => return self.remove(place.hash, |item| place.has(item)),
            }
        }
    }

    /// Removes a dead item.
    fn take_dead(&mut self) -> Option<Item<K, V>> {
        loop {
            let &Reverse((deadline, place)) = self.deadlines.peek()?;
            if deadline > self.now.earliest {
                return None;
            }
            self.deadlines.pop();
            match self.items.find(place.hash, |item| place.has(item)) {
                None => {}
                // It was touched.
                Some(item) if item.is_alive(self.now) => {
                    self.deadlines.push(Reverse((item.deadline, place)));
                }
                Some(_) => return self.remove(place.hash, |item| place.has(item)),
            }
        }
    }

    /// Removes the living item under this key.
    pub(super) fn remove_living(
        &mut self,
        hash: u64,
        key: &(impl Equivalent<K> + ?Sized),
    ) -> Option<Item<K, V>> {
        let now = self.now;
        self.remove(hash, |item| item.is_alive(now) && key.equivalent(&item.key))
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

    /// Removes the items that pass the test. It also gets whether the item is alive and its key is
    /// not reserved, and it may be user code.
    pub(super) fn take(
        &mut self,
        mut test: impl FnMut(&mut Item<K, V>, bool) -> bool,
    ) -> Vec<Item<K, V>> {
        let passes = |item: &mut Item<K, V>| {
            let is_free = item.is_alive(self.now) && !self.reserved.contains_key(&item.hash);
            test(item, is_free)
        };
        // First all tests, because one may panic.
        let passed: Vec<_> = self.items.iter_mut().map(passes).collect();
        let mut passed = passed.into_iter();
        let taken = self.items.extract_if(|_| passed.next() == Some(true));
        let taken: Vec<_> = taken.collect();
        self.weight -= taken.iter().map(|item| u64::from(item.weight)).sum::<u64>();
        self.free_room();
        if self.limit.is_some() {
            self.drop_places();
        }
        taken
    }

    /// If the key is reserved, leaves a waker that is called when it is free.
    pub(super) fn wait(&mut self, hash: u64, waker: &mut Option<Waker>) -> bool {
        let Some(reserved) = self.reserved.get_mut(&hash) else {
            return false;
        };
        let is_known = |known: &Waker| waker.as_ref().is_some_and(|new| new.will_wake(known));
        if !reserved.waiters.iter().any(is_known) {
            reserved.waiters.extend(waker.take());
        }
        true
    }

    /// If the key is reserved, the timer asks for the item of this timeout when it is free.
    pub(super) fn ask_later(&mut self, hash: u64, own: &Timeout) {
        let reserved = self.reserved.get_mut(&hash);
        if let Some(reserved) = reserved.filter(|reserved| !reserved.timeouts.contains(own)) {
            reserved.timeouts.push(own.clone());
        }
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
