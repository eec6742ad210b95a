//! How the trial sees, from its own thread, when the loop sleeps and what wakes it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Watch {
    sleeps: AtomicU64,
    /// Sleeps with no end: nothing was pending.
    for_ever: AtomicU64,
    wake_ups: AtomicU64,
    /// Wake-ups with no socket ready, and nothing due.
    in_vain: AtomicU64,
    /// Calls of the waker.
    rings: AtomicU64,
}

impl Watch {
    pub(crate) fn falls_asleep(&self, wait: Option<Duration>) {
        self.for_ever.fetch_add(u64::from(wait.is_none()), SeqCst);
        self.sleeps.fetch_add(1, SeqCst);
    }

    pub(crate) fn wakes_up(&self) {
        self.wake_ups.fetch_add(1, SeqCst);
    }

    pub(crate) fn in_vain(&self) {
        self.in_vain.fetch_add(1, SeqCst);
    }

    pub(crate) fn ring(&self) {
        self.rings.fetch_add(1, SeqCst);
    }

    /// The loop has said how long it will sleep, and sleeps or is about to.
    pub(crate) fn is_asleep(&self) -> bool {
        let wake_ups = self.wake_ups.load(SeqCst);
        self.sleeps.load(SeqCst) > wake_ups
    }

    /// From the beginning until now.
    pub(crate) fn seen(&self) -> Seen {
        Seen {
            for_ever: self.for_ever.load(SeqCst),
            wake_ups: self.wake_ups.load(SeqCst),
            in_vain: self.in_vain.load(SeqCst),
            rings: self.rings.load(SeqCst),
        }
    }
}

/// What happened in some time.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) for_ever: u64,
    pub(crate) wake_ups: u64,
    pub(crate) in_vain: u64,
    pub(crate) rings: u64,
}

impl Seen {
    pub(crate) fn since(self, before: Seen) -> Seen {
        Seen {
            for_ever: self.for_ever - before.for_ever,
            wake_ups: self.wake_ups - before.wake_ups,
            in_vain: self.in_vain - before.in_vain,
            rings: self.rings - before.rings,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wake_ups, in_vain, rings, .. } = self;
        write!(f, "{rings} calls of the waker, {wake_ups} wake-ups, of these {in_vain} in vain")
    }
}
