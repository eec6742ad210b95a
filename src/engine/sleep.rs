//! Sleep and wake-up of the worker: of its thread, and of a loop that turns a `Driver`. Both use
//! one protocol.
//!
//! The word is [`ASLEEP`] in the [`TimerState`], with two bits that say what wakes the worker.
//! Beside it is `announced`: a timeout whose deadline is before it needs an earlier turn than the
//! one that the worker sleeps for. The rows of the state word's table for sleeping:
//!
//! | operation | on the word | order | pairs with |
//! |---|---|---|---|
//! | [`fall_asleep`](TimerState::fall_asleep) (the worker; then the fence) | sets `ASLEEP` and how | `Relaxed` | the fence of a caller, and its look |
//! | [`sleep_on`](TimerState::sleep_on) (a caller of the waker, if it panicked) | sets `ASLEEP` | `Relaxed` | nothing |
//! | [`wake`](TimerState::wake) (a caller that saw `ASLEEP`; a `shutdown` that finds something due; the worker itself) | clears `ASLEEP` | `Relaxed` | the thread that clears it unparks, so at most one caller does for each sleep (`stop` does in any case) |
//!
//! | word | written | read |
//! |---|---|---|
//! | `announced` | by the worker, before `fall_asleep`; `Relaxed` | after `fence_after_push`; means something while `ASLEEP` is set |
//! | `requested` | `fetch_min` by a caller that wakes the worker, swapped by the worker before it sleeps; `Relaxed` | a hint: nothing depends on its value |
//!
//! # No wake-up is lost
//!
//! The worker
//!
//! 1. finds the tick of its next turn;
//! 2. announces it, and sets `ASLEEP`, whatever has happened since;
//! 3. executes the fence;
//! 4. takes in what is in the lanes, and sleeps until the earlier of the two ticks.
//!
//! A caller pushes a message, or makes a deadline in a lane earlier, executes its fence, and looks.
//! If the caller's fence comes first, step 4 sees the push, and what the caller does is irrelevant.
//! Otherwise it sees `ASLEEP` and what was announced, or later values.
//!
//! * If it sees this sleep, it wakes the worker if what was announced is too late.
//! * If it sees that `ASLEEP` is cleared, the worker has woken, or another caller is waking it. In
//!   both cases the worker makes a turn, and sleeps anew with another fence.
//! * If it sees a later sleep in one of the two words, the same holds for that sleep: if the fence
//!   of that one came later than the caller's, its step 4 sees the push; otherwise the caller sees
//!   both words of that sleep, or later ones.
//!
//! A caller may have seen an earlier sleep than the one that it ends. Then it wakes the worker in
//! vain, which is rare and does no harm.
//!
//! The answer of step 4 is never later than announced, because a caller may have relied on that. If
//! one thread pushes a node and another makes its deadline earlier, the one whose look comes last
//! knows of both. If the waker panics, its caller sets `ASLEEP` again: the loop sleeps on, until
//! the next caller that needs it.
//!
//! # What wakes the worker
//!
//! | operation | wakes a sleeping thread | calls a loop's waker |
//! |---|---|---|
//! | new timeout, poll with another waker | if its deadline is before what was announced, or if it completes a batch | the same |
//! | reset to an earlier deadline | if its deadline is before what was announced | the same |
//! | cancel of a node that is `IN_WHEEL`, or in another thread's lane | if there was no traffic before the sleep, or if it completes a batch | if it completes a batch |
//! | cancel whose message is taken back; reset to a later deadline | no | no |
//! | the end of a run on an executor's thread | if the task is due again before what was announced; the last run as a cancel | the same |
//! | `stop` | in any case | in any case |
//!
//! How long the worker sleeps, and which messages end which of its sleeps, is in [`sleep_policy`].
//!
//! [`sleep_policy`]: super::sleep_policy

use std::mem;
use std::time::Duration;

