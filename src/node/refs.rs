//! References to nodes, and the count that decides who recycles a node.
//!
//! * [`Handle`]: a user's reference. It keeps the timer too, by a [`TimerRef`], and with it the
//!   memory of the node. It may be moved to any thread.
//! * [`WheelRef`]: the timer's own reference, from the time the node is filled until the worker has
//!   done with it. It belongs to the wheel or to the worker; or to the message about the node that
//!   is under way. A `WheelRef` is given to that message by dropping it, which does not count down.
//! * [`FreeNode`]: there is no other reference.
//!
//! | `references` | to | changed by | order |
//! |---|---|---|---|
//! | free | 2 | [`FreeNode::fill`]: a handle and the wheel's reference | plain store: no other thread has the node; the lane publishes it |
//! | n | n + 1 | [`Handle::clone`], [`WheelRef::into_handle`] | `Relaxed`: the caller has a reference |
//! | n > 1 | n − 1 | [`release`], by compare-exchange | `AcqRel`: `Release`, and `Acquire` in a chain of releases |
//! | 1 | free | [`release`] | `Acquire`: all that other threads did with the node is over |
//! | 2, `MERGED` | free | [`release`] | the same: the wheel's reference was given up without counting down ([`Handle::merge_wheel_ref`]) |
//! | 2 | free | [`LocalNodes::discard`](super::LocalNodes::discard): the only handle, whose thread has taken the message back and so has the wheel's reference too | `Acquire`, in [`is_only_handle`](Handle::is_only_handle) |
//! | 2 | 1 | [`WheelRef::release_handle`]: the worker has the wheel's reference, and in a message that of the handle | plain store: no other thread has a reference |
//! | n > 2 | n − 1 | the same | `Relaxed`: the release of the wheel's reference follows |
//!
//! | `mark` | to | changed by | order |
//! |---|---|---|---|
//! | any | 0 | [`FreeNode::fill`] | plain store: no other thread has the node |
//! | 0 | `MERGED` | [`Handle::merge_wheel_ref`]: the timeout never expires | plain store: the count publishes it |
//! | 0, `RUN_AWAITED` | `RUN_AWAITED` | [`Handle::await_run`], after its thread has listed itself as a waiter | `AcqRel`: the thread that ends the run sees the waiter |
//! | 0, `RUN_AWAITED` | `RUN_OVER` | [`Handle::end_run`], after a task executor has run or dropped the task of a timeout that has ended | `AcqRel`: a waiter sees what the task did |
//!
//! | released | before the other | after the other |
//! |---|---|---|
//! | a handle, the `WheelRef` | not the last reference | the last one: acquires what the other has released, and has the node |
//! | a handle, and another is cloned | the clone's thread has a handle, so this one is not the last | the same |
//! | a handle, after a cancel has merged the `WheelRef` | – | the last handle finds 2 and `MERGED`, and reads the mark while its own reference is still counted: later another timeout may be in the node |
//!
//! A count of 2 shows the owner of a handle that no other handle is left, if the timeout has not
//! ended then: the other reference is the `WheelRef`. So the thread reads the word after the count.
//! From then on only the worker clones a handle, and only of a node whose message it has.
//!
//! If a message about the node is under way, the `WheelRef` is left to it. After a cancel the
//! worker that meets the node in the wheel leaves it alone. After a reset the timeout may expire
//! there, with a handle of its own.
//!
//! A thread that finds 1 has the only reference, if the reference is its own: a `WheelRef`, or a
//! handle that is being dropped. For a borrowed handle the count says nothing, because other
//! threads may have borrowed it too, and may clone it or end its timeout meanwhile.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use super::arena::{Arena, FreeNode, Pool};
use super::task::{Node, Task, TaskContext};
use super::timer_ref::{Counted, SharedCount, TimerRef};
use super::word::{End, SeenWord};
use crate::platform::prefetch;
use crate::sync::{Arc, Ordering};

/// More references to a node than this are leaked ones: the process ends before the count
/// overflows, as with an `Arc`.
const MAX_REFERENCES: u32 = u32::MAX / 2;

/// A `mark`: the wheel's reference was given up without counting it down.
const MERGED: u32 = 1;

/// A `mark`: threads wait for the end of the run.
const RUN_AWAITED: u32 = 2;

/// A `mark`: the task of a timeout that has ended does not run any more.
const RUN_OVER: u32 = 3;

