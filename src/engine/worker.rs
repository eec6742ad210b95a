//! The worker: a state machine that owns the wheel and does one turn at a time.
//!
//! A turn drains messages, advances the wheel and expires what is due. The worker thread, a
//! [`Driver`](crate::Driver), the tests and loom's models all call the same [`turn`](Worker::turn).
//!
//! 1. It drains messages of all kinds, at most [`MAX_MESSAGES_PER_TURN`], one lane after the other,
//!    beginning where the last turn ended. If more wait, the next turn is due immediately, and
//!    takes a [portion](Receiver::portion) of each lane, so that callers that are faster than the
//!    worker hold up neither what is due nor other threads.
//! 2. It goes from one tick that has entries to the next, up to now, also after a stall. It takes
//!    all nodes of a tick out of the wheel, so that no task runs while the wheel changes, and then
//!    decides node by node. What a task schedules meanwhile is for the next turn.
//! 3. It advances the wheel to now.
//!
//! A turn that ends early, for `stop` or because it has run as many tasks as it may, leaves the
//! other nodes of the tick in the wheel's ready list, where their messages find them.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::counters::LatenessSampler;
use super::inner::{Execute, Inner, Timeout};
use super::return_timer::ReturnTimer;
use super::sleep_policy::SleepPolicy;
use super::timeouts::TimeoutsQueue;
use crate::node::{
    Arrival, Expiry, HeldRef, HeldRun, NodeWheel, RunOutcome, TaskClaim, Waiting, WheelOf,
};
use crate::sync::unmodelled::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex, MutexGuard, Ordering, thread_number};
use crate::ticks::DEADLINE_RUNNING;
use timing_wheels::order::SlotCounts;

/// The most messages of all kinds that a turn takes. It is 100 000, Netty's number for the new
/// timeouts of a tick: a caller in a tight loop cannot hold up the wheel.
const MAX_MESSAGES_PER_TURN: usize = if cfg!(hashed_wheel_loom) { 2 } else { 100_000 };

/// The time that a message may take the worker: one that waits for several cache lines.
const NANOS_PER_MESSAGE: u64 = 100;

/// The least portion of a lane: as many messages as are fetched into the cache together.
const MIN_PORTION: u64 = if cfg!(hashed_wheel_loom) { 1 } else { 16 };

/// By how many steps a driver's turn returns memory to the system: about half a millisecond.
const RETURN_STEPS: usize = 16;

/// The state of the worker, which the [`WorkerLock`] guards.
pub(crate) struct Worker {
    /// `None`: the worker runs the tasks itself. It is here and not in [`Inner`], so that it
    /// is dropped when the timer is stopped: it may hold tasks, and these may hold the timer.
    pub(super) executor: Option<Execute>,
    pub(super) nodes: NodeWheel<Inner>,
    pub(super) receiver: Receiver,
    lateness: LatenessSampler,
    pub(super) sleep_policy: SleepPolicy,
    return_timer: ReturnTimer,
    /// All timeouts have ended, and their hooks were called.
    pub(super) has_ended: bool,
}

impl Worker {
    pub(super) fn new(nodes: NodeWheel<Inner>, executor: Option<Execute>) -> Self {
        Self {
            executor,
            nodes,
            receiver: Receiver::default(),
            lateness: LatenessSampler::default(),
            sleep_policy: SleepPolicy::new(),
            return_timer: ReturnTimer::default(),
            has_ended: false,
        }
    }

    /// Does a turn at time `now`, until `turn_end` tasks were ever handed over. If more are due
    /// they are left in the wheel, and the next deadline of the wheel has passed. Returns whether
    /// anything was due in the wheel.
    // Into the turn of `Inner`: a call costs an empty turn 40 instructions.
    #[inline]
    pub(crate) fn turn(&mut self, inner: &Inner, now: u64, turn_end: u64) -> bool {
        inner.counters.worker.turns.add_single_writer(1);
        let mut nodes = self.nodes.of(inner);
        // Only for speed: a look at the lanes after the end does no harm. Without this question an
        // empty turn takes 9 instructions more.
        if !self.has_ended {
            let most = MAX_MESSAGES_PER_TURN;
            self.receiver.drain(inner, &mut nodes, most);
        }
        self.lateness.set_now(now);
        let now = inner.ticks.reached(now);
        if self.receiver.has_backlog && now > nodes.tick() {
            // Messages left over from a capped turn must not fire a tick late.
            self.receiver
                .queue
                .carry_over(&inner.new_lanes, nodes.tick());
        }
        if let Some(tick) = nodes.next_deadline().filter(|&tick| tick <= now) {
            self.expire_due(inner, tick, now, turn_end);
            return true;
        }
        if now > nodes.tick() {
            nodes.advance(now);
        }
        false
    }

