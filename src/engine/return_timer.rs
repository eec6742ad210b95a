//! When the worker returns memory to the operating system.

use std::time::Duration;

use crate::node::{Owner, WheelOf};
use crate::ticks::Ticks;

/// Memory is returned if it was not needed for this time: a load that changes faster keeps it.
pub(super) const SURPLUS_TIME: Duration = Duration::from_secs(2);

/// While there is more memory to return, the worker continues after this time.
pub(super) const RETURN_INTERVAL: Duration = Duration::from_millis(5);

/// Memory is returned only if nothing falls due for this time, which is several times that of a
/// step.
const RETURN_TIME: Duration = Duration::from_micros(500);

/// The same if something falls due within [`RETURN_TIME`] at all times. Then memory is returned
/// nevertheless: one step per [`RETURN_INTERVAL`], by which timeouts are late.
pub(super) const SURPLUS_TIME_IF_BUSY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Default, PartialEq, Debug)]
enum State {
    /// There was no memory to return in the last turn.
    #[default]
    Idle,
    /// There was in each turn since then.
    Since(u64),
    Returning,
}

#[derive(Default)]
pub(super) struct ReturnTimer {
    state: State,
    /// When [`step`](Self::step) last did steps, if there were any to do.
    pub(super) last_return: u64,
}

impl ReturnTimer {
    /// Whether there is anything to do. (Most turns find nothing.)
    #[inline]
    pub(super) fn has_work<S: Owner>(&self, nodes: &mut WheelOf<'_, S>) -> bool {
        self.state != State::Idle || nodes.has_surplus()
    }

    /// Does at most this many steps, each of which takes some ten microseconds, and 100 µs at most.
    /// Does nothing if something falls due soon, which would be late; unless the memory was not
    /// needed for long.
    #[cold]
    pub(super) fn step<S: Owner>(
        &mut self,
        nodes: &mut WheelOf<'_, S>,
        ticks: Ticks,
        now: u64,
        steps: usize,
    ) {
        let next = nodes.next_deadline().unwrap_or(u64::MAX);
        let is_due_soon = ticks.until(next, now) <= RETURN_TIME;
        let (time, mut left) = match is_due_soon {
            true => (SURPLUS_TIME_IF_BUSY, 1),
            false => (SURPLUS_TIME, steps),
        };
        self.state = self.state.after_turn(nodes.has_surplus(), time, now);
        if is_due_soon && !has_passed(RETURN_INTERVAL, self.last_return, now) {
            return;
        }
        self.last_return = now;
        while left > 0 && self.state == State::Returning {
            left -= 1;
            if !nodes.return_memory() {
                // More may have been freed since the return began.
                self.state = State::Idle.after_turn(nodes.has_surplus(), time, now);
            }
        }
    }

    /// After this time there is something to do, as far as it is known now.
    pub(super) fn wait<S: Owner>(&self, nodes: &mut WheelOf<'_, S>) -> Option<Duration> {
        match self.state {
            State::Returning => Some(RETURN_INTERVAL),
            // Messages may have been taken in since the last look.
            State::Idle | State::Since(_) => nodes.has_surplus().then_some(SURPLUS_TIME),
        }
    }
}

impl State {
    /// The worker has looked whether there is too much memory, and returns it after `time`.
    fn after_turn(self, has_surplus: bool, time: Duration, now: u64) -> Self {
        match self {
            Self::Returning => self,
            _ if !has_surplus => Self::Idle,
            Self::Since(then) if then > now => Self::Since(now), // the clock has gone back
            Self::Since(then) if has_passed(time, then, now) => Self::Returning,
            Self::Since(_) => self,
            Self::Idle => Self::Since(now),
        }
    }
}

/// Whether so much time has passed since `then`. (Or the clock has gone back by so much.)
fn has_passed(time: Duration, then: u64, now: u64) -> bool {
    u128::from(now.abs_diff(then)) >= time.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn memory_is_returned_that_was_not_needed_for_some_time() {
        for (state, has_surplus, time, now, next) in [
            (State::Idle, false, SURPLUS_TIME, 5, State::Idle),
            (State::Idle, true, SURPLUS_TIME, 5, State::Since(5)),
            (State::Since(5), false, SURPLUS_TIME, 6, State::Idle),
            (State::Since(5), true, SURPLUS_TIME, 5, State::Since(5)),
            (
                State::Since(5),
                true,
                SURPLUS_TIME,
                4 + 2 * SECOND,
                State::Since(5),
            ),
            (
                State::Since(5),
                true,
                SURPLUS_TIME,
                5 + 2 * SECOND,
                State::Returning,
            ),
            (
                State::Since(5),
                true,
                SURPLUS_TIME_IF_BUSY,
                4 + 10 * SECOND,
                State::Since(5),
            ),
            (
                State::Since(5),
                true,
                SURPLUS_TIME_IF_BUSY,
                5 + 10 * SECOND,
                State::Returning,
            ),
            // The clock has gone back.
            (
                State::Since(9 * SECOND),
                true,
                SURPLUS_TIME,
                0,
                State::Since(0),
            ),
            (State::Returning, false, SURPLUS_TIME, 6, State::Returning),
        ] {
            assert_eq!(state.after_turn(has_surplus, time, now), next);
        }
    }
}
