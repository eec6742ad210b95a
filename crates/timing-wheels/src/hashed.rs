//! Varghese and Lauck's scheme 6: one array of slots, and rounds for deadlines beyond it.
//!
//! To advance a wheel to a tick hands out all entries that are due up to it, in the order of
//! deadlines, and for one deadline in the order of insertion. Here an entry later than now is in
//! the slot of its deadline's low bits: a mask, because the number of slots is a power of two. The
//! other bits are its round, so slot and round make a deadline.
//!
//! - Each slot knows a tick no later than its first deadline, and a tree ([`MinTree`]) knows the
//!   first of these ticks. So a slot is visited only when one of its entries may be due, however
//!   short the tick or far the jump.
//! - A visit takes out the entries whose round is no later than the one in which the slot was last
//!   passed. These are exactly the due ones.
//! - A jump over more than one round sorts what it takes out, stably. Within a round slots are
//!   visited in order.
//!
//! An entry costs a 32nd of a comparison for each visit of its slot for other entries
//! (`rounds.rs`), and a whole one for each visit of its chunk.

use alloc::vec;
use alloc::vec::Vec;
use core::iter;

use super::entries::Entries;
use super::min_tree::MinTree;
use super::ready_list::ReadyList;
use super::ring::{Ring, SizeError, SlotCounts, check_slots, slot_count};
use super::rounds::{RoundsBucket, RoundsItem};

/// The order of a [`HashedWheel`](crate::HashedWheel): the slot and position of each entry, and the
/// entries that are due. An [`Entries`] stores the entries themselves.
#[derive(Debug)]
pub struct Hashed {
    /// Has no slots until an entry needs one, unless they were allocated before.
    slots: Ring<RoundsBucket>,
    /// The earliest deadline in `slots`.
    min_deadlines: MinTree,
    /// All entries with `deadline <= tick`.
    ready: ReadyList<RoundsItem>,
    /// The number of entries in `slots` and `ready`.
    len: usize,
    tick: u64,
    /// The number of slots, also before they are allocated.
    slot_count: usize,
}

