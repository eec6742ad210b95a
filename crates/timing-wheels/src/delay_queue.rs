//! A queue of values of one owner, with one sleep for all of them.

use core::fmt;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::{Key, LocalTimer, TimePoint};

/// The sleep of a [`DelayQueue`], with its clock.
///
/// Implemented for `Pin<Box<tokio::time::Sleep>>` with feature `tokio`, and by the crate
/// `hashed-wheel` for its `Sleep`. Implement it for the sleep of another runtime, or of a device.
pub trait QueueSleep {
    /// The times of its clock.
    type Instant: TimePoint;

    /// Returns the current time.
    fn now(&self) -> Self::Instant;

    /// Makes the sleep end at `deadline`, whether it has ended before or not.
    fn reset_at(&mut self, deadline: Self::Instant);

    /// Returns whether the sleep has ended. Otherwise it wakes the task of the last call when it
    /// ends. It must not end before [`now`](Self::now) has reached the deadline.
    fn poll_elapsed(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// A queue of values that come out when their delays are over: `tokio_util::time::DelayQueue` on a
/// [`HierarchicalWheel`](crate::HierarchicalWheel).
///
/// It has one owner, usually the task that polls it. So neither the values nor the sleep need be
/// [`Send`], and no operation locks. All values share one sleep `S`, which ends when the first of
/// them is due: see [`QueueSleep`].
///
/// For several owners use `DelayQueue` of the crate `hashed-wheel-util`; for a loop instead of a
/// task, [`LocalTimer`].
///
/// # Examples
///
#[cfg_attr(feature = "tokio", doc = "```")]
#[cfg_attr(not(feature = "tokio"), doc = "```text")]
/// use std::future::poll_fn;
/// use std::time::Duration;
/// use timing_wheels::DelayQueue;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
/// let mut queue = DelayQueue::new(sleep, Duration::from_millis(1));
/// let first = queue.insert("first", Duration::from_millis(10));
/// queue.insert("second", Duration::from_millis(20));
/// queue.reset(&first, Duration::from_millis(30));
///
/// let mut due = Vec::new();
/// while let Some(expired) = poll_fn(|context| queue.poll_expired(context)).await {
///     due.push(expired.into_inner());
/// }
/// assert_eq!(due, ["second", "first"]);
/// # });
/// ```
///
/// # When a value is due
///
/// A deadline is rounded up to the beginning of a tick, as by [`LocalTimer`]: a value is never
/// early, and at most a tick late, plus what the sleep is late. Values of one tick come in the
/// order of their insertions, and cause one wake-up.
///
/// # Differences from tokio-util
///
/// | | `tokio_util::time::DelayQueue` | here |
/// |---|---|---|
/// | values of one tick | the last one inserted comes first | in the order of their insertions |
/// | the key of a value that is gone | may name a later value | names no other value of this queue |
/// | delays | over two years: a panic | of 146 years and more: never end |
/// | a tick | 1 ms | what you choose |
/// | runtime | tokio, with its time enabled | that of the [`QueueSleep`] |
/// | memory | `compact`, `reserve` | is freed as values leave, except for 1 024 values and [`with_capacity`](Self::with_capacity) |
///
/// `tests/it/both_queues.rs`, in the repository, has the tests that both queues pass, and those of
/// the differences. `cargo bench -p hashed-wheel-benches --bench delay_queue` compares their speed.
pub struct DelayQueue<T, S: QueueSleep> {
    timer: LocalTimer<T, S::Instant>,
    sleep: S,
    /// The tick at whose beginning the sleep ends. `None` if nothing waits for the sleep.
    sleeps_until: Option<u64>,
    /// The task of the last poll that returned no value.
    waker: Option<Waker>,
}

/// A value that has left a [`DelayQueue`], with its deadline. tokio-util's `Expired`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired<T, I> {
    key: Key,
    /// `None` if `I` cannot represent it.
    deadline: Option<I>,
    value: T,
}

impl<T, S: QueueSleep> DelayQueue<T, S> {
    /// Makes an empty queue. Its first tick begins now.
    ///
    /// A tick is from one nanosecond to 146 years long. One millisecond suits most queues:
    /// tokio's sleeps are no more exact.
    ///
    /// # Panics
    ///
    /// If `tick` is zero.
    #[must_use]
    pub fn new(sleep: S, tick: Duration) -> Self {
        Self::with_capacity(sleep, tick, 0)
    }

