//! The timer in async code: `core::task` and nothing else, so that it runs on every runtime, and on none.
//!
//! A future that waits is a timeout whose task is to call a waker; the rest is as with any other timeout. There is no word in
//! which a poll and a wake-up meet, as there would be for a waker that is shared: the waker belongs to who ends the
//! timeout, and to wake another one is to schedule another timeout in its place.

mod interval;
mod sleep;
mod with_timeout;

use std::time::{Duration, Instant};

use crate::periodic::Schedule;
use crate::timer::HashedWheelTimer;

pub use interval::Interval;
pub use sleep::Sleep;
pub use with_timeout::{TimeoutError, WithTimeout};

/// For async code, with feature `async`: futures that do nothing until they are polled, and run on any runtime. [`Sleep`] says
/// how they are woken, and how code that waits is tested on a clock that you turn.
impl HashedWheelTimer {
    /// A future that is ready `delay` from now. The deadline is fixed here, and not by the first poll; a delay too
    /// large to represent never ends, and one of zero has ended.
    ///
    /// # Errors
    ///
    /// It resolves with [`Stopped`](crate::NewTimeoutError::Stopped) if the timer is stopped meanwhile, rather than never;
    /// or where a timeout would be refused, with the reason. See [`Sleep`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::{Duration, Instant};
    /// async fn retry(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     for attempt in 0..5 {
    ///         // … return if it works …
    ///         timer.sleep(Duration::from_millis(100) * (1 << attempt)).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn sleep(&self, delay: Duration) -> Sleep {
        Sleep::new(&self.shared, delay)
    }

    /// [`sleep`](Self::sleep) with a deadline in place of a delay, which is counted as
    /// [`new_timeout_at`](Self::new_timeout_at) does. One that has passed is a sleep that is over.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::{Duration, Instant};
    /// async fn not_before(timer: &HashedWheelTimer, begin: Instant) -> Result<(), NewTimeoutError> {
    ///     timer.sleep_until(begin + Duration::from_secs(5)).await
    /// }
    /// ```
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::at(&self.shared, deadline)
    }

    /// `future`, which is given up if it is not ready `delay` from now. The deadline is fixed here, and not by the first
    /// poll.
    ///
    /// # Errors
    ///
    /// It resolves with [`TimeoutError::Elapsed`] when the delay is over; with [`TimeoutError::Timer`] if the
    /// timer [is stopped](Self::is_stopped), or refuses the timeout, and the future was not ready at that moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, TimeoutError};
    /// # use std::time::{Duration, Instant};
    /// # async fn request() -> String { String::new() }
    /// async fn answer(timer: &HashedWheelTimer) -> Result<String, TimeoutError> {
    ///     timer.timeout(Duration::from_secs(5), request()).await
    /// }
    /// ```
    pub fn timeout<F: Future>(&self, delay: Duration, future: F) -> WithTimeout<F> {
        WithTimeout::new(future, self.sleep(delay))
    }

    /// Ticks at multiples of `period` from now on, the first one `period` from now:
    /// [`interval_on`](Self::interval_on)`(Schedule::at_fixed_rate(period))`. If `period` is zero, its ticks are
    /// [`ZeroPeriod`](crate::NewTimeoutError::ZeroPeriod).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::{Duration, Instant};
    /// async fn flush_every_second(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let mut seconds = timer.interval(Duration::from_secs(1));
    ///     loop {
    ///         seconds.tick().await?;
    ///         // … flush …
    ///     }
    /// }
    /// ```
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_on(Schedule::at_fixed_rate(period))
    }

    /// Ticks as `schedule` has them, counted from now. A [fixed delay](Schedule::with_fixed_delay) is counted from the moment in
    /// which the next tick is asked for.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, MissedTick, NewTimeoutError, Schedule};
    /// # use std::time::{Duration, Instant};
    /// # async fn measure() {}
    /// async fn samples(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let each_second = Schedule::at_fixed_rate(Duration::from_secs(1));
    ///     // After a measurement that takes too long the next one is at once; the others are on the second.
    ///     let mut seconds = timer.interval_on(each_second.missed_tick(MissedTick::Skip));
    ///     loop {
    ///         seconds.tick().await?;
    ///         measure().await;
    ///     }
    /// }
    /// ```
    pub fn interval_on(&self, schedule: Schedule) -> Interval {
        Interval::new(&self.shared, schedule)
    }
}
