//! The time of an entry.

use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask, TryNewTimeoutError};

use super::item::Item;
use crate::deadlines::{Deadlines, after, nanos};

/// When an entry expires, as a call says it.
#[derive(Clone, Copy)]
pub(super) enum When {
    After(Duration),
    At(Instant),
}

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

    /// Returns the deadline `delay` from now. If that is zero, the time has come.
    pub(super) fn after(self, delay: Duration) -> u64 {
        match delay {
            Duration::ZERO => self.earliest,
            delay => after(self.latest, delay),
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
        now: Now,
        idle: Option<Duration>,
        timer: &HashedWheelTimer,
    ) -> Self {
        let end = match when {
            When::After(delay) => now.after(delay),
            When::At(instant) => nanos(timer.clock().time_at(instant)).max(now.earliest),
        };
        match idle.map(|idle| (idle, now.after(idle))) {
            Some((idle, deadline)) if deadline < end => Self {
                when: When::After(idle),
                deadline,
                end,
            },
            _ => Self {
                when,
                deadline: end,
                end,
            },
        }
    }

    pub(super) fn schedule<T: TimerTask>(
        &self,
        timer: &HashedWheelTimer,
        task: T,
    ) -> Result<Timeout, TryNewTimeoutError<T>> {
        match self.when {
            When::After(delay) => timer.try_new_timeout_task(task, delay),
            When::At(instant) => timer.try_new_timeout_task_at(task, instant),
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
