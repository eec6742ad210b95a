//! The timer's handle.

use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::{Shared, Timeout};
use crate::error::NewTimeoutError;
use crate::stats::{Occupancy, Stats};
use crate::sync::{Arc, Ordering};
use crate::task::{Closure, OfType, TimerTask};

/// A timer for very many coarse timeouts: Netty's `HashedWheelTimer`.
///
/// This is a handle; clones name the same timer. The timer stops when its last handle is dropped (its timeouts do not
/// count), or earlier by [`stop`](Self::stop). A process needs one timer, perhaps a few; share it by cloning.
///
/// # When a timeout fires
///
/// Time is cut into ticks, counted from when the timer was built. A timeout fires at the first tick boundary at or after
/// its deadline that has not been processed yet: never early, at most a tick late, beside what the operating system takes
/// to wake a thread. Timeouts that one thread scheduled for the same tick fire in the order in which they were scheduled.
/// A worker that was held up, by a slow task or a suspended machine, catches up with all that is due, in the order of the
/// ticks. (It takes over 100 000 new timeouts at a time; where more had to wait, the order is that within each lot.)
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
/// let (fired, wait) = mpsc::channel();
/// timer.new_timeout(move |_| fired.send("ring").unwrap(), Duration::from_millis(50))?;
/// let never = timer.new_timeout(|_| unreachable!(), Duration::from_secs(60))?;
///
/// assert!(never.cancel());
/// assert_eq!(wait.recv()?, "ring");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HashedWheelTimer {
    pub(crate) shared: Arc<Shared>,
    /// Whether it is one of `SharedFields::handles`. Not if a timeout gave it out when none of these was left.
    counts: bool,
}

