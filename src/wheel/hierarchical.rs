//! Varghese and Lauck's scheme 7: levels of slots, each of which is as wide as all slots of the level below.

use super::MAX_TICKS_PER_WHEEL;
use super::bitmap::Bitmap;
use super::entries::Entries;
use super::ready_list::ReadyList;
use super::ring::{Bucket, Ring};
use super::tombstone_vec::TombstoneVec;
use crate::occupancy::LevelOccupancy;

/// Of so many entries the deadlines are read before the first one moves: their cache misses overlap.
const GROUP: usize = 16;

/// The order of a [`HierarchicalWheel`](super::HierarchicalWheel): where each entry stands, and what is due. The entries
/// themselves live elsewhere.
#[derive(Debug)]
pub(crate) struct Hierarchical {
    /// `None` is a level that nothing has needed so far.
    levels: Vec<Option<Level>>,
    /// Everything with `deadline <= tick`.
    due: ReadyList,
    /// How many entries there are, in slots and in `due`.
    len: usize,
    /// How many bits a level's digit has.
    bits: u32,
    tick: u64,
}

#[derive(Debug)]
struct Level {
    slots: Ring<Slot>,
    occupied: Bitmap,
}

#[derive(Debug, Default)]
struct Slot {
    row: TombstoneVec,
    /// No entry has an earlier deadline. Removals may leave it too low, but never before the slot begins.
    first: u64,
}

impl Bucket for Slot {
    fn close(&mut self) {
        self.row.clear();
    }
}

impl Level {
    fn new(size: usize) -> Self {
        Self { slots: Ring::new(size), occupied: Bitmap::new(size) }
    }

    /// The slot, to put something into it.
    #[inline]
    fn occupy(&mut self, slot: usize) -> &mut Slot {
        self.slots.occupy(slot, |bucket| {
            bucket.first = u64::MAX;
            self.occupied.set(slot);
        })
    }

    /// Takes the bucket away from an occupied slot.
    fn vacate(&mut self, slot: usize) {
        self.slots.vacate(slot);
        self.occupied.clear(slot);
    }
}

impl Hierarchical {
    /// An empty one at tick 0. Panics if `ticks_per_wheel` is 0 or more than `MAX_TICKS_PER_WHEEL`.
    pub(crate) fn new(ticks_per_wheel: usize) -> Self {
        assert!(
            (1..=MAX_TICKS_PER_WHEEL).contains(&ticks_per_wheel),
            "ticks_per_wheel is {ticks_per_wheel}, but must be from 1 to {MAX_TICKS_PER_WHEEL}"
        );
        let bits = ticks_per_wheel.next_power_of_two().max(2).trailing_zeros();
        Self {
            levels: (0..u64::BITS.div_ceil(bits)).map(|_| None).collect(),
            due: ReadyList::default(),
            len: 0,
            bits,
            tick: 0,
        }
    }

    /// Adds an entry, which is not in it.
    pub(crate) fn insert(&mut self, entries: &mut impl Entries, entry: u32) {
        self.place(entries.deadline(entry), entry, entries);
        self.len += 1;
    }

    /// Takes out an entry that is in it, due or not.
    pub(crate) fn remove(&mut self, entries: &mut impl Entries, entry: u32) {
        let (deadline, position) = (entries.deadline(entry), entries.position(entry) as usize);
        self.len -= 1;
        if deadline <= self.tick {
            self.due.remove(position, entries);
        } else {
            let (level, slot) = self.slot(deadline);
            let level = occupied(&mut self.levels, level);
            let row = &mut level.slots.at_mut(slot).row;
            row.vacate(position);
            if row.is_empty() {
                level.vacate(slot);
            } else {
                row.tidy(|entry, position| entries.set_position(entry, position));
            }
        }
    }

    /// Moves the time on to `now`, which is not before [`tick`](Self::tick): what is due then is for
    /// [`pop_due`](Self::pop_due).
    pub(crate) fn advance(&mut self, entries: &mut impl Entries, now: u64) {
        // Of holes, where not all that was due came out.
        self.due.tidy(entries);
        while let Some((level, slot)) =
            self.first_slot().filter(|&(level, slot)| self.begins(level, slot) <= now)
        {
            self.move_down(level, slot, now, entries);
        }
        self.tick = now;
    }

    /// Takes out the first of those that are due.
    #[inline]
    pub(crate) fn pop_due(&mut self, entries: &impl Entries) -> Option<u32> {
        let entry = self.due.pop(entries)?;
        self.len -= 1;
        Some(entry)
    }

