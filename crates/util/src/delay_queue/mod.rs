//! A queue whose values come out when they are due: [`DelayQueue`].
//!
//! # Examples
//!
//! ```
//! use hashed_wheel::HashedWheelTimer;
//! use hashed_wheel_util::delay_queue::DelayQueue;
//! use std::time::Duration;
//!
//! let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
//! let queue = DelayQueue::new(&timer);
//! queue.insert("second", Duration::from_millis(20));
//! queue.insert("first", Duration::from_millis(10));
//! assert_eq!(queue.recv()?.into_inner(), "first");
//! assert_eq!(queue.recv()?.into_inner(), "second");
//! # Ok::<(), hashed_wheel::NewTimeoutError>(())
//! ```

mod values;
mod waiters;

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask};

use crate::deadlines::{Deadlines, NEVER};
use crate::sync::{Arc, Mutex, Parker};

use values::Values;
use waiters::Waiters;

/// A queue whose values come out in the order of their deadlines, and none before it is due:
/// tokio-util's and `java.util.concurrent`'s `DelayQueue`.
///
/// Any thread can insert values, and any thread or async task can receive them. Until a value is
/// received, its [`Key`] removes it or changes its deadline, also if it is due already.
///
/// # Handles
///
/// This type is a handle. Clones refer to the same queue. A queue counts as a handle of its timer.
/// Its values are dropped with the last handle.
///
/// # Which values come out, and when
///
/// A value is due from its deadline on, and never earlier. A consumer that comes then receives it
/// immediately. A consumer that waits is woken at the first tick of the timer at or after the
/// deadline.
///
/// Due values come out in the order of their deadlines. Values with the same deadline come out in
/// the order in which they were inserted; [`reset`](Self::reset) does not change this order. A
/// value whose delay is too large to represent is never due.
///
/// # Several consumers
///
/// Each value goes to one consumer. Waiting consumers are woken one at a time, in the order in
/// which they began to wait. A consumer that receives a value wakes the next one. So an async
/// consumer that was woken has to be polled again or dropped: the future of
/// [`expired`](Self::expired), or the handle on which [`poll_expired`](Self::poll_expired) was
/// called. Otherwise the other waiting consumers may miss values that are due.
///
/// A waiting consumer counts as one of the timer's
/// [`pending_timeouts`](HashedWheelTimer::pending_timeouts), whether the queue is empty or not.
/// Values do not count.
///
/// # When the timer stops
///
/// The queue keeps its values. Those that are due can still be received, and a value can become due
/// later, because time goes on. But no consumer can wait any more: one that waits, or would have to
/// wait, receives [`Stopped`](NewTimeoutError::Stopped). From the beginning of a
/// [`shutdown`](HashedWheelTimer::shutdown) on, this holds for consumers that begin to wait.
/// [`drain`](Self::drain) returns all values that are left.
///
/// # Differences from tokio-util and Java
///
/// - tokio-util's methods panic if the key is stale. These return `None` or false.
/// - tokio-util's stream ends when the queue is empty. This one waits, because another thread may
///   insert a value. It ends when the timer is stopped.
/// - Java's `peek` returns the element. [`peek`](Self::peek) returns its key, as in tokio-util.
/// - Java's `remove` looks for an equal element, in linear time. [`remove`](Self::remove) takes a
///   key.
///
/// # Locks
///
/// Each call takes the queue's lock for a few accesses to `BTreeMap`s, which take logarithmic time.
/// No user code runs under the lock. So wakers, and the `Drop` of values, may use the queue.
///
/// A consumer sees everything that the producer of its value did before the insertion.
///
/// # Examples
///
/// A thread that retries failed requests:
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::delay_queue::DelayQueue;
/// use std::thread;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let retries = DelayQueue::new(&timer);
/// let failed = retries.clone();
/// thread::spawn(move || {
///     failed.insert("second", Duration::from_millis(20));
///     failed.insert("first", Duration::from_millis(10));
/// });
/// assert_eq!(retries.recv()?.into_inner(), "first");
/// assert_eq!(retries.recv()?.into_inner(), "second");
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
///
/// A cache whose entries expire, in an async task:
///
/// ```
/// # use hashed_wheel_util::delay_queue::{DelayQueue, Key};
/// # use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// # use std::collections::HashMap;
/// # use std::time::Duration;
/// const TTL: Duration = Duration::from_secs(30);
///
/// struct Cache {
///     entries: HashMap<u32, (String, Key)>,
///     expirations: DelayQueue<u32>,
/// }
///
/// impl Cache {
///     fn insert(&mut self, id: u32, value: String) {
///         let key = self.expirations.insert(id, TTL);
///         if let Some((_, replaced)) = self.entries.insert(id, (value, key)) {
///             self.expirations.remove(replaced);
///         }
///     }
///
///     async fn expire(&mut self) -> Result<(), NewTimeoutError> {
///         let expired = self.expirations.expired().await?;
///         self.entries.remove(expired.get_ref());
///         Ok(())
///     }
/// }
/// # let timer = HashedWheelTimer::default();
/// # let mut cache = Cache { entries: HashMap::new(), expirations: DelayQueue::new(&timer) };
/// # cache.insert(7, "old".to_owned());
/// # cache.insert(7, "new".to_owned());
/// # assert_eq!(cache.expirations.len(), 1);
/// ```
pub struct DelayQueue<T> {
    state: Arc<Mutex<State<T>>>,
    /// This handle as a waiter: its place and its alarm. `None` if it does not wait.
    place: Option<u64>,
    alarm: Option<Timeout>,
    /// For the stream: it has returned its last item.
    #[cfg(feature = "stream")]
    pub(crate) has_ended: bool,
    timer: HashedWheelTimer,
}

