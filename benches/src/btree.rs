//! A B-tree. The reactor of async-io stores its timers in a B-tree too.

use std::collections::BTreeMap;

use crate::wheel::Wheel;

/// A map ordered by deadline and sequence number.
///
/// It removes expired entries one by one. async-io splits the map instead, which has to count the
/// entries of one half.
#[derive(Default)]
pub struct BTreeQueue {
    entries: BTreeMap<(u64, u64), u64>,
    sequence: u64,
}

impl Wheel for BTreeQueue {
    const NAME: &'static str = "BTreeMap";

    type Key = (u64, u64);

    fn new() -> Self {
        Self::default()
    }

    fn insert(&mut self, deadline: u64, value: u64) -> (u64, u64) {
        self.sequence += 1;
        let key = (deadline, self.sequence);
        self.entries.insert(key, value);
        key
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<u64> {
        self.entries.remove(&key)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while let Some(first) = self
            .entries
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            expired(first.remove());
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.entries
            .first_key_value()
            .map(|(&(deadline, _), _)| deadline)
    }
}
