//! The timers of an event loop: a wheel, and the clock that it lacks.

use std::time::{Duration, Instant};

use hashed_wheel::wheel::{HashedWheel, Key};

pub(crate) const TICK: Duration = Duration::from_millis(1);

/// One minute of ticks. (The wheel rounds it up to 65 536.) A later deadline is no trouble: it stays for some turns.
const SLOTS: usize = 60_000;

/// Timers with a tick of a millisecond. `T` says what is to be done; what comes out is for the caller to do.
pub(crate) struct Timers<T> {
    wheel: HashedWheel<T>,
    start: Instant,
}

impl<T> Timers<T> {
    pub(crate) fn new() -> Self {
        Self { wheel: HashedWheel::new(SLOTS), start: Instant::now() }
    }

    /// Rounded up to the next tick: not early.
    pub(crate) fn at(&mut self, when: Instant, what: T) -> Key {
        let deadline = when - self.start;
        self.wheel.insert(deadline.as_nanos().div_ceil(TICK.as_nanos()) as u64, what)
    }

    /// `None` if it has come out already.
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        self.wheel.remove(key)
    }

    /// How long the loop may sleep. `None`: until something else wakes it.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let deadline = Duration::from_millis(self.wheel.next_deadline()?);
        Some(deadline.saturating_sub(self.start.elapsed()))
    }

    /// Takes out all that is due. It goes into a list since whoever handles it will want to set new timers.
    pub(crate) fn take_due(&mut self, due: &mut Vec<T>) {
        // Rounded down to the tick that has been reached: not early.
        let now = self.start.elapsed().as_millis() as u64;
        self.wheel.advance(now, |what| due.push(what));
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }
}
