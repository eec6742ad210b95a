//! Timeouts by key.
//!
//! Each call of [`schedule`](KeyedTimeouts::schedule) makes one *item*: a key, a task and a
//! timeout. The timeout only says when. What happens to the item is decided under the lock of its
//! key's shard, by the thread that removes it from the place where it is. There are two places: the
//! list of pending items, and the map of current items, which has at most one item per key.
//!
//! | from | to | by |
//! |---|---|---|
//! | – | pending | `schedule`, before the timeout exists |
//! | pending | current | `schedule`, once the timeout exists; removes the item that was current |
//! | pending | running | the timeout, if it expires before `schedule` goes on; removes the item that was current in place of `schedule` |
//! | pending | cancelled | `schedule`, if a key's `Hash` or `Eq` panics; the current item stays |
//! | pending | dropped | the timeout: rejected, cancelled by `stop`, or dropped by the executor |
//! | current | running | the timeout |
//! | current | dropped | the timeout: cancelled by `stop`, or dropped by the executor |
//! | current | replaced, cancelled | `schedule`, `cancel`, `clear` |
//!
//! A timeout that expires and finds its item in neither place is too late: it does not run the
//! task. So each item ends once. It makes no difference whether the timeout can still be cancelled
//! or waits in an executor's queue already. And no item is left behind: however the timeout ends,
//! it starts or drops the [`Registration`] in its task, and that removes the item.
//!
//! With a lock held, no user code runs except the keys' `Hash` and `Eq`. The timer, which calls the
//! clock and the waker, is called without a lock. Removed items are dropped after the lock is
//! released.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};
use std::{array, fmt, mem};

use crate::engine::Timeout;
use crate::error::NewTimeoutError;
use crate::sync::{Arc, CachePadded, Mutex};
use crate::task::TimerTask;
use crate::timer::HashedWheelTimer;

/// How many locks the keys are divided among. Keys of different shards do not contend.
const SHARDS: usize = if cfg!(hashed_wheel_loom) { 1 } else { 16 };

/// A shard's map shrinks if it has room for more keys than this, and for so many times the keys
/// that it has.
const MAX_IDLE_KEYS: usize = 64;
const MAX_ROOM: usize = 8;

/// A map with at most one timeout per key: sessions, leases, heartbeats, requests by their id.
///
/// [`schedule`](Self::schedule) replaces the timeout of a key, [`reset`](Self::reset) re-arms it,
/// and [`cancel`](Self::cancel) ends it. A key is free once its task begins, or once the timer is
/// stopped.
///
/// A program that keeps [`Timeout`]s in a map of its own has to keep the map and the timer
/// consistent: cancel what it replaces, remove what has fired, and never remove a later timeout by
/// mistake. This type does that.
///
/// # Guarantees
///
/// When `schedule` or `cancel` has returned, the task that was under the key before does not begin
/// to run any more. (If it had begun, the key was free already, and the return value says so.) This
/// goes further than [`Timeout::cancel`]: it also holds for a task that waits in the queue of a
/// [task executor](crate::TaskExecutor).
///
/// The guarantees cover this map only. A program that keeps a second map with the same keys, for
/// example of its sessions, has to synchronise that one itself.
///
/// # Handles
///
/// This type is a handle. Clones refer to the same map. Dropping the last one cancels all timeouts
/// of the map; it does not wait for a task that has begun. A map counts as a handle of its timer.
///
/// # Tasks that schedule again
///
/// A task that holds a clone keeps the map alive until the task ends. A task that does so and
/// schedules itself again each time keeps the map alive permanently. Give such a task a
/// [`Weak`](std::sync::Weak) instead:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts, ManualClock};
/// use std::sync::{Arc, Weak};
/// use std::time::Duration;
///
/// const EVERY: Duration = Duration::from_secs(10);
///
/// fn beat(peer: u32, peers: Weak<KeyedTimeouts<u32>>) {
///     println!("are you there, {peer}?");
///     if let Some(peers) = peers.upgrade() {
///         let again = Arc::downgrade(&peers);
///         // An error here means that the timer was stopped.
///         let _ = peers.schedule(peer, |peer| beat(peer, again), EVERY);
///     }
/// }
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let peers = Arc::new(KeyedTimeouts::new(&timer));
/// beat(7, Arc::downgrade(&peers));
/// for _ in 0..3 {
///     clock.advance(EVERY);
///     assert_eq!(driver.turn(), 1);
/// }
/// drop(peers);
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
///
/// # Locks
///
/// Each call takes a lock, for as long as one access to a `HashMap` takes. The keys are divided
/// among a few locks. The keys' `Hash` and `Eq` run under the lock: they must not panic, and must
/// not use the same `KeyedTimeouts`. Tasks, clocks, wakers, and the `Drop` of keys and tasks may
/// use it.
///
/// # Examples
///
/// Sessions that end after 30 seconds of silence:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
/// use std::time::Duration;
///
/// const SILENCE: Duration = Duration::from_secs(30);
///
/// let timer = HashedWheelTimer::default();
/// let sessions = KeyedTimeouts::new(&timer);
///
/// // A user logs in, perhaps not for the first time:
/// let was_there = sessions.schedule("ada", |user| println!("{user} was silent"), SILENCE)?;
/// assert!(!was_there);
/// // For each packet:
/// assert!(sessions.reset("ada", SILENCE));
/// // The user logs out:
/// assert!(sessions.cancel("ada"));
/// assert!(sessions.is_empty());
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
pub struct KeyedTimeouts<K> {
    owner: Arc<Owner<K>>,
}

