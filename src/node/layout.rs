//! The fields of a node: everything that the timer knows about one timeout, in one cache line.

#![allow(unsafe_code)]

use std::panic::RefUnwindSafe;

use super::task::{TaskCell, TaskContext};
use super::word::StateWord;
use crate::sync::unmodelled;
use crate::sync::{AtomicU32, Ordering};

/// The position of a node that is not in the wheel.
pub(super) const NOT_IN_WHEEL: u32 = u32::MAX;

/// One timeout: shared by its handles, the lanes and the wheel.
#[repr(align(64))]
pub(crate) struct Node<S: TaskContext> {
    pub(super) word: StateWord,
    /// In the wheel, the tick; before the worker has the node, the ticket of its message. The tick
    /// is read under the worker's lock. The ticket decides nothing alone: a thread that reads
    /// another value finds another message, or none, in its lane.
    pub(super) tick: unmodelled::AtomicU64,
    /// The position in the slot. Read and written only under the worker's lock.
    pub(super) position: unmodelled::AtomicU32,
    /// See [`refs`](super::refs).
    pub(super) references: AtomicU32,
    pub(super) mark: AtomicU32,
    pub(super) number: u32,
    pub(super) task: TaskCell<S>,
}

// A task is moved out before it runs, and a periodic one ends with its panic: no thread finds a
// task that a panic has left half changed.
impl<S: TaskContext> RefUnwindSafe for Node<S> {}

impl<S: TaskContext> Node<S> {
    /// Checked where the size matters: loom's atomics are larger, and with addresses of 32 bits
    /// nothing depends on the size.
    const IS_ONE_CACHE_LINE: () =
        assert!(cfg!(hashed_wheel_loom) || size_of::<Self>() == 64 || size_of::<usize>() < 8);

    pub(super) fn unused(number: u32) -> Self {
        let () = Self::IS_ONE_CACHE_LINE;
        Self {
            word: StateWord::unused(),
            tick: unmodelled::AtomicU64::new(0),
            position: unmodelled::AtomicU32::new(NOT_IN_WHEEL),
            references: AtomicU32::new(1),
            mark: AtomicU32::new(0),
            number,
            task: TaskCell::empty(),
        }
    }

    #[inline]
    pub(super) fn ticket(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// The node is not in the wheel, which would look for it at this tick.
    #[inline]
    pub(super) unsafe fn set_ticket(&self, ticket: u64) {
        self.tick.store(ticket, Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.word.deadline()
    }

    /// Returns the name of the task's type, for reports.
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: a `&Node` outside `fill` comes from a counted reference. A task is put only into
        // a node without one.
        unsafe { (self.task.operations().name)() }
    }

    /// Whether the task is a periodic one.
    #[inline]
    pub(crate) fn is_periodic(&self) -> bool {
        // SAFETY: a `&Node` outside `fill` comes from a counted reference. A task is put only into
        // a node without one.
        unsafe { self.task.operations().repeat.is_some() }
    }
}
