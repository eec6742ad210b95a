//! A value that has left a queue, and its key.

use std::time::Instant;

use hashed_wheel::wheel;

/// Identifies a value of the [`DelayQueue`](super::DelayQueue) whose
/// [`insert`](super::DelayQueue::insert) returned the key.
///
/// Once the value was received or removed, the key is stale, and never identifies a value of this
/// queue again. It identifies no value of another queue either.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use hashed_wheel_util::delay_queue::DelayQueue;
/// # use std::time::Duration;
/// let queue = DelayQueue::new(&HashedWheelTimer::default());
/// let key = queue.insert("request 1", Duration::from_secs(5))?;
/// assert_eq!(queue.remove(key), Some("request 1"));
/// queue.insert("request 2", Duration::from_secs(5))?;
/// assert_eq!(queue.remove(key), None);
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub(super) values: u64,
    pub(super) place: wheel::Key,
}

/// A value that was due and has left its [`DelayQueue`](super::DelayQueue). tokio-util's `Expired`.
///
/// # Examples
///
/// ```
/// # use hashed_wheel::HashedWheelTimer;
/// # use hashed_wheel_util::delay_queue::DelayQueue;
/// # use std::time::{Duration, Instant};
/// let queue = DelayQueue::new(&HashedWheelTimer::default());
/// let key = queue.insert("now", Duration::ZERO)?;
/// let expired = queue.recv()?;
/// assert_eq!((expired.get_ref(), expired.key()), (&"now", key));
/// assert!(expired.deadline() <= Instant::now());
/// assert_eq!(expired.into_inner(), "now");
/// # Ok::<(), hashed_wheel::NewTimeoutError>(())
/// ```
#[derive(Debug)]
pub struct Expired<T> {
    pub(super) value: T,
    pub(super) deadline: Instant,
    pub(super) key: Key,
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

    /// Returns the deadline that the value had. See
    /// [`DelayQueue::deadline`](super::DelayQueue::deadline).
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the key that the value had. It is stale.
    pub fn key(&self) -> Key {
        self.key
    }
}
