//! The end of a timer: `stop`, `shutdown`, the drop of the last handle or of the driver.
//!
//! The words are [`STOPPED`], [`CLOSING`] and [`ENDED`] in the [`TimerState`]. The rows of the
//! state word's table for the end:
//!
//! | operation | on the word | order | pairs with |
//! |---|---|---|---|
//! | [`close`](TimerState::close) (then the fence) | sets `CLOSING` | `Relaxed` | the fence of a caller, and its look |
//! | [`stop`](TimerState::stop) (then the fence) | sets `STOPPED` and `CLOSING` | `Release` | `snapshot`: a thread that sees the timer stopped sees what was done before |
//! | [`set_ended`](TimerState::set_ended), under the worker lock | sets `ENDED` | `Relaxed` | nothing: the pending count is zero from then on, and the only user code that the worker still runs is the hooks |
//!
//! # Nothing is lost
//!
//! `new_timeout` finds the timer open, registers the timeout, pushes it, executes the fence and
//! looks again. The first `stop` sets its bit, executes the fence and takes the worker's lock. It
//! takes in what is in the lanes, and cancels what is in the wheel, again and again until the
//! number of pending timeouts is zero ([`end_all`](Worker::end_all)). Every thread that ends
//! a timeout counts that after it has pushed what it has to push.
//!
//! | the first fence | |
//! |---|---|
//! | of `new_timeout` | `end_all` sees the registration, and the push: it finds the timeout, unless another thread ends it |
//! | of `stop` | `new_timeout` sees `CLOSING`, and withdraws the timeout by a change of its word. If that succeeds, the timeout is rejected. Otherwise `end_all` has found and ended it: it was accepted |
//!
//! The same holds for `shutdown`: a timeout whose caller does not see `CLOSING` is in a lane when
//! the worker's lock is first taken after the fence. From the second time on, all new timeouts in
//! lanes are ones that their callers withdraw, and the worker refuses them
//! ([`refuses_new`](super::worker::Receiver::refuses_new)). Otherwise a timeout that falls due
//! within the grace could be found by the `stop` at the end, and be returned. A timeout that takes
//! the place of another one is never refused, and never withdrawn.
//!
//! The last look of `new_timeout` comes before its thread gives the lane away, and before any other
//! thread has the handle.
//!
//! `end_all` ends when a sum of counts is zero. Then no timeout was pending at some moment after
//! the fence (`pending.rs`). A timeout that is registered later is withdrawn. While the sum is not
//! zero, a thread in library code is processing each timeout that is found nowhere. It arrives:
//!
//! | thread | has done | will do |
//! |---|---|---|
//! | `new_timeout` | registered | push; or withdraw |
//! | `cancel` | perhaps taken the message back, perhaps made the timeout `CANCELLED` | make it so, unless another thread ends it; push, if it was in the wheel; count |
//! | a cancel that gives up its handle | perhaps taken the message back, which leaves nothing of the timeout; or made it `CANCELLED` | push, if it was in the wheel; count |
//! | the end of the last run on an executor's thread | made it `EXPIRED` | push; count |
//! | `reset` to an earlier deadline, the end of another run on an executor's thread | made it `IN_FLIGHT` | push |
//! | a future that is polled with another waker | made the old timeout `CANCELLED`, and not counted that | register and push the new one; then count the old one: one of them is in the sum at all times. The new one is never withdrawn |
//!
//! It runs no user code before it arrives: that could call `stop`, which would wait for its own
//! thread.
//!
//! A turn that is cut short, by a `stop` or because it has run as many tasks as it may, leaves the
//! other nodes that are due in the wheel. So a thread that takes the lock before `stop` does (a
//! `shutdown` in `next_due`, a driver) can take in messages about them.
//!
//! # Who ends the timer
//!
//! | | |
//! |---|---|
//! | `stop`, `stop` | the bit tells which was first. That one returns all timeouts; the other blocks until `end_all` is over |
//! | `stop`, a caller that comes too late | registers and withdraws a timeout. With `ENDED`, the pending count reads zero meanwhile |
//! | `stop`, `start` | under the lock of the thread's handle: `start` sees `CLOSING` and spawns nothing, or `stop` finds the thread and joins it |
//! | `stop`, a sleeping worker | it is unparked whatever it does; a token that comes early stays |
//! | last drop, last drop | `handles` reaches zero once and never leaves it: `Timeout::timer` and `WeakTimer::upgrade` do not raise it from zero |
//! | last drop or driver's drop, by a task on the worker | sets the bit and waits for nothing ([`stop_on_worker`](Inner::stop_on_worker)). The turn sees it before the next task, and drains before it releases the lock |
//! | the driver's drop elsewhere | a `stop`, the first or a later one |
//! | a panic of the clock on the worker thread | as a last drop there; no call returns the timeouts |
//! | `stop`, in a child process that was forked from the one with the thread | sets the bit, takes no lock, joins nothing: the thread does not exist there, and may have held the lock |
//! | the first use of the timer by a thread of such a process ([`stop_copy`](Inner::stop_copy)) | the same |
//! | an end on a thread of its own (`ending.rs`), last drop | the drop finds `has_ending_thread` and does nothing: that thread stops the timer |
//!
//! # `shutdown`
//!
//! It sets `CLOSING` alone, and executes the fence: new timeouts are rejected, all else goes on. It
//! reads the clock after that. A caller reads the clock before it finds the timer open, so a
//! timeout that was accepted with a delay of the grace falls due within it. It waits while
//! something in the wheel falls due in time, by the deadline of each timeout; and while the
//! timeouts in the wheel do not add up to the count, because then a thread is about to push. With a
//! thread, it gives up a timeout that is not due by the timer's clock once real time should have
//! reached it: each tick that is awaited gets the real time that it should take, and
//! [`LOOK_INTERVAL`]. It wakes a worker that sleeps over a tick which its clock has jumped past. On
//! a driven timer it lets no time pass, and runs what is due now. It ends in a `stop`.

