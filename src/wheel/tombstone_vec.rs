//! Entries in the order in which they were put in.

use super::entries::Entries;

/// A row with more room than this gives it back when it is emptied, or nearly. (There is a row for each slot.)
const KEEP: usize = 64;

/// What stands at a position: an entry, perhaps with something that is to lie beside it, or nothing any more.
pub(super) trait Place: Copy {
    const HOLE: Self;

    /// `u32::MAX` in a hole.
    fn entry(self) -> u32;
}

impl Place for u32 {
    const HOLE: u32 = u32::MAX;

    fn entry(self) -> u32 {
        self
    }
}

/// Some entries, in one dense array.
///
/// A removal leaves a hole, so that the order and everybody's position stay; holes are closed up when they are many.
#[derive(Debug)]
pub(super) struct TombstoneVec<P = u32> {
    places: Vec<P>,
    holes: usize,
}

impl<P> Default for TombstoneVec<P> {
    fn default() -> Self {
        Self { places: Vec::new(), holes: 0 }
    }
}

impl<P: Place> TombstoneVec<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.holes
    }

    /// How many positions there are, holes included.
    pub(super) fn positions(&self) -> usize {
        self.places.len()
    }

    /// Appends an entry; returns its position. (Inlined, as are its callers: cache misses of one insertion overlap then.)
    #[inline]
    pub(super) fn push(&mut self, place: P) -> u32 {
        let position = u32::try_from(self.places.len()).expect("no more positions than entries and holes");
        self.places.push(place);
        position
    }

    /// The entry at `position`, unless a hole is there, or nothing.
    pub(super) fn at(&self, position: usize) -> Option<u32> {
        self.places.get(position).and_then(|&place| entry(place))
    }

    /// Asks for the entry at `position`, if there is one.
    pub(super) fn prefetch(&self, position: usize, entries: &impl Entries) {
        if let Some(entry) = self.at(position) {
            entries.prefetch(entry);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.places.iter().copied().filter_map(entry)
    }

    /// All places, holes included.
    pub(super) fn places(&self) -> &[P] {
        &self.places
    }

    /// As [`places`](Self::places), to be changed or put into another order. Holes are made by [`vacate`](Self::vacate).
    pub(super) fn places_mut(&mut self) -> &mut [P] {
        &mut self.places
    }

    /// Leaves a hole at `position`.
    pub(super) fn vacate(&mut self, position: usize) {
        self.places[position] = P::HOLE;
        self.holes += 1;
    }

    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        clear(&mut self.places);
        self.holes = 0;
    }

    /// Cuts off the holes at the end, and closes the others up if they are many. Tells of each entry that moves, to which
    /// position. Returns whether it has closed any up.
    pub(super) fn tidy(&mut self, mut moved: impl FnMut(u32, u32)) -> bool {
        while self.places.last().is_some_and(|&last| entry(last).is_none()) {
            self.places.pop();
            self.holes -= 1;
        }
        let closes_up = self.holes > self.places.len() / 2;
        if closes_up {
            let mut to = 0;
            for from in 0..self.places.len() {
                let place = self.places[from];
                let Some(entry) = entry(place) else { continue };
                if from != to {
                    self.places[to] = place;
                    moved(entry, to as u32);
                }
                to += 1;
            }
            self.places.truncate(to);
            self.holes = 0;
        }
        shrink(&mut self.places);
        closes_up
    }
}

fn entry(place: impl Place) -> Option<u32> {
    Some(place.entry()).filter(|&entry| entry != u32::HOLE)
}

/// Empties `vec`, and gives its room back if that is much.
pub(super) fn clear<P>(vec: &mut Vec<P>) {
    vec.clear();
    if vec.capacity() > KEEP {
        *vec = Vec::new();
    }
}

/// Gives room back that is much and hardly used.
#[inline]
pub(super) fn shrink<P: Copy>(vec: &mut Vec<P>) {
    if vec.capacity() > KEEP && vec.len() < vec.capacity() / 4 {
        // A copy: what is cut off in place would be of little use to the allocator.
        *vec = vec.as_slice().into();
    }
}
