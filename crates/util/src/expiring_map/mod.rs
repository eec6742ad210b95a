//! A map whose entries expire. How the entries end is in `items.rs`.

mod entry;
mod error;
mod expired;
mod items;
mod receiver;
mod table;

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};
use std::{array, fmt, mem};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

use self::entry::Entry;
use self::expired::Output;
use self::items::{Current, Expire, Registration, Removed, Shard, arm};
use self::table::Table;
use crate::sync::Arc;

pub use self::error::InsertError;
pub use self::receiver::ExpiredEntries;

/// How many locks the keys are divided among. Keys of different shards do not contend.
const SHARDS: usize = 16;

/// A map whose entries expire: sessions, leases, heartbeats, requests by their id.
///
/// Each entry has a key, a value and a timeout. The value is under the same lock as its timeout, so
/// the two are never out of step. An entry that is due is removed from the map, and goes where the
/// constructor of the map says:
///
/// | made by | an expired entry |
/// |---|---|
/// | [`with_handler`](Self::with_handler) | a function gets its key and its value |
/// | [`with_receiver`](Self::with_receiver) | async code receives it, one by one or many at a time |
/// | [`new`](Self::new) | is dropped |
///
/// # Guarantees
///
/// Each value comes out once: `remove` returns it, `insert` returns it because it was replaced,
/// `drain` returns it, the handler or the receiver gets it, or it is dropped. It is dropped by
/// `retain`, by `clear`, by the drop of the map, when the timer is stopped, and if a task executor
/// drops the task of an expired entry.
///
/// When `insert` or `remove` has returned, the handler does not begin any more for the entry that
/// was under the key before. (If it had begun, the key was free already, and the return value says
/// so.) This goes further than [`Timeout::cancel`]: it also holds for an expired entry that waits
/// in the queue of a [task executor](hashed_wheel::TaskExecutor).
///
/// # A task per entry
///
/// For a task of its own for each entry, the value is the task:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// use hashed_wheel_util::ExpiringMap;
/// use std::time::Duration;
///
/// type Task = Box<dyn FnOnce(u32) + Send>;
///
/// let timer = HashedWheelTimer::default();
/// let requests = ExpiringMap::with_handler(&timer, |id: u32, task: Task| task(id));
/// requests.insert(7, Box::new(|id| println!("no answer to {id}")), Duration::from_secs(5))?;
/// // The answer arrives in time:
/// assert!(requests.remove(&7).is_some());
/// # Ok::<(), NewTimeoutError>(())
/// ```
///
/// # A map of your own beside this one
///
/// The guarantees cover this map only. Do not keep values by the same keys in a map of your own
/// beside one without values. For example:
///
/// 1. A session falls due. Its handler begins, and waits for the lock of your map.
/// 2. A packet comes for this session. Its thread has the lock, finds the session, finds no entry
///    to `touch`, and inserts a new one.
/// 3. The handler gets the lock and removes the session.
///
/// Now there is an entry without a session, and a live session was lost. Put the session into this
/// map as its value instead.
///
/// # Handles
///
/// This type is a handle. Clones refer to the same map. Dropping the last one ends all entries of
/// the map; it does not wait for a handler that has begun. A map counts as a handle of its timer.
///
/// A handler that holds a clone keeps the map, and its timer, alive permanently. Give it a
/// [`Weak`](std::sync::Weak) instead, by [`Arc::new_cyclic`](std::sync::Arc::new_cyclic):
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use hashed_wheel_util::ExpiringMap;
/// use std::sync::{Arc, Weak};
/// use std::time::Duration;
///
/// const EVERY: Duration = Duration::from_secs(10);
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let peers = Arc::new_cyclic(|peers: &Weak<ExpiringMap<u32, u64>>| {
///     let peers = peers.clone();
///     ExpiringMap::with_handler(&timer, move |peer, beats| {
///         println!("are you there, {peer}? ({beats})");
///         if let Some(peers) = peers.upgrade() {
///             // An error here means that the timer was stopped.
///             let _ = peers.insert(peer, beats + 1, EVERY);
///         }
///     })
/// });
/// peers.insert(7, 0, EVERY)?;
/// for _ in 0..3 {
///     clock.advance(EVERY);
///     assert_eq!(driver.turn(), 1);
/// }
/// drop(peers);
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Locks
///
/// Each call takes a lock, for as long as one access to a `HashMap` takes. The keys are divided
/// among a few locks.
///
/// The keys' `Eq` and `Clone` and the closures of [`with`](Self::with) and [`retain`](Self::retain)
/// run under the lock. They must not use the same map: that can deadlock.
///
/// Everything else may use the map: handlers, clocks, wakers, the keys' `Hash`, and the `Drop` of
/// keys and values. `Drop` runs without the lock even if `Eq`, `Clone` or a closure panics, except
/// for a value that the closure itself replaces. If `Hash` or `Eq` panics in `insert`, the old
/// entry stays.
///
/// # Large keys and values
///
/// The map stores each entry in memory of its own, and the worker moves only a pointer to it. But a
/// handler of [`with_handler`](Self::with_handler) gets its arguments by value. They are on the
/// stack of the thread that runs the handler, in a debug build twice. The worker's stack is 2 MiB
/// by [default](hashed_wheel::Builder::thread_stack_size). Box a value that is larger than half a
/// mebibyte.
///
/// # Examples
///
/// Sessions that end after 30 seconds of silence:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use hashed_wheel_util::ExpiringMap;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// const SILENCE: Duration = Duration::from_secs(30);
///
/// struct Session {
///     packets: u64,
/// }
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let (sender, silent) = mpsc::channel();
/// let sessions = ExpiringMap::with_handler(&timer, move |user, session: Session| {
///     let _ = sender.send((user, session.packets));
/// });
///
/// // A user logs in, perhaps not for the first time:
/// let old = sessions.insert("ada", Session { packets: 0 }, SILENCE)?;
/// assert!(old.is_none());
/// // For each packet:
/// assert!(sessions.touch("ada", SILENCE));
/// sessions.with("ada", |session| session.packets += 1);
/// // Silence:
/// clock.advance(SILENCE);
/// driver.turn();
/// assert_eq!(silent.try_recv()?, ("ada", 1));
/// // The user logs out, too late:
/// assert!(sessions.remove("ada").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ExpiringMap<K, V = ()> {
    owner: Arc<Owner<K, V>>,
}

/// What the handles share. Items hold their shard and not this, so the last handle drops it.
struct Owner<K, V> {
    timer: HashedWheelTimer,
    hasher: RandomState,
    shards: [Arc<Shard<K, V>>; SHARDS],
    expires_on_worker: bool,
}

impl<K, V> ExpiringMap<K, V> {
    /// Makes an empty map, whose expired entries are dropped. Its timeouts belong to `timer`.
    ///
    /// # Examples
    ///
    /// A request with the same id is answered once in a minute:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// let seen = ExpiringMap::<u64, ()>::new(&HashedWheelTimer::default());
    /// let mut is_new = |id| seen.insert(id, (), Duration::from_secs(60)).map(|old| old.is_none());
    /// assert!(is_new(7)? && !is_new(7)?);
    /// # Ok::<(), hashed_wheel_util::InsertError<u64, ()>>(())
    /// ```
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        Self::with_output(timer, Output::none())
    }

    /// Makes an empty map. When an entry expires, `handler` gets its key and its value.
    ///
    /// The handler runs as a task of `timer`: on the worker, or by the [task
    /// executor](hashed_wheel::Builder::task_executor). It may run on several threads at a time.
    /// When it runs, the key is free: it may insert the entry again. A panic is reported and
    /// counted. It is what `evictionListener` is in Caffeine, for expired entries only.
    ///
    /// To send the entries to a channel, move the sender into the handler: see the
    /// [example](Self#examples) of the type.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::ExpiringMap;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let leases = ExpiringMap::with_handler(&timer, |file: String, holder: u32| {
    ///     println!("{holder} has lost its lease of {file}");
    /// });
    /// leases.insert("log".to_owned(), 7, Duration::from_secs(60))?;
    /// assert_eq!(leases.remove("log"), Some(7));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn with_handler<F>(timer: &HashedWheelTimer, handler: F) -> Self
    where
        F: Fn(K, V) + Send + Sync + 'static,
    {
        Self::with_output(timer, Output::handler(handler))
    }

    /// Makes an empty map, and the receiver of its expired entries, for async code.
    ///
    /// The worker moves the entries into the receiver, also if the timer has a [task
    /// executor](hashed_wheel::Builder::task_executor). Once there, an entry is not in the map any
    /// more: [`remove`](Self::remove) returns `None`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::ExpiringMap;
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(1)).build()?;
    /// let (sessions, mut silent) = ExpiringMap::with_receiver(&timer);
    /// sessions.insert("ada", 17, Duration::from_millis(5))?;
    /// assert_eq!(silent.recv().await, Some(("ada", 17)));
    /// drop(sessions);
    /// assert_eq!(silent.recv().await, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_receiver(timer: &HashedWheelTimer) -> (Self, ExpiredEntries<K, V>)
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let (sender, expired) = receiver::channel();
        (Self::with_output(timer, Output::sender(sender)), expired)
    }

    fn with_output(timer: &HashedWheelTimer, output: Output<K, V>) -> Self {
        let (output, expires_on_worker) = (Arc::new(output.expired), output.runs_on_worker);
        let shards = array::from_fn(|_| Arc::new(Shard::new(Arc::clone(&output))));
        let owner = Owner { timer: timer.clone(), hasher: RandomState::new(), shards, expires_on_worker };
        Self { owner: Arc::new(owner) }
    }

    /// Returns how many entries there are.
    ///
    /// While other threads use the map, this is not necessarily the number at any one moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let sessions = ExpiringMap::new(&HashedWheelTimer::default());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// sessions.insert("ada", 17, Duration::from_secs(60))?;
    /// assert_eq!(sessions.len(), 1);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.owner.shards.iter().map(|shard| shard.items.lock().current.len()).sum()
    }

    /// Returns whether there is no entry. See [`len`](Self::len).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let sessions = ExpiringMap::new(&HashedWheelTimer::default());
    /// assert!(sessions.is_empty());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert!(!sessions.is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the keys that have an entry, in no particular order.
    ///
    /// It takes one lock after the other, and clones the keys under it. While other threads use the
    /// map, these are not necessarily the keys at any one moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let sessions = ExpiringMap::new(&HashedWheelTimer::default());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert_eq!(sessions.keys(), ["ada"]);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        let mut keys = Vec::new();
        for shard in &self.owner.shards {
            keys.extend(shard.items.lock().current.items().map(|current| current.entry.key().clone()));
        }
        keys
    }

    /// Ends all entries, and drops their values. Returns how many there were.
    ///
    /// An entry that another thread makes meanwhile may stay. The call does not wait for a handler
    /// that has begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = ExpiringMap::new(&timer);
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// sessions.insert("grace", 17, Duration::from_secs(30))?;
    /// assert_eq!(sessions.clear(), 2);
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn clear(&self) -> usize {
        self.owner.take_all().0.len()
    }

    /// Removes all entries, cancels their timeouts, and returns them, in no particular order.
    /// `HashMap::drain`.
    ///
    /// An entry that another thread makes meanwhile may stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = ExpiringMap::with_handler(&timer, |_: &str, _: u64| ());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert_eq!(sessions.drain(), [("ada", 17)]);
    /// assert!(sessions.is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn drain(&self) -> Vec<(K, V)> {
        let mut all = self.owner.take_all();
        all.cancel();
        mem::take(&mut all.0).into_iter().map(|current| current.entry.into_pair()).collect()
    }
}

