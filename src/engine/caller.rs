//! The callers' side: schedule, cancel, reset, replace.

use std::time::Duration;

use super::shared::{Shared, SharedFields, Timeout};
use super::state::{Rejection, StateSnapshot};
use super::thread_cache;
use crate::error::NewTimeoutError;
use crate::node::{Cancel, CancelledTask, Reset, Task};
use crate::report;
use crate::sync::Arc;
use crate::ticks::{self, DEADLINE_NEVER};

impl Shared {
    // Inlined into the function for each type of task, so that the timeout stays in registers.
    #[inline(always)]
    pub(crate) fn schedule<T: Task<SharedFields>>(
        self: &Arc<Self>,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, NewTimeoutError> {
        self.schedule_by(task, ticks::deadline(self.time.now_or_soon(), delay))
    }

    /// `deadline` is in nanoseconds since the timer was built, and at most [`DEADLINE_NEVER`].
    #[inline(always)]
    pub(crate) fn schedule_by<T: Task<SharedFields>>(
        self: &Arc<Self>,
        task: T,
        deadline: u64,
    ) -> Result<Timeout, NewTimeoutError> {
        let registered = match self.state.register(self.limit) {
            Ok(state) => state,
            Err(rejection) => match self.register_after(rejection) {
                Ok(state) => state,
                Err(error) => {
                    self.guard("when it was dropped", T::name, || drop(task));
                    self.count_rejection(&error);
                    return Err(error);
                }
            },
        };
        // No user code runs between `register` and the push, because `stop` may be waiting for it.
        let handle = thread_cache::with(self, |cache| cache.schedule(task, deadline));
        self.wake_for_new(registered, deadline);
        Ok(Timeout { handle })
    }

    /// Registers a timeout that was rejected at first, if that was because the timer is not
    /// started: the worker is lazily started here. Returns the state before.
    #[cold]
    fn register_after(self: &Arc<Self>, mut rejection: Rejection) -> Result<StateSnapshot, NewTimeoutError> {
        loop {
            match rejection {
                Rejection::Stopped => return Err(NewTimeoutError::Stopped),
                Rejection::NotStarted => self.start()?,
                Rejection::Full => {
                    let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
                    return Err(NewTimeoutError::TooManyPending { limit });
                }
            }
            match self.state.register(self.limit) {
                Ok(state) => return Ok(state),
                Err(again) => rejection = again,
            }
        }
    }

    /// Counts a rejected timeout. Rejections of a stopped timer are not reported, because the
    /// caller of `stop` expects them.
    #[cold]
    fn count_rejection(&self, error: &NewTimeoutError) {
        let rejected = self.counters.rejected.add_one();
        if !matches!(error, NewTimeoutError::Stopped) {
            report::refused(self.thread.name(), error, rejected);
        }
    }

    pub(crate) fn cancel(&self, timeout: &Timeout) -> bool {
        let Some(task) = self.cancel_and_deregister(timeout) else { return false };
        if let CancelledTask::Owned(claim) = task {
            self.call_cancelled(timeout, claim);
        }
        true
    }

    /// [`cancel`](Self::cancel) without calling the task's hook. The task is dropped.
    #[cfg(feature = "async")]
    pub(crate) fn cancel_quietly(&self, timeout: &Timeout) {
        if let Some(CancelledTask::Owned(claim)) = self.cancel_and_deregister(timeout) {
            self.discard(|| timeout.handle.name(), claim);
        }
    }

    /// Cancels a timeout, if it has not ended, and counts it out. The caller owns the task, unless
    /// it runs.
    #[inline]
    fn cancel_and_deregister<'a>(&self, timeout: &'a Timeout) -> Option<CancelledTask<'a, SharedFields>> {
        let handle = &timeout.handle;
        // If the timeout has ended, there is nothing to send, and on a stopped timer no consumer.
        let seen = handle.not_ended()?;
        let (task, state, was_in_wheel) = thread_cache::with_handle(handle, |cache| {
            let (task, was_in_wheel) = match cache.cancel(handle, seen) {
                Cancel::HasEnded => return None,
                Cancel::InFlight(task) => (task, false),
                Cancel::InWheel(task) => (task, true),
            };
            // After the push: `stop` waits for the count, and then finds the message. Before
            // `with_handle` returns: it may drop what the thread caches of stopped timers, and user
            // code with it, which may call `stop`.
            Some((task, self.state.deregister(), was_in_wheel))
        })?;
        if was_in_wheel {
            self.wake_to_reclaim(state);
        }
        Some(task)
    }

    /// Replaces a timeout that has not ended by another one with the same deadline, and drops the
    /// old task. If the timeout has ended, drops the new task and returns `None`. For `stop` and
    /// for the limit there is one of the two at all times.
    #[cfg(feature = "async")]
    pub(crate) fn replace<T: Task<SharedFields>>(
        self: &Arc<Self>,
        timeout: &Timeout,
        task: T,
    ) -> Option<Timeout> {
        let handle = &timeout.handle;
        let replaced = match handle.not_ended() {
            None => Err(task),
            Some(seen) => thread_cache::with(self, |cache| {
                let (Cancel::InFlight(old) | Cancel::InWheel(old)) = cache.cancel(handle, seen) else {
                    return Err(task);
                };
                let registered = self.state.transfer();
                // The deadline of a timeout that has ended does not move.
                let handle = cache.schedule(task, handle.deadline());
                Ok((old, registered, Timeout { handle }))
            }),
        };
        let (old, registered, new) = match replaced {
            Ok(replaced) => replaced,
            Err(task) => {
                self.guard("when it was dropped", T::name, || drop(task));
                return None;
            }
        };
        self.wake_for_new(registered, handle.deadline());
        if let CancelledTask::Owned(claim) = old {
            self.discard(|| timeout.handle.name(), claim);
        }
        Some(new)
    }

    pub(crate) fn reset(&self, timeout: &Timeout, delay: Duration) -> bool {
        self.reset_to(timeout, ticks::deadline(self.time.now_or_soon(), delay))
    }

    /// `deadline` is as for [`schedule_by`](Self::schedule_by).
    #[inline]
    pub(crate) fn reset_to(&self, timeout: &Timeout, deadline: u64) -> bool {
        let handle = &timeout.handle;
        // Count first, to overlap the cache miss on the node.
        let is_counted = thread_cache::count_reset(handle);
        match handle.reset(deadline) {
            Reset::HasEnded => {
                if is_counted {
                    thread_cache::count_more_resets(handle, -1);
                }
                return false;
            }
            Reset::Later => {}
            // The worker thread takes in the message at the next tick, or was woken for it. A
            // driver's loop may have announced a turn that is too late.
            Reset::Earlier if self.waker.is_none() => {}
            Reset::Earlier => self.wake_for_earlier(handle),
            Reset::EarlierInWheel(message) => {
                thread_cache::push(message);
                self.wake_for_earlier(handle);
            }
        }
        if !is_counted {
            // The timer was stopped, but this timeout had not ended.
            thread_cache::count_more_resets(handle, 1);
        }
        true
    }

    /// Returns how long it is until `deadline`.
    pub(crate) fn remaining(&self, deadline: u64) -> Duration {
        match deadline {
            DEADLINE_NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.time.now_or_later())),
        }
    }
}
