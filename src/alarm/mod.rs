//! A reusable timeout: it is armed again after it has fired.
//!
//! Each arming is a timeout of its own, in a node, whose task is a handle to the alarm. So an
//! arming ends as any timeout does, exactly once, and only those that are armed are pending. An
//! alarm that is armed is moved by a `reset` of its timeout.
//!
//! The alarm has the handle of its last timeout, behind a lock under which no user code runs: the
//! worker never takes it. A new timeout is scheduled without the lock, and then put in the place of
//! the old one. If the old one has not ended, another thread has armed the alarm meanwhile. Then
//! the new one is cancelled: the other thread's call is the later one.
//!
//! | | before the other | after the other |
//! |---|---|---|
//! | arm, the expiry | the timeout is moved | the expired timeout runs, and a new one is scheduled |
//! | arm, arm; nothing is armed | each schedules a timeout; the one that comes second to the lock cancels its own | the same |
//! | arm, an arm by the task that the first one has let run | the ended timeout is replaced | the timeout has ended, and does not replace the other one |
//! | arm, disarm; armed | the timeout is moved, and then cancelled | a new timeout is scheduled |
//! | arm, disarm; nothing is armed | the disarm finds the new timeout, or is first | the disarm finds nothing, and the new timeout stays |
//! | arm, `stop` | as `new_timeout`, or as `reset` | the same |
//! | cancel, arm | the arm finds `CANCELLED`, under the lock if it has scheduled a timeout, and cancels that | the cancel disarms |
//! | cancel, the expiry | the expiry finds `CANCELLED`, and the task does not run | the run goes on, and the task is dropped after it |
//! | the run or the drop of the task, the same | counted in `state`, and done by the thread that is first, after its own | – |
//!
//! | file | content |
//! |---|---|
//! | `runs` | the runs of the task, and their end: `cancel` |

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::engine::{Inner, Timeout};
use crate::error::NewTimeoutError;
use crate::node::Reset;
use crate::sync::{Arc, AtomicUsize, Mutex, TaskLock, unmodelled};
use crate::task::Closure;
use crate::timer::HashedWheelTimer;

mod runs;

/// A timeout that is made unarmed, and armed again and again: folly's `HHWheelTimer::Callback`,
/// seastar's `timer<>`, and Linux's `timer_setup` with `mod_timer`.
///
/// [`HashedWheelTimer::new_alarm`] makes one. Its task is a closure that is called once per arming,
/// and gets the alarm, so it can arm it again. The alarm exists before its task can run. So it can
/// be stored next to what the task needs, and armed afterwards.
///
/// A handle is cheap to clone. Clones refer to the same alarm.
///
/// # Examples
///
/// A connection is closed after a minute without a packet, and the alarm lives as long as the
/// connection:
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// let minute = Duration::from_secs(60);
///
/// let (close, closed) = mpsc::channel();
/// let idle = timer.new_alarm(move |_| close.send("idle").unwrap());
/// idle.arm(minute)?;
/// clock.advance(minute / 2);
/// idle.arm(minute)?; // a packet
/// clock.advance(minute / 2);
/// assert_eq!(driver.turn(), 0);
/// clock.advance(minute / 2);
/// assert_eq!((driver.turn(), closed.recv()?), (1, "idle"));
/// idle.arm(minute)?; // the next connection
/// assert!(idle.disarm());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Armings
///
/// An alarm is armed or not. While it is armed it counts as one of
/// [`pending_timeouts`](HashedWheelTimer::pending_timeouts), and takes one place under the limit.
/// [`arm`](Self::arm) moves the deadline of an armed alarm, to a later or an earlier time. It arms
/// any other one.
///
/// Each arming ends exactly once: the task runs, or one [`disarm`](Self::disarm) returns true, or
/// the alarm is [cancelled](Self::cancel), or the timer [stops](HashedWheelTimer::stop) or [cancels
/// all](HashedWheelTimer::cancel_all). Then the alarm is not armed. Only `cancel` and the end of
/// the timer make it unusable.
///
/// # Runs
///
/// The task runs where the timer runs tasks: on the worker, or in the [task
/// executor](crate::TaskExecutor). Runs do not overlap. The alarm is not armed during a run, unless
/// it is armed meanwhile, by the task or by another thread. If that arming expires before the run
/// is over, the task runs again after it, on the same thread. A disarm during a run does not end
/// the run.
///
/// A panic of the task is reported and counted, and the alarm stays usable. If the executor drops a
/// run, that is reported and counted too, and the alarm is not armed.
///
/// # Drop
///
/// Dropping a handle does not disarm the alarm. An armed alarm without a handle runs, and the task
/// is dropped then, unless it has armed the alarm again. So an owner that goes before its alarm
/// keeps a [guard](Self::cancel_on_drop), or calls [`cancel`](Self::cancel) in its `Drop`.
///
/// A handle keeps the task until the alarm is cancelled, and the memory of the last timeout. It
/// does not keep the timer from ending. A task that has a handle of its own alarm keeps itself; it
/// needs none, because it gets one.
///
/// # In `Arc::new_cyclic`
///
/// An alarm can be made inside the closure of [`Arc::new_cyclic`](std::sync::Arc::new_cyclic), with
/// a task that upgrades the [`Weak`](std::sync::Weak). Do not arm it there. It may fire before the
/// object is complete: then `upgrade` returns `None`, and that expiry is lost. Arm it after
/// `new_cyclic` has returned.
#[derive(Clone)]
#[doc(alias("Callback", "timer_setup", "timer_list", "ReusableTimeout"))]
pub struct Alarm(Arc<Shared<dyn AlarmTask>>);

