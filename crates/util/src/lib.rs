//! Tools on top of the timer of [`hashed_wheel`], which use nothing but its public API.
//!
//! ```
//! use hashed_wheel::HashedWheelTimer;
//! use hashed_wheel_util::{ExpiringMap, Removed};
//! use std::time::Duration;
//!
//! let timer = HashedWheelTimer::default();
//! let sessions = ExpiringMap::builder(&timer)
//!     .time_to_idle(Duration::from_secs(30))
//!     .build_with_handler(|session: Removed<&str, u32>| {
//!         println!("{} after {} packets: {:?}", session.key, session.value, session.cause);
//!     });
//! sessions.put("ada", 0)?;
//! sessions.with("ada", |packets| *packets += 1);
//! assert_eq!(sessions.get("ada"), Some(1));
//! # Ok::<(), hashed_wheel::NewTimeoutError>(())
//! ```
//!
//! | to | use | feature |
//! |---|---|---|
//! | keep values by key until they expire | [`ExpiringMap`] | |
//! | get values back when they are due | [`delay_queue::DelayQueue`] | |
//! | replace `tokio::time` by changing one line | [`time`] | `tokio`, on other runtimes none |
//! | let a deadline follow a request | [`deadline`] | |
//! | limit and repeat calls | [`client::Client`] | `client` |
//! | pause between attempts of your own | [`Backoff`] | |
//! | let a task of tokio turn a timer | [`tokio::build_on`], [`tokio::TokioClock`] | `tokio` |
//! | run tasks on a pool or runtime | [`executor`] | `tokio`, `rayon` |
//! | keep the tasks that a pool refuses | [`executor::TaskExecutorExt`] | |
//! | run a task in its `tracing` span | [`InSpan`] | `tracing` |
//! | close connections that are idle | [`IdleIo`] | `tokio` |
//! | limit how long a read or a write waits | [`IoTimeout`] | `tokio` |
//! | limit the requests of a tower service | [`tower::TimeoutLayer`] | `tower` |
//! | limit HTTP requests by `grpc-timeout` | [`tower::DeadlineLayer`] | `http` |
//! | give hyper its timeouts | [`HyperTimer`] | `hyper` |
//! | use intervals, queues and maps as streams | [`IntervalStream`] | `stream` |
//! | publish the counters of a timer or client | [`metrics`](mod@metrics) | `metrics` |
//!
//! Features are additive, and none is enabled by default.
#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation above links to items of all features.
#![cfg_attr(
    not(all(
        feature = "client",
        feature = "http",
        feature = "hyper",
        feature = "metrics",
        feature = "rayon",
        feature = "stream",
        feature = "tokio",
        feature = "tower",
        feature = "tracing"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

mod backoff;
#[cfg(feature = "client")]
pub mod client;
pub mod deadline;
mod deadline_of_task;
mod deadlines;
pub mod delay_queue;
pub mod executor;
mod expiring_map;
#[cfg(all(
    doctest,
    feature = "client",
    feature = "hyper",
    feature = "tokio",
    feature = "tower"
))]
mod guide;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "tokio")]
mod idle_io;
#[cfg(feature = "tracing")]
mod in_span;
#[cfg(feature = "tokio")]
mod io_timeout;
#[cfg(feature = "metrics")]
pub mod metrics;
mod random;
#[cfg(feature = "stream")]
mod stream;
mod sync;
pub mod time;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tower")]
pub mod tower;

pub use self::backoff::{Backoff, Jitter};
pub use self::expiring_map::entry::{Entry, OccupiedEntry, VacantEntry};
pub use self::expiring_map::{
    BeingWritten, BoxFuture, Cause, ExpiringMap, ExpiringMapBuilder, InsertError, Removed,
    RemovedEntries,
};
#[cfg(feature = "hyper")]
pub use self::hyper::HyperTimer;
#[cfg(feature = "tokio")]
pub use self::idle_io::{IdleIo, IdleTimes};
#[cfg(feature = "tracing")]
pub use self::in_span::InSpan;
#[cfg(feature = "tokio")]
pub use self::io_timeout::IoTimeout;
#[cfg(feature = "stream")]
pub use self::stream::IntervalStream;
#[doc(no_inline)]
pub use equivalent::Equivalent;