/// Identifies a value of the [`DelayQueue`] whose [`insert`](DelayQueue::insert) returned the key.
///
/// Once the value was received or removed, the key is stale, and never identifies a value of this
/// queue again. A key is meaningless to another queue.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use hashed_wheel_util::delay_queue::DelayQueue;
/// # use std::time::Duration;
/// let queue = DelayQueue::new(&HashedWheelTimer::default());
/// let key = queue.insert("request 1", Duration::from_secs(5));
/// assert_eq!(queue.remove(key), Some("request 1"));
/// queue.insert("request 2", Duration::from_secs(5));
/// assert_eq!(queue.remove(key), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(u64);

/// A value that was due and has left its [`DelayQueue`]. tokio-util's `Expired`.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use hashed_wheel_util::delay_queue::DelayQueue;
/// # use std::time::{Duration, Instant};
/// let queue = DelayQueue::new(&HashedWheelTimer::default());
/// let key = queue.insert("now", Duration::ZERO);
/// let expired = queue.recv()?;
/// assert_eq!((expired.get_ref(), expired.key()), (&"now", key));
/// assert!(expired.deadline() <= Instant::now());
/// assert_eq!(expired.into_inner(), "now");
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
#[derive(Debug)]
pub struct Expired<T> {
    value: T,
    deadline: Instant,
    key: Key,
}

impl<T> Expired<T> {
    /// Returns a reference to the value.
    pub fn get_ref(&self) -> &T {
        &self.value
    }

    /// Returns a mutable reference to the value.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Returns the deadline that the value had. See [`DelayQueue::deadline`].
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the key that the value had. It is stale.
    pub fn key(&self) -> Key {
        self.key
    }
}

impl<T> DelayQueue<T> {
    /// Makes an empty queue. `timer` tells its time and wakes its consumers.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::delay_queue::DelayQueue;
    ///
    /// let timer = HashedWheelTimer::default();
    /// let queue = DelayQueue::<String>::new(&timer);
    /// assert!(queue.is_empty());
    /// ```
    #[must_use]
    pub fn new(timer: &HashedWheelTimer) -> Self {
        let state = State { values: Values::new(), waiters: Waiters::new() };
        Self::with(Arc::new(Mutex::new(state)), timer.clone())
    }

    fn with(state: Arc<Mutex<State<T>>>, timer: HashedWheelTimer) -> Self {
        Self {
            state,
            place: None,
            alarm: None,
            #[cfg(feature = "stream")]
            has_ended: false,
            timer,
        }
    }

    /// Inserts a value that is due `delay` from now. Returns its key.
    ///
    /// A value with a delay of zero is due immediately. One with a delay too large to represent is
    /// never due. The queue has no limit, and accepts values also when the timer is stopped.
    ///
    /// If a consumer waits for a later deadline, this wakes it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// queue.insert("later", Duration::from_secs(60));
    /// queue.insert("now", Duration::ZERO);
    /// assert_eq!(queue.try_recv().unwrap().into_inner(), "now");
    /// assert!(queue.try_recv().is_none());
    /// ```
    pub fn insert(&self, value: T, delay: Duration) -> Key {
        self.insert_by(value, self.timer.deadline_after(delay))
    }

