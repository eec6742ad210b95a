//! Timeouts by key.
//!
//! What one call of [`schedule`](KeyedTimeouts::schedule) is about is an *item*. Its timeout is no more than its alarm clock:
//! what becomes of it is decided under the lock of its key's shard, by whoever takes it out of where it is.
//!
//! | from | to | who |
//! |---|---|---|
//! | – | coming | `schedule`, before there is a timeout |
//! | coming | placed under its key | `schedule`, once there is one; takes out what was there |
//! | coming | running | the timeout, which was faster; does the rest of `schedule`'s work |
//! | coming | dropped | the timeout, which was refused, cancelled by `stop`, or dropped by the executor |
//! | placed | running | the timeout |
//! | placed | dropped | the timeout, cancelled by `stop` or dropped by the executor |
//! | placed | replaced, cancelled | `schedule`, `cancel`, `clear` |
//!
//! Whoever comes to an item that is in neither place came too late: a timeout that expires then does not run the task. So
//! each item has one end, and at most one is under a key at a time. It is the same whether a timeout can still be cancelled
//! or waits in an executor's queue already; and nothing stays in either place, for whatever end the timeout has, the
//! [`Ticket`] in its task learns of it.
//!
//! With a lock held nothing of the user's runs but the keys' `Hash` and `Eq`: not the clock nor the waker, which the timer
//! calls, and no `Drop`, for what was taken out goes when the lock is given back.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;
use std::{array, fmt, mem};

use crate::error::NewTimeoutError;
use crate::sync::{Arc, CachePadded, Mutex};
use crate::task::TimerTask;
use crate::timeout::Timeout;
use crate::timer::HashedWheelTimer;

/// So many callers can be busy with different keys at a time.
const SHARDS: usize = if cfg!(hashed_wheel_loom) { 1 } else { 16 };

/// At most one timeout for each key: sessions, leases, heartbeats, requests by their id.
///
/// Who keeps [`Timeout`]s in a map of their own has to see to it that the map and the timer agree: that what is replaced is
/// cancelled, that what has fired is taken out, and that neither happens to the one that came after it. This is that map.
/// [`schedule`](Self::schedule) replaces what was there, [`reset`](Self::reset) re-arms it, [`cancel`](Self::cancel) ends it;
/// once a task begins, or the timer is stopped, its key is free.
///
/// When `schedule` or `cancel` has returned, what was there under the key before does not begin to run any more. (If it
/// has begun, the key was free already, and they say so.) That goes further than [`Timeout::cancel`]: it is true of a task
/// that waits in a [task executor](crate::TaskExecutor)'s queue as well.
///
/// This is a handle; clones name the same map. When the last one is dropped, all that is left is cancelled; a task that has
/// begun is not waited for. It counts as a handle of its timer.
///
/// # Tasks that schedule again
///
/// A task that holds a clone keeps the map alive until it ends, and one that puts itself there again and again keeps it for
/// good. Give it a [`Weak`](std::sync::Weak) instead:
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
/// Each call takes a lock, which those share whose keys fall to the same of a few shards, for as long as an access to a
/// `HashMap` takes. The keys' `Hash` and `Eq` run under it: they must not panic, nor use the same `KeyedTimeouts`. Tasks,
/// clocks, wakers and whatever is dropped may.
///
/// # Examples
///
/// Sessions that end after half a minute of silence:
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
/// // Once a packet:
/// assert!(sessions.reset("ada", SILENCE));
/// // And logs out:
/// assert!(sessions.cancel("ada"));
/// assert!(sessions.is_empty());
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
pub struct KeyedTimeouts<K> {
    owner: Arc<Owner<K>>,
}

/// What goes with the last handle. Items hold their shard and not this.
struct Owner<K> {
    timer: HashedWheelTimer,
    hasher: RandomState,
    shards: [Arc<Shard<K>>; SHARDS],
}

type Shard<K> = CachePadded<Mutex<Items<K>>>;

struct Items<K> {
    /// The number of the next one.
    next: u64,
    /// Of calls that are under way: few.
    coming: Vec<Coming>,
    placed: HashMap<K, Placed>,
}

struct Coming {
    item: u64,
    /// Whether it has replaced another one, once it has begun to run.
    begun: Option<bool>,
}

struct Placed {
    item: u64,
    timeout: Timeout,
}

impl<K> KeyedTimeouts<K> {
    /// An empty map, whose timeouts will be this timer's.
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        let shards = array::from_fn(|_| Arc::new(Shard::new(Mutex::new(Items::new()))));
        let owner = Owner { timer: timer.clone(), hasher: RandomState::new(), shards };
        Self { owner: Arc::new(owner) }
    }

    /// How many keys have a timeout. Where others are at work meanwhile, that is of no moment in particular.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owner.shards.iter().map(|shard| shard.lock().placed.len()).sum()
    }

    /// Whether no key has one; see [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [Cancels](Self::cancel) all that is there. What is scheduled meanwhile may stay; a task that has begun is not waited
    /// for.
    pub fn clear(&self) {
        self.owner.clear();
    }
}

