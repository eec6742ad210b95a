#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod builder;
mod clock;
mod core;
mod driver;
mod error;
#[cfg(hashed_wheel_loom)]
mod for_models;
mod keyed;
mod lanes;
mod life;
mod local;
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

#[cfg(doctest)]
mod must_not_compile;

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub mod executor;
pub mod wheel;

pub use builder::Builder;
pub use clock::{Clock, ManualClock};
pub use driver::Driver;
pub use error::{BuildError, NewTimeoutError};
pub use keyed::KeyedTimeouts;
pub use stats::Stats;
pub use task::{ExpiredTask, TaskExecutor, TimerTask};
pub use timeout::{CancelOnDrop, Timeout};
pub use timer::HashedWheelTimer;

/// For the models in `loom-tests/`.
#[cfg(hashed_wheel_loom)]
#[doc(hidden)]
pub use for_models::{Lane, Lanes, NodeEntry, Nodes, VacantNode};

#[cfg(hashed_wheel_loom)]
#[doc(hidden)]
pub use sync::{Fault, take_spawned};
