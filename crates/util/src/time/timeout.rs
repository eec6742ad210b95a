//! A future with a time limit.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::error::Elapsed;
use super::sleep::{Sleep, sleep_until};
use super::types::Instant;
use crate::deadline_of_task as deadline;

/// Limits the time of `future` to `duration` from now: `tokio::time::timeout`.
///
/// # Errors
///
/// The returned future resolves with [`Elapsed`] if the time is over before `future` is ready.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time;
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// assert_eq!(time::timeout(Duration::from_secs(5), async { 7 }).await, Ok(7));
/// # });
/// ```
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future, Instant::now().checked_add(duration), sleep_until)
}

/// Limits the time of `future`: it has until `deadline`. `tokio::time::timeout_at`.
///
/// If the deadline has passed, `future` is polled once.
///
/// # Errors
///
/// As for [`timeout`].
///
/// # Examples
///
/// One deadline for two steps:
///
/// ```
/// use hashed_wheel_util::time::{self, Instant, error::Elapsed};
/// use std::time::Duration;
///
/// # async fn connect() {}
/// # async fn request() -> String { String::new() }
/// async fn answer() -> Result<String, Elapsed> {
///     let deadline = Instant::now() + Duration::from_secs(5);
///     time::timeout_at(deadline, connect()).await?;
///     time::timeout_at(deadline, request()).await
/// }
/// # smol::block_on(answer()).unwrap();
/// ```
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future, Some(deadline), sleep_until)
}

pin_project! {
    /// A future with a time limit: `tokio::time::Timeout`.
    ///
    /// Each poll polls the inner future first. So if both it and the time are over, the result is
    /// its output.
    ///
    /// # Examples
    ///
    /// See [`timeout`].
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct Timeout<T> {
        #[pin]
        value: T,
        // `None` if the time is never over, or no longer counts.
        delay: Option<Sleep>,
        // Without a deadline of its own.
        is_endless: bool,
        // The first poll finds out whether its task has a nearer deadline.
        is_new: bool,
    }
}

impl<T> Timeout<T> {
    pub(super) fn new(
        future: impl IntoFuture<IntoFuture = T>,
        deadline: Option<Instant>,
        sleep_until: impl FnOnce(Instant) -> Sleep,
    ) -> Self {
        Self {
            value: future.into_future(),
            delay: Some(sleep_until(deadline.unwrap_or_else(Instant::now))),
            is_endless: deadline.is_none(),
            is_new: true,
        }
    }

    /// Returns a reference to the inner future.
    pub fn get_ref(&self) -> &T {
        &self.value
    }

    /// Returns a mutable reference to the inner future.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Returns the inner future, without the limit.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T: Future> Future for Timeout<T> {
    type Output = Result<T::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.value.poll(context) {
            // Its timeout leaves the timer now, however long the caller keeps this future.
            *this.delay = None;
            return Poll::Ready(Ok(output));
        }
        let Some(delay) = this.delay else {
            return Poll::Pending;
        };
        if mem::take(this.is_new) {
            let own = (!*this.is_endless).then(|| delay.deadline().into());
            let Some(nearest) = deadline::nearest(own) else {
                *this.delay = None;
                return Poll::Pending;
            };
            Pin::new(&mut *delay).reset(nearest.into());
        }
        Pin::new(delay).poll(context).map(|()| Err(Elapsed(())))
    }
}
