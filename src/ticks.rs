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
//! | pushed before, but after as many messages as a turn takes | the tick that the wheel has reached (the message is *carried over*) | in the next turn, which is due immediately: in the order of ticks, before anything later |
//! | reset to later, and back to earlier | as above, by the state | the worker inserts it by the deadline that it has when the message arrives |
//!
//! A node would be late if it were `IN_WHEEL` at a tick later than both its deadline's tick and the
//! next one to be processed. Only a change to an earlier deadline could make that of a node in the
//! wheel. The same compare-exchange makes the node `IN_FLIGHT`, and then a message comes.
//!
//! Timeouts that one thread schedules for one tick fire in that order, because a lane, a slot and
//! the ready list each keep it. It holds within the messages of one turn. A cancelled timeout
//! leaves a gap, and a timeout that was reset has no promised place.

use core::time::Duration;

/// The deadline that is never reached: the greatest number of 62 bits, which is 146 years in
/// nanoseconds.
pub(crate) const DEADLINE_NEVER: u64 = (1 << 62) - 1;

/// The sentinel deadline of a node whose periodic task runs at the moment. No timeout has this
/// deadline.
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

/// Converts times to ticks and back: tick `n` of a wheel begins `n` lengths of a tick after time
/// zero.
///
/// Times count from an instant that the caller chooses, such as the one at which the wheel was
/// made. A deadline is rounded up ([`at_or_after`](Self::at_or_after)) and the current time down
/// ([`at`](Self::at)), so an entry never expires early, and at most a tick late. An entry at
/// exactly the current time therefore expires when the next tick begins, unless one begins now.
///
/// A time of 146 years (2^62 ns) or more is never reached.
///
/// # The length of a tick
///
/// Each length from one nanosecond is fine; the wheels step from deadline to deadline, not from
/// tick to tick. But entries that are due in one tick expire together, so with ticks of a
/// nanosecond nearly every entry has a wake-up of its own, and delays have a million times as many
/// ticks as with a millisecond. In a [`HierarchicalWheel`](crate::wheel::HierarchicalWheel) of 512
/// slots that is about two levels more, and an entry moves once per level. A
/// [`HashedWheel`](crate::wheel::HashedWheel) should not have such ticks: each entry is in another
/// of very many rounds, so each visit of a slot skips all other entries of the slot.
///
/// # Examples
///
/// ```
/// use hashed_wheel::wheel::{HashedWheel, Ticks};
/// use std::time::Duration;
///
/// let ticks = Ticks::new(Duration::from_millis(10));
/// let mut wheel = HashedWheel::new(512);
/// let now = Duration::from_millis(1_234);
/// wheel.insert(ticks.at_or_after(now + Duration::from_millis(100)), "no answer");
///
/// let next = wheel.next_deadline().unwrap();
/// assert_eq!(ticks.start(next), Duration::from_millis(1_340)); // sleep until then
/// assert!(wheel.pop_expired(ticks.at(Duration::from_millis(1_339))).is_none());
/// assert!(wheel.pop_expired(ticks.at(Duration::from_millis(1_340))).is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    nanos: u64,
}

impl Ticks {
    /// Makes the converter for ticks of a length from one nanosecond to 146 years. (A longer one is
    /// 146 years.)
    ///
    /// # Panics
    ///
    /// If `tick` is zero.
    #[inline]
    #[must_use]
    pub fn new(tick: Duration) -> Self {
        assert!(
            !tick.is_zero(),
            "a tick must be at least one nanosecond long"
        );
        Self { nanos: nanos(tick) }
    }

    /// Returns the tick for a deadline: the first one that begins at or after `time`.
    #[inline]
    #[must_use]
    pub fn at_or_after(self, time: Duration) -> u64 {
        self.of(nanos(time))
    }

    /// Returns the tick for the current time: the last one that begins at or before `time`.
    #[inline]
    #[must_use]
    pub fn at(self, time: Duration) -> u64 {
        self.reached(nanos(time).min(DEADLINE_NEVER - 1))
    }

