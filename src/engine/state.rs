//! The state of a timer in one word: its lifecycle, whether the worker sleeps, and how many
//! timeouts are pending.
//!
//! These share a word. So a thread that publishes a step learns by the same instruction what it has
//! to know of the other threads, and no fence is needed:
//!
//! * `new_timeout` registers and learns whether the timer is stopped. Once `stop` has set its bit,
//!   the count includes every caller that came before. `stop` waits until all of them have pushed
//!   their messages. `shutdown` does the same with a bit of its own: the timer is closing. It
//!   rejects new timeouts and otherwise goes on.
//! * `new_timeout` and `cancel` learn whether the worker sleeps, so that they have to wake it.
//! * The worker goes to sleep by comparing the word with its value before it looked at the lanes.
//!
//! | operation | on the word | order | pairs with |
//! |---|---|---|---|
//! | [`register`](TimerState::register) (before the push to the lane) | `PENDING` + 1, `REGISTERED` + 1, if `STARTED`, not `CLOSING`, below the limit | `AcqRel` | the `Acquire` of `snapshot`: a worker that sees this thread's next `register` sees the push of this one |
//! | `transfer` (of feature `async`: in `replace`, after the push that takes the old timeout out and before the push of the new one) | `REGISTERED` + 1 | `AcqRel` | as `register` for the second push, and as `deregister` for the first. To a `stop` that may have set its bit, this is still the old timeout, and it waits for it |
//! | [`deregister`](TimerState::deregister) (in `cancel`, after the push to the lane; also when the worker ends a timeout) | `PENDING` − 1 | `AcqRel` | the same two, and the wait of `stop` for zero: a thread that sees the count sees the push |
//! | [`set_started`](TimerState::set_started) | sets `STARTED` | `AcqRel` | under the lock of the thread's handle |
//! | [`snapshot`](TimerState::snapshot) | reads | `Acquire` | the releases above; each later operation is a read-modify-write and carries them on |
//! | [`pending`](TimerState::pending) | reads | `Relaxed` | nothing: a count alone |
//!
//! The operations on `ASLEEP` are in [`sleep`](super::sleep), those on `CLOSING` and `STOPPED` in
//! [`end`](super::end), each with its rows of this table.
//!
//! Models fail without these: the release of `register`, `transfer`, `deregister`,
//! `publish_and_read`, `announce_sleep` and `stop`; the acquire of `close`, `publish_and_read`,
//! `fall_asleep`, `announce_sleep` and `snapshot`. The other sides are not known to be needed
//! (`loom-tests/tests/models/orders.rs` lists them and says why). They stay, because a model that
//! does not need an order does not prove that none is needed.

use std::fmt;

use crate::sync::{AtomicU64, IS_EXPLORED, Ordering};

pub(super) const STOPPED: u64 = 1 << 0;
const STARTED: u64 = 1 << 1;
pub(super) const ASLEEP: u64 = 1 << 2;
/// New timeouts are rejected. `shutdown` sets it alone, `stop` together with `STOPPED`.
pub(super) const CLOSING: u64 = 1 << 3;
const PENDING: u64 = 1 << 4;
/// The number of registrations, modulo 2^28: up to the end of the word. loom's models have fewer
/// bits, so that the number overflows there.
const REGISTERED: u64 = 1 << if IS_EXPLORED { 62 } else { 36 };

/// The number of values that `REGISTERED` counts.
const REGISTERED_VALUES: u64 = u64::MAX / REGISTERED + 1;

/// The most timeouts that can be pending at a time, without a limit: the wheel has room for as
/// many, and for as many again that have ended and are still in it. (The word has room for 2^32.)
pub(crate) const MAX_PENDING: u64 = 1 << 31;

/// After so many new timeouts a driver's loop is woken even if its next turn is far away. Otherwise
/// their messages would accumulate until then.
const WAKE_BATCH: u64 = 1 << 12;

/// Why `register` rejected a timeout.
#[derive(Debug, PartialEq)]
pub(crate) enum Rejection {
    Stopped,
    NotStarted,
    Full,
}

/// The value of the word at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateSnapshot(pub(super) u64);

impl StateSnapshot {
    pub(crate) fn is_stopped(self) -> bool {
        self.0 & STOPPED != 0
    }

    /// Whether new timeouts are rejected: the timer is shutting down, or stopped.
    pub(crate) fn is_closing(self) -> bool {
        self.0 & CLOSING != 0
    }

    pub(crate) fn is_started(self) -> bool {
        self.0 & STARTED != 0
    }

    pub(crate) fn is_asleep(self) -> bool {
        self.0 & ASLEEP != 0
    }

    pub(crate) fn pending(self) -> u64 {
        self.0 % REGISTERED / PENDING
    }

