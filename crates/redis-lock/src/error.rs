//! Why there is no lock, and why a lock was lost.

use std::error::Error;
use std::fmt;

use hashed_wheel::NewTimeoutError;
use redis::RedisError;

/// Why a lock could not be taken, kept or released.
///
/// # Examples
///
/// ```no_run
/// use redis_lock::{Lock, LockError, Loss};
///
/// # async fn example(mut lock: Lock) {
/// match lock.lock().await {
///     Ok(guard) => println!("taken, with token {}", guard.token()),
///     Err(LockError::Redis(error)) if error.is_timeout() => println!("try again later"),
///     Err(LockError::Lost(Loss::HeldTooLong)) => println!("this owner still has an old guard"),
///     Err(error) => println!("{error}"),
/// }
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// The call to Redis failed, or was not answered in time. It is unknown whether Redis has
    /// executed it. A lock that it has granted or not released is released in the background as
    /// soon as Redis answers, and becomes free after a lease at the latest. The next call opens a
    /// new connection if necessary.
    ///
    /// A call is repeated until its time is over if Redis answers that it cannot execute it now:
    /// with `BUSY`, `CLUSTERDOWN`, `LOADING`, `MASTERDOWN`, `NOREPLICAS`, `READONLY` or `TRYAGAIN`.
    /// Then this is the last answer, not a timeout. [`RedisError::code`] returns its first word.
    /// All other errors that Redis answers, such as `OOM` and `NOPERM`, are returned at once.
    Redis(RedisError),
    /// The lock was lost. The resource that it protects may be in use by another owner.
    Lost(Loss),
    /// Too few [replicas](crate::LockOptions::replicas) have acknowledged the lock in time. It is
    /// released in the background.
    Replicas {
        /// The number that the options demand.
        wanted: usize,
        /// The number that have acknowledged it.
        acknowledged: usize,
    },
    /// The timer accepts no timeout: it is stopped, or its limit is reached. If the lock had been
    /// granted, it is released.
    Timer(NewTimeoutError),
    /// There is no tokio runtime: the client was not created on one.
    NoRuntime,
    /// A time of the [options](crate::LockOptions) is not in its range, a setting of the
    /// [client](crate::LockClientBuilder) is not valid, a [semaphore](crate::Semaphore) has no
    /// permits, or a [`MultiLock`](crate::MultiLock) has no names. Contains the reason.
    Options(String),
}

/// How a lock was lost.
///
/// # Examples
///
/// ```no_run
/// # use redis_lock::Loss;
/// # fn example(guard: redis_lock::Guard) {
/// guard.on_lost(|loss| match loss {
///     Loss::LeaseEnded(Some(error)) => eprintln!("Redis could not be reached: {error}"),
///     Loss::OtherOwner => eprintln!("another owner has the lock already"),
///     loss => eprintln!("the lock is lost: {loss}"),
/// });
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended, by the clock of this process, before it was renewed. Contains the error of
    /// the last renewal, if that failed. Without a watchdog this is the regular end of a lease.
    LeaseEnded(Option<String>),
    /// The [maximum holding time](crate::LockOptions::max_hold) is over.
    HeldTooLong,
    /// Redis has no owner for the lock, although the lease has not ended: it has lost its data, or
    /// another client has deleted the lock or [ended the hold](crate::LockClient::force_unlock).
    /// For a read-write lock or a semaphore: this hold is gone, and another owner could take its
    /// place.
    NoOwner,
    /// Redis has another owner for the lock, although the lease has not ended. For a read-write
    /// lock or a semaphore: this hold is gone, and others have taken its place.
    OtherOwner,
    /// The timer rejects timeouts, so the lease cannot be renewed or watched.
    Timer,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseEnded(None) => f.write_str("its lease ended before it was renewed"),
            Self::LeaseEnded(Some(error)) => write!(f, "its lease could not be renewed: {error}"),
            Self::HeldTooLong => f.write_str("it was held for the maximum time"),
            Self::NoOwner => f.write_str("Redis has no owner for it"),
            Self::OtherOwner => f.write_str("Redis has another owner for it"),
            Self::Timer => f.write_str("the timer is stopped, or accepts no timeouts"),
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(error) if error.is_timeout() => f.write_str("Redis does not answer"),
            Self::Redis(error) => match error.code() {
                Some(code) => write!(
                    f,
                    "Redis answers: {code} {}",
                    error.detail().unwrap_or_default()
                ),
                None => write!(f, "the call to Redis failed: {error}"),
            },
            Self::Lost(loss) => write!(f, "the lock is lost: {loss}"),
            Self::Replicas {
                wanted,
                acknowledged,
            } => {
                write!(
                    f,
                    "{acknowledged} replicas have acknowledged the lock instead of {wanted}"
                )
            }
            Self::Timer(error) => write!(f, "the lock cannot be kept: {error}"),
            Self::NoRuntime => {
                f.write_str("a lock client needs a tokio runtime, and there is none")
            }
            Self::Options(why) => write!(f, "the options are not valid: {why}"),
        }
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Redis(error) => Some(error),
            Self::Timer(error) => Some(error),
            Self::Lost(_) | Self::Replicas { .. } | Self::NoRuntime | Self::Options(_) => None,
        }
    }
}

impl From<RedisError> for LockError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl From<NewTimeoutError> for LockError {
    fn from(error: NewTimeoutError) -> Self {
        Self::Timer(error)
    }
}
