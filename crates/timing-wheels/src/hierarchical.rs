//! Varghese and Lauck's scheme 7: levels of slots. A slot is as wide as all slots of the level
//! below together.
//!
//! A deadline and the time are numbers to the base of the slot count. The level of an entry is the
//! highest digit in which they differ, and its slot is that digit of the deadline.
//!
//! - The place follows from deadline and time alone. So entries of one deadline are in one slot at
//!   all times, and move together, in order.
//! - If the higher digits agree, a later deadline has a greater digit. So on each level the slots
//!   up to the time's own are empty, and all of a level is due before any entry of the next one.
//!   The first occupied slot of the lowest level has the first entry.
//! - The time moves from one such slot to the next. The entries of that slot then differ from the
//!   time in a lower digit, and move down: at most once per level.

use alloc::alloc::handle_alloc_error;
use alloc::vec::Vec;
use core::alloc::Layout;

use super::bitmap::Bitmap;
use super::entries::Entries;
use super::ready_list::ReadyList;
use super::ring::{Bucket, Ring, SizeError, SlotCounts, slot_count};
use super::tombstone_vec::TombstoneVec;

/// The number of entries whose deadlines a cascade reads before it moves the first of them, so that
/// their cache misses overlap.
const CASCADE_BATCH: usize = 16;

/// The most bits in a digit, except the lowest. So the memory of a level that is made when an entry
/// needs it is small, at most 264 KiB, however many slots the lowest level has.
const MAX_UPPER_BITS: u32 = 16;

/// The order of a [`HierarchicalWheel`](crate::HierarchicalWheel): the slot and position of each
/// entry, and the entries that are due. An [`Entries`] stores the entries themselves.
#[derive(Debug)]
pub struct Hierarchical {
    /// From the lowest level up. `None` is a level that no entry has needed so far. The lowest
    /// level always exists if it is larger than any other may be.
    levels: Vec<Option<Level>>,
    /// All entries with `deadline <= tick`.
    ready: ReadyList,
    /// The number of entries in `levels` and `ready`.
    len: usize,
    digits: Digits,
    tick: u64,
}

/// The digits of a deadline, one per level.
#[derive(Clone, Copy, Debug)]
struct Digits {
    /// The number of bits in the lowest digit. The lowest level has `1 << lowest` slots.
    lowest: u32,
    /// The number of bits in each other digit: as many, or [`MAX_UPPER_BITS`].
    upper: u32,
}

impl Digits {
    /// Returns the number of bits in the digit of a level. The highest one may have fewer.
    #[inline]
    fn bits(self, level: usize) -> u32 {
        if level == 0 { self.lowest } else { self.upper }
    }

    /// Returns the number of bits below the digit of a level.
    #[inline]
    fn shift(self, level: usize) -> u32 {
        if level == 0 {
            0
        } else {
            self.lowest + (level as u32 - 1) * self.upper
        }
    }

    /// Whether the lowest level needs more memory than any other level may.
    fn has_large_level(self) -> bool {
        self.lowest > MAX_UPPER_BITS
    }

    /// Returns the number of slots of a level. The digit of the highest level has only those bits
    /// that are left of the 64.
    fn slot_count(self, level: usize) -> usize {
        1 << self.bits(level).min(u64::BITS - self.shift(level))
    }

    #[cold]
    #[inline(never)]
    fn make_level(self, level: usize) -> Level {
        // At most 264 KiB, whatever the settings are. Without memory for it the process ends, as
        // with a `Vec` that grows.
        Level::try_new(self.slot_count(level))
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<Level>()))
    }
}

#[derive(Debug)]
struct Level {
    slots: Ring<LevelBucket>,
    occupied: Bitmap,
}

#[derive(Debug, Default)]
struct LevelBucket {
    items: TombstoneVec,
    /// No entry has an earlier deadline. A removal may leave it too low, but never before the
    /// slot's first tick.
    min_deadline: u64,
}

impl Bucket for LevelBucket {
    #[inline]
    fn clear(&mut self) {
        self.items.clear();
    }
}

impl Level {
    fn try_new(slots: usize) -> Result<Self, SizeError> {
        Ok(Self {
            slots: Ring::try_new(slots)?,
            occupied: Bitmap::try_new(slots)?,
        })
    }

    /// Returns the slot's bucket, and marks the slot as occupied.
    #[inline]
    fn bucket_or_insert(&mut self, slot: usize) -> &mut LevelBucket {
        self.slots.bucket_or_insert(slot, |bucket| {
            bucket.items.prepare();
            bucket.min_deadline = u64::MAX;
            self.occupied.set(slot);
        })
    }