/// The parts of a timer that its nodes have to know.
///
/// This is the one implementation outside `node/` that the nodes trust: `handle(timeout(h))` is
/// `h`, and `pool` is the pool that [`new_timer`](super::new_timer) gave to the timer.
pub(crate) trait Owner: TaskContext + Send + Sync {
    /// The memory of the nodes, which is a field.
    fn pool(&self) -> &Pool<Self>;

    /// Makes the handle that users and tasks see.
    fn timeout(handle: Handle<Self>) -> Self::Timeout;

    /// Returns what [`timeout`](Self::timeout) was given.
    fn handle(timeout: &Self::Timeout) -> &Handle<Self>;

    /// Takes what a dropped handle has released.
    fn recycle(released: Released<Self>);
}

// SAFETY: `references` is a field of a field of the timer, which no other value has:
// [`Owner::pool`] is trusted.
unsafe impl<S: Owner> Counted for S {
    #[inline]
    fn count(&self) -> &SharedCount {
        &self.pool().references
    }
}

/// The possessions of a dropped handle: its reference to the timer, and the node if this was the
/// last reference to it.
pub(crate) struct Released<S: Owner> {
    pub(super) node: Option<FreeNode<S>>,
    // Dropped last: it keeps the memory of the node.
    pub(super) timer: TimerRef<S>,
}

impl<S: Owner> Released<S> {
    /// A reference to a timer, without a node.
    pub(crate) fn of(timer: TimerRef<S>) -> Self {
        Self { node: None, timer }
    }

    #[inline]
    pub(crate) fn timer(&self) -> &S {
        self.timer.get()
    }

    /// Recycles the node for a thread that has no cache of this timer. Returns the timer, which
    /// there is a node to reclaim for, if there was one.
    pub(crate) fn free_remotely(self) -> Option<TimerRef<S>> {
        let Self { node, timer } = self;
        // SAFETY: the node was released by a handle of this timer.
        unsafe { timer.get().pool().arena.free_one_remotely(node?) };
        Some(timer)
    }
}

/// Gives up a reference. Returns the node if it was the last one.
///
/// # Safety
///
/// The caller owns a counted reference to `node`, which it does not use afterwards. The pool of the
/// node exists until this function returns.
#[inline]
unsafe fn release<S: TaskContext>(node: NonNull<Node<S>>) -> Option<FreeNode<S>> {
    // SAFETY: the caller keeps the pool, and with it the memory, until this function returns. The
    // fields are atomics.
    let Node {
        references, mark, ..
    } = unsafe { node.as_ref() };
    let mut count = references.load(Ordering::Acquire);
    loop {
        // `mark` is read while the reference is still counted. Afterwards the node may hold another
        // timeout, which may be merged. With a count of 2 no other thread has a handle whose
        // message could still be taken back, so the mark does not become `MERGED` any more.
        if count == 1 || count == 2 && mark.load(Ordering::Relaxed) == MERGED {
            // This is the only reference, so no other thread needs the count. SAFETY: the count
            // says so. The task was moved out when the timeout ended.
            return Some(unsafe { FreeNode::new(node) });
        }
        // Release: pairs with the `Acquire` of the thread that finds the last reference.
        match references.compare_exchange_weak(
            count,
            count - 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return None,
            Err(now) => count = now,
        }
    }
}

impl<S: Owner> FreeNode<S> {
    /// Makes the node a timeout whose message is about to be pushed with this ticket.
    ///
    /// # Safety
    ///
    /// The node belongs to the pool of `timer`. The wheel's reference is not used after the pool is
    /// dropped.
    #[inline]
    pub(super) unsafe fn fill<T: Task<S>>(
        self,
        task: T,
        deadline: u64,
        ticket: u64,
        timer: TimerRef<S>,
    ) -> (Handle<S>, WheelRef<S>) {
        let pointer = self.into_ptr();
        // SAFETY: `timer` keeps the pool, and with it the memory of the node.
        let node = unsafe { pointer.as_ref() };
        // SAFETY: a `FreeNode` is the only reference to its node.
        unsafe { node.word.begin(deadline) };
        node.references.store(2, Ordering::Relaxed);
        node.mark.store(0, Ordering::Relaxed);
        // SAFETY: a `FreeNode` is the only reference to its node, so it is not in the wheel.
        unsafe { node.set_ticket(ticket) };
        // SAFETY: a `FreeNode` is the only reference to its node.
        unsafe { node.task.put(task) };
        (
            Handle {
                node: pointer,
                timer: ManuallyDrop::new(timer),
            },
            WheelRef(pointer),
        )
    }
}

/// The timer's own reference to a node.
#[must_use = "a wheel's reference that is dropped belongs to the message about its node"]
pub(super) struct WheelRef<S: TaskContext>(NonNull<Node<S>>);

