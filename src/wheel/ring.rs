//! An array of slots: a whole wheel, or one level of it.

use super::bitmap::Bitmap;

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
    /// For each slot the number of its bucket, plus one; zero is an empty slot. (All zeros, so that the operating system
    /// need not make the memory until it is used.)
    numbers: Vec<u32>,
    occupied: Bitmap,
    buckets: Vec<B>,
    /// Buckets out of use; they keep their memory.
    spare: Vec<u32>,
}

impl<B: Bucket> Ring<B> {
    pub(super) fn new(size: usize) -> Self {
        Self { numbers: vec![0; size], occupied: Bitmap::new(size), buckets: Vec::new(), spare: Vec::new() }
    }

    pub(super) fn size(&self) -> usize {
        self.numbers.len()
    }

    /// The first occupied slot at or after `from`.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        self.occupied.next(from)
    }

    /// The occupied slots from `from` on, in order.
    pub(super) fn iter(&self, from: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.next(from), |&slot| self.next(slot + 1))
    }

    /// The bucket of an occupied slot.
    pub(super) fn at(&self, slot: usize) -> &B {
        &self.buckets[self.numbers[slot] as usize - 1]
    }

    /// The bucket of an occupied slot.
    pub(super) fn at_mut(&mut self, slot: usize) -> &mut B {
        &mut self.buckets[self.numbers[slot] as usize - 1]
    }

    /// The slot's bucket; if it has none it gets one, to be made ready by `open`.
    #[inline]
    pub(super) fn occupy(&mut self, slot: usize, open: impl FnOnce(&mut B)) -> &mut B {
        if self.numbers[slot] == 0 {
            let number = self.spare.pop().unwrap_or_else(|| {
                self.buckets.push(B::default());
                self.buckets.len() as u32 - 1
            });
            self.numbers[slot] = number + 1;
            self.occupied.set(slot);
            open(&mut self.buckets[number as usize]);
        }
        self.at_mut(slot)
    }

    /// Takes the bucket away from an occupied slot.
    pub(super) fn vacate(&mut self, slot: usize) {
        let number = self.numbers[slot] - 1;
        self.buckets[number as usize].close();
        self.spare.push(number);
        self.numbers[slot] = 0;
        self.occupied.clear(slot);
        if self.spare.len() == self.buckets.len() && self.buckets.len() > KEEP {
            (self.buckets, self.spare) = (Vec::new(), Vec::new());
        }
    }

    /// Empties all slots.
    pub(super) fn clear(&mut self) {
        let mut slot = 0;
        while let Some(occupied) = self.next(slot) {
            self.vacate(occupied);
            slot = occupied;
        }
    }
}
