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
//! - The time of the levels moves from one such slot to the next, when the slot's first entry is
//!   due. The other entries of that slot then differ from the time in a lower digit, and move down:
//!   at most once per level.
//!
//! While there are few entries they are in no level, but in a short sorted list ([`ShortList`]).
//!
//! - A new entry goes to the list if it is due before all entries of the levels and the list is not
//!   full. So of two entries with the same deadline, the one in the list was inserted first.
//! - The entries of a slot that move down go to the list instead if there is room for all of them.

use alloc::vec::Vec;

use super::entries::Entries;
use super::level::{Level, LevelBucket};
use super::ready_list::ReadyList;
use super::ring::{SizeError, SlotCounts, check_slots, slot_count, try_array, try_memory};
use super::short_list::{FIRST_POSITION, MAX_LEN, ShortList};

/// The number of entries whose deadlines a cascade reads before it moves the first of them, so that
/// their cache misses overlap.
const CASCADE_BATCH: usize = 16;

/// The most bits in a digit, except the lowest. So the memory of a level that is made when an entry
/// needs it is small, at most 265 KiB, however many slots the lowest level has.
const MAX_UPPER_BITS: u32 = 16;

/// The order of a [`HierarchicalWheel`](crate::HierarchicalWheel): the slot and position of each
/// entry, and the entries that are due. An [`Entries`] stores the entries themselves.
#[derive(Debug)]
pub struct Hierarchical {
    /// From the lowest level up. A level has no slots until an entry needs it. Then it keeps them,
    /// until all entries are [cleared](Self::clear), or permanently if it is large.
    levels: Vec<Level>,
    /// The number of bits in the lowest digit. The lowest level has `1 << lowest_bits` slots.
    lowest_bits: u32,
    /// The number of bits in each other digit: as many, or [`MAX_UPPER_BITS`].
    upper_bits: u32,
    /// The time of the levels, which is not after `tick`: that of the last entry that left them.
    levels_tick: u64,
    /// The least `min_deadline` in the levels, which is that of the first occupied slot. `None` if
    /// there are no entries.
    first_in_levels: Option<u64>,
    /// Entries that are in no slot.
    list: ShortList,
    /// All entries with `deadline <= tick`.
    ready: ReadyList,
    /// The number of entries in `levels`, `list` and `ready`.
    len: usize,
    tick: u64,
}