    /// Expires what is due, from `tick`, the next deadline of the wheel, up to the tick `now`.
    // Not inlined: keeps register spills out of turns that expire nothing.
    #[inline(never)]
    fn expire_due(&mut self, inner: &Inner, tick: u64, now: u64, turn_end: u64) {
        let mut nodes = self.nodes.of(inner);
        let has_backlog = self.receiver.has_backlog;
        if let Some(from) = self.receiver.queue.carried_over_from(has_backlog, tick) {
            // In the order in which they would have fired, also what an earlier turn has left here.
            let first = nodes.sort_due(inner.ticks, from + 1);
            self.lateness.set_first(tick, first);
        }
        let mut next = Some(tick);
        while let Some(tick) = next {
            let (due, executor) = (nodes.reborrow(), self.executor.as_ref());
            if !expire_tick(inner, due, executor, &mut self.lateness, tick, turn_end) {
                return;
            }
            next = nodes.next_deadline().filter(|&next| next <= now);
        }
        if now > nodes.tick() {
            nodes.advance(now);
        }
    }

    /// Returns memory to the operating system that was not needed for some time, by at most this
    /// many steps: see [`ReturnTimer::step`].
    #[inline]
    pub(super) fn return_memory(&mut self, inner: &Inner, now: u64, steps: usize) {
        let mut nodes = self.nodes.of(inner);
        if self.return_timer.has_work(&mut nodes) && !self.has_ended {
            self.return_timer.step(&mut nodes, inner.ticks, now, steps);
        }
    }

    /// After this time there is memory to return, as far as it is known now.
    pub(super) fn surplus_wait(&mut self, inner: &Inner) -> Option<Duration> {
        if self.has_ended {
            return None;
        }
        self.return_timer.wait(&mut self.nodes.of(inner))
    }

    /// Takes in messages between two turns, unless more wait than a turn may take: then the next
    /// is due at once. It keeps no wake-up from the worker: a caller that has pushed looks whether
    /// it has to wake it, whichever thread takes the message.
    pub(super) fn drain_messages_unless_behind(&mut self, inner: &Inner) {
        if !self.receiver.has_backlog {
            self.drain_messages(inner);
        }
    }

    /// Does a turn that hands over nothing.
    pub(super) fn drain_messages(&mut self, inner: &Inner) {
        let (nodes, most) = (&mut self.nodes.of(inner), MAX_MESSAGES_PER_TURN);
        self.receiver.drain(inner, nodes, most);
    }

    /// Takes in all messages that wait, and returns the timeouts that have not ended, except those
    /// that futures wait for.
    pub(super) fn pending(&mut self, inner: &Inner) -> Vec<Timeout> {
        let mut nodes = self.nodes.of(inner);
        self.receiver.drain_all(inner, &mut nodes);
        nodes.pending()
    }

    /// Returns the tick that it is, if it is `now` by the clock; how full the wheel is then; and
    /// how many messages of new timeouts wait.
    pub(crate) fn occupancy(
        &self,
        inner: &Inner,
        now: u64,
    ) -> Option<(u64, Vec<SlotCounts>, usize)> {
        let tick = now.max(self.nodes.tick());
        let taken = inner.counters.worker.taken.get();
        let queued = (inner.pending_counts.ever_registered() - taken) as usize;
        Some((tick, self.nodes.levels(tick)?, queued))
    }
}

/// The turns that the worker thread and a driver make.
impl Inner {
    /// Whether a turn has nothing to do, or this thread is in a turn already and would wait for
    /// itself: in a hook that `stop` calls, or in a task that `shutdown` runs and that has the
    /// driver.
    pub(super) fn cannot_turn(&self) -> bool {
        let state = self.state.snapshot();
        state.is_closing() && (state.is_stopped() || self.worker.is_held_by_this_thread())
    }

