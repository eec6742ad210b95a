//! What a transition of the state word moves: the task, the wheel's reference, and the message that
//! has to be pushed.
//!
//! A thread that ends a timeout owns its task. Here this right is a value: a [`TaskClaim`], which
//! borrows the node, or a [`ClaimedTask`], which keeps it. Each can be used once. If one is lost,
//! the task is never dropped; nothing worse happens.

#![allow(unsafe_code)]

use super::layout::Node;
use super::message::{Kind, Message};
use super::pool::Pool;
use super::refs::{Handle, Owner, WheelRef};
use super::task::{NextRun, Task, TaskContext};
use super::timer_ref::TimerRef;
use super::word::{Finish, Move, SeenWord, WordExpiry};

/// The right to the task of a node that is borrowed for `'a`.
#[must_use = "a task whose claim is lost is never dropped"]
pub(crate) struct TaskClaim<'a, S: TaskContext>(&'a Node<S>);

impl<'a, S: TaskContext> TaskClaim<'a, S> {
    /// # Safety
    ///
    /// The caller owns the task in the node, and gives it to this claim.
    #[inline]
    unsafe fn new(node: &'a Node<S>) -> Self {
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
    pub(crate) fn discard(self) {
        // SAFETY: a claim is the right to the task, and is used up here.
        unsafe { self.0.task.discard() }
    }

    /// Runs a periodic task once, or leaves this run out. Returns when the next run is due, or
    /// `None` after a panic.
    pub(crate) fn repeat(&mut self, timer: &S::Timer, runs: bool) -> Option<NextRun> {
        // SAFETY: a claim is the right to the task, which stays in the node.
        unsafe { self.0.task.repeat(timer, runs) }
    }

    /// Whether a cancellation of the task has nothing to do.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        // SAFETY: the node is borrowed, so it is not free and no task is put in.
        unsafe { self.0.task.is_plain() }
    }
}

/// An expired or stopped timeout whose task the owner of this value owns.
#[must_use = "a task that is not taken out is never dropped"]
pub(crate) struct ClaimedTask<S: Owner> {
    timeout: S::Timeout,
}

impl<S: Owner> ClaimedTask<S> {
    /// # Safety
    ///
    /// The caller owns the task in the node of `handle`, and gives it to this value.
    #[inline]
    pub(super) unsafe fn new(handle: Handle<S>) -> Self {
        Self { timeout: S::timeout(handle) }
    }

    #[inline]
    pub(crate) fn timeout(&self) -> &S::Timeout {
        &self.timeout
    }

    #[inline]
    fn node(&self) -> &Node<S> {
        S::handle(&self.timeout)
    }