    /// Removes all entries of an occupied slot.
    #[inline]
    fn clear_slot(&mut self, slot: usize) {
        self.slots.clear_slot(slot);
        self.occupied.clear(slot);
    }

    /// Removes all entries.
    fn clear(&mut self) {
        self.slots.clear(|slot| self.occupied.clear(slot));
    }
}

impl Hierarchical {
    /// Makes an empty wheel at tick 0.
    ///
    /// # Errors
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](crate::MAX_TICKS_PER_WHEEL), or if there is no memory for this many
    /// slots.
    pub fn try_new(ticks_per_wheel: usize) -> Result<Self, SizeError> {
        // With one slot per level a digit would have no bits.
        let lowest = slot_count(ticks_per_wheel)?.max(2).trailing_zeros();
        let upper = lowest.min(MAX_UPPER_BITS);
        let digits = Digits { lowest, upper };
        let levels = 1 + (u64::BITS - lowest + upper - 1) / upper;
        let mut levels: Vec<_> = (0..levels).map(|_| None).collect();
        if digits.has_large_level() {
            // There may be no memory for it later.
            levels[0] = Some(Level::try_new(digits.slot_count(0))?);
        }
        Ok(Self {
            levels,
            ready: ReadyList::default(),
            len: 0,
            digits,
            tick: 0,
        })
    }

    /// Inserts an entry that is not in the wheel. Returns its position, which the caller stores.
    #[inline]
    pub fn insert(&mut self, deadline: u64, entry: u32) -> u32 {
        self.len += 1;
        self.link(deadline, entry)
    }

    /// Removes the entry that was inserted at `deadline` and is at `position`, even if it is due.
    #[inline]
    pub fn remove(&mut self, deadline: u64, position: u32, entries: &mut impl Entries) {
        let position = position as usize;
        self.len -= 1;
        if deadline <= self.tick {
            self.ready.remove_at(position, entries);
        } else {
            let (level, slot) = self.slot(deadline);
            let level = existing_level(&mut self.levels, level);
            let items = &mut level.slots.bucket_mut(slot).items;
            if items.remove_at(position) {
                items.compact(|entry, position| entries.set_position(entry, position));
                if items.is_empty() {
                    level.clear_slot(slot);
                }
            }
        }
    }

    /// Advances the time to `now`, which is not before [`tick`](Self::tick).
    /// [`pop_due`](Self::pop_due) then returns the entries that are due.
    pub fn advance(&mut self, entries: &mut impl Entries, now: u64) {
        // There are tombstones if the caller has not popped all entries of an earlier `advance`.
        self.ready.compact(entries);
        while let Some((level, slot)) = self
            .first_occupied_slot()
            .filter(|&(level, slot)| self.slot_start(level, slot) <= now)
        {
            self.cascade(level, slot, now, entries);
        }
        // Never back: a deadline would be looked for in the slots although it is in the ready list.
        self.tick = self.tick.max(now);
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

    /// Returns what [`HierarchicalWheel::next_deadline`](crate::HierarchicalWheel::next_deadline)
    /// documents.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(self.tick);
        }
        self.first_bucket().map(|bucket| bucket.min_deadline)
    }

    /// Returns the entry that expires first. Reads the first occupied slot.
    pub fn first(&self, entries: &impl Entries) -> Option<u32> {
        // The first one of several with the same deadline.
        let in_first_slot = || {
            self.first_bucket()?
                .items
                .iter()
                .min_by_key(|&entry| entries.deadline(entry))
        };
        self.ready.first().or_else(in_first_slot)
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

    /// Returns the number of entries in each slot of each existing level, from the lowest level up;
    /// `None` if there is no memory for the numbers. The current slot is that of the tick `now`.
    pub fn levels(&self, now: u64) -> Option<Vec<SlotCounts>> {
        let existing =
            self.levels.iter().enumerate().filter_map(|(index, level)| {
                Some((&level.as_ref()?.slots, self.digits.shift(index)))
            });
        let levels = existing.map(|(slots, shift)| {
            Some(SlotCounts {
                ticks_per_slot: 1 << shift,
                slots: slots.counts(|bucket| bucket.items.len())?,
                current_slot: (now >> shift) as usize & (slots.slot_count() - 1),
            })
        });
        levels.collect()
    }

    /// Calls `visit` with each entry, in no particular order.
    pub fn for_each(&self, visit: impl FnMut(u32)) {
        let in_levels = self.buckets().flat_map(|bucket| bucket.items.iter());
        self.ready.iter().chain(in_levels).for_each(visit);
    }

    /// Returns all buckets in no particular order. Unused buckets are among them; they have no
    /// entries.
    fn buckets(&self) -> impl Iterator<Item = &LevelBucket> + '_ {
        self.levels
            .iter()
            .flatten()
            .flat_map(|level| level.slots.buckets())
    }

    /// Removes all entries. The time does not change.
    pub fn clear(&mut self) {
        let is_kept = |index| index == 0 && self.digits.has_large_level();
        for (index, level) in self.levels.iter_mut().enumerate() {
            match level {
                Some(level) if is_kept(index) => level.clear(),
                _ => *level = None,
            }
        }
        self.ready = ReadyList::default();
        self.len = 0;
    }

    /// Returns the number of slots of the lowest level, which is a power of two and at least two.
    #[inline]
    pub fn ticks_per_wheel(&self) -> usize {
        1 << self.digits.lowest
    }

    /// Returns the level and the slot of a deadline after the current tick.
    ///
    /// The level is that of the highest digit in which the deadline and the tick differ. The slot
    /// is this digit of the deadline.
    #[inline]
    fn slot(&self, deadline: u64) -> (usize, usize) {
        let highest_bit = (deadline ^ self.tick).ilog2();
        if highest_bit < self.digits.lowest {
            return (0, deadline as usize & (self.ticks_per_wheel() - 1));
        }
        let upper = (highest_bit - self.digits.lowest) / self.digits.upper;
        let digit = deadline >> (self.digits.lowest + upper * self.digits.upper);
        (
            1 + upper as usize,
            digit as usize & ((1 << self.digits.upper) - 1),
        )
    }

    /// Returns the first tick of a slot that starts after the current tick.
    #[inline]
    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let above = self.digits.shift(level) + self.digits.bits(level);
        // The digits above the level are those of the current tick. The highest level has none.
        let prefix = self
            .tick
            .checked_shr(above)
            .map_or(0, |digits| digits << above);
        prefix | (slot as u64) << self.digits.shift(level)
    }

    /// Returns the slot of the earliest entry that is not due.
    ///
    /// All entries of a level are due before those of the next level, and the slots up to that of
    /// the current tick are empty.
    #[inline]
    fn first_occupied_slot(&self) -> Option<(usize, usize)> {
        let slots = self
            .levels
            .iter()
            .map(|level| level.as_ref()?.occupied.next(0));
        slots
            .enumerate()
            .find_map(|(level, slot)| Some((level, slot?)))
    }

    /// Returns the bucket of that slot.
    #[inline]
    fn first_bucket(&self) -> Option<&LevelBucket> {
        let (level, slot) = self.first_occupied_slot()?;
        Some(self.levels[level].as_ref()?.slots.bucket(slot))
    }

    /// Adds an entry to its slot or to the ready list, depending on the current tick. Returns its
    /// position.
    #[inline(always)]
    fn link(&mut self, deadline: u64, entry: u32) -> u32 {
        if deadline <= self.tick {
            return self.ready.push(entry);
        }
        let (level, slot) = self.slot(deadline);
        let digits = self.digits;
        let bucket = self.levels[level]
            .get_or_insert_with(|| digits.make_level(level))
            .bucket_or_insert(slot);
        bucket.min_deadline = bucket.min_deadline.min(deadline);
        bucket.items.push(entry)
    }

    /// [`link`](Self::link) for an entry that a cascade moves.
    // Not inlined: keeps register spills out of the cascade's loop.
    #[inline(never)]
    fn link_again(&mut self, deadline: u64, entry: u32) -> u32 {
        self.link(deadline, entry)
    }

    /// Advances the time into the first occupied slot: to its earliest deadline, or to `now` if
    /// that is before it. Moves the slot's entries to lower levels or to the ready list.
    fn cascade(&mut self, level: usize, slot: usize, now: u64, entries: &mut impl Entries) {
        let LevelBucket {
            items,
            min_deadline,
        } = existing_level(&mut self.levels, level)
            .slots
            .bucket_mut(slot);
        self.tick = now.min(*min_deadline);
        // In the lowest level all entries of a slot have the same deadline, so the whole bucket is
        // due.
        if level > 0 || !self.ready.swap_if_empty(items, entries) {
            let items = core::mem::take(items);
            let mut batch = [(0, 0); CASCADE_BATCH];
            for start in (0..items.position_count()).step_by(CASCADE_BATCH) {
                let mut count = 0;
                for position in start..items.position_count().min(start + CASCADE_BATCH) {
                    items.prefetch(position + CASCADE_BATCH, entries);
                    if let Some(entry) = items.get(position) {
                        batch[count] = (entries.deadline(entry), entry);
                        count += 1;
                    }
                }
                for &(deadline, entry) in &batch[..count] {
                    entries.set_position(entry, self.link_again(deadline, entry));
                }
            }
            // Put the array back, so that the bucket keeps its capacity.
            existing_level(&mut self.levels, level)
                .slots
                .bucket_mut(slot)
                .items = items;
        }
        existing_level(&mut self.levels, level).clear_slot(slot);
    }
}

