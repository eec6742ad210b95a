//! The clocks: the trait [`Clock`], the machine's clock, and the clock of a timer.
//!
//! | file | content |
//! |---|---|
//! | `manual` | a clock for tests |
//! | `counter` | the machine's clock with the processor's counter, and why its time is never behind and never goes back |

mod counter;
mod manual;

pub use manual::ManualClock;

use std::mem;
use std::time::{Duration, Instant};

use crate::report;
use crate::sync::Arc;
use crate::ticks::{self, DEADLINE_NEVER, DEADLINE_RUNNING};
use counter::CounterClock;

/// A source of monotonic time. A timer that is given none uses the machine's: [`MonotonicClock`].
///
/// The timer calls [`now`](Self::now) at these points:
///
/// - once when the timer is built;
/// - once in [`new_timeout`](crate::HashedWheelTimer::new_timeout),
///   [`schedule_periodic`](crate::HashedWheelTimer::schedule_periodic) and their variants, and in
///   [`reset`](crate::Timeout::reset), on the caller's thread; in those of them that take an
///   `Instant`, such as [`new_timeout_at`](crate::HashedWheelTimer::new_timeout_at), only to
///   convert it: see [`time_at`](Self::time_at);
/// - once in [`now`](crate::HashedWheelTimer::now), [`remaining`](crate::Timeout::remaining),
///   [`occupancy`](crate::HashedWheelTimer::occupancy), [`next_turn`](crate::Driver::next_turn),
///   and `Debug` of a pending timeout;
/// - once or twice per turn, and before the worker thread sleeps;
/// - while a turn runs tasks, once per 64 tasks, and twice per task if there is a [threshold for
///   slow tasks](crate::Builder::slow_task_threshold);
/// - once after each run of a periodic task, on the thread that ran it;
/// - in [`shutdown`](crate::HashedWheelTimer::shutdown), once at the beginning and repeatedly while
///   it waits;
/// - in [`running_task`](crate::Ending::running_task), once if it returns a task;
/// - for a future, up to twice when it is made, reset or first polled, and for each tick of an
///   interval;
/// - when code that has the timer [asks it](crate::HashedWheelTimer::clock), such as a queue that
///   is built on it.
///
/// It calls [`time_at`](Self::time_at) or [`instant_at`](Self::instant_at), which by default call
/// `now`, once for each `Instant` that it takes or returns.
///
/// During these calls the timer holds no lock that a caller could wait for, except while it runs
/// tasks. In the calls while it runs tasks, `now` must not stop the timer if a task must not.
///
/// The worker thread sleeps in real time. If a clock does not run at the pace of real time, build
/// the timer with [`Builder::build_driven`](crate::Builder::build_driven), and turn it whenever the
/// clock has moved.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{Clock, HashedWheelTimer};
/// use std::time::{Duration, Instant};
///
/// /// Runs at twice the pace of real time.
/// struct DoubleSpeed(Instant);
///
/// impl Clock for DoubleSpeed {
///     fn now(&self) -> Duration {
///         self.0.elapsed() * 2
///     }
/// }
///
/// let (timer, driver) = HashedWheelTimer::builder().clock(DoubleSpeed(Instant::now())).build_driven()?;
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
///
/// # Suspend
///
/// On Linux the machine's clock stands still while the machine is suspended, as `Instant` does: it
/// is `CLOCK_MONOTONIC`. A `Clock` that reads `CLOCK_BOOTTIME` goes on, for example for leases that
/// a server counts too. Deadlines are right then. But a thread's sleep is measured by
/// `CLOCK_MONOTONIC`, so after a suspend the worker thread sleeps for the rest of its time first.
/// There are two remedies:
///
/// - A [periodic task](crate::HashedWheelTimer::schedule_with_fixed_delay) that does nothing, each
///   second: the thread never sleeps for longer, so it is late by a second at most.
/// - A [driver](crate::Driver) whose loop waits for a `timerfd` of `CLOCK_BOOTTIME`, which ends the
///   wait on time.
///
/// This crate has no such clock. To be on time by itself, the thread would have to wait for a
/// `timerfd` instead of a futex: a second way to sleep and to be woken, by system calls that cost
/// every wake-up more, for programs that are rarely suspended.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since a fixed origin, which the clock chooses.
    ///
    /// The result must not be less than that of an earlier call on any thread. If it is, the timer
    /// treats its time as standing still until the clock has caught up. Meanwhile a worker thread
    /// with pending timeouts reads the clock every 50 ms, so a clock that is wrong for a moment
    /// makes timeouts late by about that moment.
    ///
    /// A timer measures the time since it was built, up to 146 years. There its time stops.
    ///
    /// # Panics
    ///
    /// An implementation must not panic. If it does, the method of the timer that called it panics
    /// too. On the worker thread the panic is reported and stops the timer. A panic in a call that
    /// only measures how late a turn is, is reported and has no other effect.
    fn now(&self) -> Duration;

    /// Returns this clock's time at `instant`. Zero if that is before time zero.
    ///
    /// By default the distance from the present counts: an `Instant` one hour from [`Instant::now`]
    /// is one hour from the time of this clock, at whatever pace this clock runs. The time between
    /// two readings makes a deadline later, never earlier.
    ///
    /// A clock that counts from a fixed `Instant` overrides this and
    /// [`instant_at`](Self::instant_at), its inverse. Then equal `Instant`s are equal times,
    /// whenever they are converted. [`MonotonicClock`] does this, and [`ManualClock`] for its own
    /// `Instant`s.
    ///
    /// # Panics
    ///
    /// An implementation must not panic, as for [`now`](Self::now). The default does so on a
    /// platform without a clock, where [`Instant::now`] panics.
    ///
    /// # Examples
    ///
    /// A simulation that starts at a fixed `Instant`:
    ///
    /// ```
    /// use hashed_wheel::{Clock, HashedWheelTimer};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::{Duration, Instant};
    ///
    /// struct Simulation {
    ///     start: Instant,
    ///     seconds: AtomicU64,
    /// }
    ///
    /// impl Clock for Simulation {
    ///     fn now(&self) -> Duration {
    ///         Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    ///     }
    ///
    ///     fn time_at(&self, instant: Instant) -> Duration {
    ///         instant.saturating_duration_since(self.start)
    ///     }
    ///
    ///     fn instant_at(&self, time: Duration) -> Instant {
    ///         self.start + time
    ///     }
    /// }
    ///
    /// let start = Instant::now();
    /// let simulation = Arc::new(Simulation { start, seconds: AtomicU64::new(0) });
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(Arc::clone(&simulation)).build_driven()?;
    /// simulation.seconds.store(60, Ordering::Relaxed);
    /// assert_eq!(timer.now(), start + Duration::from_secs(60));
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    fn time_at(&self, instant: Instant) -> Duration {
        time_of(present(self), instant)
    }

    /// Returns the `Instant` of a time of this clock: the inverse of [`time_at`](Self::time_at). By
    /// default it is as far from [`Instant::now`] as `time` is from the time of this clock.
    ///
    /// # Panics
    ///
    /// As for [`time_at`](Self::time_at), which also has an example.
    fn instant_at(&self, time: Duration) -> Instant {
        instant_of(present(self), time)
    }
}

