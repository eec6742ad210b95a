//! How a timer is made.

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::driver::Driver;
use crate::engine::{Executor, Settings, Shared, Waker};
use crate::error::BuildError;
use crate::platform::HAS_CLOCK;
use crate::report;
use crate::sync::unmodelled::{AtomicUsize, OnceLock};
use crate::sync::{Arc, Ordering};
use crate::task::{ExpiredTask, TaskExecutor};
use crate::ticks::{self, DEADLINE_NEVER, DEADLINE_RUNNING};
use crate::timer::HashedWheelTimer;
use crate::wheel::{EitherWheel, Hashed, Hierarchical, MAX_TICKS_PER_WHEEL};

/// The shortest tick that is honoured.
const SHORTEST_TICK: Duration = Duration::from_micros(1);

/// What a timer is made of: [`HashedWheelTimer::builder`].
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::builder()
///     .tick(Duration::from_millis(10))
///     .ticks_per_wheel(1_000)
///     .max_pending_timeouts(100_000)
///     .thread_name("timeouts")
///     .build()?;
/// assert_eq!(timer.ticks_per_wheel(), 1_024);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
#[must_use]
pub struct Builder {
    tick: Duration,
    ticks_per_wheel: usize,
    hierarchical: bool,
    max_pending_timeouts: usize,
    slow_task_threshold: Option<Duration>,
    thread_name: Option<String>,
    executor: Option<Executor>,
    waker: Option<Waker>,
    clock: Option<Box<dyn Clock>>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            tick: Duration::from_millis(100),
            ticks_per_wheel: 512,
            hierarchical: false,
            max_pending_timeouts: 0,
            slow_task_threshold: None,
            thread_name: None,
            executor: None,
            waker: None,
            clock: None,
        }
    }

    /// The length of a tick: how late a timeout may fire, and how often the worker wakes while there is traffic. Ticks
    /// from 1 µs up are honoured; a shorter one becomes 1 µs, with a warning. Default: 100 ms.
    pub fn tick(self, tick: Duration) -> Self {
        Self { tick, ..self }
    }

    /// The number of slots, rounded up to a power of two; from 1 to [2^30](crate::wheel::MAX_TICKS_PER_WHEEL). Default: 512.
    pub fn ticks_per_wheel(self, n: usize) -> Self {
        Self { ticks_per_wheel: n, ..self }
    }

    /// The [hierarchical wheel](crate::wheel::HierarchicalWheel) in place of the hashed one: levels of
    /// [`ticks_per_wheel`](Self::ticks_per_wheel) slots (at least two) instead of rounds. The timer does the same on either;
    /// [the wheels' documentation](crate::wheel) says which one costs less for what. Default: the hashed wheel.
    pub fn hierarchical(self) -> Self {
        Self { hierarchical: true, ..self }
    }

    /// How many timeouts may be pending at a time; one more is refused with
    /// [`TooManyPending`](crate::NewTimeoutError::TooManyPending). Default: 0, which is no limit, as in Netty, but for the 2^31
    /// that a timer has room for.
    pub fn max_pending_timeouts(self, limit: usize) -> Self {
        Self { max_pending_timeouts: limit, ..self }
    }

    /// Who runs the tasks. Default: the worker itself.
    pub fn task_executor(self, executor: impl TaskExecutor) -> Self {
        let execute = move |task| executor.execute(ExpiredTask::new(task));
        Self { executor: Some(Box::new(execute)), ..self }
    }

    /// A task that the worker runs itself and that takes longer than this is reported, with its type and what it took, and
    /// counted in [`Stats::slow_tasks`](crate::Stats::slow_tasks): while it ran, no other timeout could. Zero is a threshold like any
    /// other, which every task is above that the clock sees take any time; with `Duration::MAX` none is. Default: none is,
    /// and the clock is not looked at before and after each task, as it is with a threshold.
    ///
    /// Tasks that a [task executor](Self::task_executor) runs are its own affair. The wakers of futures are the worker's in any
    /// case, so a slow one is reported like a slow task.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = HashedWheelTimer::builder().slow_task_threshold(Duration::from_millis(5));
    /// let (timer, mut driver) = builder.clock(clock.clone()).build_driven()?;
    ///
    /// let time = clock.clone();
    /// timer.new_timeout(move |_| time.advance(Duration::from_millis(7)), Duration::from_secs(1))?;
    /// clock.advance(Duration::from_secs(1));
    /// driver.turn();
    /// assert_eq!(timer.stats().slow_tasks, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slow_task_threshold(self, threshold: Duration) -> Self {
        Self { slow_task_threshold: Some(threshold), ..self }
    }

    /// The worker thread's name. Default: `hashed-wheel-N`.
    pub fn thread_name(self, name: impl Into<String>) -> Self {
        Self { thread_name: Some(name.into()), ..self }
    }

    /// What ends the sleep of the loop that turns a [`Driver`]: an `eventfd`, `mio::Waker::wake`, `polling::Poller::notify`,
    /// a condition variable. Has no meaning for a timer with a thread. Default: nothing.
    ///
    /// It is called on the thread of whoever needs the loop to turn earlier than [`Driver::next_turn`] has promised: for a
    /// [`new_timeout`](HashedWheelTimer::new_timeout) or a [`reset`](crate::Timeout::reset) with an earlier deadline; for
    /// every 4 096th `new_timeout`, so that they do not pile up (unless the turn is due at the next tick anyway); and by
    /// [`stop`](HashedWheelTimer::stop). Not more than once for each promise, and once for `stop`: a promise holds from
    /// `next_turn` until the waker is called or the driver is turned. A caller may be slow, so a call may come when the
    /// loop is at work again, and two may overlap.
    ///
    /// A call that comes before the loop has fallen asleep must not be lost: the sleep has to end at once then, as
    /// it does with all of the above. It must not block: until it returns, nobody else wakes the loop. A panic is reported
    /// and counted, and the next one who needs the loop calls the waker again (after `stop` nobody does). The waker lives
    /// as long as any handle or timeout of the timer, so it must hold none of them, or these never go. (And as long as a
    /// thread keeps something of the timer: until it ends or uses another one.)
    pub fn waker(self, waker: impl Fn() + Send + Sync + 'static) -> Self {
        Self { waker: Some(Waker::new(waker)), ..self }
    }

    /// Where the time comes from. Default: the operating system's monotonic clock. (The first timer on it in a process
    /// takes a millisecond to be built: it measures how fast the processor's counter runs.) Where there is none, on
    /// `wasm32-unknown-unknown`, a timer has to be given one, say from the host's `performance.now`.
    ///
    /// The clock goes with the timer: when the last handle and timeout are gone, and no thread keeps anything of it; on
    /// whatever thread that is.
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Box::new(clock)), ..self }
    }

    /// Builds the timer. Its thread is started by the first timeout, or by [`start`](HashedWheelTimer::start). Where there are
    /// no threads, as on `wasm32`, that is an error each time: a timer is [driven](Self::build_driven) there.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] that says what was wrong and what is allowed.
    pub fn build(self) -> Result<HashedWheelTimer, BuildError> {
        Self { waker: None, ..self }.build_shared(false).map(HashedWheelTimer::from_shared)
    }

    /// Builds a timer that has no thread: nothing happens but when the [`Driver`] is turned. With a [`clock`](Self::clock) it
    /// asks the platform for neither time nor threads, so it runs wherever there are 64-bit atomics.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    pub fn build_driven(self) -> Result<(HashedWheelTimer, Driver), BuildError> {
        let shared = self.build_shared(true)?;
        // There is nothing to start.
        shared.state.set_started();
        let driver = Driver::new(Arc::clone(&shared));
        Ok((HashedWheelTimer::from_shared(shared), driver))
    }

    fn build_shared(self, is_driven: bool) -> Result<Arc<Shared>, BuildError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);

        if self.tick.is_zero() {
            return Err(BuildError::ZeroTick);
        }
        if self.ticks_per_wheel == 0 {
            return Err(BuildError::ZeroTicksPerWheel);
        }
        if self.ticks_per_wheel > MAX_TICKS_PER_WHEEL {
            return Err(BuildError::TooManyTicksPerWheel { max: MAX_TICKS_PER_WHEEL });
        }
        let ticks_per_wheel = self.ticks_per_wheel.next_power_of_two();
        // A turn of the wheel has to be a time that can be counted, as in Netty, and one that can be over.
        let longest_tick = Duration::from_nanos((DEADLINE_RUNNING - 1) / ticks_per_wheel as u64);
        if self.tick > longest_tick {
            return Err(BuildError::TickTooLong { max: longest_tick });
        }
        if self.tick < SHORTEST_TICK {
            report::tick_raised(self.tick, SHORTEST_TICK);
        }
        let thread_name = self
            .thread_name
            .unwrap_or_else(|| format!("hashed-wheel-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        if thread_name.contains('\0') {
            return Err(BuildError::NulInThreadName);
        }
        if self.clock.is_none() && !HAS_CLOCK {
            return Err(BuildError::NoClock);
        }
        Ok(Shared::build(Settings {
            tick: self.tick.max(SHORTEST_TICK),
            wheel: match self.hierarchical {
                true => EitherWheel::Hierarchical(Hierarchical::new(ticks_per_wheel)),
                false => EitherWheel::Hashed(Hashed::new(ticks_per_wheel)),
            },
            limit: self.max_pending_timeouts,
            thread_name,
            is_driven,
            executor: self.executor,
            slow_task_threshold: self.slow_task_threshold.map_or(DEADLINE_NEVER, ticks::nanos),
            waker: self.waker,
            clock: self.clock,
        }))
    }
}

