//! The timers of an event loop: a wheel and a clock.

use std::time::{Duration, Instant};

use hashed_wheel::wheel::{HashedWheel, Key};

pub(crate) const TICK: Duration = Duration::from_millis(1);

/// One minute of ticks. (The wheel rounds it up to 65 536.) Later deadlines are permitted: such an
/// entry stays in its slot for several rounds.
const SLOTS: usize = 60_000;

/// Timers with a tick of a millisecond. `T` is the action of a timer. The caller performs the
/// actions of expired timers.
pub(crate) struct Timers<T> {
    wheel: HashedWheel<T>,
    start: Instant,
}

impl<T> Timers<T> {
    pub(crate) fn new() -> Self {
        Self { wheel: HashedWheel::new(SLOTS), start: Instant::now() }
    }

    /// Schedules a timer. The deadline is rounded up to the next tick, so the timer does not expire
    /// early.
    pub(crate) fn at(&mut self, when: Instant, action: T) -> Key {
        let deadline = when - self.start;
        self.wheel.insert(deadline.as_nanos().div_ceil(TICK.as_nanos()) as u64, action)
    }

    /// Returns `None` if the timer has already expired.
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        self.wheel.remove(key)
    }

    /// Returns how long the loop may sleep. `None`: until another event wakes it.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let deadline = Duration::from_millis(self.wheel.next_deadline()?);
        Some(deadline.saturating_sub(self.start.elapsed()))
    }

    /// Moves all due timers to a list. A list, because their handlers may schedule new timers.
    pub(crate) fn take_due(&mut self, due: &mut Vec<T>) {
        // Rounded down to the last complete tick, so that timers do not expire early.
        let now = self.start.elapsed().as_millis() as u64;
        self.wheel.advance(now, |action| due.push(action));
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }
}