/// Permits the owner of a clock to share it with a timer.
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Duration {
        (**self).now()
    }

    fn time_at(&self, instant: Instant) -> Duration {
        (**self).time_at(instant)
    }

    fn instant_at(&self, time: Duration) -> Instant {
        (**self).instant_at(time)
    }
}

/// Every platform can represent an `Instant` that is so far away. tokio limits its delays to it.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns the present as an `Instant`, and as a time of this clock.
fn present(clock: &(impl Clock + ?Sized)) -> (Instant, Duration) {
    // In this order: time that passes between the two makes a deadline later, not earlier.
    let present = Instant::now();
    (present, clock.now())
}

/// Returns a clock's time at `instant`, given one `Instant` and the clock's time there.
pub(crate) fn time_of((reference, time_there): (Instant, Duration), instant: Instant) -> Duration {
    match instant.checked_duration_since(reference) {
        Some(after) => time_there.saturating_add(after),
        None => time_there.saturating_sub(reference - instant),
    }
}

/// Returns the `Instant` of a clock's time, given one `Instant` and the clock's time there.
pub(crate) fn instant_of((reference, time_there): (Instant, Duration), time: Duration) -> Instant {
    match time.checked_sub(time_there) {
        Some(after) => reference
            .checked_add(after)
            .unwrap_or_else(|| reference + FAR_FUTURE),
        // Some platforms cannot represent an `Instant` from before the machine was started.
        None => reference
            .checked_sub(time_there - time)
            .unwrap_or(reference),
    }
}

