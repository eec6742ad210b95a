//! What a server answers to an error.

use std::error::Error;
use std::{io, iter};

use http::StatusCode;

use hashed_wheel::{NewTimeoutError, TimeoutError};

use crate::time::error::Elapsed;

/// Returns the HTTP status for an error of a service: 504 if the time was over, 503 if the timer is
/// stopped or full, and otherwise 500. With the feature `http`.
///
/// It looks at the sources of the error too, and into an [`io::Error`]. An `io::Error` of kind
/// [`TimedOut`](io::ErrorKind::TimedOut) that contains no other error is what an [`Elapsed`]
/// converts into.
///
/// # Examples
///
/// See [`DeadlineLayer`](super::DeadlineLayer). With axum:
/// `HandleErrorLayer::new(|error: BoxError| async move { http_status(&*error) })`.
#[must_use]
pub fn http_status(error: &(dyn Error + 'static)) -> StatusCode {
    match cause(error) {
        Cause::Elapsed => StatusCode::GATEWAY_TIMEOUT,
        Cause::Timer => StatusCode::SERVICE_UNAVAILABLE,
        Cause::Other => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the value of `grpc-status` for an error of a service: 4, `DEADLINE_EXCEEDED`, if the
/// time was over; 14, `UNAVAILABLE`, if the timer is stopped or full; and otherwise 2, `UNKNOWN`.
/// With the feature `http`.
///
/// It looks at the sources of the error too.
///
/// # Examples
///
/// ```
/// use hashed_wheel::TimeoutError;
/// use hashed_wheel_util::tower::{grpc_status, http_status};
///
/// assert_eq!(grpc_status(&TimeoutError::Elapsed), 4);
/// assert_eq!(http_status(&TimeoutError::Elapsed), 504);
/// ```
#[must_use]
pub fn grpc_status(error: &(dyn Error + 'static)) -> u8 {
    match cause(error) {
        Cause::Elapsed => 4,
        Cause::Timer => 14,
        Cause::Other => 2,
    }
}

enum Cause {
    Elapsed,
    Timer,
    Other,
}

fn cause(error: &(dyn Error + 'static)) -> Cause {
    let causes = iter::successors(Some(error), |&error| source(error));
    let known = causes.filter_map(|error| match error.downcast_ref() {
        Some(TimeoutError::Elapsed) => Some(Cause::Elapsed),
        Some(TimeoutError::Timer(_)) => Some(Cause::Timer),
        None if error.is::<NewTimeoutError>() => Some(Cause::Timer),
        None => is_elapsed(error).then_some(Cause::Elapsed),
    });
    { known }.next().unwrap_or(Cause::Other)
}

fn is_elapsed(error: &(dyn Error + 'static)) -> bool {
    let was_elapsed = |error: &io::Error| {
        error.kind() == io::ErrorKind::TimedOut
            && error.get_ref().is_none()
            && error.raw_os_error().is_none()
    };
    error.is::<Elapsed>() || error.downcast_ref().is_some_and(was_elapsed)
}

/// An `io::Error` does not name the error that it contains as its source.
fn source<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref().and_then(io::Error::get_ref) {
        Some(contained) => Some(contained),
        None => error.source(),
    }
}

/// 504: a handler that returns `Result<_, StatusCode>` may use `?` on a
/// [`timeout`](crate::time::timeout()). With the feature `http`.
impl From<Elapsed> for StatusCode {
    fn from(_: Elapsed) -> Self {
        Self::GATEWAY_TIMEOUT
    }
}
