//! Shows the timers of a running service in a terminal, as `top` shows processes.
//!
//! In the service, one line per timer:
//!
//! ```no_run
//! let timer = hashed_wheel::HashedWheelTimer::default();
//! wheel_top::watch("connections", &timer)?;
//! # std::io::Result::Ok(())
//! ```
//!
//! In a terminal of the same machine, at any time: `wheel-top 127.0.0.1:7070`.
//!
//! | to | use |
//! |---|---|
//! | show a timer on the address of the process | [`watch()`] |
//! | show timers on an address that the code chooses | [`Show`] |
//!
//! # Cost
//!
//! [`watch()`] starts one thread, which sleeps until `wheel-top` connects. While it is connected,
//! the thread reads all watched timers ten times per second. The worker of a timer waits while [its
//! slots](hashed_wheel::HashedWheelTimer::occupancy) are read. The slots of a wheel with more than
//! 65 536 are not read. Calls of `new_timeout`, `cancel` and `reset` do not wait.
//!
//! A watched timer ends as it would without the view, which holds a
//! [`WeakTimer`](hashed_wheel::WeakTimer). One thing can differ: if the last handle is dropped
//! while the view reads the timer, the timer ends on the view's thread, or on the thread of another
//! call of [`watch()`], and the drop returns at once. If your service must wait for the end,
//! [stop](hashed_wheel::HashedWheelTimer::stop) the timer instead.
//!
//! # Features
//!
//! `cli`, enabled by default: the program `wheel-top`. Services do without: `default-features =
//! false` leaves serde and `serde_json` as the only dependencies beside the timer.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cli")]
pub mod cli;
mod frame;
mod show;

pub use self::show::{Show, watch};

/// The code of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
