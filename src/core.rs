//! What a timer's handles, its timeouts and its worker share, and the callers' side of it.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::time::Duration;

use crate::clock::Clock;
use crate::driver::Waker;
use crate::error::NewTimeoutError;
use crate::life::{Life, MOST_PENDING, Refusal, Word};
use crate::node::{Node, Reset};
use crate::report;
use crate::stats::{Counters, Stats};
use crate::sync::{Arc, AtomicUsize, CachePadded, Fault, Ordering, Queue, TakeCell, is_broken, unmodelled};
use crate::task::{ExpiredTask, TaskExecutor, TimerTask};
use crate::thread::Thread;
use crate::ticks::{self, NEVER, Ticks};
use crate::timeout::Timeout;
use crate::wheel::EitherWheel;
use crate::worker::Post;

pub(crate) struct Core {
    pub(crate) life: CachePadded<Life>,
    /// To the worker: new timeouts, and those whose deadline has become earlier.
    pub(crate) timeouts: Queue<Arc<Node>>,
    /// To the worker: those that were cancelled in the wheel.
    pub(crate) cancelled: Queue<Arc<Node>>,
    pub(crate) post: Post,
    pub(crate) thread: Thread,
    /// Who ends the sleep of a driver's loop.
    pub(crate) waker: Option<Waker>,
    /// How many `HashedWheelTimer`s there are. The one that makes it zero stops the timer.
    ///
    /// | operation | on the count | order | pairs with |
    /// |---|---|---|---|
    /// | `clone` | + 1 | `Relaxed` | nothing: who clones holds one, so it is not zero |
    /// | `Timeout::timer` | + 1 unless zero | `AcqRel` | nothing (`Relaxed` would do): by compare-exchange, so zero is for ever |
    /// | [`drop_handle`](Self::drop_handle) | − 1 | `AcqRel` | itself: the last one sees what was done before the others |
    pub(crate) handles: AtomicUsize,
    pub(crate) counters: Counters,
    pub(crate) ticks: Ticks,
    pub(crate) ticks_per_wheel: usize,
    /// The most that may be pending: the user's limit, or what can be counted.
    pub(crate) limit: u64,
    pub(crate) clock: Box<dyn Clock>,
    /// What the clock said when the timer was built.
    pub(crate) origin: Duration,
}

// User code runs only where everything is consistent, so a panic that comes out of it leaves nothing half done.
impl RefUnwindSafe for Core {}

/// What a timer is built from, all of it checked.
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) wheel: EitherWheel<Arc<Node>>,
    /// 0 is none.
    pub(crate) limit: usize,
    pub(crate) thread_name: String,
    pub(crate) executor: Option<Box<dyn TaskExecutor>>,
    pub(crate) waker: Option<Waker>,
    pub(crate) clock: Box<dyn Clock>,
}

/// How many timers are built and not stopped.
static LIVE: unmodelled::AtomicUsize = unmodelled::AtomicUsize::new(0);

/// More live timers than this are warned of, once, as in Netty.
const MANY: usize = 64;

impl Core {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        static WARNED: unmodelled::AtomicBool = unmodelled::AtomicBool::new(false);

