//! An array of entries in insertion order, in which a removal leaves a tombstone.

use alloc::vec::Vec;

use super::entries::Entries;
use super::short_list::FIRST_POSITION;

/// An array with more capacity than this frees memory when it becomes empty or nearly empty.
///
/// The bound is small because each occupied slot has an array of its own.
const MAX_IDLE_CAPACITY: usize = 64;

/// The first capacity of an array that its owner [prepares](TombstoneVec::prepare). With that of a
/// `Vec`, which is four, the growth of the arrays is a fifth of the time in which a new wheel is
/// filled.
const FIRST_CAPACITY: usize = 16;

/// An element of a [`TombstoneVec`]: an entry, possibly with data that is stored next to it, or a
/// tombstone.
pub(super) trait Item: Copy {
    /// The item that replaces a removed entry.
    const TOMBSTONE: Self;

    /// The number of positions that an array can have.
    const POSITIONS: u64;

    /// Returns the number of the entry; `u32::MAX` for a tombstone.
    fn entry(self) -> u32;
}

impl Item for u32 {
    const TOMBSTONE: u32 = u32::MAX;

    // Higher ones are those of a `ShortList`.
    const POSITIONS: u64 = FIRST_POSITION as u64;

    fn entry(self) -> u32 {
        self
    }
}

/// A dense array of entries.
///
/// A removal leaves a tombstone, so that the order and the positions of the other entries do not
/// change. [`compact`](Self::compact) removes the tombstones once they are more than half of the
/// array.
#[derive(Debug, Default)]
pub(super) struct TombstoneVec<T = u32> {
    items: Vec<T>,
    tombstones: usize,
}