    /// Does a turn of the worker, for its thread or for a driver, that hands over at most `most`
    /// tasks. Returns how many were handed to the executor, or run.
    // Without the arguments an empty turn takes 5 instructions less.
    #[inline]
    pub(crate) fn turn(&self, most: usize) -> usize {
        if self.cannot_turn() {
            return 0;
        }
        let now = self.clock.now();
        let mut worker = self.worker.lock();
        let before = self.counters.worker.handed_over();
        let mut had_work = false;
        if most > 0 {
            had_work = worker.turn(self, now, before.saturating_add(most as u64));
        } else {
            worker.drain_messages(self);
        }
        had_work |= worker.receiver.taken_last > 0;
        let expired = self.counters.worker.handed_over() - before;
        if self.worker.is_stopped_by_worker() {
            self.end_on_worker(worker);
        } else {
            if self.options.kind.is_driven() && !worker.receiver.has_backlog {
                // (The thread does this before it sleeps.)
                worker.return_memory(self, now, RETURN_STEPS);
            }
            drop(worker);
        }
        if had_work {
            self.count_turn(now);
        }
        expired as usize
    }
}

/// A look at the wheel from another thread.
impl Inner {
    /// Locks the worker's state for a look at the wheel, which runs no user code, so this thread
    /// does not become the holder. Returns `None` if another thread has the lock, or the timer is
    /// stopped. Nothing but `occupancy` depends on the result.
    pub(crate) fn look_at_wheel(&self) -> Option<MutexGuard<'_, Worker>> {
        let worker = self.worker.worker.try_lock()?;
        // After the lock: a thread that stops the timer sets the bit, then empties the wheel under
        // it.
        (!self.state.snapshot().is_stopped()).then_some(worker)
    }
}

/// Expires what is due at `tick`. Returns false if the turn is over: the timer was stopped
/// meanwhile, or the turn has handed over as many tasks as it may.
#[inline]
fn expire_tick(
    inner: &Inner,
    mut nodes: WheelOf<'_, Inner>,
    executor: Option<&Execute>,
    lateness: &mut LatenessSampler,
    tick: u64,
    turn_end: u64,
) -> bool {
    // First the wheel collects the whole tick in its ready list, so that no task runs meanwhile.
    // Then the nodes are taken out one by one, so that each timeout can be cancelled until then.
    nodes.advance(tick);
    let last_deadline = inner.ticks.last_deadline_of(tick);
    let counters = &inner.counters.worker;
    // One count for both ends, because it is in the worker's loop.
    let mut left = lateness.sample_end().min(turn_end) - counters.handed_over();
    debug_assert!(left > 0, "it is counted down to zero");
    let is_whole = loop {
        if inner.state.snapshot().is_stopped() {
            // The rest is for `stop` to return.
            break false;
        }
        let Some(node) = nodes.next_due() else {
            break true;
        };
        match node.expire(|deadline| deadline <= last_deadline) {
            Expiry::Once(claimed) => {
                if let Some(timeout) = inner.run_or_dispatch(claimed, executor) {
                    nodes.recycle(timeout.handle);
                }
            }
            Expiry::Stays(node) => {
                if !begin_run(inner, node, executor) {
                    continue;
                }
            }
            Expiry::Later(node, deadline) => {
                insert_again(node, inner.ticks.of(deadline));
                continue;
            }
            Expiry::LeftToMessage => continue,
        }
        left -= 1;
        if left == 0 {
            if counters.handed_over() >= turn_end {
                break false;
            }
            lateness.count(counters, inner.ticks, tick);
            if let Some(now) = inner.try_now() {
                lateness.set_now(now);
            }
            left = lateness.sample_end().min(turn_end) - counters.handed_over();
        }
    };
    lateness.count(counters, inner.ticks, tick);
    is_whole
}

/// The worker's end of the callers' messages.
#[derive(Default)]
pub(super) struct Receiver {
    pub(super) queue: TimeoutsQueue,
    /// How many messages the last call of [`drain`](Self::drain) took.
    taken_last: usize,
    /// Whether that call found anything but new timeouts that have not ended: then there may be
    /// more to reclaim soon.
    pub(super) has_reclaimed: bool,
    /// How many messages were taken since the thread last decided how to sleep.
    pub(super) taken_since_plan: usize,
    /// More messages wait than may be taken at a time.
    pub(super) has_backlog: bool,
    /// All new timeouts that a closing timer has accepted were taken in. The thread that has pushed
    /// another one sees that the timer closes, and withdraws it: see [`end`](super::end).
    pub(super) refuses_new: bool,
}