use super::inner::{Handle, Inner};
use super::sleep_policy::{AfterTurn, Plan, Sleep, time_until, wakes_driver};
use super::state::{ASLEEP, HOW_ASLEEP, StateSnapshot, TimerState, fence_after_change};
use super::worker::Worker;
use crate::sync::Ordering;
use crate::ticks::DEADLINE_NEVER;

impl TimerState {
    /// The worker is about to sleep, whatever has happened; `how` is some of the bits of
    /// [`HOW_ASLEEP`].
    fn fall_asleep(&self, how: u64) {
        let asleep = |word: u64| Some(word & !HOW_ASLEEP | ASLEEP | how);
        let before = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, asleep);
        before.expect("the closure returns a value");
    }

    /// A driver's loop could not be woken.
    fn sleep_on(&self) {
        self.word.fetch_or(ASLEEP, Ordering::Relaxed);
    }

    /// Whether the worker, which is asleep, would sleep past the tick of this deadline.
    #[inline]
    fn is_needed_for(&self, deadline: u64) -> bool {
        deadline < self.announced.load(Ordering::Relaxed)
    }

    /// Returns whether the worker slept until now.
    pub(crate) fn wake(&self) -> bool {
        StateSnapshot(self.word.fetch_and(!HOW_ASLEEP, Ordering::Relaxed)).is_asleep()
    }
}

/// The callers' side of sleep and wake-up.
impl Inner {
    /// The deadline of a node has become earlier, and a message about it was pushed. `state` is
    /// that after the push.
    pub(super) fn wake_for_pushed(&self, state: StateSnapshot, handle: &Handle) {
        // The deadline as it is now: of two concurrent resets, the one that looks last has to act
        // on the earlier deadline.
        self.wake_if_needed(state, handle.deadline());
    }

    /// Wakes the worker if it sleeps and would miss this deadline. `state` is that after the fence,
    /// or a later one.
    #[inline]
    pub(super) fn wake_if_needed(&self, state: StateSnapshot, deadline: u64) {
        if state.is_asleep() && self.state.is_needed_for(deadline) {
            self.wake_for(deadline);
        }
    }

    #[cold]
    fn wake_for(&self, deadline: u64) {
        self.state.requested.fetch_min(deadline, Ordering::Relaxed);
        self.wake();
    }

    /// Something was pushed, or given back, that lets the worker reclaim memory.
    pub(super) fn wake_to_reclaim(&self) {
        if self.state.fence_after_push().wakes_to_reclaim() {
            self.wake();
        }
    }

    /// This thread has pushed a batch of messages.
    pub(super) fn wake_for_batch(&self) {
        if self.state.fence_after_push().wakes_for_batch() {
            self.wake();
        }
    }

    /// Wakes the worker, unless another thread has since it was seen asleep.
    #[cold]
    pub(crate) fn wake(&self) {
        if self.state.wake() {
            self.notify_worker();
        }
    }

    /// Ends the sleep of the thread, or of the driver's loop.
    pub(crate) fn notify_worker(&self) {
        let Some(waker) = &self.waker else {
            return self.thread.unparker.unpark();
        };
        if !self.is_driver_gone.load(Ordering::Relaxed) && !waker.call(self) {
            // The loop sleeps on: the next caller that needs it tries again.
            self.state.sleep_on();
        }
    }
}

/// The worker thread's side of sleep and wake-up.
impl Inner {
    /// Decides how the worker thread sleeps after a turn. Returns `None` if the timer is stopped.
    pub(crate) fn after_turn(&self) -> Option<Sleep> {
        let now = self.clock.now();
        let plan = self.worker.lock().plan_sleep(self, now)?;
        // Read the time again, because `plan_sleep` may have taken some; without the lock, because
        // the clock is user code.
        Some(self.resolve(plan, self.clock.now()))
    }

    fn resolve(&self, plan: Plan, now: u64) -> Sleep {
        let sleep = plan.resolve(self.ticks, now);
        if plan.announced.is_some() && !matches!(sleep, Sleep::Parked(_)) {
            self.state.wake();
        }
        sleep
    }
}

