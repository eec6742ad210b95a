//! One timeout: its state, its deadline, its task. Shared by its handles, the queues and the wheel.
//!
//! State and deadline are one word, two bits and 62, so that whoever changes either knows both.
//!
//! | from | to | who | order |
//! |---|---|---|---|
//! | QUEUED | PLACED | the worker takes it off `timeouts` and puts it into the wheel ([`place`](Node::place)) | `Acquire` |
//! | QUEUED, PLACED | the same, later deadline | `reset`; the wheel's entry may now be too early, never too late | `Release` |
//! | QUEUED | QUEUED, earlier deadline | `reset` | `Release` |
//! | PLACED | QUEUED, earlier deadline | `reset`, which then pushes the node to `timeouts` again | `Release` |
//! | QUEUED, PLACED | CANCELLED | `cancel`; `stop` ([`cancel`](Node::cancel)) | `AcqRel` |
//! | QUEUED, PLACED | EXPIRED | the worker, when the deadline has been reached ([`expire`](Node::expire)) | `AcqRel` |
//!
//! QUEUED says that the node is in `timeouts`, or about to be pushed there by the one who said so, once. PLACED says
//! that it is in the wheel (or just taken out of it, to be expired) at a tick no later than its deadline's, or at the next
//! one to be processed if that has passed. CANCELLED and EXPIRED are for ever, and whoever's compare-exchange made them
//! so owns the task; nobody else touches it.
//!
//! Nothing is published through this word but the deadline: the node itself comes to the worker through a queue, and the
//! task belongs to one thread. The orders serve the user's code: what a thread did before a `reset` that returned true is
//! seen by the task that runs at the new deadline (`Release` in `reset`, `Acquire` in `expire`), and what was done before
//! the end of a timeout is seen by who learns of that end (`Release` in `cancel` and `expire`, `Acquire` in
//! [`ended`](Node::ended) and in a `cancel` or `reset` that comes too late). Each has its models in
//! `loom-tests/tests/models/orders.rs`; only the `Acquire` of `place` is needed by nobody, for `expire` acquires too, and what
//! `place` writes carries on what `reset` released.

use std::panic::RefUnwindSafe;

use crate::sync::unmodelled;
use crate::sync::{Arc, AtomicU64, Fault, Ordering, is_broken};
use crate::task::Slot;
use crate::wheel::Key;

const QUEUED: u64 = 0;
const PLACED: u64 = 1;
const CANCELLED: u64 = 2;
const EXPIRED: u64 = 3;

fn word(deadline: u64, state: u64) -> u64 {
    deadline << 2 | state
}

fn state_of(word: u64) -> u64 {
    word & 3
}

fn deadline_of(word: u64) -> u64 {
    word >> 2
}

/// How a timeout ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Cancelled,
    Expired,
}

/// What came of an attempt to expire a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// It is expired, and its task the worker's.
    Expired,
    /// It has been re-armed, and belongs back into the wheel at this deadline.
    Later(u64),
    /// Nothing to do here: it ended before, or will be met in the queue.
    Gone,
}

/// What came of an attempt to change a deadline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// It is later now, and nobody needs to know.
    Later,
    /// It is earlier now, and the node still in `timeouts`, or about to be pushed there by somebody else.
    Earlier,
    /// It is earlier now, and the caller has to push the node to `timeouts`.
    Requeue,
    /// It has ended before.
    Ended,
}

/// No key yet.
const UNPLACED: u64 = u64::MAX;

pub(crate) struct Node<S: ?Sized = dyn Slot> {
    word: AtomicU64,
    /// Where it is, or was, in the wheel. Only read and written under the worker's lock.
    key: unmodelled::AtomicU64,
    pub(crate) slot: S,
}

// The task is taken out of it before it runs, so nobody finds it half done after a panic.
impl RefUnwindSafe for Node {}

impl Node {
    /// A node that is about to be pushed to `timeouts`.
    pub(crate) fn new(deadline: u64, slot: impl Slot + 'static) -> Arc<Self> {
        Arc::new(Node {
            word: AtomicU64::new(word(deadline, QUEUED)),
            key: unmodelled::AtomicU64::new(UNPLACED),
            slot,
        })
    }

    pub(crate) fn deadline(&self) -> u64 {
        deadline_of(self.word.load(Ordering::Relaxed))
    }

    pub(crate) fn ended(&self) -> Option<End> {
        match state_of(self.word.load(Ordering::Acquire)) {
            CANCELLED => Some(End::Cancelled),
            EXPIRED => Some(End::Expired),
            _ => None,
        }
    }

    /// Ends it, if it has not ended. Says whether it was in the wheel, and not in `timeouts`.
    pub(crate) fn cancel(&self) -> Option<bool> {
        let before = self.change(Ordering::AcqRel, |state, deadline| {
            matches!(state, QUEUED | PLACED).then_some((CANCELLED, deadline))
        })?;
        Some(state_of(before) == PLACED)
    }

    /// Moves its deadline, if it has not ended.
    pub(crate) fn reset(&self, to: u64) -> Reset {
        let before = self.change(Ordering::Release, |state, deadline| match state {
            PLACED if to < deadline => Some((QUEUED, to)),
            QUEUED | PLACED => Some((state, to)),
            _ => None,
        });
        match before {
            None => Reset::Ended,
            Some(before) if to >= deadline_of(before) => Reset::Later,
            Some(before) if state_of(before) == PLACED => Reset::Requeue,
            Some(_) => Reset::Earlier,
        }
    }

    /// The worker has taken it off the queue: the deadline at which it belongs into the wheel, unless it has ended.
    pub(crate) fn place(&self) -> Option<u64> {
        self.change(Ordering::Acquire, |state, deadline| (state == QUEUED).then_some((PLACED, deadline)))
            .map(deadline_of)
    }

    /// The wheel has given it out. `is_due` says whether a deadline has been reached.
    pub(crate) fn expire(&self, is_due: impl Fn(u64) -> bool) -> Expiry {
        let mut later = None;
        let before = self.change(Ordering::AcqRel, |state, deadline| {
            later = (state == PLACED && !is_due(deadline)).then_some(deadline);
            (matches!(state, QUEUED | PLACED) && is_due(deadline)).then_some((EXPIRED, deadline))
        });
        match (before, later) {
            (Some(_), _) => Expiry::Expired,
            (None, Some(deadline)) => Expiry::Later(deadline),
            (None, None) => Expiry::Gone,
        }
    }

    /// Changes state and deadline to what `to` says, if it says anything. Returns the word as it was.
    #[cfg_attr(hashed_wheel_loom, track_caller)]
    fn change(&self, order: Ordering, mut to: impl FnMut(u64, u64) -> Option<(u64, u64)>) -> Option<u64> {
        let mut before = self.word.load(Ordering::Acquire);
        loop {
            let (state, deadline) = to(state_of(before), deadline_of(before))?;
            let after = word(deadline, state);
            if is_broken(Fault::ChangeWithoutCompare) {
                self.word.store(after, Ordering::SeqCst);
                return Some(before);
            }
            match self.word.compare_exchange_weak(before, after, order, Ordering::Acquire) {
                Ok(_) => return Some(before),
                Err(now) => before = now,
            }
        }
    }

    /// Its place in the wheel, as of the last [`set_key`](Self::set_key).
    pub(crate) fn key(&self) -> Option<Key> {
        let bits = self.key.load(Ordering::Relaxed);
        (bits != UNPLACED).then(|| Key::from_bits(bits))
    }

    pub(crate) fn set_key(&self, key: Key) {
        self.key.store(key.to_bits(), Ordering::Relaxed);
    }
}
