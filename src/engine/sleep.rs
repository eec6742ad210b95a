//! Sleep and wake-up of the worker: of its thread, and of a loop that turns a `Driver`.
//!
//! The word is [`ASLEEP`] in the [`TimerState`], and for a loop also `announced`, the tick of its
//! next turn. The rows of the state word's table for sleeping:
//!
//! | operation | on the word | order | pairs with |
//! |---|---|---|---|
//! | [`publish_and_read`](TimerState::publish_and_read) (after `reset` has pushed to the lane; after a run on an executor's thread has pushed; with a driver's waker, also after `new_timeout` has, or after `reset` to an earlier deadline of a node that is still in a lane) | nothing | `AcqRel`, a write all the same | `fall_asleep` and `announce_sleep`: either it comes before, and the worker's second look sees the push; or after, and this sees `ASLEEP` |
//! | [`fall_asleep`](TimerState::fall_asleep) (the worker thread) | sets `ASLEEP` if the word is unchanged | `AcqRel` | see below |
//! | [`announce_sleep`](TimerState::announce_sleep) (a driver with a waker; a caller of the waker, if it panicked) | sets `ASLEEP` | `AcqRel` | `publish_and_read`, which sees with `ASLEEP` what was announced |
//! | [`wake`](TimerState::wake) (a thread that saw `ASLEEP`; a `shutdown` that finds something due; the worker itself) | clears `ASLEEP` | `AcqRel` | the thread that cleared it unparks, so at most one caller does for each sleep (`stop` does in any case) |
//!
//! | word | written | read |
//! |---|---|---|
//! | `announced` | by the driver, before `announce_sleep`, which releases it | after `publish_and_read`, which acquires it; means something while `ASLEEP` is set |
//! | `is_unused` | once, when the driver is dropped; `Relaxed` | by a caller of the waker: a call at that moment is as good as one before it |
//!
//! # The thread: no wake-up is lost
//!
//! While there is traffic the worker thread idles until the next tick. It announces nothing, and no
//! caller wakes it, because nothing can fire before that tick. To sleep longer, it
//!
//! 1. reads the word;
//! 2. finds all lanes empty, and has taken in as many new timeouts as were ever `REGISTERED`
//!    (whether they were taken back or not);
//! 3. sets `ASLEEP` by a compare-exchange from the word of step 1;
//! 4. looks at the lanes once more.
//!
//! Take a push that it has seen in neither look.
//!
//! * A new timeout: its `register` (or `transfer`) came after step 1, otherwise `REGISTERED` would
//!   differ in step 2. So it came after step 3 as well, otherwise the compare-exchange would fail.
//!   It saw `ASLEEP`, and its caller wakes the worker after the push. `REGISTERED` counts modulo
//!   2^28: it can look unchanged with pushes outstanding only if these are a multiple of 2^28. Then
//!   each of them, except the last one per thread, comes before a later `register` or `transfer` of
//!   its thread. So step 4 sees them.
//! * A cancellation, a re-arm or the end of a run: its `deregister`, `transfer` or
//!   `publish_and_read` came after the push. If it had come before step 3, step 4 would see the
//!   push. So it came after, and saw `ASLEEP`.
//!
//! A worker that its own time has woken clears `ASLEEP` itself. A caller that had seen it set, and
//! is about to push, has changed `REGISTERED` by then. So the worker does not sleep again before it
//! has taken that push.
//!
//! # The driver's loop: no announced turn is too late
//!
//! A loop cannot wait until no caller is busy. It
//!
//! 1. looks at the lanes and finds the tick of its next turn;
//! 2. writes that tick into `announced`;
//! 3. sets `ASLEEP`, whatever has happened since;
//! 4. looks at the lanes again, and sleeps until the earlier of the two ticks.
//!
//! Take a push, or a deadline made earlier in a lane, that it has seen in neither look. The
//! caller's `publish_and_read` came after step 3, so it sees `ASLEEP` and the tick, and wakes the
//! loop if that is too late. If it sees `ASLEEP` cleared, another caller is waking the loop, or the
//! loop has turned; in both cases the loop announces its next sleep anew. If one thread pushes a
//! node and another makes it earlier, the one whose `publish_and_read` comes last knows of both. If
//! the waker panics, its caller sets `ASLEEP` again: the loop sleeps on, until the next caller that
//! needs it.

