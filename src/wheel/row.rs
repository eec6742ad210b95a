//! Entries in the order in which they were put in.

/// No entry stands here any more.
const HOLE: u32 = u32::MAX;

/// A row with more room than this gives it back when it is emptied, or nearly. (There is a row for each slot.)
const KEEP: usize = 64;

/// The slab's indices of some entries, in one dense array.
///
/// A removal leaves a hole, so that the order and everybody's position stay; holes are closed up when they are many.
#[derive(Debug, Default)]
pub(super) struct Row {
    entries: Vec<u32>,
    holes: usize,
}

impl Row {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.holes
    }

    /// How many positions there are, holes included.
    pub(super) fn positions(&self) -> usize {
        self.entries.len()
    }

    /// Appends an entry; returns its position. (Inlined, as are its callers: cache misses of one insertion overlap then.)
    #[inline]
    pub(super) fn push(&mut self, entry: u32) -> u32 {
        let position = u32::try_from(self.entries.len()).expect("no more positions than entries and holes");
        self.entries.push(entry);
        position
    }

    /// The entry at `position`, unless a hole is there.
    pub(super) fn at(&self, position: usize) -> Option<u32> {
        Some(self.entries[position]).filter(|&entry| entry != HOLE)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().copied().filter(|&entry| entry != HOLE)
    }

    /// The entries from `position` on, to be put into another order: none may be a hole.
    pub(super) fn entries_from(&mut self, position: usize) -> &mut [u32] {
        &mut self.entries[position..]
    }

    /// Leaves a hole at `position`.
    pub(super) fn vacate(&mut self, position: usize) {
        self.entries[position] = HOLE;
        self.holes += 1;
    }

    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        clear(&mut self.entries);
        self.holes = 0;
    }

    /// Cuts off the holes at the end, and closes the others up if they are many. Tells of each entry that moves from
    /// where it does, and to where.
    pub(super) fn tidy(&mut self, mut moved: impl FnMut(u32, usize, usize)) {
        while self.entries.last() == Some(&HOLE) {
            self.entries.pop();
            self.holes -= 1;
        }
        if self.holes > self.entries.len() / 2 {
            let mut to = 0;
            for from in 0..self.entries.len() {
                let entry = self.entries[from];
                if entry == HOLE {
                    continue;
                }
                if from != to {
                    self.entries[to] = entry;
                    moved(entry, from, to);
                }
                to += 1;
            }
            self.entries.truncate(to);
            self.holes = 0;
        }
        shrink(&mut self.entries);
    }
}

/// Empties `vec`, and gives its room back if that is much.
pub(super) fn clear(vec: &mut Vec<u32>) {
    vec.clear();
    if vec.capacity() > KEEP {
        *vec = Vec::new();
    }
}

/// Gives room back that is much and hardly used.
pub(super) fn shrink(vec: &mut Vec<u32>) {
    if vec.capacity() > KEEP && vec.len() < vec.capacity() / 4 {
        // A copy: what is cut off in place would be of little use to the allocator.
        *vec = vec.as_slice().into();
    }
}
