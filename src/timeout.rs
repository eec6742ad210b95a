//! The handle to one timeout.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};
use std::{fmt, ptr};

use crate::cancel::{Cancel, CancelOnDrop, forward_cancel};
use crate::engine::{self, Inner, Timeout};
use crate::node::End;
use crate::ticks::DEADLINE_RUNNING;
use crate::timer::HashedWheelTimer;

impl Timeout {
    /// Returns a handle to the timer.
    ///
    /// If the last handle has been dropped, the timer of the returned handle is stopped, or about
    /// to be.
    ///
    /// A task should call this instead of capturing a clone of the handle. A captured clone keeps
    /// the timer running until the task ends.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let second = Duration::from_secs(1);
    /// timer.new_timeout(
    ///     move |timeout| {
    ///         // Schedules a second step. An error means that the timer is stopped.
    ///         let _ = timeout.timer().new_timeout(|_| println!("done"), second);
    ///     },
    ///     second,
    /// )?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn timer(&self) -> HashedWheelTimer {
        HashedWheelTimer::unless_ended(self.handle.to_arc())
    }

    /// Cancels the timeout, if it has not ended. Netty's `cancel`.
    ///
    /// Returns true for exactly one caller, and then the task never runs. Returns false if the task
    /// was handed to the executor before, or if the timeout was cancelled before.
    ///
    /// # When it returns true
    ///
    /// - The task has been dropped on this thread, and its
    ///   [`cancelled`](crate::TimerTask::cancelled) hook called: unless the worker is asking it
    ///   whether it [postpones](crate::TimerTask::postpone) itself, and does that afterwards.
    /// - [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts) has fallen.
    /// - The place under the [limit](crate::Builder::max_pending_timeouts) is free.
    ///
    /// All of this holds even while the worker is stuck in a slow task.
    ///
    /// # Memory
    ///
    /// If this thread has scheduled the timeout a short time ago, and the worker has not seen it,
    /// the memory is free immediately, except for a message of 8 bytes. Otherwise the entry stays
    /// in the wheel until the worker's next turn: at most a second with a thread. A
    /// [`Driver`](crate::Driver)'s loop is woken for it after some thousands of cancellations.
    ///
    /// A task that blocks the worker prevents its next turn. Meanwhile each timeout that was
    /// cancelled immediately keeps its 8 bytes, and each other one about 115 bytes. They are free
    /// after that turn. Feature `tracing` warns of this if it becomes much:
    /// [`Stats::cancelled_not_reclaimed`](crate::Stats::cancelled_not_reclaimed).
    ///
    /// # Blocking
    ///
    /// Takes no lock that is held while user code runs. If the worker thread has to be woken, takes
    /// the lock of its parker for a moment. Waits for nothing else except the task's own `Drop`,
    /// which may stop a timer whose last handle the task holds.
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
    #[doc(alias("clearTimeout", "Stop", "abort"))]
    pub fn cancel(&self) -> bool {
        self.handle.timer().cancel(self)
    }

    /// Cancels the timeout, or waits until its task is over. Linux's `timer_delete_sync`.
    ///
    /// Returns what [`cancel`](Self::cancel) returns. When this returns, the task does not run, and
    /// will not run. This thread sees everything that the task did. So the data that `run` uses may
    /// be freed.
    ///
    /// If the timeout can be cancelled, this call behaves like `cancel` and does not wait, unless
    /// the worker [asks](crate::TimerTask::postpone) the task at that moment. If another thread has
    /// cancelled it, this does not wait for that thread's `cancelled` hook.
    ///
    /// # Blocking
    ///
    /// If the task was handed over before, the call waits:
    ///
    /// - for the end of the turn that the worker is in, if the timer has no [task
    ///   executor](crate::Builder::task_executor). A worker with much to do may begin further turns
    ///   before this thread gets its turn.
    /// - until the executor has run or dropped the task, otherwise. That includes the time that the
    ///   task waits in a pool.
    ///
    /// Do not wait on a thread that has to run the task, or the call never returns: the only thread
    /// of the pool in whose queue the task waits, or a loop that keeps tasks to run them later.
    ///
    /// Do not hold a lock that the task takes. The thread that turns a [`Driver`](crate::Driver)
    /// should not wait for a task that itself waits for a turn, for example a refused task that a
    /// timeout of this timer will retry.
    ///
    /// # From a task
    ///
    /// A task that calls this for its own timeout does not wait for itself: the call returns
    /// immediately. On the worker no other task of the worker can be running, so there the call
    /// waits only for tasks that an executor has. Do not wait there for a refused task that a
    /// timeout of this timer will retry, nor for a task within whose `run` this one runs, on the
    /// same thread.
    ///
    /// # Panics
    ///
    /// If a task executor calls it within [`execute`](crate::TaskExecutor::execute), for the task
    /// that it was given and that is not over. (A periodic task is cancelled then.)
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let buffer = Arc::new(Mutex::new(vec![1, 2, 3]));
    /// let used = Arc::clone(&buffer);
    /// let flush = timer.new_timeout(move |_| used.lock().unwrap().clear(), Duration::from_secs(5))?;
    ///
    /// flush.cancel_and_wait();
    /// // Neither the task nor the timer has the buffer any more.
    /// assert_eq!(Arc::strong_count(&buffer), 1);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("timer_delete_sync", "del_timer_sync"))]
    pub fn cancel_and_wait(&self) -> bool {
        let is_cancelled = self.cancel();
        self.handle.timer().wait_for_run(self);
        is_cancelled
    }

    /// Returns whether [`cancel`](Self::cancel), [`stop`](crate::HashedWheelTimer::stop) or another
    /// end of the timer ended the timeout. Netty's `isCancelled`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| (), Duration::from_secs(30))?;
    /// timer.stop();
    /// assert!(lease.is_cancelled() && !lease.is_expired());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    #[doc(alias("isCancelled"))]
    pub fn is_cancelled(&self) -> bool {
        self.handle.end() == Some(End::Cancelled)
    }

    /// Returns whether the task was handed to the executor: it is about to run, runs, or has run.
    /// Netty's `isExpired`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let lease = timer.new_timeout(|_| (), Duration::from_secs(30))?;
    /// clock.advance(Duration::from_secs(30));
    /// driver.turn();
    /// assert!(lease.is_expired() && !lease.is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[doc(alias("isExpired"))]
    pub fn is_expired(&self) -> bool {
        self.handle.end() == Some(End::Expired)
    }

    /// Re-arms the timeout: it is now due `delay` from now, earlier or later than before.
    ///
    /// Returns false, and changes nothing, if the timeout has expired or was cancelled, or if its
    /// task is [periodic](crate::Periodic). (An executor has [such a
    /// timeout](crate::ExpiredTask::timeout).)
    ///
    /// When it returns true, the task runs at the new deadline and not before. The task sees
    /// everything that this thread did before the call.
    ///
    /// # Order
    ///
    /// Timeouts that one thread schedules for the same tick fire in that order. For a timeout that
    /// was re-armed there is no such promise: it may fire before or after others of its new tick.
    /// If it was re-armed to a later deadline, the worker moves it when the earlier one comes, so
    /// it usually fires after those that were scheduled in between. If it was re-armed to an
    /// earlier deadline, it fires after those that were scheduled before the call; but if the
    /// worker had not taken it in yet, it keeps its place among those that this thread has
    /// scheduled.
    ///
    /// # Cost
    ///
    /// A later deadline costs one clock read and one compare-exchange, and takes no lock. An
    /// earlier deadline goes to the worker as a new timeout does: it may wake the worker thread, or
    /// call the waker of a driven timer.
    ///
    /// Netty has no such method: `IdleStateHandler` lets the timeout fire and schedules the rest.
    ///
    /// # Blocking
    ///
    /// Does not wait, unless the worker asks the task at that moment whether it [postpones
    /// itself](crate::TimerTask::postpone). Then it waits for the answer: do not hold a lock that
    /// the task takes for that.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let idle = timer.new_timeout(|_| println!("closed: idle"), Duration::from_secs(60))?;
    /// // For each packet:
    /// if !idle.reset(Duration::from_secs(60)) {
    ///     println!("too late: the connection is being closed");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("reschedule", "touch", "rearm", "mod_timer", "refresh"))]
    #[must_use = "false: the timeout was not re-armed"]
    pub fn reset(&self, delay: Duration) -> bool {
        let timer = self.handle.timer();
        // The cache miss on the node overlaps with reading the clock.
        self.handle.prefetch();
        timer.reset(self, timer.clock.deadline_after(delay), || ())
    }

    /// Re-arms the timeout: it is now due at `deadline`, earlier or later than before.
    ///
    /// This is [`reset`](Self::reset) with a deadline instead of a delay, and otherwise the same.
    /// The deadline is converted as by [`new_timeout_at`](crate::HashedWheelTimer::new_timeout_at).
    /// If it has passed, the task runs at the next tick boundary.
    ///
    /// With the default clock this reads no clock, so it suits a loop that has read the time
    /// already.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let begin = timer.now();
    /// let late = timer.new_timeout_at(|_| println!("too slow"), begin + Duration::from_secs(5))?;
    /// // The server asks for more time:
    /// assert!(late.reset_at(begin + Duration::from_secs(60)));
    /// assert_eq!(late.deadline(), begin + Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("reschedule", "rearm"))]
    #[must_use = "false: the timeout was not re-armed"]
    pub fn reset_at(&self, deadline: Instant) -> bool {
        let timer = self.handle.timer();
        timer.reset(self, timer.clock.at(deadline), || ())
    }

    /// Returns when the timeout is due. `tokio::time::Sleep::deadline`, and Netty's `deadline`.
    /// This is not before the timer was built.
    ///
    /// The task runs up to one tick later. A cancelled timeout keeps its deadline. A deadline too
    /// far away to represent never comes. It is returned as 146 years after the timer was built, or
    /// 30 years on a platform whose `Instant` ends before that.
    ///
    /// With the default clock the result changes only by a reset. With a clock that [converts by
    /// the present](crate::Clock::instant_at), it also changes if that clock is faster or slower
    /// than the machine's.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let before = timer.now();
    /// let timeout = timer.new_timeout(|_| (), Duration::from_secs(5))?;
    /// assert!(timeout.deadline() >= before + Duration::from_secs(5));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let time = &self.handle.timer().clock;
        match self.handle.deadline() {
            DEADLINE_RUNNING => time.instant_now(),
            deadline => time.instant_of(deadline),
        }
    }

    /// Returns the time left until the deadline, to a microsecond.
    ///
    /// Returns zero once the timeout is due, and `Duration::MAX` if it never will be. The task runs
    /// up to one tick after the deadline. A cancelled timeout keeps its deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let timeout = timer.new_timeout(|_| (), Duration::from_secs(5))?;
    /// assert!(timeout.remaining() > Duration::from_secs(4));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    #[doc(alias("getDelay"))]
    pub fn remaining(&self) -> Duration {
        match self.handle.deadline() {
            DEADLINE_RUNNING => Duration::ZERO,
            deadline => self.handle.timer().clock.remaining(deadline),
        }
    }

    /// Cancels many timeouts and drops their handles. Returns how many it has cancelled.
    ///
    /// Each ends as by [`cancel_and_drop`](Cancel::cancel_and_drop). If they are not in the
    /// processor's cache, this takes a quarter to a third of the time: they are prefetched in
    /// groups. They may be of any timers, and in any state.
    ///
    /// A group is up to 64 timeouts in a row. It is taken from the iterator first. Then all of it
    /// are cancelled, and after that the hooks are called and the tasks dropped, in order. If the
    /// iterator panics, the timeouts that it has returned before are cancelled.
    ///
    /// # Examples
    ///
    /// A connection is lost, with all of its requests:
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, Timeout};
    /// # use std::collections::HashMap;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let mut requests = HashMap::new();
    /// for id in 0..1_000 {
    ///     requests.insert(id, timer.new_timeout(|_| println!("late"), Duration::from_secs(5))?);
    /// }
    /// assert_eq!(Timeout::cancel_each(requests.into_values()), 1_000);
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel_each(timeouts: impl IntoIterator<Item = Self>) -> usize {
        engine::cancel_each(timeouts)
    }

    /// Re-arms many timeouts: they are now due at `deadline`. Returns how many it has re-armed.
    ///
    /// Each moves as by [`reset_at`](Self::reset_at). If they are not in the processor's cache,
    /// this takes a fifth of the time or less: they are prefetched in groups of up to 64, as by
    /// [`cancel_each`](Self::cancel_each). They may be of any timers, and in any state.
    ///
    /// # Examples
    ///
    /// An event loop has got a packet on each of these connections:
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, Timeout};
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let idle = || timer.new_timeout(|_| println!("closed: idle"), Duration::from_secs(60));
    /// let connections = [idle()?, idle()?, idle()?];
    /// let ready = [2, 0];
    ///
    /// let deadline = timer.now() + Duration::from_secs(60);
    /// let timeouts = ready.iter().map(|&socket| &connections[socket]);
    /// assert_eq!(Timeout::reset_each(timeouts, deadline), 2);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn reset_each<'a>(
        timeouts: impl IntoIterator<Item = &'a Self>,
        deadline: Instant,
    ) -> usize {
        engine::reset_each(timeouts, deadline)
    }

    /// Turns the handle into a guard that cancels the timeout when the guard is dropped. See
    /// [`CancelOnDrop`].
    pub fn cancel_on_drop(self) -> CancelOnDrop {
        CancelOnDrop::new(self)
    }
}

impl Cancel for Timeout {
    fn cancel_and_drop(self) -> bool {
        Inner::discard(self)
    }

    forward_cancel!(Self);
}

/// Compares by identity.
impl PartialEq for Timeout {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.handle.as_ptr(), other.handle.as_ptr())
    }
}

impl Eq for Timeout {}

/// Hashes by identity.
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
        // An ended timeout has no remaining time that matters.
        if state == "pending" {
            match self.remaining() {
                Duration::MAX => timeout.field("remaining", &format_args!("forever")),
                remaining => timeout.field("remaining", &remaining),
            };
        }
        timeout
            .field("task", &format_args!("{}", self.handle.name()))
            .finish_non_exhaustive()
    }
}
