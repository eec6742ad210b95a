//! The cache of each thread for the timers that it uses: a lane to the worker, free nodes and
//! references of each, so that the common operations write nothing that threads share.
//!
//! The cache of a timer is at the timer's index in a thread-local vector. So an operation finds it
//! in one step, however many timers the thread uses. A `reset` to a later deadline needs no cache.
//!
//! A thread that ends gives all of it back: nodes and lane to the next thread, or to the worker at
//! its next turn, whichever comes first ([`IdleNodes`](crate::node::IdleNodes)). After that, in the
//! destructor of another thread-local, an operation takes a cache for itself alone.
//!
//! A thread's cache of a stopped timer keeps the timer's memory, as a handle would. The thread
//! drops it when one of these comes first:
//!
//! - It drops a `Timeout` or a future of that timer, or stops the timer.
//! - It uses another timer for the first time.
//! - It begins another block of messages to another timer, and then schedules or cancels.
//!
//! So it stays while the thread only resets timeouts to later deadlines, or uses no timer.
//!
//! # After a fork
//!
//! The child process has one thread, with the caches of the thread that has forked. They are
//! forgotten ([`after_fork`]), so each operation finds none at first. To open one for a timer whose
//! thread is in the parent process stops the copy of the timer, before the operation is done. So
//! nothing is scheduled there, and the paths above ask for no process.

use std::cell::{RefCell, RefMut};
use std::mem::{self, ManuallyDrop};

use super::inner::{Handle, Inner, Timeout};
use super::pending::OwnCounts;
use super::state::StateSnapshot;
#[cfg(feature = "async")]
use crate::node::TimerHandle;
use crate::node::{
    ClaimedTask, DetachedTask, LocalNodes, Message, NodesGuard, OnCancel, Owner, Pool, Released,
    TimerRef,
};
use crate::platform::call_after_fork;
use crate::sync::unmodelled::{AtomicBool, AtomicUsize};
use crate::sync::{Arc, Ordering, local};

type ThreadCaches = RefCell<ManuallyDrop<Caches>>;

// Without a destructor, so that it exists until the thread has ended: an operation that finds the
// cache need not ask. `THREAD_END` empties it. (Where thread-locals are keys of the system, its
// memory may go earlier, and what it has is lost: on Android. Windows destroys the last key first.)
local!(static CACHES: ThreadCaches = ThreadCaches::new(ManuallyDrop::new(Caches::NONE)));

local!(static THREAD_END: ThreadEnd = ThreadEnd);

// Not by `LocalKey::with`, which is not inlined.
#[inline(always)]
fn with_caches<R>(work: impl FnOnce(&ThreadCaches) -> R) -> R {
    let result = CACHES.try_with(work);
    result.expect("the static has no destructor")
}

/// How many timers were ever stopped.
static STOPS: AtomicUsize = AtomicUsize::new(0);

/// How many forks lie between this process and the one that has first watched them.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// A number that differs between a process and its forked children.
pub(crate) fn forks() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// From now on, a child process that is forked from this one forgets the caches.
pub(crate) fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        call_after_fork(after_fork);
    }
}

/// In a child process: forgets what its thread has cached. What belongs to a timer that is used
/// here, a driven one, is not given back then.
///
/// Other threads of the parent may have held any lock, and the allocator's too. So this stores a
/// number and an empty vector, and nothing else.
extern "C" fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    mem::forget(take_all());
}

/// Takes all that the thread caches, unless it is being used.
fn take_all() -> Option<Vec<Option<Box<ThreadCache>>>> {
    with_caches(|caches| {
        let mut caches = caches.try_borrow_mut().ok()?;
        Some(mem::take(&mut caches.by_index))
    })
}

/// Gives back what the thread caches, when the thread ends.
struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        drop(take_all());
    }
}

/// The caches of one thread.
struct Caches {
    /// At the index of each timer. The index of a timer whose memory is gone may be another
    /// timer's. [`remove_stopped`](Self::remove_stopped) then finds the old timer stopped: its stop
    /// was counted before its index was given back, and a lock orders that before the next use.
    by_index: Vec<Option<Box<ThreadCache>>>,
    /// The value of [`STOPS`] when the caches of stopped timers were last removed.
    stops: usize,
}

