//! The wheel of a timer, whose entries are nodes.
//!
//! This is the worker's side of the unsafe boundary. The wheel keeps nodes by number and gives each
//! out once, as a [`HeldRef`]: the wheel's reference to a node, which borrows the wheel. So a node
//! cannot be put into the wheel of another timer, nor twice.

#![allow(unsafe_code)]

use std::ops::Deref;

use timing_wheels::order::Entries;

use super::arena::{Arena, Pool, PoolId};
use super::lane::Waiting;
use super::refs::{Handle, Owner, Released, WheelRef};
use super::surplus::Reclaimer;
use super::task::{NOT_IN_WHEEL, NextRun, Node, TaskContext};
use super::timer_ref::{LocalCount, TimerRef};
use super::transitions::{ClaimedTask, Kind, RunOutcome, Stopped, TaskClaim};
use super::word::End;
use crate::either_wheel::EitherWheel;
use crate::platform::prefetch;
use crate::sync::{Arc, Ordering};
use crate::ticks::{DEADLINE_RUNNING, Ticks};

/// The wheel of one pool, and what else the worker has of its nodes.
pub(crate) struct NodeWheel<S: Owner> {
    wheel: EitherWheel,
    reclaimer: Reclaimer,
    count: LocalCount<S>,
}

/// Makes a timer: `make` puts the pool into a field of it, and the wheel of the pool into another.
///
/// # Panics
///
/// If the wheel is not empty: its entries would not be nodes of the pool. If the timer has another
/// pool.
pub(crate) fn new_timer<S: Owner>(
    wheel: EitherWheel,
    make: impl FnOnce(NodeWheel<S>, Pool<S>) -> S,
) -> Arc<S> {
    assert_eq!(wheel.len(), 0, "the wheel of a new timer is empty");
    let id = PoolId::new();
    Arc::new_cyclic(|timer| {
        let nodes = NodeWheel {
            wheel,
            reclaimer: Reclaimer::new(),
            count: LocalCount::new(timer.clone()),
        };
        let timer = make(nodes, Pool::new(id, timer.clone()));
        assert_eq!(timer.pool().id(), id, "the timer has the pool of its wheel");
        timer
    })
}

/// How the wheel sees nodes.
struct Nodes<'a, S: TaskContext>(&'a Arena<S>);

impl<'a, S: TaskContext> Nodes<'a, S> {
    /// # Safety
    ///
    /// It is asked only about nodes of `arena` to which there is a counted reference. (A wheel asks
    /// about those that are in it, of which it has the wheel's reference.)
    #[inline]
    unsafe fn new(arena: &'a Arena<S>) -> Self {
        Self(arena)
    }

    #[inline]
    fn node(&self, number: u32) -> &Node<S> {
        // SAFETY: the caller of `new` has promised that this is a node of the arena, and that there
        // is a counted reference to it.
        unsafe { self.0.node(number) }
    }
}

impl<S: TaskContext> Entries for Nodes<'_, S> {
    #[inline]
    fn deadline(&self, entry: u32) -> u64 {
        self.node(entry).tick.load(Ordering::Relaxed)
    }

    #[inline]
    fn set_position(&mut self, entry: u32, position: u32) {
        self.node(entry).position.store(position, Ordering::Relaxed);
    }

    #[inline]
    fn prefetch(&self, entry: u32) {
        prefetch(self.0.at(entry).as_ptr());
    }

    #[inline]
    fn prefetch_target(&self, entry: u32) {
        // SAFETY: there is a counted reference to the node.
        unsafe { self.node(entry).task.prefetch_target() };
    }
}

impl<S: Owner> NodeWheel<S> {
    /// Brings the wheel together with its timer.
    ///
    /// # Panics
    ///
    /// If the wheel is that of another timer.
    #[inline]
    pub(crate) fn of<'a>(&'a mut self, timer: &'a S) -> WheelOf<'a, S> {
        assert!(self.count.is_of(timer), "the wheel is that of this timer");
        WheelOf { own: self, timer }
    }
}

/// What a wheel tells without its timer.
impl<S: Owner> Deref for NodeWheel<S> {
    type Target = EitherWheel;

    #[inline]
    fn deref(&self) -> &EitherWheel {
        &self.wheel
    }
}

/// The wheel together with its pool.
pub(crate) struct WheelOf<'a, S: Owner> {
    own: &'a mut NodeWheel<S>,
    timer: &'a S,
}

impl<S: Owner> Deref for WheelOf<'_, S> {
    type Target = NodeWheel<S>;

    #[inline]
    fn deref(&self) -> &NodeWheel<S> {
        self.own
    }
}

