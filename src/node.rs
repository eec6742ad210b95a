//! One timeout: its state, its deadline, its task. Shared by its handles, the lanes and the wheel.
//!
//! This module has all of the crate's `unsafe` but two hints in [`platform`](crate::platform): nodes that are used again
//! instead of allocated ([`arena`]), and tasks of any type in them ([`task`]). `benches/compare` shows what for.
//!
//! State and deadline are one word, two bits and 62, so that whoever changes either knows both.
//!
//! | from | to | who | order |
//! |---|---|---|---|
//! | – | QUEUED | `new_timeout`, which then pushes a message ([`Vacant::fill`]) | plain: nobody else has it |
//! | QUEUED | PLACED | the worker has the message, and puts it into the wheel ([`place`](Entry::place)) | `Acquire`; plain if no handle is left |
//! | QUEUED, PLACED | the same, later deadline | `reset`; the wheel's entry may now be too early, never too late | `Release` |
//! | QUEUED | QUEUED, earlier deadline | `reset` | `Release` |
//! | PLACED | QUEUED, earlier deadline | `reset`, which then pushes a message | `Release` |
//! | QUEUED, PLACED | CANCELLED | `cancel`, which pushes a message if it was PLACED; `stop` ([`cancel`](Node::cancel)) | `AcqRel` |
//! | QUEUED, PLACED | EXPIRED | the worker, when the deadline has been reached ([`expire`](Entry::expire)) | `AcqRel`; plain if no handle is left |
//! | PLACED | PLACED, RUNNING | the same, of a task that repeats | `Relaxed`: nobody learns anything by it |
//! | PLACED, RUNNING | PLACED, QUEUED | the run is over, and the next one has a deadline ([`run_is_over`](Node::run_is_over)): PLACED by the worker, who has the entry; QUEUED by another thread, which then pushes a message | `AcqRel` |
//! | PLACED, RUNNING | EXPIRED, RUNNING | the run is over, and was the last (the same); another thread pushes a message | `AcqRel` |
//!
//! QUEUED says that a message about the node is in a lane, or about to be pushed there by the one who said so, once (or
//! that who cancels it has just taken it back). PLACED says that it is in the wheel (or just taken out of it, to be
//! expired) at a tick no later than its deadline's, or at the next one to be processed if that has passed. CANCELLED and
//! EXPIRED are for ever, and whoever made them so has the [`Claim`] to the task; nobody else touches it.
//!
//! RUNNING is a deadline that is none: the task runs, and will run again. Whoever runs it has the claim, and gives it back with
//! the next deadline; who cancels it meanwhile gets none, and the runner, to whom the node then says that it has ended,
//! drops the task. If it runs on another thread than the worker's, the worker keeps the entry in the wheel, at a tick that
//! never comes. (Nobody resets what repeats: its handle is not given out before it has ended.)
//!
//! So there is one message at most about a node at a time, and where one is under way, the timer's entry of the node is left to it: the
//! worker, where it meets a node in the wheel that is QUEUED or CANCELLED, lets it lie.
//!
//! Nothing is published through this word but the deadline: the node itself comes to the worker through a lane, and the
//! task belongs to one thread. The orders serve the user's code: what a thread did before a `reset` that returned true is
//! seen by the task that runs at the new deadline (`Release` in `reset`, `Acquire` in `expire`), and what was done before
//! the end of a timeout is seen by who learns of that end (`Release` in `cancel` and `expire`, `Acquire` in
//! [`ended`](Node::ended) and in a `cancel` or `reset` that comes too late). Each has its models in
//! `loom-tests/tests/models/orders.rs`. Where no handle is left, what was done through them is seen by way of their count.

use std::fmt;
use std::panic::RefUnwindSafe;

use crate::core::Core;
use crate::sync::unmodelled;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use crate::task::Next;
use crate::ticks::RUNNING;

mod arena;
mod placed;
mod task;

pub(crate) use arena::{Arena, Claim, Credit, Credits, Entry, Handle, Purse, RUN, Run, Spare, Vacant};
pub(crate) use placed::Placed;
use task::TaskCell;

