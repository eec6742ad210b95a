use core::cell::RefCell;

use super::Entries;

/// Entries for the tests of one part of a wheel. They record what the wheel prefetches.
#[derive(Debug, Default)]
pub(crate) struct TestEntries {
    deadlines: Vec<u64>,
    positions: Vec<u32>,
    pub(crate) prefetched: RefCell<Vec<u32>>,
    pub(crate) targets: RefCell<Vec<u32>>,
}

impl TestEntries {
    /// Makes entries with these deadlines. They are numbered from 0.
    pub(crate) fn new(deadlines: impl IntoIterator<Item = u64>) -> Self {
        let deadlines: Vec<_> = deadlines.into_iter().collect();
        Self {
            positions: vec![0; deadlines.len()],
            deadlines,
            ..Self::default()
        }
    }

    pub(crate) fn position(&self, entry: u32) -> u32 {
        self.positions[entry as usize]
    }
}

impl Entries for TestEntries {
    fn deadline(&self, entry: u32) -> u64 {
        self.deadlines[entry as usize]
    }

    fn set_position(&mut self, entry: u32, position: u32) {
        self.positions[entry as usize] = position;
    }

    fn prefetch(&self, entry: u32) {
        self.prefetched.borrow_mut().push(entry);
    }

    fn prefetch_target(&self, entry: u32) {
        self.targets.borrow_mut().push(entry);
    }
}
