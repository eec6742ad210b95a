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
#[derive(Debug)]
pub(super) struct LevelBucket {
    pub(super) items: TombstoneVec,
    /// No entry has an earlier deadline; `u64::MAX` if there is no entry. A removal may leave it
    /// too low, but never before the slot's first tick.
    pub(super) min_deadline: u64,
}

impl Default for LevelBucket {
    fn default() -> Self {
        Self {
            items: TombstoneVec::new(),
            min_deadline: u64::MAX,
        }
    }
}

impl Bucket for LevelBucket {
    #[inline]
    fn clear(&mut self) {
        self.items.clear();
        self.min_deadline = u64::MAX;
    }
}

impl Level {
    /// Gives a level without slots `slots` empty ones.
    pub(super) fn allocate(&mut self, slots: usize) {
        self.slots.allocate(slots);
        self.occupied = Bitmap::new(slots);
    }

    /// Returns the slot's bucket, and marks the slot as occupied.
    #[inline]
    pub(super) fn bucket_or_insert(&mut self, slot: usize) -> &mut LevelBucket {
        self.slots.bucket_or_insert(slot, |bucket| {
            bucket.items.prepare();
            self.occupied.set(slot);
        })
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.slots.clear(|slot| self.occupied.clear(slot));
    }
}
