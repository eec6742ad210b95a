//! Deadlines in nanoseconds, ticks, and the way from one to the other. Nothing here can overflow.

use std::time::Duration;

/// The deadline that never comes: the greatest of 62 bits, which are 146 years of nanoseconds.
pub(crate) const DEADLINE_NEVER: u64 = (1 << 62) - 1;

/// Nobody's deadline: a node says so whose task runs, and will run again.
pub(crate) const DEADLINE_RUNNING: u64 = DEADLINE_NEVER - 1;

/// The deadline that so many nanoseconds are, or `DEADLINE_NEVER` if they are too many.
#[inline]
pub(crate) fn or_never(nanos: u64) -> u64 {
    if nanos < DEADLINE_RUNNING { nanos } else { DEADLINE_NEVER }
}

/// What `duration` is in nanoseconds, or `DEADLINE_NEVER` if that is too much.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    or_never(seconds.saturating_add(u64::from(duration.subsec_nanos())))
}

/// The deadline that is `delay` after `now`.
#[inline]
pub(crate) fn deadline(now: u64, delay: Duration) -> u64 {
    or_never(now.saturating_add(nanos(delay)))
}

/// The length of a tick. Tick `n` begins `n` of them after the timer was built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks {
    nanos: u64,
}

impl Ticks {
    /// `tick` is at least a nanosecond.
    pub(crate) fn new(tick: Duration) -> Self {
        Self { nanos: nanos(tick) }
    }

    /// The tick whose beginning is the last one not after `now`.
    pub(crate) fn reached(self, now: u64) -> u64 {
        now / self.nanos
    }

    /// When that tick began.
    pub(crate) fn begun(self, now: u64) -> u64 {
        self.reached(now) * self.nanos
    }

    /// The first tick that begins at or after `deadline`: never early, at most one tick late.
    pub(crate) fn of(self, deadline: u64) -> u64 {
        deadline.div_ceil(self.nanos)
    }

    /// How long it is from `now` to the beginning of `tick`; zero once it has begun, and 146 years if it never does.
    pub(crate) fn until(self, tick: u64, now: u64) -> Duration {
        match tick.saturating_mul(self.nanos) {
            DEADLINE_NEVER.. => Duration::from_nanos(DEADLINE_NEVER),
            begins => Duration::from_nanos(begins.saturating_sub(now)),
        }
    }

    /// How long ago, at `now`, `tick` began, in nanoseconds.
    pub(crate) fn since(self, tick: u64, now: u64) -> u64 {
        now.saturating_sub(tick.saturating_mul(self.nanos))
    }

    /// In nanoseconds.
    pub(crate) fn nanos(self) -> u64 {
        self.nanos
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_to_the_next_boundary_and_no_further() {
        let ticks = Ticks::new(Duration::from_nanos(10));
        assert_eq!([0, 1, 9, 10, 11].map(|deadline| ticks.of(deadline)), [0, 1, 1, 1, 2]);
        assert_eq!([0, 1, 9, 10, 11].map(|now| ticks.reached(now)), [0, 0, 0, 1, 1]);
        assert_eq!(ticks.until(2, 13), Duration::from_nanos(7));
        assert_eq!(ticks.until(2, 21), Duration::ZERO);
        assert_eq!([19, 20, 23].map(|now| ticks.since(2, now)), [0, 0, 3]);
        // Time stands still there: whoever slept until then would never sleep again.
        assert_eq!(
            ticks.until(ticks.of(DEADLINE_NEVER), DEADLINE_NEVER - 1),
            Duration::from_nanos(DEADLINE_NEVER)
        );
    }

    #[test]
    fn what_cannot_be_said_is_never() {
        assert_eq!(nanos(Duration::MAX), DEADLINE_NEVER);
        assert_eq!(nanos(Duration::from_nanos(DEADLINE_NEVER)), DEADLINE_NEVER);
        assert_eq!(deadline(0, Duration::MAX), DEADLINE_NEVER);
        assert_eq!(deadline(DEADLINE_NEVER - 1, Duration::from_nanos(1)), DEADLINE_NEVER);
        assert_eq!(deadline(DEADLINE_RUNNING - 2, Duration::from_nanos(1)), DEADLINE_RUNNING - 1);
        assert_eq!(deadline(DEADLINE_RUNNING - 1, Duration::from_nanos(1)), DEADLINE_NEVER);
    }

    #[test]
    fn never_is_after_every_time_that_can_be_reached() {
        for tick in [1, 2, 3, 1_000, 1_000_000, DEADLINE_NEVER / 2, DEADLINE_NEVER - 1, DEADLINE_NEVER] {
            let ticks = Ticks::new(Duration::from_nanos(tick));
            assert!(ticks.of(DEADLINE_NEVER) > ticks.reached(DEADLINE_NEVER - 1), "tick of {tick} ns");
        }
    }

    #[test]
    fn a_deadline_is_never_reached_early() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let (tick_bits, deadline_bits) = (random.u32(0..40), random.u32(1..62));
            let ticks = Ticks::new(Duration::from_nanos(random.u64(1..=1 << tick_bits)));
            let deadline = random.u64(..1 << deadline_bits);
            let tick = ticks.of(deadline);
            let begins = ticks.until(tick, 0).as_nanos() as u64;
            assert!(begins >= deadline && begins - deadline < ticks.nanos, "{deadline} with {ticks:?}");
            assert_eq!(ticks.reached(begins), tick);
        }
    }
}
