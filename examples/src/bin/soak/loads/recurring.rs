//! The schedules of periodic tasks and of intervals, and when each of their runs or ticks is due.

use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{MissedTick, Schedule};

use super::A_DAY;
use crate::Sabotage;
use crate::accounts::Deadline;

/// What must hold for the runs of a schedule, whatever the timer says about their deadlines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recurring {
    period: Duration,
    has_fixed_delay: bool,
}

impl Recurring {
    /// Returns a random schedule too: at a fixed rate with one of the policies, or with a fixed
    /// delay.
    pub(super) fn new(
        policies: &[MissedTick],
        random: &mut Rng,
        sabotage: Option<Sabotage>,
    ) -> (Self, Schedule) {
        let period = Duration::from_micros(random.u64(1_000..100_000));
        // Correct in the first run, so that the check of the others is tested.
        let scheduled = if sabotage == Some(Sabotage::Half) { period / 2 } else { period };
        let first = if sabotage == Some(Sabotage::Late) { A_DAY } else { period };
        let policy = policies.get(random.usize(0..=policies.len()));
        let schedule = match policy {
            Some(policy) => Schedule::at_fixed_rate(scheduled).missed_tick(*policy),
            None => Schedule::with_fixed_delay(scheduled),
        };
        (Self { period, has_fixed_delay: policy.is_none() }, schedule.initial_delay(first))
    }

    /// Returns when the first run is due, if the schedule begins now.
    pub(super) fn first(self) -> Deadline {
        Deadline::after(self.period)
    }

    /// Returns when the next run is due, if the one with this deadline ends now. The permitted
    /// lateness covers the time until the timer computes the deadline.
    ///
    /// At a fixed rate, no policy makes the next run due before one period after the last one was
    /// due.
    pub(super) fn next(self, last: Deadline) -> Deadline {
        if self.has_fixed_delay { Deadline::after(self.period) } else { last.next(self.period) }
    }
}
