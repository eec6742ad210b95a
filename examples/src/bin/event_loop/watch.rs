//! Counters that show the trial's thread when the loop sleeps and what wakes it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Watch {
    sleeps: AtomicU64,
    /// Sleeps without a time limit, because nothing was pending.
    unlimited: AtomicU64,
    wake_ups: AtomicU64,
    /// Wake-ups without a ready socket or a due timeout.
    unneeded: AtomicU64,
    /// Calls of the waker.
    waker_calls: AtomicU64,
}

impl Watch {
    pub(crate) fn falls_asleep(&self, wait: Option<Duration>) {
        self.unlimited.fetch_add(u64::from(wait.is_none()), SeqCst);
        self.sleeps.fetch_add(1, SeqCst);
    }

    pub(crate) fn wakes_up(&self) {
        self.wake_ups.fetch_add(1, SeqCst);
    }

    pub(crate) fn unneeded(&self) {
        self.unneeded.fetch_add(1, SeqCst);
    }

    pub(crate) fn waker_called(&self) {
        self.waker_calls.fetch_add(1, SeqCst);
    }

    /// Whether the loop has announced how long it will sleep, and sleeps or is about to sleep.
    pub(crate) fn is_asleep(&self) -> bool {
        let wake_ups = self.wake_ups.load(SeqCst);
        self.sleeps.load(SeqCst) > wake_ups
    }

    /// Returns the counts since the start.
    pub(crate) fn seen(&self) -> Seen {
        Seen {
            unlimited: self.unlimited.load(SeqCst),
            wake_ups: self.wake_ups.load(SeqCst),
            unneeded: self.unneeded.load(SeqCst),
            waker_calls: self.waker_calls.load(SeqCst),
        }
    }
}

/// The counts of a period.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) unlimited: u64,
    pub(crate) wake_ups: u64,
    pub(crate) unneeded: u64,
    pub(crate) waker_calls: u64,
}

impl Seen {
    pub(crate) fn since(self, before: Seen) -> Seen {
        Seen {
            unlimited: self.unlimited - before.unlimited,
            wake_ups: self.wake_ups - before.wake_ups,
            unneeded: self.unneeded - before.unneeded,
            waker_calls: self.waker_calls - before.waker_calls,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wake_ups, unneeded, waker_calls, .. } = self;
        write!(
            f,
            "{waker_calls} calls of the waker, {wake_ups} wake-ups, {unneeded} of them without a reason"
        )
    }
}
