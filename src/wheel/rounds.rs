//! One slot's entries in the hashed wheel, and how many rounds each of them has left.

use super::entries::Entries;
use super::ring::Bucket;
use super::tombstone_vec::{self, Place, TombstoneVec};

/// The most rounds that `remaining_rounds` can say. An entry further off is looked at again after so many.
const MOST_ROUNDS: u64 = u32::MAX as u64 - 1;

/// After so many rounds they are taken off. From here on, what `remaining_rounds` say may be cut off.
const FAR: u64 = MOST_ROUNDS / 2;

/// How many entries have a bound in common.
const CHUNK: usize = 32;

/// An entry, and how many rounds it has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    entry: u32,
    /// Scheme 6's rounds, as of the bucket's turn `base`; `u32::MAX` in a hole.
    remaining_rounds: u32,
}

impl Waiting {
    /// An entry that is due.
    pub(super) fn no_more(entry: u32) -> Self {
        Self { entry, remaining_rounds: 0 }
    }
}

impl Place for Waiting {
    const HOLE: Self = Self { entry: u32::MAX, remaining_rounds: u32::MAX };

    fn entry(self) -> u32 {
        self.entry
    }
}

/// A row of entries with their rounds, in chunks of which it knows how many rounds are left to the first. A visit reads those
/// numbers and the chunks in which something is due, and no other.
#[derive(Debug)]
pub(super) struct Rounds {
    row: TombstoneVec<Waiting>,
    /// For each chunk the least of the `remaining_rounds`. Removals may leave it too low.
    least: Vec<u32>,
    /// The turn of the wheel in which rounds were taken off last.
    base: u64,
    /// No entry has an earlier deadline. Removals may leave it too low.
    first: u64,
    /// No entry is due in a later turn. Removals may leave it too high.
    last_lap: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { row: TombstoneVec::default(), least: Vec::new(), base: 0, first: u64::MAX, last_lap: 0 }
    }
}

impl Bucket for Rounds {
    fn close(&mut self) {
        self.row.clear();
        tombstone_vec::clear(&mut self.least);
    }
}

impl Rounds {
    /// Makes an empty bucket ready for use in turn `lap` of the wheel.
    pub(super) fn open(&mut self, lap: u64) {
        self.base = lap;
        self.first = u64::MAX;
        self.last_lap = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.row.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.row.iter()
    }

    /// The entries, for those who take all of them: the bucket has to be closed then.
    pub(super) fn row(&mut self) -> &mut TombstoneVec<Waiting> {
        &mut self.row
    }

    /// No entry has an earlier deadline; `u64::MAX` if there is none.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The last turn of the wheel in which something here may be due.
    pub(super) fn last_lap(&self) -> u64 {
        self.last_lap
    }

    /// Appends an entry that is due in turn `lap`, at `deadline`; returns its position.
    #[inline]
    pub(super) fn push(&mut self, lap: u64, deadline: u64, entry: u32) -> u32 {
        self.first = self.first.min(deadline);
        self.last_lap = self.last_lap.max(lap);
        let remaining_rounds = self.rounds_until(lap);
        let position = self.row.push(Waiting { entry, remaining_rounds });
        match self.least.get_mut(position as usize / CHUNK) {
            Some(least) => *least = remaining_rounds.min(*least),
            None => self.least.push(remaining_rounds),
        }
        position
    }

    /// Takes out what is due in turn `lap` or before. `leave` is told of each entry that may be, and says in which turn it is.
    /// Returns the first turn in which something here is due then, unless that is so far off that it cannot be said.
    pub(super) fn visit<E: Entries>(
        &mut self,
        lap: u64,
        entries: &mut E,
        mut leave: impl FnMut(&mut E, u32) -> u64,
    ) -> Option<u64> {
        if lap - self.base >= FAR {
            self.take_off(lap);
        }
        let passed = self.rounds_until(lap);
        let mut chunk = 0;
        while let Some(next) = self.least[chunk..].iter().position(|&least| least <= passed) {
            chunk += next;
            self.visit_chunk(chunk, lap, entries, &mut leave);
            chunk += 1;
        }
        let first = u64::from(self.least.iter().copied().fold(u32::MAX, u32::min));
        (first < FAR).then(|| self.base + first)
    }

    fn visit_chunk<E: Entries>(
        &mut self,
        chunk: usize,
        lap: u64,
        entries: &mut E,
        leave: &mut impl FnMut(&mut E, u32) -> u64,
    ) {
        let passed = self.rounds_until(lap);
        let positions = chunk * CHUNK..self.row.positions().min((chunk + 1) * CHUNK);
        let places = &self.row.places()[positions.clone()];
        // Without a branch for each: nobody can foretell which are due.
        let (mut due, mut count, mut least) = ([0; CHUNK], 0, u32::MAX);
        for (position, waiting) in positions.zip(places) {
            let is_due = waiting.remaining_rounds <= passed;
            due[count % CHUNK] = position;
            count += usize::from(is_due);
            least = least.min(if is_due { u32::MAX } else { waiting.remaining_rounds });
        }
        for &position in &due[..count] {
            self.row.prefetch(position, entries);
        }
        for &position in &due[..count] {
            let waiting = self.row.places()[position];
            let entry_lap = leave(entries, waiting.entry);
            if entry_lap <= lap {
                self.row.vacate(position);
            } else {
                // It had more rounds than can be said.
                let remaining_rounds = self.rounds_until(entry_lap);
                self.row.places_mut()[position].remaining_rounds = remaining_rounds;
                least = least.min(remaining_rounds);
            }
        }
        self.least[chunk] = least;
    }

    /// From turn `base` on; cut off where they are too many to be said.
    #[inline]
    fn rounds_until(&self, lap: u64) -> u32 {
        (lap - self.base).min(MOST_ROUNDS) as u32
    }

    /// Takes off the rounds that have passed.
    fn take_off(&mut self, lap: u64) {
        let passed = self.rounds_until(lap);
        self.base = lap;
        for waiting in self.row.places_mut() {
            if waiting.entry != Waiting::HOLE.entry {
                waiting.remaining_rounds = waiting.remaining_rounds.saturating_sub(passed);
            }
        }
        self.find_least();
    }

    fn find_least(&mut self) {
        let least = |chunk: &[Waiting]| {
            chunk.iter().fold(u32::MAX, |least, waiting| least.min(waiting.remaining_rounds))
        };
        self.least.clear();
        self.least.extend(self.row.places().chunks(CHUNK).map(least));
    }

    /// Ends a visit.
    pub(super) fn settle(&mut self, first: u64) {
        self.first = first;
    }

    /// Leaves a hole at `position`.
    pub(super) fn vacate(&mut self, position: usize) {
        self.row.vacate(position);
    }

    /// As [`TombstoneVec::tidy`].
    pub(super) fn tidy(&mut self, entries: &mut impl Entries) {
        if self.row.tidy(|entry, position| entries.set_position(entry, position)) {
            self.find_least();
        }
        self.least.truncate(self.row.positions().div_ceil(CHUNK));
        tombstone_vec::shrink(&mut self.least);
    }
}
