//! The end of a timer, or of all its timeouts: in the call, or on a thread of its own, for callers
//! that must not block for long.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::engine::{Grace, Inner, Kind, Timeout};
use crate::report;
use crate::sync::{Arc, JoinHandle, Mutex, Ordering, Parker, Unpark, is_current, spawn};
use crate::timer::HashedWheelTimer;

/// The name of the thread that ends a timer.
const THREAD: &str = "hashed-wheel-stop";

impl HashedWheelTimer {
    /// Stops the timer permanently and returns the timeouts that had not ended. Netty's `stop`.
    ///
    /// Each returned timeout is cancelled, and its [`cancelled`](crate::TimerTask::cancelled) hook
    /// has been called.
    ///
    /// # Blocking
    ///
    /// The call waits for a task that is running on the worker; the task is never interrupted. Then
    /// it joins the worker thread. On a driven timer it waits for a turn that is in progress. It
    /// does not wait for tasks that a [task executor](crate::Builder::task_executor) has accepted.
    ///
    /// The call drops the task executor once no task can be handed to it any more. If dropping a
    /// thread pool waits for the pool's threads, a task in that pool should not be the one to stop
    /// the timer.
    ///
    /// # Concurrent and later calls
    ///
    /// Only the first call returns the timeouts. Concurrent and later calls wait until all timeouts
    /// have ended and return an empty `Vec`. They do not wait for the thread or for the drop of the
    /// executor.
    ///
    /// A call on a timer that was never started returns an empty `Vec`. So does a call from a
    /// `cancelled` hook that `stop` itself has called, and one [after `fork`](Self#after-fork) in
    /// the child.
    ///
    /// Dropping the last handle or the [`Driver`](crate::Driver) counts as a call, and may be the
    /// first. An event loop that ends because [`is_stopped`](crate::Driver::is_stopped) is true
    /// does not take the timeouts from the thread that stopped the timer.
    ///
    /// # Panics
    ///
    /// If a task calls it on the worker, because the call would wait for that task. (Netty:
    /// `IllegalStateException`.) On the [global](Self::global) timer, which other code may use. The
    /// timer is unchanged then.
    ///
    /// Do not call it in a `Drop` that may run on the worker: if the task is panicking already, a
    /// second panic ends the process. Dropping a handle never panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// assert_eq!(timer.stop(), [lease.clone()]);
    /// assert!(lease.is_cancelled());
    /// assert!(timer.stop().is_empty());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("close", "shutdownNow"))]
    pub fn stop(&self) -> Vec<Timeout> {
        self.unless_in_hook("stop", |timer| timer.stop())
    }