/// What the handles share. Items hold their shard and not this, so the last handle drops it.
struct Owner<K> {
    timer: HashedWheelTimer,
    hasher: RandomState,
    shards: [Arc<Shard<K>>; SHARDS],
}

type Shard<K> = CachePadded<Mutex<Items<K>>>;

/// The items of one shard.
struct Items<K> {
    /// The number of the next item.
    next: u64,
    /// The items of calls of `schedule` that are in progress: few.
    pending: Vec<Pending>,
    current: HashMap<K, Current>,
}

/// An item whose call of `schedule` is in progress.
struct Pending {
    item: u64,
    /// Set if the task starts before `schedule` goes on: whether it replaced another item.
    started: Option<bool>,
}

/// A pending item whose timeout exists, for the call of `schedule`. If the item does not become
/// current, this ends it. That is so if a key's `Hash` or `Eq` panics, or its task has started.
struct Coming<'a, K> {
    shard: &'a Shard<K>,
    item: u64,
    /// `None` once the item is current.
    timeout: Option<Timeout>,
}

impl<K> Coming<'_, K> {
    fn become_current(&mut self) -> Current {
        let timeout = self.timeout.take().expect("an item becomes current once");
        Current { item: self.item, timeout }
    }
}

/// Must be dropped without a lock held.
impl<K> Drop for Coming<'_, K> {
    fn drop(&mut self) {
        if let Some(timeout) = self.timeout.take() {
            // First: while the item is pending, the registration needs no `Hash` to remove it.
            timeout.cancel();
            self.shard.lock().remove_pending(self.item);
        }
    }
}

/// The item under a key.
struct Current {
    item: u64,
    timeout: Timeout,
}

impl<K> KeyedTimeouts<K> {
    /// Makes an empty map. Its timeouts belong to `timer`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    ///
    /// let timer = HashedWheelTimer::default();
    /// let sessions = KeyedTimeouts::<String>::new(&timer);
    /// assert!(sessions.is_empty());
    /// ```
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        let shards = array::from_fn(|_| Arc::new(Shard::new(Mutex::new(Items::new()))));
        let owner = Owner { timer: timer.clone(), hasher: RandomState::new(), shards };
        Self { owner: Arc::new(owner) }
    }

    /// Returns how many keys have a timeout.
    ///
    /// While other threads use the map, this is not necessarily the number at any one moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
    /// sessions.schedule("ada", |_| (), Duration::from_secs(60))?;
    /// assert_eq!(sessions.len(), 1);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.owner.shards.iter().map(|shard| shard.lock().current.len()).sum()
    }

    /// Returns whether no key has a timeout. See [`len`](Self::len).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// assert!(sessions.is_empty());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
    /// assert!(!sessions.is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [Cancels](Self::cancel) the timeouts of all keys.
    ///
    /// A timeout that another thread schedules meanwhile may stay. The call does not wait for a
    /// task that has begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = KeyedTimeouts::new(&timer);
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
    /// sessions.schedule("grace", |_| (), Duration::from_secs(30))?;
    /// sessions.clear();
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn clear(&self) {
        self.owner.clear();
    }
}

