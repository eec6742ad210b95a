//! Clocks whose words loom sees, and a machine whose time a model moves.

use std::cell::{Cell, RefCell};

use super::{ManualClock, Monotonic};
use crate::platform::Counter;
use crate::sync::{Arc, AtomicU64, Ordering, unmodelled};

/// The time for which an offset between counter and clock is used, in nanoseconds.
pub const COUNTER_VALIDITY: u64 = super::COUNTER_VALIDITY;

/// How the operating system's clock differs from the counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    /// By one in 1 001, which is as far as `MAX_DRIFT` allows.
    Slower,
    /// By as much.
    Faster,
    /// By one in 12: a program slews the clock.
    MuchSlower,
}

std::thread_local! {
    /// What the counter of the current execution shows: loom runs all its threads on one.
    static COUNTED: RefCell<Option<(Arc<AtomicU64>, Drift)>> = const { RefCell::new(None) };
    static MODELS_WORDS: Cell<bool> = const { Cell::new(false) };
}

/// What the counter shows, and how the clock differs, if the model has them. No order follows from
/// reading it.
fn read() -> Option<(u64, Drift)> {
    let (counted, drift) = COUNTED.with_borrow(Option::clone)?;
    Some((counted.fetch_add(0, Ordering::Relaxed), drift))
}

/// What the counter shows, if the model has one.
pub(crate) fn counted() -> Option<u64> {
    read().map(|(counted, _)| counted)
}

/// What the operating system's clock shows, if the model has one.
pub(crate) fn now() -> Option<u64> {
    read().map(|(counted, drift)| match drift {
        Drift::Slower => counted - counted / 1_001,
        Drift::Faster => counted + counted / 1_001,
        Drift::MuchSlower => counted - counted / 12,
    })
}

/// A clock that reads the counter of a machine, and loom sees its words.
pub struct CounterClock(Monotonic);

impl CounterClock {
    pub fn new(drift: Drift) -> Self {
        COUNTED.set(Some((Arc::new(AtomicU64::new(1_000_000)), drift)));
        Self(modelled(|| Monotonic::with_counter(true, Counter::new)))
    }

    /// Time passes on the machine.
    pub fn advance(&self, nanos: u64) {
        let (counted, _) = COUNTED.with_borrow(Option::clone).expect("a machine");
        counted.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the time for a new timeout, which was not before that of the operating system, and
    /// is ahead of it by less than a microsecond, unless the clock is slewed.
    #[track_caller]
    pub fn now_or_soon(&self) -> u64 {
        let before = now().expect("a machine");
        let time = self.0.now_by_counter();
        let (_, drift) = read().expect("a machine");
        let after = now().expect("a machine");
        assert!(before <= time, "{time} is before {before}");
        assert!(drift == Drift::MuchSlower || time < after + 1_000, "{time} is after {after}");
        time
    }
}

impl Drop for CounterClock {
    fn drop(&mut self) {
        COUNTED.set(None);
    }
}

/// Returns a manual clock that loom sees.
pub fn manual_clock() -> ManualClock {
    modelled(ManualClock::new)
}

/// Makes a clock whose words loom sees.
fn modelled<C>(make: impl FnOnce() -> C) -> C {
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
        self.fetch_update(order, Ordering::Relaxed, greater).expect("it always has a value")
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
