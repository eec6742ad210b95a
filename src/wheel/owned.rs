//! The wheels with values of any type in them: an order, and a slab for its entries.

use std::fmt;

use super::hashed::Hashed;
use super::hierarchical::Hierarchical;
use super::slab::{Key, Slab};

/// A wheel with the documentation of its type, of `new`, of what `advance` costs, and of how exact `next_deadline` is.
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
    ) => {
        $(#[doc = $type])*
        pub struct $Wheel<T> {
            entries: Slab<T>,
            order: $Order,
        }

        impl<T> $Wheel<T> {
            $(#[doc = $new])*
            ///
            /// # Panics
            ///
            /// If `ticks_per_wheel` is 0 or more than [`MAX_TICKS_PER_WHEEL`](super::MAX_TICKS_PER_WHEEL).
            #[must_use]
            pub fn new(ticks_per_wheel: usize) -> Self {
                Self { entries: Slab::new(), order: $Order::new(ticks_per_wheel) }
            }

            /// Adds an entry that is due at the absolute tick `deadline`; one that has passed comes out at the next
            /// [`advance`](Self::advance). Entries with the same deadline come out in the order in which they were inserted.
            ///
            /// # Panics
            ///
            /// If the wheel has held 2^32 − 1 entries at a time.
            pub fn insert(&mut self, deadline: u64, value: T) -> Key {
                let key = self.entries.insert(deadline, value);
                self.order.insert(&mut self.entries, key.index());
                key
            }

            /// Takes an entry out before it is due. `None` if it has come out already, in whatever way.
            pub fn remove(&mut self, key: Key) -> Option<T> {
                self.entries.get(key)?;
                self.order.remove(&mut self.entries, key.index());
                Some(self.entries.remove(key.index()))
            }

            /// The entry, if it has not come out.
            #[must_use]
            pub fn get(&self, key: Key) -> Option<&T> {
                self.entries.get(key)
            }

            /// Moves the time on to `now` and hands out every entry whose deadline is not after it: first what had passed
            /// when it was inserted, then tick by tick, each tick in the order of insertion. An earlier `now` does nothing.
            ///
            $(#[doc = $advance])*
            ///
            /// Where `expired` panics, its entry is gone, every other one is still there, and the time is `now`: the next
            /// `advance` goes on with the entry behind it.
            pub fn advance(&mut self, now: u64, mut expired: impl FnMut(T)) {
                if now < self.tick() {
                    return;
                }
                self.order.advance(&mut self.entries, now);
                while let Some(entry) = self.order.pop_due(&self.entries) {
                    expired(self.entries.remove(entry));
                }
            }

            /// A tick no later than the first deadline; `None` if the wheel is empty. Later than [`tick`](Self::tick), unless
            /// something is due: that comes out of an `advance` to `tick` itself.
            $(#[doc = $next_deadline])*
            #[must_use]
            pub fn next_deadline(&self) -> Option<u64> {
                self.order.next_deadline()
            }

            /// The tick up to which [`advance`](Self::advance) has come.
            #[must_use]
            pub fn tick(&self) -> u64 {
                self.order.tick()
            }

            /// How many entries the wheel holds.
            #[must_use]
            pub fn len(&self) -> usize {
                self.order.len()
            }

            /// Whether the wheel holds nothing.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Empties the wheel and hands its entries out, in no particular order. All are out of the wheel at once, also
            /// if the iterator is not read to its end. The time stays.
            pub fn drain(&mut self) -> impl Iterator<Item = T> {
                self.order.clear();
                self.entries.take().into_iter()
            }
        }

        impl<T> fmt::Debug for $Wheel<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Wheel))
                    .field("tick", &self.tick())
                    .field("ticks_per_wheel", &self.order.ticks_per_wheel())
                    .field("len", &self.len())
                    .field("next_deadline", &self.next_deadline())
                    .finish_non_exhaustive()
            }
        }
    };
}

wheel! {
    /// A hashed timing wheel: Varghese and Lauck's scheme 6, as Netty's `HashedWheelTimer` has it.
    ///
    /// A deadline is an absolute tick. Its low bits choose the slot, its high bits say how many whole turns of the wheel
    /// ("rounds") come before it. A slot keeps its entries, each with its `remaining_rounds`, in one dense array, and beside
    /// that the least of each 32 of these: a visit reads the latter, and goes to those entries among which one is due. No slot
    /// is visited before something in it is due, however many turns are made: the wheel knows the first deadline of each,
    /// and which is the first of all.
    ///
    /// [`insert`](Self::insert) and [`remove`](Self::remove) take constant (amortised) time, and where they change what is
    /// first in a slot, a step for each factor of eight in the number of slots. Memory follows the greatest number of entries
    /// since the wheel was last empty; a slot that is empty costs five bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::wheel::HashedWheel;
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

    /// An empty wheel at tick 0 with `ticks_per_wheel` slots, rounded up to a power of two.
    fn new

    /// The cost is that of the entries that come out, sorted if the jump was longer than a turn, and of one visit to each slot
    /// that they come out of, however far the jump.
    fn advance

    /// Exact, unless entries were removed, `expired` has panicked, or the deadline is billions of rounds off: whoever sleeps
    /// until then wakes in vain at most once for each entry that was removed, and once in billions of rounds.
    fn next_deadline
}

wheel! {
    /// A hierarchical timing wheel: Varghese and Lauck's scheme 7, as Kafka and Linux have it.
    ///
    /// The first level has a slot for each tick. A slot of the next level is as wide as all slots of the one before, and so
    /// on, as far as 2^64 ticks. An entry goes to the level of the highest digit in which its deadline and the time differ
    /// (to the base of `ticks_per_wheel`), and into the slot that this digit of its deadline names. When its slot begins, it
    /// moves down; so it moves at most once a level, and there are no rounds. A level is made when something first needs it.
    ///
    /// Entries with one deadline are in one slot at all times, because its place follows from the deadline and the time
    /// alone; and all entries of a level are due before those of the next. So the first occupied slot of the lowest level
    /// has what is due first: the time moves on from one such slot to the next, not tick by tick.
    ///
    /// [`insert`](Self::insert) and [`remove`](Self::remove) take constant (amortised) time. Memory follows the greatest
    /// number of entries since the wheel was last empty; a slot that is empty costs four bytes, once its level is made.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::wheel::HierarchicalWheel;
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

    /// An empty wheel at tick 0 with `ticks_per_wheel` slots a level, rounded up to a power of two, and at least two.
    fn new

    /// The cost is that of the entries that come out and of those that move down, each at most once a level, however
    /// far the jump. All entries of a slot that begins move down at once, those of a wide one too.
    fn advance

    /// Exact, unless entries were removed or `expired` has panicked: whoever sleeps until then wakes in vain at most once
    /// for each entry that was removed. Nobody has to wake for entries to move down.
    fn next_deadline
}
