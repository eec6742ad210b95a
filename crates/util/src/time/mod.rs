//! tokio's module `time`, on a timer of this library. To change to it, a program replaces
//! `use tokio::time` by `use hashed_wheel_util::time`.
//!
//! ```
//! use hashed_wheel_util::time; // was: use tokio::time;
//! use std::time::Duration;
//!
//! # tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(async {
//! time::sleep(Duration::from_millis(5)).await;
//! let answer = time::timeout(Duration::from_secs(5), async { "yes" }).await;
//! assert_eq!(answer, Ok("yes"));
//! let mut interval = time::interval(Duration::from_millis(5));
//! for _ in 0..3 {
//!     interval.tick().await;
//! }
//! # });
//! ```
//!
//! Names, signatures and meanings are tokio's, and nothing here returns an error that tokio does
//! not return. The timer of the module belongs to it: no code can stop it. Its tick is a
//! millisecond. Its thread starts with the first future that waits, which may take 200 ms on a busy
//! machine, while the timer [is built](hashed_wheel::Builder::build). For a timer of your own, with
//! another tick or clock, use a [`Timer`].
//!
//! A [`timeout`](timeout()) also ends at the [deadline of the request](crate::deadline) that first
//! polls it, if that is earlier.
//!
//! # Tests with a paused clock
//!
//! Enable the feature `tokio` of this crate. If a build contains tokio's feature `test-util`,
//! futures that are first polled on a current-thread runtime wait for that runtime's own timer:
//! only the clock of such a runtime can be paused. So `start_paused`, `pause`, `resume`, `advance`
//! and auto-advance work, also for futures that waited before `pause`. This module exports these
//! functions if tokio does.
//!
//! ```
//! # #[cfg(feature = "tokio")] {
//! use hashed_wheel_util::time;
//! use std::time::Duration;
//!
//! # let mut paused = tokio::runtime::Builder::new_current_thread();
//! # paused.enable_time().start_paused(true).build().unwrap().block_on(async {
//! // #[tokio::test(start_paused = true)]
//! let begin = time::Instant::now();
//! time::sleep(Duration::from_secs(3_600)).await; // takes no time
//! time::advance(Duration::from_secs(60)).await;
//! assert_eq!(begin.elapsed(), Duration::from_secs(3_660));
//! # });
//! # }
//! ```
//!
//! # Other runtimes
//!
//! The module works on every runtime, and without one:
//!
//! ```
//! use hashed_wheel_util::time;
//! use std::time::Duration;
//!
//! let late = smol::block_on(time::timeout(Duration::from_millis(5), std::future::pending::<()>()));
//! assert!(late.is_err());
//! ```
//!
//! # What is different
//!
//! | | tokio 1.54 | here |
//! |---|---|---|
//! | outside of a runtime, or on one without `enable_time` | `sleep`, `timeout` and `interval` panic | they work |
//! | after the end of the runtime | a [`Sleep`] that is polled panics | it is woken and ends as always |
//! | resolution | rounded up to a millisecond, at least the next one | the same, but a deadline that has passed at the first poll does not wait: `sleep(Duration::ZERO)` is ready |
//! | wake-ups | on the runtime's thread | on the timer's thread |
//! | `Unpin` | a [`Sleep`] has to be pinned | is [`Unpin`]. Pinning it works too |
//! | `Send`, `Sync` | all types, a [`Timeout`] if its future is | the same |
//! | budget of a task (`coop`) | each poll uses it | used by the first poll, and the first after a reset, if it is ready at once, with feature `tokio`. A `timeout` also ends if its future has used up the budget |
//! | [`Sleep::is_elapsed`] without a poll | as the clock says | false before the first poll; then as the last poll or [`reset`](Sleep::reset) has found |
//! | [`Instant`], [`MissedTickBehavior`] | | tokio's own with feature `tokio`. Without it, types with the same methods |
//! | [`Sleep`], [`Interval`], [`Timeout`], [`error::Elapsed`] | | types of their own, with the same methods and traits: code of others that asks for tokio's does not take them. With feature `stream`, an [`Interval`] is a stream itself, in place of tokio-stream's `IntervalStream` |
//! | a [`Timeout`] that has returned the output, and is polled again | still has its limit | has none: its timeout left the timer with the output |
//! | no thread can be started | the runtime cannot be built | the first poll panics |
//! | `fork` | the runtime does not work in the child | on Linux the child gets a timer of its own, for futures first polled there; those that waited at the fork wait forever in it |
//! | the runtime of a [`Sleep`] | that in which it is made | that of its first poll; of an [`Interval`], that of the poll that begins to wait for a tick |
//!
//! On a current-thread runtime with `enable_time`, of a build with `test-util`, all of it is as in
//! tokio, except the types, `Unpin`, `is_elapsed`, a `Timeout` after its output and the budget. On
//! one without `enable_time`, a future panics at the first poll that would wait.

pub mod error;
mod interval;
mod module_timer;
#[cfg(not(feature = "tokio"))]
mod own_types;
#[cfg(feature = "tokio")]
mod paused;
mod sleep;
mod timeout;
mod timer;
mod types;

pub use self::interval::{Interval, interval, interval_at};
pub use self::sleep::{Sleep, sleep, sleep_until};
pub use self::timeout::{Timeout, timeout, timeout_at};
pub use self::timer::Timer;
#[cfg(not(feature = "tokio"))]
pub use self::types::{Instant, MissedTickBehavior};
#[doc(no_inline)]
pub use std::time::Duration;
/// The names that this module does not define: `Instant`, `MissedTickBehavior`, and with tokio's
/// feature `test-util` `pause`, `resume` and `advance`.
#[cfg(feature = "tokio")]
#[doc(no_inline)]
pub use tokio::time::*;
