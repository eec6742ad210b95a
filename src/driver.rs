//! A timer without a thread.

use std::fmt;
use std::time::Duration;

use crate::engine::Shared;
use crate::sync::Arc;

/// The worker of a timer in your own hands: [`Builder::build_driven`](crate::Builder::build_driven).
///
/// Nothing happens between two turns: an event loop calls [`turn`](Self::turn) and then sleeps no longer than
/// [`next_turn`](Self::next_turn); a test moves its [`ManualClock`](crate::ManualClock) and calls `turn`. Handles of the
/// timer go to any thread.
///
/// Dropping the driver [stops](crate::HashedWheelTimer::stop) the timer, or waits until who has stopped it has ended its
/// timeouts, their hooks called.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let (timer, mut driver) = HashedWheelTimer::builder().tick(Duration::from_millis(1)).build_driven()?;
/// let lease = timer.new_timeout(|_| println!("run out"), Duration::from_millis(20))?;
/// while let Some(wait) = driver.next_turn() {
///     std::thread::sleep(wait); // an event loop polls its sockets here, for at most so long
///     driver.turn();
/// }
/// assert!(lease.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A task of tokio's turns it like this. Then wakers of futures are called from within the runtime. One that has more to do than
/// it can serves last whom other threads wake, so that is better where a runtime is overloaded, with a tick of a millisecond, for
/// few to be woken at a time. Elsewhere a thread is more punctual, for tokio's timer, by which that task sleeps, is up to two
/// milliseconds late itself. The runtime needs that timer (`enable_time`), and not paused; when the runtime ends, so does ours.
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::{sync::Arc, time::Duration};
/// use tokio::{sync::{Notify, oneshot}, time::timeout};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let bell = Arc::new(Notify::new());
/// let ring = Arc::clone(&bell);
/// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
/// let (timer, mut driver) = builder.waker(move || ring.notify_one()).build_driven()?;
/// let turning = tokio::spawn(async move {
///     while !driver.is_stopped() {
///         driver.turn();
///         match driver.next_turn() {
///             Some(wait) => drop(timeout(wait, bell.notified()).await),
///             None => bell.notified().await,
///         }
///     }
/// });
///
/// let (over, is_over) = oneshot::channel();
/// timer.new_timeout(|_| drop(over.send(())), Duration::from_millis(20))?;
/// is_over.await?;
/// timer.stop();
/// turning.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Driver {
    shared: Arc<Shared>,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Runs every tick that is due, in order, and hands the tasks to the executor (by default runs them here, before this
    /// returns). Returns how many timeouts expired.
    ///
    /// Takes in at most 100 000 new timeouts; where more were waiting, [`next_turn`](Self::next_turn) says zero. A task
    /// that schedules another one with no delay is not held up by it: that one is for the next tick.
    ///
    /// An event loop had better turn first thing after it wakes: until then the timer takes it to be asleep, and what the
    /// loop itself schedules may call the [`waker`](crate::Builder::waker).
    ///
    /// On a stopped timer this does nothing; nor in a task that [`shutdown`](crate::HashedWheelTimer::shutdown) runs, which
    /// is a turn itself.
    pub fn turn(&mut self) -> usize {
        if self.shared.waker.is_some() {
            // Nobody has to wake who is awake.
            self.shared.state.wake();
        }
        self.shared.turn()
    }

    /// How long until [`turn`](Self::turn) has work: zero if it has some now, if only to take in what was cancelled; `None` if
    /// nothing is pending, or nothing that will be due: a deadline too far to represent, or a periodic task that the executor
    /// has, whose end calls the waker.
    ///
    /// Never too long for what the timer knows now. It is too short, and a turn in vain, if the earliest timeout was cancelled
    /// or re-armed to a later deadline, or where [`HashedWheel::next_deadline`](crate::wheel::HashedWheel::next_deadline)
    /// is a lower bound. A `new_timeout` or `reset` that follows may need an earlier turn: if other threads do that, or tasks
    /// elsewhere, give the builder a [`waker`](crate::Builder::waker), which is called then.
    ///
    /// Each answer takes the place of the one before: a loop has to sleep by the last one that anybody got.
    ///
    /// `None` on a stopped timer too, so a loop should look at [`is_stopped`](Self::is_stopped); and where
    /// [`turn`](Self::turn) does nothing.
    #[must_use]
    pub fn next_turn(&self) -> Option<Duration> {
        if self.shared.turns_no_more() {
            return None;
        }
        let next = self.shared.worker.lock().next_turn(&self.shared)?;
        // The time as it is now: to take in what has come may have taken some.
        Some(self.shared.ticks.until(next, self.shared.time.now()))
    }

    /// Whether the timer is stopped: what a loop should look at. See
    /// [`HashedWheelTimer::is_stopped`](crate::HashedWheelTimer::is_stopped).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.state.snapshot().is_stopped()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(waker) = &self.shared.waker {
            // There is no loop any more.
            waker.set_unused();
        }
        self.shared.stop_from_anywhere();
        // If a task stopped the timer, nobody else comes for it. If somebody else did, they do; also for a task that has
        // just done so by dropping this.
        if self.shared.worker.is_abandoned() && !self.shared.worker.is_held_by_this_thread() {
            self.shared.drop_executor();
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.debug("Driver", f)
    }
}
