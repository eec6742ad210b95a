//! Bytes as choices: what a fuzzer mutates, what a random test draws, and what a test that failed once is replayed from.

use std::vec::IntoIter;

/// A string of bytes, read from the front. Behind its end there are only zeros: the first of each choice.
pub(crate) struct Bytes(IntoIter<u8>);

impl Bytes {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into().into_iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// A number from 0 to `most`. Takes as many bytes as `most` has.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        let taken = (u64::BITS - most.leading_zeros()).div_ceil(u8::BITS);
        let number =
            self.0.by_ref().take(taken as usize).fold(0, |number, byte| number << 8 | u64::from(byte));
        most.checked_add(1).map_or(number, |end| number % end)
    }

    /// A number less than `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.up_to(end as u64 - 1) as usize
    }

    /// A number of any magnitude.
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
