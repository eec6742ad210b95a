//! The usual hand-written timer: a queue of deadlines under a mutex, and a thread that sleeps until
//! the first deadline.
//!
//! Deadlines are rounded up to a tick, as in the wheels. Otherwise the thread would wake separately
//! for each deadline, which is much more expensive.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

/// How many expired timeouts are removed while the lock is held. Their tasks run without the lock.
const BATCH: usize = 256;

pub(crate) trait DeadlineQueue: Default + Send + 'static {
    type Key: Send;

    fn insert(&mut self, deadline: u64, task: Task) -> Self::Key;

    fn remove(&mut self, key: &Self::Key) -> Option<Task>;

    fn first(&self) -> Option<u64>;

    /// Removes and returns the first task, unless its deadline is later than `now`.
    fn take(&mut self, now: u64) -> Option<Task>;
}

struct State<Q> {
    queue: Q,
    /// When the thread wakes up without a notification. 0 while it is awake.
    wakes_at: u64,
    is_stopped: bool,
}

struct Shared<Q> {
    state: Mutex<State<Q>>,
    /// Wakes the thread: there is an earlier deadline, or the timer is stopped.
    changed: Condvar,
    origin: Instant,
    /// The duration of a tick in nanoseconds.
    tick: u64,
}

impl<Q: DeadlineQueue> Shared<Q> {
    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn deadline(&self, delay: Duration) -> u64 {
        (self.now() + delay.as_nanos() as u64).next_multiple_of(self.tick)
    }

    fn run(&self) {
        let mut due = Vec::with_capacity(BATCH);
        let mut state = self.lock();
        while !state.is_stopped {
            let now = self.now();
            while let Some(task) = state.queue.take(now) {
                due.push(task);
                if due.len() == BATCH {
                    break;
                }
            }
            if !due.is_empty() {
                drop(state);
                due.drain(..).for_each(Task::run);
                state = self.lock();
                continue;
            }
            let first = state.queue.first();
            state.wakes_at = first.unwrap_or(u64::MAX);
            state = match first {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(first) => {
                    let remaining = Duration::from_nanos(first - now);
                    self.changed.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.wakes_at = 0;
        }
    }
}

pub(crate) struct Locked<Q> {
    shared: Arc<Shared<Q>>,
    thread: JoinHandle<()>,
}

impl<Q: DeadlineQueue> Competitor for Locked<Q> {
    type Handle = Q::Key;

    type Caller<'a> = &'a Self;

    fn start(setup: Setup) -> Self {
        let state = Mutex::new(State { queue: Q::default(), wakes_at: 0, is_stopped: false });
        let tick = setup.tick.as_nanos() as u64;
        let shared = Arc::new(Shared { state, changed: Condvar::new(), origin: Instant::now(), tick });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        Self { shared, thread }
    }

    fn caller(&self) -> &Self {
        self
    }

    fn stop(self) {
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_one();
        self.thread.join().expect("the timer's thread has not panicked");
    }
}

impl<Q: DeadlineQueue> Caller for &Locked<Q> {
    type Handle = Q::Key;

    fn schedule(&mut self, delay: Duration, task: Task) -> Q::Key {
        let deadline = self.shared.deadline(delay);
        let mut state = self.shared.lock();
        let is_earlier = deadline < state.wakes_at;
        let key = state.queue.insert(deadline, task);
        drop(state);
        if is_earlier {
            self.shared.changed.notify_one();
        }
        key
    }

    fn cancel(&mut self, handle: Q::Key) {
        self.shared.lock().queue.remove(&handle);
    }

    fn rearm(&mut self, handle: &mut Q::Key, delay: Duration) {
        let deadline = self.shared.deadline(delay);
        let queue = &mut self.shared.lock().queue;
        // The new deadline is later than the old one, so the thread need not wake up.
        if let Some(task) = queue.remove(handle) {
            *handle = queue.insert(deadline, task);
        }
    }
}
