//! A short list of entries, sorted by deadline.

use alloc::vec::Vec;

/// The most entries in a list. Each has a bit of [`ShortList::used_ids`].
pub(super) const MAX_LEN: usize = 32;

/// The position of the entry with the ID 0, and that of each other entry is one more. No entry of a
/// slot has such a position.
pub(super) const FIRST_POSITION: u32 = u32::MAX - MAX_LEN as u32;

#[derive(Debug, Clone, Copy)]
struct Item {
    deadline: u64,
    entry: u32,
    /// Is less than [`MAX_LEN`], and differs from those of the other items.
    id: u32,
}

/// A sorted list of at most [`MAX_LEN`] entries. Those of one deadline are in insertion order.
///
/// The cost of an insertion and of a removal is a search and a move of up to 512 bytes.
#[derive(Debug)]
pub(super) struct ShortList {
    /// The latest deadline first.
    items: Vec<Item>,
    used_ids: u32,
}

impl ShortList {
    pub(super) const fn new() -> Self {
        Self {
            items: Vec::new(),
            used_ids: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.items.len() == MAX_LEN
    }

    /// Adds an entry to a list that is not full. Returns its position.
    // Not inlined: it is rare in a wheel with many entries.
    #[inline(never)]
    pub(super) fn insert(&mut self, deadline: u64, entry: u32) -> u32 {
        let id = self.used_ids.trailing_ones();
        self.used_ids |= 1 << id;
        let item = Item {
            deadline,
            entry,
            id,
        };
        if self.items.len() < self.items.capacity() {
            self.items.push(item);
        } else {
            self.push_and_grow(item);
        }
        // Not `Vec::insert`: it is slower for a few entries, and is more code. So is a copy from
        // item to item without a local variable: a call of `memmove`. A slice that gets shorter,
        // because an index would be checked for each item.
        let mut items = &mut self.items[..];
        while let [.., before, place] = items {
            let earlier = *before;
            if earlier.deadline > deadline {
                break;
            }
            *place = earlier;
            let len = items.len() - 1;
            items = &mut items[..len];
        }
        if let [.., place] = items {
            *place = item;
        }
        FIRST_POSITION + id
    }

    // Apart, so that the other insertions save no registers for the call.
    #[cold]
    #[inline(never)]
    fn push_and_grow(&mut self, item: Item) {
        self.items.push(item);
    }

    /// Removes the entry with this position.
    // Not inlined: it is rare in a wheel with many entries.
    #[inline(never)]
    pub(super) fn remove(&mut self, position: u32) {
        let id = position - FIRST_POSITION;
        self.used_ids &= !(1 << id);
        self.items.retain(|item| item.id != id);
    }

    /// Removes the first entry if its deadline is at or before `last`.
    #[inline]
    pub(super) fn pop(&mut self, last: u64) -> Option<u32> {
        let &Item {
            deadline,
            entry,
            id,
        } = self.items.last()?;
        if deadline > last {
            return None;
        }
        self.items.pop();
        self.used_ids &= !(1 << id);
        Some(entry)
    }

    /// Returns whether at least two entries have deadlines at or before `last`.
    #[inline]
    pub(super) fn has_two(&self, last: u64) -> bool {
        let second = self.items.iter().nth_back(1);
        second.is_some_and(|item| item.deadline <= last)
    }

    /// Returns the first deadline and its entry.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, u32)> {
        self.iter().next()
    }

    /// Returns the deadline and the number of each entry, the first one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.items
            .iter()
            .rev()
            .map(|item| (item.deadline, item.entry))
    }
}
