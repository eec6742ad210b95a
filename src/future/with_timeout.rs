//! A future with a deadline.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{error, fmt, io};

use pin_project_lite::pin_project;

use super::sleep::Sleep;
use crate::error::NewTimeoutError;

pin_project! {
    /// A future that is given up when a delay is over: [`HashedWheelTimer::timeout`](crate::HashedWheelTimer::timeout).
    ///
    /// Each poll asks the future first, and then the time: what is ready in the same moment as the delay is over is
    /// ready. The delay is a [`Sleep`], and goes from the timer as soon as the future is ready. The future itself is
    /// dropped with this one, and not before.
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct WithTimeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> WithTimeout<F> {
    pub(super) fn new(future: F, sleep: Sleep) -> Self {
        Self { future, sleep }
    }

    /// The future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The future, without the deadline.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for WithTimeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            this.sleep.disarm();
            return Poll::Ready(Ok(output));
        }
        let end = ready!(Pin::new(this.sleep).poll(context));
        Poll::Ready(Err(end.map_or_else(TimeoutError::Timer, |()| TimeoutError::Elapsed)))
    }
}

/// Why [`HashedWheelTimer::timeout`](crate::HashedWheelTimer::timeout) has given up a future.
#[derive(Debug)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The delay was over before the future was ready.
    Elapsed,
    /// The timer could not watch the delay, or not to its end: it is stopped, or has refused the timeout.
    Timer(NewTimeoutError),
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed => f.write_str("the deadline has elapsed"),
            Self::Timer(_) => f.write_str("the deadline could not be watched"),
        }
    }
}

impl error::Error for TimeoutError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Elapsed => None,
            Self::Timer(error) => Some(error),
        }
    }
}

/// So that `?` does where a future sleeps and watches deadlines both.
impl From<NewTimeoutError> for TimeoutError {
    fn from(error: NewTimeoutError) -> Self {
        Self::Timer(error)
    }
}

/// [`TimedOut`](io::ErrorKind::TimedOut) if the delay was over, so that `?` does in an `io` function what is expected.
impl From<TimeoutError> for io::Error {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::new(io::ErrorKind::TimedOut, error),
            TimeoutError::Timer(_) => Self::other(error),
        }
    }
}
