//! One slot's entries, and how many rounds each of them has left.

/// No entry stands here any more.
const HOLE: u32 = u32::MAX;

/// The most rounds that `remaining_rounds` can say. An entry further off is looked at again after so many.
const MOST_ROUNDS: u64 = HOLE as u64 - 1;

/// How many rounds are looked through at once for a zero: four cache lines, which the compiler turns into vectors.
const CHUNK: usize = 64;

/// A bucket with more room than this gives it back when it is emptied.
const KEEP: usize = 1_024;

/// Two dense arrays in the order of insertion. A visit reads the first one alone; what is not due is not touched.
///
/// A removal leaves a hole, so that the order and everybody's position stay; holes are closed up when they are many.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Scheme 6's rounds, as of `lap`. A hole has the most, and counts down like the others: nobody reads it.
    remaining_rounds: Vec<u32>,
    /// The slab's index of each entry, or `HOLE`.
    entries: Vec<u32>,
    holes: usize,
    /// The turn of the wheel in which this bucket was visited last.
    lap: u64,
    /// No entry has fewer rounds left. Removals may leave it too low.
    least_rounds: u32,
}

impl Bucket {
    /// Makes an empty bucket ready for use in turn `lap` of the wheel.
    pub(super) fn open(&mut self, lap: u64) {
        self.lap = lap;
        self.least_rounds = HOLE;
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
        self.entries.len() == self.holes
    }

    /// The first turn of the wheel in which something here may be due.
    pub(super) fn first_lap(&self) -> u64 {
        self.lap.saturating_add(u64::from(self.least_rounds))
    }

    /// Appends an entry that is due in turn `lap`; returns its position.
    pub(super) fn push(&mut self, lap: u64, entry: u32) -> u32 {
        let position = u32::try_from(self.entries.len()).expect("no more positions than entries and holes");
        let rounds = self.rounds_until(lap);
        self.least_rounds = self.least_rounds.min(rounds);
        self.remaining_rounds.push(rounds);
        self.entries.push(entry);
        position
    }

    fn rounds_until(&self, lap: u64) -> u32 {
        (lap - self.lap).min(MOST_ROUNDS) as u32
    }

    /// Takes off the rounds that have passed since the last visit.
    pub(super) fn visit(&mut self, lap: u64) {
        let passed = u32::try_from(lap - self.lap).unwrap_or(u32::MAX);
        self.lap = lap;
        let mut least = u32::MAX;
        for rounds in &mut self.remaining_rounds {
            *rounds = rounds.saturating_sub(passed);
            // Zero wraps to the greatest: what is due now is no bound for what stays.
            least = least.min(rounds.wrapping_sub(1));
        }
        self.least_rounds = least.saturating_add(1);
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
        let rounds = self.rounds_until(lap);
        self.remaining_rounds[position] = rounds;
        self.least_rounds = self.least_rounds.min(rounds);
    }

    /// Leaves a hole at `position`.
    pub(super) fn vacate(&mut self, position: usize) {
        self.remaining_rounds[position] = HOLE;
        self.entries[position] = HOLE;
        self.holes += 1;
    }

    /// Closes the holes up if they are many. Tells each entry that moves its new position.
    pub(super) fn tidy(&mut self, mut moved: impl FnMut(u32, u32)) {
        while self.entries.last() == Some(&HOLE) {
            self.entries.pop();
            self.remaining_rounds.pop();
            self.holes -= 1;
        }
        if self.holes <= self.entries.len() / 2 {
            return;
        }
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
