//! The synchronisation primitives of this crate. No other module names `std::sync` or
//! `std::thread`, so the models of `loom-tests/` have to replace only this file.

use std::sync::PoisonError;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

#[cfg(feature = "tokio")]
pub(crate) use std::sync::atomic::AtomicBool;
#[cfg(any(feature = "client", feature = "tokio"))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, MutexGuard, OnceLock, Weak};
pub(crate) use std::thread::panicking;

/// A mutex without poisoning. The guarded value is consistent whenever user code can panic, so a
/// panic need not poison it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a number that it has not returned before.
pub(crate) fn next_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Returns among how many locks the keys of a map are divided: a power of two, and several for each
/// processor, so that two threads rarely want the same one.
pub(crate) fn shards() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    (8 * processors).next_power_of_two().clamp(16, 256)
}

/// Parks the thread that makes it.
pub(crate) struct Parker(Arc<Unpark>);

struct Unpark(Thread);

impl Parker {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Unpark(thread::current())))
    }

    /// Returns a waker that ends [`park`](Self::park), or the next call of it.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Waits until the waker is called. It may also return for no reason.
    pub(crate) fn park(&self) {
        thread::park();
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