// SAFETY: a node consists of atomics and of a task, which is `Send`.
unsafe impl<S: TaskContext> Send for WheelRef<S> {}

impl<S: TaskContext> Deref for WheelRef<S> {
    type Target = Node<S>;

    #[inline]
    fn deref(&self) -> &Node<S> {
        // SAFETY: this reference is counted, so the node is not recycled. `fill` and `from_number`
        // demand that it is not used after the pool is dropped, so the memory is there.
        unsafe { self.0.as_ref() }
    }
}

impl<S: TaskContext> WheelRef<S> {
    /// Takes over the wheel's reference to a node that was kept by its number.
    ///
    /// # Safety
    ///
    /// The caller owns the wheel's reference to the node of `arena` with this number, and gives it
    /// to the result. The result is not used after the arena is dropped.
    #[inline]
    pub(super) unsafe fn from_number(arena: &Arena<S>, number: u32) -> Self {
        Self(arena.at(number))
    }

    /// Whether no handle is left. Then only the owner of this reference changes the node.
    #[inline]
    pub(super) fn is_last_reference(&self) -> bool {
        // Acquire: pairs with the release of the last handle, so what was done through it is seen.
        self.references.load(Ordering::Acquire) == 1
    }

    /// Gives the reference up. Returns the node if it was the last one.
    #[inline]
    pub(super) fn release(self) -> Option<FreeNode<S>> {
        // SAFETY: a `WheelRef` is a counted reference, and is gone afterwards. `fill` and
        // `from_number` demand that the pool exists.
        unsafe { release(self.0) }
    }
}

impl<S: Owner> WheelRef<S> {
    /// Gives up the reference of a handle.
    ///
    /// # Safety
    ///
    /// The caller owns the reference of a handle, beside this one.
    #[inline]
    pub(super) unsafe fn release_handle(&self) {
        // Acquire: as in `release`.
        if self.references.load(Ordering::Acquire) == 2 {
            // The caller has both references, so no other thread uses the count.
            self.references.store(1, Ordering::Relaxed);
        } else {
            // Relaxed: the release of the wheel's reference publishes it.
            self.references.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes this reference a handle if `is_own`. Otherwise it belongs to a message, and the handle
    /// is one more.
    ///
    /// # Safety
    ///
    /// The node belongs to the pool of `timer`.
    #[inline]
    pub(super) unsafe fn into_handle(self, is_own: bool, timer: TimerRef<S>) -> Handle<S> {
        if !is_own {
            self.references.fetch_add(1, Ordering::Relaxed);
        }
        Handle {
            node: self.0,
            timer: ManuallyDrop::new(timer),
        }
    }

    /// Makes one more handle.
    ///
    /// # Safety
    ///
    /// The node belongs to the pool of `timer`.
    pub(super) unsafe fn another_handle(&self, timer: TimerRef<S>) -> Handle<S> {
        // SAFETY: the caller vouches for it.
        unsafe { Self(self.0).into_handle(false, timer) }
    }
}

/// A reference to the timer alone. As that of a [`Handle`], it comes from the reserve of a thread
/// and goes back to one.
#[cfg(feature = "async")]
pub(crate) struct TimerHandle<S: Owner>(ManuallyDrop<TimerRef<S>>);

#[cfg(feature = "async")]
impl<S: Owner> TimerHandle<S> {
    #[inline]
    pub(crate) fn of(timer: TimerRef<S>) -> Self {
        Self(ManuallyDrop::new(timer))
    }
}

#[cfg(feature = "async")]
impl<S: Owner> Deref for TimerHandle<S> {
    type Target = TimerRef<S>;

    #[inline]
    fn deref(&self) -> &TimerRef<S> {
        &self.0
    }
}

#[cfg(feature = "async")]
impl<S: Owner> Drop for TimerHandle<S> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle is gone after its drop.
        S::recycle(Released::of(unsafe { ManuallyDrop::take(&mut self.0) }));
    }
}

/// A user's reference to a node and to the timer.
pub(crate) struct Handle<S: Owner> {
    node: NonNull<Node<S>>,
    timer: ManuallyDrop<TimerRef<S>>,
}

// SAFETY: a node consists of atomics and of a task, which is `Send`; `S` is `Send` and `Sync`.
unsafe impl<S: Owner> Send for Handle<S> {}
// SAFETY: a shared handle changes the node by atomic operations only. Beside them it reads which
// task the node has, which no thread writes while a handle exists. `S` is `Send` and `Sync`.
unsafe impl<S: Owner> Sync for Handle<S> {}