use std::time::Duration;

use super::shared::{Handle, Shared};
use super::state::{ASLEEP, StateSnapshot, TimerState};
use super::worker::Worker;
use crate::sync::unmodelled::AtomicBool;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::ticks::DEADLINE_NEVER;

impl TimerState {
    /// Reads the state by a write, so that a worker that falls asleep later sees what the caller
    /// has pushed before.
    #[inline]
    pub(crate) fn publish_and_read(&self) -> StateSnapshot {
        StateSnapshot(self.0.fetch_or(0, Ordering::AcqRel))
    }

    /// The worker thread falls asleep, unless the word has changed since it was `seen`.
    pub(crate) fn fall_asleep(&self, seen: StateSnapshot) -> bool {
        self.0.compare_exchange(seen.0, seen.0 | ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A driver's loop is about to sleep, whatever has happened; or it sleeps on.
    pub(crate) fn announce_sleep(&self) {
        self.0.fetch_or(ASLEEP, Ordering::AcqRel);
    }

    /// Returns whether the worker slept until now.
    pub(crate) fn wake(&self) -> bool {
        StateSnapshot(self.0.fetch_and(!ASLEEP, Ordering::AcqRel)).is_asleep()
    }
}

/// Wakes the loop that turns a driver.
pub(crate) struct Waker {
    wake: Box<dyn Fn() + Send + Sync>,
    /// The tick of the turn that the loop has announced; 0 if no caller can need an earlier one.
    announced: AtomicU64,
    is_unused: AtomicBool,
}

impl Waker {
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { wake: Box::new(wake), announced: AtomicU64::new(0), is_unused: AtomicBool::new(false) }
    }

    /// There is no loop any more.
    pub(crate) fn set_unused(&self) {
        self.is_unused.store(true, Ordering::Relaxed);
    }

    fn announce(&self, tick: u64) {
        self.announced.store(tick, Ordering::Relaxed);
    }

    /// Whether the loop would sleep past this tick.
    fn is_needed_for(&self, tick: u64) -> bool {
        tick < self.announced.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if !self.is_unused.load(Ordering::Relaxed) {
            (self.wake)();
        }
    }
}

/// What the worker thread does after a turn.
pub(crate) enum Idle {
    /// Sleep for this time, until the next tick; zero is another turn at once. Callers rely on it
    /// and do not wake the worker.
    UntilNextTick(Duration),
    /// Sleep for this time, or without a limit. `ASLEEP` is set, so a caller that needs the worker
    /// wakes it.
    Parked(Option<Duration>),
    /// The timer is stopped.
    Ended,
}

/// The callers' side.
impl Shared {
    /// A new timeout with this deadline was pushed. `registered` is the state before it was
    /// counted.
    #[inline]
    pub(super) fn wake_for_new(&self, registered: StateSnapshot, deadline: u64) {
        // The thread needs no second look: the compare-exchange of `fall_asleep` fails if
        // `register` came before it.
        let state = if self.waker.is_some() { self.state.publish_and_read() } else { registered };
        self.wake_for(state, if registered.completes_wake_batch() { 0 } else { deadline });
    }

    /// The deadline of a node that is in a lane has become earlier.
    #[inline]
    pub(super) fn wake_for_earlier(&self, handle: &Handle) {
        let state = self.state.publish_and_read();
        // The deadline as it is now: of two concurrent resets, the one that reads last has to act
        // on the earlier deadline.
        self.wake_for(state, handle.deadline());
    }

    /// Wakes the worker if it sleeps and would miss this deadline of a node in a lane.
    #[inline]
    fn wake_for(&self, state: StateSnapshot, deadline: u64) {
        if state.is_asleep() {
            self.wake_sleeper_for(deadline);
        }
    }

