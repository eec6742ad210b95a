//! The clocks: the trait, the machine's clock, and a manual clock for tests.

use std::time::{Duration, Instant};
use std::{fmt, mem};

use crate::platform::{self, Counter, HAS_CLOCK};
use crate::report;
use crate::sync::unmodelled::AtomicU64;
use crate::sync::{Arc, Ordering};
use crate::ticks::{self, DEADLINE_RUNNING};

/// A source of monotonic time. A timer that is given none uses the machine's: [`MonotonicClock`].
///
/// The timer calls [`now`](Self::now) at these points:
///
/// - once when the timer is built;
/// - once in [`new_timeout`](crate::HashedWheelTimer::new_timeout),
///   [`schedule_periodic`](crate::HashedWheelTimer::schedule_periodic) and their variants, and in
///   [`reset`](crate::Timeout::reset), on the caller's thread;
/// - once more in those of them that take an `Instant`, such as
///   [`new_timeout_at`](crate::HashedWheelTimer::new_timeout_at);
/// - once in [`now`](crate::HashedWheelTimer::now), [`remaining`](crate::Timeout::remaining),
///   [`occupancy`](crate::HashedWheelTimer::occupancy), [`next_turn`](crate::Driver::next_turn),
///   and `Debug` of a pending timeout;
/// - once or twice per turn, and before the worker thread sleeps;
/// - while a turn runs tasks, once per 64 tasks, and twice per task if there is a [threshold for
///   slow tasks](crate::Builder::slow_task_threshold);
/// - once for each refused task that is to be [retried](crate::RejectionPolicy::Retry);
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

/// The clock of a timer. Its time is zero when the timer is built.
pub(crate) enum Time {
    Monotonic(Monotonic),
    Given { clock: Box<dyn Clock>, origin: Duration },
}

impl Time {
    /// Starts the time of a timer. `None` selects the operating system's clock.
    pub(crate) fn of(clock: Option<Box<dyn Clock>>) -> Self {
        match clock {
            None => Self::Monotonic(Monotonic::new()),
            Some(clock) => Self::Given { origin: clock.now(), clock },
        }
    }

    /// Returns the nanoseconds since the timer was built. The result is less than
    /// `DEADLINE_RUNNING`.
    pub(crate) fn now(&self) -> u64 {
        let nanos = match self {
            Self::Monotonic(monotonic) => monotonic.now(),
            Self::Given { clock, origin } => ticks::nanos(clock.now().saturating_sub(*origin)),
        };
        nanos.min(DEADLINE_RUNNING - 1)
    }

    /// Returns a time from which the rest of a delay is computed. It is never before the time from
    /// which [`now_or_soon`](Self::now_or_soon) made the deadline, so the rest is never more than
    /// the delay.
    pub(crate) fn now_or_later(&self) -> u64 {
        match self {
            // `now_or_soon` is ahead of the clock by less than a microsecond, but not by a
            // constant.
            Self::Monotonic(monotonic) => monotonic.now() + 1_000,
            Self::Given { .. } => self.now(),
        }
    }

    /// Returns the time at which a delay begins. It is never before [`now`](Self::now), and after
    /// it by less than a microsecond.
    #[inline]
    pub(crate) fn now_or_soon(&self) -> u64 {
        match self {
            Self::Monotonic(monotonic) => monotonic.now_by_counter().min(DEADLINE_RUNNING - 1),
            Self::Given { .. } => self.now(),
        }
    }

    /// Returns whether `deadline` has been reached.
    #[cfg(feature = "async")]
    pub(crate) fn has_reached(&self, deadline: u64) -> bool {
        // `now_or_soon` is cheap and never behind, so it rules out most cases. `now` is exact.
        self.now_or_soon() >= deadline && self.now() >= deadline
    }