    /// Whether the worker itself runs the task.
    pub(crate) fn runs_on_worker(&self) -> bool {
        // SAFETY: `timeout` keeps the node, so it is not free and no task is put in.
        unsafe { self.node().task.runs_on_worker() }
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

    /// Lends the claim to `work`, and returns the timeout.
    #[inline]
    pub(crate) fn with(self, work: impl FnOnce(TaskClaim<'_, S>, &S::Timeout)) -> S::Timeout {
        let Self { timeout } = self;
        // SAFETY: this value is the right to the task, and does not pass it on again.
        work(unsafe { TaskClaim::new(S::handle(&timeout)) }, &timeout);
        timeout
    }

    /// Runs a periodic task once, or leaves this run out. Returns when the next run is due, or
    /// `None` after a panic.
    pub(crate) fn repeat(&mut self, runs: bool) -> Option<NextRun> {
        let timer = S::handle(&self.timeout).timer();
        // SAFETY: this value is the right to the task, which stays in the node.
        unsafe { self.node().task.repeat(timer, runs) }
    }

    /// Ends a run on another thread than the worker. `push` pushes the message about it, if there
    /// is one to push.
    pub(crate) fn finish_run<P>(
        self,
        next: Option<u64>,
        push: impl FnOnce(Message<'_, S>) -> P,
    ) -> RunOutcome<S, P> {
        let finish = self.node().word.finish_run(next, false);
        let handle = S::handle(&self.timeout);
        match finish {
            Finish::Again(_) => {
                // SAFETY: `finish_run` says that the node is in flight again.
                let pushed = push(unsafe { Message::new(handle, Kind::Moved) });
                RunOutcome::Again(self.timeout, pushed)
            }
            Finish::LastRun => {
                // SAFETY: `finish_run` has ended the timeout, whose node is in the wheel.
                push(unsafe { Message::new(handle, Kind::Ended) });
                RunOutcome::LastRun(self)
            }
            Finish::Cancelled => RunOutcome::Cancelled(self),
        }
    }
}

/// The result of a run that a task executor had.
pub(crate) enum RunOutcome<S: Owner, P> {
    /// The task runs again, and the worker was told by the push that returned this.
    Again(S::Timeout, P),
    /// It was the last run, and the worker was told.
    LastRun(ClaimedTask<S>),
    /// The timeout was cancelled during the run.
    Cancelled(ClaimedTask<S>),
}

/// The task of a timeout that the caller has just cancelled.
pub(crate) enum CancelledTask<'a, S: TaskContext> {
    Owned(TaskClaim<'a, S>),
    /// The task runs. The thread that runs it drops it.
    Running,
}

/// What a `cancel` found.
pub(crate) enum Cancel<'a, S: TaskContext> {
    /// The timeout had ended.
    HasEnded,
    /// The message about the new timeout was taken back: the worker never sees it.
    TakenBack(CancelledTask<'a, S>),
    /// The worker had not put it into the wheel, or its deadline had just become earlier.
    InFlight(CancelledTask<'a, S>),
    /// It was in the wheel, and a message has to be pushed.
    InWheel(CancelledTask<'a, S>),
}

impl<'a, S: TaskContext> Cancel<'a, S> {
    /// The task, unless the timeout had ended; and whether the worker has memory to reclaim.
    #[inline]
    pub(crate) fn into_task(self) -> Option<(CancelledTask<'a, S>, bool)> {
        match self {
            Self::HasEnded => None,
            Self::TakenBack(task) => Some((task, false)),
            Self::InFlight(task) | Self::InWheel(task) => Some((task, true)),
        }
    }
}

/// What a `reset` found.
pub(crate) enum Reset<'a, S: Owner> {
    /// The deadline is later now. The worker finds out by itself.
    Later,
    /// The deadline is earlier now, and a message about the node is under way.
    Earlier,
    /// The deadline is earlier now, and this message has to be pushed.
    EarlierInWheel(Message<'a, S>),
    HasEnded,
}

impl<S: Owner> Handle<S> {
    /// Moves the deadline, unless the timeout has ended.
    #[inline]
    pub(crate) fn reset(&self, deadline: u64) -> Reset<'_, S> {
        match self.word.reset(deadline) {
            Move::Later => Reset::Later,
            Move::Earlier => Reset::Earlier,
            // SAFETY: `reset` has taken the node, which was in the wheel, to `IN_FLIGHT`.
            Move::EarlierInWheel => Reset::EarlierInWheel(unsafe { Message::new(self, Kind::Moved) }),
            Move::HasEnded => Reset::HasEnded,
        }
    }
}

impl<S: TaskContext> Node<S> {
    /// Cancels the timeout whose word was `seen`, unless it has ended.
    #[inline]
    pub(super) fn cancel_seen(&self, seen: SeenWord) -> Cancel<'_, S> {
        match self.word.cancel_seen(seen) {
            None => Cancel::HasEnded,
            Some(before) => {
                // SAFETY: `cancel_seen` has changed the word from `before` to `CANCELLED`.
                let task = unsafe { self.cancelled_task(before) };
                if before.is_in_wheel() { Cancel::InWheel(task) } else { Cancel::InFlight(task) }
            }
        }
    }

    /// # Safety
    ///
    /// The caller has just changed the word from `before` to `CANCELLED`.
    #[inline]
    unsafe fn cancelled_task(&self, before: SeenWord) -> CancelledTask<'_, S> {
        if before.is_running() {
            return CancelledTask::Running;
        }
        // SAFETY: the caller has changed the word to `CANCELLED`, which one thread does, and the
        // task was not running, so its owner is the caller.
        CancelledTask::Owned(unsafe { TaskClaim::new(self) })
    }
}

/// A timeout that `stop` has cancelled.
pub(crate) enum Stopped<S: Owner> {
    WithTask(ClaimedTask<S>),
    /// Its task runs. The thread that runs it drops it.
    Running(S::Timeout),
}

/// The result of an attempt to expire a node.
pub(super) enum RefExpiry<S: Owner> {
    Once(ClaimedTask<S>),
    /// The caller owns the task of a periodic timeout for one run.
    Run(WheelRef<S>),
    /// A `reset` moved the deadline to this later one.
    Later(WheelRef<S>, u64),
    /// The wheel's reference was left to the message that is under way.
    LeftToMessage,
}

impl<S: Owner> WheelRef<S> {
    /// Expires the timeout if its deadline is due. `timer` returns a reference for its handle.
    ///
    /// # Safety
    ///
    /// The node belongs to the pool of the reference that `timer` returns.
    #[inline]
    pub(super) unsafe fn expire(
        self,
        timer: impl FnOnce() -> TimerRef<Pool<S>>,
        is_due: impl Fn(u64) -> bool,
    ) -> RefExpiry<S> {
        if self.is_periodic() {
            return if self.word.begin_run() { RefExpiry::Run(self) } else { RefExpiry::LeftToMessage };
        }
        match self.word.expire(self.is_last_reference(), is_due) {
            WordExpiry::Expired { was_in_wheel } => {
                let handle = if was_in_wheel {
                    // SAFETY: the caller promises that `timer` is of the pool of this node.
                    unsafe { self.into_handle(timer()) }
                } else {
                    // The message that is under way finds the timeout expired, and has this
                    // reference. SAFETY: the caller promises that `timer` is of the pool of this
                    // node.
                    unsafe { self.another_handle(timer()) }
                };
                // SAFETY: this thread has changed the word to `EXPIRED`, so it owns the task.
                RefExpiry::Once(unsafe { ClaimedTask::new(handle) })
            }
            WordExpiry::NotDue(deadline) => RefExpiry::Later(self, deadline),
            WordExpiry::LeftToMessage => RefExpiry::LeftToMessage,
        }
    }

    /// Cancels the timeout on behalf of `stop`, unless it has ended. `timer` returns a reference
    /// for its handle. `is_told`: the message about it has arrived, so its reference is this one.
    ///
    /// # Safety
    ///
    /// The node belongs to the pool of `timer`.
    pub(super) unsafe fn stop(
        self,
        timer: impl FnOnce() -> TimerRef<Pool<S>>,
        is_told: bool,
    ) -> Option<Stopped<S>> {
        let Some(before) = self.word.cancel() else {
            if is_told {
                // The timer is stopped, so the node is not recycled.
                let _ = self.release();
            }
            return None;
        };
        let handle = if before.is_in_wheel() || is_told {
            // SAFETY: the caller promises that `timer` is of the pool of this node.
            unsafe { self.into_handle(timer()) }
        } else {
            // The reference is left to the message that is under way. SAFETY: the caller promises
            // that `timer` is of the pool of this node.
            unsafe { self.another_handle(timer()) }
        };
        Some(match before.is_running() {
            true => Stopped::Running(S::timeout(handle)),
            // SAFETY: this thread has changed the word to `CANCELLED`, and the task was not
            // running, so its owner is this thread.
            false => Stopped::WithTask(unsafe { ClaimedTask::new(handle) }),
        })
    }

    /// Lends the claim to a periodic task.
    ///
    /// # Safety
    ///
    /// The caller owns the task. There is no other claim to it until this one is gone, and none
    /// follows one that has used the task up.
    pub(super) unsafe fn claim(&self) -> TaskClaim<'_, S> {
        // SAFETY: the caller gives the task that it owns to the claim.
        unsafe { TaskClaim::new(self) }
    }
}
