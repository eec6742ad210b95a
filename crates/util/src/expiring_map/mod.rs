//! A map whose entries expire. How the entries end is in `items.rs`.

mod builder;
mod by_key;
mod cause;
pub(crate) mod entry;
mod error;
mod item;
mod items;
mod output;
mod panics;
mod receiver;
mod room;
mod shard;
mod table;
mod time;
mod whole;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use foldhash::fast::SeedableRandomState;
use hashed_wheel::HashedWheelTimer;

use self::item::{Armed, Item};
use self::output::Output;
use self::panics::Panics;
use self::shard::Shard;
use self::time::Now;
use crate::sync::Arc;

pub use self::builder::ExpiringMapBuilder;
pub use self::cause::{Cause, Removed};
pub use self::error::{BeingWritten, InsertError};
pub use self::output::BoxFuture;
pub use self::receiver::RemovedEntries;

/// A map whose entries expire: sessions, leases, heartbeats, requests by their id.
///
/// Each entry has a key, a value and a time. The clock decides when that has come: from then on, or
/// from a microsecond later, no method finds, returns or renews the entry, even if the timer is
/// late. At the timer's next tick the entry leaves the map. Where it goes, the constructor of the
/// map says:
///
/// | made by | an entry that leaves the map |
/// |---|---|
/// | [`with_handler`](Self::with_handler) | a function gets it, with the cause |
/// | [`with_receiver`](Self::with_receiver) | async code receives it, one by one or many at a time |
/// | [`new`](Self::new) | is dropped |
///
/// [`builder`](Self::builder) makes the same maps with a time to live and a time to idle, with a
/// limit of the entries or of their weight, with a choice of causes, a receiver with a bound, and a
/// handler that [writes entries back](ExpiringMapBuilder::build_with_write_back) before their keys
/// are free.
///
/// [`entry`](Self::entry), [`get_or_insert_with`](Self::get_or_insert_with) and
/// [`insert_if_absent`](Self::insert_if_absent) are atomic per key.
///
/// # Guarantees
///
/// Each value comes out once, by value. `remove` and `drain` return it, and `insert` returns one
/// that it replaces. All others go to the handler or the receiver, with a [`Cause`]: entries that
/// expire or are evicted, that `retain` and `clear` remove, and that are left at the end: when the
/// last handle of the map is dropped, or at `stop`, `shutdown` and `cancel_all` of the timer.
///
/// When `insert` or `remove` has returned a value, the handler does not get it any more. This goes
/// further than [`Timeout::cancel`](hashed_wheel::Timeout::cancel). When they have returned `None`,
/// the handler may still run for an entry of this key whose time has come.
///
/// # A task per entry
///
/// For a task of its own for each entry, the value is the task:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// use hashed_wheel_util::{Cause, ExpiringMap, Removed};
/// use std::time::Duration;
///
/// type Task = Box<dyn FnOnce(u32) + Send>;
///
/// let timer = HashedWheelTimer::default();
/// let requests = ExpiringMap::builder(&timer)
///     .causes([Cause::Expired])
///     .build_with_handler(|Removed { key, value, .. }: Removed<u32, Task>| value(key));
/// requests.insert(7, Box::new(|id| println!("no answer to {id}")), Duration::from_secs(5))?;
/// // The answer arrives in time:
/// assert!(requests.remove(&7).is_some());
/// # Ok::<(), NewTimeoutError>(())
/// ```
///
/// # Handles
///
/// This type is a handle. Clones refer to the same map. Dropping the last one ends all entries of
/// the map: those whose time has not come go to the handler or the receiver as
/// [`Stopped`](Cause::Stopped). It does not wait for a handler that has begun. A map counts as a
/// handle of its timer.
///
/// A handler that inserts the entry again should do so only for [`Expired`](Cause::Expired).
/// Otherwise it undoes `clear`, and in a full map each insertion evicts the next, without end.
///
/// A handler that holds a clone keeps the map, and its timer, alive permanently. Give it a
/// [`Weak`](std::sync::Weak) instead, by [`Arc::new_cyclic`](std::sync::Arc::new_cyclic):
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use hashed_wheel_util::{Cause, ExpiringMap, Removed};
/// use std::sync::{Arc, Weak};
/// use std::time::Duration;
///
/// const EVERY: Duration = Duration::from_secs(10);
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let peers = Arc::new_cyclic(|peers: &Weak<ExpiringMap<u32, u64>>| {
///     let peers = peers.clone();
///     ExpiringMap::with_handler(&timer, move |Removed { key: peer, value: beats, cause }| {
///         if let (Cause::Expired, Some(peers)) = (cause, peers.upgrade()) {
///             println!("are you there, {peer}? ({beats})");
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
/// among several locks for each processor. The worker of the timer takes it too, for an entry whose
/// time has come.
///
/// An [`entry`](Self::entry) does not hold a lock: it reserves its key. Other calls for that key
/// wait, and calls for other keys do not.
///
/// This user code runs under the lock, and must not use the same map, which can deadlock:
///
/// - the keys' `Eq`, or the [`Equivalent`](crate::Equivalent) of the type by which a key is looked
///   up;
/// - the keys' `Clone` in [`keys`](Self::keys), and the values' `Clone` in [`get`](Self::get) and
///   [`try_get`](Self::try_get);
/// - the closures of [`with`](Self::with) and [`retain`](Self::retain), and the `Drop` of values
///   that they replace, or that the closure of `with` has captured.
///
/// Everything else may use the map: handlers, wakers, the `Hash` of keys, the closures of entries
/// and of `get_or_insert_with` (but not for their own key), and the `Drop` of keys and values that
/// leave the map. They run without the lock even if one of the above panics. If
/// `Hash` or `Eq` panics in `insert`, the old entry stays.
///
/// # Hashes
///
/// The keys are hashed by foldhash, as in `hashbrown`, with random seeds of the process and of the
/// map. It is faster than the hash function of std's `HashMap`, but not cryptographic: a peer that
/// chooses the keys and measures the time of many look-ups might find keys that collide. They make
/// look-ups slow, and a handler of a write-back that calls the map for a key with the same hash
/// waits for itself. If that matters, give such keys a type whose `Hash` hashes them with a secret
/// of its own.
///
/// # Large keys and values
///
/// The map stores the entries in its table, as `HashMap` does, and moves them by value. When an
/// entry expires, it is on the worker's stack, in a debug build several times. That is 2 MiB by
/// [default](hashed_wheel::Builder::thread_stack_size). Box a value that is larger than a few
/// kibibytes.
///
/// # Examples
///
/// Sessions that end after 30 seconds of silence:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use hashed_wheel_util::{Cause, ExpiringMap, Removed};
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
/// let (sender, ended) = mpsc::channel();
/// let sessions = ExpiringMap::with_handler(&timer, move |session: Removed<_, Session>| {
///     let _ = sender.send((session.key, session.value.packets, session.cause));
/// });
///
/// // A user logs in, perhaps not for the first time:
/// let old = sessions.insert("ada", Session { packets: 0 }, SILENCE)?;
/// assert!(old.is_none());
/// // For each packet:
/// assert!(sessions.touch("ada", SILENCE));
/// sessions.with("ada", |session| session.packets += 1);
/// // Silence. The user logs out, too late:
/// clock.advance(SILENCE);
/// assert!(sessions.remove("ada").is_none());
/// driver.turn();
/// assert_eq!(ended.try_recv()?, ("ada", 1, Cause::Expired));
/// // The service ends:
/// sessions.insert("grace", Session { packets: 0 }, SILENCE)?;
/// timer.stop();
/// assert_eq!(ended.try_recv()?, ("grace", 0, Cause::Stopped));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias(
    "cache",
    "session",
    "lease",
    "rate limit",
    "throttle",
    "debounce",
    "watchdog",
    "ttl"
))]
pub struct ExpiringMap<K, V> {
    owner: Arc<Owner<K, V>>,
}

