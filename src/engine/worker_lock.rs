//! The lock that makes a thread the worker.
//!
//! Tasks run under it, because they run on the worker. An operation that would wait for it (`stop`,
//! dropping the last handle) asks [`is_held_by_this_thread`](WorkerLock::is_held_by_this_thread)
//! first.
//!
//! | word | written | read | why `Relaxed` is enough |
//! |---|---|---|---|
//! | `holder` | own number while the lock is held, 0 before it is released | by any thread, to compare with its own number | a thread sees its own writes in order; no other thread writes its number |
//! | `calling_hooks` | true by `end_all`, false before the lock is released | by a thread that has found itself to be the holder | the same thread wrote it |
//! | `stopped_by_worker` | set, once, by the worker in its turn, or by the worker thread when the clock panics | by the worker at the end of its turn, or after that panic | the same thread wrote it, or did so before it released the lock |
//!
//! The lock itself orders everything else. loom need not know these three, because nothing between
//! threads depends on their values.

use std::ops::{Deref, DerefMut};

use crate::sync::unmodelled::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex, MutexGuard, Ordering, thread_number};

/// The thread that holds this lock is the worker, and has its state `W`.
pub(crate) struct WorkerLock<W> {
    worker: Mutex<W>,
    /// The number of the thread that holds the lock; 0 is none.
    holder: AtomicUsize,
    /// Whether the holder calls the hooks of a stopped timer.
    calling_hooks: AtomicBool,
    /// The worker itself has stopped the timer, so that it has to end what is left.
    stopped_by_worker: AtomicBool,
}

pub(crate) struct WorkerGuard<'a, W> {
    lock: &'a WorkerLock<W>,
    worker: MutexGuard<'a, W>,
}

impl<W> WorkerLock<W> {
    pub(crate) fn new(worker: W) -> Self {
        Self {
            worker: Mutex::new(worker),
            holder: AtomicUsize::new(0),
            calling_hooks: AtomicBool::new(false),
            stopped_by_worker: AtomicBool::new(false),
        }
    }

    /// Makes this thread the worker, as soon as no other thread is.
    pub(crate) fn lock(&self) -> WorkerGuard<'_, W> {
        let worker = self.worker.lock();
        self.holder.store(thread_number(), Ordering::Relaxed);
        WorkerGuard { lock: self, worker }
    }

    /// For a look that runs no user code. The caller does not become the holder. For
    /// `occupancy`, which fails while a turn runs; nothing else depends on the result.
    pub(crate) fn try_look(&self) -> Option<MutexGuard<'_, W>> {
        self.worker.try_lock()
    }

    pub(crate) fn is_held_by_this_thread(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == thread_number()
    }

    /// The worker has stopped the timer, and ends what is left after its turn.
    pub(super) fn set_stopped_by_worker(&self) {
        self.stopped_by_worker.store(true, Ordering::Relaxed);
    }

    /// For the worker: whether it has stopped the timer.
    pub(crate) fn is_stopped_by_worker(&self) -> bool {
        self.stopped_by_worker.load(Ordering::Relaxed)
    }

    /// The worker begins to call the hooks of a stopped timer.
    pub(super) fn set_calling_hooks(&self) {
        self.calling_hooks.store(true, Ordering::Relaxed);
    }

    /// For the worker: whether it is calling the hooks of a stopped timer.
    pub(crate) fn is_calling_hooks(&self) -> bool {
        self.calling_hooks.load(Ordering::Relaxed)
    }
}

impl<W> Drop for WorkerGuard<'_, W> {
    fn drop(&mut self) {
        self.lock.calling_hooks.store(false, Ordering::Relaxed);
        self.lock.holder.store(0, Ordering::Relaxed);
    }
}

impl<W> Deref for WorkerGuard<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.worker
    }
}

impl<W> DerefMut for WorkerGuard<'_, W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.worker
    }
}
