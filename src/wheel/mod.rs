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
//! assert!(wheel.next_deadline() <= Some(1_000)); // a lower bound: a removal may leave it as it was
//!
//! let mut fired = Vec::new();
//! wheel.advance(999, |entry| fired.push(entry));
//! assert!(fired.is_empty());
//! assert_eq!(wheel.next_deadline(), Some(1_000));
//! wheel.advance(1_000, |entry| fired.push(entry));
//! assert_eq!(fired, ["close the connection"]);
//! ```
//!
//! Whoever turns instants into ticks rounds deadlines up and the time down: then nothing is early. The callback of `advance`
//! cannot touch the wheel; what has to be inserted or removed in consequence waits in a list until `advance` returns.
//!
//! # Which one
//!
//! [`HashedWheel`] is Netty's, and the one for delays of a few turns of the wheel at most: nothing ever moves. An entry that
//! is further off is passed over, with many others at once, when its slot is visited for one that is due. In
//! [`HierarchicalWheel`] it moves down instead, at most once a level: that is the one for delays that differ by orders of
//! magnitude. All entries of a slot move down at once, so now and then an `advance` takes longer.
//!
//! What others have maps to these two. Kafka's and Linux's hierarchies are a `HierarchicalWheel`. libco's ring of 60 000
//! slots of a millisecond is a `HashedWheel` of that size, and so is xxl-job's ring of 60 slots of a second; the slots
//! that it looks back at after a delay are not needed, because `advance` catches up with all that is due.
//!
//! The same questions, asked of both and of what else keeps deadlines in order (a binary heap whose cancelled entries stay
//! in it for a while, a `BTreeMap`): ticks are the unit of time, a turn is 512 of them, and all delays up to the longest
//! are equally likely. Bold is the best, and who comes within a tenth of it.
//!
#![doc = include_str!("../../docs/which-wheel.md")]

mod bitmap;
mod either;
pub(crate) mod entries;
mod hashed;
mod hierarchical;
mod min_tree;
mod owned;
mod ready_list;
mod ring;
mod rounds;
mod slab;
mod tombstone_vec;

pub(crate) use either::EitherWheel;
pub(crate) use hashed::Hashed;
pub(crate) use hierarchical::Hierarchical;
pub use owned::{HashedWheel, HierarchicalWheel};
pub use slab::Key;

/// The most ticks a wheel can have: 2^30, Netty's limit; 2^28 where addresses have 32 bits, which are too few for more.
pub const MAX_TICKS_PER_WHEEL: usize = if usize::BITS < 64 { 1 << 28 } else { 1 << 30 };
