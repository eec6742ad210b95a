//! The callers' side: schedule, cancel, reset, replace.

use super::dispatch;
use super::group::cancel_each;
use super::inner::{Inner, Timeout};
use super::state::StateSnapshot;
use super::thread_cache;
use crate::error::NewTimeoutError;
use crate::node::{
    ClaimedTask, DetachedTask, Handle, OnCancel, Owner, Released, Reset, Task, TaskClaim,
};
use crate::report;
use crate::sync::Backoff;

/// The callers' side: schedule, cancel, reset, replace, and the number of pending timeouts.
impl Inner {
    /// `deadline` is in nanoseconds since the timer was built, and at most
    /// [`DEADLINE_NEVER`](crate::ticks::DEADLINE_NEVER).
    // Inlined into the function for each type of task, so that the timeout stays in registers.
    #[inline(always)]
    pub(crate) fn schedule_by<T: Task<Inner>>(
        &self,
        task: T,
        deadline: u64,
    ) -> Result<Timeout, NewTimeoutError> {
        self.try_schedule_by(task, deadline)
            .map_err(|(task, error)| {
                self.counters.guard_drop(T::name, || drop(task));
                error
            })
    }

    /// [`schedule_by`](Self::schedule_by) that gives a rejected task back.
    #[inline(always)]
    pub(crate) fn try_schedule_by<T: Task<Inner>>(
        &self,
        task: T,
        deadline: u64,
    ) -> Result<Timeout, (T, NewTimeoutError)> {
        let state = self.state.snapshot();
        if !state.accepts_all() || self.pending_counts.limit().is_some() {
            if let Err(error) = self.admit(state) {
                self.count_rejection(&error);
                return Err((task, error));
            }
        }
        // No user code runs in here, because `stop` may be waiting.
        let scheduled = thread_cache::with(self, |cache| {
            cache.counts.register();
            let handle = cache.nodes.schedule(task, deadline);
            // With the cache, because a thread that is ending retires its lane when the cache is
            // given back.
            if !cache.look_after_push().is_closing() {
                return Ok(handle);
            }
            match cache.withdraw(handle) {
                Ok(withdrawn) => Err(withdrawn),
                // It has ended, or runs.
                Err(handle) => Ok(handle),
            }
        });
        let handle = scheduled.map_err(|withdrawn| self.reject_withdrawn(withdrawn))?;
        // A later state than that after the fence is as good.
        self.wake_if_needed(self.state.snapshot(), deadline);
        Ok(Timeout { handle })
    }

    /// Decides whether a timer accepts a new timeout that does not just accept all: one with a
    /// limit, or one that is not started (the worker is lazily started here) or is closing.
    #[inline(never)]
    fn admit(&self, mut state: StateSnapshot) -> Result<(), NewTimeoutError> {
        while !state.is_started() && !state.is_closing() {
            self.start()?;
            state = self.state.snapshot();
        }
        if state.is_closing() {
            return Err(self.thread.closed_error());
        }
        let place = self.pending_counts.take_place();
        place.map_err(|limit| NewTimeoutError::TooManyPending { limit })
    }

    /// Rejects a timeout that was withdrawn, because the timer closes.
    #[cold]
    fn reject_withdrawn<T: Task<Inner>>(
        &self,
        withdrawn: ClaimedTask<Inner>,
    ) -> (T, NewTimeoutError) {
        self.pending_counts.release_places(1);
        let error = self.thread.closed_error();
        self.count_rejection(&error);
        (withdrawn.into_task(), error)
    }

    /// Counts a rejected timeout. Rejections of a stopped timer are not reported, because the
    /// caller of `stop` expects them.
    #[cold]
    fn count_rejection(&self, error: &NewTimeoutError) {
        let rejected = self.counters.rejected.add(1);
        if !matches!(error, NewTimeoutError::Stopped) {
            report::timeout_rejected(self.thread.name(), error, rejected);
        }
    }

    /// Cancels a timeout, if it has not ended, and calls the task's hook.
    pub(crate) fn cancel(&self, timeout: &Timeout) -> bool {
        let task = self.end_by_cancel(timeout);
        task.map(|task| task.map(|claim| dispatch::call_cancelled(claim, timeout)))
            .is_some()
    }

    /// [`cancel`](Self::cancel), and drops the handle. Most often this takes one pass through what
    /// the thread caches, where a cancel and the drop of the handle take one each.
    #[inline]
    pub(crate) fn discard(timeout: Timeout) -> bool {
        match thread_cache::discard(timeout.handle, OnCancel::Drop, false) {
            Ok(None) => true,
            Ok(Some((task, timer))) => {
                let timer = timer.expect("it was not given back");
                timer.get().drop_detached(task);
                Self::recycle(Released::of(timer));
                true
            }
            Err(handle) => {
                let timeout = Timeout { handle };
                timeout.handle.timer().cancel(&timeout)
            }
        }
    }

    /// [`discard`](Self::discard) without the task's hook, for a caller that keeps the timer.
    #[cfg(feature = "async")]
    #[inline]
    pub(crate) fn discard_without_hook(&self, timeout: Timeout) {
        match thread_cache::discard(timeout.handle, OnCancel::CallHook, true) {
            Ok(None) => {}
            Ok(Some((task, _))) => self.drop_detached(task),
            Err(handle) => {
                let timeout = Timeout { handle };
                if let Some(claim) = self.end_by_cancel(&timeout).flatten() {
                    dispatch::drop_claimed(claim, &timeout);
                }
            }
        }
    }

    #[inline]
    fn drop_detached(&self, task: DetachedTask<Self>) {
        self.counters.guard_drop(task.name(), || task.drop_task());
    }

