//! The timing wheels as plain data structures: single-threaded, without a clock, a thread or
//! atomics.
//!
//! The caller passes the time in as a tick number, so an event loop, an actor or a simulator can
//! own a wheel directly. The timer `HashedWheelTimer` of the crate `hashed-wheel` is one of these
//! wheels with a worker and a clock. The wheels are schemes 6 and 7 of Varghese and Lauck, "Hashed
//! and Hierarchical Timing Wheels" (SOSP 1987).
//!
//! ```
//! use timing_wheels::HashedWheel;
//!
//! let mut wheel = HashedWheel::new(64);
//! let syn = wheel.insert(3, "resend the SYN");
//! wheel.insert(1_000, "close the connection");
//!
//! assert_eq!(wheel.remove(syn), Some("resend the SYN"));
//! assert!(wheel.next_deadline() <= Some(1_000)); // a lower bound after a removal
//!
//! let mut fired = Vec::new();
//! wheel.advance(999, |entry| fired.push(entry));
//! assert!(fired.is_empty());
//! assert_eq!(wheel.next_deadline(), Some(1_000));
//! wheel.advance(1_000, |entry| fired.push(entry));
//! assert_eq!(fired, ["close the connection"]);
//! ```
//!
//! [`Ticks`] converts times to ticks: it rounds deadlines up and the current time down, so no entry
//! expires early.
//!
//! The callback of `advance` cannot access the wheel. To insert or remove entries meanwhile, or to
//! do a bounded amount of work at a time, take the entries one by one with
//! [`pop_expired`](HashedWheel::pop_expired). To keep entries under their keys beyond their
//! deadlines, use [`peek_expired`](HashedWheel::peek_expired).
//!
//! # Which wheel to use
//!
//! Use [`HashedWheel`], Netty's wheel, if most delays are at most a few rounds long; a *round* is
//! one revolution of the wheel, `ticks_per_wheel` ticks. Its entries never move. When a slot is
//! visited because one of its entries is due, the entries with rounds left are skipped, many at a
//! time.
//!
//! Use [`HierarchicalWheel`] if delays differ by orders of magnitude. A distant entry moves to a
//! lower level instead, at most once per level. All entries of a slot move in the same call, so now
//! and then an `advance` takes longer.
//!
//! Other implementations correspond to these two. The hierarchies of Kafka and Linux are a
//! `HierarchicalWheel`. libco's ring of 60 000 slots of one millisecond is a `HashedWheel` of that
//! size. So is xxl-job's ring of 60 slots of one second; the earlier slots that xxl-job checks
//! again after a delay are unnecessary here, because `advance` expires all entries that are due.
//!
//! `cargo bench -p hashed-wheel-benches --bench which`, in the repository, compares both wheels
//! with a binary heap and a `BTreeMap`.
//!
//! # More than a wheel
//!
//! [`LocalTimer`] takes and returns times instead of ticks: a timer for one thread. [`DelayQueue`]
//! is such a timer for one task, with a sleep of its runtime. [`order`] has the wheels for entries
//! that are stored elsewhere.
//!
//! # Features
//!
//! `std`, which is enabled by default: [`TimePoint`] for `std::time::Instant`, and
//! `std::error::Error` for [`SizeError`]. Without it the crate needs only `alloc`.
//!
//! `stream`: `futures_core::Stream` for [`DelayQueue`]. `tokio`: [`QueueSleep`] for tokio's
//! `Sleep`.
//!
//! Without these two features the crate has no dependencies. It has no `unsafe` code, and builds
//! with Rust 1.71; with `tokio`, with the Rust that tokio needs.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation above links to items of all features.
#![cfg_attr(not(feature = "std"), allow(rustdoc::broken_intra_doc_links))]

// | file | content |
// |---|---|
// | `hashed`, `rounds`, `min_tree` | scheme 6: its slots; the entries of a slot and their rounds; the first deadline of all slots |
// | `hierarchical`, `level`, `bitmap`, `short_list` | scheme 7: its levels; a level; the occupied slots of a level; the entries while they are few |
// | `ring`, `tombstone_vec`, `ready_list` | parts of both: an array of slots; the entries of a slot; the entries that are due |
// | `entries`, `order` | where a wheel's entries are stored: the interface; the module for entries that are stored elsewhere |
// | `ticks` | conversions between times and tick numbers |
// | `owned`, `whole`, `slab`, `key` | the wheels that own values; their methods for all entries together; their entries, and the keys of these |
// | `local`, `delay_queue` | a timer for one thread; a queue for one task, on such a timer |

extern crate alloc;

mod bitmap;
mod delay_queue;
mod entries;
mod hashed;
mod hierarchical;
mod key;
mod level;
mod local;
mod min_tree;
pub mod order;
mod owned;
mod ready_list;
mod ring;
mod rounds;
mod short_list;
mod slab;
mod ticks;
mod tombstone_vec;
mod whole;

pub use delay_queue::{DelayQueue, Expired, QueueSleep};
pub use key::Key;
pub use local::{LocalTimer, TimePoint};
pub use owned::{HashedWheel, HierarchicalWheel};
pub use ring::{MAX_TICKS_PER_WHEEL, SizeError};
pub use slab::Iter;
pub use ticks::Ticks;

/// The code of the README compiles.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
mod readme {}
