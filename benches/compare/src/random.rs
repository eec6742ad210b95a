//! The generator that both sides of the comparison have, so that all are asked the same.

use std::ops::Range;
use std::time::Duration;

/// Steele, Lea and Flood's `SplitMix64`.
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

    /// So many indices below `n`.
    pub(crate) fn indices(&mut self, count: usize, n: usize) -> Vec<usize> {
        (0..count).map(|_| self.below(n as u64) as usize).collect()
    }

    /// So many delays, to the microsecond, from a range of milliseconds.
    pub(crate) fn delays(&mut self, count: usize, millis: Range<u64>) -> Vec<Duration> {
        let micros = 1_000 * (millis.end - millis.start);
        (0..count).map(|_| Duration::from_micros(1_000 * millis.start + self.below(micros))).collect()
    }

    /// Fisher and Yates, from the end.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the reference implementation gives for this seed, and so whoever is on the other side.
    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [(); 3].map(|()| random.next());
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut all: Vec<_> = (0..100).collect();
        Random::new(7).shuffle(&mut all);
        assert!(!all.is_sorted());
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }
}