impl<K: Hash + Eq> KeyedTimeouts<K> {
    /// Schedules `task` under `key`, to run once, `delay` from now. Cancels the timeout that was
    /// under `key`, and returns whether there was one.
    ///
    /// The task receives a key that is equal to `key`. By then the key is free: this task or
    /// another can be scheduled under it.
    ///
    /// The old timeout is cancelled only when the new one exists, so both count for a moment. Under
    /// a [limit](crate::Builder::max_pending_timeouts) there must be room for one more.
    /// ([`reset`](Self::reset) needs no room.)
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](HashedWheelTimer::new_timeout). The task has been dropped then, and
    /// the old timeout is unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// let expired = |user| println!("{user} was silent");
    /// assert!(!sessions.schedule("ada", expired, Duration::from_secs(30))?);
    /// // Replaces the first one:
    /// assert!(sessions.schedule("ada", expired, Duration::from_secs(60))?);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn schedule<F>(&self, key: K, task: F, delay: Duration) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
        K: Clone + Send + 'static,
    {
        let (shard, copy) = (self.shard(&key), key.clone());
        let item = shard.lock().add_pending();
        let registration = Registration { shard: Arc::clone(shard), key: Some(copy), item };
        let timeout = self.owner.timer.new_timeout_task(Keyed { registration, task }, delay)?;

        // Before the lock, so that it is dropped without it.
        let mut coming = Coming { shard, item, timeout: Some(timeout) };
        let mut items = shard.lock();
        let old = match items.started(item) {
            Some(Some(has_replaced)) => return Ok(has_replaced),
            Some(None) => items.make_current(key, &mut coming),
            // The timeout has been dropped already.
            None => items.current.remove_entry(&key),
        };
        drop(items);
        Ok(old.is_some_and(cancel_removed))
    }

    /// Re-arms the timeout under `key`: it is now due `delay` from now, earlier or later than
    /// before.
    ///
    /// Returns false, and changes nothing, if there is none or its time has come. Then use
    /// [`schedule`](Self::schedule).
    ///
    /// It costs one lookup and one [`Timeout::reset`], gives the same guarantee as that, and
    /// allocates nothing of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
    /// assert!(sessions.reset("ada", Duration::from_secs(30)));
    /// assert!(!sessions.reset("grace", Duration::from_secs(30)));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn reset<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let shard = self.shard(key);
        let mut tried = None;
        loop {
            let timeout = match shard.lock().current.get(key) {
                // Not tried yet: the first item, or one that has replaced the item that was tried.
                Some(current) if tried != Some(current.item) => {
                    tried = Some(current.item);
                    current.timeout.clone()
                }
                _ => return false,
            };
            if timeout.reset(delay) {
                return true;
            }
        }
    }

    /// Cancels the timeout under `key`. Returns false if there is none.
    ///
    /// When it returns true, the task does not run. It has been dropped on this thread. If a [task
    /// executor](crate::TaskExecutor) had accepted it already, the executor's thread drops it
    /// instead of running it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
    /// assert!(sessions.cancel("ada"));
    /// assert!(!sessions.cancel("ada"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let removed = self.shard(key).lock().remove(key);
        removed.is_some_and(cancel_removed)
    }

    /// Returns whether there is a timeout under `key`, whose task has not begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
    /// assert!(sessions.contains("ada"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.shard(key).lock().current.contains_key(key)
    }

    /// Schedules `task` under `key`, to run once, at `deadline`.
    ///
    /// This is [`schedule`](Self::schedule) with the time that is left until `deadline`, by
    /// [`HashedWheelTimer::now`]. A deadline that has passed is a delay of zero.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// let leases = KeyedTimeouts::new(&timer);
    /// let end = timer.now() + Duration::from_secs(30);
    /// leases.schedule_at("ada", |user| println!("the lease of {user} has run out"), end)?;
    /// // The lease is extended:
    /// assert!(leases.reset_at("ada", end + Duration::from_secs(30)));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn schedule_at<F>(&self, key: K, task: F, deadline: Instant) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
        K: Clone + Send + 'static,
    {
        self.schedule(key, task, deadline.saturating_duration_since(self.owner.timer.now()))
    }

    /// Re-arms the timeout under `key`: it is now due at `deadline`, earlier or later than before.
    ///
    /// This is [`reset`](Self::reset) with a deadline, which is converted as by
    /// [`schedule_at`](Self::schedule_at). That method has an example.
    pub fn reset_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.reset(key, deadline.saturating_duration_since(self.owner.timer.now()))
    }

    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> &Arc<Shard<K>> {
        let Owner { hasher, shards, .. } = &*self.owner;
        &shards[hasher.hash_one(key) as usize % shards.len()]
    }
}