/// A thread's cache of one timer.
struct ThreadCache {
    /// `None` once they were given back, when the cache is dropped.
    nodes: Option<LocalNodes<Inner>>,
    counts: OwnCounts,
    /// Whether the timer is stopped.
    stopped: Arc<AtomicBool>,
}

impl ThreadCache {
    fn open(timer: &Inner) -> Self {
        watch_forks();
        timer.stop_copy();
        let idle = timer.idle_nodes.take();
        let nodes = idle.unwrap_or_else(|| LocalNodes::new(timer, timer.new_lanes.open()));
        Self {
            nodes: Some(nodes),
            counts: timer.pending_counts.take(),
            stopped: Arc::clone(&timer.stopped),
        }
    }

    #[inline]
    fn parts(&mut self) -> (&mut LocalNodes<Inner>, &mut OwnCounts) {
        let nodes = self.nodes.as_mut();
        (nodes.expect("they are given back last"), &mut self.counts)
    }

    #[inline]
    fn is_ready_for(&self, timer: &Inner) -> bool {
        let nodes = self.nodes.as_ref();
        nodes.is_some_and(|nodes| nodes.has_room_for(timer))
    }

    /// Borrows the cache, which is ready for this timer.
    #[inline]
    fn borrow<'a>(&'a mut self, timer: &'a Inner) -> CacheGuard<'a> {
        let (nodes, counts) = self.parts();
        CacheGuard {
            nodes: nodes.borrow(timer),
            counts,
        }
    }
}

/// The worker reclaims nodes that this thread has freed and does not need. (No user code runs: only
/// the thread is woken to reclaim.)
#[cold]
fn wake_to_reclaim(nodes: &LocalNodes<Inner>) {
    if let Some(timer) = nodes.timer() {
        timer.wake_to_reclaim();
    }
}

/// Gives back what the thread has of the timer.
impl Drop for ThreadCache {
    fn drop(&mut self) {
        let nodes = self.nodes.take().expect("they are given back once");
        if let Some(timer) = nodes.timer() {
            timer.idle_nodes.put(nodes);
            // The worker recycles the nodes, unless another thread takes them before.
            timer.wake_to_reclaim();
            timer.pending_counts.give_back(&self.counts);
        }
    }
}

impl Caches {
    const NONE: Self = Self {
        by_index: Vec::new(),
        stops: 0,
    };

    /// Returns the cache at the index of this timer.
    #[inline]
    fn at(&mut self, timer: &Inner) -> Option<&mut ThreadCache> {
        self.by_index.get_mut(timer.index.get())?.as_deref_mut()
    }

    /// Returns the cache of this timer, which is opened if there is none. To be called after
    /// [`remove_stopped`](Self::remove_stopped), so that no other timer's cache is in its place.
    fn of_or_open(&mut self, timer: &Inner) -> &mut ThreadCache {
        let index = timer.index.get();
        if index >= self.by_index.len() {
            self.by_index.resize_with(index + 1, || None);
        }
        if timer.is_stopped_hint() {
            // Its stop is counted already, but this cache has to be removed too.
            self.stops = self.stops.wrapping_sub(1);
        }
        self.by_index[index].get_or_insert_with(|| Box::new(ThreadCache::open(timer)))
    }

    /// Removes the caches of stopped timers, if a timer was stopped since the last time.
    fn remove_stopped(&mut self) -> Vec<ThreadCache> {
        // Acquire: pairs with the `Release` in `set_stopped`. A thread that sees the count sees the
        // flag of the timer.
        let stops = STOPS.load(Ordering::Acquire);
        if self.stops == stops {
            return Vec::new();
        }
        self.stops = stops;
        let is_stopped = |cache: &mut Box<ThreadCache>| cache.stopped.load(Ordering::Relaxed);
        self.by_index
            .iter_mut()
            .filter_map(|place| Some(*place.take_if(is_stopped)?))
            .collect()
    }
}

