//! The items of a map, and how each of them ends.
//!
//! An *item* is a key, a value, a deadline and a timeout. The clock decides until when it lives.
//! The timeout only says when the map has to pass it on. An item is in the table of its shard. The
//! thread that removes it from there, under the lock of the shard, owns the value, and decides how
//! it ends. Until an item is in the table, the call that makes it owns it.
//!
//! | from | to | by |
//! |---|---|---|
//! | – | table | `insert`, once there is a timeout |
//! | – | returned | `insert`, if a living item has the key and must not be replaced |
//! | table, dead | passed on | the timeout, whose task is run or dropped |
//! | table, alive | passed on | the timeout, cancelled by `stop` or `cancel_all`; or the drop of the map |
//! | table, dead | passed on | `insert`, if the shard is full |
//! | table, alive | replaced, removed | `insert`, `remove`, `retain`, `clear`, `drain` |
//! | table, alive | evicted | `insert` of another key, if the shard is full |
//!
//! Otherwise a dead item stays in the table for its timeout, although another item gets its key. No
//! call finds it.
//!
//! A timeout that expires and does not find its item does nothing. So each item ends once. It makes
//! no difference whether the timeout can still be cancelled or waits in an executor's queue
//! already. And no item is left behind: however the timeout ends, it runs, cancels or drops the
//! [`Expire`], and that [looks for the item](Shard::end). If it was too early to find the item, the
//! thread that puts the item into the table sees under the lock that the timeout has ended, and
//! looks for it then.
//!
//! A later deadline is only stored in the item. When the timeout is due, the timer asks for it
//! ([`postpone`](TimerTask::postpone)). An earlier one is stored, and then the timer is told,
//! without the lock. If another call has stored a still earlier one, the timer is [told
//! again](Shard::settle). So in the end no timeout is later than its item, unless the clock panics.
//!
//! With a lock held, no user code runs except the keys' `Eq` or `Equivalent`, `Clone` of keys in
//! `keys` and of values in `get` and `try_get`, and the closures of `with` and `retain`. Each of
//! these may panic. The items stay where they are until it has returned, so its panic drops no item
//! under the lock. The timer, which calls the clock and the waker, is called without a lock.
//! Removed items are passed on, and dropped, after the lock is released.

use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask};

use super::cause::Cause;
use super::item::Item;
use super::output::Output;
use super::panics::{Panic, drop_panic, first_of};
use super::shard::{Items, Leaving, Shard};
use super::time::Now;
use crate::sync::{Arc, MutexGuard, panicking};

/// Cancels the timeouts of removed items, and passes the items on. If one panics, the others are
/// passed on first. Must be called without a lock held.
///
/// All timeouts are cancelled before the first item is dropped, because dropping a key may panic.
pub(super) fn end_all<K, V>(
    mut removed: Vec<Leaving<K, V>>,
    output: &Output<K, V>,
) -> Option<Panic> {
    removed.iter_mut().for_each(|leaving| leaving.item.cancel());
    first_of(
        removed
            .into_iter()
            .filter_map(|leaving| catch_unwind(AssertUnwindSafe(|| output.pass_on(leaving))).err()),
    )
}

/// Puts an item into the table. Releases the lock, calls `then`, and passes on the items for which
/// there is no room. If the timeout of the item has ended meanwhile, its task has not found the
/// item. So this does what the task would have done. The error is the first panic.
pub(super) fn put<K, V, R>(
    shard: &Arc<Shard<K, V>>,
    mut items: MutexGuard<'_, Items<K, V>>,
    item: Item<K, V>,
    then: impl FnOnce() -> R,
) -> Result<R, Panic> {
    let hash = item.hash;
    // The task that does not find the item has locked the shard before. Then this is true.
    let ended = item.has_ended().then(|| item.timeout().clone());
    let removed = items.table.insert(item);
    let removed = shard.leave_all(&mut items, removed, Cause::Evicted);
    drop(items);
    let result = catch_unwind(AssertUnwindSafe(then));
    let evicted = end_all(removed, &shard.output);
    let end = || ended.map(|own| shard.end(hash, &own));
    let second = catch_unwind(AssertUnwindSafe(end)).err();
    match (result, first_of(evicted.into_iter().chain(second))) {
        (result, None) => result,
        (Ok(_), Some(panic)) => Err(panic),
        (Err(panic), Some(second)) => {
            drop_panic(second);
            Err(panic)
        }
    }
}