    /// Returns the deadline at `instant`, never early. It may have passed. It is zero if `instant`
    /// is before the timer was built.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        match self {
            Self::Monotonic(monotonic) => ticks::nanos(monotonic.clock.time_at(instant)),
            Self::Given { clock, origin } => ticks::nanos(clock.time_at(instant).saturating_sub(*origin)),
        }
    }

    /// Returns the deadline at `instant`; if that has passed, the current time.
    pub(crate) fn at_or_now(&self, instant: Instant) -> u64 {
        self.at(instant).max(self.now_or_soon())
    }

    /// Returns the `Instant` of a deadline.
    pub(crate) fn instant_of(&self, deadline: u64) -> Instant {
        let deadline = Duration::from_nanos(deadline);
        match self {
            Self::Monotonic(monotonic) => monotonic.clock.instant_at(deadline),
            Self::Given { clock, origin } => clock.instant_at(origin.saturating_add(deadline)),
        }
    }

    /// Returns the current time as an `Instant`.
    pub(crate) fn now_as_instant(&self) -> Instant {
        match self {
            Self::Monotonic(_) => Instant::now(),
            Self::Given { clock, .. } => clock.instant_at(clock.now()),
        }
    }
}

/// What [`HashedWheelTimer::clock`](crate::HashedWheelTimer::clock) returns.
impl Clock for Time {
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

impl Drop for Time {
    fn drop(&mut self) {
        /// What is left in the place of a clock.
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
        Some(after) => reference.checked_add(after).unwrap_or_else(|| reference + FAR_FUTURE),
        // Some platforms cannot represent an `Instant` from before the machine was started.
        None => reference.checked_sub(time_there - time).unwrap_or(reference),
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
        Self { origin: Instant::now() }
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

/// The operating system's monotonic clock (`std::time::Instant`), and the processor's counter,
/// which is cheaper to read.
///
/// `quanta` calibrates the counter's frequency once, to within a few parts per million, and never
/// adjusts it. So the counter only measures the time since the last reading of the operating
/// system's clock, and only for [`COUNTER_VALIDITY`]. Then both are read again.
///
/// Delays begin at the time of the counter. Whether a deadline has been reached is decided by the
/// operating system's clock. The counter's time is therefore never behind that clock, so that no
/// timeout is early.
///
/// If the processor has no counter, or none that runs at a constant rate on all cores and in all
/// sleep states, `quanta` reads the operating system's clock too.
///
/// An offset that one core has computed serves all cores. If the counter of another core lags, a
/// deadline that is made there is early by the lag, or by [`COUNTER_VALIDITY`] if the lag is
/// greater. So the counter is used only if the counters of all cores
/// [agree](platform::counters_agree), as far as the kernel knows when the timer is built. What
/// remains is the error of the kernel's own clock, which it then computes from the same counter.
pub(crate) struct Monotonic {
    clock: MonotonicClock,
    /// `None` if it is not used.
    counter: Option<Counter>,
    /// The difference between the time and the counter.
    offset: AtomicU64,
    /// The counter's value at which `offset` expires. [`UPDATING`] while a thread sets both.
    valid_until: AtomicU64,
    /// The time never goes back before it. No time that was returned is later, except for those of
    /// the current offset.
    floor: AtomicU64,
}

/// The time for which an offset between counter and clock is used, in nanoseconds.
const COUNTER_VALIDITY: u64 = 250_000;

/// The most by which the counter can fall behind the clock within [`COUNTER_VALIDITY`], in
/// nanoseconds.
///
/// Each of the two can be wrong by 500 parts per million, which is the limit for NTP in the kernel.
/// A program can slew the clock faster: chrony by 83 333 parts per million, by default. Meanwhile
/// the counter is up to 21 µs behind or ahead of the clock. The time does not go back then, either.
const MAX_DRIFT: u64 = COUNTER_VALIDITY / 1_000;

/// The longest time between two readings that belong together, in nanoseconds. After a longer time
/// the thread was interrupted between them.
const MAX_READING_GAP: u64 = 250;

/// The value of [`Monotonic::valid_until`] while a thread updates the offset.
const UPDATING: u64 = u64::MAX;

impl Monotonic {
    fn new() -> Self {
        Self::with_counter(platform::counters_agree(), Counter::new)
    }

    /// `counter` is called only if the counter is used, because this may take long.
    fn with_counter(is_used: bool, counter: impl FnOnce() -> Counter) -> Self {
        let [offset, valid_until, floor] = [(); 3].map(|()| AtomicU64::new(0));
        let counter = is_used.then(counter);
        Self { clock: MonotonicClock::new(), counter, offset, valid_until, floor }
    }

    fn now(&self) -> u64 {
        ticks::nanos(self.clock.now())
    }

    #[inline]
    fn now_by_counter(&self) -> u64 {
        let Some(counter) = &self.counter else { return self.now() };
        // Acquire pairs with the Release store in `synchronise`: the offset is at least as new as
        // this value.
        let (counted, valid_until) = (counter.nanos(), self.valid_until.load(Ordering::Acquire));
        if is_valid(valid_until, counted) {
            // Acquire pairs with the Release store in `synchronise`: this thread may have read the
            // old `valid_until` and then the new offset. Then it sees the floor that belongs to it.
            let now = counted.wrapping_add(self.offset.load(Ordering::Acquire));
            return now.max(self.floor.load(Ordering::Relaxed));
        }
        self.synchronise(counter, counted, valid_until)
    }

    /// Reads the operating system's clock, updates the offset if possible, and returns the time.
    ///
    /// `counted` was read from the counter before the clock. The time between the two readings
    /// makes the offset greater, so that the counter's time is ahead of the clock and not behind
    /// it.
    #[cold]
    fn synchronise(&self, counter: &Counter, counted: u64, valid_until: u64) -> u64 {
        let now = self.now() + MAX_DRIFT;
        let counted_again = counter.nanos();
        let gap = counted_again.wrapping_sub(counted);
        let mut latest = now;
        if counted >= valid_until {
            // The latest time of the offset, which has expired. Acquire: as in `now_by_counter`.
            let of_offset = valid_until.wrapping_add(self.offset.load(Ordering::Acquire));
            // Otherwise it is a newer offset, which does not belong to this `valid_until`.
            if of_offset <= now + COUNTER_VALIDITY {
                latest = latest.max(of_offset);
            }
        }
        // Before the offset is set: another thread may use the new offset with the old
        // `valid_until`, up to the time `now`. And before the time is returned: an offset that
        // another thread sets may be less far ahead of the clock.
        let latest = latest.max(self.floor.fetch_max(latest, Ordering::Relaxed));
        // Acquire keeps the store of the offset after the exchange: one thread at a time stores it.
        // Release publishes the floor to threads that find `UPDATING`.
        let try_begin_update = || {
            self.valid_until
                .compare_exchange(valid_until, UPDATING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        // `counted` may have been read before another thread set the offset. Then the offset is
        // valid, and times that are not in the floor may have been returned.
        let may_update = valid_until != UPDATING && !is_valid(valid_until, counted_again);
        // A counter that has gone back to before its origin reads zero, and stays at zero: it
        // cannot be used.
        if may_update && counted > 0 && gap < MAX_READING_GAP && try_begin_update() {
            // Release pairs with the Acquire loads of the offset: it publishes the floor.
            self.offset.store(now.wrapping_sub(counted), Ordering::Release);
            // Release pairs with the Acquire load in `now_by_counter`: it publishes the offset.
            self.valid_until.store(counted + COUNTER_VALIDITY, Ordering::Release);
        }
        latest
    }
}

/// Whether the counter's value is in the time of an offset: from [`COUNTER_VALIDITY`] before
/// `valid_until` up to it.
///
/// It is not if the counter is before this time, because it went backwards (suspend, VM migration),
/// or if `valid_until` is [`UPDATING`].
#[inline]
fn is_valid(valid_until: u64, counted: u64) -> bool {
    valid_until.wrapping_sub(counted).wrapping_sub(1) < COUNTER_VALIDITY
}

/// A clock for tests: its time changes only in [`advance`](Self::advance). Clones share the time.
///
/// Use it with a timer that has no thread: advance the clock, then [`turn`](crate::Driver::turn)
/// the driver. All tasks that are due have run when `turn` returns. Such a test does not sleep, and
/// does not depend on the speed of the machine.
///
/// # `Instant`s
///
/// The clock's time is also an [`Instant`], which [`instant`](Self::instant) and
/// [`HashedWheelTimer::now`](crate::HashedWheelTimer::now) return. A timer with this clock converts
/// such `Instant`s exactly. An `Instant` before time zero has passed, so a timeout with this
/// deadline is due at once.
///
/// The timer takes `Instant`s of the machine too: an `Instant` one hour from [`Instant::now`] is
/// one hour from the time of this clock, less what passes on the machine before the call. Time zero
/// of this clock is 70 000 years after the machine's time, and an `Instant` belongs to the nearer
/// one. So a timer with another clock takes an `Instant` of this clock for a deadline that never
/// comes. Another `ManualClock` has the same zero, except for the time between the two calls of
/// [`new`](Self::new).
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
#[derive(Clone)]
#[doc(alias("MockClock", "FakeClock", "MockTicker"))]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
    /// The `Instant` of time zero: [`FROM_MACHINE_TO_MANUAL`] after the clock was made. `None` on a
    /// platform that has no clock.
    origin: Option<Instant>,
}

/// The time from the present of the machine to time zero of a manual clock, which is 70 000 years.
/// Half of it is more than the 146 years of a timer. So every `Instant` of the machine up to there
/// is converted exactly, or never comes.
const FROM_MACHINE_TO_MANUAL: Duration = Duration::from_secs(1 << 41);

impl ManualClock {
    /// Makes a clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self { nanos: Arc::default(), origin: HAS_CLOCK.then(|| Instant::now() + FROM_MACHINE_TO_MANUAL) }
    }

    /// Returns the clock's time as an `Instant`.
    ///
    /// A timer with this clock returns the same from
    /// [`HashedWheelTimer::now`](crate::HashedWheelTimer::now).
    ///
    /// # Panics
    ///
    /// If the platform has no clock, and so no `Instant`: `wasm32-unknown-unknown`.
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
    /// let deadline = clock.instant() + Duration::from_secs(5);
    /// let timeout = timer.new_timeout_at(|_| (), deadline)?;
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(clock.instant(), deadline);
    /// assert_eq!(driver.turn(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.instant_at(self.now())
    }

    /// Advances the time of this clock and of all its clones. The time stops at 2^64 − 1 ns, which
    /// is 584 years.
    ///
    /// This wakes no timer. Tasks run when their [`Driver`](crate::Driver) is turned.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let timeout = timer.new_timeout(|_| (), Duration::from_secs(5))?;
    /// clock.advance(Duration::from_secs(5));
    /// assert!(!timeout.is_expired());
    /// driver.turn();
    /// assert!(timeout.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let step = |nanos: u64| Some(nanos.saturating_add(by));
        // Release pairs with the Acquire load in `nanos`: a thread that reads the new time sees
        // everything that happened before this call.
        let _ = self.nanos.fetch_update(Ordering::Release, Ordering::Relaxed, step);
    }

    fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Acquire)
    }

    /// Returns time zero as an `Instant`, and as a time of this clock.
    fn zero(&self) -> (Instant, Duration) {
        (self.origin.expect("this platform has no clock, so it has no `Instant`"), Duration::ZERO)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    fn time_at(&self, instant: Instant) -> Duration {
        let zero = self.zero();
        let is_of_machine = zero.0.saturating_duration_since(instant) > FROM_MACHINE_TO_MANUAL / 2;
        time_of(if is_of_machine { present(self) } else { zero }, instant)
    }

    fn instant_at(&self, time: Duration) -> Instant {
        instant_of(self.zero(), time)
    }
}

/// As [`new`](ManualClock::new).
impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
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
    use crate::sync::thread::sleep;
    use crate::ticks::DEADLINE_NEVER;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn counter_that_goes_backwards_is_not_used() {
        for step in [0, 1_000_000] {
            let (counter, mock) = Counter::mock();
            let time = Monotonic::with_counter(true, || counter);
            mock.increment(1_000_000_000);
            time.now_by_counter();
            mock.decrement(3_000_000_000);
            for _ in 0..3 {
                let (before, now) = (time.now(), time.now_by_counter());
                assert!((before..before + 1_000_000_000).contains(&now), "{now} at {before}");
                mock.increment(step);
            }
        }
    }

    #[test]
    fn counter_of_cores_that_do_not_agree_is_not_made() {
        let time = Monotonic::with_counter(false, || panic!("it may take long to make it"));
        let before = time.now_by_counter();
        sleep(Duration::from_millis(1));
        assert!(time.now_by_counter() >= before + 1_000_000);
        assert_eq!(time.floor.load(Ordering::Relaxed), 0, "no shared word is written");
    }

    #[test]
    fn instant_is_converted_by_the_same_clock() {
        let time = Monotonic::new();
        let (origin, second) = (time.clock.origin, Duration::from_secs(1));
        let far = origin.checked_add(second * 200 * 366 * 86_400);
        let (before, time) = (time.now(), Time::Monotonic(time));
        assert_eq!(time.at(origin + second), 1_000_000_000);
        assert_eq!(time.at(origin), 0);
        assert_eq!(origin.checked_sub(second).map_or(0, |before| time.at(before)), 0);
        assert_eq!(far.map_or(DEADLINE_NEVER, |far| time.at(far)), DEADLINE_NEVER);
        assert!(
            (before..1_000_000_000_000).contains(&time.at_or_now(origin)),
            "an instant that has passed is due now"
        );
        assert_eq!(time.instant_of(1_000_000_000), origin + second);
        assert_eq!(time.at(time.instant_of(DEADLINE_NEVER)), DEADLINE_NEVER);
    }

    #[test]
    fn counter_time_is_never_behind_the_clock_and_never_goes_back() {
        let time = Monotonic::new();
        let mut last = 0;
        for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
            let (before, now) = (time.now(), time.now_by_counter());
            assert!(now >= before.max(last), "{now} at {before}, after {last}");
            last = now;
        }
    }

    /// Makes a clock whose counter stands still unless the test moves it.
    fn counted() -> (Monotonic, impl Fn(u64), impl Fn(u64)) {
        let (counter, mock) = Counter::mock();
        mock.increment(1_000_000);
        let back = Arc::clone(&mock);
        let time = Monotonic::with_counter(true, || counter);
        (time, move |nanos| mock.increment(nanos), move |nanos| back.decrement(nanos))
    }

    fn counted_by(time: &Monotonic) -> u64 {
        time.counter.as_ref().expect("a counter").nanos()
    }

    fn synchronise(time: &Monotonic, counted: u64, valid_until: u64) -> u64 {
        time.synchronise(time.counter.as_ref().expect("a counter"), counted, valid_until)
    }

    fn valid_until(time: &Monotonic) -> u64 {
        time.valid_until.load(Ordering::Relaxed)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn counter_measures_the_time_for_as_long_as_it_is_valid() {
        let (time, advance, step_back) = counted();
        let first = time.now_by_counter();
        let end = valid_until(&time);
        assert_eq!(end, counted_by(&time) + COUNTER_VALIDITY);
        advance(COUNTER_VALIDITY - 1);
        assert_eq!(time.now_by_counter(), first + COUNTER_VALIDITY - 1);
        assert_eq!(valid_until(&time), end);
        advance(1);
        time.now_by_counter();
        assert_eq!(valid_until(&time), end + COUNTER_VALIDITY);
        step_back(1);
        time.now_by_counter();
        assert_eq!(valid_until(&time), end + COUNTER_VALIDITY - 1, "the counter went backwards");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn readings_that_are_far_apart_do_not_set_the_offset() {
        let (time, ..) = counted();
        let counted = counted_by(&time);
        synchronise(&time, counted - MAX_READING_GAP, 0);
        assert_eq!(valid_until(&time), 0);
        synchronise(&time, counted - (MAX_READING_GAP - 1), 0);
        assert_eq!(valid_until(&time), counted - (MAX_READING_GAP - 1) + COUNTER_VALIDITY);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn offset_is_set_by_one_thread_and_only_with_a_counter_that_counts() {
        let (time, _, step_back) = counted();
        time.valid_until.store(UPDATING, Ordering::Relaxed);
        synchronise(&time, counted_by(&time), UPDATING);
        assert_eq!(valid_until(&time), UPDATING, "another thread sets it");
        time.valid_until.store(0, Ordering::Relaxed);
        step_back(counted_by(&time));
        synchronise(&time, counted_by(&time), 0);
        assert_eq!(valid_until(&time), 0, "the counter has gone back to its origin");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn time_never_goes_back_before_the_end_of_an_offset() {
        let hour = 3_600_000_000_000;
        // So that the time is not near zero.
        let origin = Instant::now().checked_sub(Duration::from_nanos(hour));
        let synchronised = |latest: fn(u64) -> u64| {
            let (mut time, ..) = counted();
            time.clock.origin = origin.unwrap_or(time.clock.origin);
            let latest = latest(time.now());
            let valid_until = 1_000;
            time.offset.store(latest.wrapping_sub(valid_until), Ordering::Relaxed);
            let returned = synchronise(&time, counted_by(&time), valid_until);
            let floor = time.floor.load(Ordering::Relaxed);
            assert_eq!(floor, returned);
            // On a slow machine, the time may have passed `latest` meanwhile.
            assert!(floor <= latest.max(time.now() + MAX_DRIFT), "{floor}, {latest}");
            (latest, floor)
        };
        // The clock has stood still while the counter was used.
        let (latest, floor) = synchronised(|now| now + MAX_DRIFT + COUNTER_VALIDITY);
        assert!(floor >= latest, "{floor}, {latest}");
        let (latest, floor) = synchronised(|now| now + 1_000_000_000_000);
        assert!(floor < latest, "the offset of another thread");
    }

    /// The thread was interrupted between its readings of the counter and of `valid_until`, and
    /// another thread has set the offset meanwhile.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn offset_that_is_valid_is_not_replaced() {
        let (time, advance, _) = counted();
        let counted = counted_by(&time);
        advance(1);
        time.now_by_counter();
        let (end, offset) = (valid_until(&time), time.offset.load(Ordering::Relaxed));
        synchronise(&time, counted, end);
        assert_eq!((valid_until(&time), time.offset.load(Ordering::Relaxed)), (end, offset));
    }

    #[test]
    fn time_stops_before_the_sentinel_deadline() {
        let clock = ManualClock::new();
        let given = Time::of(Some(Box::new(clock.clone())));
        clock.advance(Duration::MAX);
        assert_eq!([given.now(), given.now_or_soon()], [DEADLINE_RUNNING - 1; 2]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn time_of_the_counter_stops_before_the_sentinel_deadline() {
        let (monotonic, ..) = counted();
        monotonic.floor.store(DEADLINE_NEVER, Ordering::Relaxed);
        assert_eq!(Time::Monotonic(monotonic).now_or_soon(), DEADLINE_RUNNING - 1);
    }

    #[test]
    fn rest_of_a_delay_counts_from_a_microsecond_ahead() {
        let monotonic = Monotonic::new();
        sleep(Duration::from_millis(1));
        let before = monotonic.now();
        let time = Time::Monotonic(monotonic);
        let later = time.now_or_later();
        assert!((before + 1_000..=time.now() + 1_000).contains(&later), "{later} at {before}");
    }

    #[test]
    #[cfg(feature = "async")]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn deadline_is_reached_by_the_time_of_the_clock() {
        let hour = 3_600_000_000_000;
        let (monotonic, ..) = counted();
        // The time of the counter is ahead of the clock.
        monotonic.floor.store(hour, Ordering::Relaxed);
        let time = Time::Monotonic(monotonic);
        assert_eq!(time.now_or_soon(), hour);
        assert!(!time.has_reached(hour));
        assert!(time.has_reached(0));
    }

    #[test]
    fn instants_are_as_far_from_the_reference_as_the_times() {
        let reference = Instant::now() + FAR_FUTURE;
        let [zero, three, seven, ten] = [0, 3, 7, 10].map(Duration::from_secs);
        assert_eq!(instant_of((reference, ten), seven), reference - three);
        assert_eq!(instant_of((reference, seven), ten), reference + three);
        assert_eq!(time_of((reference, ten), reference - three), seven);
        assert_eq!(time_of((reference, seven), reference + three), ten);
        assert_eq!(time_of((reference, three), reference - seven), zero);
        assert_eq!(time_of((reference, Duration::MAX), reference + three), Duration::MAX);
        if reference.checked_add(Duration::MAX).is_none() {
            assert_eq!(instant_of((reference, zero), Duration::MAX), reference + FAR_FUTURE);
        }
    }
}
