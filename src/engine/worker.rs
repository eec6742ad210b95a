//! The worker: a state machine that owns the wheel and does one step at a time.
//!
//! A step, called a turn, drains messages, advances the wheel and expires what is due. The worker
//! thread, a [`Driver`](crate::Driver), the tests and loom's models all call the same
//! [`turn`](Worker::turn).

use super::counters::LatenessSampler;
use super::dispatch::DispatchedTask;
use super::shared::{Shared, SharedFields};
use super::state::StateSnapshot;
use super::timeouts::TimeoutsQueue;
use crate::node::{Arrival, Expiry, HeldRun, HeldRunOutcome, NodeWheel};
use crate::sync::Arc;
use crate::ticks::DEADLINE_RUNNING;
use crate::wheel::SlotCounts;

/// The most messages of all kinds that a turn takes, Netty's number for its new timeouts: a caller in
/// a tight loop cannot hold up the wheel.
const MAX_MESSAGES_PER_TURN: usize = if cfg!(hashed_wheel_loom) { 2 } else { 100_000 };

/// Runs expired tasks elsewhere than on the worker.
pub(crate) type Executor = Box<dyn Fn(DispatchedTask) + Send + Sync>;

/// The state of the worker, which the [worker lock](super::worker_lock) guards.
pub(crate) struct Worker {
    /// `None`: the worker runs the tasks itself. It is here and not in [`SharedFields`], so that it is
    /// dropped when the timer is stopped: it may hold tasks, and these may hold the timer.
    executor: Option<Executor>,
    pub(super) nodes: NodeWheel<SharedFields>,
    pub(super) queue: TimeoutsQueue,
    /// How many new timeouts were ever taken in.
    pub(super) taken: u64,
    lateness: LatenessSampler,
    /// How many messages the last turn took.
    pub(super) taken_last: usize,
    /// More messages wait than may be taken at a time.
    pub(super) has_backlog: bool,
    /// All timeouts have ended, and their hooks were called.
    pub(super) is_drained: bool,
}

impl Worker {
    pub(super) fn new(nodes: NodeWheel<SharedFields>, executor: Option<Executor>) -> Self {
        Self {
            executor,
            nodes,
            queue: TimeoutsQueue::default(),
            taken: 0,
            lateness: LatenessSampler::default(),
            taken_last: 0,
            has_backlog: false,
            is_drained: false,
        }
    }

    /// Does a turn at time `now`. Returns whether anything was due in the wheel.
    pub(crate) fn turn(&mut self, shared: &Arc<Shared>, now: u64) -> bool {
        shared.counters.worker.turns.add_one_alone();
        self.drain_messages(shared);
        self.lateness.set_now(now);
        let now = shared.ticks.reached(now);
        if now > self.nodes.tick() {
            // Messages left over from a capped step must not fire a tick late, so they are owed.
            self.queue.owe(self.has_backlog);
        }
        let mut had_due = false;
        while let Some(tick) = self.nodes.next_deadline().filter(|&tick| tick <= now) {
            had_due = true;
            if !self.expire_tick(shared, tick.max(self.nodes.tick())) {
                return true;
            }
        }
        if now > self.nodes.tick() {
            self.nodes.of(shared).advance(now);
        }
        had_due
    }

    /// Expires what is due at `tick`. Returns false if the timer was stopped meanwhile.
    // In the loop of `turn`, whose registers it uses.
    #[inline(always)]
    fn expire_tick(&mut self, shared: &Arc<Shared>, tick: u64) -> bool {
        // First the whole tick comes out of the wheel, so that no task runs while the wheel changes.
        // Then it is decided node by node, so that each timeout can be cancelled until its own turn.
        let is_owed = tick == self.nodes.tick();
        let mut nodes = self.nodes.of(shared);
        nodes.advance(tick);
        if is_owed {
            // In the order in which they would have fired.
            nodes.sort_due(shared.ticks);
        }
        loop {
            if shared.state.snapshot().is_stopped() {
                // The rest is for `stop` to return.
                self.lateness.count(shared, tick);
                return false;
            }
            let Some(node) = nodes.next_due() else { break };
            match node.expire(|deadline| shared.ticks.of(deadline) <= tick) {
                Expiry::Once(claimed) => {
                    shared.counters.worker.expired.add_one_alone();
                    shared.state.deregister();
                    match &self.executor {
                        None => nodes.recycle(shared.run(claimed).handle),
                        Some(executor) => {
                            if let Some(timeout) = shared.dispatch(executor, claimed) {
                                nodes.recycle(timeout.handle);
                            }
                        }
                    }
                    self.lateness.sample(shared, tick);
                }
                Expiry::Run(run) => {
                    shared.counters.worker.runs.add_one_alone();
                    match &self.executor {
                        None => run_once(shared, run),
                        Some(executor) => {
                            let claimed = run.hand_over(shared.ticks.of(DEADLINE_RUNNING));
                            shared.dispatch(executor, claimed);
                        }
                    }
                    self.lateness.sample(shared, tick);
                }
                Expiry::Later(node, deadline) => node.insert(shared.ticks.of(deadline)),
                Expiry::LeftToMessage => {}
            }
        }
        self.lateness.count(shared, tick);
        true
    }

