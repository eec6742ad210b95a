//! The end of a timer on a thread of its own, for callers that must not block for long.

use std::fmt;
use std::panic::AssertUnwindSafe;
#[cfg(feature = "async")]
use std::pin::Pin;
#[cfg(feature = "async")]
use std::task::Context;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::engine::{Grace, Shared, Timeout};
use crate::report;
use crate::sync::{Arc, JoinHandle, Mutex, Ordering, Parker, Unpark, is_current, spawn};

/// The name of the thread that ends a timer.
const THREAD: &str = "hashed-wheel-stop";

/// A timer that is being stopped or shut down, on a thread of its own.
///
/// [`stop_timeout`](crate::HashedWheelTimer::stop_timeout) and
/// [`shutdown_timeout`](crate::HashedWheelTimer::shutdown_timeout) return it if the timer has not
/// ended in time. [`running_task`](Self::running_task) says which task holds the end up.
/// [`wait`](Self::wait) waits for the end and returns the timeouts that are left. Then that thread
/// has ended too.
///
/// With the feature `async` this is a future too, with the same output: see
/// `HashedWheelTimer::stop_async`. It runs on any runtime. A poll after the one that was ready
/// returns an empty `Vec`. The thread wakes the task, and ends immediately after that.
///
/// If this value is dropped, the end goes on. The timeouts that are left are cancelled, their hooks
/// are called, and no caller gets them.
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
/// let ending = timer.stop_timeout(Duration::from_millis(10)).unwrap_err();
/// assert!(!ending.is_finished());
///
/// release.send(())?;
/// assert_eq!(ending.wait(), [later]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the timeouts that are left come from this value"]
pub struct Ending {
    timer: Arc<Shared>,
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
    pub(crate) fn begin(timer: &Arc<Shared>, grace: Option<Grace>) -> Self {
        timer.is_ended_elsewhere.store(true, Ordering::Relaxed);
        let timer = Arc::clone(timer);
        let outcome = Arc::new(Mutex::new(Outcome::Awaited(None)));
        let thread = {
            let (timer, outcome) = (Arc::clone(&timer), Arc::clone(&outcome));
            spawn(THREAD.to_owned(), None, move || finish(&outcome, end(&timer, grace)))
        };
        if thread.is_err() {
            finish(&outcome, end_here(&timer, grace));
        }
        Self { timer, outcome, thread: thread.ok().map(AssertUnwindSafe) }
    }

    /// Returns whether the timer has ended. Then the other methods wait at most for the thread that
    /// has ended it, which is about to end.
    /// `std::thread::JoinHandle::is_finished`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// /// Gives a task ten more seconds, and says each second what it waits for.
    /// fn stop(timer: HashedWheelTimer) {
    ///     let Err(ending) = timer.stop_timeout(Duration::from_secs(1)) else { return };
    ///     for _ in 0..10 {
    ///         if ending.is_finished() {
    ///             return;
    ///         }
    ///         println!("still running: {:?}", ending.running_task());
    ///         std::thread::sleep(Duration::from_secs(1));
    ///     }
    /// }
    /// # stop(HashedWheelTimer::default());
    /// ```
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
    ///     let Err(ending) = timer.stop_timeout(Duration::from_secs(1)) else { return };
    ///     if let Some(running) = ending.running_task() {
    ///         eprintln!("{} has been running for {:?}", running.task, running.elapsed);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn running_task(&self) -> Option<RunningTask> {
        let running = self.timer.running()?;
        let elapsed = Duration::from_nanos(self.timer.time.now().saturating_sub(running.began));
        Some(RunningTask { task: running.task, elapsed })
    }

    /// Waits until the timer has ended. Returns the timeouts that are left, as
    /// [`stop`](crate::HashedWheelTimer::stop) does.
    ///
    /// # Panics
    ///
    /// If a task calls it on the timer's own worker before the timer has ended, because the call
    /// would wait for that task.
    ///
    /// # Examples
    ///
    /// See [`Ending`].
    pub fn wait(mut self) -> Vec<Timeout> {
        self.wait_until(None).expect("a wait without a limit ends with the timer")
    }

    /// Waits until the timer has ended, but at most for `limit`, in real time. Returns the timeouts
    /// that are left.
    ///
    /// If the timer has ended by then, the call also waits for the end of the thread. Only the
    /// destructors of thread-locals, if hooks have used any, can still take time there.
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
    ///     let mut ending = match timer.stop_timeout(Duration::from_secs(1)) {
    ///         Ok(_) => return true,
    ///         Err(ending) => ending,
    ///     };
    ///     for _ in 0..10 {
    ///         eprintln!("still waiting for {:?}", ending.running_task());
    ///         ending = match ending.wait_timeout(Duration::from_secs(1)) {
    ///             Ok(_) => return true,
    ///             Err(ending) => ending,
    ///         };
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
        self.wait_until(Instant::now().checked_add(limit)).ok_or(self)
    }

    fn wait_until(&mut self, limit: Option<Instant>) -> Option<Vec<Timeout>> {
        let parker = Parker::default();
        let waker = Waker::from(Arc::new(Unpark(parker.unparker())));
        loop {
            if let Poll::Ready(timeouts) = self.poll_with(&waker) {
                // The thread has nothing left to do. (If a waker waits, this is that thread.)
                if let Some(thread) = self.thread.take().filter(|thread| !is_current(thread)) {
                    drop(thread.0.join());
                }
                return Some(timeouts);
            }
            assert!(
                !self.timer.is_worker(),
                "the end of a HashedWheelTimer was awaited by a task on the timer's own worker, and would wait for that \
                 task to end: wait on another thread"
            );
            let Some(limit) = limit else {
                parker.park();
                continue;
            };
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            parker.park_timeout(left);
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
fn end(timer: &Arc<Shared>, grace: Option<Grace>) -> Vec<Timeout> {
    let mut timeouts = None;
    if let Some(grace) = grace {
        // A shutdown reads the user's clock.
        report::guard(|| timeouts = Some(timer.end_shutdown(grace)), report::clock_panicked);
    }
    timeouts.unwrap_or_else(|| timer.stop())
}

/// [`end`] on the thread of the caller, because no other thread could be started.
fn end_here(timer: &Arc<Shared>, grace: Option<Grace>) -> Vec<Timeout> {
    if timer.is_worker() {
        timer.stop_from_anywhere();
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
#[cfg(feature = "async")]
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
    use crate::timer::HashedWheelTimer;

    #[test]
    fn timer_ends_on_the_thread_of_the_caller_if_there_is_no_other() {
        let (timer, driver) =
            HashedWheelTimer::builder().clock(ManualClock::new()).build_driven().expect("a driven timer");
        let timeout = timer.new_timeout(|_| (), Duration::from_secs(1)).expect("a timeout");
        assert_eq!(end_here(&timer.shared, None), [timeout]);
        assert!(driver.is_stopped());
    }
}
