//! The runs of an alarm's task, and their end: `cancel`.

use super::Alarm;
use crate::cancel::{Cancel, CancelOnDrop, forward_cancel};
use crate::sync::{Ordering, thread_number};

/// In the state of an alarm: it was cancelled.
const CANCELLED: usize = 1 << 0;
/// In the state of an alarm: a thread waits until no run is left.
const AWAITED: usize = 1 << 1;
/// In the state of an alarm: one run.
const RUN: usize = 1 << 2;

impl Alarm {
    /// Ends the alarm permanently. Linux's `timer_shutdown`.
    ///
    /// From now on the alarm is not armed, and [`arm`](Self::arm) returns the error
    /// [`Cancelled`](crate::NewTimeoutError::Cancelled), even if the task or another thread calls
    /// it at this moment. No run begins any more, not even one that waits for the [task
    /// executor](crate::TaskExecutor). Returns true for exactly one caller, whether or not the
    /// alarm was armed.
    ///
    /// Takes effect before it returns. It does not wait for a run that has begun, as
    /// [`Periodic::cancel`](crate::Periodic::cancel): see
    /// [`cancel_and_wait`](Self::cancel_and_wait). The task itself may call it. The task is dropped
    /// on this thread, or at the end of its run.
    ///
    /// [`stop`](crate::HashedWheelTimer::stop) and
    /// [`cancel_all`](crate::HashedWheelTimer::cancel_all) disarm an alarm, and do not cancel it.
    ///
    /// # Examples
    ///
    /// A watchdog that arms itself, and ends with its owner:
    ///
    /// ```
    /// use hashed_wheel::{Alarm, HashedWheelTimer, NewTimeoutError};
    /// use std::time::Duration;
    ///
    /// struct Watchdog(Alarm);
    ///
    /// impl Watchdog {
    ///     fn start(timer: &HashedWheelTimer) -> Result<Self, NewTimeoutError> {
    ///         let second = Duration::from_secs(1);
    ///         let alarm = timer.new_alarm(move |alarm| {
    ///             println!("still here");
    ///             // An error here means that the watchdog or the timer has ended.
    ///             let _ = alarm.arm(second);
    ///         });
    ///         alarm.arm(second)?;
    ///         Ok(Self(alarm))
    ///     }
    /// }
    ///
    /// impl Drop for Watchdog {
    ///     fn drop(&mut self) {
    ///         self.0.cancel();
    ///     }
    /// }
    ///
    /// let timer = HashedWheelTimer::default();
    /// let watchdog = Watchdog::start(&timer)?;
    /// let alarm = watchdog.0.clone();
    /// drop(watchdog);
    /// assert!(alarm.is_cancelled() && !alarm.is_armed());
    /// assert_eq!(alarm.arm(Duration::ZERO), Err(NewTimeoutError::Cancelled));
    /// # Ok::<(), NewTimeoutError>(())
    /// ```
    #[doc(alias("timer_shutdown", "shutdown", "close"))]
    #[inline]
    pub fn cancel(&self) -> bool {
        let before = self.0.state.fetch_or(CANCELLED, Ordering::Release);
        self.disarm();
        let is_first = before & CANCELLED == 0;
        if is_first {
            // Drops the task.
            self.use_task();
        }
        is_first
    }

    /// [Cancels](Self::cancel) the alarm, and waits for a run that has begun. Linux's
    /// `timer_shutdown_sync`.
    ///
    /// Returns what `cancel` returns. When this returns, the task does not run, and will not run.
    /// This thread sees everything that the task did. So the data that the task uses may be freed.
    /// If another thread has cancelled the alarm, this does not wait until it has dropped the task.
    ///
    /// # Blocking
    ///
    /// If a run has begun, waits for its end. Do not hold a lock that the task takes.
    ///
    /// A task that calls this for its own alarm does not wait for itself: the call returns
    /// immediately.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let buffer = Arc::new([0; 512]);
    /// let used = Arc::clone(&buffer);
    /// let alarm = timer.new_alarm(move |_| println!("{} bytes", used.len()));
    /// alarm.arm(Duration::ZERO)?;
    /// assert!(alarm.cancel_and_wait());
    /// assert_eq!(Arc::strong_count(&buffer), 1);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("timer_shutdown_sync"))]
    #[inline]
    pub fn cancel_and_wait(&self) -> bool {
        let is_first = self.cancel();
        let shared = &*self.0;
        let is_mine = shared.runner.load(Ordering::Relaxed) == thread_number();
        // (No task runs in a child process.)
        if !is_mine && !shared.timer.thread.is_in_parent_process() {
            let is_over = || shared.state.fetch_or(AWAITED, Ordering::AcqRel) < RUN;
            shared.timer.run_waiters.wait_until(is_over);
        }
        is_first
    }

    /// Returns whether [`cancel`](Self::cancel) was called.
    ///
    /// # Examples
    ///
    /// See [`cancel`](Self::cancel).
    #[must_use]
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.state.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Turns the handle into a guard that [cancels](Self::cancel) the alarm when the guard is
    /// dropped, as [`Timeout::cancel_on_drop`](crate::Timeout::cancel_on_drop) does a timeout.
    ///
    /// The guard's own `disarm` gives the handle back. To disarm an alarm in a guard, call
    /// `Alarm::disarm(&guard)`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{Alarm, CancelOnDrop, HashedWheelTimer, NewTimeoutError};
    /// use std::time::Duration;
    ///
    /// struct Connection {
    ///     idle: CancelOnDrop<Alarm>,
    /// }
    ///
    /// impl Connection {
    ///     fn on_packet(&self) -> Result<(), NewTimeoutError> {
    ///         self.idle.arm(Duration::from_secs(60))
    ///     }
    /// }
    ///
    /// let timer = HashedWheelTimer::default();
    /// let idle = timer.new_alarm(|_| println!("idle")).cancel_on_drop();
    /// let connection = Connection { idle };
    /// connection.on_packet()?;
    /// assert!(Alarm::disarm(&connection.idle));
    /// connection.on_packet()?;
    /// drop(connection);
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn cancel_on_drop(self) -> CancelOnDrop<Self> {
        CancelOnDrop::new(self)
    }

    /// An arming has expired, or the alarm was cancelled: runs or drops the task, or leaves that to
    /// the thread that does so at present.
    #[inline]
    pub(super) fn use_task(&self) {
        let shared = &*self.0;
        let counters = &shared.timer.counters;
        let mut before = shared.state.fetch_add(RUN, Ordering::AcqRel);
        if before >= RUN {
            return;
        }
        loop {
            let mut task = shared.task.try_lock().expect("runs do not overlap");
            shared.runner.store(thread_number(), Ordering::Relaxed);
            match before & CANCELLED {
                0 => _ = counters.guard("in run", shared.name, || task.run(self)),
                _ => counters.guard_drop(shared.name, || task.drop_task()),
            }
            shared.runner.store(0, Ordering::Relaxed);
            // Before the next run may begin.
            drop(task);
            before = shared.state.fetch_sub(RUN, Ordering::AcqRel);
            if before < 2 * RUN {
                break;
            }
        }
        if before & AWAITED != 0 {
            shared.timer.run_waiters.wake_all();
        }
    }
}

impl Cancel for Alarm {
    forward_cancel!(Self);
}
