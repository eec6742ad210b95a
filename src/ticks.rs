//! Conversions between deadlines, in nanoseconds since the timer was built, and tick numbers. All
//! arithmetic saturates or stays in range.
//!
//! # Never early, at most a tick late
//!
//! A deadline is rounded up to a tick, the time down to one. A turn fires what is due at a tick
//! only when the time has reached the tick, so the time is not before the deadline. The deadline is
//! compared in the compare-exchange that ends the timeout. The wheel's tick only says when to
//! compare:
//!
//! | | the wheel's tick | when it fires |
//! |---|---|---|
//! | nothing moved | the deadline's tick | at that tick |
//! | reset to later, in time | an earlier tick | the worker compares the deadline at that tick, and inserts the node again at the new one; the reset needed no message |
//! | reset to earlier | a later tick | a message moves it. If the wheel gives it out before: immediately if it is due, otherwise it is left to the message |
//! | pushed after its tick was processed | the next tick | at the next tick: no earlier one could have known of it |
//! | pushed before, but after as many messages as a turn takes | the tick that the wheel has reached (the message is *carried over*) | in the turn that takes it, in the order of the ticks of that turn; the next turns are due immediately |
//! | reset to later, and back to earlier | as above, by the state | the worker inserts it by the deadline that it has when the message arrives |
//!
//! A node would be late if it were `IN_WHEEL` at a tick later than both its deadline's tick and the
//! next one to be processed. Only a change to an earlier deadline could make that of a node in the
//! wheel. The same compare-exchange makes the node `IN_FLIGHT`, and then a message comes.
//!
//! Timeouts that one thread schedules for one tick fire in that order, because a lane, a slot and
//! the ready list each keep it. It holds within the messages of one turn. A cancelled timeout
//! leaves a gap, and a timeout that was reset has no promised place.

use std::num::NonZeroU64;
use std::time::Duration;

/// The deadline that is never reached: the greatest number of 62 bits, which is 146 years in
/// nanoseconds.
pub(crate) const DEADLINE_NEVER: u64 = (1 << 62) - 1;

/// The sentinel deadline of a node whose periodic task runs at the moment, or whose task is asked
/// whether it postpones itself. No timeout has this deadline.
pub(crate) const DEADLINE_RUNNING: u64 = DEADLINE_NEVER - 1;

/// Returns `nanos` as a deadline; `DEADLINE_NEVER` if it is too large for one.
#[inline]
pub(crate) fn or_never(nanos: u64) -> u64 {
    if nanos < DEADLINE_RUNNING {
        nanos
    } else {
        DEADLINE_NEVER
    }
}

/// Returns `duration` in nanoseconds; `DEADLINE_NEVER` if it is too long for a deadline.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    or_never(seconds.saturating_add(u64::from(duration.subsec_nanos())))
}

/// Returns the deadline `delay` after `now`; `DEADLINE_NEVER` if it is too late for a deadline.
#[inline]
pub(crate) fn deadline(now: u64, delay: Duration) -> u64 {
    or_never(now.saturating_add(nanos(delay)))
}

/// The ticks of a timer: tick `n` begins `n` lengths of a tick after the timer was built. The
/// length is from one nanosecond to that of the longest deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    nanos: NonZeroU64,
}

impl Ticks {
    /// Makes the ticks of this length, which is not zero.
    #[inline]
    pub(crate) fn new(tick: Duration) -> Self {
        let nanos = NonZeroU64::new(nanos(tick)).expect("a tick is not zero");
        Self { nanos }
    }

    /// Returns the current tick: the last one that begins at or before `now`.
    pub(crate) fn reached(self, now: u64) -> u64 {
        now / self.nanos
    }

    /// Returns the time at which the current tick began.
    pub(crate) fn begun(self, now: u64) -> u64 {
        self.reached(now) * self.nanos()
    }

    /// Returns the first multiple of `slack`, in whole ticks, at or after `deadline`.
    pub(crate) fn align(self, deadline: u64, slack: Duration) -> u64 {
        match self.begun(nanos(slack)) {
            0 => deadline,
            slack => or_never(deadline.div_ceil(slack) * slack),
        }
    }

    /// Returns the tick at which a deadline expires: the first one that begins at or after
    /// `deadline`. A timeout is therefore never early, and at most one tick late.
    pub(crate) fn of(self, deadline: u64) -> u64 {
        // `div_ceil` would ask whether the length is zero.
        deadline / self.nanos + u64::from(deadline % self.nanos > 0)
    }