        // First, for it is the user's and may panic.
        let origin = settings.clock.now();
        let live = LIVE.fetch_add(1, Ordering::Relaxed) + 1;
        if live > MANY && !WARNED.swap(true, Ordering::Relaxed) {
            report::too_many_timers(live);
        }
        Arc::new(Self {
            life: CachePadded::new(Life::new()),
            timeouts: Queue::new(),
            cancelled: Queue::new(),
            ticks_per_wheel: settings.wheel.ticks_per_wheel(),
            post: Post::new(settings.wheel, settings.executor),
            thread: Thread::new(settings.thread_name),
            waker: settings.waker,
            handles: AtomicUsize::new(0),
            counters: Counters::default(),
            ticks: Ticks::new(settings.tick),
            limit: match settings.limit {
                0 => MOST_PENDING,
                limit => MOST_PENDING.min(limit as u64),
            },
            origin,
            clock: settings.clock,
        })
    }

    /// Nanoseconds since the timer was built. Never `NEVER`.
    pub(crate) fn now(&self) -> u64 {
        ticks::nanos(self.clock.now().saturating_sub(self.origin)).min(NEVER - 1)
    }

    pub(crate) fn schedule<T: TimerTask>(
        self: &Arc<Self>,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, NewTimeoutError> {
        let deadline = ticks::deadline(self.now(), delay);
        let admitted = match self.admit() {
            Ok(word) => word,
            Err(error) => {
                self.counters.refused.add_one();
                self.guard_named("when it was dropped", std::any::type_name::<T>(), || drop(task));
                return Err(error);
            }
        };
        // From here to the push nothing of the user's runs: `stop` may be waiting for it.
        let node = Node::new(deadline, TakeCell::new(task));
        self.timeouts.push(Arc::clone(&node));
        let looks = self.waker.is_some() && !is_broken(Fault::PushWithoutLook);
        let word = if looks { self.life.look() } else { admitted };
        self.wake_for(word, if admitted.fills_a_lot() { 0 } else { deadline });
        Ok(Timeout { node, core: Arc::clone(self) })
    }

    /// Counts a timeout in; says how life was before.
    fn admit(self: &Arc<Self>) -> Result<Word, NewTimeoutError> {
        loop {
            match self.life.admit(self.limit) {
                Ok(word) => return Ok(word),
                Err(Refusal::Stopped) => return Err(NewTimeoutError::Stopped),
                Err(Refusal::NotStarted) => self.start()?,
                Err(Refusal::Full) => {
                    let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
                    return Err(NewTimeoutError::TooManyPending { limit });
                }
            }
        }
    }

    pub(crate) fn cancel(&self, timeout: &Timeout) -> bool {
        let Some(placed) = timeout.node.cancel() else { return false };
        // One that the worker has not seen yet it drops when it meets it in `timeouts`.
        if placed && !is_broken(Fault::CancelWithoutPush) {
            self.cancelled.push(Arc::clone(&timeout.node));
        }
        // After the push: `stop` waits for the count, and then finds this in the queue.
        self.counters.cancelled.add_one();
        if is_broken(Fault::CancelWithoutLeave) {
            return true;
        }
        let word = self.life.leave();
        // A driver's loop is not to turn before it has something to run.
        let wakes = self.waker.is_none() && !is_broken(Fault::CancelWithoutWake);
        if placed && word.is_asleep() && wakes {
            self.wake();
        }
        timeout.cancelled();
        true
    }

    pub(crate) fn reset(&self, timeout: &Timeout, delay: Duration) -> bool {
        match timeout.node.reset(ticks::deadline(self.now(), delay)) {
            Reset::Ended => return false,
            Reset::Later => {}
            // The worker thread has been told of it, or will be, with whatever deadline.
            Reset::Earlier if self.waker.is_none() || is_broken(Fault::EarlierWithoutLook) => {}
            Reset::Requeue if is_broken(Fault::ResetWithoutPush) => {}
            moved => {
                if moved == Reset::Requeue {
                    self.timeouts.push(Arc::clone(&timeout.node));
                }
                let word = self.life.look();
                // As it is now: of two at once, the one who looks last has to see to both.
                self.wake_for(word, timeout.node.deadline());
            }
        }
        true
    }

    /// Wakes the worker, if it was asleep and would miss this deadline of a node in `timeouts`.
    fn wake_for(&self, word: Word, deadline: u64) {
        let misses = |waker: &Waker| waker.is_needed_for(self.ticks.of(deadline));
        if word.is_asleep() && self.waker.as_ref().is_none_or(misses) {
            self.wake();
        }
    }

    /// Wakes the worker, if no one else has since it was seen asleep.
    fn wake(&self) {
        if self.life.wake() || is_broken(Fault::WakeWithoutCompare) {
            self.rouse();
        }
    }

    /// Ends the sleep of whoever turns the timer.
    pub(crate) fn rouse(&self) {
        match &self.waker {
            None => self.thread.unpark(),
            Some(waker) => {
                let mut has_panicked = true;
                self.guard_named("when it was called", "(the waker)", || {
                    waker.wake();
                    has_panicked = false;
                });
                if has_panicked {
                    // The loop sleeps on: the next one who needs it is to try again.
                    self.life.promise();
                }
            }
        }
    }

    /// Hands an expired task to whoever runs it.
    pub(crate) fn execute(self: &Arc<Self>, executor: Option<&dyn TaskExecutor>, node: Arc<Node>) {
        let timeout = Timeout { node, core: Arc::clone(self) };
        match executor {
            None => timeout.run(),
            Some(executor) => {
                let name = timeout.node.slot.name();
                let task = ExpiredTask::new(timeout);
                self.guard_named("in the executor", name, || executor.execute(task));
            }
        }
    }

    /// Runs user code on behalf of a timeout; a panic is reported and counted.
    pub(crate) fn guard(&self, doing: &str, node: &Node, code: impl FnOnce()) {
        self.guard_named(doing, node.slot.name(), code);
    }

    pub(crate) fn guard_named(&self, doing: &str, task: &str, code: impl FnOnce()) {
        report::guard(code, |panic| {
            self.counters.panicked.add_one();
            report::task_panicked(doing, task, panic);
        });
    }

    pub(crate) fn task_dropped(&self, node: &Node) {
        self.counters.dropped.add_one();
        report::task_dropped(node.slot.name());
    }

    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
        // `pending` first, and Acquire: who ends a timeout counts that before it leaves, so what ends in between is
        // counted twice rather than not at all.
        let pending = self.life.word().pending();
        let expired = counters.worker.expired.get();
        let cancelled = counters.cancelled.get();
        Stats {
            scheduled: expired + cancelled + pending,
            expired,
            cancelled,
            pending,
            refused: counters.refused.get(),
            panicked: counters.panicked.get(),
            dropped: counters.dropped.get(),
            turns: counters.worker.turns.get(),
            wake_ups: counters.worker.wake_ups.get(),
        }
    }

    /// From now on nothing is admitted. Says whether this is what stopped the timer: only one caller is told so, and
    /// has to let go of the executor.
    pub(crate) fn set_stopped(&self) -> bool {
        let is_first = !self.life.stop().is_stopped();
        if is_first {
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
        is_first
    }

    /// Stops the timer, and waits for the end if that is not to wait for oneself.
    pub(crate) fn stop_from_anywhere(self: &Arc<Self>) {
        if self.post.is_mine() && !is_broken(Fault::DropWithoutAsking) {
            // The worker sees it before the next task, and ends the rest when its turn is over.
            self.abandon();
        } else {
            self.stop();
        }
    }

    /// One handle fewer; says whether it was the last.
    pub(crate) fn drop_handle(&self) -> bool {
        if is_broken(Fault::DropWithoutCompare) {
            let handles = self.handles.load(Ordering::SeqCst);
            self.handles.store(handles.saturating_sub(1), Ordering::SeqCst);
            return handles == 1;
        }
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("life", &self.life.word())
            .field("pending", &self.life.pending())
            .field("tick", &self.ticks.duration())
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .finish_non_exhaustive()
    }
}
