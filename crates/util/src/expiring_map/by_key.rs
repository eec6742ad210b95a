//! Calls that concern the entry under one key.

use std::hash::Hash;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::items::{Armed, Current, Expire, NewItem, Registration, arm};
use super::{ExpiringMap, InsertError};
use crate::deadlines::{Deadlines, after};
use equivalent::Equivalent;
use hashed_wheel::{NewTimeoutError, Timeout};

/// That of [`Timeout::remaining`].
const PRECISION: Duration = Duration::from_micros(1);

impl<K: Hash + Eq, V> ExpiringMap<K, V> {
    /// Inserts an entry that expires `delay` from now. Returns the value that was under the key,
    /// unless its time has come: then it goes to the handler or the receiver.
    ///
    /// The timeout of the replaced entry is cancelled. The new key replaces the old one, unlike in
    /// `HashMap::insert`. To keep the old entry: [`insert_if_absent`](Self::insert_if_absent).
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
    /// let sessions = ExpiringMap::new(&timer);
    /// assert_eq!(sessions.insert("ada", "10.0.0.7", Duration::from_secs(30))?, None);
    /// assert_eq!(sessions.insert("ada", "10.0.0.8", Duration::from_secs(30))?, Some("10.0.0.7"));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        Ok(self.insert_after(key, value, delay, true)?.replaced())
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
    ) -> Result<Option<(K, V)>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        // Otherwise the timer would have to have room.
        if self.contains_key(&key) {
            return Ok(Some((key, value)));
        }
        match self.insert_after(key, value, delay, false)? {
            Armed::Inserted(_) => Ok(None),
            Armed::Occupied(entry) => Ok(Some(entry.into_pair())),
        }
    }

    fn insert_after(
        &self,
        key: K,
        value: V,
        delay: Duration,
        replaces: bool,
    ) -> Result<Armed<K, V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let timer = &self.owner.timer;
        let now = timer.now_nanos();
        let new = NewItem::new(after(now, delay), replaces);
        self.insert_by(
            key,
            value,
            now,
            new,
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
    ) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let timer = &self.owner.timer;
        let now = timer.now_nanos();
        let new = NewItem::new(timer.deadline_at(deadline), true);
        let schedule = |registration, on_worker| match on_worker {
            true => timer.new_timeout_task_at(Expire::<_, _, true>(registration), deadline),
            false => timer.new_timeout_task_at(Expire::<_, _, false>(registration), deadline),
        };
        Ok(self.insert_by(key, value, now, new, schedule)?.replaced())
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
        key: K,
        value: V,
        now: u64,
        new: NewItem<K, V>,
        schedule: impl FnOnce(Registration<K, V>, bool) -> Result<Timeout, NewTimeoutError>,
    ) -> Result<Armed<K, V>, InsertError<K, V>>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let (shard, hash) = self.place(&key);
        let new = new.with(Entry::new(key, value));
        arm(shard, hash, now, new, |registration| {
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
    /// # let sessions = ExpiringMap::new(&timer);
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
    pub fn with<Q, R>(&self, key: &Q, access: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.with_current(key, |current| {
            current.is_used = true;
            access(current.entry.parts().1)
        })
    }

    /// Re-arms the entry under `key`: it now expires `delay` from now, earlier or later than
    /// before. `DelayQueue::reset` of tokio-util.
    ///
    /// Returns false, and changes nothing, if there is none or its time has come. Then the value
    /// has gone to the handler or is about to.
    ///
    /// When it returns true, the entry does not expire before. It costs one lookup, or two for an
    /// earlier deadline, and one [`Timeout::reset`](hashed_wheel::Timeout::reset). It allocates
    /// nothing of its own.
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
    pub fn touch<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let now = self.owner.timer.now_nanos();
        let end = after(now, delay);
        self.touch_by(key, now, end, || delay, |timeout| timeout.reset(delay))
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
    pub fn touch_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let timer = &self.owner.timer;
        let (now, end) = (timer.now_nanos(), timer.deadline_at(deadline));
        let rest = || timer.until(end);
        self.touch_by(key, now, end, rest, |timeout| timeout.reset_at(deadline))
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

    /// The deadline in the item follows that of its timeout.
    ///
    /// To a later deadline, the timeout is reset under the lock. The timer does not call its waker
    /// for that. To an earlier one, it is reset without the lock. If another call changes the item
    /// meanwhile, the order of the resets is unknown, so this one comes again.
    ///
    /// The deadline of the timeout may be later than that of its item, because it has read the
    /// clock later. So it is compared with `rest`, the time until `deadline`.
    fn touch_by<Q>(
        &self,
        key: &Q,
        now: u64,
        deadline: u64,
        rest: impl Fn() -> Duration,
        reset: impl Fn(&Timeout) -> bool,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (shard, hash) = self.place(key);
        let (mut tried, mut is_reset) = (None, false);
        loop {
            let mut items = shard.lock_at(now);
            let Some(found) = items.current.find(hash, |current| current.has_key(key)) else {
                // It has left after the reset, if there was one.
                return is_reset;
            };
            found.is_used = true;
            let item = found.item;
            match tried {
                Some((tried, changes)) if tried == item && changes == found.changes => {
                    if is_reset {
                        found.set_deadline(deadline);
                        items.current.hasten(hash, item, deadline);
                    }
                    return is_reset;
                }
                // It was replaced after the reset.
                Some((tried, _)) if tried != item && is_reset => return true,
                _ => {}
            }
            if deadline >= found.deadline {
                // In this order: the time that passes in between makes `rest` shorter.
                let remaining = found.timeout.remaining().saturating_add(PRECISION);
                if remaining <= rest() {
                    let is_reset = reset(&found.timeout);
                    if is_reset {
                        found.set_deadline(deadline);
                    }
                    return is_reset;
                }
                // The item may live on until the reset, because its timeout is later still.
                found.set_deadline(deadline);
            }
            tried = Some((item, found.changes));
            let timeout = found.timeout.clone();
            drop(items);
            is_reset = reset(&timeout);
        }
    }

    /// Calls `access` under the lock with the item under `key`, if there is one and it is alive.
    fn with_current<Q, R>(&self, key: &Q, access: impl FnOnce(&mut Current<K, V>) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let now = self.owner.timer.now_nanos();
        let (shard, hash) = self.place(key);
        let mut items = shard.lock_at(now);
        let current = items.current.find(hash, |current| current.has_key(key))?;
        Some(access(current))
    }

    /// Removes the entry under `key`, cancels its timeout, and returns its value. Returns `None` if
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
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let now = self.owner.timer.now_nanos();
        let (shard, hash) = self.place(key);
        let removed = shard
            .lock_at(now)
            .current
            .remove_living(hash, |current| current.has_key(key))?;
        Some(removed.end().into_value())
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
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let deadline = self.with_current(key, |current| current.deadline)?;
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
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.with_current(key, |_| ()).is_some()
    }
}
