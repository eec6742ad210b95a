//! A handle that does not keep a timer from ending.

use std::fmt;

use crate::engine::Inner;
use crate::sync::{Arc, Weak};
use crate::timer::HashedWheelTimer;

/// A handle to a timer that does not keep it alive: `std::sync::Weak` of a [`HashedWheelTimer`].
///
/// For a task, or an object that a task owns, that needs the timer. If it held a
/// [`HashedWheelTimer`], the two would keep each other: the last handle would never be dropped.
/// (A task that runs once needs neither: it gets its [`Timeout`](crate::Timeout), which has
/// [`timer`](crate::Timeout::timer).)
///
/// [`HashedWheelTimer::downgrade`] makes one. [`upgrade`](Self::upgrade) costs two atomic
/// operations. As a `std::sync::Weak` does, it keeps the timer's own struct in memory. It keeps no
/// thread, no wheel and no task.
///
/// # Examples
///
/// A periodic task that schedules timeouts:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let second = Duration::from_secs(1);
///
/// let weak = timer.downgrade();
/// let ping = move || {
///     // No timer, or an error: the service ends.
///     let Some(timer) = weak.upgrade() else { return };
///     let _ = timer.new_timeout(|_| println!("no answer"), second * 5);
/// };
/// timer.schedule_at_fixed_rate(ping, second, second)?;
/// clock.advance(second);
/// driver.turn();
/// assert_eq!(timer.pending_timeouts(), 2); // the next run, and the timeout of this one
///
/// let weak = timer.downgrade();
/// drop(timer); // It is the last handle: the timer ends.
/// assert!(weak.upgrade().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct WeakTimer(Weak<Inner>);

impl HashedWheelTimer {
    /// Returns a handle that does not keep the timer from ending. `std::sync::Arc::downgrade`.
    ///
    /// # Examples
    ///
    /// See [`WeakTimer`].
    #[must_use]
    pub fn downgrade(&self) -> WeakTimer {
        WeakTimer(Arc::downgrade(&self.inner))
    }
}

impl WeakTimer {
    /// Returns a handle to the timer, or `None` if the last one has been dropped.
    /// `std::sync::Weak::upgrade`.
    ///
    /// The handle keeps the timer from ending, as any other. It may be the handle of a timer that
    /// is [stopped](HashedWheelTimer::is_stopped) already: a call of `stop` does not drop handles.
    ///
    /// # Examples
    ///
    /// See [`WeakTimer`].
    #[must_use]
    pub fn upgrade(&self) -> Option<HashedWheelTimer> {
        let timer = HashedWheelTimer::unless_ended(self.0.upgrade()?);
        timer.counts.then_some(timer)
    }
}

impl fmt::Debug for WeakTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakTimer")
    }
}
