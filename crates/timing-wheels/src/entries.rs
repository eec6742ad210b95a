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

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::TestEntries;
