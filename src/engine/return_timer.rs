//! When the worker returns memory to the operating system.

use std::time::Duration;

/// Memory is returned if it was not needed for this time: a load that changes faster keeps it.
pub(super) const SURPLUS_TIME: Duration = Duration::from_secs(2);

/// Memory is returned after this many turns without need of it, even if the clock stands still.
const SURPLUS_TURNS: u32 = 1_000;

/// While there is more memory to return, the worker continues after this time.
pub(super) const RETURN_INTERVAL: Duration = Duration::from_millis(5);

/// Memory is returned only if nothing falls due for this time, which is several times that of a
/// step.
pub(super) const RETURN_TIME: Duration = Duration::from_micros(500);

/// The same if something falls due within [`RETURN_TIME`] at all times. Then memory is returned
/// nevertheless: one step per [`RETURN_INTERVAL`], by which timeouts are late.
pub(super) const SURPLUS_TIME_IF_BUSY: Duration = Duration::from_secs(10);

/// The same if the search for it [is not paid for](crate::node::WheelOf::is_search_paid): then time
/// pays.
pub(super) const SURPLUS_TIME_IF_UNPAID: Duration = Duration::from_secs(60);

/// Since when there is memory to return.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ReturnTimer {
    /// There was none in the last turn.
    Idle,
    /// There was too much in each turn since then.
    Since {
        then: u64,
        turns: u32,
    },
    Returning,
}

impl ReturnTimer {
    /// The worker has looked whether there is too much memory, and `time` is that after which it is
    /// returned. (If the worker is busy, the clock does not stand still.)
    pub(super) fn after_turn(self, time: Option<Duration>, now: u64) -> Self {
        match (self, time) {
            (Self::Returning, _) => self,
            (_, None) => Self::Idle,
            (Self::Since { then, turns }, Some(time)) if then <= now => {
                let is_over = has_passed(time, then, now) || turns >= SURPLUS_TURNS;
                let turns = turns + u32::from(time == SURPLUS_TIME);
                if is_over {
                    Self::Returning
                } else {
                    Self::Since { then, turns }
                }
            }
            // (The clock may have gone back.)
            (Self::Idle | Self::Since { .. }, Some(_)) => Self::Since {
                then: now,
                turns: 0,
            },
        }
    }
}

/// Whether so much time has passed since `then`. (Or the clock has gone back by so much.)
pub(super) fn has_passed(time: Duration, then: u64, now: u64) -> bool {
    u128::from(now.abs_diff(then)) >= time.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn since(then: u64, turns: u32) -> ReturnTimer {
        ReturnTimer::Since { then, turns }
    }

    fn assert_next(timer: ReturnTimer, time: Option<Duration>, now: u64, next: ReturnTimer) {
        assert!(timer.after_turn(time, now) == next);
    }

    #[test]
    fn memory_is_returned_that_was_not_needed_for_some_time_or_some_turns() {
        assert_next(ReturnTimer::Idle, None, 5, ReturnTimer::Idle);
        assert_next(ReturnTimer::Idle, Some(SURPLUS_TIME), 5, since(5, 0));
        assert_next(since(5, 3), None, 6, ReturnTimer::Idle);
        assert_next(since(5, 3), Some(SURPLUS_TIME), 5, since(5, 4));
        assert_next(
            since(5, 3),
            Some(SURPLUS_TIME),
            5 + 2 * SECOND - 1,
            since(5, 4),
        );
        assert_next(
            since(5, 3),
            Some(SURPLUS_TIME),
            5 + 2 * SECOND,
            ReturnTimer::Returning,
        );
        assert_next(
            since(5, SURPLUS_TURNS - 1),
            Some(SURPLUS_TIME),
            6,
            since(5, SURPLUS_TURNS),
        );
        assert_next(
            since(5, SURPLUS_TURNS),
            Some(SURPLUS_TIME),
            6,
            ReturnTimer::Returning,
        );
        // The clock has gone back.
        assert_next(since(9 * SECOND, 3), Some(SURPLUS_TIME), 0, since(0, 0));
        assert_next(ReturnTimer::Returning, None, 6, ReturnTimer::Returning);
    }

    #[test]
    fn a_busy_worker_or_an_unpaid_search_returns_memory_later_and_counts_no_turns() {
        for (time, seconds) in [(SURPLUS_TIME_IF_BUSY, 10), (SURPLUS_TIME_IF_UNPAID, 60)] {
            let over = 5 + seconds * SECOND;
            assert_next(since(5, 3), Some(time), 5 + 2 * SECOND, since(5, 3));
            assert_next(since(5, 3), Some(time), over - 1, since(5, 3));
            assert_next(since(5, 3), Some(time), over, ReturnTimer::Returning);
        }
    }
}
