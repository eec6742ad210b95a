//! Random numbers without a dependency.

use std::hash::{BuildHasher, RandomState};

/// Each `RandomState` has other keys, so the hash of a constant is a random number.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}
