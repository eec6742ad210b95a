//! The handle of one timeout.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::time::Duration;
use std::{fmt, ptr};

use crate::engine::Timeout;
use crate::node::End;
use crate::ticks::DEADLINE_RUNNING;

impl Timeout {
    /// Ends the timeout, if it has not ended: true for exactly one caller, and then its task never runs.
    ///
    /// Takes no lock that anybody else could hold, and waits for nobody but the task's own `Drop`, which may stop a timer
    /// whose last handle it has. When it returns true, the task has been
    /// dropped (its [`cancelled`](crate::TimerTask::cancelled) hook called) on this thread,
    /// [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts) has fallen, and its place under the limit is free,
    /// even while the worker is stuck in a slow task. What is left of it, its entry in the wheel, the worker gives
    /// back at its next turn, which is at most a tick away; that of a [`Driver`](crate::Driver) may be further off. (With a
    /// tick of an hour, that is an hour's worth of entries.)
    ///
    /// False if the task was handed to the executor, or somebody else cancelled it, before.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let deadline = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5))?;
    /// assert!(deadline.cancel());
    /// assert!(!deadline.cancel());
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self) -> bool {
        self.handle.timer().cancel(self)
    }

    /// Whether [`cancel`](Self::cancel) ended it, or [`stop`](crate::HashedWheelTimer::stop) or what else ended the timer.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.handle.end() == Some(End::Cancelled)
    }

    /// Whether its task was handed to the executor: it runs, or has run, or is about to.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.handle.end() == Some(End::Expired)
    }

    /// Re-arms the timeout: it is now due `delay` from now, whether that is later or earlier than before. False, and
    /// nothing happens, once it has expired or was cancelled.
    ///
    /// When it returned true, the task runs at the new deadline and not before, and sees what this thread did before
    /// the call. Takes no lock. A later deadline costs a look at the clock and one compare-exchange; an earlier one
    /// goes to the worker like a new timeout. (Netty has no such method: `IdleStateHandler` lets the timeout fire
    /// and schedules the rest.)
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let idle = timer.new_timeout(|_| println!("closed for silence"), Duration::from_secs(60))?;
    /// // Once a packet:
    /// idle.reset(Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&self, delay: Duration) -> bool {
        self.handle.timer().reset(self, delay)
    }

    /// How long it is until the deadline, to a microsecond: zero once it is due, `Duration::MAX` if it never will be. The task
    /// runs up to a tick after the deadline. A timeout that was cancelled keeps its deadline.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.handle.deadline() {
            DEADLINE_RUNNING => Duration::ZERO,
            deadline => self.handle.timer().remaining(deadline),
        }
    }

    /// Turns the handle into a guard that cancels the timeout when it is dropped.
    pub fn cancel_on_drop(self) -> CancelOnDrop {
        CancelOnDrop { timeout: self }
    }
}

/// By identity.
impl PartialEq for Timeout {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.handle.as_ptr(), other.handle.as_ptr())
    }
}

impl Eq for Timeout {}

/// By identity.
impl Hash for Timeout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self.handle.as_ptr(), state);
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.handle.end() {
            None => "pending",
            Some(End::Cancelled) => "cancelled",
            Some(End::Expired) => "expired",
        };
        let mut timeout = f.debug_struct("Timeout");
        timeout.field("state", &format_args!("{state}"));
        // Nobody waits for what has ended.
        if state == "pending" {
            match self.remaining() {
                Duration::MAX => timeout.field("remaining", &format_args!("for ever")),
                remaining => timeout.field("remaining", &remaining),
            };
        }
        timeout.field("task", &format_args!("{}", self.handle.name())).finish_non_exhaustive()
    }
}

/// A timeout that is cancelled when this guard is dropped: [`Timeout::cancel_on_drop`]. Dereferences to the [`Timeout`].
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use std::time::Duration;
/// # let timer = HashedWheelTimer::default();
/// {
///     let _deadline = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5))?.cancel_on_drop();
///     // … work that may return early …
/// }
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the timeout is cancelled when this guard is dropped"]
#[derive(Debug)]
pub struct CancelOnDrop {
    timeout: Timeout,
}

impl Deref for CancelOnDrop {
    type Target = Timeout;

    fn deref(&self) -> &Timeout {
        &self.timeout
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.timeout.cancel();
    }
}
