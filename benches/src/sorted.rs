//! A sorted array: what an executor for a device keeps of the few tasks that sleep.

use crate::wheel::Wheel;

/// An array sorted by deadline and sequence number, the latest deadline first.
#[derive(Default)]
pub struct SortedQueue {
    entries: Vec<((u64, u64), u64)>,
    sequence: u64,
}

impl Wheel for SortedQueue {
    const NAME: &'static str = "sorted";

    type Key = (u64, u64);

    fn new() -> Self {
        Self::default()
    }

    fn insert(&mut self, deadline: u64, value: u64) -> (u64, u64) {
        self.sequence += 1;
        let key = (deadline, self.sequence);
        let at = self.entries.partition_point(|&(other, _)| other > key);
        self.entries.insert(at, (key, value));
        key
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<u64> {
        let at = self
            .entries
            .binary_search_by(|(other, _)| key.cmp(other))
            .ok()?;
        Some(self.entries.remove(at).1)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while self.next_deadline().is_some_and(|first| first <= now) {
            let (_, value) = self.entries.pop().expect("the array is not empty");
            expired(value);
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.entries.last().map(|&((deadline, _), _)| deadline)
    }
}
