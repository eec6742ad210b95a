//! The timer in async code. It uses `core::task` and nothing else, so it runs on every runtime, and
//! without one.
//!
//! A future that waits is a timeout whose task calls a waker. Everything else is as with any other
//! timeout. No word is shared between a poll and a wake-up, as a waker that both can replace would
//! need. The thread that ends the timeout owns the waker, and a poll with another waker schedules
//! another timeout in place of the first.
//!
//! A future keeps its timer by a reference from the reserve of the thread that makes it, as handles
//! do ([`TimerHandle`](crate::node::TimerHandle)): threads share no count that each future changes.
//!
//! | file | content |
//! |---|---|
//! | `sleep` | a future that waits for a timeout |
//! | `with_timeout` | a future with a deadline |
//! | `interval` | periodic ticks |
//!
//! | a poll with another waker, and | the other first | the poll first |
//! |---|---|---|
//! | the expiry | the poll finds `EXPIRED`: ready. The old waker was called once more than needed | the new waker is called |
//! | `stop` | the poll finds `CANCELLED`: an error | `stop` ends the new timeout, and calls its waker |
//! | `stop`, in between | – | the count never fell, so `stop` waits for the push |
//!
//! Wakers are compared by address. While the timeout has not ended its waker exists, so no other
//! waker has that address; and the poll reads the state first.

mod interval;
mod sleep;
mod with_timeout;

use std::time::{Duration, Instant};

use crate::periodic::Schedule;
use crate::timer::HashedWheelTimer;

pub use interval::Interval;
pub use sleep::Sleep;
pub use with_timeout::{TimeoutError, WithTimeout};

/// For async code, with feature `async`. These futures do nothing until they are polled, and run on
/// any runtime. [`Sleep`] says how they are woken, and how to test code that waits with a clock
/// that the test controls.
impl HashedWheelTimer {
    /// Returns a future that is ready `delay` from now. `tokio::time::sleep`.
    ///
    /// This call fixes the deadline, not the first poll. With a delay too large to represent the
    /// future is never ready. With a delay of zero it is ready at the first poll.
    ///
    /// # Errors
    ///
    /// The future resolves with [`Stopped`](crate::NewTimeoutError::Stopped) if the timer is
    /// stopped meanwhile. If the timer would reject a timeout, the future resolves with the reason.
    /// See [`Sleep`].
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
    #[doc(alias("delay", "delay_for"))]
    pub fn sleep(&self, delay: Duration) -> Sleep {
        Sleep::until(&self.inner, sleep::deadline(&self.inner.clock, delay))
    }

    /// Returns a future that is ready at `deadline`. `tokio::time::sleep_until`.
    ///
    /// The deadline is converted as by [`new_timeout_at`](Self::new_timeout_at). If it has passed,
    /// the future is ready at the first poll.
    ///
    /// # Errors
    ///
    /// As for [`sleep`](Self::sleep).
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
        Sleep::until(&self.inner, self.inner.clock.at(deadline))
    }

    /// Limits the time of `future` to `delay` from now. `tokio::time::timeout`.
    ///
    /// This call fixes the deadline, not the first poll.
    ///
    /// # Errors
    ///
    /// The returned future resolves with:
    ///
    /// - [`TimeoutError::Elapsed`] when the delay is over,
    /// - [`TimeoutError::Timer`] if the timer [is stopped](Self::is_stopped) or rejects the
    ///   timeout, and `future` is not ready at that moment.
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
    #[doc(alias("with_timeout", "WithTimeout"))]
    pub fn timeout<F: Future>(&self, delay: Duration, future: F) -> WithTimeout<F> {
        WithTimeout::new(future, self.sleep(delay))
    }

    /// Limits the time of `future`: it has until `deadline`. `tokio::time::timeout_at`.
    ///
    /// The deadline is converted as by [`new_timeout_at`](Self::new_timeout_at). If it has passed,
    /// `future` is polled once, and the result is its output if that poll is ready.
    ///
    /// # Errors
    ///
    /// As for [`timeout`](Self::timeout).
    ///
    /// # Examples
    ///
    /// One deadline for two steps:
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, TimeoutError};
    /// # use std::time::Duration;
    /// # async fn connect() {}
    /// # async fn request() -> String { String::new() }
    /// async fn answer(timer: &HashedWheelTimer) -> Result<String, TimeoutError> {
    ///     let deadline = timer.now() + Duration::from_secs(5);
    ///     timer.timeout_at(deadline, connect()).await?;
    ///     timer.timeout_at(deadline, request()).await
    /// }
    /// ```
    pub fn timeout_at<F: Future>(&self, deadline: Instant, future: F) -> WithTimeout<F> {
        WithTimeout::new(future, self.sleep_until(deadline))
    }

    /// Returns an interval that ticks now and at multiples of `period` from now.
    /// `tokio::time::interval`.
    ///
    /// If `period` is zero, each tick is the error
    /// [`ZeroPeriod`](crate::NewTimeoutError::ZeroPeriod), where tokio panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::Duration;
    /// async fn flush_every_second(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let mut seconds = timer.interval(Duration::from_secs(1));
    ///     loop {
    ///         seconds.tick().await?; // the first time at once
    ///         // … flush …
    ///     }
    /// }
    /// ```
    #[doc(alias("setInterval", "NewTicker"))]
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_on(Schedule::at_fixed_rate(period).initial_delay(Duration::ZERO))
    }

    /// Returns an interval that ticks at `start` and at multiples of `period` after it.
    /// `tokio::time::interval_at`.
    ///
    /// This is
    /// [`interval_on`](Self::interval_on)`(Schedule::at_fixed_rate(period).start_at(start))`. See
    /// [`Schedule::start_at`] for a start that has passed. If `period` is zero, each tick is the
    /// error [`ZeroPeriod`](crate::NewTimeoutError::ZeroPeriod).
    ///
    /// # Examples
    ///
    /// The first tick after one period:
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::Duration;
    /// async fn flush_every_second(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let second = Duration::from_secs(1);
    ///     let mut seconds = timer.interval_at(timer.now() + second, second);
    ///     loop {
    ///         seconds.tick().await?;
    ///         // … flush …
    ///     }
    /// }
    /// ```
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        self.interval_on(Schedule::at_fixed_rate(period).start_at(start))
    }

    /// Returns an interval that ticks according to `schedule`, counted from now: with jitter,
    /// another [policy](crate::MissedTick) for missed ticks (tokio: `set_missed_tick_behavior`), or
    /// a fixed delay.
    ///
    /// The first tick is that of the schedule, after one period if it names no other.
    /// A [fixed delay](Schedule::with_fixed_delay) is counted from the moment at which the next
    /// tick is requested.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, MissedTick, NewTimeoutError, Schedule};
    /// # use std::time::{Duration, Instant};
    /// # async fn measure() {}
    /// async fn samples(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let each_second = Schedule::at_fixed_rate(Duration::from_secs(1));
    ///     // After a measurement that takes too long, the next one follows immediately. All others start
    ///     // on the second.
    ///     let mut seconds = timer.interval_on(each_second.missed_tick(MissedTick::Skip));
    ///     loop {
    ///         seconds.tick().await?;
    ///         measure().await;
    ///     }
    /// }
    /// ```
    pub fn interval_on(&self, schedule: Schedule) -> Interval {
        Interval::new(&self.inner, schedule)
    }
}
