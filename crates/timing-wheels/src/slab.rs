//! The entries of a wheel that owns its values.

use alloc::vec::Vec;
use core::iter::Enumerate;
use core::num::NonZeroU32;
use core::slice;

use super::entries::Entries;
use super::key::Key;
use super::ring::{SizeError, try_array};

/// The end of the free list. All indices are less.
const NO_INDEX: u32 = u32::MAX;

/// A slab frees no memory unless it has more cells than this, and keeps this many: so the cells
/// that few entries use again and again do not raise the generation with which new cells start.
const MAX_IDLE_CELLS: usize = 1_024;

/// A slab tries to free memory while fewer than one in this many of its cells are used.
const MIN_USED: usize = 4;

/// Returns the number of entries below which a slab with this many cells tries to free memory. It
/// keeps the cells that the user has `reserved`.
#[inline]
fn trim_below(cells: usize, reserved: usize) -> usize {
    (cells + MIN_USED - 1).saturating_sub(reserved.max(MAX_IDLE_CELLS)) / MIN_USED
}

/// The highest generation with which new cells may start. It leaves them many generations, because
/// a cell without generations is never reused. A cell with a higher one, which was used two billion
/// times, is not freed.
const MAX_FIRST_GENERATION: u32 = u32::MAX / 2;

#[derive(Debug)]
struct Cell<T> {
    /// In a free cell but the first, the index of the free cell before it.
    deadline: u64,
    generation: NonZeroU32,
    /// The position that the wheel stores; in a free cell, the index of the next free cell.
    position: u32,
    /// `None` in a free cell.
    value: Option<T>,
}

impl<T> Cell<T> {
    fn is_used(&self) -> bool {
        self.value.is_some()
    }

    /// Whether it was used so often that it is not freed.
    fn is_worn(&self) -> bool {
        self.generation.get() > MAX_FIRST_GENERATION
    }

    fn entry(&self, index: u32) -> Option<(Key, u64, &T)> {
        let generation = self.generation;
        let key = Key { index, generation };
        Some((key, self.deadline, self.value.as_ref()?))
    }
}

/// The entries of a wheel: the key, the deadline and the value of each, in no particular order.
/// Made by [`HashedWheel::iter`](super::HashedWheel::iter) and
/// [`HierarchicalWheel::iter`](super::HierarchicalWheel::iter). `slab::Iter`.
#[derive(Debug)]
pub struct Iter<'a, T>(Enumerate<slice::Iter<'a, Cell<T>>>);

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = (Key, u64, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|(index, cell)| cell.entry(index as u32))
    }
}

