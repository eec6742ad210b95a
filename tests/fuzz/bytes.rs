//! Bytes as choices: a fuzzer mutates them, a random test generates them, and a failed test is
//! replayed from them.

use std::vec::IntoIter;

/// A string of bytes, read from the front. After its end every choice is zero, the first
/// alternative.
pub(crate) struct Bytes(IntoIter<u8>);

impl Bytes {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into().into_iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Returns a number from 0 to `max`. Consumes as many bytes as `max` has.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        let taken = (u64::BITS - max.leading_zeros() + 7) / u8::BITS;
        let number = self
            .0
            .by_ref()
            .take(taken as usize)
            .fold(0, |number, byte| number << 8 | u64::from(byte));
        max.checked_add(1).map_or(number, |end| number % end)
    }

    /// Returns a number less than `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.up_to(end as u64 - 1) as usize
    }

    /// Returns a number of any magnitude.
    pub(crate) fn any(&mut self) -> u64 {
        match self.up_to(64) as u32 {
            0 => 0,
            bits => self.up_to(u64::MAX >> (u64::BITS - bits)),
        }
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