/// The state that the handles share. Items hold their shard and not this, so the last handle drops
/// it.
struct Owner<K, V> {
    timer: HashedWheelTimer,
    /// The time to live of entries of `put` and `renew`.
    time_to_live: Duration,
    time_to_idle: Option<Duration>,
    weigher: Option<Weigher<K, V>>,
    /// Short, because two look-ups overlap their cache misses only if few instructions lie between
    /// them.
    hasher: SeedableRandomState,
    /// A power of two. Keys of different shards do not contend.
    shards: Box<[Arc<Shard<K, V>>]>,
    output: Arc<Output<K, V>>,
}

type Weigher<K, V> = AssertUnwindSafe<Box<dyn Fn(&K, &V) -> u32 + Send + Sync>>;

impl<K: Send + 'static, V: Send + 'static> ExpiringMap<K, V> {
    /// Makes an empty map, whose entries are dropped when they leave it. Its timeouts belong to
    /// `timer`.
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
    /// let is_new = |id| {
    ///     let present = seen.insert_if_absent(id, (), Duration::from_secs(60))?;
    ///     Ok(present.is_none())
    /// };
    /// assert!(is_new(7)? && !is_new(7)?);
    /// # Ok::<(), hashed_wheel_util::InsertError<u64, ()>>(())
    /// ```
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        Self::builder(timer).build()
    }

    /// Makes an empty map. `handler` gets the entries that leave it, except those that a call
    /// returns. [`causes`](ExpiringMapBuilder::causes) of the builder chooses among them.
    ///
    /// For an expired entry, the handler runs as a task of `timer`: on the worker, or by the [task
    /// executor](hashed_wheel::Builder::task_executor). It may run on several threads at a time. A
    /// panic is reported and counted. The insertion calls it instead if the entry expires before
    /// that returns, and in a map with a [limit](ExpiringMapBuilder::max_entries) if it needs the
    /// place.
    ///
    /// Otherwise, and at the end of the map or the timer, it runs on the thread that has called the
    /// map, that ends the timer, or on which the executor drops a task. A panic goes to the caller
    /// of the map, once the handler was called with all entries that the call has removed. In the
    /// drop of the last handle or of an [`Entry`](crate::Entry) it ends there, and only the panic
    /// hook reports it.
    ///
    /// When it runs, the key is free, and no lock is held: it may insert the entry again. It is
    /// what `removalListener` is in Caffeine, with the value.
    ///
    /// To send the entries to a channel, move the sender into the handler: see the
    /// [example](Self#examples) of the type.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::{ExpiringMap, Removed};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let leases = ExpiringMap::with_handler(&timer, |lease: Removed<String, u32>| {
    ///     println!("{} has lost its lease of {}", lease.value, lease.key);
    /// });
    /// leases.insert("log".to_owned(), 7, Duration::from_secs(60))?;
    /// assert_eq!(leases.remove("log"), Some(7));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn with_handler<F>(timer: &HashedWheelTimer, handler: F) -> Self
    where
        F: Fn(Removed<K, V>) + Send + Sync + 'static,
    {
        Self::builder(timer).build_with_handler(handler)
    }

    /// Makes an empty map, and the receiver of the entries that leave it, for async code: of those
    /// that a handler would get.
    ///
    /// The worker moves expired entries into the receiver, even if the timer has a [task
    /// executor](hashed_wheel::Builder::task_executor). Once there, an entry is not in the map any
    /// more: [`remove`](Self::remove) returns `None`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::{Cause, ExpiringMap};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(1)).build()?;
    /// let (sessions, mut ended) = ExpiringMap::with_receiver(&timer);
    /// sessions.insert("ada", 17, Duration::from_millis(5))?;
    /// assert_eq!(ended.recv().await.unwrap().value, 17);
    /// sessions.insert("grace", 0, Duration::from_secs(5))?;
    /// drop(sessions);
    /// assert_eq!(ended.recv().await.unwrap().cause, Cause::Stopped);
    /// assert_eq!(ended.recv().await, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_receiver(timer: &HashedWheelTimer) -> (Self, RemovedEntries<K, V>) {
        Self::builder(timer).build_with_receiver()
    }

    /// Begins to make a map with the options of [`ExpiringMapBuilder`].
    ///
    /// # Examples
    ///
    /// See [`ExpiringMapBuilder`].
    pub fn builder(timer: &HashedWheelTimer) -> ExpiringMapBuilder<K, V> {
        ExpiringMapBuilder::new(timer)
    }
}