impl Hashed {
    /// Makes an empty wheel at tick 0. Allocates nothing: the slots are allocated when an entry
    /// first needs one. Without memory for them it panics then.
    ///
    /// # Panics
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](crate::MAX_TICKS_PER_WHEEL).
    #[must_use]
    pub const fn new(ticks_per_wheel: usize) -> Self {
        Self {
            slot_count: slot_count(ticks_per_wheel),
            slots: Ring::NONE,
            min_deadlines: MinTree::NONE,
            ready: ReadyList::new(),
            len: 0,
            tick: 0,
        }
    }

    /// Makes the same wheel as [`new`](Self::new), with its slots.
    ///
    /// # Errors
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](crate::MAX_TICKS_PER_WHEEL), or if there is no memory for this many
    /// slots.
    pub fn try_new(ticks_per_wheel: usize) -> Result<Self, SizeError> {
        check_slots(ticks_per_wheel)?;
        let mut wheel = Self::new(ticks_per_wheel);
        wheel.allocate()?;
        Ok(wheel)
    }

    /// Allocates the slots. All are empty.
    fn allocate(&mut self) -> Result<(), SizeError> {
        self.slots = Ring::try_new(self.slot_count)?;
        self.min_deadlines = MinTree::try_new(self.slot_count)?;
        Ok(())
    }

    /// [`insert`](Self::insert) of the first entry that needs a slot.
    #[cold]
    #[inline(never)]
    fn insert_first(&mut self, deadline: u64, entry: u32) -> u32 {
        self.len -= 1;
        self.allocate().unwrap_or_else(|error| panic!("{error}"));
        self.insert(deadline, entry)
    }

    /// Inserts an entry that is not in the wheel. Returns its position, which the caller stores.
    #[inline(always)]
    pub fn insert(&mut self, deadline: u64, entry: u32) -> u32 {
        self.len += 1;
        if deadline <= self.tick {
            return self.ready.push(RoundsItem::due(entry));
        }
        let slot = self.slot(deadline);
        // Also the check of the index: it costs nothing.
        if slot >= self.slots.slot_count() {
            return self.insert_first(deadline, entry);
        }
        let (round, tick) = (self.round(deadline), self.tick);
        let shift = self.slots.slot_count().trailing_zeros();
        let bucket = self
            .slots
            .bucket_or_insert(slot, |bucket| bucket.init(tick >> shift));
        if deadline < bucket.min_deadline {
            bucket.min_deadline = deadline;
            self.min_deadlines.decrease(slot, deadline);
        }
        bucket.push(round, entry)
    }

    /// Removes the entry that was inserted at `deadline` and is at `position`, even if it is due.
    #[inline(always)]
    pub fn remove(&mut self, deadline: u64, position: u32, entries: &mut impl Entries) {
        let position = position as usize;
        self.len -= 1;
        if deadline <= self.tick {
            self.ready.remove_at(position, entries);
        } else {
            let slot = self.slot(deadline);
            if self.slots.bucket_mut(slot).remove_at(position, entries) {
                self.slots.clear_slot(slot);
                self.update_min_deadline(slot);
            }
        }
    }

    /// Advances the time to `now`, which is not before [`tick`](Self::tick).
    /// [`pop_due`](Self::pop_due) then returns the entries that are due.
    #[inline(always)]
    pub fn advance(&mut self, entries: &mut impl Entries, now: u64) {
        // There are tombstones if the caller has not popped all entries of an earlier `advance`.
        self.ready.compact(entries);
        if self.min_deadlines.min() <= now && !self.slots_are_empty() {
            self.collect_ready(now, entries);
        }
        // Never back: a deadline would be looked for in the slots although it is in the ready list.
        self.tick = self.tick.max(now);
    }

    /// Does the same as [`advance`](Self::advance) and [`pop_due`](Self::pop_due).
    #[inline]
    pub(crate) fn pop_expired(&mut self, entries: &mut impl Entries, now: u64) -> Option<u32> {
        self.advance(entries, now);
        self.pop_due(entries)
    }

    /// Removes the first entry that is due.
    #[inline]
    pub fn pop_due(&mut self, entries: &impl Entries) -> Option<u32> {
        let entry = self.ready.pop(entries)?;
        self.len -= 1;
        Some(entry)
    }

    /// Returns the first entry that is due.
    #[inline]
    pub fn first_due(&mut self) -> Option<u32> {
        self.ready.skip_to_first()
    }

    /// Returns what [`HashedWheel::next_deadline`](crate::HashedWheel::next_deadline) documents.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(self.tick);
        }
        (!self.slots_are_empty()).then(|| self.min_deadlines.min())
    }

    /// Returns the entry that expires first. Reads one slot, if that contains an entry with
    /// [`next_deadline`](Self::next_deadline). Otherwise an entry was removed: then reads the
    /// minimum of each occupied slot, and those slots that may contain the first entry.
    pub fn first(&self, entries: &impl Entries) -> Option<u32> {
        let (next, mut first) = (self.next_deadline()?, None);
        if !self.ready.is_empty() {
            return self.ready.first();
        }
        for bucket in iter::once(self.slots.bucket(self.slot(next))).chain(self.slots.buckets()) {
            if first.map_or(true, |(deadline, _)| bucket.min_deadline < deadline) {
                let in_bucket = bucket.items.iter();
                let in_bucket = in_bucket.map(|entry| (entries.deadline(entry), entry));
                // The first one of several with the same deadline.
                let all = first.into_iter().chain(in_bucket);
                first = all.min_by_key(|&(deadline, _)| deadline);
            }
            if first.is_some_and(|(deadline, _)| deadline == next) {
                break;
            }
        }
        first.map(|(_, entry)| entry)
    }

    /// Sorts the entries that are due by a key, which is read once per entry. The sort is stable.
    pub fn sort_due_by_key(&mut self, key: impl Fn(u32) -> u64, entries: &mut impl Entries) {
        self.ready.sort_by_key(key, entries);
    }

    /// Returns the tick of the last [`advance`](Self::advance).
    #[inline]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Returns the number of entries, those that are due included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of entries in each slot; `None` if there is no memory for the numbers.
    /// The current slot is that of the tick `now`.
    pub fn levels(&self, now: u64) -> Option<Vec<SlotCounts>> {
        let slots = self
            .slots
            .counts(self.slot_count, |bucket| bucket.items.len())?;
        Some(vec![SlotCounts {
            ticks_per_slot: 1,
            slots,
            current_slot: now as usize & (self.slot_count - 1),
        }])
    }

    /// Calls `visit` with each entry, in no particular order.
    pub fn for_each(&self, visit: impl FnMut(u32)) {
        let in_slots = self.slots.buckets().flat_map(|bucket| bucket.items.iter());
        self.ready.iter().chain(in_slots).for_each(visit);
    }

    /// Removes all entries. The time does not change. The slots stay, because there may be no
    /// memory for new ones.
    pub fn clear(&mut self) {
        self.slots.clear(|slot| self.min_deadlines.clear(slot));
        self.ready = ReadyList::new();
        self.len = 0;
    }

    /// Returns the number of slots, which is a power of two.
    pub fn ticks_per_wheel(&self) -> usize {
        self.slot_count
    }

    /// Returns the slot of a tick: its low bits. The number of slots is a power of two, so a mask
    /// is enough.
    #[inline]
    fn slot(&self, tick: u64) -> usize {
        // Before the slots are allocated, this is the number of no slot.
        tick as usize & self.slots.slot_count().wrapping_sub(1)
    }

    /// Returns the round of a tick: the number of complete rounds before it.
    #[inline]
    fn round(&self, tick: u64) -> u64 {
        tick >> self.slots.slot_count().trailing_zeros()
    }

    #[inline]
    fn slots_are_empty(&self) -> bool {
        self.len == self.ready.len()
    }

    /// Moves all entries that are due at `now` from the slots to the ready list.
    fn collect_ready(&mut self, now: u64, entries: &mut impl Entries) {
        let slots = self.slots.slot_count();
        let (mask, shift) = (slots as u64 - 1, slots.trailing_zeros());
        let old_end = self.ready.position_count();
        // Whether a slot can contain due entries of more than one round, and so of several
        // deadlines.
        let spans_rounds = now - self.min_deadlines.min() > mask;
        while self.min_deadlines.min() <= now && !self.slots_are_empty() {
            let min_deadline = self.min_deadlines.min();
            let slot = self.slot(min_deadline);
            // The round of the last tick, up to `now`, that belongs to this slot.
            let round = self.round(now - ((now - min_deadline) & mask));
            let bucket = self.slots.bucket_mut(slot);
            // The usual case: within one round a slot has one deadline, so without entries of later
            // rounds the whole bucket is due. Then swap the arrays: no entry moves.
            if !spans_rounds
                && bucket.max_round <= round
                && self.ready.swap_if_empty(&mut bucket.items, entries)
            {
                self.slots.clear_slot(slot);
            } else {
                let next_round = bucket.visit(round, entries, |entries, entry| {
                    let deadline = entries.deadline(entry);
                    if deadline <= now {
                        entries.set_position(entry, self.ready.push(RoundsItem::due(entry)));
                    }
                    deadline >> shift
                });
                // A round and a slot make a deadline. If the round is not known, read the deadline
                // of each entry.
                bucket.min_deadline = match next_round {
                    Some(round) => round << shift | slot as u64,
                    None => {
                        let deadlines = bucket.items.iter().map(|entry| entries.deadline(entry));
                        deadlines.min().unwrap_or(u64::MAX)
                    }
                };
                if bucket.compact(entries) {
                    self.slots.clear_slot(slot);
                }
            }
            self.update_min_deadline(slot);
        }
        if spans_rounds {
            // Entries with the same deadline stay in insertion order: they come from one slot, and
            // the sort is stable.
            self.ready.sort_from(old_end, entries);
        }
    }

    /// Updates the tree after the earliest deadline of a slot became later.
    #[inline]
    fn update_min_deadline(&mut self, slot: usize) {
        let in_group = self
            .slots
            .range(self.min_deadlines.group(slot))
            .map(|bucket| bucket.min_deadline);
        let group_min = in_group.fold(u64::MAX, u64::min);
        self.min_deadlines.increase(slot, group_min);
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::TestEntries;
    use super::*;

    #[test]
    fn late_advance_returns_the_entries_of_a_slot_by_deadline() {
        // In one slot, and less than eight times the ticks of the first one late.
        let mut entries = TestEntries::new([100, 92]);
        let mut wheel = Hashed::try_new(8).expect("memory");
        assert!(wheel.is_empty());
        (0..2).for_each(|entry| {
            entries.set_position(entry, wheel.insert(entries.deadline(entry), entry));
        });
        assert!(!wheel.is_empty());
        wheel.advance(&mut entries, 200);
        assert_eq!(
            [(); 3].map(|()| wheel.pop_due(&entries)),
            [Some(1), Some(0), None]
        );
    }
}
