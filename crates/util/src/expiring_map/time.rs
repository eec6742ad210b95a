//! The time of an entry.

use std::time::Duration;

use hashed_wheel::HashedWheelTimer;

use super::panics::Panics;
use crate::deadlines::{NEVER, after};

/// The present, by a timer's clock.
#[derive(Clone, Copy, Default)]
pub(super) struct Now {
    /// Not ahead of the clock: what is dead by this time is dead.
    pub(super) earliest: u64,
    /// Not behind it: a delay begins at this time, so that no entry is early.
    pub(super) latest: u64,
}

impl Now {
    pub(super) fn of(timer: &HashedWheelTimer) -> Self {
        let (earliest, latest) = timer.now_bounds();
        Self { earliest, latest }
    }

    /// The same for a call that must not panic. If the clock does, this is the past: a table keeps
    /// the present that it has seen last.
    pub(super) fn of_or_past(timer: &HashedWheelTimer) -> Self {
        let now = Panics::default().catch(|| Self::of(timer));
        now.unwrap_or_default()
    }

    /// Returns the deadline `delay` from now. If that is zero, the time has come.
    pub(super) fn after(self, delay: Duration) -> u64 {
        match delay {
            Duration::ZERO => self.earliest,
            delay => after(self.latest, delay),
        }
    }

    /// Returns the time until a deadline. The timer counts it from a later time, so a timeout is
    /// not earlier than its item.
    pub(super) fn until(self, deadline: u64) -> Duration {
        match deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.latest)),
        }
    }

    /// The present does not go back.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            earliest: self.earliest.max(other.earliest),
            latest: self.latest.max(other.latest),
        }
    }
}
