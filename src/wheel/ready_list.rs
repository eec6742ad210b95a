//! What is due.

use super::entries::{AHEAD, Entries};
use super::tombstone_vec::{Place, TombstoneVec};

/// Entries whose deadline has been reached, in the order in which they come out: it had passed when they came, or they
/// are on their way out.
#[derive(Debug)]
pub(super) struct ReadyList<P = u32> {
    row: TombstoneVec<P>,
    /// No entry stands before this position.
    front: usize,
    /// No entry has an earlier deadline. Means nothing while there is none.
    first: u64,
}

impl<P> Default for ReadyList<P> {
    fn default() -> Self {
        Self { row: TombstoneVec::default(), front: 0, first: 0 }
    }
}

impl<P: Place> ReadyList<P> {
    pub(super) fn len(&self) -> usize {
        self.row.len()
    }

    /// A tick no later than the first deadline; `None` if there is nothing.
    pub(super) fn first(&self) -> Option<u64> {
        (!self.row.is_empty()).then_some(self.first)
    }

    /// Appends an entry; returns its position.
    pub(super) fn push(&mut self, deadline: u64, place: P) -> u32 {
        self.first = self.first().map_or(deadline, |first| first.min(deadline));
        self.row.push(place)
    }

    /// Takes all of `row` over, if nobody has to move for it. All are due at `deadline`.
    pub(super) fn take_over(
        &mut self,
        deadline: u64,
        row: &mut TombstoneVec<P>,
        entries: &impl Entries,
    ) -> bool {
        let can = self.row.is_empty();
        if can {
            self.first = deadline;
            std::mem::swap(&mut self.row, row);
            (0..AHEAD).for_each(|position| self.row.prefetch(position, entries));
        }
        can
    }

    /// How many positions there are: those of entries that are pushed from now on are not below it.
    pub(super) fn positions(&self) -> usize {
        self.row.positions()
    }

    /// Sorts what was pushed since there were so many `positions` by deadline. (Stable.)
    pub(super) fn sort_from(&mut self, positions: usize, entries: &mut impl Entries) {
        let ripe = &mut self.row.places_mut()[positions..];
        ripe.sort_by_cached_key(|place| entries.deadline(place.entry()));
        for (position, place) in (positions as u32..).zip(&*ripe) {
            entries.set_position(place.entry(), position);
        }
    }

    /// Leaves a hole at `position`.
    fn vacate(&mut self, position: usize) {
        self.row.vacate(position);
        if self.row.is_empty() {
            self.clear();
        }
    }

    pub(super) fn remove(&mut self, position: usize, entries: &mut impl Entries) {
        self.vacate(position);
        self.tidy(entries);
    }

    /// As [`TombstoneVec::tidy`].
    #[inline]
    pub(super) fn tidy(&mut self, entries: &mut impl Entries) {
        if self.row.positions() > 0 && self.row.tidy(|entry, position| entries.set_position(entry, position))
        {
            self.front = 0;
        }
    }

    /// Takes the first entry out. Leaves holes, so that nobody moves: they are for [`tidy`](Self::tidy), unless all come
    /// out.
    #[inline]
    pub(super) fn pop(&mut self, entries: &impl Entries) -> Option<u32> {
        if self.row.is_empty() {
            return None;
        }
        loop {
            let position = self.front;
            self.front += 1;
            self.row.prefetch(position + AHEAD, entries);
            let entry = self.row.at(position);
            if entry.is_some() {
                self.vacate(position);
                return entry;
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.row.iter()
    }

    pub(super) fn clear(&mut self) {
        self.row.clear();
        self.front = 0;
    }
}
