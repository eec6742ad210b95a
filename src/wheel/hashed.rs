//! Varghese and Lauck's scheme 6: one array of slots, and rounds for what lies beyond it.

use std::fmt;

use super::MAX_TICKS_PER_WHEEL;
use super::due::Due;
use super::ring::Ring;
use super::rounds::Rounds;
use super::slab::{Key, Slab};

/// How many buckets are looked at after a tick for the next deadline, at most, unless a whole turn has passed since all
/// were looked at: that bounds the cost of a tick, and over a turn that of the looking.
const SEEK: usize = 1_024;

/// A hashed timing wheel: Varghese and Lauck's scheme 6, as Netty's `HashedWheelTimer` has it.
///
/// A deadline is an absolute tick. Its low bits choose the slot, its high bits say how many whole turns of the wheel
/// ("rounds") come before it. A slot keeps the `remaining_rounds` of its entries in one dense array, so that a visit is
/// one pass over adjacent memory that touches nothing but what is due. Visits happen only when something may be due: a
/// jump takes off as many rounds as have passed, at once.
///
/// [`insert`](Self::insert) and [`remove`](Self::remove) take constant (amortised) time. Memory follows the greatest
/// number of entries since the wheel was last empty; a slot that is empty costs four bytes.
///
/// # Examples
///
/// ```
/// use hashed_wheel::wheel::HashedWheel;
///
/// let mut wheel = HashedWheel::new(8);
/// wheel.insert(3, "near");
/// wheel.insert(3 + 8 * 1_000_000_000, "a billion rounds later");
///
/// let mut fired = Vec::new();
/// wheel.advance(1_000, |entry| fired.push(entry));
/// assert_eq!(fired, ["near"]);
/// assert_eq!(wheel.next_deadline(), Some(8_000_000_003));
/// ```
pub struct HashedWheel<T> {
    entries: Slab<T>,
    slots: Ring<Rounds>,
    /// Everything with `deadline <= tick`.
    due: Due,
    tick: u64,
    /// No entry in a slot has an earlier deadline. Later than `tick`. Means nothing while all slots are empty.
    next: u64,
    /// The tick at which all occupied slots were last looked at for `next`.
    sought: u64,
}

