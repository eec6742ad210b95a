//! Every primitive that threads meet at. Nothing else in the crate names `std::sync`, `std::thread`, crossbeam, loom or
//! shuttle.
//!
//! Two backends with one face: std and crossbeam, or loom's types when the crate is compiled under its own
//! `hashed_wheel_loom` cfg (which only `loom-tests/` does). Under `hashed_wheel_shuttle` as well, shuttle's take the place
//! of loom's, name by name: loom explores a small model whole, shuttle a whole timer by chance.

#[cfg(hashed_wheel_loom)]
mod model;
#[cfg(hashed_wheel_loom)]
pub(crate) use model::*;

#[cfg(not(hashed_wheel_loom))]
mod real;
#[cfg(not(hashed_wheel_loom))]
pub(crate) use real::*;

// loom's `Arc` does not hold unsized types, and what it would check (that the last owner drops) is std's own affair.
pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::sync::{Arc, Weak};

/// Atomics that take no part in any protocol (counters that are only read, test clocks): loom need not explore them.
pub(crate) mod unmodelled {
    pub(crate) use std::sync::OnceLock;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
}

/// Holds a value until one owner takes it.
///
/// Whoever calls [`take`](Self::take) has won the right to by a compare-exchange, so the lock is never contended and
/// costs two uncontended instructions; loom does not see it, and need not.
pub(crate) struct TakeCell<T>(std::sync::Mutex<Option<T>>);

impl<T> TakeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(Some(value)))
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}
