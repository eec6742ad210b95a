//! The task of every timeout. It has one word, like a closure that captures one.

use std::num::NonZeroU64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of tasks that have run since [`reset`].
static RAN: AtomicU64 = AtomicU64::new(0);

/// The lateness in nanoseconds of each task that records it.
static LATENESS: Mutex<Vec<i64>> = Mutex::new(Vec::new());

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The deadline in nanoseconds since the origin, if the task records its lateness, or else `None`.
#[derive(Debug)]
pub(crate) struct Task(Option<NonZeroU64>);

const _: () = assert!(size_of::<Task>() == 8);

impl Task {
    /// Returns a task that only counts.
    pub(crate) fn count() -> Self {
        Self(None)
    }

    /// Returns a task that records its lateness. The caller must schedule it immediately.
    pub(crate) fn record(delay: Duration) -> Self {
        Self(NonZeroU64::new(now() + delay.as_nanos() as u64))
    }

    pub(crate) fn run(self) {
        if let Some(due) = self.0 {
            let late = now().cast_signed() - due.get().cast_signed();
            LATENESS
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(late);
        }
        RAN.fetch_add(1, Relaxed);
    }
}

fn now() -> u64 {
    ORIGIN.elapsed().as_nanos() as u64
}

/// Resets the counter and the records, and allocates memory for `records` records.
pub(crate) fn reset(records: usize) {
    RAN.store(0, Relaxed);
    *LATENESS.lock().unwrap_or_else(PoisonError::into_inner) = Vec::with_capacity(records);
    LazyLock::force(&ORIGIN);
}

pub(crate) fn ran() -> u64 {
    RAN.load(Relaxed)
}

/// Returns the recorded lateness in ascending order.
pub(crate) fn take_lateness() -> Vec<i64> {
    let mut all = std::mem::take(&mut *LATENESS.lock().unwrap_or_else(PoisonError::into_inner));
    all.sort_unstable();
    all
}