impl<K: Hash + Eq> KeyedTimeouts<K> {
    /// Puts `task` under `key`, to run once, `delay` from now. What was there is cancelled; says whether anything was.
    ///
    /// The task gets a key back that is equal to this one. By then the key is free, for this task or another one.
    ///
    /// What was there is only given up when the new timeout is there, so for a moment both count: under a
    /// [limit](crate::Builder::max_pending_timeouts), there has to be room for one more. ([`reset`](Self::reset) needs none.)
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](HashedWheelTimer::new_timeout). The task has been dropped then, and what was there is as it was.
    pub fn schedule<F>(&self, key: K, task: F, delay: Duration) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
        K: Clone + Send + 'static,
    {
        let (shard, copy) = (self.shard(&key), key.clone());
        let item = shard.lock().announce();
        let ticket = Ticket { shard: Arc::clone(shard), key: Some(copy), item };
        let timeout = self.owner.timer.new_timeout_task(Keyed { ticket, task }, delay)?;

        let mut items = shard.lock();
        let coming = items.arrived(item);
        if let Some(Coming { begun: Some(has_replaced), .. }) = coming {
            return Ok(has_replaced);
        }
        let old = items.placed.remove_entry(&key);
        if coming.is_some() {
            items.placed.insert(key, Placed { item, timeout });
        }
        drop(items);
        Ok(old.is_some_and(end))
    }

    /// Re-arms what is under `key`: it is now due `delay` from now, whether that is later or earlier than before. False, and
    /// nothing happens, if nothing is there or its time has come: then [`schedule`](Self::schedule) does it.
    ///
    /// The price of a lookup and a [`Timeout::reset`], with the same guarantee; nothing is allocated.
    pub fn reset<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let shard = self.shard(key);
        let mut tried = None;
        loop {
            let timeout = match shard.lock().placed.get(key) {
                // It was replaced meanwhile, or has not been tried.
                Some(placed) if tried != Some(placed.item) => {
                    tried = Some(placed.item);
                    placed.timeout.clone()
                }
                _ => return false,
            };
            if timeout.reset(delay) {
                return true;
            }
        }
    }

    /// Takes out what is under `key`, which then does not run. False if nothing was.
    ///
    /// When it returns true, the task has been dropped, on this thread, unless it was with a
    /// [task executor](crate::TaskExecutor) already, which then drops it where it would have run.
    pub fn cancel<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let out = self.shard(key).lock().placed.remove_entry(key);
        out.is_some_and(end)
    }

    /// Whether anything is under `key`: a task that has not begun.
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.shard(key).lock().placed.contains_key(key)
    }

    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> &Arc<Shard<K>> {
        let Owner { hasher, shards, .. } = &*self.owner;
        &shards[hasher.hash_one(key) as usize % shards.len()]
    }
}

/// Of what was taken out: true, for it was. Not to be called with a lock held.
fn end<K>((_key, placed): (K, Placed)) -> bool {
    // If it is too late for that, its ticket is.
    placed.timeout.cancel();
    true
}

impl<K> Items<K> {
    fn new() -> Self {
        Self { next: 0, coming: Vec::new(), placed: HashMap::new() }
    }

    /// An item is coming.
    fn announce(&mut self) -> u64 {
        let item = self.next;
        self.next += 1;
        self.coming.push(Coming { item, begun: None });
        item
    }

    /// It is not coming any more.
    fn arrived(&mut self, item: u64) -> Option<Coming> {
        let at = self.coming.iter().position(|coming| coming.item == item)?;
        Some(self.coming.swap_remove(at))
    }
}

impl<K: Hash + Eq> Items<K> {
    /// Takes the item out, if it is there.
    fn take(&mut self, key: &K, item: u64) -> Option<(K, Placed)> {
        let is_there = self.placed.get(key).is_some_and(|placed| placed.item == item);
        if is_there { self.placed.remove_entry(key) } else { None }
    }
}

impl<K> Owner<K> {
    fn clear(&self) {
        let all = self.shards.each_ref().map(|shard| mem::take(&mut shard.lock().placed));
        // All of them, before the first key is dropped: that may panic.
        all.iter().flat_map(HashMap::values).for_each(|placed| {
            placed.timeout.cancel();
        });
    }
}

impl<K> Drop for Owner<K> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the timer has of an item.
struct Keyed<K: Hash + Eq, F> {
    // Dropped first: the key is free when the task's own `Drop` runs.
    ticket: Ticket<K>,
    task: F,
}

impl<K, F> TimerTask for Keyed<K, F>
where
    K: Hash + Eq + Send + 'static,
    F: FnOnce(K) + Send + 'static,
{
    fn run(self, _: &Timeout) {
        if let Some(key) = self.ticket.begin() {
            (self.task)(key);
        }
    }
}

/// Goes with an item's task, and takes the item out when that ends.
struct Ticket<K: Hash + Eq> {
    shard: Arc<Shard<K>>,
    /// `None` once it is out.
    key: Option<K>,
    item: u64,
}

impl<K: Hash + Eq> Ticket<K> {
    /// The time has come: gives the key, if the task is to run.
    fn begin(mut self) -> Option<K> {
        let key = self.key.take()?;
        let mut items = self.shard.lock();
        let Items { coming, placed, .. } = &mut *items;
        let (runs, out) = match coming.iter_mut().find(|coming| coming.item == self.item) {
            Some(coming) => {
                let old = placed.remove_entry(&key);
                coming.begun = Some(old.is_some());
                (true, old)
            }
            None => {
                let own = items.take(&key, self.item);
                (own.is_some(), own)
            }
        };
        drop(items);
        out.map(end);
        runs.then_some(key)
    }
}

impl<K: Hash + Eq> Drop for Ticket<K> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let mut items = self.shard.lock();
        let out = match items.arrived(self.item) {
            Some(_) => None,
            None => items.take(&key, self.item),
        };
        drop(items);
        drop(out);
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