/// The machine's monotonic clock: [`Instant`]. Its time is zero when it is made.
///
/// A timer that is given no clock uses this one, so it need not be set. It is for code that accepts
/// a [`Clock`], and for clocks that are built on another clock. A timer that is
/// [given](crate::Builder::clock) this clock is the same as a timer that is given none: it reads
/// the processor's counter where that is cheaper.
///
/// # Examples
///
/// Code that runs on the machine's clock, and on a manual clock in its tests:
///
/// ```
/// use hashed_wheel::{BuildError, Clock, HashedWheelTimer, ManualClock, MonotonicClock};
///
/// fn leases(clock: impl Clock) -> Result<HashedWheelTimer, BuildError> {
///     HashedWheelTimer::builder().clock(clock).build()
/// }
///
/// leases(MonotonicClock::new())?;
/// leases(ManualClock::new())?;
/// # Ok::<(), BuildError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// Makes a clock whose time is zero now.
    ///
    /// # Panics
    ///
    /// If the platform has no clock: `wasm32-unknown-unknown`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

/// As [`new`](MonotonicClock::new).
impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn time_at(&self, instant: Instant) -> Duration {
        time_of((self.origin, Duration::ZERO), instant)
    }

    fn instant_at(&self, time: Duration) -> Instant {
        instant_of((self.origin, Duration::ZERO), time)
    }
}

/// `deadline_base` is ahead of the machine's clock by less than this, but not by a constant. In
/// nanoseconds.
const MAX_AHEAD: u64 = 1_000;

/// The clock of a timer. Its time is zero when the timer is built.
pub(crate) enum TimerClock {
    Counter(CounterClock),
    Given {
        clock: Box<dyn Clock>,
        origin: Duration,
    },
}

impl TimerClock {
    /// Starts the time of a timer. `None` selects the operating system's clock.
    pub(crate) fn of(clock: Option<Box<dyn Clock>>) -> Self {
        match clock {
            None => Self::Counter(CounterClock::new()),
            Some(clock) => Self::Given {
                origin: clock.now(),
                clock,
            },
        }
    }

    /// Returns the nanoseconds since the timer was built. The result is less than
    /// `DEADLINE_RUNNING`.
    pub(crate) fn now(&self) -> u64 {
        let nanos = match self {
            Self::Counter(counter) => counter.now(),
            Self::Given { clock, origin } => ticks::nanos(clock.now().saturating_sub(*origin)),
        };
        nanos.min(DEADLINE_RUNNING - 1)
    }

    /// Returns the time at which a delay begins. It is never before [`now`](Self::now), and after
    /// it by less than a microsecond.
    #[inline]
    pub(crate) fn deadline_base(&self) -> u64 {
        match self {
            Self::Counter(counter) => counter.deadline_base().min(DEADLINE_RUNNING - 1),
            Self::Given { .. } => self.now(),
        }
    }

    /// Returns a time that is not after [`now`](Self::now), and one that is not before it. Neither
    /// goes back.
    #[inline]
    pub(crate) fn now_bounds(&self) -> (u64, u64) {
        let latest = self.deadline_base();
        match self {
            Self::Counter(_) => (latest.saturating_sub(MAX_AHEAD), latest),
            Self::Given { .. } => (latest, latest),
        }
    }

    /// Returns the deadline after this delay.
    #[inline]
    pub(crate) fn deadline_after(&self, delay: Duration) -> u64 {
        ticks::deadline(self.deadline_base(), delay)
    }

    /// Returns how long it is until `deadline`.
    pub(crate) fn remaining(&self, deadline: u64) -> Duration {
        match deadline {
            DEADLINE_NEVER => Duration::MAX,
            // That time never goes back, so the rest is never more than the delay.
            deadline => Duration::from_nanos(deadline.saturating_sub(self.deadline_base())),
        }
    }

    /// Returns whether `deadline` has been reached.
    #[cfg(feature = "async")]
    #[inline(always)]
    pub(crate) fn has_reached(&self, deadline: u64) -> bool {
        // `deadline_base` is cheap and never behind, so it rules out most cases. `now` is exact.
        self.deadline_base() >= deadline && self.now() >= deadline
    }

