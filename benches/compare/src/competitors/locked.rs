//! What people write who take no timer at all: a queue by deadline under a mutex, and a thread that waits for the first.
//!
//! Deadlines are rounded up to a tick, as the wheels do it: to wake for each one alone would cost the thread far more.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Caller, Competitor, Setup};
use crate::task::Task;

/// What is taken out with the lock held; the tasks run without it.
const LOT: usize = 256;

pub(crate) trait ByTime: Default + Send + 'static {
    type Key: Send;

    fn insert(&mut self, deadline: u64, task: Task) -> Self::Key;

    fn remove(&mut self, key: &Self::Key) -> Option<Task>;

    fn first(&self) -> Option<u64>;

    /// The first, unless it is later than `now`.
    fn take(&mut self, now: u64) -> Option<Task>;
}

struct State<Q> {
    queue: Q,
    /// When the thread looks again by itself: 0 while it is awake.
    wakes_at: u64,
    is_stopped: bool,
}

struct Shared<Q> {
    state: Mutex<State<Q>>,
    /// That the thread is to wake sooner, or that it is over.
    changed: Condvar,
    origin: Instant,
    /// In nanoseconds.
    tick: u64,
}

impl<Q: ByTime> Shared<Q> {
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
        let mut due = Vec::with_capacity(LOT);
        let mut state = self.lock();
        while !state.is_stopped {
            let now = self.now();
            while let Some(task) = state.queue.take(now) {
                due.push(task);
                if due.len() == LOT {
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
                    let rest = Duration::from_nanos(first - now);
                    self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0
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

impl<Q: ByTime> Competitor for Locked<Q> {
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
        self.thread.join().expect("its thread has not panicked");
    }
}

impl<Q: ByTime> Caller for &Locked<Q> {
    type Handle = Q::Key;

    fn schedule(&mut self, delay: Duration, task: Task) -> Q::Key {
        let deadline = self.shared.deadline(delay);
        let mut state = self.shared.lock();
        let is_missed = deadline < state.wakes_at;
        let key = state.queue.insert(deadline, task);
        drop(state);
        if is_missed {
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
        // Later than before, so it is not for the thread to know.
        if let Some(task) = queue.remove(handle) {
            *handle = queue.insert(deadline, task);
        }
    }
}