/// A message that has arrived.
pub(crate) enum Arrival<'w, S: Owner> {
    /// It was taken back by the thread that had pushed it.
    TakenBack,
    /// A new timeout.
    New(ArrivedRef<'w, S>),
    /// A new timeout that takes the place of another one.
    Replacement(ArrivedRef<'w, S>),
    /// A timeout that has another deadline than in the wheel, or that has ended. It is out of the
    /// wheel now.
    Update(ArrivedRef<'w, S>),
}

impl<S: Owner> WheelOf<'_, S> {
    /// Reborrows.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> WheelOf<'_, S> {
        WheelOf {
            own: self.own,
            timer: self.timer,
        }
    }

    /// Moves the time on. [`next_due`](Self::next_due) then gives out the nodes that are due.
    #[inline]
    pub(crate) fn advance(&mut self, tick: u64) {
        // SAFETY: only nodes of this pool are put into its wheel.
        let mut nodes = unsafe { Nodes::new(&self.timer.pool().arena) };
        self.own.wheel.advance(&mut nodes, tick);
    }

    /// Takes the next node out that is due.
    #[inline]
    pub(crate) fn next_due(&mut self) -> Option<HeldRef<'_, S>> {
        let arena = &self.timer.pool().arena;
        // SAFETY: only nodes of this pool are put into its wheel.
        let nodes = unsafe { Nodes::new(arena) };
        let number = self.own.wheel.pop_due(&nodes)?;
        // SAFETY: `insert` has put the number into the wheel in place of the wheel's reference, and
        // the wheel gives it out once.
        let node = unsafe { WheelRef::from_number(arena, number) };
        node.position.store(NOT_IN_WHEEL, Ordering::Relaxed);
        let wheel = self.reborrow();
        Some(HeldRef { wheel, node })
    }

    /// Sorts the nodes that are due, for [`next_due`](Self::next_due), by the ticks of their
    /// deadlines, earlier ones as `first`. Returns the first tick. Each deadline is read once,
    /// because a `reset` may change it.
    pub(crate) fn sort_due(&mut self, ticks: Ticks, first: u64) -> u64 {
        let arena = &self.timer.pool().arena;
        // SAFETY: only nodes of this pool are put into its wheel.
        let (nodes, mut entries) = unsafe { (Nodes::new(arena), Nodes::new(arena)) };
        let tick = |number| {
            let deadline = nodes.node(number).word.relaxed().deadline();
            ticks.of(deadline).max(first)
        };
        self.own.wheel.sort_due_by_key(tick, &mut entries);
        self.own.wheel.first_due().map_or(first, tick)
    }

    /// Takes in the nodes that threads have freed. Returns whether there were any.
    pub(crate) fn collect_remote_frees(&mut self) -> bool {
        let arena = &self.timer.pool().arena;
        // SAFETY: the free list is used with the arena of its own pool alone.
        unsafe { self.own.reclaimer.list.collect_remote_frees(arena) }
    }

    /// Whether there may be memory that [`return_memory`](Self::return_memory) would return.
    #[inline]
    pub(crate) fn has_surplus(&mut self) -> bool {
        self.own.reclaimer.has_surplus(&self.timer.pool().arena)
    }

    /// Messages of a lane were taken in: callers may need nodes that are kept for the operating
    /// system.
    #[inline]
    pub(crate) fn refill(&mut self) {
        // SAFETY: the free list is used with the arena of its own pool alone.
        unsafe { self.own.reclaimer.list.refill(&self.timer.pool().arena) };
    }

    /// Returns memory that is not needed to the operating system. Each call does a bounded amount
    /// of work, about 100 µs at most. Returns whether there is more to do.
    ///
    /// The rows of the wheel shrink when entries leave them, so they are not looked at here.
    pub(crate) fn return_memory(&mut self) -> bool {
        // SAFETY: the reclaimer is used with the arena of its own pool alone.
        unsafe { self.own.reclaimer.return_memory(&self.timer.pool().arena) }
    }

    /// Takes the next message that waits in a lane.
    ///
    /// # Panics
    ///
    /// If the lane is one of another pool.
    // Inlined, as `insert` is: this is the loop in which the worker takes messages in.
    #[inline(always)]
    pub(crate) fn next_arrival(&mut self, lane: &mut Waiting<'_>) -> Option<Arrival<'_, S>> {
        let arena = &self.timer.pool().arena;
        let message = lane.next(self.timer.pool().id(), |message| {
            if message != 0 {
                prefetch(arena.at(Kind::decode(message).1).as_ptr());
            }
        })?;
        if message == 0 {
            return Some(Arrival::TakenBack);
        }
        let (kind, number) = Kind::decode(message);
        // SAFETY: the lane gives out each message once, and `local` pushes only messages about
        // nodes of this pool there. That of a new timeout owns the wheel's reference. Any other one
        // owns it too, or the number is in the wheel: then it is taken out below.
        let node = unsafe { WheelRef::from_number(arena, number) };
        if kind == Kind::NEW || kind == Kind::REPLACEMENT {
            let wheel = self.reborrow();
            let node = ArrivedRef(HeldRef { wheel, node });
            return Some(match kind {
                Kind::NEW => Arrival::New(node),
                _ => Arrival::Replacement(node),
            });
        }
        let position = node.position.load(Ordering::Relaxed);
        if position != NOT_IN_WHEEL {
            // SAFETY: only nodes of this pool are put into its wheel.
            let mut nodes = unsafe { Nodes::new(arena) };
            let tick = node.tick.load(Ordering::Relaxed);
            self.own.wheel.remove(tick, position, &mut nodes);
            node.position.store(NOT_IN_WHEEL, Ordering::Relaxed);
        }
        if kind == Kind::DISCARDED {
            // SAFETY: this message owns the reference of a handle, which is given up here.
            unsafe { node.release_handle() };
        }
        let wheel = self.reborrow();
        Some(Arrival::Update(ArrivedRef(HeldRef { wheel, node })))
    }

    /// Takes back the handle of a timeout whose task has run. (A handle of another timer is
    /// dropped, and its node never used again.)
    #[inline]
    pub(crate) fn recycle(&mut self, handle: Handle<S>) {
        let Released { node, timer } = handle.release();
        let is_of_this_pool = self.own.count.put(timer);
        if let Some(node) = node.filter(|_| is_of_this_pool) {
            // SAFETY: the handle was one of this pool, whose arena is the only one of this list.
            unsafe { self.own.reclaimer.list.put(&self.timer.pool().arena, node) };
        }
    }

    /// The first tick up to `last` at which a timeout fires, and how many timeouts have not ended.
    /// The tick is zero if a message about the timeout is under way. Looks at each node:
    /// `next_deadline` also counts timeouts that have ended, and deadlines before a `reset`.
    pub(crate) fn first_due(&self, ticks: Ticks, last: u64) -> (Option<u64>, u64) {
        // SAFETY: only nodes of this pool are put into its wheel.
        let nodes = unsafe { Nodes::new(&self.timer.pool().arena) };
        let (mut first, mut live) = (None, 0);
        self.own.wheel.for_each(|number| {
            let node = nodes.node(number);
            let seen = node.word.relaxed();
            let due = ticks.of(seen.deadline());
            let fires = if seen.is_in_flight() {
                0
            } else if seen.is_in_wheel() {
                // The node may have entered the wheel after its own tick.
                due.max(node.tick.load(Ordering::Relaxed))
            } else {
                return;
            };
            live += 1;
            // A periodic task ends with the timer, not before: nothing waits for it.
            if due <= last && !node.is_periodic() {
                first = Some(first.map_or(fires, |first: u64| first.min(fires)));
            }
        });
        (first, live)
    }

    /// Returns a handle to each timeout that has not ended, except those that futures wait for.
    pub(crate) fn pending(&self) -> Vec<S::Timeout> {
        let (arena, timer) = (&self.timer.pool().arena, self.timer.pool().timer());
        let mut pending = Vec::with_capacity(self.own.wheel.len());
        self.own.wheel.for_each(|number| {
            // SAFETY: the number stands for the wheel's reference, which stays in the wheel: to
            // drop a `WheelRef` does not count it down.
            let node = unsafe { WheelRef::<S>::from_number(arena, number) };
            // SAFETY: the wheel's reference keeps the node, so a task was put in, and none is now.
            if node.word.relaxed().has_ended() || unsafe { node.task.operations().is_awaited } {
                return;
            }
            // SAFETY: the node is one of this pool.
            pending.push(S::timeout(unsafe {
                node.another_handle(TimerRef::new(&timer))
            }));
        });
        pending
    }

    /// Cancels all timeouts in the wheel that have not ended, on behalf of `stop`.
    pub(crate) fn stop_all(&mut self, mut stopped: impl FnMut(Stopped<S>)) {
        let (arena, timer) = (&self.timer.pool().arena, self.timer.pool().timer());
        // The memory of the wheel is freed at the end of this function.
        let one_slot = EitherWheel::try_new(false, 1).expect("memory for one slot");
        let wheel = std::mem::replace(&mut self.own.wheel, one_slot);
        wheel.for_each(|number| {
            // SAFETY: the number stood for the wheel's reference. The wheel that had it is out of
            // use, and names each number once.
            let node = unsafe { WheelRef::from_number(arena, number) };
            node.position.store(NOT_IN_WHEEL, Ordering::Relaxed);
            // SAFETY: the node is one of this pool.
            unsafe { node.stop(|| TimerRef::new(&timer)) }.map(&mut stopped);
        });
    }

    /// Gives back the references to the timer that the worker has in reserve.
    pub(crate) fn empty_reserve(&mut self) {
        self.own.count.empty();
    }
}

