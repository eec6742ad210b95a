//! Varghese and Lauck's scheme 6: one array of slots, and rounds for what lies beyond it.

use super::MAX_TICKS_PER_WHEEL;
use super::entries::Entries;
use super::min_tree::MinTree;
use super::ready_list::ReadyList;
use super::ring::Ring;
use super::rounds::{Rounds, Waiting};
use crate::occupancy::LevelOccupancy;

/// The order of a [`HashedWheel`](super::HashedWheel): where each entry stands, and what is due. The entries themselves live
/// elsewhere.
#[derive(Debug)]
pub(crate) struct Hashed {
    slots: Ring<Rounds>,
    firsts: MinTree,
    /// Everything with `deadline <= tick`.
    due: ReadyList<Waiting>,
    /// How many entries there are, in slots and in `due`.
    len: usize,
    tick: u64,
}

impl Hashed {
    /// An empty one at tick 0. Panics if `ticks_per_wheel` is 0 or more than `MAX_TICKS_PER_WHEEL`.
    pub(crate) fn new(ticks_per_wheel: usize) -> Self {
        assert!(
            (1..=MAX_TICKS_PER_WHEEL).contains(&ticks_per_wheel),
            "ticks_per_wheel is {ticks_per_wheel}, but must be from 1 to {MAX_TICKS_PER_WHEEL}"
        );
        let size = ticks_per_wheel.next_power_of_two();
        Self {
            slots: Ring::new(size),
            firsts: MinTree::new(size),
            due: ReadyList::default(),
            len: 0,
            tick: 0,
        }
    }

    /// Adds an entry, which is not in it.
    #[inline]
    pub(crate) fn insert(&mut self, entries: &mut impl Entries, entry: u32) {
        let deadline = entries.deadline(entry);
        let position = if deadline <= self.tick {
            self.due.push(deadline, Waiting::no_more(entry))
        } else {
            let (slot, lap, current) = (self.slot(deadline), self.lap(deadline), self.lap(self.tick));
            let bucket = self.slots.occupy(slot, |bucket| bucket.open(current));
            if deadline < bucket.first() {
                self.firsts.lower(slot, deadline);
            }
            bucket.push(lap, deadline, entry)
        };
        self.len += 1;
        entries.set_position(entry, position);
    }

    /// Takes out an entry that is in it, due or not.
    pub(crate) fn remove(&mut self, entries: &mut impl Entries, entry: u32) {
        let (deadline, position) = (entries.deadline(entry), entries.position(entry) as usize);
        self.len -= 1;
        if deadline <= self.tick {
            self.due.remove(position, entries);
        } else {
            let slot = self.slot(deadline);
            self.slots.at_mut(slot).vacate(position);
            if self.tidy(slot, entries) {
                self.raise(slot);
            }
        }
    }

    /// Moves the time on to `now`, which is not before [`tick`](Self::tick): what is due then is for
    /// [`pop_due`](Self::pop_due).
    pub(crate) fn advance(&mut self, entries: &mut impl Entries, now: u64) {
        // Of holes, where not all that was due came out.
        self.due.tidy(entries);
        if self.firsts.first() <= now && !self.slots_are_empty() {
            self.ripen(now, entries);
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

    /// The plain wheel's [`next_deadline`](super::HashedWheel::next_deadline).
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.due.first().or_else(|| (!self.slots_are_empty()).then(|| self.firsts.first()))
    }

    /// The tick up to which [`advance`](Self::advance) has come.
    #[inline]
    pub(crate) fn tick(&self) -> u64 {
        self.tick
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How full the slots are, and which one is that of the tick `now`.
    pub(crate) fn levels(&self, now: u64) -> Vec<LevelOccupancy> {
        let slots = self.slots.among(0..self.slots.size()).map(Rounds::len).collect();
        vec![LevelOccupancy { ticks_per_slot: 1, slots, present: self.slot(now) }]
    }

    /// Names all entries, in no particular order.
    pub(crate) fn for_each(&self, entry: impl FnMut(u32)) {
        let slots = self.slots.buckets().flat_map(|bucket| bucket.iter());
        self.due.iter().chain(slots).for_each(entry);
    }

    /// Forgets all entries. The time stays.
    pub(crate) fn clear(&mut self) {
        *self = Self { tick: self.tick, ..Self::new(self.ticks_per_wheel()) };
    }

    /// How many slots there are: what was asked for, rounded up to a power of two.
    pub(crate) fn ticks_per_wheel(&self) -> usize {
        self.slots.size()
    }

    #[inline]
    fn slot(&self, tick: u64) -> usize {
        tick as usize & (self.slots.size() - 1)
    }

    /// How many whole turns of the wheel come before `tick`.
    #[inline]
    fn lap(&self, tick: u64) -> u64 {
        tick >> self.slots.size().trailing_zeros()
    }

    #[inline]
    fn slots_are_empty(&self) -> bool {
        self.len == self.due.len()
    }

    /// Moves all that is due at `now` from the slots to `due`.
    fn ripen(&mut self, now: u64, entries: &mut impl Entries) {
        let (mask, shift) = (self.slots.size() as u64 - 1, self.slots.size().trailing_zeros());
        let before = self.due.positions();
        // Slots may have come round more than once.
        let is_long = now - self.firsts.first() > mask;
        while self.firsts.first() <= now && !self.slots_are_empty() {
            let first = self.firsts.first();
            let slot = self.slot(first);
            // The last tick at which the slot came round.
            let lap = self.lap(now - ((now - first) & mask));
            let bucket = self.slots.at_mut(slot);
            // The usual case: nobody has to move.
            if !is_long && bucket.last_lap() <= lap && self.due.take_over(first, bucket.row(), entries) {
                self.slots.vacate(slot);
            } else {
                let next_lap = bucket.visit(lap, entries, |entries, entry| {
                    let deadline = entries.deadline(entry);
                    if deadline <= now {
                        entries.set_position(entry, self.due.push(deadline, Waiting::no_more(entry)));
                    }
                    deadline >> shift
                });
                let exact = || bucket.row().iter().map(|entry| entries.deadline(entry)).min();
                let next = next_lap.map(|lap| lap << shift | slot as u64).or_else(exact);
                bucket.settle(next.unwrap_or(u64::MAX));
                self.tidy(slot, entries);
            }
            self.raise(slot);
        }
        if is_long {
            // (Stable: the same deadline is in the same slot, in order.)
            self.due.sort_from(before, entries);
        }
    }

    /// Sees to a slot's bucket after entries have left it. Returns whether it is empty.
    fn tidy(&mut self, slot: usize, entries: &mut impl Entries) -> bool {
        let bucket = self.slots.at_mut(slot);
        let is_empty = bucket.is_empty();
        if is_empty {
            self.slots.vacate(slot);
        } else {
            bucket.tidy(entries);
        }
        is_empty
    }

    /// What is first in a slot is due later than before.
    #[inline]
    fn raise(&mut self, slot: usize) {
        let firsts = self.slots.among(self.firsts.group(slot)).map(Rounds::first);
        let first = firsts.fold(u64::MAX, u64::min);
        self.firsts.raise(slot, first);
    }
}
