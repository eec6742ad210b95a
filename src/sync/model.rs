//! loom's types, or shuttle's, and stand-ins for what loom does not know.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

// The same names, as far as they are used here: all that is said of loom below holds of it too.
#[cfg(hashed_wheel_shuttle)]
use shuttle as loom;

use super::{Arc, Ordering};
pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::thread::JoinHandle;

/// loom's atomics.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        pub(crate) struct $name(loom::sync::atomic::$name, Gate);

        #[allow(dead_code, reason = "both have the same face")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value), Gate::new())
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.1.pass();
                self.0.load(order)
            }

            /// For a value that nobody loads before they change it: there is nothing to [hide](Gate).
            #[track_caller]
            pub(crate) fn load_of_another(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            /// For a count of which an older value is as good: only the newest one is tried.
            #[track_caller]
            pub(crate) fn load_count(&self, order: Ordering) -> $value {
                self.0.fetch_add(0, order)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_sub(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_and(value, order)
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Never fails for nothing: to the callers, who loop, that is the same.
            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(set, fetch, update)
            }
        }
    };
}

/// Makes loom try loads of one atomic both ways round.
///
/// loom compares each operation with the last one on the same atomic, and only with that. Where one thread loads, and another
/// loads and then changes what it has loaded, the second load hides the first: loom would never try the change before it,
/// and call one execution all. This is a change that each load comes with; it orders nothing.
struct Gate(loom::sync::atomic::AtomicUsize);

impl Gate {
    fn new() -> Self {
        Self(loom::sync::atomic::AtomicUsize::new(0))
    }

    fn pass(&self) {
        // Shuttle leaves out nothing by comparing.
        if !cfg!(hashed_wheel_shuttle) {
            self.0.fetch_add(0, Ordering::Relaxed);
        }
    }
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // A model that panics under a lock has failed.
        self.0.try_lock().ok()
    }
}

/// Whether every order of things is tried. (Shuttle draws some.)
pub(crate) const IS_EXPLORED: bool = cfg!(not(hashed_wheel_shuttle));

/// A queue whose values come with what was done before they were put there. It matters to nobody whether it has one, so loom
/// is not made to try that it has and that it has not: it does not see an empty one being looked at.
pub(crate) struct SegQueue<T> {
    values: std::sync::Mutex<VecDeque<T>>,
    order: loom::sync::atomic::AtomicUsize,
}

impl<T> SegQueue<T> {
    pub(crate) fn new() -> Self {
        Self { values: std::sync::Mutex::default(), order: loom::sync::atomic::AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, value: T) {
        self.order.fetch_add(0, Ordering::Release);
        self.values.lock().unwrap().push_back(value);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let value = self.values.lock().unwrap().pop_front()?;
        self.order.fetch_add(0, Ordering::Acquire);
        Some(value)
    }

    #[cfg(hashed_wheel_shuttle)]
    pub(crate) fn is_empty(&self) -> bool {
        self.values.lock().unwrap().is_empty()
    }
}

/// Says to loom that something is changed or looked at which is no atomic: of two at once, neither may be a change, or it
/// fails. Nothing is in it.
pub(crate) struct Access(#[cfg(not(hashed_wheel_shuttle))] loom::cell::UnsafeCell<()>);

impl Access {
    pub(crate) fn new() -> Self {
        Self(
            #[cfg(not(hashed_wheel_shuttle))]
            loom::cell::UnsafeCell::new(()),
        )
    }

    #[track_caller]
    pub(crate) fn change(&self) {
        #[cfg(not(hashed_wheel_shuttle))]
        self.0.with_mut(|_| ());
    }

    #[track_caller]
    pub(crate) fn look(&self) {
        #[cfg(not(hashed_wheel_shuttle))]
        self.0.with(|_| ());
    }
}

/// A queue that loom does not see: it orders nothing.
#[cfg(not(hashed_wheel_shuttle))]
pub(crate) struct ModelQueue<T>(std::sync::Mutex<VecDeque<T>>);

#[cfg(not(hashed_wheel_shuttle))]
impl<T> ModelQueue<T> {
    pub(crate) fn new() -> Self {
        Self(std::sync::Mutex::default())
    }

    pub(crate) fn push(&self, value: T) {
        self.0.lock().unwrap().push_back(value);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.0.lock().unwrap().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// A token under a lock; std's and crossbeam's parkers give the same guarantee.
#[derive(Debug)]
pub(crate) struct Parker(Unparker);

#[derive(Debug, Clone)]
pub(crate) struct Unparker(Arc<(loom::sync::Mutex<bool>, loom::sync::Condvar)>);

impl Default for Parker {
    fn default() -> Self {
        Self(Unparker(Arc::new((loom::sync::Mutex::new(false), loom::sync::Condvar::new()))))
    }
}

impl Parker {
    pub(crate) fn unparker(&self) -> Unparker {
        self.0.clone()
    }

    /// Where a wake-up is owed, it has to come, or the model deadlocks and says so.
    pub(crate) fn park(&self) {
        let (token, unparked) = &*self.0.0;
        let mut token = token.lock().unwrap();
        while !*token {
            token = unparked.wait(token).unwrap();
        }
        *token = false;
    }

    /// Time passes, and that ends the sleep sooner or later; but nobody waits for an hour.
    pub(crate) fn park_timeout(&self, time: Duration) {
        if time < Duration::from_secs(3_600) {
            self.nap(time);
        } else {
            self.park();
        }
    }

    /// Time passes, nothing more.
    pub(crate) fn nap(&self, _: Duration) {
        loom::thread::yield_now();
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        let (token, unparked) = &*self.0;
        *token.lock().unwrap() = true;
        unparked.notify_one();
    }
}

/// Lets others run.
#[derive(Default)]
pub(crate) struct Backoff;

impl Backoff {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn snooze(&self) {
        loom::thread::yield_now();
    }
}

pub(crate) use loom::thread_local;

/// loom's, which has no `const` ones.
macro_rules! local {
    (static $name:ident: $type:ty = $value:expr) => {
        $crate::sync::thread_local!(static $name: $type = $value);
    };
}
pub(crate) use local;

pub(crate) fn spawn(_: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(body))
}

pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == loom::thread::current().id()
}

pub(crate) fn thread_number() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    loom::thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
