//! One slot's entries, and how many rounds each of them has left.

/// No entry stands here any more.
const HOLE: u32 = u32::MAX;

/// The most rounds that `remaining_rounds` can say. An entry further off is looked at again after so many.
const MOST_ROUNDS: u64 = HOLE as u64 - 1;

/// A bound from which on it is not taken from `remaining_rounds`: what they say may be cut off.
const FAR: u64 = MOST_ROUNDS / 2;

/// How many rounds are looked through at once for a zero: four cache lines, which the compiler turns into vectors.
const CHUNK: usize = 64;

/// A bucket with more room than this gives it back when it is emptied, or nearly. (There is a bucket for each slot.)
const KEEP: usize = 64;

/// Two dense arrays in the order of insertion. A visit reads the first one alone; what is not due is not touched.
///
/// A removal leaves a hole, so that the order and everybody's position stay; holes are closed up when they are many.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Scheme 6's rounds, as of `lap`; `HOLE` in a hole.
    remaining_rounds: Vec<u32>,
    /// The slab's index of each entry, or `HOLE`.
    entries: Vec<u32>,
    holes: usize,
    /// The turn of the wheel in which this bucket was visited last.
    lap: u64,
    /// No entry is due in an earlier turn. Removals may leave it too low.
    first_lap: u64,
    /// Whether there may be an entry with more rounds left than can be said.
    cut_off: bool,
}

/// What a visit has found.
pub(super) struct Visit {
    /// The first turn of the wheel in which something may be due after this one.
    pub(super) first_lap: u64,
    /// Whether it has no entry that is due later.
    pub(super) all_are_due: bool,
}

impl Bucket {
    /// Makes an empty bucket ready for use in turn `lap` of the wheel.
    pub(super) fn open(&mut self, lap: u64) {
        self.lap = lap;
        self.first_lap = u64::MAX;
        self.cut_off = false;
    }

    /// Forgets all entries.
    pub(super) fn close(&mut self) {
        if self.entries.capacity() > KEEP {
            *self = Self::default();
        }
        self.remaining_rounds.clear();
        self.entries.clear();
        self.holes = 0;
    }

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

    /// The entries from `position` on, to be put into another order: none may be a hole, and all must be due.
    pub(super) fn entries_from(&mut self, position: usize) -> &mut [u32] {
        &mut self.entries[position..]
    }

    /// The first turn of the wheel in which something here may be due.
    pub(super) fn first_lap(&self) -> u64 {
        self.first_lap
    }

    /// Appends an entry that is due in turn `lap`; returns its position.
    pub(super) fn push(&mut self, lap: u64, entry: u32) -> u32 {
        self.first_lap = self.first_lap.min(lap);
        let rounds = self.rounds_until(lap);
        self.push_with(rounds, entry)
    }

    /// Appends an entry that is due; returns its position.
    pub(super) fn push_due(&mut self, entry: u32) -> u32 {
        self.push_with(0, entry)
    }

    fn push_with(&mut self, rounds: u32, entry: u32) -> u32 {
        let position = u32::try_from(self.entries.len()).expect("no more positions than entries and holes");
        self.remaining_rounds.push(rounds);
        self.entries.push(entry);
        position
    }

    fn rounds_until(&mut self, lap: u64) -> u32 {
        let rounds = lap - self.lap;
        self.cut_off |= rounds > MOST_ROUNDS;
        rounds.min(MOST_ROUNDS) as u32
    }

    /// Takes off the rounds that have passed since the last visit. Until [`settle`](Self::settle), the bound stays at this
    /// turn, whose entries are still here.
    pub(super) fn visit(&mut self, lap: u64) -> Visit {
        let passed = (lap - self.lap).min(MOST_ROUNDS) as u32;
        self.lap = lap;
        self.first_lap = lap;
        let mut least = u32::MAX;
        for rounds in &mut self.remaining_rounds {
            let left = rounds.saturating_sub(passed);
            *rounds = if *rounds == HOLE { HOLE } else { left };
            // Zero wraps to the greatest: what is due now is no bound for what stays.
            least = least.min(rounds.wrapping_sub(1));
        }
        Visit {
            first_lap: lap.saturating_add(u64::from(least) + 1),
            // None is left but holes, and none has come to zero too soon.
            all_are_due: least >= HOLE - 1 && !self.cut_off,
        }
    }

    /// The first entry at or after `position` that has no rounds left, with its position.
    pub(super) fn next_due(&self, mut position: usize) -> Option<(usize, u32)> {
        let rounds = &self.remaining_rounds;
        while position < rounds.len() {
            let end = rounds.len().min(position + CHUNK);
            // Without an early exit, so that it vectorises.
            let any = rounds[position..end].iter().fold(false, |any, &rounds| any | (rounds == 0));
            if any {
                let due = (position..end).find(|&at| rounds[at] == 0 && self.entries[at] != HOLE);
                if let Some(at) = due {
                    return Some((at, self.entries[at]));
                }
            }
            position = end;
        }
        None
    }

    /// Puts an entry that came to zero too soon, for it had more rounds than can be said, back to what it has left.
    pub(super) fn postpone(&mut self, position: usize, lap: u64) {
        self.remaining_rounds[position] = self.rounds_until(lap);
    }

    /// Ends a visit, once what was due is out: nothing is due before turn `first_lap`.
    pub(super) fn settle(&mut self, first_lap: u64, lap_of: impl Fn(u32) -> u64) {
        self.first_lap = if first_lap - self.lap < FAR {
            first_lap
        } else {
            let entries = self.entries.iter().filter(|&&entry| entry != HOLE);
            entries.map(|&entry| lap_of(entry)).min().unwrap_or(u64::MAX)
        };
    }

    /// Leaves a hole at `position`.
    pub(super) fn vacate(&mut self, position: usize) {
        self.remaining_rounds[position] = HOLE;
        self.entries[position] = HOLE;
        self.holes += 1;
    }

    /// Closes the holes up if they are many. Tells each entry that moves its new position.
    pub(super) fn tidy(&mut self, moved: impl FnMut(u32, u32)) {
        while self.entries.last() == Some(&HOLE) {
            self.entries.pop();
            self.remaining_rounds.pop();
            self.holes -= 1;
        }
        if self.holes > self.entries.len() / 2 {
            self.close_up(moved);
        }
        if self.entries.capacity() > KEEP && self.entries.len() < self.entries.capacity() / 4 {
            // Copies: what is cut off in place would be of little use to the allocator.
            self.entries = self.entries.as_slice().into();
            self.remaining_rounds = self.remaining_rounds.as_slice().into();
        }
    }

    fn close_up(&mut self, mut moved: impl FnMut(u32, u32)) {
        let mut to = 0;
        for from in 0..self.entries.len() {
            let entry = self.entries[from];
            if entry == HOLE {
                continue;
            }
            if from != to {
                self.entries[to] = entry;
                self.remaining_rounds[to] = self.remaining_rounds[from];
                moved(entry, to as u32);
            }
            to += 1;
        }
        self.entries.truncate(to);
        self.remaining_rounds.truncate(to);
        self.holes = 0;
    }
}
