//! Helpers that the tests of the timer share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod subscriber;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{
    Builder, Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Periodic,
    PeriodicOutput, PeriodicRun, Schedule, Stats, TaskExecutor, Timeout, TimerTask, executor,
};

/// The limit for events that should come immediately. It is long because the machine may be busy,
/// and longer under Miri, which executes everything hundreds of times as slowly.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(if cfg!(miri) { 300 } else { 30 });

pub const STOPPED: NewTimeoutError = NewTimeoutError::Stopped;

/// The error of a timer that accepts one timeout.
pub const FULL: NewTimeoutError = NewTimeoutError::TooManyPending { limit: 1 };

/// An executor that accepts every task.
pub fn accepts_all(execute: impl Fn(ExpiredTask) + Send + Sync + 'static) -> impl TaskExecutor {
    executor::from_fn(move |task| {
        execute(task);
        Ok(())
    })
}

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until the condition holds.
#[track_caller]
pub fn eventually(expectation: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{expectation}");
        thread::sleep(ms(1));
    }
}

/// Waits until the worker has not woken for 300 ms.
#[track_caller]
pub fn wait_until_idle(timer: &HashedWheelTimer) {
    let begin = Instant::now();
    while {
        let before = timer.stats().wake_ups;
        thread::sleep(ms(300));
        timer.stats().wake_ups != before
    } {
        assert!(begin.elapsed() < TEST_TIMEOUT, "the idle worker wakes");
    }
}

/// A timer with a thread.
#[track_caller]
pub fn built(settings: impl FnOnce(Builder) -> Builder) -> HashedWheelTimer {
    settings(HashedWheelTimer::builder()).build().unwrap()
}

/// A driven timer on any clock.
#[track_caller]
pub fn built_driven(settings: impl FnOnce(Builder) -> Builder) -> (HashedWheelTimer, Driver) {
    settings(HashedWheelTimer::builder())
        .build_driven()
        .unwrap()
}

/// A driven timer with a tick of 10 ms and 8 slots. Its clock moves only when the test moves it.
pub struct Driven {
    pub timer: HashedWheelTimer,
    pub driver: Driver,
    pub clock: ManualClock,
}

pub const TICK: Duration = ms(10);

impl Driven {
    pub fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = built_driven(|builder| {
            let builder = builder.tick(TICK).ticks_per_wheel(8);
            settings(builder.clock(clock.clone()))
        });
        Self {
            timer,
            driver,
            clock,
        }
    }

    /// Moves the clock and makes one turn.
    pub fn pass(&mut self, time: Duration) -> usize {
        self.clock.advance(time);
        self.driver.turn()
    }

    pub fn turn(&mut self) -> usize {
        self.driver.turn()
    }

    /// Makes a turn, so that what was scheduled is in the wheel, or does not.
    pub fn turn_if(&mut self, is_made: bool) {
        if is_made {
            self.turn();
        }
    }

    pub fn next_turn(&self) -> Option<Duration> {
        self.driver.next_turn()
    }

    pub fn stats(&self) -> Stats {
        self.timer.stats()
    }

    pub fn pending(&self) -> usize {
        self.timer.pending_timeouts()
    }

    /// Makes a turn as long as the next one is due immediately.
    pub fn turn_until_quiet(&mut self) -> usize {
        let mut expired = self.driver.turn();
        while self.driver.next_turn() == Some(Duration::ZERO) {
            expired += self.driver.turn();
        }
        expired
    }
}

/// Schedules what the timer must accept.
pub trait Schedules {
    fn handle(&self) -> &HashedWheelTimer;

    #[track_caller]
    fn schedule<F>(&self, task: F, delay: Duration) -> Timeout
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        self.handle().new_timeout(task, delay).unwrap()
    }

    #[track_caller]
    fn schedule_at<F>(&self, task: F, deadline: Instant) -> Timeout
    where
        F: FnOnce(&Timeout) + Send + 'static,
    {
        self.handle().new_timeout_at(task, deadline).unwrap()
    }

    #[track_caller]
    fn schedule_task(&self, task: impl TimerTask, delay: Duration) -> Timeout {
        self.handle().new_timeout_task(task, delay).unwrap()
    }

    #[track_caller]
    fn periodic<F, R>(&self, schedule: Schedule, task: F) -> Periodic
    where
        F: FnMut(&PeriodicRun<'_>) -> R + Send + 'static,
        R: PeriodicOutput,
    {
        self.handle().schedule_periodic(schedule, task).unwrap()
    }

    #[track_caller]
    fn fixed_rate<F>(&self, task: F, initial_delay: Duration, period: Duration) -> Periodic
    where
        F: FnMut() + Send + 'static,
    {
        let timer = self.handle();
        timer
            .schedule_at_fixed_rate(task, initial_delay, period)
            .unwrap()
    }

    #[track_caller]
    fn fixed_delay<F>(&self, task: F, initial_delay: Duration, delay: Duration) -> Periodic
    where
        F: FnMut() + Send + 'static,
    {
        let timer = self.handle();
        timer
            .schedule_with_fixed_delay(task, initial_delay, delay)
            .unwrap()
    }
}

