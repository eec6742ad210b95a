//! A level of the hierarchical wheel.

use super::bitmap::Bitmap;
use super::ring::{Bucket, Ring};
use super::tombstone_vec::TombstoneVec;

/// A level of slots.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub(super) slots: Ring<LevelBucket>,
    /// The occupied slots.
    pub(super) occupied: Bitmap,
}

/// The entries of a slot.
#[derive(Debug, Default)]
pub(super) struct LevelBucket {
    pub(super) items: TombstoneVec,
    /// No entry has an earlier deadline. A removal may leave it too low, but never before the
    /// slot's first tick.
    pub(super) min_deadline: u64,
}

impl Bucket for LevelBucket {
    #[inline]
    fn clear(&mut self) {
        self.items.clear();
    }
}

impl Level {
    /// Makes an empty level.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: Ring::new(slots),
            occupied: Bitmap::new(slots),
        }
    }

    /// Returns the slot's bucket, and marks the slot as occupied.
    #[inline]
    pub(super) fn bucket_or_insert(&mut self, slot: usize) -> &mut LevelBucket {
        self.slots.bucket_or_insert(slot, |bucket| {
            bucket.items.prepare();
            bucket.min_deadline = u64::MAX;
            self.occupied.set(slot);
        })
    }

    /// Removes all entries of an occupied slot.
    #[inline]
    pub(super) fn clear_slot(&mut self, slot: usize) {
        self.slots.clear_slot(slot);
        self.occupied.clear(slot);
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.slots.clear(|slot| self.occupied.clear(slot));
    }
}