    /// Runs what falls due within `grace` from now, then [stops](Self::stop) the timer. Returns the
    /// timeouts that are left.
    ///
    /// # What runs
    ///
    /// From this call on the timer rejects new timeouts as a
    /// [stopped](crate::NewTimeoutError::Stopped) timer does, also those of its own tasks. `cancel`
    /// and `reset` work as always.
    ///
    /// A pending timeout whose deadline is at most `grace` from now still runs, at its tick. So
    /// this call may take one tick longer than `grace`, and the rest of that tick runs too. A grace
    /// of zero is for what should have run by now. A grace of `Duration::MAX` waits for everything
    /// that ever falls due.
    ///
    /// A timeout that falls due later is returned, with two exceptions:
    ///
    /// - A slow task has held up the worker until the timeout was due.
    /// - The timeout fell due before this call had seen that everything within `grace` has run.
    ///   That takes about a millisecond, or 0.1 µs per pending timeout if there are millions.
    ///
    /// [Periodic](crate::Periodic) tasks keep running meanwhile, unless their schedule [says
    /// otherwise](crate::Schedule::continue_after_shutdown). They do not prolong the wait, and are
    /// among the returned timeouts.
    ///
    /// # Blocking
    ///
    /// The call waits no longer than it has to. It stops the timer once nothing that is pending
    /// falls due in time, even if only because timeouts were cancelled or re-armed. It notices
    /// within about 10 ms, or 0.1 µs per pending timeout if there are millions.
    ///
    /// Like `stop` it waits for a task that runs on the worker, and not for tasks that a [task
    /// executor](crate::Builder::task_executor) has accepted.
    ///
    /// The timer's [clock](crate::Builder::clock) measures the grace. If that clock stands still,
    /// or falls behind real time by more than a tick and 10 ms, real time decides.
    ///
    /// # Concurrent calls
    ///
    /// Until the grace is over the timer [is not stopped](Self::is_stopped). Another thread can
    /// stop it earlier: by `stop`, by dropping the [`Driver`](crate::Driver), or by a `shutdown`
    /// with less grace. That call gets the timeouts that are left. This one waits until all
    /// timeouts have ended and returns an empty `Vec`.
    ///
    /// # Driven timers
    ///
    /// Only the event loop that turns a driven timer can let time pass, so this call does not wait.
    /// It runs what is due now, on the calling thread, and stops the timer. To give grace, the loop
    /// keeps turning the driver until the grace is over.
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if a task calls it on the worker, and on the
    /// [global](Self::global) timer. The timer is unchanged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let answer = timer.new_timeout(|_| println!("last answer"), Duration::from_millis(20))?;
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(3_600))?;
    ///
    /// // Takes 20 ms, because nothing else falls due within the second.
    /// assert_eq!(timer.shutdown(Duration::from_secs(1)), [lease]);
    /// assert!(answer.is_expired());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("awaitTermination", "graceful"))]
    pub fn shutdown(&self, grace: Duration) -> Vec<Timeout> {
        self.unless_in_hook("shutdown", |timer| Grace::begin(timer, grace).end(timer))
    }

    /// Begins to stop the timer, without blocking the calling thread. Returns what waits for the
    /// end: with a limit, or as a future.
    ///
    /// This is [`stop`](Self::stop) for code that must not wait for as long as a task may run: a
    /// shutdown with a limit (tokio's `Runtime::shutdown_timeout`), or async code on any runtime.
    /// From this call on the timer rejects new timeouts; the rest follows, whether anybody waits or
    /// not. Another thread stops the timer, which calls the hooks and drops the task executor. If
    /// the operating system refuses that thread, or the platform has none (`wasm32`), this call
    /// stops the timer itself, and blocks as `stop` does.
    ///
    /// A task on the worker may call this method. It does not panic as `stop` does.
    ///
    /// # Panics
    ///
    /// On the [global](Self::global) timer. The timer is unchanged then.
    ///
    /// # Examples
    ///
    /// Waits for at most a second:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// match timer.begin_stop().wait_timeout(Duration::from_secs(1)) {
    ///     Ok(left) => assert_eq!(left, [lease]),
    ///     Err(ending) => eprintln!("a task does not end: {:?}", ending.running_task()),
    /// }
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    ///
    /// In async code:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// async fn end(timer: HashedWheelTimer) {
    ///     let left = timer.begin_stop().await;
    ///     println!("{} timeouts were cancelled", left.len());
    /// }
    /// ```
    #[doc(alias("shutdown_background", "shutdown_timeout"))]
    pub fn begin_stop(&self) -> Ending {
        self.assert_may_end("begin_stop");
        self.inner.state.close();
        Ending::begin(&self.inner, None)
    }

    /// Begins to [shut down](Self::shutdown) the timer, without blocking the calling thread: what
    /// falls due within `grace` from this call still runs. Returns what waits for the end, as
    /// [`begin_stop`](Self::begin_stop) does.
    ///
    /// Another thread ends the timer. It also runs what is due on a [driven timer](Self::shutdown).
    ///
    /// # Panics
    ///
    /// As for [`begin_stop`](Self::begin_stop).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let [grace, limit] = [100, 200].map(Duration::from_millis);
    /// if let Err(ending) = timer.begin_shutdown(grace).wait_timeout(limit) {
    ///     eprintln!("a task does not end: {:?}", ending.running_task());
    /// }
    /// ```
    #[doc(alias("shutdown_timeout", "awaitTermination"))]
    pub fn begin_shutdown(&self, grace: Duration) -> Ending {
        self.assert_may_end("begin_shutdown");
        let grace = Grace::begin(&self.inner, grace);
        Ending::begin(&self.inner, Some(grace))
    }

    /// Cancels all pending timeouts, and returns how many these were. The timer continues.
    ///
    /// Each timeout ends as by its own [`cancel`](Timeout::cancel), on this thread: its
    /// [`cancelled`](crate::TimerTask::cancelled) hook is called, and it counts as cancelled. That
    /// includes periodic tasks.
    ///
    /// It does not include futures that wait, and other tasks that [are
    /// awaited](crate::TimerTask::IS_AWAITED). They belong to the code that awaits them: drop them
    /// to cancel them. They stay [pending](Self::pending_timeouts).
    ///
    /// # Concurrent calls
    ///
    /// Each timeout ends once, whatever races. A timeout that another thread schedules meanwhile
    /// may or may not be cancelled. If that call has returned before this one began, it is, unless
    /// another thread ends it. A timeout that another thread cancels or re-arms meanwhile may still
    /// be pending when this call returns: a cancelled one until that `cancel` returns.
    ///
    /// # Blocking
    ///
    /// The call waits for a task that is running on the worker, and for the turn that the worker is
    /// in. During a storm, when very many timeouts are due at once, that turn first runs all of
    /// them, so the call may wait for seconds and find nothing left to cancel. A limit of
    /// [`max_tasks_per_turn`](crate::Builder::max_tasks_per_turn) ends the turn sooner.
    ///
    /// The call holds the worker up while it looks at all timeouts, for some ten nanoseconds each.
    /// The hooks are called after that, in groups as by
    /// [`cancel_each`](crate::Timeout::cancel_each): the timeouts of a group end before its first
    /// hook is called.
    ///
    /// On a timer that is stopped, or was never started, it returns zero.
    ///
    /// # Panics
    ///
    /// As [`stop`](Self::stop): if a task calls it on the worker, because the call would wait for
    /// that task, and on the [global](Self::global) timer. No timeout is cancelled then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::default();
    /// let lease = timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// timer.new_timeout(|_| println!("expired too"), Duration::from_secs(60))?;
    /// assert_eq!(timer.cancel_all(), 2);
    /// assert!(lease.is_cancelled());
    ///
    /// // The timer goes on:
    /// timer.new_timeout(|_| println!("expired"), Duration::from_secs(30))?;
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn cancel_all(&self) -> usize {
        self.unless_in_hook("cancel_all", |timer| timer.cancel_all())
    }

    /// Does `end`, unless the caller is a `cancelled` hook that the end of the timer runs on this
    /// thread. Panics if the caller is a task on the worker.
    fn unless_in_hook<R: Default>(&self, method: &str, end: impl FnOnce(&Inner) -> R) -> R {
        self.assert_may_end(method);
        if !self.inner.is_worker() {
            return end(&self.inner);
        }
        // A timer whose timeouts have ended runs nothing but the hooks under the worker lock.
        assert!(
            self.inner.state.snapshot().is_ended(),
            "HashedWheelTimer::{method} was called by a task on the timer's own worker, and would wait for that task to \
             end: call it from another thread, or drop the last handle"
        );
        R::default()
    }

    fn assert_may_end(&self, method: &str) {
        assert!(
            self.inner.options.kind != Kind::Global,
            "HashedWheelTimer::{method} was called on the global timer, which any code in this process may use: build a \
             timer of your own to end it"
        );
    }
}

