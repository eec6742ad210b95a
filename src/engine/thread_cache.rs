//! What each thread caches of the timers that it uses: a lane to the worker, free nodes and
//! references of each, so that the common operations write nothing that threads share.
//!
//! A thread that ends gives all of it back. What it caches of a stopped timer is dropped when the
//! thread drops a handle of that timer, or uses another timer than the last time. Until then it
//! keeps the timer's memory, as a handle would.

use std::cell::RefCell;

use super::pending::OwnCounts;
use super::shared::{Handle, Shared, SharedFields, Timeout};
use super::state::MAX_PENDING;
use crate::node::{ClaimedTask, Lent, LocalNodes, Message, Owner, Released};
use crate::report;
use crate::sync::unmodelled::AtomicBool;
use crate::sync::{Arc, IS_EXPLORED, Ordering, local};

local!(static CACHES: RefCell<Caches> = RefCell::new(Caches { first: None, others: Vec::new() }));

/// The caches of one thread.
struct Caches {
    /// The one that was used last.
    first: Option<ThreadCache>,
    others: Vec<ThreadCache>,
}

/// What a thread caches of one timer.
struct ThreadCache {
    nodes: LocalNodes<SharedFields>,
    counts: OwnCounts,
    /// Whether the timer is stopped.
    stopped: Arc<AtomicBool>,
}

impl ThreadCache {
    fn open(timer: &Arc<Shared>) -> Self {
        Self {
            nodes: LocalNodes::new(timer, timer.new_lanes.open()),
            counts: timer.pending_counts.take(),
            stopped: Arc::clone(&timer.stopped),
        }
    }
}

impl ThreadCache {
    #[inline]
    fn lend<'a>(&'a mut self, timer: &'a Shared) -> LentCache<'a> {
        LentCache { nodes: self.nodes.lend(timer), counts: &mut self.counts }
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        let Some(timer) = self.nodes.upgrade() else { return };
        self.nodes.empty(&timer);
        // (Each thread of a model ends some time, and which counts it had is irrelevant to it.)
        if !IS_EXPLORED {
            timer.pending_counts.give_back(&self.counts);
        }
        // This may be the last reference to the timer: the user's clock and waker go with it.
        report::guard(
            || drop(timer),
            |panic| report::task_panicked("when it was dropped", "(a timer)", panic),
        );
    }
}

impl Caches {
    /// Returns the cache of this timer.
    #[inline]
    fn of(&mut self, timer: *const Shared) -> Option<&mut ThreadCache> {
        if self.first.as_ref().is_some_and(|first| first.nodes.is_of(timer)) {
            return self.first.as_mut();
        }
        self.other(timer)
    }

    #[cold]
    fn other(&mut self, timer: *const Shared) -> Option<&mut ThreadCache> {
        self.others.iter_mut().find(|cache| cache.nodes.is_of(timer))
    }

    /// Makes the cache of this timer the first one. Returns those of stopped timers, which the
    /// caller drops when the caches are no longer borrowed, because user code may go with them.
    #[cold]
    fn switch_to(&mut self, timer: &Arc<Shared>) -> Vec<ThreadCache> {
        let at = self.others.iter().position(|cache| cache.nodes.is_of(&**timer));
        let cache = match at {
            Some(at) => self.others.swap_remove(at),
            None => ThreadCache::open(timer),
        };
        self.others.extend(self.first.replace(cache));
        // A `Vec` allocates when something is put into it.
        let mut stopped = Vec::new();
        let mut at = 0;
        while at < self.others.len() {
            if self.others[at].stopped.load(Ordering::Relaxed) {
                stopped.push(self.others.swap_remove(at));
            } else {
                at += 1;
            }
        }
        stopped
    }

    fn remove(&mut self, timer: &Shared) -> Option<ThreadCache> {
        if self.first.as_ref().is_some_and(|cache| cache.nodes.is_of(timer)) {
            return self.first.take();
        }
        let at = self.others.iter().position(|cache| cache.nodes.is_of(timer))?;
        Some(self.others.swap_remove(at))
    }
}

/// Lends `work` the thread's cache of this timer. Returns `None` if there is none, if the thread is
/// ending, or if it uses its caches already.
#[inline]
fn with_existing<R>(timer: &Shared, work: impl FnOnce(&mut ThreadCache) -> R) -> Option<R> {
    let found = CACHES.try_with(|caches| caches.try_borrow_mut().ok()?.of(timer).map(work));
    found.ok().flatten()
}

/// Lends `work` the thread's cache of this timer, which is opened if there is none. `arc` returns
/// the timer. `work` does not run user code.
#[inline]
fn with_cache<R>(
    timer: &Shared,
    arc: impl FnOnce() -> Arc<Shared>,
    work: impl FnOnce(&mut ThreadCache) -> R,
) -> R {
    let mut work = Some(work);
    let result = CACHES.try_with(|caches| {
        let mut caches = caches.try_borrow_mut().ok()?;
        let first = caches.first.as_mut().filter(|first| first.nodes.is_of(timer))?;
        work.take().map(|work| work(first))
    });
    if let Ok(Some(result)) = result {
        return result;
    }
    let mut result = None;
    with_other(&arc(), &mut |cache| result = work.take().map(|work| work(cache)));
    result.expect("the cache was lent")
}

