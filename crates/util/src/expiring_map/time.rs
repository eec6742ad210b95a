//! The time of an entry.

use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask};

use super::item::Item;
use crate::deadlines::{Deadlines, after};

/// When an entry expires, as a call says it.
#[derive(Clone, Copy)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

/// The time of an entry that is not used.
pub(super) struct Time {
    when: When,
    pub(super) deadline: u64,
    /// Its latest deadline. It is later if there is a time to idle.
    pub(super) end: u64,
}

impl Time {
    pub(super) fn new(
        when: When,
        now: u64,
        idle: Option<Duration>,
        timer: &HashedWheelTimer,
    ) -> Self {
        let end = match when {
            When::After(delay) => after(now, delay),
            When::At(instant) => timer.deadline_at(instant),
        };
        match idle {
            Some(idle) if after(now, idle) < end => Self {
                when: When::After(idle),
                deadline: after(now, idle),
                end,
            },
            _ => Self {
                when,
                deadline: end,
                end,
            },
        }
    }

    pub(super) fn schedule(
        &self,
        timer: &HashedWheelTimer,
        task: impl TimerTask,
    ) -> Result<Timeout, NewTimeoutError> {
        match self.when {
            When::After(delay) => timer.new_timeout_task(task, delay),
            When::At(instant) => timer.new_timeout_task_at(task, instant),
        }
    }

    pub(super) fn reset(&self, timeout: &Timeout) -> bool {
        match self.when {
            When::After(delay) => timeout.reset(delay),
            When::At(instant) => timeout.reset_at(instant),
        }
    }

    /// The time until the deadline.
    pub(super) fn rest(&self, timer: &HashedWheelTimer) -> Duration {
        match self.when {
            When::After(delay) => delay,
            When::At(_) => timer.until(self.deadline),
        }
    }
}

impl<K, V> Item<K, V> {
    pub(super) fn set_time(&mut self, time: &Time) {
        self.end = time.end;
        self.set_deadline(time.deadline);
    }
}