/// Stops the caching of this timer.
pub(super) fn set_stopped(timer: &Inner) {
    timer.stopped.store(true, Ordering::Relaxed);
    STOPS.fetch_add(1, Ordering::Release);
}

#[inline]
fn cached<'a>(caches: &'a ThreadCaches, timer: &Inner) -> Option<RefMut<'a, ThreadCache>> {
    RefMut::filter_map(caches.try_borrow_mut().ok()?, |caches| caches.at(timer)).ok()
}

/// The thread's cache of this timer, if it is ready.
#[inline]
fn ready<'a>(caches: &'a ThreadCaches, timer: &Inner) -> Option<RefMut<'a, ThreadCache>> {
    cached(caches, timer).filter(|cache| cache.is_ready_for(timer))
}

/// Does `work`, which runs no user code, with the thread's cache of this timer. After it, user code
/// may run, and stop the timer: so `work` pushes and counts what was changed before.
#[inline(always)]
pub(super) fn with<R>(timer: &Inner, work: impl FnOnce(&mut CacheGuard<'_>) -> R) -> R {
    with_caches(|caches| match ready(caches, timer) {
        Some(mut cache) => work(&mut cache.borrow(timer)),
        None => with_prepared(caches, timer, work),
    })
}

/// [`with`] for a cache that is not ready.
#[cold]
#[inline(never)]
fn with_prepared<R>(
    caches: &ThreadCaches,
    timer: &Inner,
    work: impl FnOnce(&mut CacheGuard<'_>) -> R,
) -> R {
    let mut removed = Vec::new();
    let (result, has_batch) = {
        let (mut borrowed, mut apart);
        let cache = match caches.try_borrow_mut() {
            Ok(caches) if THREAD_END.try_with(|_| ()).is_ok() => {
                borrowed = caches;
                removed = borrowed.remove_stopped();
                borrowed.of_or_open(timer)
            }
            // The thread is ending, or uses its caches already.
            _ => {
                apart = ThreadCache::open(timer);
                &mut apart
            }
        };
        let (nodes, _) = cache.parts();
        let has_batch = nodes.take_full_batch();
        nodes.make_room();
        (work(&mut cache.borrow(timer)), has_batch)
    };
    // Both may run user code: what goes with the caches, and a driver's waker.
    drop(removed);
    if has_batch {
        timer.wake_for_batch();
    }
    result
}

/// A thread's cache of a timer, borrowed by a caller that has the timer.
pub(super) struct CacheGuard<'a> {
    pub(super) nodes: NodesGuard<'a, Inner>,
    pub(super) counts: &'a mut OwnCounts,
}

impl CacheGuard<'_> {
    /// Ends a timeout that was just scheduled, because the timer closes, and counts that. Returns
    /// its task, or the handle if the timeout has ended, or runs.
    #[cold]
    pub(super) fn withdraw(&mut self, handle: Handle) -> Result<ClaimedTask<Inner>, Handle> {
        // A message that was pushed can wait for the next turn.
        self.nodes
            .withdraw(handle)
            .inspect(|_| self.counts.withdraw())
    }

    /// Pushes a message. Returns the state after that.
    #[inline]
    pub(super) fn push(&mut self, message: Message<'_, Inner>) -> StateSnapshot {
        self.nodes.push(message);
        self.look_after_push()
    }

    /// Executes the fence after pushes, and reads the state.
    #[inline]
    pub(super) fn look_after_push(&self) -> StateSnapshot {
        self.nodes.timer().state.fence_after_push()
    }
}

/// A task to drop, and its handle's reference to the timer, unless the thread has it back.
type Discarded = (DetachedTask<Inner>, Option<TimerRef<Inner>>);

