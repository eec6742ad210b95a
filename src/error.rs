//! The error types.

use std::time::Duration;
use std::{error, fmt, io};

/// Implements `Display`, by a text for each kind of error, and `Error`.
macro_rules! error_texts {
    ($error:ty { $($kind:pat => $text:literal $(, $argument:expr)?;)* }) => {
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($kind => write!(f, $text $(, $argument)?),)*
                }
            }
        }

        impl std::error::Error for $error {}
    };
}
#[cfg(feature = "async")]
pub(crate) use error_texts;

/// The reason why [`Builder::build`](crate::Builder::build) or
/// [`build_driven`](crate::Builder::build_driven) failed.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{BuildError, HashedWheelTimer};
/// use std::time::Duration;
///
/// let built = HashedWheelTimer::builder().tick(Duration::ZERO).build();
/// assert_eq!(built.unwrap_err(), BuildError::ZeroTick);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick was zero.
    ZeroTick,
    /// The number of slots of the wheel was zero.
    ZeroTicksPerWheel,
    /// The number of slots of the wheel was too large.
    TooManyTicksPerWheel {
        /// The limit, [`MAX_TICKS_PER_WHEEL`](crate::wheel::MAX_TICKS_PER_WHEEL): 2^30 as in Netty,
        /// or 2^28 on targets with 32-bit addresses.
        max: usize,
    },
    /// A round of the wheel would be longer than 146 years, which is more than the timer can count.
    TickTooLong {
        /// The longest tick for a wheel with this number of slots.
        max: Duration,
    },
    /// There is no memory for the slots of a wheel with this many ticks.
    NoMemory {
        /// The size of the array that could not be allocated. The operating system provides memory
        /// only for the slots that are used, but address space for all.
        bytes: usize,
    },
    /// The name of the worker thread contained a NUL byte.
    NulInThreadName,
    /// The platform has no clock, and no clock was set with
    /// [`Builder::clock`](crate::Builder::clock).
    NoClock,
    /// A limit was zero: nothing could be pending, or no task could run.
    ZeroLimit {
        /// The method of [`Builder`](crate::Builder).
        option: &'static str,
    },
    /// An option was set that this kind of timer cannot use.
    UnusedOption {
        /// The method of [`Builder`](crate::Builder).
        option: &'static str,
        /// The kind of timer, such as `a driven timer`.
        timer: &'static str,
    },
}

error_texts! {
    BuildError {
        Self::ZeroTick => "tick is zero, but must be at least 1 µs";
        Self::ZeroTicksPerWheel => "ticks_per_wheel is zero, but must be at least 1";
        Self::TooManyTicksPerWheel { max } => "ticks_per_wheel must be at most {max}";
        Self::TickTooLong { max } => "tick must be at most {max:?} with this ticks_per_wheel";
        Self::NoMemory { bytes } => "no memory for {bytes} bytes: ticks_per_wheel must shrink";
        Self::NulInThreadName => "thread_name must not contain a NUL byte";
        Self::NoClock => "this platform has no clock, so the builder's must be set";
        Self::ZeroLimit { option } => "{option} must be at least 1; None is no limit";
        Self::UnusedOption { option, timer } => "{option} is set, which {timer} cannot use";
    }
}

