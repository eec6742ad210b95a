//! How a map is made.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use foldhash::{SharedSeed, fast::SeedableRandomState};
use hashed_wheel::HashedWheelTimer;

use super::cause::UNRETURNED;
use super::items::arm;
use super::output::{BoxFuture, Output};
use super::shard::Shard;
use super::table::Limit;
use super::{Cause, ExpiringMap, Owner, Removed, RemovedEntries, Weigher, receiver};
use crate::random::random;
use crate::sync::{self, Arc, OnceLock};

/// A map with a limit divides it among at most this many shards, so that each has room for at least
/// this many entries. Then random keys fill the shards about equally.
const LEAST_OF_SHARD: u64 = 1_024;

/// The same with a limit of their weight.
const LEAST_WEIGHT_OF_SHARD: u64 = 1 << 20;

/// Makes an [`ExpiringMap`] with options.
///
/// | option | initially | |
/// |---|---|---|
/// | [`time_to_live`](Self::time_to_live) | none | how long an entry of `put` lives |
/// | [`time_to_idle`](Self::time_to_idle) | none | how long an entry lives that is not used |
/// | [`max_entries`](Self::max_entries), [`max_weight`](Self::max_weight) | none | from when on entries are evicted |
/// | [`causes`](Self::causes) | all but `Replaced` | which entries go to the handler or the receiver |
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use hashed_wheel_util::{Cause, ExpiringMap, Removed};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let (sender, ends) = mpsc::channel();
/// let sessions = ExpiringMap::builder(&timer)
///     .time_to_live(Duration::from_secs(30))
///     .max_entries(2)
///     .build_with_handler(move |session: Removed<&str, u32>| drop(sender.send(session)));
///
/// sessions.put("ada", 1)?;
/// assert_eq!(sessions.put("ada", 2)?, Some(1));
/// clock.advance(Duration::from_secs(30));
/// driver.turn();
/// for user in ["bob", "eve", "joe"] {
///     sessions.put(user, 0)?;
/// }
/// assert_eq!(sessions.remove("eve"), Some(0));
/// timer.stop();
/// let ends: Vec<_> = ends.try_iter().map(|session| (session.key, session.cause)).collect();
/// assert_eq!(ends, [("ada", Cause::Expired), ("bob", Cause::Evicted), ("joe", Cause::Stopped)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until it builds a map"]
pub struct ExpiringMapBuilder<K, V> {
    timer: HashedWheelTimer,
    time_to_live: Duration,
    time_to_idle: Option<Duration>,
    max_entries: Option<usize>,
    max_weight: u64,
    weigher: Option<Weigher<K, V>>,
    causes: Vec<Cause>,
}

impl<K: Send + 'static, V: Send + 'static> ExpiringMapBuilder<K, V> {
    pub(super) fn new(timer: &HashedWheelTimer) -> Self {
        Self {
            timer: timer.clone(),
            time_to_live: Duration::MAX,
            time_to_idle: None,
            max_entries: None,
            max_weight: u64::MAX,
            weigher: None,
            causes: UNRETURNED.to_vec(),
        }
    }

    /// Sets the time after which the entries of [`put`](ExpiringMap::put) expire. Initially they
    /// never expire. moka's `time_to_live`, Caffeine's `expireAfterWrite`.
    ///
    /// # Examples
    ///
    /// See [`ExpiringMapBuilder`].
    #[doc(alias("ttl", "expire_after_write"))]
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets the time after which an entry expires that is not used. Initially there is none. moka's
    /// `time_to_idle`, Caffeine's `expireAfterAccess`.
    ///
    /// An insertion and each use moves the deadline of the entry: [`get`](ExpiringMap::get),
    /// [`with`](ExpiringMap::with), [`entry`](ExpiringMap::entry), [`touch`](ExpiringMap::touch)
    /// and [`renew`](ExpiringMap::renew). But an entry never lives longer than the time that it was
    /// inserted or touched with: it expires when it was idle for this time, and at the latest after
    /// that one.
    ///
    /// For the timer, a use is a [`touch`](crate::ExpiringMap::touch).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use hashed_wheel_util::ExpiringMap;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let minute = Duration::from_secs(60);
    /// let sessions =
    ///     ExpiringMap::builder(&timer).time_to_live(60 * minute).time_to_idle(minute).build();
    /// sessions.put("ada", 1)?;
    /// for _ in 0..119 {
    ///     clock.advance(minute / 2);
    ///     assert_eq!(sessions.get("ada"), Some(1));
    /// }
    /// clock.advance(minute / 2);
    /// assert_eq!(sessions.get("ada"), None, "the hour is over");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("tti", "expire_after_access"))]
    pub fn time_to_idle(mut self, time_to_idle: Duration) -> Self {
        self.time_to_idle = Some(time_to_idle);
        self
    }