/// The task, until the alarm is cancelled.
trait AlarmTask: Send {
    fn run(&mut self, alarm: &Alarm);

    fn drop_task(&mut self);
}

impl<F: FnMut(&Alarm) + Send> AlarmTask for Option<F> {
    fn run(&mut self, alarm: &Alarm) {
        if let Some(task) = self {
            task(alarm);
        }
    }

    fn drop_task(&mut self) {
        *self = None;
    }
}

/// The state that the handles of an alarm, and its timeout, share.
struct Shared<F: ?Sized> {
    timer: Arc<Inner>,
    /// The last timeout, which may have ended.
    last: Mutex<Option<Timeout>>,
    /// Schedules a timeout whose task has the type of this alarm's.
    schedule: fn(&Alarm, u64) -> Result<Timeout, NewTimeoutError>,
    /// The name of that type, for reports.
    name: fn() -> &'static str,
    /// How many runs have begun or wait for another one, and two flags. The drop of the task by
    /// `cancel` counts as a run.
    ///
    /// | operation | on the word | order |
    /// |---|---|---|
    /// | a timeout has expired | + `RUN`; from no run, this thread runs the task | `AcqRel`: sees the runs before; the thread that runs for this one sees what this one has seen |
    /// | a run is over | − `RUN`; to no run, none waits, and threads that wait are woken | `AcqRel`: the same |
    /// | `cancel` | sets `CANCELLED`; the first one counts a run | `Release`: a thread that finds it cancelled sees what was done before |
    /// | `is_cancelled`, `arm` | reads | `Acquire`: the same; `arm` reads it under the lock, which `cancel` takes afterwards |
    /// | `cancel_and_wait` | sets `AWAITED`; with no run, it does not wait | `AcqRel`: sees the runs before; the thread that ends the last run finds the waiter in the list (`engine/dispatch.rs`) |
    state: AtomicUsize,
    /// The thread that runs the task, so that it does not wait for itself. A thread finds its own
    /// number only if it has stored it.
    runner: unmodelled::AtomicUsize,
    /// Only the thread that has counted the first run locks it, so it is never contended.
    task: TaskLock<F>,
}

