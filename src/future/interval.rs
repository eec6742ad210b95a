//! Ticks that async code waits for, one after the other.

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

/// Ticks, one after the other: [`HashedWheelTimer::interval`](crate::HashedWheelTimer::interval).
///
/// The first is a period after the interval was made, as with
/// [`schedule_at_fixed_rate`](crate::HashedWheelTimer::schedule_at_fixed_rate) (and other than tokio's, whose first is at
/// once: here that is [`Schedule::initial_delay`]). At a fixed rate each further one is due a period after the one before
/// *was due*, however late that came: there is no drift. One that nobody has asked for in time is given out as soon as somebody
/// does; if the next one should have been by then, [`MissedTick`](crate::MissedTick) says what becomes of that and those behind it.
///
/// It is on the timer, as a [`Sleep`], only while somebody waits for a tick.
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
    /// Until the tick that is due next; elapsed, if that has been given out.
    sleep: Sleep,
    /// When the tick that was due has been given out: the next one is to be found when it is asked for.
    given_out: Option<u64>,
    /// To a stream, that it will give out no more.
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
            given_out: None,
            #[cfg(feature = "stream")]
            has_ended: false,
        }
    }

    /// Waits for the next tick. Dropped before it is ready, it takes no tick with it: the next call waits for the same one.
    ///
    /// # Errors
    ///
    /// [`Stopped`](NewTimeoutError::Stopped), now and ever after; [`ZeroPeriod`](NewTimeoutError::ZeroPeriod), the
    /// same; or why the timer has refused a timeout, in which case the next call tries again, for the same tick.
    pub async fn tick(&mut self) -> Result<(), NewTimeoutError> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// [`tick`](Self::tick) for those who poll.
    ///
    /// # Errors
    ///
    /// As of [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NewTimeoutError>> {
        let Some(recurrence) = &mut self.recurrence else {
            return Poll::Ready(Err(NewTimeoutError::ZeroPeriod));
        };
        if let Some(given_out) = self.given_out.take() {
            // What was done meanwhile is over.
            let now = if recurrence.is_fixed_delay() { self.sleep.now() } else { given_out };
            // Who comes late has not waited for a tick of the timer.
            self.sleep.reset_to(recurrence.advance(now, Ticks::new(Duration::from_nanos(1))));
        }
        ready!(Pin::new(&mut self.sleep).poll(context))?;
        self.given_out = Some(self.sleep.now());
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
