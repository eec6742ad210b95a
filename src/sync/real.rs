//! std and crossbeam.

use std::sync::PoisonError;
use std::time::Duration;

pub(crate) use crossbeam_queue::SegQueue as Queue;
pub(crate) use crossbeam_utils::{Backoff, CachePadded};
pub(crate) use std::sync::MutexGuard;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize};
pub(crate) use std::thread::{JoinHandle, ThreadId};

/// A mutex that does not poison: what it guards is consistent at every point where user code can panic.
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

/// Where the worker thread sleeps.
#[derive(Debug, Default)]
pub(crate) struct Parker(crossbeam_utils::sync::Parker);

/// Ends the sleep of its [`Parker`], or the next one if there is none.
#[derive(Debug, Clone)]
pub(crate) struct Unparker(crossbeam_utils::sync::Unparker);

impl Parker {
    pub(crate) fn unparker(&self) -> Unparker {
        Unparker(self.0.unparker().clone())
    }

    /// Sleeps until unparked.
    pub(crate) fn park(&self) {
        self.0.park();
    }

    /// Sleeps until unparked, or for `time` at the longest.
    pub(crate) fn park_timeout(&self, time: Duration) {
        self.0.park_timeout(time);
    }

    /// The same, for a sleep that nobody is expected to end early.
    pub(crate) fn nap(&self, time: Duration) {
        self.0.park_timeout(time);
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        self.0.unpark();
    }
}

/// Starts a thread.
///
/// # Errors
///
/// If the operating system does not give one.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body)
}

/// Whether the thread `id` is the one that asks.
pub(crate) fn is_current(id: ThreadId) -> bool {
    id == std::thread::current().id()
}

/// Names the calling thread: no other live thread has the same number, and none has 0.
pub(crate) fn thread_number() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    // Even on threads that are ending, for a static without a destructor lives as long as its thread.
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// Never, outside a model.
pub(crate) const fn is_broken(_: super::Fault) -> bool {
    false
}