impl Schedules for HashedWheelTimer {
    fn handle(&self) -> &HashedWheelTimer {
        self
    }
}

impl Schedules for Driven {
    fn handle(&self) -> &HashedWheelTimer {
        &self.timer
    }
}

/// How many timeouts were scheduled, have expired, were cancelled, and are pending.
pub fn basics(stats: &Stats) -> (u64, u64, u64, u64) {
    (
        stats.scheduled,
        stats.expired,
        stats.cancelled,
        stats.pending,
    )
}

/// A task of some executor: the part of it that a waker can see.
#[derive(Default)]
pub struct AsyncTask {
    wakes: AtomicUsize,
}

impl Wake for AsyncTask {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, SeqCst);
    }
}

impl AsyncTask {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns how often the task was woken.
    pub fn wakes(&self) -> usize {
        self.wakes.load(SeqCst)
    }

    /// Returns how often the task was woken since the last call.
    pub fn take_wakes(&self) -> usize {
        self.wakes.swap(0, SeqCst)
    }
}

pub fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Counts each kind of end, for any number of tasks.
#[derive(Default, Debug)]
pub struct Ends {
    pub runs: AtomicUsize,
    pub hooks: AtomicUsize,
    pub drops: AtomicUsize,
}

impl Ends {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the numbers of runs, hooks and drops.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.runs(), self.hooks(), self.drops())
    }

    pub fn task(self: &Arc<Self>) -> Task {
        Task(Arc::clone(self))
    }

    pub fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }

    pub fn hooks(&self) -> usize {
        self.hooks.load(SeqCst)
    }

    pub fn drops(&self) -> usize {
        self.drops.load(SeqCst)
    }
}

/// A task that counts how it ends.
pub struct Task(Arc<Ends>);

impl TimerTask for Task {
    fn run(self, _: &Timeout) {
        self.0.runs.fetch_add(1, SeqCst);
    }

    fn cancelled(self, _: &Timeout) {
        self.0.hooks.fetch_add(1, SeqCst);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
    }
}

/// The names of the tasks that fired, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    pub fn task(&self, name: u64) -> impl FnOnce(&Timeout) + Send + 'static {
        let log = self.clone();
        move |_| log.push(name)
    }

    pub fn push(&self, name: u64) {
        self.0.lock().unwrap().push(name);
    }

    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Blocks a task until it is opened, and reports when the task has reached it.
pub struct Gate {
    arrived: Receiver<()>,
    open: Sender<()>,
}

impl Gate {
    pub fn new() -> (Self, impl FnOnce() + Send + 'static) {
        let (arrive, arrived) = channel();
        let (open, opened) = channel();
        let wait = move || {
            arrive.send(()).unwrap();
            // A disconnected channel means that the gate was dropped, which opens it.
            assert_ne!(
                opened.recv_timeout(TEST_TIMEOUT),
                Err(RecvTimeoutError::Timeout),
                "the gate was not opened in time"
            );
        };
        (Self { arrived, open }, wait)
    }

    pub fn wait_for_arrival(&self) {
        self.arrived
            .recv_timeout(TEST_TIMEOUT)
            .expect("no task reached the gate in time");
    }

    pub fn open(self) {
        let _ = self.open.send(());
    }
}

/// Runs `test` on a thread of its own and fails if it does not end in time.
#[track_caller]
pub fn ends<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        let outcome = test();
        let _ = done.send(());
        outcome
    });
    if wait.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
        panic!("the test does not end");
    }
    thread.join().unwrap()
}

/// Keeps the output free of the panics that a test provokes.
pub fn quietly<T>(test: impl FnOnce() -> T) -> T {
    static HOOK: std::sync::Once = std::sync::Once::new();
    thread_local!(static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = test();
    QUIET.set(false);
    outcome
}

/// Returns whether this panics, without a report.
pub fn panics<T>(test: impl FnOnce() -> T) -> bool {
    quietly(|| catch_unwind(AssertUnwindSafe(test)).is_err())
}

/// A clock that can step back: its time is that of the first clock minus that of the second.
pub struct RewindableClock(pub ManualClock, pub ManualClock);

impl Clock for RewindableClock {
    fn now(&self) -> Duration {
        self.0.now().saturating_sub(self.1.now())
    }
}