impl<S: Owner> Handle<S> {
    #[inline]
    pub(crate) fn timer(&self) -> &S {
        self.timer.get()
    }

    pub(crate) fn to_arc(&self) -> Arc<S> {
        self.timer().pool().timer()
    }

    /// The address of the node, which identifies the timeout.
    pub(crate) fn as_ptr(&self) -> *const Node<S> {
        self.node.as_ptr()
    }

    /// Fetches the cache line of the node, which is needed soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self.node.as_ptr());
    }

    /// How the timeout ended, if it has ended.
    pub(crate) fn end(&self) -> Option<End> {
        self.word.end()
    }

    /// Reads the state word, unless the timeout has ended.
    #[inline]
    pub(crate) fn not_ended(&self) -> Option<SeenWord> {
        self.word.not_ended()
    }

    /// Whether the node has no other reference than this handle and one more. While the timeout has
    /// not ended, that one is the wheel's, and no other thread can end it or clone a handle but the
    /// worker.
    #[inline]
    pub(super) fn is_only_handle(&mut self) -> bool {
        // Acquire: pairs with the release of the other handles. What was done through them is over,
        // and seen.
        self.references.load(Ordering::Acquire) == 2
    }

    /// Returns the node, whose reference the caller passes on or gives up, and the reference to the
    /// timer.
    #[inline]
    pub(super) fn into_parts(self) -> (NonNull<Node<S>>, TimerRef<S>) {
        let mut handle = ManuallyDrop::new(self);
        // SAFETY: the handle is in a `ManuallyDrop`, so its `timer` is taken once.
        (handle.node, unsafe {
            ManuallyDrop::take(&mut handle.timer)
        })
    }

    /// Releases the references of the handle. The caller recycles them.
    #[inline]
    pub(super) fn release(self) -> Released<S> {
        // SAFETY: the handle is in a `ManuallyDrop`, so it is not used or dropped afterwards.
        unsafe { ManuallyDrop::new(self).release_refs() }
    }

    /// # Safety
    ///
    /// The handle is not used or dropped afterwards.
    #[inline]
    unsafe fn release_refs(&mut self) -> Released<S> {
        // SAFETY: the handle is a counted reference, which is given up here once. `timer`, which is
        // taken below, keeps the pool.
        let node = unsafe { release(self.node) };
        // SAFETY: the handle is not used afterwards, so its `timer` is taken once.
        let timer = unsafe { ManuallyDrop::take(&mut self.timer) };
        Released { node, timer }
    }

    /// Gives up the wheel's reference without counting it down, which saves a locked instruction.
    /// The last handle to be dropped sees that it is gone.
    ///
    /// # Safety
    ///
    /// The caller has taken back the message that owned the wheel's reference to this node.
    #[inline]
    pub(super) unsafe fn merge_wheel_ref(&self) {
        // Relaxed: the count of this handle's own drop publishes it.
        self.mark.store(MERGED, Ordering::Relaxed);
    }

    /// The task of a timeout that has ended was run or dropped by a task executor. Returns whether
    /// a thread waits for that.
    pub(crate) fn end_run(&self) -> bool {
        // Release: pairs with the `Acquire` of a waiter. Acquire: pairs with its `Release`, so this
        // thread finds it listed.
        self.mark.swap(RUN_OVER, Ordering::AcqRel) == RUN_AWAITED
    }

    /// Says that this thread, which is listed as a waiter, waits for [`end_run`](Self::end_run).
    /// Returns false if there is nothing to wait for any more.
    pub(crate) fn await_run(&self) -> bool {
        // A change even if another thread waits already, so that the end of the run finds this
        // one too.
        let wait = |mark| (mark != RUN_OVER).then_some(RUN_AWAITED);
        self.mark
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, wait)
            .is_ok()
    }
}

impl<S: Owner> Deref for Handle<S> {
    type Target = Node<S>;

    #[inline]
    fn deref(&self) -> &Node<S> {
        // SAFETY: this reference is counted, and `timer` keeps the pool, which has the memory.
        unsafe { self.node.as_ref() }
    }
}

impl<S: Owner> Clone for Handle<S> {
    fn clone(&self) -> Self {
        if self.references.fetch_add(1, Ordering::Relaxed) > MAX_REFERENCES {
            std::process::abort();
        }
        Self {
            node: self.node,
            timer: self.timer.clone(),
        }
    }
}

impl<S: Owner> Drop for Handle<S> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle is gone after its drop.
        S::recycle(unsafe { self.release_refs() });
    }
}