/// A timer that is being stopped or shut down, on a thread of its own:
/// [`begin_stop`](HashedWheelTimer::begin_stop) and
/// [`begin_shutdown`](HashedWheelTimer::begin_shutdown) return it.
///
/// [`wait`](Self::wait) waits for the end and returns the timeouts that are left;
/// [`wait_timeout`](Self::wait_timeout) waits for a limited time. Then that thread has ended too.
/// [`running_task`](Self::running_task) says which task holds the end up.
///
/// It is also a future with the same output, on any runtime. A poll after the one that was ready
/// returns an empty `Vec`. The thread wakes the task, and ends immediately after that.
///
/// If this value is dropped, the end goes on. The timeouts that are left are cancelled, their hooks
/// are called, and no caller gets them. The drop of the last handle of the timer does not wait for
/// the end either.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let (release, wait) = mpsc::channel::<()>();
/// let (began, runs) = mpsc::channel();
/// let task = move |_: &_| {
///     began.send(()).unwrap();
///     wait.recv().unwrap();
/// };
/// timer.new_timeout(task, Duration::ZERO)?;
/// let later = timer.new_timeout(|_| (), Duration::from_secs(60))?;
/// runs.recv()?;
///
/// // A task runs, and does not end:
/// let ending = timer.begin_stop().wait_timeout(Duration::from_millis(10)).unwrap_err();
/// assert!(!ending.is_finished());
///
/// release.send(())?;
/// assert_eq!(ending.wait(), [later]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Where a wait is possible
///
/// A task on the worker may begin the end and must not wait for it: [`wait`](Self::wait) panics
/// there, because it would wait for that task. (A `block_on` there waits forever.) It may drop this
/// value or send it to another thread.
///
/// The destructor of a thread-local may wait, also on the worker thread. On Windows it must not: no
/// other thread can begin or end there until that destructor has returned.
#[must_use = "the timeouts that are left come from this value"]
pub struct Ending {
    timer: Arc<Inner>,
    outcome: Arc<Mutex<Outcome>>,
    /// `None` if there is none, or once it was joined. (`AssertUnwindSafe`: nothing looks into it.)
    thread: Option<AssertUnwindSafe<JoinHandle<()>>>,
}

