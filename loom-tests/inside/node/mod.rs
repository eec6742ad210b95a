//! Nodes without a worker, and lanes without nodes.

use std::time::Duration;

use super::lane::{Producer, Waiting};
use super::{Owner, PoolId, arena, refs, timer_ref};
use crate::engine::Inner;
use crate::sync::{Arc, Ordering};
use crate::task::TypedTask;
use crate::{HashedWheelTimer, Timeout, TimerTask};

pub use super::surplus::inside::{Pages, UsedNodes};
pub use super::timer_ref::inside::{LocalCount, SharedValue, TimerRef};

/// The nodes of a timer.
#[derive(Clone)]
pub struct Nodes(Arc<Inner>);

/// The wheel's reference to a node.
pub struct WheelRef(refs::WheelRef<Inner>);

/// A node without other references.
pub struct FreeNode(arena::FreeNode<Inner>);

impl Nodes {
    pub fn of(timer: &HashedWheelTimer) -> Self {
        Self(Arc::clone(&timer.inner))
    }

    pub fn free(&self) -> FreeNode {
        FreeNode(
            self.0
                .pool()
                .arena
                .take_page()
                .next()
                .expect("a page of one node"),
        )
    }

    /// Makes a timeout whose message is about to be pushed.
    pub fn fill<T: TimerTask>(
        &self,
        node: FreeNode,
        task: T,
        delay: Duration,
    ) -> (Timeout, WheelRef) {
        let deadline = crate::ticks::deadline(self.0.clock.deadline_base(), delay);
        // SAFETY: each model has one timer, so the node belongs to it.
        let (handle, wheel_ref) = unsafe {
            node.0.fill(
                TypedTask(task),
                deadline,
                0,
                timer_ref::TimerRef::new(&self.0),
            )
        };
        (Timeout { handle }, WheelRef(wheel_ref))
    }
}

impl WheelRef {
    /// The worker has the message: returns the deadline, unless the timeout has ended.
    pub fn enter_wheel(&self) -> Option<u64> {
        self.0.word.enter_wheel(self.0.is_last_reference())
    }

    /// Returns the deadline as it is now.
    pub fn deadline(&self) -> u64 {
        self.0.deadline()
    }

    /// Returns the name of the task's type.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Releases the reference of a handle that came with the message.
    pub fn release_handle(&self) {
        // SAFETY: the model has left a handle to the message.
        unsafe { self.0.release_handle() };
    }

    /// Releases the reference. Returns the node if it was the last one.
    pub fn release(self) -> Option<FreeNode> {
        self.0.release().map(FreeNode)
    }
}

impl Timeout {
    /// Gives up the wheel's reference as a thread does that has taken back the message.
    pub fn merge(&self, _: WheelRef) {
        // SAFETY: no message about the node is under way, so the wheel's reference is the caller's.
        unsafe { self.handle.merge_wheel_ref() };
    }

    /// Leaves the reference of the handle to a message.
    pub fn leave_to_message(self) {
        drop(self.handle.into_parts().1);
    }

    /// Drops the handle, and keeps the node from the thread's cache. Returns the node if it was the
    /// last reference.
    #[must_use]
    pub fn release(self) -> Option<FreeNode> {
        self.handle.release().node.map(FreeNode)
    }

    /// Returns how many references to the node there are.
    #[must_use]
    pub fn references(&self) -> u32 {
        let node = &self.handle;
        node.references.load_count(Ordering::Relaxed)
            - u32::from(node.mark.load_of_another(Ordering::Relaxed) == 1)
    }

    /// Returns whether the worker has released its reference, and there is no other handle.
    #[must_use]
    pub fn is_only_handle(&self) -> bool {
        self.references() == 1
    }
}

/// Returns how many nodes of a timer were ever made.
pub(crate) fn made_nodes(timer: &Inner) -> u64 {
    timer.pool().arena.made()
}

pub(crate) fn new_pool_id() -> PoolId {
    PoolId::new()
}

/// Pushes a message that is about no node.
pub(crate) fn push(producer: &mut Producer, message: u64) {
    // SAFETY: no wheel receives the messages of this lane.
    unsafe { producer.push(message) };
}

/// Takes the messages that wait in a lane.
pub(crate) fn messages(mut waiting: Waiting<'_>) -> impl Iterator<Item = u64> {
    let pool = waiting.pool;
    std::iter::from_fn(move || waiting.next(pool, |_| ()))
}
