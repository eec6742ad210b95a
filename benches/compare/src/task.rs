//! The task of every timeout. It has two words, like a closure that captures two words.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of tasks that have run since [`reset`].
static RAN: AtomicU64 = AtomicU64::new(0);

/// The lateness in nanoseconds of each task that records it.
static LATENESS: Mutex<Vec<i64>> = Mutex::new(Vec::new());

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Debug)]
pub(crate) enum Task {
    /// Adds this number to the counter.
    Count(u64),
    /// Records its lateness. `due` is the deadline in nanoseconds since the origin.
    Record { due: u64 },
}

const _: () = assert!(size_of::<Task>() == 16);

impl Task {
    pub(crate) fn count() -> Self {
        Self::Count(1)
    }

    /// Returns a task that records its lateness. The caller must schedule it immediately.
    pub(crate) fn record(delay: Duration) -> Self {
        Self::Record { due: now() + delay.as_nanos() as u64 }
    }

    pub(crate) fn run(self) {
        let by = match self {
            Self::Count(by) => by,
            Self::Record { due } => {
                let late = now().cast_signed() - due.cast_signed();
                LATENESS.lock().unwrap_or_else(PoisonError::into_inner).push(late);
                1
            }
        };
        RAN.fetch_add(by, Relaxed);
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