pub(crate) const QUEUED: u64 = 0;
pub(crate) const PLACED: u64 = 1;
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
pub(crate) enum Expiry {
    /// It is expired, and its task the worker's.
    Expired(Handle, Claim),
    /// A task that repeats is the worker's, for a run.
    Runs(Entry, Claim),
    /// It has been re-armed, and belongs back into the wheel at this deadline.
    Later(Entry, u64),
    /// Nothing to do here: it ended before, or was re-armed, and a message says so.
    Gone,
}

/// What came of a run of a task that repeats.
pub(crate) enum Over {
    /// It runs again, at this deadline.
    Again(u64),
    /// It was the last one. The task is the caller's, and so is what else there is to an end.
    Ended(Claim),
    /// The timeout was cancelled meanwhile. The task is the caller's.
    Cancelled(Claim),
}

/// What came of an attempt to change a deadline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// It is later now, and nobody needs to know.
    Later,
    /// It is earlier now, and a message about the node under way, or about to be pushed by somebody else.
    Earlier,
    /// It is earlier now, and the caller has to push a message.
    Requeue,
    /// It has ended before.
    Ended,
}

/// Something that the worker has to know of a node. There is at most one about a node at a time, and until the worker has
/// it the node is not used again.
#[derive(Debug)]
pub(crate) enum Message {
    /// A new timeout.
    New(Entry),
    /// Its deadline has become earlier. The entry is the one in the wheel, or was left to this message.
    Again(u32),
    /// It was cancelled in the wheel. The entry is as above.
    Cancelled(u32),
}

/// No message is zero.
const NEW: u64 = 1 << 32;
const AGAIN: u64 = 2 << 32;
const DROP: u64 = 3 << 32;

impl Message {
    /// Of the message that a handle's node was pushed with.
    pub(crate) fn new_bits(node: &Node) -> u64 {
        NEW | u64::from(node.number)
    }

    pub(crate) fn into_bits(self) -> u64 {
        match self {
            Self::New(entry) => Self::new_bits(&entry),
            Self::Again(number) => AGAIN | u64::from(number),
            Self::Cancelled(number) => DROP | u64::from(number),
        }
    }

    /// Fetches what a message, if it is one, will be about.
    #[inline]
    pub(crate) fn prefetch(bits: u64, arena: &Arena) {
        if bits != 0 {
            arena.prefetch(bits as u32);
        }
    }

    /// The entry of the node that it is about, which is not in the wheel.
    pub(crate) fn into_entry(self, arena: &Arena) -> Entry {
        match self {
            Self::New(entry) => entry,
            Self::Again(number) | Self::Cancelled(number) => arena.entry(number),
        }
    }

    /// Of what [`into_bits`](Self::into_bits) gave, once.
    pub(crate) fn from_bits(bits: u64, arena: &Arena) -> Self {
        let number = bits as u32;
        match bits & !u64::from(u32::MAX) {
            NEW => Self::New(arena.entry(number)),
            AGAIN => Self::Again(number),
            _ => Self::Cancelled(number),
        }
    }
}

/// Not in the wheel.
const NOWHERE: u32 = u32::MAX;

/// A cache line, so that whoever needs any of it has all.
#[repr(align(64))]
pub(crate) struct Node {
    word: AtomicU64,
    /// Where it is in the wheel: the tick; before the worker has it, its message's ticket in the lane. Only read for its
    /// value under the worker's lock, or by the thread that has pushed the message.
    tick: unmodelled::AtomicU64,
    /// Where it is in its slot. Only read and written under the worker's lock.
    position: unmodelled::AtomicU32,
    /// See [`arena`].
    refs: AtomicU32,
    merged: AtomicU32,
    number: u32,
    task: TaskCell,
}

// A task is taken out before it runs, and one that repeats ends with its panic: nobody finds it half done.
impl RefUnwindSafe for Node {}

#[cfg(not(hashed_wheel_loom))]
const _: () = assert!(size_of::<Node>() == 64 || size_of::<usize>() < 8, "a node is a cache line");