/// Returns a level that has an entry and therefore exists.
#[inline]
fn existing_level(levels: &mut [Option<Level>], level: usize) -> &mut Level {
    levels[level]
        .as_mut()
        .expect("a level with an entry exists")
}

#[cfg(test)]
mod tests {
    use super::super::entries::TestEntries;
    use super::*;

    /// Inserts entries with these deadlines, numbered from 0.
    fn insert_all(wheel: &mut Hierarchical, entries: &mut TestEntries, deadlines: &[u64]) {
        for (entry, &deadline) in (0..).zip(deadlines) {
            entries.set_position(entry, wheel.insert(deadline, entry));
        }
    }

    /// Makes a wheel of eight slots per level that contains entries with these deadlines.
    fn wheel(deadlines: impl IntoIterator<Item = u64>) -> (Hierarchical, TestEntries) {
        let deadlines: Vec<_> = deadlines.into_iter().collect();
        let (mut wheel, mut entries) = (
            Hierarchical::try_new(8).expect("memory"),
            TestEntries::new(deadlines.iter().copied()),
        );
        insert_all(&mut wheel, &mut entries, &deadlines);
        (wheel, entries)
    }

    #[test]
    fn highest_level_has_slots_for_the_bits_that_are_left() {
        // 64 bits are 21 digits of three bits, and one bit.
        let (wheel, _) = wheel([1, u64::MAX]);
        let levels = wheel.levels(0).expect("memory");
        let slots: Vec<_> = levels.iter().map(|level| level.slots.clone()).collect();
        assert_eq!(slots, [vec![0, 1, 0, 0, 0, 0, 0, 0], vec![0, 1]]);
    }

