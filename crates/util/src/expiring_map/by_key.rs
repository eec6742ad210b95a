//! Calls that concern the entry under one key.

use std::hash::Hash;
use std::time::{Duration, Instant};

use equivalent::Equivalent;
use hashed_wheel::{NewTimeoutError, Timeout};

use super::entry::Entry;
use super::items::{Expire, Registration, arm};
use super::{Cause, ExpiringMap, InsertError};

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
    /// If the map has a limit of its own and is full, a new key evicts another entry: see
    /// [`max_entries`](crate::ExpiringMapBuilder::max_entries).
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](hashed_wheel::HashedWheelTimer::new_timeout). The error returns the
    /// key and the value, and the old entry is unchanged.
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
        self.insert_by(
            Entry::new(key, value),
            |registration, on_worker| match on_worker {
                true => timer.new_timeout_task(Expire::<_, _, true>(registration), delay),
                false => timer.new_timeout_task(Expire::<_, _, false>(registration), delay),
            },
        )
    }

    /// Inserts an entry that expires at `deadline`. Returns the value that was under the key.
    /// `DelayQueue::insert_at` of tokio-util.
    ///
    /// This is [`insert`](Self::insert) with a deadline, which is converted as by
    /// [`new_timeout_at`](hashed_wheel::HashedWheelTimer::new_timeout_at): one that has passed is
    /// due now.
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
    pub fn insert_at(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let timer = &self.owner.timer;
        self.insert_by(
            Entry::new(key, value),
            |registration, on_worker| match on_worker {
                true => timer.new_timeout_task_at(Expire::<_, _, true>(registration), deadline),
                false => timer.new_timeout_task_at(Expire::<_, _, false>(registration), deadline),
            },
        )
    }

    /// Inserts an entry with the default [time to live](crate::ExpiringMapBuilder::time_to_live).
    /// Returns the value that was under the key. See [`insert`](Self::insert).
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
    /// let timer = HashedWheelTimer::default();
    /// let sessions = ExpiringMap::builder(&timer).time_to_live(Duration::from_secs(30)).build();
    /// sessions.put("ada", 17)?;
    /// assert!(sessions.remaining("ada").unwrap() <= Duration::from_secs(30));
    /// // For each packet:
    /// assert!(sessions.renew("ada"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn put(&self, key: K, value: V) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        self.insert(key, value, self.owner.time_to_live)
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
        arm(shard, hash, entry, |registration| {
            schedule(registration, self.owner.output.runs_on_worker)
        })
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
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.with(key, |value| value.clone())
    }

    /// Calls `access` with the value under `key`, and returns its result; `None` if there is no
    /// entry.
    ///
    /// `access` runs under the lock, so the entry does not expire meanwhile. It should be short and
    /// must not use the map, which can deadlock, nor may the `Drop` of what it has captured. If it
    /// panics, the entry stays as `access` has left it.
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
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (shard, hash) = self.place(key);
        let mut items = shard.items.lock();
        let current = items
            .current
            .find_used(hash, |current| current.has_key(key))?;
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
        Q: Hash + Equivalent<K> + ?Sized,
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
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.touch_by(key, |timeout| timeout.reset_at(deadline))
    }

    /// Re-arms the entry under `key` with the default [time to
    /// live](crate::ExpiringMapBuilder::time_to_live). See [`touch`](Self::touch).
    ///
    /// # Examples
    ///
    /// See [`put`](Self::put).
    pub fn renew<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.touch(key, self.owner.time_to_live)
    }

    fn touch_by<Q>(&self, key: &Q, reset: impl Fn(&Timeout) -> bool) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (shard, hash) = self.place(key);
        let mut tried = None;
        loop {
            let timeout = match shard
                .items
                .lock()
                .current
                .find_used(hash, |current| current.has_key(key))
            {
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
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (shard, hash) = self.place(key);
        let removed = shard
            .items
            .lock()
            .current
            .remove(hash, |current| current.has_key(key));
        removed.map(|removed| removed.end(&shard.output, Cause::Removed))
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
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (shard, hash) = self.place(key);
        let timeout = shard
            .items
            .lock()
            .current
            .find(hash, |current| current.has_key(key))?
            .timeout
            .clone();
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
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (shard, hash) = self.place(key);
        shard
            .items
            .lock()
            .current
            .find(hash, |current| current.has_key(key))
            .is_some()
    }
}