use std::time::{Duration, Instant};

use super::inner::{Execute, Inner, Kind, LIVE_TIMERS, Timeout};
use super::state::{CLOSING, ENDED, STOPPED, StateSnapshot, TimerState, fence_after_change};
use super::thread_cache;
use super::worker::{Worker, WorkerGuard};
use crate::sync::{Backoff, Ordering, Parker, is_current};
use crate::ticks::{self, DEADLINE_NEVER};

/// How often a `shutdown` looks whether it still has to wait. A `cancel` does not notify it.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// It does not look more often than this, so that it does not keep the worker from its lock.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// A look takes some nanoseconds per timeout. With this many nanoseconds per timeout between looks,
/// they take about a tenth of the time.
const LOOK_INTERVAL_PER_PENDING: u64 = 100;

/// How long a `shutdown` waits.
#[derive(Clone, Copy)]
pub(crate) struct Grace {
    /// The last tick whose timeouts run.
    last: u64,
    /// The real time that this should take.
    at_most: Duration,
}

impl TimerState {
    /// From now on new timeouts are rejected.
    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSING, Ordering::Relaxed);
        fence_after_change();
    }

    /// Closes and stops the timer. Returns the state before: one caller finds it not stopped.
    fn stop(&self) -> StateSnapshot {
        let before = StateSnapshot(self.word.fetch_or(STOPPED | CLOSING, Ordering::Release));
        fence_after_change();
        before
    }

    /// All timeouts of a stopped timer have ended.
    fn set_ended(&self) {
        self.word.fetch_or(ENDED, Ordering::Relaxed);
    }
}

/// The end of the timer.
impl Inner {
    /// Ends all timeouts and then the worker; blocks while a task runs there. The first call
    /// returns the timeouts. Others block until it has them: a loop that drops its driver because
    /// the timer is stopped takes nothing from the caller of `stop`.
    ///
    /// Not to be called by the worker in a turn.
    pub(crate) fn stop(&self) -> Vec<Timeout> {
        let is_first = self.set_stopped();
        if self.thread.is_in_parent_process() {
            // The thread may have held the worker's lock at the moment of the fork. The timeouts
            // end in the parent.
            return Vec::new();
        }
        if !is_first {
            let backoff = Backoff::new();
            // Not for long: between setting the bit and taking the lock, the first call waits only
            // for the lock.
            while !self.worker.lock().has_ended {
                backoff.snooze();
            }
            return Vec::new();
        }
        // Before the waker is called and the thread is joined: both may run user code that stops
        // the timer.
        let (timeouts, executor) = self.worker.lock().end_all(self);
        self.notify_worker();
        // The worker thread itself gets here if the user's clock, which it runs, calls `stop`.
        let thread = self.thread.take_handle();
        if let Some(thread) = thread.filter(|thread| !is_current(thread)) {
            // The thread catches all panics.
            let _ = thread.join();
        }
        self.drop_executor(executor);
        thread_cache::drop_cache(self);
        timeouts
    }

    /// Whether this thread is the worker: it runs a turn, or the hooks of a stopped timer. (In a
    /// child process a thread may have the number of a worker that does not exist there.)
    pub(crate) fn is_worker(&self) -> bool {
        self.worker.is_held_by_this_thread() && !self.thread.is_in_parent_process()
    }