    /// Returns the time at which a tick begins; 146 years (2^62 ns) if it is never reached.
    #[inline]
    #[must_use]
    pub fn start(self, tick: u64) -> Duration {
        self.until(tick, 0)
    }

    /// Returns the current tick: the last one that begins at or before `now`.
    pub(crate) fn reached(self, now: u64) -> u64 {
        now / self.nanos
    }

    /// Returns the time at which the current tick began.
    pub(crate) fn begun(self, now: u64) -> u64 {
        self.reached(now) * self.nanos
    }

    /// Returns the tick at which a deadline expires: the first one that begins at or after
    /// `deadline`. A timeout is therefore never early, and at most one tick late.
    pub(crate) fn of(self, deadline: u64) -> u64 {
        deadline.div_ceil(self.nanos)
    }

    /// Returns the first deadline that expires at `tick`, which is not zero. Each earlier deadline
    /// expires before `tick`, and each later one at `tick` or after it.
    pub(crate) fn first_deadline_of(self, tick: u64) -> u64 {
        (tick - 1).saturating_mul(self.nanos).saturating_add(1)
    }

    /// Returns the last deadline that expires at `tick` or before it.
    pub(crate) fn last_deadline_of(self, tick: u64) -> u64 {
        tick.saturating_mul(self.nanos)
    }

    /// Returns the time from `now` to the beginning of `tick`. It is zero if `tick` has begun, and
    /// 146 years if `tick` is never reached.
    pub(crate) fn until(self, tick: u64, now: u64) -> Duration {
        match tick.saturating_mul(self.nanos) {
            DEADLINE_NEVER.. => Duration::from_nanos(DEADLINE_NEVER),
            begins => Duration::from_nanos(begins.saturating_sub(now)),
        }
    }

    /// Returns the time from the beginning of `tick` to `now`, in nanoseconds; zero if `tick` has
    /// not begun.
    pub(crate) fn since(self, tick: u64, now: u64) -> u64 {
        now.saturating_sub(tick.saturating_mul(self.nanos))
    }

    /// Returns the length of a tick in nanoseconds.
    pub(crate) fn nanos(self) -> u64 {
        self.nanos
    }

    /// Returns the length of a tick.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos)
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
                begins >= deadline && begins - deadline < ticks.nanos,
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

    #[test]
    fn time_is_rounded_up_for_deadlines_and_down_for_now() {
        let ticks = Ticks::new(Duration::from_micros(10));
        let micros = [0, 1, 9, 10, 11].map(Duration::from_micros);
        assert_eq!(micros.map(|time| ticks.at_or_after(time)), [0, 1, 1, 1, 2]);
        assert_eq!(micros.map(|time| ticks.at(time)), [0, 0, 0, 1, 1]);
        assert_eq!(
            (ticks.start(2), ticks.duration()),
            (Duration::from_micros(20), Duration::from_micros(10))
        );
        // An entry that is due exactly now stays until a tick begins.
        assert!(ticks.at_or_after(micros[1]) > ticks.at(micros[1]));
        assert_eq!(ticks.at_or_after(micros[3]), ticks.at(micros[3]));
    }

    #[test]
    fn time_of_146_years_is_never_reached() {
        for tick in [
            Duration::from_nanos(1),
            Duration::from_millis(1),
            Duration::from_secs(1 << 40),
            Duration::MAX,
        ] {
            let ticks = Ticks::new(tick);
            let never = ticks.at_or_after(Duration::MAX);
            assert!(never > ticks.at(Duration::MAX), "{tick:?}");
            assert_eq!(
                ticks.start(never),
                Duration::from_nanos(DEADLINE_NEVER),
                "{tick:?}"
            );
            assert_eq!(
                ticks.start(u64::MAX),
                Duration::from_nanos(DEADLINE_NEVER),
                "{tick:?}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "a tick must be at least one nanosecond long")]
    fn tick_of_no_length_is_refused() {
        let _ = Ticks::new(Duration::ZERO);
    }
}