/// The wheel's reference to a node of its pool, in the worker's hands.
#[must_use = "a reference that is dropped is left to the message about its node"]
pub(crate) struct HeldRef<'w, S: Owner> {
    wheel: WheelOf<'w, S>,
    node: WheelRef<S>,
}

impl<'w, S: Owner> HeldRef<'w, S> {
    /// The tick that the wheel has reached.
    #[inline]
    pub(crate) fn wheel_tick(&self) -> u64 {
        self.wheel.tick()
    }

    /// Puts the node into the wheel.
    #[inline(always)]
    pub(crate) fn insert(self, tick: u64) {
        self.node.tick.store(tick, Ordering::Relaxed);
        let position = self.wheel.own.wheel.insert(tick, self.node.number);
        self.node.position.store(position, Ordering::Relaxed);
    }

    /// Expires the timeout if `is_due` says so of its deadline.
    #[inline]
    pub(crate) fn expire(self, is_due: impl Fn(u64) -> bool) -> Expiry<'w, S> {
        let Self { wheel, node } = self;
        if node.stays() {
            return Expiry::Stays(Self { wheel, node });
        }
        match node.word.expire(node.is_last_reference(), is_due) {
            Ok(before) => {
                let timer = wheel.own.count.take();
                // A message that is under way finds the timeout expired, and has this reference.
                let is_own = before.is_in_wheel();
                // SAFETY: the node is one of this pool, and so is the worker's reserve.
                let handle = unsafe { node.into_handle(is_own, timer) };
                // SAFETY: this thread has changed the word to `EXPIRED`, so it owns the task.
                Expiry::Once(unsafe { ClaimedTask::new(handle) })
            }
            Err(seen) if seen.is_in_wheel() => Expiry::Later(Self { wheel, node }, seen.deadline()),
            Err(_) => Expiry::LeftToMessage,
        }
    }

    /// [`expire`](Self::expire) for a task that stays in the node, which is the worker's then.
    /// Otherwise, if a `reset` moved the deadline, returns that too.
    pub(crate) fn begin_run(
        self,
        is_due: impl Fn(u64) -> bool,
    ) -> Result<HeldRun<'w, S>, Option<(Self, u64)>> {
        match self.node.word.begin_run(is_due) {
            Ok(before) => Ok(HeldRun(self, before.deadline())),
            Err(seen) if seen.is_in_wheel() => Err(Some((self, seen.deadline()))),
            Err(_) => Err(None),
        }
    }

    /// Makes a handle that has the right to the task.
    ///
    /// # Safety
    ///
    /// The caller owns the task, and gives it to the result.
    unsafe fn claim(&mut self) -> ClaimedTask<S> {
        let timer = self.wheel.own.count.take();
        // SAFETY: the node is one of this pool, and so is the worker's reserve of references. The
        // caller gives the task to this value.
        unsafe { ClaimedTask::new(self.node.another_handle(timer)) }
    }

    /// Gives the reference up, and recycles the node if it was the last one.
    #[inline(always)]
    fn release(self) {
        let Self { wheel, node } = self;
        if let Some(node) = node.release() {
            let arena = &wheel.timer.pool().arena;
            // SAFETY: the node is one of this pool, whose arena is the only one of this list.
            unsafe { wheel.own.reclaimer.list.put(arena, node) };
        }
    }
}

