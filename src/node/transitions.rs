//! The parts that a transition of the state word moves: the task, the wheel's reference, and the
//! message that has to be pushed.
//!
//! A thread that ends a timeout owns its task. Here this right is a value: a [`TaskClaim`], which
//! borrows the node, or a [`ClaimedTask`], which keeps it. Each can be used once. If one is lost,
//! the task is never dropped; nothing worse happens.
//!
//! At most one message about a node is under way at a time, and the node is not recycled until the
//! worker has it; the [state word](super::word) says why. A message travels through a
//! [lane](mod@super::lane) as a number that is not zero: its kind, and the number of the node.

#![allow(unsafe_code)]

use super::refs::{Handle, Owner, WheelRef};
use super::task::{NextRun, Node, OnCancel, Task, TaskContext};
use super::timer_ref::TimerRef;
use crate::ticks::DEADLINE_RUNNING;

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(u32);

impl Kind {
    /// A new timeout. The message owns the wheel's reference.
    pub(super) const NEW: Self = Self(1);
    /// The same, for a timeout that takes the place of another one: a timer that closes accepts it.
    pub(super) const REPLACEMENT: Self = Self(2);
    /// The timeout has ended, its deadline has become earlier, or a periodic task has its next one.
    /// The wheel's reference is in the wheel, or the worker met the node there and left the
    /// reference to this message.
    pub(super) const CHANGED: Self = Self(3);
    /// The timeout was cancelled, and the message owns the reference of the handle too. The wheel's
    /// reference as for `CHANGED`.
    pub(super) const DISCARDED: Self = Self(4);

    pub(super) fn encode(self, number: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(number)
    }

    #[inline]
    pub(super) fn decode(message: u64) -> (Self, u32) {
        (Self((message >> 32) as u32), message as u32)
    }
}

/// A message that has to be pushed: the node of a handle has [changed](Kind::CHANGED).
#[must_use = "the worker waits for this message"]
pub(crate) struct Message<'a, S: Owner>(&'a Handle<S>);

impl<'a, S: Owner> Message<'a, S> {
    /// # Safety
    ///
    /// The caller has just made a transition of the node's word that requires this message, and
    /// makes no other one about it.
    #[inline]
    pub(super) unsafe fn new(handle: &'a Handle<S>) -> Self {
        Self(handle)
    }

    /// The message as a lane has it.
    #[inline]
    pub(super) fn encode(&self) -> u64 {
        Kind::CHANGED.encode(self.0.number)
    }

    #[inline]
    pub(crate) fn handle(&self) -> &'a Handle<S> {
        self.0
    }
}

/// The right to the task of a node that is borrowed for `'a`.
#[must_use = "a task whose claim is lost is never dropped"]
pub(crate) struct TaskClaim<'a, S: TaskContext>(&'a Node<S>);

impl<'a, S: TaskContext> TaskClaim<'a, S> {
    /// # Safety
    ///
    /// The caller owns the task in the node, and gives it to this claim.
    #[inline]
    pub(super) unsafe fn new(node: &'a Node<S>) -> Self {
        Self(node)
    }

    /// Runs the task, which may panic.
    #[inline]
    pub(crate) fn run(self, timeout: &S::Timeout) {
        // SAFETY: a claim is the right to the task, and is used up here.
        unsafe { self.0.task.run(timeout) }
    }

    /// Calls the task's hook for a cancellation, which may panic.
    #[inline]
    pub(crate) fn cancelled(self, timeout: &S::Timeout) {
        // SAFETY: a claim is the right to the task, and is used up here.
        unsafe { self.0.task.cancelled(timeout) }
    }

    /// Drops the task, which may panic.
    pub(crate) fn drop_task(self) {
        // SAFETY: a claim is the right to the task, and is used up here.
        unsafe { self.0.task.drop_task() }
    }

    /// Whether a cancellation of the task has nothing to do.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        // SAFETY: the node of a task is borrowed, so a task was put in, and none is now.
        unsafe { self.0.task.operations().on_cancel == OnCancel::Nothing }
    }
}

/// An expired or stopped timeout whose task the owner of this value owns.
#[must_use = "a task that is not taken out is never dropped"]
pub(crate) struct ClaimedTask<S: Owner>(S::Timeout);

impl<S: Owner> ClaimedTask<S> {
    /// # Safety
    ///
    /// The caller owns the task in the node of `handle`, and gives it to this value.
    #[inline]
    pub(super) unsafe fn new(handle: Handle<S>) -> Self {
        Self(S::timeout(handle))
    }

    #[inline]
    pub(crate) fn timeout(&self) -> &S::Timeout {
        &self.0
    }

    #[inline]
    fn node(&self) -> &Node<S> {
        S::handle(&self.0)
    }

    /// Whether the worker itself runs the task.
    pub(crate) fn runs_on_worker(&self) -> bool {
        // SAFETY: the timeout keeps the node, so a task was put in, and none is now.
        unsafe { self.node().task.operations().runs_on_worker }
    }

    /// Takes the task out.
    ///
    /// # Panics
    ///
    /// If it is of another type.
    pub(crate) fn into_task<T: Task<S>>(self) -> T {
        // SAFETY: this value is the right to the task, and is used up here.
        unsafe { self.node().task.take() }
    }

