//! The random number generator. Netty's child has the same one, so that all competitors get the
//! same input.

use std::ops::Range;
use std::time::Duration;

/// `SplitMix64` of Steele, Lea and Flood.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }

    /// Returns `count` indices below `n`.
    pub(crate) fn indices(&mut self, count: usize, n: usize) -> Vec<usize> {
        (0..count).map(|_| self.below(n as u64) as usize).collect()
    }

    /// Returns `count` delays in whole microseconds from a range of milliseconds.
    pub(crate) fn delays(&mut self, count: usize, millis: Range<u64>) -> Vec<Duration> {
        let micros = 1_000 * (millis.end - millis.start);
        (0..count)
            .map(|_| Duration::from_micros(1_000 * millis.start + self.below(micros)))
            .collect()
    }

    /// Shuffles with the algorithm of Fisher and Yates, from the end.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of the reference implementation for this seed.
    #[test]
    fn generator_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [(); 3].map(|()| random.next());
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn shuffle_keeps_all_elements() {
        let mut all: Vec<_> = (0..100).collect();
        Random::new(7).shuffle(&mut all);
        assert!(!all.is_sorted());
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }
}
