//! The consumers of a queue that wait, and what wakes them.
//!
//! The timer knows nothing of the values. It only wakes *waiters*: consumers that found nothing due
//! and wait for that to change. Each waiter has a place in the order of arrival, and one timeout,
//! its *alarm*. The alarm of the first waiter is set to the earliest deadline of the queue. The
//! alarms of the others are set to their own limits (`recv_timeout`), or to a deadline that never
//! comes: then only `stop` ends them. This is the leader-follower pattern of
//! `java.util.concurrent.DelayQueue`.
//!
//! A waiter has a waker from its look at the queue until it is woken. The thread that takes the
//! waker out calls it, and the waiter looks again:
//!
//! | event | whose waker is taken out |
//! |---|---|
//! | an alarm expires, or `stop` cancels it | its waiter's |
//! | a value gets an earlier deadline than the one that the first waiter awaits | the first waiter's |
//! | the first waiter leaves: it received a value, its limit was reached, its alarm was rejected, or it was dropped | the next waiter's, which is the first one then |
//!
//! # No wake-up is lost
//!
//! A waiter looks for a value and stores its waker in one critical section. A later change of the
//! values finds the waker. So while the first waiter has a waker, its alarm is set, or is about to
//! be set by its own thread, to a deadline that is not later than that of any value. A first waiter
//! without a waker has been woken: it will look again, or leave.

use std::collections::BTreeMap;
use std::task::Waker;

use super::values::NEVER;

/// The waiting consumers. The table at the head of this file says when they are woken.
#[derive(Default)]
pub(super) struct Waiters {
    /// By place, so in the order in which they began to wait. `None`: woken, and not polled since.
    wakers: BTreeMap<u64, Option<Waker>>,
    next_place: u64,
    /// The deadline that the first waiter awaits, if it has a waker.
    awaited: i64,
}

impl Waiters {
    pub(super) fn next_place(&mut self) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        place
    }

    /// The waiter at `place` waits, because nothing is due before `first`. Returns its old waker,
    /// and the deadline for its alarm.
    pub(super) fn wait(&mut self, place: u64, waker: Waker, first: i64) -> (Option<Waker>, i64) {
        let replaced = self.wakers.insert(place, Some(waker)).flatten();
        let is_first = self.wakers.keys().next() == Some(&place);
        if is_first {
            self.awaited = first;
        }
        (replaced, if is_first { first } else { NEVER })
    }

    /// A value has a new deadline. Returns the waker of the first waiter if it has to look again.
    pub(super) fn notify_of(&mut self, deadline: i64) -> Option<Waker> {
        if deadline < self.awaited {
            self.notify_first()
        } else {
            None
        }
    }

    fn notify_first(&mut self) -> Option<Waker> {
        self.wakers.first_entry()?.get_mut().take()
    }

    /// Returns the waker of the waiter at `place`, if it is still there and was not woken.
    pub(super) fn notify(&mut self, place: u64) -> Option<Waker> {
        self.wakers.get_mut(&place)?.take()
    }

    /// Removes a waiter. Returns its waker, and if it was the first one, that of the next.
    pub(super) fn remove(&mut self, place: u64) -> (Option<Waker>, Option<Waker>) {
        let was_first = self.wakers.keys().next() == Some(&place);
        let own = self.wakers.remove(&place).flatten();
        (own, if was_first { self.notify_first() } else { None })
    }
}
