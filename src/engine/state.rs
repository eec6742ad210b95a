//! The state word of a timer: its lifecycle, and whether the worker sleeps.
//!
//! The word changes rarely: when the timer starts, closes or stops, and when the worker sleeps or
//! is woken. (With a driver's waker that is in each pass of its loop.) Callers only read it, so
//! they share it without contention. How many timeouts are pending is counted elsewhere
//! ([`pending`](super::pending)).
//!
//! # Push, fence, look
//!
//! A caller pushes a message to its lane and then looks at the word: whether it has to wake the
//! worker, or whether the timer is closed. A thread that closes the timer or puts the worker to
//! sleep changes the word and then looks at the lanes. Between the two halves each side has a
//! fence:
//!
//! | caller | the other side |
//! |---|---|
//! | pushes a message (or makes a deadline in a lane earlier) | changes the word |
//! | fence: [`fence_after_push`](TimerState::fence_after_push) | fence: [`fence_after_change`] |
//! | looks at the word | looks at the lanes |
//!
//! The fences have an order. If the caller's fence is first, the other side's look sees the push.
//! Otherwise the caller's look sees the change. So at least one of the two learns of the other. The
//! word only needs to say what has to be done then: [`sleep`](super::sleep) and [`end`](super::end)
//! do so.
//!
//! # The table
//!
//! | operation | on the word | order | pairs with |
//! |---|---|---|---|
//! | [`fence_after_push`](TimerState::fence_after_push) | reads, after the fence | `Relaxed` | the fence orders it |
//! | [`snapshot`](TimerState::snapshot) | reads | `Acquire` | the changes below: what was done before them |
//! | [`set_started`](TimerState::set_started) | sets `STARTED` | `AcqRel` | under the lock of the thread's handle |
//!
//! The operations on `ASLEEP` are in [`sleep`](super::sleep), those on `CLOSING`, `STOPPED` and
//! `ENDED` in [`end`](super::end), each with its rows of this table. Each change is a
//! read-modify-write operation, so it carries on what earlier ones have released.

use std::fmt;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence, unmodelled};
use crate::ticks::DEADLINE_NEVER;

pub(super) const STOPPED: u64 = 1 << 0;
const STARTED: u64 = 1 << 1;
/// New timeouts are rejected. `shutdown` sets it alone, `stop` together with `STOPPED`.
pub(super) const CLOSING: u64 = 1 << 2;
/// All timeouts have ended, and none is accepted any more.
pub(super) const ENDED: u64 = 1 << 3;
/// The worker sleeps, or is about to.
pub(super) const ASLEEP: u64 = 1 << 4;
/// Together with `ASLEEP`: a message that lets the worker reclaim memory wakes it.
pub(super) const WAKE_TO_RECLAIM: u64 = 1 << 5;
/// Together with `ASLEEP`: a message that completes a batch wakes it.
pub(super) const WAKE_FOR_BATCH: u64 = 1 << 6;
/// All that says how the worker sleeps.
pub(super) const HOW_ASLEEP: u64 = ASLEEP | WAKE_TO_RECLAIM | WAKE_FOR_BATCH;

/// The value of the word at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateSnapshot(pub(super) u64);

impl StateSnapshot {
    #[inline]
    fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    #[inline]
    pub(crate) fn is_stopped(self) -> bool {
        self.has(STOPPED)
    }

    /// Whether new timeouts are rejected: the timer is shutting down, or stopped.
    #[inline]
    pub(crate) fn is_closing(self) -> bool {
        self.has(CLOSING)
    }

    pub(crate) fn is_ended(self) -> bool {
        self.has(ENDED)
    }

    pub(crate) fn is_started(self) -> bool {
        self.has(STARTED)
    }

    /// Whether the timer is started, and accepts each new timeout if it has no limit.
    #[inline]
    pub(super) fn accepts_all(self) -> bool {
        self.0 & (STARTED | CLOSING) == STARTED
    }

    #[inline]
    pub(crate) fn is_asleep(self) -> bool {
        self.has(ASLEEP)
    }

    #[inline]
    pub(super) fn wakes_to_reclaim(self) -> bool {
        self.has(WAKE_TO_RECLAIM)
    }

    #[inline]
    pub(super) fn wakes_for_batch(self) -> bool {
        self.has(WAKE_FOR_BATCH)
    }
}

impl fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = match (self.is_stopped(), self.is_closing(), self.is_started()) {
            (true, _, _) => "Stopped",
            (_, true, _) => "Closing",
            (_, _, true) => "Started",
            _ => "New",
        };
        f.write_str(life)
    }
}

/// The fence between a change of the word and a look at the lanes.
pub(super) fn fence_after_change() {
    fence(Ordering::SeqCst);
}

pub(crate) struct TimerState {
    pub(super) word: AtomicU64,
    /// See [`sleep`](super::sleep), as for `requested`.
    pub(super) announced: AtomicU64,
    pub(super) requested: unmodelled::AtomicU64,
}

impl TimerState {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            requested: unmodelled::AtomicU64::new(DEADLINE_NEVER),
        }
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> StateSnapshot {
        StateSnapshot(self.word.load(Ordering::Acquire))
    }

    /// Reads the state after a push: see the head of this file.
    #[inline]
    pub(super) fn fence_after_push(&self) -> StateSnapshot {
        fence(Ordering::SeqCst);
        StateSnapshot(self.word.load(Ordering::Relaxed))
    }

    pub(crate) fn set_started(&self) {
        self.word.fetch_or(STARTED, Ordering::AcqRel);
    }
}

/// How many `HashedWheelTimer`s of a timer there are.
///
/// | operation | on the count | order | pairs with |
/// |---|---|---|---|
/// | [`add`](Self::add) | + 1 | `Relaxed` | nothing: the caller has a handle, so it is not zero, or has just built the timer |
/// | [`add_unless_zero`](Self::add_unless_zero) | + 1 unless zero | `AcqRel` | nothing (`Relaxed` would do): by compare-exchange, so zero is final |
/// | [`remove`](Self::remove) | − 1 | `AcqRel` | itself: the last one sees what was done before the others |
#[derive(Default)]
pub(crate) struct HandleCount(AtomicUsize);

impl HandleCount {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the handle is counted.
    pub(crate) fn add_unless_zero(&self) -> bool {
        let one_more = |handles| (handles > 0).then(|| handles + 1);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
    }

    /// Returns whether this handle was the last.
    pub(crate) fn remove(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_accepts_all_if_it_is_started_and_not_closing() {
        for others in [0, HOW_ASLEEP] {
            for word in [0, STARTED, CLOSING, STARTED | CLOSING] {
                assert_eq!(
                    StateSnapshot(word | others).accepts_all(),
                    word == STARTED,
                    "{word:b}"
                );
            }
        }
    }
}