    /// Makes the same queue as [`new`](Self::new), with memory for `capacity` values, which it
    /// keeps.
    ///
    /// # Panics
    ///
    /// If `tick` is zero, or if there is no memory for this many values.
    #[must_use]
    pub fn with_capacity(sleep: S, tick: Duration, capacity: usize) -> Self {
        Self {
            timer: LocalTimer::with_capacity(sleep.now(), tick, capacity),
            sleep,
            sleeps_until: None,
            waker: None,
        }
    }

    /// Inserts a value that is due after `delay`. Returns its key.
    ///
    /// A delay that ends more than 146 years after the queue was made never ends.
    ///
    /// # Panics
    ///
    /// If the queue has 2^32 − 1 values.
    pub fn insert(&mut self, value: T, delay: Duration) -> Key {
        self.insert_tick(value, self.tick_after(delay))
    }

    /// Inserts a value that is due at `deadline`, which may have passed. Returns its key.
    ///
    /// # Panics
    ///
    /// If the queue has 2^32 − 1 values.
    pub fn insert_at(&mut self, value: T, deadline: S::Instant) -> Key {
        self.insert_tick(value, self.timer.tick_of(deadline))
    }

    /// Changes the deadline of a value: it is due after `delay`.
    ///
    /// # Panics
    ///
    /// If the value is gone: it has expired or was removed.
    pub fn reset(&mut self, key: &Key, delay: Duration) {
        self.reset_tick(*key, self.tick_after(delay));
    }

    /// Changes the deadline of a value, to one that may have passed.
    ///
    /// # Panics
    ///
    /// If the value is gone: it has expired or was removed.
    pub fn reset_at(&mut self, key: &Key, deadline: S::Instant) {
        self.reset_tick(*key, self.timer.tick_of(deadline));
    }

    /// Removes a value.
    ///
    /// # Panics
    ///
    /// If the value is gone: it has expired or was removed.
    pub fn remove(&mut self, key: &Key) -> Expired<T, S::Instant> {
        self.try_remove(key).expect("the key is that of a value")
    }

    /// Removes a value. Returns `None` if it is gone: it has expired or was removed.
    pub fn try_remove(&mut self, key: &Key) -> Option<Expired<T, S::Instant>> {
        let tick = self.timer.wheel.deadline(*key)?;
        let value = self.timer.wheel.remove(*key)?;
        self.wake_if_empty();
        Some(self.expired(*key, tick, value))
    }

    /// Returns the key of the value that is due next; `None` if there are no values.
    ///
    /// The cost is that of [`HierarchicalWheel::peek`](crate::HierarchicalWheel::peek).
    #[must_use]
    pub fn peek(&self) -> Option<Key> {
        Some(self.timer.wheel.peek()?.0)
    }

    /// Returns when a value is due: the beginning of its tick.
    ///
    /// # Panics
    ///
    /// If the value is gone: it has expired or was removed. If the time cannot be represented,
    /// which is at most 146 years after the queue was made.
    #[must_use]
    pub fn deadline(&self, key: &Key) -> S::Instant {
        let tick = self.timer.wheel.deadline(*key);
        let tick = tick.expect("the key is that of a value");
        self.timer.start(tick).expect("the time can be represented")
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.timer.len()
    }

    /// Returns whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timer.is_empty()
    }

    /// Removes all values, and drops them.
    pub fn clear(&mut self) {
        let values = self.timer.wheel.drain();
        // First, because the drop of a value may panic.
        self.wake_if_empty();
        drop(values);
    }

