//! A queue from which each value comes out when its delay is over, built on the public API of
//! `hashed-wheel` alone. The tests have small ports of other things: an actor's timers, a reactor,
//! a cache, an HTTP client.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout, TimerTask};

/// Values, each with a timeout of its own. Clones refer to the same queue.
pub struct Queue<T: Send + 'static> {
    timer: HashedWheelTimer,
    shared: Arc<Shared<T>>,
}

/// Identifies a value of one queue. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(u64);

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: HashMap<Key, (T, Timeout)>,
    due: VecDeque<T>,
    last: u64,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of a value: makes it due. It only hands something on, so the worker runs it itself,
/// even if the timer has an executor for the tasks of others.
struct Due<T>(Arc<Shared<T>>, Key);

impl<T: Send + 'static> TimerTask for Due<T> {
    const RUNS_ON_WORKER: bool = true;

    fn run(self, _: &Timeout) {
        let Self(shared, key) = self;
        let mut state = shared.lock();
        if let Some((value, _)) = state.waiting.remove(&key) {
            state.due.push_back(value);
            drop(state);
            shared.changed.notify_one();
        }
    }

    /// The timer has ended, or all of its timeouts were cancelled: the value goes.
    fn cancelled(self, _: &Timeout) {
        let removed = self.0.lock().waiting.remove(&self.1);
        drop(removed);
    }
}

/// Is pending while a consumer waits, and wakes it when the timer ends. `cancel_all` leaves it
/// alone, as it does the timeout that a future awaits.
struct End<T>(Arc<Shared<T>>);

impl<T: Send + 'static> TimerTask for End<T> {
    const RUNS_ON_WORKER: bool = true;
    const IS_AWAITED: bool = true;

    fn run(self, _: &Timeout) {}

    fn cancelled(self, _: &Timeout) {
        // With the lock: the consumer has either not looked yet, or waits already.
        let state = self.0.lock();
        self.0.changed.notify_all();
        drop(state);
    }
}

impl<T: Send + 'static> Queue<T> {
    /// Makes an empty queue, whose values come out on this timer's time.
    pub fn new(timer: &HashedWheelTimer) -> Self {
        let state = State {
            waiting: HashMap::new(),
            due: VecDeque::new(),
            last: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        Self {
            timer: timer.clone(),
            shared,
        }
    }

    /// Adds a value that is due after `delay`. The error gives it back.
    pub fn insert(&self, value: T, delay: Duration) -> Result<Key, (T, NewTimeoutError)> {
        // The timeout may fire at once: its task waits for the lock.
        let mut state = self.shared.lock();
        state.last += 1;
        let key = Key(state.last);
        match self
            .timer
            .new_timeout_task(Due(Arc::clone(&self.shared), key), delay)
        {
            Ok(timeout) => {
                state.waiting.insert(key, (value, timeout));
                Ok(key)
            }
            Err(error) => Err((value, error)),
        }
    }

    /// Moves the deadline to `delay` from now. False if the value is due or gone.
    #[must_use]
    pub fn reset(&self, key: Key, delay: Duration) -> bool {
        self.shared
            .lock()
            .waiting
            .get(&key)
            .is_some_and(|(_, timeout)| timeout.reset(delay))
    }

    /// Takes a value out before it is due.
    pub fn remove(&self, key: Key) -> Option<T> {
        let removed = self.shared.lock().waiting.remove(&key);
        let (value, timeout) = removed?;
        timeout.cancel();
        Some(value)
    }

    /// Waits for the next value that is due. `None` once the timer is stopped.
    ///
    /// # Panics
    ///
    /// On the timer's worker, which would wait for itself.
    pub fn recv(&self) -> Option<T> {
        if let Some(value) = self.try_recv() {
            return Some(value);
        }
        assert!(
            !self.timer.is_worker_thread(),
            "recv would wait for the worker that has called it"
        );
        let end = self
            .timer
            .new_timeout_task(End(Arc::clone(&self.shared)), Duration::MAX)
            .ok()?;
        let mut state = self.shared.lock();
        let value = loop {
            match state.due.pop_front() {
                None if !end.is_cancelled() => {
                    state = self
                        .shared
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                value => break value,
            }
        };
        // Its hook takes the lock.
        drop(state);
        end.cancel();
        value
    }

    /// Takes a value that is due already.
    pub fn try_recv(&self) -> Option<T> {
        self.shared.lock().due.pop_front()
    }
}

impl<T: Send + 'static> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            timer: self.timer.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

#[cfg(test)]
mod driven;
#[cfg(test)]
mod ports;
#[cfg(test)]
mod tests;
