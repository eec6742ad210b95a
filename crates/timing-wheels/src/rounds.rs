//! The entries of one slot of the hashed wheel, with the number of rounds that remain for each.

use alloc::vec::Vec;

use super::entries::Entries;
use super::ring::Bucket;
use super::tombstone_vec::{self, Item, TombstoneVec};

/// The largest value of `remaining_rounds`. The deadline of an entry with more rounds is read after
/// this many.
const MAX_REMAINING_ROUNDS: u64 = u32::MAX as u64 - 1;

/// A visit this many rounds after `base_round` subtracts the rounds that have passed. A number of
/// rounds of at least this may be a bound and not exact, because `remaining_rounds` is limited to
/// [`MAX_REMAINING_ROUNDS`].
const REBASE_AFTER_ROUNDS: u64 = MAX_REMAINING_ROUNDS / 2;

/// The number of entries in a chunk.
const ENTRIES_PER_CHUNK: usize = 32;

/// An entry and the number of rounds that remain for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundsItem {
    entry: u32,
    /// The remaining rounds of scheme 6, counted from the bucket's `base_round`; `u32::MAX` for a
    /// tombstone.
    remaining_rounds: u32,
}

impl RoundsItem {
    /// Makes the item of an entry that is due.
    pub(super) fn due(entry: u32) -> Self {
        Self {
            entry,
            remaining_rounds: 0,
        }
    }
}

impl Item for RoundsItem {
    const TOMBSTONE: Self = Self {
        entry: u32::MAX,
        remaining_rounds: u32::MAX,
    };

    const POSITIONS: u64 = 1 << 32;

    fn entry(self) -> u32 {
        self.entry
    }
}

/// The bucket of a slot of the hashed wheel: the entries with their remaining rounds, in chunks,
/// and the fewest rounds in each chunk.
///
/// Netty decrements `remainingRounds` of each entry on each visit. A visit here compares instead:
/// it reads the minimum of each chunk, and then only those chunks in which an entry may be due.
#[derive(Debug)]
pub(super) struct RoundsBucket {
    /// A caller that takes entries out of it must take all, and then clear the slot.
    pub(super) items: TombstoneVec<RoundsItem>,
    /// For each chunk, the minimum of its `remaining_rounds`. A removal may leave it too low.
    chunk_minima: Vec<u32>,
    /// The round of the wheel from which `remaining_rounds` count.
    base_round: u64,
    /// No entry has an earlier deadline; `u64::MAX` if there is no entry. A removal may leave it
    /// too low. The owner sets it.
    pub(super) min_deadline: u64,
    /// No entry is due in a later round. A removal may leave it too high.
    pub(super) max_round: u64,
}

impl Default for RoundsBucket {
    fn default() -> Self {
        Self {
            items: TombstoneVec::new(),
            chunk_minima: Vec::new(),
            base_round: 0,
            min_deadline: u64::MAX,
            max_round: 0,
        }
    }
}

impl Bucket for RoundsBucket {
    fn clear(&mut self) {
        self.items.clear();
        tombstone_vec::clear_and_trim(&mut self.chunk_minima);
    }
}

impl RoundsBucket {
    /// Prepares an empty bucket for use. `current_round` is the round of the wheel's tick.
    pub(super) fn init(&mut self, current_round: u64) {
        self.base_round = current_round;
        self.min_deadline = u64::MAX;
        self.max_round = 0;
    }

    /// Appends an entry that is due in `round`. Returns its position.
    #[inline]
    pub(super) fn push(&mut self, round: u64, entry: u32) -> u32 {
        self.max_round = self.max_round.max(round);
        let remaining_rounds = self.rounds_until(round);
        let position = self.items.push(RoundsItem {
            entry,
            remaining_rounds,
        });
        match self
            .chunk_minima
            .get_mut(position as usize / ENTRIES_PER_CHUNK)
        {
            Some(minimum) => *minimum = remaining_rounds.min(*minimum),
            None => self.chunk_minima.push(remaining_rounds),
        }
        position
    }