/// Cancels the timeout of an item that was removed from the map. Returns true, because there was
/// one. Must be called without a lock held.
fn cancel_removed<K>((_key, current): (K, Current)) -> bool {
    // If the timeout has expired already, its registration finds the item removed and does not run
    // the task.
    current.timeout.cancel();
    true
}

impl<K> Items<K> {
    fn new() -> Self {
        Self { next: 0, pending: Vec::new(), current: HashMap::new() }
    }

    /// Adds a pending item. Returns its number.
    fn add_pending(&mut self) -> u64 {
        let item = self.next;
        self.next += 1;
        self.pending.push(Pending { item, started: None });
        item
    }

    /// Returns whether the task of a pending item has started, and if so whether it replaced
    /// another item. `None`: the item is not pending any more.
    fn started(&self, item: u64) -> Option<Option<bool>> {
        self.pending.iter().find(|pending| pending.item == item).map(|pending| pending.started)
    }

    /// Removes a pending item, if it is still there.
    fn remove_pending(&mut self, item: u64) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.item == item)?;
        Some(self.pending.swap_remove(at))
    }
}

impl<K: Hash + Eq> Items<K> {
    /// Makes a pending item the current one of its key. Returns what it replaces, and a key that is
    /// not needed. If a key's `Hash` or `Eq` panics, nothing has changed.
    fn make_current(&mut self, key: K, coming: &mut Coming<'_, K>) -> Option<(K, Current)> {
        let old = match self.current.get_mut(&key) {
            Some(old) => Some((key, mem::replace(old, coming.become_current()))),
            None => {
                // (Not by `insert`, which drops the timeout without a cancel if it panics.)
                if let Entry::Vacant(place) = self.current.entry(key) {
                    place.insert(coming.become_current());
                }
                None
            }
        };
        self.remove_pending(coming.item);
        old
    }

    /// Removes the current item of a key, if there is one.
    fn remove<Q>(&mut self, key: &Q) -> Option<(K, Current)>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        // First: if a key's `Hash` panics, the item must stay, because its timeout would not be
        // cancelled.
        self.shrink();
        self.current.remove_entry(key)
    }

    /// Removes the item, if it is the current one of its key. Its timeout has ended.
    fn remove_current(&mut self, key: &K, item: u64) -> Option<(K, Current)> {
        self.current.get(key).filter(|current| current.item == item)?;
        let removed = self.current.remove_entry(key);
        // Last: if a key's `Hash` panics, the item must not stay, because its timeout has ended.
        self.shrink();
        removed
    }

    /// Frees room that is not needed, which calls the `Hash` of all keys.
    fn shrink(&mut self) {
        let (count, room) = (self.current.len(), self.current.capacity());
        // Most of the room was removed since the map grew, so the cost per removal is constant.
        if room > MAX_IDLE_KEYS && count < room / MAX_ROOM {
            self.current.shrink_to(2 * count);
        }
    }
}