impl Receiver {
    /// Takes in at most `most` messages; with a backlog, at most a portion of each lane.
    #[inline]
    fn drain(&mut self, inner: &Inner, nodes: &mut WheelOf<'_, Inner>, most: usize) {
        let has_retired = inner.idle_nodes.retire(inner);
        self.has_reclaimed = nodes.collect_remote_frees() || has_retired;
        let portion = self.has_backlog.then(|| self.portion(inner, nodes));
        let portion = portion.flatten().unwrap_or(most);
        let mut scan = self.queue.scan(&inner.new_lanes, most, portion);
        while let Some(lane) = scan.next_lane() {
            self.has_reclaimed |= take_in(inner, nodes.reborrow(), lane, self.refuses_new);
        }
        (self.taken_last, self.has_backlog) = scan.end(&inner.new_lanes);
        self.taken_since_plan += self.taken_last;
    }

    /// Takes in all messages that wait.
    pub(super) fn drain_all(&mut self, inner: &Inner, nodes: &mut WheelOf<'_, Inner>) {
        self.has_backlog = false;
        self.drain(inner, nodes, usize::MAX);
    }

    /// How many messages of each lane a turn takes if it begins with a backlog: all together take
    /// about a quarter of a tick, if that is enough for [`MIN_PORTION`] of each. So a timeout that
    /// is due, or that another thread schedules, does not wait for callers that are faster than the
    /// worker.
    ///
    /// `None` is no limit: the turns of a driver may be too rare for portions. And a turn that was
    /// cut short has left a ready list, which each turn that takes what is carried over sorts.
    ///
    /// Notes the tick for [`carried_over_from`](TimeoutsQueue::carried_over_from).
    #[cold]
    fn portion(&mut self, inner: &Inner, nodes: &WheelOf<'_, Inner>) -> Option<usize> {
        self.queue.taken_at = nodes.tick();
        if inner.options.kind.is_driven() || nodes.next_deadline() == Some(nodes.tick()) {
            return None;
        }
        let messages = inner.ticks.nanos() / 4 / NANOS_PER_MESSAGE;
        let messages = messages.min(MAX_MESSAGES_PER_TURN as u64) as usize;
        // The look at all lanes takes no longer than the messages.
        let lanes = &self.queue.lanes;
        let busy = lanes.iter().filter(|lane| lane.waiting().0 > MIN_PORTION);
        Some((messages.max(lanes.len()) / busy.count().max(1)).max(MIN_PORTION as usize))
    }
}

/// Takes in the messages of a lane. Returns whether there was anything but new timeouts that have
/// not ended.
// Not inlined: keeps register spills out of turns that take in nothing.
#[inline(never)]
fn take_in(
    inner: &Inner,
    mut nodes: WheelOf<'_, Inner>,
    mut lane: Waiting<'_>,
    refuses_new: bool,
) -> bool {
    let (mut messages, mut new, entries, tick) = (0, 0, nodes.len(), nodes.tick());
    while let Some(arrival) = nodes.next_arrival(&mut lane) {
        messages += 1;
        // A timeout that is carried over comes out of the wheel at the very tick that the wheel has
        // reached.
        let earliest = tick + u64::from(!lane.is_carried_over());
        new += u64::from(apply(inner, arrival, earliest, refuses_new));
    }
    let counters = &inner.counters.worker;
    counters
        .in_wheel_or_expired
        .set_single_writer(nodes.len() as u64 + counters.expired.get());
    counters.taken.add_single_writer(new);
    nodes.refill();
    nodes.len() != entries + messages
}

/// Does what a message says. Returns whether it was about a new timeout. A node enters the wheel at
/// the tick `earliest` or later.
#[inline]
fn apply(inner: &Inner, arrival: Arrival<'_, Inner>, earliest: u64, refuses_new: bool) -> bool {
    let (node, is_new) = match arrival {
        // A new timeout that was cancelled before the worker saw it.
        Arrival::TakenBack => return true,
        Arrival::New(node) if refuses_new => {
            node.refuse();
            return true;
        }
        Arrival::New(node) | Arrival::Replacement(node) => (node, true),
        Arrival::Update(node) => (node, false),
    };
    node.accept(|deadline| inner.ticks.of(deadline).max(earliest));
    is_new
}

