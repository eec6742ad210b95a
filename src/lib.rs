#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod builder;
mod clock;
mod core;
mod driver;
mod error;
mod life;
mod node;
mod report;
mod stats;
mod sync;
mod task;
mod thread;
mod ticks;
mod timeout;
mod timer;
mod worker;

pub mod wheel;

pub use builder::Builder;
pub use clock::{Clock, ManualClock};
pub use driver::Driver;
pub use error::{BuildError, NewTimeoutError};
pub use stats::Stats;
pub use task::{ExpiredTask, TaskExecutor, TimerTask};
pub use timeout::{CancelOnDrop, Timeout};
pub use timer::HashedWheelTimer;

/// For the models in `loom-tests/`.
#[cfg(hashed_wheel_loom)]
#[doc(hidden)]
pub use sync::{Fault, Queue, take_spawned};
