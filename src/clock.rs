//! Where the time comes from.

use std::fmt;
use std::time::{Duration, Instant};

use crate::platform::{Counter, HAS_COUNTER};
use crate::sync::unmodelled::AtomicU64;
use crate::sync::{Arc, Ordering};
use crate::ticks::{self, DEADLINE_RUNNING};

/// A source of monotonic time.
///
/// A timer asks once for each [`new_timeout`](crate::HashedWheelTimer::new_timeout),
/// [`new_timeout_at`](crate::HashedWheelTimer::new_timeout_at) and [`reset`](crate::Timeout::reset), on the caller's thread, for
/// each [`remaining`](crate::Timeout::remaining), [`occupancy`](crate::HashedWheelTimer::occupancy) and `Debug` of a timeout,
/// after each run of a periodic task, and once or twice a turn; of a future, when it is made or reset, and once or twice when
/// it is first polled. It never asks with anything locked that a caller could wait for, but while it runs tasks: there it
/// asks for every 64th (and with a [threshold](crate::Builder::slow_task_threshold), twice for each), and who may not stop
/// the timer in a task may not in the clock either.
///
/// The worker thread sleeps in real time. A timer whose clock does not run at the pace of real time should be built with
/// [`Builder::build_driven`](crate::Builder::build_driven), and turned by whoever moves the clock.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{Clock, HashedWheelTimer};
/// use std::time::{Duration, Instant};
///
/// /// Everything takes half as long.
/// struct Hurry(Instant);
///
/// impl Clock for Hurry {
///     fn now(&self) -> Duration {
///         self.0.elapsed() * 2
///     }
/// }
///
/// let (timer, driver) = HashedWheelTimer::builder().clock(Hurry(Instant::now())).build_driven()?;
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
pub trait Clock: Send + Sync + 'static {
    /// The time since any fixed origin. Never less than what an earlier call returned, on whatever thread. (A timer
    /// takes a step back for standing still.)
    ///
    /// A timer counts from the moment it was built, up to 146 years; there its time stands still.
    ///
    /// Must not panic: a panic here comes out of whatever method asked for the time; on the worker thread it is reported
    /// and stops the timer. (Where a turn asks only to count how late it is, the panic is reported and that is all.)
    fn now(&self) -> Duration;
}

/// So that whoever gives a timer their clock can keep it.
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Duration {
        (**self).now()
    }
}

/// The clock of a timer, set to zero when it is built.
pub(crate) enum Time {
    Monotonic(Monotonic),
    Given { clock: Box<dyn Clock>, origin: Duration },
}

impl Time {
    /// `None` is the operating system's clock.
    pub(crate) fn of(clock: Option<Box<dyn Clock>>) -> Self {
        match clock {
            None => Self::Monotonic(Monotonic::new()),
            Some(clock) => Self::Given { origin: clock.now(), clock },
        }
    }

    /// Nanoseconds since the timer was built. Less than `DEADLINE_RUNNING`.
    pub(crate) fn now(&self) -> u64 {
        let nanos = match self {
            Self::Monotonic(monotonic) => monotonic.now(),
            Self::Given { clock, origin } => ticks::nanos(clock.now().saturating_sub(*origin)),
        };
        nanos.min(DEADLINE_RUNNING - 1)
    }

    /// The same, to say how long it is until then: never before what a delay was counted from.
    pub(crate) fn now_or_later(&self) -> u64 {
        match self {
            // What is counted from is ahead by less, and not always by the same.
            Self::Monotonic(monotonic) => monotonic.now() + 1_000,
            Self::Given { .. } => self.now(),
        }
    }

    /// The same, to count a delay from: never behind, and ahead by less than a microsecond.
    #[inline]
    pub(crate) fn now_or_soon(&self) -> u64 {
        match self {
            Self::Monotonic(monotonic) => monotonic.now_or_soon().min(DEADLINE_RUNNING - 1),
            Self::Given { .. } => self.now(),
        }
    }

    /// The deadline at `instant`: now, if it has passed. Never before it; by a given clock, as long from now as it is by the
    /// operating system's.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        match self {
            Self::Monotonic(monotonic) => monotonic.at(instant).max(self.now_or_soon()),
            Self::Given { .. } => {
                // Before the clock is asked, for what passes in between makes it later and not earlier.
                let left = instant.saturating_duration_since(Instant::now());
                ticks::deadline(self.now(), left)
            }
        }
    }
}

/// `std::time::Instant`: the operating system's monotonic clock, and beside it the processor's counter, which costs a third.
///
/// What a second has at the counter was measured once, to some millionths, and nobody adjusts it. So it is only asked how
/// long it is since the operating system was, and is believed for a quarter of a millisecond. Deadlines are counted from
/// what it says; whether one has been reached the operating system says. (Where there is no counter, or none that runs at
/// one pace on all cores and in all states of sleep, `quanta` asks the operating system too.)
pub(crate) struct Monotonic {
    origin: Instant,
    counter: Counter,
    /// What is to be added to the counter's nanoseconds.
    ahead: AtomicU64,
    /// Until when, by the counter. `BUSY` while somebody sets both.
    until: AtomicU64,
    /// The latest that was answered before `ahead` was set: there is no step back.
    floor: AtomicU64,
}

