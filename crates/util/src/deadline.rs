//! The deadline of a request, which follows its task.
//!
//! A server has to answer until its client stops waiting. [`within`] sets this deadline for a
//! future. Everything that the future awaits finds it without a parameter:
//!
//! | | |
//! |---|---|
//! | [`time::timeout`](crate::time::timeout()) and `timeout_at` | end then, if their own time is longer |
//! | [`client::Client`](crate::client::Client) | ends its calls then, and sends nothing later. Its own limit is the deadline of what it sends |
//! | [`tower::DeadlineLayer`](crate::tower::DeadlineLayer) | sets it for a server's handler, from the request and its header `grpc-timeout`; takes it for a client's request, and writes the rest into that header |
//! | [`current`], [`remaining`] | return it |
//!
//! Of nested deadlines the nearest counts. It is a thread-local that is set while the future is
//! polled. So it needs no runtime, and a spawned task has none, unless it is made with [`inherit`],
//! or its executor, such as a `LocalSet`, runs in the future itself.
//!
//! A deadline is a moment of the machine's clock, or of a paused one in a test. A client or a layer
//! compares it with the present of its timer: give it a timer on the same clock.
//!
//! # Examples
//!
//! ```
//! use hashed_wheel_util::deadline;
//! use hashed_wheel_util::time::{self, Instant, error::Elapsed};
//! use std::time::Duration;
//!
//! /// Does not know of the deadline.
//! async fn query() -> Result<u32, Elapsed> {
//!     time::timeout(Duration::from_secs(30), std::future::pending()).await
//! }
//!
//! # smol::block_on(async {
//! let deadline = Instant::now() + Duration::from_millis(10);
//! let answer = deadline::within(deadline, async { query().await }).await;
//! assert!(matches!(answer, Err(_) | Ok(Err(_))));
//! assert!(Instant::now() < deadline + Duration::from_secs(20));
//! # });
//! ```

use std::time::{Duration, Instant};

use crate::deadline_of_task::until;
use crate::time::{self, Timeout};

pub use crate::deadline_of_task::{Within, current};

/// Returns the time until the [`current`] deadline, if there is one: zero if it has passed.
///
/// The time is measured by the clock of `time::Instant`, which a test may pause.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::deadline;
///
/// /// Sends a part of the results if the rest would come too late.
/// fn is_worth_it(expected: std::time::Duration) -> bool {
///     deadline::remaining().is_none_or(|remaining| expected < remaining)
/// }
/// assert!(is_worth_it(std::time::Duration::MAX));
/// ```
#[must_use]
pub fn remaining() -> Option<Duration> {
    let now = time::Instant::now();
    current().map(|deadline| time::Instant::from(deadline).saturating_duration_since(now))
}

/// Ends `future` at `deadline`, or at that of the task that polls it first if that is nearer, and
/// lets everything in it find the deadline.
///
/// It takes an `Instant` of std, of tokio or of [`time`].
///
/// # Errors
///
/// The returned future resolves with [`Elapsed`](time::error::Elapsed), as a
/// [`timeout_at`](time::timeout_at) does.
///
/// # Examples
///
/// See the [module](self).
pub fn within<F: IntoFuture>(
    deadline: impl Into<Instant>,
    future: F,
) -> Timeout<Within<F::IntoFuture>> {
    let deadline = deadline.into();
    time::timeout_at(deadline.into(), until(Some(deadline), future.into_future()))
}

/// Lets `future` find the deadline that is [`current`] at this call, wherever it is polled:
/// for a task that is spawned. The deadline does not end it.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::deadline;
/// use std::time::{Duration, Instant};
///
/// # tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(async {
/// let deadline = Instant::now() + Duration::from_secs(5);
/// let request = async {
///     let without = tokio::spawn(async { deadline::current() });
///     let with = tokio::spawn(deadline::inherit(async { deadline::current() }));
///     (without.await.unwrap(), with.await.unwrap())
/// };
/// assert_eq!(deadline::within(deadline, request).await, Ok((None, Some(deadline))));
/// # });
/// ```
pub fn inherit<F: IntoFuture>(future: F) -> Within<F::IntoFuture> {
    until(current(), future.into_future())
}
