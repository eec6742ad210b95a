//! Varghese and Lauck's scheme 7: levels of slots, each of which is as wide as all slots of the level below.

use std::fmt;

use super::MAX_TICKS_PER_WHEEL;
use super::due::Due;
use super::ring::{Bucket, Ring};
use super::row::Row;
use super::slab::{Key, Slab};

/// Of so many entries the deadlines are read before the first one moves: their cache misses overlap.
const GROUP: usize = 16;

/// A hierarchical timing wheel: Varghese and Lauck's scheme 7, as Kafka and Linux have it.
///
/// The first level has a slot for each tick. A slot of the next level is as wide as all slots of the one before, and so
/// on, as far as 2^64 ticks. An entry goes to the level of the highest digit in which its deadline and the time differ
/// (to the base of `ticks_per_wheel`), and into the slot that this digit of its deadline names. When its slot begins, it
/// moves down; so it moves at most once a level, and there are no rounds. A level is made when something first needs it.
///
/// Entries with one deadline are in one slot at all times, because its place follows from the deadline and the time
/// alone; and all entries of a level are due before those of the next. So the first occupied slot of the lowest level
/// has what is due first: the time moves on from one such slot to the next, not tick by tick.
///
/// [`insert`](Self::insert) and [`remove`](Self::remove) take constant (amortised) time. Memory follows the greatest
/// number of entries since the wheel was last empty; a slot that is empty costs four bytes, once its level is made.
///
/// # Examples
///
/// ```
/// use hashed_wheel::wheel::HierarchicalWheel;
///
/// let mut wheel = HierarchicalWheel::new(8);
/// wheel.insert(3, "near");
/// wheel.insert(3 + (1 << 60), "eons later");
///
/// let mut fired = Vec::new();
/// wheel.advance(1 << 50, |entry| fired.push(entry));
/// assert_eq!(fired, ["near"]);
/// assert_eq!(wheel.next_deadline(), Some(3 + (1 << 60)));
/// ```
pub struct HierarchicalWheel<T> {
    entries: Slab<T>,
    /// `None` is a level that nothing has needed so far.
    levels: Vec<Option<Ring<Slot>>>,
    /// Everything with `deadline <= tick`.
    due: Due,
    /// How many bits a level's digit has.
    bits: u32,
    tick: u64,
}

#[derive(Debug, Default)]
struct Slot {
    row: Row,
    /// No entry has an earlier deadline. Removals may leave it too low, but never before the slot begins.
    first: u64,
}

impl Bucket for Slot {
    fn close(&mut self) {
        self.row.clear();
    }
}

impl<T> HierarchicalWheel<T> {
    /// An empty wheel at tick 0 with `ticks_per_wheel` slots a level, rounded up to a power of two, and at least two.
    ///
    /// # Panics
    ///
    /// If `ticks_per_wheel` is 0 or more than [`MAX_TICKS_PER_WHEEL`].
    #[must_use]
    pub fn new(ticks_per_wheel: usize) -> Self {
        assert!(
            (1..=MAX_TICKS_PER_WHEEL).contains(&ticks_per_wheel),
            "ticks_per_wheel is {ticks_per_wheel}, but must be from 1 to {MAX_TICKS_PER_WHEEL}"
        );
        let bits = ticks_per_wheel.next_power_of_two().max(2).trailing_zeros();
        Self {
            entries: Slab::new(),
            levels: (0..u64::BITS.div_ceil(bits)).map(|_| None).collect(),
            due: Due::default(),
            bits,
            tick: 0,
        }
    }