/// Cancels a timeout and gives up its handle, in one pass through the thread's cache, and counts
/// that. The caller drops the task and recycles the reference, unless there is nothing to drop, or
/// it has another reference (`keeps_timer`). The error is the handle: see [`LocalNodes::discard`].
#[inline]
pub(super) fn discard(
    handle: Handle,
    most: OnCancel,
    keeps_timer: bool,
) -> Result<Option<Discarded>, Handle> {
    if handle.timer().is_stopped_hint() {
        return Err(handle);
    }
    let (task, wakes) = with_caches(|caches| {
        let Some(mut cache) = ready(caches, handle.timer()) else {
            return Err(handle);
        };
        let (nodes, counts) = cache.parts();
        let (cancelled, timer) = nodes.discard(handle, most)?;
        let mut wakes = None;
        if cancelled.leaves_memory && timer.get().state.fence_after_push().wakes_to_reclaim() {
            wakes = nodes.timer();
        }
        // After the push, as in `cancel`.
        counts.cancel(1);
        timer.get().pending_counts.release_places(1);
        // The reference keeps the timer until the task is dropped.
        let timer = match cancelled.task.is_some() && !keeps_timer {
            true => Some(timer),
            false => {
                nodes.put(timer);
                None
            }
        };
        Ok((cancelled.task.map(|task| (task, timer)), wakes))
    })?;
    wakes.inspect(|timer| timer.wake());
    Ok(task)
}

#[cold]
fn free_remotely(released: Released<Inner>) {
    if let Some(timer) = released.free_remotely() {
        timer.get().wake_to_reclaim();
    }
}

/// Drops what the thread caches of a stopped timer, which the caller keeps.
#[cold]
pub(super) fn drop_cache(timer: &Inner) {
    let cache = with_caches(|caches| {
        let by_index = &mut caches.try_borrow_mut().ok()?.by_index;
        by_index.get_mut(timer.index.get())?.take()
    });
    drop(cache);
}

#[cfg(feature = "async")]
impl Inner {
    /// Returns a reference to the timer, from the thread's reserve.
    #[inline]
    pub(crate) fn handle(&self) -> TimerHandle<Self> {
        match self.is_stopped_hint() {
            // Nothing is cached of a stopped timer.
            true => TimerHandle::of(TimerRef::new(&self.pool.timer())),
            false => with(self, |cache| cache.nodes.timer_handle()),
        }
    }
}

impl Owner for Inner {
    #[inline]
    fn pool(&self) -> &Pool<Self> {
        &self.pool
    }

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
        if released.timer().is_stopped_hint() {
            // Nothing is cached of a stopped timer.
            return drop_cache(released.timer());
        }
        let recycled = with_caches(|caches| {
            let Some(mut cache) = cached(caches, released.timer()) else {
                return Err(released);
            };
            let (nodes, _) = cache.parts();
            if nodes.recycle(released)? {
                wake_to_reclaim(nodes);
            }
            Ok(())
        });
        recycled.unwrap_or_else(free_remotely);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timeout;
    use crate::engine::state::WAKE_TO_RECLAIM;
    use crate::engine::tests::{Driven, TICK};
    use crate::sync::thread;

    fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    /// Calls `work` with what this thread caches of a timer.
    fn with_cached<R>(timer: &Inner, work: impl FnOnce(Option<&mut ThreadCache>) -> R) -> R {
        CACHES.with_borrow_mut(|caches| {
            let cache = caches.at(timer);
            work(cache.filter(|cache| cache.nodes.as_ref().unwrap().is_of(timer)))
        })
    }

    #[test]
    fn the_cache_of_a_timer_is_found_and_borrowed() {
        let (t, other) = (Driven::new(), Driven::new());
        assert!(with_cached(t.inner(), |cache| cache.is_none()));
        t.schedule(TICK);
        assert!(with_cached(t.inner(), |cache| cache
            .unwrap()
            .is_ready_for(t.inner())));
        assert!(with_cached(other.inner(), |cache| cache.is_none()));
    }

    #[test]
    fn a_turn_retires_what_all_ended_threads_have_left() {
        let mut t = Driven::new();
        on_a_thread(|| {
            t.schedule(TICK);
            on_a_thread(|| t.schedule(TICK));
        });
        t.turn();
        assert!(t.inner().idle_nodes.take().is_none());
    }

