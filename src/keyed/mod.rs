//! Timeouts by key, with or without a value. How the entries end is in `items.rs`.

mod entry;
mod expired;
mod items;
#[cfg(feature = "async")]
mod receiver;
mod table;

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};
use std::{array, fmt, mem};

use self::entry::Entry;
use self::expired::Output;
use self::items::{Current, Expire, Removed, Scheduled, Shard, arm};
use self::table::Table;
use crate::engine::{Shared, Timeout};
use crate::error::{InsertError, NewTimeoutError};
use crate::sync::Arc;
use crate::timer::HashedWheelTimer;

#[cfg(feature = "async")]
pub use self::receiver::ExpiredEntries;

/// How many locks the keys are divided among. Keys of different shards do not contend.
const SHARDS: usize = if cfg!(hashed_wheel_loom) { 1 } else { 16 };

/// A task of at most this many bytes is moved to the stack when it runs. A larger one is boxed.
const MAX_MOVED: usize = 1_024;

/// When a new timeout is due.
enum When {
    After(Duration),
    At(Instant),
}

/// A map whose entries expire: sessions, leases, heartbeats, requests by their id.
///
/// Each entry has a key, a value and a timeout. The value is under the same lock as its timeout, so
/// the two are never out of step. There are two kinds of maps:
///
/// | | with values: `KeyedTimeouts<K, V>` | without: `KeyedTimeouts<K>` |
/// |---|---|---|
/// | made by | [`with_handler`](Self::with_handler), [`with_batch_handler`](Self::with_batch_handler), `with_receiver` (feature `async`) | [`new`](KeyedTimeouts::new) |
/// | a new timeout | [`insert`](Self::insert): returns the old value | [`schedule`](KeyedTimeouts::schedule): with a task of its own |
/// | re-arm | [`touch`](Self::touch) | [`reset`](KeyedTimeouts::reset) |
/// | end it early | [`remove`](Self::remove): returns the value | [`cancel`](KeyedTimeouts::cancel) |
/// | when it expires | the handler or the receiver gets key and value | the task gets the key |
///
/// Both have [`contains`](Self::contains), [`remaining`](Self::remaining), [`len`](Self::len),
/// [`keys`](Self::keys), [`retain`](Self::retain) and [`clear`](Self::clear). [`with`](Self::with)
/// gives access to a value.
///
/// # Guarantees
///
/// Each value comes out once: `remove` returns it, `insert` returns it because it was replaced, the
/// handler or the receiver gets it, or it is dropped. It is dropped by `retain`, by `clear`, by the
/// drop of the map, when the timer is stopped, and if a task executor drops the task of an expired
/// entry.
///
/// When `insert`, `remove`, `schedule` or `cancel` has returned, the handler or task of the entry
/// that was under the key before does not begin any more. (If it had begun, the key was free
/// already, and the return value says so.) This goes further than
/// [`Timeout::cancel`](crate::Timeout::cancel): it also holds for an expired entry that waits in
/// the queue of a [task executor](crate::TaskExecutor).
///
/// # A map of your own beside this one
///
/// The guarantees cover this map only. Do not keep values by the same keys in a map of your own
/// beside a `KeyedTimeouts<K>`. For example:
///
/// 1. A session falls due. Its task begins, and waits for the lock of your map.
/// 2. A packet comes for this session. Its thread has the lock, finds the session, finds no timeout
///    to `reset`, and schedules a new one.
/// 3. The task gets the lock and removes the session.
///
/// Now there is a timeout without a session, and a live session was lost. Put the session into this
/// map as a value instead.
///
/// # Handles
///
/// This type is a handle. Clones refer to the same map. Dropping the last one ends all entries of
/// the map; it does not wait for a task or handler that has begun. A map counts as a handle of its
/// timer.
///
/// A task that holds a clone keeps the map alive until the task ends. A handler that holds a clone
/// keeps the map, and its timer, alive permanently. So does a task that holds a clone and schedules
/// itself again each time. Give them a [`Weak`](std::sync::Weak) instead, a handler by
/// [`Arc::new_cyclic`](std::sync::Arc::new_cyclic):
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
/// among a few locks.
///
/// The keys' `Eq` and `Clone` and the closures of [`with`](Self::with) and [`retain`](Self::retain)
/// run under the lock. They must not use the same map: that can deadlock.
///
/// Everything else may use the map: tasks, handlers, clocks, wakers, the keys' `Hash`, and the
/// `Drop` of keys, values and tasks. `Drop` runs without the lock even if `Eq`, `Clone` or a
/// closure panics, except for a value that the closure itself replaces. If `Hash` or `Eq` panics in
/// `insert` or `schedule`, the old entry stays.
///
/// # Large keys and values
///
/// The map stores each entry in memory of its own, and the worker moves only a pointer to it. But a
/// handler of [`with_handler`](Self::with_handler) gets its arguments by value. They are on the
/// stack of the thread that runs the handler, in a debug build twice. The worker's stack is 2 MiB
/// by [default](crate::Builder::thread_stack_size). Box a value that is larger than half a
/// mebibyte.
///
/// # Examples
///
/// Sessions that end after 30 seconds of silence:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts, ManualClock};
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
/// let sessions = KeyedTimeouts::with_handler(&timer, move |user, session: Session| {
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
pub struct KeyedTimeouts<K, V = ()> {
    owner: Arc<Owner<K, V>>,
}

