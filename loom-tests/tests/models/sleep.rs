//! The sleep of the worker thread: no wake-up is lost.

use std::sync::atomic::AtomicU32;

use super::*;

/// A clock that moves by a quarter of a tick each time it is read, so that time passes in a model.
#[derive(Default)]
struct PassingClock(AtomicU32);

impl Clock for PassingClock {
    fn now(&self) -> Duration {
        TICK / 4 * self.0.fetch_add(1, Relaxed)
    }
}

/// Returns a timer with a worker thread, which may be anywhere between its first turn and its
/// sleep. If nothing is pending, the sleep has no end: a lost wake-up is a deadlock, which loom
/// reports.
pub(super) fn threaded() -> HashedWheelTimer {
    let timer = small_wheel()
        .clock(PassingClock::default())
        .build()
        .unwrap();
    timer.start().unwrap();
    timer
}

#[test]
fn new_timeout_wakes_a_worker_that_falls_asleep() {
    explore(
        Some(3),
        [mutant("PushWithoutLook"), mutant("SleepWithoutSecondLook")],
        || {
            let timer = threaded();
            let event = Arc::new(Event::default());
            let task = Arc::clone(&event);
            let timeout = timer.new_timeout(move |_| task.set(), TICK).unwrap();
            event.wait();
            assert!(timeout.is_expired());
            assert!(timer.stop().is_empty());
        },
    );
}

#[test]
fn two_new_timeouts_wake_a_worker_that_falls_asleep() {
    explore(bound(1, Some(2)), [mutant("PushWithoutLook")], || {
        let timer = threaded();
        let events = [Arc::new(Event::default()), Arc::new(Event::default())];
        let [mine, others] = events.clone();
        let other = timer.clone();
        let producer =
            thread::spawn(move || other.new_timeout(move |_| others.set(), TICK).unwrap());
        timer.new_timeout(move |_| mine.set(), TICK).unwrap();
        events.iter().for_each(|event| event.wait());
        assert!(producer.join().unwrap().is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn reset_to_earlier_deadline_wakes_a_worker_that_falls_asleep() {
    explore(
        bound(2, Some(3)),
        [mutant("EarlierResetWithoutLook")],
        || {
            let timer = threaded();
            let event = Arc::new(Event::default());
            let task = Arc::clone(&event);
            // The delay has no end, so only the reset can end the sleep.
            let timeout = timer
                .new_timeout(move |_| task.set(), Duration::MAX)
                .unwrap();
            assert!(timeout.reset(TICK));
            event.wait();
            assert!(timeout.is_expired());
            assert!(timer.stop().is_empty());
        },
    );
}

#[test]
fn cancel_wakes_a_sleeping_worker() {
    let mutants = ["CancelWithoutPush", "CancelWithoutWake"].map(|name| mutant(name).never_ends());
    explore(bound(2, Some(3)), mutants, || {
        let timer = threaded();
        let memory = Arc::new(Outcome::default());
        let timeout = timer
            .new_timeout_task(Task(Arc::clone(&memory)), Duration::MAX)
            .unwrap();
        let node = timeout.clone();
        assert!(timeout.cancel());
        drop(timeout);
        // Wait until the worker has released its reference. Nothing but the cancel wakes it.
        while !node.is_only_handle() {
            thread::yield_now();
        }
        assert!(timer.stop().is_empty());
        memory.assert(0, 1);
    });
}

#[test]
fn stop_wakes_a_worker_that_falls_asleep() {
    explore(None, [mutant("StopWithoutNotify")], || {
        let timer = threaded();
        assert!(timer.stop().is_empty());
    });
}

// --- the same without the thread -----------------------------------------------------------------
// A loom thread that yields sees the newest values afterwards. These models do not yield, so they
// show more of what a thread may see late.

/// Does a turn on another thread, and what the worker thread does after it. Returns whether it fell
/// asleep.
pub(super) fn turn_and_idle(mut driver: Driver) -> thread::JoinHandle<(bool, Driver)> {
    thread::spawn(move || {
        driver.turn();
        (driver.falls_asleep(), driver)
    })
}

#[test]
fn worker_sees_a_cancel_or_is_woken() {
    let mutants = [
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
        mutant("CancelWithoutPush"),
    ];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (timeout, _) = driven.schedule_in_wheel(5);
        let worker = turn_and_idle(driven.driver);
        assert!(timeout.cancel());
        let (asleep, mut driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_messages()));
        driver.turn();
        assert!(
            timeout.is_only_handle(),
            "the worker has released its reference"
        );
    });
}

#[test]
fn worker_sees_a_reset_or_is_woken() {
    let mutants = [
        mutant("SleepWithoutSecondLook"),
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
    ];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (timeout, _) = driven.schedule_in_wheel(5);
        let worker = turn_and_idle(driven.driver);
        assert!(timeout.reset(TICK));
        let (asleep, driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_messages()));
    });
}

#[test]
fn worker_sees_a_new_timeout_or_is_woken() {
    let mutants = [
        "PushWithoutFence",
        "ChangeWithoutFence",
        "PushWithoutLook",
        "SleepWithoutSecondLook",
    ];
    explore(None, mutants.map(mutant), || {
        let mut driven = Driven::new();
        let _far = driven.schedule_in_wheel(5);
        let worker = turn_and_idle(driven.driver);
        let near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        let (asleep, driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_messages()));
        assert!(near.cancel());
    });
}

#[test]
fn worker_sees_two_new_timeouts_or_is_woken() {
    explore(
        bound(2, Some(3)),
        [mutant("PushWithoutFence"), mutant("ChangeWithoutFence")],
        || {
            let driven = Driven::new();
            let producers = [driven.timer.clone(), driven.timer.clone()]
                .map(|timer| thread::spawn(move || drop(timer.new_timeout(|_| (), TICK).unwrap())));
            let mut driver = driven.driver;
            driver.turn();
            let asleep = driver.falls_asleep();
            producers
                .into_iter()
                .for_each(|producer| producer.join().unwrap());
            assert!(!(asleep && driver.misses_messages()));
        },
    );
}
