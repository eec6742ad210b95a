#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(any(feature = "hyper", feature = "metrics", feature = "rayon", feature = "stream", feature = "tokio"))]
mod adapters;
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
mod node;
mod periodic;
mod platform;
mod report;
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

pub mod wheel;

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub use adapters::executor;
pub use builder::Builder;
pub use clock::{Clock, ManualClock};
pub use driver::Driver;
pub use error::{BuildError, NewTimeoutError};
#[cfg(feature = "async")]
pub use future::{Interval, Sleep, TimeoutError, WithTimeout};
pub use keyed::KeyedTimeouts;
pub use periodic::{MissedTick, Periodic, Schedule};
pub use stats::{Lateness, LevelOccupancy, Occupancy, Stats};
pub use task::{ExpiredTask, TaskExecutor, TimerTask};
pub use timeout::{CancelOnDrop, Timeout};
pub use timer::HashedWheelTimer;