/// An array of cells for entries, with generation-checked keys. A cell whose generations are used
/// up is not reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    cells: Vec<Cell<T>>,
    /// The first free cell.
    free: u32,
    len: usize,
    /// The number of cells whose memory is not freed, because the user has asked for it.
    reserved: usize,
    /// While fewer entries than this are left, memory may be freed.
    trim_below: usize,
    /// The generation with which new cells start. It is higher than all generations that keys of
    /// freed cells had.
    first_generation: NonZeroU32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            cells: Vec::new(),
            free: NO_INDEX,
            len: 0,
            reserved: 0,
            trim_below: 0,
            first_generation: NonZeroU32::MIN,
        }
    }

    /// Makes a slab with memory for at least this many entries, which it keeps.
    pub(crate) fn try_with_capacity(reserved: usize) -> Result<Self, SizeError> {
        Ok(Self {
            cells: try_array(reserved)?,
            reserved,
            ..Self::new()
        })
    }

    /// Adds an entry. Panics if there are 2^32 − 1 cells and none is free.
    #[inline]
    pub(crate) fn insert(&mut self, deadline: u64, value: T) -> Key {
        if self.free == NO_INDEX {
            let index = u32::try_from(self.cells.len()).unwrap_or(NO_INDEX);
            assert!(index < NO_INDEX, "a wheel holds at most 2^32 - 1 entries");
            let generation = self.first_generation;
            self.cells.push(Cell {
                deadline,
                generation,
                position: 0,
                value: Some(value),
            });
            self.trim_below = trim_below(self.cells.len(), self.reserved);
            self.len += 1;
            return Key { index, generation };
        }
        let index = self.free;
        let cell = &mut self.cells[index as usize];
        self.free = cell.position;
        cell.deadline = deadline;
        cell.value = Some(value);
        self.len += 1;
        Key {
            index,
            generation: cell.generation,
        }
    }

    /// Returns the value of an entry; `None` if the key is stale.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let cell = self.cells.get(key.index as usize)?;
        cell.value
            .as_ref()
            .filter(|_| cell.generation == key.generation)
    }

    /// Returns the value of an entry; `None` if the key is stale.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let cell = self.cells.get_mut(key.index as usize)?;
        cell.value
            .as_mut()
            .filter(|_| cell.generation == key.generation)
    }

    /// Returns the key, the deadline and the value of the entry at `index`; `None` if there is
    /// none.
    pub(crate) fn entry(&self, index: u32) -> Option<(Key, u64, &T)> {
        self.cells.get(index as usize)?.entry(index)
    }

    /// Returns the same as [`entry`](Self::entry), to modify the value.
    pub(crate) fn entry_mut(&mut self, index: u32) -> Option<(Key, u64, &mut T)> {
        let cell = self.cells.get_mut(index as usize)?;
        let generation = cell.generation;
        let key = Key { index, generation };
        Some((key, cell.deadline, cell.value.as_mut()?))
    }

    /// Returns all entries in no particular order.
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        Iter(self.cells.iter().enumerate())
    }

    /// Returns the number of entries for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.cells.capacity()
    }

    /// Returns the deadline of the entry at `index`, and the position that the wheel has stored.
    pub(crate) fn place(&self, index: u32) -> (u64, u32) {
        let cell = &self.cells[index as usize];
        (cell.deadline, cell.position)
    }

    /// Changes the deadline of the entry at `index`, which is not in the wheel.
    pub(crate) fn set_deadline(&mut self, index: u32, deadline: u64) {
        self.cells[index as usize].deadline = deadline;
    }

    /// Removes the entry at `index`. Panics if there is none.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let cell = &mut self.cells[index as usize];
        let value = cell
            .value
            .take()
            .expect("a wheel removes only entries that it contains");
        self.len -= 1;
        // A cell with the last generation is not reused: a later key would equal an earlier one.
        if let Some(next) = cell.generation.checked_add(1) {
            cell.generation = next;
            cell.position = self.free;
            if let Some(second) = self.cells.get_mut(self.free as usize) {
                second.deadline = index.into();
            }
            self.free = index;
        }
        if self.len < self.trim_below {
            self.trim(self.reserved.max(MAX_IDLE_CELLS));
        }
        value
    }

    /// Removes the entry at `index`, and returns its key and deadline too. Panics if there is none.
    pub(crate) fn remove_entry(&mut self, index: u32) -> (Key, u64, T) {
        let cell = &self.cells[index as usize];
        let (deadline, generation) = (cell.deadline, cell.generation);
        (Key { index, generation }, deadline, self.remove(index))
    }

    /// Frees the cells after the last one that is used, and gives up what was reserved.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.reserved = 0;
        self.trim(0);
        self.trim_below = trim_below(self.cells.len(), 0);
        self.cells.shrink_to_fit();
    }

    /// Frees the cells after the last one that is used, or was used too often. The first `kept`
    /// ones stay. Keys name cells, so a cell cannot move.
    ///
    /// The insertion of each cell pays for this, so the cost per removal is constant.
    #[cold]
    fn trim(&mut self, kept: usize) {
        let (mut len, mut generation) = (self.cells.len(), self.first_generation);
        while len > kept {
            let last = &self.cells[len - 1];
            if last.is_used() || last.is_worn() {
                break;
            }
            len -= 1;
            generation = generation.max(last.generation);
            let (before, next) = (last.deadline, last.position);
            // It leaves the list of free cells.
            if self.free as usize == len {
                self.free = next;
            } else {
                self.cells[before as usize].position = next;
                if let Some(next) = self.cells.get_mut(next as usize) {
                    next.deadline = before;
                }
            }
        }
        if len == self.cells.len() {
            return;
        }
        self.first_generation = generation;
        self.cells.truncate(len);
        self.trim_below = trim_below(self.cells.len(), self.reserved);
        if self.cells.len() <= self.cells.capacity() / 2 {
            self.cells.shrink_to(self.reserved);
        }
    }

    /// Removes all entries and returns their values, in no particular order.
    pub(crate) fn take(&mut self) -> Vec<T> {
        let mut values = Vec::with_capacity(self.len);
        for index in 0..self.cells.len() {
            // The removal of the last entry may free the cells, so check `len` first.
            if self.len > 0 && self.cells[index].value.is_some() {
                values.push(self.remove(index as u32));
            }
        }
        values
    }
}

impl<T> Entries for Slab<T> {
    fn deadline(&self, entry: u32) -> u64 {
        self.cells[entry as usize].deadline
    }

    fn set_position(&mut self, entry: u32, position: u32) {
        self.cells[entry as usize].position = position;
    }
}

#[cfg(test)]
mod tests;
