//! The state that the handles of a timer, its timeouts and its worker share: fields and
//! construction.
//!
//! The operations are in the other files of the engine, as methods of [`Inner`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::RefUnwindSafe;
use std::time::Duration;

use super::counters::{Counters, Running};
use super::pending::PendingCounts;
use super::state::{HandleCount, TimerState};
use super::thread::{Callback, Thread, ThreadSettings};
use super::timeouts::NewLanes;
use super::worker::{Worker, WorkerLock};
use crate::clock::{Clock, TimerClock};
use crate::either_wheel::EitherWheel;
use crate::node::{self, ClaimedTask, IdleNodes, Pool, TaskContext, new_timer};
use crate::report;
use crate::sync::{Arc, CachePadded, Mutex, Ordering, WaitList, unmodelled};
use crate::ticks::Ticks;

/// A user's reference to a node of a timer.
pub(crate) type Handle = node::Handle<Inner>;

/// A handle to one timeout: Netty's `Timeout`.
///
/// A handle is cheap to clone. Clones refer to the same timeout and are equal.
///
/// Dropping a handle does not cancel the timeout; [`cancel_on_drop`](Self::cancel_on_drop) does.
/// Holding a handle does not keep the timer's worker alive.
///
/// Equality and hash go by identity and never change. So a timeout is a sound key of a map,
/// although clippy's `mutable_key_type` warns of the atomics inside.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use std::time::Duration;
/// let timer = HashedWheelTimer::default();
/// let timeout = timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5))?;
/// let same = timeout.clone();
/// assert!(same.cancel());
/// assert!(timeout.is_cancelled());
/// assert_eq!(timeout, same);
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
// It is defined here because a task receives it; its methods are in `timeout.rs`.
#[derive(Clone)]
pub struct Timeout {
    pub(crate) handle: Handle,
}

/// A task whose delay is over and that has not run yet.
///
/// A [`TaskExecutor`](crate::TaskExecutor) receives it, and calls [`run`](Self::run).
///
/// If it is dropped instead, the task is dropped with it and does not run. If the task is
/// [periodic](crate::Periodic), only this one run is skipped. Either is reported, and counted in
/// [`Stats::dropped_tasks`](crate::Stats::dropped_tasks).
// It is defined here because the worker has the executor; its methods are in `task.rs`.
#[must_use = "a task that is dropped does not run"]
pub struct ExpiredTask {
    /// `None` once the task has run, or was dropped.
    pub(crate) claimed: Option<ClaimedTask<Inner>>,
}

/// Runs expired tasks elsewhere than on the worker: the user's task executor.
pub(crate) type Execute = Box<dyn Fn(ExpiredTask) + Send + Sync>;

impl TaskContext for Inner {
    type Timeout = Timeout;
}

/// The state that a timer's handles, timeouts and worker share, in an `Arc`.
pub(crate) struct Inner {
    /// The lifecycle, and whether the worker sleeps.
    pub(crate) state: CachePadded<TimerState>,
    pub(crate) pending_counts: PendingCounts,
    /// The lanes that the worker has not adopted yet.
    pub(crate) new_lanes: NewLanes,
    /// Thread caches left behind by ended threads.
    pub(super) idle_nodes: IdleNodes<Inner>,
    /// Where each thread has its cache of this timer.
    pub(super) index: TimerIndex,
    /// Whether the timer is stopped: threads cache nothing of it any more. In an `Arc` because
    /// their caches look at it without keeping the timer.
    pub(super) stopped: Arc<unmodelled::AtomicBool>,
    /// Padded: the worker writes it in each turn, and callers read its neighbours.
    pub(crate) worker: CachePadded<WorkerLock>,
    pub(crate) thread: Thread,
    /// Ends the sleep of a driver's loop.
    pub(crate) waker: Option<Callback>,
    /// The driver was dropped, so there is no loop to wake. `Relaxed`: a call of the waker at that
    /// moment is as good as one before it.
    pub(crate) is_driver_gone: unmodelled::AtomicBool,
    /// The drop of the last one stops the timer.
    pub(crate) handles: HandleCount,
    /// The threads that wait for the end of a run on the task executor.
    pub(crate) run_waiters: WaitList,
    /// The task that the worker runs, if that is known: if the user has set a threshold for slow
    /// tasks.
    pub(crate) running: Mutex<Option<Running>>,
    pub(crate) counters: Counters,
    pub(crate) ticks: Ticks,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) clock: TimerClock,
    /// The name of the wheel, for `Debug`.
    pub(crate) wheel: &'static str,
    pub(super) has_executor: bool,
    pub(crate) options: Options,
    /// For the worker thread, or the loop of a hosted timer.
    pub(crate) max_tasks_per_turn: usize,
    /// A thread was started that ends the timer. So the drop of the last handle has nothing to do.
    /// `Relaxed`: the count of handles orders it.
    pub(crate) has_ending_thread: unmodelled::AtomicBool,
    /// The nodes. Dropped last, after the wheel.
    pub(super) pool: Pool<Self>,
}

