//! The set of occupied slots of a wheel's level.

use alloc::vec;
use alloc::vec::Vec;

/// The number of bits in a word.
const BITS: usize = usize::BITS as usize;

/// A set of numbers below a fixed size: a tree of words.
///
/// A bit of the words at the bottom is a number. Each other bit says whether the corresponding word
/// below has a bit set. So [`first`](Self::first) reads one word per level, also in a sparse set.
///
/// The tree is stored as a heap is: the root first, and each level after the one above it. The word
/// below bit `n`, counted from the first bit of the root, is word `n + 1`.
#[derive(Debug, Default)]
pub(super) struct Bitmap {
    words: Vec<usize>,
    /// The bit that stands for the number zero.
    zero: usize,
}

impl Bitmap {
    /// Makes an empty set of numbers below `size`.
    pub(super) fn new(size: usize) -> Self {
        let (mut zero, mut bits) = (0, BITS);
        while bits < size {
            zero = (zero + 1) * BITS;
            bits *= BITS;
        }
        Self {
            words: vec![0; (zero + size + BITS - 1) / BITS],
            zero,
        }
    }

    /// Adds a number to the set.
    pub(super) fn set(&mut self, number: usize) {
        let mut bit = self.zero + number;
        loop {
            let word = &mut self.words[bit / BITS];
            let was_empty = *word == 0;
            *word |= 1 << (bit % BITS);
            // The bit of this word in the level above is set already, or there is no such level.
            if !was_empty || bit < BITS {
                return;
            }
            bit = bit / BITS - 1;
        }
    }

    /// Removes a number from the set.
    pub(super) fn clear(&mut self, number: usize) {
        let mut bit = self.zero + number;
        loop {
            let word = &mut self.words[bit / BITS];
            *word &= !(1 << (bit % BITS));
            if *word != 0 || bit < BITS {
                return;
            }
            bit = bit / BITS - 1;
        }
    }

    /// Returns the least number in the set.
    #[inline]
    pub(super) fn first(&self) -> Option<usize> {
        let mut index = 0;
        loop {
            let word = *self.words.get(index)?;
            if word == 0 {
                return None;
            }
            let bit = index * BITS + word.trailing_zeros() as usize;
            if bit >= self.zero {
                return Some(bit - self.zero);
            }
            index = bit + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bitmap;
    use std::collections::BTreeSet;

    #[test]
    fn first_agrees_with_btree_set() {
        for size in [1, 2, 63, 64, 65, 4_096, 4_097, 1 << 19] {
            let mut random = fastrand::Rng::with_seed(size as u64);
            let mut bitmap = Bitmap::new(size);
            let mut model = BTreeSet::new();
            assert_eq!(bitmap.first(), None);
            for _ in 0..if cfg!(miri) { 50 } else { 2_000 } {
                let bit = random.usize(..size);
                if random.bool() {
                    bitmap.set(bit);
                    model.insert(bit);
                } else if let Some(&bit) = model.range(bit..).next() {
                    bitmap.clear(bit);
                    model.remove(&bit);
                }
                assert_eq!(bitmap.first(), model.first().copied(), "size {size}");
            }
            while let Some(bit) = bitmap.first() {
                bitmap.clear(bit);
                assert_eq!(model.pop_first(), Some(bit), "size {size}");
            }
            assert!(model.is_empty());
        }
    }
}
