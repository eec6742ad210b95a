//! Netty's `HashedWheelTimer` for Rust: a timer for very many coarse timeouts (idle connections,
//! request deadlines, lock leases, retries), nearly all of which are cancelled before they fire.
//!
//! ```
//! use hashed_wheel::HashedWheelTimer;
//! use std::time::Duration;
//!
//! let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
//! let timeout = timer.new_timeout(|_| println!("no answer"), Duration::from_secs(5))?;
//! // The answer has arrived:
//! assert!(timeout.cancel());
//! # Ok::<(), hashed_wheel::NewTimeoutError>(())
//! ```
//!
//! # How it works
//!
//! Time is divided into ticks. A wheel is an array of slots, one per tick, that the timer passes
//! again and again. A timeout is in the slot of its deadline. Each thread that schedules, cancels
//! or re-arms sends messages to the *worker* through a queue of its own. The worker puts timeouts
//! into slots, takes out those that are due, and runs their tasks or hands them to an executor.
//! Then it sleeps until the next deadline.
//!
//! - A timeout fires at the first boundary of a tick at or after its deadline: never early by the
//!   timer's [clock](HashedWheelTimer#when-a-timeout-fires), and at most one tick late, plus the
//!   time that the system needs to wake the worker, and that of the tasks before it.
//! - A timeout ends in exactly one way: it expires, and its task runs or is handed to the executor;
//!   or it is cancelled, by `cancel` or by the end of the timer. The thread whose compare-exchange
//!   changes its state decides.
//! - `cancel` and `reset` take no lock that is held while user code runs. [`Timeout::cancel`] drops
//!   the task and updates the count before it returns.
//! - Deadlines are in nanoseconds of the timer's [`Clock`], which is monotonic.
//!
//! # The types
//!
//! | to | use |
//! |---|---|
//! | construct a timer | [`HashedWheelTimer::new`], [`HashedWheelTimer::builder`] with [`Builder`], [`HashedWheelTimer::global`] |
//! | refer to a timer without keeping it | [`HashedWheelTimer::downgrade`], [`WeakTimer`] |
//! | schedule a task once | [`HashedWheelTimer::new_timeout`], [`new_timeout_task`](HashedWheelTimer::new_timeout_task) with a [`TimerTask`] |
//! | let timeouts share wake-ups | [`HashedWheelTimer::deadline_within`] |
//! | cancel, re-arm, ask | [`Timeout`], [`CancelOnDrop`], [`Cancel`] |
//! | arm a timeout again after it has fired | [`HashedWheelTimer::new_alarm`], [`Alarm`] |
//! | repeat a task | [`HashedWheelTimer::schedule_at_fixed_rate`], [`Schedule`], [`Periodic`] |
//! | wait in async code | [`HashedWheelTimer::sleep`], [`timeout`](HashedWheelTimer::timeout), [`interval`](HashedWheelTimer::interval) |
//! | run tasks elsewhere | [`Builder::task_executor`], [`TaskExecutor`], [`ExpiredTask`] |
//! | turn the timer yourself | [`Builder::build_driven`], [`Builder::build_hosted`], [`Driver`]; on tokio `tokio::build_on` of hashed-wheel-util |
//! | turn time in tests | [`ManualClock`] |
//! | end a timer | [`HashedWheelTimer::stop`], [`shutdown`](HashedWheelTimer::shutdown), [`begin_stop`](HashedWheelTimer::begin_stop) with [`Ending`] |
//! | observe a timer | [`HashedWheelTimer::stats`], [`occupancy`](HashedWheelTimer::occupancy) |
//! | let one thread own its timer | [`LocalTimer`] |
//! | use a wheel without a timer | [`wheel::HashedWheel`], [`wheel::HierarchicalWheel`] |
//!
//! # Features
//!
//! Features are additive. `tracing` is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | none (`default-features = false`) | the timer, and all that needs no other feature |
//! | `tracing` | reports of panics, slow tasks and rejected timeouts |
//! | `async` | futures that need no runtime: [`Sleep`], [`WithTimeout`], [`Interval`] |
//!
//! # Platforms
//!
//! The timer needs `std`, 64-bit atomics and Rust 1.85. On `wasm32-unknown-unknown` there are
//! neither threads nor a clock: a timer is driven there and needs a [`Clock`] of yours. The wheels
//! and [`LocalTimer`] are in a crate of their own, `timing-wheels`, which needs only `alloc` and
//! Rust 1.71.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation above links to items of all features.
#![cfg_attr(not(feature = "async"), allow(rustdoc::broken_intra_doc_links))]

// | file | content |
// |---|---|
// | `timer`, `weak`, `timeout`, `builder/`, `driver`, `ending` | API: the handles of a timer, its construction, a timer without a thread, its end |
// | `cancel`, `task`, `executor`, `clock/`, `error`, `stats` | API: what users implement or receive |
// | `alarm/`, `periodic/`, `future/` | API, built on the above: timeouts that are armed again, periodic tasks, async code |
// | `engine/` | one timer: callers, queue, worker, sleep, end, thread |
// | `node/` | one timeout: state word, memory, references, messages; all `unsafe`, except for the platform's |
// | `either_wheel` | one type for both wheels of the crate `timing-wheels` |
// | `sync/`, `ticks`, `report`, `platform/` | foundation: primitives, arithmetic of time, logging, platform |
// | `must_not_compile` | code that must not compile, as doc tests |

mod alarm;
mod builder;
mod cancel;
mod clock;
mod driver;
mod either_wheel;
mod ending;
mod engine;
mod error;
pub mod executor;
#[cfg(feature = "async")]
mod future;
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
mod weak;

#[cfg(doctest)]
mod must_not_compile;

#[cfg(feature = "async")]
pub use future::{Interval, Sleep, TimeoutError, WithTimeout};
/// The timing wheels as plain data structures: the crate `timing-wheels`.
pub use timing_wheels as wheel;
pub use timing_wheels::{LocalTimer, TimePoint};
pub use {
    alarm::Alarm,
    builder::Builder,
    cancel::{Cancel, CancelOnDrop},
    clock::{Clock, ManualClock, MonotonicClock},
    driver::Driver,
    ending::{Ending, RunningTask},
    engine::{ExpiredTask, Timeout},
    error::{BuildError, NewTimeoutError, TryNewTimeoutError, Unavailable},
    periodic::{MissedTick, Periodic, PeriodicOutput, PeriodicRun, Schedule},
    stats::{Lateness, Occupancy, Stats},
    task::{DynTimerTask, TaskExecutor, TimerTask},
    timer::HashedWheelTimer,
    weak::WeakTimer,
};