    /// Removes the entries that are due in `round` or earlier.
    ///
    /// Calls `collect` with each entry that may be due. It returns the round in which the entry is
    /// due; a returned round after `round` keeps the entry in the bucket.
    ///
    /// Returns the first round in which one of the other entries is due. Returns `None` if there is
    /// no such entry, or if the round is too far ahead to be known without its deadline.
    pub(super) fn visit<E: Entries>(
        &mut self,
        round: u64,
        entries: &mut E,
        mut collect: impl FnMut(&mut E, u32) -> u64,
    ) -> Option<u64> {
        if round - self.base_round >= REBASE_AFTER_ROUNDS {
            self.rebase(round);
        }
        let passed = self.rounds_until(round);
        let mut chunk = 0;
        while let Some(next) = self.chunk_minima[chunk..]
            .iter()
            .position(|&minimum| minimum <= passed)
        {
            chunk += next;
            self.visit_chunk(chunk, round, entries, &mut collect);
            chunk += 1;
        }
        let minimum = u64::from(self.chunk_minima.iter().copied().fold(u32::MAX, u32::min));
        (minimum < REBASE_AFTER_ROUNDS).then(|| self.base_round + minimum)
    }

    fn visit_chunk<E: Entries>(
        &mut self,
        chunk: usize,
        round: u64,
        entries: &mut E,
        collect: &mut impl FnMut(&mut E, u32) -> u64,
    ) {
        let passed = self.rounds_until(round);
        let positions = chunk * ENTRIES_PER_CHUNK
            ..self
                .items
                .position_count()
                .min((chunk + 1) * ENTRIES_PER_CHUNK);
        let items = &self.items.items()[positions.clone()];
        // Without a branch per item: a branch would be mispredicted often, because due items follow
        // no pattern.
        let (mut due, mut count, mut minimum) = ([0; ENTRIES_PER_CHUNK], 0, u32::MAX);
        for (position, item) in positions.zip(items) {
            let is_due = item.remaining_rounds <= passed;
            due[count % ENTRIES_PER_CHUNK] = position;
            count += usize::from(is_due);
            minimum = minimum.min(if is_due {
                u32::MAX
            } else {
                item.remaining_rounds
            });
        }
        for &position in &due[..count] {
            self.items.prefetch(position, entries);
        }
        for &position in &due[..count] {
            let item = self.items.items()[position];
            let entry_round = collect(entries, item.entry);
            if entry_round <= round {
                self.items.leave_tombstone(position);
            } else {
                // `remaining_rounds` had been limited to the maximum, so the entry is due later:
                // count the rest.
                let remaining_rounds = self.rounds_until(entry_round);
                self.items.items_mut()[position].remaining_rounds = remaining_rounds;
                minimum = minimum.min(remaining_rounds);
            }
        }
        self.chunk_minima[chunk] = minimum;
    }

    /// Returns the number of rounds from `base_round` to `round`, limited to
    /// [`MAX_REMAINING_ROUNDS`].
    #[inline]
    fn rounds_until(&self, round: u64) -> u32 {
        (round - self.base_round).min(MAX_REMAINING_ROUNDS) as u32
    }

    /// Subtracts the rounds that have passed from all `remaining_rounds`, and makes `round` the
    /// base.
    fn rebase(&mut self, round: u64) {
        let passed = self.rounds_until(round);
        self.base_round = round;
        for item in self.items.items_mut() {
            if item.entry != RoundsItem::TOMBSTONE.entry {
                item.remaining_rounds = item.remaining_rounds.saturating_sub(passed);
            }
        }
        self.compute_chunk_minima();
    }

    fn compute_chunk_minima(&mut self) {
        let minimum = |chunk: &[RoundsItem]| {
            chunk
                .iter()
                .fold(u32::MAX, |minimum, item| minimum.min(item.remaining_rounds))
        };
        self.chunk_minima.clear();
        self.chunk_minima
            .extend(self.items.items().chunks(ENTRIES_PER_CHUNK).map(minimum));
    }

    /// Removes the entry at `position`. Returns whether no entry is left: then the caller clears
    /// the bucket.
    #[inline]
    pub(super) fn remove_at(&mut self, position: usize, entries: &mut impl Entries) -> bool {
        self.items.remove_at(position) && self.compact(entries)
    }

