//! std and crossbeam.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use super::Ordering;
pub(crate) use crossbeam_queue::SegQueue;
pub(crate) use crossbeam_utils::{Backoff, CachePadded};
pub(crate) use std::sync::MutexGuard;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// What the models tell apart.
pub(crate) trait Loads {
    type Value;

    fn load_of_another(&self, order: Ordering) -> Self::Value;
    fn load_count(&self, order: Ordering) -> Self::Value;
}

macro_rules! loads {
    ($name:ident, $value:ty) => {
        impl Loads for $name {
            type Value = $value;

            #[inline]
            fn load_of_another(&self, order: Ordering) -> $value {
                self.load(order)
            }

            #[inline]
            fn load_count(&self, order: Ordering) -> $value {
                self.load(order)
            }
        }
    };
}

loads!(AtomicU32, u32);
loads!(AtomicU64, u64);
pub(crate) use std::thread::JoinHandle;

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

    /// `None` if anybody holds it, be it this thread.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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

/// A static that each thread has for itself.
macro_rules! local {
    (static $name:ident: $type:ty = $value:expr) => {
        std::thread_local!(static $name: $type = const { $value });
    };
}
pub(crate) use local;

/// Starts a thread.
///
/// # Errors
///
/// If the operating system does not give one.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body)
}

/// Whether `thread` is the one that asks.
pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

/// Names the calling thread: no other live thread has the same number, and none has 0.
pub(crate) fn thread_number() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    // Even on threads that are ending, for a static without a destructor lives as long as its thread.
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// What a model sees of a place that is no atomic.
pub(crate) struct Access;

impl Access {
    pub(crate) const fn new() -> Self {
        Self
    }

    #[inline]
    pub(crate) const fn change(&self) {}

    #[inline]
    pub(crate) const fn look(&self) {}
}

/// Not outside a model.
pub(crate) const IS_EXPLORED: bool = false;
