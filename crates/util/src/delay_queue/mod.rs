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
//! queue.insert("second", Duration::from_millis(20))?;
//! queue.insert("first", Duration::from_millis(10))?;
//! assert_eq!(queue.recv()?.into_inner(), "first");
//! assert_eq!(queue.recv()?.into_inner(), "second");
//! # Ok::<(), hashed_wheel::NewTimeoutError>(())
//! ```

mod change;
mod error;
mod expired;
mod receive;
mod values;
mod waiters;

use std::fmt;
use std::task::Waker;
use std::time::Instant;

use hashed_wheel::{HashedWheelTimer, Timeout};

use self::values::Values;
use self::waiters::Waiters;
use crate::deadlines::Deadlines;
use crate::sync::{Arc, Mutex};

pub use self::error::InsertError;
pub use self::expired::{Expired, Key};

/// A queue ordered by deadline, for any number of producers and consumers.
///
/// Values come out in the order of their deadlines, and none before it is due. It is the
/// `DelayQueue` of `java.util.concurrent`.
///
/// Any thread can insert values, and any thread or async task can receive them. Until a value is
/// received, its [`Key`] removes it or changes its deadline, even if it is due already.
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
///     failed.insert("second", Duration::from_millis(20))?;
///     failed.insert("first", Duration::from_millis(10))
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
///     fn insert(&mut self, id: u32, value: String) -> Result<(), NewTimeoutError> {
///         let key = self.expirations.insert(id, TTL)?;
///         if let Some((_, replaced)) = self.entries.insert(id, (value, key)) {
///             self.expirations.remove(replaced);
///         }
///         Ok(())
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
/// # cache.insert(7, "old".to_owned())?;
/// # cache.insert(7, "new".to_owned())?;
/// # assert_eq!(cache.expirations.len(), 1);
/// # Ok::<(), NewTimeoutError>(())
/// ```
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
/// Due values come out in the order of their deadlines, also of deadlines that had passed when the
/// values were inserted: a queue that is loaded again has its order. Values with the same deadline
/// come out in the order in which they got it, by insertion or [`reset`](Self::reset). A value
/// whose delay is too large to represent is never due.
///
/// # Several consumers
///
/// Each value goes to one consumer. Waiting consumers are woken one at a time, in the order in
/// which they began to wait. A consumer that receives a value wakes the next one. So an async
/// consumer that was woken has to be polled again or dropped: the future of
/// [`expired`](Self::expired), or the handle on which [`poll_expired`](Self::poll_expired) was
/// called. Otherwise the other waiting consumers may miss values that are due.
///
/// Each waiting consumer adds one to the timer's
/// [`pending_timeouts`](HashedWheelTimer::pending_timeouts), whether the queue is empty or not.
/// Values do not count.
///
/// # When the timer stops
///
/// The queue keeps its values. Those that are due can still be received, and a value can become due
/// later, because time goes on. But no consumer can wait any more: one that waits, or would have to
/// wait, receives [`Stopped`](hashed_wheel::NewTimeoutError::Stopped), and so does
/// [`insert`](Self::insert). From the beginning of a
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
/// # Price
///
/// An operation on a value takes amortised constant time: the values are in a
/// [`HierarchicalWheel`](hashed_wheel::wheel::HierarchicalWheel) whose tick is a nanosecond. Only a
/// value with an earlier deadline than one that has come out, or that [`peek`](Self::peek) has
/// found, is in `BTreeMap`s too. With one thread, and with clocks that stand still, each operation
/// takes at most 0.7 of the time of tokio-util's queue, which has one owner and returns values of
/// the same millisecond in any order (`cargo bench -p hashed-wheel-benches --bench delay_queue`).
///
/// A call reads the clock once. One that waits reads it up to four times.
///
/// # Locks
///
/// Each call takes the queue's lock. No user code runs under it. So wakers, and the `Drop` of
/// values, may use the queue.
///
/// A consumer sees everything that the producer of its value did before the insertion.
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
        let (values, waiters) = (Values::new(), Waiters::default());
        let state = State { values, waiters };
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

    /// Returns the deadline of a value that was not received. Returns `None` if the key is stale.
    ///
    /// With the default clock this is the exact deadline, even if it had passed when the value was
    /// inserted. With a [custom
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
    /// let key = queue.insert("later", Duration::from_secs(60))?;
    /// assert!(queue.deadline(key).unwrap() > Instant::now() + Duration::from_secs(50));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<Instant> {
        let deadline = self.state.lock().values.deadline(key)?;
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
    /// queue.insert("second", Duration::from_secs(60))?;
    /// let first = queue.insert("first", Duration::from_secs(30))?;
    /// assert_eq!(queue.peek(), Some(first));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn peek(&self) -> Option<Key> {
        self.state.lock().values.first()
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
    /// queue.insert("due", Duration::ZERO)?;
    /// queue.insert("later", Duration::from_secs(60))?;
    /// assert_eq!(queue.len(), 2);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
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
    /// queue.insert("due", Duration::ZERO)?;
    /// assert!(!queue.is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
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
    /// let key = queue.insert("later", Duration::from_secs(60))?;
    /// queue.clear();
    /// assert_eq!(queue.remove(key), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn clear(&self) {
        drop(self.drain());
    }

    /// Removes all values, whether they are due or not, and returns them in the order in which they
    /// would have come out.
    ///
    /// # Examples
    ///
    /// The values that are left at the end of a program:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("second", Duration::from_secs(60))?;
    /// queue.insert("first", Duration::from_secs(30))?;
    /// timer.stop();
    /// assert!(queue.recv().is_err());
    /// assert_eq!(queue.drain(), ["first", "second"]);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn drain(&self) -> Vec<T> {
        let all = self.state.lock().values.take_all();
        all.collect()
    }
}

fn wake(waker: Option<Waker>) {
    waker.into_iter().for_each(Waker::wake);
}

/// The state that the handles share, under one lock.
///
/// No user code runs with the lock held. Wakers, clocks, values and the timer are called, cloned
/// and dropped without it.
struct State<T> {
    values: Values<T>,
    waiters: Waiters,
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