/// The kind is [`InvalidInput`](io::ErrorKind::InvalidInput), except for `NoMemory`
/// ([`OutOfMemory`](io::ErrorKind::OutOfMemory)) and `NoClock`
/// ([`Unsupported`](io::ErrorKind::Unsupported)).
impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> Self {
        let kind = match error {
            BuildError::NoMemory { .. } => io::ErrorKind::OutOfMemory,
            BuildError::NoClock => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// The reason why a timeout was rejected. The timer keeps nothing of it: it has dropped the task,
/// or given it back ([`TryNewTimeoutError`]).
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::default();
/// timer.stop();
/// match timer.new_timeout(|_| (), Duration::from_secs(5)) {
///     Ok(_) => unreachable!("the timer is stopped"),
///     Err(NewTimeoutError::Stopped) => println!("the service ends"),
///     Err(NewTimeoutError::TooManyPending { limit }) => println!("{limit} calls wait: try later"),
///     Err(error) => eprintln!("{error}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewTimeoutError {
    /// The timer [is stopped](crate::HashedWheelTimer::is_stopped), or a
    /// [shutdown](crate::HashedWheelTimer::shutdown) has begun. Netty throws an
    /// `IllegalStateException`.
    #[doc(alias("IllegalStateException"))]
    Stopped,
    /// The number of pending timeouts has reached
    /// [`max_pending_timeouts`](crate::Builder::max_pending_timeouts). Netty throws a
    /// `RejectedExecutionException`.
    #[doc(alias("RejectedExecutionException"))]
    TooManyPending {
        /// The limit.
        limit: usize,
    },
    /// The operating system could not start the worker thread. The next call tries again.
    Spawn {
        /// The kind of the error of `std::thread::Builder::spawn`.
        kind: io::ErrorKind,
        /// The operating system's code, if it is one.
        os_error: Option<i32>,
    },
    /// This process was forked from the one that has the timer's worker thread: [After
    /// `fork`](crate::HashedWheelTimer#after-fork). Make a new timer here.
    Forked,
    /// The alarm [was cancelled](crate::Alarm::cancel), so it cannot be armed any more.
    Cancelled,
    /// The period of a periodic task, or the delay between its runs, was zero. Java's
    /// `ScheduledExecutorService` throws an `IllegalArgumentException`.
    ZeroPeriod,
}

error_texts! {
    NewTimeoutError {
        Self::Stopped => "the timer is stopped";
        Self::TooManyPending { limit } => "too many timeouts are pending: the limit is {limit}";
        error @ Self::Spawn { .. } =>
            "the worker thread could not be started: {}", io::Error::from(error.clone());
        Self::Forked =>
            "the timer's thread is in the parent process, from which this one was forked";
        Self::Cancelled => "the alarm was cancelled";
        Self::ZeroPeriod =>
            "period is zero, but must be positive; a task runs at most once per tick";
    }
}

/// The error that `spawn` returned, or one of the kind
/// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) at the limit,
/// [`NotConnected`](io::ErrorKind::NotConnected) for a timer that is stopped or in the parent
/// process and for a cancelled alarm, or [`InvalidInput`](io::ErrorKind::InvalidInput) for a period
/// of zero.
impl From<NewTimeoutError> for io::Error {
    fn from(error: NewTimeoutError) -> Self {
        let kind = match error {
            NewTimeoutError::Spawn { kind, os_error } => {
                return os_error.map_or(kind.into(), Self::from_raw_os_error);
            }
            NewTimeoutError::TooManyPending { .. } => io::ErrorKind::QuotaExceeded,
            NewTimeoutError::Stopped | NewTimeoutError::Forked | NewTimeoutError::Cancelled => {
                io::ErrorKind::NotConnected
            }
            NewTimeoutError::ZeroPeriod => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// The error of [`HashedWheelTimer::try_new_timeout_task`]: the task comes back, with the reason.
/// It is what `TrySendError` is for a channel.
///
/// It converts into its [`NewTimeoutError`] and into an [`io::Error`], so `?` works in a function
/// that returns one of these. The task is dropped then.
///
/// [`HashedWheelTimer::try_new_timeout_task`]: crate::HashedWheelTimer::try_new_timeout_task
///
/// # Examples
///
/// See [`HashedWheelTimer::try_new_timeout_task`].
#[derive(Clone, PartialEq, Eq)]
pub struct TryNewTimeoutError<T> {
    /// The task. Its [`cancelled`](crate::TimerTask::cancelled) hook was not called.
    pub task: T,
    /// The reason.
    pub error: NewTimeoutError,
}

impl<T> From<TryNewTimeoutError<T>> for NewTimeoutError {
    fn from(rejected: TryNewTimeoutError<T>) -> Self {
        rejected.error
    }
}

impl<T> From<TryNewTimeoutError<T>> for io::Error {
    fn from(rejected: TryNewTimeoutError<T>) -> Self {
        rejected.error.into()
    }
}

impl<T> fmt::Debug for TryNewTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryNewTimeoutError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for TryNewTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> error::Error for TryNewTimeoutError<T> {}

/// The reason why [`occupancy`](crate::HashedWheelTimer::occupancy) could not look at the wheel.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, Unavailable};
///
/// let timer = HashedWheelTimer::default();
/// match timer.occupancy() {
///     Ok(wheel) => println!("tick {}", wheel.tick),
///     Err(Unavailable::Busy) => println!("later"),
///     Err(reason) => eprintln!("{reason}"),
/// }
/// timer.stop();
/// assert_eq!(timer.occupancy(), Err(Unavailable::Stopped));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The worker is within a turn, or another thread looks at the wheel. Try again later.
    Busy,
    /// The timer [is stopped](crate::HashedWheelTimer::is_stopped).
    Stopped,
    /// There is no memory for the numbers of all slots.
    NoMemory,
}

error_texts! {
    Unavailable {
        Self::Busy =>
            "the wheel is in use by the worker or by another look at it: try again later";
        Self::Stopped => "the timer is stopped";
        Self::NoMemory => "there is no memory for the numbers of all slots of the wheel";
    }
}
