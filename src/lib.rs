#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

// | module | content |
// |---|---|
// | `timer`, `timeout`, `builder`, `driver` | API: the handles of a timer, its construction, a timer without a thread |
// | `task`, `clock`, `error`, `stats` | API: what users implement or receive |
// | `keyed`, `periodic/`, `future/` | API, built on the above: timeouts by key, periodic tasks, async code |
// | `adapters/` | tokio, rayon, hyper, `Stream`, metrics: the only files that name types of optional dependencies |
// | `core`, `lanes`, `local` | engine, callers: their operations; the queue to the worker; what a thread caches |
// | `worker`, `life`, `thread`, `shutdown`, `counters` | engine, worker: its turn; state and sleep; its thread; the end |
// | `node/` | one timeout: its state word, its memory, its task |
// | `wheel/` | the timing wheels: plain data structures |
// | `sync/`, `ticks`, `report`, `platform` | foundation: primitives, arithmetic of time, logging, platform |

#[cfg(any(feature = "hyper", feature = "metrics", feature = "rayon", feature = "stream", feature = "tokio"))]
mod adapters;
mod builder;
mod clock;
mod core;
mod counters;
mod driver;
mod error;
#[cfg(hashed_wheel_loom)]
mod for_models;
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

/// For the models in `loom-tests/`.
#[cfg(hashed_wheel_loom)]
#[doc(hidden)]
pub use for_models::{Lane, Lanes, NodeEntry, Nodes, VacantNode};

#[cfg(hashed_wheel_loom)]
#[doc(hidden)]
pub use sync::{Fault, take_spawned};