    /// Sets the maximum number of entries. With `None`, the initial value, there is no limit.
    /// Caffeine's `maximumSize`.
    ///
    /// If the map is full, a new key evicts an entry that was not used recently. A use is
    /// [`get`](ExpiringMap::get), [`with`](ExpiringMap::with), [`entry`](ExpiringMap::entry),
    /// [`touch`](ExpiringMap::touch) and [`renew`](ExpiringMap::renew). The policy is *second
    /// chance*, also called CLOCK. Entries come up for eviction in the order in which they were
    /// inserted. One that was used since goes to the end of the order instead, as if it had just
    /// been inserted. At most 64 in a row do. The evicted entry goes to the handler or the
    /// receiver, as [`Cause::Evicted`].
    ///
    /// An entry whose time has come leaves first, as [`Cause::Expired`]: the insertion does not
    /// wait for the timer, but passes it on itself. If that is the new entry, it evicts none.
    ///
    /// There are never more entries than this. Below 2 048 an entry is evicted only if the map is
    /// full. From there on the limit is divided among up to 256 locks. Because random keys do not
    /// fill them equally, the first entries are evicted when the map is some per cent below the
    /// limit.
    ///
    /// # Cost
    ///
    /// The orders of use and of time take 40 to 80 bytes per entry, and up to 160 after entries
    /// have left. A call takes constant time on average: now and then one goes through the whole
    /// order of its lock. A map for fewer than 2 048 entries has one lock.
    ///
    /// # Panics
    ///
    /// If `max_entries` is zero. A map without entries is no map.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::ExpiringMap;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let cache =
    ///     ExpiringMap::builder(&timer).time_to_live(Duration::from_secs(60)).max_entries(2).build();
    /// cache.put("ada", 1)?;
    /// cache.put("grace", 2)?;
    /// assert_eq!(cache.get("ada"), Some(1));
    /// cache.put("edsger", 3)?;
    /// assert!(cache.contains_key("ada") && !cache.contains_key("grace"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("max_capacity", "maximum_size", "evict"))]
    #[track_caller]
    pub fn max_entries(mut self, max_entries: impl Into<Option<usize>>) -> Self {
        self.max_entries = max_entries.into();
        assert!(
            self.max_entries != Some(0),
            "max_entries is zero, but must be at least 1"
        );
        self
    }

    /// Sets the maximum weight of all entries together, and the weight of an entry. Caffeine's
    /// `maximumWeight` and `weigher`.
    ///
    /// It works as [`max_entries`](Self::max_entries) does, and the two can be combined. An entry
    /// is weighed when it is inserted, without a lock held, and not when its value changes. One
    /// that is heavier than the limit is evicted at once.
    ///
    /// From 2 097 152 on the limit is divided among several locks, and an entry may have at most
    /// the weight of one part, which is at least 1 048 576.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::ExpiringMap;
    ///
    /// let pages = ExpiringMap::<&str, Vec<u8>>::builder(&HashedWheelTimer::default())
    ///     .max_weight(100, |_, page| page.len() as u32)
    ///     .build();
    /// for name in ["a", "b", "c"] {
    ///     pages.put(name, vec![0; 40])?;
    /// }
    /// assert!(!pages.contains_key("a") && pages.len() == 2);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("weigher", "evict"))]
    pub fn max_weight(
        mut self,
        max_weight: u64,
        weigher: impl Fn(&K, &V) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.max_weight = max_weight;
        self.weigher = Some(AssertUnwindSafe(Box::new(weigher)));
        self
    }

