//! The shards: the tables of items, their locks, and the reserved keys.
//!
//! A call or a handler reserves a key by its hash, so the key need not be cloned. Another key with
//! the same hash waits too, which is rare and harmless.

use std::collections::VecDeque;
use std::collections::btree_map::Entry as Slot;
use std::mem;
use std::time::Duration;

use equivalent::Equivalent;
use hashed_wheel::{HashedWheelTimer, Timeout};

use super::cause::{Cause, Removed};
use super::error::BeingWritten;
use super::item::{Armed, Item};
use super::output::Output;
use super::panics::Panics;
use super::table::{Limit, Reserved, Table};
use super::time::Now;
use crate::sync::{Arc, Mutex, MutexGuard, Parker};

/// A part of the keys, and their lock. In cache lines of its own: processors prefetch pairs of
/// them.
#[repr(align(128))]
pub(super) struct Shard<K, V> {
    table: Mutex<Table<K, V>>,
    /// Here, because the task of an item has its shard anyway.
    pub(super) output: Arc<Output<K, V>>,
}

/// An item that leaves the map for the output.
pub(super) struct Leaving<K, V> {
    pub(super) timeout: Armed,
    /// `None` if its key was reserved: then it leaves when that is free.
    pub(super) entry: Option<Removed<K, V>>,
    /// If its key is reserved meanwhile, that ends after the entry.
    pub(super) reservation: Option<Reservation<K, V>>,
}

impl<K, V> Shard<K, V> {
    pub(super) fn new(output: Arc<Output<K, V>>, limit: Option<Limit>) -> Self {
        let table = Mutex::new(Table::new(limit));
        Self { table, output }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table<K, V>> {
        self.table.lock()
    }

    /// Takes the lock for a call that has read the clock before.
    ///
    /// The present does not go back: otherwise a call that has waited for the lock could still find
    /// an item alive that another call has found dead.
    pub(super) fn lock_at(&self, now: Now) -> MutexGuard<'_, Table<K, V>> {
        let mut table = self.lock();
        table.now = table.now.max(now);
        table
    }

