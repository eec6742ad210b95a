#![doc = include_str!("../README.md")]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

// | module | content |
// |---|---|
// | `timer`, `timeout`, `builder`, `driver`, `ending` | API: the handles of a timer, its construction, a timer without a thread, an end that goes on |
// | `task`, `rejection`, `clock`, `error`, `stats` | API: what users implement or receive |
// | `keyed/`, `delay_queue/`, `periodic/`, `future/`, `client` | API, built on the above: timeouts by key, queues of values, periodic tasks, async code, calls with retries |
// | `adapters/` | tokio, rayon, hyper, tower, `Stream`, metrics: the only files that name types of optional dependencies |
// | `engine/` | one timer: callers, queue, worker, sleep, end, thread |
// | `node/` | one timeout: state word, memory, references, messages; with `platform`, all `unsafe` |
// | `wheel/` | the timing wheels: plain data structures |
// | `sync/`, `ticks`, `report`, `platform` | foundation: primitives, arithmetic of time, logging, platform |
// | `must_not_compile` | code that must not compile, as doc tests |

#[cfg(any(
    feature = "hyper",
    feature = "metrics",
    feature = "rayon",
    feature = "stream",
    feature = "tokio",
    feature = "tower",
))]
mod adapters;
mod builder;
mod clock;
mod driver;
mod ending;
mod engine;
mod error;
#[cfg(feature = "async")]
mod future;
mod keyed;
mod node;
mod periodic;
mod platform;
mod rejection;
mod report;
mod stats;
mod sync;
mod task;
mod ticks;
mod timeout;
mod timer;

#[cfg(doctest)]
mod must_not_compile;

#[cfg(feature = "client")]
pub mod client;
pub mod delay_queue;
pub mod wheel;

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub use adapters::executor;
#[cfg(feature = "tower")]
pub use adapters::tower;
#[cfg(feature = "tokio")]
pub use adapters::{IdleIo, TokioClock};
pub use builder::Builder;
pub use clock::{Clock, ManualClock, MonotonicClock};
pub use driver::Driver;
pub use ending::{Ending, RunningTask};
pub use engine::Timeout;
pub use error::{BuildError, InsertError, NewTimeoutError, TryNewTimeoutError};
#[cfg(feature = "async")]
pub use future::{Interval, Sleep, TimeoutError, WithTimeout};
#[cfg(feature = "async")]
pub use keyed::ExpiredEntries;
pub use keyed::KeyedTimeouts;
pub use periodic::{CancelPeriodicOnDrop, MissedTick, Periodic, PeriodicRun, Schedule};
pub use rejection::{Handler, RejectionPolicy};
pub use stats::{Lateness, LevelOccupancy, Occupancy, PendingTimeout, Stats};
pub use task::{ExpiredTask, TaskExecutor, TimerTask};
pub use timeout::CancelOnDrop;
pub use timer::HashedWheelTimer;
