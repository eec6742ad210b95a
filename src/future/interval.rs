//! Periodic ticks for async code.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::sleep::{self, Sleep};
use crate::engine::Inner;
use crate::error::NewTimeoutError;
use crate::periodic::{Recurrence, Schedule};

/// Periodic ticks for async code:
/// [`HashedWheelTimer::interval`](crate::HashedWheelTimer::interval).
///
/// It is as tokio's, with these differences: a tick may be an error, where tokio panics or never
/// fails; and what happens to missed ticks is part of the [`Schedule`].
///
/// At a fixed rate each further tick is due one period after the one before *was due*, however late
/// that one was, so there is no drift. A tick that was not requested in time is delivered at the
/// next request. If the tick after it should have been delivered by then,
/// [`MissedTick`](crate::MissedTick) says what happens to that tick and to those after it.
///
/// The interval has a timeout on the timer, as a [`Sleep`] has, only while a caller waits for a
/// tick.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// # use std::time::Duration;
/// async fn heartbeat(timer: HashedWheelTimer) -> NewTimeoutError {
///     let mut interval = timer.interval(Duration::from_secs(10));
///     loop {
///         if let Err(stopped) = interval.tick().await {
///             return stopped;
///         }
///         println!("still here");
///     }
/// }
/// ```
pub struct Interval {
    /// The error if the period was zero.
    recurrence: Result<Recurrence, NewTimeoutError>,
    /// Ends when the next tick is due. Elapsed if that tick has been delivered.
    sleep: Sleep,
    /// When the last tick was delivered, if the deadline of the next one is not computed yet.
    delivered: Option<u64>,
}

impl Interval {
    pub(super) fn new(inner: &Inner, schedule: Schedule) -> Self {
        let time = &inner.clock;
        let recurrence = schedule.begin(time.deadline_base(), |start| time.at(start));
        let first = recurrence.as_ref().map_or(0, Recurrence::deadline);
        Self {
            recurrence,
            sleep: Sleep::until(inner, first),
            delivered: None,
        }
    }

    /// Waits for the next tick. Returns when it was due, on the timer's
    /// [clock](crate::HashedWheelTimer::now). `tokio::time::Interval::tick`.
    ///
    /// Cancel-safe: if the future is dropped before it is ready, no tick is lost. The next call
    /// waits for the same tick.
    ///
    /// # Errors
    ///
    /// - [`Stopped`](NewTimeoutError::Stopped). Each later call returns the same.
    /// - [`ZeroPeriod`](NewTimeoutError::ZeroPeriod). Each later call returns the same.
    /// - The reason why the timer rejected a timeout. The next call tries the same tick again.
    pub async fn tick(&mut self) -> Result<Instant, NewTimeoutError> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick. This is [`tick`](Self::tick) for code that polls.
    ///
    /// # Errors
    ///
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Instant, NewTimeoutError>> {
        let recurrence = self.recurrence.as_mut().map_err(|error| error.clone())?;
        if let Some(delivered) = self.delivered.take() {
            // A fixed delay counts from now, when the work after the last tick is done.
            let now = if recurrence.is_fixed_delay() {
                self.sleep.time().deadline_base()
            } else {
                delivered
            };
            // A late request did not wait for a tick of the timer, so the timer's ticks do not
            // decide whether a tick of the interval was missed. The next poll of the sleep decides
            // whether the time has passed.
            self.sleep.reset_to(recurrence.advance(now, now), false);
        }
        ready!(Pin::new(&mut self.sleep).poll(context))?;
        self.delivered = Some(self.sleep.time().deadline_base());
        Poll::Ready(Ok(self.sleep.deadline()))
    }

    /// Sets the next tick to one period from now. `tokio::time::Interval::reset`.
    ///
    /// The ticks after it follow from it as always: at a fixed rate, they are at multiples of the
    /// period after it. What was missed before this call is forgotten. A [jitter](Schedule::jitter)
    /// delays the tick as it does any other. A task that waits for a tick waits for the new one.
    ///
    /// This holds for all four methods that reset an interval.
    ///
    /// # Examples
    ///
    /// A heartbeat is sent only after a second without traffic:
    ///
    /// ```
    /// # use hashed_wheel::{Interval, NewTimeoutError};
    /// # enum Next { Packet, Silence }
    /// # async fn packet_or(interval: &mut Interval) -> Result<Next, NewTimeoutError> { Ok(Next::Silence) }
    /// async fn serve(mut second: Interval) -> Result<(), NewTimeoutError> {
    ///     loop {
    ///         match packet_or(&mut second).await? {
    ///             Next::Packet => second.reset(),
    ///             Next::Silence => println!("still here"),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn reset(&mut self) {
        self.reset_after(self.period());
    }

    /// Sets the next tick to now. `tokio::time::Interval::reset_immediately`.
    ///
    /// Otherwise as [`reset`](Self::reset).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{Interval, NewTimeoutError};
    /// async fn refresh_now(refresh: &mut Interval) -> Result<(), NewTimeoutError> {
    ///     refresh.reset_immediately();
    ///     refresh.tick().await?; // does not wait
    ///     Ok(())
    /// }
    /// ```
    pub fn reset_immediately(&mut self) {
        self.reset_after(Duration::ZERO);
    }

    /// Sets the next tick to `after` from now. `tokio::time::Interval::reset_after`.
    ///
    /// With a delay too large to represent, no tick comes. Otherwise as [`reset`](Self::reset).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use std::time::Duration;
    /// # async fn is_busy() -> bool { false }
    /// async fn poll_the_server(timer: &HashedWheelTimer) -> Result<(), NewTimeoutError> {
    ///     let mut polls = timer.interval(Duration::from_secs(10));
    ///     loop {
    ///         polls.tick().await?;
    ///         if is_busy().await {
    ///             polls.reset_after(Duration::from_secs(60));
    ///         }
    ///     }
    /// }
    /// ```
    pub fn reset_after(&mut self, after: Duration) {
        self.reset_to(sleep::deadline(self.sleep.time(), after));
    }

    /// Sets the next tick to `deadline`. `tokio::time::Interval::reset_at`.
    ///
    /// If `deadline` has passed, the tick is due now, and the ticks that should have followed it
    /// are missed: see [`MissedTick`](crate::MissedTick). Otherwise as [`reset`](Self::reset).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::Interval;
    /// # use std::time::Instant;
    /// fn pause(polls: &mut Interval, until: Instant) {
    ///     polls.reset_at(until);
    /// }
    /// ```
    pub fn reset_at(&mut self, deadline: Instant) {
        self.reset_to(self.sleep.time().at(deadline));
    }

    fn reset_to(&mut self, due: u64) {
        if let Ok(recurrence) = &mut self.recurrence {
            self.delivered = None;
            let deadline = recurrence.restart(due);
            self.sleep
                .reset_to(deadline, self.sleep.time().has_reached(deadline));
        }
    }

    /// Returns the period, or the delay if the schedule is one with a [fixed
    /// delay](Schedule::with_fixed_delay). `tokio::time::Interval::period`.
    ///
    /// A period too large to represent is returned as `Duration::MAX`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// assert_eq!(timer.interval(Duration::from_secs(1)).period(), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn period(&self) -> Duration {
        self.recurrence
            .as_ref()
            .map_or(Duration::ZERO, Recurrence::period)
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("recurrence", &self.recurrence.as_ref().ok())
            .field("sleep", &self.sleep)
            .finish_non_exhaustive()
    }
}