    /// Removes the next value that is due. Returns `Ready(None)` if the queue is empty.
    ///
    /// If it returns no value, it wakes the task when one is due. It also does so when a value with
    /// an earlier deadline is inserted meanwhile, and when the queue becomes empty or is no longer.
    pub fn poll_expired(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Expired<T, S::Instant>>> {
        loop {
            let now = self.timer.reached(self.sleep.now());
            if let Some((key, tick, value)) = self.timer.wheel.pop_expired(now) {
                return Poll::Ready(Some(self.expired(key, tick, value)));
            }
            if self.poll_next_tick(context).is_pending() {
                let old = self.waker.as_ref();
                if !old.is_some_and(|waker| waker.will_wake(context.waker())) {
                    self.waker = Some(context.waker().clone());
                }
                return if self.is_empty() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            }
        }
    }

    /// Sleeps until the first tick at which a value may be due.
    fn poll_next_tick(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let next = self.timer.next_tick();
        if self.sleeps_until != next || next.is_none() {
            self.sleeps_until = None;
            let Some(start) = next.and_then(|tick| self.timer.start(tick)) else {
                return Poll::Pending;
            };
            self.sleep.reset_at(start);
            self.sleeps_until = next;
        }
        let ended = self.sleep.poll_elapsed(context);
        if ended.is_ready() {
            self.sleeps_until = None;
        }
        ended
    }

    fn insert_tick(&mut self, value: T, tick: u64) -> Key {
        let key = self.timer.wheel.insert(tick, value);
        self.wake_before(tick);
        key
    }

    fn reset_tick(&mut self, key: Key, tick: u64) {
        let is_live = self.timer.wheel.reset(key, tick);
        assert!(is_live, "the key is that of a value");
        self.wake_before(tick);
    }

    /// Wakes the task if its sleep does not end by `tick`.
    fn wake_before(&mut self, tick: u64) {
        if self.waker.is_some() && self.sleeps_until.map_or(true, |until| tick < until) {
            self.wake();
        }
    }

    fn wake_if_empty(&mut self) {
        if self.is_empty() {
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn tick_after(&self, delay: Duration) -> u64 {
        let now = self.sleep.now().since(self.timer.origin);
        self.timer.ticks.at_or_after(now.saturating_add(delay))
    }

    fn expired(&self, key: Key, tick: u64, value: T) -> Expired<T, S::Instant> {
        let deadline = self.timer.start(tick);
        Expired {
            key,
            deadline,
            value,
        }
    }
}

/// The queue is never pinned: each part of it that needs to be is in a box.
impl<T, S: QueueSleep> Unpin for DelayQueue<T, S> {}

impl<T, S: QueueSleep> fmt::Debug for DelayQueue<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("len", &self.len())
            .field("tick", &self.timer.ticks.duration())
            .finish_non_exhaustive()
    }
}

impl<T, I: Copy> Expired<T, I> {
    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Returns the value.
    pub fn get_ref(&self) -> &T {
        &self.value
    }

    /// Returns the value.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Returns the key, which is stale.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Returns when the value was or would have been due: the beginning of its tick.
    ///
    /// # Panics
    ///
    /// If the time cannot be represented. That of a value which was due can be.
    pub fn deadline(&self) -> I {
        self.deadline.expect("the time can be represented")
    }
}

/// A `Stream` of the values as they become due, with feature `stream`. It ends when the queue is
/// empty, and goes on after the next insertion.
#[cfg(feature = "stream")]
impl<T, S: QueueSleep> futures_core::Stream for DelayQueue<T, S> {
    type Item = Expired<T, S::Instant>;

    fn poll_next(
        self: core::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_expired(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.len()))
    }
}

#[cfg(feature = "tokio")]
impl TimePoint for tokio::time::Instant {
    #[inline]
    fn since(self, origin: Self) -> Duration {
        self.saturating_duration_since(origin)
    }

    #[inline]
    fn after(self, duration: Duration) -> Option<Self> {
        self.checked_add(duration)
    }
}

/// With feature `tokio`. The clock is tokio's, which tests can pause.
#[cfg(feature = "tokio")]
impl QueueSleep for core::pin::Pin<alloc::boxed::Box<tokio::time::Sleep>> {
    type Instant = tokio::time::Instant;

    #[inline]
    fn now(&self) -> tokio::time::Instant {
        tokio::time::Instant::now()
    }

    fn reset_at(&mut self, deadline: tokio::time::Instant) {
        self.as_mut().reset(deadline);
    }

    fn poll_elapsed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        core::future::Future::poll(self.as_mut(), context)
    }
}
