#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(any(feature = "hyper", feature = "metrics", feature = "rayon", feature = "stream", feature = "tokio"))]
mod adapters;
mod builder;
mod clock;
mod driver;
mod engine;
mod error;
#[cfg(feature = "async")]
mod future;
mod keyed;
mod node;
mod periodic;
mod platform;
mod report;
mod stats;
mod sync;
mod task;
mod ticks;
mod timeout;
mod timer;

#[cfg(doctest)]
mod must_not_compile;

pub mod wheel;

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub use adapters::executor;
pub use builder::Builder;
pub use clock::{Clock, ManualClock};
pub use driver::Driver;
pub use engine::Timeout;
pub use error::{BuildError, NewTimeoutError};
#[cfg(feature = "async")]
pub use future::{Interval, Sleep, TimeoutError, WithTimeout};
pub use keyed::KeyedTimeouts;
pub use periodic::{MissedTick, Periodic, Schedule};
pub use stats::{Lateness, LevelOccupancy, Occupancy, Stats};
pub use task::{ExpiredTask, TaskExecutor, TimerTask};
pub use timeout::CancelOnDrop;
pub use timer::HashedWheelTimer;