    #[cold]
    fn wake_sleeper_for(&self, deadline: u64) {
        let misses = |waker: &Waker| waker.is_needed_for(self.ticks.of(deadline));
        if self.waker.as_ref().is_none_or(misses) {
            self.wake();
        }
    }

    /// Wakes the worker, if it sleeps, to reclaim a node of the wheel whose timeout has ended. (A
    /// driver's loop is not woken before it has something to run.)
    #[inline]
    pub(super) fn wake_to_reclaim(&self, state: StateSnapshot) {
        if state.is_asleep() && self.waker.is_none() {
            self.wake();
        }
    }

    /// Wakes the worker, unless another thread has since it was seen asleep.
    pub(crate) fn wake(&self) {
        if self.state.wake() {
            self.notify_worker();
        }
    }

    /// Ends the sleep of the thread, or of the driver's loop.
    pub(crate) fn notify_worker(&self) {
        let Some(waker) = &self.waker else { return self.thread.unpark() };
        let mut has_panicked = true;
        let wake = || {
            waker.wake();
            has_panicked = false;
        };
        self.guard("when it was called", || "(the waker)", wake);
        if has_panicked {
            // The loop sleeps on: the next caller that needs it tries again.
            self.state.announce_sleep();
        }
    }
}

/// The worker's side.
impl Worker {
    /// Decides what the worker thread does after a turn. While there is traffic it wakes at every
    /// tick, so that no caller has to wake it. After a whole tick without traffic it parks.
    pub(crate) fn idle(&self, shared: &Shared, now: u64) -> Idle {
        let state = shared.state.snapshot();
        if state.is_stopped() {
            return Idle::Ended;
        }
        if self.intake.has_backlog {
            return Idle::UntilNextTick(Duration::ZERO);
        }
        let lanes_are_empty = || self.intake.queue.is_empty(&shared.new_lanes);
        if self.intake.taken_last == 0
            && state.has_registered(self.intake.taken)
            && lanes_are_empty()
            && shared.state.fall_asleep(state)
        {
            // Look again. A caller that read the state before `fall_asleep` does not wake the
            // worker:
            // - worker: finds the lanes empty; falls asleep; looks at the lanes again.
            // - caller, after the first of these: pushes; reads that the worker is awake.
            if lanes_are_empty() {
                let next = self.nodes.next_deadline();
                return Idle::Parked(next.map(|tick| shared.ticks.until(tick, now)));
            }
            shared.state.wake();
        }
        Idle::UntilNextTick(shared.ticks.until(self.nodes.tick() + 1, now))
    }

    /// Returns the tick at which the driver's next turn has work, and announces a sleep until then.
    pub(crate) fn next_turn(&mut self, shared: &Arc<Shared>) -> Option<u64> {
        // A timeout that is never due needs no turn, and no caller has to wake the loop for it.
        let never = shared.ticks.of(DEADLINE_NEVER);
        let mut next = self.next_tick(shared).min(never);
        if let Some(waker) = &shared.waker {
            // No timeout that comes from now on fires before the wheel's next tick.
            let earliest = self.nodes.tick() + 1;
            waker.announce(if next <= earliest { 0 } else { next });
            shared.state.announce_sleep();
            // Look again: a caller may have read the state before `announce_sleep`. The answer is
            // not later than announced, because another caller may have relied on that:
            // - loop: announces tick 5; its timeout for tick 5 is reset to tick 9; looks again.
            // - caller, between the two: pushes a timeout for tick 6, and does not wake the loop.
            next = self.next_tick(shared).min(next);
        }
        (next < never).then_some(next)
    }

    /// Returns the tick at which a turn has work; `u64::MAX` is never. Takes in the messages that
    /// have come since the last turn, so that the answer is exact.
    fn next_tick(&mut self, shared: &Arc<Shared>) -> u64 {
        self.drain_messages_unless_behind(shared);
        if self.intake.has_backlog { 0 } else { self.nodes.next_deadline().unwrap_or(u64::MAX) }
    }
}
