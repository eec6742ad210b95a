//! The array of slots: a whole hashed wheel, or one level of a hierarchical wheel.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::hint::black_box;
use core::mem::{self, size_of};
use core::ops::Range;

/// The largest number of slots that a wheel, or the lowest level of a hierarchical wheel, can have.
///
/// It is 2^30, which is Netty's limit. On targets with 32-bit addresses it is 2^28, because the
/// address space is too small for more.
pub const MAX_TICKS_PER_WHEEL: usize = if usize::BITS < 64 { 1 << 28 } else { 1 << 30 };

/// A ring frees its unused buckets if it has more of them than this, and three times as many as
/// used ones.
const MAX_UNUSED_BUCKETS: usize = 1_024;

/// The reason why `try_new` or `try_with_capacity` of a wheel failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SizeError {
    /// The number of slots is 0 or more than [`MAX_TICKS_PER_WHEEL`].
    OutOfRange {
        /// The number of slots.
        ticks_per_wheel: usize,
    },
    /// There is no memory for an array of the wheel.
    NoMemory {
        /// The size of this array; `usize::MAX` if it is more than the address space.
        bytes: usize,
    },
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { ticks_per_wheel } => write!(
                f,
                "ticks_per_wheel is {ticks_per_wheel}, but must be from 1 to {MAX_TICKS_PER_WHEEL}"
            ),
            Self::NoMemory { bytes } => {
                write!(f, "there is no memory for a wheel's array of {bytes} bytes")
            }
        }
    }
}

#[cfg(feature = "std")]
impl std::error::Error for SizeError {}

/// Returns an error if no wheel can have this many slots.
pub(super) const fn check_slots(ticks_per_wheel: usize) -> Result<(), SizeError> {
    match ticks_per_wheel {
        1..=MAX_TICKS_PER_WHEEL => Ok(()),
        _ => Err(SizeError::OutOfRange { ticks_per_wheel }),
    }
}

/// Returns the number of slots of a wheel: `ticks_per_wheel`, rounded up to a power of two. Panics
/// if no wheel can have this many.
pub(super) const fn slot_count(ticks_per_wheel: usize) -> usize {
    assert!(
        check_slots(ticks_per_wheel).is_ok(),
        "ticks_per_wheel must be from 1 to MAX_TICKS_PER_WHEEL"
    );
    ticks_per_wheel.next_power_of_two()
}

/// Makes an array with memory for `len` values, or returns an error if there is none.
pub(super) fn try_array<T>(len: usize) -> Result<Vec<T>, SizeError> {
    let mut array = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    match array.try_reserve_exact(len) {
        Ok(()) => Ok(array),
        Err(_) => Err(SizeError::NoMemory { bytes }),
    }
}

/// Returns an error if there is no memory for an array of `len` values.
///
/// The operating system provides the memory of a large array of zeros only where it is used. Safe
/// code cannot allocate such an array fallibly. So the same memory is allocated before, for a
/// moment and without a use of it. Only if another thread takes the memory in between, the process
/// ends.
pub(super) fn try_memory<T>(len: usize) -> Result<(), SizeError> {
    // The compiler may leave out an allocation that is not used.
    drop(black_box(try_array::<T>(len)?));
    Ok(())
}

/// One level of a wheel, which is a ring of slots: how many entries each slot has. A hashed wheel
/// has one level.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotCounts {
    /// How many ticks a slot covers: one in the lowest level, and in a higher level as many as all
    /// slots of the level below.
    pub ticks_per_slot: u64,
    /// How many entries each slot has, of all rounds: an entry of the hashed wheel that is more
    /// than a round away has a slot too.
    pub slots: Vec<usize>,
    /// The slot of the current tick. Time moves from here to the end, and continues at the
    /// beginning.
    pub current_slot: usize,
}

/// The contents of an occupied slot.
pub(super) trait Bucket: Default {
    /// Removes all entries. The bucket may keep some capacity for later ones.
    fn clear(&mut self);
}

/// A bucket and its slot. The slot is meaningless for bucket 0 and for unused buckets.
#[derive(Debug, Default)]
struct BucketOfSlot<B> {
    bucket: B,
    slot: u32,
}

