//! When something that repeats is due: arithmetic alone, no clock and no timer.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::error::NewTimeoutError;
use crate::ticks::{self, Ticks};

/// What becomes of runs at a fixed rate that were missed, because the run before took longer than the period or the
/// machine stood still: when a run ends and the next one should have begun already.
///
/// Of an interval, when a tick is given out and the time of the next one has come already. So whoever comes too late for one tick
/// gets that at once, and only those behind it are made up for or left out, as with tokio's `MissedTickBehavior`. (But tokio's
/// `Delay` counts anew after any tick that was late.)
///
/// A run has been missed once the tick of the timer has begun at which it would have fired. Until then all three keep to the
/// multiples of the period: to be late by less than that is to miss nothing. (Where several periods go into a tick, `Delay` and
/// `Skip` run once a tick.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MissedTick {
    /// They are made up for, one after the other without a pause, until all have run. What
    /// `ScheduledExecutorService.scheduleAtFixedRate` does, and the default. (A task that always takes longer than its period
    /// never gets there: on the worker all other timeouts fall behind with it. An interval is ready without a pause.)
    #[default]
    Burst,
    /// They are left out, and the period is counted anew from now.
    Delay,
    /// They are left out; the next run is at the next multiple of the period.
    Skip,
}

/// When something that repeats is due: for
/// [`schedule_periodic`](crate::HashedWheelTimer::schedule_periodic), of which
/// [`schedule_at_fixed_rate`](crate::HashedWheelTimer::schedule_at_fixed_rate) and
/// [`schedule_with_fixed_delay`](crate::HashedWheelTimer::schedule_with_fixed_delay) are the two usual cases.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{MissedTick, Schedule};
/// use std::time::Duration;
///
/// // A heartbeat: at once, then every ten seconds, never two in a row to make up for a stall; each up to a second later,
/// // so that not all nodes send theirs in the same moment.
/// let heartbeat = Schedule::at_fixed_rate(Duration::from_secs(10))
///     .initial_delay(Duration::ZERO)
///     .missed_tick(MissedTick::Skip)
///     .jitter(Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Schedule {
    period: Duration,
    initial_delay: Duration,
    /// `None`: the period is a pause, counted from the end of a run.
    missed_tick: Option<MissedTick>,
    jitter: Duration,
}

impl Schedule {
    /// A run is due each `period` after the one before was due, however long the runs take and however late they are: there
    /// is no drift. The first one a period from now.
    pub fn at_fixed_rate(period: Duration) -> Self {
        Self {
            period,
            initial_delay: period,
            missed_tick: Some(MissedTick::default()),
            jitter: Duration::ZERO,
        }
    }

    /// A run is due `delay` after the one before has ended, so none can be missed. The first one `delay` from now.
    pub fn with_fixed_delay(delay: Duration) -> Self {
        Self { missed_tick: None, ..Self::at_fixed_rate(delay) }
    }

    /// How long it is until the first run. Zero is the next tick of the timer.
    pub fn initial_delay(self, delay: Duration) -> Self {
        Self { initial_delay: delay, ..self }
    }

    /// What becomes of runs that were missed. Nothing is missed with a fixed delay, and this changes nothing there.
    pub fn missed_tick(self, policy: MissedTick) -> Self {
        Self { missed_tick: self.missed_tick.map(|_| policy), ..self }
    }

    /// Makes each run later by a time between zero and `most`, drawn each time anew: for many machines that do the same.
    /// The schedule itself stays where it is, so jitter does not add up. Longer than the period it can make a run miss the
    /// next one.
    pub fn jitter(self, most: Duration) -> Self {
        Self { jitter: most, ..self }
    }

    /// Counts from `now` on.
    pub(crate) fn begin(self, now: u64) -> Result<Recurrence, NewTimeoutError> {
        if self.period.is_zero() {
            return Err(NewTimeoutError::ZeroPeriod);
        }
        Ok(Recurrence {
            due: ticks::deadline(now, self.initial_delay),
            period: ticks::nanos(self.period),
            missed_tick: self.missed_tick,
            jitter: ticks::nanos(self.jitter),
            random: RandomState::new(),
        })
    }
}

/// A [`Schedule`] that has begun.
#[derive(Debug)]
pub(crate) struct Recurrence {
    /// When the next run is due, but for jitter.
    due: u64,
    period: u64,
    missed_tick: Option<MissedTick>,
    jitter: u64,
    random: RandomState,
}

impl Recurrence {
    /// When the next run is due: the same whenever it is asked for.
    pub(crate) fn deadline(&self) -> u64 {
        match self.jitter {
            0 => self.due,
            jitter => ticks::or_never(self.due + self.random.hash_one(self.due) % (jitter + 1)),
        }
    }

    /// Whether the next run is counted from the end of the one before.
    #[cfg(feature = "async")]
    pub(crate) fn is_fixed_delay(&self) -> bool {
        self.missed_tick.is_none()
    }

