//! How values are received: at once, by a thread that waits, and by an async task.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hashed_wheel::{Cancel, NewTimeoutError, Timeout, TimerTask};

use super::values::NEVER;
use super::{DelayQueue, Expired, Key, State, wake};
use crate::deadlines::Deadlines;
use crate::sync::{Arc, Mutex, Parker};

impl<T> DelayQueue<T> {
    /// Receives the first value if it is due. Returns `None` otherwise. Does not wait.
    /// `java.util.concurrent.DelayQueue::poll`.
    ///
    /// This needs no tick of the timer: it compares the deadline with the clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("in a second", Duration::from_secs(1))?;
    /// assert!(queue.try_recv().is_none());
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(queue.try_recv().unwrap().into_inner(), "in a second");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("poll"))]
    pub fn try_recv(&self) -> Option<Expired<T>> {
        let now = self.timer.now_nanos() as i64;
        let due = self.state.lock().values.take_due(now)?;
        Some(self.expired_of(due))
    }

    fn expired_of(&self, (key, deadline, value): (Key, i64, T)) -> Expired<T> {
        Expired {
            value,
            deadline: self.timer.instant_of(deadline),
            key,
        }
    }

    /// Ends the wait of this handle, if it waits.
    pub(super) fn leave(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let (own, next) = self.state.lock().waiters.remove(place);
        drop(own);
        if let Some(alarm) = self.alarm.take() {
            // Finds no waiter at this place, so it wakes nothing.
            alarm.cancel_and_drop();
        }
        wake(next);
    }
}