/// An array of slots. Each slot is empty or has a bucket. An empty slot costs four bytes.
#[derive(Debug, Default)]
pub(super) struct Ring<B> {
    /// For each slot, the index of its bucket in `buckets`; zero for an empty slot.
    ///
    /// A new array is all zeros, so the operating system need not provide its memory until a slot
    /// is used.
    bucket_of_slot: Vec<u32>,
    /// Bucket 0 represents all empty slots. It never contains an entry. Then come the buckets of
    /// the occupied slots, and at the end those that are unused. An unused bucket keeps its memory.
    buckets: Vec<BucketOfSlot<B>>,
    /// The index of the first unused bucket.
    unused: usize,
}

impl<B: Bucket> Ring<B> {
    /// A ring without slots.
    pub(super) const NONE: Self = Self {
        bucket_of_slot: Vec::new(),
        buckets: Vec::new(),
        unused: 0,
    };

    /// Makes a ring of `slots` empty slots, or returns an error if there is no memory for it.
    pub(super) fn try_new(slots: usize) -> Result<Self, SizeError> {
        try_memory::<u32>(slots)?;
        let mut ring = Self::NONE;
        ring.allocate(slots);
        Ok(ring)
    }

    /// Gives a ring without slots `slots` empty ones.
    pub(super) fn allocate(&mut self, slots: usize) {
        self.bucket_of_slot = vec![0; slots];
        self.add_bucket();
        self.unused = 1;
    }

    pub(super) fn slot_count(&self) -> usize {
        self.bucket_of_slot.len()
    }

    /// Returns the number of entries in each of `slots` slots, those that the ring has and then
    /// empty ones; `None` if there is no memory for the numbers.
    pub(super) fn counts(&self, slots: usize, count: impl Fn(&B) -> usize) -> Option<Vec<usize>> {
        let mut counts = try_array(slots).ok()?;
        counts.extend(self.range(0..self.slot_count()).map(count));
        counts.resize(slots, 0);
        Some(counts)
    }