impl Hierarchical {
    /// Makes an empty wheel at tick 0. Allocates nothing: a level gets its slots when an entry
    /// first needs them. Without memory for them the process ends then, as with a `Vec` that grows.
    ///
    /// # Panics
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](crate::MAX_TICKS_PER_WHEEL).
    #[must_use]
    pub const fn new(ticks_per_wheel: usize) -> Self {
        // With one slot per level a digit would have no bits.
        let lowest_bits = match slot_count(ticks_per_wheel) {
            1 => 1,
            slots => slots.trailing_zeros(),
        };
        Self {
            levels: Vec::new(),
            lowest_bits,
            upper_bits: match lowest_bits {
                0..=MAX_UPPER_BITS => lowest_bits,
                _ => MAX_UPPER_BITS,
            },
            levels_tick: 0,
            first_in_levels: None,
            list: ShortList::new(),
            ready: ReadyList::new(),
            len: 0,
            tick: 0,
        }
    }

    /// Makes the same wheel as [`new`](Self::new). If its lowest level is large, that level already
    /// has slots.
    ///
    /// # Errors
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](crate::MAX_TICKS_PER_WHEEL), or if there is no memory for this many
    /// slots.
    pub fn try_new(ticks_per_wheel: usize) -> Result<Self, SizeError> {
        check_slots(ticks_per_wheel)?;
        let mut wheel = Self::new(ticks_per_wheel);
        if wheel.has_large_level() {
            // There may be no memory for it later.
            try_memory::<u32>(wheel.ticks_per_wheel())?;
            wheel.make_level(0);
        }
        Ok(wheel)
    }

    /// Inserts an entry that is not in the wheel. Returns its position, which the caller stores.
    #[inline]
    pub fn insert(&mut self, deadline: u64, entry: u32) -> u32 {
        self.len += 1;
        self.place(deadline, entry)
    }

    /// Adds an entry to the ready list, to the list or to a slot. Returns its position.
    #[inline]
    fn place(&mut self, deadline: u64, entry: u32) -> u32 {
        if deadline <= self.tick {
            return self.ready.push(entry);
        }
        if self.first_in_levels.map_or(true, |first| deadline < first) {
            // So an entry of the list was inserted before those of a slot with the same deadline.
            if !self.list.is_full() {
                return self.list.insert(deadline, entry);
            }
            self.lower_first_in_levels(deadline);
        }
        let (level, slot) = self.slot(deadline, self.levels_tick);
        let level = match self.levels.get_mut(level) {
            Some(level) if slot < level.slots.slot_count() => level,
            _ => self.make_level(level),
        };
        let bucket = level.bucket_or_insert(slot);
        bucket.min_deadline = bucket.min_deadline.min(deadline);
        bucket.items.push(entry)
    }

    /// Prepares the levels for an entry that is due before all others in them.
    #[cold]
    #[inline(never)]
    fn lower_first_in_levels(&mut self, deadline: u64) {
        if self.first_in_levels.is_none() {
            self.levels_tick = self.tick;
        }
        self.first_in_levels = Some(deadline);
    }

    /// Removes the entry that was inserted at `deadline` and is at `position`, even if it is due.
    #[inline]
    pub fn remove(&mut self, deadline: u64, position: u32, entries: &mut impl Entries) {
        self.len -= 1;
        if deadline <= self.tick {
            self.ready.remove_at(position as usize, entries);
        } else if position >= FIRST_POSITION {
            self.list.remove(position);
        } else {
            let (level, slot) = self.slot(deadline, self.levels_tick);
            let level = &mut self.levels[level];
            let bucket = level.slots.bucket_mut(slot);
            if bucket.items.remove_at(position as usize) {
                bucket.items.compact(entries);
                if bucket.items.is_empty() {
                    let min_deadline = bucket.min_deadline;
                    level.slots.clear_slot(slot);
                    level.occupied.clear(slot);
                    if self.first_in_levels == Some(min_deadline) {
                        self.find_first_in_levels();
                    }
                }
            }
        }
    }

    /// Advances the time to `now`, which is not before [`tick`](Self::tick).
    /// [`pop_due`](Self::pop_due) then returns the entries that are due.
    #[inline]
    pub fn advance(&mut self, entries: &mut impl Entries, now: u64) {
        // There are tombstones if the caller has not popped all entries of an earlier `advance`.
        self.ready.compact(entries);
        loop {
            // Those of the list come before those of a slot that have the same deadline.
            let first = self.first_in_levels.filter(|&first| first <= now);
            if let Some(entry) = self.list.pop(first.unwrap_or(now)) {
                entries.set_position(entry, self.ready.push(entry));
            } else if let Some(first) = first {
                self.cascade(first, entries);
            } else {
                break;
            }
        }
        // Never back: a deadline would be looked for in the slots although it is in the ready list.
        self.tick = self.tick.max(now);
    }

    /// Does the same as [`advance`](Self::advance) and [`pop_due`](Self::pop_due).
    #[inline]
    pub(crate) fn pop_expired(&mut self, entries: &mut impl Entries, now: u64) -> Option<u32> {
        let levels_wait = self.first_in_levels.map_or(true, |first| first > now);
        if levels_wait && self.ready.is_empty() && !self.list.has_two(now) {
            // At most one entry is due. It need not go through the ready list.
            self.tick = self.tick.max(now);
            let entry = self.list.pop(now)?;
            self.len -= 1;
            return Some(entry);
        }
        self.pop_one_of_many(entries, now)
    }

    // Not inlined: keeps register spills out of calls that find at most one entry.
    #[inline(never)]
    fn pop_one_of_many(&mut self, entries: &mut impl Entries, now: u64) -> Option<u32> {
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

    /// Returns what [`HierarchicalWheel::next_deadline`](crate::HierarchicalWheel::next_deadline)
    /// documents.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(self.tick);
        }
        let in_list = self.list.first().map(|(deadline, _)| deadline);
        in_list.into_iter().chain(self.first_in_levels).min()
    }

    /// Returns the entry that expires first. Reads the first occupied slot.
    pub fn first(&self, entries: &impl Entries) -> Option<u32> {
        let in_first_slot = self
            .first_bucket()
            .into_iter()
            .flat_map(|bucket| bucket.items.iter());
        let in_list = self.list.first().map(|(_, entry)| entry);
        // The first one of several with the same deadline.
        let first_later = || {
            in_list
                .into_iter()
                .chain(in_first_slot)
                .min_by_key(|&entry| entries.deadline(entry))
        };
        self.ready.first().or_else(first_later)
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

    /// Returns the number of entries in each slot of each level that has been used, from the lowest
    /// level up; `None` if there is no memory for the numbers. The current slot is that of the tick
    /// `now`.
    pub fn levels(&self, now: u64) -> Option<Vec<SlotCounts>> {
        let mut levels = Vec::new();
        for index in (0..).take_while(|&index| self.shift(index) < u64::BITS) {
            let mut slots = Vec::new();
            if let Some(level) = self.levels.get(index) {
                let count = level.slots.slot_count();
                slots = level.slots.counts(count, |bucket| bucket.items.len())?;
            }
            // An entry of the list counts for the slot that it would have.
            let in_list = self
                .list
                .iter()
                .map(|(deadline, _)| self.slot(deadline, self.tick));
            for (_, slot) in in_list.filter(|&(level, _)| level == index) {
                if slots.is_empty() {
                    slots = try_array(self.slot_count(index)).ok()?;
                    slots.resize(self.slot_count(index), 0);
                }
                slots[slot] += 1;
            }
            if !slots.is_empty() {
                let shift = self.shift(index);
                levels.push(SlotCounts {
                    ticks_per_slot: 1 << shift,
                    current_slot: (now >> shift) as usize & (slots.len() - 1),
                    slots,
                });
            }
        }
        Some(levels)
    }

    /// Calls `visit` with each entry, in no particular order.
    pub fn for_each(&self, visit: impl FnMut(u32)) {
        // Unused buckets are among them; they have no entries.
        let buckets = self.levels.iter().flat_map(|level| level.slots.buckets());
        let in_levels = buckets.flat_map(|bucket| bucket.items.iter());
        let in_list = self.list.iter().map(|(_, entry)| entry);
        self.ready
            .iter()
            .chain(in_list)
            .chain(in_levels)
            .for_each(visit);
    }

    /// Removes all entries. The time does not change.
    pub fn clear(&mut self) {
        // There may be no memory for another large level.
        self.levels.truncate(self.has_large_level().into());
        self.levels.iter_mut().for_each(Level::clear);
        self.first_in_levels = None;
        self.list = ShortList::new();
        self.ready = ReadyList::new();
        self.len = 0;
    }

    /// Returns the number of slots of the lowest level, which is a power of two and at least two.
    #[inline]
    pub fn ticks_per_wheel(&self) -> usize {
        1 << self.lowest_bits
    }

    /// Whether the lowest level needs more memory than any other level may.
    fn has_large_level(&self) -> bool {
        self.lowest_bits > MAX_UPPER_BITS
    }

    /// Returns the number of bits below the digit of a level.
    #[inline]
    fn shift(&self, level: usize) -> u32 {
        match level {
            0 => 0,
            _ => self.lowest_bits + (level as u32 - 1) * self.upper_bits,
        }
    }

    /// Returns the number of slots of a level. The digit of the highest level has only those bits
    /// that are left of the 64.
    fn slot_count(&self, level: usize) -> usize {
        let bits = match level {
            0 => self.lowest_bits,
            _ => self.upper_bits,
        };
        1 << bits.min(u64::BITS - self.shift(level))
    }

    /// Returns the level and the slot of a deadline after `tick`.
    ///
    /// The level is that of the highest digit in which the deadline and the tick differ. The slot
    /// is this digit of the deadline.
    #[inline]
    fn slot(&self, deadline: u64, tick: u64) -> (usize, usize) {
        // They differ. The bit does not matter, and saves a check for that.
        let highest_bit = ((deadline ^ tick) | 1).ilog2();
        if highest_bit < self.lowest_bits {
            return (0, deadline as usize & (self.ticks_per_wheel() - 1));
        }
        let upper = (highest_bit - self.lowest_bits) / self.upper_bits;
        let digit = deadline >> (self.lowest_bits + upper * self.upper_bits);
        (
            1 + upper as usize,
            digit as usize & ((1 << self.upper_bits) - 1),
        )
    }

    /// Returns the first occupied slot's bucket, which has the earliest entry of the levels.
    ///
    /// All entries of a level are due before those of the next level, and the slots up to that of
    /// the current tick are empty.
    #[inline]
    fn first_bucket(&self) -> Option<&LevelBucket> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| Some(level.slots.bucket(level.occupied.first()?)))
    }

    /// Sets `first_in_levels` after the first occupied slot has changed.
    fn find_first_in_levels(&mut self) {
        self.first_in_levels = self.first_bucket().map(|bucket| bucket.min_deadline);
    }

    /// Gives a level its slots. That takes at most 265 KiB, except in the lowest level.
    #[cold]
    #[inline(never)]
    fn make_level(&mut self, level: usize) -> &mut Level {
        while self.levels.len() <= level {
            self.levels.push(Level::default());
        }
        let slots = self.slot_count(level);
        let level = &mut self.levels[level];
        level.allocate(slots);
        level
    }

    /// Advances the time to `first`, the earliest deadline of the first occupied slot, and places
    /// the entries of that slot again: in the ready list, in the list or in lower levels.
    // Not inlined: keeps its registers out of calls that move no entry of a slot.
    #[inline(never)]
    fn cascade(&mut self, first: u64, entries: &mut impl Entries) {
        let (level, slot) = self.slot(first, self.levels_tick);
        self.levels_tick = first;
        self.tick = first;
        let items = &mut self.levels[level].slots.bucket_mut(slot).items;
        // In the lowest level all entries of a slot have the same deadline, so the whole bucket is
        // due.
        if level > 0 || !self.ready.swap_if_empty(items, entries) {
            let items = core::mem::take(items);
            // While the levels seem to have an earlier entry, none goes into the list.
            if self.list.len() + items.len() <= MAX_LEN {
                self.first_in_levels = None;
            }
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
                    entries.set_position(entry, self.place(deadline, entry));
                }
            }
            // Put the array back, so that the bucket keeps its capacity.
            self.levels[level].slots.bucket_mut(slot).items = items;
        }
        self.levels[level].slots.clear_slot(slot);
        self.levels[level].occupied.clear(slot);
        self.find_first_in_levels();
    }
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
    #[cfg_attr(miri, ignore = "too much memory")]
    fn a_large_lowest_level_without_slots_is_cleared() {
        let mut wheel = Hierarchical::new(1 << 20);
        // The first ones fill the list.
        (0..=MAX_LEN as u32).for_each(|entry| _ = wheel.insert(1 << 40, entry));
        wheel.clear();
        assert!(wheel.is_empty() && wheel.next_deadline().is_none());
    }

    #[test]
    fn due_entries_are_sorted_by_key() {
        let (mut wheel, mut entries) = wheel([1, 1, 1]);
        wheel.advance(&mut entries, 1);
        wheel.sort_due_by_key(|entry| u64::from(9 - entry), &mut entries);
        assert_eq!(
            [(); 3].map(|()| (wheel.pop_due(&entries), wheel.is_empty())),
            [(Some(2), false), (Some(1), false), (Some(0), true)]
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
    fn entries_of_a_slot_go_to_the_list_only_if_all_fit() {
        for (in_slot, in_list) in [(MAX_LEN, MAX_LEN - 1), (MAX_LEN + 1, 0)] {
            // The first ones fill the list. One of the slot is due when the others move.
            let first = [8; MAX_LEN].into_iter().chain([9]);
            let (mut wheel, mut entries) = wheel(first.chain((1..in_slot).map(|_| 10)));
            wheel.advance(&mut entries, 9);
            assert_eq!(wheel.list.len(), in_list);
        }
    }

    #[test]
    fn cascade_prefetches_the_next_batch() {
        const ENTRIES: u32 = 2 * CASCADE_BATCH as u32 + 3;

        // The first ones fill the list.
        let first = MAX_LEN as u32;
        let deadlines = (0..first).map(|_| 8).chain((0..ENTRIES).map(|_| 9));
        let (mut wheel, mut entries) = wheel(deadlines);
        wheel.advance(&mut entries, 9);
        let prefetched = first + CASCADE_BATCH as u32..first + ENTRIES;
        assert!(entries.prefetched.borrow().iter().copied().eq(prefetched));
    }
}
