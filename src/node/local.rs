//! A thread's share of a timer's nodes: free ones, references to the timer, and the lane to the
//! worker.
//!
//! This is the callers' side of the unsafe boundary. A [`LocalNodes`] always belongs to one pool.
//! It is [borrowed](LocalNodes::borrow) only together with the timer of that pool, so the methods
//! of [`NodesGuard`] cannot mix nodes of different timers. Only they push messages, and
//! [`discard`](LocalNodes::discard), whose handle has the timer.
//!
//! A cancel owns the task at once. Which thread gives up the wheel's reference depends on the word
//! before:
//!
//! | word before | the canceller | the wheel's reference |
//! |---|---|---|
//! | `IN_FLIGHT`, the message still in this thread's lane | takes it back: a compare-exchange on the slot, against the worker's swap | the canceller merges it into the handles' count (`MERGED`), if it got the message |
//! | `IN_FLIGHT`, the message in another lane, or taken by the worker, or about a reset | pushes nothing | the worker releases it when the message arrives |
//! | `IN_WHEEL` | pushes a message | the worker removes the node from its slot, and releases it |
//! | `IN_WHEEL`, `DEADLINE_RUNNING` | pushes a message, and does not get the task | the same; the thread that runs the task drops it |
//!
//! [`discard`](LocalNodes::discard) cancels a timeout and gives up its handle:
//!
//! | word before | the canceller | the node |
//! |---|---|---|
//! | `IN_FLIGHT`, the only handle, the message still in this thread's lane | takes it back | is free: no other thread can find it |
//! | `IN_WHEEL` | changes the word, pushes a message | the worker, which gets with the message the reference of the handle, removes it from its slot and releases both references |
//! | any other | leaves it to a cancel and the drop of the handle | as above |
//!
//! The slot decides only about the reference. Several threads may have borrowed the handle, and may
//! cancel, reset or clone meanwhile: the word decides about the end.
//!
//! The next thread takes over what an ended thread leaves ([`IdleNodes`]). So threads that come
//! and go use no more memory than those that live at the same time. The worker retires what no
//! thread has taken until its next turn.

#![allow(unsafe_code)]

use std::iter;
use std::ptr;

use super::arena::{FreeNode, PAGE, Page};
use super::lane::Producer;
#[cfg(feature = "async")]
use super::refs::TimerHandle;
use super::refs::{Handle, Owner, Released};
use super::task::{DetachedTask, OnCancel, Task};
use super::timer_ref::{LocalCount, TimerRef};
use super::transitions::{ClaimedTask, Kind, Message, TaskClaim};
use super::word::SeenWord;
use crate::sync::{Arc, SegQueue};

/// How many blocks of messages are a batch: the worker has to take them in before they use more
/// memory.
const BLOCKS_PER_BATCH: usize = 8;

/// What a [cancel](NodesGuard::cancel) or [discard](LocalNodes::discard) leaves.
pub(crate) struct Cancelled<T> {
    /// `None` if a run of it is not over: then the thread that runs it drops it. Or if there is
    /// nothing to drop.
    pub(crate) task: Option<T>,
    /// The worker has memory to reclaim.
    pub(crate) leaves_memory: bool,
}

/// What a discard leaves, and the handle's reference to the timer.
type Discarded<S> = (Cancelled<DetachedTask<S>>, TimerRef<S>);

pub(crate) struct LocalNodes<S: Owner> {
    count: LocalCount<S>,
    /// The address of the timer; zero while a block of messages is full: see
    /// [`has_room_for`](Self::has_room_for).
    timer_with_room: usize,
    producer: Producer,
    /// How many blocks of messages were begun since the last full batch.
    blocks: usize,
    /// Nodes that this thread has freed. They are in its processor's cache, so they are used first.
    free: Vec<FreeNode<S>>,
    page: Page<S>,
}

impl<S: Owner> LocalNodes<S> {
    /// # Panics
    ///
    /// If the lane is that of another pool.
    pub(crate) fn new(timer: &S, producer: Producer) -> Self {
        assert_eq!(
            producer.pool,
            timer.pool().id(),
            "the lane leads to the worker of this timer"
        );
        let count = LocalCount::new(timer.pool().timer.clone());
        Self {
            timer_with_room: count.address(),
            count,
            producer,
            blocks: 0,
            free: Vec::with_capacity(2 * PAGE + 1),
            page: Page::EMPTY,
        }
    }

    /// The timer, unless it is gone.
    pub(crate) fn timer(&self) -> Option<Arc<S>> {
        self.count.value()
    }

