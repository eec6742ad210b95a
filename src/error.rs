//! What can be wrong.

use std::time::Duration;
use std::{error, fmt, io};

/// Why a timer could not be built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick was zero.
    ZeroTick,
    /// The wheel was to have no slots.
    ZeroTicksPerWheel,
    /// The wheel was to have more slots than there can be.
    TooManyTicksPerWheel {
        /// [The most](crate::wheel::MAX_TICKS_PER_WHEEL): 2^30, Netty's limit; 2^28 where addresses have 32 bits.
        max: usize,
    },
    /// A whole turn of the wheel would take longer than the timer can count, 146 years.
    TickTooLong {
        /// The longest tick for a wheel of this size.
        max: Duration,
    },
    /// The name for the worker thread has a NUL byte in it.
    NulInThreadName,
    /// The platform has no clock, and [`Builder::clock`](crate::Builder::clock) was given none.
    NoClock,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroTick => f.write_str("tick is zero, but must be at least 1 ns"),
            Self::ZeroTicksPerWheel => f.write_str("ticks_per_wheel is zero, but must be at least 1"),
            Self::TooManyTicksPerWheel { max } => write!(f, "ticks_per_wheel must be at most {max}"),
            Self::TickTooLong { max } => {
                write!(f, "tick must be at most {max:?} for a wheel with this many ticks")
            }
            Self::NulInThreadName => f.write_str("thread_name must not contain a NUL byte"),
            Self::NoClock => f.write_str("this platform has no clock, so clock must be given one"),
        }
    }
}

impl error::Error for BuildError {}

/// Why a timeout was refused. Its task has been dropped, and nothing of it is left in the timer.
#[derive(Debug)]
#[non_exhaustive]
pub enum NewTimeoutError {
    /// The timer [is stopped](crate::HashedWheelTimer::is_stopped), or is being
    /// [shut down](crate::HashedWheelTimer::shutdown). (Netty: `IllegalStateException`.)
    Stopped,
    /// As many timeouts are pending as [`max_pending_timeouts`](crate::Builder::max_pending_timeouts) allows. (Netty:
    /// `RejectedExecutionException`.)
    TooManyPending {
        /// The limit.
        limit: usize,
    },
    /// The worker thread could not be started. The next call tries again.
    Spawn(io::Error),
    /// The period of a periodic task, or the delay between its runs, was zero. (Java: `IllegalArgumentException`.)
    ZeroPeriod,
}

impl fmt::Display for NewTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("the timer is stopped"),
            Self::TooManyPending { limit } => {
                write!(f, "too many timeouts are pending: {limit}, which is the limit")
            }
            Self::Spawn(error) => write!(f, "the worker thread could not be started: {error}"),
            Self::ZeroPeriod => f.write_str("period is zero, but must be at least 1 ns"),
        }
    }
}

impl error::Error for NewTimeoutError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Spawn(error) => Some(error),
            _ => None,
        }
    }
}
