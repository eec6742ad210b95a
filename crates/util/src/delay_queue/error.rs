//! The error of an insertion.

use std::{error, fmt};

use hashed_wheel::NewTimeoutError;

/// The error of [`DelayQueue::insert`](super::DelayQueue::insert): the value comes back, with the
/// reason. `std::sync::mpsc::SendError`.
///
/// It converts into its [`NewTimeoutError`], so `?` works in a function that returns that.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// use hashed_wheel_util::delay_queue::DelayQueue;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::default();
/// let queue = DelayQueue::new(&timer);
/// timer.stop();
/// let rejected = queue.insert("retry", Duration::from_secs(30)).unwrap_err();
/// assert_eq!(rejected.value, "retry");
/// assert!(matches!(rejected.error, NewTimeoutError::Stopped));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct InsertError<T> {
    /// The value.
    pub value: T,
    /// The reason.
    pub error: NewTimeoutError,
}

impl<T> From<InsertError<T>> for NewTimeoutError {
    fn from(rejected: InsertError<T>) -> Self {
        rejected.error
    }
}

impl<T> fmt::Debug for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> error::Error for InsertError<T> {}