    /// Whether these are nodes of this timer.
    #[inline]
    pub(crate) fn is_of(&self, timer: *const S) -> bool {
        self.count.is_of(timer)
    }

    /// Whether these are nodes of this timer, and may be borrowed. They may not after each block of
    /// messages, until [`make_room`](Self::make_room): the thread's next operation does not find
    /// them, and does then what is not worth a check in each operation.
    #[inline]
    pub(crate) fn has_room_for(&self, timer: *const S) -> bool {
        self.timer_with_room == timer.addr()
    }

    pub(crate) fn make_room(&mut self) {
        self.timer_with_room = self.count.address();
    }

    /// Whether a batch of messages, [`BLOCKS_PER_BATCH`] blocks, was pushed since this was last
    /// true.
    pub(crate) fn take_full_batch(&mut self) -> bool {
        let is_full = self.blocks >= BLOCKS_PER_BATCH;
        if is_full {
            self.blocks = 0;
        }
        is_full
    }

    /// Borrows the nodes for a caller that has their timer.
    ///
    /// # Panics
    ///
    /// If it has another timer, or a block of messages is full.
    #[inline]
    pub(crate) fn borrow<'a>(&'a mut self, timer: &'a S) -> NodesGuard<'a, S> {
        assert!(
            self.has_room_for(timer),
            "the nodes are those of this timer"
        );
        NodesGuard { nodes: self, timer }
    }

    /// Pushes a message.
    ///
    /// # Safety
    ///
    /// The message is about a node of this pool, and is the one message about it that may be under
    /// way now.
    #[inline]
    unsafe fn push(&mut self, message: u64) {
        if self.producer.is_block_full() {
            self.timer_with_room = 0;
            self.blocks += 1;
        }
        // SAFETY: the lane is that of this pool, and the caller vouches for the message.
        unsafe { self.producer.push(message) };
    }

    /// Takes back the message by which the new timeout was sent to the worker, if that was in this
    /// lane and not long ago. The message names the node, and only one message about a node is
    /// under way. So another message in this lane is not mistaken for it.
    #[inline]
    fn take_back(&self, handle: &Handle<S>) -> bool {
        let [new, replacement] =
            [Kind::NEW, Kind::REPLACEMENT].map(|kind| kind.encode(handle.number));
        self.producer.take_back(handle.ticket(), new, replacement)
    }

    /// Takes what a handle has released, unless the handle was one of another timer. Returns
    /// whether nodes were freed for the worker to reclaim.
    #[inline]
    pub(crate) fn recycle(&mut self, released: Released<S>) -> Result<bool, Released<S>> {
        if !self.is_of(released.timer()) {
            return Err(released);
        }
        let Released { node, timer } = released;
        let has_freed = node.is_some_and(|node| self.keep(node, timer.get()));
        self.count.put(timer);
        Ok(has_freed)
    }

    /// Keeps a free node of the pool of `timer`. Returns whether others were freed for the worker
    /// to reclaim.
    #[inline]
    fn keep(&mut self, node: FreeNode<S>, timer: &S) -> bool {
        let is_full = self.free.len() > 2 * PAGE;
        if is_full {
            self.free_some(timer);
        }
        self.free.push(node);
        is_full
    }

    /// Cancels a timeout and gives up its handle, whose reference to the timer it returns. If the
    /// duty towards the task is more than `most`, it does nothing. A hook is not called. The error
    /// is the handle: the timeout has ended, or the caller has to [cancel](NodesGuard::cancel) it.
    ///
    /// # Panics
    ///
    /// If the handle is of another timer.
    // The loop of `cancel_each` takes a quarter less of its caller's time than with a call.
    #[inline(always)]
    pub(crate) fn discard(
        &mut self,
        mut handle: Handle<S>,
        most: OnCancel,
    ) -> Result<Discarded<S>, Handle<S>> {
        assert!(
            self.is_of(handle.timer()),
            "the handle is one of this timer"
        );
        // In this order: if no other handle is left, what was done through others is in the word.
        let is_only_handle = handle.is_only_handle();
        let Some(seen) = handle.not_ended() else {
            return Err(handle);
        };
        // SAFETY: the handle keeps the node, so a task was put in, and none is now.
        let on_cancel = unsafe { handle.task.operations().on_cancel };
        if on_cancel > most || seen.is_running() {
            return Err(handle);
        }
        let is_ended = match seen.is_in_flight() {
            true => is_only_handle && self.take_back(&handle),
            false => handle.word.cancel_unchanged(seen),
        };
        if !is_ended {
            return Err(handle);
        }
        // SAFETY: this thread owns the task. Its message was taken back, so only this handle is
        // left; or `cancel_unchanged` has ended the timeout, whose task does not run.
        let task = (on_cancel != OnCancel::Nothing).then(|| unsafe { handle.task.detach() });
        let number = handle.number;
        let (node, timer) = handle.into_parts();
        let leaves_memory = if seen.is_in_flight() {
            // SAFETY: the message that was taken back owned the only other reference.
            self.keep(unsafe { FreeNode::new(node) }, timer.get())
        } else {
            // SAFETY: the node is of this pool. `cancel_unchanged` has found it in the wheel and
            // ended the timeout, which requires this message. It owns the handle's reference.
            unsafe { self.push(Kind::DISCARDED.encode(number)) };
            true
        };
        let cancelled = Cancelled {
            task,
            leaves_memory,
        };
        Ok((cancelled, timer))
    }

