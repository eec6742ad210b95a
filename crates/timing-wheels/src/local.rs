//! A timer for one thread, on a wheel.

use core::fmt;
use core::time::Duration;
#[cfg(feature = "std")]
use std::time::Instant;

use crate::{HierarchicalWheel, Key, Ticks};

/// The slots of a level of the wheel. A level is 1 KiB, and three levels are four hours of
/// milliseconds.
const SLOTS: usize = 256;

/// A timer for one thread: the values come back when their times have come. It has no task, no
/// worker, no clock and no atomics, and the values need not be [`Send`].
///
/// For event loops and runtimes with a thread per core: the loop sleeps until [`next`](Self::next),
/// and then takes out what is due, with [`poll`](Self::poll). The values are wakers, tokens,
/// connections. Like `tokio_util::time::DelayQueue`, but for a loop instead of a task. For several
/// threads use a `HashedWheelTimer` of the crate `hashed-wheel`.
///
/// It is a [`HierarchicalWheel`] that takes and returns times instead of ticks.
///
/// # Examples
///
#[cfg_attr(feature = "std", doc = "```")]
#[cfg_attr(not(feature = "std"), doc = "```text")]
/// use timing_wheels::LocalTimer;
/// use std::rc::Rc;
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// let mut timer = LocalTimer::new(now, Duration::from_millis(1));
/// let retry = timer.insert(now + Duration::from_millis(20), Rc::new("retry"));
/// let close = timer.insert(now + Duration::from_secs(60), Rc::new("close"));
///
/// assert_eq!(timer.next(), Some(now + Duration::from_millis(20))); // poll sockets until then
/// assert_eq!(timer.poll(now + Duration::from_millis(20)), Some((retry, Rc::new("retry"))));
/// assert_eq!(timer.poll(now + Duration::from_millis(20)), None);
/// assert!(timer.reset(close, now + Duration::from_secs(90))); // the connection was used
/// ```
///
/// The example `local_timer` builds a runtime of one thread with a `Sleep` on it:
/// `cargo run -p timing-wheels --example local_timer`.
///
/// # When a value is due
///
/// A time is rounded up to a tick, and the present down. So a value is never early, and at most a
/// tick late. A value whose time is exactly now is due at the next beginning of a tick, unless a
/// tick begins now. [`next`](Self::next) knows: it returns the beginning of the tick, and not the
/// time that was given to [`insert`](Self::insert).
///
/// Values of the same tick come in the order of their insertions.
///
/// # The length of a tick
///
/// Values of one tick cause one wake-up, so the longest tick that is exact enough is the best.
/// One millisecond, the resolution of `epoll_wait`, suits most loops.
///
/// With ticks of a nanosecond no time is rounded. That costs wake-ups, because hardly any two
/// values have the same tick. It also costs moves: the wheel has a level for each eight bits of the
/// number of ticks to a deadline. A value that is a second away begins on the second level with
/// ticks of a millisecond, on the fourth with ticks of a nanosecond, and moves down once per level
/// if it stays until then. (Most timeouts are removed long before.)
pub struct LocalTimer<T, I> {
    pub(super) wheel: HierarchicalWheel<T>,
    pub(super) ticks: Ticks,
    /// The beginning of tick 0.
    pub(super) origin: I,
}

impl<T, I: TimePoint> LocalTimer<T, I> {
    /// Makes an empty timer. Its first tick begins at `origin`, which is usually now. A time before
    /// `origin` is taken for `origin`.
    ///
    /// A tick is from one nanosecond to 146 years long.
    ///
    /// # Panics
    ///
    /// If `tick` is zero.
    #[must_use]
    pub const fn new(origin: I, tick: Duration) -> Self {
        Self {
            wheel: HierarchicalWheel::new(SLOTS),
            ticks: Ticks::new(tick),
            origin,
        }
    }

    /// Makes the same timer as [`new`](Self::new), with memory for `capacity` values, which it
    /// keeps. `HierarchicalWheel::with_capacity`.
    ///
    /// # Panics
    ///
    /// If `tick` is zero, or if there is no memory for this many values.
    #[must_use]
    pub fn with_capacity(origin: I, tick: Duration, capacity: usize) -> Self {
        Self {
            wheel: HierarchicalWheel::with_capacity(SLOTS, capacity),
            ticks: Ticks::new(tick),
            origin,
        }
    }

