//! The check of the settings, and the timer.

use std::time::Duration;

use super::Builder;
#[cfg(doc)]
use crate::clock::Clock;
use crate::driver::Driver;
use crate::either_wheel::EitherWheel;
use crate::engine::{Inner, Kind, forks, watch_forks};
use crate::error::BuildError;
use crate::platform::HAS_CLOCK;
use crate::report;
use crate::sync::unmodelled::{AtomicUsize, OnceLock};
use crate::sync::{Arc, Ordering};
use crate::ticks::DEADLINE_RUNNING;
use crate::timer::HashedWheelTimer;
use timing_wheels::{MAX_TICKS_PER_WHEEL, SizeError};

/// The shortest tick; a shorter one becomes this.
const SHORTEST_TICK: Duration = Duration::from_micros(1);

impl Builder {
    /// Builds the timer.
    ///
    /// The first timeout, or [`start`](HashedWheelTimer::start), starts its thread. On a platform
    /// without threads, such as `wasm32`, that is an error each time; there a timer has to be
    /// [driven](Self::build_driven).
    ///
    /// # The first timer of a process
    ///
    /// The first timer that uses the default clock measures the frequency of the processor's
    /// counter. This blocks the calling thread for about a millisecond. On a busy machine, or under
    /// a CPU quota, it takes up to 200 ms. Other threads that build a timer at this time wait for
    /// it. A program that cannot wait later builds a timer when it starts.
    ///
    /// This holds for every function that builds a timer. If the timer cannot use the counter, it
    /// does not measure it: for example on x86 Linux if the kernel's clock uses another source.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] says which setting is wrong and which values are allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{BuildError, HashedWheelTimer};
    ///
    /// let result = HashedWheelTimer::builder().ticks_per_wheel(0).build();
    /// assert!(matches!(result, Err(BuildError::ZeroTicksPerWheel)));
    /// ```
    pub fn build(self) -> Result<HashedWheelTimer, BuildError> {
        self.check_options(Kind::Threaded)?;
        let inner = self.build_shared(Kind::Threaded)?;
        Ok(HashedWheelTimer::from_shared(inner))
    }