    /// Inserts a value that is due at `deadline`. Returns its key.
    ///
    /// The deadline is converted as by [`new_timeout_at`](HashedWheelTimer::new_timeout_at). A
    /// value whose deadline has passed is due immediately.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::{Duration, Instant};
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let deadline = Instant::now() + Duration::from_secs(60);
    /// let key = queue.insert_at("in a minute", deadline);
    /// assert_eq!(queue.deadline(key), Some(deadline));
    /// ```
    pub fn insert_at(&self, value: T, deadline: Instant) -> Key {
        self.insert_by(value, self.timer.deadline_at(deadline))
    }

    fn insert_by(&self, value: T, deadline: u64) -> Key {
        let mut state = self.state.lock();
        let key = state.values.insert(value, deadline);
        let waker = state.waiters.notify_of(deadline);
        drop(state);
        wake(waker);
        Key(key)
    }

    /// Removes a value that was not received, whether it is due or not. Returns `None` if the key
    /// is stale.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let key = queue.insert("due already", Duration::ZERO);
    /// assert_eq!(queue.remove(key), Some("due already"));
    /// assert_eq!(queue.remove(key), None);
    /// ```
    pub fn remove(&self, key: Key) -> Option<T> {
        self.state.lock().values.remove(key.0)
    }

    /// Changes the deadline of a value that was not received: it is now due `delay` from now,
    /// earlier or later than before. Returns false if the key is stale.
    ///
    /// A value that was due may not be due any more then. The key stays valid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let key = queue.insert("later", Duration::from_secs(60));
    /// assert!(queue.reset(key, Duration::ZERO));
    /// assert!(queue.try_recv().is_some());
    /// assert!(!queue.reset(key, Duration::ZERO));
    /// ```
    pub fn reset(&self, key: Key, delay: Duration) -> bool {
        self.reset_by(key, self.timer.deadline_after(delay))
    }

    /// Changes the deadline of a value that was not received. Returns false if the key is stale.
    ///
    /// This is [`reset`](Self::reset) with a deadline, as [`insert_at`](Self::insert_at) is to
    /// [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::{Duration, Instant};
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let key = queue.insert("later", Duration::from_secs(60));
    /// assert!(queue.reset_at(key, Instant::now()));
    /// assert!(queue.try_recv().is_some());
    /// ```
    pub fn reset_at(&self, key: Key, deadline: Instant) -> bool {
        self.reset_by(key, self.timer.deadline_at(deadline))
    }

    fn reset_by(&self, key: Key, deadline: u64) -> bool {
        let mut state = self.state.lock();
        let is_reset = state.values.reset(key.0, deadline);
        let waker = if is_reset { state.waiters.notify_of(deadline) } else { None };
        drop(state);
        wake(waker);
        is_reset
    }

    /// Returns the deadline of a value that was not received. Returns `None` if the key is stale.
    ///
    /// With the default clock this is the exact deadline. With a [custom
    /// clock](hashed_wheel::Builder::clock) it is converted as in [`insert_at`](Self::insert_at).
    /// For a value that is never due, the result is at least 30 years away.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::{Duration, Instant};
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let key = queue.insert("later", Duration::from_secs(60));
    /// assert!(queue.deadline(key).unwrap() > Instant::now() + Duration::from_secs(50));
    /// ```
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<Instant> {
        let deadline = self.state.lock().values.deadline(key.0)?;
        Some(self.timer.instant_of(deadline))
    }

    /// Returns the key of the value that comes out next, whether it is due or not. Returns `None`
    /// if the queue is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// queue.insert("second", Duration::from_secs(60));
    /// let first = queue.insert("first", Duration::from_secs(30));
    /// assert_eq!(queue.peek(), Some(first));
    /// ```
    #[must_use]
    pub fn peek(&self) -> Option<Key> {
        self.state.lock().values.first().map(|(_, key)| Key(key))
    }