impl<K, V> Shard<K, V> {
    /// A timeout has ended. Passes its item on, if that is still there. Must be called without a
    /// lock held.
    pub(super) fn end(self: &Arc<Self>, hash: u64, own: &Timeout) {
        // The timeout of a living item expires only if the clock has panicked.
        let now = match own.is_expired() {
            true => Now::default(),
            false => Now::of_or_past(&own.timer()),
        };
        let mut items = self.lock_at(now);
        let item = items.table.remove(hash, |item| item.is_of(own));
        let leaving = item.map(|item| self.leave(&mut items, item, Cause::Stopped));
        // Release the lock first, because the handler, the key and the value are user code.
        drop(items);
        if let Some(leaving) = leaving {
            self.output.pass_on(leaving);
        }
    }

    /// Tells the timer the deadline that a call has stored in an item, until it is not later than
    /// that of the item. If the timeout has ended, so does the item. Must be called without a lock
    /// held.
    pub(super) fn settle(&self, hash: u64, own: &Timeout, mut deadline: u64) {
        while own.reset(Now::of(&own.timer()).until(deadline)) {
            // Another call may have stored an earlier one, and told the timer before this one.
            match self.lock().table.find_own(hash, own) {
                Some(item) if item.deadline < deadline => deadline = item.deadline,
                _ => return,
            }
        }
    }
}

/// Schedules the timeout of an item: [`Arm`](super::shard::Arm).
pub(super) fn arm<K, V, const ON_WORKER: bool>(
    shard: &Arc<Shard<K, V>>,
    timer: &HashedWheelTimer,
    hash: u64,
    delay: Duration,
) -> Result<Timeout, NewTimeoutError>
where
    K: Send + 'static,
    V: Send + 'static,
{
    let shard = Some(Arc::clone(shard));
    let task = Expire::<K, V, ON_WORKER> { shard, hash };
    timer
        .try_new_timeout_task(task, delay)
        .map_err(|mut rejected| {
            // It ends no item: the caller may have reserved the key, for which a handler could
            // wait.
            rejected.task.shard = None;
            rejected.error
        })
}

/// The timer's task of an item.
struct Expire<K, V, const ON_WORKER: bool> {
    /// `None` once the timeout has ended.
    shard: Option<Arc<Shard<K, V>>>,
    hash: u64,
}

impl<K, V, const ON_WORKER: bool> Expire<K, V, ON_WORKER> {
    /// The timeout has ended. A call that has removed its item has cancelled it.
    fn end(&mut self, own: &Timeout) {
        if let Some(shard) = self.shard.take() {
            shard.end(self.hash, own);
        }
    }
}

impl<K, V, const ON_WORKER: bool> TimerTask for Expire<K, V, ON_WORKER>
where
    K: Send + 'static,
    V: Send + 'static,
{
    const RUNS_ON_WORKER: bool = ON_WORKER;
    const POSTPONES: bool = true;

    /// If this returns `None`, no call finds the item alive: the present of the table does not go
    /// back.
    fn postpone(&self, own: &Timeout) -> Option<Duration> {
        let (timer, shard) = (own.timer(), self.shard.as_ref()?);
        let mut items = shard.lock_at(Now::exactly_or_past(&timer));
        let Items { table, reserved } = &mut *items;
        let (now, is_reserved) = (table.now(), reserved.contains(self.hash));
        let deadline = match table.find_own(self.hash, own) {
            Some(item) if item.is_alive(now) => item.deadline,
            // It has replaced one that is being written, and is written after that. Or a call has
            // it as an entry, and may touch it.
            found if is_reserved && (found.is_none() || shard.output.reserves_keys) => {
                return Some(timer.tick_duration());
            }
            _ => return None,
        };
        drop(items);
        // The clock is read again, because this may have waited for the lock.
        Some(Now::of(&timer).until(deadline))
    }

    fn run(mut self, own: &Timeout) {
        self.end(own);
    }

    fn cancelled(mut self, own: &Timeout) {
        self.end(own);
    }
}

/// The executor has dropped the task, or the clock has panicked before the timer had it. Which item
/// is its own is unknown, so this looks for all items with this hash whose timeouts have ended.
impl<K, V, const ON_WORKER: bool> Drop for Expire<K, V, ON_WORKER> {
    fn drop(&mut self) {
        let Some(shard) = self.shard.take() else {
            return;
        };
        let ended = || shard.lock().table.ended(self.hash);
        let end = |own| catch_unwind(AssertUnwindSafe(|| shard.end(self.hash, &own))).err();
        let panic = first_of(iter::from_fn(ended).filter_map(end));
        match panic {
            // The panic hook has reported it.
            Some(panic) if panicking() => drop_panic(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}