impl<K, V> Owner<K, V> {
    /// Returns the deadline of an entry that is used now, and ends at `end` at the latest.
    fn deadline(&self, now: Now, end: u64) -> u64 {
        self.time_to_idle
            .map_or(end, |idle| now.after(idle).min(end))
    }

    /// Gives an item a time. Returns whether it has had a later deadline.
    fn set_time(&self, item: &mut Item<K, V>, now: Now, end: u64) -> bool {
        item.set_used();
        let before = item.deadline;
        (item.deadline, item.end) = (self.deadline(now, end), end);
        item.deadline < before
    }

    /// Makes an item that has no time yet.
    fn new_item(&self, hash: u64, key: K, value: V) -> Item<K, V> {
        let weight = self.weigher.as_ref().map_or(0, |weigh| weigh(&key, &value));
        Item {
            deadline: 0,
            weight,
            number: 0,
            is_used: true,
            key,
            value,
            timeout: Armed(None),
            hash,
            end: 0,
        }
    }

    /// Gives a new item a time and a timeout. If the timer rejects it, the entry comes back. Must
    /// be called without a lock held.
    fn arm(
        &self,
        shard: &Arc<Shard<K, V>>,
        mut item: Item<K, V>,
        now: Now,
        end: impl FnOnce(Now) -> u64,
    ) -> Result<Item<K, V>, InsertError<K, V>> {
        self.set_time(&mut item, now, end(now));
        let rest = now.until(item.deadline);
        let arm = |()| (self.output.arm)(shard, &self.timer, item.hash, rest);
        match self.output.check().and_then(arm) {
            Ok(timeout) => item.timeout = Armed(Some(timeout)),
            Err(error) => {
                let (key, value) = item.into_pair();
                return Err(InsertError { key, value, error });
            }
        }
        Ok(item)
    }

