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

/// A slab frees no memory unless it has more cells than this, and keeps the first ones then: those
/// that few entries use again and again, so that their generations are no others'.
const MAX_IDLE_CELLS: usize = 1_024;

/// A slab tries to free memory while fewer than one in this many of its cells are used.
const MIN_USED: usize = 4;

/// Each removal pays for this many cells then: see [`Slab::trim`].
const CELLS_PER_REMOVAL: usize = 16;

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
    deadline: u64,
    generation: NonZeroU32,
    /// The position that the wheel stores; in a free cell, the index of the next free cell.
    position: u32,
    /// `None` in a free cell.
    value: Option<T>,
}

impl<T> Cell<T> {
    fn is_kept(&self) -> bool {
        self.value.is_some() || self.generation.get() > MAX_FIRST_GENERATION
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
    /// How many cells may be looked at in the search for the last one that is used.
    paid: usize,
    /// The last cell that had to stay in the last search.
    last_used: usize,
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
            paid: 0,
            last_used: usize::MAX,
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
        let Cell {
            deadline, position, ..
        } = self.cells[index as usize];
        (deadline, position)
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
            self.free = index;
        }
        if self.len < self.trim_below {
            self.trim();
        }
        value
    }

    /// Removes the entry at `index`, and returns its key and deadline too. Panics if there is none.
    pub(crate) fn remove_entry(&mut self, index: u32) -> (Key, u64, T) {
        let Cell {
            deadline,
            generation,
            ..
        } = self.cells[index as usize];
        (Key { index, generation }, deadline, self.remove(index))
    }

    /// Returns the number of cells up to the last one that has to stay.
    fn used(&self) -> usize {
        self.cells
            .iter()
            .rposition(Cell::is_kept)
            .map_or(0, |last| last + 1)
    }

    /// Frees the cells after the last one that is used, and gives up what was reserved.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.reserved = 0;
        self.truncate(self.used());
    }

    /// Frees the cells after the last one that is used, if they are at least half of all.
    ///
    /// Keys name cells, so a cell cannot move. Each call pays for a few cells, and a search for the
    /// last one that is used waits until half of all are paid for. So the cost per removal is
    /// constant.
    #[cold]
    fn trim(&mut self) {
        let half = self.cells.len() / 2;
        self.paid = (self.paid + CELLS_PER_REMOVAL).min(4 * half);
        // While this cell is in use, fewer than half of the cells are behind the last used one. The
        // array may have grown since the last search: then the cell may be in its first half.
        let last_used = self.cells.get(self.last_used);
        let is_in_vain = self.last_used >= half && last_used.is_some_and(Cell::is_kept);
        if is_in_vain || self.len > 0 && self.paid < half {
            return;
        }
        let used = self.used();
        if used > half {
            self.paid = self.paid.saturating_sub(self.cells.len() - used);
            self.last_used = used.saturating_sub(1);
            return;
        }
        self.truncate(used.max(MAX_IDLE_CELLS));
    }

    /// Frees all cells but the first `used` ones. No later one has to stay.
    fn truncate(&mut self, used: usize) {
        // New cells have the same indices, so they start after all generations that the old cells
        // had.
        let freed = self.cells[used..].iter().map(|cell| cell.generation);
        self.first_generation = freed.fold(self.first_generation, Ord::max);
        self.cells.truncate(used);
        self.cells.shrink_to(self.reserved);
        self.trim_below = trim_below(used, self.reserved);
        self.paid = 0;
        self.free = NO_INDEX;
        for (index, cell) in (0..used as u32).zip(&mut self.cells).rev() {
            if cell.value.is_none() {
                cell.position = self.free;
                self.free = index;
            }
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
mod tests {
    use super::*;

    fn slab<T>(reserved: usize) -> Slab<T> {
        Slab::try_with_capacity(reserved).expect("memory")
    }

    #[test]
    fn cell_without_generations_is_not_reused() {
        let mut slab = slab(0);
        let first = slab.insert(0, 'a');
        slab.cells[0].generation = NonZeroU32::MAX;
        let last = Key {
            generation: NonZeroU32::MAX,
            ..first
        };
        assert_eq!(slab.remove(0), 'a');
        assert!(slab.get(last).is_none());
        let next = slab.insert(0, 'b');
        assert_eq!(next.index, 1, "another cell");
        assert!(slab.get(last).is_none());
    }

    #[test]
    fn old_keys_are_stale_after_the_memory_is_freed() {
        let mut slab = slab(0);
        let keys: Vec<_> = (0..=MAX_IDLE_CELLS)
            .map(|value| slab.insert(0, value))
            .collect();
        for key in &keys {
            slab.remove(key.index);
        }
        assert_eq!(slab.cells.capacity(), MAX_IDLE_CELLS);
        (0..=MAX_IDLE_CELLS).for_each(|value| _ = slab.insert(0, value));
        assert!(keys.iter().all(|key| slab.get(*key).is_none()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn cells_after_the_last_used_one_are_freed() {
        ["fifo", "lifo", "random"]
            .into_iter()
            .for_each(check_cells_are_freed);
    }

    fn check_cells_are_freed(order_of: &str) {
        const CELLS: usize = 4 * MAX_IDLE_CELLS;

        let mut slab = slab(0);
        let keys: Vec<_> = (0..CELLS).map(|value| slab.insert(0, value)).collect();
        // Three entries stay. One of them has a free cell before it.
        let stay = [0, 1, 3];
        let mut order: Vec<_> = (0..CELLS).filter(|at| !stay.contains(at)).collect();
        match order_of {
            "fifo" => {}
            "lifo" => order.reverse(),
            _ => fastrand::Rng::with_seed(1).shuffle(&mut order),
        }
        for at in order {
            assert_eq!(slab.remove(keys[at].index), at);
        }
        assert!(
            slab.cells.capacity() <= MAX_IDLE_CELLS,
            "{order_of}: {} cells",
            slab.cells.capacity()
        );
        let more: Vec<_> = (CELLS..2 * CELLS)
            .map(|value| slab.insert(0, value))
            .collect();
        for (at, &key) in keys.iter().enumerate() {
            assert_eq!(slab.get(key), stay.contains(&at).then_some(&at));
        }
        for (value, &key) in (CELLS..).zip(&more) {
            assert_eq!(slab.get(key), Some(&value));
        }
        assert_eq!(slab.take().len(), CELLS + stay.len());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn slab_that_grew_after_a_search_is_trimmed() {
        const CELLS: usize = 4 * MAX_IDLE_CELLS;

        let mut slab = slab(0);
        let stays = CELLS * 3 / 4;
        (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
        for index in (0..CELLS).filter(|&index| index != stays) {
            slab.remove(index as u32);
        }
        assert_eq!(
            (slab.last_used, slab.cells.len()),
            (stays, CELLS),
            "nothing could be freed"
        );
        let keys: Vec<_> = (0..2 * CELLS).map(|_| slab.insert(0, ())).collect();
        for key in keys {
            slab.remove(key.index);
        }
        assert!(
            slab.cells.capacity() <= CELLS,
            "{} cells for one entry",
            slab.cells.capacity()
        );
        assert_eq!(slab.take().len(), 1);
    }

    #[test]
    fn cell_that_was_used_too_often_is_not_freed() {
        // So few that memory is freed only once all entries are removed.
        const CELLS: usize = MAX_IDLE_CELLS + MIN_USED;

        let mut slab = slab(0);
        let keys: Vec<_> = (0..CELLS).map(|_| slab.insert(0, ())).collect();
        // As if this cell had been used this many times.
        slab.cells[CELLS - 1].generation = NonZeroU32::new(MAX_FIRST_GENERATION).unwrap();
        for key in &keys {
            slab.remove(key.index);
        }
        assert_eq!(slab.cells.len(), CELLS);
        (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
        assert!(keys.iter().all(|key| slab.get(*key).is_none()));
    }

    #[test]
    fn memory_of_others_is_freed_after_a_cell_was_used_too_often() {
        let mut slab = slab(0);
        slab.insert(0, ());
        slab.cells[0].generation = NonZeroU32::new(MAX_FIRST_GENERATION).unwrap();
        slab.remove(0);
        for _ in 0..3 {
            let keys: Vec<_> = (0..4 * MAX_IDLE_CELLS)
                .map(|_| slab.insert(0, ()))
                .collect();
            for key in &keys {
                slab.remove(key.index);
            }
            assert_eq!(slab.cells.capacity(), MAX_IDLE_CELLS);
            assert!(keys.iter().all(|key| slab.get(*key).is_none()));
        }
        assert_eq!(slab.first_generation.get(), 4);
        slab.shrink_to_fit();
        assert_eq!(slab.cells.len(), 1);
    }

    #[test]
    fn old_keys_are_stale_after_take() {
        let mut slab = slab(0);
        let key = slab.insert(0, 'a');
        assert_eq!(slab.take(), ['a']);
        slab.insert(0, 'b');
        assert!(slab.get(key).is_none());
    }

    #[test]
    fn only_a_slab_with_many_cells_frees_memory() {
        let below = [0, 1, MAX_IDLE_CELLS].map(|cells| trim_below(cells, 0));
        assert_eq!(below, [0; 3]);
        let below = [1, MIN_USED, MIN_USED + 1, 3 * MAX_IDLE_CELLS]
            .map(|more| trim_below(MAX_IDLE_CELLS + more, 0));
        assert_eq!(
            below,
            [1, 1, 2, 3 * MAX_IDLE_CELLS / MIN_USED],
            "a quarter of the cells above the bound"
        );
    }

    #[test]
    fn search_waits_until_half_of_the_cells_are_paid_for() {
        const CELLS: usize = 4 * MAX_IDLE_CELLS;
        const LAST: usize = CELLS - 100;
        const REMOVALS_PER_SEARCH: usize = CELLS / 2 / CELLS_PER_REMOVAL;

        let mut slab = slab(0);
        (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
        let mut order = (0..CELLS as u32)
            .rev()
            .filter(|&index| index as usize != LAST);
        let mut remove = |count| {
            order
                .by_ref()
                .take(count)
                .for_each(|index| slab.remove(index));
        };
        remove(CELLS - trim_below(CELLS, 0) + REMOVALS_PER_SEARCH - 1);
        let (paid, last_used) = (CELLS / 2 - CELLS_PER_REMOVAL, usize::MAX);
        assert_eq!(
            (slab.paid, slab.last_used),
            (paid, last_used),
            "no search so far"
        );
        slab.remove(0);
        let (paid, last_used) = (CELLS / 2 - (CELLS - LAST - 1), LAST);
        assert_eq!(
            (slab.paid, slab.last_used),
            (paid, last_used),
            "has searched the last cells"
        );
        assert_eq!(
            slab.cells.len(),
            CELLS,
            "fewer than half of the cells are after the last used one"
        );
    }

    #[test]
    fn half_of_the_cells_are_freed() {
        const CELLS: usize = 4 * MAX_IDLE_CELLS;

        let mut slab = slab(0);
        (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
        for index in (0..CELLS).filter(|&index| index != CELLS / 2 - 1) {
            slab.remove(index as u32);
        }
        assert_eq!((slab.cells.len(), slab.len), (CELLS / 2, 1));
    }

    #[test]
    fn slab_with_the_highest_first_generation_frees_memory() {
        const CELLS: usize = MAX_IDLE_CELLS + MIN_USED;

        let mut slab = slab(0);
        let keys: Vec<_> = (0..CELLS).map(|_| slab.insert(0, ())).collect();
        slab.cells[CELLS - 1].generation = NonZeroU32::new(MAX_FIRST_GENERATION - 1).unwrap();
        for key in &keys {
            slab.remove(key.index);
        }
        assert_eq!(
            (slab.cells.len(), slab.first_generation.get()),
            (MAX_IDLE_CELLS, MAX_FIRST_GENERATION)
        );
    }

    #[test]
    fn take_stops_when_the_cells_are_freed() {
        let mut slab = slab(0);
        let keys: Vec<_> = (0..=MAX_IDLE_CELLS)
            .map(|value| slab.insert(0, value))
            .collect();
        slab.remove(keys[MAX_IDLE_CELLS].index);
        assert!(slab.take().into_iter().eq(0..MAX_IDLE_CELLS));
        assert_eq!(slab.cells.len(), MAX_IDLE_CELLS);
    }

    #[test]
    fn reserved_cells_are_kept_until_the_slab_is_shrunk() {
        const CELLS: usize = 4 * MAX_IDLE_CELLS;

        let mut slab = slab(CELLS);
        let keys: Vec<_> = (0..CELLS).map(|value| slab.insert(0, value)).collect();
        for key in &keys[1..] {
            slab.remove(key.index);
        }
        assert_eq!((slab.cells.len(), slab.capacity()), (CELLS, CELLS));
        slab.shrink_to_fit();
        assert_eq!((slab.cells.len(), slab.capacity()), (1, 1));
        let more: Vec<_> = (0..CELLS).map(|value| slab.insert(0, value)).collect();
        assert!(keys.iter().map(|key| key.index).eq(0..CELLS as u32));
        assert!(
            more.iter()
                .all(|key| keys.get(key.index as usize) != Some(key)),
            "no key is used again"
        );
        for key in more {
            slab.remove(key.index);
        }
        assert!(
            slab.capacity() <= MAX_IDLE_CELLS,
            "nothing is reserved any more"
        );
        assert_eq!(slab.get(keys[0]), Some(&0));
    }

    #[test]
    fn slab_without_generations_for_new_cells_is_not_shrunk() {
        let mut slab = slab(8);
        let key = slab.insert(0, 'a');
        slab.cells[0].generation = NonZeroU32::new(MAX_FIRST_GENERATION).unwrap();
        slab.remove(key.index);
        slab.shrink_to_fit();
        assert_eq!(
            (slab.cells.len(), slab.insert(0, 'b').generation.get()),
            (1, MAX_FIRST_GENERATION + 1)
        );
    }
}
