//! The worker: a state machine that owns the wheel and does one turn at a time.
//!
//! A turn takes cancelled timeouts out of the wheel, puts new ones in, and expires what is due. The worker thread, a
//! [`Driver`](crate::Driver) and loom's models all call the same [`turn`](Worker::turn).

use std::collections::VecDeque;
use std::iter;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::core::Core;
use crate::node::{Expiry, Node};
use crate::sync::unmodelled::{AtomicBool, AtomicUsize};
use crate::sync::{Arc, Backoff, Fault, Mutex, MutexGuard, Ordering, is_broken, thread_number};
use crate::task::TaskExecutor;
use crate::timeout::Timeout;
use crate::wheel::{EitherWheel, HashedWheel};

/// The most that a turn takes from each queue, Netty's number: a caller in a tight loop cannot hold the wheel up.
const MOST_TAKEN: usize = if cfg!(hashed_wheel_loom) { 2 } else { 100_000 };

pub(crate) struct Worker {
    /// `None`: the worker runs the tasks itself. Here and not in `Core`, so that it goes when the timer is stopped: it may
    /// hold tasks, and these hold the `Core`.
    pub(crate) executor: Option<Box<dyn TaskExecutor>>,
    wheel: EitherWheel<Arc<Node>>,
    /// Taken out of the wheel to be expired, one by one. Empty between turns, unless a `stop` came in the middle.
    due: VecDeque<Arc<Node>>,
    /// How many new timeouts were taken off the queue, ever.
    taken: u64,
    /// How many nodes the last turn took off the queues.
    traffic: usize,
    /// More are waiting than may be taken at a time.
    backlog: bool,
    /// All have ended, and been told so.
    over: bool,
    /// How many of those waiting in `timeouts` were there before the wheel came to where it is: they are not to be a tick
    /// late for having had to wait.
    owed: usize,
}

/// What the worker thread does after a turn.
pub(crate) enum Rest {
    /// Sleep for so long: till the next tick. Callers rely on it and wake nobody.
    Nap(Duration),
    /// Sleep for so long, or for ever, unless a caller ends it; they have been told.
    Sleep(Option<Duration>),
    /// The timer is stopped.
    End,
}

impl Worker {
    fn new(wheel: EitherWheel<Arc<Node>>, executor: Option<Box<dyn TaskExecutor>>) -> Self {
        Self {
            executor,
            wheel,
            due: VecDeque::new(),
            taken: 0,
            traffic: 0,
            backlog: false,
            over: false,
            owed: 0,
        }
    }

    /// One turn at time `now`. Returns how many timeouts expired.
    pub(crate) fn turn(&mut self, core: &Arc<Core>, now: u64) -> usize {
        core.counters.worker.turns.add_one_alone();
        self.absorb(core);
        let now = core.ticks.reached(now);
        if now > self.wheel.tick() {
            self.owed = if self.backlog { core.timeouts.len() } else { 0 };
        }
        let mut expired = 0;
        while let Some(tick) = self.wheel.next_deadline().filter(|&tick| tick <= now) {
            let tick = tick.max(self.wheel.tick());
            // All of a tick first, so that no task runs while the wheel changes; then decided one by one, so that each
            // can be cancelled until its own turn comes.
            let is_owed = tick == self.wheel.tick();
            self.wheel.advance(tick, |node| self.due.push_back(node));
            if is_owed {
                // In the order in which they would have fired. (Each deadline looked at once: a `reset` may change it.)
                self.due.make_contiguous().sort_by_cached_key(|node| core.ticks.of(node.deadline()));
            }
            while let Some(node) = self.due.pop_front() {
                if core.life.word().is_stopped() {
                    // The rest is for `stop` to return.
                    self.due.push_front(node);
                    return expired;
                }
                match node.expire(|deadline| core.ticks.of(deadline) <= tick) {
                    Expiry::Expired => {
                        expired += 1;
                        core.counters.worker.expired.add_one_alone();
                        core.life.leave();
                        core.execute(self.executor.as_deref(), node);
                    }
                    Expiry::Later(deadline) => self.insert(core.ticks.of(deadline), node),
                    Expiry::Gone => {}
                }
            }
        }
        self.wheel.advance(now, |node| self.due.push_back(node));
        expired
    }

