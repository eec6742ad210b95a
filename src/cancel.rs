//! Cancellation, by a call or a guard, for timeouts, periodic tasks and alarms alike.

use std::fmt;
use std::ops::Deref;

use crate::engine::Timeout;

/// A handle to something that the timer will run, and that can be cancelled: a [`Timeout`], a
/// [`Periodic`] or an [`Alarm`].
///
/// For code that keeps several kinds, such as an actor's timers, in one collection of `Box<dyn
/// Cancel>`. The methods are those of the types themselves. A wrapper of yours may implement it
/// too, so that [`CancelOnDrop`] takes it.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{Cancel, HashedWheelTimer};
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::default();
/// let second = Duration::from_secs(1);
/// let of_the_session: Vec<Box<dyn Cancel>> = vec![
///     Box::new(timer.new_timeout(|_| println!("idle"), second * 60)?),
///     Box::new(timer.schedule_at_fixed_rate(|| println!("alive"), second, second)?),
/// ];
/// assert!(of_the_session.iter().all(|task| task.cancel()));
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
///
/// [`Alarm`]: crate::Alarm
/// [`Periodic`]: crate::Periodic
#[doc(alias("Cancellable"))]
pub trait Cancel {
    /// Cancels it, if it has not ended: [`Timeout::cancel`], [`Periodic::cancel`],
    /// [`Alarm::cancel`]. Returns true for exactly one caller.
    ///
    /// [`Alarm::cancel`]: crate::Alarm::cancel
    /// [`Periodic::cancel`]: crate::Periodic::cancel
    fn cancel(&self) -> bool;

    /// Cancels it, and drops the handle. Returns what [`cancel`](Self::cancel) returns.
    ///
    /// For the last handle of a [`Timeout`] or of a [`Periodic`] this is faster than the two one
    /// after the other: it takes one pass through what the thread caches, and they take two.
    /// [`CancelOnDrop`] cancels in this way. By default it is the two.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{Cancel, HashedWheelTimer};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let deadline = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5))?;
    /// assert!(deadline.cancel_and_drop());
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    ///
    /// [`Periodic`]: crate::Periodic
    fn cancel_and_drop(self) -> bool
    where
        Self: Sized,
    {
        self.cancel()
    }

    /// Cancels it, and waits until its task does not run: [`Timeout::cancel_and_wait`],
    /// [`Periodic::cancel_and_wait`], [`Alarm::cancel_and_wait`]. Returns what
    /// [`cancel`](Self::cancel) returns.
    ///
    /// [`Alarm::cancel_and_wait`]: crate::Alarm::cancel_and_wait
    /// [`Periodic::cancel_and_wait`]: crate::Periodic::cancel_and_wait
    fn cancel_and_wait(&self) -> bool;

    /// Returns whether it was cancelled: [`Timeout::is_cancelled`], [`Periodic::is_cancelled`],
    /// [`Alarm::is_cancelled`].
    ///
    /// [`Alarm::is_cancelled`]: crate::Alarm::is_cancelled
    /// [`Periodic::is_cancelled`]: crate::Periodic::is_cancelled
    fn is_cancelled(&self) -> bool;
}

/// The methods of [`Cancel`] that a type has itself.
macro_rules! forward_cancel {
    ($to:ty) => {
        #[inline]
        fn cancel(&self) -> bool {
            <$to>::cancel(self)
        }

        #[inline]
        fn cancel_and_wait(&self) -> bool {
            <$to>::cancel_and_wait(self)
        }

        #[inline]
        fn is_cancelled(&self) -> bool {
            <$to>::is_cancelled(self)
        }
    };
}
pub(crate) use forward_cancel;

impl<T: Cancel + ?Sized> Cancel for Box<T> {
    forward_cancel!(T);
}

/// A guard that cancels its timeout, its periodic task or its alarm when it is dropped:
/// [`Timeout::cancel_on_drop`], [`Periodic::cancel_on_drop`], [`Alarm::cancel_on_drop`].
/// tokio-util's `DropGuard`.
///
/// It dereferences to the handle; [`disarm`](Self::disarm) gives the handle back. A task that runs
/// at the drop continues.
///
/// The task is dropped with the guard. If the task owns another guard, that one is dropped within
/// this drop, and so on, as in a list of `Box`es. Each link of such a chain uses stack: on a thread
/// of 2 MiB a chain of 4 000 guards of timeouts can be dropped in a release build, and one of
/// 20 000 cannot; in a debug build one of 1 000 can, and one of 4 000 cannot. Of guards of periodic
/// tasks, half as many can in a debug build.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use std::time::Duration;
/// # let timer = HashedWheelTimer::default();
/// {
///     let deadline = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5))?;
///     let _guard = deadline.cancel_on_drop();
///     // … work that may return early …
/// }
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Alarm::cancel_on_drop`]: crate::Alarm::cancel_on_drop
/// [`Periodic::cancel_on_drop`]: crate::Periodic::cancel_on_drop
#[must_use = "dropping this guard cancels"]
#[doc(alias("DropGuard", "ScopeGuard"))]
pub struct CancelOnDrop<T: Cancel = Timeout> {
    /// `None` once [`disarm`](Self::disarm) or the drop has taken it.
    handle: Option<T>,
}

impl<T: Cancel> CancelOnDrop<T> {
    /// Makes a guard, as the method `cancel_on_drop` of these types does.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{Cancel, CancelOnDrop, HashedWheelTimer};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let either: Box<dyn Cancel> = Box::new(timer.new_timeout(|_| (), Duration::from_secs(5))?);
    /// drop(CancelOnDrop::new(either));
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub const fn new(handle: T) -> Self {
        Self {
            handle: Some(handle),
        }
    }

    /// Returns the handle, and cancels nothing. tokio-util's `DropGuard::disarm`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// let guard = timer.new_timeout(|_| println!("log in again"), Duration::from_secs(60))?.cancel_on_drop();
    /// // … a login that may fail …
    /// let session = guard.disarm();
    /// assert!(!session.is_cancelled());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use = "the handle"]
    pub fn disarm(mut self) -> T {
        match self.handle.take() {
            Some(handle) => handle,
            None => unreachable!("only this call takes the handle"),
        }
    }
}

impl<T: Cancel> Deref for CancelOnDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.handle
            .as_ref()
            .expect("only `disarm` takes the handle")
    }
}

impl<T: Cancel> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.cancel_and_drop();
        }
    }
}

impl<T: Cancel + fmt::Debug> fmt::Debug for CancelOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelOnDrop").field(&**self).finish()
    }
}