/// The side of a driver's loop.
impl Inner {
    /// How long it is until the driver's next turn has work; `None` if it has none, or cannot turn.
    pub(crate) fn next_turn(&self) -> Option<Duration> {
        if self.cannot_turn() {
            return None;
        }
        let mut worker = self.worker.lock();
        let (next, tick) = (worker.next_turn(self), worker.nodes.tick());
        // A turn returns some of the memory that is not needed any more.
        let surplus = worker.surplus_wait(self);
        drop(worker);
        // Read the time now, because draining the messages may have taken some.
        let wait = next.map(|next| time_until(self.ticks, next, tick, self.clock.now()));
        wait.into_iter().chain(surplus).min()
    }
}

/// The worker's side.
impl Worker {
    /// Decides how the worker thread sleeps after a turn, and announces the sleep if it has to.
    /// Returns `None` if the timer is stopped.
    pub(super) fn plan_sleep(&mut self, inner: &Inner, now: u64) -> Option<Plan> {
        if inner.state.snapshot().is_stopped() {
            return None;
        }
        let tick = self.nodes.tick();
        if self.receiver.has_backlog {
            return Some(Plan::until(0, tick));
        }
        self.return_memory(inner, now, 1);
        let requested = &inner.state.requested;
        let turn = AfterTurn {
            now,
            messages: mem::take(&mut self.receiver.taken_since_plan) as u64,
            has_reclaimed: self.receiver.has_reclaimed,
            requested: requested.swap(DEADLINE_NEVER, Ordering::Relaxed),
            tick,
            next: self.nodes.next_deadline().unwrap_or(u64::MAX),
        };
        let plan = self.sleep_policy.plan(inner.ticks, &turn);
        let Some(wakes) = plan.announced else {
            return Some(plan);
        };
        let next = self.announce(inner, plan.next, wakes);
        let surplus_wait = self.surplus_wait(inner);
        Some(plan.after_announcement(next, self.receiver.has_reclaimed, surplus_wait))
    }

    /// Returns the tick at which the driver's next turn has work, and announces a sleep until then.
    fn next_turn(&mut self, inner: &Inner) -> Option<u64> {
        // A timeout that is never due needs no turn, and no caller has to wake the loop for it.
        let never = inner.ticks.of(DEADLINE_NEVER);
        let mut next = self.next_tick(inner).min(never);
        if inner.waker.is_some() {
            next = self.announce(
                inner,
                next,
                wakes_driver(inner.ticks, next, self.nodes.tick()),
            );
        }
        (next < never).then_some(next)
    }

    /// Announces a sleep until tick `next`; `how` is some bits of [`HOW_ASLEEP`]. Returns the tick
    /// of the next turn, which is not later.
    fn announce(&mut self, inner: &Inner, next: u64, how: u64) -> u64 {
        // No timeout that comes from now on fires before the wheel's next tick.
        let earliest = self.nodes.tick() + 1;
        let needed_before = match next <= earliest {
            true => 0,
            false => inner.ticks.first_deadline_of(next),
        };
        let state = &inner.state;
        state.announced.store(needed_before, Ordering::Relaxed);
        state.fall_asleep(how);
        fence_after_change();
        // Look again: a caller may have looked before `fall_asleep`. The answer is not later than
        // announced, because another caller may have relied on that:
        // - worker: announces tick 5; its timeout for tick 5 is reset to tick 9; looks again.
        // - caller, between the two: pushes a timeout for tick 6, and does not wake the worker.
        self.next_tick(inner).min(next)
    }