impl<K: Hash + Eq, V> ExpiringMap<K, V> {
    /// Inserts an entry that expires `delay` from now. Returns the value that was under the key.
    ///
    /// The timeout of the replaced entry is cancelled. When this has returned, the handler does not
    /// get the old value any more. The new key replaces the old one, unlike in `HashMap::insert`.
    ///
    /// The old timeout is cancelled only when the new one exists, so both count for a moment. Under
    /// a [limit](hashed_wheel::Builder::max_pending_timeouts) there must be room for one more.
    /// ([`touch`](Self::touch) needs no room.)
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](HashedWheelTimer::new_timeout). The error returns the key and the
    /// value, and the old entry is unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// let sessions = ExpiringMap::with_handler(&timer, |_: &str, ip: &str| println!("{ip} was silent"));
    /// assert_eq!(sessions.insert("ada", "10.0.0.7", Duration::from_secs(30))?, None);
    /// assert_eq!(sessions.insert("ada", "10.0.0.8", Duration::from_secs(30))?, Some("10.0.0.7"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let timer = &self.owner.timer;
        self.insert_by(Entry::new(key, value), |registration, on_worker| match on_worker {
            true => timer.new_timeout_task(Expire::<_, _, true>(registration), delay),
            false => timer.new_timeout_task(Expire::<_, _, false>(registration), delay),
        })
    }

    /// Inserts an entry that expires at `deadline`. Returns the value that was under the key.
    /// `DelayQueue::insert_at` of tokio-util.
    ///
    /// This is [`insert`](Self::insert) with a deadline, which is converted as by
    /// [`new_timeout_at`](HashedWheelTimer::new_timeout_at): one that has passed is due now.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let leases = ExpiringMap::with_handler(&timer, |_: &str, _: u64| ());
    /// let end = timer.now() + Duration::from_secs(30);
    /// leases.insert_at("ada", 17, end)?;
    /// // The lease is extended:
    /// assert!(leases.touch_at("ada", end + Duration::from_secs(30)));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert_at(&self, key: K, value: V, deadline: Instant) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let timer = &self.owner.timer;
        self.insert_by(Entry::new(key, value), |registration, on_worker| match on_worker {
            true => timer.new_timeout_task_at(Expire::<_, _, true>(registration), deadline),
            false => timer.new_timeout_task_at(Expire::<_, _, false>(registration), deadline),
        })
    }

    fn insert_by(
        &self,
        entry: Entry<K, V>,
        schedule: impl FnOnce(Registration<K, V>, bool) -> Result<Timeout, NewTimeoutError>,
    ) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let (shard, hash) = self.place(entry.key());
        arm(shard, hash, entry, |registration| schedule(registration, self.owner.expires_on_worker))
    }

    /// Returns a clone of the value under `key`; `None` if there is no entry. `HashMap::get`, and a
    /// clone because another thread may remove the entry.
    ///
    /// [`with`](Self::with) gives access to the value itself. `Clone` runs under the lock: it must
    /// not use the map, which can deadlock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = ExpiringMap::with_handler(&timer, |_: &str, _: &str| ());
    /// sessions.insert("ada", "10.0.0.7", Duration::from_secs(30))?;
    /// assert_eq!(sessions.get("ada"), Some("10.0.0.7"));
    /// assert_eq!(sessions.get("grace"), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
        V: Clone,
    {
        self.with(key, |value| value.clone())
    }

    /// Calls `access` with the value under `key`, and returns its result; `None` if there is no
    /// entry.
    ///
    /// `access` runs under the lock, so the entry does not expire meanwhile. It should be short and
    /// must not use the map, which can deadlock. If it panics, the entry stays as `access` has left
    /// it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let packets = ExpiringMap::with_handler(&timer, |_: &str, _: u64| ());
    /// packets.insert("ada", 0, Duration::from_secs(30))?;
    /// packets.with("ada", |count| *count += 1);
    /// assert_eq!(packets.with("ada", |count| *count), Some(1));
    /// assert_eq!(packets.with("grace", |count| *count), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn with<Q, R>(&self, key: &Q, access: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let (shard, hash) = self.place(key);
        let mut items = shard.items.lock();
        let current = items.current.find_mut(hash, |current| current.has_key(key))?;
        Some(access(current.entry.parts().1))
    }

    /// Re-arms the entry under `key`: it now expires `delay` from now, earlier or later than
    /// before. `DelayQueue::reset` of tokio-util.
    ///
    /// Returns false, and changes nothing, if there is none or its time has come. Then the value
    /// has gone to the handler or is about to, unless [`insert`](Self::insert) or
    /// [`remove`](Self::remove) comes first and returns it.
    ///
    /// When it returns true, the entry does not expire before. It costs one lookup and one
    /// [`Timeout::reset`](hashed_wheel::Timeout::reset), and allocates nothing of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = ExpiringMap::with_handler(&timer, |_: &str, _: u64| ());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert!(sessions.touch("ada", Duration::from_secs(30)));
    /// assert!(!sessions.touch("grace", Duration::from_secs(30)));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn touch<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.touch_by(key, |timeout| timeout.reset(delay))
    }

    /// Re-arms the entry under `key`: it now expires at `deadline`, earlier or later than before.
    /// `DelayQueue::reset_at` of tokio-util.
    ///
    /// This is [`touch`](Self::touch) with a deadline, which is converted as by
    /// [`insert_at`](Self::insert_at). That method has an example.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let sessions = ExpiringMap::with_handler(&timer, |user: &str, _: u32| println!("{user} was silent"));
    /// sessions.insert("ada", 1, Duration::from_secs(30))?;
    /// assert!(sessions.touch_at("ada", timer.now() + Duration::from_secs(60)));
    /// assert!(!sessions.touch_at("bob", timer.now()));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn touch_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.touch_by(key, |timeout| timeout.reset_at(deadline))
    }

    fn touch_by<Q>(&self, key: &Q, reset: impl Fn(&Timeout) -> bool) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let (shard, hash) = self.place(key);
        let mut tried = None;
        loop {
            let timeout = match shard.items.lock().current.find(hash, |current| current.has_key(key)) {
                // Not tried yet: the first item, or one that has replaced the item that was tried.
                Some(current) if tried != Some(current.item) => {
                    tried = Some(current.item);
                    current.timeout.clone()
                }
                _ => return false,
            };
            if reset(&timeout) {
                return true;
            }
        }
    }

    /// Removes the entry under `key`, cancels its timeout, and returns its value. Returns `None` if
    /// there is no entry.
    ///
    /// When it returns a value, the handler does not get it any more, even if the entry's time has
    /// come and it waits in the queue of a [task executor](hashed_wheel::TaskExecutor).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = ExpiringMap::with_handler(&timer, |_: &str, _: u64| ());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert_eq!(sessions.remove("ada"), Some(17));
    /// assert_eq!(sessions.remove("ada"), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let (shard, hash) = self.place(key);
        let removed = shard.items.lock().current.remove(hash, |current| current.has_key(key));
        removed.map(Current::cancel)
    }

    /// Keeps the entries for which `keep` returns true. Removes the others, cancels their timeouts,
    /// and drops their values. `HashMap::retain`.
    ///
    /// It takes one lock after the other. `keep` runs under the lock: it should be short and must
    /// not use the map, which can deadlock. To have the values that are removed, move them out
    /// through the `&mut V`.
    ///
    /// If `keep` panics, the entries under locks that it has not left stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = ExpiringMap::with_handler(&timer, |_: u32, _: &str| ());
    /// sessions.insert(1, "10.0.0.7", Duration::from_secs(30))?;
    /// sessions.insert(2, "192.168.0.7", Duration::from_secs(30))?;
    /// sessions.retain(|_, ip| ip.starts_with("10."));
    /// assert_eq!(sessions.keys(), [1]);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for shard in &self.owner.shards {
            // Declared before the guard, so that keys and values are dropped without the lock.
            let mut removed = Removed(Vec::new());
            let mut rejected = Vec::new();
            let mut items = shard.items.lock();
            for current in items.current.items_mut() {
                let place = (current.hash, current.item);
                let (key, value) = current.entry.parts();
                if !keep(key, value) {
                    rejected.push(place);
                }
            }
            removed.0.extend(rejected.iter().filter_map(|&(hash, item)| items.remove_current(hash, item)));
        }
    }

    /// Returns the time left until the entry under `key` expires; `None` if there is no entry.
    ///
    /// See [`Timeout::remaining`](hashed_wheel::Timeout::remaining).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let sessions = ExpiringMap::new(&HashedWheelTimer::default());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert!(sessions.remaining("ada") > Some(Duration::from_secs(29)));
    /// assert_eq!(sessions.remaining("grace"), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let (shard, hash) = self.place(key);
        let timeout = shard.items.lock().current.find(hash, |current| current.has_key(key))?.timeout.clone();
        Some(timeout.remaining())
    }

    /// Returns whether there is an entry under `key`. `HashMap::contains_key`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let sessions = ExpiringMap::new(&HashedWheelTimer::default());
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert!(sessions.contains_key("ada"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        let (shard, hash) = self.place(key);
        shard.items.lock().current.find(hash, |current| current.has_key(key)).is_some()
    }

    /// Returns the shard of a key, and its hash.
    fn place<Q: Hash + ?Sized>(&self, key: &Q) -> (&Arc<Shard<K, V>>, u64) {
        let Owner { hasher, shards, .. } = &*self.owner;
        let hash = hasher.hash_one(key);
        // A `HashMap` uses the lowest and the highest bits for its own places.
        (&shards[(hash >> 32) as usize % shards.len()], hash)
    }
}

