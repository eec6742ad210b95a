//! Counters that loom sees.

use std::cell::Cell;

use crate::sync::{AtomicU64, Ordering, unmodelled};

std::thread_local!(static MODELS_COUNTERS: Cell<bool> = const { Cell::new(false) });

/// While it exists, loom sees the counters of a timer that is built. In all other models they are
/// ordinary atomics.
pub struct ModelledCounters(());

impl ModelledCounters {
    #[allow(clippy::new_without_default, reason = "it changes the model")]
    pub fn new() -> Self {
        MODELS_COUNTERS.set(true);
        Self(())
    }
}

impl Drop for ModelledCounters {
    fn drop(&mut self) {
        MODELS_COUNTERS.set(false);
    }
}

/// The word of a counter.
pub(crate) enum CounterWord {
    Unmodelled(unmodelled::AtomicU64),
    Modelled(AtomicU64),
}

impl Default for CounterWord {
    fn default() -> Self {
        match MODELS_COUNTERS.get() {
            true => Self::Modelled(AtomicU64::new(0)),
            false => Self::Unmodelled(unmodelled::AtomicU64::new(0)),
        }
    }
}

impl CounterWord {
    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.load(order),
            Self::Modelled(word) => word.load_of_another(order),
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
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.fetch_add(value, order),
            Self::Modelled(word) => word.fetch_add(value, order),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Self::Unmodelled(word) => word.fetch_max(value, order),
            Self::Modelled(word) => {
                let max = |before| Some(value.max(before));
                word.fetch_update(order, Ordering::Relaxed, max)
                    .expect("the closure returns a value")
            }
        }
    }
}
