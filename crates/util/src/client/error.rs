//! Why a call has no answer.

use std::{error, fmt};

use hashed_wheel::{NewTimeoutError, TimeoutError};

/// Why a call has no answer.
///
/// # Examples
///
/// The answer of a proxy:
///
/// ```
/// use hashed_wheel_util::client::CallError;
///
/// fn status<E>(error: &CallError<E>) -> u16 {
///     match error {
///         CallError::Deadline | CallError::AttemptTimeout => 504, // gateway timeout
///         CallError::Timer(_) => 503,                             // this proxy stops, or is full
///         _ => 502,                                               // bad gateway
///     }
/// }
/// assert_eq!(status::<std::io::Error>(&CallError::Deadline), 504);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError<E> {
    /// The [deadline](super::Policy::deadline) of the call has passed.
    Deadline,
    /// The last attempt has [timed out](super::Policy::attempt_timeout).
    AttemptTimeout,
    /// The last attempt has failed.
    Failed(E),
    /// The timer is stopped or has rejected a timeout.
    Timer(NewTimeoutError),
}

impl<E> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the deadline of the call has passed"),
            Self::AttemptTimeout => f.write_str("the last attempt has timed out"),
            Self::Failed(_) => f.write_str("the last attempt has failed"),
            Self::Timer(_) => f.write_str("the timer cannot watch the deadline"),
        }
    }
}

impl<E: error::Error + 'static> error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Deadline | Self::AttemptTimeout => Some(&TimeoutError::Elapsed),
            Self::Timer(error) => Some(error),
        }
    }
}

/// The end of the time for the whole call.
impl<E> From<TimeoutError> for CallError<E> {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::Deadline,
            TimeoutError::Timer(error) => Self::Timer(error),
        }
    }
}