/// Puts a node that was due back into the wheel.
// Not in the loop.
#[inline(never)]
fn insert_again(node: HeldRef<'_, Inner>, tick: u64) {
    node.insert(tick);
}

/// A task that stays in its node is due. Returns whether it was handed over.
// Not in the loop.
#[inline(never)]
fn begin_run(inner: &Inner, node: HeldRef<'_, Inner>, executor: Option<&Execute>) -> bool {
    let tick = node.wheel_tick();
    let run = match node.begin_run(|deadline| inner.ticks.of(deadline) <= tick) {
        Ok(run) => run,
        Err(moved) => {
            if let Some((node, deadline)) = moved {
                insert_again(node, inner.ticks.of(deadline));
            }
            return false;
        }
    };
    if run.is_periodic() {
        inner.counters.worker.runs.add_single_writer(1);
        match executor {
            None => run_once(inner, run),
            Some(executor) => {
                let claimed = run.hand_over(inner.ticks.of(DEADLINE_RUNNING));
                inner.dispatch(executor, claimed);
            }
        }
        return true;
    }
    match run.ask(|| inner.state.snapshot().is_stopped()) {
        RunOutcome::Again((node, deadline)) => {
            insert_again(node, inner.ticks.of(deadline).max(tick + 1));
        }
        RunOutcome::LastRun(claimed) => {
            inner.run_or_dispatch(claimed, executor);
            return true;
        }
        RunOutcome::Cancelled(claimed) => _ = inner.call_hook(claimed),
    }
    false
}

/// Runs a periodic task once, on the worker.
fn run_once(inner: &Inner, mut run: HeldRun<'_, Inner>) {
    let name = run.name();
    let next = inner.watch(|| name, || run.repeat(inner));
    let drop_task = |claim: TaskClaim<'_, Inner>| {
        inner.counters.guard_drop(|| name, || claim.drop_task());
    };
    match run.finish(next.map(|next| next.deadline)) {
        RunOutcome::Again((node, deadline)) => {
            let earliest = node.wheel_tick();
            insert_again(node, inner.ticks.of(deadline).max(earliest));
        }
        RunOutcome::LastRun(run) => {
            let counters = &inner.counters.worker;
            counters.runs.set_single_writer(counters.runs.get() - 1);
            counters.expired.add_single_writer(1);
            inner.pending_counts.release_places(1);
            run.drop_task(drop_task);
        }
        RunOutcome::Cancelled(run) => run.drop_task(drop_task),
    }
}

/// The lock that makes a thread the worker: the thread that holds it has the state of the worker.
///
/// Tasks run under it, because they run on the worker. An operation that would wait for it (`stop`,
/// dropping the last handle) asks [`is_held_by_this_thread`](WorkerLock::is_held_by_this_thread)
/// first.
///
/// | word | written | read | why `Relaxed` is enough |
/// |---|---|---|---|
/// | `holder` | own number while the lock is held, 0 before it is released | by any thread, to compare with its own number | a thread sees its own writes in order; no other thread writes its number |
/// | `stopped_by_worker` | set, once, by the worker in its turn, or by the worker thread when the clock panics | by the worker at the end of its turn, or after that panic | the same thread wrote it, or did so before it released the lock |
///
/// The lock itself orders everything else. loom need not know these two, because nothing between
/// threads depends on their values.
pub(crate) struct WorkerLock {
    worker: Mutex<Worker>,
    /// The number of the thread that holds the lock; 0 is none.
    holder: AtomicUsize,
    /// The worker itself has stopped the timer, so that it has to end what is left.
    stopped_by_worker: AtomicBool,
}

pub(crate) struct WorkerGuard<'a> {
    lock: &'a WorkerLock,
    worker: MutexGuard<'a, Worker>,
}

impl WorkerLock {
    pub(crate) fn new(worker: Worker) -> Self {
        Self {
            worker: Mutex::new(worker),
            holder: AtomicUsize::new(0),
            stopped_by_worker: AtomicBool::new(false),
        }
    }

    /// Makes this thread the worker, as soon as no other thread is.
    pub(crate) fn lock(&self) -> WorkerGuard<'_> {
        let worker = self.worker.lock();
        self.holder.store(thread_number(), Ordering::Relaxed);
        WorkerGuard { lock: self, worker }
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
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Ordering::Relaxed);
    }
}

impl Deref for WorkerGuard<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl DerefMut for WorkerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }
}

#[cfg(test)]
mod tests;
