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
//! | `wanted` | `fetch_min` by a caller that wakes the worker, swapped by the worker before it sleeps; `Relaxed` | a hint: nothing depends on its value |
//! | `is_unused` | once, when the driver is dropped; `Relaxed` | by a caller of the waker: a call at that moment is as good as one before it |
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
//! (If its lane is unlisted, the push is over when the lane is listed: see [`timeouts`].) If the
//! caller's fence comes first, step 4 sees the push, and what the caller does is irrelevant.
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
//! | the worker sleeps | an earlier deadline | a lot of messages in one lane | a message that lets it reclaim memory |
//! |---|---|---|---|
//! | until its next deadline | wakes it | wakes it | wakes it (not a driver) |
//! | after a turn that has reclaimed something: for at most [`RECLAIM_INTERVAL`] | wakes it | wakes it | – |
//! | after a turn with many messages: for at most [`LOT_INTERVAL`] | wakes it | – | – |
//! | until the wheel's next tick, if that is near | – | – | – |
//!
//! | operation | wakes a sleeping thread | calls a loop's waker |
//! |---|---|---|
//! | new timeout, poll with another waker | if its deadline is before what was announced, or if it completes a lot | the same |
//! | reset to an earlier deadline | if its deadline is before what was announced | the same |
//! | cancel of a node that is `IN_WHEEL`, or in another thread's lane | if there was no traffic before the sleep, or if it completes a lot | if it completes a lot |
//! | cancel whose message is taken back; reset to a later deadline | no | no |
//! | the end of a run on an executor's thread | if the task is due again before what was announced; the last run as a cancel | the same |
//! | `stop` | in any case | in any case |
//!
//! While there is memory to return to the operating system, no sleep of the thread is longer than
//! two seconds. While the clock reads an earlier time than before and something is pending, none is
//! longer than [`LOT_INTERVAL`]: see [`time_until`].
//!
//! So steady traffic with far deadlines wakes the thread about once per second, or as often as a
//! thread has pushed a lot; with more than 20 000 messages per second every [`LOT_INTERVAL`], and
//! with more than 300 000 every [`SHORT_LOT_INTERVAL`]. What has ended is reclaimed within a
//! second, except a message of eight bytes that its thread has taken back: these wait until a lot
//! of them is full. The last row needs no announcement, because nothing can fire before that tick:
//! a worker that expires something in each tick executes no fence for its sleeps.
//!
//! A caller that wakes the thread for its deadline leaves the deadline in `wanted`, and the thread
//! wakes then although the timeout may be cancelled by that time. Otherwise each of many timeouts
//! that are scheduled and soon cancelled would wake it, if the next deadline in the wheel is far.
//! If callers wake it twice in one tick, it sleeps until the next tick without announcing that.
//!
//! [`timeouts`]: super::timeouts

use std::mem;
use std::time::Duration;

use super::shared::{Handle, Shared};
use super::state::{
    ASLEEP, HOW_ASLEEP, StateSnapshot, TimerState, WAKE_FOR_LOT, WAKE_TO_RECLAIM, fence_after_change,
};
use super::worker::Worker;
use crate::report;
use crate::sync::unmodelled::AtomicBool;
use crate::sync::{Arc, Ordering};
use crate::ticks::{DEADLINE_NEVER, Ticks};

/// The worker thread makes a turn after this time, if its last turn has reclaimed something: there
/// may soon be more, and callers do not wake it for that.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// If lots of messages come one after the other, the worker makes a turn after this time, and is
/// woken by none of them.
const LOT_INTERVAL: Duration = Duration::from_millis(50);

/// The same if there are so many messages that their memory would not stay in the processor's
/// cache. Wake-ups do not matter then, because the worker is busy anyway.
const SHORT_LOT_INTERVAL: Duration = Duration::from_millis(5);

/// So many messages per [`LOT_INTERVAL`] are many.
const MANY_MESSAGES: u64 = 1_024;
const VERY_MANY_MESSAGES: u64 = 16_384;

/// What callers have woken the thread for.
pub(super) struct Wanted {
    /// The earliest deadline that has not passed.
    deadline: u64,
    /// The tick in which the last one woke it.
    was_woken_in: Option<u64>,
}

impl Wanted {
    pub(super) fn nothing() -> Self {
        Self { deadline: DEADLINE_NEVER, was_woken_in: None }
    }
}

