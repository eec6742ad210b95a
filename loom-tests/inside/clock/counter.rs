//! A machine whose time a model moves, and its clock.

use std::cell::RefCell;

use super::CounterClock;
use crate::clock::inside::modelled;
use crate::platform::Counter;
use crate::sync::{Arc, AtomicU64, Ordering};

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
    /// The counter of the current execution: loom runs all its threads on one.
    static COUNTED: RefCell<Option<(Arc<AtomicU64>, Drift)>> = const { RefCell::new(None) };
}

/// Reads the counter, and how the clock differs, if the model has them. No order follows from
/// reading it.
fn read() -> Option<(u64, Drift)> {
    let (counted, drift) = COUNTED.with_borrow(Option::clone)?;
    Some((counted.fetch_add(0, Ordering::Relaxed), drift))
}

/// The value of the counter, if the model has one.
pub(crate) fn counted() -> Option<u64> {
    read().map(|(counted, _)| counted)
}

/// The value of the operating system's clock, if the model has one.
pub(crate) fn now() -> Option<u64> {
    read().map(|(counted, drift)| match drift {
        Drift::Slower => counted - counted / 1_001,
        Drift::Faster => counted + counted / 1_001,
        Drift::MuchSlower => counted - counted / 12,
    })
}

/// A clock that reads the counter of a machine, and loom sees its words.
pub struct ModelledCounterClock(CounterClock);

impl ModelledCounterClock {
    pub fn new(drift: Drift) -> Self {
        COUNTED.set(Some((Arc::new(AtomicU64::new(1_000_000)), drift)));
        Self(modelled(|| CounterClock::with_counter(true, Counter::new)))
    }

    /// Time passes on the machine.
    pub fn advance(&self, nanos: u64) {
        let (counted, _) = COUNTED.with_borrow(Option::clone).expect("a machine");
        counted.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the time for a new timeout, which was not before that of the operating system, and
    /// is ahead of it by less than a microsecond, unless the clock is slewed.
    #[track_caller]
    pub fn deadline_base(&self) -> u64 {
        let before = now().expect("a machine");
        let time = self.0.deadline_base();
        let (_, drift) = read().expect("a machine");
        let after = now().expect("a machine");
        assert!(before <= time, "{time} is before {before}");
        assert!(
            drift == Drift::MuchSlower || time < after + 1_000,
            "{time} is after {after}"
        );
        time
    }
}

impl Drop for ModelledCounterClock {
    fn drop(&mut self) {
        COUNTED.set(None);
    }
}
