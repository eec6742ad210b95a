//! Whether the timer lives, whether its worker sleeps, and how many timeouts it owes an end: one word.
//!
//! Because these share a word, each question that one party asks about another is answered by the very instruction with
//! which it makes itself known, and no fence is needed anywhere:
//!
//! * `new_timeout` counts itself in and learns whether the timer is stopped. So `stop`, once it has set its bit, knows
//!   everyone who came before it by the count, and waits until they have pushed what they were counted for. `shutdown`
//!   does the same by a bit of its own: the timer is closing, which means that nobody is let in, and goes on.
//! * `new_timeout` and `cancel` learn whether the worker sleeps, so that they have to wake it.
//! * The worker, to go to sleep, compares the word with what it was before it looked at the lanes.
//!
//! | operation | on the word | order | pairs with |
//! |---|---|---|---|
//! | [`admit`](Life::admit) (before the push to the lane) | PENDING + 1, ADMITTED + 1, if STARTED, not CLOSING, below the limit | `AcqRel` | the `Acquire` of `word`: the worker that sees this thread's next `admit` sees this one's push |
//! | `readmit` (of feature `async`: in `replace`, after the push that takes the old one out and before that of the new one) | ADMITTED + 1 | `AcqRel` | as `admit` for the second push, and as `leave` for the first; to `stop`, which may have set its bit, this is still the old one, and it waits for it |
//! | [`leave`](Life::leave) (in `cancel` after the push to the lane; also when the worker ends a timeout) | PENDING − 1 | `AcqRel` | the same two, and `stop`'s wait for zero: who sees the count sees the push |
//! | [`look`](Life::look) (after `reset` has pushed to the lane; with a driver's waker, also after `new_timeout` has, or after `reset` to an earlier deadline of what is still in one) | nothing | `AcqRel`, a write all the same | `sleep` and `promise`: either it comes before and the worker's second look sees the push, or after and this sees ASLEEP |
//! | [`started`](Life::set_started) | sets STARTED | `AcqRel` | under the lock of the thread's handle |
//! | [`close`](Life::close) | sets CLOSING | `Acquire` | `admit`: whoever was let in has read the clock before `shutdown` does |
//! | [`stop`](Life::stop) | sets STOPPED and CLOSING | `AcqRel` | `word`: who sees it stopped sees what was done before |
//! | [`sleep`](Life::sleep) (the worker) | sets ASLEEP if the word is still what it was | `AcqRel` | see below |
//! | [`promise`](Life::promise) (a driver with a waker; whoever called the waker, if it panicked) | sets ASLEEP | `AcqRel` | `look`, which sees with ASLEEP what was promised |
//! | [`wake`](Life::wake) (whoever saw ASLEEP; a `shutdown` that finds something due; the worker itself) | clears ASLEEP | `AcqRel` | only who cleared it unparks: of the callers at most one does for each sleep (`stop` does in any case) |
//! | [`word`](Life::word) | reads | `Acquire` | the releases above; each later operation, being a read-modify-write, carries them on |
//! | [`pending`](Life::pending) | reads | `Relaxed` | nothing: a count alone |
//!
//! Of these, models fail without: the release of `admit`, `readmit`, `leave`, `look`, `promise` and `stop`, the
//! acquire of `close`, `look`, `sleep`, `promise` and `word`. The other sides are not known to be needed (`loom-tests/tests/models/orders.rs` lists them and
//! says why); they stay: what no model shows to be needed is not shown to be needless.
//!
//! **No wake-up is lost.** The worker reads the word, finds all lanes empty, finds that it has taken as many new
//! timeouts out of them as were ever ADMITTED (taken back or not), sets ASLEEP, and looks at the lanes once more. Take a push that it has
//! not seen in either look.
//!
//! * Of a new timeout: its `admit` (or `readmit`) came after the worker read the word (else ADMITTED would differ), so it
//!   comes after `sleep` too (else the word would differ), sees ASLEEP, and wakes the worker after its push. ADMITTED counts
//!   modulo 2^28: it can look the same with pushes outstanding only if they are a multiple of 2^28, and then all but the
//!   last one of each thread are behind a later `admit` or `readmit` of that thread, so the second look sees them.
//! * Of a cancellation or a re-arm: its `leave`, `readmit` or `look` came after the push. Had it come before `sleep`, the
//!   second look would see the push. So it came after, and sees ASLEEP.
//!
//! **No promise is broken.** A driver's loop cannot wait until nobody is busy: it looks at the lanes, writes down the tick
//! of its next turn, sets ASLEEP, looks again, and sleeps until the earlier of the two ticks. Take a push, or a deadline
//! made earlier in a lane, that it has seen in neither look: the caller's `look` came after `promise`, so it sees ASLEEP,
//! and the tick, and wakes the loop if that is too late. If it sees ASLEEP cleared, somebody else is waking the loop, or it
//! has turned; it makes a new promise in either case. Where one pushes a node and another makes it earlier, the one whose
//! `look` comes last knows of both. (Where the waker panics, whoever called it sets ASLEEP again: the loop sleeps on, until
//! the next one who needs it.)