impl TimerState {
    /// The worker is about to sleep, whatever has happened; `how` is some of the bits of
    /// [`HOW_ASLEEP`].
    fn fall_asleep(&self, how: u64) {
        let asleep = |word: u64| Some(word & !HOW_ASLEEP | ASLEEP | how);
        let before = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, asleep);
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

/// Wakes the loop that turns a driver.
pub(crate) struct Waker {
    wake: Box<dyn Fn() + Send + Sync>,
    is_unused: AtomicBool,
}

impl Waker {
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { wake: Box::new(wake), is_unused: AtomicBool::new(false) }
    }

    /// There is no loop any more.
    pub(crate) fn set_unused(&self) {
        self.is_unused.store(true, Ordering::Relaxed);
    }

    fn wake(&self) {
        if !self.is_unused.load(Ordering::Relaxed) {
            (self.wake)();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        report::guard_drop("(the waker)", mem::replace(&mut self.wake, Box::new(|| ())));
    }
}

/// What the worker thread does after a turn.
pub(crate) enum Idle {
    /// Sleep for this time, until the next tick; zero is another turn at once. Callers rely on it
    /// and do not wake the worker.
    UntilNextTick(Duration),
    /// Sleep for this time. `ASLEEP` is set, so a caller that needs the worker wakes it.
    Parked(Duration),
    /// The timer is stopped.
    Ended,
}

/// The callers' side.
impl Shared {
    /// A new timeout with this deadline was pushed, and the fence after the push was executed.
    #[inline]
    pub(super) fn wake_for_new(&self, deadline: u64) {
        self.wake_if_needed(self.state.snapshot(), deadline);
    }

    /// The deadline of a node that is in a lane has become earlier, and the thread has not pushed.
    pub(super) fn wake_for_earlier(&self, handle: &Handle) {
        self.wake_for_pushed(self.state.fence_after_push(), handle);
    }

    /// The deadline of a node has become earlier, and a message about it was pushed. `state` is
    /// that after the push.
    pub(super) fn wake_for_pushed(&self, state: StateSnapshot, handle: &Handle) {
        // The deadline as it is now: of two concurrent resets, the one that looks last has to act
        // on the earlier deadline.
        self.wake_if_needed(state, handle.deadline());
    }

    /// Wakes the worker if it sleeps and would miss this deadline.
    #[inline]
    fn wake_if_needed(&self, state: StateSnapshot, deadline: u64) {
        if state.is_asleep() && self.state.is_needed_for(deadline) {
            self.wake_for(deadline);
        }
    }

    #[cold]
    fn wake_for(&self, deadline: u64) {
        self.state.wanted.fetch_min(deadline, Ordering::Relaxed);
        self.wake();
    }

    /// Something was pushed, or given back, that lets the worker reclaim memory.
    pub(super) fn wake_to_reclaim(&self) {
        if self.state.fence_after_push().wakes_to_reclaim() {
            self.wake();
        }
    }