/// The reference to a node whose message has arrived. It is a type of its own, because the message
/// about the node of any other [`HeldRef`] may be under way, and own the reference.
pub(crate) struct ArrivedRef<'w, S: Owner>(HeldRef<'w, S>);

impl<S: Owner> ArrivedRef<'_, S> {
    /// Puts the node into the wheel at the tick that `tick` returns for its deadline. If the
    /// timeout has ended, releases the reference instead, and recycles the node if it was the last
    /// one.
    #[inline(always)]
    pub(crate) fn accept(self, tick: impl FnOnce(u64) -> u64) {
        let Self(held) = self;
        match held.node.word.enter_wheel(held.node.is_last_reference()) {
            Some(deadline) => held.insert(tick(deadline)),
            None => held.release(),
        }
    }

    /// Leaves a new timeout to the thread that has scheduled it, which withdraws it.
    pub(crate) fn refuse(self) {
        let Self(held) = self;
        held.release();
    }
}

/// The result of an attempt to expire a node.
pub(crate) enum Expiry<'w, S: Owner> {
    /// The timeout is expired, and its task is the worker's.
    Once(ClaimedTask<S>),
    /// The task stays in the node: see [`begin_run`](HeldRef::begin_run).
    Stays(HeldRef<'w, S>),
    /// A `reset` moved the deadline. The node belongs back into the wheel at this one.
    Later(HeldRef<'w, S>, u64),
    /// The timeout ended before, or was reset to an earlier deadline, and a message says so.
    LeftToMessage,
}

/// A timeout whose task stays in the node, and is the worker's for one run or answer; its deadline.
#[must_use = "a run that is not finished is never followed by another"]
pub(crate) struct HeldRun<'w, S: Owner>(HeldRef<'w, S>, u64);