    /// Stops the timer, and waits for the end unless this thread would wait for itself.
    pub(crate) fn stop_on_any_thread(&self) {
        if self.is_worker() {
            // The worker sees it before the next task, and ends the rest when its turn is over.
            self.stop_on_worker();
        } else {
            self.stop();
        }
    }

    /// Stops the timer on the worker, which ends the rest itself unless a `stop` was first.
    pub(super) fn stop_on_worker(&self) {
        if self.set_stopped() {
            self.worker.set_stopped_by_worker();
            // No call joins the thread, and its handle would keep the stack of an ended thread.
            drop(self.thread.take_handle());
        }
    }

    /// Stops the timer. Returns whether this call did.
    fn set_stopped(&self) -> bool {
        let is_first = !self.state.stop().is_stopped();
        if is_first {
            LIVE_TIMERS.fetch_sub(1, Ordering::Relaxed);
            thread_cache::set_stopped(self);
        }
        is_first
    }

    /// Stops a copy of the timer in a child process, whose thread is in the parent. Takes no lock.
    #[cold]
    pub(super) fn stop_copy(&self) {
        if self.thread.is_in_parent_process() {
            self.set_stopped();
        }
    }

    /// Whether the timer is stopped, as far as this thread knows. Reads no word that many threads
    /// write.
    #[inline]
    pub(super) fn is_stopped_hint(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Ends a timer that its worker has stopped, in place of a `stop`.
    #[cold]
    pub(super) fn end_on_worker(&self, mut worker: WorkerGuard<'_>) {
        let (_timeouts, executor) = worker.end_all(self);
        drop(worker);
        self.drop_executor(executor);
    }

    /// Drops the executor of a stopped timer, without any lock: it may wait for tasks that wait for
    /// the timer.
    fn drop_executor(&self, executor: Option<Execute>) {
        let name = || "(the task executor)";
        self.counters.guard_drop(name, || drop(executor));
    }

    /// Returns the tick at which the first timeout fires that falls due up to `last`; zero if a
    /// thread is about to push it; `None` if there is none, or the timer is stopped.
    pub(crate) fn next_due(&self, last: u64) -> Option<u64> {
        if self.state.snapshot().is_stopped() {
            return None;
        }
        self.worker.lock().next_due(self, last)
    }
}

impl Grace {
    /// Rejects new timeouts from now on. The grace begins.
    pub(crate) fn begin(inner: &Inner, grace: Duration) -> Self {
        inner.state.close();
        // By the same clock as `new_timeout`, and later: a timeout that was accepted with a delay
        // of `grace` falls due within it.
        let now = inner.clock.deadline_base();
        let last = inner.ticks.of(ticks::deadline(now, grace));
        let last = last.min(inner.ticks.reached(DEADLINE_NEVER - 1));
        Self {
            last,
            at_most: inner.ticks.until(last + 1, now),
        }
    }

    /// Lets those timeouts run that fall due within the grace, and stops. Another thread that stops
    /// the timer meanwhile ends the wait, and gets what is left.
    ///
    /// Not to be called by the worker in a turn.
    pub(crate) fn end(self, inner: &Inner) -> Vec<Timeout> {
        // Nothing runs in a child process that could be waited for.
        if !inner.thread.is_in_parent_process() {
            if inner.thread.is_started() || inner.options.kind == Kind::Hosted {
                self.wait_for_worker(inner);
            } else {
                self.turn_while_due(inner);
            }
        }
        inner.stop()
    }

    /// Waits until nothing is left that falls due within the grace; or for as long as that should
    /// take in real time, if what is left is not due by the timer's clock then.
    fn wait_for_worker(self, inner: &Inner) {
        let parker = Parker::default();
        let (mut awaited, mut by) = (0, Instant::now() + self.at_most);
        while let Some(next) = inner.next_due(self.last) {
            let now = inner.clock.now();
            if next > awaited {
                // A caller that was accepted may push so late that its tick comes after `last`.
                awaited = next;
                by = by.max(Instant::now() + inner.ticks.until(next, now) + LOOK_INTERVAL);
            }
            let is_due = next <= inner.ticks.reached(now);
            // This thread may be the one on which a runtime would turn the timer.
            if (!is_due || inner.options.kind == Kind::Hosted) && Instant::now() > by {
                return;
            }
            if is_due && next > 0 {
                // The worker may sleep for a time that its clock has jumped over.
                inner.wake();
            }
            let pending = inner.pending_counts.at_most(&inner.counters);
            let for_looks = Duration::from_nanos(pending * LOOK_INTERVAL_PER_PENDING);
            let wait = inner.ticks.until(next, now).min(LOOK_INTERVAL);
            parker.park_timeout(wait.max(MIN_LOOK_INTERVAL + for_looks));
        }
    }