use std::fmt;

use crate::sync::{AtomicU64, IS_EXPLORED, Ordering};

const STOPPED: u64 = 1 << 0;
const STARTED: u64 = 1 << 1;
const ASLEEP: u64 = 1 << 2;
/// Nobody is admitted any more: STOPPED comes with it.
const CLOSING: u64 = 1 << 3;
const PENDING: u64 = 1 << 4;
/// Up to the end of the word: 28 bits. Loom's models have so few that ADMITTED runs over.
const ADMITTED: u64 = 1 << if IS_EXPLORED { 62 } else { 36 };

/// The most timeouts that can be pending at a time, whatever the limit: what the wheel can hold, with room for as many
/// that have ended and are still in it. (The word has room for 2^32.)
pub(crate) const MOST_PENDING: u64 = 1 << 31;

/// So many new timeouts wake a driver's loop that has promised a turn far away: they are not to pile up until then.
const LOT: u64 = 1 << 12;

/// Why `admit` did not.
#[derive(Debug, PartialEq)]
pub(crate) enum Refusal {
    Stopped,
    NotStarted,
    Full,
}

/// The word as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    pub(crate) fn is_stopped(self) -> bool {
        self.0 & STOPPED != 0
    }

    /// Whether new timeouts are refused: the timer is being shut down, or stopped.
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
        self.0 % ADMITTED / PENDING
    }

    /// Whether the timeout that is counted in next makes a lot of them full.
    pub(crate) fn fills_a_lot(self) -> bool {
        (self.0 / ADMITTED + 1) % LOT == 0
    }

    /// How many timeouts have been admitted, ever. So many of these the worker had taken over before this word was read; fewer
    /// than 2^28 wait.
    pub(crate) fn admitted(self, taken: u64) -> u64 {
        let waiting = (self.0 / ADMITTED).wrapping_sub(taken) % (u64::MAX / ADMITTED + 1);
        taken + waiting
    }

    /// Whether exactly `taken` timeouts have been admitted, modulo 2^28.
    pub(crate) fn has_admitted(self, taken: u64) -> bool {
        self.0 / ADMITTED == taken % (u64::MAX / ADMITTED + 1)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_stopped(), self.is_closing(), self.is_started()) {
            (true, _, _) => "Stopped",
            (_, true, _) => "Closing",
            (_, _, true) => "Started",
            _ => "New",
        })
    }
}

pub(crate) struct Life(AtomicU64);