    /// The run that was due is over at `now`, on a timer with such ticks. Returns when the next one is.
    pub(crate) fn advance(&mut self, now: u64, ticks: Ticks) -> u64 {
        let next = self.due + self.period;
        let begun = ticks.begun(now);
        let next = match self.missed_tick {
            Some(MissedTick::Burst) => next,
            Some(_) if next > begun => next,
            Some(MissedTick::Skip) => next + ((begun - next) / self.period + 1) * self.period,
            // (Never before it was due: a clock that has stepped back would make it due at once for ever.)
            Some(MissedTick::Delay) | None => now.max(self.due) + self.period,
        };
        self.due = ticks::or_never(next);
        self.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticks::DEADLINE_NEVER;

    const SECOND: u64 = 1_000_000_000;

    fn fine() -> Ticks {
        Ticks::new(Duration::from_nanos(1))
    }

    /// Seconds at which runs are due that end at `ends`, the first due at 10.
    fn dues(schedule: Schedule, ends: &[u64]) -> Vec<u64> {
        let mut recurrence = schedule.begin(0).unwrap();
        let mut dues = vec![recurrence.deadline()];
        dues.extend(ends.iter().map(|end| recurrence.advance(end * SECOND, fine())));
        dues.into_iter().map(|due| due / SECOND).collect()
    }

    #[test]
    fn what_is_not_missed_keeps_to_the_multiples() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10));
        for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
            assert_eq!(dues(rate.missed_tick(policy), &[10, 29, 33]), [10, 20, 30, 40]);
        }
    }

    #[test]
    fn what_is_missed_is_made_up_for_or_left_out() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10));
        assert_eq!(dues(rate, &[45, 45, 46]), [10, 20, 30, 40]);
        assert_eq!(dues(rate.missed_tick(MissedTick::Delay), &[45, 56]), [10, 55, 65]);
        assert_eq!(dues(rate.missed_tick(MissedTick::Skip), &[45, 51, 60]), [10, 50, 60, 70]);
        // The one that is due at this very moment has been missed too.
        assert_eq!(dues(rate.missed_tick(MissedTick::Delay), &[20]), [10, 30]);
        assert_eq!(dues(rate.missed_tick(MissedTick::Skip), &[20]), [10, 30]);
    }

    #[test]
    fn nothing_is_missed_before_its_tick() {
        let coarse = Ticks::new(Duration::from_secs(10));
        for policy in [MissedTick::Delay, MissedTick::Skip] {
            let rate = Schedule::at_fixed_rate(Duration::from_secs(10)).missed_tick(policy);
            let mut recurrence = rate.begin(5 * SECOND).unwrap();
            // Due at 15, 25, ..., each run at the tick after that, and over late in it.
            assert_eq!(
                [29, 39, 49].map(|end| recurrence.advance(end * SECOND, coarse) / SECOND),
                [25, 35, 45]
            );
            let next = if policy == MissedTick::Skip { 65 } else { 70 };
            assert_eq!(recurrence.advance(60 * SECOND, coarse) / SECOND, next);
        }
    }

    #[test]
    fn a_fixed_delay_is_counted_from_the_end() {
        let delay = Schedule::with_fixed_delay(Duration::from_secs(10));
        assert_eq!(dues(delay, &[12, 100]), [10, 22, 110]);
        assert_eq!(dues(delay.missed_tick(MissedTick::Burst), &[12, 100]), [10, 22, 110]);
    }

    #[test]
    fn a_clock_that_steps_back_makes_nothing_due_at_once() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10));
        for schedule in [Schedule::with_fixed_delay(Duration::from_secs(10)), rate] {
            for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
                assert_eq!(dues(schedule.missed_tick(policy), &[3, 0, 5]), [10, 20, 30, 40]);
            }
        }
    }

    #[test]
    fn jitter_is_within_bounds_and_does_not_add_up() {
        let rate = Schedule::at_fixed_rate(Duration::from_secs(10)).jitter(Duration::from_secs(4));
        let mut recurrence = rate.begin(0).unwrap();
        let mut seen = [false; 4];
        for run in 1..=1_000 {
            let deadline = recurrence.deadline();
            assert_eq!(deadline, recurrence.deadline());
            let late = deadline - run * 10 * SECOND;
            assert!(late <= 4 * SECOND);
            seen[(late / SECOND).min(3) as usize] = true;
            recurrence.advance(deadline, fine());
        }
        assert_eq!(seen, [true; 4]);
    }

    #[test]
    fn nothing_overflows() {
        for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
            let rate = Schedule::at_fixed_rate(Duration::MAX).missed_tick(policy).jitter(Duration::MAX);
            let mut recurrence = rate.begin(DEADLINE_NEVER - 1).unwrap();
            assert_eq!(recurrence.deadline(), DEADLINE_NEVER);
            assert_eq!(recurrence.advance(DEADLINE_NEVER - 1, fine()), DEADLINE_NEVER);
            let mut recurrence = rate.initial_delay(Duration::ZERO).begin(DEADLINE_NEVER - 1).unwrap();
            assert_eq!(recurrence.advance(DEADLINE_NEVER - 1, fine()), DEADLINE_NEVER);
            let often = Schedule::at_fixed_rate(Duration::from_nanos(1)).missed_tick(policy);
            let mut recurrence = often.begin(0).unwrap();
            assert!(recurrence.advance(DEADLINE_NEVER - 1, fine()) <= DEADLINE_NEVER);
        }
    }

    #[test]
    fn a_period_of_zero_is_refused() {
        for schedule in [Schedule::at_fixed_rate, Schedule::with_fixed_delay] {
            assert!(matches!(schedule(Duration::ZERO).begin(0), Err(NewTimeoutError::ZeroPeriod)));
        }
    }
}