// User code runs only where everything is consistent, so its panic leaves nothing half done.
impl RefUnwindSafe for Inner {}

/// What turns a timer.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    #[default]
    Threaded,
    /// As `Threaded`: the timer of the process, which no call ends.
    Global,
    Driven,
    /// A loop turns the driver, so that no other thread has to.
    Hosted,
}

impl Kind {
    #[inline]
    pub(crate) fn is_driven(self) -> bool {
        matches!(self, Self::Driven | Self::Hosted)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Threaded | Self::Global => "a timer with a thread",
            Self::Driven => "a driven timer",
            Self::Hosted => "a hosted timer",
        }
    }
}

/// The settings that a timer keeps as they are.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    /// The drop of the last handle waits for nothing.
    pub(crate) detaches_on_drop: bool,
    /// In nanoseconds: a task that the worker runs and that takes longer is reported.
    pub(crate) slow_task_threshold: Option<u64>,
}

/// The settings of a timer. The builder sets and checks them.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) hierarchical: bool,
    pub(crate) max_pending_timeouts: Option<usize>,
    pub(crate) max_tasks_per_turn: Option<usize>,
    pub(crate) thread: ThreadSettings,
    pub(crate) options: Options,
    pub(crate) executor: Option<Execute>,
    pub(crate) waker: Option<Callback>,
    /// `None` is the operating system's.
    pub(crate) clock: Option<Box<dyn Clock>>,
}

/// How many timers are built and not stopped.
pub(super) static LIVE_TIMERS: unmodelled::AtomicUsize = unmodelled::AtomicUsize::new(0);

/// More live timers than this are reported once. (Netty logs an error.)
const MANY_TIMERS: usize = 64;

/// Construction.
impl Inner {
    pub(crate) fn build(settings: Settings, wheel: EitherWheel) -> Arc<Self> {
        static WARNED: unmodelled::AtomicBool = unmodelled::AtomicBool::new(false);

        // First, because the clock is the user's and may panic.
        let clock = TimerClock::of(settings.clock);
        let live = LIVE_TIMERS.fetch_add(1, Ordering::Relaxed) + 1;
        if live > MANY_TIMERS && !WARNED.swap(true, Ordering::Relaxed) {
            report::too_many_timers(live);
        }
        let ticks = Ticks::new(settings.tick);
        let (ticks_per_wheel, name) = (wheel.ticks_per_wheel(), wheel.name());
        new_timer(wheel, |nodes, pool| Self {
            state: CachePadded::new(TimerState::new()),
            pending_counts: PendingCounts::new(settings.max_pending_timeouts),
            new_lanes: NewLanes::new(pool.id()),
            idle_nodes: IdleNodes::new(),
            index: TimerIndex::take(),
            stopped: Arc::default(),
            ticks_per_wheel,
            wheel: name,
            has_executor: settings.executor.is_some(),
            worker: CachePadded::new(WorkerLock::new(Worker::new(nodes, settings.executor))),
            thread: Thread::new(settings.thread),
            waker: settings.waker,
            is_driver_gone: unmodelled::AtomicBool::new(false),
            handles: HandleCount::default(),
            run_waiters: WaitList::default(),
            running: Mutex::default(),
            counters: Counters::default(),
            ticks,
            clock,
            options: settings.options,
            max_tasks_per_turn: settings.max_tasks_per_turn.unwrap_or(usize::MAX),
            has_ending_thread: unmodelled::AtomicBool::new(false),
            pool,
        })
    }
}

/// The index of a timer, by which a thread finds its cache of that timer. No other timer whose
/// memory exists has the same one. The lowest free index is given out, so that they stay small.
pub(crate) struct TimerIndex(usize);

struct Indices {
    /// How many were ever given out at a time.
    count: usize,
    free: BinaryHeap<Reverse<usize>>,
}

const NEVER_POISONED: &str = "nothing panics under this lock";

static INDICES: unmodelled::Mutex<Indices> = unmodelled::Mutex::new(Indices {
    count: 0,
    free: BinaryHeap::new(),
});

impl TimerIndex {
    pub(super) fn take() -> Self {
        let mut indices = INDICES.lock().expect(NEVER_POISONED);
        let Reverse(index) = indices.free.pop().unwrap_or_else(|| {
            indices.count += 1;
            Reverse(indices.count - 1)
        });
        Self(index)
    }

    #[inline]
    pub(super) fn get(&self) -> usize {
        self.0
    }
}

/// Gives the index back.
impl Drop for TimerIndex {
    fn drop(&mut self) {
        let mut indices = INDICES.lock().expect(NEVER_POISONED);
        indices.free.push(Reverse(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests take indices at the same time, but not this many.
    #[test]
    fn indices_stay_small() {
        let count = || INDICES.lock().unwrap().count;
        let rounds = if cfg!(miri) { 100 } else { 10_000 };
        for _ in 0..rounds {
            let (first, second) = (TimerIndex::take(), TimerIndex::take());
            assert_ne!(first.get(), second.get());
            assert!(first.get().max(second.get()) < count());
        }
        assert!(count() < rounds);
    }
}