    /// The item is used. With a time to idle, that moves its deadline, at most to its end.
    fn use_item(&self, item: &mut Item<K, V>, now: Now) {
        item.set_used();
        if self.time_to_idle.is_some() {
            item.deadline = item.deadline.max(self.deadline(now, item.end));
        }
    }
}

impl<K, V> Drop for Owner<K, V> {
    fn drop(&mut self) {
        let now = Now::of_or_past(&self.timer);
        let shards = self.shards.iter();
        let all: Vec<_> = shards
            .flat_map(|shard| shard.take(now, Cause::Stopped, |_, _| true))
            .collect();
        // They end here: this may be dropped during another panic.
        self.output.pass_on_all(all, &mut Panics::default());
    }
}

impl<K, V> Clone for ExpiringMap<K, V> {
    fn clone(&self) -> Self {
        let owner = Arc::clone(&self.owner);
        Self { owner }
    }
}

impl<K, V> fmt::Debug for ExpiringMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringMap")
            .field("timer", &self.owner.timer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiring_map::room::MAX_IDLE;
    use hashed_wheel::ManualClock;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn maps_shrink_after_a_burst() {
        const KEYS: usize = 50_000;
        const LEFT: usize = 10;
        const DELAY: Duration = Duration::from_secs(1);

        let clock = ManualClock::new();
        let (timer, mut driver) = HashedWheelTimer::builder()
            .clock(clock.clone())
            .build_driven()
            .expect("a driven timer");
        let map = ExpiringMap::new(&timer);
        let room = || {
            map.owner
                .shards
                .iter()
                .map(|shard| shard.lock().room())
                .sum::<usize>()
        };
        for expire in [false, true] {
            for key in 0..KEYS {
                let delay = if key < LEFT { 9 * DELAY } else { DELAY };
                map.insert(key, (), delay)
                    .expect("the timer is not stopped");
            }
            assert!(room() >= KEYS);
            if expire {
                clock.advance(2 * DELAY);
                assert_eq!(driver.turn(), KEYS - LEFT);
            } else {
                assert!((LEFT..KEYS).all(|key| map.remove(&key).is_some()));
            }
            assert_eq!(map.len(), LEFT);
            let most = map.owner.shards.len() * 2 * MAX_IDLE;
            assert!(room() <= most, "room for {}", room());
        }
    }

    /// Entries leave places behind in the order of eviction, even if the map is never full.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn order_of_eviction_shrinks_with_the_map() {
        const KEYS: usize = 20_000;

        let timer = HashedWheelTimer::default();
        let map = ExpiringMap::builder(&timer).max_entries(2 * KEYS).build();
        let places = || {
            map.owner
                .shards
                .iter()
                .map(|shard| shard.lock().places())
                .sum::<usize>()
        };
        for key in (0..KEYS).chain(0..KEYS).chain(0..KEYS) {
            map.put(key, ()).expect("the timer is not stopped");
        }
        // A place has 16 bytes.
        assert!(
            (KEYS..=4 * KEYS + map.owner.shards.len() * 2 * MAX_IDLE).contains(&places()),
            "{} places",
            places()
        );
        assert!((0..KEYS).all(|key| map.remove(&key).is_some()));
        assert!(
            places() <= map.owner.shards.len() * 2 * MAX_IDLE,
            "{} places",
            places()
        );
        map.put(0, ()).expect("the timer is not stopped");
        map.clear();
        assert_eq!(places(), 0);
    }

    /// The present is only known by its bounds. Both ends of the item's time are between them.
    #[test]
    fn a_use_between_the_bounds_of_the_present_does_not_go_beyond_the_end() {
        let clock = ManualClock::new();
        let builder = HashedWheelTimer::builder().clock(clock.clone());
        let (timer, mut driver) = builder.build_driven().expect("a driven timer");
        let (end, idle) = (Duration::from_nanos(10_000), Duration::from_nanos(9_800));
        let map = ExpiringMap::builder(&timer).time_to_idle(idle).build();
        map.insert(7, (), end).expect("the timer is not stopped");
        let now = Now {
            earliest: 9_500,
            latest: 10_500,
        };
        let (shard, hash) = map.place(&7);
        let mut table = shard.lock();
        let item = table.find(hash, &7).expect("it is alive");
        map.owner.use_item(item, now);
        drop(table);
        clock.advance(Duration::from_secs(1));
        assert_eq!(driver.turn(), 1);
        assert_eq!(map.len(), 0);
    }

    #[test]
    fn a_delay_of_zero_is_over_at_once() {
        let now = Now {
            earliest: 9_500,
            latest: 10_500,
        };
        let timer = HashedWheelTimer::default();
        let (zero, second) = (Duration::ZERO, Duration::from_secs(1));
        let deadline = |delay, idle| {
            let map = ExpiringMap::<u8, u8>::builder(&timer)
                .time_to_idle(idle)
                .build();
            map.owner.deadline(now, now.after(delay))
        };
        assert_eq!(deadline(zero, second), now.earliest);
        assert_eq!(deadline(second, zero), now.earliest);
        assert_eq!(deadline(second, second), 1_000_010_500);
    }
}