impl HashedWheelTimer {
    /// Makes a timeout that is not armed: seastar's `timer<>`, and Linux's `timer_setup`.
    ///
    /// This call schedules nothing, so it cannot fail. [`Alarm::arm`] schedules a call of `task`,
    /// any number of times.
    ///
    /// # Examples
    ///
    /// Retries with a growing delay:
    ///
    /// ```
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// use std::time::Duration;
    ///
    /// # fn send() -> bool { false }
    /// let clock = ManualClock::new();
    /// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let mut delay = Duration::from_secs(1);
    /// let retry = timer.new_alarm(move |alarm| {
    ///     if !send() {
    ///         delay *= 2;
    ///         // An error here means that the alarm or the timer has ended.
    ///         let _ = alarm.arm(delay);
    ///     }
    /// });
    /// retry.arm(delay)?;
    /// for seconds in [1, 2, 4] {
    ///     clock.advance(Duration::from_secs(seconds));
    ///     assert_eq!(driver.turn(), 1);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "an alarm that is not armed does nothing"]
    #[doc(alias("new_timeout_cyclic", "timer_setup", "init_timer"))]
    pub fn new_alarm<F>(&self, task: F) -> Alarm
    where
        F: FnMut(&Alarm) + Send + 'static,
    {
        Alarm(Arc::new(Shared {
            timer: Arc::clone(&self.inner),
            last: Mutex::new(None),
            schedule: |alarm, deadline| {
                let (timer, alarm) = (&alarm.0.timer, alarm.clone());
                let arming = move |_: &Timeout| alarm.use_task();
                timer.schedule_by(Closure(arming, PhantomData::<fn() -> F>), deadline)
            },
            name: type_name::<F>,
            state: AtomicUsize::new(0),
            runner: unmodelled::AtomicUsize::new(0),
            task: TaskLock::new(Some(task)),
        }))
    }
}

// All of it is compiled in the crates that use it. Here it would change what the compiler inlines
// in the paths that have no alarm.
impl Alarm {
    /// Arms the alarm: the task runs once, `delay` from now. Linux's `mod_timer`, and seastar's
    /// `rearm`.
    ///
    /// If the alarm is armed, its deadline moves. This is a [`Timeout::reset`]: it allocates
    /// nothing, and to a later deadline it sends the worker no message. Otherwise it costs what
    /// [`new_timeout`](HashedWheelTimer::new_timeout) does, which documents the deadline.
    ///
    /// Of two concurrent calls, one counts as the later one, and its deadline holds. If nothing was
    /// armed, and the delay of the other one is over before that call returns, the task runs for
    /// both.
    ///
    /// # Blocking
    ///
    /// As for [`new_timeout`](HashedWheelTimer::new_timeout), except for a lock of this alarm that
    /// only other calls on this alarm take, for some instructions. No user code runs under it.
    ///
    /// # Errors
    ///
    /// Only if the alarm is not armed. It is not armed then.
    ///
    /// - [`Cancelled`](NewTimeoutError::Cancelled): the alarm [was cancelled](Self::cancel).
    /// - Otherwise as for [`new_timeout`](HashedWheelTimer::new_timeout). With a limit, concurrent
    ///   calls on an alarm that is not armed need a place each until they return.
    ///
    /// # Examples
    ///
    /// See [`Alarm`].
    #[doc(alias("mod_timer", "rearm", "scheduleTimeout", "reset"))]
    #[inline]
    pub fn arm(&self, delay: Duration) -> Result<(), NewTimeoutError> {
        self.arm_to(self.0.timer.clock.deadline_after(delay))
    }

    /// Arms the alarm: the task runs once, at `deadline`. seastar's `arm(time_point)`.
    ///
    /// This is [`arm`](Self::arm) with a deadline instead of a delay. The deadline is converted as
    /// by [`new_timeout_at`](HashedWheelTimer::new_timeout_at): one in the past means a delay of
    /// zero.
    ///
    /// # Errors
    ///
    /// As for [`arm`](Self::arm).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let alarm = timer.new_alarm(|_| println!("the lease has run out"));
    /// alarm.arm_at(timer.now() + Duration::from_secs(30))?;
    /// assert!(alarm.is_armed());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[inline]
    pub fn arm_at(&self, deadline: Instant) -> Result<(), NewTimeoutError> {
        self.arm_to(self.0.timer.clock.at(deadline))
    }

    #[inline]
    fn arm_to(&self, deadline: u64) -> Result<(), NewTimeoutError> {
        let shared = &*self.0;
        let last = shared.last.lock();
        match &*last {
            None => drop(last),
            // Only the calls that have the lock move the deadline.
            Some(timeout) if deadline >= timeout.handle.deadline() => {
                if let Reset::Later = timeout.handle.reset(deadline) {
                    return Ok(());
                }
                drop(last);
            }
            Some(timeout) => {
                let timeout = timeout.clone();
                // To wake the worker may call a driver's waker, so not under the lock.
                if shared.timer.reset(&timeout, deadline, || drop(last)) {
                    return Ok(());
                }
            }
        }
        if self.is_cancelled() {
            return Err(NewTimeoutError::Cancelled);
        }
        let timeout = (shared.schedule)(self, deadline)?;
        let mut last = shared.last.lock();
        let is_cancelled = self.is_cancelled();
        let unneeded = match is_cancelled || live(&last).is_some() {
            true => Some(timeout),
            false => last.replace(timeout),
        };
        drop(last);
        // It has ended; or it is the new one, and has to end.
        let ended = unneeded.is_some_and(Timeout::cancel_and_drop);
        match is_cancelled && ended {
            true => Err(NewTimeoutError::Cancelled),
            false => Ok(()),
        }
    }

