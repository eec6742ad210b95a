//! Calls that concern all entries of a map.

use super::item::Item;
use super::panics::Panics;
use super::time::Now;
use super::{Cause, ExpiringMap};

impl<K, V> ExpiringMap<K, V> {
    /// Returns how many entries there are. Those whose time has come count until the timer's next
    /// tick, or a new entry in their place, removes them.
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
        let shards = self.owner.shards.iter();
        shards.map(|shard| shard.lock().len()).sum()
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
        let now = Now::of(&self.owner.timer);
        let mut keys = Vec::new();
        for shard in &self.owner.shards {
            keys.extend(shard.lock_at(now).living().map(|item| item.key.clone()));
        }
        keys
    }

    /// Removes all entries, and cancels their timeouts. Returns how many there were. Their values
    /// go to the handler or the receiver, as [`Removed`](crate::Cause::Removed).
    ///
    /// Entries whose time has come stay for the timer, and count in [`len`](Self::len).
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
        let now = Now::of(&self.owner.timer);
        let shards = self.owner.shards.iter();
        let all: Vec<_> = shards
            .flat_map(|shard| shard.take(now, Cause::Removed, |_, is_free| is_free))
            .collect();
        let (count, mut panics) = (all.len(), Panics::default());
        self.owner.output.pass_on_all(all, &mut panics);
        panics.resume();
        count
    }

    /// Removes all entries, cancels their timeouts, and returns them, in no particular order.
    /// `HashMap::drain`.
    ///
    /// Entries whose time has come stay for the timer, and count in [`len`](Self::len).
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
    /// # let sessions = ExpiringMap::new(&timer);
    /// sessions.insert("ada", 17, Duration::from_secs(30))?;
    /// assert_eq!(sessions.drain(), [("ada", 17)]);
    /// assert!(sessions.is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn drain(&self) -> Vec<(K, V)> {
        let now = Now::of(&self.owner.timer);
        let shards = self.owner.shards.iter();
        let mut all: Vec<_> = shards
            .flat_map(|shard| shard.lock_at(now).take(|_, is_free| is_free))
            .collect();
        // All before the first one is dropped, because dropping a key may panic.
        all.iter_mut().for_each(Item::cancel);
        all.into_iter().map(Item::into_pair).collect()
    }

    /// Keeps the entries for which `keep` returns true. Removes the others, and cancels their
    /// timeouts. Their values go to the handler or the receiver, as
    /// [`Removed`](crate::Cause::Removed). `HashMap::retain`.
    ///
    /// It takes one lock after the other. `keep` runs under the lock: it should be short and must
    /// not use the map, which can deadlock.
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
    /// # let sessions = ExpiringMap::new(&timer);
    /// sessions.insert(1, "10.0.0.7", Duration::from_secs(30))?;
    /// sessions.insert(2, "192.168.0.7", Duration::from_secs(30))?;
    /// sessions.retain(|_, ip| ip.starts_with("10."));
    /// assert_eq!(sessions.keys(), [1]);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let mut panics = Panics::default();
        for shard in &self.owner.shards {
            // Each time, because a handler takes long, perhaps.
            let now = Now::of(&self.owner.timer);
            let removed = shard.take(now, Cause::Removed, |item, is_free| {
                is_free && !keep(&item.key, &mut item.value)
            });
            self.owner.output.pass_on_all(removed, &mut panics);
        }
        panics.resume();
    }
}
