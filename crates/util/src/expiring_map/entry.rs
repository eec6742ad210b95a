//! The entry API, and write-back as the callers see it: what a call finds under a key, and what it
//! does then, is one step.

use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::task::Poll;
use std::time::Duration;

use equivalent::Equivalent;

use super::by_key::Locked;
use super::item::Item;
use super::shard::Reservation;
use super::time::Now;
use super::{BeingWritten, ExpiringMap, InsertError, Owner};
use crate::sync::Arc;

/// What is under a key, from [`ExpiringMap::entry`]. `Entry` of `HashMap`.
///
/// It works as a lock of its key: other calls for this key wait until it is dropped, on their
/// threads. Calls for other keys do not wait, unless they have the same hash. A thread that has it
/// must make no other call for the same key, which would wait forever. In async code, drop it
/// before an `await`: otherwise another task on the same thread can make that call.
/// [`try_get`](ExpiringMap::try_get) does not wait.
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
///     let mut count = calls.entry(user).or_insert(0, Duration::from_secs(1))?;
///     *count.get_mut() += 1;
///     Ok(*count.get() <= 10)
/// };
/// assert!((0..10).all(|_| may_call("ada").unwrap()));
/// assert!(!may_call("ada")? && may_call("grace")?);
/// # Ok::<(), NewTimeoutError>(())
/// ```
pub enum Entry<'a, K, V> {
    /// There is an entry.
    Occupied(OccupiedEntry<'a, K, V>),
    /// There is none.
    Vacant(VacantEntry<'a, K, V>),
}

/// An entry of a map: part of [`Entry`].
///
/// Its time runs on. If that comes meanwhile, the entry leaves the map at the timer's next tick
/// after this was dropped. Until then, calls that concern all entries leave it out.
pub struct OccupiedEntry<'a, K, V> {
    owner: &'a Owner<K, V>,
    /// `None` once it was removed.
    held: Option<Held<K, V>>,
}

type Held<K, V> = (Item<K, V>, Reservation<K, V>);

/// A key without an entry: part of [`Entry`].
pub struct VacantEntry<'a, K, V> {
    owner: &'a Owner<K, V>,
    key: K,
    reservation: Reservation<K, V>,
}