    /// Disarms the alarm. Returns whether the task would have run. Linux's `timer_delete`, and
    /// seastar's and folly's `cancel`.
    ///
    /// Returns false if the alarm is not armed, or if it has expired: then the run is about to
    /// begin, has begun, or is over. Of several concurrent calls, one returns true.
    ///
    /// Takes effect before it returns, and does not wait for a run, as [`Timeout::cancel`]. The
    /// task itself may call it.
    ///
    /// A task that runs at the moment may arm its alarm again after this call.
    /// [`cancel`](Self::cancel) ends it permanently.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let alarm = timer.new_alarm(|_| unreachable!());
    /// assert!(!alarm.disarm());
    /// alarm.arm(Duration::from_secs(60))?;
    /// assert!(alarm.disarm());
    /// assert!(!alarm.is_armed());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("timer_delete", "del_timer", "cancelTimeout"))]
    #[inline]
    pub fn disarm(&self) -> bool {
        let last = self.0.last.lock().take();
        last.is_some_and(Timeout::cancel_and_drop)
    }

    /// Returns whether the alarm is armed: its task is going to run. seastar's `armed`, Linux's
    /// `timer_pending`, folly's `isScheduled`.
    ///
    /// Returns false during a run, unless the alarm was armed again.
    ///
    /// # Examples
    ///
    /// See [`disarm`](Self::disarm).
    #[must_use]
    #[doc(alias("armed", "timer_pending", "isScheduled"))]
    #[inline]
    pub fn is_armed(&self) -> bool {
        live(&self.0.last.lock()).is_some()
    }

    /// Returns when the alarm is due, or `None` if it is not armed. seastar's `get_timeout`.
    ///
    /// The task runs up to one tick later. Otherwise as [`Timeout::deadline`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let alarm = timer.new_alarm(|_| ());
    /// assert_eq!((alarm.deadline(), alarm.remaining()), (None, None));
    /// let minute = Duration::from_secs(60);
    /// let at = timer.now() + minute;
    /// alarm.arm_at(at)?;
    /// assert_eq!(alarm.deadline(), Some(at));
    /// assert!(alarm.remaining() <= Some(minute));
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[must_use]
    #[doc(alias("get_timeout", "expires"))]
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.armed_deadline()?;
        Some(self.0.timer.clock.instant_of(deadline))
    }

    /// Returns the time left until the [deadline](Self::deadline), to a microsecond, or `None` if
    /// the alarm is not armed. folly's `getTimeRemaining`.
    ///
    /// Returns zero once the alarm is due, and `Duration::MAX` if it never will be, as
    /// [`Timeout::remaining`].
    ///
    /// # Examples
    ///
    /// See [`deadline`](Self::deadline).
    #[must_use]
    #[doc(alias("getTimeRemaining"))]
    #[inline]
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.armed_deadline()?;
        Some(self.0.timer.clock.remaining(deadline))
    }

    /// The deadline, if the alarm is armed. No clock is read under the lock: it is user code.
    #[inline]
    fn armed_deadline(&self) -> Option<u64> {
        Some(live(&self.0.last.lock())?.handle.deadline())
    }

    /// Returns a handle to the timer, as [`Timeout::timer`].
    #[must_use]
    #[inline]
    pub fn timer(&self) -> HashedWheelTimer {
        HashedWheelTimer::unless_ended(Arc::clone(&self.0.timer))
    }
}

/// Returns the timeout, if there is one that has not ended.
#[inline]
fn live(last: &Option<Timeout>) -> Option<&Timeout> {
    last.as_ref()
        .filter(|timeout| timeout.handle.end().is_none())
}

impl fmt::Debug for Alarm {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.last.lock().clone();
        f.debug_struct("Alarm")
            .field("last", &last)
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