    /// Cancels all timeouts that were scheduled before this call, except those that futures wait
    /// for. Returns how many these were.
    ///
    /// Not to be called by the worker in a turn.
    pub(crate) fn cancel_all(&self) -> usize {
        if self.thread.is_in_parent_process() {
            // The timeouts are the parent's, and the worker's lock may never be released here.
            return 0;
        }
        // Without the lock, because the hooks are user code.
        let pending = self.worker.lock().pending(self);
        cancel_each(pending)
    }

    /// Cancels a timeout, if it has not ended, and counts that. The caller owns the task, unless it
    /// runs.
    #[inline]
    fn end_by_cancel<'a>(&self, timeout: &'a Timeout) -> Option<Option<TaskClaim<'a, Inner>>> {
        let handle = &timeout.handle;
        // If the timeout has ended, there is nothing to send, and on a stopped timer no consumer.
        let seen = handle.not_ended()?;
        let cancelled = thread_cache::with(self, |cache| {
            let mut cancelled = cache.nodes.cancel(handle, seen)?;
            // Memory for which the worker has to be woken.
            cancelled.leaves_memory =
                cancelled.leaves_memory && cache.look_after_push().wakes_to_reclaim();
            // After the push: `stop` waits for the count, and then finds the message. In the pass,
            // at whose end a driver's waker may call `stop`.
            cache.counts.cancel(1);
            Some(cancelled)
        })?;
        self.pending_counts.release_places(1);
        if cancelled.leaves_memory {
            self.wake();
        }
        Some(cancelled.task)
    }

    /// Replaces a timeout that has not ended by another one with the same deadline, and drops the
    /// old task. If the timeout has ended, drops the new task and returns `None`. For `stop` and
    /// for the limit there is one of the two at all times.
    #[cfg(feature = "async")]
    pub(crate) fn replace<T: Task<Inner>>(&self, timeout: &Timeout, task: T) -> Option<Timeout> {
        let handle = &timeout.handle;
        let replaced = match handle.not_ended() {
            None => Err(task),
            Some(seen) => thread_cache::with(self, |cache| {
                let Some(old) = cache.nodes.cancel(handle, seen) else {
                    return Err(task);
                };
                // In this order, so that one of the two is in the sum of pending timeouts at all
                // times.
                cache.counts.register();
                // The deadline of a timeout that has ended does not move.
                let handle = cache.nodes.schedule_replacement(task, handle.deadline());
                let state = cache.look_after_push();
                cache.counts.cancel(1);
                Ok((old, state, Timeout { handle }))
            }),
        };
        let (old, state, new) = match replaced {
            Ok(replaced) => replaced,
            Err(task) => {
                self.counters.guard_drop(T::name, || drop(task));
                return None;
            }
        };
        if old.leaves_memory && state.wakes_to_reclaim() {
            self.wake();
        }
        // As for a deadline that has become earlier: the worker may have seen the old timeout end,
        // and not the new one.
        self.wake_for_pushed(state, &new.handle);
        if let Some(claim) = old.task {
            dispatch::drop_claimed(claim, timeout);
        }
        Some(new)
    }

    /// Re-arms a timeout, unless it has ended or is periodic. `deadline` is as for
    /// [`schedule_by`](Self::schedule_by). `changed` is called before the worker is told.
    #[inline]
    pub(crate) fn reset(&self, timeout: &Timeout, deadline: u64, changed: impl FnOnce()) -> bool {
        let handle = &timeout.handle;
        let reset = handle.reset(deadline);
        changed();
        match reset {
            Reset::Stays => return self.reset_staying(handle, deadline),
            Reset::Refused => return false,
            Reset::Later => {}
            // Without a message: the worker finds the deadline in the node.
            Reset::Earlier => self.wake_for_pushed(self.state.fence_after_push(), handle),
            Reset::EarlierInWheel(message) => {
                let state = thread_cache::with(self, |cache| cache.push(message));
                self.wake_for_pushed(state, handle);
            }
        }
        true
    }

    /// A task that is asked gives its answer first. That is not for long, unless it is this thread
    /// that asks, or none (in a forked process).
    #[cold]
    pub(super) fn reset_staying(&self, handle: &Handle<Self>, deadline: u64) -> bool {
        let backoff = Backoff::new();
        let state = loop {
            match handle.reset_staying(deadline) {
                Reset::Later => return true,
                Reset::Earlier => break self.state.fence_after_push(),
                Reset::EarlierInWheel(message) => {
                    break thread_cache::with(self, |cache| cache.push(message));
                }
                Reset::Stays
                    if !self.worker.is_held_by_this_thread()
                        && !self.thread.is_in_parent_process() =>
                {
                    backoff.snooze();
                }
                _ => return false,
            }
        };
        self.wake_for_pushed(state, handle);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::tests::{Driven, TICK};

    #[test]
    fn an_instant_that_has_passed_is_due_at_the_next_tick() {
        let mut t = Driven::new();
        let begin = t.timer.now();
        t.pass(TICK * 3);
        let new = t.timer.new_timeout_at(|_| (), begin).unwrap();
        let reset = t.schedule(TICK * 9);
        assert_eq!(t.turn(), 0);
        assert!(reset.reset_at(begin));
        assert_eq!((t.turn(), t.pass(TICK)), (0, 2));
        assert!(new.is_expired() && reset.is_expired());
    }

    /// A caller that comes too late has a place for a moment.
    #[test]
    fn nothing_is_pending_on_a_stopped_timer_with_a_limit() {
        let t = Driven::with(|builder| builder.max_pending_timeouts(Some(5)));
        t.schedule(TICK);
        assert_eq!(t.timer.pending_timeouts(), 1);
        assert_eq!(t.timer.stop().len(), 1);
        assert_eq!(t.inner().pending_counts.take_place(), Ok(()));
        assert_eq!(t.timer.pending_timeouts(), 0);
    }
}
