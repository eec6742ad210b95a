//! Conversions between times and tick numbers.

use core::time::Duration;

/// The first time that is never reached: 2^62 ns, which is 146 years.
const NEVER: u64 = 1 << 62;

/// Converts times to ticks and back: tick `n` of a wheel begins `n` lengths of a tick after time
/// zero.
///
/// Times count from an instant that the caller chooses, such as the one at which the wheel was
/// made. A deadline is rounded up ([`at_or_after`](Self::at_or_after)) and the current time down
/// ([`at`](Self::at)), so an entry never expires early, and at most a tick late. An entry at
/// exactly the current time therefore expires when the next tick begins, unless one begins now.
///
/// # Examples
///
/// ```
/// use timing_wheels::{HashedWheel, Ticks};
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
///
/// # Never
///
/// A time of 2^62 ns (146 years) or more is never reached: [`at`](Self::at) takes it for the last
/// nanosecond before. So the last tick that is reached is the last one that begins before 2^62 ns.
/// A deadline after its beginning is never reached either, because it is rounded up to a later
/// tick. [`start`](Self::start) returns exactly 2^62 ns for each tick that is never reached.
///
/// # The length of a tick
///
/// Each length from one nanosecond is fine; the wheels step from deadline to deadline, not from
/// tick to tick. But entries that are due in one tick expire together, so with ticks of a
/// nanosecond nearly every entry has a wake-up of its own, and delays have a million times as many
/// ticks as with a millisecond. In a [`HierarchicalWheel`](super::HierarchicalWheel) of 512 slots
/// that is about two levels more, and an entry moves once per level. A
/// [`HashedWheel`](super::HashedWheel) should not have such ticks: each entry is in another of very
/// many rounds, so each visit of a slot skips all other entries of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    nanos: u64,
}

impl Ticks {
    /// Makes the converter for ticks of a length from one nanosecond to 146 years (2^62 ns). A
    /// longer one is 146 years.
    ///
    /// # Panics
    ///
    /// If `tick` is zero.
    #[inline]
    #[must_use]
    pub const fn new(tick: Duration) -> Self {
        assert!(
            !tick.is_zero(),
            "a tick must be at least one nanosecond long"
        );
        Self { nanos: nanos(tick) }
    }

    /// Returns the tick for a deadline: the first one that begins at or after `time`.
    #[inline]
    #[must_use]
    pub const fn at_or_after(self, time: Duration) -> u64 {
        match nanos(time) {
            0 => 0,
            nanos => (nanos - 1) / self.nanos + 1,
        }
    }

    /// Returns the tick for the current time: the last one that begins at or before `time`.
    #[inline]
    #[must_use]
    pub const fn at(self, time: Duration) -> u64 {
        match nanos(time) {
            NEVER => (NEVER - 1) / self.nanos,
            nanos => nanos / self.nanos,
        }
    }

    /// Returns the time at which a tick begins; 146 years (2^62 ns) if it is never reached.
    #[inline]
    #[must_use]
    pub const fn start(self, tick: u64) -> Duration {
        let nanos = tick.saturating_mul(self.nanos);
        Duration::from_nanos(if nanos < NEVER { nanos } else { NEVER })
    }

    /// Returns the length of a tick.
    #[inline]
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Returns whether a tick is ever reached.
    #[inline]
    pub(crate) const fn is_reached(self, tick: u64) -> bool {
        tick.saturating_mul(self.nanos) < NEVER
    }
}

/// Returns `duration` in nanoseconds, at most [`NEVER`].
#[inline]
const fn nanos(duration: Duration) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    const MAX_SECONDS: u64 = NEVER / SECOND;

    // Not `as_nanos`, which has 128 bits.
    let nanos = match duration.as_secs() {
        0..=MAX_SECONDS => duration.as_secs() * SECOND + duration.subsec_nanos() as u64,
        _ => NEVER,
    };
    if nanos < NEVER { nanos } else { NEVER }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn last_nanosecond_before_never_is_reached() {
        const TICKS: Ticks = Ticks::new(Duration::from_nanos(1));

        let (last, never) = (
            Duration::from_nanos(NEVER - 1),
            Duration::from_nanos(1 << 62),
        );
        let tick = TICKS.at_or_after(last);
        assert_eq!((TICKS.at(last), TICKS.start(tick)), (tick, last));
        assert!(TICKS.is_reached(tick) && !TICKS.is_reached(tick + 1));
        for time in [never, never + Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(TICKS.at_or_after(time), tick + 1);
            assert_eq!(TICKS.at(time), tick);
        }
        for tick in [tick + 1, tick + 2, u64::MAX] {
            assert_eq!(TICKS.start(tick), never);
        }
    }

    #[test]
    fn deadline_after_the_beginning_of_the_last_tick_is_never_reached() {
        for nanos in [
            2,
            3,
            1_000_000,
            1_000_000_007,
            NEVER / 2,
            NEVER / 2 + 1,
            NEVER - 1,
            NEVER,
            u64::MAX,
        ] {
            let ticks = Ticks::new(Duration::from_nanos(nanos));
            let last = ticks.at(Duration::MAX);
            let begins = ticks.start(last);
            assert!(begins < Duration::from_nanos(NEVER), "{ticks:?}");
            assert_eq!(ticks.at_or_after(begins), last, "{ticks:?}");
            let after = ticks.at_or_after(begins + Duration::from_nanos(1));
            assert_eq!(after, last + 1, "{ticks:?}");
            assert_eq!(ticks.at_or_after(Duration::MAX), last + 1, "{ticks:?}");
            assert_eq!(ticks.start(last + 1), Duration::from_nanos(NEVER));
            assert!(ticks.is_reached(last) && !ticks.is_reached(last + 1));
        }
        let longest = Ticks::new(Duration::MAX);
        assert_eq!(longest.duration(), Duration::from_nanos(NEVER));
    }

    #[test]
    fn deadline_is_never_reached_early() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let (tick_bits, deadline_bits) = (random.u32(0..40), random.u32(1..62));
            let ticks = Ticks::new(Duration::from_nanos(random.u64(1..=1 << tick_bits)));
            let deadline = Duration::from_nanos(random.u64(..1 << deadline_bits));
            let tick = ticks.at_or_after(deadline);
            let begins = ticks.start(tick);
            assert!(
                begins >= deadline && begins - deadline < ticks.duration(),
                "{deadline:?} with {ticks:?}"
            );
            assert_eq!(ticks.at(begins), tick);
        }
    }

    #[test]
    #[should_panic(expected = "a tick must be at least one nanosecond long")]
    fn tick_of_no_length_is_refused() {
        let _ = Ticks::new(Duration::ZERO);
    }
}