    /// Adds an entry that is due at the absolute tick `deadline`; one that has passed comes out at the next
    /// [`advance`](Self::advance). Entries with the same deadline come out in the order in which they were inserted.
    ///
    /// # Panics
    ///
    /// If the wheel has held 2^32 − 1 entries at a time.
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let entry = self.entries.insert(deadline, value);
        self.place(deadline, entry.index());
        entry
    }

    /// Takes an entry out before it is due. `None` if it has come out already, in whatever way.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let (entry, _) = self.entries.get(key)?;
        let (deadline, position) = (entry.deadline, entry.position as usize);
        let value = self.entries.remove(key.index());
        if deadline <= self.tick {
            self.due.remove(position, &mut self.entries);
        } else {
            let (level, slot) = self.slot(deadline);
            let Self { entries, levels, .. } = self;
            let ring = occupied(levels, level);
            let row = &mut ring.at_mut(slot).row;
            row.vacate(position);
            if row.is_empty() {
                ring.vacate(slot);
            } else {
                row.tidy(|entry, _, to| entries.at(entry).position = to as u32);
            }
        }
        Some(value)
    }

    /// The entry, if it has not come out.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Moves the time on to `now` and hands out every entry whose deadline is not after it: first what had passed when
    /// it was inserted, then tick by tick, each tick in the order of insertion. An earlier `now` does nothing.
    ///
    /// The cost is that of the entries that come out and of those that move down, each at most once a level, however
    /// far the jump. All entries of a slot that begins move down at once, those of a wide one too.
    ///
    /// Where `expired` panics, its entry is gone, every other one is still there, and the time is `now`: the next
    /// `advance` goes on with the entry behind it.
    pub fn advance(&mut self, now: u64, expired: impl FnMut(T)) {
        if now < self.tick {
            return;
        }
        while let Some((level, slot)) =
            self.first_slot().filter(|&(level, slot)| self.begins(level, slot) <= now)
        {
            self.move_down(level, slot, now);
        }
        self.tick = now;
        self.due.hand_out(&mut self.entries, expired);
    }

    /// A tick no later than the first deadline; `None` if the wheel is empty. Later than [`tick`](Self::tick), unless
    /// something is due: that comes out of an `advance` to `tick` itself. Exact, unless entries were removed or `expired` has
    /// panicked: whoever sleeps until then wakes in vain at most once for each entry that was removed. Nobody has to wake
    /// for entries to move down.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.due.first().or_else(|| {
            let (level, slot) = self.first_slot()?;
            Some(self.levels[level].as_ref()?.at(slot).first)
        })
    }

    /// The tick up to which [`advance`](Self::advance) has come.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// How many entries the wheel holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the wheel holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empties the wheel and hands its entries out, in no particular order. All are out of the wheel at once, also if the
    /// iterator is not read to its end. The time stays.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.due.clear();
        self.levels.iter_mut().flatten().for_each(Ring::clear);
        self.entries.take().into_iter()
    }

    /// How many slots a level has: what was asked for, rounded up to a power of two, and at least two.
    pub(crate) fn ticks_per_wheel(&self) -> usize {
        1 << self.bits
    }

    /// How far the digits of a level stand from the right.
    fn shift(&self, level: usize) -> u32 {
        level as u32 * self.bits
    }

    /// The level and slot of a deadline that is later than now.
    fn slot(&self, deadline: u64) -> (usize, usize) {
        let highest_bit = (deadline ^ self.tick).ilog2();
        let level = (highest_bit / self.bits) as usize;
        (level, (deadline >> self.shift(level)) as usize & (self.ticks_per_wheel() - 1))
    }

    /// The first tick of a slot that has not begun.
    fn begins(&self, level: usize, slot: usize) -> u64 {
        let above = self.shift(level) + self.bits;
        let prefix = self.tick.checked_shr(above).map_or(0, |digits| digits << above);
        prefix | (slot as u64) << self.shift(level)
    }

    /// The slot in which the first entry stands that is not due.
    fn first_slot(&self) -> Option<(usize, usize)> {
        let slots = self.levels.iter().map(|ring| ring.as_ref()?.next(0));
        slots.enumerate().find_map(|(level, slot)| Some((level, slot?)))
    }

    /// Puts an entry where it belongs now.
    fn place(&mut self, deadline: u64, entry: u32) {
        let position = if deadline <= self.tick {
            self.due.push(deadline, entry)
        } else {
            let (level, slot) = self.slot(deadline);
            let ring = self.levels[level].get_or_insert_with(|| {
                // The last level ends with the 64 bits.
                Ring::new(1 << self.bits.min(u64::BITS - level as u32 * self.bits))
            });
            let slot = ring.occupy(slot, |slot| slot.first = u64::MAX);
            slot.first = slot.first.min(deadline);
            slot.row.push(entry)
        };
        self.entries.at(entry).position = position;
    }

    /// Moves the time into the first slot of all, to its first deadline or as far as `now`, and its entries to where they
    /// belong then: to lower levels or to `due`.
    fn move_down(&mut self, level: usize, slot: usize, now: u64) {
        let Slot { row, first } = occupied(&mut self.levels, level).at_mut(slot);
        self.tick = now.min(*first);
        // In the lowest level all have one deadline, and usually nobody has to move.
        if level > 0 || !self.due.take_over(self.tick, row) {
            let row = std::mem::take(row);
            let mut entries = row.iter();
            let mut group = [None; GROUP];
            loop {
                group.fill_with(|| entries.next().map(|entry| (self.entries.deadline(entry), entry)));
                group.iter().flatten().for_each(|&(deadline, entry)| self.place(deadline, entry));
                if group[GROUP - 1].is_none() {
                    break;
                }
            }
            drop(entries);
            occupied(&mut self.levels, level).at_mut(slot).row = row;
        }
        occupied(&mut self.levels, level).vacate(slot);
    }
}

/// A level of a wheel that has something in it.
fn occupied(levels: &mut [Option<Ring<Slot>>], level: usize) -> &mut Ring<Slot> {
    levels[level].as_mut().expect("what has an entry was made")
}

impl<T> fmt::Debug for HierarchicalWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HierarchicalWheel")
            .field("tick", &self.tick())
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("len", &self.len())
            .field("next_deadline", &self.next_deadline())
            .finish_non_exhaustive()
    }
}