/// [`with_cache`] for a timer that is not the one that was used last.
#[cold]
fn with_other(timer: &Arc<Shared>, work: &mut dyn FnMut(&mut ThreadCache)) {
    let switched = CACHES.try_with(|caches| {
        let mut caches = caches.try_borrow_mut().ok()?;
        let stopped = caches.switch_to(timer);
        caches.first.as_mut().map(&mut *work)?;
        Some(stopped)
    });
    if !matches!(switched, Ok(Some(_))) {
        // The thread is ending, or uses its caches already.
        work(&mut ThreadCache::open(timer));
    }
}

/// What a thread caches of a timer, lent to a caller that has the timer.
pub(super) struct LentCache<'a> {
    pub(super) nodes: Lent<'a, SharedFields>,
    pub(super) counts: &'a mut OwnCounts,
}

impl LentCache<'_> {
    /// Takes a timeout back that was just scheduled, because the timer closes. Returns its task,
    /// or the handle if the worker has the message.
    #[cold]
    pub(super) fn withdraw(&mut self, handle: Handle) -> Result<Handle, ClaimedTask<SharedFields>> {
        match self.nodes.withdraw(handle) {
            Err(handle) => Ok(handle),
            Ok(claimed) => {
                self.counts.withdraw();
                Err(claimed)
            }
        }
    }
}

/// Lends the thread's cache of this timer. `work` does not run user code.
#[inline]
pub(super) fn with<R>(timer: &Arc<Shared>, work: impl FnOnce(&mut LentCache<'_>) -> R) -> R {
    with_cache(timer, || Arc::clone(timer), |cache| work(&mut cache.lend(timer)))
}

/// Lends the thread's cache of the timer of this handle. `work` does not run user code.
#[inline]
pub(super) fn with_handle<R>(handle: &Handle, work: impl FnOnce(&mut LentCache<'_>) -> R) -> R {
    let timer = handle.timer();
    with_cache(timer, || handle.to_arc(), |cache| work(&mut cache.lend(timer)))
}

/// Pushes a message to the thread's lane.
#[inline]
pub(super) fn push(message: Message<'_, SharedFields>) {
    with_handle(message.handle(), |cache| cache.nodes.push(message));
}

/// Counts a reset of a timeout of this handle's timer. Returns false, and counts nothing, if the
/// timer is stopped and this thread caches nothing of it.
#[inline]
pub(super) fn count_reset(handle: &Handle) -> bool {
    with_existing(handle.timer(), |cache| cache.counts.reset(1)).is_some() || count_first_reset(handle)
}

#[cold]
fn count_first_reset(handle: &Handle) -> bool {
    let counts = !handle.timer().is_known_to_be_stopped();
    if counts {
        count_more_resets(handle, 1);
    }
    counts
}

/// Counts `more` resets. It does not make the cache the first one: a thread that resets timeouts of
/// one timer and schedules those of another does not switch between them.
#[cold]
pub(super) fn count_more_resets(handle: &Handle, more: i64) {
    let counted = with_existing(handle.timer(), |cache| cache.counts.reset(more));
    if counted.is_none() {
        with_cache(handle.timer(), || handle.to_arc(), |cache| cache.counts.reset(more));
    }
}

/// Takes what a dropped handle has released.
#[inline]
fn recycle(released: Released<SharedFields>) {
    if released.timer().is_known_to_be_stopped() {
        // Nothing is cached of a stopped timer.
        return clear(released.timer());
    }
    let timer: *const Shared = released.timer();
    let mut left = Some(released);
    let _ = CACHES.try_with(|caches| {
        caches.try_borrow_mut().ok()?.of(timer)?.nodes.recycle(&mut left);
        Some(())
    });
    if let Some(released) = left {
        free_remotely(released);
    }
}

#[cold]
fn free_remotely(released: Released<SharedFields>) {
    released.free_remotely();
}

/// Drops what the thread caches of a stopped timer, which the caller keeps.
#[cold]
pub(super) fn clear(timer: &Shared) {
    let cache = CACHES.try_with(|caches| caches.try_borrow_mut().ok()?.remove(timer));
    drop(cache);
}

impl Owner for SharedFields {
    #[inline]
    fn timeout(handle: Handle) -> Timeout {
        Timeout { handle }
    }

    #[inline]
    fn handle(timeout: &Timeout) -> &Handle {
        &timeout.handle
    }

    #[inline]
    fn recycle(released: Released<Self>) {
        recycle(released);
    }

    fn has_made(&self, nodes: u64) {
        if nodes > MAX_PENDING {
            self.state.set_crowded();
        }
    }
}
