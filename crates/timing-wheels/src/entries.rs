//! The interface between a wheel's order and the storage of its entries.

/// Stores the entries of a wheel and the values that the wheel needs of each entry.
///
/// A number identifies an entry for as long as the entry is in the wheel. `u32::MAX` never
/// identifies an entry.
pub trait Entries {
    /// Returns the tick at which the entry is due. It does not change while the entry is in the
    /// wheel.
    fn deadline(&self, entry: u32) -> u64;

    /// Stores the entry's position in its slot or in the ready list, because the entry has moved.
    fn set_position(&mut self, entry: u32, position: u32);

    /// Prefetches the entry, because the wheel reads it soon.
    fn prefetch(&self, _entry: u32) {}

    /// Prefetches what the entry refers to, because its owner reads that soon. The entry itself was
    /// prefetched before.
    fn prefetch_target(&self, _entry: u32) {}
}

/// Entries for the tests of one part of a wheel. They record what the wheel prefetches.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct TestEntries {
    deadlines: Vec<u64>,
    positions: Vec<u32>,
    pub(super) prefetched: core::cell::RefCell<Vec<u32>>,
    pub(super) targets: core::cell::RefCell<Vec<u32>>,
}

#[cfg(test)]
impl TestEntries {
    /// Makes entries with these deadlines. They are numbered from 0.
    pub(super) fn new(deadlines: impl IntoIterator<Item = u64>) -> Self {
        let deadlines: Vec<_> = deadlines.into_iter().collect();
        Self {
            positions: vec![0; deadlines.len()],
            deadlines,
            ..Self::default()
        }
    }

    pub(super) fn position(&self, entry: u32) -> u32 {
        self.positions[entry as usize]
    }
}

#[cfg(test)]
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
