//! The runs that are due and wait for a runner, in the order in which they start.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use jiff::Timestamp;

use crate::shares::Shares;
use crate::store::Run;

/// A run on the wheel, or one that is due.
pub(crate) struct Queued {
    pub(crate) run: Run,
    /// A transaction of an application had locked it, or its job, when it was due.
    pub(crate) is_locked: bool,
}

impl From<Run> for Queued {
    fn from(run: Run) -> Self {
        Self {
            run,
            is_locked: false,
        }
    }
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

/// The runs that are due, by handler.
#[derive(Default)]
pub(crate) struct Ready(BTreeMap<String, BinaryHeap<Queued>>);

impl Ready {
    pub(crate) fn push(&mut self, queued: Queued) {
        let handler = queued.run.handler.clone();
        self.0.entry(handler).or_default().push(queued);
    }

    /// Takes the run that starts next. Of runs with the same priority, that is one of the handler
    /// with the fewest executions, so that a backlog of slow ones does not delay others.
    pub(crate) fn pop(&mut self, executing: &Shares) -> Option<Queued> {
        self.first(executing)?.pop()
    }

    /// The same, if it may start together with others.
    pub(crate) fn pop_with_others(&mut self, executing: &Shares) -> Option<Queued> {
        let first = self.first(executing)?;
        let is_suspect = first.peek()?.run.watch().is_some();
        (!is_suspect).then(|| first.pop())?
    }

    fn first(&mut self, executing: &Shares) -> Option<&mut BinaryHeap<Queued>> {
        let rank = |handler: &String, runs: &BinaryHeap<Queued>| {
            let (is_suspect, priority, start, id) = runs.peek()?.rank();
            let executing = Reverse(executing.count(handler));
            Some((is_suspect, priority, executing, start, id))
        };
        let lanes = self.0.iter_mut();
        lanes
            .max_by_key(|(handler, runs)| rank(handler, runs))
            .map(|(_, runs)| runs)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(BinaryHeap::is_empty)
    }

    /// The lowest priority of these runs.
    pub(crate) fn min_priority(&self) -> Option<i16> {
        let runs = self.0.values().flatten();
        runs.map(|queued| queued.run.priority).min()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Queued> + '_ {
        self.0.values_mut().flat_map(BinaryHeap::drain)
    }
}