    /// With 2^20 slots in the lowest level the digits have 20, 16, 16 and 12 bits.
    #[test]
    #[cfg_attr(miri, ignore = "too much memory")]
    fn upper_levels_have_fewer_slots_than_a_large_lowest_one() {
        let deadlines = [1, 1 << 20, (1 << 36) - 1, 1 << 36, 1 << 52, u64::MAX];
        let (mut wheel, mut entries) = (
            Hierarchical::try_new(1 << 20).expect("memory"),
            TestEntries::new(deadlines),
        );
        insert_all(&mut wheel, &mut entries, &deadlines);
        let levels = wheel.levels(0).expect("memory");
        let levels: Vec<_> = levels
            .iter()
            .map(|level| (level.ticks_per_slot.ilog2(), level.slots.len().ilog2()))
            .collect();
        assert_eq!(levels, [(0, 20), (20, 16), (36, 16), (52, 12)]);
        for (entry, deadline) in (0..).zip(deadlines) {
            assert_eq!(wheel.next_deadline(), Some(deadline));
            wheel.advance(&mut entries, deadline - 1);
            assert_eq!(wheel.pop_due(&entries), None);
            wheel.advance(&mut entries, deadline);
            assert_eq!(wheel.pop_due(&entries), Some(entry));
        }
    }

    #[test]
    fn due_entries_are_sorted_by_key() {
        let (mut wheel, mut entries) = wheel([1, 1, 1]);
        wheel.advance(&mut entries, 1);
        wheel.sort_due_by_key(|entry| u64::from(9 - entry), &mut entries);
        assert_eq!(
            [(); 3].map(|()| wheel.pop_due(&entries)),
            [Some(2), Some(1), Some(0)]
        );
    }

    #[test]
    fn sorted_entries_know_their_positions() {
        let (mut wheel, mut entries) = wheel([1, 1, 1]);
        wheel.advance(&mut entries, 1);
        wheel.sort_due_by_key(|entry| u64::from(9 - entry), &mut entries);
        assert_eq!([0, 1, 2].map(|entry| entries.position(entry)), [2, 1, 0]);
        wheel.remove(1, entries.position(2), &mut entries);
        assert_eq!(
            [(); 3].map(|()| wheel.pop_due(&entries)),
            [Some(1), Some(0), None]
        );
    }

    #[test]
    fn cascade_prefetches_the_next_batch() {
        const ENTRIES: u32 = 2 * CASCADE_BATCH as u32 + 3;

        let (mut wheel, mut entries) = wheel((0..ENTRIES).map(|_| 9));
        wheel.advance(&mut entries, 8);
        assert!(
            entries
                .prefetched
                .borrow()
                .iter()
                .copied()
                .eq(CASCADE_BATCH as u32..ENTRIES)
        );
    }
}
