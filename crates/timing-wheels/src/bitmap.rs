//! The set of occupied slots of a wheel's level.

use alloc::vec::Vec;

use super::ring::{SizeError, try_zeros};

/// A set of numbers below a fixed size: a bitmap of several levels.
///
/// Each bit of a level above the first says whether the corresponding word of the level below has a
/// bit set. The last level is one word. So [`next`](Self::next) reads at most two words per level,
/// also in a sparse set.
#[derive(Debug)]
pub(super) struct Bitmap {
    levels: Vec<Vec<u64>>,
}

impl Bitmap {
    /// Makes an empty set of numbers below `size`.
    pub(super) fn try_new(size: usize) -> Result<Self, SizeError> {
        let mut levels = Vec::new();
        let mut words = size;
        loop {
            words = (words + 63) / 64;
            levels.push(try_zeros(words)?);
            if words <= 1 {
                return Ok(Self { levels });
            }
        }
    }

    /// Adds `bit` to the set.
    pub(super) fn set(&mut self, mut bit: usize) {
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            let was_empty = *word == 0;
            *word |= 1 << (bit % 64);
            // The bit of this word in the level above is set already.
            if !was_empty {
                return;
            }
            bit /= 64;
        }
    }

    /// Removes `bit` from the set.
    pub(super) fn clear(&mut self, mut bit: usize) {
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                return;
            }
            bit /= 64;
        }
    }

    /// Returns the first member at or after `from`.
    #[inline]
    pub(super) fn next(&self, mut from: usize) -> Option<usize> {
        let mut level = 0;
        // Go up until a word has a bit at or after `from`.
        loop {
            let word = *self.levels.get(level)?.get(from / 64)?;
            let rest = word & (u64::MAX << (from % 64));
            if rest != 0 {
                from = from / 64 * 64 + rest.trailing_zeros() as usize;
                break;
            }
            from = from / 64 + 1;
            level += 1;
        }
        // Go down again along the first bit of each word.
        while level > 0 {
            level -= 1;
            from = from * 64 + self.levels[level][from].trailing_zeros() as usize;
        }
        Some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::Bitmap;
    use std::collections::BTreeSet;

    #[test]
    fn next_agrees_with_btree_set() {
        for size in [1, 2, 63, 64, 65, 4_096, 4_097, 1 << 19] {
            let mut random = fastrand::Rng::with_seed(size as u64);
            let mut bitmap = Bitmap::try_new(size).expect("memory");
            let mut model = BTreeSet::new();
            for _ in 0..if cfg!(miri) { 50 } else { 2_000 } {
                let bit = random.usize(..size);
                if random.bool() {
                    bitmap.set(bit);
                    model.insert(bit);
                } else {
                    bitmap.clear(bit);
                    model.remove(&bit);
                }
                let from = random.usize(..size);
                assert_eq!(
                    bitmap.next(from),
                    model.range(from..).next().copied(),
                    "size {size}, from {from}"
                );
            }
        }
    }
}