    /// Returns the first deadline that expires at `tick`, which is not zero. Each earlier deadline
    /// expires before `tick`, and each later one at `tick` or after it.
    pub(crate) fn first_deadline_of(self, tick: u64) -> u64 {
        self.last_deadline_of(tick - 1).saturating_add(1)
    }

    /// Returns the last deadline that expires at `tick` or before it.
    pub(crate) fn last_deadline_of(self, tick: u64) -> u64 {
        tick.saturating_mul(self.nanos())
    }

    /// Returns the time from `now` to the beginning of `tick`. It is zero if `tick` has begun, and
    /// 146 years if `tick` is never reached.
    pub(crate) fn until(self, tick: u64, now: u64) -> Duration {
        match self.last_deadline_of(tick) {
            DEADLINE_NEVER.. => Duration::from_nanos(DEADLINE_NEVER),
            begins => Duration::from_nanos(begins.saturating_sub(now)),
        }
    }

    /// Returns the time from the beginning of `tick` to `now`, in nanoseconds; zero if `tick` has
    /// not begun.
    pub(crate) fn since(self, tick: u64, now: u64) -> u64 {
        now.saturating_sub(self.last_deadline_of(tick))
    }

    /// Returns the length of a tick in nanoseconds.
    pub(crate) fn nanos(self) -> u64 {
        self.nanos.get()
    }

    /// Returns the length of a tick.
    pub(crate) fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_is_rounded_up_to_the_next_tick() {
        let ticks = Ticks::new(Duration::from_nanos(10));
        assert_eq!(
            [0, 1, 9, 10, 11].map(|deadline| ticks.of(deadline)),
            [0, 1, 1, 1, 2]
        );
        assert_eq!(
            [0, 1, 9, 10, 11].map(|now| ticks.reached(now)),
            [0, 0, 0, 1, 1]
        );
        assert_eq!(ticks.until(2, 13), Duration::from_nanos(7));
        assert_eq!(ticks.until(2, 21), Duration::ZERO);
        assert_eq!([19, 20, 23].map(|now| ticks.since(2, now)), [0, 0, 3]);
        // The timer's time stops at DEADLINE_NEVER - 1. The rest until "never" must not be short
        // there: the worker would wake up again and again.
        assert_eq!(
            ticks.until(ticks.of(DEADLINE_NEVER), DEADLINE_NEVER - 1),
            Duration::from_nanos(DEADLINE_NEVER)
        );
    }

    #[test]
    fn values_out_of_range_are_never() {
        assert_eq!(nanos(Duration::MAX), DEADLINE_NEVER);
        assert_eq!(nanos(Duration::from_nanos(DEADLINE_NEVER)), DEADLINE_NEVER);
        assert_eq!(deadline(0, Duration::MAX), DEADLINE_NEVER);
        assert_eq!(
            deadline(DEADLINE_NEVER - 1, Duration::from_nanos(1)),
            DEADLINE_NEVER
        );
        assert_eq!(
            deadline(DEADLINE_RUNNING - 2, Duration::from_nanos(1)),
            DEADLINE_RUNNING - 1
        );
        assert_eq!(
            deadline(DEADLINE_RUNNING - 1, Duration::from_nanos(1)),
            DEADLINE_NEVER
        );
    }

    #[test]
    fn never_is_after_the_last_reachable_tick() {
        for tick in [
            1,
            2,
            3,
            1_000,
            1_000_000,
            DEADLINE_NEVER / 2,
            DEADLINE_NEVER - 1,
            DEADLINE_NEVER,
        ] {
            let ticks = Ticks::new(Duration::from_nanos(tick));
            assert!(
                ticks.of(DEADLINE_NEVER) > ticks.reached(DEADLINE_NEVER - 1),
                "tick of {tick} ns"
            );
        }
    }

    #[test]
    fn deadline_is_never_reached_early() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let (tick_bits, deadline_bits) = (random.u32(0..40), random.u32(1..62));
            let ticks = Ticks::new(Duration::from_nanos(random.u64(1..=1 << tick_bits)));
            let deadline = random.u64(..1 << deadline_bits);
            let tick = ticks.of(deadline);
            let begins = ticks.until(tick, 0).as_nanos() as u64;
            assert!(
                begins >= deadline && begins - deadline < ticks.nanos(),
                "{deadline} with {ticks:?}"
            );
            assert_eq!(ticks.reached(begins), tick);
            if tick > 0 {
                let first = ticks.first_deadline_of(tick);
                assert_eq!((ticks.of(first - 1), ticks.of(first)), (tick - 1, tick));
                assert_eq!(ticks.last_deadline_of(tick - 1), first - 1);
            }
        }
    }
}
