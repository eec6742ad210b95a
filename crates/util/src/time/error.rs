//! The error of a [`timeout`](super::timeout).

use std::{error, fmt, io};

/// The error of tokio's own timer, which nothing here returns.
#[cfg(feature = "tokio")]
#[doc(no_inline)]
pub use tokio::time::error::Error;

/// The time was over before the future was ready: `tokio::time::error::Elapsed`.
///
/// It converts into an [`io::Error`] of kind [`TimedOut`](io::ErrorKind::TimedOut).
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::time::{self, error::Elapsed};
/// use std::time::Duration;
///
/// # smol::block_on(async {
/// let late = time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
/// let error: Elapsed = late.unwrap_err();
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
/// # });
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed(pub(super) ());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("deadline has elapsed")
    }
}

impl error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(_: Elapsed) -> Self {
        io::ErrorKind::TimedOut.into()
    }
}