    /// This thread has pushed a lot of messages.
    pub(super) fn wake_for_lot(&self) {
        if self.state.fence_after_push().wakes_for_lot() {
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
        let Some(waker) = &self.waker else { return self.thread.unpark() };
        let mut has_panicked = true;
        let wake = || {
            waker.wake();
            has_panicked = false;
        };
        self.guard("when it was called", || "(the waker)", wake);
        if has_panicked {
            // The loop sleeps on: the next caller that needs it tries again.
            self.state.sleep_on();
        }
    }
}

/// How the worker thread sleeps, in ticks.
pub(crate) struct Plan {
    /// The tick of the next turn; `None` if the timer is stopped.
    next: Option<u64>,
    /// The tick of the wheel.
    tick: u64,
    /// The longest sleep.
    at_most: Option<Duration>,
    /// Whether `ASLEEP` is set.
    is_announced: bool,
}

impl Plan {
    /// What the thread does if it is `now`.
    pub(super) fn idle(self, shared: &Shared, now: u64) -> Idle {
        let Some(next) = self.next else { return Idle::Ended };
        let time = time_until(shared.ticks, next, self.tick, now);
        let time = self.at_most.map_or(time, |at_most| at_most.min(time));
        match self.is_announced {
            true if !time.is_zero() => Idle::Parked(time),
            true => {
                shared.state.wake();
                Idle::UntilNextTick(time)
            }
            false => Idle::UntilNextTick(time),
        }
    }
}

/// How long the worker may sleep until the tick `next`, if the wheel is at `tick` and the clock
/// reads `now`.
///
/// The clock has reached the wheel's tick before. If it reads an earlier time now, it has stepped
/// back, perhaps for a moment only: then the worker looks again soon, if anything is pending.
pub(crate) fn time_until(ticks: Ticks, next: u64, tick: u64, now: u64) -> Duration {
    let time = ticks.until(next, now);
    if time > LOT_INTERVAL && tick > ticks.reached(now) && next < ticks.of(DEADLINE_NEVER) {
        return LOT_INTERVAL;
    }
    time
}

/// The worker's side.
impl Worker {
    /// Decides how the worker thread sleeps after a turn.
    pub(crate) fn idle(&mut self, shared: &Arc<Shared>, now: u64) -> Plan {
        let tick = self.nodes.tick();
        let until_tick = |next| Plan { next: Some(next), tick, at_most: None, is_announced: false };
        if shared.state.snapshot().is_stopped() {
            return Plan { next: None, ..until_tick(0) };
        }
        if self.intake.has_backlog {
            return until_tick(0);
        }
        self.return_memory(shared, now, 1);
        let (how, at_most) = match self.messages_per_lot_interval(now) {
            VERY_MANY_MESSAGES.. => (0, Some(SHORT_LOT_INTERVAL)),
            MANY_MESSAGES.. => (0, Some(LOT_INTERVAL)),
            _ if self.intake.has_reclaimed => (WAKE_FOR_LOT, Some(RECLAIM_INTERVAL)),
            _ => (WAKE_FOR_LOT | WAKE_TO_RECLAIM, None),
        };
        let earliest = tick + 1;
        let was_woken_again = self.take_wanted(shared, now, at_most.is_some());
        let next = self.nodes.next_deadline().unwrap_or(u64::MAX);
        let next = next.min(shared.ticks.of(self.wanted.deadline));
        let until = shared.ticks.until(next, now);
        let is_near = next <= earliest && until <= LOT_INTERVAL;
        if is_near || until.is_zero() {
            return until_tick(next);
        }
        if was_woken_again && shared.ticks.duration() <= LOT_INTERVAL {
            // Callers with earlier and earlier deadlines would wake it again and again. Nothing can
            // fire before the next tick.
            return until_tick(earliest);
        }
        let next = self.announce(shared, next, how);
        // `announce` may have reclaimed something.
        let reclaims = self.intake.has_reclaimed.then_some(RECLAIM_INTERVAL);
        let at_most = [at_most, reclaims, self.surplus_wait(shared)].into_iter().flatten().min();
        Plan { at_most, is_announced: true, ..until_tick(next) }
    }

    /// How many messages came per [`LOT_INTERVAL`] since the last call. (If that was less than a
    /// millisecond ago, as if it was a millisecond.)
    fn messages_per_lot_interval(&mut self, now: u64) -> u64 {
        const LOT: u64 = LOT_INTERVAL.as_nanos() as u64;

        let elapsed = now.saturating_sub(self.last_idle).max(LOT / 50);
        self.last_idle = now;
        let taken = mem::take(&mut self.intake.taken_since_idle) as u64;
        taken.saturating_mul(LOT) / elapsed
    }

    /// Takes the deadline for which a caller has woken the thread, if it is earlier than the known
    /// one. It is forgotten once it has passed, or there is no traffic. Returns whether this was
    /// not the first time in this tick.
    fn take_wanted(&mut self, shared: &Shared, now: u64, has_traffic: bool) -> bool {
        let wanted = shared.state.wanted.swap(DEADLINE_NEVER, Ordering::Relaxed);
        let deadline = wanted.min(self.wanted.deadline);
        let deadline = if has_traffic && deadline > now { deadline } else { DEADLINE_NEVER };
        let was_woken_in = if wanted < DEADLINE_NEVER { Some(self.nodes.tick()) } else { None };
        let again = was_woken_in.is_some() && was_woken_in == self.wanted.was_woken_in;
        self.wanted = Wanted { deadline, was_woken_in: was_woken_in.or(self.wanted.was_woken_in) };
        again
    }

