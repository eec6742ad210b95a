//! The primitives of std and crossbeam.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use crossbeam_queue::SegQueue;
pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
pub(crate) use crossbeam_utils::{Backoff, CachePadded};
pub(crate) use std::sync::MutexGuard;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, fence};
pub(crate) use std::thread::JoinHandle;
#[cfg(test)]
pub(crate) use std::{sync::mpsc, thread};

/// A mutex without poisoning. The guarded value is consistent whenever user code can panic, so a
/// panic need not poison it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

/// A mutex that is never contended: a thread locks it once it has won that right elsewhere, and
/// gives it back before the right. The models check that, as for memory that is not atomic.
pub(crate) use Mutex as TaskLock;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex if it is free. Returns `None` if a thread holds it, even if this is the
    /// calling thread.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Sleeps as [`Parker::park_timeout`] does. The models treat it as a sleep that always ends by
/// itself.
pub(crate) fn nap(parker: &Parker, time: Duration) {
    parker.park_timeout(time);
}

/// Declares a thread-local static.
macro_rules! local {
    (static $name:ident: $type:ty = $value:expr) => {
        std::thread_local!(static $name: $type = const { $value });
    };
}
pub(crate) use local;

/// Starts a thread. `stack_size` is in bytes; `None` is the default of std.
///
/// # Errors
///
/// If the operating system cannot create a thread.
pub(crate) fn spawn(
    name: String,
    stack_size: Option<usize>,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name);
    match stack_size {
        Some(size) => builder.stack_size(size).spawn(body),
        None => builder.spawn(body),
    }
}

/// Returns whether `thread` is the calling thread.
pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

/// Returns a number that identifies the calling thread. No two live threads have the same number,
/// and no thread has 0.
pub(crate) fn thread_number() -> usize {
    // The address of a thread-local static is the number. A static without a destructor exists
    // until its thread has ended, so this also works in destructors of other thread-locals.
    thread_local!(static ADDRESS: u64 = const { 0 });
    ADDRESS.with(|value| std::ptr::from_ref(value).addr())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn nap_lasts_until_its_end() {
        let (parker, began) = (Parker::default(), Instant::now());
        nap(&parker, Duration::from_millis(2));
        assert!(began.elapsed() >= Duration::from_millis(2));
    }

    #[test]
    fn thread_recognises_its_own_handle() {
        let ((give, handle), (answer, answered)) = (channel(), channel());
        let body = move || {
            answer
                .send(is_current(&handle.recv().expect("the handle")))
                .expect("a receiver");
        };
        let thread = spawn("test".to_owned(), None, body).expect("a thread");
        assert!(!is_current(&thread));
        give.send(thread).expect("the thread waits");
        assert_eq!(answered.recv(), Ok(true));
    }
}