enum Outcome {
    /// Has the waker of the last poll.
    Awaited(Option<Waker>),
    Ended(Vec<Timeout>),
}

impl Ending {
    /// Ends the timer on another thread: stops it, or lets it shut down. From now on the drop of
    /// the last handle leaves the end to that thread.
    pub(crate) fn begin(timer: &Arc<Inner>, grace: Option<Grace>) -> Self {
        timer.has_ending_thread.store(true, Ordering::Relaxed);
        let outcome = Arc::new(Mutex::new(Outcome::Awaited(None)));
        let (ended, result) = (Arc::clone(timer), Arc::clone(&outcome));
        let body = move || finish(&result, end(&ended, grace));
        let thread = spawn(THREAD.to_owned(), None, body);
        if thread.is_err() {
            finish(&outcome, end_here(timer, grace));
        }
        Self {
            timer: Arc::clone(timer),
            outcome,
            thread: thread.ok().map(AssertUnwindSafe),
        }
    }

    /// Returns whether the timer has ended. Then the other methods wait at most for the thread that
    /// has ended it, which is about to end.
    /// `std::thread::JoinHandle::is_finished`.
    ///
    /// # Examples
    ///
    /// See [`Ending`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(*self.outcome.lock(), Outcome::Ended(_))
    }

    /// Returns the task that runs on the worker now, if that is known.
    ///
    /// It is known only if the timer has a
    /// [`slow_task_threshold`](crate::Builder::slow_task_threshold), of any length. Without one the
    /// worker does not note which task it runs, and this method returns `None`. It also returns
    /// `None` if no task runs on the worker.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// fn stop(timer: HashedWheelTimer) {
    ///     let Err(ending) = timer.begin_stop().wait_timeout(Duration::from_secs(1)) else { return };
    ///     if let Some(running) = ending.running_task() {
    ///         eprintln!("{} has been running for {:?}", running.task, running.elapsed);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn running_task(&self) -> Option<RunningTask> {
        let running = (*self.timer.running.lock())?;
        let elapsed = Duration::from_nanos(self.timer.clock.now().saturating_sub(running.began));
        Some(RunningTask {
            task: running.task,
            elapsed,
        })
    }

    /// Waits until the timer has ended. Returns the timeouts that are left, as
    /// [`stop`](HashedWheelTimer::stop) does.
    ///
    /// # Panics
    ///
    /// If the call would wait for itself: before the timer has ended, in a task on the timer's own
    /// worker, or on the thread that ends the timer (in a hook, or in the `Drop` of the executor).
    ///
    /// # Examples
    ///
    /// See [`Ending`].
    pub fn wait(mut self) -> Vec<Timeout> {
        self.wait_until(None)
            .expect("a wait without a limit ends with the timer")
    }

    /// Waits until the timer has ended, but at most for `limit`, in real time. Returns the timeouts
    /// that are left.
    ///
    /// If the timer has ended by then, the call also waits for the end of the thread. Only the
    /// waker of an earlier poll and the destructors of thread-locals that hooks have used can still
    /// take time there.
    ///
    /// # Errors
    ///
    /// If the timer has not ended by then, the error is this value, to wait further.
    ///
    /// # Panics
    ///
    /// As for [`wait`](Self::wait).
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// fn stop(timer: HashedWheelTimer) -> bool {
    ///     let mut ending = timer.begin_stop();
    ///     for _ in 0..10 {
    ///         ending = match ending.wait_timeout(Duration::from_secs(1)) {
    ///             Ok(_) => return true,
    ///             Err(ending) => ending,
    ///         };
    ///         eprintln!("still waiting for {:?}", ending.running_task());
    ///     }
    ///     false
    /// }
    /// # assert!(stop(HashedWheelTimer::default()));
    /// ```
    pub fn wait_timeout(mut self, limit: Duration) -> Result<Vec<Timeout>, Self> {
        // A platform without a clock ends the timer in the call that begins it.
        if self.is_finished() {
            return Ok(self.wait());
        }
        // A limit that is too long to represent is none.
        self.wait_until(Instant::now().checked_add(limit))
            .ok_or(self)
    }

    fn wait_until(&mut self, limit: Option<Instant>) -> Option<Vec<Timeout>> {
        let parker = Parker::default();
        let waker = Waker::from(Arc::new(Unpark(parker.unparker().clone())));
        loop {
            if let Poll::Ready(timeouts) = self.poll_with(&waker) {
                // The thread has nothing left to do. (If a waker waits, this is that thread.)
                if let Some(thread) = self.thread.take().filter(|thread| !is_current(thread)) {
                    drop(thread.0.join());
                }
                return Some(timeouts);
            }
            let ends_the_timer = matches!(&self.thread, Some(thread) if is_current(thread));
            assert!(
                !ends_the_timer && !self.timer.is_worker(),
                "the end of a HashedWheelTimer was awaited by a task on the timer's own worker, or on the thread that \
                 ends the timer, and would wait for itself: wait on another thread"
            );
            match limit.map(|limit| limit.saturating_duration_since(Instant::now())) {
                None => parker.park(),
                Some(Duration::ZERO) => return None,
                Some(left) => parker.park_timeout(left),
            }
        }
    }

    fn poll_with(&self, waker: &Waker) -> Poll<Vec<Timeout>> {
        // Without the lock, because the clone and the drop of a waker are user code.
        let mut waker = Some(waker.clone());
        match &mut *self.outcome.lock() {
            Outcome::Ended(timeouts) => return Poll::Ready(std::mem::take(timeouts)),
            Outcome::Awaited(waiting) => std::mem::swap(waiting, &mut waker),
        }
        Poll::Pending
    }
}