    /// Returns the deadline at `instant`, never early. It may have passed. It is zero if `instant`
    /// is before the timer was built.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        ticks::nanos(match self {
            Self::Counter(counter) => counter.clock.time_at(instant),
            Self::Given { clock, origin } => clock.time_at(instant).saturating_sub(*origin),
        })
    }

    /// Returns the `Instant` of a deadline.
    pub(crate) fn instant_of(&self, deadline: u64) -> Instant {
        let deadline = Duration::from_nanos(deadline);
        match self {
            Self::Counter(counter) => counter.clock.instant_at(deadline),
            Self::Given { clock, origin } => clock.instant_at(origin.saturating_add(deadline)),
        }
    }

    /// Returns the current time as an `Instant`.
    pub(crate) fn instant_now(&self) -> Instant {
        match self {
            Self::Counter(_) => Instant::now(),
            Self::Given { clock, .. } => clock.instant_at(clock.now()),
        }
    }
}

/// The type behind [`HashedWheelTimer::clock`](crate::HashedWheelTimer::clock).
impl Clock for TimerClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now())
    }

    fn time_at(&self, instant: Instant) -> Duration {
        Duration::from_nanos(self.at(instant))
    }

    fn instant_at(&self, time: Duration) -> Instant {
        self.instant_of(ticks::nanos(time))
    }
}

impl Drop for TimerClock {
    fn drop(&mut self) {
        /// Takes the place of a clock, without an allocation.
        struct NoClock;

        impl Clock for NoClock {
            fn now(&self) -> Duration {
                Duration::ZERO
            }
        }

        if let Self::Given { clock, .. } = self {
            report::guard_drop("(the clock)", mem::replace(clock, Box::new(NoClock)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_as_far_from_the_reference_as_the_times() {
        let reference = Instant::now() + FAR_FUTURE;
        let [zero, three, seven, ten] = [0, 3, 7, 10].map(Duration::from_secs);
        assert_eq!(instant_of((reference, ten), seven), reference - three);
        assert_eq!(instant_of((reference, seven), ten), reference + three);
        assert_eq!(time_of((reference, ten), reference - three), seven);
        assert_eq!(time_of((reference, seven), reference + three), ten);
        assert_eq!(time_of((reference, three), reference - seven), zero);
        assert_eq!(
            time_of((reference, Duration::MAX), reference + three),
            Duration::MAX
        );
        if reference.checked_add(Duration::MAX).is_none() {
            assert_eq!(
                instant_of((reference, zero), Duration::MAX),
                reference + FAR_FUTURE
            );
        }
    }

    #[test]
    fn instant_is_converted_by_the_same_clock() {
        let time = CounterClock::new();
        let (origin, second) = (time.clock.origin, Duration::from_secs(1));
        let far = origin.checked_add(second * 200 * 366 * 86_400);
        let time = TimerClock::Counter(time);
        assert_eq!(time.at(origin + second), 1_000_000_000);
        assert_eq!(time.at(origin), 0);
        assert_eq!(
            origin
                .checked_sub(second)
                .map_or(0, |before| time.at(before)),
            0
        );
        assert_eq!(
            far.map_or(DEADLINE_NEVER, |far| time.at(far)),
            DEADLINE_NEVER
        );
        assert_eq!(time.instant_of(1_000_000_000), origin + second);
        assert_eq!(time.at(time.instant_of(DEADLINE_NEVER)), DEADLINE_NEVER);
    }

    #[test]
    fn time_stops_before_the_sentinel_deadline() {
        let clock = ManualClock::new();
        let given = TimerClock::of(Some(Box::new(clock.clone())));
        clock.advance(Duration::MAX);
        assert_eq!(
            [given.now(), given.deadline_base()],
            [DEADLINE_RUNNING - 1; 2]
        );
    }

    #[test]
    fn rest_of_a_delay_is_not_more_than_the_delay() {
        let (time, delay) = (TimerClock::of(None), Duration::from_secs(1));
        for _ in 0..if cfg!(miri) { 100 } else { 10_000 } {
            let deadline = time.deadline_after(delay);
            let rest = time.remaining(deadline);
            assert!(rest <= delay, "{rest:?}");
        }
    }
}