    /// Passes the claim to `work`, and returns the timeout.
    #[inline]
    pub(crate) fn with(self, work: impl FnOnce(TaskClaim<'_, S>, &S::Timeout)) -> S::Timeout {
        let Self(timeout) = self;
        // SAFETY: this value is the right to the task, and does not pass it on again.
        work(unsafe { TaskClaim::new(S::handle(&timeout)) }, &timeout);
        timeout
    }

    /// Runs a periodic task once, or leaves this run out. Returns when the next run is due, or
    /// `None` after a panic.
    pub(crate) fn repeat(&mut self, runs: bool) -> Option<NextRun> {
        let timer = S::handle(&self.0).timer();
        // SAFETY: this value is the right to the task, which stays in the node.
        unsafe { self.node().task.repeat(timer, runs) }
    }

    /// Asks the task whether it postpones itself: see [`Task::postpone`].
    pub(super) fn postpone(&self) -> Option<u64> {
        // SAFETY: this value is the right to the task, which stays in the node.
        unsafe { self.node().task.postpone(&self.0) }
    }

    /// Ends a run on another thread than the worker. `push` pushes the message about it, unless the
    /// timeout was cancelled. If the task runs again, returns what `push` has returned.
    pub(crate) fn finish_run<P>(
        self,
        next: Option<u64>,
        push: impl FnOnce(Message<'_, S>) -> P,
    ) -> RunOutcome<(S::Timeout, P), Self> {
        if !self.node().word.finish_run(next, false, DEADLINE_RUNNING) {
            return RunOutcome::Cancelled(self);
        }
        // SAFETY: `finish_run` says that the node is in flight again; or it has ended the timeout,
        // whose node is in the wheel.
        let pushed = push(unsafe { Message::new(S::handle(&self.0)) });
        match next {
            Some(_) => RunOutcome::Again((self.0, pushed)),
            None => RunOutcome::LastRun(self),
        }
    }
}

/// The result of a run of a periodic task.
pub(crate) enum RunOutcome<N, T> {
    /// The task runs again.
    Again(N),
    /// It was the last run.
    LastRun(T),
    /// The timeout was cancelled during the run.
    Cancelled(T),
}

/// The outcome of a `reset`.
pub(crate) enum Reset<'a, S: Owner> {
    /// The deadline is later now. The worker finds out by itself.
    Later,
    /// The deadline is earlier now, and a message about the node is under way.
    Earlier,
    /// The deadline is earlier now, and this message has to be pushed.
    EarlierInWheel(Message<'a, S>),
    /// Nothing has changed: the timeout has ended, or its task is periodic.
    Refused,
    /// Nothing has changed: the task stays in the node when it is due. See
    /// [`reset_staying`](Handle::reset_staying).
    Stays,
}

impl<S: Owner> Handle<S> {
    /// Moves the deadline, unless the timeout has ended. That of a periodic task is moved by the
    /// ends of its runs only: its task knows when it is due, and would not learn of a reset.
    #[inline]
    pub(crate) fn reset(&self, deadline: u64) -> Reset<'_, S> {
        match self.stays() {
            false => self.reset_word(deadline, false),
            true => Reset::Stays,
        }
    }

    /// [`reset`](Self::reset) of a timeout whose task stays in the node. While the worker asks the
    /// task, nothing changes, and this returns [`Stays`](Reset::Stays).
    pub(crate) fn reset_staying(&self, deadline: u64) -> Reset<'_, S> {
        match self.is_periodic() {
            false => self.reset_word(deadline, true),
            true => Reset::Refused,
        }
    }

    /// `is_asked`: see [`StateWord::reset`](super::word::StateWord::reset).
    #[inline(always)]
    fn reset_word(&self, deadline: u64, is_asked: bool) -> Reset<'_, S> {
        match self.word.reset(deadline, is_asked) {
            Ok(before) if deadline >= before.deadline() => Reset::Later,
            Ok(before) if before.is_in_wheel() => {
                // SAFETY: `reset` has taken the node, which was in the wheel, to `IN_FLIGHT`.
                Reset::EarlierInWheel(unsafe { Message::new(self) })
            }
            Ok(_) => Reset::Earlier,
            Err(seen) if is_asked && !seen.has_ended() => Reset::Stays,
            Err(_) => Reset::Refused,
        }
    }
}

/// A timeout that the end of the timer has cancelled: with its task, or without it, if that runs.
/// Then the thread that runs it drops it.
pub(super) type Stopped<S> = Result<ClaimedTask<S>, <S as TaskContext>::Timeout>;

impl<S: Owner> WheelRef<S> {
    /// Cancels the timeout on behalf of `stop`, unless it has ended. `timer` returns a reference
    /// for its handle.
    ///
    /// # Safety
    ///
    /// The node belongs to the pool of `timer`.
    pub(super) unsafe fn stop(self, timer: impl FnOnce() -> TimerRef<S>) -> Option<Stopped<S>> {
        let before = self.word.cancel()?;
        // A message that is under way has the reference.
        let is_own = before.is_in_wheel();
        // SAFETY: the caller promises that `timer` is of the pool of this node.
        let handle = unsafe { self.into_handle(is_own, timer()) };
        Some(match before.is_running() {
            true => Err(S::timeout(handle)),
            // SAFETY: this thread has changed the word to `CANCELLED`, and the task was not
            // running, so its owner is this thread.
            false => Ok(unsafe { ClaimedTask::new(handle) }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_not_zero_and_names_its_kind_and_its_node() {
        for kind in [Kind::NEW, Kind::REPLACEMENT, Kind::CHANGED, Kind::DISCARDED] {
            for number in [0, 1, 64, u32::MAX] {
                let message = kind.encode(number);
                assert_ne!(message, 0);
                assert_eq!(Kind::decode(message), (kind, number));
            }
        }
    }
}
