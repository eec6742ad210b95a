//! Where the entries of a plain wheel live, and the keys that find them again.

use super::entries::Entries;

/// Names one entry of the wheel that it was [inserted](super::HashedWheel::insert) into.
///
/// A key whose entry has come out is stale for good: its place may be used again, its generation never is. A key means
/// nothing to another wheel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

/// No entry: the end of the free list. An index is always less.
const NONE: u32 = u32::MAX;

/// Above this many places an emptied slab gives its memory back.
const KEEP: usize = 1_024;

/// The highest generation that new places may start with: they must not be used up soon, for each that is stays behind.
const MOST_FRESH: u32 = u32::MAX / 2;

#[derive(Debug)]
struct Entry<T> {
    deadline: u64,
    generation: u32,
    /// Where the wheel has put the entry; in a free place, the next free place.
    position: u32,
    value: Option<T>,
}

/// Entries with generation-checked keys. A place whose generations are used up is not used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// The generation that a new place starts with: above all that were ever given out when the slab was last emptied.
    fresh: u32,
    /// One more than the highest generation given out.
    highest: u32,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: NONE, len: 0, fresh: 0, highest: 0 }
    }

    #[inline]
    pub(crate) fn insert(&mut self, deadline: u64, value: T) -> Key {
        let index = if self.free == NONE {
            let index = u32::try_from(self.entries.len()).unwrap_or(NONE);
            assert!(index < NONE, "a wheel holds at most {NONE} entries at a time");
            self.entries.push(Entry { deadline, generation: self.fresh, position: 0, value: Some(value) });
            index
        } else {
            let index = self.free;
            let entry = &mut self.entries[index as usize];
            self.free = entry.position;
            entry.deadline = deadline;
            entry.value = Some(value);
            index
        };
        self.len += 1;
        Key { index, generation: self.entries[index as usize].generation }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == key.generation)
    }

    /// Takes out the entry at `index`, which must be there.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let entry = &mut self.entries[index as usize];
        let value = entry.value.take().expect("a wheel names only entries that are there");
        self.len -= 1;
        // The last generation stays with its place: no later key can be taken for an earlier one.
        if entry.generation < u32::MAX {
            entry.generation += 1;
            self.highest = self.highest.max(entry.generation);
            entry.position = self.free;
            self.free = index;
        }
        if self.len == 0 && self.entries.len() > KEEP && self.highest <= MOST_FRESH {
            self.entries = Vec::new();
            self.free = NONE;
            self.fresh = self.highest;
        }
        value
    }

    /// Takes everything out, in no particular order.
    pub(crate) fn take(&mut self) -> Vec<T> {
        let mut values = Vec::with_capacity(self.len);
        for index in 0..self.entries.len() {
            // The last removal may give the memory back, after which there are no places to look at.
            if self.len > 0 && self.entries[index].value.is_some() {
                values.push(self.remove(index as u32));
            }
        }
        values
    }
}

impl<T> Entries for Slab<T> {
    fn deadline(&self, entry: u32) -> u64 {
        self.entries[entry as usize].deadline
    }

    fn position(&self, entry: u32) -> u32 {
        self.entries[entry as usize].position
    }

    fn set_position(&mut self, entry: u32, position: u32) {
        self.entries[entry as usize].position = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_whose_generations_are_used_up_is_retired() {
        let mut slab = Slab::new();
        let first = slab.insert(0, 'a');
        slab.entries[0].generation = u32::MAX;
        let last = Key { generation: u32::MAX, ..first };
        assert_eq!(slab.remove(0), 'a');
        assert!(slab.get(last).is_none());
        let next = slab.insert(0, 'b');
        assert_eq!(next.index, 1, "another place");
        assert!(slab.get(last).is_none());
    }

    #[test]
    fn memory_given_back_leaves_old_keys_stale() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..=KEEP).map(|value| slab.insert(0, value)).collect();
        for key in &keys {
            slab.remove(key.index);
        }
        assert_eq!(slab.entries.capacity(), 0);
        for value in 0..=KEEP {
            slab.insert(0, value);
        }
        assert!(keys.iter().all(|key| slab.get(*key).is_none()));
    }

    #[test]
    fn taking_everything_leaves_old_keys_stale() {
        let mut slab = Slab::new();
        let key = slab.insert(0, 'a');
        assert_eq!(slab.take(), ['a']);
        slab.insert(0, 'b');
        assert!(slab.get(key).is_none());
    }
}
