//! The calls of the module on a timer of one's own.

use std::time::Duration;

use hashed_wheel::HashedWheelTimer;

use super::interval::{Interval, LATE};
use super::sleep::{LONGEST, Sleep};
use super::timeout::Timeout;
use super::types::Instant;

/// The functions of this module on a timer of your own: with its tick, its clock and its
/// statistics.
///
/// It never waits for a runtime's own timer. For tests with a paused clock build the timer with
/// `tokio::build_on`, or on a [`ManualClock`](hashed_wheel::ManualClock).
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::time::Timer;
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let time = Timer::new(&timer);
/// time.sleep(Duration::from_millis(5)).await;
/// let answer = time.timeout(Duration::from_secs(5), async { "yes" }).await;
/// assert_eq!(answer, Ok("yes"));
/// # });
/// ```
///
/// # Panics
///
/// A poll panics if the timer [is stopped](HashedWheelTimer::is_stopped) or rejects a timeout, as a
/// poll of tokio's `Sleep` does after the end of its runtime. Methods of [`HashedWheelTimer`] with
/// the same names return an error.
#[derive(Debug, Clone)]
pub struct Timer(HashedWheelTimer);

impl Timer {
    /// Makes one that uses `timer`.
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        Self(timer.clone())
    }

    /// Returns the present of the timer's clock: `tokio::time::Instant::now`.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.now().into()
    }

    /// [`sleep`](super::sleep()) on this timer.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration.min(LONGEST))
    }

    /// [`sleep_until`](super::sleep_until) on this timer.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::own(deadline, self.0.sleep_until(deadline.into_std()))
    }

    /// [`timeout`](super::timeout()) on this timer.
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Timeout<F::IntoFuture> {
        let deadline = self.now().checked_add(duration);
        Timeout::new(future, deadline, |deadline| self.sleep_until(deadline))
    }

    /// [`timeout_at`](super::timeout_at) on this timer.
    pub fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> Timeout<F::IntoFuture> {
        Timeout::new(future, Some(deadline), |deadline| {
            self.sleep_until(deadline)
        })
    }

    /// [`interval`](super::interval()) on this timer.
    ///
    /// # Panics
    ///
    /// If `period` is zero.
    #[track_caller]
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_at(self.now(), period)
    }

    /// [`interval_at`](super::interval_at) on this timer.
    ///
    /// # Panics
    ///
    /// If `period` is zero.
    #[track_caller]
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        // A timer may be a tick late, by which no tick is missed, unless it is as long as a period.
        let tick = Some(self.0.tick_duration()).filter(|&tick| tick < period);
        let late = LATE.saturating_add(tick.unwrap_or_default());
        Interval::new(self.sleep_until(start), period, late)
    }
}