impl<T: Send + 'static> DelayQueue<T> {
    /// Receives the first value, and blocks the thread until one is due.
    /// `java.util.concurrent.DelayQueue::take`.
    ///
    /// On a driven timer, another thread has to turn the [`Driver`](hashed_wheel::Driver).
    ///
    /// # Errors
    ///
    /// If no value is due and the timer rejects the timeout that would end the wait:
    ///
    /// - [`Stopped`](NewTimeoutError::Stopped): the timer is stopped, or is being [shut
    ///   down](hashed_wheel::HashedWheelTimer::shutdown), even if it is stopped while this call
    ///   waits.
    /// - [`TooManyPending`](NewTimeoutError::TooManyPending), [`Spawn`](NewTimeoutError::Spawn) or
    ///   [`Forked`](NewTimeoutError::Forked): as for
    ///   [`new_timeout`](hashed_wheel::HashedWheelTimer::new_timeout).
    ///
    /// # Panics
    ///
    /// If a task calls it on the timer's own worker and no value is due, because the call would
    /// wait for that task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("soon", Duration::from_millis(10))?;
    /// assert_eq!(queue.recv()?.into_inner(), "soon");
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    #[doc(alias("take"))]
    pub fn recv(&self) -> Result<Expired<T>, NewTimeoutError> {
        self.recv_by(NEVER).map(without_limit)
    }

    /// Receives the first value, and blocks the thread until one is due, but at most for `timeout`.
    /// Returns `None` if none was due in time. `java.util.concurrent.DelayQueue::poll` with a
    /// timeout.
    ///
    /// The timer's clock measures the time, and its ticks end the wait. So the call may take one
    /// tick longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv).
    ///
    /// # Panics
    ///
    /// As for [`recv`](Self::recv). With a timeout of zero it does not wait, and does not panic.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::time::Duration;
    /// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// let queue = DelayQueue::new(&timer);
    /// queue.insert("later", Duration::from_secs(60))?;
    /// assert!(queue.recv_timeout(Duration::from_millis(10))?.is_none());
    /// # Ok::<(), hashed_wheel::NewTimeoutError>(())
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Expired<T>>, NewTimeoutError> {
        self.recv_by(self.timer.deadline_after(timeout) as i64)
    }

    fn recv_by(&self, limit: i64) -> Result<Option<Expired<T>>, NewTimeoutError> {
        if let Some(expired) = self.try_recv() {
            return Ok(Some(expired));
        }
        let parker = Parker::new();
        let waker = parker.waker();
        // A waiter of its own, which leaves when it is dropped.
        let mut waiter = self.clone();
        loop {
            if let Poll::Ready(received) = waiter.poll_by(&waker, limit) {
                return received;
            }
            assert!(
                !self.timer.is_worker_thread(),
                "a receiving method of DelayQueue was called by a task on the worker of the queue's own timer, and would \
                 wait for that task to end: call it on another thread, or call try_recv"
            );
            parker.park();
        }
    }

    /// Receives the first value as soon as one is due. This is [`recv`](Self::recv) for async code,
    /// on any runtime.
    ///
    /// Cancel-safe: if the future is dropped before it is ready, no value is lost, and the next
    /// consumer takes its place.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv). A later call tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::NewTimeoutError;
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// async fn resend(queue: &DelayQueue<String>) -> Result<(), NewTimeoutError> {
    ///     loop {
    ///         let message = queue.expired().await?.into_inner();
    ///         println!("again: {message}");
    ///     }
    /// }
    /// ```
    pub async fn expired(&self) -> Result<Expired<T>, NewTimeoutError> {
        let mut waiter = self.clone();
        poll_fn(|context| waiter.poll_expired(context)).await
    }

    /// Polls for the first value that is due. tokio-util's `DelayQueue::poll_expired`.
    ///
    /// If none is due, this handle waits, until it is polled with the result `Ready` or dropped.
    /// The waker of the last poll is called when the handle has to be polled again: by the timer's
    /// worker, or by a thread that uses the queue.
    ///
    /// Unlike tokio-util's, an empty queue is `Pending`.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv). A later poll tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel::{HashedWheelTimer, ManualClock};
    /// # use hashed_wheel_util::delay_queue::DelayQueue;
    /// # use std::task::{Context, Poll, Waker};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let (timer, _driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
    /// let mut queue = DelayQueue::new(&timer);
    /// let mut context = Context::from_waker(Waker::noop());
    /// queue.insert("in a second", Duration::from_secs(1))?;
    /// assert!(queue.poll_expired(&mut context).is_pending());
    /// clock.advance(Duration::from_secs(1));
    /// let Poll::Ready(expired) = queue.poll_expired(&mut context) else { panic!() };
    /// assert_eq!(expired?.into_inner(), "in a second");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_expired(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Expired<T>, NewTimeoutError>> {
        self.poll_by(context.waker(), NEVER).map_ok(without_limit)
    }

    /// Polls until `limit`: then the result is `None`.
    fn poll_by(
        &mut self,
        waker: &Waker,
        limit: i64,
    ) -> Poll<Result<Option<Expired<T>>, NewTimeoutError>> {
        loop {
            // Before the lock, because both are user code.
            let (now, waker) = (self.timer.now_nanos() as i64, waker.clone());
            let mut state = self.state.lock();
            let due = state.values.take_due(now);
            if due.is_some() || now >= limit {
                drop(state);
                self.leave();
                return Poll::Ready(Ok(due.map(|due| self.expired_of(due))));
            }
            let State { values, waiters } = &mut *state;
            let place = *self.place.get_or_insert_with(|| waiters.next_place());
            let (replaced, awaited) = waiters.wait(place, waker, values.first_deadline());
            drop(state);
            drop(replaced);
            if self
                .set_alarm(place, awaited.min(limit))
                .inspect_err(|_| self.leave())?
            {
                return Poll::Pending;
            }
        }
    }

    /// Returns false if the deadline has been reached since this waiter's look.
    ///
    /// A poll that waits reads the clock up to four times: in [`poll_by`](Self::poll_by), here for
    /// the delay, in `new_timeout_task` or `reset`, and below if the alarm is a new one. None can
    /// be left out: the worker may process a tick between any two of them, and an alarm for a tick
    /// that has passed expires one tick late.
    fn set_alarm(&mut self, place: u64, deadline: i64) -> Result<bool, NewTimeoutError> {
        let delay = self.timer.until(deadline.max(0) as u64);
        if self.alarm.as_ref().is_some_and(|alarm| alarm.reset(delay)) {
            return Ok(true);
        }
        // A new timeout for a tick that the worker has processed would expire at the next one.
        if self.timer.now_nanos() as i64 >= deadline {
            return Ok(false);
        }
        let alarm = Alarm {
            state: Arc::clone(&self.state),
            place,
        };
        self.alarm = Some(self.timer.new_timeout_task(alarm, delay)?);
        Ok(true)
    }
}

/// Unwraps the result of a call without a limit.
fn without_limit<T>(received: Option<Expired<T>>) -> Expired<T> {
    received.expect("NEVER is never reached")
}

/// The task of a waiter's timeout: it wakes the waiter.
struct Alarm<T> {
    state: Arc<Mutex<State<T>>>,
    place: u64,
}

impl<T> Alarm<T> {
    fn ring(&self) {
        let waker = self.state.lock().waiters.notify(self.place);
        wake(waker);
    }
}

impl<T: Send + 'static> TimerTask for Alarm<T> {
    // A task executor might drop it.
    const RUNS_ON_WORKER: bool = true;
    const IS_AWAITED: bool = true;

    fn run(self, _: &Timeout) {
        self.ring();
    }

    /// Called by `stop`: the waiter finds the timer stopped.
    fn cancelled(self, _: &Timeout) {
        self.ring();
    }
}
