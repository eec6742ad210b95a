//! One item: a key, a value, and their time.

use hashed_wheel::{Cancel, Timeout};

use super::time::Now;

/// A key, its value, and its time.
///
/// Keys and values are the user's. Whatever drops one must be called without a lock held.
// In this order, so that what a look-up needs is together. A map waits for memory, so each byte
// counts: with a key and a value of 8 bytes each, an item has 64.
#[repr(C)]
pub(super) struct Item<K, V> {
    pub(super) deadline: u64,
    pub(super) weight: u32,
    /// In a table with a limit.
    pub(super) number: u16,
    /// Since it was inserted, or since an eviction has passed it over. Without a limit, always, so
    /// that a look-up writes to no memory.
    pub(super) is_used: bool,
    pub(super) key: K,
    pub(super) value: V,
    pub(super) timeout: Armed,
    pub(super) hash: u64,
    /// The latest deadline, whatever the use of the item.
    pub(super) end: u64,
}

/// The timeout of an item; `None` once it was cancelled. Its drop cancels it, and must happen
/// without a lock held. If it has expired already, its task does not find the item.
pub(super) struct Armed(pub(super) Option<Timeout>);

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(timeout) = self.0.take() {
            timeout.cancel_and_drop();
        }
    }
}

impl<K, V> Item<K, V> {
    pub(super) fn is_alive(&self, now: Now) -> bool {
        now.earliest < self.deadline
    }

    pub(super) fn set_used(&mut self) {
        if !self.is_used {
            self.is_used = true;
        }
    }

    pub(super) fn timeout(&self) -> &Timeout {
        let timeout = self.timeout.0.as_ref();
        timeout.expect("an item that was not removed has a timeout")
    }

    pub(super) fn is_of(&self, own: &Timeout) -> bool {
        self.timeout() == own
    }

    pub(super) fn has_ended(&self) -> bool {
        self.timeout().is_expired() || self.timeout().is_cancelled()
    }

    /// Cancels the timeout of an item that was removed. Must be called without a lock held.
    pub(super) fn cancel(&mut self) {
        self.timeout = Armed(None);
    }

    /// Cancels the timeout, and returns the value. If the drop of the key panics, the value is
    /// dropped too.
    pub(super) fn into_value(self) -> V {
        let (key, value) = self.into_pair();
        drop(key);
        value
    }

    /// Cancels the timeout, and returns the key and the value.
    pub(super) fn into_pair(mut self) -> (K, V) {
        self.cancel();
        (self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_with_a_small_key_and_value_is_as_large_as_a_cache_line() {
        assert!(size_of::<Item<u64, u64>>() <= 64);
    }
}
