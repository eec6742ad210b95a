//! An array of slots: a whole wheel, or one level of it.

use std::ops::Range;

/// More buckets than this are given back when all slots are empty.
const KEEP: usize = 1_024;

/// What a slot has while it is occupied.
pub(super) trait Bucket: Default {
    /// Forgets all entries, and may keep some room for others.
    fn close(&mut self);
}

/// Slots, each of which is empty or has a bucket. An empty one costs four bytes.
#[derive(Debug)]
pub(super) struct Ring<B> {
    /// For each slot the number of its bucket; zero is an empty slot. (All zeros, so that the operating system need not make
    /// the memory until it is used.)
    numbers: Vec<u32>,
    /// The first one stands for all empty slots.
    buckets: Vec<B>,
    /// Buckets out of use; they keep their memory.
    spare: Vec<u32>,
}

impl<B: Bucket> Ring<B> {
    pub(super) fn new(size: usize) -> Self {
        Self { numbers: vec![0; size], buckets: vec![B::default()], spare: Vec::new() }
    }

    pub(super) fn size(&self) -> usize {
        self.numbers.len()
    }

    /// The buckets of some slots; that of an empty one is as a new one.
    pub(super) fn among(&self, slots: Range<usize>) -> impl Iterator<Item = &B> {
        self.numbers[slots].iter().map(|&number| &self.buckets[number as usize])
    }

    /// All buckets, those of empty slots too.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &B> {
        self.buckets.iter()
    }

    /// The bucket of an occupied slot.
    pub(super) fn at(&self, slot: usize) -> &B {
        &self.buckets[self.numbers[slot] as usize]
    }

    /// The bucket of an occupied slot.
    pub(super) fn at_mut(&mut self, slot: usize) -> &mut B {
        &mut self.buckets[self.numbers[slot] as usize]
    }

    /// The slot's bucket; if it has none it gets one, to be made ready by `open`.
    #[inline]
    pub(super) fn occupy(&mut self, slot: usize, open: impl FnOnce(&mut B)) -> &mut B {
        if self.numbers[slot] == 0 {
            let number = self.spare.pop().unwrap_or_else(|| {
                self.buckets.push(B::default());
                self.buckets.len() as u32 - 1
            });
            self.numbers[slot] = number;
            open(&mut self.buckets[number as usize]);
        }
        self.at_mut(slot)
    }

    /// Takes the bucket away from an occupied slot.
    pub(super) fn vacate(&mut self, slot: usize) {
        let number = self.numbers[slot];
        self.buckets[number as usize].close();
        self.spare.push(number);
        self.numbers[slot] = 0;
        if self.spare.len() + 1 == self.buckets.len() && self.spare.len() > KEEP {
            (self.buckets, self.spare) = (vec![B::default()], Vec::new());
        }
    }
}