    /// Returns the tick at which the driver's next turn has work, and announces a sleep until then.
    pub(crate) fn next_turn(&mut self, shared: &Arc<Shared>) -> Option<u64> {
        // A timeout that is never due needs no turn, and no caller has to wake the loop for it.
        let never = shared.ticks.of(DEADLINE_NEVER);
        let mut next = self.next_tick(shared).min(never);
        if shared.waker.is_some() {
            let is_near = next <= self.nodes.tick() + 1 && shared.ticks.duration() <= LOT_INTERVAL;
            next = self.announce(shared, next, if is_near { 0 } else { WAKE_FOR_LOT });
        }
        (next < never).then_some(next)
    }

    /// Announces a sleep until tick `next`; `how` is some bits of [`HOW_ASLEEP`]. Returns the tick
    /// of the next turn, which is not later.
    fn announce(&mut self, shared: &Arc<Shared>, next: u64, how: u64) -> u64 {
        // No timeout that comes from now on fires before the wheel's next tick.
        let earliest = self.nodes.tick() + 1;
        let needed_before = if next <= earliest { 0 } else { shared.ticks.first_deadline_of(next) };
        shared.state.announced.store(needed_before, Ordering::Relaxed);
        // One fence for both: each of them is a change before a look at lanes.
        self.intake.queue.unlist_idle(|| {
            shared.state.fall_asleep(how);
            fence_after_change();
        });
        // Look again: a caller may have looked before `fall_asleep`. The answer is not later than
        // announced, because another caller may have relied on that:
        // - worker: announces tick 5; its timeout for tick 5 is reset to tick 9; looks again.
        // - caller, between the two: pushes a timeout for tick 6, and does not wake the worker.
        self.next_tick(shared).min(next)
    }

