//! The state word of a timeout: 2 bits of state and 62 bits of deadline in one atomic.
//!
//! State and deadline share a word so that a thread that changes one of them also decides about the
//! other. In the table, "message" means a message about the node in a [lane](mod@super::lane).
//!
//! | from | to | changed by | order |
//! |---|---|---|---|
//! | – | `IN_FLIGHT` | `new_timeout`, which then pushes a message ([`begin`](StateWord::begin)) | plain store: no other thread has the node |
//! | `IN_FLIGHT` | `IN_WHEEL` | the worker, which has the message and puts the node into the wheel ([`enter_wheel`](StateWord::enter_wheel)) | `Acquire`; plain if no handle is left |
//! | `IN_FLIGHT`, `IN_WHEEL` | same state, later or equal deadline | `reset`; the wheel's tick may now be too early, never too late | `Release` |
//! | `IN_FLIGHT` | `IN_FLIGHT`, earlier deadline | `reset` | `Release` |
//! | `IN_WHEEL` | `IN_FLIGHT`, earlier deadline | `reset`, which then pushes a message | `Release` |
//! | `IN_FLIGHT`, `IN_WHEEL` | `CANCELLED` | `cancel`, which pushes a message if the node was `IN_WHEEL` ([`cancel_seen`](StateWord::cancel_seen)); `stop` ([`cancel`](StateWord::cancel)); `new_timeout`, if the timer closes ([`withdraw`](StateWord::withdraw)) | `AcqRel` |
//! | `IN_WHEEL` | `CANCELLED` | a cancel that gives up its handle, and pushes a message ([`cancel_unchanged`](StateWord::cancel_unchanged)) | `Release`: the fence after the push acquires before the task is dropped. Until then only the bytes of the node are copied, and no thread writes these: a periodic task is in a box, and one that is asked has a hook, with which no handle is given up |
//! | `IN_FLIGHT` | – | the same, which has taken the message back and has the only handle: the node is free, and no thread reads its word | not changed |
//! | `IN_FLIGHT`, `IN_WHEEL` | `EXPIRED` | the worker, once the deadline is reached ([`expire`](StateWord::expire)) | `AcqRel`; plain if no handle is left |
//! | `IN_WHEEL` | `IN_WHEEL`, `DEADLINE_RUNNING` | the worker, once the deadline is reached, for a periodic task, or one that it asks ([`begin_run`](StateWord::begin_run)) | `Acquire` |
//! | `IN_WHEEL`, `DEADLINE_RUNNING` | `IN_WHEEL` or `IN_FLIGHT`, next deadline | the thread that ran the task ([`finish_run`](StateWord::finish_run)): `IN_WHEEL` on the worker, which has the wheel's reference; `IN_FLIGHT` on another thread, which then pushes a message | `AcqRel` |
//! | `IN_WHEEL`, `DEADLINE_RUNNING` | `EXPIRED`, `DEADLINE_RUNNING` | the same, after the last run; another thread pushes a message | `AcqRel` |
//! | `IN_WHEEL`, `DEADLINE_RUNNING` | `IN_WHEEL`, next deadline; or `EXPIRED`, the old one | the same, with the answer of a task that was asked | `AcqRel` |
//!
//! **The states.** `IN_FLIGHT`: one message is in a lane. Or the thread that made this change is
//! about to push it; or a thread that cancels the timeout has just taken it back. `IN_WHEEL`: the
//! node is in the wheel, or was just taken out to be expired. Its tick is no later than that of its
//! deadline, or is the next tick to be processed if that has passed. `CANCELLED` and `EXPIRED` are
//! final. The thread that made one of these changes owns the task; no other thread touches it.
//!
//! **Periodic tasks.** `DEADLINE_RUNNING` is not a deadline. It says that the task runs and is due
//! again afterwards. The thread that runs it owns the task and gives it back together with the next
//! deadline. A `cancel` meanwhile does not get the task: the runner finds `CANCELLED` and drops it.
//! While the task runs on another thread than the worker, the node stays in the wheel at a tick
//! that never comes. A task executor has the `Timeout` of a periodic task, and may clone it. A
//! `reset` through it is refused before it reaches the word ([`Handle::reset`](super::Handle)).
//!
//! **Tasks that are asked.** The worker asks a task that [may postpone
//! itself](super::task::Task::POSTPONES) before the timeout expires. Until it has the answer, the
//! word is that of a periodic task that runs on the worker. A `reset` meanwhile waits. A `cancel`
//! does not get the task: the worker finds `CANCELLED` and calls the hook.
//!
//! **At most one message.** A transition into `IN_FLIGHT` pushes a message, and so does one from
//! `IN_WHEEL` into a final state by another thread than the worker. No other does. So at most one
//! message about a node is under way. While there is one, only its arrival gives up the wheel's
//! reference: a worker that meets the node in the wheel as `IN_FLIGHT` or `CANCELLED` leaves the
//! reference to the message.
//!
//! **Two operations on one timeout.** Each change is a compare-exchange of state and deadline
//! together, and none leads out of a final state. So a timeout ends at most once, and one of two
//! operations is first. If B changes the word between A's read and A's exchange, A reads again:
//! that is the column "B first".
//!
//! | A, B | A first | B first |
//! |---|---|---|
//! | cancel, cancel | B finds `CANCELLED`, returns false | A does |
//! | cancel, expiry | the wheel gives out a `CANCELLED` node: the worker leaves it to the message | A finds `EXPIRED`, returns false |
//! | cancel, `stop` | `stop` leaves it alone; the count makes `stop` wait for A | A finds `CANCELLED`, returns false |
//! | expiry, `stop` | `stop` does not return it | the turn reads the stop bit before each expiry, and leaves the rest to `stop`. Both hold the worker lock |
//! | reset to later, expiry | the worker reads the new deadline: not due, back into the wheel | A finds `EXPIRED`, returns false |
//! | reset to earlier, expiry | the node is `IN_FLIGHT`. If it is due, and its task is not asked, it expires, and its wheel's reference is left to the message; otherwise all is left to the message | A finds `EXPIRED`, returns false |
//! | reset to earlier, entering the wheel | `IN_FLIGHT` throughout: the worker inserts the node by the deadline that it finds | it is `IN_WHEEL`: A makes it `IN_FLIGHT`, and pushes |
//! | reset, cancel or `stop` | the deadline moves, then the timeout ends | A finds `CANCELLED`, returns false: nothing is revived |
//! | reset, reset | the second change holds; one of them makes `IN_FLIGHT` of `IN_WHEEL`, and that one pushes | the same |
//! | cancel, the beginning of a run | the run does not begin | the runner owns the task, and A does not get it |
//! | a cancel that gives up its handle, any of these | as with a cancel. Only the worker, `stop` and `cancel_all` meet a timeout whose only handle is given up, and only in the wheel | its compare-exchange fails, or it has found other handles: A goes on as a cancel |
//! | any of these, a poll with another waker | A has ended the timeout: the poll finds that. Or A has moved the deadline, and the poll takes it over | the poll has cancelled the timeout, and scheduled another one in its place: A finds `CANCELLED` |
//!
//! **What the orders are for.** The word publishes nothing but the deadline. The node itself
//! reaches the worker through a lane, and the task belongs to one thread. The orders serve user
//! code. What a thread did before a `reset` that returned true is visible to the task at the new
//! deadline (`Release` in `reset`, `Acquire` in `expire` and `begin_run`). What was done before the
//! end of a timeout is visible to a thread that learns of that end (`Release` in `cancel` and
//! `expire`; `Acquire` in [`end`](StateWord::end), and in a `cancel` or `reset` that comes too
//! late). Each order has a model in `loom-tests/tests/models/orders.rs`. Where no handle is left,
//! the reference count orders what was done through the handles.

