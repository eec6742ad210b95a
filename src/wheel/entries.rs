//! What the order of a wheel's entries needs to know of them.

/// So many entries ahead of the one that is being looked at are asked for: their cache misses overlap.
pub(super) const AHEAD: usize = 8;

/// Where a wheel's entries live, and what it has to know of each. A number names an entry for as long as it is in the
/// wheel; `u32::MAX` never does.
pub(crate) trait Entries {
    /// The tick at which it is due. It stays the same while the entry is in the wheel.
    fn deadline(&self, entry: u32) -> u64;

    /// What [`set_position`](Self::set_position) has said last.
    fn position(&self, entry: u32) -> u32;

    /// Remembers a number for the wheel.
    fn set_position(&mut self, entry: u32, position: u32);

    /// It will be asked about soon.
    fn prefetch(&self, _entry: u32) {}
}