    /// The plain wheel's [`next_deadline`](super::HierarchicalWheel::next_deadline).
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.due.first().or_else(|| {
            let (level, slot) = self.first_slot()?;
            Some(self.levels[level].as_ref()?.slots.at(slot).first)
        })
    }

    /// The tick up to which [`advance`](Self::advance) has come.
    #[inline]
    pub(crate) fn tick(&self) -> u64 {
        self.tick
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How full the slots of each level are that there is, and which one is that of the tick `now`.
    pub(crate) fn levels(&self, now: u64) -> Vec<LevelOccupancy> {
        let levels = self.levels.iter().enumerate().filter_map(|(level, made)| {
            let (slots, shift) = (&made.as_ref()?.slots, self.shift(level));
            Some(LevelOccupancy {
                ticks_per_slot: 1 << shift,
                slots: slots.among(0..slots.size()).map(|slot| slot.row.len()).collect(),
                present: (now >> shift) as usize & (slots.size() - 1),
            })
        });
        levels.collect()
    }

    /// Names all entries, in no particular order.
    pub(crate) fn for_each(&self, entry: impl FnMut(u32)) {
        let slots = self.levels.iter().flatten().flat_map(|level| level.slots.buckets());
        let slots = slots.flat_map(|slot| slot.row.iter());
        self.due.iter().chain(slots).for_each(entry);
    }

    /// Forgets all entries. The time stays.
    pub(crate) fn clear(&mut self) {
        *self = Self { tick: self.tick, ..Self::new(self.ticks_per_wheel()) };
    }

    /// How many slots a level has: what was asked for, rounded up to a power of two, and at least two.
    #[inline]
    pub(crate) fn ticks_per_wheel(&self) -> usize {
        1 << self.bits
    }

    /// How far the digits of a level stand from the right.
    #[inline]
    fn shift(&self, level: usize) -> u32 {
        level as u32 * self.bits
    }

    /// The level and slot of a deadline that is later than now.
    #[inline]
    fn slot(&self, deadline: u64) -> (usize, usize) {
        let highest_bit = (deadline ^ self.tick).ilog2();
        let level = (highest_bit / self.bits) as usize;
        (level, (deadline >> self.shift(level)) as usize & (self.ticks_per_wheel() - 1))
    }

    /// The first tick of a slot that has not begun.
    #[inline]
    fn begins(&self, level: usize, slot: usize) -> u64 {
        let above = self.shift(level) + self.bits;
        let prefix = self.tick.checked_shr(above).map_or(0, |digits| digits << above);
        prefix | (slot as u64) << self.shift(level)
    }

    /// The slot in which the first entry stands that is not due.
    #[inline]
    fn first_slot(&self) -> Option<(usize, usize)> {
        let slots = self.levels.iter().map(|level| level.as_ref()?.occupied.next(0));
        slots.enumerate().find_map(|(level, slot)| Some((level, slot?)))
    }

    /// Puts an entry where it belongs now.
    fn place(&mut self, deadline: u64, entry: u32, entries: &mut impl Entries) {
        let position = if deadline <= self.tick {
            self.due.push(deadline, entry)
        } else {
            let (level, slot) = self.slot(deadline);
            let slot = self.levels[level]
                .get_or_insert_with(|| {
                    // The last level ends with the 64 bits.
                    Level::new(1 << self.bits.min(u64::BITS - level as u32 * self.bits))
                })
                .occupy(slot);
            slot.first = slot.first.min(deadline);
            slot.row.push(entry)
        };
        entries.set_position(entry, position);
    }

    /// Moves the time into the first slot of all, to its first deadline or as far as `now`, and its entries to where they
    /// belong then: to lower levels or to `due`.
    fn move_down(&mut self, level: usize, slot: usize, now: u64, entries: &mut impl Entries) {
        let Slot { row, first } = occupied(&mut self.levels, level).slots.at_mut(slot);
        self.tick = now.min(*first);
        // In the lowest level all have one deadline, and usually nobody has to move.
        if level > 0 || !self.due.take_over(self.tick, row, entries) {
            let row = std::mem::take(row);
            let mut group = [None; GROUP];
            for from in (0..row.positions()).step_by(GROUP) {
                for (position, place) in (from..).zip(&mut group) {
                    row.prefetch(position + GROUP, entries);
                    *place = row.at(position).map(|entry| (entries.deadline(entry), entry));
                }
                group.iter().flatten().for_each(|&(deadline, entry)| self.place(deadline, entry, entries));
            }
            occupied(&mut self.levels, level).slots.at_mut(slot).row = row;
        }
        occupied(&mut self.levels, level).vacate(slot);
    }
}

/// A level of a wheel that has something in it.
#[inline]
fn occupied(levels: &mut [Option<Level>], level: usize) -> &mut Level {
    levels[level].as_mut().expect("what has an entry was made")
}