#![allow(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};
use crate::ticks::DEADLINE_RUNNING;

const IN_FLIGHT: u64 = 0;
const IN_WHEEL: u64 = 1;
const CANCELLED: u64 = 2;
const EXPIRED: u64 = 3;

fn pack(deadline: u64, state: u64) -> u64 {
    deadline << 2 | state
}

/// How a timeout ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Cancelled,
    Expired,
}

/// The value of a state word at one moment.
#[derive(Clone, Copy)]
pub(crate) struct SeenWord(u64);

impl SeenWord {
    #[inline]
    fn state(self) -> u64 {
        self.0 & 3
    }

    #[inline]
    pub(super) fn deadline(self) -> u64 {
        self.0 >> 2
    }

    #[inline]
    pub(super) fn is_in_flight(self) -> bool {
        self.state() == IN_FLIGHT
    }

    #[inline]
    pub(super) fn is_in_wheel(self) -> bool {
        self.state() == IN_WHEEL
    }

    #[inline]
    pub(super) fn has_ended(self) -> bool {
        !matches!(self.state(), IN_FLIGHT | IN_WHEEL)
    }

    /// Whether a periodic task was running, or a task was asked.
    #[inline]
    pub(super) fn is_running(self) -> bool {
        self.deadline() == DEADLINE_RUNNING
    }
}

pub(super) struct StateWord(AtomicU64);

