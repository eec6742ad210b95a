//! Nodes without a worker.

use std::time::Duration;

use super::{Credit, Entry, Vacant};
use crate::core::Core;
use crate::sync::{Arc, Ordering};
use crate::task::OfType;
use crate::{HashedWheelTimer, Timeout, TimerTask};

/// The nodes of a timer.
#[derive(Clone)]
pub struct Nodes(Arc<Core>);

/// The timer's own reference to one.
pub struct NodeEntry(Entry);

/// One that nobody else can reach.
pub struct VacantNode(Vacant);

impl Nodes {
    pub fn of(timer: &HashedWheelTimer) -> Self {
        Self(Arc::clone(&timer.core))
    }

    pub fn vacant(&self) -> VacantNode {
        VacantNode(self.0.arena.take_run().next().expect("a run of one"))
    }

    /// A timeout that is about to be pushed to a lane.
    pub fn fill<T: TimerTask>(&self, vacant: VacantNode, task: T, delay: Duration) -> (Timeout, NodeEntry) {
        let deadline = crate::ticks::deadline(self.0.time.now_or_soon(), delay);
        let (handle, entry) = vacant.0.fill(OfType(task), deadline, 0, Credit::at(&self.0));
        (Timeout { handle }, NodeEntry(entry))
    }
}

impl NodeEntry {
    /// See [`Entry::place`].
    pub fn place(&self) -> Option<u64> {
        self.0.place()
    }

    /// The deadline that it has.
    pub fn deadline(&self) -> u64 {
        self.0.deadline()
    }

    /// The type of its task.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The node, if this was the last reference.
    pub fn release(self) -> Option<VacantNode> {
        self.0.release().map(VacantNode)
    }
}

impl Timeout {
    /// As who has taken the message back, to which the entry was left, gives that up.
    pub fn merge(&self, _entry: NodeEntry) {
        self.handle.merge_entry();
    }

    /// Drops the handle, and keeps the node from the thread's desk; the node, if it was the last reference.
    #[must_use]
    pub fn release(self) -> Option<VacantNode> {
        self.handle.into_parts().1.map(VacantNode)
    }

    /// How many references to its node there are.
    #[must_use]
    pub fn references(&self) -> u32 {
        let node = &self.handle;
        node.refs.load_count(Ordering::Relaxed) - node.merged.load_of_another(Ordering::Relaxed)
    }

    /// Whether the worker has given its entry back.
    #[must_use]
    pub fn is_the_only_handle(&self) -> bool {
        self.references() == 1
    }
}
