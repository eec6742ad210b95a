//! An array of entries in insertion order, in which a removal leaves a tombstone.

use super::entries::Entries;

/// An array with more capacity than this frees memory when it becomes empty or nearly empty.
///
/// The bound is small because each occupied slot has an array of its own.
const MAX_IDLE_CAPACITY: usize = 64;

/// An element of a [`TombstoneVec`]: an entry, possibly with data that is stored next to it, or a
/// tombstone.
pub(super) trait Item: Copy {
    /// The item that replaces a removed entry.
    const TOMBSTONE: Self;

    /// Returns the number of the entry; `u32::MAX` for a tombstone.
    fn entry(self) -> u32;
}

impl Item for u32 {
    const TOMBSTONE: u32 = u32::MAX;

    fn entry(self) -> u32 {
        self
    }
}

/// A dense array of entries.
///
/// A removal leaves a tombstone, so that the order and the positions of the other entries do not
/// change. [`compact`](Self::compact) removes the tombstones once they are more than half of the
/// array.
#[derive(Debug)]
pub(super) struct TombstoneVec<T = u32> {
    items: Vec<T>,
    tombstones: usize,
}

impl<T> Default for TombstoneVec<T> {
    fn default() -> Self {
        Self { items: Vec::new(), tombstones: 0 }
    }
}

impl<T: Item> TombstoneVec<T> {
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

    /// Appends an entry and returns its position.
    // Inlined, as its callers are: then the cache misses of one insertion overlap.
    #[inline]
    pub(super) fn push(&mut self, item: T) -> u32 {
        let position = u32::try_from(self.items.len()).expect("fewer than 2^32 entries and tombstones");
        self.items.push(item);
        position
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

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
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
    pub(super) fn leave_tombstone(&mut self, position: usize) {
        self.items[position] = T::TOMBSTONE;
        self.tombstones += 1;
    }

    /// Removes all entries and tombstones.
    pub(super) fn clear(&mut self) {
        clear_and_trim(&mut self.items);
        self.tombstones = 0;
    }

    /// Removes the tombstones at the end, and all others if they are more than half of the array.
    /// Calls `moved` with each entry that moves and its new position. Returns whether it removed
    /// tombstones from the middle.
    #[inline]
    pub(super) fn compact(&mut self, moved: impl FnMut(u32, u32)) -> bool {
        while self.items.last().is_some_and(|&last| entry(last).is_none()) {
            self.items.pop();
            self.tombstones -= 1;
        }
        let removes_all = self.tombstones > self.items.len() / 2;
        if removes_all {
            self.remove_tombstones(moved);
        }
        shrink_if_sparse(&mut self.items);
        removes_all
    }

    /// Removes all tombstones. Calls `moved` with each entry that moves and its new position.
    #[inline]
    pub(super) fn remove_tombstones(&mut self, mut moved: impl FnMut(u32, u32)) {
        let mut to = 0;
        for from in 0..self.items.len() {
            let item = self.items[from];
            let Some(entry) = entry(item) else { continue };
            if from != to {
                self.items[to] = item;
                moved(entry, to as u32);
            }
            to += 1;
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
