//! A handle that does not keep a timer from ending.

use std::fmt;

use crate::engine::Shared;
use crate::sync::{Arc, Weak};
use crate::timer::HashedWheelTimer;

/// A handle to a timer that does not keep it alive: `std::sync::Weak` of a
/// [`HashedWheelTimer`](crate::HashedWheelTimer).
///
/// For an object that a task of the timer owns, and that needs the timer. If it held a
/// [`HashedWheelTimer`], the two would keep each other: the last handle would never be dropped.
/// (A task itself needs neither: it gets its [`Timeout`](crate::Timeout), which has
/// [`timer`](crate::Timeout::timer).)
///
/// [`HashedWheelTimer::downgrade`] makes one. It costs what a `Weak` costs: nothing while it is
/// held, and two atomic operations for an [`upgrade`](Self::upgrade).
///
/// # Examples
///
/// A connection that its own timeout owns:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, WeakTimer};
/// use std::time::Duration;
///
/// struct Connection {
///     timer: WeakTimer,
/// }
///
/// impl Connection {
///     fn close(self) {
///         // An error, or no timer: the service ends.
///         let Some(timer) = self.timer.upgrade() else { return };
///         let _ = timer.new_timeout(|_| println!("closed for a minute"), Duration::from_secs(60));
///     }
/// }
///
/// let timer = HashedWheelTimer::default();
/// let connection = Connection { timer: timer.downgrade() };
/// timer.new_timeout(move |_| connection.close(), Duration::from_secs(30))?;
///
/// let weak = timer.downgrade();
/// drop(timer); // It is the last handle.
/// assert!(weak.upgrade().is_none());
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
#[derive(Clone)]
pub struct WeakTimer(Weak<Shared>);

impl HashedWheelTimer {
    /// Returns a handle that does not keep the timer from ending. `std::sync::Arc::downgrade`.
    ///
    /// # Examples
    ///
    /// See [`WeakTimer`].
    #[must_use]
    pub fn downgrade(&self) -> WeakTimer {
        WeakTimer(Arc::downgrade(&self.shared))
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
        Some(HashedWheelTimer::unless_ended(self.0.upgrade()?)).filter(HashedWheelTimer::counts)
    }
}

impl fmt::Debug for WeakTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakTimer")
    }
}
