//! The runs that are due and wait for a runner, in the order in which they start.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use jiff::Timestamp;

use crate::store::Run;

/// A run on the wheel, or one that is due.
pub(crate) struct Queued {
    pub(crate) run: Run,
    /// A transaction of an application had locked it, or its job, when it was due.
    pub(crate) is_locked: bool,
}

impl Queued {
    /// A suspect is first, because the other ones would interrupt its watch. Then a higher priority,
    /// then an earlier time.
    fn rank(&self) -> (bool, i16, Reverse<Timestamp>, Reverse<i64>) {
        (
            self.run.watch().is_some(),
            self.run.priority,
            Reverse(self.run.start_at),
            Reverse(self.run.id),
        )
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Queued {}

/// The runs that are due.
#[derive(Default)]
pub(crate) struct Ready(BinaryHeap<Queued>);

impl Ready {
    pub(crate) fn push(&mut self, queued: Queued) {
        self.0.push(queued);
    }

    /// Takes the run that starts next.
    pub(crate) fn pop(&mut self) -> Option<Queued> {
        self.0.pop()
    }

    /// The same, if it may start together with others.
    pub(crate) fn pop_with_others(&mut self) -> Option<Queued> {
        let is_suspect = self.0.peek()?.run.watch().is_some();
        (!is_suspect).then(|| self.0.pop())?
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest priority of these runs.
    pub(crate) fn min_priority(&self) -> Option<i16> {
        self.0.iter().map(|queued| queued.run.priority).min()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Queued> + '_ {
        self.0.drain()
    }
}
