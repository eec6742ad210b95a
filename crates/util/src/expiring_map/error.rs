//! The errors.

use std::{error, fmt};

use hashed_wheel::NewTimeoutError;

/// The error of [`ExpiringMap::insert`](crate::ExpiringMap::insert): the entry comes back, with
/// the reason. It is what `TrySendError` is for a channel.
///
/// It converts into its [`NewTimeoutError`], so `?` works in a function that returns that.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
/// use hashed_wheel_util::ExpiringMap;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::default();
/// let sessions = ExpiringMap::new(&timer);
/// timer.stop();
/// let rejected = sessions.insert("ada", "10.0.0.7", Duration::from_secs(30)).unwrap_err();
/// assert_eq!((rejected.key, rejected.value), ("ada", "10.0.0.7"));
/// assert!(matches!(rejected.error, NewTimeoutError::Stopped));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct InsertError<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// The reason.
    pub error: NewTimeoutError,
}

impl<K, V> From<InsertError<K, V>> for NewTimeoutError {
    fn from(rejected: InsertError<K, V>) -> Self {
        rejected.error
    }
}

impl<K, V> fmt::Debug for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<K, V> fmt::Display for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<K, V> error::Error for InsertError<K, V> {}

/// The answer of [`try_get`](crate::ExpiringMap::try_get) and
/// [`try_entry`](crate::ExpiringMap::try_entry) of a map if the key is reserved: its entry has left
/// the map and was not written yet, or another call has an [`entry`](crate::ExpiringMap::entry) of
/// it.
///
/// # Examples
///
/// ```
/// let error = hashed_wheel_util::BeingWritten;
/// assert_eq!(error.to_string(), "the key is reserved: its entry is being written or changed");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeingWritten;

impl fmt::Display for BeingWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key is reserved: its entry is being written or changed")
    }
}

impl error::Error for BeingWritten {}
