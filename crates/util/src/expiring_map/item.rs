//! One item: a key, a value, and their time.

use std::time::Duration;

use equivalent::Equivalent;
use hashed_wheel::{Cancel, Timeout};

use super::cause::{Cause, Removed};
use super::time::Now;

/// That of [`Timeout::remaining`].
const PRECISION: Duration = Duration::from_micros(1);

/// A key, its value, and its time.
///
/// Keys and values are the user's. Whatever drops one must be called without a lock held.
// In this order, so that what a look-up needs is together.
#[repr(C)]
pub(super) struct Item<K, V> {
    /// Not later than that of the timeout, which has read the clock later.
    pub(super) deadline: u64,
    pub(super) weight: u32,
    /// How often the deadline was set.
    pub(super) changes: u16,
    /// Since it was inserted, or since an eviction has passed it over. Without a limit, always, so
    /// that a look-up writes to no memory.
    pub(super) is_used: bool,
    /// The cause is set when it leaves the map.
    pub(super) entry: Removed<K, V>,
    /// `None` once it was removed.
    pub(super) timeout: Option<Timeout>,
    pub(super) hash: u64,
    /// The latest deadline, whatever the use of the item.
    pub(super) end: u64,
    /// In a table with a limit.
    pub(super) number: u32,
}

impl<K, V> Item<K, V> {
    pub(super) fn is_alive(&self, now: Now) -> bool {
        now.earliest < self.deadline
    }

    pub(super) fn set_used(&mut self) {
        if !self.is_used {
            self.is_used = true;
        }
    }

    pub(super) fn set_deadline(&mut self, deadline: u64) {
        self.deadline = deadline;
        self.changes = self.changes.wrapping_add(1);
    }

    /// A use of an item with a time to idle moves its deadline, at most to its end.
    pub(super) fn stay(&mut self, now: Now, idle: Duration) {
        let deadline = now.after(idle).min(self.end);
        // Its time may have come meanwhile, between the two bounds of the present.
        if deadline <= self.deadline.max(now.latest) {
            return;
        }
        // The timer calls its waker for an earlier deadline only.
        let rest = Duration::from_nanos(deadline - now.latest);
        if self.is_before(rest) && !self.timeout().reset(rest) {
            // The timeout has ended meanwhile, so the item ends at its deadline.
            return;
        }
        self.set_deadline(deadline);
    }

    /// Whether the deadline of the timeout is this far away or nearer. It may be later than that of
    /// the item, because the timer has read the clock later.
    pub(super) fn is_before(&self, rest: Duration) -> bool {
        self.timeout().remaining().saturating_add(PRECISION) <= rest
    }

    /// Whether the item is under this key.
    pub(super) fn has_key(&self, key: &(impl Equivalent<K> + ?Sized)) -> bool {
        key.equivalent(&self.entry.key)
    }

    pub(super) fn timeout(&self) -> &Timeout {
        match &self.timeout {
            Some(timeout) => timeout,
            None => unreachable!("an item that was not removed has a timeout"),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.timeout().is_expired() || self.timeout().is_cancelled()
    }

    /// Why the item leaves: `cause` if it is alive.
    pub(super) fn cause_at(&self, now: Now, cause: Cause) -> Cause {
        match self.is_alive(now) {
            true => cause,
            false => Cause::Expired,
        }
    }

    /// Why it leaves with its timeout, which did not start it. This reads the clock.
    pub(super) fn cause_of_end(&self, now: Now) -> Cause {
        match self.is_alive(now) && !self.timeout().remaining().is_zero() {
            true => Cause::Stopped,
            false => Cause::Expired,
        }
    }

    /// Cancels the timeout of an item that was removed. Must be called without a lock held.
    ///
    /// If the timeout has expired already, its task does not find the item.
    pub(super) fn cancel(&mut self) {
        if let Some(timeout) = self.timeout.take() {
            timeout.cancel_and_drop();
        }
    }

    /// Cancels the timeout, and returns the value. If the drop of the key panics, the value is
    /// dropped too.
    pub(super) fn into_value(mut self) -> V {
        self.cancel();
        let Removed { key, value, .. } = self.entry;
        drop(key);
        value
    }

    /// Cancels the timeout, and returns the key and the value.
    pub(super) fn into_pair(mut self) -> (K, V) {
        self.cancel();
        let Removed { key, value, .. } = self.entry;
        (key, value)
    }
}

/// An item that is not in a table yet. Its drop cancels the timeout.
pub(super) struct New<K, V>(pub(super) Option<Item<K, V>>);

impl<K, V> New<K, V> {
    pub(super) fn item(&self) -> &Item<K, V> {
        match &self.0 {
            Some(item) => item,
            None => unreachable!("the item was not taken"),
        }
    }

    pub(super) fn take(&mut self) -> Item<K, V> {
        match self.0.take() {
            Some(item) => item,
            None => unreachable!("the item was not taken"),
        }
    }
}

impl<K, V> Drop for New<K, V> {
    fn drop(&mut self) {
        if let Some(item) = &mut self.0 {
            item.cancel();
        }
    }
}
