//! The values of a queue, in their order.

use std::collections::BTreeMap;
use std::mem;

use crate::deadlines;

/// The deadline that is never reached. A deadline may also be before the timer was built.
pub(super) const NEVER: i64 = deadlines::NEVER as i64;

/// The values, by their deadlines and by their keys. Deadlines are in nanoseconds of the timer's
/// clock, and negative before the timer was built.
pub(super) struct Values<T> {
    /// By deadline, and then by key.
    order: BTreeMap<(i64, u64), T>,
    /// The deadline that belongs to a key. A `BTreeMap` because it frees its memory as it empties.
    deadlines: BTreeMap<u64, i64>,
    /// The key of the next value. No key is used twice.
    next_key: u64,
}

impl<T> Values<T> {
    pub(super) fn new() -> Self {
        Self {
            order: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            next_key: 0,
        }
    }

    /// Returns the key of the value.
    pub(super) fn insert(&mut self, value: T, deadline: i64) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.order.insert((deadline, key), value);
        self.deadlines.insert(key, deadline);
        key
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let deadline = self.deadlines.remove(&key)?;
        self.order.remove(&(deadline, key))
    }

    /// Changes the deadline of a value. Returns false if the key is stale.
    pub(super) fn reset(&mut self, key: u64, deadline: i64) -> bool {
        let Some(old) = self.deadlines.get_mut(&key) else {
            return false;
        };
        let old = mem::replace(old, deadline);
        if let Some(value) = self.order.remove(&(old, key)) {
            self.order.insert((deadline, key), value);
        }
        true
    }

    pub(super) fn deadline(&self, key: u64) -> Option<i64> {
        self.deadlines.get(&key).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the deadline and the key of the first value.
    pub(super) fn first(&self) -> Option<(i64, u64)> {
        self.order.keys().next().copied()
    }

    /// Returns the earliest deadline; [`NEVER`] if there is no value.
    pub(super) fn first_deadline(&self) -> i64 {
        self.first().map_or(NEVER, |(deadline, _)| deadline)
    }

    /// Removes the first value if it is due. Returns it with its deadline and its key.
    pub(super) fn take_due(&mut self, now: i64) -> Option<((i64, u64), T)> {
        let first = self
            .order
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        let due = first.remove_entry();
        self.deadlines.remove(&due.0.1);
        Some(due)
    }

    /// Removes all values, and returns them in their order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.deadlines.clear();
        mem::take(&mut self.order).into_values()
    }
}
