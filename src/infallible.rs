//! A handle to a timer whose calls cannot fail.

#[cfg(feature = "async")]
use std::ops::{Deref, DerefMut};
#[cfg(feature = "async")]
use std::pin::Pin;
#[cfg(feature = "async")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::engine::Timeout;
use crate::error::NewTimeoutError;
#[cfg(feature = "async")]
use crate::future::Sleep;
use crate::task::schedule_closure_or_cancel;
use crate::timer::HashedWheelTimer;

/// A handle to a timer that is never stopped, and has no limit: so its calls return no `Result`. As
/// `tokio::time::sleep`, and Go's `time.AfterFunc`.
///
/// [`HashedWheelTimer::infallible`] makes one, and is the call that can fail. Like any handle, it
/// keeps the timer from ending.
///
/// # If the timer ends anyway
///
/// Other handles to the same timer can [stop](HashedWheelTimer::stop) it, and a [driver can be
/// dropped](crate::Driver). A child process that is [forked](HashedWheelTimer#after-fork) has no
/// worker. What is scheduled then is cancelled at once: a [`Timeout`] that
/// [is cancelled](Timeout::is_cancelled), whose task was dropped, and a [sleep](Self::sleep) that
/// never completes. In [`Stats`](crate::Stats) it counts as rejected.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::global().infallible()?;
/// let late = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5));
/// // … the work …
/// assert!(late.cancel());
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
#[derive(Debug, Clone)]
pub struct InfallibleTimer(HashedWheelTimer);

impl HashedWheelTimer {
    /// Starts the timer, and returns a handle whose calls cannot fail. For a timer that no code is
    /// going to stop.
    ///
    /// # Errors
    ///
    /// - As for [`start`](Self::start), which this calls.
    /// - [`TooManyPending`](NewTimeoutError::TooManyPending) if the timer has a
    ///   [limit](crate::Builder::max_pending_timeouts), however many timeouts are pending.
    ///
    /// # Examples
    ///
    /// See [`InfallibleTimer`].
    #[inline]
    pub fn infallible(&self) -> Result<InfallibleTimer, NewTimeoutError> {
        if let Some(limit) = &self.inner.limit {
            return Err(NewTimeoutError::TooManyPending {
                limit: limit.most as usize,
            });
        }
        self.start()?;
        Ok(InfallibleTimer(self.clone()))
    }
}

// As with alarms, all of it is compiled in the crates that use it.
impl InfallibleTimer {
    /// Schedules `task` to run once, `delay` from now:
    /// [`HashedWheelTimer::new_timeout`], without a `Result`.
    ///
    /// If the timer has ended, the returned timeout is cancelled, and the task was dropped.
    ///
    /// # Examples
    ///
    /// See [`InfallibleTimer`].
    #[inline]
    pub fn new_timeout<F>(&self, task: F, delay: Duration) -> Timeout
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        schedule_closure_or_cancel(&self.0.inner, task, self.0.inner.deadline_after(delay))
    }

    /// Schedules `task` to run once, at `deadline`: [`HashedWheelTimer::new_timeout_at`], without a
    /// `Result`.
    ///
    /// If the timer has ended, the returned timeout is cancelled, and the task was dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::global().infallible()?;
    /// let deadline = timer.timer().now() + Duration::from_secs(5);
    /// let late = timer.new_timeout_at(|_| println!("too slow"), deadline);
    /// assert!(late.cancel());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn new_timeout_at<F>(&self, task: F, deadline: Instant) -> Timeout
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        schedule_closure_or_cancel(&self.0.inner, task, self.0.inner.deadline_at(deadline))
    }

    /// Returns a future that is ready `delay` from now: [`HashedWheelTimer::sleep`], whose output
    /// is `()`. `tokio::time::sleep`.
    ///
    /// If the timer ends before, the future never completes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::InfallibleTimer;
    /// # use std::time::Duration;
    /// async fn retry(timer: &InfallibleTimer) {
    ///     for attempt in 0..5 {
    ///         // … return if it works …
    ///         timer.sleep(Duration::from_millis(100) * (1 << attempt)).await;
    ///     }
    /// }
    /// ```
    #[cfg(feature = "async")]
    #[inline]
    pub fn sleep(&self, delay: Duration) -> InfallibleSleep {
        InfallibleSleep(self.0.sleep(delay))
    }

    /// Returns a future that is ready at `deadline`: [`HashedWheelTimer::sleep_until`], whose
    /// output is `()`. `tokio::time::sleep_until`.
    ///
    /// If the timer ends before, the future never completes.
    ///
    /// # Examples
    ///
    /// As for [`sleep`](Self::sleep).
    #[cfg(feature = "async")]
    #[inline]
    pub fn sleep_until(&self, deadline: Instant) -> InfallibleSleep {
        InfallibleSleep(self.0.sleep_until(deadline))
    }

    /// Returns the timer, for all that is not here.
    #[must_use]
    #[inline]
    pub fn timer(&self) -> &HashedWheelTimer {
        &self.0
    }
}

/// A [`Sleep`] whose output is `()`: [`InfallibleTimer::sleep`].
///
/// It never completes if the timer ends before its deadline. It dereferences to the [`Sleep`],
/// which can be [reset](Sleep::reset).
///
/// # Examples
///
/// ```
/// # use hashed_wheel::InfallibleTimer;
/// # use std::time::Duration;
/// async fn wait(timer: &InfallibleTimer) {
///     let mut sleep = timer.sleep(Duration::from_secs(5));
///     sleep.reset(Duration::from_secs(1));
///     sleep.await;
/// }
/// ```
#[cfg(feature = "async")]
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct InfallibleSleep(Sleep);

#[cfg(feature = "async")]
impl Future for InfallibleSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            // The timer has ended.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(feature = "async")]
impl Deref for InfallibleSleep {
    type Target = Sleep;

    #[inline]
    fn deref(&self) -> &Sleep {
        &self.0
    }
}

#[cfg(feature = "async")]
impl DerefMut for InfallibleSleep {
    #[inline]
    fn deref_mut(&mut self) -> &mut Sleep {
        &mut self.0
    }
}
