//! The shards: the tables of items, their locks, and the reserved keys.
//!
//! A call or a handler reserves a key by its hash, so the key need not be cloned. Another key with
//! the same hash waits too, which is rare and harmless.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

use super::cause::Cause;
use super::error::BeingWritten;
use super::item::Item;
use super::output::Output;
use super::panics::drop_panic;
use super::table::{Limit, Table};
use super::time::Now;
use crate::sync::{Arc, Mutex, MutexGuard, Parker};

/// A part of the keys, and their lock. In cache lines of its own: processors prefetch pairs of
/// them.
#[repr(align(128))]
pub(super) struct Shard<K, V> {
    items: Mutex<Items<K, V>>,
    /// Here, because the task of an item has its shard anyway.
    pub(super) output: Arc<Output<K, V>>,
    pub(super) arm: Arm<K, V>,
}

/// Schedules the timeout of an item.
pub(super) type Arm<K, V> =
    fn(&Arc<Shard<K, V>>, &HashedWheelTimer, u64, Duration) -> Result<Timeout, NewTimeoutError>;

/// What the lock of a shard guards.
pub(super) struct Items<K, V> {
    pub(super) table: Table<K, V>,
    pub(super) reserved: ReservedKeys,
}

/// An item that leaves the map for the output. If its key is reserved meanwhile, that ends after
/// the item.
pub(super) struct Leaving<K, V> {
    pub(super) item: Item<K, V>,
    pub(super) cause: Cause,
    pub(super) reservation: Option<Reservation<K, V>>,
}

impl<K, V> Shard<K, V> {
    pub(super) fn new(output: Arc<Output<K, V>>, arm: Arm<K, V>, limit: Limit) -> Self {
        let items = Items {
            table: Table::new(limit),
            reserved: ReservedKeys::default(),
        };
        Self {
            items: Mutex::new(items),
            output,
            arm,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Items<K, V>> {
        self.items.lock()
    }

    /// Takes the lock for a call that has read the clock before.
    pub(super) fn lock_at(&self, now: Now) -> MutexGuard<'_, Items<K, V>> {
        let mut items = self.items.lock();
        items.table.see(now);
        items
    }

    /// The same for a call for one key, which fails if a call or a handler has reserved the key. If
    /// the output reserves keys, and the item of the key is dead, that one goes to the output
    /// first. Then it is a later `now`.
    pub(super) fn try_lock_key(
        self: &Arc<Self>,
        hash: u64,
        timer: &HashedWheelTimer,
        now: &mut Now,
        has_key: impl Fn(&Item<K, V>) -> bool,
    ) -> Result<MutexGuard<'_, Items<K, V>>, BeingWritten> {
        loop {
            let mut items = self.lock_at(*now);
            if items.reserved.contains(hash) {
                return Err(BeingWritten);
            }
            if !self.output.reserves_keys {
                return Ok(items);
            }
            let present = items.table.now();
            let is_dead = |item: &Item<K, V>| !item.is_alive(present) && has_key(item);
            let Some(dead) = items.table.remove(hash, is_dead) else {
                return Ok(items);
            };
            let dead = self.leave(&mut items, dead, Cause::Expired);
            drop(items);
            self.output.pass_on(dead);
            *now = Now::of(timer);
        }
    }

    /// Waits until the key is not reserved.
    #[cold]
    pub(super) fn wait_for_key(&self, hash: u64) {
        let parker = Parker::new();
        let mut waker = Some(parker.waker());
        let is_reserved = self.lock().reserved.wait(hash, &mut waker);
        if is_reserved {
            parker.park();
        }
    }

    /// An item was removed for the output: for this cause, if it is alive. Its key stays reserved
    /// if the output demands it, and gets the item.
    pub(super) fn leave(
        self: &Arc<Self>,
        items: &mut Items<K, V>,
        item: Item<K, V>,
        cause: Cause,
    ) -> Leaving<K, V> {
        let cause = match item.is_alive(items.table.now()) {
            true => cause,
            false => Cause::Expired,
        };
        let reserves = self.output.reserves_keys && self.output.causes.contains(cause);
        let reservation = reserves.then(|| items.reserved.add(self, item.hash));
        Leaving {
            item,
            cause,
            reservation,
        }
    }

    /// Removes the living items that pass the test, except those whose keys are reserved. The test
    /// is user code, and runs under the lock.
    pub(super) fn remove_living(
        self: &Arc<Self>,
        now: Now,
        mut test: impl FnMut(&mut Item<K, V>) -> bool,
    ) -> Vec<Leaving<K, V>> {
        let mut items = self.lock_at(now);
        let Items { table, reserved } = &mut *items;
        let removed = table
            .take(|item, now| item.is_alive(now) && !reserved.contains(item.hash) && test(item));
        self.leave_all(&mut items, removed, Cause::Removed)
    }

    /// [`leave`](Self::leave) for several.
    pub(super) fn leave_all(
        self: &Arc<Self>,
        items: &mut Items<K, V>,
        removed: Vec<Item<K, V>>,
        cause: Cause,
    ) -> Vec<Leaving<K, V>> {
        let removed = removed.into_iter();
        removed.map(|item| self.leave(items, item, cause)).collect()
    }
}

/// The reserved keys of a shard.
#[derive(Default)]
pub(super) struct ReservedKeys(BTreeMap<u64, Reserved>);

#[derive(Default)]
struct Reserved {
    /// How many have reserved keys with this hash.
    count: usize,
    /// Those of the calls that wait.
    waiters: Vec<Waker>,
}

impl ReservedKeys {
    /// Reserves the keys with this hash for one more.
    pub(super) fn add<K, V>(&mut self, shard: &Arc<Shard<K, V>>, hash: u64) -> Reservation<K, V> {
        self.0.entry(hash).or_default().count += 1;
        let shard = Arc::clone(shard);
        Reservation { shard, hash }
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        !self.0.is_empty() && self.0.contains_key(&hash)
    }

    /// If the key is reserved, leaves a waker that is called when it is free.
    pub(super) fn wait(&mut self, hash: u64, waker: &mut Option<Waker>) -> bool {
        let Some(reserved) = self.0.get_mut(&hash) else {
            return false;
        };
        let is_known = |known: &Waker| waker.as_ref().is_some_and(|new| new.will_wake(known));
        if !reserved.waiters.iter().any(is_known) {
            reserved.waiters.extend(waker.take());
        }
        true
    }

    /// Ends one reservation. Returns the wakers to call.
    fn remove(&mut self, hash: u64) -> Vec<Waker> {
        let Some(reserved) = self.0.get_mut(&hash) else {
            return Vec::new();
        };
        reserved.count -= 1;
        match reserved.count {
            0 => self.0.remove(&hash).map_or(Vec::new(), |all| all.waiters),
            _ => Vec::new(),
        }
    }
}

/// A reserved key. Its drop frees the key, and must happen without a lock held.
pub(super) struct Reservation<K, V> {
    pub(super) shard: Arc<Shard<K, V>>,
    pub(super) hash: u64,
}

impl<K, V> Drop for Reservation<K, V> {
    fn drop(&mut self) {
        let waiters = self.shard.lock().reserved.remove(self.hash);
        // Without the lock, because a waker is user code. If one panics, which the panic hook
        // reports, it wakes the others all the same.
        for waker in waiters {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                drop_panic(panic);
            }
        }
    }
}