    /// Returns the buckets of a range of slots. The bucket of an empty slot equals a new bucket.
    pub(super) fn range(&self, slots: Range<usize>) -> impl Iterator<Item = &B> + '_ {
        self.bucket_of_slot[slots]
            .iter()
            .map(|&index| &self.buckets[index as usize].bucket)
    }

    /// Returns all buckets in no particular order. Unused buckets are among them; they have no
    /// entries.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &B> + '_ {
        self.buckets.iter().map(|bucket| &bucket.bucket)
    }

    /// Returns the bucket of an occupied slot.
    pub(super) fn bucket(&self, slot: usize) -> &B {
        &self.buckets[self.bucket_of_slot[slot] as usize].bucket
    }

    /// Returns the bucket of an occupied slot.
    pub(super) fn bucket_mut(&mut self, slot: usize) -> &mut B {
        &mut self.buckets[self.bucket_of_slot[slot] as usize].bucket
    }

    /// Returns the slot's bucket. An empty slot gets a bucket first, which `init` prepares.
    #[inline(always)]
    pub(super) fn bucket_or_insert(&mut self, slot: usize, init: impl FnOnce(&mut B)) -> &mut B {
        let index = match self.bucket_of_slot[slot] {
            0 => self.occupy(slot, init),
            index => index,
        };
        &mut self.buckets[index as usize].bucket
    }

    /// Gives an empty slot a bucket. Returns its index.
    #[inline]
    fn occupy(&mut self, slot: usize, init: impl FnOnce(&mut B)) -> u32 {
        let index = self.unused;
        if index == self.buckets.len() {
            self.add_bucket();
        }
        self.unused += 1;
        self.bucket_of_slot[slot] = index as u32;
        let bucket = &mut self.buckets[index];
        bucket.slot = slot as u32;
        init(&mut bucket.bucket);
        index as u32
    }

    // Apart, so that the other insertions save no registers for the call.
    #[cold]
    #[inline(never)]
    fn add_bucket(&mut self) {
        self.buckets.push(BucketOfSlot::default());
    }

    /// Clears the bucket of an occupied slot and keeps it for another slot. The slot is empty
    /// afterwards.
    ///
    /// Frees the unused buckets if they are many. Three quarters of all buckets have been cleared
    /// since they were made or since the last time, so the cost per call is constant.
    pub(super) fn clear_slot(&mut self, slot: usize) {
        let index = mem::take(&mut self.bucket_of_slot[slot]);
        self.buckets[index as usize].bucket.clear();
        self.unused -= 1;
        let (used, unused) = self.buckets.split_at_mut(self.unused);
        // The last bucket of an occupied slot takes its place. (Not with `<[_]>::swap`: that is
        // a call of `memmove` on a small processor.)
        if let Some(bucket) = used.get_mut(index as usize) {
            mem::swap(bucket, &mut unused[0]);
            self.bucket_of_slot[bucket.slot as usize] = index;
        }
        let unused = self.buckets.len() - self.unused;
        if unused > MAX_UNUSED_BUCKETS && unused > self.buckets.len() / 4 * 3 {
            self.buckets.truncate(self.unused);
            self.buckets.shrink_to_fit();
        }
    }

    /// Removes all entries, and frees all buckets. Calls `cleared` with each occupied slot.
    pub(super) fn clear(&mut self, mut cleared: impl FnMut(usize)) {
        for bucket in self.buckets.iter().take(self.unused).skip(1) {
            self.bucket_of_slot[bucket.slot as usize] = 0;
            cleared(bucket.slot as usize);
        }
        self.buckets.truncate(1);
        self.unused = self.buckets.len();
        self.buckets.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct NoEntries;

    impl Bucket for NoEntries {
        fn clear(&mut self) {}
    }

    /// Makes a ring in which `used` slots have been used, and `cleared` of them cleared.
    fn ring_with_unused_buckets(used: usize, cleared: usize) -> Ring<NoEntries> {
        let mut ring = Ring::try_new(used.next_power_of_two()).expect("memory");
        for slot in 0..used {
            ring.bucket_or_insert(slot, |_| ());
        }
        (0..cleared).for_each(|slot| ring.clear_slot(slot));
        ring
    }

    #[test]
    fn few_unused_buckets_are_kept() {
        let mut ring = ring_with_unused_buckets(MAX_UNUSED_BUCKETS + 1, MAX_UNUSED_BUCKETS);
        assert_eq!(
            (ring.buckets.len(), ring.unused),
            (MAX_UNUSED_BUCKETS + 2, 2)
        );
        ring.clear_slot(MAX_UNUSED_BUCKETS);
        assert_eq!(
            (ring.buckets.len(), ring.unused),
            (1, 1),
            "bucket 0 is left"
        );
    }

    #[test]
    fn slot_zero_keeps_its_bucket_when_unused_ones_are_freed() {
        let mut ring = ring_with_unused_buckets(MAX_UNUSED_BUCKETS + 2, 0);
        (1..MAX_UNUSED_BUCKETS + 2).for_each(|slot| ring.clear_slot(slot));
        assert_eq!((ring.buckets.len(), ring.bucket_of_slot[0]), (2, 1));
    }

    #[test]
    fn cleared_ring_is_as_new() {
        let mut ring = ring_with_unused_buckets(8, 3);
        // Slot 1 has another bucket than before.
        ring.bucket_or_insert(1, |_| ());
        let mut cleared = Vec::new();
        ring.clear(|slot| cleared.push(slot));
        cleared.sort_unstable();
        assert_eq!(cleared, [1, 3, 4, 5, 6, 7]);
        assert_eq!(ring.bucket_of_slot, [0; 8]);
        assert_eq!((ring.buckets.capacity(), ring.unused), (1, 1));
    }

    #[test]
    fn array_without_memory_is_an_error() {
        let bytes = usize::MAX / 2 + 1;
        assert_eq!(
            try_memory::<u64>(bytes / 8),
            Err(SizeError::NoMemory { bytes })
        );
        let error = try_array::<u64>(usize::MAX).unwrap_err();
        assert_eq!(error, SizeError::NoMemory { bytes: usize::MAX });
        assert!(
            error
                .to_string()
                .ends_with(&format!("{} bytes", usize::MAX))
        );
    }

    #[test]
    fn unused_buckets_are_freed_if_they_are_more_than_three_quarters() {
        let mut ring = ring_with_unused_buckets(1_599, 1_200);
        assert_eq!((ring.buckets.len(), ring.unused), (1_600, 400));
        ring.clear_slot(1_200);
        assert_eq!((ring.buckets.len(), ring.unused), (399, 399));
        assert_eq!(
            ring.buckets.capacity(),
            399,
            "no room for more than those in use"
        );
        for slot in 0..1_599 {
            let bucket = ring.bucket_of_slot[slot] as usize;
            assert_eq!(bucket != 0, slot > 1_200, "slot {slot}");
            assert!(
                bucket == 0 || ring.buckets[bucket].slot as usize == slot,
                "slot {slot}"
            );
        }
    }
}
