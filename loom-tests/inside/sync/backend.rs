//! Replaces `src/sync/backend.rs`: the primitives of loom or of shuttle, and replacements for those
//! that loom does not have.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

// shuttle has the same names, as far as they are used here. Comments below say loom for both.
#[cfg(hashed_wheel_shuttle)]
use shuttle as loom;

pub(crate) use super::inside::fence;
use super::{Arc, Ordering, inside};
pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::thread::JoinHandle;

/// Defines a wrapper of one of loom's atomics, whose orders the environment can weaken.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        pub(crate) struct $name(pub(super) inside::$name, Gate);

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$value>::default())
            }
        }

        #[allow(dead_code, reason = "each backend has all methods")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(inside::$name::new(value), Gate::new())
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.1.pass();
                self.0.load(order)
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

            /// Never fails spuriously. The callers use it in loops, so this makes no difference to
            /// them.
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

/// Makes loom explore loads of one atomic in both orders.
///
/// loom checks each operation for a dependency on the last operation on the same atomic only.
/// Assume that thread A loads, and that thread B loads and then changes the value. B's load hides
/// A's load from B's change. So loom does not explore the execution in which the change is before
/// A's load.
///
/// A relaxed read-modify-write operation before each load prevents this. It does not order anything
/// else.
struct Gate(loom::sync::atomic::AtomicUsize);

impl Gate {
    fn new() -> Self {
        Self(loom::sync::atomic::AtomicUsize::new(0))
    }

    fn pass(&self) {
        // shuttle chooses executions at random and does not check dependencies.
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
        // No recovery from poisoning: a model that panics under a lock has failed.
        self.0.try_lock().ok()
    }
}

/// A lock for the thread that has won the right to it elsewhere. loom sees it as memory that is not
/// atomic: the lock itself orders nothing, so each use, up to the end of its guard, has to come
/// before the next one by other means.
pub(crate) struct TaskLock<T: ?Sized> {
    access: inside::Access,
    value: std::sync::Mutex<T>,
}

pub(crate) struct TaskGuard<'a, T: ?Sized> {
    access: &'a inside::Access,
    value: std::sync::MutexGuard<'a, T>,
}

impl<T> TaskLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            access: inside::Access::new(),
            value: std::sync::Mutex::new(value),
        }
    }
}

impl<T: ?Sized> TaskLock<T> {
    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<TaskGuard<'_, T>> {
        let value = self.value.try_lock().ok()?;
        self.access.change();
        Some(TaskGuard {
            access: &self.access,
            value,
        })
    }
}

impl<T: ?Sized> Drop for TaskGuard<'_, T> {
    fn drop(&mut self) {
        self.access.change();
    }
}

impl<T: ?Sized> Deref for TaskGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for TaskGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// A queue whose `pop` synchronises with the `push` of the value.
///
/// It is used where a caller does not depend on whether the queue is empty. So loom does not see a
/// `pop` of an empty queue, and does not explore both results.
pub(crate) struct SegQueue<T> {
    values: std::sync::Mutex<VecDeque<T>>,
    order: loom::sync::atomic::AtomicUsize,
}

impl<T> SegQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            values: std::sync::Mutex::default(),
            order: loom::sync::atomic::AtomicUsize::new(0),
        }
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

    pub(crate) fn len(&self) -> usize {
        self.values.lock().unwrap().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.lock().unwrap().is_empty()
    }
}

/// A parker made of a token under a lock. std's and crossbeam's parkers give the same guarantee.
#[derive(Debug)]
pub(crate) struct Parker(Unparker);

#[derive(Debug, Clone)]
pub(crate) struct Unparker(Arc<(loom::sync::Mutex<bool>, loom::sync::Condvar)>);

impl Default for Parker {
    fn default() -> Self {
        Self(Unparker(Arc::new((
            loom::sync::Mutex::new(false),
            loom::sync::Condvar::new(),
        ))))
    }
}

impl Parker {
    pub(crate) fn unparker(&self) -> &Unparker {
        &self.0
    }

    /// Sleeps until unparked. If the wake-up is missing, the model deadlocks, which loom reports.
    pub(crate) fn park(&self) {
        let (token, unparked) = &*self.0.0;
        let mut token = token.lock().unwrap();
        while !*token {
            token = unparked.wait(token).unwrap();
        }
        *token = false;
    }

    /// Sleeps until unparked, or for an arbitrary time. A sleep of an hour or more does not end by
    /// itself.
    pub(crate) fn park_timeout(&self, time: Duration) {
        if time < Duration::from_secs(3_600) {
            nap(self, time);
        } else {
            self.park();
        }
    }
}

/// Yields: an arbitrary time passes.
pub(crate) fn nap(_: &Parker, _: Duration) {
    loom::thread::yield_now();
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        let (token, unparked) = &*self.0;
        *token.lock().unwrap() = true;
        unparked.notify_one();
    }
}

/// Yields to the other threads.
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

/// Declares one of loom's thread-local statics, which cannot have a `const` initialiser.
macro_rules! local {
    (static $name:ident: $type:ty = $value:expr) => {
        $crate::sync::thread_local!(static $name: $type = $value);
    };
}
pub(crate) use local;

pub(crate) fn spawn(
    _: String,
    _: Option<usize>,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    inside::count_spawn();
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
