//! The public wheels, which own values of any type: an order and a slab that stores its entries.

use alloc::vec::Vec;
use core::fmt;

use super::entries::Entries;
use super::hashed::Hashed;
use super::hierarchical::Hierarchical;
use super::key::Key;
use super::ring::SizeError;
use super::slab::{Iter, Slab};
use super::whole::{new_wheel, whole};

/// Defines a wheel. The arguments are the documentation of the type, of `new`, of the cost of
/// `advance`, of the accuracy of `next_deadline`, and of the cost of `peek`.
macro_rules! wheel {
    (
        $(#[doc = $type:literal])*
        $Wheel:ident on $Order:ident
        $(#[doc = $new:literal])*
        fn new
        $(#[doc = $advance:literal])*
        fn advance
        $(#[doc = $next_deadline:literal])*
        fn next_deadline
        $(#[doc = $peek:literal])*
        fn peek
    ) => {
        $(#[doc = $type])*
        pub struct $Wheel<T> {
            entries: Slab<T>,
            order: $Order,
        }

        impl<T> $Wheel<T> {
            $(#[doc = $new])*
            #[must_use]
            pub const fn new(ticks_per_wheel: usize) -> Self {
                Self {
                    order: $Order::new(ticks_per_wheel),
                    entries: Slab::new(),
                }
            }

            /// Does the same as [`new`](Self::new), but returns an error instead of a panic, for a
            /// number of slots that comes from a configuration.
            ///
            /// # Errors
            ///
            /// If `ticks_per_wheel` is 0 or more than
            /// [`MAX_TICKS_PER_WHEEL`](super::MAX_TICKS_PER_WHEEL), or if there is no memory for
            /// this many slots. (The wheel may still lack memory for entries later. Then the
            /// process ends, as with a `Vec` that grows.)
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use timing_wheels::", stringify!($Wheel), " as Wheel;")]
            ///
            /// assert!(Wheel::<&str>::try_new(512).is_ok());
            /// let error = Wheel::<&str>::try_new(0).unwrap_err();
            /// assert!(error.to_string().starts_with("ticks_per_wheel is 0"));
            /// ```
            pub fn try_new(ticks_per_wheel: usize) -> Result<Self, SizeError> {
                Self::try_with_capacity(ticks_per_wheel, 0)
            }

            /// Makes the same wheel as [`new`](Self::new), with memory for `capacity` entries. It
            /// keeps this memory until [`shrink_to_fit`](Self::shrink_to_fit). (The slots allocate
            /// theirs when entries come, about four bytes per entry in the hierarchical wheel and
            /// eight in the hashed one.) `Vec::with_capacity`.
            ///
            /// # Panics
            ///
            /// If `ticks_per_wheel` is 0 or more than
            /// [`MAX_TICKS_PER_WHEEL`](super::MAX_TICKS_PER_WHEEL), or if there is no memory for
            /// this many slots or entries.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use timing_wheels::", stringify!($Wheel), " as Wheel;")]
            ///
            /// let mut wheel = Wheel::with_capacity(64, 1_000);
            /// let capacity = wheel.capacity();
            /// assert!(capacity >= 1_000);
            /// (0..1_000).for_each(|number| drop(wheel.insert(number, number)));
            /// assert_eq!(wheel.capacity(), capacity);
            /// ```
            #[must_use]
            pub fn with_capacity(ticks_per_wheel: usize, capacity: usize) -> Self {
                match Self::try_with_capacity(ticks_per_wheel, capacity) {
                    Ok(wheel) => wheel,
                    Err(error) => panic!("{error}"),
                }
            }

            /// Does the same as [`with_capacity`](Self::with_capacity), but returns an error
            /// instead of a panic, for numbers that come from a configuration.
            ///
            /// # Errors
            ///
            /// If `ticks_per_wheel` is 0 or more than
            /// [`MAX_TICKS_PER_WHEEL`](super::MAX_TICKS_PER_WHEEL), or if there is no memory for
            /// this many slots or entries.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use timing_wheels::{", stringify!($Wheel), " as Wheel, SizeError};")]
            ///
            /// assert!(Wheel::<u32>::try_with_capacity(512, 1_000).is_ok());
            /// let error = Wheel::<u32>::try_with_capacity(512, usize::MAX).unwrap_err();
            /// assert!(matches!(error, SizeError::NoMemory { .. }));
            /// ```
            pub fn try_with_capacity(
                ticks_per_wheel: usize,
                capacity: usize,
            ) -> Result<Self, SizeError> {
                Ok(Self {
                    order: $Order::try_new(ticks_per_wheel)?,
                    entries: Slab::try_with_capacity(capacity)?,
                })
            }

            /// Inserts an entry that is due at the absolute tick `deadline`, and returns its key.
            ///
            /// An entry whose deadline has passed expires in the next [`advance`](Self::advance).
            /// Entries with the same deadline expire in insertion order; a [`reset`](Self::reset)
            /// to another deadline counts as an insertion.
            ///
            /// # Panics
            ///
            /// If the wheel contains 2^32 − 1 entries already.
            pub fn insert(&mut self, deadline: u64, value: T) -> Key {
                let key = self.entries.insert(deadline, value);
                self.link(deadline, key.index);
                key
            }

            /// Removes an entry before it expires, and returns its value. Returns `None` if the key
            /// is stale: the entry has expired, was removed or was drained.
            pub fn remove(&mut self, key: Key) -> Option<T> {
                self.entries.get(key)?;
                self.unlink(key.index);
                Some(self.entries.remove(key.index))
            }

            /// Returns the value of an entry. Returns `None` if the key is stale: the entry has
            /// expired, was removed or was drained.
            #[must_use]
            pub fn get(&self, key: Key) -> Option<&T> {
                self.entries.get(key)
            }

            /// Returns the value of an entry, to modify it. Returns `None` if the key is stale: the
            /// entry has expired, was removed or was drained.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// let key = wheel.insert(10, ("GET /", 0));
            /// // Sent again, with the same deadline:
            /// if let Some((_, retries)) = wheel.get_mut(key) {
            ///     *retries += 1;
            /// }
            /// assert_eq!(wheel.get(key), Some(&("GET /", 1)));
            /// wheel.advance(10, |_| ());
            /// assert_eq!(wheel.get_mut(key), None);
            /// ```
            #[must_use]
            pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
                self.entries.get_mut(key)
            }

            /// Returns the deadline of an entry, as it was given to [`insert`](Self::insert) or
            /// [`reset`](Self::reset). Returns `None` if the key is stale: the entry has expired,
            /// was removed or was drained.
            ///
            /// The result is before [`tick`](Self::tick) if the deadline had passed when it was
            /// given, or if the entry is due and [`pop_expired`](Self::pop_expired) has not
            /// returned it yet.
            #[must_use]
            pub fn deadline(&self, key: Key) -> Option<u64> {
                self.entries.get(key)?;
                Some(self.entries.deadline(key.index))
            }

            /// Moves an entry to the absolute tick `deadline`, which may be earlier or later than
            /// before. The key stays valid. Returns false if the key is stale: the entry has
            /// expired, was removed or was drained. `tokio_util::time::DelayQueue::reset`.
            ///
            /// The entry expires as if it was removed and inserted again: after all entries that
            /// have the same deadline already. The cost is that of [`remove`](Self::remove) and
            /// [`insert`](Self::insert). But a reset to the deadline that the entry already has
            /// costs a comparison: the entry keeps its place among those of its deadline.
            ///
            /// An entry that is due, and that [`pop_expired`](Self::pop_expired) has not returned
            /// yet, can be reset too. It always moves, also to the deadline that it has: if it is
            /// due again, then after those that are due already.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// let idle = wheel.insert(60, "connection 1");
            /// // The connection has sent something at tick 50:
            /// assert!(wheel.reset(idle, 110));
            /// assert_eq!(wheel.deadline(idle), Some(110));
            /// assert_eq!(wheel.pop_expired(109), None);
            /// assert_eq!(wheel.pop_expired(110), Some((idle, 110, "connection 1")));
            /// assert!(!wheel.reset(idle, 170));
            /// ```
            pub fn reset(&mut self, key: Key, deadline: u64) -> bool {
                let Some(before) = self.deadline(key) else {
                    return false;
                };
                if before != deadline || before <= self.tick() {
                    self.unlink(key.index);
                    self.entries.set_deadline(key.index, deadline);
                    self.link(deadline, key.index);
                }
                true
            }

            /// Returns the key, the deadline and the value of the entry that expires next. Returns
            /// `None` if the wheel is empty. `tokio_util::time::DelayQueue::peek`.
            ///
            /// The deadline is that of [`deadline`](Self::deadline), which may have passed.
            ///
            /// # Cost
            ///
            /// If entries are due already, the cost is constant unless the first ones were removed.
            $(#[doc = $peek])*
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// wheel.insert(7, "second");
            /// let first = wheel.insert(3, "first");
            /// assert_eq!(wheel.peek(), Some((first, 3, &"first")));
            /// wheel.remove(first);
            /// assert_eq!(wheel.peek().unwrap().2, &"second");
            /// ```
            #[must_use]
            pub fn peek(&self) -> Option<(Key, u64, &T)> {
                self.entries.entry(self.order.first(&self.entries)?)
            }

            /// Advances the time to the absolute tick `now`, and calls `expired` with the value of
            /// each entry whose deadline is at or before `now`. Does nothing if `now` is before
            /// [`tick`](Self::tick).
            ///
            /// Entries expire in the order of their deadlines, and entries with the same deadline
            /// in insertion order. A deadline that had passed on insertion counts as the tick at
            /// which the entry was inserted.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// wheel.advance(100, |_| ());
            /// wheel.insert(300, "c");
            /// wheel.insert(7, "a"); // overdue: as if its deadline was 100
            /// wheel.insert(200, "b");
            /// wheel.insert(900, "d");
            /// let mut expired = Vec::new();
            /// wheel.advance(500, |entry| expired.push(entry));
            /// assert_eq!(expired, ["a", "b", "c"]);
            /// ```
            ///
            $(#[doc = $advance])*
            ///
            /// If `expired` panics, the time is `now`. The entry that was passed to it is removed,
            /// and all others are still in the wheel. The next `advance` continues with the entry
            /// that follows.
            pub fn advance(&mut self, now: u64, mut expired: impl FnMut(T)) {
                let mut due = self.pop_first(now);
                while let Some(entry) = due {
                    expired(self.entries.remove(entry));
                    due = self.order.pop_due(&self.entries);
                }
            }

            /// Advances the time to the absolute tick `now`, and removes one entry whose deadline
            /// is at or before `now`. Returns its key, which is stale now, its deadline and its
            /// value. Returns `None` if there is none, or if `now` is before [`tick`](Self::tick).
            /// `tokio_util::time::DelayQueue::poll_expired`.
            ///
            /// This is [`advance`](Self::advance) one entry at a time, in the same order. Use it to
            /// do a bounded amount of work at a time (Agrona: `poll` with an `expiryLimit`), or to
            /// insert, reset and remove entries in between. To keep an entry and its key beyond its
            /// deadline, use [`peek_expired`](Self::peek_expired).
            ///
            /// The time is `now` after the first call, and the entries that are due stay in the
            /// wheel: they can be looked up, reset and removed. While there are any,
            /// [`next_deadline`](Self::next_deadline) returns `now`. A later `pop_expired` or
            /// `advance` continues with them.
            ///
            /// An entry that is inserted in between, and whose deadline has passed, expires after
            /// those that are due already.
            ///
            /// # Cost
            ///
            /// The first call for a tick costs what `advance` does to find the entries that are
            /// due. The others take amortised constant time. If you need no bound, `advance` is
            /// faster.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// for number in 0..5 {
            ///     wheel.insert(10, number);
            /// }
            /// // At most three at a time:
            /// let mut portion = Vec::new();
            /// while portion.len() < 3 {
            ///     let Some((_, _, number)) = wheel.pop_expired(12) else { break };
            ///     portion.push(number);
            /// }
            /// assert_eq!(portion, [0, 1, 2]);
            /// assert_eq!(wheel.next_deadline(), Some(12)); // more is due now
            /// wheel.advance(12, |number| portion.push(number));
            /// assert_eq!(portion, [0, 1, 2, 3, 4]);
            /// ```
            // Inlined: many calls find nothing, so the registers of a call are most of the cost.
            #[inline]
            pub fn pop_expired(&mut self, now: u64) -> Option<(Key, u64, T)> {
                let entry = self.pop_first(now)?;
                Some(self.entries.remove_entry(entry))
            }

            /// Advances the time to the absolute tick `now`, and returns the key, the deadline and
            /// the value of the entry that [`pop_expired`](Self::pop_expired) would remove. Returns
            /// `None` if there is none, or if `now` is before [`tick`](Self::tick).
            ///
            /// The entry stays in the wheel, so an entry can live on under its key: decide here
            /// whether to [`reset`](Self::reset) it to a deadline after `now`, or to
            /// [`remove`](Self::remove) it. (An entry that is reset to `now` or earlier is due
            /// again, after those that are due already.) An entry that waits for no deadline, and
            /// is to be armed again later, can be reset to `u64::MAX`.
            ///
            /// The cost is that of [`pop_expired`](Self::pop_expired).
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// let periodic = wheel.insert(10, 0);
            /// for now in 0..35 {
            ///     while let Some((key, deadline, runs)) = wheel.peek_expired(now) {
            ///         *runs += 1;
            ///         wheel.reset(key, deadline + 10);
            ///     }
            /// }
            /// assert_eq!(wheel.get(periodic), Some(&3));
            /// assert_eq!(wheel.remove(periodic), Some(3)); // still the same key
            /// ```
            pub fn peek_expired(&mut self, now: u64) -> Option<(Key, u64, &mut T)> {
                if now < self.tick() {
                    return None;
                }
                self.order.advance(&mut self.entries, now);
                self.entries.entry_mut(self.order.first_due()?)
            }

            /// Returns the tick to which to [`advance`](Self::advance) next: no entry expires
            /// before it. Returns `None` if the wheel is empty.
            ///
            /// The result is never before [`tick`](Self::tick). It is `tick` itself if an entry is
            /// due already, because its deadline had passed when it was inserted, or because
            /// [`pop_expired`](Self::pop_expired) has not returned it yet. Otherwise it is later.
            ///
            /// So this loop empties the wheel:
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// wheel.advance(100, |_| ());
            /// wheel.insert(5, "overdue");
            /// wheel.insert(1_000, "far");
            /// while let Some(tick) = wheel.next_deadline() {
            ///     wheel.advance(tick, |entry| println!("{entry} at tick {tick}"));
            /// }
            /// assert!(wheel.is_empty());
            /// ```
            ///
            $(#[doc = $next_deadline])*
            #[must_use]
            pub fn next_deadline(&self) -> Option<u64> {
                self.order.next_deadline()
            }

            /// Returns the current tick: the highest one that was passed to
            /// [`advance`](Self::advance), at first 0.
            #[must_use]
            pub fn tick(&self) -> u64 {
                self.order.tick()
            }

            /// Advances the time to `now`, and removes the first entry that is due from the order;
            /// `None` if there is none, or if `now` is before the time.
            #[inline]
            fn pop_first(&mut self, now: u64) -> Option<u32> {
                if now < self.tick() {
                    return None;
                }
                self.order.pop_expired(&mut self.entries, now)
            }

            #[inline]
            fn link(&mut self, deadline: u64, entry: u32) {
                let position = self.order.insert(deadline, entry);
                self.entries.set_position(entry, position);
            }

            #[inline]
            fn unlink(&mut self, entry: u32) {
                let (deadline, position) = self.entries.place(entry);
                self.order.remove(deadline, position, &mut self.entries);
            }
        }

        whole! { $Wheel }
    };
}

wheel! {
    /// A hashed timing wheel: Varghese and Lauck's scheme 6, the data structure of Netty's
    /// `HashedWheelTimer`.
    ///
    /// A deadline is an absolute tick. The number of slots is a power of two. The low bits of the
    /// deadline (a mask) select the slot. The high bits are the number of complete rounds before
    /// the deadline; a *round* is one revolution of the wheel.
    ///
    /// A slot keeps its entries in one dense array, each with its `remaining_rounds`. For each
    /// chunk of 32 entries it also keeps the minimum. A visit reads the minima, and then the chunks
    /// in which an entry is due. The wheel keeps the earliest deadline of each slot, and finds the
    /// earliest of all in a tree. So it visits a slot only if one of the slot's entries is due,
    /// regardless of the number of rounds that pass.
    ///
    /// [`insert`](Self::insert) and [`remove`](Self::remove) take amortised constant time. If the
    /// earliest deadline of a slot changes, they take additional O(log₈ *slots*) time. Memory use
    /// is at most proportional to the largest number of entries since the wheel was last empty, or
    /// to 1 024. Most of it is freed earlier, unless one of the entries that are left was
    /// inserted when the wheel was fullest. An empty slot costs five bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use timing_wheels::HashedWheel;
    ///
    /// let mut wheel = HashedWheel::new(8);
    /// wheel.insert(3, "near");
    /// wheel.insert(3 + 8 * 1_000_000_000, "a billion rounds later");
    ///
    /// let mut fired = Vec::new();
    /// wheel.advance(1_000, |entry| fired.push(entry));
    /// assert_eq!(fired, ["near"]);
    /// assert_eq!(wheel.next_deadline(), Some(8_000_000_003));
    /// ```
    HashedWheel on Hashed

    /// Makes an empty wheel at tick 0. It has `ticks_per_wheel` slots, rounded up to a power of
    /// two. Allocates nothing: the slots are allocated when an entry first needs one. Without
    /// memory for them that panics; [`try_new`](Self::try_new) allocates them at once.
    ///
    /// # Panics
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](super::MAX_TICKS_PER_WHEEL).
    fn new

    /// The cost depends on the number of entries that expire and on the number of slots that
    /// contain them; each such slot is visited once. It does not depend on the number of ticks
    /// since the last call, except that the expired entries are sorted if this is more than one
    /// round. A visit also reads the deadlines of all entries that it leaves, if all of these are
    /// billions of rounds ahead: for many entries that never expire, use a
    /// [`HierarchicalWheel`](super::HierarchicalWheel).
    fn advance

    /// The result is the earliest deadline itself, unless entries were removed, `expired` has
    /// panicked, or the deadline is billions of rounds ahead. A caller that sleeps until this tick
    /// wakes up early at most once per removed entry, and once per billions of rounds.
    fn next_deadline

    /// Otherwise the call reads all deadlines in the slot of the first entry. If an entry before it
    /// was removed or reset, the call also reads one value per occupied slot, and all deadlines in
    /// the slot of that entry.
    fn peek
}

wheel! {
    /// A hierarchical timing wheel: Varghese and Lauck's scheme 7, which Kafka and Linux use too.
    ///
    /// The lowest level has one slot per tick. A slot of each further level is as wide as all slots
    /// of the level below together. The levels cover 2^64 ticks. A level is allocated when an entry
    /// first needs it.
    ///
    /// Deadline and time are numbers to the base `ticks_per_wheel`. An entry is in the level of the
    /// highest digit in which its deadline and the time differ, and in the slot that this digit of
    /// its deadline selects. When the time reaches the slot, the entry cascades to a lower level.
    /// So an entry moves at most once per level, and there are no rounds. (If `ticks_per_wheel` is
    /// more than 2^16, only the lowest digit has this base, and the others have the base 2^16. So
    /// only the lowest level may be large.)
    ///
    /// The slot of an entry depends only on its deadline and the time, so entries with the same
    /// deadline are always in the same slot. All entries of a level are due before those of the
    /// next level. So the earliest entry is in the first occupied slot of the lowest occupied
    /// level. The time advances from one such slot to the next, not tick by tick.
    ///
    /// The first 32 entries are in a sorted list, and not in the levels. So a wheel with few
    /// entries is about as fast as such a list, and allocates no level.
    ///
    /// [`insert`](Self::insert) and [`remove`](Self::remove) take amortised constant time. Memory
    /// use is at most proportional to the largest number of entries since the wheel was last empty,
    /// or to 1 024. Most of it is freed earlier, unless one of the entries that are left
    /// was inserted when the wheel was fullest. An empty slot costs four bytes once its level is
    /// allocated.
    ///
    /// # Examples
    ///
    /// ```
    /// use timing_wheels::HierarchicalWheel;
    ///
    /// let mut wheel = HierarchicalWheel::new(8);
    /// wheel.insert(3, "near");
    /// wheel.insert(3 + (1 << 60), "eons later");
    ///
    /// let mut fired = Vec::new();
    /// wheel.advance(1 << 50, |entry| fired.push(entry));
    /// assert_eq!(fired, ["near"]);
    /// assert_eq!(wheel.next_deadline(), Some(3 + (1 << 60)));
    /// ```
    HierarchicalWheel on Hierarchical

    /// Makes an empty wheel at tick 0. Each level has `ticks_per_wheel` slots, rounded up to a
    /// power of two and at least two. (Levels above the lowest one have at most 2^16 slots.)
    ///
    /// It allocates nothing, so a wheel can be a `static`: in a `Mutex`, or what the target has in
    /// its place.
    ///
    /// # Panics
    ///
    /// If `ticks_per_wheel` is 0 or more than
    /// [`MAX_TICKS_PER_WHEEL`](super::MAX_TICKS_PER_WHEEL).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use timing_wheels::HierarchicalWheel;
    ///
    /// static WHEEL: Mutex<HierarchicalWheel<&str>> = Mutex::new(HierarchicalWheel::new(64));
    ///
    /// WHEEL.lock().unwrap().insert(3, "first");
    /// assert_eq!(WHEEL.lock().unwrap().next_deadline(), Some(3));
    /// ```
    fn new

    /// The cost depends on the number of entries that expire or cascade, not on the number of ticks
    /// since the last call. An entry cascades at most once per level. All entries of a slot cascade
    /// in the same call, so a call that reaches a crowded slot of a high level takes longer.
    fn advance

    /// The result is the earliest deadline itself, unless entries were removed or `expired` has
    /// panicked. A caller that sleeps until this tick wakes up early at most once per removed
    /// entry. Entries need no wake-up to cascade.
    fn next_deadline

    /// Otherwise the call reads all deadlines in the slot of the first entry. A slot of a high
    /// level may contain many.
    fn peek
}
