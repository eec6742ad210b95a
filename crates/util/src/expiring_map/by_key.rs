//! Calls that concern the entry under one key.

use std::hash::{BuildHasher, Hash};
use std::mem;
use std::time::{Duration, Instant};

use equivalent::Equivalent;

use super::shard::Shard;
use super::table::{Place, Table};
use super::time::Now;
use super::{BeingWritten, Cause, ExpiringMap, InsertError, Owner};
use crate::deadlines::{Deadlines, nanos};
use crate::sync::{Arc, MutexGuard};

pub(super) type Locked<'a, K, V> = (&'a Arc<Shard<K, V>>, u64, MutexGuard<'a, Table<K, V>>);

/// The value that a new entry has replaced, or the new entry, which must not replace another.
type Inserted<K, V> = Result<Option<V>, (K, V)>;

impl<K: Hash + Eq, V> ExpiringMap<K, V> {
    /// Inserts an entry that expires `delay` from now. Returns the value that was under the key,
    /// unless its time has come: then it goes to the handler or the receiver. If the key is
    /// reserved, the delay begins when it is free.
    ///
    /// The new key replaces the old one, unlike in `HashMap::insert`. To keep the old entry:
    /// [`insert_if_absent`](Self::insert_if_absent).
    ///
    /// The new entry takes over the timeout of the replaced one, as if that was touched, unless it
    /// expires earlier, or the map has a limit. Then the old timeout is cancelled, but only when
    /// the new one exists, so both count for a moment. Under a
    /// [limit](hashed_wheel::Builder::max_pending_timeouts) of the timer there must be room for one
    /// more. ([`touch`](Self::touch) needs no room.)
    ///
    /// If the map has a limit of its own and is full, a new key evicts another entry: see
    /// [`max_entries`](crate::ExpiringMapBuilder::max_entries).
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](hashed_wheel::HashedWheelTimer::new_timeout), also after a wait for
    /// the key, because a call that waits has no timeout yet. The error returns the key and the
    /// value, and the old entry is unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// let sessions = ExpiringMap::new(&timer);
    /// assert_eq!(sessions.insert("ada", "10.0.0.7", Duration::from_secs(30))?, None);
    /// assert_eq!(sessions.insert("ada", "10.0.0.8", Duration::from_secs(30))?, Some("10.0.0.7"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert(
        &self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<Option<V>, InsertError<K, V>> {
        let inserted = self.insert_by(key, value, |now| now.after(delay), true)?;
        // It does not come back: it replaces the other entry.
        Ok(inserted.ok().flatten())
    }

    /// Inserts an entry that expires `delay` from now, unless the key has an entry. Then it returns
    /// the key and the value. `ConcurrentMap::putIfAbsent` of Java.
    ///
    /// The call is atomic: of several that find no entry, one inserts its own. It does not change
    /// the time of the entry that stays.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// Each user has ten calls per second:
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// let calls = ExpiringMap::new(&HashedWheelTimer::default());
    /// let may_call = |user| -> Result<bool, NewTimeoutError> {
    ///     let _present = calls.insert_if_absent(user, 0, Duration::from_secs(1))?;
    ///     let count = calls.with(user, |count| {
    ///         *count += 1;
    ///         *count
    ///     });
    ///     Ok(count <= Some(10)) // `None`: the second has ended
    /// };
    /// assert!(may_call("ada")?);
    /// # Ok::<(), NewTimeoutError>(())
    /// ```
    pub fn insert_if_absent(
        &self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<Option<(K, V)>, InsertError<K, V>> {
        let inserted = self.insert_by(key, value, |now| now.after(delay), false)?;
        Ok(inserted.err())
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
    /// # let leases = ExpiringMap::new(&timer);
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
    ) -> Result<Option<V>, InsertError<K, V>> {
        let end = nanos(self.owner.timer.clock().time_at(deadline));
        let inserted = self.insert_by(key, value, |_| end, true)?;
        Ok(inserted.ok().flatten())
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
    pub fn put(&self, key: K, value: V) -> Result<Option<V>, InsertError<K, V>> {
        self.insert(key, value, self.owner.time_to_live)
    }

    /// Inserts an entry. Returns the living one of its key, which it replaces unless it must not:
    /// then it comes back. If there is none, and the shard is full, removes another entry, or the
    /// new one if it is dead already.
    ///
    /// If a key's `Eq` panics, the new entry ends, and the table is unchanged.
    fn insert_by(
        &self,
        key: K,
        value: V,
        end: impl Fn(Now) -> u64,
        replaces: bool,
    ) -> Result<Inserted<K, V>, InsertError<K, V>> {
        let (shard, hash) = self.place(&key);
        let owner = &self.owner;
        let mut new = owner.new_item(hash, key, value);
        // Once, because the clock is a good part of an insertion. The timer reads it again.
        let mut begin = Now::of(&owner.timer);
        loop {
            // Without the lock, because it may drop the entries of a receiver.
            let is_full = owner.output.check().is_err();
            let Ok(mut table) = shard.try_lock_key(hash, &owner.timer, begin, &new.key) else {
                // A timer that rejects the entry does so at once. Its delay begins when the key is
                // free.
                new = owner.arm(shard, new, begin, &end)?;
                new.cancel();
                shard.wait_for_key(hash);
                begin = Now::of(&owner.timer);
                continue;
            };
            begin = table.now;
            let latest = end(begin);
            let can_take_over = new.timeout.0.is_none() && !is_full && table.limit.is_none();
            let replaced = match table.find(hash, &new.key) {
                Some(_) if !replaces => {
                    drop(table);
                    return Ok(Err(new.into_pair()));
                }
                // It takes over the timeout of the old one, as if that was touched. One that has
                // ended would end the new one too.
                Some(old)
                    if can_take_over
                        && owner.deadline(begin, latest) >= old.deadline
                        && !old.has_ended() =>
                {
                    owner.set_time(&mut new, begin, latest);
                    mem::swap(&mut new.timeout, &mut old.timeout);
                    mem::swap(&mut new, old);
                    let old = shard.leave(&mut table, new, Cause::Replaced);
                    drop(table);
                    return Ok(Ok(shard.output.end_replaced(old)));
                }
                _ if new.timeout.0.is_none() => {
                    drop(table);
                    new = owner.arm(shard, new, begin, &end)?;
                    continue;
                }
                None => None,
                Some(_) => table.remove_living(hash, &new.key),
            };
            let replaced = replaced.map(|old| shard.leave(&mut table, old, Cause::Replaced));
            let end_replaced = || replaced.and_then(|old| shard.output.end_replaced(old));
            let (replaced, panics) = shard.put(table, new, end_replaced);
            panics.resume();
            return Ok(Ok(replaced.flatten()));
        }
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
    /// # let sessions = ExpiringMap::new(&timer);
    /// sessions.insert("ada", "10.0.0.7", Duration::from_secs(30))?;
    /// assert_eq!(sessions.get("ada"), Some("10.0.0.7"));
    /// assert_eq!(sessions.get("grace"), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V>
    where
        V: Clone,
    {
        self.with(key, |value| value.clone())
    }

    /// Calls `access` with the value under `key`, and returns its result; `None` if there is no
    /// entry.
    ///
    /// `access` runs under the lock, so the entry does not leave the map meanwhile. It should be
    /// short and must not use the map, which can deadlock, nor may the `Drop` of what it has
    /// captured. If it panics, the entry stays as `access` has left it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let timer = HashedWheelTimer::default();
    /// # let packets = ExpiringMap::new(&timer);
    /// packets.insert("ada", 0, Duration::from_secs(30))?;
    /// packets.with("ada", |count| *count += 1);
    /// assert_eq!(packets.with("ada", |count| *count), Some(1));
    /// assert_eq!(packets.with("grace", |count| *count), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn with<Q: Hash + Equivalent<K> + ?Sized, R>(
        &self,
        key: &Q,
        access: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        self.with_value(self.lock_key(key), key, access)
    }

    /// Re-arms the entry under `key`: it now expires `delay` from now, earlier or later than
    /// before. `DelayQueue::reset` of tokio-util.
    ///
    /// Returns false, and changes nothing, if there is none or its time has come. Then the value
    /// has gone to the handler or is about to.
    ///
    /// When it returns true, the entry does not expire before.
    ///
    /// # Cost
    ///
    /// A later deadline is only stored in the entry. When the old one has come, the timer
    /// [asks](hashed_wheel::TimerTask::postpone) for it. An earlier one re-arms the timeout.
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
    /// assert!(sessions.touch("ada", Duration::from_secs(30)));
    /// assert!(!sessions.touch("grace", Duration::from_secs(30)));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("keepalive", "reset", "refresh"))]
    pub fn touch<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q, delay: Duration) -> bool {
        self.touch_by(key, |now| now.after(delay))
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
    /// let sessions = ExpiringMap::new(&timer);
    /// sessions.insert("ada", 1, Duration::from_secs(30))?;
    /// assert!(sessions.touch_at("ada", timer.now() + Duration::from_secs(60)));
    /// assert!(!sessions.touch_at("bob", timer.now()));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn touch_at<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q, deadline: Instant) -> bool {
        let end = nanos(self.owner.timer.clock().time_at(deadline));
        self.touch_by(key, |_| end)
    }

    /// Re-arms the entry under `key` with the default [time to
    /// live](crate::ExpiringMapBuilder::time_to_live). See [`touch`](Self::touch).
    ///
    /// # Examples
    ///
    /// See [`put`](Self::put).
    pub fn renew<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.touch(key, self.owner.time_to_live)
    }

    /// The deadline is stored. If it is an earlier one, the timer is told without the lock: see
    /// [`Shard::settle`].
    fn touch_by<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        end: impl FnOnce(Now) -> u64,
    ) -> bool {
        let (shard, hash, mut table) = self.lock_key(key);
        // From now, and not from before a wait for the key.
        let now = table.now;
        let Some(item) = table.find(hash, key) else {
            return false;
        };
        if self.owner.set_time(item, now, end(now)) {
            let (own, place, deadline) = (item.timeout().clone(), Place::of(item), item.deadline);
            table.hasten(place, deadline);
            drop(table);
            shard.settle(hash, &own, deadline);
        }
        true
    }

    /// Returns the shard of a key, and its hash.
    pub(super) fn place<Q: Hash + ?Sized>(&self, key: &Q) -> (&Arc<Shard<K, V>>, u64) {
        let Owner { hasher, shards, .. } = &*self.owner;
        let hash = hasher.hash_one(key);
        // A hash table uses the lowest and the highest bits for its own places.
        (&shards[(hash >> 32) as usize & (shards.len() - 1)], hash)
    }

    /// Takes the lock for a call for this key. Returns the shard and the hash too. The error is
    /// that a call or a handler has reserved the key.
    pub(super) fn try_lock_key<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<Locked<'_, K, V>, BeingWritten> {
        let (shard, hash) = self.place(key);
        let timer = &self.owner.timer;
        let table = shard.try_lock_key(hash, timer, Now::of(timer), key)?;
        Ok((shard, hash, table))
    }

    /// The same, but waits for a reserved key.
    pub(super) fn lock_key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Locked<'_, K, V> {
        loop {
            if let Ok(locked) = self.try_lock_key(key) {
                return locked;
            }
            let (shard, hash) = self.place(key);
            shard.wait_for_key(hash);
        }
    }

    /// Calls `access` under the lock with the value under `key`, if there is one. That is a use of
    /// the entry.
    pub(super) fn with_value<Q: Equivalent<K> + ?Sized, R>(
        &self,
        (_, hash, mut table): Locked<'_, K, V>,
        key: &Q,
        access: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let now = table.now;
        let item = table.find(hash, key)?;
        self.owner.use_item(item, now);
        Some(access(&mut item.value))
    }

    /// Removes the entry under `key`, cancels its timeout, and returns its value. moka's and
    /// Caffeine's `invalidate`. Returns `None` if
    /// there is no entry, or its time has come: then the value has gone to the handler or is about
    /// to.
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
    /// assert_eq!(sessions.remove("ada"), Some(17));
    /// assert_eq!(sessions.remove("ada"), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("invalidate"))]
    pub fn remove<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V> {
        let (_, hash, mut table) = self.lock_key(key);
        let removed = table.remove_living(hash, key);
        drop(table);
        Some(removed?.into_value())
    }

    /// Returns the time left until the entry under `key` expires; `None` if there is no entry, and
    /// `Duration::MAX` if it never expires.
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
    pub fn remaining<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Duration> {
        let (_, hash, mut table) = self.lock_key(key);
        let item = table.find(hash, key)?;
        let deadline = item.deadline;
        drop(table);
        Some(self.owner.timer.until(deadline))
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
    pub fn contains_key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        let (_, hash, mut table) = self.lock_key(key);
        let found = table.find(hash, key);
        found.is_some()
    }
}