    /// Returns the tick at which a turn has work; `u64::MAX` is never. Takes in the messages that
    /// have come since the last turn, so that the answer is exact.
    fn next_tick(&mut self, inner: &Inner) -> u64 {
        self.drain_messages_unless_behind(inner);
        if self.receiver.has_backlog {
            0
        } else {
            self.nodes.next_deadline().unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::state::{WAKE_FOR_BATCH, WAKE_TO_RECLAIM};
    use crate::engine::tests::{Driven, TICK};

    fn plan(t: &Driven) -> Plan {
        t.inner()
            .worker
            .lock()
            .plan_sleep(t.inner(), t.now())
            .unwrap()
    }

    /// A timer with a timeout in its wheel.
    fn with_timeout(ticks: u32) -> Driven {
        let mut t = Driven::new();
        t.schedule(TICK * ticks);
        assert_eq!(t.turn(), 0);
        t
    }

    #[test]
    fn a_worker_is_asleep_if_its_sleep_is_announced() {
        for ticks in [1, 2] {
            let t = with_timeout(ticks);
            let plan = plan(&t);
            assert_eq!(
                (plan.next, plan.announced.is_some()),
                (ticks.into(), ticks > 1)
            );
            assert_eq!(t.is_asleep(), ticks > 1);
        }
    }

    #[test]
    fn the_worker_announces_which_messages_end_its_sleep() {
        for (has_reclaimed, wakes) in [
            (false, WAKE_FOR_BATCH | WAKE_TO_RECLAIM),
            (true, WAKE_FOR_BATCH),
        ] {
            let t = Driven::new();
            t.inner().worker.lock().receiver.has_reclaimed = has_reclaimed;
            assert_eq!(plan(&t).announced, Some(wakes));
            assert_eq!(t.inner().state.snapshot().0 & HOW_ASLEEP, ASLEEP | wakes);
        }
    }

    #[test]
    fn a_plan_takes_what_came_since_the_last_one() {
        let t = Driven::new();
        let mut worker = t.inner().worker.lock();
        worker.receiver.taken_since_plan = 3_000;
        t.inner()
            .state
            .requested
            .store(TICK.as_nanos() as u64 * 3, Ordering::Relaxed);
        drop(worker);
        let with_traffic = plan(&t);
        assert_eq!(with_traffic.announced, Some(0));
        assert_eq!(t.inner().worker.lock().receiver.taken_since_plan, 0);
        assert_eq!(
            t.inner().state.requested.load(Ordering::Relaxed),
            DEADLINE_NEVER
        );
        assert_ne!(plan(&t), with_traffic);
    }

    #[test]
    fn a_sleep_whose_tick_has_come_is_another_turn() {
        let t = with_timeout(3);
        t.clock.advance(TICK);
        let resolve = |plan| t.inner().resolve(plan, t.now());
        assert!(matches!(resolve(plan(&t)), Sleep::Parked(time) if time == TICK * 2));
        assert!(t.is_asleep());
        let plan = plan(&t);
        t.clock.advance(TICK * 2);
        assert!(matches!(
            resolve(plan),
            Sleep::UntilNextTick(Duration::ZERO)
        ));
        assert!(!t.is_asleep(), "no caller has to wake it");
    }

    #[test]
    fn a_deadline_of_the_announced_tick_needs_no_earlier_turn() {
        let t = with_timeout(3);
        assert_eq!(plan(&t).next, 3);
        let state = &t.inner().state;
        let first = TICK.as_nanos() as u64 * 2 + 1;
        assert!(!state.is_needed_for(first));
        assert!(state.is_needed_for(first - 1));
    }

    #[test]
    fn a_sleep_says_which_messages_end_it() {
        let t = Driven::new();
        for how in [0, WAKE_FOR_BATCH, WAKE_TO_RECLAIM] {
            t.inner().state.fall_asleep(how);
            t.inner().wake_for_batch();
            assert_eq!(t.is_asleep(), how != WAKE_FOR_BATCH);
            t.inner().state.fall_asleep(how);
            t.inner().wake_to_reclaim();
            assert_eq!(t.is_asleep(), how != WAKE_TO_RECLAIM);
        }
    }
}