    /// Builds a timer without a thread. Nothing happens except when the [`Driver`] is turned.
    ///
    /// With a [`clock`](Self::clock) such a timer needs neither time nor threads from the platform.
    /// So it runs on every platform that has 64-bit atomics. The documentation of [`Driver`] has
    /// examples.
    ///
    /// Without a clock, the first timer of a process [may block](Self::build) for up to 200 ms.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// timer.new_timeout(|_| println!("5 s are over"), Duration::from_secs(5))?;
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(driver.turn(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_driven(self) -> Result<(HashedWheelTimer, Driver), BuildError> {
        self.check_options(Kind::Driven)?;
        self.build_driven_as(Kind::Driven)
    }

    /// Builds a timer that a loop of its own turns until it stops, such as a task of a runtime. To
    /// the other threads it is as a timer with a thread.
    ///
    /// It differs from a [driven timer](Self::build_driven) in this:
    ///
    /// - [`shutdown`](HashedWheelTimer::shutdown) waits for the loop, in real time, and does not
    ///   turn the timer on its own thread. So tasks run nowhere but in the loop.
    /// - [`max_tasks_per_turn`](Self::max_tasks_per_turn) limits each [`turn`](Driver::turn).
    /// - It always has a waker, because a loop without one would sleep for ever: `waker` is what
    ///   [`Builder::waker`](Self::waker) describes.
    ///
    /// The loop turns the driver and sleeps for [`next_turn`](Driver::next_turn), until the timer
    /// [is stopped](Driver::is_stopped). Then it drops the driver. The crate hashed-wheel-util has
    /// such a loop for tokio.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build). A waker that was set, and the settings of the thread, are [an
    /// error](BuildError::UnusedOption).
    ///
    /// # Examples
    ///
    /// The loop is a thread that parks:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::sync::mpsc;
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// let (send, receive) = mpsc::channel();
    /// let host = thread::spawn(move || {
    ///     let this = thread::current();
    ///     let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
    ///     let (timer, mut driver) = builder.build_hosted(move || this.unpark()).unwrap();
    ///     send.send(timer).unwrap();
    ///     while !driver.is_stopped() {
    ///         driver.turn();
    ///         match driver.next_turn() {
    ///             _ if driver.is_stopped() => break,
    ///             Some(wait) => thread::park_timeout(wait),
    ///             None => thread::park(),
    ///         }
    ///     }
    /// });
    /// let timer = receive.recv()?;
    /// let near = timer.new_timeout(|_| println!("expired"), Duration::from_millis(5))?;
    /// assert!(timer.shutdown(Duration::from_secs(10)).is_empty()); // the host has run it
    /// assert!(near.is_expired());
    /// host.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_hosted(
        self,
        waker: impl Fn() + Send + Sync + 'static,
    ) -> Result<(HashedWheelTimer, Driver), BuildError> {
        self.check_options(Kind::Hosted)?;
        self.waker(waker).build_driven_as(Kind::Hosted)
    }

    fn build_driven_as(self, kind: Kind) -> Result<(HashedWheelTimer, Driver), BuildError> {
        let inner = self.build_shared(kind)?;
        // A driven timer has no thread to start.
        inner.state.set_started();
        let timer = HashedWheelTimer::from_shared(Arc::clone(&inner));
        Ok((timer, Driver { inner }))
    }

    /// Checks that such a timer can use all settings.
    fn check_options(&self, kind: Kind) -> Result<(), BuildError> {
        let Self(settings) = self;
        let thread = &settings.thread;
        let (has_thread, of_driver) = (!kind.is_driven(), kind == Kind::Driven);
        let limits_tasks = settings.max_tasks_per_turn.is_some();
        // In each row, whether the timer has a use for the option.
        let options = [
            (has_thread, "thread_name", thread.name.is_some()),
            (has_thread, "thread_stack_size", thread.stack_size.is_some()),
            (has_thread, "on_thread_start", thread.on_start.is_some()),
            (has_thread, "on_thread_stop", thread.on_stop.is_some()),
            (!of_driver, "max_tasks_per_turn", limits_tasks),
            (of_driver, "waker", settings.waker.is_some()),
        ];
        let timer = kind.text();
        match options.iter().find(|(used, _, set)| *set && !used) {
            Some(&(_, option, _)) => Err(BuildError::UnusedOption { option, timer }),
            None => Ok(()),
        }
    }

    /// Builds a timer whose options were checked.
    fn build_shared(self, kind: Kind) -> Result<Arc<Inner>, BuildError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);

        let Self(mut settings) = self;
        settings.options.kind = kind;
        let limits = [
            ("max_pending_timeouts", settings.max_pending_timeouts),
            ("max_tasks_per_turn", settings.max_tasks_per_turn),
        ];
        if let Some((option, _)) = limits.into_iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(BuildError::ZeroLimit { option });
        }
        if settings.tick.is_zero() {
            return Err(BuildError::ZeroTick);
        }
        // One round of the wheel must be a representable time, as in Netty, and shorter than the
        // longest time that a timer can count. This is checked first, because whether there is
        // memory depends on the machine.
        let (least, most) = (1 + usize::from(settings.hierarchical), MAX_TICKS_PER_WHEEL);
        let slots = settings.ticks_per_wheel.clamp(least, most);
        let max = Duration::from_nanos((DEADLINE_RUNNING - 1) / slots.next_power_of_two() as u64);
        if settings.tick > max {
            return Err(BuildError::TickTooLong { max });
        }
        let wheel = EitherWheel::try_new(settings.hierarchical, settings.ticks_per_wheel);
        let wheel = wheel.map_err(|error| match error {
            SizeError::NoMemory { bytes } => BuildError::NoMemory { bytes },
            _ if settings.ticks_per_wheel == 0 => BuildError::ZeroTicksPerWheel,
            _ => BuildError::TooManyTicksPerWheel { max: most },
        })?;
        if settings.tick < SHORTEST_TICK {
            report::tick_raised(settings.tick, SHORTEST_TICK);
            settings.tick = SHORTEST_TICK;
        }
        let default_name = || format!("hashed-wheel-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let thread_name = settings.thread.name.get_or_insert_with(default_name);
        if thread_name.contains('\0') {
            return Err(BuildError::NulInThreadName);
        }
        if settings.clock.is_none() && !HAS_CLOCK {
            return Err(BuildError::NoClock);
        }
        Ok(Inner::build(settings, wheel))
    }
}