impl StateWord {
    /// The word of a node that has never been used.
    pub(super) fn unused() -> Self {
        Self(AtomicU64::new(pack(0, EXPIRED)))
    }

    /// Starts a timeout.
    ///
    /// # Safety
    ///
    /// The caller has the only reference to the node.
    #[inline]
    pub(super) unsafe fn begin(&self, deadline: u64) {
        self.0.store(pack(deadline, IN_FLIGHT), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.relaxed().deadline()
    }

    /// Reads the word without any order.
    #[inline]
    pub(super) fn relaxed(&self) -> SeenWord {
        SeenWord(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn end(&self) -> Option<End> {
        match SeenWord(self.0.load(Ordering::Acquire)).state() {
            CANCELLED => Some(End::Cancelled),
            EXPIRED => Some(End::Expired),
            _ => None,
        }
    }

    /// Reads the word, unless the timeout has ended.
    #[inline]
    pub(super) fn not_ended(&self) -> Option<SeenWord> {
        let seen = SeenWord(self.0.load(Ordering::Acquire));
        (!seen.has_ended()).then_some(seen)
    }

    /// Cancels the timeout, unless it has ended. Returns the word before.
    pub(super) fn cancel(&self) -> Option<SeenWord> {
        self.change(Ordering::AcqRel, to_cancelled).ok()
    }

    /// [`cancel`](Self::cancel) of a new timeout that its caller does not want any more, because
    /// the timer closes: unless its periodic task runs.
    pub(super) fn withdraw(&self) -> Option<SeenWord> {
        self.change(Ordering::AcqRel, |seen| {
            to_cancelled(seen).filter(|_| !seen.is_running())
        })
        .ok()
    }

    /// [`cancel`](Self::cancel) for a caller that has read the word already.
    #[inline]
    pub(super) fn cancel_seen(&self, seen: SeenWord) -> Option<SeenWord> {
        self.change_seen(seen, Ordering::AcqRel, to_cancelled).ok()
    }

    /// Cancels the timeout if the word is still `seen`, which has not ended. Returns whether it
    /// was.
    #[inline]
    pub(super) fn cancel_unchanged(&self, seen: SeenWord) -> bool {
        let cancelled = pack(seen.deadline(), CANCELLED);
        self.0
            .compare_exchange(seen.0, cancelled, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Moves the deadline, unless the timeout has ended. Returns the word before. `is_asked`: the
    /// task may be one that is asked. While it is, the deadline stays. The error is the word that
    /// forbids it.
    #[inline]
    pub(super) fn reset(&self, to: u64, is_asked: bool) -> Result<SeenWord, SeenWord> {
        self.change(Ordering::Release, |seen| {
            let is_earlier = to < seen.deadline();
            let state = if is_earlier { IN_FLIGHT } else { seen.state() };
            let is_fixed = seen.has_ended() || is_asked && seen.is_running();
            (!is_fixed).then_some(pack(to, state))
        })
    }

    /// The worker has the message: returns the deadline at which the node belongs into the wheel,
    /// unless the timeout has ended. `is_last_reference`: no handle is left.
    #[inline]
    pub(super) fn enter_wheel(&self, is_last_reference: bool) -> Option<u64> {
        if is_last_reference {
            // No other thread changes the word. The timeout has not ended, or its last handle has
            // cancelled it.
            let before = self.relaxed();
            if before.is_in_flight() {
                self.0
                    .store(pack(before.deadline(), IN_WHEEL), Ordering::Relaxed);
            }
            return before.is_in_flight().then(|| before.deadline());
        }
        self.change(Ordering::Acquire, |seen| {
            seen.is_in_flight().then(|| pack(seen.deadline(), IN_WHEEL))
        })
        .ok()
        .map(SeenWord::deadline)
    }

    /// The wheel has given the node out: expires the timeout if `is_due` says so of its deadline.
    /// `is_last_reference`: no handle is left. Returns the word before. The error is the word that
    /// forbids it: in the wheel, with a later deadline; otherwise a message says what happened.
    #[inline]
    pub(super) fn expire(
        &self,
        is_last_reference: bool,
        is_due: impl Fn(u64) -> bool,
    ) -> Result<SeenWord, SeenWord> {
        let to = |seen: SeenWord| {
            (!seen.has_ended() && is_due(seen.deadline())).then(|| pack(seen.deadline(), EXPIRED))
        };
        if !is_last_reference {
            return self.change(Ordering::AcqRel, to);
        }
        let before = self.relaxed();
        self.0.store(to(before).ok_or(before)?, Ordering::Relaxed);
        Ok(before)
    }

    /// [`expire`](Self::expire) for a task that stays in the node: a periodic one, or one that is
    /// asked. Returns the word before. The error is the word that forbids it.
    pub(super) fn begin_run(&self, is_due: impl Fn(u64) -> bool) -> Result<SeenWord, SeenWord> {
        self.change(Ordering::Acquire, |seen| {
            let may_run = seen.is_in_wheel() && !seen.is_running() && is_due(seen.deadline());
            may_run.then_some(pack(DEADLINE_RUNNING, IN_WHEEL))
        })
    }

    /// A run of a periodic task is over. `next` is the deadline of the next run, `None` after the
    /// last one, which leaves the deadline `last`. The same for a task that was asked. `on_worker`:
    /// the caller has the wheel's reference; otherwise it pushes a message. Returns false if the
    /// timeout was cancelled during the run.
    pub(super) fn finish_run(&self, next: Option<u64>, on_worker: bool, last: u64) -> bool {
        let state = if on_worker { IN_WHEEL } else { IN_FLIGHT };
        let to = next.map_or(pack(last, EXPIRED), |deadline| pack(deadline, state));
        let is_running = |seen: SeenWord| (seen.is_in_wheel() && seen.is_running()).then_some(to);
        self.change(Ordering::AcqRel, is_running).is_ok()
    }

    /// Changes the word to what `to` returns. Returns the word before. If `to` returns nothing, the
    /// error is the word that it was given, as for the standard `fetch_update`.
    #[inline]
    fn change(
        &self,
        order: Ordering,
        to: impl FnMut(SeenWord) -> Option<u64>,
    ) -> Result<SeenWord, SeenWord> {
        self.change_seen(SeenWord(self.0.load(Ordering::Acquire)), order, to)
    }

    #[inline]
    fn change_seen(
        &self,
        mut seen: SeenWord,
        order: Ordering,
        mut to: impl FnMut(SeenWord) -> Option<u64>,
    ) -> Result<SeenWord, SeenWord> {
        loop {
            let after = to(seen).ok_or(seen)?;
            match self
                .0
                .compare_exchange_weak(seen.0, after, order, Ordering::Acquire)
            {
                Ok(_) => return Ok(seen),
                Err(now) => seen = SeenWord(now),
            }
        }
    }
}

#[inline]
fn to_cancelled(seen: SeenWord) -> Option<u64> {
    (!seen.has_ended()).then(|| pack(seen.deadline(), CANCELLED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: u64 = 100;

    fn in_flight() -> StateWord {
        let word = StateWord::unused();
        // SAFETY: no other thread has the word.
        unsafe { word.begin(DEADLINE) };
        word
    }

    fn in_wheel() -> StateWord {
        let word = in_flight();
        assert_eq!(word.enter_wheel(false), Some(DEADLINE));
        word
    }

    fn cancelled() -> StateWord {
        let word = in_wheel();
        assert!(word.cancel().is_some());
        word
    }

    fn running() -> StateWord {
        let word = in_wheel();
        assert!(word.begin_run(|_| true).is_ok());
        word
    }

    #[test]
    fn reset_to_the_same_deadline_leaves_the_word() {
        for word in [in_flight(), in_wheel()] {
            let before = word.relaxed().0;
            assert_eq!(
                word.reset(DEADLINE, true).ok().map(|seen| seen.0),
                Some(before)
            );
            assert_eq!(word.relaxed().0, before);
        }
    }

    #[test]
    fn run_begins_only_in_the_wheel_and_once() {
        assert!(in_wheel().begin_run(|_| true).is_ok());
        for word in [in_flight(), cancelled(), running()] {
            let before = word.relaxed().0;
            assert!(word.begin_run(|_| true).is_err());
            assert_eq!(word.relaxed().0, before);
        }
        assert!(
            in_wheel()
                .begin_run(|deadline| deadline != DEADLINE)
                .is_err()
        );
    }

    #[test]
    fn timeout_that_is_not_due_is_given_back_only_in_the_wheel() {
        let in_wheel_before = |word: &StateWord, is_due: bool| {
            word.expire(false, |_| is_due)
                .map(SeenWord::is_in_wheel)
                .map_err(SeenWord::is_in_wheel)
        };
        assert_eq!(in_wheel_before(&in_wheel(), false), Err(true));
        assert_eq!(in_wheel_before(&in_flight(), false), Err(false));
        for is_due in [false, true] {
            assert_eq!(in_wheel_before(&cancelled(), is_due), Err(false));
        }
        assert_eq!(in_wheel_before(&in_wheel(), true), Ok(true));
        assert_eq!(in_wheel_before(&in_flight(), true), Ok(false));
    }
}