impl HashedWheelTimer {
    /// One more handle.
    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self { shared, counts: true }
    }

    /// A handle like any other, unless the last one is gone: that cannot be undone, nor done a second time.
    pub(crate) fn from_timeout(shared: Arc<Shared>) -> Self {
        let one_more = |handles| (handles > 0).then_some(handles + 1);
        let counts = shared.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok();
        Self { shared, counts }
    }

    /// Starts the worker thread now, rather than at the first [`new_timeout`](Self::new_timeout). Does nothing if it runs
    /// already, or if the timer is [driven](crate::Builder::build_driven). Netty's `start`.
    ///
    /// # Errors
    ///
    /// [`Stopped`](NewTimeoutError::Stopped), also while it is being [shut down](Self::shutdown); or
    /// [`Spawn`](NewTimeoutError::Spawn) if there is no thread to be had: the next call tries again.
    pub fn start(&self) -> Result<(), NewTimeoutError> {
        self.shared.start()
    }

    /// Schedules `task` to run once, `delay` from now. Netty's `newTimeout`.
    ///
    /// The deadline is fixed here, on the calling thread; a delay too large to represent never ends. Takes no lock that
    /// anybody else could hold, once the worker runs. Wakes the worker's thread at most once a tick, and not while there is
    /// traffic. (Of a driven timer, see [`Builder::waker`](crate::Builder::waker).)
    ///
    /// The task should be short, for the worker runs it, unless there is a [task executor](crate::Builder::task_executor).
    ///
    /// Where there is no memory the process ends, as for any allocation; so it does at 2^32 timeouts of one timer (256 GiB),
    /// ended ones that somebody holds a handle of included.
    ///
    /// # Errors
    ///
    /// [`Stopped`](NewTimeoutError::Stopped), [`TooManyPending`](NewTimeoutError::TooManyPending) or
    /// [`Spawn`](NewTimeoutError::Spawn). The task has been dropped then, on this thread.
    #[inline]
    pub fn new_timeout<F>(&self, task: F, delay: Duration) -> Result<Timeout, NewTimeoutError>
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        self.shared.schedule(Closure(task), delay)
    }

    /// [`new_timeout`](Self::new_timeout) for a task that is a type, and may want to know that it was
    /// [cancelled](TimerTask::cancelled).
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](Self::new_timeout).
    #[inline]
    pub fn new_timeout_task<T: TimerTask>(
        &self,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, NewTimeoutError> {
        self.shared.schedule(OfType(task), delay)
    }

    /// [`new_timeout`](Self::new_timeout) with a deadline in place of a delay: the task runs at the first tick boundary at or
    /// after it. One that has passed is a delay of zero, so the task runs at the next boundary; one that the timer cannot
    /// represent never comes.
    ///
    /// By the default clock that is exact, whenever the call is made: timeouts with one deadline belong to one tick. A
    /// [clock of one's own](crate::Builder::clock) knows no `Instant`, so what is left until `deadline` by the operating
    /// system's clock is counted from that clock's now.
    ///
    /// # Errors
    ///
    /// As for [`new_timeout`](Self::new_timeout).
    ///
    /// # Examples
    ///
    /// What several steps may take together:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::{Duration, Instant};
    /// # let timer = HashedWheelTimer::default();
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// for step in ["resolve", "connect", "ask"] {
    ///     let late = timer.new_timeout_at(move |_| println!("no time left to {step}"), deadline)?;
    ///     // … the step …
    ///     late.cancel();
    /// }
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn new_timeout_at<F>(&self, task: F, deadline: Instant) -> Result<Timeout, NewTimeoutError>
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        self.shared.schedule_by(Closure(task), self.shared.time.at(deadline))
    }

    /// Stops the timer for good and returns the timeouts that had not ended, each now cancelled and its
    /// [`cancelled`](TimerTask::cancelled) hook called. Netty's `stop`.
    ///
    /// Waits for a task that is running on the worker (it is never interrupted), and in the end for the worker thread;
    /// on a driven timer, for a turn that is in progress. Tasks that a [task executor](crate::Builder::task_executor) has taken
    /// are its own affair.
    ///
    /// The task executor is dropped, once nothing can be handed to it any more: by this call, so a task in a pool that
    /// waits for its own threads when it is dropped should not be the one to stop the timer.
    ///
    /// That is for the first call. Others, at the same time or later, wait until all timeouts have ended (not for the
    /// thread, nor for the executor's drop) and return an empty vector, as does a call on a timer that was never started, and
    /// one from a `cancelled` hook that `stop` itself has called. To drop the last handle or the [`Driver`](crate::Driver) is
    /// a call too, and may be the first; a loop that ends because it sees that the timer is stopped takes nothing from who
    /// stopped it.
    ///
    /// # Panics
    ///
    /// If called by a task on the worker, which would wait for itself. Nothing has changed then. (Netty:
    /// `IllegalStateException`.) Beware of calling it in a `Drop` that may run there: in a task that is panicking already,
    /// a second panic ends the process. Dropping a handle never panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("run out"), Duration::from_secs(30))?;
    /// assert_eq!(timer.stop(), [lease.clone()]);
    /// assert!(lease.is_cancelled());
    /// assert!(timer.stop().is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn stop(&self) -> Vec<Timeout> {
        if self.would_wait_for_itself("stop") { Vec::new() } else { self.shared.stop() }
    }

    /// [Stops](Self::stop) the timer, but first lets run what falls due within `grace` from now. Returns the rest.
    ///
    /// From this call on new timeouts are refused as by a [stopped](NewTimeoutError::Stopped) timer, also those of its own
    /// tasks. Of those that were accepted each whose deadline is no more than `grace` from now still runs, at its tick, as
    /// ever; so this may take a tick longer than `grace`, and what else there is for that tick runs too. What falls due
    /// later is returned, unless a slow task has held the worker up until then, or it comes while this has yet to see that all
    /// those have run: a millisecond or so, and with millions of timeouts what it says below. `cancel` and `reset` do what they
    /// always do.
    ///
    /// Waits no longer than it has to: where nothing that is pending falls due in time, be it because the rest was cancelled
    /// or re-armed meanwhile, it stops the timer within some 10 ms, or (with millions of timeouts) a tenth of a microsecond
    /// for each. A grace of zero is for what should have run by now; one of `Duration::MAX` waits for all that ever falls
    /// due. A task that runs on the worker is waited for, as by `stop`, and tasks that a
    /// [task executor](crate::Builder::task_executor) has taken are its own affair. [Periodic](crate::Periodic) tasks go on
    /// meanwhile, but keep nobody waiting, and are among what is returned.
    ///
    /// Until the grace is over the timer [is not stopped](Self::is_stopped). Who stops it before that, by `stop`, by dropping
    /// the [`Driver`](crate::Driver), or by a `shutdown` with less grace, gets what is left then; this call waits until all
    /// timeouts have ended and returns an empty vector.
    ///
    /// The time is that of the timer's [clock](crate::Builder::clock). Should that one stand still, or fall behind real time by more
    /// than a tick and 10 ms, real time decides.
    ///
    /// On a driven timer time passes for nobody but the loop that turns it, so this waits for none: it runs, on the calling
    /// thread, what is due now, and stops the timer. (A loop that wants to give grace goes on turning until that is over.)
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if called by a task on the worker. Nothing has changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let answer = timer.new_timeout(|_| println!("the last answer is on its way"), Duration::from_millis(20))?;
    /// let lease = timer.new_timeout(|_| println!("run out"), Duration::from_secs(3_600))?;
    ///
    /// // Takes 20 ms, for nothing else falls due within the second.
    /// assert_eq!(timer.shutdown(Duration::from_secs(1)), [lease]);
    /// assert!(answer.is_expired());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn shutdown(&self, grace: Duration) -> Vec<Timeout> {
        if self.would_wait_for_itself("shutdown") { Vec::new() } else { self.shared.shutdown(grace) }
    }

    /// Whether the caller is a hook that the end of the timer has called on this thread. Panics for a task on the worker.
    fn would_wait_for_itself(&self, method: &str) -> bool {
        let is_mine = self.shared.worker.is_held_by_this_thread();
        assert!(
            !is_mine || self.shared.worker.is_draining(),
            "HashedWheelTimer::{method} was called by a task on the timer's own worker, and would wait for that task to \
             end: call it from another thread, or drop the last handle"
        );
        is_mine
    }

    /// Whether the timer is stopped: by [`stop`](Self::stop), at the end of a [`shutdown`](Self::shutdown), by dropping its
    /// last handle or its [`Driver`](crate::Driver), or because its [`Clock`](crate::Clock) panicked on the worker thread.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.state.snapshot().is_stopped()
    }

    /// How many timeouts have not ended. Exact: never more than the limit, and zero after [`stop`](Self::stop). Netty's
    /// `pendingTimeouts`, which counts cancelled ones for up to a tick. (What expires is counted out before its task runs, and an
    /// instant after another thread could see it [expired](crate::Timeout::is_expired).)
    #[must_use]
    pub fn pending_timeouts(&self) -> usize {
        self.shared.state.pending() as usize
    }

    /// What the timer has done since it was built.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// timer.new_timeout(|_| (), Duration::from_secs(5))?.cancel();
    /// let stats = timer.stats();
    /// assert_eq!((stats.scheduled, stats.cancelled, stats.pending), (1, 1, 0));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// How full the slots of the wheel are: for a picture of a live timer, or to find out why it is slow.
    ///
    /// `None` while somebody else is at the wheel: a turn, and so for a task on the worker, or another look; and once the timer is
    /// stopped. It waits for nobody. But the worker, and `stop`, wait for it: it looks at each of
    /// [`ticks_per_wheel`](Self::ticks_per_wheel) slots, of each level, under the worker's lock, and takes eight bytes and some
    /// 5 to 15 ns for it. A few times a second that is nothing for a wheel of thousands of slots; for one of millions it makes
    /// timeouts late, and it is not for a path that is hot.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// let builder = HashedWheelTimer::builder().tick(Duration::from_millis(10)).ticks_per_wheel(8);
    /// let (timer, mut driver) = builder.clock(ManualClock::new()).build_driven()?;
    /// timer.new_timeout(|_| (), Duration::from_millis(30))?;
    /// timer.new_timeout(|_| (), Duration::from_millis(110))?; // a turn later
    /// assert_eq!(timer.occupancy().unwrap().queued, 2);
    ///
    /// driver.turn();
    /// let wheel = &timer.occupancy().unwrap().levels[0];
    /// assert_eq!(wheel.slots, [0, 0, 0, 2, 0, 0, 0, 0]);
    /// assert_eq!(wheel.current_slot, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn occupancy(&self) -> Option<Occupancy> {
        self.shared.occupancy()
    }

    /// The length of a tick.
    #[must_use]
    pub fn tick_duration(&self) -> Duration {
        self.shared.ticks.duration()
    }

    /// How many slots the wheel, or each level of it, has: what was asked for, rounded up to a power of two (and at least two
    /// in a hierarchical one).
    #[must_use]
    pub fn ticks_per_wheel(&self) -> usize {
        self.shared.ticks_per_wheel
    }
}

impl Timeout {
    /// A handle to the timer. If the last handle has been dropped, it is one to a timer that is stopped, or
    /// about to be.
    ///
    /// A task had better ask for it than capture a clone: a captured one keeps the timer running until the task ends.
    #[must_use]
    pub fn timer(&self) -> HashedWheelTimer {
        HashedWheelTimer::from_timeout(self.handle.to_arc())
    }
}

/// Another handle to the same timer.
impl Clone for HashedWheelTimer {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        if self.counts { Self::from_shared(shared) } else { Self { shared, counts: false } }
    }
}

/// The last handle stops the timer and waits as [`stop`](HashedWheelTimer::stop) does; dropped by a task on the worker it
/// stops it without waiting.
impl Drop for HashedWheelTimer {
    fn drop(&mut self) {
        if self.counts && self.shared.drop_handle() {
            self.shared.stop_from_anywhere();
        }
    }
}

impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.debug("HashedWheelTimer", f)
    }
}