    /// Inserts a value that is due at `at`. Returns its key. A value whose tick has begun is due at
    /// once.
    ///
    /// A time 146 years after the origin never comes; see [`Ticks`](Ticks#never).
    ///
    /// # Panics
    ///
    /// If the timer has 2^32 - 1 values.
    pub fn insert(&mut self, at: I, value: T) -> Key {
        self.wheel.insert(self.tick_of(at), value)
    }

    /// Changes the time of a value. Returns false if [`poll`](Self::poll) has returned the value,
    /// or if it was removed.
    #[must_use = "false means that the value is gone"]
    pub fn reset(&mut self, key: Key, at: I) -> bool {
        self.wheel.reset(key, self.tick_of(at))
    }

    /// Removes a value. Returns `None` if it is gone: [`poll`](Self::poll) has returned it, or it
    /// was removed.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.wheel.remove(key)
    }

    /// Returns a value, or `None` if it is gone.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.wheel.get(key)
    }

    /// Returns a value, or `None` if it is gone.
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.wheel.get_mut(key)
    }

    /// Returns when a value is due: the beginning of its tick. That is not before the time that was
    /// given to [`insert`](Self::insert) or [`reset`](Self::reset), and less than a tick after it.
    /// Returns `None` if the value is gone, or if that time cannot be represented.
    ///
    /// A time that never comes is 146 years after the origin.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timing_wheels::LocalTimer;
    ///
    /// let mut timer = LocalTimer::new(Duration::ZERO, Duration::from_millis(10));
    /// let key = timer.insert(Duration::from_millis(25), "connection 1");
    /// assert_eq!(timer.deadline(key), Some(Duration::from_millis(30)));
    /// timer.remove(key);
    /// assert_eq!(timer.deadline(key), None);
    /// ```
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<I> {
        self.start(self.wheel.deadline(key)?)
    }

    /// Returns the value that [`poll`](Self::poll) would remove, and its key. Returns `None` if
    /// none is due, or if `now` is before the `now` of an earlier call.
    ///
    /// The value stays, so it can live on under its key: [`reset`](Self::reset) it to a later time,
    /// or [`remove`](Self::remove) it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timing_wheels::LocalTimer;
    ///
    /// let second = Duration::from_secs(1);
    /// let mut timer = LocalTimer::new(Duration::ZERO, Duration::from_millis(1));
    /// let periodic = timer.insert(second, 0);
    /// for now in (1..=3).map(|seconds| second * seconds) {
    ///     while let Some((key, runs)) = timer.peek_expired(now) {
    ///         *runs += 1;
    ///         assert!(timer.reset(key, now + second));
    ///     }
    /// }
    /// assert_eq!(timer.remove(periodic), Some(3));
    /// ```
    pub fn peek_expired(&mut self, now: I) -> Option<(Key, &mut T)> {
        let (key, _, value) = self.wheel.peek_expired(self.reached(now))?;
        Some((key, value))
    }

    /// Removes one value that is due at `now`, and returns it with its key, which is stale. The
    /// values come in the order of their ticks. Returns `None` if none is due, or if `now` is
    /// before the `now` of an earlier call.
    ///
    /// Call it in a loop. A loop that runs code for each value should take `now` once: then a value
    /// that this code inserts is due in the same loop only if its time is not after the beginning
    /// of the present tick. So code that always inserts a value at `now` could keep the loop from
    /// ending, if a tick begins `now`.
    ///
    /// # Examples
    ///
    /// ```
    /// use timing_wheels::LocalTimer;
    /// use std::time::Duration;
    ///
    /// let ms = Duration::from_millis;
    /// let mut timer = LocalTimer::new(Duration::ZERO, ms(10));
    /// for time in [30, 10, 25] {
    ///     timer.insert(ms(time), time);
    /// }
    /// let mut due = Vec::new();
    /// while let Some((_, time)) = timer.poll(ms(30)) {
    ///     due.push(time);
    /// }
    /// assert_eq!(due, [10, 30, 25]); // 25 ms is rounded up to 30
    /// ```
    pub fn poll(&mut self, now: I) -> Option<(Key, T)> {
        let (key, _, value) = self.wheel.pop_expired(self.reached(now))?;
        Some((key, value))
    }

    /// Returns when to call [`poll`](Self::poll) next: then a value is due, and none is due before.
    /// Returns `None` if there are no values whose time comes.
    ///
    /// If values were removed or reset to a later time, the result may be too early, at most once
    /// per such value. Then that `poll` returns `None`, and `next` a later time.
    #[must_use]
    pub fn next(&self) -> Option<I> {
        self.start(self.next_tick()?)
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Returns whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wheel.is_empty()
    }

    /// Removes all values, and drops them. The time does not change.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timing_wheels::LocalTimer;
    ///
    /// let mut timer = LocalTimer::new(Duration::ZERO, Duration::from_millis(1));
    /// let key = timer.insert(Duration::from_secs(1), "request");
    /// timer.clear();
    /// assert_eq!((timer.next(), timer.get(key)), (None, None));
    /// ```
    pub fn clear(&mut self) {
        self.wheel.clear();
    }

    /// Returns the key of each value, and the value, in no particular order.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timing_wheels::LocalTimer;
    ///
    /// let mut timer = LocalTimer::new(Duration::ZERO, Duration::from_millis(1));
    /// let key = timer.insert(Duration::from_secs(1), "request");
    /// assert!(timer.iter().eq([(key, &"request")]));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> + '_ {
        self.wheel.iter().map(|(key, _, value)| (key, value))
    }

    /// The tick at which a value with this time is due.
    pub(super) fn tick_of(&self, at: I) -> u64 {
        self.ticks.at_or_after(at.since(self.origin))
    }

    /// The tick that has been reached.
    pub(super) fn reached(&self, now: I) -> u64 {
        self.ticks.at(now.since(self.origin))
    }

    /// The next tick at which a value may be due, if it is ever reached.
    pub(super) fn next_tick(&self) -> Option<u64> {
        let next = self.wheel.next_deadline();
        next.filter(|&tick| self.ticks.is_reached(tick))
    }

    /// The beginning of a tick; `None` if it cannot be represented.
    pub(super) fn start(&self, tick: u64) -> Option<I> {
        self.origin.after(self.ticks.start(tick))
    }
}