    /// Empties the queues into the wheel: at most `MOST_TAKEN` of each.
    fn absorb(&mut self, core: &Core) {
        let mut cancelled = 0;
        while cancelled < MOST_TAKEN {
            let Some(node) = core.cancelled.pop() else { break };
            cancelled += 1;
            self.remove(&node);
        }
        let mut transferred = 0;
        while transferred < MOST_TAKEN {
            let Some(node) = core.timeouts.pop() else { break };
            transferred += 1;
            let is_owed = self.owed > 0;
            self.owed = self.owed.saturating_sub(1);
            let Some(tick) = self.take_in(core, &node) else { continue };
            // In the wheel before the next is taken: a re-arm may have put the same node into the queue again. What is
            // owed comes out of the wheel at the very tick where it is.
            let earliest = self.wheel.tick() + u64::from(!is_owed);
            self.insert(tick.max(earliest), node);
        }
        self.traffic = cancelled + transferred;
        let capped = cancelled == MOST_TAKEN || transferred == MOST_TAKEN;
        self.backlog = capped && !(core.cancelled.is_empty() && core.timeouts.is_empty());
    }

    /// Takes a node over from the queue: the tick at which it belongs into the wheel, unless it has ended.
    fn take_in(&mut self, core: &Core, node: &Node) -> Option<u64> {
        if node.key().is_none() || is_broken(Fault::ResetTakenForNew) {
            self.taken += 1;
        } else {
            // It comes a second time: its deadline has become earlier.
            self.remove(node);
        }
        node.place().map(|deadline| core.ticks.of(deadline))
    }

    fn insert(&mut self, tick: u64, node: Arc<Node>) {
        let key = self.wheel.insert(tick, node);
        if let Some(node) = self.wheel.get(key) {
            node.set_key(key);
        }
    }

    fn remove(&mut self, node: &Node) {
        if let Some(key) = node.key() {
            self.wheel.remove(key);
        }
    }

    #[cfg(hashed_wheel_loom)]
    pub(crate) fn could_sleep(&self, core: &Core) -> bool {
        core.life.word().has_admitted(self.taken)
    }

    /// The tick at which `turn` has work.
    pub(crate) fn next_turn(&mut self, core: &Core) -> Option<u64> {
        let mut next = self.next_tick(core);
        if let Some(waker) = &core.waker {
            // Nothing that comes from now on is for an earlier tick than the next.
            let beyond_doubt = self.wheel.tick() + 1;
            waker.promise(if next <= beyond_doubt { 0 } else { next });
            core.life.promise();
            // Not later than promised, for somebody may have relied on it.
            let earliest = if is_broken(Fault::PromiseBroken) { u64::MAX } else { next };
            if !is_broken(Fault::PromiseWithoutSecondLook) {
                next = self.next_tick(core).min(earliest);
            }
        }
        (next < u64::MAX).then_some(next)
    }

    /// The tick at which `turn` has work; `u64::MAX` is none. Takes in what has come since the last turn, so that the
    /// answer is exact.
    fn next_tick(&mut self, core: &Core) -> u64 {
        if !self.backlog {
            self.absorb(core);
        }
        if self.backlog { 0 } else { self.wheel.next_deadline().unwrap_or(u64::MAX) }
    }

    /// What the worker thread does after a turn. While there is traffic it goes on ticking, so that no caller has to
    /// wake it; after a whole tick without, it sleeps until there is work. [`Life`](crate::life::Life) has the proof that
    /// no wake-up is lost.
    pub(crate) fn rest(&self, core: &Core, now: u64) -> Rest {
        let word = core.life.word();
        if word.is_stopped() {
            return Rest::End;
        }
        if self.backlog {
            return Rest::Nap(Duration::ZERO);
        }
        let queues_are_empty = || core.timeouts.is_empty() && core.cancelled.is_empty();
        if self.traffic == 0 && word.has_admitted(self.taken) && queues_are_empty() && core.life.sleep(word) {
            if queues_are_empty() || is_broken(Fault::SleepWithoutSecondLook) {
                return Rest::Sleep(self.wheel.next_deadline().map(|tick| core.ticks.until(tick, now)));
            }
            core.life.wake();
        }
        Rest::Nap(core.ticks.until(self.wheel.tick() + 1, now))
    }