/// What the handles share. Items hold their shard and not this, so the last handle drops it.
struct Owner<K, V> {
    timer: HashedWheelTimer,
    hasher: RandomState,
    shards: [Arc<Shard<K, V>>; SHARDS],
    expires_on_worker: bool,
}

/// Maps without values: each timeout has a task of its own.
impl<K> KeyedTimeouts<K> {
    /// Makes an empty map without values. Its timeouts belong to `timer`.
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
        Self::with_output(timer, Output::none())
    }
}

/// Maps without values: each timeout has a task of its own.
impl<K: Hash + Eq> KeyedTimeouts<K> {
    /// Schedules `task` under `key`, to run once, `delay` from now. Cancels the timeout that was
    /// under `key`, and returns whether there was one.
    ///
    /// The task receives `key`. By then the key is free: this task or another can be scheduled
    /// under it.
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
        K: Send + 'static,
    {
        self.schedule_by(key, task, When::After(delay))
    }

    /// Re-arms the timeout under `key`: it is now due `delay` from now, earlier or later than
    /// before.
    ///
    /// Returns false, and changes nothing, if there is none or its time has come. Then use
    /// [`schedule`](Self::schedule).
    ///
    /// It costs one lookup and one [`Timeout::reset`](crate::Timeout::reset), gives the same
    /// guarantee as that, and allocates nothing of its own.
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
        self.touch(key, delay)
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
        self.remove(key).is_some()
    }

    /// Schedules `task` under `key`, to run once, at `deadline`.
    ///
    /// This is [`schedule`](Self::schedule) with a deadline, which is converted as by
    /// [`new_timeout_at`](HashedWheelTimer::new_timeout_at): one that has passed is due now.
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
        K: Send + 'static,
    {
        self.schedule_by(key, task, When::At(deadline))
    }

    fn schedule_by<F>(&self, key: K, task: F, when: When) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
        K: Send + 'static,
    {
        if size_of::<F>() > MAX_MOVED {
            // A call through `dyn` runs the task in its box.
            let task: Box<dyn FnOnce(K) + Send> = Box::new(task);
            self.schedule_named::<_, F>(key, task, when)
        } else {
            self.schedule_named::<_, F>(key, task, when)
        }
    }

    /// Schedules a task, which reports name as of type `N`.
    fn schedule_named<F, N>(&self, key: K, task: F, when: When) -> Result<bool, NewTimeoutError>
    where
        F: FnOnce(K) + Send + 'static,
        K: Send + 'static,
        N: 'static,
    {
        let (shard, hash) = self.place(&key);
        let timer = &self.owner.timer;
        let replaced = arm(shard, hash, Entry::new(key, ()), |registration| {
            let task = Scheduled::<_, _, N>::new(registration, task);
            match when {
                When::After(delay) => timer.new_timeout_task(task, delay),
                When::At(deadline) => timer.new_timeout_task_at(task, deadline),
            }
        });
        Ok(replaced?.is_some())
    }

    /// Re-arms the timeout under `key`: it is now due at `deadline`, earlier or later than before.
    ///
    /// This is [`reset`](Self::reset) with a deadline, which is converted as by
    /// [`schedule_at`](Self::schedule_at). That method has an example.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let leases = KeyedTimeouts::new(&timer);
    /// leases.schedule("ada", |_: &_| println!("expired"), Duration::from_secs(30))?;
    /// let end_of_day = timer.now() + Duration::from_secs(3_600);
    /// assert!(leases.reset_at("ada", end_of_day));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn reset_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        self.touch_at(key, deadline)
    }
}

