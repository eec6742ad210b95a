//! The list of entries that are due.

use super::entries::Entries;
use super::tombstone_vec::{Item, TombstoneVec};

/// How many positions ahead [`ReadyList::pop`] prefetches an entry, so that the cache misses of the
/// entries overlap.
const ENTRIES_AHEAD: usize = 64;

/// How many positions ahead it prefetches what an entry refers to. The entry, which says where that
/// is, has arrived by then.
const TARGETS_AHEAD: usize = 16;

/// The entries whose deadline has been reached, in the order in which they leave the wheel.
///
/// It contains entries whose deadline had already passed on insertion, and entries that [`advance`]
/// took from slots.
///
/// [`advance`]: super::hashed::Hashed::advance
#[derive(Debug)]
pub(super) struct ReadyList<T = u32> {
    items: TombstoneVec<T>,
    /// All positions before this one are tombstones.
    front: usize,
}

impl<T: Item> ReadyList<T> {
    pub(super) const fn new() -> Self {
        Self {
            items: TombstoneVec::new(),
            front: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the entry that leaves the wheel next.
    pub(super) fn first(&self) -> Option<u32> {
        (self.front..self.items.position_count()).find_map(|position| self.items.get(position))
    }

    /// Returns the same as [`first`](Self::first), in amortised constant time: no later call looks
    /// at the tombstones before that entry.
    #[inline]
    pub(super) fn skip_to_first(&mut self) -> Option<u32> {
        let mut positions = self.front..self.items.position_count();
        self.front = positions.find(|&position| self.items.get(position).is_some())?;
        self.items.get(self.front)
    }

    /// Appends an entry and returns its position.
    pub(super) fn push(&mut self, item: T) -> u32 {
        self.items.push(item)
    }

    /// Swaps the list with `items` if the list is empty, so that no entry has to move. Returns
    /// whether it did.
    ///
    /// All of `items` are due at the same tick. Their positions stay valid.
    pub(super) fn swap_if_empty(
        &mut self,
        items: &mut TombstoneVec<T>,
        entries: &impl Entries,
    ) -> bool {
        let is_empty = self.items.is_empty();
        if is_empty {
            core::mem::swap(&mut self.items, items);
            let first = self.items.items().iter().take(ENTRIES_AHEAD);
            let first = first.filter(|item| item.entry() != T::TOMBSTONE.entry());
            first.for_each(|item| entries.prefetch(item.entry()));
        }
        is_empty
    }

    /// Returns the number of positions, which is the position of the next entry that is pushed.
    pub(super) fn position_count(&self) -> usize {
        self.items.position_count()
    }

    /// Sorts the entries at and after position `start` by deadline. The sort is stable.
    pub(super) fn sort_from(&mut self, start: usize, entries: &mut impl Entries) {
        let pushed = &mut self.items.items_mut()[start..];
        pushed.sort_by_cached_key(|item| entries.deadline(item.entry()));
        for (position, item) in (start as u32..).zip(&*pushed) {
            entries.set_position(item.entry(), position);
        }
    }

    /// Sorts all entries by a key, which is read once per entry. The sort is stable.
    pub(super) fn sort_by_key(&mut self, key: impl Fn(u32) -> u64, entries: &mut impl Entries) {
        self.items.remove_tombstones(entries);
        self.front = 0;
        self.items
            .items_mut()
            .sort_by_cached_key(|item| key(item.entry()));
        for (position, entry) in (0..).zip(self.items.iter()) {
            entries.set_position(entry, position);
        }
    }

    /// Replaces the entry at `position` with a tombstone.
    fn leave_tombstone(&mut self, position: usize) {
        self.items.leave_tombstone(position);
        if self.items.is_empty() {
            self.clear();
        }
    }

    /// Removes the entry at `position`.
    pub(super) fn remove_at(&mut self, position: usize, entries: &mut impl Entries) {
        self.leave_tombstone(position);
        self.compact(entries);
    }

    /// Removes tombstones as [`TombstoneVec::compact`] does.
    #[inline]
    pub(super) fn compact(&mut self, entries: &mut impl Entries) {
        if self.items.position_count() > 0 && self.items.compact(entries) {
            self.front = 0;
        }
    }

    /// Removes the first entry.
    ///
    /// It leaves a tombstone, so that no other entry moves. [`compact`](Self::compact) removes the
    /// tombstones; if all entries are popped, the list is cleared instead.
    #[inline]
    pub(super) fn pop(&mut self, entries: &impl Entries) -> Option<u32> {
        // (An empty list has no tombstones either.)
        while let Some(item) = self.items.items().get(self.front) {
            let (position, entry) = (self.front, item.entry());
            self.front += 1;
            self.items.prefetch(position + ENTRIES_AHEAD, entries);
            self.items
                .prefetch_target(position + TARGETS_AHEAD, entries);
            if entry != T::TOMBSTONE.entry() {
                self.leave_tombstone(position);
                return Some(entry);
            }
        }
        None
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.items.iter()
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.front = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::TestEntries;
    use super::*;

    /// Makes a list of `len` entries.
    fn list(len: u32) -> (ReadyList, TestEntries) {
        let mut list = ReadyList::new();
        let mut entries = TestEntries::new((0..len).map(u64::from));
        (0..len).for_each(|entry| entries.set_position(entry, list.push(entry)));
        (list, entries)
    }

    #[test]
    fn empty_list_is_swapped() {
        let (mut list, entries) = list(2);
        let mut items = TombstoneVec::new();
        items.push(7);
        assert!(!list.swap_if_empty(&mut items, &entries));
        assert_eq!((list.len(), items.len()), (2, 1));
        list.clear();
        assert!(list.swap_if_empty(&mut items, &entries));
        assert_eq!((list.first(), items.len()), (Some(7), 0));
        assert_eq!(*entries.prefetched.borrow(), [7]);
    }

    #[test]
    fn compact_removes_the_tombstones_of_popped_entries() {
        let (mut list, mut entries) = list(8);
        for entry in 0..5 {
            assert_eq!(list.pop(&entries), Some(entry));
        }
        assert_eq!(list.position_count(), 8);
        list.compact(&mut entries);
        assert_eq!((list.position_count(), list.len()), (3, 3));
        assert_eq!((list.first(), entries.position(5)), (Some(5), 0));
        list.remove_at(entries.position(6) as usize, &mut entries);
        assert_eq!(
            [(); 3].map(|()| list.pop(&entries)),
            [Some(5), Some(7), None]
        );
    }

    #[test]
    fn pop_prefetches_a_later_entry_and_then_what_it_refers_to() {
        let [later, soon] = [ENTRIES_AHEAD as u32, TARGETS_AHEAD as u32];
        let (mut list, entries) = list(later + 4);
        list.pop(&entries);
        list.pop(&entries);
        assert_eq!(*entries.prefetched.borrow(), [later, later + 1]);
        assert_eq!(*entries.targets.borrow(), [soon, soon + 1]);
    }

    #[test]
    fn tombstones_before_the_first_entry_are_skipped_once() {
        let (mut list, mut entries) = list(8);
        for entry in 0..3 {
            assert_eq!(
                (list.skip_to_first(), list.front),
                (Some(entry), entry as usize)
            );
            list.remove_at(entry as usize, &mut entries);
        }
        assert_eq!((list.skip_to_first(), list.front), (Some(3), 3));
        assert_eq!(
            (list.pop(&entries), list.skip_to_first()),
            (Some(3), Some(4))
        );
        list.clear();
        assert_eq!((list.skip_to_first(), list.front), (None, 0));
    }
}