impl<T: Item> TombstoneVec<T> {
    pub(super) const fn new() -> Self {
        Self {
            items: Vec::new(),
            tombstones: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries, without tombstones.
    pub(super) fn len(&self) -> usize {
        self.items.len() - self.tombstones
    }

    /// Returns the number of positions: entries and tombstones.
    pub(super) fn position_count(&self) -> usize {
        self.items.len()
    }

    /// Allocates memory for the first items of an empty array.
    #[inline]
    pub(super) fn prepare(&mut self) {
        self.items.reserve(FIRST_CAPACITY);
    }

    /// Appends an entry and returns its position.
    // Inlined, as its callers are: then the cache misses of one insertion overlap.
    #[inline]
    pub(super) fn push(&mut self, item: T) -> u32 {
        let position = self.items.len();
        assert!(
            (position as u64) < T::POSITIONS,
            "too many entries and tombstones"
        );
        self.items.push(item);
        position as u32
    }

    /// Returns the entry at `position`; `None` for a tombstone and for a position past the end.
    pub(super) fn get(&self, position: usize) -> Option<u32> {
        self.items.get(position).and_then(|&item| entry(item))
    }

    /// Prefetches the entry at `position`, if there is one.
    pub(super) fn prefetch(&self, position: usize, entries: &impl Entries) {
        if let Some(entry) = self.get(position) {
            entries.prefetch(entry);
        }
    }

    /// Prefetches what the entry at `position` refers to, if there is one.
    pub(super) fn prefetch_target(&self, position: usize, entries: &impl Entries) {
        if let Some(entry) = self.get(position) {
            entries.prefetch_target(entry);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.items.iter().copied().filter_map(entry)
    }

    /// Returns all items, including tombstones.
    pub(super) fn items(&self) -> &[T] {
        &self.items
    }

    /// Returns all items, including tombstones. The caller may modify or reorder them, but must use
    /// [`leave_tombstone`](Self::leave_tombstone) to make a tombstone, because tombstones are
    /// counted.
    pub(super) fn items_mut(&mut self) -> &mut [T] {
        &mut self.items
    }

    /// Replaces the entry at `position` with a tombstone.
    #[inline]
    pub(super) fn leave_tombstone(&mut self, position: usize) {
        self.items[position] = T::TOMBSTONE;
        self.tombstones += 1;
    }

    /// Removes the entry at `position` from an array that is compact. Returns whether the array is
    /// not compact any more: then the caller calls [`compact`](Self::compact).
    #[inline]
    pub(super) fn remove_at(&mut self, position: usize) -> bool {
        if position + 1 == self.items.len() {
            self.items.pop();
            return true;
        }
        self.leave_tombstone(position);
        self.tombstones > self.items.len() / 2
    }

    /// Removes all entries and tombstones.
    pub(super) fn clear(&mut self) {
        clear_and_trim(&mut self.items);
        self.tombstones = 0;
    }

    /// Removes the tombstones at the end, and all others if they are more than half of the array.
    /// Returns whether it removed tombstones from the middle.
    #[inline]
    pub(super) fn compact(&mut self, entries: &mut impl Entries) -> bool {
        while self.items.last().is_some_and(|&last| entry(last).is_none()) {
            self.items.pop();
            self.tombstones -= 1;
        }
        let removes_all = self.tombstones > self.items.len() / 2;
        if removes_all {
            self.remove_tombstones(entries);
        }
        shrink_if_sparse(&mut self.items);
        removes_all
    }

    /// Removes all tombstones.
    // Not in `compact`, which is called more often.
    #[inline(never)]
    pub(super) fn remove_tombstones(&mut self, entries: &mut impl Entries) {
        let mut to = 0;
        for from in 0..self.items.len() {
            let item = self.items[from];
            if let Some(entry) = entry(item) {
                if from != to {
                    self.items[to] = item;
                    entries.set_position(entry, to as u32);
                }
                to += 1;
            }
        }
        self.items.truncate(to);
        self.tombstones = 0;
    }
}

fn entry(item: impl Item) -> Option<u32> {
    Some(item.entry()).filter(|&entry| entry != u32::TOMBSTONE)
}

/// Empties `vec`, and frees its memory if the capacity is more than [`MAX_IDLE_CAPACITY`].
pub(super) fn clear_and_trim<T>(vec: &mut Vec<T>) {
    vec.clear();
    if vec.capacity() > MAX_IDLE_CAPACITY {
        *vec = Vec::new();
    }
}

/// Reduces the capacity of `vec` if it is more than [`MAX_IDLE_CAPACITY`] and less than a quarter
/// of it is in use.
#[inline]
pub(super) fn shrink_if_sparse<T: Copy>(vec: &mut Vec<T>) {
    if vec.capacity() > MAX_IDLE_CAPACITY && vec.len() < vec.capacity() / 4 {
        // Copy instead of `shrink_to_fit`: the allocator can reuse a whole block better than the
        // cut-off end of one.
        *vec = vec.as_slice().into();
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::TestEntries;
    use super::*;

    /// Makes an array of `len` entries, in which the first `tombstones` were removed.
    fn vec_with_tombstones(len: usize, tombstones: usize) -> TombstoneVec {
        let mut vec = TombstoneVec::default();
        (0..len as u32).for_each(|entry| assert_eq!(vec.push(entry), entry));
        (0..tombstones).for_each(|position| vec.leave_tombstone(position));
        vec
    }

    /// They panic if an entry gets another position.
    fn no_entry_moves() -> TestEntries {
        TestEntries::new([])
    }

    #[test]
    fn compact_removes_tombstones_from_the_middle_if_they_are_more_than_half() {
        for len in [4, 5, 64] {
            let half = len / 2;
            let mut vec = vec_with_tombstones(len, half);
            assert!(!vec.compact(&mut no_entry_moves()));
            assert_eq!((vec.position_count(), vec.len()), (len, len - half));
            assert!(vec.remove_at(half));
            let mut entries = TestEntries::new(0..len as u64);
            assert!(vec.compact(&mut entries));
            let left: Vec<_> = (half as u32 + 1..len as u32).collect();
            let positions = left.iter().map(|&entry| entries.position(entry));
            assert!(positions.eq(0..left.len() as u32));
            assert_eq!(
                (vec.position_count(), vec.iter().collect::<Vec<_>>()),
                (left.len(), left)
            );
        }
    }

    #[test]
    fn compact_removes_tombstones_at_the_end() {
        let mut vec = vec_with_tombstones(8, 0);
        assert!(!vec.remove_at(6));
        assert!(vec.remove_at(7));
        assert!(!vec.compact(&mut no_entry_moves()));
        assert_eq!((vec.position_count(), vec.len()), (6, 6));
    }

    #[test]
    fn clear_keeps_only_a_small_array() {
        for (capacity, kept) in [
            (MAX_IDLE_CAPACITY, MAX_IDLE_CAPACITY),
            (MAX_IDLE_CAPACITY + 1, 0),
        ] {
            let mut vec = Vec::with_capacity(capacity);
            vec.push(0);
            clear_and_trim(&mut vec);
            assert_eq!((vec.len(), vec.capacity()), (0, kept));
        }
    }

    #[test]
    fn large_array_shrinks_if_less_than_a_quarter_is_in_use() {
        for (capacity, len, shrinks) in [
            (MAX_IDLE_CAPACITY, 0, false),
            (MAX_IDLE_CAPACITY + 1, 15, true),
            (400, 100, false),
            (400, 99, true),
        ] {
            let mut vec = Vec::with_capacity(capacity);
            vec.extend(0..len);
            shrink_if_sparse(&mut vec);
            assert_eq!(vec.capacity(), if shrinks { len } else { capacity });
            assert!(vec.into_iter().eq(0..len));
        }
    }

    #[test]
    fn only_an_entry_is_prefetched() {
        let (vec, entries) = (vec_with_tombstones(3, 1), TestEntries::default());
        (0..4).for_each(|position| vec.prefetch(position, &entries));
        assert_eq!(*entries.prefetched.borrow(), [1, 2]);
    }
}
