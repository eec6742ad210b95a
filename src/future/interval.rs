//! Periodic ticks for async code.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::sleep::Sleep;
use crate::engine::Shared;
use crate::error::NewTimeoutError;
use crate::periodic::{Recurrence, Schedule};
use crate::sync::Arc;
use crate::ticks::Ticks;

/// Periodic ticks for async code:
/// [`HashedWheelTimer::interval`](crate::HashedWheelTimer::interval).
///
/// The first tick is due one period after the interval was made, as with
/// [`schedule_at_fixed_rate`](crate::HashedWheelTimer::schedule_at_fixed_rate). This differs from
/// tokio, whose first tick is immediate; [`Schedule::initial_delay`] changes it.
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
    /// `None` if the period was zero.
    recurrence: Option<Recurrence>,
    /// Ends when the next tick is due. Elapsed if that tick has been delivered.
    sleep: Sleep,
    /// When the last tick was delivered, if the deadline of the next one is not computed yet.
    delivered: Option<u64>,
    /// For the stream: it has returned its last item.
    #[cfg(feature = "stream")]
    pub(crate) has_ended: bool,
}

impl Interval {
    pub(super) fn new(shared: &Arc<Shared>, schedule: Schedule) -> Self {
        let recurrence = schedule.begin(shared.time.now_or_soon()).ok();
        let first = recurrence.as_ref().map_or(0, Recurrence::deadline);
        Self {
            recurrence,
            sleep: Sleep::until(shared, first),
            delivered: None,
            #[cfg(feature = "stream")]
            has_ended: false,
        }
    }

    /// Waits for the next tick. `tokio::time::Interval::tick`.
    ///
    /// Cancel-safe: if the future is dropped before it is ready, no tick is lost. The next call
    /// waits for the same tick.
    ///
    /// # Errors
    ///
    /// - [`Stopped`](NewTimeoutError::Stopped). Each later call returns the same.
    /// - [`ZeroPeriod`](NewTimeoutError::ZeroPeriod). Each later call returns the same.
    /// - The reason why the timer rejected a timeout. The next call tries the same tick again.
    pub async fn tick(&mut self) -> Result<(), NewTimeoutError> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick. This is [`tick`](Self::tick) for code that polls.
    ///
    /// # Errors
    ///
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NewTimeoutError>> {
        let Some(recurrence) = &mut self.recurrence else {
            return Poll::Ready(Err(NewTimeoutError::ZeroPeriod));
        };
        if let Some(delivered) = self.delivered.take() {
            // A fixed delay counts from now, when the work after the last tick is done.
            let now = if recurrence.is_fixed_delay() { self.sleep.now() } else { delivered };
            // Ticks of a nanosecond: a late request did not wait for a tick of the timer, so the
            // timer's ticks do not decide whether a tick of the interval was missed.
            self.sleep.reset_to(recurrence.advance(now, Ticks::new(Duration::from_nanos(1))));
        }
        ready!(Pin::new(&mut self.sleep).poll(context))?;
        self.delivered = Some(self.sleep.now());
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("recurrence", &self.recurrence)
            .field("sleep", &self.sleep)
            .finish_non_exhaustive()
    }
}
