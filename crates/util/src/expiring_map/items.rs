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
//! | table, dead | passed on | any call for its key, if the output reserves keys |
//! | table | table, or as by `insert` | `entry`, which takes it out and puts it back |
//! | table, alive | replaced, removed | `insert`, `remove`, `retain`, `clear`, `drain` |
//! | table, alive | evicted | `insert` of another key, if the shard is full |
//!
//! Otherwise a dead item stays in the table for its timeout, although another item gets its key. No
//! call finds it. If an older entry of its key is being written back, an item that leaves is passed
//! on after that.
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
//! again](Shard::settle). While a call has the item, neither finds it. Then the timer [asks
//! again](super::shard::ask_again) when the call gives it back. So in the end no timeout is later
//! than its item, unless the clock panics.
//!
//! With a lock held, no user code runs except the keys' `Eq` or `Equivalent`, `Clone` of keys in
//! `keys` and of values in `get` and `try_get`, and the closures of `with` and `retain`. Each of
//! these may panic. The items stay where they are until it has returned, so its panic drops no item
//! under the lock. The timer, which calls the clock and the waker, is called without a lock.
//! Removed items are passed on, and dropped, after the lock is released.

use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask};

use super::cause::Cause;
use super::item::Item;
use super::panics::Panics;
use super::shard::Shard;
use super::table::Table;
use super::time::Now;
use crate::deadlines::Deadlines;
use crate::sync::{Arc, MutexGuard, panicking};

impl<K, V> Shard<K, V> {
    /// Puts an item into the table. Releases the lock, calls `then`, and passes on the items for
    /// which there is no room. If the timeout of the item has ended meanwhile, its task has not
    /// found the item. So this does what the task would have done.
    pub(super) fn put<R>(
        self: &Arc<Self>,
        mut table: MutexGuard<'_, Table<K, V>>,
        item: Item<K, V>,
        then: impl FnOnce() -> R,
    ) -> (Option<R>, Panics) {
        let hash = item.hash;
        // The task that does not find the item has locked the shard before. Then this is true.
        let ended = item.has_ended().then(|| item.timeout().clone());
        let removed = table.insert(item);
        let removed = self.leave_all(&mut table, removed, Cause::Evicted);
        drop(table);
        let mut panics = Panics::default();
        let result = panics.catch(then);
        self.output.pass_on_all(removed, &mut panics);
        if let Some(own) = ended {
            panics.catch(|| self.end(hash, &own));
        }
        (result, panics)
    }

    /// A timeout has ended. Passes its item on, if that is still there. Must be called without a
    /// lock held.
    fn end(self: &Arc<Self>, hash: u64, own: &Timeout) {
        // The timeout of a living item expires only if the clock has panicked.
        let now = match own.is_expired() {
            true => Now::default(),
            false => Now::of_or_past(&own.timer()),
        };
        let mut table = self.lock_at(now);
        let item = table.remove(hash, |item| item.is_of(own));
        let leaving = item.map(|item| self.leave(&mut table, item, Cause::Stopped));
        // Release the lock first, because the handler, the key and the value are user code.
        drop(table);
        if let Some(leaving) = leaving {
            self.output.pass_on(leaving);
        }
    }

    /// Tells the timer the deadline that a call has stored in an item, until it is not later than
    /// that of the item. If the timeout has ended, so does the item. Must be called without a lock
    /// held.
    pub(super) fn settle(&self, hash: u64, own: &Timeout, mut deadline: u64) {
        while own.reset(Now::of(&own.timer()).until(deadline)) {
            let mut table = self.lock();
            match table.find_own(hash, own) {
                // Another call may have stored an earlier one, and told the timer before this one.
                Some(item) if item.deadline < deadline => deadline = item.deadline,
                Some(_) => return,
                // The same, and a third call has the item.
                None => {
                    table.ask_later(hash, own);
                    return;
                }
            }
        }
    }
}

/// The timer asks for an item whose key is reserved when the key is free, and after this time. So a
/// shutdown waits for such an item within its grace, as for others that are due.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Schedules the timeout of an item.
pub(super) fn arm<K: Send + 'static, V: Send + 'static, const ON_WORKER: bool>(
    shard: &Arc<Shard<K, V>>,
    timer: &HashedWheelTimer,
    hash: u64,
    delay: Duration,
) -> Result<Timeout, NewTimeoutError> {
    let shard = Some(Arc::clone(shard));
    let task = Expire::<K, V, ON_WORKER> { shard, hash };
    let result = timer.try_new_timeout_task(task, delay);
    result.map_err(|mut rejected| {
        // It ends no item: the caller may have reserved the key, for which a handler could wait.
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

impl<K: Send + 'static, V: Send + 'static, const ON_WORKER: bool> TimerTask
    for Expire<K, V, ON_WORKER>
{
    const RUNS_ON_WORKER: bool = ON_WORKER;
    const POSTPONES: bool = true;

    /// If this returns `None`, no call finds the item alive: the present of the table does not go
    /// back.
    fn postpone(&self, own: &Timeout) -> Option<Duration> {
        let (timer, shard) = (own.timer(), self.shard.as_ref()?);
        // The time itself, which takes longer to read than its bounds.
        let now = timer.now_nanos();
        let (earliest, latest) = (now, now);
        let mut table = shard.lock_at(Now { earliest, latest });
        let (now, is_reserved) = (table.now, table.reserved.contains_key(&self.hash));
        let deadline = match table.find_own(self.hash, own) {
            Some(item) if item.is_alive(now) => item.deadline,
            // It has replaced one that is being written, and is written after that. Or a call has
            // it as an entry, and may touch it.
            found if is_reserved && (found.is_none() || shard.output.reserves_keys) => {
                table.ask_later(self.hash, own);
                return Some(ASK_AGAIN);
            }
            _ => return None,
        };
        drop(table);
        // The clock is read again, because this may have waited for the lock.
        Some(Now::of(&timer).until(deadline))
    }

    fn run(mut self, own: &Timeout) {
        if let Some(shard) = self.shard.take() {
            shard.end(self.hash, own);
        }
    }

    /// A call that has removed the item has cancelled the timeout, or the timer does.
    fn cancelled(self, own: &Timeout) {
        self.run(own);
    }
}

/// The executor has dropped the task, or the clock has panicked before the timer had it. Which item
/// is its own is unknown, so this looks for all items with this hash whose timeouts have ended.
impl<K, V, const ON_WORKER: bool> Drop for Expire<K, V, ON_WORKER> {
    fn drop(&mut self) {
        let Some(shard) = self.shard.take() else {
            return;
        };
        let mut panics = Panics::default();
        let ended = || shard.lock().ended(self.hash);
        while let Some(own) = ended() {
            panics.catch(|| shard.end(self.hash, &own));
        }
        if !panicking() {
            panics.resume();
        }
    }
}
