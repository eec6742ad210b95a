#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod builder;
mod clock;
mod core;
mod driver;
mod error;
#[cfg(feature = "async")]
mod future;
mod keyed;
mod lanes;
mod life;
mod local;
#[cfg(feature = "metrics")]
mod metrics;
mod node;
mod occupancy;
mod periodic;
mod platform;
mod report;
mod schedule;
mod shutdown;
mod stats;
mod sync;
mod task;
mod thread;
mod ticks;
mod timeout;
mod timer;
mod worker;

#[cfg(doctest)]
mod must_not_compile;

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub mod executor;
pub mod wheel;

pub use builder::Builder;
pub use clock::{Clock, ManualClock};
pub use driver::Driver;
pub use error::{BuildError, NewTimeoutError};
#[cfg(feature = "async")]
pub use future::{Interval, Sleep, TimeoutError, WithTimeout};
pub use keyed::KeyedTimeouts;
pub use occupancy::{LevelOccupancy, Occupancy};
pub use periodic::Periodic;
pub use schedule::{MissedTick, Schedule};
pub use stats::{Lateness, Stats};
pub use task::{ExpiredTask, TaskExecutor, TimerTask};
pub use timeout::{CancelOnDrop, Timeout};
pub use timer::HashedWheelTimer;