    /// Takes in the reference to the timer that a discarded handle had.
    #[inline]
    pub(crate) fn put(&mut self, timer: TimerRef<S>) {
        self.count.put(timer);
    }

    /// Gives up the nodes that were freed first, which are no longer in the processor's cache.
    #[cold]
    fn free_some(&mut self, timer: &S) {
        if self.is_of(timer) {
            // SAFETY: the nodes of this `LocalNodes` are of this pool.
            unsafe { timer.pool().arena.free_remotely(self.free.drain(..PAGE)) };
        }
    }

    /// Gives all free nodes back.
    fn empty(&mut self, timer: &S) {
        if self.is_of(timer) {
            let free = self
                .free
                .drain(..)
                .chain(iter::from_fn(|| self.page.next()));
            // SAFETY: the nodes of this `LocalNodes` are of this timer's pool.
            unsafe { timer.pool().arena.free_remotely(free) };
        }
    }
}

/// The nodes and lanes that threads have left.
pub(crate) struct IdleNodes<S: Owner>(SegQueue<Box<LocalNodes<S>>>);

impl<S: Owner> IdleNodes<S> {
    pub(crate) fn new() -> Self {
        Self(SegQueue::new())
    }

    pub(crate) fn take(&self) -> Option<LocalNodes<S>> {
        self.0.pop().map(|nodes| *nodes)
    }

    /// Takes what a thread leaves. Its references, which would keep the timer, are released.
    pub(crate) fn put(&self, mut nodes: LocalNodes<S>) {
        nodes.count.empty();
        self.0.push(Box::new(nodes));
    }

    /// For the worker of this timer: recycles all nodes and retires all lanes. Returns whether
    /// there were any.
    #[inline]
    pub(crate) fn retire(&self, timer: &S) -> bool {
        // Most turns find none, and a `pop` that finds none takes longer.
        let has_any = !self.0.is_empty();
        if has_any {
            self.retire_all(timer);
        }
        has_any
    }

    #[cold]
    fn retire_all(&self, timer: &S) {
        while let Some(mut nodes) = self.0.pop() {
            nodes.empty(timer);
        }
    }
}

/// The nodes of a thread, borrowed by a caller that has their timer.
pub(crate) struct NodesGuard<'a, S: Owner> {
    nodes: &'a mut LocalNodes<S>,
    timer: &'a S,
}

