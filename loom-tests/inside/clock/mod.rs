//! Clocks whose words loom sees.

use std::cell::Cell;

use super::ManualClock;
pub(crate) use super::counter::inside::counted;
pub use super::counter::inside::{COUNTER_VALIDITY, Drift, ModelledCounterClock};
use crate::sync::{AtomicU64, Ordering, unmodelled};

std::thread_local! {
    static MODELS_WORDS: Cell<bool> = const { Cell::new(false) };
}

/// Returns a manual clock that loom sees.
pub fn manual_clock() -> ManualClock {
    modelled(ManualClock::new)
}

/// Makes a clock whose words loom sees.
pub(in crate::clock) fn modelled<C>(make: impl FnOnce() -> C) -> C {
    MODELS_WORDS.set(true);
    let clock = make();
    MODELS_WORDS.set(false);
    clock
}

/// A word of a clock. The models of clocks use a modelled one. In all other models it is an
/// ordinary atomic, which loom does not explore: it is part of none of their protocols.
pub(crate) enum ClockWord {
    Unmodelled(unmodelled::AtomicU64),
    // In a box, because shuttle's atomics are large.
    Modelled(Box<AtomicU64>),
}

impl Default for ClockWord {
    fn default() -> Self {
        Self::new(0)
    }
}

impl ClockWord {
    pub(crate) fn new(value: u64) -> Self {
        match MODELS_WORDS.get() {
            true => Self::Modelled(Box::new(AtomicU64::new(value))),
            false => Self::Unmodelled(unmodelled::AtomicU64::new(value)),
        }
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.load(order),
            Self::Modelled(word) => word.load(order),
        }
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        match self {
            Self::Unmodelled(word) => word.store(value, order),
            Self::Modelled(word) => word.store(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        match self {
            Self::Unmodelled(word) => word.compare_exchange(current, new, success, failure),
            Self::Modelled(word) => word.compare_exchange(current, new, success, failure),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        let greater = |old: u64| Some(old.max(value));
        self.fetch_update(order, Ordering::Relaxed, greater)
            .expect("it always has a value")
    }

    /// (The update of loom's own atomics would load without the gate of `AtomicU64`.)
    #[track_caller]
    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        mut update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let mut old = self.load(fetch);
        while let Some(new) = update(old) {
            match self.compare_exchange(old, new, set, fetch) {
                Ok(_) => return Ok(old),
                Err(current) => old = current,
            }
        }
        Err(old)
    }
}
