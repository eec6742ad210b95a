//! How long a client waits, and how often it repeats a request.

use std::fmt;
use std::time::Duration;

use crate::Backoff;

/// How long a [`Client`](super::Client) waits, and how often it repeats a request.
///
/// `R` says which errors are retried: [`AllErrors`], or the function of
/// [`retry_if`](Self::retry_if).
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::client::Policy;
/// use std::io::{Error, ErrorKind};
/// use std::time::Duration;
///
/// let policy = Policy::new(Duration::from_secs(1))
///     .attempt_timeout(Duration::from_millis(300))
///     .retries(2)
///     .retry_if(|error: &Error| error.kind() != ErrorKind::PermissionDenied)
///     .hedge_after(Duration::from_millis(50));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a policy does nothing until a client has it"]
pub struct Policy<R = AllErrors> {
    pub(super) deadline: Duration,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) retries: u32,
    pub(super) hedge_after: Option<Duration>,
    pub(super) hedge_percent: Option<u8>,
    pub(super) retry: R,
    pub(super) backoff: Backoff,
}

/// Says which errors a [`Client`](super::Client) retries: implemented by each function from `&E` to
/// `bool`, and by [`AllErrors`]. See [`Policy::retry_if`].
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::client::Retry;
///
/// struct Only(u16);
///
/// impl Retry<u16> for Only {
///     fn retries(&self, status: &u16) -> bool {
///         *status == self.0
///     }
/// }
/// assert!(Only(503).retries(&503) && !Only(503).retries(&404));
/// ```
pub trait Retry<E> {
    /// Returns whether an attempt that has failed with this error is repeated.
    fn retries(&self, error: &E) -> bool;
}

/// Every error is retried. This is what a [`Policy`] does initially.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::client::{AllErrors, Retry};
///
/// assert!(AllErrors.retries(&"connection reset"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllErrors;

impl<E> Retry<E> for AllErrors {
    fn retries(&self, _: &E) -> bool {
        true
    }
}

impl<E, F: Fn(&E) -> bool> Retry<E> for F {
    fn retries(&self, error: &E) -> bool {
        self(error)
    }
}

impl Policy {
    /// Makes a policy without retries and hedges. `deadline` is the limit for a whole call: all
    /// attempts, and the pauses between them. [`call_until`](super::Client::call_until) makes it
    /// shorter.
    pub const fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            attempt_timeout: None,
            retries: 0,
            hedge_after: None,
            hedge_percent: None,
            retry: AllErrors,
            backoff: Backoff::new(Duration::from_millis(100)),
        }
    }
}

impl<R> Policy<R> {
    /// Sets the limit for one attempt, including its hedge. `None`, the initial value, is no limit.
    pub fn attempt_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.attempt_timeout = timeout.into();
        self
    }

    /// Sets the maximum number of attempts after the first one. Initially 0.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets which errors are retried: those for which `predicate` returns true. Initially
    /// [all](AllErrors). An attempt that has timed out is retried in any case.
    ///
    /// A failure with another error ends the call, with [`Failed`](super::CallError::Failed).
    ///
    /// # Examples
    ///
    /// A client in a struct names its type with a function pointer:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::client::{Client, Policy};
    /// use std::io::{Error, ErrorKind};
    /// use std::time::Duration;
    ///
    /// type IsTransient = fn(&Error) -> bool;
    ///
    /// struct Service {
    ///     client: Client<IsTransient>,
    /// }
    ///
    /// let is_transient: IsTransient = |error| error.kind() == ErrorKind::ConnectionReset;
    /// let policy = Policy::new(Duration::from_secs(1)).retries(2).retry_if(is_transient);
    /// let service = Service { client: Client::new(&HashedWheelTimer::default(), policy) };
    /// ```
    pub fn retry_if<E, F: Fn(&E) -> bool>(self, predicate: F) -> Policy<F> {
        Policy {
            deadline: self.deadline,
            attempt_timeout: self.attempt_timeout,
            retries: self.retries,
            hedge_after: self.hedge_after,
            hedge_percent: self.hedge_percent,
            retry: predicate,
            backoff: self.backoff,
        }
    }

    /// Sets the pauses before the retries. Initially `Backoff::new(Duration::from_millis(100))`. If
    /// they [end](Backoff::max_total), so do the retries.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the time after which an attempt sends a second request, a hedge. The first answer to
    /// arrive is used. `None`, the initial value, sends no hedges.
    ///
    /// A good value is the 95th percentile of the answer times: then 5 of 100 requests are sent
    /// twice. [`hedge_at_percentile`](Self::hedge_at_percentile) observes it.
    pub fn hedge_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.hedge_after = after.into();
        self
    }

    /// Sets the time after which an attempt sends a hedge to a percentile of the answer times that
    /// the client has observed, such as 95. `None` is the initial value. Finagle's
    /// `BackupRequestFilter`.
    ///
    /// The answer time of an attempt is the time from its first request to the first answer. The
    /// last 512 count, and the percentile follows them every 16 answers. Failures and attempts that
    /// have timed out do not count. Until there are 128 answers,
    /// [`hedge_after`](Self::hedge_after) applies, if it is set. After that it does not.
    ///
    /// It costs each attempt two readings of the clock and a lock, and the client 4 KiB.
    ///
    /// # Panics
    ///
    /// If the percentile is not from 1 to 99.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel_util::client::Policy;
    /// use std::time::Duration;
    ///
    /// let policy = Policy::new(Duration::from_secs(1))
    ///     .hedge_after(Duration::from_millis(200)) // at first
    ///     .hedge_at_percentile(95);
    /// ```
    #[track_caller]
    pub fn hedge_at_percentile(mut self, percent: impl Into<Option<u8>>) -> Self {
        self.hedge_percent = percent.into();
        assert!(
            self.hedge_percent
                .is_none_or(|percent| (1..=99).contains(&percent)),
            "the percentile is {:?}, but must be from 1 to 99",
            self.hedge_percent
        );
        self
    }
}

impl<R> fmt::Debug for Policy<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("deadline", &self.deadline)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("retries", &self.retries)
            .field("backoff", &self.backoff)
            .field("hedge_after", &self.hedge_after)
            .field("hedge_percent", &self.hedge_percent)
            .finish_non_exhaustive()
    }
}