    /// Removes tombstones as [`TombstoneVec::compact`] does. Returns whether no entry is left: then
    /// the caller clears the bucket.
    // A call for a few of the removals.
    #[inline(never)]
    pub(super) fn compact(&mut self, entries: &mut impl Entries) -> bool {
        if self.items.is_empty() {
            return true;
        }
        if self.items.compact(entries) {
            self.compute_chunk_minima();
        }
        self.chunk_minima
            .truncate((self.items.position_count() + ENTRIES_PER_CHUNK - 1) / ENTRIES_PER_CHUNK);
        tombstone_vec::shrink_if_sparse(&mut self.chunk_minima);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::TestEntries;
    use super::*;

    /// Makes a bucket at round 0 of entries that are due in these rounds. An entry's deadline is
    /// its round.
    fn bucket(rounds: impl IntoIterator<Item = u64>) -> (RoundsBucket, TestEntries) {
        let mut bucket = RoundsBucket::default();
        bucket.init(0);
        let rounds: Vec<_> = rounds.into_iter().collect();
        for (entry, &round) in (0..).zip(&rounds) {
            bucket.push(round, entry);
        }
        (bucket, TestEntries::new(rounds))
    }

    /// Visits the bucket. Returns the entries that were read, and the result of the visit.
    fn visit(
        bucket: &mut RoundsBucket,
        round: u64,
        entries: &mut TestEntries,
    ) -> (Vec<u32>, Option<u64>) {
        let mut read = Vec::new();
        let next = bucket.visit(round, entries, |entries, entry| {
            read.push(entry);
            entries.deadline(entry)
        });
        (read, next)
    }

    #[test]
    fn visit_returns_the_next_round_only_if_it_is_known() {
        let (mut known, mut entries) = bucket([REBASE_AFTER_ROUNDS - 1]);
        assert_eq!(
            visit(&mut known, 0, &mut entries),
            (vec![], Some(REBASE_AFTER_ROUNDS - 1))
        );
        let (mut unknown, mut entries) = bucket([REBASE_AFTER_ROUNDS]);
        assert_eq!(visit(&mut unknown, 0, &mut entries), (vec![], None));
        let (mut near, mut entries) = bucket([1, 5]);
        assert_eq!(visit(&mut near, 1, &mut entries), (vec![0], Some(5)));
    }

    #[test]
    fn late_visit_subtracts_the_rounds_that_have_passed() {
        const LATER: u64 = REBASE_AFTER_ROUNDS + 7;

        let (mut bucket, mut entries) = bucket([LATER]);
        visit(&mut bucket, REBASE_AFTER_ROUNDS - 1, &mut entries);
        assert_eq!(bucket.base_round, 0);
        assert_eq!(
            visit(&mut bucket, REBASE_AFTER_ROUNDS, &mut entries),
            (vec![], Some(LATER))
        );
        assert_eq!(
            (bucket.base_round, bucket.chunk_minima[0]),
            (REBASE_AFTER_ROUNDS, 7)
        );
        assert_eq!(visit(&mut bucket, LATER, &mut entries), (vec![0], None));
    }

    #[test]
    fn visit_reads_only_chunks_in_which_an_entry_may_be_due() {
        let rounds = [10; ENTRIES_PER_CHUNK].into_iter().chain([1, 20, 30]);
        let (mut bucket, mut entries) = bucket(rounds);
        let first = ENTRIES_PER_CHUNK as u32;
        assert_eq!(visit(&mut bucket, 1, &mut entries), (vec![first], Some(10)));
        assert_eq!(bucket.chunk_minima, [10, 20]);
        assert_eq!(
            visit(&mut bucket, 20, &mut entries),
            ((0..first).chain([first + 1]).collect(), Some(30))
        );
    }

    #[test]
    fn compact_updates_the_chunks() {
        const LEN: usize = 2 * ENTRIES_PER_CHUNK;

        let (mut bucket, mut entries) = bucket(100..100 + LEN as u64);
        (0..=LEN / 2).for_each(|position| assert!(!bucket.remove_at(position, &mut entries)));
        assert_eq!(
            (bucket.items.position_count(), bucket.items.len()),
            (LEN / 2 - 1, LEN / 2 - 1)
        );
        assert_eq!(
            (
                bucket.chunk_minima.as_slice(),
                entries.position(LEN as u32 - 1)
            ),
            (&[133][..], 30)
        );
    }

    #[test]
    fn a_chunk_without_entries_is_removed() {
        let (mut bucket, mut entries) = bucket(1..2 + ENTRIES_PER_CHUNK as u64);
        assert!(!bucket.remove_at(ENTRIES_PER_CHUNK, &mut entries));
        assert_eq!(bucket.chunk_minima, [1]);
    }

    #[test]
    fn cleared_bucket_has_no_entries() {
        let (mut bucket, mut entries) = bucket([1, 2]);
        assert!(!bucket.remove_at(0, &mut entries));
        assert!(bucket.remove_at(1, &mut entries));
        bucket.clear();
        assert_eq!(
            (bucket.items.position_count(), bucket.chunk_minima.len()),
            (0, 0)
        );
        bucket.init(0);
        assert_eq!(bucket.push(1, 0), 0, "the first position");
    }
}