impl<K> Owner<K> {
    fn clear(&self) {
        let all = self.shards.each_ref().map(|shard| mem::take(&mut shard.lock().current));
        // Cancel all of them before the first key is dropped, because dropping a key may panic.
        all.iter().flat_map(HashMap::values).for_each(|current| {
            current.timeout.cancel();
        });
    }
}

impl<K> Drop for Owner<K> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The timer's task of an item.
struct Keyed<K: Hash + Eq, F> {
    // First, so that it is dropped first: the key is free when the task's own `Drop` runs.
    registration: Registration<K>,
    task: F,
}

impl<K, F> TimerTask for Keyed<K, F>
where
    K: Hash + Eq + Send + 'static,
    F: FnOnce(K) + Send + 'static,
{
    fn run(self, _: &Timeout) {
        if let Some(key) = self.registration.start() {
            (self.task)(key);
        }
    }
}

/// A guard in the task of an item: it removes the item when the task starts or is dropped.
struct Registration<K: Hash + Eq> {
    shard: Arc<Shard<K>>,
    /// `None` once the item is removed.
    key: Option<K>,
    item: u64,
}

impl<K: Hash + Eq> Registration<K> {
    /// Starts the item because its timeout has expired: removes it, or marks it as started if it is
    /// still pending. Returns the key if the task is to run.
    fn start(mut self) -> Option<K> {
        let key = self.key.take()?;
        let mut items = self.shard.lock();
        let Items { pending, current, .. } = &mut *items;
        let (runs, removed) = match pending.iter_mut().find(|coming| coming.item == self.item) {
            // `schedule` has not gone on yet: do the rest of its work here.
            Some(coming) => {
                // First: if a key's `Hash` panics, `schedule` must not make the item current,
                // because its timeout has ended.
                coming.started = Some(false);
                let old = current.remove_entry(&key);
                coming.started = Some(old.is_some());
                (true, old)
            }
            None => {
                let own = items.remove_current(&key, self.item);
                (own.is_some(), own)
            }
        };
        drop(items);
        removed.map(cancel_removed);
        runs.then_some(key)
    }
}

impl<K: Hash + Eq> Drop for Registration<K> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let mut items = self.shard.lock();
        let removed = match items.remove_pending(self.item) {
            Some(_) => None,
            None => items.remove_current(&key, self.item),
        };
        // Release the lock first, because dropping the key is user code.
        drop(items);
        drop(removed);
    }
}