impl<K, V> Owner<K, V> {
    fn take_all(&self) -> Removed<K, V> {
        let all =
            self.shards.each_ref().map(|shard| mem::replace(&mut shard.items.lock().current, Table::new()));
        Removed(all.into_iter().flat_map(Table::into_items).collect())
    }
}

impl<K, V> Drop for Owner<K, V> {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

impl<K, V> Clone for ExpiringMap<K, V> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<K, V> fmt::Debug for ExpiringMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringMap").field("timer", &self.owner.timer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiring_map::table::MAX_IDLE;
    use hashed_wheel::ManualClock;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn maps_shrink_after_a_burst() {
        const KEYS: usize = 50_000;
        const LEFT: usize = 10;
        const DELAY: Duration = Duration::from_secs(1);

        let clock = ManualClock::new();
        let (timer, mut driver) =
            HashedWheelTimer::builder().clock(clock.clone()).build_driven().expect("a driven timer");
        let map = ExpiringMap::new(&timer);
        let room = || map.owner.shards.iter().map(|shard| shard.items.lock().current.room()).sum::<usize>();
        for expire in [false, true] {
            for key in 0..KEYS {
                let delay = if key < LEFT { 9 * DELAY } else { DELAY };
                map.insert(key, (), delay).expect("the timer is not stopped");
            }
            assert!(room() >= KEYS);
            if expire {
                clock.advance(2 * DELAY);
                assert_eq!(driver.turn(), KEYS - LEFT);
            } else {
                assert!((LEFT..KEYS).all(|key| map.remove(&key).is_some()));
            }
            assert_eq!(map.len(), LEFT);
            let most = SHARDS * 2 * MAX_IDLE;
            assert!(room() <= most, "room for {}", room());
        }
    }
}
