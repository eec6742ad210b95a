//! A future with a deadline.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::sleep::Sleep;
use crate::error::{NewTimeoutError, error_texts};

pin_project! {
    /// A future with a time limit: [`HashedWheelTimer::timeout`](crate::HashedWheelTimer::timeout).
    ///
    /// Each poll polls the inner future first, and then the delay. So if both are ready at the same
    /// time, the result is the inner future's output.
    ///
    /// The delay is a [`Sleep`]. It leaves the timer as soon as the inner future is ready. The
    /// inner future is dropped when this one is, and not earlier.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, TimeoutError};
    /// # use std::time::Duration;
    /// # async fn request() -> String { String::new() }
    /// async fn answer(timer: &HashedWheelTimer) -> String {
    ///     match timer.timeout(Duration::from_secs(5), request()).await {
    ///         Ok(answer) => answer,
    ///         Err(TimeoutError::Elapsed) => "no answer".to_owned(),
    ///         Err(error) => format!("cannot tell: {error}"),
    ///     }
    /// }
    /// ```
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

    /// Returns a reference to the inner future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// Returns a mutable reference to the inner future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// Returns the inner future, without the time limit.
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
        ready!(Pin::new(this.sleep).poll(context))?;
        Poll::Ready(Err(TimeoutError::Elapsed))
    }
}

/// Why a future with a [time limit](crate::HashedWheelTimer::timeout) ended without its output.
///
/// There is no third reason, so a `match` on the two needs no other arm.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, TimeoutError};
/// use std::future::pending;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(1)).build()?;
/// match timer.timeout(Duration::from_millis(5), pending::<()>()).await {
///     Ok(()) => println!("an answer"),
///     Err(TimeoutError::Elapsed) => println!("no answer in time"),
///     Err(error) => return Err(error.into()), // the timer is stopped
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeoutError {
    /// The delay was over before the future was ready.
    Elapsed,
    /// The timer could not measure the delay, or not to its end: it is stopped, or has rejected the
    /// timeout.
    Timer(NewTimeoutError),
}

error_texts! {
    TimeoutError {
        Self::Elapsed => "the deadline has elapsed";
        Self::Timer(error) => "the timer cannot limit the time: {error}";
    }
}

/// Lets `?` serve in a function that both sleeps and limits times.
impl From<NewTimeoutError> for TimeoutError {
    fn from(error: NewTimeoutError) -> Self {
        Self::Timer(error)
    }
}

/// The kind is [`TimedOut`](io::ErrorKind::TimedOut) if the delay was over; otherwise the error is
/// that of the [timer](NewTimeoutError).
impl From<TimeoutError> for io::Error {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::new(io::ErrorKind::TimedOut, error),
            TimeoutError::Timer(error) => error.into(),
        }
    }
}