/// Nanoseconds for which the counter is believed.
const BELIEVED: u64 = 250_000;

/// So much it can fall behind meanwhile, at worst: both clocks may be off by 500 millionths, which is what an operating
/// system may slew its own by.
const MARGIN: u64 = 250;

/// Who takes longer to look at both clocks has been interrupted in between.
const AT_ONCE: u64 = 250;

const BUSY: u64 = u64::MAX;

impl Monotonic {
    fn new() -> Self {
        Self::by(Counter::new())
    }

    fn by(counter: Counter) -> Self {
        let [ahead, until, floor] = [(); 3].map(|()| AtomicU64::new(0));
        Self { origin: Instant::now(), counter, ahead, until, floor }
    }

    fn now(&self) -> u64 {
        ticks::nanos(self.origin.elapsed())
    }

    /// What [`now`](Self::now) says at `instant`.
    fn at(&self, instant: Instant) -> u64 {
        ticks::nanos(instant.saturating_duration_since(self.origin))
    }

    #[inline]
    fn now_or_soon(&self) -> u64 {
        if !HAS_COUNTER {
            return self.now();
        }
        let (counted, until) = (self.counter.nanos(), self.until.load(Ordering::Acquire));
        // Nor is it believed before: it may have begun anew, where a machine was suspended or has moved.
        if until.wrapping_sub(counted).wrapping_sub(1) < BELIEVED {
            let now = counted.wrapping_add(self.ahead.load(Ordering::Relaxed));
            return now.max(self.floor.load(Ordering::Relaxed));
        }
        self.compare(counted, until)
    }

    /// `counted` is from before: what is between the two looks makes the counter run ahead.
    #[cold]
    fn compare(&self, counted: u64, until: u64) -> u64 {
        let now = self.now() + MARGIN;
        if until != BUSY {
            let latest = until.wrapping_add(self.ahead.load(Ordering::Relaxed));
            // (Not of two that do not belong together.)
            if latest < now + 2 * AT_ONCE {
                self.floor.fetch_max(latest, Ordering::Relaxed);
            }
        }
        let took = self.counter.nanos().wrapping_sub(counted);
        let is_mine =
            || self.until.compare_exchange(until, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // (What lies before the counter was made is zero, and stays so.)
        if until != BUSY && counted > 0 && took < AT_ONCE && is_mine() {
            self.ahead.store(now.wrapping_sub(counted), Ordering::Relaxed);
            self.until.store(counted + BELIEVED, Ordering::Release);
        }
        now.max(self.floor.load(Ordering::Relaxed))
    }
}

/// A clock that stands still until it is told to move, for tests. Clones share the time.
///
/// It goes with a timer that has no thread: move the clock, then [`turn`](crate::Driver::turn) the driver, and all that
/// is due has run when `turn` returns. Nothing sleeps and nothing depends on the machine.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
///
/// let lease = timer.new_timeout(|_| println!("the lease has run out"), Duration::from_secs(3_600))?;
/// clock.advance(Duration::from_secs(3_599));
/// assert_eq!(driver.turn(), 0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(driver.turn(), 1);
/// assert!(lease.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time on, for all clones. It stops at 2^64 − 1 ns, which are 584 years.
    ///
    /// Wakes nobody: a [`Driver`](crate::Driver) has to be turned for anything to happen.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let step = |nanos: u64| Some(nanos.saturating_add(by));
        // Release, with the Acquire in `now`: who sees the new time sees what was done before it.
        let _ = self.nanos.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticks::DEADLINE_NEVER;

    #[test]
    #[cfg_attr(miri, ignore = "there is no counter")]
    fn a_counter_that_begins_anew_is_not_believed() {
        for goes_on in [0, 1_000_000] {
            let (counter, mock) = Counter::mock();
            let time = Monotonic::by(counter);
            mock.increment(1_000_000_000);
            time.now_or_soon();
            mock.decrement(3_000_000_000);
            for _ in 0..3 {
                let (before, now) = (time.now(), time.now_or_soon());
                assert!((before..before + 1_000_000_000).contains(&now), "{now} at {before}");
                mock.increment(goes_on);
            }
        }
    }

    #[test]
    fn an_instant_is_where_it_is_by_the_same_clock() {
        let time = Monotonic::new();
        let (origin, second) = (time.origin, Duration::from_secs(1));
        let far = origin.checked_add(second * 200 * 366 * 86_400);
        assert_eq!(time.at(origin + second), 1_000_000_000);
        assert_eq!(time.at(origin), 0);
        assert_eq!(origin.checked_sub(second).map_or(0, |before| time.at(before)), 0);
        assert_eq!(far.map_or(DEADLINE_NEVER, |far| time.at(far)), DEADLINE_NEVER);

        let (before, time) = (time.now(), Time::Monotonic(time));
        assert_eq!(time.at(origin + 3_600 * second), 3_600_000_000_000);
        assert!((before..1_000_000_000_000).contains(&time.at(origin)), "what has passed is due now");
    }

    #[test]
    fn it_is_never_behind_and_takes_no_step_back() {
        let time = Monotonic::new();
        let mut last = 0;
        for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
            let (before, now) = (time.now(), time.now_or_soon());
            assert!(now >= before.max(last), "{now} at {before}, after {last}");
            last = now;
        }
    }
}