    /// Returns the number of values in the queue, whether they are due or not.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// queue.insert("due", Duration::ZERO);
    /// queue.insert("later", Duration::from_secs(60));
    /// assert_eq!(queue.len(), 2);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().values.len()
    }

    /// Returns whether the queue has no values. See [`len`](Self::len).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// queue.insert("due", Duration::ZERO);
    /// assert!(!queue.is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all values and drops them. See [`drain`](Self::drain).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let key = queue.insert("later", Duration::from_secs(60));
    /// queue.clear();
    /// assert_eq!(queue.remove(key), None);
    /// ```
    pub fn clear(&self) {
        drop(self.drain());
    }

    /// Removes all values, whether they are due or not, and returns them in the order in which they
    /// would have come out.
    ///
    /// # Examples
    ///
    /// What is left at the end of a program:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("second", Duration::from_secs(60));
    /// queue.insert("first", Duration::from_secs(30));
    /// timer.stop();
    /// assert!(queue.recv().is_err());
    /// assert_eq!(queue.drain(), ["first", "second"]);
    /// ```
    pub fn drain(&self) -> Vec<T> {
        let all = self.state.lock().values.take_all();
        all.collect()
    }

    /// Receives the first value if it is due. Returns `None` otherwise. Does not wait.
    /// `java.util.concurrent.DelayQueue::poll`.
    ///
    /// This needs no tick of the timer: it compares the deadline with the clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("in a second", Duration::from_secs(1));
    /// assert!(queue.try_recv().is_none());
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(queue.try_recv().unwrap().into_inner(), "in a second");
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn try_recv(&self) -> Option<Expired<T>> {
        let now = self.timer.now_nanos();
        let due = self.state.lock().values.take_due(now)?;
        Some(self.expired_of(due))
    }

    fn expired_of(&self, ((deadline, key), value): ((u64, u64), T)) -> Expired<T> {
        Expired { value, deadline: self.timer.instant_of(deadline), key: Key(key) }
    }

    /// Ends the wait of this handle, if it waits.
    fn leave(&mut self) {
        let Some(place) = self.place.take() else { return };
        let (own, next) = self.state.lock().waiters.remove(place);
        drop(own);
        if let Some(alarm) = self.alarm.take() {
            // Finds no waiter at this place, so it wakes nothing.
            alarm.cancel();
        }
        wake(next);
    }
}

impl<T: Send + 'static> DelayQueue<T> {
    /// Receives the first value, and blocks the thread until one is due.
    /// `java.util.concurrent.DelayQueue::take`.
    ///
    /// On a driven timer, another thread has to turn the [`Driver`](hashed_wheel::Driver).
    ///
    /// # Errors
    ///
    /// If no value is due and the timer rejects the timeout that would end the wait:
    ///
    /// - [`Stopped`](NewTimeoutError::Stopped): the timer is stopped, or is being [shut
    ///   down](HashedWheelTimer::shutdown). Also if it is stopped while this call waits.
    /// - [`TooManyPending`](NewTimeoutError::TooManyPending) or [`Spawn`](NewTimeoutError::Spawn):
    ///   as for [`new_timeout`](HashedWheelTimer::new_timeout).
    ///
    /// # Panics
    ///
    /// If a task calls it on the timer's own worker and no value is due, because the call would
    /// wait for that task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("soon", Duration::from_millis(10));
    /// assert_eq!(queue.recv()?.into_inner(), "soon");
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn recv(&self) -> Result<Expired<T>, NewTimeoutError> {
        self.recv_by(NEVER).map(without_limit)
    }

    /// Receives the first value, and blocks the thread until one is due, but at most for `timeout`.
    /// Returns `None` if none was due in time. `java.util.concurrent.DelayQueue::poll` with a
    /// timeout.
    ///
    /// The timer's clock measures the time, and its ticks end the wait. So the call may take one
    /// tick longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv).
    ///
    /// # Panics
    ///
    /// As for [`recv`](Self::recv). With a timeout of zero it does not wait, and does not panic.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("later", Duration::from_secs(60));
    /// assert!(queue.recv_timeout(Duration::from_millis(10))?.is_none());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Expired<T>>, NewTimeoutError> {
        self.recv_by(self.timer.deadline_after(timeout))
    }

    fn recv_by(&self, limit: u64) -> Result<Option<Expired<T>>, NewTimeoutError> {
        if let Some(expired) = self.try_recv() {
            return Ok(Some(expired));
        }
        let parker = Parker::new();
        let waker = parker.waker();
        // A waiter of its own, which leaves when it is dropped.
        let mut waiter = self.clone();
        loop {
            if let Poll::Ready(received) = waiter.poll_by(&waker, limit) {
                return received;
            }
            assert!(
                !self.timer.is_worker_thread(),
                "a receiving method of DelayQueue was called by a task on the worker of the queue's own timer, and would \
                 wait for that task to end: call it on another thread, or call try_recv"
            );
            parker.park();
        }
    }

    /// Receives the first value as soon as one is due. This is [`recv`](Self::recv) for async code,
    /// on any runtime.
    ///
    /// Cancel-safe: if the future is dropped before it is ready, no value is lost, and the next
    /// consumer takes its place.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv). A later call tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::NewTimeoutError;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// async fn resend(queue: &DelayQueue<String>) -> Result<(), NewTimeoutError> {
    ///     loop {
    ///         let message = queue.expired().await?.into_inner();
    ///         println!("again: {message}");
    ///     }
    /// }
    /// ```
    pub async fn expired(&self) -> Result<Expired<T>, NewTimeoutError> {
        let mut waiter = self.clone();
        poll_fn(|context| waiter.poll_expired(context)).await
    }

    /// Polls for the first value that is due. tokio-util's `DelayQueue::poll_expired`.
    ///
    /// If none is due, this handle waits, until it is polled with the result `Ready` or dropped.
    /// The waker of the last poll is called when the handle has to be polled again: by the timer's
    /// worker, or by a thread that uses the queue.
    ///
    /// Unlike tokio-util's, an empty queue is `Pending`.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv). A later poll tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::task::{Context, Poll, Waker};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let mut queue = DelayQueue::new(&timer);
    /// let mut context = Context::from_waker(Waker::noop());
    /// queue.insert("in a second", Duration::from_secs(1));
    /// assert!(queue.poll_expired(&mut context).is_pending());
    /// clock.advance(Duration::from_secs(1));
    /// let Poll::Ready(expired) = queue.poll_expired(&mut context) else { panic!() };
    /// assert_eq!(expired?.into_inner(), "in a second");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Result<Expired<T>, NewTimeoutError>> {
        self.poll_by(context.waker(), NEVER).map_ok(without_limit)
    }

    /// Polls until `limit`: then the result is `None`.
    fn poll_by(&mut self, waker: &Waker, limit: u64) -> Poll<Result<Option<Expired<T>>, NewTimeoutError>> {
        loop {
            // Before the lock, because both are user code.
            let (now, waker) = (self.timer.now_nanos(), waker.clone());
            let mut state = self.state.lock();
            let due = state.values.take_due(now);
            if due.is_some() || now >= limit {
                drop(state);
                self.leave();
                return Poll::Ready(Ok(due.map(|due| self.expired_of(due))));
            }
            let State { values, waiters } = &mut *state;
            let place = *self.place.get_or_insert_with(|| waiters.next_place());
            let (replaced, awaited) = waiters.wait(place, waker, values.first_deadline());
            drop(state);
            drop(replaced);
            if self.set_alarm(place, awaited.min(limit)).inspect_err(|_| self.leave())? {
                return Poll::Pending;
            }
        }
    }

    /// Returns false if the deadline has been reached since this waiter's look.
    fn set_alarm(&mut self, place: u64, deadline: u64) -> Result<bool, NewTimeoutError> {
        let delay = self.timer.until(deadline);
        if self.alarm.as_ref().is_some_and(|alarm| alarm.reset(delay)) {
            return Ok(true);
        }
        // A new timeout for a tick that the worker has processed would expire at the next one.
        if self.timer.now_nanos() >= deadline {
            return Ok(false);
        }
        let alarm = Alarm { state: Arc::clone(&self.state), place };
        self.alarm = Some(self.timer.new_timeout_task(alarm, delay)?);
        Ok(true)
    }
}