    /// Whether the timeout that is registered next completes a [`WAKE_BATCH`].
    pub(crate) fn completes_wake_batch(self) -> bool {
        (self.0 / REGISTERED + 1) % WAKE_BATCH == 0
    }

    /// How many timeouts were ever registered, if the worker had taken in `taken` of them before
    /// this snapshot and fewer than 2^28 wait.
    pub(crate) fn registered(self, taken: u64) -> u64 {
        let waiting = (self.0 / REGISTERED).wrapping_sub(taken) % REGISTERED_VALUES;
        taken + waiting
    }

    /// Whether exactly `taken` timeouts were ever registered, modulo 2^28.
    pub(crate) fn has_registered(self, taken: u64) -> bool {
        self.0 / REGISTERED == taken % REGISTERED_VALUES
    }
}

impl fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_stopped(), self.is_closing(), self.is_started()) {
            (true, _, _) => "Stopped",
            (_, true, _) => "Closing",
            (_, _, true) => "Started",
            _ => "New",
        })
    }
}

pub(crate) struct TimerState(pub(super) AtomicU64);

impl TimerState {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> StateSnapshot {
        StateSnapshot(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn pending(&self) -> u64 {
        StateSnapshot(self.0.load(Ordering::Relaxed)).pending()
    }

    /// Counts a timeout in. Returns the state before.
    #[inline]
    pub(crate) fn register(&self, limit: u64) -> Result<StateSnapshot, Rejection> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & CLOSING != 0 {
                return Err(Rejection::Stopped);
            }
            if word & STARTED == 0 {
                return Err(Rejection::NotStarted);
            }
            if StateSnapshot(word).pending() >= limit {
                return Err(Rejection::Full);
            }
            // An overflow of REGISTERED leaves the word at its end, which is harmless.
            let counted = word.wrapping_add(PENDING + REGISTERED);
            match self.0.compare_exchange_weak(word, counted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(word) => return Ok(StateSnapshot(word)),
                Err(now) => word = now,
            }
        }
    }

    /// Counts in a timeout that replaces another one, which is not counted out. So there is room
    /// for it under the limit, and `stop` waits for it. Returns the state before.
    #[cfg(feature = "async")]
    pub(crate) fn transfer(&self) -> StateSnapshot {
        // An overflow of REGISTERED leaves the word at its end, which is harmless.
        StateSnapshot(self.0.fetch_add(REGISTERED, Ordering::AcqRel))
    }

    /// Counts out a timeout that has ended. Returns the state before.
    #[inline]
    pub(crate) fn deregister(&self) -> StateSnapshot {
        let before = StateSnapshot(self.0.fetch_sub(PENDING, Ordering::AcqRel));
        debug_assert_ne!(before.pending(), 0, "only a registered timeout is deregistered");
        before
    }

    pub(crate) fn set_started(&self) {
        self.0.fetch_or(STARTED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_overflow_without_touching_the_count() {
        let state = TimerState::new();
        state.set_started();
        for taken in 0..=5 {
            assert!(state.snapshot().has_registered(taken));
            state.register(MAX_PENDING).unwrap();
            assert_eq!(state.snapshot().pending(), 1);
            state.deregister();
        }
        // The loop need not take 2^28 steps to get to the last value.
        let last = REGISTERED_VALUES - 1;
        let state = TimerState(AtomicU64::new(STARTED | (last * REGISTERED)));
        assert!(state.snapshot().has_registered(last));
        state.register(1).unwrap();
        assert!(state.snapshot().has_registered(0) && state.snapshot().has_registered(1 << 28));
        assert_eq!(state.pending(), 1);
        let snapshot = state.snapshot();
        assert!(snapshot.is_started() && !snapshot.is_stopped() && !snapshot.is_asleep());
    }

    #[test]
    fn closing_timer_rejects_timeouts_and_is_not_stopped() {
        let state = TimerState::new();
        state.set_started();
        state.register(MAX_PENDING).unwrap();
        state.close();
        let snapshot = state.snapshot();
        assert!(snapshot.is_closing() && !snapshot.is_stopped());
        assert_eq!((snapshot.pending(), state.register(MAX_PENDING)), (1, Err(Rejection::Stopped)));
        assert!(!state.stop().is_stopped(), "this stop is the first one");
        assert!(state.snapshot().is_closing() && state.snapshot().is_stopped());
    }

    #[test]
    fn count_is_full_before_it_overflows() {
        let state = TimerState(AtomicU64::new(STARTED | (MAX_PENDING * PENDING)));
        assert_eq!(state.register(MAX_PENDING), Err(Rejection::Full));
        assert_eq!(state.deregister().pending(), MAX_PENDING);
        assert!(state.register(MAX_PENDING).is_ok());
    }
}
