//! A small number per timer, by which a thread finds its cache of that timer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::sync::unmodelled::{Mutex, PoisonError};

/// The index of a timer: no other timer whose memory exists has the same one. The lowest free index
/// is given out, so that they stay small.
pub(crate) struct TimerIndex(usize);

struct Indices {
    /// How many were ever given out at a time.
    count: usize,
    free: BinaryHeap<Reverse<usize>>,
}

static INDICES: Mutex<Indices> = Mutex::new(Indices {
    count: 0,
    free: BinaryHeap::new(),
});

impl TimerIndex {
    pub(super) fn take() -> Self {
        let mut indices = INDICES.lock().unwrap_or_else(PoisonError::into_inner);
        let Reverse(index) = indices.free.pop().unwrap_or_else(|| {
            indices.count += 1;
            Reverse(indices.count - 1)
        });
        Self(index)
    }

    #[inline]
    pub(super) fn get(&self) -> usize {
        self.0
    }
}

/// Gives the index back.
impl Drop for TimerIndex {
    fn drop(&mut self) {
        INDICES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .free
            .push(Reverse(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests take indices at the same time, but not this many.
    #[test]
    fn indices_stay_small() {
        let count = || INDICES.lock().unwrap().count;
        let rounds = if cfg!(miri) { 100 } else { 10_000 };
        for _ in 0..rounds {
            let (first, second) = (TimerIndex::take(), TimerIndex::take());
            assert_ne!(first.get(), second.get());
            assert!(first.get().max(second.get()) < count());
        }
        assert!(count() < rounds);
    }
}
