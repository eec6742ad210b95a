//! Threads that do not use the timer for many turns: the worker no longer looks at their lanes, and
//! learns of what they push later.

use crate::common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use common::{Driven, TEST_TIMEOUT, TICK, ms};
use hashed_wheel::{Driver, HashedWheelTimer, Timeout};

/// A driver unlists lanes if sixteen of them are idle.
const COUNT: usize = if cfg!(miri) { 17 } else { 1_000 };

/// More turns than a driver takes until it unlists the lanes of threads that are idle.
const MANY_TURNS: usize = if cfg!(miri) { 70 } else { 200 };

type Work = Arc<dyn Fn(usize) + Send + Sync>;

/// One test has its threads at a time: all of them together could exceed a limit of the system.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// Threads that live at the same time, and do something when they are told to.
struct Threads {
    _one_test: MutexGuard<'static, ()>,
    work: Vec<Sender<Work>>,
    done: Receiver<()>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn new() -> Self {
        let _one_test = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, done) = channel();
        let (mut work, mut threads) = (Vec::new(), Vec::new());
        for number in 0..COUNT {
            let (sender, orders) = channel::<Work>();
            let ended = ended.clone();
            work.push(sender);
            let body = move || {
                for work in orders {
                    work(number);
                    drop(work);
                    ended.send(()).unwrap();
                }
            };
            threads.push(
                thread::Builder::new()
                    .stack_size(128 << 10)
                    .spawn(body)
                    .unwrap(),
            );
        }
        Self {
            _one_test,
            work,
            done,
            threads,
        }
    }

    /// Lets each thread do something, and waits until all have done it.
    fn all(&self, work: impl Fn(usize) + Send + Sync + 'static) {
        let work: Work = Arc::new(work);
        self.work
            .iter()
            .for_each(|sender| sender.send(Arc::clone(&work)).unwrap());
        self.work
            .iter()
            .for_each(|_| self.done.recv_timeout(TEST_TIMEOUT).unwrap());
    }

    /// Lets each thread schedule a timeout. Returns the handles.
    fn schedule(&self, timer: &HashedWheelTimer, ticks: u32) -> Vec<Timeout> {
        let (timer, timeouts) = (timer.clone(), Arc::new(Mutex::new(Vec::new())));
        let all = Arc::clone(&timeouts);
        self.all(move |_| {
            all.lock()
                .unwrap()
                .push(timer.new_timeout(|_| (), TICK * ticks).unwrap());
        });
        std::mem::take(&mut *timeouts.lock().unwrap())
    }

    fn end(self) {
        drop(self.work);
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

fn turn_often(driver: &mut Driver) {
    (0..MANY_TURNS).for_each(|_| assert_eq!(driver.turn(), 0));
}

/// Returns a timer, and threads that have used it long ago: each has a timeout of 100 ticks in the
/// wheel.
fn with_idle_threads() -> (Driven, Threads, Vec<Timeout>) {
    let (mut driven, threads) = (Driven::new(), Threads::new());
    let timeouts = threads.schedule(&driven.timer, 100);
    turn_often(&mut driven.driver);
    (driven, threads, timeouts)
}

#[test]
fn timeouts_of_idle_threads_fire_in_time() {
    let (mut driven, threads, _far) = with_idle_threads();
    for _ in 0..3 {
        let near = threads.schedule(&driven.timer, 2);
        assert_eq!(driven.pass(TICK), 0);
        assert_eq!(driven.pass(TICK), COUNT);
        assert!(near.iter().all(Timeout::is_expired));
        turn_often(&mut driven.driver);
    }
    threads.end();
    assert_eq!(driven.pass(TICK * 100), COUNT);
}

/// The threads take turns, so that some lanes are listed while others are unlisted.
#[test]
fn timeouts_fire_while_other_threads_become_idle() {
    let (mut driven, threads, _far) = with_idle_threads();
    for round in 0..if cfg!(miri) { 3 } else { 90 } {
        let timer = driven.timer.clone();
        let is_its_turn = move |number: usize| (number + round) % 7 == 0;
        threads.all(move |number| {
            if is_its_turn(number) {
                timer.new_timeout(|_| (), TICK).unwrap();
            }
        });
        let due = (0..COUNT).filter(|&number| is_its_turn(number)).count();
        assert_eq!(driven.pass(TICK), due, "round {round}");
        if round % 3 == 0 {
            turn_often(&mut driven.driver);
        }
    }
    threads.end();
}

#[test]
fn resets_and_cancels_by_idle_threads_reach_the_worker() {
    let (mut driven, threads, far) = with_idle_threads();
    let far = Arc::new(far);
    let mine = Arc::clone(&far);
    threads.all(move |number| {
        let timeout = &mine[number];
        assert!(if number % 2 == 0 {
            timeout.reset(TICK)
        } else {
            timeout.cancel()
        });
    });
    assert_eq!(driven.pass(TICK), COUNT.div_ceil(2));
    assert_eq!(driven.timer.pending_timeouts(), 0);
    assert_eq!(driven.timer.stats().cancelled_not_reclaimed, 0);
    threads.end();
}

#[test]
fn stop_returns_timeouts_of_idle_threads() {
    let (driven, threads, far) = with_idle_threads();
    let near = threads.schedule(&driven.timer, 1);
    assert_eq!(driven.timer.stop().len(), far.len() + near.len());
    assert!(far.iter().chain(&near).all(Timeout::is_cancelled));
    threads.end();
}

#[test]
fn shutdown_runs_timeouts_of_idle_threads() {
    let (driven, threads, far) = with_idle_threads();
    let near = threads.schedule(&driven.timer, 1);
    driven.clock.advance(TICK);
    assert_eq!(driven.timer.shutdown(TICK).len(), far.len());
    assert!(near.iter().all(Timeout::is_expired));
    threads.end();
}

#[test]
fn threads_may_end_while_they_are_idle() {
    let (mut driven, threads, far) = with_idle_threads();
    threads.end();
    assert_eq!(driven.driver.turn(), 0);
    // New threads take what the others have left, or open new lanes.
    let threads = Threads::new();
    let near = threads.schedule(&driven.timer, 1);
    assert_eq!(driven.pass(TICK), COUNT);
    threads.end();
    assert_eq!(driven.pass(TICK * 100), COUNT);
    assert!(far.iter().chain(&near).all(Timeout::is_expired));
}

/// The worker thread sleeps several times until the threads are idle, and then for an hour.
#[test]
fn idle_threads_wake_the_worker_thread() {
    let timer = HashedWheelTimer::builder().tick(ms(1)).build().unwrap();
    let threads = Threads::new();
    for _ in 0..3 {
        let (fired, events) = channel();
        let scheduler = timer.clone();
        threads.all(move |_| {
            let fired = fired.clone();
            scheduler
                .new_timeout(move |_| fired.send(()).unwrap(), ms(3))
                .unwrap();
        });
        let began = Instant::now();
        (0..COUNT).for_each(|_| events.recv_timeout(TEST_TIMEOUT).unwrap());
        assert!(began.elapsed() < TEST_TIMEOUT);
        // Traffic of this thread alone.
        for _ in 0..if cfg!(miri) { 3 } else { 20 } {
            let (fired, event) = channel();
            timer
                .new_timeout(move |_| fired.send(()).unwrap(), ms(2))
                .unwrap();
            event.recv_timeout(TEST_TIMEOUT).unwrap();
        }
    }
    threads.end();
    assert!(timer.stop().is_empty());
}