/// What a call with no limit has received.
fn without_limit<T>(received: Option<Expired<T>>) -> Expired<T> {
    received.expect("NEVER is never reached")
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// What the handles share, under one lock.
///
/// No user code runs with the lock held. Wakers, clocks, values and the timer are called, cloned
/// and dropped without it.
struct State<T> {
    values: Values<T>,
    waiters: Waiters,
}

/// The task of a waiter's timeout: it wakes the waiter.
struct Alarm<T> {
    state: Arc<Mutex<State<T>>>,
    place: u64,
}

impl<T> Alarm<T> {
    fn ring(&self) {
        let waker = self.state.lock().waiters.notify(self.place);
        wake(waker);
    }
}

impl<T: Send + 'static> TimerTask for Alarm<T> {
    // A task executor might drop it.
    const RUNS_ON_WORKER: bool = true;
    const IS_AWAITED: bool = true;

    fn run(self, _: &Timeout) {
        self.ring();
    }

    /// Called by `stop`: the waiter finds the timer stopped.
    fn cancelled(self, _: &Timeout) {
        self.ring();
    }
}

/// Makes another handle to the same queue. It does not wait, even if this one does.
impl<T> Clone for DelayQueue<T> {
    fn clone(&self) -> Self {
        Self::with(Arc::clone(&self.state), self.timer.clone())
    }
}

/// If the handle waits, its place goes to the next consumer.
impl<T> Drop for DelayQueue<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("len", &self.len())
            .field("timer", &self.timer)
            .finish_non_exhaustive()
    }
}