    /// Takes in messages, unless more of them wait than a turn may take: then the next turn is due
    /// immediately, and takes them in.
    pub(super) fn drain_messages_unless_behind(&mut self, shared: &Arc<Shared>) {
        if !self.has_backlog {
            self.drain_messages(shared);
        }
    }

    /// Takes in at most [`MAX_MESSAGES_PER_TURN`] messages.
    fn drain_messages(&mut self, shared: &Arc<Shared>) {
        // A thread that found the timer not stopped may get here after a `stop` has cut a turn short.
        // A message could be about a node that this turn had taken out of the wheel.
        if self.is_drained || self.nodes.has_unfinished_step() {
            return;
        }
        let Self { nodes, queue, taken, .. } = self;
        let mut nodes = nodes.of(shared);
        nodes.collect_remote_frees();
        let before = *taken;
        let take = |group: &mut _| {
            nodes.receive(group, |arrival, is_owed| {
                *taken += u64::from(apply(shared, arrival, is_owed));
            });
        };
        (self.taken_last, self.has_backlog) = queue.take(&shared.new_lanes, MAX_MESSAGES_PER_TURN, take);
        if self.taken_last > 0 {
            let counters = &shared.counters.worker;
            counters.in_wheel_or_expired.set_alone(self.nodes.len() as u64 + counters.expired.get());
            counters.taken.add_alone(self.taken - before);
        }
    }

    /// Returns the tick that it is, if it is `now` by the clock; how full the wheel is then; and how
    /// many messages of new timeouts wait. `state` is that of the timer.
    pub(crate) fn occupancy(&self, state: StateSnapshot, now: u64) -> (u64, Vec<SlotCounts>, usize) {
        let tick = now.max(self.nodes.tick());
        let queued = (state.registered(self.taken) - self.taken) as usize;
        (tick, self.nodes.levels(tick), queued)
    }

    /// Whether the last turn took any messages.
    pub(crate) fn has_traffic(&self) -> bool {
        self.taken_last > 0
    }

    pub(super) fn take_executor(&mut self) -> Option<Executor> {
        self.executor.take()
    }
}

/// Does what a message says. Returns whether it was about a new timeout.
#[inline]
fn apply(shared: &Shared, arrival: Arrival<'_, SharedFields>, is_owed: bool) -> bool {
    let (node, is_new) = match arrival {
        // A new timeout that was cancelled before the worker saw it.
        Arrival::TakenBack => return true,
        Arrival::New(node) => (node, true),
        Arrival::Known(node) => (node, false),
    };
    node.accept(|deadline, wheel_tick| {
        // An owed timeout comes out of the wheel at the very tick that the wheel has reached.
        let earliest = wheel_tick + u64::from(!is_owed);
        shared.ticks.of(deadline).max(earliest)
    });
    is_new
}

/// Runs a periodic task once, on the worker.
// Not in the loop.
#[inline(never)]
fn run_once(shared: &Arc<Shared>, mut run: HeldRun<'_, SharedFields>) {
    let name = run.name();
    let next = shared.watch(name, || run.repeat(shared));
    match run.finish(next.map(|next| next.deadline)) {
        HeldRunOutcome::Again(node, deadline) => {
            let earliest = node.wheel_tick();
            node.insert(shared.ticks.of(deadline).max(earliest));
        }
        HeldRunOutcome::LastRun(run) => {
            let counters = &shared.counters.worker;
            counters.runs.set_alone(counters.runs.get() - 1);
            counters.expired.add_one_alone();
            shared.state.deregister();
            run.discard(|claim| shared.discard_named(name, claim));
        }
        HeldRunOutcome::Cancelled(run) => run.discard(|claim| shared.discard_named(name, claim)),
    }
}