impl<'w, S: Owner> HeldRun<'w, S> {
    /// The name of the task's type.
    pub(crate) fn name(&self) -> &'static str {
        self.0.node.name()
    }

    pub(crate) fn is_periodic(&self) -> bool {
        self.0.node.is_periodic()
    }

    /// Asks the task whether it postpones itself. If so, or if the timer was stopped meanwhile, the
    /// node belongs back into the wheel at the deadline. Otherwise the task is the worker's.
    pub(crate) fn ask(
        self,
        is_stopped: impl FnOnce() -> bool,
    ) -> RunOutcome<(HeldRef<'w, S>, u64), ClaimedTask<S>> {
        let Self(mut held, deadline) = self;
        // SAFETY: this value was the right to the task, which passes to the new one.
        let asked = unsafe { held.claim() };
        let next = asked.postpone();
        let next = next.or_else(|| is_stopped().then_some(deadline));
        match (held.node.word.finish_run(next, true, deadline), next) {
            (false, _) => RunOutcome::Cancelled(asked),
            // The task stays in the node.
            (true, Some(deadline)) => RunOutcome::Again((held, deadline)),
            (true, None) => {
                held.release();
                RunOutcome::LastRun(asked)
            }
        }
    }

    /// Runs the task once. Returns when the next run is due, or `None` after a panic.
    pub(crate) fn repeat(&mut self, timer: &S) -> Option<NextRun> {
        // SAFETY: this value is the right to the task, which stays in the node.
        unsafe { self.0.node.task.repeat(timer, true) }
    }

    /// Hands the run over to another thread. Until a message comes at its end, the node is in the
    /// wheel, where `stop` finds it.
    pub(crate) fn hand_over(self, tick: u64) -> ClaimedTask<S> {
        let Self(mut held, _) = self;
        // SAFETY: this value was the right to the task, which passes to the new one.
        let claimed = unsafe { held.claim() };
        held.insert(tick);
        claimed
    }

    /// Ends the run. `next` is the deadline of the next one, at which the node belongs into the
    /// wheel. Otherwise the caller [drops](Self::drop_task) the task.
    pub(crate) fn finish(self, next: Option<u64>) -> RunOutcome<(HeldRef<'w, S>, u64), Self> {
        match (
            self.0.node.word.finish_run(next, true, DEADLINE_RUNNING),
            next,
        ) {
            (false, _) => RunOutcome::Cancelled(self),
            (true, None) => RunOutcome::LastRun(self),
            (true, Some(deadline)) => RunOutcome::Again((self.0, deadline)),
        }
    }

    /// Passes the task to `drop_task`, which drops it. Then gives up the wheel's reference after
    /// the last run, or leaves it to the message about the cancellation.
    pub(crate) fn drop_task(self, drop_task: impl FnOnce(TaskClaim<'_, S>)) {
        let Self(held, _) = self;
        // SAFETY: this value was the right to the task, and ends here.
        drop_task(unsafe { TaskClaim::new(&held.node) });
        // While the worker had the run, it alone could make the timeout `EXPIRED`. That sends no
        // message.
        if held.node.word.end() == Some(End::Expired) {
            held.release();
        }
    }
}