impl<S: Owner> NodesGuard<'_, S> {
    /// Returns a reference to the timer, from this thread's reserve.
    #[cfg(feature = "async")]
    #[inline]
    pub(crate) fn timer_handle(&mut self) -> TimerHandle<S> {
        TimerHandle::of(self.nodes.count.take())
    }

    /// Makes a timeout and pushes its message.
    #[inline(always)]
    pub(crate) fn schedule<T: Task<S>>(&mut self, task: T, deadline: u64) -> Handle<S> {
        self.schedule_as(Kind::NEW, task, deadline)
    }

    /// Makes a timeout in the place of another one, and pushes its message.
    #[cfg(feature = "async")]
    pub(crate) fn schedule_replacement<T: Task<S>>(&mut self, task: T, deadline: u64) -> Handle<S> {
        self.schedule_as(Kind::REPLACEMENT, task, deadline)
    }

    #[inline(always)]
    fn schedule_as<T: Task<S>>(&mut self, kind: Kind, task: T, deadline: u64) -> Handle<S> {
        let timer = self.nodes.count.take();
        let (node, ticket) = (self.free_node(), self.nodes.producer.ticket());
        // SAFETY: both the node and `timer` come from this `LocalNodes`, which is that of one pool.
        let (handle, wheel_ref) = unsafe { node.fill(task, deadline, ticket, timer) };
        // SAFETY: the node is of the pool of the lane, and this is the first message about its
        // timeout. From here on the message owns the wheel's reference.
        unsafe { self.nodes.push(kind.encode(wheel_ref.number)) };
        handle
    }

    #[inline]
    fn free_node(&mut self) -> FreeNode<S> {
        match self.nodes.free.pop().or_else(|| self.nodes.page.next()) {
            Some(node) => node,
            None => self.fetch_page(),
        }
    }

    #[cold]
    fn fetch_page(&mut self) -> FreeNode<S> {
        self.nodes.page = self.timer.pool().arena.take_page();
        self.nodes
            .page
            .next()
            .expect("a page is given out when it has free nodes")
    }

    /// Cancels a timeout that leaves no task, and gives up its handle. Returns whether the worker
    /// has memory to reclaim. The error is the handle: see [`LocalNodes::discard`].
    #[inline]
    pub(crate) fn discard(&mut self, handle: Handle<S>) -> Result<bool, Handle<S>> {
        let (cancelled, timer) = self.nodes.discard(handle, OnCancel::Nothing)?;
        self.nodes.put(timer);
        Ok(cancelled.leaves_memory)
    }

    /// Cancels the timeout whose word was `seen`, unless it has ended, and pushes a message if the
    /// worker has to know.
    ///
    /// # Panics
    ///
    /// If the handle is of another timer.
    #[inline]
    pub(crate) fn cancel<'h>(
        &mut self,
        handle: &'h Handle<S>,
        seen: SeenWord,
    ) -> Option<Cancelled<TaskClaim<'h, S>>> {
        self.assert_is_of(handle);
        let cancelled = |before: SeenWord, leaves_memory| Cancelled {
            // SAFETY: `cancel_seen` has changed the word to `CANCELLED`. If the task was not
            // running, its owner is this thread.
            task: (!before.is_running()).then(|| unsafe { TaskClaim::new(handle) }),
            leaves_memory,
        };
        // Most often the worker has not seen the message, and never will.
        if seen.is_in_flight() && self.nodes.take_back(handle) {
            // Other threads may have borrowed the handle, even if it is the only one: they may end
            // the timeout at the same time, or clone the handle. So the word decides here too.
            let before = handle.word.cancel_seen(seen);
            // SAFETY: the message that was taken back owned the wheel's reference to this node.
            unsafe { handle.merge_wheel_ref() };
            return Some(cancelled(before?, false));
        }
        let before = handle.word.cancel_seen(seen)?;
        if before.is_in_wheel() {
            // SAFETY: `cancel_seen` has found the node in the wheel and changed its word.
            self.push(unsafe { Message::new(handle) });
        }
        Some(cancelled(before, true))
    }

    /// Ends a timeout that this thread has just scheduled and not given to any other, and returns
    /// its task. Returns the handle if the timeout has ended, or runs.
    ///
    /// # Panics
    ///
    /// If the handle is of another timer.
    #[cold]
    pub(crate) fn withdraw(&mut self, handle: Handle<S>) -> Result<ClaimedTask<S>, Handle<S>> {
        self.assert_is_of(&handle);
        let is_taken_back = self.nodes.take_back(&handle);
        let Some(before) = handle.word.withdraw() else {
            return Err(handle);
        };
        if is_taken_back {
            // SAFETY: the message that was taken back owned the wheel's reference to this node.
            unsafe { handle.merge_wheel_ref() };
        } else if before.is_in_wheel() {
            // SAFETY: `withdraw` has found the node in the wheel and changed its word.
            self.push(unsafe { Message::new(&handle) });
        }
        // SAFETY: `withdraw` has changed the word, and the task was not running, so this thread
        // owns it.
        Ok(unsafe { ClaimedTask::new(handle) })
    }

    /// Pushes a message.
    ///
    /// # Panics
    ///
    /// If it is about a node of another timer.
    #[inline]
    pub(crate) fn push(&mut self, message: Message<'_, S>) {
        self.assert_is_of(message.handle());
        // SAFETY: the node is of this pool, which is that of the lane. The maker of a `Message` has
        // made the transition that requires it, and `message` is gone afterwards.
        unsafe { self.nodes.push(message.encode()) };
    }

    /// The timer of the nodes.
    #[inline]
    pub(crate) fn timer(&self) -> &S {
        self.timer
    }

    #[inline]
    fn assert_is_of(&self, handle: &Handle<S>) {
        assert!(
            ptr::eq(handle.timer(), self.timer),
            "the handle is one of this timer"
        );
    }
}
