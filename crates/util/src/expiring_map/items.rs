//! The items of a map, and how each of them ends.
//!
//! An *item* is a key, a value, a deadline and a timeout. The clock decides until when it lives.
//! The timeout only says when the map has to pass it on. An item is in the table of its shard. The
//! thread that removes it from there, under the lock of the shard, owns the value, and decides how
//! it ends. Until an item is in the table, the call that makes it owns it.
//!
//! | from | to | by |
//! |---|---|---|
//! | – | table | [`insert`], once there is a timeout, if that has not ended already |
//! | – | passed on | `insert`, if the timeout has ended meanwhile |
//! | – | returned | `insert`, if a living item has the key and must not be replaced |
//! | table, alive or dead | started | the timeout: its task has the item |
//! | table, alive or dead | passed on | the timeout: cancelled by `stop` or `cancel_all`, or its task dropped by the executor; or the drop of the map |
//! | table, dead | passed on | `insert`, if the shard is full |
//! | table, alive | replaced, removed | `insert`, `remove`, `retain`, `clear`, `drain` |
//! | table, alive | evicted | `insert` of another key, if the shard is full |
//!
//! Otherwise a dead item stays in the table for its timeout, although another item gets its key. No
//! call finds it.
//!
//! A timeout that expires and does not find its item does nothing. So each item ends once. It makes
//! no difference whether the timeout can still be cancelled or waits in an executor's queue
//! already. And no item is left behind: however the timeout ends, it starts or drops the
//! [`Expire`], and that removes the item. If it was too early to find the item, `insert` sees under
//! the lock that the timeout has ended.
//!
//! With a lock held, no user code runs except the keys' `Eq` or `Equivalent`, `Clone` of keys in
//! `keys` and of values in `get` and `try_get`, the closures of `with` and `retain`, and where an
//! item gets a later deadline the clock. Each of these may panic. The items stay where they are
//! until it has returned, so its panic drops no item under the lock. Otherwise the timer, which
//! calls the clock and the waker, is called without a lock. Removed items are passed on, and
//! dropped, after the lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask, TryNewTimeoutError};

use super::cause::Cause;
use super::item::{Item, New};
use super::output::Output;
use super::panics::{Panic, first_of};
use super::shard::{Leaving, Shard};
use super::table::Left;
use super::time::Now;
use crate::sync::Arc;

/// Cancels the timeouts of removed items, and passes the items on. If one panics, the others are
/// passed on first. Must be called without a lock held.
///
/// All timeouts are cancelled before the first item is dropped, because dropping a key may panic.
pub(super) fn end_all<K, V>(
    mut removed: Vec<Leaving<K, V>>,
    output: &Output<K, V>,
    now: Now,
    cause: Cause,
) -> Option<Panic> {
    removed.iter_mut().for_each(|leaving| leaving.item.cancel());
    first_of(removed.into_iter().filter_map(|leaving| {
        let cause = leaving.item.cause_at(now, cause);
        catch_unwind(AssertUnwindSafe(|| output.pass_on(leaving, cause))).err()
    }))
}

/// What became of a new item.
pub(super) enum Inserted<K, V> {
    /// It is in the map, or its time has come. It has replaced a living item of its key, with this
    /// value.
    Yes(Option<V>),
    /// It is not: a living item has the key.
    Occupied(K, V),
}

