//! Why an entry has left its map.

/// Why an entry has left an [`ExpiringMap`](crate::ExpiringMap), for its
/// [listener](crate::ExpiringMapBuilder::listener). Caffeine's `RemovalCause`.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::Cause;
///
/// fn label(cause: Cause) -> &'static str {
///     match cause {
///         Cause::Expired => "timeout",
///         Cause::Replaced => "login elsewhere",
///         Cause::Removed => "logout",
///         Cause::Evicted => "too many sessions",
///         _ => "other",
///     }
/// }
/// assert_eq!(label(Cause::Removed), "logout");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Its time has come.
    Expired,
    /// Another entry was inserted under its key.
    Replaced,
    /// `remove`, `retain`, `clear` or `drain` has removed it.
    Removed,
    /// The map was full, and a new entry has taken its place: see
    /// [`max_entries`](crate::ExpiringMapBuilder::max_entries). Caffeine's `SIZE`.
    Evicted,
}