    /// Returns the tick at which a turn has work; `u64::MAX` is never. Takes in the messages that
    /// have come since the last turn, so that the answer is exact.
    fn next_tick(&mut self, shared: &Arc<Shared>) -> u64 {
        self.drain_messages_unless_behind(shared);
        if self.intake.has_backlog { 0 } else { self.nodes.next_deadline().unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Driven, TICK};

    /// Decides how the worker sleeps.
    fn idle(t: &Driven) -> Plan {
        t.shared().worker.lock().idle(t.shared(), t.now())
    }

    /// A timer with a timeout in its wheel.
    fn with_timeout(tick: Duration, delay: Duration) -> Driven {
        let mut t = Driven::with(|builder| builder.tick(tick));
        t.schedule(delay);
        assert_eq!(t.turn(), 0);
        t
    }

    #[test]
    fn only_a_sleep_until_the_next_tick_that_is_near_is_not_announced() {
        for (tick, ticks, is_announced) in
            [(TICK, 1, false), (TICK, 2, true), (LOT_INTERVAL, 1, false), (LOT_INTERVAL * 2, 1, true)]
        {
            let t = with_timeout(tick, tick * ticks);
            let plan = idle(&t);
            let expected = (Some(u64::from(ticks)), is_announced, None);
            assert_eq!((plan.next, plan.is_announced, plan.at_most), expected, "{tick:?}");
            assert_eq!(t.is_asleep(), is_announced);
        }
    }

    #[test]
    fn a_sleep_whose_tick_has_come_is_another_turn() {
        let t = with_timeout(TICK, TICK * 3);
        t.clock.advance(TICK);
        assert!(matches!(idle(&t).idle(t.shared(), t.now()), Idle::Parked(time) if time == TICK * 2));
        assert!(t.is_asleep());
        let plan = idle(&t);
        t.clock.advance(TICK * 2);
        assert!(matches!(plan.idle(t.shared(), t.now()), Idle::UntilNextTick(Duration::ZERO)));
        assert!(!t.is_asleep(), "no caller has to wake it");
    }

    /// The rows of the table at the head of this file.
    #[test]
    fn the_last_messages_decide_how_long_the_worker_sleeps_and_what_wakes_it() {
        let all = WAKE_FOR_LOT | WAKE_TO_RECLAIM;
        for (messages, has_reclaimed, how, at_most) in [
            (0, false, all, None),
            (MANY_MESSAGES - 1, false, all, None),
            (0, true, WAKE_FOR_LOT, Some(RECLAIM_INTERVAL)),
            (MANY_MESSAGES - 1, true, WAKE_FOR_LOT, Some(RECLAIM_INTERVAL)),
            (MANY_MESSAGES, false, 0, Some(LOT_INTERVAL)),
            (VERY_MANY_MESSAGES - 1, true, 0, Some(LOT_INTERVAL)),
            (VERY_MANY_MESSAGES, false, 0, Some(SHORT_LOT_INTERVAL)),
        ] {
            let t = Driven::new();
            t.clock.advance(LOT_INTERVAL);
            let mut worker = t.shared().worker.lock();
            worker.intake.taken_since_idle = messages as usize;
            worker.intake.has_reclaimed = has_reclaimed;
            drop(worker);
            assert_eq!(idle(&t).at_most, at_most, "{messages} messages");
            assert_eq!(t.shared().state.snapshot().0 & HOW_ASLEEP, ASLEEP | how, "{messages} messages");
        }
    }

    #[test]
    fn messages_are_counted_per_interval() {
        let t = Driven::new();
        let mut worker = t.shared().worker.lock();
        let now = LOT_INTERVAL.as_nanos() as u64 * 2;
        worker.intake.taken_since_idle = 3_001;
        assert_eq!(worker.messages_per_lot_interval(now), 1_500);
        worker.intake.taken_since_idle = 3;
        assert_eq!(worker.messages_per_lot_interval(now), 150, "as if a millisecond had passed");
        assert_eq!(worker.messages_per_lot_interval(now + 1), 0);
    }

    #[test]
    fn a_wanted_deadline_is_kept_until_it_has_passed() {
        let t = Driven::new();
        let mut worker = t.shared().worker.lock();
        let mut take = |wanted: Option<u64>, now, has_traffic| {
            if let Some(wanted) = wanted {
                t.shared().state.wanted.store(wanted, Ordering::Relaxed);
            }
            let again = worker.take_wanted(t.shared(), now, has_traffic);
            (again, worker.wanted.deadline)
        };
        assert_eq!(take(None, 100, true), (false, DEADLINE_NEVER));
        assert_eq!(take(None, 100, true), (false, DEADLINE_NEVER), "no caller has woken the thread");
        assert_eq!(take(Some(500), 100, true), (false, 500));
        assert_eq!(take(Some(700), 100, true), (true, 500), "the second time in this tick");
        assert_eq!(take(None, 499, true), (false, 500));
        assert_eq!(take(None, 500, true), (false, DEADLINE_NEVER), "it has passed");
        assert_eq!(take(Some(900), 500, false), (true, DEADLINE_NEVER), "there is no traffic");
    }

    /// Callers with earlier and earlier deadlines do not wake it again and again in a short tick.
    #[test]
    fn a_worker_that_is_woken_again_in_a_short_tick_sleeps_until_the_next_one() {
        for (tick, next) in [(LOT_INTERVAL, 1), (LOT_INTERVAL * 2, 9)] {
            let t = with_timeout(tick, tick * 9);
            let woken = || {
                t.shared().state.wake();
                t.shared().state.wanted.store(500, Ordering::Relaxed);
                idle(&t)
            };
            assert_eq!(woken().next, Some(9), "{tick:?}, the first time");
            let plan = woken();
            assert_eq!((plan.next, plan.is_announced), (Some(next), next > 1), "{tick:?}, again");
        }
    }

    #[test]
    fn a_deadline_of_the_announced_tick_needs_no_earlier_turn() {
        let t = with_timeout(TICK, TICK * 3);
        assert_eq!(idle(&t).next, Some(3));
        let state = &t.shared().state;
        let first = TICK.as_nanos() as u64 * 2 + 1;
        assert!(!state.is_needed_for(first));
        assert!(state.is_needed_for(first - 1));
    }

    #[test]
    fn a_sleep_says_which_messages_end_it() {
        let t = Driven::new();
        for how in [0, WAKE_FOR_LOT, WAKE_TO_RECLAIM] {
            t.shared().state.fall_asleep(how);
            t.shared().wake_for_lot();
            assert_eq!(t.is_asleep(), how != WAKE_FOR_LOT);
            t.shared().state.fall_asleep(how);
            t.shared().wake_to_reclaim();
            assert_eq!(t.is_asleep(), how != WAKE_TO_RECLAIM);
        }
    }
}