/// Inserts an item. Removes the living item of its key, unless the new one must not replace it. If
/// there is none, and the shard is full, removes another item, or the new one if it is dead
/// already.
///
/// Returns the key and the value if a call or a handler has reserved the key.
///
/// If a key's `Eq` panics, the new item ends, and the table is unchanged.
pub(super) fn insert<K: Eq, V>(
    shard: &Arc<Shard<K, V>>,
    timer: &HashedWheelTimer,
    mut new: New<K, V>,
    replaces: bool,
) -> Result<Inserted<K, V>, (K, V)> {
    let (hash, output) = (new.item().hash, &shard.output);
    let has_key = |other: &Item<K, V>| other.has_key(&new.item().entry.key);
    let Ok(mut items) = shard.try_lock_key(hash, timer, has_key) else {
        return Err(new.take().into_pair());
    };
    if !replaces && items.table.find(hash, has_key).is_some() {
        drop(items);
        let (key, value) = new.take().into_pair();
        return Ok(Inserted::Occupied(key, value));
    }
    let now = items.table.now();
    // The task that does not find the item has locked the shard before. Then this is true.
    let has_ended = new.item().has_ended();
    let Left { replaced, removed } = match has_ended {
        true => Left {
            replaced: items.table.remove_living(hash, has_key),
            removed: Vec::new(),
        },
        false => items.table.put(&mut new),
    };
    let ended = has_ended.then(|| new.take());
    let removed = shard.leave_all(&mut items, removed);
    let mut leave = |item| shard.leave(&mut items, item);
    let (replaced, ended) = (replaced.map(&mut leave), ended.map(leave));
    drop(items);
    let panic = end_all(removed, output, now, Cause::Evicted);
    let end_replaced = || replaced.and_then(|old| output.end_replaced(old));
    let replaced = catch_unwind(AssertUnwindSafe(end_replaced));
    if let Some(ended) = ended {
        let cause = ended.item.cause_of_end(now);
        output.pass_on(ended, cause);
    }
    let (replaced, second) = match replaced {
        Ok(replaced) => (replaced, None),
        Err(panic) => (None, Some(panic)),
    };
    match first_of(panic.into_iter().chain(second)) {
        None => Ok(Inserted::Yes(replaced)),
        Some(panic) => resume_unwind(panic),
    }
}

/// The timer's task of an item. However the timeout ends, it removes the item.
pub(super) struct Expire<K, V, const ON_WORKER: bool> {
    /// `None` once the timeout has ended.
    pub(super) shard: Option<Arc<Shard<K, V>>>,
    pub(super) hash: u64,
}

impl<K, V, const ON_WORKER: bool> Expire<K, V, ON_WORKER> {
    /// The timer has rejected the task. It ends no item: the caller may have reserved the key, for
    /// which a handler could wait.
    pub(super) fn reject(mut rejected: TryNewTimeoutError<Self>) -> NewTimeoutError {
        rejected.task.shard = None;
        rejected.error
    }
}

type Found<K, V> = (Leaving<K, V>, Now, Arc<Shard<K, V>>);

impl<K, V, const ON_WORKER: bool> Expire<K, V, ON_WORKER> {
    /// Removes the item that passes the test, if it is still there. Returns the present too, as the
    /// shard has seen it, and the shard.
    fn remove(&mut self, test: impl Fn(&Item<K, V>) -> bool) -> Option<Found<K, V>> {
        let shard = self.shard.take()?;
        let mut items = shard.lock();
        let item = items.table.remove(self.hash, test)?;
        let (leaving, now) = (shard.leave(&mut items, item), items.table.now());
        // Release the lock first, because the clock, the handler, the key and the value are user
        // code.
        drop(items);
        Some((leaving, now, shard))
    }
}

impl<K, V, const ON_WORKER: bool> TimerTask for Expire<K, V, ON_WORKER>
where
    K: Send + 'static,
    V: Send + 'static,
{
    const RUNS_ON_WORKER: bool = ON_WORKER;

    fn run(mut self, own: &Timeout) {
        if let Some((leaving, _, shard)) = self.remove(|item| item.timeout() == own) {
            shard.output.pass_on(leaving, Cause::Expired);
        }
    }
}

/// The timeout was cancelled by `stop` or `cancel_all`, or the executor has dropped the task. Which
/// item is its own is unknown, so this ends all items with this hash whose timeouts have ended.
/// Their own tasks will not find them. (The map itself removes an item before it cancels the
/// timeout.)
impl<K, V, const ON_WORKER: bool> Drop for Expire<K, V, ON_WORKER> {
    fn drop(&mut self) {
        while let Some((leaving, now, shard)) = self.remove(Item::has_ended) {
            self.shard = Some(Arc::clone(&shard));
            let cause = leaving.item.cause_of_end(now);
            shard.output.pass_on(leaving, cause);
        }
    }
}
