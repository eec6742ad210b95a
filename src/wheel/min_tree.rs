//! Which slot of a wheel has the first deadline of all.

use std::ops::Range;

/// How many slots, or groups of the level below, make a group: their numbers fill a cache line.
const GROUP: usize = 8;

/// For each group of slots the first deadline in it, for each group of groups again, and so on: a tournament.
///
/// What the slots themselves have is not kept here. Deadlines are written with all bits turned round, so that zero is what an
/// empty group has: the operating system need not make the memory until it is used.
#[derive(Debug)]
pub(super) struct MinTree {
    /// How many slots there are.
    size: usize,
    levels: Vec<Vec<u64>>,
    /// Of all slots. Zero if they are empty.
    all: u64,
}

impl MinTree {
    /// Of so many slots, all empty.
    pub(super) fn new(size: usize) -> Self {
        let mut levels = Vec::new();
        let mut groups = size;
        while groups > GROUP {
            groups = groups.div_ceil(GROUP);
            levels.push(vec![0; groups.next_multiple_of(GROUP)]);
        }
        Self { size, levels, all: 0 }
    }

    /// The first deadline of all. `u64::MAX` if there is none.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        !self.all
    }

    /// A slot has got a first deadline, or an earlier one than before.
    #[inline]
    pub(super) fn lower(&mut self, slot: usize, deadline: u64) {
        let mut group = slot / GROUP;
        for level in &mut self.levels {
            if level[group] >= !deadline {
                return;
            }
            level[group] = !deadline;
            group /= GROUP;
        }
        self.all = self.all.max(!deadline);
    }

    /// The slots that make a group with this one.
    #[inline]
    pub(super) fn group(&self, slot: usize) -> Range<usize> {
        let first = slot / GROUP * GROUP;
        first..self.size.min(first + GROUP)
    }

    /// What was first in a slot's group is out, or later than it was: `first` is now, or `u64::MAX` if there is nothing.
    #[inline]
    pub(super) fn raise(&mut self, slot: usize, first: u64) {
        let mut first = !first;
        let mut group = slot / GROUP;
        for level in &mut self.levels {
            if level[group] == first {
                return;
            }
            level[group] = first;
            group /= GROUP;
            first = level[group * GROUP..][..GROUP].iter().copied().fold(0, u64::max);
        }
        self.all = first;
    }
}

#[cfg(test)]
mod tests {
    use super::MinTree;

    #[test]
    fn agrees_with_a_search() {
        for size in [1, 2, 8, 9, 64, 512, 1 << 13] {
            let mut random = fastrand::Rng::with_seed(size as u64);
            let mut firsts = MinTree::new(size);
            let mut model = vec![None; size];
            for _ in 0..if cfg!(miri) { 50 } else { 2_000 } {
                let (slot, deadline) = (random.usize(..size), random.u64(..1 << 20));
                if model[slot].is_none_or(|old| old > deadline) {
                    model[slot] = Some(deadline);
                    firsts.lower(slot, deadline);
                } else {
                    model[slot] = random.bool().then_some(deadline);
                    let first = model[firsts.group(slot)].iter().flatten().min();
                    firsts.raise(slot, *first.unwrap_or(&u64::MAX));
                }
                let first = model.iter().flatten().min();
                assert_eq!(firsts.first(), *first.unwrap_or(&u64::MAX), "size {size}");
            }
        }
    }
}