impl Life {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn word(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn pending(&self) -> u64 {
        Word(self.0.load(Ordering::Relaxed)).pending()
    }

    /// Counts one timeout in, and says how the word was.
    #[inline]
    pub(crate) fn admit(&self, limit: u64) -> Result<Word, Refusal> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & CLOSING != 0 {
                return Err(Refusal::Stopped);
            }
            if word & STARTED == 0 {
                return Err(Refusal::NotStarted);
            }
            if Word(word).pending() >= limit {
                return Err(Refusal::Full);
            }
            // ADMITTED runs over the end of the word and is gone.
            let counted = word.wrapping_add(PENDING + ADMITTED);
            match self.0.compare_exchange_weak(word, counted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(word) => return Ok(Word(word)),
                Err(now) => word = now,
            }
        }
    }

    /// Counts in a timeout that takes the place of another one, which is not counted out: so there is room for it, and `stop`
    /// waits for it. Says how the word was.
    #[cfg(feature = "async")]
    pub(crate) fn readmit(&self) -> Word {
        // ADMITTED runs over the end of the word and is gone.
        Word(self.0.fetch_add(ADMITTED, Ordering::AcqRel))
    }

    /// Counts one timeout out: it has ended. Says how the word was.
    #[inline]
    pub(crate) fn leave(&self) -> Word {
        let word = Word(self.0.fetch_sub(PENDING, Ordering::AcqRel));
        debug_assert_ne!(word.pending(), 0, "who leaves was admitted");
        word
    }

    /// Says how the word is, in such a way that the worker cannot fall asleep unseen.
    #[inline]
    pub(crate) fn look(&self) -> Word {
        Word(self.0.fetch_or(0, Ordering::AcqRel))
    }

    pub(crate) fn set_started(&self) {
        self.0.fetch_or(STARTED, Ordering::AcqRel);
    }

    /// From now on nobody is admitted.
    pub(crate) fn close(&self) {
        self.0.fetch_or(CLOSING, Ordering::Acquire);
    }

    /// The same, and the timer is stopped. Says how the word was: only one caller finds it not stopped.
    pub(crate) fn stop(&self) -> Word {
        Word(self.0.fetch_or(STOPPED | CLOSING, Ordering::AcqRel))
    }

    /// The worker falls asleep, unless something happened since it read `seen`.
    pub(crate) fn sleep(&self, seen: Word) -> bool {
        self.0.compare_exchange(seen.0, seen.0 | ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A driver's loop is about to sleep, whatever has happened; or it sleeps on.
    pub(crate) fn promise(&self) {
        self.0.fetch_or(ASLEEP, Ordering::AcqRel);
    }

    /// Whether the worker slept until now.
    pub(crate) fn wake(&self) -> bool {
        Word(self.0.fetch_and(!ASLEEP, Ordering::AcqRel)).is_asleep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admitted_runs_over_without_touching_the_count() {
        let life = Life::new();
        life.set_started();
        for taken in 0..=u64::MAX / ADMITTED + 3 {
            assert!(life.word().has_admitted(taken));
            life.admit(MOST_PENDING).unwrap();
            assert_eq!(life.word().pending(), 1);
            life.leave();
            if taken == 5 {
                // On to the last few: the loop need not take 2^28 steps to get there.
                break;
            }
        }
        let life = Life(AtomicU64::new(STARTED | (u64::MAX / ADMITTED * ADMITTED)));
        assert!(life.word().has_admitted(u64::MAX / ADMITTED));
        life.admit(1).unwrap();
        assert!(life.word().has_admitted(0) && life.word().has_admitted(1 << 28));
        assert_eq!(life.pending(), 1);
        assert!(life.word().is_started() && !life.word().is_stopped() && !life.word().is_asleep());
    }

    #[test]
    fn who_is_closing_lets_nobody_in_and_is_not_stopped() {
        let life = Life::new();
        life.set_started();
        life.admit(MOST_PENDING).unwrap();
        life.close();
        let word = life.word();
        assert!(word.is_closing() && !word.is_stopped());
        assert_eq!((word.pending(), life.admit(MOST_PENDING)), (1, Err(Refusal::Stopped)));
        assert!(!life.stop().is_stopped(), "who stops it is the first");
        assert!(life.word().is_closing() && life.word().is_stopped());
    }

    #[test]
    fn the_count_is_full_before_it_runs_over() {
        let life = Life(AtomicU64::new(STARTED | (MOST_PENDING * PENDING)));
        assert_eq!(life.admit(MOST_PENDING), Err(Refusal::Full));
        assert_eq!(life.leave().pending(), MOST_PENDING);
        assert!(life.admit(MOST_PENDING).is_ok());
    }
}
