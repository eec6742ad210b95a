//! What leaves a map, and why.

/// An entry that has left an [`ExpiringMap`](crate::ExpiringMap), for its handler or its receiver.
/// `RemovalNotification` of Guava.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::{Cause, Removed};
///
/// fn log(Removed { key, value, cause }: Removed<&str, u32>) -> Option<String> {
///     (cause == Cause::Expired).then(|| format!("{key} was silent after {value} packets"))
/// }
/// let ada = Removed { key: "ada", value: 17, cause: Cause::Expired };
/// assert_eq!(log(ada).unwrap(), "ada was silent after 17 packets");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Why the entry has left the map.
    pub cause: Cause,
}

/// Why an entry has left an [`ExpiringMap`](crate::ExpiringMap): part of [`Removed`]. Caffeine's
/// `RemovalCause`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::Cause;
///
/// fn label(cause: Cause) -> &'static str {
///     match cause {
///         Cause::Expired => "timeout",
///         Cause::Evicted => "too many sessions",
///         Cause::Stopped => "shutdown",
///         _ => "other",
///     }
/// }
/// assert_eq!(label(Cause::Evicted), "too many sessions");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Its time has come, by the clock, also if the timer was stopped before it has passed it on.
    Expired,
    /// The map was full, and a new entry has taken its place: see
    /// [`max_entries`](crate::ExpiringMapBuilder::max_entries). Caffeine's `SIZE`.
    Evicted,
    /// Another entry was inserted under its key. Without
    /// [`causes`](crate::ExpiringMapBuilder::causes), the insertion returns the value instead.
    Replaced,
    /// `retain` or `clear` has removed it. (`remove` and `drain` return values.)
    Removed,
    /// The last handle of the map was dropped, the timer was stopped, or its `cancel_all` was
    /// called, before its time.
    Stopped,
}

/// The causes of entries that no call returns.
pub(super) const UNRETURNED: [Cause; 4] = [
    Cause::Expired,
    Cause::Evicted,
    Cause::Removed,
    Cause::Stopped,
];
