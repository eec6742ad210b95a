//! The timers on which the services run.

use std::fmt;

use clap::ValueEnum;

/// The timer on which a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// A wheel with its own thread
    Wheel,
    /// A wheel that a task of the runtime drives
    Task,
    /// The module `time` of hashed-wheel-util; hyper's own timeouts stay on tokio's timer
    Module,
    /// The timer of the runtime
    Tokio,
}

impl On {
    /// Whether this program can read the counters of the timer.
    #[must_use]
    pub fn has_counters(self) -> bool {
        matches!(self, Self::Wheel | Self::Task)
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wheel => "hashed-wheel",
            Self::Task => "hashed-wheel, driven by a task",
            Self::Module => "hashed_wheel_util::time",
            Self::Tokio => "tokio::time",
        })
    }
}