/// Ends the timer on this thread.
fn end(timer: &Inner, grace: Option<Grace>) -> Vec<Timeout> {
    // A shutdown reads the user's clock.
    let left = grace.and_then(|grace| report::guard(|| grace.end(timer), report::clock_panicked));
    left.unwrap_or_else(|| timer.stop())
}

/// [`end`] on the thread of the caller, because no other thread could be started.
fn end_here(timer: &Inner, grace: Option<Grace>) -> Vec<Timeout> {
    if timer.is_worker() {
        timer.stop_on_any_thread();
        return Vec::new();
    }
    end(timer, grace)
}

fn finish(outcome: &Mutex<Outcome>, timeouts: Vec<Timeout>) {
    let before = std::mem::replace(&mut *outcome.lock(), Outcome::Ended(timeouts));
    if let Outcome::Awaited(Some(waker)) = before {
        waker.wake();
    }
}

/// Is ready once the timer has ended, with the timeouts that are left.
impl Future for Ending {
    type Output = Vec<Timeout>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Timeout>> {
        self.poll_with(context.waker())
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending")
            .field("is_finished", &self.is_finished())
            .field("running_task", &self.running_task())
            .finish_non_exhaustive()
    }
}

/// A task that holds up the end of its timer: [`Ending::running_task`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningTask {
    /// The name of the task's type.
    pub task: &'static str,
    /// For how long it has been running, by the timer's clock.
    pub elapsed: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn timer_ends_on_the_thread_of_the_caller_if_there_is_no_other() {
        let (timer, driver) = HashedWheelTimer::builder()
            .clock(ManualClock::new())
            .build_driven()
            .expect("a driven timer");
        let timeout = timer
            .new_timeout(|_| (), Duration::from_secs(1))
            .expect("a timeout");
        assert_eq!(end_here(&timer.inner, None), [timeout]);
        assert!(driver.is_stopped());
    }
}
