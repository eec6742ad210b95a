//! The keys of a wheel that owns its values.

use core::num::NonZeroU32;

/// Identifies an entry of the wheel whose [`insert`](super::HashedWheel::insert) returned the key.
///
/// Once the entry has expired or was removed, the key is stale and never identifies an entry of
/// this wheel again. The index in the key may be reused, but together with its generation it is
/// unique. A key is meaningless to another wheel.
///
/// An `Option<Key>` is as large as a `Key`, eight bytes. The order of keys has no meaning: it is
/// for collections such as `BTreeSet`. `slotmap::DefaultKey`.
///
/// # Examples
///
/// ```
/// use timing_wheels::HashedWheel;
///
/// let mut wheel = HashedWheel::new(8);
/// let key = wheel.insert(3, "connection 1");
/// assert_eq!(wheel.remove(key), Some("connection 1"));
///
/// wheel.insert(3, "connection 2");
/// assert_eq!(wheel.remove(key), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(C)] // With the generation first, `remove` would need one more register.
pub struct Key {
    pub(super) index: u32,
    pub(super) generation: NonZeroU32,
}