impl<K: Hash + Eq, V> ExpiringMap<K, V> {
    /// Returns what is under `key`, and reserves the key until the result is dropped.
    /// `HashMap::entry`.
    ///
    /// # Examples
    ///
    /// See [`Entry`].
    pub fn entry(&self, key: K) -> Entry<'_, K, V> {
        let locked = self.lock_key(&key);
        self.entry_in(key, locked)
    }

    /// [`entry`](Self::entry) that does not wait for a reserved key.
    ///
    /// # Errors
    ///
    /// As for [`try_get`](Self::try_get).
    ///
    /// # Examples
    ///
    /// Async code, which must not block its thread:
    ///
    /// ```
    /// # use hashed_wheel_util::{Entry, ExpiringMap};
    /// async fn count(sessions: &ExpiringMap<u32, u64>, key: u32) -> u64 {
    ///     loop {
    ///         match sessions.try_entry(key) {
    ///             Ok(Entry::Occupied(mut entry)) => {
    ///                 *entry.get_mut() += 1;
    ///                 break *entry.get();
    ///             }
    ///             Ok(Entry::Vacant(_)) => break 0,
    ///             Err(_) => sessions.written(&key).await,
    ///         }
    ///     }
    /// }
    /// ```
    pub fn try_entry(&self, key: K) -> Result<Entry<'_, K, V>, BeingWritten> {
        let locked = self.try_lock_key(&key)?;
        Ok(self.entry_in(key, locked))
    }

    // In this order: if `Eq` panics, the key is dropped after the lock is released.
    fn entry_in(&self, key: K, (shard, hash, mut table): Locked<'_, K, V>) -> Entry<'_, K, V> {
        let owner = &*self.owner;
        let item = table.remove_living(hash, &key);
        let reservation = shard.reserve(&mut table, hash);
        let now = table.now;
        drop(table);
        match item {
            Some(mut item) => {
                owner.use_item(&mut item, now);
                let held = Some((item, reservation));
                Entry::Occupied(OccupiedEntry { owner, held })
            }
            None => Entry::Vacant(VacantEntry {
                owner,
                key,
                reservation,
            }),
        }
    }

    /// Returns a clone of the value under `key`. If there is none, `make` makes it, and it is
    /// inserted, to expire `delay` from now. moka's `get_with`.
    ///
    /// The call is atomic: of several that find no entry, one makes it, and the others wait for
    /// that.
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
    /// # let pages = ExpiringMap::new(&timer);
    /// let page = pages.get_or_insert_with("/", || "a page".to_owned(), Duration::from_secs(60))?;
    /// assert_eq!(page, "a page");
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("get_with", "computeIfAbsent", "get_or_insert"))]
    pub fn get_or_insert_with(
        &self,
        key: K,
        make: impl FnOnce() -> V,
        delay: Duration,
    ) -> Result<V, InsertError<K, V>>
    where
        V: Clone,
    {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        let entry = self.entry(key).or_insert_with(make, delay)?;
        Ok(entry.get().clone())
    }

    /// Returns a clone of the value under `key`, as [`get`](Self::get) does, but does not wait for
    /// a reserved key.
    ///
    /// If it finds the entry dead before the timer does, it has it written first, as all calls do.
    ///
    /// # Errors
    ///
    /// If another call has an [`entry`](Self::entry) of this key, or the key is reserved because
    /// its entry is [written back](crate::ExpiringMapBuilder::build_with_write_back).
    ///
    /// # Examples
    ///
    /// See [`build_with_async_write_back`](crate::ExpiringMapBuilder::build_with_async_write_back).
    pub fn try_get<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<Option<V>, BeingWritten>
    where
        V: Clone,
    {
        let locked = self.try_lock_key(key)?;
        Ok(self.with_value(locked, key, |value| value.clone()))
    }

    /// Waits until `key` is not reserved: no call has an [`entry`](Self::entry) of it, and its
    /// entry is not being [written back](crate::ExpiringMapBuilder::build_with_write_back).
    ///
    /// When this has returned, another call may have reserved the key again.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel_util::ExpiringMap;
    /// async fn get(sessions: &ExpiringMap<u32, u64>, key: u32) -> Option<u64> {
    ///     loop {
    ///         match sessions.try_get(&key) {
    ///             Ok(value) => break value,
    ///             Err(_) => sessions.written(&key).await,
    ///         }
    ///     }
    /// }
    /// ```
    pub async fn written<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) {
        let (shard, hash) = self.place(key);
        poll_fn(|context| {
            // Cloned and dropped without the lock, because a waker is user code.
            let mut waker = Some(context.waker().clone());
            // A dead entry is written first.
            drop(self.try_lock_key(key));
            match shard.lock().wait(hash, &mut waker) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl<'a, K, V> Entry<'a, K, V> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        match self {
            Self::Occupied(entry) => entry.key(),
            Self::Vacant(entry) => &entry.key,
        }
    }

    /// Changes the value, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let counts = ExpiringMap::new(&HashedWheelTimer::default());
    /// for _ in 0..3 {
    ///     counts.entry("ada").and_modify(|count| *count += 1).or_insert(1, Duration::MAX)?;
    /// }
    /// assert_eq!(counts.get("ada"), Some(3));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn and_modify(mut self, modify: impl FnOnce(&mut V)) -> Self {
        if let Self::Occupied(entry) = &mut self {
            modify(entry.get_mut());
        }
        self
    }

    /// Inserts a value, to expire `delay` from now, unless there is an entry.
    ///
    /// # Errors
    ///
    /// As for [`ExpiringMap::insert`].
    ///
    /// # Examples
    ///
    /// See [`Entry`].
    pub fn or_insert(
        self,
        value: V,
        delay: Duration,
    ) -> Result<OccupiedEntry<'a, K, V>, InsertError<K, V>> {
        self.or_insert_with(|| value, delay)
    }

    /// Inserts the value that `make` returns, to expire `delay` from now, unless there is an entry.
    ///
    /// `make` runs without a lock held. It must make no call for the same key.
    ///
    /// # Errors
    ///
    /// As for [`ExpiringMap::insert`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::ExpiringMap;
    /// # use std::time::Duration;
    /// # let logs = ExpiringMap::new(&HashedWheelTimer::default());
    /// logs.entry("ada").or_insert_with(Vec::new, Duration::from_secs(60))?.get_mut().push("in");
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn or_insert_with(
        self,
        make: impl FnOnce() -> V,
        delay: Duration,
    ) -> Result<OccupiedEntry<'a, K, V>, InsertError<K, V>> {
        match self {
            Self::Occupied(entry) => Ok(entry),
            Self::Vacant(entry) => entry.insert(make(), delay),
        }
    }
}