impl HashedWheelTimer {
    /// Builds a timer with the given tick and number of slots. Netty's constructor.
    ///
    /// All other settings have their [defaults](Self::builder).
    ///
    /// A shorter tick fires timeouts closer to their deadlines, and wakes the worker more often
    /// while there is traffic. Ticks from 1 µs are honoured; a shorter one becomes 1 µs. More slots
    /// mean fewer rounds. `ticks_per_wheel` is rounded up to a power of two.
    ///
    /// The first timer of a process [may block](Builder::build) this call for up to 200 ms.
    ///
    /// # Panics
    ///
    /// If [`Builder::build`] returns an error:
    ///
    /// - `tick` is zero, or so long that one round of the wheel takes more than 146 years.
    /// - `ticks_per_wheel` is zero, or more than [2^30](crate::wheel::MAX_TICKS_PER_WHEEL).
    /// - The platform has [no clock](crate::BuildError::NoClock).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    /// timer.new_timeout(|_| println!("too slow"), Duration::from_secs(5))?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn new(tick: Duration, ticks_per_wheel: usize) -> Self {
        let builder = Self::builder().tick(tick);
        match builder.ticks_per_wheel(ticks_per_wheel).build() {
            Ok(timer) => timer,
            Err(error) => panic!("cannot build this timer: {error}"),
        }
    }

    /// Returns a builder with Netty's defaults: a tick of 100 ms, 512 slots, no limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().max_pending_timeouts(Some(100_000)).build()?;
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the timer of the process. The first call builds it, and [may block](Builder::build)
    /// for up to 200 ms.
    ///
    /// It has the [defaults](Self::default) and a thread named `hashed-wheel`. It is never dropped,
    /// and cannot be ended, because any code in the process may use it: [`stop`](Self::stop),
    /// [`shutdown`](Self::shutdown), [`begin_stop`](Self::begin_stop),
    /// [`begin_shutdown`](Self::begin_shutdown) and [`cancel_all`](Self::cancel_all) panic.
    ///
    /// # When to use it
    ///
    /// Use it in an application that needs timeouts and no settings. All users share one worker, so
    /// every task has to be short.
    ///
    /// Its thread ends with the process. What is pending then neither runs nor is dropped. A child
    /// process that is [forked](Self#after-fork) gets a timer of its own (on Linux; elsewhere it
    /// gets the copy of this one).
    ///
    /// A library that has to end what it began should not use it. Neither should code that needs
    /// another tick, a limit, an executor, or a clock for tests. Such code should accept a
    /// `HashedWheelTimer` from its caller, who may pass `HashedWheelTimer::global().clone()`.
    ///
    /// # Panics
    ///
    /// If the platform has no clock: `wasm32-unknown-unknown`.
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
        static GLOBAL: OnceLock<Global> = OnceLock::new();

        let mut global = GLOBAL.get_or_init(Global::new);
        while global.forks != forks() {
            // It was made before this process was forked.
            global = global.next.get_or_init(|| Box::new(Global::new()));
        }
        &global.timer
    }
}

/// The global timer of this process, or of one that it was forked from.
struct Global {
    timer: HashedWheelTimer,
    /// The value of [`forks`] when it was made.
    forks: usize,
    next: OnceLock<Box<Global>>,
}

impl Global {
    fn new() -> Self {
        watch_forks();
        let named = HashedWheelTimer::builder().thread_name("hashed-wheel");
        let inner = named.build_shared(Kind::Global);
        Self {
            timer: HashedWheelTimer::from_shared(inner.expect("the defaults can be built")),
            forks: forks(),
            next: OnceLock::new(),
        }
    }
}

/// Builds a timer with Netty's defaults: a tick of 100 ms, 512 slots.
impl Default for HashedWheelTimer {
    fn default() -> Self {
        Self::builder().build().expect("the defaults can be built")
    }
}
