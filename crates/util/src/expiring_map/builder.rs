//! How a map is made.

use std::hash::RandomState;
use std::marker::PhantomData;
use std::time::Duration;
use std::{array, fmt};

use hashed_wheel::HashedWheelTimer;

use super::cause::Causes;
use super::items::Shard;
use super::output::Output;
use super::{Cause, ExpiringMap, Owner, Removed, RemovedEntries, SHARDS, receiver};
use crate::sync::Arc;

/// A map with a limit divides it among at most this many shards, so that each has room for at least
/// this many entries. Then random keys fill the shards about equally.
const LEAST_OF_SHARD: usize = 1_024;

/// Makes an [`ExpiringMap`] with a default time to live, a limit of its entries, or a choice of the
/// entries that are passed on.
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
    max_entries: Option<usize>,
    causes: Causes,
    entries: PhantomData<fn(K, V)>,
}

impl<K, V> ExpiringMapBuilder<K, V> {
    pub(super) fn new(timer: &HashedWheelTimer) -> Self {
        Self {
            timer: timer.clone(),
            time_to_live: Duration::MAX,
            max_entries: None,
            causes: Causes::UNRETURNED,
            entries: PhantomData,
        }
    }

    /// Sets the time after which the entries of [`put`](ExpiringMap::put) expire. Initially they
    /// never expire. Caffeine's `expireAfterWrite`.
    ///
    /// # Examples
    ///
    /// See [`ExpiringMapBuilder`].
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets the maximum number of entries. With `None`, the initial value, there is no limit.
    /// Caffeine's `maximumSize`.
    ///
    /// If the map is full, a new key evicts an entry that was not used recently. A use is
    /// [`get`](ExpiringMap::get), [`with`](ExpiringMap::with), [`touch`](ExpiringMap::touch) and
    /// [`renew`](ExpiringMap::renew). The policy is *second chance*, also called CLOCK. Entries
    /// come up for eviction in the order in which they were inserted. One that was used since goes
    /// to the end of the order instead, as if it had just been inserted. At most 64 in a row do.
    /// The evicted entry goes to the handler or the receiver, as [`Cause::Evicted`].
    ///
    /// An entry whose time has come leaves first, as [`Cause::Expired`]: the insertion does not
    /// wait for the timer, but passes it on itself. If that is the new entry, it evicts none.
    ///
    /// There are never more entries than this. Below 2 048 an entry is evicted only if the map is
    /// full. From there on the limit is divided among up to 16 locks. Because random keys do not
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
    #[track_caller]
    pub fn max_entries(mut self, max_entries: impl Into<Option<usize>>) -> Self {
        self.max_entries = max_entries.into();
        assert!(
            self.max_entries != Some(0),
            "max_entries is zero, but must be at least 1"
        );
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
        self.causes = Causes::UNRETURNED;
        self.build_with(Output::none())
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
        self.build_with(Output::handler(handler))
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
    pub fn build_with_receiver(self) -> (ExpiringMap<K, V>, RemovedEntries<K, V>)
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let (sender, removed) = receiver::channel();
        (self.build_with(Output::sender(sender)), removed)
    }

    fn build_with(self, mut output: Output<K, V>) -> ExpiringMap<K, V> {
        let Self {
            timer,
            time_to_live,
            max_entries,
            causes,
            ..
        } = self;
        output.causes = causes;
        let output = Arc::new(output);
        let wanted = max_entries.map_or(SHARDS, |max| (max / LEAST_OF_SHARD).clamp(1, SHARDS));
        // The greatest power of two up to this.
        let used = 1 << wanted.ilog2();
        let max_of_shard = max_entries.map(|max| max / used);
        let shards = array::from_fn(|_| Arc::new(Shard::new(Arc::clone(&output), max_of_shard)));
        let (hasher, shard_mask) = (RandomState::new(), used - 1);
        let owner = Owner {
            timer,
            time_to_live,
            hasher,
            shards,
            shard_mask,
            output,
        };
        ExpiringMap {
            owner: Arc::new(owner),
        }
    }
}

impl<K, V> fmt::Debug for ExpiringMapBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringMapBuilder")
            .field("time_to_live", &self.time_to_live)
            .field("max_entries", &self.max_entries)
            .finish_non_exhaustive()
    }
}
