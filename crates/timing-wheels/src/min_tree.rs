//! Finds the earliest deadline of all slots of a wheel.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::ring::{SizeError, try_memory};

/// The number of slots, or of groups of the level below, in a group. Their eight 64-bit values fill
/// a cache line.
const GROUP_SIZE: usize = 8;

/// A tree of earliest deadlines (a tournament tree): one value per group of slots, one per group of
/// such groups, and so on up to the root.
///
/// The tree does not store the earliest deadline of each slot: the caller knows these.
///
/// Deadlines are stored with all bits inverted, so that zero represents an empty group and the
/// earliest deadline is the greatest value. A new level is all zeros, so the operating system need
/// not provide its memory until it is used.
#[derive(Debug)]
pub(super) struct MinTree {
    slot_count: usize,
    /// The levels from the bottom up, without the root.
    levels: Vec<Vec<u64>>,
    /// The inverted earliest deadline of all slots; zero if all are empty.
    root: u64,
}

impl MinTree {
    /// The tree of no slots.
    pub(super) const NONE: Self = Self {
        slot_count: 0,
        levels: Vec::new(),
        root: 0,
    };

    /// Makes the tree of `slot_count` empty slots.
    pub(super) fn try_new(slot_count: usize) -> Result<Self, SizeError> {
        let mut levels = Vec::new();
        let mut groups = slot_count;
        while groups > GROUP_SIZE {
            groups = groups_of(groups);
            let groups = groups_of(groups) * GROUP_SIZE;
            try_memory::<u64>(groups)?;
            levels.push(vec![0; groups]);
        }
        Ok(Self {
            slot_count,
            levels,
            root: 0,
        })
    }

    /// Returns the earliest deadline of all slots; `u64::MAX` if all are empty.
    #[inline]
    pub(super) fn min(&self) -> u64 {
        !self.root
    }

    /// Records that the earliest deadline of `slot` is now `deadline`: the slot was empty or had a
    /// later one.
    #[inline]
    pub(super) fn decrease(&mut self, slot: usize, deadline: u64) {
        let mut group = slot / GROUP_SIZE;
        for level in &mut self.levels {
            // This group, and so each group above it, has an equal or earlier deadline.
            if level[group] >= !deadline {
                return;
            }
            level[group] = !deadline;
            group /= GROUP_SIZE;
        }
        self.root = self.root.max(!deadline);
    }

    /// Returns the slots of the group of `slot`.
    #[inline]
    pub(super) fn group(&self, slot: usize) -> Range<usize> {
        let first = slot / GROUP_SIZE * GROUP_SIZE;
        first..self.slot_count.min(first + GROUP_SIZE)
    }

    /// Records that the earliest deadline of `slot` is later than before, or that the slot is
    /// empty.
    ///
    /// `group_min` is the earliest deadline of all slots in the slot's [`group`](Self::group);
    /// `u64::MAX` if they are empty.
    #[inline]
    pub(super) fn increase(&mut self, slot: usize, group_min: u64) {
        let mut inverted_min = !group_min;
        let mut group = slot / GROUP_SIZE;
        for level in &mut self.levels {
            if level[group] == inverted_min {
                return;
            }
            level[group] = inverted_min;
            group /= GROUP_SIZE;
            inverted_min = level[group * GROUP_SIZE..][..GROUP_SIZE]
                .iter()
                .copied()
                .fold(0, u64::max);
        }
        self.root = inverted_min;
    }

    /// Records that `slot` is empty, and that no other slot is occupied without such a call.
    pub(super) fn clear(&mut self, slot: usize) {
        let mut group = slot / GROUP_SIZE;
        for level in &mut self.levels {
            level[group] = 0;
            group /= GROUP_SIZE;
        }
        self.root = 0;
    }
}

/// Returns the number of groups of so many slots or groups.
fn groups_of(count: usize) -> usize {
    (count + GROUP_SIZE - 1) / GROUP_SIZE
}

#[cfg(test)]
mod tests {
    use super::MinTree;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn min_agrees_with_linear_search() {
        for size in [1, 2, 8, 9, 64, 512, 1 << 13] {
            let mut random = fastrand::Rng::with_seed(size as u64);
            let mut tree = MinTree::try_new(size).expect("memory");
            let mut model = vec![None; size];
            for _ in 0..2_000 {
                let (slot, deadline) = (random.usize(..size), random.u64(..1 << 20));
                if model[slot].map_or(true, |old| old > deadline) {
                    model[slot] = Some(deadline);
                    tree.decrease(slot, deadline);
                } else {
                    model[slot] = random.bool().then_some(deadline);
                    let group_min = model[tree.group(slot)].iter().flatten().min();
                    tree.increase(slot, *group_min.unwrap_or(&u64::MAX));
                }
                let min = model.iter().flatten().min();
                assert_eq!(tree.min(), *min.unwrap_or(&u64::MAX), "size {size}");
            }
            let occupied = (0..size).filter(|&slot| model[slot].is_some());
            occupied.for_each(|slot| tree.clear(slot));
            assert_eq!(tree.root, 0);
            assert!(tree.levels.iter().flatten().all(|&value| value == 0));
        }
    }
}