impl Node {
    fn vacant(number: u32) -> Self {
        Self {
            word: AtomicU64::new(word(0, EXPIRED)),
            tick: unmodelled::AtomicU64::new(0),
            position: unmodelled::AtomicU32::new(NOWHERE),
            refs: AtomicU32::new(1),
            merged: AtomicU32::new(0),
            number,
            task: TaskCell::empty(),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn deadline(&self) -> u64 {
        deadline_of(self.word.load(Ordering::Relaxed))
    }

    /// The type of its task, for reports.
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: whoever has a reference to a node sees it filled, and nobody fills it while there is one.
        #[allow(unsafe_code)]
        unsafe {
            self.task.name()
        }
    }

    /// Whether its task runs again and again.
    #[inline]
    pub(crate) fn repeats(&self) -> bool {
        // SAFETY: as of `name`.
        #[allow(unsafe_code)]
        unsafe {
            self.task.repeats()
        }
    }

    pub(crate) fn ended(&self) -> Option<End> {
        match state_of(self.word.load(Ordering::Acquire)) {
            CANCELLED => Some(End::Cancelled),
            EXPIRED => Some(End::Expired),
            _ => None,
        }
    }

    /// Ends it, if it has not ended; has the claim, unless the task runs. Says whether it was in the wheel, and no message
    /// about it under way.
    pub(crate) fn cancel(&self) -> Option<(Option<Claim>, bool)> {
        self.cancel_from(self.word.load(Ordering::Acquire))
    }

    #[cfg_attr(hashed_wheel_loom, track_caller)]
    fn cancel_from(&self, before: u64) -> Option<(Option<Claim>, bool)> {
        let before = self.change_from(before, Ordering::AcqRel, |state, deadline| {
            matches!(state, QUEUED | PLACED).then_some((CANCELLED, deadline))
        })?;
        let has_claim = deadline_of(before) != RUNNING;
        Some((has_claim.then(|| Claim::of(self)), state_of(before) == PLACED))
    }

    /// A run is over, and perhaps there is a next one: gives the claim back then, unless the timeout was cancelled meanwhile.
    /// `state` is what it has until then: QUEUED leaves it to the caller to push a message.
    pub(crate) fn run_is_over(&self, claim: Claim, next: Option<Next>, state: u64) -> Over {
        let to = next.map_or((EXPIRED, RUNNING), |next| (state, next.deadline));
        let over = |state, deadline| ((state, deadline) == (PLACED, RUNNING)).then_some(to);
        match (self.change(Ordering::AcqRel, over), next) {
            (None, _) => Over::Cancelled(claim),
            (Some(_), None) => Over::Ended(claim),
            (Some(_), Some(next)) => Over::Again(next.deadline),
        }
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

    /// Changes state and deadline to what `to` says, if it says anything. Returns the word as it was.
    #[inline]
    #[cfg_attr(hashed_wheel_loom, track_caller)]
    fn change(&self, order: Ordering, to: impl FnMut(u64, u64) -> Option<(u64, u64)>) -> Option<u64> {
        self.change_from(self.word.load(Ordering::Acquire), order, to)
    }

    #[inline]
    #[cfg_attr(hashed_wheel_loom, track_caller)]
    fn change_from(
        &self,
        mut before: u64,
        order: Ordering,
        mut to: impl FnMut(u64, u64) -> Option<(u64, u64)>,
    ) -> Option<u64> {
        loop {
            let (state, deadline) = to(state_of(before), deadline_of(before))?;
            let after = word(deadline, state);
            match self.word.compare_exchange_weak(before, after, order, Ordering::Acquire) {
                Ok(_) => return Some(before),
                Err(now) => before = now,
            }
        }
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    fn set_ticket(&self, ticket: u64) {
        self.tick.store(ticket, Ordering::Relaxed);
    }
}

/// The word of a node that had not ended when this was looked at.
pub(crate) struct Live(u64);

impl Handle {
    #[inline]
    pub(crate) fn live(&self) -> Option<Live> {
        let word = self.word.load(Ordering::Acquire);
        matches!(state_of(word), QUEUED | PLACED).then_some(Live(word))
    }

    /// Ends it, if it has not ended. `take_back` takes the message about it back, if the worker has not seen it. Says
    /// whether it was in the wheel, and no message about it under way.
    #[inline]
    pub(crate) fn cancel_with(
        &self,
        Live(before): Live,
        take_back: impl FnOnce() -> bool,
    ) -> Option<(Option<Claim>, bool)> {
        if state_of(before) != QUEUED || !take_back() {
            return self.cancel_from(before);
        }
        // Where the worker looks nobody finds it any more. But a handle, and be it the only one, may be lent to many threads:
        // another one may end it at the same time, or clone the handle.
        let cancelled = self.cancel_from(before);
        self.merge_entry();
        cancelled
    }
}

impl Entry {
    /// The worker has its message: the deadline at which it belongs into the wheel, unless it has ended.
    #[inline]
    pub(crate) fn place(&self) -> Option<u64> {
        if self.is_alone() {
            // Nobody else changes it: it has not ended, or its last handle would have left it CANCELLED.
            let before = self.word.load(Ordering::Relaxed);
            let is_queued = state_of(before) == QUEUED;
            if is_queued {
                self.word.store(word(deadline_of(before), PLACED), Ordering::Relaxed);
            }
            return is_queued.then_some(deadline_of(before));
        }
        self.change(Ordering::Acquire, |state, deadline| (state == QUEUED).then_some((PLACED, deadline)))
            .map(deadline_of)
    }

    /// The wheel has given it out. `is_due` says whether a deadline has been reached.
    #[inline]
    pub(crate) fn expire(self, credit: impl FnOnce() -> Credit, is_due: impl Fn(u64) -> bool) -> Expiry {
        let mut later = None;
        if self.repeats() {
            return self.begin_run();
        }
        let mut to = |state, deadline| {
            later = (state == PLACED && !is_due(deadline)).then_some(deadline);
            (matches!(state, QUEUED | PLACED) && is_due(deadline)).then_some((EXPIRED, deadline))
        };
        let before = if self.is_alone() {
            let before = self.word.load(Ordering::Relaxed);
            to(state_of(before), deadline_of(before)).map(|(state, deadline)| {
                self.word.store(word(deadline, state), Ordering::Relaxed);
                before
            })
        } else {
            self.change(Ordering::AcqRel, to)
        };
        match (before, later) {
            (Some(before), _) => {
                let claim = Claim::of(&self);
                // If it was queued, the message that is under way will find it ended, and has the entry.
                let handle = if state_of(before) == PLACED {
                    self.into_handle(credit())
                } else {
                    self.another_handle(credit())
                };
                Expiry::Expired(handle, claim)
            }
            (None, Some(deadline)) => Expiry::Later(self, deadline),
            (None, None) => Expiry::Gone,
        }
    }

    /// The same of a task that repeats. (It is due, for nobody moves its deadline while it is in the wheel.)
    fn begin_run(self) -> Expiry {
        let run = |state, _| (state == PLACED).then_some((PLACED, RUNNING));
        match self.change(Ordering::Relaxed, run) {
            Some(_) => {
                let claim = Claim::of(&self);
                Expiry::Runs(self, claim)
            }
            None => Expiry::Gone,
        }
    }

    /// Ends it, if it has not ended, on behalf of `stop`. `is_told`: the message about it has come, and brought the entry.
    pub(crate) fn stop(self, core: &Arc<Core>, is_told: bool) -> Option<(Handle, Option<Claim>)> {
        let Some((claim, was_placed)) = self.cancel() else {
            if is_told {
                // Not to be used again: the timer is stopped.
                let _ = self.release();
            }
            return None;
        };
        let credit = Credit::at(core);
        // Else the entry is left to the message that is under way.
        let is_mine = was_placed || is_told;
        Some((if is_mine { self.into_handle(credit) } else { self.another_handle(credit) }, claim))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("number", &self.number)
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}
