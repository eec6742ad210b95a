//! What the models in `loom-tests/` see of parts that the timer keeps to itself: lanes without a timer, and nodes without a
//! worker.

#![allow(unreachable_pub, missing_docs, reason = "loom-tests names it")]

use std::time::Duration;

use crate::core::Core;
use crate::lanes::{Door, Inbox, Sender};
use crate::node::{Credit, Entry, Vacant};
use crate::sync::{Arc, Mutex};
use crate::task::OfType;
use crate::{HashedWheelTimer, Timeout, TimerTask};

/// Some lanes and who takes from them.
pub struct Lanes {
    door: Door,
    inbox: Mutex<Inbox>,
}

/// A thread's end of one. Messages are numbers but zero.
pub struct Lane(Sender);

impl Lanes {
    #[allow(clippy::new_without_default, reason = "only where loom runs")]
    pub fn new() -> Self {
        Self { door: Door::new(), inbox: Mutex::default() }
    }

    pub fn open(&self) -> Lane {
        Lane(self.door.open())
    }

    /// What waits, zeros and all; and whether more does.
    pub fn take(&self, most: usize) -> (Vec<u64>, bool) {
        let mut messages = Vec::new();
        let (count, more) = self.inbox.lock().take(&self.door, most, |taken| {
            messages.extend(taken.iter().map(|taken| taken.message));
        });
        assert_eq!(count, messages.len());
        (messages, more)
    }

    /// How many lanes more may come from.
    pub fn count(&self) -> usize {
        self.inbox.lock().count()
    }
}

impl Lane {
    pub fn push(&mut self, message: u64) -> u64 {
        let ticket = self.0.ticket();
        self.0.push(message);
        ticket
    }

    pub fn take_back(&self, ticket: u64, message: u64) -> bool {
        self.0.take_back(ticket, message)
    }

    pub fn retire(&self) {
        self.0.retire();
    }
}

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

    /// Drops the handle; the node, if it was the last reference.
    #[must_use]
    pub fn release(self) -> Option<VacantNode> {
        self.handle.release().map(VacantNode)
    }
}
