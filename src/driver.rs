//! A timer without a thread.

use std::fmt;
use std::time::Duration;

use crate::engine::Inner;
use crate::sync::{Arc, Ordering};

/// The worker of a timer that has no thread:
/// [`Builder::build_driven`](crate::Builder::build_driven).
///
/// Nothing happens between two turns. An event loop calls [`turn`](Self::turn), and then sleeps no
/// longer than [`next_turn`](Self::next_turn) says. A test advances its
/// [`ManualClock`](crate::ManualClock) and calls `turn`. Handles of the timer can be used on any
/// thread.
///
/// Dropping the driver [stops](crate::HashedWheelTimer::stop) the timer. If another thread has
/// stopped it, the drop waits until that thread has ended the timeouts and called their hooks.
///
/// # Examples
///
/// An event loop:
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
/// let (timer, mut driver) = builder.build_driven()?;
/// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_millis(20))?;
/// while let Some(wait) = driver.next_turn() {
///     std::thread::sleep(wait); // an event loop polls its sockets here, for at most this time
///     driver.turn();
/// }
/// assert!(lease.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # On tokio
///
/// A task of a tokio runtime can turn the timer: `tokio::build_on` of the crate hashed-wheel-util
/// builds the timer and spawns that task, over
/// [`build_hosted`](crate::Builder::build_hosted).
#[doc(alias("EventLoop"))]
pub struct Driver {
    pub(crate) inner: Arc<Inner>,
}

impl Driver {
    /// Runs every tick that is due, in order. Returns how many timeouts expired.
    ///
    /// Hands each expired task to the [task executor](crate::Builder::task_executor). Without one
    /// it runs the tasks on this thread, before it returns. A task that schedules another with no
    /// delay does not prolong the turn: the new one is for the next tick.
    ///
    /// A turn drains at most 100 000 messages. Messages of all kinds count: new timeouts,
    /// cancellations, resets. If more are waiting, [`next_turn`](Self::next_turn) returns zero.
    ///
    /// An event loop should turn as soon as it wakes. Until then the timer takes the loop to be
    /// asleep, and what the loop itself schedules may call the [`waker`](crate::Builder::waker).
    ///
    /// This does nothing on a stopped timer. It also does nothing in a task that
    /// [`shutdown`](crate::HashedWheelTimer::shutdown) runs, because that is a turn already.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = HashedWheelTimer::builder().clock(clock.clone());
    /// let (timer, mut driver) = builder.build_driven()?;
    /// timer.new_timeout(|_| (), Duration::from_secs(5))?;
    ///
    /// clock.advance(Duration::from_secs(4));
    /// assert_eq!(driver.turn(), 0);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(driver.turn(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("poll", "advance", "tick"))]
    pub fn turn(&mut self) -> usize {
        self.set_awake();
        self.inner.turn(self.inner.max_tasks_per_turn)
    }

    /// Does what [`turn`](Self::turn) does, but runs at most `n` tasks. Returns how many timeouts
    /// expired. Agrona's `poll` with an `expiryLimit`.
    ///
    /// An event loop that has other work uses this to bound the time that it spends on timeouts. If
    /// more is due, [`next_turn`](Self::next_turn) returns zero, and the next turn continues there:
    /// timeouts fire in the same order as in one `turn`, except those that were reset, and those
    /// that tasks schedule meanwhile. A timeout that is due and has not run yet can be cancelled
    /// and reset as ever. What is scheduled in between fires in its place, by tick.
    ///
    /// With a [task executor](crate::Builder::task_executor), `n` limits how many tasks are handed
    /// to it. A timeout that was [reset](crate::Timeout::reset) to a later deadline does not count
    /// when it is moved, nor does a question whether a task
    /// [postpones](crate::TimerTask::postpone) itself. A turn drains as many messages as `turn`
    /// does. With `n` of zero the turn only drains messages.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = HashedWheelTimer::builder().clock(clock.clone());
    /// let (timer, mut driver) = builder.build_driven()?;
    /// for _ in 0..5 {
    ///     timer.new_timeout(|_| (), Duration::from_secs(1))?;
    /// }
    ///
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(driver.turn_at_most(3), 3);
    /// assert_eq!(driver.next_turn(), Some(Duration::ZERO)); // more is due
    /// assert_eq!(driver.turn_at_most(3), 2);
    /// assert_eq!(driver.next_turn(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn turn_at_most(&mut self, n: usize) -> usize {
        self.set_awake();
        self.inner.turn(n)
    }

    /// The loop is awake: no thread has to wake it.
    fn set_awake(&self) {
        if self.inner.waker.is_some() {
            self.inner.state.wake();
        }
    }

    /// Returns how long it is until [`turn`](Self::turn) has work.
    ///
    /// Returns zero if there is work now, which may be only to process a cancellation. So it does
    /// if [`turn_at_most`](Self::turn_at_most) has left something that is due. Returns at most two
    /// seconds while there is memory of a burst to return to the operating system.
    ///
    /// Otherwise returns `None` if nothing is pending, or nothing that will become due: a deadline
    /// too far away to represent, or a periodic task that is with the task executor (the end of its
    /// run calls the waker). Also returns `None` on a stopped timer, so a loop should check
    /// [`is_stopped`](Self::is_stopped), and in the other cases in which `turn` does nothing.
    ///
    /// # Accuracy
    ///
    /// The time is never too long for what the timer knows now. It may be too short, so that the
    /// turn finds nothing due: if the earliest timeout was cancelled or re-armed to a later
    /// deadline, or where [`HashedWheel::next_deadline`](crate::wheel::HashedWheel::next_deadline)
    /// is only a lower bound.
    ///
    /// If the [clock](crate::Clock::now) has stepped back, the time is at most 50 ms.
    ///
    /// A later `new_timeout` or `reset` may need an earlier turn. If other threads or other tasks
    /// call these, give the builder a [`waker`](crate::Builder::waker), which is called in this
    /// case.
    ///
    /// Each answer replaces the one before. The loop has to sleep by the latest answer, no matter
    /// which caller received it.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(10));
    /// let (timer, driver) = builder.clock(ManualClock::new()).build_driven()?;
    /// assert_eq!(driver.next_turn(), None);
    /// timer.new_timeout(|_| (), Duration::from_millis(25))?;
    /// assert_eq!(driver.next_turn(), Some(Duration::from_millis(30)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn next_turn(&self) -> Option<Duration> {
        self.inner.next_turn()
    }

    /// Returns whether the timer is stopped. An event loop checks this to end. See
    /// [`HashedWheelTimer::is_stopped`](crate::HashedWheelTimer::is_stopped).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inner.state.snapshot().is_stopped()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inner.is_driver_gone.store(true, Ordering::Relaxed);
        self.inner.stop_on_any_thread();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.debug("Driver", f)
    }
}