/// As [`HashedWheelTimer::builder`].
impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("tick", &self.tick)
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .field("hierarchical", &self.hierarchical)
            .field("max_pending_timeouts", &self.max_pending_timeouts)
            .field("slow_task_threshold", &self.slow_task_threshold)
            .field("thread_name", &self.thread_name)
            .finish_non_exhaustive()
    }
}

impl HashedWheelTimer {
    /// A timer with the given tick and number of slots, and defaults for everything else. Netty's constructor.
    ///
    /// A short tick fires closer to the deadline and wakes the worker more often while there is traffic; ticks from 1 µs
    /// up are honoured, shorter ones become 1 µs. More slots mean fewer rounds; `ticks_per_wheel` is rounded up to a power
    /// of two.
    ///
    /// # Panics
    ///
    /// On what [`Builder::build`] refuses: a tick of zero, or one so long that a turn of the wheel takes 146 years; no
    /// slots, or more than [2^30](crate::wheel::MAX_TICKS_PER_WHEEL). And where the platform
    /// [has no clock](crate::BuildError::NoClock).
    #[must_use]
    #[track_caller]
    pub fn new(tick: Duration, ticks_per_wheel: usize) -> Self {
        match Self::builder().tick(tick).ticks_per_wheel(ticks_per_wheel).build() {
            Ok(timer) => timer,
            Err(error) => panic!("cannot build this timer: {error}"),
        }
    }