impl<K> Clone for KeyedTimeouts<K> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<K> fmt::Debug for KeyedTimeouts<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTimeouts").field("timer", &self.owner.timer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::clock::ManualClock;
    use crate::sync::Ordering;
    use crate::sync::unmodelled::AtomicUsize;

    #[test]
    fn maps_shrink_after_a_burst() {
        const KEYS: usize = if cfg!(miri) { 5_000 } else { 50_000 };
        const LEFT: usize = 10;
        const DELAY: Duration = Duration::from_secs(1);

        let clock = ManualClock::new();
        let (timer, mut driver) =
            HashedWheelTimer::builder().clock(clock.clone()).build_driven().expect("a driven timer");
        let keyed = KeyedTimeouts::new(&timer);
        let room = || keyed.owner.shards.iter().map(|shard| shard.lock().current.capacity()).sum::<usize>();
        for expire in [false, true] {
            for key in 0..KEYS {
                let delay = if key < LEFT { 9 * DELAY } else { DELAY };
                keyed.schedule(key, |_| (), delay).expect("the timer is not stopped");
            }
            assert!(room() >= KEYS);
            if expire {
                clock.advance(2 * DELAY);
                assert_eq!(driver.turn(), KEYS - LEFT);
            } else {
                assert!((LEFT..KEYS).all(|key| keyed.cancel(&key)));
            }
            assert_eq!(keyed.len(), LEFT);
            let most = SHARDS * 2 * MAX_IDLE_KEYS;
            assert!(room() <= most, "room for {}", room());
        }
    }

    thread_local! {
        /// The only key that has a hash at present.
        static HASHED: Cell<Option<usize>> = const { Cell::new(None) };
    }

    thread_local! {
        /// Whether the `Eq` of a key panics.
        static UNEQUAL: Cell<bool> = const { Cell::new(false) };
    }

    #[derive(Clone, Eq)]
    struct PanickingKey(usize);

    impl PartialEq for PanickingKey {
        fn eq(&self, other: &Self) -> bool {
            assert!(!UNEQUAL.get(), "the `Eq` of a key panics");
            self.0 == other.0
        }
    }

    impl Hash for PanickingKey {
        fn hash<H: Hasher>(&self, state: &mut H) {
            assert!(HASHED.get().is_none_or(|key| key == self.0), "the `Hash` of a key panics");
            self.0.hash(state);
        }
    }

    #[test]
    fn no_timeout_is_lost_when_a_hash_panics() {
        const KEYS: usize = if cfg!(miri) { 3_000 } else { 10_000 };

        let (timer, _driver) =
            HashedWheelTimer::builder().clock(ManualClock::new()).build_driven().expect("a driven timer");
        let keyed = KeyedTimeouts::new(&timer);
        for key in 0..KEYS {
            keyed.schedule(PanickingKey(key), |_| (), Duration::from_secs(9)).expect("a timeout");
        }
        let mut panics = 0;
        for key in 0..KEYS {
            HASHED.set(Some(key));
            let result = catch_unwind(AssertUnwindSafe(|| keyed.cancel(&PanickingKey(key))));
            HASHED.set(None);
            assert_eq!(keyed.contains(&PanickingKey(key)), result.is_err());
            assert_eq!(timer.pending_timeouts(), keyed.len());
            if result.is_err() {
                panics += 1;
                assert!(keyed.cancel(&PanickingKey(key)));
            }
        }
        assert!(panics >= SHARDS, "each map rehashes its keys when it shrinks: {panics} panics");
    }

    #[test]
    fn schedule_changes_nothing_when_a_hash_panics() {
        const KEYS: usize = 1_000;
        const DELAY: Duration = Duration::from_secs(9);

        let clock = ManualClock::new();
        let (timer, mut driver) =
            HashedWheelTimer::builder().clock(clock.clone()).build_driven().expect("a driven timer");
        let keyed = KeyedTimeouts::new(&timer);
        let runs = Arc::new(AtomicUsize::new(0));
        let schedule = |key| {
            let runs = Arc::clone(&runs);
            keyed.schedule(PanickingKey(key), move |_| _ = runs.fetch_add(1, Ordering::Relaxed), DELAY)
        };
        let mut panics = 0;
        for key in 0..KEYS {
            HASHED.set(Some(key));
            let result = catch_unwind(AssertUnwindSafe(|| schedule(key)));
            HASHED.set(None);
            let has_replaced = result.map(|result| result.expect("a timeout"));
            assert_eq!(keyed.contains(&PanickingKey(key)), has_replaced.is_ok());
            assert_eq!(timer.pending_timeouts(), keyed.len(), "the new timeout is cancelled");
            if has_replaced.is_err() {
                panics += 1;
                assert!(!schedule(key).expect("a timeout"));
            }
        }
        assert!(panics >= SHARDS, "each map rehashes its keys when it grows: {panics} panics");
        // A timeout that cannot be replaced is still there.
        UNEQUAL.set(true);
        assert!(catch_unwind(AssertUnwindSafe(|| schedule(1))).is_err());
        UNEQUAL.set(false);
        assert!(schedule(2).expect("a timeout"));
        assert_eq!((keyed.len(), timer.pending_timeouts()), (KEYS, KEYS));
        assert!(keyed.owner.shards.iter().all(|shard| shard.lock().pending.is_empty()));
        clock.advance(2 * DELAY);
        assert_eq!(driver.turn(), KEYS);
        assert_eq!(runs.load(Ordering::Relaxed), KEYS, "each task runs once");
        assert!(keyed.is_empty());
    }
}