    /// Turns a driven timer in place of its loop, without letting any time pass.
    fn turn_while_due(self, inner: &Inner) {
        let backoff = Backoff::new();
        while let Some(next) = inner.next_due(self.last) {
            match next {
                // A turn would move the time past a timeout that a thread is about to push.
                0 => backoff.snooze(),
                _ if next <= inner.ticks.reached(inner.clock.now()) => _ = inner.turn(usize::MAX),
                _ => break,
            }
        }
    }
}

impl Worker {
    /// Returns the tick at which the first timeout fires that falls due up to the tick `last`, once
    /// no more are accepted. Zero if that is not known yet, because a thread is about to push.
    fn next_due(&mut self, inner: &Inner, last: u64) -> Option<u64> {
        self.drain_messages_unless_behind(inner);
        if self.receiver.has_backlog {
            // A turn is due immediately.
            return Some(self.nodes.tick().max(1));
        }
        self.receiver.refuses_new = true;
        let pending = inner.pending_counts.at_most(&inner.counters);
        if pending == 0 {
            return None;
        }
        let (first, live) = self.nodes.of(inner).first_due(inner.ticks, last);
        // Otherwise a thread is about to push a timeout, perhaps in the place of another one, or to
        // withdraw one, or to count an end.
        if live == pending { first } else { Some(0) }
    }

    /// Cancels every timeout that has not ended, once the timer is stopped; returns them, with
    /// their hooks called, and the executor, which the caller drops. Waits for callers that have
    /// registered a timeout, or cancelled one.
    pub(super) fn end_all(&mut self, inner: &Inner) -> (Vec<Timeout>, Option<Execute>) {
        let mut all = Vec::new();
        let backoff = Backoff::new();
        let mut nodes = self.nodes.of(inner);
        loop {
            self.receiver.drain_all(inner, &mut nodes);
            nodes.stop_all(|stopped| {
                inner.pending_counts.count_stopped();
                inner.pending_counts.release_places(1);
                all.push(stopped);
            });
            self.receiver.refuses_new = true;
            if inner.pending_counts.at_most(&inner.counters) == 0 {
                break;
            }
            backoff.snooze();
        }
        // Every accepted timeout has ended. This releases the nodes of those that other threads
        // have ended, who push before they count. What comes later is about timeouts that are
        // withdrawn, or whose deadline was moved before they ended: those are not counted. Their
        // nodes are freed with the timer, unless a later look at the lanes releases them.
        self.receiver.drain_all(inner, &mut nodes);
        inner.state.set_ended();
        let all = all.into_iter().map(|stopped| match stopped {
            Ok(claimed) => inner.call_hook(claimed),
            Err(timeout) => timeout,
        });
        let all = all.collect();
        nodes.empty_reserve();
        self.has_ended = true;
        (all, self.executor.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "async")]
    use crate::engine::tests::Nothing;
    use crate::engine::tests::{Driven, TICK};
    #[cfg(feature = "async")]
    use crate::sync::thread;

    #[test]
    fn a_grace_ends_with_its_last_tick() {
        let t = Driven::new();
        let grace = Grace::begin(t.inner(), TICK * 3);
        assert_eq!((grace.last, grace.at_most), (3, TICK * 4));
    }

    /// A timeout that never fires has a tick too.
    #[test]
    fn the_longest_grace_does_not_include_never() {
        // A tick that begins at `DEADLINE_NEVER`, and one that does not.
        for tick in [Duration::from_nanos((1 << 31) - 1), TICK] {
            let t = Driven::with(|builder| builder.tick(tick).ticks_per_wheel(1));
            let never = t.inner().ticks.of(DEADLINE_NEVER);
            let grace = Grace::begin(t.inner(), Duration::MAX);
            assert_eq!(grace.last, never - 1, "{tick:?}");
        }
    }

    /// A future that is polled with another waker puts a timeout in the place of its old one.
    #[cfg(feature = "async")]
    #[test]
    fn a_shutdown_lets_no_time_pass_before_a_timeout_that_a_thread_is_about_to_push() {
        let t = Driven::new();
        let mut lane = t.open_lane();
        t.inner().pending_counts.take().register();
        t.clock.advance(TICK * 5);
        thread::scope(|scope| {
            let timer = &t.timer;
            let shutdown = scope.spawn(move || timer.shutdown(Duration::ZERO));
            thread::sleep(Duration::from_millis(30));
            lane.borrow(t.inner())
                .schedule_replacement(Nothing, t.now());
            assert_eq!(shutdown.join().unwrap(), [], "it runs");
        });
    }
}