    /// All that can be set, with Netty's defaults.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The process's own timer: built when first asked for, with the [defaults](Self::default) and a thread named
    /// `hashed-wheel`, and never dropped.
    ///
    /// For an application that wants its timeouts and nothing to set up. All who use it share the one worker, so each
    /// task has to be short. [`stop`](Self::stop) stops it for everybody and for good: a `new_timeout` after that is an
    /// error, in whatever part of the program. If nobody does, its thread ends with the process, and what is pending then
    /// neither runs nor is dropped.
    ///
    /// So it is not for a library that has to end what it began, nor for who needs another tick, a limit, an executor or a
    /// clock to test with: these take a `HashedWheelTimer` from their caller, who may well pass
    /// `HashedWheelTimer::global().clone()`.
    ///
    /// # Panics
    ///
    /// Where the platform has no clock: `wasm32-unknown-unknown`.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::time::Duration;
    ///
    /// let late = HashedWheelTimer::global().new_timeout(|_| println!("too slow"), Duration::from_secs(5))?;
    /// // … the work …
    /// late.cancel();
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<HashedWheelTimer> = OnceLock::new();

        GLOBAL.get_or_init(|| {
            let named = Self::builder().thread_name("hashed-wheel");
            named.build().expect("the defaults can be built")
        })
    }
}

/// Netty's defaults: a tick of 100 ms, 512 slots.
impl Default for HashedWheelTimer {
    fn default() -> Self {
        Self::builder().build().expect("the defaults can be built")
    }
}