impl<K, V> OccupiedEntry<'_, K, V> {
    fn item(&self) -> &Item<K, V> {
        &self.held.as_ref().expect("it is taken by value").0
    }

    fn item_mut(&mut self) -> &mut Item<K, V> {
        &mut self.held.as_mut().expect("it is taken by value").0
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.item().key
    }

    /// Returns the value.
    #[must_use]
    pub fn get(&self) -> &V {
        &self.item().value
    }

    /// Returns the value, to change it.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut V {
        &mut self.item_mut().value
    }

    /// Replaces the value, and returns the old one. The time stays, and the weight.
    pub fn insert(&mut self, value: V) -> V {
        std::mem::replace(self.get_mut(), value)
    }

    /// Re-arms the entry: it now expires `delay` from now. Returns false if its time has come, or
    /// its timeout was cancelled. See [`ExpiringMap::touch`].
    pub fn touch(&mut self, delay: Duration) -> bool {
        let owner = self.owner;
        let now = Now::of(&owner.timer);
        let item = self.item_mut();
        if !item.is_alive(now) || item.has_ended() {
            return false;
        }
        let is_earlier = owner.set_time(item, now, now.after(delay));
        !is_earlier || item.timeout().reset(now.until(item.deadline))
    }

    /// Removes the entry, cancels its timeout, and returns its value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::{Entry, ExpiringMap};
    /// # use std::time::Duration;
    /// # let leases = ExpiringMap::new(&HashedWheelTimer::default());
    /// leases.insert("log", 7, Duration::from_secs(60))?;
    /// // Give it up, if it is still ours:
    /// match leases.entry("log") {
    ///     Entry::Occupied(lease) if *lease.get() == 7 => drop(lease.remove()),
    ///     _ => println!("too late"),
    /// }
    /// assert!(leases.is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn remove(mut self) -> V {
        let Some((item, reservation)) = self.held.take() else {
            unreachable!("it is taken by value");
        };
        // First, because the end of the timeout can call the handler for a dead item.
        drop(reservation);
        item.into_value()
    }
}

/// It goes back to the table.
impl<K, V> Drop for OccupiedEntry<'_, K, V> {
    fn drop(&mut self) {
        let Some((item, reservation)) = self.held.take() else {
            return;
        };
        let shard = Arc::clone(&reservation.shard);
        let table = shard.lock_at(Now::of_or_past(&self.owner.timer));
        // The key is free first, because the handler may use it. Panics end here: this may be
        // dropped during another one.
        shard.put(table, item, || drop(reservation));
    }
}

impl<'a, K, V> VacantEntry<'a, K, V> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the key, and frees it.
    #[must_use]
    pub fn into_key(self) -> K {
        self.key
    }

    /// Inserts an entry that expires `delay` from now.
    ///
    /// # Errors
    ///
    /// As for [`ExpiringMap::insert`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::{Entry, ExpiringMap};
    /// # use std::time::Duration;
    /// # let leases = ExpiringMap::new(&HashedWheelTimer::default());
    /// if let Entry::Vacant(free) = leases.entry("log") {
    ///     free.insert(7, Duration::from_secs(60))?;
    /// }
    /// assert_eq!(leases.get("log"), Some(7));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert(
        self,
        value: V,
        delay: Duration,
    ) -> Result<OccupiedEntry<'a, K, V>, InsertError<K, V>> {
        let owner = self.owner;
        let Reservation { shard, hash } = &self.reservation;
        let item = owner.new_item(*hash, self.key, value);
        let now = Now::of(&owner.timer);
        let item = owner.arm(shard, item, now, |now| now.after(delay))?;
        let held = Some((item, self.reservation));
        Ok(OccupiedEntry { owner, held })
    }
}

impl<K: fmt::Debug, V> fmt::Debug for Entry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Occupied(entry) => f.debug_tuple("Occupied").field(entry).finish(),
            Self::Vacant(entry) => f.debug_tuple("Vacant").field(entry).finish(),
        }
    }
}

impl<K: fmt::Debug, V> fmt::Debug for OccupiedEntry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("OccupiedEntry");
        debug.field("key", self.key()).finish_non_exhaustive()
    }
}

impl<K: fmt::Debug, V> fmt::Debug for VacantEntry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("VacantEntry");
        debug.field("key", &self.key).finish_non_exhaustive()
    }
}