    /// Chooses which entries go to the handler or the receiver. Initially all that no call returns:
    /// all causes but [`Replaced`](Cause::Replaced). Entries of other causes are dropped.
    ///
    /// With [`Replaced`](Cause::Replaced), a replaced value goes to the handler or the receiver,
    /// and the insertion returns `None`. (A map without both has no choice: insertions return what
    /// they replace.)
    ///
    /// # Examples
    ///
    /// A task per key, which does not run at the end of the program:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::{Cause, ExpiringMap, Removed};
    ///
    /// type Task = Box<dyn FnOnce(u32) + Send>;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let tasks = ExpiringMap::builder(&timer)
    ///     .causes([Cause::Expired])
    ///     .build_with_handler(|Removed { key, value, .. }: Removed<u32, Task>| value(key));
    /// tasks.put(7, Box::new(|id| panic!("task {id} must not run")))?;
    /// timer.stop();
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes = causes.into_iter().collect();
        self
    }

    /// Makes an empty map, whose entries are dropped when they leave it, except those that a call
    /// returns.
    ///
    /// # Examples
    ///
    /// See [`ExpiringMapBuilder`].
    #[must_use]
    pub fn build(mut self) -> ExpiringMap<K, V> {
        self.causes = UNRETURNED.to_vec();
        self.build_with_handler(drop)
    }

    /// Makes an empty map. `handler` gets the entries that leave it. See
    /// [`ExpiringMap::with_handler`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::{ExpiringMap, Removed};
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let leases = ExpiringMap::builder(&timer)
    ///     .time_to_live(Duration::from_secs(60))
    ///     .build_with_handler(|lease: Removed<&str, u32>| println!("{} is lost", lease.key));
    /// leases.put("log", 7)?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn build_with_handler<F>(self, handler: F) -> ExpiringMap<K, V>
    where
        F: Fn(Removed<K, V>) + Send + Sync + 'static,
    {
        let take = move |entry, _| handler(entry);
        self.build_with(Output::new(arm::<K, V, false>, false, take))
    }

    /// Makes an empty map. `write` gets the entries that leave it, and until it has returned, their
    /// keys are reserved. So no call finds a key free before its value was written, and then reads
    /// an old one from where it is written.
    ///
    /// `write` runs where a handler runs: see [`ExpiringMap::with_handler`]. A call that finds an
    /// entry dead before the timer does calls it itself. `write` must not call the map for a key,
    /// its own or another, which can wait forever: `clear`, for example, reserves all its keys
    /// first. [`try_get`](ExpiringMap::try_get) does not wait.
    ///
    /// An entry that leaves the map while an older one of its key is being written is written after
    /// that, by the thread on which the older write ends. If its own write panics, only the panic
    /// hook reports that.
    ///
    /// Calls for a reserved key wait, on their thread. On the worker that delays other timeouts.
    /// [`try_get`](ExpiringMap::try_get) answers [`BeingWritten`](crate::BeingWritten) instead, and
    /// async code can wait with [`written`](ExpiringMap::written). `clear`, `retain` and `drain` do
    /// not wait, and leave reserved keys out.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::{ExpiringMap, Removed};
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let rows = Arc::new(Mutex::new(HashMap::new()));
    /// let table = Arc::clone(&rows);
    /// let sessions = ExpiringMap::builder(&timer)
    ///     .time_to_live(Duration::from_millis(5))
    ///     .build_with_write_back(move |session: Removed<u32, u64>| {
    ///         table.lock().unwrap().insert(session.key, session.value);
    ///     });
    /// sessions.put(7, 100)?;
    /// // If there is no session, its row was written, whether or not the timer has ticked.
    /// while sessions.contains_key(&7) {}
    /// assert_eq!(rows.lock().unwrap()[&7], 100);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn build_with_write_back<F>(self, write: F) -> ExpiringMap<K, V>
    where
        F: Fn(Removed<K, V>) + Send + Sync + 'static,
    {
        // The reservation is dropped when `write` has returned.
        let take = move |entry, _reservation| write(entry);
        self.build_with(Output::new(arm::<K, V, false>, true, take))
    }

    /// The same with an async function. `spawn` gets its futures, and runs them on a runtime. A key
    /// is reserved until its future has ended, or was dropped.
    ///
    /// A call that waits for a key blocks its thread. If the futures need that thread, it waits
    /// forever. So async code on their runtime should call only `try_get`, `try_entry` and
    /// `written`, or `spawn` should use another runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::{ExpiringMap, Removed};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # async fn update_row(_: u32, _: u64) {}
    /// # let timer = HashedWheelTimer::default();
    /// let runtime = tokio::runtime::Handle::current();
    /// let sessions = ExpiringMap::builder(&timer).build_with_async_write_back(
    ///     move |write| drop(runtime.spawn(write)),
    ///     |session: Removed<u32, u64>| update_row(session.key, session.value),
    /// );
    /// sessions.put(7, 100)?;
    /// sessions.clear();
    /// assert!(sessions.try_get(&7).is_err(), "it is being written");
    /// sessions.written(&7).await;
    /// assert_eq!(sessions.try_get(&7)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn build_with_async_write_back<F>(
        self,
        spawn: impl Fn(BoxFuture) + Send + Sync + 'static,
        write: impl Fn(Removed<K, V>) -> F + Send + Sync + 'static,
    ) -> ExpiringMap<K, V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let take = move |entry, reservation| {
            // The key is free when the future has ended, or was dropped.
            let write = (write(entry), reservation);
            spawn(Box::pin(async move {
                let (write, _reservation) = write;
                write.await;
            }));
        };
        self.build_with(Output::new(arm::<K, V, false>, true, take))
    }

    /// Makes an empty map, and the receiver of the entries that leave it, for async code. See
    /// [`ExpiringMap::with_receiver`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(1)).build()?;
    /// let (leases, mut lost) =
    ///     ExpiringMap::builder(&timer).time_to_live(Duration::from_millis(5)).build_with_receiver();
    /// leases.put("log", 7)?;
    /// assert_eq!(lost.recv().await.unwrap().key, "log");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_with_receiver(self) -> (ExpiringMap<K, V>, RemovedEntries<K, V>) {
        self.build_with_channel(None)
    }

    /// The same with a bound: while this many entries were not received, insertions fail with
    /// [`TooManyPending`](hashed_wheel::NewTimeoutError::TooManyPending). So a slow receiver slows
    /// those who insert, and neither the worker waits nor a value is lost.
    ///
    /// The entries that are in the map still go to the receiver when they leave it. So there are at
    /// most this many more than the map has had.
    ///
    /// # Panics
    ///
    /// If `capacity` is zero. Then every insertion would fail.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let timer = HashedWheelTimer::default();
    /// let (leases, mut lost) = ExpiringMap::builder(&timer).build_with_bounded_receiver(1);
    /// leases.put("log", 7)?;
    /// leases.clear();
    /// assert_eq!(leases.put("lock", 8).unwrap_err().value, 8);
    /// assert_eq!(lost.recv().await.unwrap().value, 7);
    /// leases.put("lock", 8)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn build_with_bounded_receiver(
        self,
        capacity: usize,
    ) -> (ExpiringMap<K, V>, RemovedEntries<K, V>) {
        assert!(capacity > 0, "capacity is zero, but must be at least 1");
        self.build_with_channel(Some(capacity))
    }

    fn build_with_channel(
        self,
        capacity: Option<usize>,
    ) -> (ExpiringMap<K, V>, RemovedEntries<K, V>) {
        let (sender, removed) = receiver::channel();
        let sender = Arc::new(sender);
        let queue = Arc::clone(&sender);
        let take = move |entry, _| sender.send(entry);
        let mut output = Output::new(arm::<K, V, true>, false, take);
        output.bound = capacity.map(|most| (queue, most));
        (self.build_with(output), removed)
    }

    fn build_with(self, mut output: Output<K, V>) -> ExpiringMap<K, V> {
        output.causes = self.causes;
        let output = Arc::new(output);
        // Each shard has its part of the limit. Then random keys fill the shards about equally.
        let (entries, weight) = (self.max_entries.unwrap_or(usize::MAX), self.max_weight);
        let least = (entries as u64 / LEAST_OF_SHARD).min(weight / LEAST_WEIGHT_OF_SHARD);
        // The greatest power of two up to this.
        let count = 1 << least.clamp(1, sync::shards() as u64).ilog2();
        let has_limit = self.max_entries.is_some() || self.weigher.is_some();
        let limit = has_limit.then(|| Limit {
            entries: entries / count,
            weight: weight / count as u64,
        });
        let shard = |_| Arc::new(Shard::new(Arc::clone(&output), limit));
        let owner = Owner {
            timer: self.timer,
            time_to_live: self.time_to_live,
            time_to_idle: self.time_to_idle,
            weigher: self.weigher,
            hasher: random_hasher(),
            shards: (0..count).map(shard).collect(),
            output,
        };
        let owner = Arc::new(owner);
        ExpiringMap { owner }
    }
}

/// With seeds from std: those that foldhash makes by default are only as random as addresses are.
fn random_hasher() -> SeedableRandomState {
    static SHARED: OnceLock<SharedSeed> = OnceLock::new();
    let shared = SHARED.get_or_init(|| SharedSeed::from_u64(random()));
    SeedableRandomState::with_seed(random(), shared)
}

impl<K, V> fmt::Debug for ExpiringMapBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringMapBuilder")
            .field("time_to_live", &self.time_to_live)
            .field("max_entries", &self.max_entries)
            .finish_non_exhaustive()
    }
}
