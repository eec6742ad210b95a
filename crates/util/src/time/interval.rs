//! Periodic ticks.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::sleep::{LONGEST, Sleep, sleep_until};
use super::types::{Instant, MissedTickBehavior};

/// A tick that comes later than this was missed, as in tokio.
pub(super) const LATE: Duration = Duration::from_millis(5);

/// Returns an interval that ticks now, and then once per `period`: `tokio::time::interval`.
///
/// # Panics
///
/// If `period` is zero.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time;
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// let mut interval = time::interval(Duration::from_millis(5));
/// let first = interval.tick().await; // at once
/// assert_eq!(interval.tick().await - first, Duration::from_millis(5));
/// # });
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Returns an interval whose first tick is at `start`: `tokio::time::interval_at`.
///
/// # Panics
///
/// If `period` is zero.
///
/// # Examples
///
/// The first tick after one period:
///
/// ```
/// use hashed_wheel_util::time::{self, Instant};
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// let start = Instant::now() + Duration::from_millis(5);
/// let mut interval = time::interval_at(start, Duration::from_millis(5));
/// assert_eq!(interval.tick().await, start);
/// # });
/// ```
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    Interval::new(sleep_until(start), period, LATE)
}

/// Periodic ticks: `tokio::time::Interval`.
///
/// # Examples
///
/// See [`interval`].
#[derive(Debug)]
pub struct Interval {
    /// Ends at the next tick.
    sleep: Sleep,
    period: Duration,
    /// A tick that comes later than this was missed.
    late: Duration,
    missed_tick_behavior: MissedTickBehavior,
}

impl Interval {
    #[track_caller]
    pub(super) fn new(sleep: Sleep, period: Duration, late: Duration) -> Self {
        assert!(!period.is_zero(), "`period` must be non-zero.");
        Self {
            sleep,
            period: period.min(LONGEST),
            late,
            missed_tick_behavior: MissedTickBehavior::default(),
        }
    }

    /// Waits for the next tick, and returns when it was due.
    ///
    /// Cancel-safe: if the future is dropped before it is ready, no tick is lost.
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick.
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(context));
        let due = self.sleep.deadline();
        self.sleep.wait_again(self.next(due, self.sleep.now()));
        Poll::Ready(due)
    }

    /// Returns when the tick is due that follows the one at `due`.
    fn next(&self, due: Instant, now: Instant) -> Instant {
        let behavior = self.missed_tick_behavior;
        match behavior {
            MissedTickBehavior::Delay if now > due + self.late => now + self.period,
            MissedTickBehavior::Skip if now > due + self.late => {
                let over = (now - due).as_nanos() % self.period.as_nanos();
                let over = u64::try_from(over).expect("a late tick is late by less than 584 years");
                now + self.period - Duration::from_nanos(over)
            }
            _ => due + self.period,
        }
    }

    /// Sets the next tick to one period from now.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_util::time;
    /// use std::time::Duration;
    ///
    /// let mut silence = time::interval(Duration::from_secs(10));
    /// silence.reset(); // for each packet
    /// ```
    pub fn reset(&mut self) {
        self.reset_after(self.period);
    }

    /// Sets the next tick to now.
    pub fn reset_immediately(&mut self) {
        self.reset_after(Duration::ZERO);
    }

    /// Sets the next tick to `after` from now.
    pub fn reset_after(&mut self, after: Duration) {
        self.reset_at(self.sleep.now() + after.min(LONGEST));
    }

    /// Sets the next tick to `deadline`.
    pub fn reset_at(&mut self, deadline: Instant) {
        Pin::new(&mut self.sleep).reset(deadline);
    }

    /// Returns what happens to ticks that were missed. Initially
    /// [`Burst`](MissedTickBehavior::Burst).
    #[must_use]
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed_tick_behavior
    }

    /// Sets what happens to ticks that were missed: those that are requested more than 5 ms late,
    /// or on a [`Timer`](super::Timer) 5 ms and one of its ticks, if a period is longer than that
    /// tick.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed_tick_behavior = behavior;
    }

    /// Returns the period.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }
}
