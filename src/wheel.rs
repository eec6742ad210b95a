//! The timing wheels as plain data structures: single-threaded, no clock, no thread, no atomics.
//!
//! Time is a tick number that the caller passes in, so an event loop, an actor or a simulator can own a wheel directly.
//! [`HashedWheelTimer`](crate::HashedWheelTimer) is one of these wheels with a worker and a clock around it.
//!
//! ```
//! use hashed_wheel::wheel::HashedWheel;
//!
//! let mut wheel = HashedWheel::new(64);
//! let syn = wheel.insert(3, "resend the SYN");
//! wheel.insert(1_000, "close the connection");
//!
//! assert_eq!(wheel.remove(syn), Some("resend the SYN"));
//! assert_eq!(wheel.next_deadline(), Some(3)); // a lower bound: a removal does not look for the next one
//!
//! let mut fired = Vec::new();
//! wheel.advance(999, |entry| fired.push(entry));
//! assert!(fired.is_empty());
//! assert_eq!(wheel.next_deadline(), Some(1_000));
//! wheel.advance(1_000, |entry| fired.push(entry));
//! assert_eq!(fired, ["close the connection"]);
//! ```

mod bitmap;
mod due;
mod either;
mod hashed;
mod hierarchical;
mod ring;
mod rounds;
mod row;
mod slab;

pub(crate) use either::EitherWheel;
pub use hashed::HashedWheel;
pub use hierarchical::HierarchicalWheel;
pub use slab::Key;

/// The most ticks a wheel can have: 2^30, Netty's limit.
pub const MAX_TICKS_PER_WHEEL: usize = 1 << 30;