impl<T, I: fmt::Debug> fmt::Debug for LocalTimer<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTimer")
            .field("len", &self.wheel.len())
            .field("tick", &self.ticks.duration())
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// The times that a [`LocalTimer`] takes: `Instant` (feature `std`), or `Duration` since a zero
/// of yours, such as the start of a device. Implement it for the times of another clock.
///
/// # Examples
///
/// The milliseconds of a microcontroller, with ticks that are not whole ones:
///
/// ```
/// use timing_wheels::{LocalTimer, TimePoint};
/// use std::time::Duration;
///
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// struct Millis(u64);
///
/// impl TimePoint for Millis {
///     fn since(self, origin: Self) -> Duration {
///         Duration::from_millis(self.0.saturating_sub(origin.0))
///     }
///
///     fn after(self, duration: Duration) -> Option<Self> {
///         // Rounded up: `poll` would find nothing at an earlier time, again and again.
///         let millis = (duration.as_nanos() + 999_999) / 1_000_000;
///         self.0.checked_add(u64::try_from(millis).ok()?).map(Self)
///     }
/// }
///
/// let mut timer = LocalTimer::new(Millis(7), Duration::from_micros(1_500));
/// let blink = timer.insert(Millis(500), "blink");
/// assert_eq!(timer.next(), Some(Millis(501))); // its tick begins at 500.5
/// assert_eq!(timer.poll(Millis(501)), Some((blink, "blink")));
/// ```
pub trait TimePoint: Copy {
    /// Returns the time from `origin` to `self`; zero if `self` is earlier.
    /// `Instant::saturating_duration_since`.
    fn since(self, origin: Self) -> Duration;

    /// Returns the time point `duration` after this one; `None` if it cannot be represented. A
    /// clock with a coarse resolution rounds up. `Instant::checked_add`.
    fn after(self, duration: Duration) -> Option<Self>;
}

impl TimePoint for Duration {
    #[inline]
    fn since(self, origin: Self) -> Duration {
        self.saturating_sub(origin)
    }

    #[inline]
    fn after(self, duration: Duration) -> Option<Self> {
        self.checked_add(duration)
    }
}

#[cfg(feature = "std")]
impl TimePoint for Instant {
    #[inline]
    fn since(self, origin: Self) -> Duration {
        self.saturating_duration_since(origin)
    }

    #[inline]
    fn after(self, duration: Duration) -> Option<Self> {
        self.checked_add(duration)
    }
}
