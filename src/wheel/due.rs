//! What is due.

use super::row::Row;
use super::slab::Slab;

/// Entries whose deadline has been reached, in the order in which they come out: it had passed when they came, or they
/// are on their way out.
#[derive(Debug, Default)]
pub(super) struct Due {
    row: Row,
    /// No entry has an earlier deadline. Means nothing while there is none.
    first: u64,
}

impl Due {
    pub(super) fn len(&self) -> usize {
        self.row.len()
    }

    /// A tick no later than the first deadline; `None` if there is nothing.
    pub(super) fn first(&self) -> Option<u64> {
        (!self.row.is_empty()).then_some(self.first)
    }

    /// Appends an entry; returns its position.
    pub(super) fn push(&mut self, deadline: u64, entry: u32) -> u32 {
        self.first = self.first().map_or(deadline, |first| first.min(deadline));
        self.row.push(entry)
    }

    /// Takes all of `row` over, if nobody has to move for it. All are due at `deadline`.
    pub(super) fn take_over(&mut self, deadline: u64, row: &mut Row) -> bool {
        let can = self.row.is_empty();
        if can {
            self.first = deadline;
            std::mem::swap(&mut self.row, row);
        }
        can
    }

    /// How many positions there are: those of entries that are pushed from now on are not below it.
    pub(super) fn positions(&self) -> usize {
        self.row.positions()
    }

    /// Sorts what was pushed since there were so many `positions` by deadline. (Stable.)
    pub(super) fn sort_from<T>(&mut self, positions: usize, entries: &mut Slab<T>) {
        let ripe = self.row.entries_from(positions);
        ripe.sort_by_cached_key(|&entry| entries.deadline(entry));
        for (position, &entry) in (positions as u32..).zip(&*ripe) {
            entries.at(entry).position = position;
        }
    }

    /// Leaves a hole at `position`.
    fn vacate(&mut self, position: usize) {
        self.row.vacate(position);
        if self.row.is_empty() {
            self.clear();
        }
    }

    pub(super) fn remove<T>(&mut self, position: usize, entries: &mut Slab<T>) {
        self.vacate(position);
        self.tidy(entries);
    }

    fn tidy<T>(&mut self, entries: &mut Slab<T>) {
        self.row.tidy(|entry, _, to| entries.at(entry).position = to as u32);
    }

    /// Hands out everything. Where `expired` panics, its entry is gone, and all behind it are still here.
    pub(super) fn hand_out<T>(&mut self, entries: &mut Slab<T>, mut expired: impl FnMut(T)) {
        // Of holes that panics have left.
        self.tidy(entries);
        let mut position = 0;
        // The last one clears the row.
        while position < self.row.positions() {
            if let Some(entry) = self.row.at(position) {
                self.vacate(position);
                expired(entries.remove(entry));
            }
            position += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.row.clear();
    }
}
