//! The values of a queue, in their order.

use std::collections::BTreeMap;
use std::{iter, mem};

use hashed_wheel::wheel::{self, HierarchicalWheel};

use super::expired::Key;
use crate::deadlines;
use crate::sync::next_id;

/// The deadline that is never reached. A deadline may also be before the timer was built.
pub(super) const NEVER: i64 = deadlines::NEVER as i64;

/// The slots of a level of the wheel: an hour has six levels, as its ticks are nanoseconds.
const SLOTS: usize = 1 << 8;

/// The values, by their deadlines and by their keys. Deadlines are in nanoseconds of the timer's
/// clock, and negative before the timer was built.
pub(super) struct Values<T> {
    /// Differs from that of all other values, also of later ones of this queue.
    id: u64,
    /// The wheel's time is the [`first_deadline`](Self::first_deadline) of the last call that
    /// looked for the first value.
    wheel: HierarchicalWheel<T>,
    late: Late,
}

/// The values with a deadline before the wheel's time, which the wheel does not order.
#[derive(Default)]
struct Late {
    /// By deadline, and then in the order in which the values came here.
    places: BTreeMap<(u64, u64), wheel::Key>,
    /// By value, its key in `places`.
    numbers: BTreeMap<wheel::Key, (u64, u64)>,
    next_number: u64,
}

impl Late {
    fn insert(&mut self, tick: u64, place: wheel::Key) {
        let number = (tick, self.next_number);
        self.next_number += 1;
        self.places.insert(number, place);
        self.numbers.insert(place, number);
    }

    /// Removes a value if it is here.
    fn remove(&mut self, place: wheel::Key) {
        let number = self.numbers.remove(&place);
        number.and_then(|number| self.places.remove(&number));
    }

    /// Returns the first value, after its deadline.
    fn first(&self) -> Option<(u64, wheel::Key)> {
        let (&(tick, _), &place) = self.places.first_key_value()?;
        Some((tick, place))
    }
}

/// Returns the tick of a deadline.
fn tick(deadline: i64) -> u64 {
    (deadline + NEVER) as u64
}

fn deadline(tick: u64) -> i64 {
    tick as i64 - NEVER
}

impl<T> Values<T> {
    pub(super) fn new() -> Self {
        Self {
            id: next_id(),
            wheel: HierarchicalWheel::new(SLOTS),
            late: Late::default(),
        }
    }

    fn key(&self, place: wheel::Key) -> Key {
        let values = self.id;
        Key { values, place }
    }

    /// Returns the tick of a value; `None` if the key is stale or of another queue.
    fn find(&self, key: Key) -> Option<u64> {
        let tick = self.wheel.deadline(key.place);
        tick.filter(|_| key.values == self.id)
    }

    fn note_if_late(&mut self, tick: u64, place: wheel::Key) {
        if tick < self.wheel.tick() {
            self.late.insert(tick, place);
        }
    }

    /// Returns the key of the value.
    pub(super) fn insert(&mut self, value: T, deadline: i64) -> Key {
        let place = self.wheel.insert(tick(deadline), value);
        self.note_if_late(tick(deadline), place);
        self.key(place)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        self.find(key)?;
        self.late.remove(key.place);
        self.wheel.remove(key.place)
    }

    /// Changes the deadline of a value. It keeps its place if it has this deadline already. Returns
    /// false if the key is stale.
    pub(super) fn reset(&mut self, key: Key, deadline: i64) -> bool {
        let Some(before) = self.find(key) else {
            return false;
        };
        if before != tick(deadline) {
            self.late.remove(key.place);
            self.note_if_late(tick(deadline), key.place);
            self.wheel.reset(key.place, tick(deadline));
        }
        true
    }

    pub(super) fn deadline(&self, key: Key) -> Option<i64> {
        self.find(key).map(deadline)
    }

    pub(super) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Returns the key of the first value. The wheel's time is the value's deadline then, so that
    /// the next call does not search.
    pub(super) fn first(&mut self) -> Option<Key> {
        while let Some(next) = self.next_tick() {
            let late = self.late.first().map(|(_, place)| place);
            let place = late.or_else(|| Some(self.wheel.peek_expired(next)?.0));
            // `None` if it was the deadline of a value that is gone.
            if let Some(place) = place {
                return Some(self.key(place));
            }
        }
        None
    }

    fn next_tick(&self) -> Option<u64> {
        let late = self.late.first().map(|(tick, _)| tick);
        late.or_else(|| self.wheel.next_deadline())
    }

    /// Returns the earliest deadline, or an earlier one of a value that is gone; [`NEVER`] if there
    /// is no value.
    pub(super) fn first_deadline(&self) -> i64 {
        self.next_tick().map_or(NEVER, deadline)
    }

    /// Removes the first value if it is due. Returns it with its deadline and its key.
    pub(super) fn take_due(&mut self, now: i64) -> Option<(Key, i64, T)> {
        loop {
            let next = self.next_tick().filter(|&next| next <= tick(now))?;
            let due = match self.late.first() {
                Some((tick, place)) => {
                    self.late.remove(place);
                    Some((place, tick, self.wheel.remove(place)?))
                }
                // `None` if it was the deadline of a value that is gone.
                None => self.wheel.pop_expired(next),
            };
            if let Some((place, tick, value)) = due {
                return Some((self.key(place), deadline(tick), value));
            }
        }
    }

    /// Removes all values, and returns them in their order. Their keys are stale then.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        let mut all = mem::replace(self, Self::new());
        iter::from_fn(move || all.take_due(NEVER)).map(|(_, _, value)| value)
    }
}