impl<K, V> KeyedTimeouts<K, V> {
    /// Makes an empty map. When an entry expires, `handler` gets its key and its value.
    ///
    /// The handler runs as a task of `timer`: on the worker, or by the [task
    /// executor](crate::Builder::task_executor). It may run on several threads at a time. When it
    /// runs, the key is free: it may insert the entry again. A panic is reported and counted. It is
    /// what `evictionListener` is in Caffeine, for expired entries only.
    ///
    /// To send the entries to a channel, move the sender into the handler: see the
    /// [example](Self#examples) of the type.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let leases = KeyedTimeouts::with_handler(&timer, |file: String, holder: u32| {
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

    /// Makes an empty map. `handler` gets all entries that expire in one turn of the worker at
    /// once, in the order in which they expire.
    ///
    /// For work that is cheaper for many entries than for each: one transaction, one message, one
    /// lock. The handler is called at the end of the turn, after the tasks of other timeouts, if
    /// any entry has expired. Until then the entries are in no map: [`remove`](Self::remove)
    /// returns `None`.
    ///
    /// The handler runs on the worker, also if the timer has a [task
    /// executor](crate::Builder::task_executor), so it should be short. A panic is reported and
    /// counted.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts, ManualClock};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let (sender, batches) = mpsc::channel();
    /// let leases = KeyedTimeouts::with_batch_handler(&timer, move |expired| drop(sender.send(expired)));
    /// leases.insert(1, "one", Duration::from_secs(1))?;
    /// leases.insert(2, "two", Duration::from_secs(2))?;
    /// leases.insert(3, "three", Duration::from_secs(9))?;
    ///
    /// clock.advance(Duration::from_secs(2));
    /// driver.turn();
    /// assert_eq!(batches.try_recv()?, [(1, "one"), (2, "two")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_batch_handler<F>(timer: &HashedWheelTimer, handler: F) -> Self
    where
        F: Fn(Vec<(K, V)>) + Send + Sync + 'static,
        K: Send + 'static,
        V: Send + 'static,
    {
        Self::with_output(timer, Output::batch(handler))
    }

    /// Makes an empty map, and the receiver of its expired entries, for async code. Needs feature
    /// `async`.
    ///
    /// The worker moves the entries into the receiver, also if the timer has a [task
    /// executor](crate::Builder::task_executor). Once there, an entry is not in the map any more:
    /// [`remove`](Self::remove) returns `None`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(1)).build()?;
    /// let (sessions, mut silent) = KeyedTimeouts::with_receiver(&timer);
    /// sessions.insert("ada", 17, Duration::from_millis(5))?;
    /// assert_eq!(silent.recv().await, Some(("ada", 17)));
    /// drop(sessions);
    /// assert_eq!(silent.recv().await, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "async")]
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
        self.owner.shards.iter().map(|shard| shard.items.lock().current.len()).sum()
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

    /// Returns the keys that have an entry, in no particular order.
    ///
    /// It takes one lock after the other, and clones the keys under it. While other threads use the
    /// map, these are not necessarily the keys at any one moment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
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

    /// Ends all entries. Their values and tasks are dropped. Returns how many there were.
    ///
    /// An entry that another thread makes meanwhile may stay. The call does not wait for a task or
    /// a handler that has begun.
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
    /// assert_eq!(sessions.clear(), 2);
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn clear(&self) -> usize {
        self.owner.clear()
    }
}