    /// Whether [`drain`](Self::drain) has done its work.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Ends every timeout that has not ended, once the timer is stopped; returns those, with their hooks called. Waits
    /// for callers that were admitted before and are about to push.
    pub(crate) fn drain(&mut self, core: &Arc<Core>) -> Vec<Timeout> {
        let mut rest = Vec::new();
        let backoff = Backoff::new();
        loop {
            let queued = iter::from_fn(|| core.timeouts.pop());
            if is_broken(Fault::StopWithoutDue) {
                self.due.clear();
            }
            for node in self.due.drain(..).chain(self.wheel.drain()).chain(queued) {
                if node.cancel().is_some() {
                    core.counters.cancelled.add_one();
                    core.life.leave();
                    rest.push(Timeout { node, core: Arc::clone(core) });
                }
            }
            let gives_up = is_broken(Fault::StopWithoutWaiting) || is_broken(Fault::StopWithoutDue);
            if core.life.word().pending() == 0 || gives_up {
                break;
            }
            backoff.snooze();
        }
        // What is still there has ended.
        while core.timeouts.pop().or_else(|| core.cancelled.pop()).is_some() {}
        self.wheel = EitherWheel::Hashed(HashedWheel::new(1));
        core.post.draining.store(true, Ordering::Relaxed);
        rest.iter().for_each(Timeout::cancelled);
        self.over = true;
        rest
    }
}

/// Where the worker works: whoever holds this lock is the worker.
///
/// Tasks run under it, for they run on the worker. What of the public face would wait for it (`stop`, and dropping the
/// last handle) asks [`is_mine`](Self::is_mine) first.
///
/// | word | written | read | why `Relaxed` is enough |
/// |---|---|---|---|
/// | `holder` | own number with the lock taken, 0 before it is given back | by anyone, to compare with their own number | a thread sees its own writes in order; no other writes its number |
/// | `draining` | true by `drain`, false before the lock is given back | by who has found itself to be the holder | the same thread wrote it |
/// | `abandoned` | true, once, by the holder | by the worker, after its turn | the same thread wrote it: only the worker stops the timer so |
///
/// The lock itself orders everything else. loom need not know these three: each is read for its value only by who wrote it.
pub(crate) struct Post {
    worker: Mutex<Worker>,
    /// The number of the thread that holds the lock; 0 is none. A thread that finds its own number put it there itself.
    holder: AtomicUsize,
    /// Whether it is there to call the hooks of a stopped timer.
    draining: AtomicBool,
    /// Whether the timer was stopped by the worker itself: no `stop` comes to end what is left.
    abandoned: AtomicBool,
}

pub(crate) struct OnDuty<'a> {
    post: &'a Post,
    worker: MutexGuard<'a, Worker>,
}

impl Post {
    pub(crate) fn new(wheel: EitherWheel<Arc<Node>>, executor: Option<Box<dyn TaskExecutor>>) -> Self {
        Self {
            worker: Mutex::new(Worker::new(wheel, executor)),
            holder: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    pub(crate) fn enter(&self) -> OnDuty<'_> {
        let worker = self.worker.lock();
        self.holder.store(thread_number(), Ordering::Relaxed);
        OnDuty { post: self, worker }
    }

    /// Whether the calling thread is the worker.
    pub(crate) fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == thread_number()
    }

    /// The worker has stopped the timer, and is the one to see to the rest.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// For the worker: whether it has stopped the timer.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// For the worker: whether it is calling the hooks of a stopped timer.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

impl Drop for OnDuty<'_> {
    fn drop(&mut self) {
        self.post.draining.store(false, Ordering::Relaxed);
        self.post.holder.store(0, Ordering::Relaxed);
    }
}

impl Deref for OnDuty<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl DerefMut for OnDuty<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }
}
