//! The tests of the wheels and of the local timer.
// Each wheel is tested by the same module.
#![allow(clippy::duplicate_mod)]

#[path = "../../../../tests/fuzz/bytes.rs"]
mod bytes;
// Its clock is tokio's.
#[cfg(all(feature = "tokio", not(miri)))]
mod both_queues;
mod corpus;
mod delay_queue;
mod fuzz;
mod hashed_wheel;
mod hierarchical_wheel;
mod local_timer;
mod public_api;
