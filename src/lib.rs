//! Netty's `HashedWheelTimer` for Rust: a timer for very many coarse timeouts (idle connections,
//! request deadlines, lock leases, retries), nearly all of which are cancelled before they fire.
//!
#![cfg_attr(feature = "timer", doc = "```")]
#![cfg_attr(not(feature = "timer"), doc = "```text")]
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
//! | schedule without a `Result` | [`HashedWheelTimer::infallible`], [`InfallibleTimer`] |
//! | cancel, re-arm, ask | [`Timeout`], [`CancelOnDrop`], [`Cancel`] |
//! | arm a timeout again after it has fired | [`HashedWheelTimer::new_alarm`], [`Alarm`] |
//! | repeat a task | [`HashedWheelTimer::schedule_at_fixed_rate`], [`Schedule`], [`Periodic`] |
//! | wait in async code | [`HashedWheelTimer::sleep`], [`timeout`](HashedWheelTimer::timeout), [`interval`](HashedWheelTimer::interval) |
//! | run tasks elsewhere | [`Builder::task_executor`], [`TaskExecutor`], [`ExpiredTask`] |
//! | turn the timer yourself | [`Builder::build_driven`], [`Driver`]; on tokio [`Builder::build_on_tokio`] |
//! | turn time in tests | [`ManualClock`]; on tokio [`TokioClock`] |
//! | end a timer | [`HashedWheelTimer::stop`], [`shutdown`](HashedWheelTimer::shutdown), [`begin_stop`](HashedWheelTimer::begin_stop) with [`Ending`] |
//! | observe a timer | [`HashedWheelTimer::stats`], [`next_timeouts`](HashedWheelTimer::next_timeouts), [`occupancy`](HashedWheelTimer::occupancy) |
//! | let one thread own its timer | [`LocalTimer`] |
//! | use a wheel without a timer | [`wheel::HashedWheel`], [`wheel::HierarchicalWheel`] |
//!
//! # Features
//!
//! Features are additive. `timer` and `tracing` are enabled by default. Each of the others enables
//! `timer`.
//!
//! | feature | adds |
//! |---|---|
//! | none (`default-features = false`) | [`wheel`] and [`LocalTimer`] alone, for `no_std` with `alloc`; no dependencies, no `unsafe` code |
//! | `timer` | the timer, and all that needs no other feature |
//! | `tracing` | reports of panics, slow tasks and rejected timeouts |
//! | `async` | futures that need no runtime: [`Sleep`], [`WithTimeout`], [`Interval`] |
//! | `tokio` | [`Builder::build_on_tokio`], [`TokioClock`] |
//!
//! # Platforms
//!
//! The timer needs `std` and 64-bit atomics; the wheels and [`LocalTimer`] need neither. On
//! `wasm32-unknown-unknown` there are neither threads nor a clock: a timer is driven there and needs
//! a [`Clock`] of yours. All need Rust 1.85, because the crate is of edition 2024.
#![cfg_attr(not(any(feature = "timer", test)), no_std)]
#![cfg_attr(not(feature = "timer"), forbid(unsafe_code))]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation above links to items of all features.
#![cfg_attr(not(feature = "tokio"), allow(rustdoc::broken_intra_doc_links))]

// | file | content |
// |---|---|
// | `timer`, `weak`, `timeout`, `builder/`, `driver`, `ending` | API: the handles of a timer, its construction, a timer without a thread, its end |
// | `cancel`, `task`, `executor`, `clock/`, `error`, `stats` | API: what users implement or receive |
// | `alarm/`, `periodic/`, `future/`, `infallible` | API, built on the above: timeouts that are armed again, periodic tasks, async code, calls without a `Result` |
// | `local` | API: a timer for one thread, on a wheel alone |
// | `tokio` | a timer that a task of a tokio runtime turns, and the clock of a runtime |
// | `engine/` | one timer: callers, queue, worker, sleep, end, thread |
// | `node/` | one timeout: state word, memory, references, messages; all `unsafe`, except for the platform's |
// | `wheel/` | the timing wheels: plain data structures |
// | `sync/`, `ticks`, `report`, `platform/` | foundation: primitives, arithmetic of time, logging, platform |
// | `must_not_compile` | code that must not compile, as doc tests |

extern crate alloc;

// These need no std and no dependency. All other modules have the feature `timer`, or one that
// enables it.
mod local;
#[cfg(feature = "timer")]
mod ticks;
pub mod wheel;

#[cfg(feature = "timer")]
mod alarm;
#[cfg(feature = "timer")]
mod builder;
#[cfg(feature = "timer")]
mod cancel;
#[cfg(feature = "timer")]
mod clock;
#[cfg(feature = "timer")]
mod driver;
#[cfg(feature = "timer")]
mod ending;
#[cfg(feature = "timer")]
mod engine;
#[cfg(feature = "timer")]
mod error;
#[cfg(feature = "async")]
mod future;
#[cfg(feature = "timer")]
mod infallible;
#[cfg(feature = "timer")]
mod node;
#[cfg(feature = "timer")]
mod periodic;
#[cfg(feature = "timer")]
mod platform;
#[cfg(feature = "timer")]
mod report;
#[cfg(feature = "timer")]
mod stats;
#[cfg(feature = "timer")]
mod sync;
#[cfg(feature = "timer")]
mod task;
#[cfg(feature = "timer")]
mod timeout;
#[cfg(feature = "timer")]
mod timer;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "timer")]
mod weak;

#[cfg(all(doctest, feature = "timer"))]
mod must_not_compile;

#[cfg(feature = "timer")]
pub mod executor;

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
#[cfg(feature = "async")]
pub use future::{Interval, Sleep, TimeoutError, WithTimeout};
#[cfg(feature = "async")]
pub use infallible::InfallibleSleep;
pub use local::{LocalTimer, TimePoint};
#[cfg(feature = "timer")]
pub use {
    alarm::Alarm,
    builder::Builder,
    cancel::{Cancel, CancelOnDrop},
    clock::{Clock, ManualClock, MonotonicClock},
    driver::Driver,
    ending::{Ending, RunningTask},
    engine::Timeout,
    error::{BuildError, NewTimeoutError, TryNewTimeoutError, Unavailable},
    infallible::InfallibleTimer,
    periodic::{MissedTick, Periodic, PeriodicOutput, PeriodicRun, Schedule},
    stats::{Lateness, LevelOccupancy, Occupancy, PendingTimeout, Stats},
    task::{DynTimerTask, ExpiredTask, TaskExecutor, TimerTask},
    timer::HashedWheelTimer,
    weak::WeakTimer,
};
