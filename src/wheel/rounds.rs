//! One slot's entries in the hashed wheel, and how many rounds each of them has left.

use super::ring::Bucket;
use super::row::{self, Row};

/// No entry stands here any more.
const HOLE: u32 = u32::MAX;

/// The most rounds that `remaining_rounds` can say. An entry further off is looked at again after so many.
const MOST_ROUNDS: u64 = HOLE as u64 - 1;

/// A bound from which on it is not taken from `remaining_rounds`: what they say may be cut off.
const FAR: u64 = MOST_ROUNDS / 2;

/// How many rounds are looked through at once for a zero: four cache lines, which the compiler turns into vectors.
const CHUNK: usize = 64;

/// A row, and beside it a dense array that says how many rounds each entry has left. A visit reads that one alone; what
/// is not due is not touched.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    row: Row,
    /// Scheme 6's rounds of the entry at the same position, as of `lap`; `HOLE` in a hole.
    remaining_rounds: Vec<u32>,
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

impl Bucket for Rounds {
    fn close(&mut self) {
        self.row.clear();
        row::clear(&mut self.remaining_rounds);
    }
}

impl Rounds {
    /// Makes an empty bucket ready for use in turn `lap` of the wheel.
    pub(super) fn open(&mut self, lap: u64) {
        self.lap = lap;
        self.first_lap = u64::MAX;
        self.cut_off = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// The entries, for those who take all of them: the bucket has to be closed then.
    pub(super) fn row(&mut self) -> &mut Row {
        &mut self.row
    }

    /// The first turn of the wheel in which something here may be due.
    pub(super) fn first_lap(&self) -> u64 {
        self.first_lap
    }

    /// Appends an entry that is due in turn `lap`; returns its position.
    #[inline]
    pub(super) fn push(&mut self, lap: u64, entry: u32) -> u32 {
        self.first_lap = self.first_lap.min(lap);
        let rounds = self.rounds_until(lap);
        self.remaining_rounds.push(rounds);
        self.row.push(entry)
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
                let due = (position..end).filter(|&at| rounds[at] == 0);
                let first = due.filter_map(|at| Some((at, self.row.at(at)?))).next();
                if first.is_some() {
                    return first;
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
            self.row.iter().map(lap_of).min().unwrap_or(u64::MAX)
        };
    }

    /// Leaves a hole at `position`.
    pub(super) fn vacate(&mut self, position: usize) {
        self.remaining_rounds[position] = HOLE;
        self.row.vacate(position);
    }

    /// As [`Row::tidy`]. Tells each entry that moves its new position.
    pub(super) fn tidy(&mut self, mut moved: impl FnMut(u32, u32)) {
        let rounds = &mut self.remaining_rounds;
        self.row.tidy(|entry, from, to| {
            rounds[to] = rounds[from];
            moved(entry, to as u32);
        });
        rounds.truncate(self.row.positions());
        row::shrink(rounds);
    }
}