impl<T> HashedWheel<T> {
    /// An empty wheel at tick 0 with `ticks_per_wheel` slots, rounded up to a power of two.
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
        let size = ticks_per_wheel.next_power_of_two();
        Self {
            entries: Slab::new(),
            slots: Ring::new(size),
            due: Due::default(),
            tick: 0,
            next: 0,
            sought: 0,
        }
    }

    /// Adds an entry that is due at the absolute tick `deadline`; one that has passed comes out at the next
    /// [`advance`](Self::advance). Entries with the same deadline come out in the order in which they were inserted.
    ///
    /// # Panics
    ///
    /// If the wheel has held 2^32 − 1 entries at a time.
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let next = if self.slots_are_empty() { deadline } else { self.next };
        let entry = self.entries.insert(deadline, value);
        let position = if deadline <= self.tick {
            self.due.push(deadline, entry.index())
        } else {
            self.next = next.min(deadline);
            let (slot, lap, current) = (self.slot(deadline), self.lap(deadline), self.lap(self.tick));
            self.slots.occupy(slot, |bucket| bucket.open(current)).push(lap, entry.index())
        };
        self.entries.at(entry.index()).position = position;
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
            let slot = self.slot(deadline);
            self.slots.at_mut(slot).vacate(position);
            self.tidy(slot);
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
    /// The cost is that of the entries that come out, sorted if the jump was longer than a turn, and of one look at each
    /// occupied slot, however far the jump.
    ///
    /// Where `expired` panics, its entry is gone, every other one is still there, and the time is `now`: the next
    /// `advance` goes on with the entry behind it.
    pub fn advance(&mut self, now: u64, expired: impl FnMut(T)) {
        if now < self.tick {
            return;
        }
        if !self.slots_are_empty() && self.next <= now {
            self.ripen(now);
        }
        self.tick = now;
        self.due.hand_out(&mut self.entries, expired);
    }

    /// A tick no later than the first deadline; `None` if the wheel is empty. Later than [`tick`](Self::tick), unless
    /// something is due: that comes out of an `advance` to `tick` itself. Exact, unless entries were removed, `expired` has
    /// panicked, more than a thousand slots are in use, or the deadline is billions of rounds off: whoever sleeps until
    /// then wakes in vain now and then, but never late and never in a circle.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.due.first().or_else(|| (!self.slots_are_empty()).then_some(self.next))
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
        self.slots.clear();
        self.entries.take().into_iter()
    }

    /// How many slots there are: what was asked for, rounded up to a power of two.
    pub(crate) fn ticks_per_wheel(&self) -> usize {
        self.slots.size()
    }

    fn slot(&self, tick: u64) -> usize {
        tick as usize & (self.slots.size() - 1)
    }

    /// How many whole turns of the wheel come before `tick`.
    fn lap(&self, tick: u64) -> u64 {
        tick >> self.slots.size().trailing_zeros()
    }

    fn slots_are_empty(&self) -> bool {
        self.len() == self.due.len()
    }

    /// Moves the time on to `now`, and all that is due then to `due`.
    fn ripen(&mut self, now: u64) {
        let (size, mask) = (self.slots.size(), self.slots.size() as u64 - 1);
        let (first_slot, ticks) = (self.slot(self.next), now - self.next);
        let before = self.due.positions();
        'slots: for (mut from, to) in [(first_slot, size), (0, first_slot)] {
            while let Some(slot) = self.slots.next(from).filter(|&slot| slot < to) {
                from = slot + 1;
                if (slot as u64).wrapping_sub(first_slot as u64) & mask > ticks {
                    break 'slots;
                }
                // The last tick at which the slot came round.
                let tick = now - (now.wrapping_sub(slot as u64) & mask);
                self.ripen_slot(slot, self.lap(tick), ticks == 0);
            }
        }
        if ticks > mask {
            // Slots that came round more than once. (Stable: the same deadline is in the same slot, in order.)
            self.due.sort_from(before, &mut self.entries);
        }
        self.tick = now;
        self.seek();
    }

    /// Moves what is due in turn `lap` or before from a slot to `due`. `is_alone`: from no other slot.
    fn ripen_slot(&mut self, slot: usize, lap: u64, is_alone: bool) {
        let shift = self.slots.size().trailing_zeros();
        let bucket = self.slots.at_mut(slot);
        if bucket.first_lap() > lap {
            return;
        }
        let mut visit = bucket.visit(lap);
        // The usual case: nobody has to move.
        if is_alone && visit.all_are_due && self.due.take_over(self.next, bucket.row()) {
            self.slots.vacate(slot);
            return;
        }
        let mut from = 0;
        while let Some((position, entry)) = bucket.next_due(from) {
            from = position + 1;
            let deadline = self.entries.deadline(entry);
            let entry_lap = deadline >> shift;
            if entry_lap <= lap {
                bucket.vacate(position);
                self.entries.at(entry).position = self.due.push(deadline, entry);
            } else {
                bucket.postpone(position, entry_lap);
                visit.first_lap = visit.first_lap.min(entry_lap);
            }
        }
        bucket.settle(visit.first_lap, |entry| self.entries.deadline(entry) >> shift);
        self.tidy(slot);
    }

    /// Sees to a slot's bucket after entries have left it.
    fn tidy(&mut self, slot: usize) {
        let bucket = self.slots.at_mut(slot);
        if bucket.is_empty() {
            self.slots.vacate(slot);
        } else {
            bucket.tidy(|entry, position| self.entries.at(entry).position = position);
        }
    }

    /// Finds `next` anew, once everything up to `self.tick` is out.
    fn seek(&mut self) {
        let mut left = SEEK;
        if self.tick - self.sought >= self.slots.size() as u64 {
            left = usize::MAX;
            self.sought = self.tick;
        }
        // In the order in which the slots come round. What stands in a slot is due when the slot comes round, or a number
        // of turns later: so it is over when the best so far comes before the next slot does.
        let from = self.tick.saturating_add(1);
        let (first_slot, shift) = (self.slot(from), self.slots.size().trailing_zeros());
        let wrapped = self.slots.iter(0).take_while(|&slot| slot < first_slot);
        self.next = u64::MAX;
        for slot in self.slots.iter(first_slot).chain(wrapped) {
            let distance = slot.wrapping_sub(first_slot) & (self.slots.size() - 1);
            let comes_round = from.saturating_add(distance as u64);
            if comes_round >= self.next {
                return;
            }
            if left == 0 {
                self.next = comes_round;
                return;
            }
            left -= 1;
            // A bound that is billions of rounds off may have lost its high bits; the slot's next visit is one too.
            let first_lap = self.slots.at(slot).first_lap();
            self.next = self.next.min((first_lap << shift | slot as u64).max(comes_round));
        }
    }
}

impl<T> fmt::Debug for HashedWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashedWheel")
            .field("tick", &self.tick())
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("len", &self.len())
            .field("next_deadline", &self.next_deadline())
            .finish_non_exhaustive()
    }
}
