//! The methods of the public wheels that concern all entries together.

/// The first lines of an example.
macro_rules! new_wheel {
    ($Wheel:ident) => {
        concat!(
            "use timing_wheels::",
            stringify!($Wheel),
            ";\n\nlet mut wheel = ",
            stringify!($Wheel),
            "::new(64);"
        )
    };
}

/// Defines the methods of a wheel of `owned`. The argument is the wheel.
macro_rules! whole {
    ($Wheel:ident) => {
        impl<T> $Wheel<T> {
            /// Returns the number of entries.
            #[must_use]
            pub fn len(&self) -> usize {
                self.order.len()
            }

            /// Returns whether the wheel has no entries.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the number of entries for which the wheel has memory. (Their places in the
            /// slots are not included.) `Vec::capacity`.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.entries.capacity()
            }

            /// Returns the key, the deadline and the value of each entry, in no particular order.
            ///
            /// The cost is proportional to the [`capacity`](Self::capacity) of the wheel, and so to
            /// the number of entries unless many of them have expired or were removed.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// let first = wheel.insert(3, "first");
            /// let second = wheel.insert(7, "second");
            /// let mut all: Vec<_> = wheel.iter().collect();
            /// all.sort_by_key(|&(_, deadline, _)| deadline);
            /// assert_eq!(all, [(first, 3, &"first"), (second, 7, &"second")]);
            /// ```
            pub fn iter(&self) -> Iter<'_, T> {
                self.entries.iter()
            }

            /// Frees the memory that the entries do not need, also that of
            /// [`with_capacity`](Self::with_capacity). `Vec::shrink_to_fit`.
            ///
            /// A wheel frees most of its memory by itself when entries leave it; this frees what it
            /// keeps for entries to come. An entry does not move in memory, because its key names
            /// its place: the memory before the last place that is in use stays.
            ///
            /// The cost is that of inserting all entries again. Their keys, deadlines and order do
            /// not change. Afterwards [`next_deadline`](Self::next_deadline) is exact.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use timing_wheels::", stringify!($Wheel), " as Wheel;")]
            ///
            /// let mut wheel = Wheel::with_capacity(64, 1_000);
            /// let key = wheel.insert(3, "the only one");
            /// wheel.shrink_to_fit();
            /// assert_eq!((wheel.capacity(), wheel.deadline(key)), (1, Some(3)));
            /// ```
            pub fn shrink_to_fit(&mut self) {
                self.entries.shrink_to_fit();
                // Entries with the same deadline are in one slot, and stay in insertion order.
                let mut linked = Vec::with_capacity(self.len());
                self.order.for_each(|entry| linked.push(entry));
                self.order.clear();
                linked
                    .into_iter()
                    .for_each(|entry| self.link(self.entries.deadline(entry), entry));
            }

            /// Removes all entries, and drops their values. The time does not change.
            /// [`drain`](Self::drain) returns the values.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// let key = wheel.insert(10, "request 1");
            /// wheel.clear();
            /// assert!(wheel.is_empty() && wheel.get(key).is_none());
            /// ```
            pub fn clear(&mut self) {
                // Not value by value: the wheel is empty when the first one is dropped, which may
                // panic.
                drop(self.drain());
            }

            /// Removes all entries and returns their values, in no particular order.
            ///
            /// All entries are removed immediately, even if the iterator is not consumed. The time
            /// does not change.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = new_wheel!($Wheel)]
            /// let key = wheel.insert(10, "request 1");
            /// wheel.insert(20, "request 2");
            /// // The server stops at tick 5:
            /// wheel.advance(5, |_| ());
            /// let unanswered = wheel.drain().count();
            /// assert_eq!((unanswered, wheel.len(), wheel.tick()), (2, 0, 5));
            /// assert_eq!(wheel.remove(key), None);
            /// ```
            pub fn drain(&mut self) -> impl Iterator<Item = T> {
                self.order.clear();
                self.entries.take().into_iter()
            }
        }

        impl<'a, T> IntoIterator for &'a $Wheel<T> {
            type Item = (Key, u64, &'a T);
            type IntoIter = Iter<'a, T>;

            fn into_iter(self) -> Iter<'a, T> {
                self.iter()
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

pub(super) use {new_wheel, whole};
