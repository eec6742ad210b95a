//! A future that waits.

use std::fmt;
use std::mem;
use std::pin::Pin;
#[cfg(feature = "tokio")]
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hashed_wheel::NewTimeoutError;
use hashed_wheel::wheel::QueueSleep;

use super::module_timer;
#[cfg(feature = "tokio")]
use super::paused;
use super::types::Instant;

/// tokio's longest delay: 30 years. Every platform can represent an `Instant` that is so far away.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Waits until `duration` has passed: `tokio::time::sleep`.
///
/// A duration of more than 30 years counts as 30 years.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time;
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// let begin = time::Instant::now();
/// time::sleep(Duration::from_millis(5)).await;
/// assert!(begin.elapsed() >= Duration::from_millis(5));
/// # });
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now() + duration.min(LONGEST))
}

/// Waits until `deadline`: `tokio::time::sleep_until`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time::{self, Instant};
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// let deadline = Instant::now() + Duration::from_millis(5);
/// time::sleep_until(deadline).await;
/// assert!(Instant::now() >= deadline);
/// # });
/// ```
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        is_new: true,
        kind: Kind::Unpolled,
    }
}

/// A future that is ready at its deadline: `tokio::time::Sleep`.
///
/// Once it is ready, it stays so until it is [reset](Self::reset).
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time::{self, Duration, Instant};
/// use std::pin::pin;
///
/// # smol::block_on(async {
/// let mut sleep = pin!(time::sleep(Duration::from_secs(60)));
/// sleep.as_mut().reset(Instant::now() + Duration::from_millis(5));
/// sleep.await;
/// # });
/// ```
///
/// # Panics
///
/// A poll panics if the timer refuses a timeout. That of the module does so only if no thread can
/// be started. The timer of a [`Timer`](super::Timer) may be stopped, or full.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    deadline: Instant,
    /// It was not polled since it was made or reset.
    is_new: bool,
    kind: Kind,
}

enum Kind {
    /// It will be on the module's timer, or on that of the runtime in which it is polled.
    Unpolled,
    Module(hashed_wheel::Sleep),
    /// On the timer of a [`Timer`](super::Timer).
    Own(hashed_wheel::Sleep),
    #[cfg(feature = "tokio")]
    Runtime(Pin<Box<tokio::time::Sleep>>),
}

impl Kind {
    fn here(deadline: Instant) -> Self {
        #[cfg(feature = "tokio")]
        if paused::may_be_paused() {
            return Self::Runtime(Box::pin(tokio::time::sleep_until(deadline)));
        }
        Self::Module(module_timer::sleep_until(deadline.into_std()))
    }
}

impl Sleep {
    /// Makes a sleep on a timer of the user's.
    pub(super) fn own(deadline: Instant, sleep: hashed_wheel::Sleep) -> Self {
        Self {
            deadline,
            is_new: true,
            kind: Kind::Own(sleep),
        }
    }

    /// Returns when it is ready.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns whether the deadline had passed at the last poll or [`reset`](Self::reset). False
    /// before the first poll of one that was not made by a [`Timer`](super::Timer).
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        match &self.kind {
            Kind::Unpolled => false,
            Kind::Module(sleep) | Kind::Own(sleep) => sleep.is_elapsed(),
            #[cfg(feature = "tokio")]
            Kind::Runtime(sleep) => sleep.is_elapsed(),
        }
    }

    /// Moves the deadline, whether the future waits, is ready, or was never polled.
    ///
    /// A task that waits for it is woken at the new deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_util::time::{self, Instant};
    /// use std::pin::pin;
    /// use std::time::Duration;
    ///
    /// # smol::block_on(async {
    /// let mut sleep = pin!(time::sleep(Duration::from_secs(60)));
    /// sleep.as_mut().reset(Instant::now() + Duration::from_millis(5));
    /// sleep.await;
    /// # });
    /// ```
    pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.deadline = deadline;
        self.is_new = true;
        match &mut self.kind {
            Kind::Unpolled => {}
            Kind::Module(sleep) | Kind::Own(sleep) => sleep.reset_at(deadline.into_std()),
            #[cfg(feature = "tokio")]
            Kind::Runtime(sleep) => sleep.as_mut().reset(deadline),
        }
    }

    /// Moves the deadline of a future that is ready, without a timeout until the next poll.
    pub(super) fn wait_again(&mut self, deadline: Instant) {
        match &self.kind {
            Kind::Own(_) => Pin::new(&mut *self).reset(deadline),
            _ => *self = sleep_until(deadline),
        }
    }

    /// Returns the time of its clock.
    pub(super) fn now(&self) -> Instant {
        match &self.kind {
            Kind::Own(sleep) => QueueSleep::now(sleep).into(),
            _ => Instant::now(),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            deadline,
            is_new,
            kind,
        } = self.get_mut();
        let is_first = mem::take(is_new);
        if matches!(kind, Kind::Unpolled) {
            *kind = Kind::here(*deadline);
        }
        loop {
            let error = match kind {
                Kind::Unpolled => unreachable!("it has got its kind"),
                #[cfg(feature = "tokio")]
                Kind::Runtime(sleep) if is_first => return sleep.as_mut().poll(context),
                // A future with a time limit may have used up the budget.
                #[cfg(feature = "tokio")]
                Kind::Runtime(sleep) => {
                    let unlimited = pin!(tokio::task::unconstrained(sleep));
                    return unlimited.poll(context);
                }
                Kind::Module(sleep) | Kind::Own(sleep) => {
                    match ready!(Pin::new(sleep).poll(context)) {
                        Ok(()) => break,
                        Err(error) => error,
                    }
                }
            };
            *kind = match kind {
                Kind::Module(_) => module_timer::after_failure(&error, deadline.into_std()),
                _ => None,
            }
            .map_or_else(|| fail(&error), Kind::Module);
        }
        if is_first {
            proceed(context)
        } else {
            Poll::Ready(())
        }
    }
}

#[cold]
fn fail(error: &NewTimeoutError) -> Kind {
    panic!("timer error: {error}")
}

/// Uses the budget of tokio's task: a loop over sleeps that never wait lets other tasks run.
fn proceed(context: &mut Context<'_>) -> Poll<()> {
    #[cfg(feature = "tokio")]
    return pin!(tokio::task::consume_budget()).poll(context);
    #[cfg(not(feature = "tokio"))]
    {
        _ = context;
        Poll::Ready(())
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("is_elapsed", &self.is_elapsed())
            .finish_non_exhaustive()
    }
}
