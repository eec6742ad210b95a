//! Construction of a timer. Here: the settings.
//!
//! | file | content |
//! |---|---|
//! | `build` | the check of the settings, and the timer |

mod build;

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::clock::{Clock, MonotonicClock};
#[cfg(doc)]
use crate::driver::Driver;
use crate::engine::{Callback, Settings};
use crate::task::TaskExecutor;
use crate::ticks;
#[cfg(doc)]
use crate::timer::HashedWheelTimer;

/// Configures and builds a timer: [`HashedWheelTimer::builder`].
///
/// Every setting has a default, which is Netty's where Netty has the setting. A setting that the
/// timer to build cannot use, such as the stack of a thread that it does not have, is [an
/// error](crate::BuildError::UnusedOption).
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
///     .max_pending_timeouts(Some(100_000))
///     .thread_name("timeouts")
///     .build()?;
/// assert_eq!(timer.ticks_per_wheel(), 1_024);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
#[must_use]
pub struct Builder(Settings);

impl Builder {
    /// Sets the length of a tick. Default: 100 ms.
    ///
    /// The tick bounds how late a timeout fires, and how often the worker wakes for timeouts that
    /// fall due. Ticks from 1 µs are honoured. A shorter one becomes 1 µs, with a warning.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::builder().tick(Duration::from_millis(5)).build()?;
    /// assert_eq!(timer.tick_duration(), Duration::from_millis(5));
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    #[doc(alias("tickDuration", "resolution"))]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.0.tick = tick;
        self
    }

    /// Sets the number of slots, from 1 to [2^30](crate::wheel::MAX_TICKS_PER_WHEEL). Default: 512.
    ///
    /// The number is rounded up to a power of two. A slot takes about five bytes of address space.
    /// The operating system provides memory only for slots that are used.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// let timer = HashedWheelTimer::builder().ticks_per_wheel(1_000).build()?;
    /// assert_eq!(timer.ticks_per_wheel(), 1_024);
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    #[doc(alias("ticksPerWheel", "wheelSize"))]
    pub fn ticks_per_wheel(mut self, n: usize) -> Self {
        self.0.ticks_per_wheel = n;
        self
    }

    /// Whether to use the [hierarchical wheel](crate::wheel::HierarchicalWheel). Default: false,
    /// which is the [hashed wheel](crate::wheel::HashedWheel).
    ///
    /// A hierarchical wheel has levels of [`ticks_per_wheel`](Self::ticks_per_wheel) slots (at
    /// least two, and above the lowest level at most 2^16) instead of rounds. The timer behaves the
    /// same on either wheel. The documentation of [the wheels](crate::wheel) says which one costs
    /// less for which delays.
    ///
    /// # Examples
    ///
    /// Leases of very different lengths:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::builder().hierarchical(true).ticks_per_wheel(64).build()?;
    /// for seconds in [1, 60, 3_600, 86_400] {
    ///     timer.new_timeout(move |_| println!("{seconds} s"), Duration::from_secs(seconds))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hierarchical(mut self, hierarchical: bool) -> Self {
        self.0.hierarchical = hierarchical;
        self
    }

    /// Limits how many timeouts may be pending at a time. Default: `None`, no limit.
    ///
    /// A limit of zero is [an error](crate::BuildError::ZeroLimit): in Netty it means no limit, and
    /// a computed zero would switch the limit off.
    ///
    /// At the limit a new timeout is rejected with
    /// [`TooManyPending`](crate::NewTimeoutError::TooManyPending). A limit of 2^32 or more is never
    /// reached: see "Out of memory" at [`new_timeout`](crate::HashedWheelTimer::new_timeout).
    ///
    /// The number of pending timeouts is exact at every moment then. For that each new timeout and
    /// each end writes one word that all threads share; a timer without a limit has no such word.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::builder().max_pending_timeouts(Some(1)).build()?;
    /// let first = timer.new_timeout(|_| (), Duration::from_secs(5))?;
    /// let second = timer.new_timeout(|_| (), Duration::from_secs(5));
    /// assert!(matches!(second, Err(NewTimeoutError::TooManyPending { limit: 1 })));
    /// first.cancel();
    /// assert!(timer.new_timeout(|_| (), Duration::from_secs(5)).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("maxPendingTimeouts", "limit", "capacity"))]
    pub fn max_pending_timeouts(mut self, limit: impl Into<Option<usize>>) -> Self {
        self.0.max_pending_timeouts = limit.into();
        self
    }

    /// Sets the executor that runs expired tasks. Default: the worker runs them itself.
    ///
    /// The crate hashed-wheel-util has executors for tokio and rayon, and wrappers that do
    /// something else with the tasks that an executor refuses.
    ///
    /// # Examples
    ///
    /// One thread per task:
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, executor};
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// let a_thread_each = executor::from_fn(|task| {
    ///     thread::spawn(|| task.run());
    ///     Ok(())
    /// });
    /// let timer = HashedWheelTimer::builder().task_executor(a_thread_each).build()?;
    /// timer.new_timeout(|_| println!("may block"), Duration::from_secs(1))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("taskExecutor"))]
    pub fn task_executor(mut self, executor: impl TaskExecutor) -> Self {
        // A task that comes back is dropped, which is reported and counted.
        let execute = move |task| drop(executor.execute(task));
        self.0.executor = Some(Box::new(execute));
        self
    }

    /// Whether the drop of the last handle returns immediately. Default: false. It waits for a task
    /// that runs on the worker, and joins the worker thread.
    ///
    /// A drop that does not wait stops the timer on another thread, as
    /// [`begin_stop`](HashedWheelTimer::begin_stop) does. That thread calls the
    /// [`cancelled`](crate::TimerTask::cancelled) hooks. tokio's `Runtime::shutdown_background`.
    ///
    /// If the operating system refuses the thread, the drop waits. The drop of a [`Driver`] waits
    /// as always.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().detach_on_drop(true).build()?;
    /// timer.start()?;
    /// drop(timer); // does not join the worker thread
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach_on_drop(mut self, detach_on_drop: bool) -> Self {
        self.0.options.detaches_on_drop = detach_on_drop;
        self
    }

    /// Reports and counts each task that takes longer than this on the worker. Default: `None`, no
    /// threshold.
    ///
    /// The report names the task's type and the time it took. The count is
    /// [`Stats::slow_tasks`](crate::Stats::slow_tasks). While such a task runs, no other timeout
    /// can.
    ///
    /// With zero, every task is reported that takes any time by the clock. With a threshold, of any
    /// length, the worker reads the clock before and after each task, and
    /// [`Ending::running_task`](crate::Ending::running_task) knows which task runs. With `None` the
    /// worker does neither.
    ///
    /// With a [task executor](Self::task_executor) it is the executor's
    /// [`execute`](TaskExecutor::execute) that is measured, and not what the task does elsewhere.
    /// The wakers of futures always run on the worker, so a slow waker is reported like a slow
    /// task.
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
    pub fn slow_task_threshold(mut self, threshold: impl Into<Option<Duration>>) -> Self {
        self.0.options.slow_task_threshold = threshold.into().map(ticks::nanos);
        self
    }

    /// Limits how many tasks the worker thread runs in one turn. Default: `None`, no limit. A limit
    /// of zero is [an error](crate::BuildError::ZeroLimit).
    ///
    /// A turn begins by draining the queue, at most 100 000 messages of it. Without a limit the
    /// worker then runs everything that is due before it looks at the queue again. With a limit it
    /// looks again after this many tasks, and then continues where it was. So it sees these while
    /// much is due:
    ///
    /// - New timeouts and resets. One that falls due meanwhile fires in its place, by tick.
    /// - Cancelled timeouts, whose memory it reclaims. (A `cancel` takes effect at once in any
    ///   case, and [`stop`](HashedWheelTimer::stop) ends a turn after the task that is running.)
    /// - Calls that wait for the end of a turn: [`cancel_all`](HashedWheelTimer::cancel_all) and
    ///   [`cancel_and_wait`](crate::Timeout::cancel_and_wait).
    ///
    /// [`occupancy`](HashedWheelTimer::occupancy) never waits, and is an error during a turn. The
    /// turns of a burst follow each other within a microsecond, so it nearly always is until the
    /// burst is over.
    ///
    /// Timeouts fire in the same order with any limit, except those that were reset, and those that
    /// tasks schedule meanwhile. A task that is handed to a [task executor](Self::task_executor)
    /// counts as one that runs. A timeout that was [reset](crate::Timeout::reset) to a later
    /// deadline does not count when it is moved, nor does a question whether a task
    /// [postpones](crate::TimerTask::postpone) itself.
    ///
    /// Not for a [driven timer](Self::build_driven), which has [`Driver::turn_at_most`]; but for a
    /// [hosted](Self::build_hosted) one.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().max_tasks_per_turn(Some(1_000)).build()?;
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn max_tasks_per_turn(mut self, limit: impl Into<Option<usize>>) -> Self {
        self.0.max_tasks_per_turn = limit.into();
        self
    }

    /// Sets the worker thread's name. Default: `hashed-wheel-N`, with a number N.
    ///
    /// Not for a timer without a thread, which reports itself by the default name.
    ///
    /// On Linux the thread's timer slack is a thousandth of the tick, and at most what the thread
    /// that started it had. Threads and processes that a task starts inherit this.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::sync::mpsc;
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// let timer = HashedWheelTimer::builder().thread_name("timeouts").build()?;
    /// let (name, names) = mpsc::channel();
    /// let task = move |_: &_| drop(name.send(thread::current().name().map(str::to_owned)));
    /// timer.new_timeout(task, Duration::ZERO)?;
    /// assert_eq!(names.recv()?.as_deref(), Some("timeouts"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("threadFactory"))]
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.0.thread.name = Some(name.into());
        self
    }

    /// Sets the stack size of the worker thread, in bytes. Default: that of [`std::thread`], which
    /// is 2 MiB. tokio's `thread_stack_size`.
    ///
    /// Tasks run on this stack, unless a [task executor](Self::task_executor) runs them. A closure
    /// that captures more than three words is in memory of its own and runs there, so its size does
    /// not count. The same holds for periodic tasks. A [`TimerTask`](crate::TimerTask) is moved to
    /// the stack when it runs.
    ///
    /// The operating system may round the size up. If it cannot provide such a stack, the call that
    /// starts the thread returns [`Spawn`](crate::NewTimeoutError::Spawn).
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().thread_stack_size(256 * 1024).build()?;
    /// timer.start()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thread_stack_size(mut self, bytes: usize) -> Self {
        self.0.thread.stack_size = Some(bytes);
        self
    }

    /// Sets a function that the worker thread calls when it starts, before any task. Default: none.
    /// tokio's `on_thread_start`, and the use of Netty's `ThreadFactory`: to pin the thread, to set
    /// its priority, or to register it with a profiler.
    ///
    /// The function is called on the worker thread. No timeout fires before it returns. The call
    /// that starts the thread does not wait for it. What the function sets for its thread replaces
    /// what the timer has set, such as the [timer slack](Self::thread_name).
    ///
    /// A panic is reported and counted in [`Stats::panics`](crate::Stats::panics), and has no other
    /// effect. The function must hold no handle and no timeout of the timer, or these are never
    /// dropped. It must not shut the timer down or wait for its end, which waits for this thread. A
    /// later call of this method replaces the function.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::sync::mpsc;
    /// use std::thread;
    ///
    /// let (started, wait) = mpsc::channel();
    /// let timer = HashedWheelTimer::builder()
    ///     .on_thread_start(move || started.send(thread::current().id()).unwrap())
    ///     .on_thread_stop(|| println!("the timer's thread ends"))
    ///     .build()?;
    /// timer.start()?;
    /// assert_ne!(wait.recv()?, thread::current().id());
    /// timer.stop(); // returns after the thread has printed its line
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("threadFactory"))]
    pub fn on_thread_start(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.0.thread.on_start = Some(Callback::new("(on_thread_start)", f));
        self
    }

    /// Sets a function that the worker thread calls before it ends. Default: none. tokio's
    /// `on_thread_stop`.
    ///
    /// No task runs on the thread after the function was called. The
    /// [`stop`](HashedWheelTimer::stop) that ends the timer returns after the function has. It is
    /// called exactly once for each call of [`on_thread_start`](Self::on_thread_start)'s function,
    /// unless the process ends first.
    ///
    /// Panics, captured handles and later calls: as for
    /// [`on_thread_start`](Self::on_thread_start), which also has an example.
    pub fn on_thread_stop(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.0.thread.on_stop = Some(Callback::new("(on_thread_stop)", f));
        self
    }

    /// Sets the function that ends the sleep of the event loop that turns a [`Driver`]. Default:
    /// none.
    ///
    /// Typical wakers are an `eventfd`, `mio::Waker::wake`, `polling::Poller::notify`, and a
    /// condition variable. Only for a [driven timer](Self::build_driven).
    ///
    /// # When it is called
    ///
    /// The timer calls the waker if the loop has to turn earlier than [`Driver::next_turn`]
    /// announced, on the thread that causes this:
    ///
    /// - by a [`new_timeout`](HashedWheelTimer::new_timeout) or a [`reset`](crate::Timeout::reset)
    ///   with an earlier deadline,
    /// - by every 4 096th message of a thread (a new timeout, a cancellation or a reset), so that
    ///   they do not use more and more memory, unless the turn is due within 50 ms anyway,
    /// - by [`stop`](HashedWheelTimer::stop).
    ///
    /// It is called at most once per announcement, and once by `stop`. An announcement holds from
    /// `next_turn` until the waker is called or the driver is turned. The calling thread may be
    /// slow: a call may arrive when the loop is running again, and two calls may overlap.
    ///
    /// # What it has to guarantee
    ///
    /// - A call that arrives before the loop has fallen asleep must not be lost: the sleep must
    ///   then end immediately. All wakers named above can do this.
    /// - It must not block. Until it returns, no other thread wakes the loop.
    /// - It must hold no handle and no timeout of the timer, or these are never dropped. The waker
    ///   lives as long as any of them. It also lives as long as a thread caches state of the timer:
    ///   until that thread ends or uses another timer.
    ///
    /// A panic is reported and counted. The next thread that needs the loop calls the waker again,
    /// but not after `stop`.
    ///
    /// # Examples
    ///
    /// The loop is a thread that parks, and the waker unparks it:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// let event_loop = thread::current();
    /// let (timer, mut driver) = HashedWheelTimer::builder()
    ///     .tick(Duration::from_millis(1))
    ///     .waker(move || event_loop.unpark())
    ///     .build_driven()?;
    ///
    /// let other = timer.clone();
    /// thread::spawn(move || other.new_timeout(|_| println!("expired"), Duration::from_millis(5)));
    /// while timer.stats().expired == 0 {
    ///     match driver.next_turn() {
    ///         Some(wait) => thread::park_timeout(wait),
    ///         None => thread::park(), // nothing is pending yet
    ///     }
    ///     driver.turn();
    /// }
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn waker(mut self, waker: impl Fn() + Send + Sync + 'static) -> Self {
        self.0.waker = Some(Callback::new("(the waker)", waker));
        self
    }

    /// Sets the clock. Default: the machine's monotonic clock, which is [`MonotonicClock`].
    ///
    /// The first timer of a process that uses the default clock [may block](Self::build) the thread
    /// that builds it. A platform without a clock (`wasm32-unknown-unknown`) needs a clock here,
    /// for example the host's `performance.now`.
    ///
    /// The clock is dropped with the timer: when the last handle and the last timeout are dropped,
    /// and no thread caches state of the timer. This can happen on any thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = HashedWheelTimer::builder().clock(clock.clone());
    /// let (timer, mut driver) = builder.build_driven()?;
    /// timer.new_timeout(|_| println!("an hour has passed"), Duration::from_secs(3_600))?;
    /// clock.advance(Duration::from_secs(3_600));
    /// assert_eq!(driver.turn(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("Ticker"))]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        // `None` is the machine's clock too, and costs less to read.
        let is_default = (&clock as &dyn Any).is::<MonotonicClock>();
        self.0.clock = (!is_default).then(|| Box::new(clock) as Box<dyn Clock>);
        self
    }

    /// Returns whether a [clock](Self::clock) was set, other than the default. For code that sets
    /// one only if the user has not.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{Builder, ManualClock};
    ///
    /// let builder = Builder::default();
    /// assert!(!builder.has_clock());
    /// assert!(builder.clock(ManualClock::new()).has_clock());
    /// ```
    #[must_use]
    pub fn has_clock(&self) -> bool {
        self.0.clock.is_some()
    }
}

/// Returns the same as [`HashedWheelTimer::builder`].
impl Default for Builder {
    fn default() -> Self {
        Self(Settings {
            tick: Duration::from_millis(100),
            ticks_per_wheel: 512,
            ..Settings::default()
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(settings) = self;
        let Settings {
            options, thread, ..
        } = settings;
        let slow_task_threshold = options.slow_task_threshold.map(Duration::from_nanos);
        f.debug_struct("Builder")
            .field("tick", &settings.tick)
            .field("ticks_per_wheel", &settings.ticks_per_wheel)
            .field("hierarchical", &settings.hierarchical)
            .field("max_pending_timeouts", &settings.max_pending_timeouts)
            .field("slow_task_threshold", &slow_task_threshold)
            .field("max_tasks_per_turn", &settings.max_tasks_per_turn)
            .field("thread_name", &thread.name)
            .field("thread_stack_size", &thread.stack_size)
            .field("detach_on_drop", &options.detaches_on_drop)
            .finish_non_exhaustive()
    }
}
