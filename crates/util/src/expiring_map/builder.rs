//! How a map is made.

use std::hash::RandomState;
use std::time::Duration;
use std::{array, fmt};

use hashed_wheel::HashedWheelTimer;

use super::items::Shard;
use super::output::{Listener, Output};
use super::{Cause, ExpiredEntries, ExpiringMap, Owner, receiver};
use crate::sync::Arc;

/// Makes an [`ExpiringMap`] with a default time to live or a listener.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use hashed_wheel_util::{Cause, ExpiringMap};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let (sender, ends) = mpsc::channel();
/// let sessions = ExpiringMap::builder(&timer)
///     .time_to_live(Duration::from_secs(30))
///     .listener(move |user: &&str, _session: &u32, cause| drop(sender.send((*user, cause))))
///     .build();
///
/// sessions.put("ada", 1)?;
/// assert_eq!(sessions.put("ada", 2)?, Some(1));
/// clock.advance(Duration::from_secs(30));
/// driver.turn();
/// sessions.put("grace", 3)?;
/// assert_eq!(sessions.remove("grace"), Some(3));
/// let ends: Vec<_> = ends.try_iter().collect();
/// assert_eq!(ends, [("ada", Cause::Replaced), ("ada", Cause::Expired), ("grace", Cause::Removed)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until it builds a map"]
pub struct ExpiringMapBuilder<K, V> {
    timer: HashedWheelTimer,
    time_to_live: Duration,
    listener: Option<Listener<K, V>>,
}

impl<K, V> ExpiringMapBuilder<K, V> {
    pub(super) fn new(timer: &HashedWheelTimer) -> Self {
        Self { timer: timer.clone(), time_to_live: Duration::MAX, listener: None }
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

    /// Sets a function that is told of each entry that leaves the map, with the cause. Caffeine's
    /// `removalListener`.
    ///
    /// It runs after the entry has left the map, and before its value goes to the caller, to the
    /// handler or to the receiver, or is dropped. For an expired entry it runs as a task of the
    /// timer: where the handler runs, and on the worker if the map has a receiver. Otherwise it
    /// runs on the thread that has called the map. No lock is held, so it may use the map. Calls
    /// for one key on several threads may come in any order.
    ///
    /// It is not told of entries that end with the map or the timer: when the last handle of the
    /// map is dropped, by `stop`, `shutdown` and `cancel_all` of the timer, and if a task executor
    /// drops the task of an expired entry.
    ///
    /// A panic of it goes to the caller, or is reported and counted like that of a task. The entry
    /// is dropped then, and so are the others that the same call has removed.
    ///
    /// # Examples
    ///
    /// See [`ExpiringMapBuilder`].
    pub fn listener<F>(mut self, listener: F) -> Self
    where
        F: Fn(&K, &V, Cause) + Send + Sync + 'static,
    {
        self.listener = Some(Listener::new(listener));
        self
    }

    /// Makes an empty map, whose expired entries are dropped.
    ///
    /// # Examples
    ///
    /// See [`ExpiringMapBuilder`].
    #[must_use]
    pub fn build(self) -> ExpiringMap<K, V> {
        self.build_with(Output::none())
    }

    /// Makes an empty map. When an entry expires, `handler` gets its key and its value. See
    /// [`ExpiringMap::with_handler`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let leases = ExpiringMap::builder(&timer)
    ///     .time_to_live(Duration::from_secs(60))
    ///     .build_with_handler(|file: &str, holder: u32| println!("{holder} has lost {file}"));
    /// leases.put("log", 7)?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn build_with_handler<F>(self, handler: F) -> ExpiringMap<K, V>
    where
        F: Fn(K, V) + Send + Sync + 'static,
    {
        self.build_with(Output::handler(handler))
    }

    /// Makes an empty map, and the receiver of its expired entries, for async code. See
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
    /// assert_eq!(lost.recv().await, Some(("log", 7)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_with_receiver(self) -> (ExpiringMap<K, V>, ExpiredEntries<K, V>)
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let (sender, expired) = receiver::channel();
        (self.build_with(Output::sender(sender)), expired)
    }

    fn build_with(self, mut output: Output<K, V>) -> ExpiringMap<K, V> {
        let Self { timer, time_to_live, listener } = self;
        output.listener = listener;
        let output = Arc::new(output);
        let shards = array::from_fn(|_| Arc::new(Shard::new(Arc::clone(&output))));
        let owner = Owner { timer, time_to_live, hasher: RandomState::new(), shards, output };
        ExpiringMap { owner: Arc::new(owner) }
    }
}

impl<K, V> fmt::Debug for ExpiringMapBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringMapBuilder").field("time_to_live", &self.time_to_live).finish_non_exhaustive()
    }
}
