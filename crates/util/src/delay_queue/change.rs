//! How values get into a queue, and how their deadlines change.

use std::time::{Duration, Instant};

use hashed_wheel::NewTimeoutError;

use super::{DelayQueue, InsertError, Key, wake};
use crate::deadlines::Deadlines;

impl<T> DelayQueue<T> {
    /// Inserts a value that is due `delay` from now. Returns its key.
    ///
    /// A value with a delay of zero is due immediately. One with a delay too large to represent is
    /// never due.
    ///
    /// If a consumer waits for a later deadline, this wakes it.
    ///
    /// # Errors
    ///
    /// [`Stopped`](hashed_wheel::NewTimeoutError::Stopped): the timer
    /// [is stopped](hashed_wheel::HashedWheelTimer::is_stopped). The error returns the value. While
    /// a [`shutdown`](hashed_wheel::HashedWheelTimer::shutdown) waits, the queue accepts values.
    ///
    /// # Panics
    ///
    /// If the queue has 2^32 − 1 values.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// queue.insert("later", Duration::from_secs(60))?;
    /// queue.insert("now", Duration::ZERO)?;
    /// assert_eq!(queue.try_recv().unwrap().into_inner(), "now");
    /// assert!(queue.try_recv().is_none());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("offer", "put", "schedule"))]
    pub fn insert(&self, value: T, delay: Duration) -> Result<Key, InsertError<T>> {
        self.insert_by(value, self.timer.deadline_after(delay) as i64)
    }

    /// Inserts a value that is due at `deadline`. Returns its key.
    ///
    /// The deadline is converted as by
    /// [`new_timeout_at`](hashed_wheel::HashedWheelTimer::new_timeout_at). A value whose deadline
    /// has passed is due immediately, before those with later deadlines.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Panics
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::{Duration, Instant};
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let deadline = Instant::now() + Duration::from_secs(60);
    /// let key = queue.insert_at("in a minute", deadline)?;
    /// assert_eq!(queue.deadline(key), Some(deadline));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn insert_at(&self, value: T, deadline: Instant) -> Result<Key, InsertError<T>> {
        self.insert_by(value, self.timer.time_at(deadline))
    }

    fn insert_by(&self, value: T, deadline: i64) -> Result<Key, InsertError<T>> {
        // Before the lock: a stop after this is the same as one after the insertion.
        if self.timer.is_stopped() {
            let error = NewTimeoutError::Stopped;
            return Err(InsertError { value, error });
        }
        let mut state = self.state.lock();
        let key = state.values.insert(value, deadline);
        let waker = state.waiters.notify_of(deadline);
        drop(state);
        wake(waker);
        Ok(key)
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
    /// let key = queue.insert("due already", Duration::ZERO)?;
    /// assert_eq!(queue.remove(key), Some("due already"));
    /// assert_eq!(queue.remove(key), None);
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn remove(&self, key: Key) -> Option<T> {
        self.state.lock().values.remove(key)
    }

    /// Changes the deadline of a value that was not received: it is now due `delay` from now,
    /// earlier or later than before. Returns false if the key is stale.
    ///
    /// A value that was due may not be due any more then. The key stays valid. Among values with
    /// the same deadline, it is then the last; the deadline that it already has changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let queue = DelayQueue::new(&HashedWheelTimer::default());
    /// let key = queue.insert("later", Duration::from_secs(60))?;
    /// assert!(queue.reset(key, Duration::ZERO));
    /// assert!(queue.try_recv().is_some());
    /// assert!(!queue.reset(key, Duration::ZERO));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn reset(&self, key: Key, delay: Duration) -> bool {
        self.reset_by(key, self.timer.deadline_after(delay) as i64)
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
    /// let key = queue.insert("later", Duration::from_secs(60))?;
    /// assert!(queue.reset_at(key, Instant::now()));
    /// assert!(queue.try_recv().is_some());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn reset_at(&self, key: Key, deadline: Instant) -> bool {
        self.reset_by(key, self.timer.time_at(deadline))
    }

    fn reset_by(&self, key: Key, deadline: i64) -> bool {
        let mut state = self.state.lock();
        let is_reset = state.values.reset(key, deadline);
        let waker = if is_reset {
            state.waiters.notify_of(deadline)
        } else {
            None
        };
        drop(state);
        wake(waker);
        is_reset
    }
}