    #[test]
    fn a_reset_needs_a_cache_only_if_it_pushes_a_message() {
        let mut t = Driven::new();
        let timeout = t.schedule(TICK * 3);
        let is_cached_after_reset = |ticks: u32| {
            assert!(timeout.reset(TICK * ticks));
            with_cached(timeout.handle.timer(), |cache| cache.is_some())
        };
        assert_eq!(
            on_a_thread(|| [9, 5].map(is_cached_after_reset)),
            [false, false]
        );
        t.turn();
        assert_eq!(
            on_a_thread(|| [9, 2].map(is_cached_after_reset)),
            [false, true]
        );
    }

    #[test]
    fn a_thread_that_ends_gives_back_what_it_has() {
        let t = Driven::new();
        t.set_asleep(WAKE_TO_RECLAIM);
        on_a_thread(|| _ = t.schedule(TICK));
        assert!(!t.is_asleep(), "the worker recycles its nodes");
        assert!(t.inner().idle_nodes.take().is_some());
        assert!(t.inner().idle_nodes.take().is_none());
    }

    #[cfg(feature = "async")]
    #[test]
    fn a_future_changes_no_count_that_threads_share() {
        let t = Driven::new();
        let first = t.timer.sleep(TICK);
        let references = Arc::strong_count(t.inner());
        let futures: Vec<_> = (0..9).map(|_| t.timer.sleep(TICK)).collect();
        assert_eq!(Arc::strong_count(t.inner()), references);
        drop((first, futures));
        assert_eq!(
            Arc::strong_count(t.inner()),
            references,
            "the thread has them in reserve"
        );
    }

    #[cfg(feature = "async")]
    #[test]
    fn a_future_of_a_stopped_timer_caches_nothing() {
        let t = Driven::new();
        let before = t.timer.sleep(TICK);
        t.timer.stop();
        let after = t.timer.sleep(TICK);
        assert!(with_cached(t.inner(), |cache| cache.is_none()));
        drop((before, after));
        assert_eq!(
            Arc::strong_count(t.inner()),
            2,
            "the timer's handle and its driver"
        );
    }

    /// It is in the processor's cache.
    #[test]
    fn a_node_that_this_thread_has_freed_is_used_first() {
        let t = Driven::new();
        let free = || {
            let timeout = t.schedule(TICK);
            assert!(timeout.cancel());
            timeout.handle.as_ptr().addr()
        };
        let node = free();
        (0..3).for_each(|_| assert_eq!(free(), node));
    }

    #[test]
    fn cancelled_timeouts_wake_a_worker_that_reclaims_them() {
        let mut t = Driven::new();
        let dropped = Arc::new(());
        for is_plain in [false, true] {
            let schedule = |()| match is_plain {
                true => t.schedule(TICK),
                false => {
                    let dropped = Arc::clone(&dropped);
                    let timeout = t.timer.new_timeout(move |_| drop(dropped), TICK);
                    timeout.unwrap()
                }
            };
            let mut timeouts: Vec<_> = [(); 3].into_iter().map(schedule).collect();
            t.turn();
            t.set_asleep(0);
            assert!(timeouts.pop().is_some_and(Inner::discard));
            assert!(t.is_asleep(), "it wakes for something else");
            t.set_asleep(WAKE_TO_RECLAIM);
            assert_eq!(Timeout::cancel_each(timeouts), 2);
            assert!(!t.is_asleep());
        }
    }

    #[test]
    fn freed_nodes_that_a_thread_does_not_need_wake_the_worker() {
        let mut t = Driven::new();
        let timeouts: Vec<_> = (0..400).map(|_| t.schedule(TICK)).collect();
        assert_eq!(t.pass(TICK), 400);
        t.set_asleep(WAKE_TO_RECLAIM);
        let mut timeouts = timeouts.into_iter();
        timeouts.by_ref().take(10).for_each(drop);
        assert!(t.is_asleep(), "the thread keeps some");
        timeouts.by_ref().take(300).for_each(drop);
        assert!(!t.is_asleep());
        // A thread that does not use the timer keeps none.
        let timeouts: Vec<Timeout> = timeouts.collect();
        t.set_asleep(WAKE_TO_RECLAIM);
        on_a_thread(move || drop(timeouts));
        assert!(!t.is_asleep());
    }
}