impl<K: Hash + Eq, V> KeyedTimeouts<K, V> {
    /// Inserts an entry that expires `delay` from now. Returns the value that was under the key.
    ///
    /// The timeout of the replaced entry is cancelled. When this has returned, the handler does not
    /// get the old value any more. The new key replaces the old one, unlike in `HashMap::insert`.
    ///
    /// The old timeout is cancelled only when the new one exists, so both count for a moment. Under
    /// a [limit](crate::Builder::max_pending_timeouts) there must be room for one more.
    /// ([`touch`](Self::touch) needs no room.)
    ///
    /// In a map made by [`new`](KeyedTimeouts::new) an inserted key disappears when it expires.
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](HashedWheelTimer::new_timeout). The error returns the key and the
    /// value, and the old entry is unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// let sessions = KeyedTimeouts::with_handler(&timer, |_: &str, ip: &str| println!("{ip} was silent"));
    /// assert_eq!(sessions.insert("ada", "10.0.0.7", Duration::from_secs(30))?, None);
    /// assert_eq!(sessions.insert("ada", "10.0.0.8", Duration::from_secs(30))?, Some("10.0.0.7"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        self.insert_by(Entry::new(key, value), |timer| timer.deadline_after(delay))
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
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let leases = KeyedTimeouts::with_handler(&timer, |_: &str, _: u64| ());
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
        self.insert_by(Entry::new(key, value), |timer| timer.time.at_or_now(deadline))
    }

    fn insert_by(
        &self,
        entry: Entry<K, V>,
        deadline: impl FnOnce(&Shared) -> u64,
    ) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let Owner { timer, expires_on_worker, .. } = &*self.owner;
        let shared = &timer.shared;
        let (shard, hash) = self.place(entry.key());
        arm(shard, hash, entry, |registration| match expires_on_worker {
            true => shared.schedule_by(Expire::<_, _, true>(registration), deadline(shared)),
            false => shared.schedule_by(Expire::<_, _, false>(registration), deadline(shared)),
        })
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
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let packets = KeyedTimeouts::with_handler(&timer, |_: &str, _: u64| ());
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
    /// [`Timeout::reset`](crate::Timeout::reset), and allocates nothing of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = KeyedTimeouts::with_handler(&timer, |_: &str, _: u64| ());
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
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let sessions = KeyedTimeouts::with_handler(&timer, |user: &str, _: u32| println!("{user} was silent"));
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
    /// come and it waits in the queue of a [task executor](crate::TaskExecutor).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = KeyedTimeouts::with_handler(&timer, |_: &str, _: u64| ());
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
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let sessions = KeyedTimeouts::with_handler(&timer, |_: u32, _: &str| ());
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
            for (hash, current) in items.current.iter_mut() {
                let item = current.item;
                let (key, value) = current.entry.parts();
                if !keep(key, value) {
                    rejected.push((hash, item));
                }
            }
            removed.0.extend(rejected.iter().filter_map(|&(hash, item)| items.remove_current(hash, item)));
        }
    }

    /// Returns the time left until the entry under `key` expires; `None` if there is no entry.
    ///
    /// See [`Timeout::remaining`](crate::Timeout::remaining).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, KeyedTimeouts};
    /// # use std::time::Duration;
    /// # let sessions = KeyedTimeouts::new(&HashedWheelTimer::default());
    /// sessions.schedule("ada", |_| (), Duration::from_secs(30))?;
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

    /// Returns whether there is an entry under `key`: neither its task nor the handler has begun.
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
    fn clear(&self) -> usize {
        let all =
            self.shards.each_ref().map(|shard| mem::replace(&mut shard.items.lock().current, Table::new()));
        Removed(all.into_iter().flat_map(Table::into_items).collect()).0.len()
    }
}

impl<K, V> Drop for Owner<K, V> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<K, V> Clone for KeyedTimeouts<K, V> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<K, V> fmt::Debug for KeyedTimeouts<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTimeouts").field("timer", &self.owner.timer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::keyed::table::MAX_IDLE;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn maps_shrink_after_a_burst() {
        const KEYS: usize = 50_000;
        const LEFT: usize = 10;
        const DELAY: Duration = Duration::from_secs(1);

        let clock = ManualClock::new();
        let (timer, mut driver) =
            HashedWheelTimer::builder().clock(clock.clone()).build_driven().expect("a driven timer");
        let keyed = KeyedTimeouts::new(&timer);
        let room = || keyed.owner.shards.iter().map(|shard| shard.items.lock().current.room()).sum::<usize>();
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
            let most = SHARDS * 2 * MAX_IDLE;
            assert!(room() <= most, "room for {}", room());
        }
    }
}