    /// The same for a call for one key, which fails if a call or a handler has reserved the key. If
    /// the output reserves keys, and the item of the key is dead, that one goes to the output
    /// first. Then the present is later.
    pub(super) fn try_lock_key(
        self: &Arc<Self>,
        hash: u64,
        timer: &HashedWheelTimer,
        mut now: Now,
        key: &(impl Equivalent<K> + ?Sized),
    ) -> Result<MutexGuard<'_, Table<K, V>>, BeingWritten> {
        loop {
            let mut table = self.lock_at(now);
            if table.reserved.contains_key(&hash) {
                return Err(BeingWritten);
            }
            if !self.output.reserves_keys {
                return Ok(table);
            }
            let present = table.now;
            let is_dead = |item: &Item<K, V>| !item.is_alive(present) && key.equivalent(&item.key);
            let Some(dead) = table.remove(hash, is_dead) else {
                return Ok(table);
            };
            let dead = self.leave(&mut table, dead, Cause::Expired);
            drop(table);
            self.output.pass_on(dead);
            now = Now::of(timer);
        }
    }

    /// Waits until the key is not reserved.
    #[cold]
    pub(super) fn wait_for_key(&self, hash: u64) {
        let parker = Parker::new();
        let mut waker = Some(parker.waker());
        let is_reserved = self.lock().wait(hash, &mut waker);
        if is_reserved {
            parker.park();
        }
    }

    /// Reserves a key that is not reserved.
    pub(super) fn reserve(
        self: &Arc<Self>,
        table: &mut Table<K, V>,
        hash: u64,
    ) -> Reservation<K, V> {
        let reserved = Reserved {
            next: VecDeque::new(),
            waiters: Vec::new(),
            timeouts: Vec::new(),
            is_passing_on: false,
            has_ended: false,
        };
        table.reserved.insert(hash, reserved);
        let shard = Arc::clone(self);
        Reservation { shard, hash }
    }

    /// An item was removed for the output: for this cause, if it is alive. If the output demands
    /// it, its key is reserved until the output has done with it. If the key is reserved already,
    /// it leaves after that: otherwise an older value of the key could be written after it.
    pub(super) fn leave(
        self: &Arc<Self>,
        table: &mut Table<K, V>,
        item: Item<K, V>,
        cause: Cause,
    ) -> Leaving<K, V> {
        let cause = match item.is_alive(table.now) {
            true => cause,
            false => Cause::Expired,
        };
        let (key, value, hash) = (item.key, item.value, item.hash);
        let mut leaving = Leaving {
            timeout: item.timeout,
            entry: Some(Removed { key, value, cause }),
            reservation: None,
        };
        if self.output.reserves_keys && self.output.causes.contains(&cause) {
            match table.reserved.get_mut(&hash) {
                Some(reserved) => reserved.next.extend(leaving.entry.take()),
                None => leaving.reservation = Some(self.reserve(table, hash)),
            }
        }
        leaving
    }

    /// [`leave`](Self::leave) for several.
    pub(super) fn leave_all(
        self: &Arc<Self>,
        table: &mut Table<K, V>,
        removed: Vec<Item<K, V>>,
        cause: Cause,
    ) -> Vec<Leaving<K, V>> {
        // `collect` would shrink the allocation of `removed`.
        let mut all = Vec::with_capacity(removed.len());
        for item in removed {
            all.push(self.leave(table, item, cause));
        }
        all
    }

    /// Removes the items that pass the test for the output: see [`Table::take`].
    pub(super) fn take(
        self: &Arc<Self>,
        now: Now,
        cause: Cause,
        test: impl FnMut(&mut Item<K, V>, bool) -> bool,
    ) -> Vec<Leaving<K, V>> {
        let mut table = self.lock_at(now);
        let taken = table.take(test);
        self.leave_all(&mut table, taken, cause)
    }
}

/// A reserved key. Its drop frees the key, or passes on the next entry that waits for it. That must
/// happen without a lock held, because it is user code. If that panics, which the panic hook
/// reports, the rest is done all the same.
pub(super) struct Reservation<K, V> {
    pub(super) shard: Arc<Shard<K, V>>,
    pub(super) hash: u64,
}

impl<K, V> Drop for Reservation<K, V> {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        let reserved = loop {
            let mut table = self.shard.lock();
            let Slot::Occupied(mut slot) = table.reserved.entry(self.hash) else {
                return;
            };
            let reserved = slot.get_mut();
            // In a loop, because several entries may wait: for keys with the same hash. The thread
            // that gives one to the output goes on, be it this one, further up its stack.
            if reserved.is_passing_on {
                reserved.has_ended = true;
                return;
            }
            let Some(entry) = reserved.next.pop_front() else {
                break slot.remove();
            };
            reserved.is_passing_on = true;
            drop(table);
            let (shard, hash) = (Arc::clone(&self.shard), self.hash);
            let next = Some(Self { shard, hash });
            panics.catch(|| (self.shard.output.take)(entry, next));
            let mut table = self.shard.lock();
            let Some(reserved) = table.reserved.get_mut(&self.hash) else {
                return;
            };
            reserved.is_passing_on = false;
            if !mem::take(&mut reserved.has_ended) {
                return;
            }
        };
        // First the timer, because a waker is user code, which may take long.
        for own in &reserved.timeouts {
            panics.catch(|| ask_again(own));
        }
        for waker in reserved.waiters {
            panics.catch(|| waker.wake());
        }
    }
}

/// Makes the timer ask for the deadline of an item again, when a call that has the item gives it
/// back, or when an older entry of its key was written.
fn ask_again(own: &Timeout) {
    let is_asked = Panics::default().catch(|| own.reset(Duration::ZERO));
    // If the clock panics, the item ends.
    if is_asked.is_none() {
        own.cancel();
    }
}
