//! The counts of the threads of most models, which are there from the beginning.

use super::PendingCounts;
use crate::sync::inside::threads_come_and_go;

/// More threads than a model has.
const THREADS: usize = 4;

/// Makes the counts of all threads, unless threads come and go.
pub(super) fn with_counts(counts: PendingCounts) -> PendingCounts {
    if !threads_come_and_go() {
        let taken: Vec<_> = (0..THREADS).map(|_| counts.take()).collect();
        taken.iter().for_each(|taken| counts.give_back(taken));
    }
    counts
}
