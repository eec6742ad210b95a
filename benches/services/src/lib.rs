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
    /// The timer of the runtime
    Tokio,
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wheel => "hashed-wheel",
            Self::Task => "hashed-wheel, driven by a task",
            Self::Tokio => "tokio::time",
        })
    }
}
