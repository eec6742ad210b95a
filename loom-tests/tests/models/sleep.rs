//! The worker thread's sleep: no wake-up is lost.

use std::sync::atomic::AtomicU32;

use super::*;

/// Each look at this clock takes part of a tick, so that time passes in a model without anybody's doing.
#[derive(Default)]
struct Passing(AtomicU32);

impl Clock for Passing {
    fn now(&self) -> Duration {
        TICK / 4 * self.0.fetch_add(1, Relaxed)
    }
}

/// A timer with a (loom) thread, which may be anywhere between its first turn and its sleep. With nothing to wait for it
/// sleeps for ever: a wake-up that is lost is a deadlock, and loom says so.
pub(super) fn threaded() -> HashedWheelTimer {
    let timer = small().clock(Passing::default()).build().unwrap();
    timer.start().unwrap();
    timer
}

#[test]
fn a_new_timeout_wakes_a_worker_that_falls_asleep() {
    explore(Some(3), [mutant("SleepWithoutCompare")], || {
        let timer = threaded();
        let bell = Arc::new(Bell::default());
        let task = Arc::clone(&bell);
        let timeout = timer.new_timeout(move |_| task.ring(), TICK).unwrap();
        bell.wait();
        assert!(timeout.is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn two_new_timeouts_wake_a_worker_that_falls_asleep() {
    explore(Some(2), [mutant("SleepWithoutCompare")], || {
        let timer = threaded();
        let bells = [Arc::new(Bell::default()), Arc::new(Bell::default())];
        let [mine, others] = bells.clone();
        let other = timer.clone();
        let producer = thread::spawn(move || other.new_timeout(move |_| others.ring(), TICK).unwrap());
        timer.new_timeout(move |_| mine.ring(), TICK).unwrap();
        bells.iter().for_each(|bell| bell.wait());
        assert!(producer.join().unwrap().is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn a_reset_to_an_earlier_deadline_wakes_a_worker_that_falls_asleep() {
    explore(Some(3), [mutant("SleepWithoutSecondLook")], || {
        let timer = threaded();
        let bell = Arc::new(Bell::default());
        let task = Arc::clone(&bell);
        // For ever, so that the sleep is, unless the reset ends it.
        let timeout = timer.new_timeout(move |_| task.ring(), Duration::MAX).unwrap();
        assert!(timeout.reset(TICK));
        bell.wait();
        assert!(timeout.is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn a_cancel_wakes_a_worker_that_sleeps_for_long() {
    let mutants = ["CancelWithoutPush", "CancelWithoutWake"].map(|name| mutant(name).never_ends());
    explore(Some(3), mutants, || {
        let timer = threaded();
        let memory = Arc::new(Ends::default());
        let timeout = timer.new_timeout_task(Task(Arc::clone(&memory)), Duration::MAX).unwrap();
        let node = timeout.clone();
        assert!(timeout.cancel());
        drop(timeout);
        // Until nobody but this handle holds the entry: the worker gives it back, and nothing else wakes it.
        while !node.is_the_only_handle() {
            thread::yield_now();
        }
        assert!(timer.stop().is_empty());
        memory.assert(0, 1);
    });
}

#[test]
fn a_stop_wakes_a_worker_that_falls_asleep() {
    explore(None, [mutant("StopWithoutUnparking")], || {
        let timer = threaded();
        assert!(timer.stop().is_empty());
    });
}

// --- the same without the thread ----------------------------------------------------------------------------------------
// Where loom's threads yield, they see what is newest; so these show more of what may be seen late.

/// A turn, and what the worker does after it, on a thread of its own; whether it fell asleep.
pub(super) fn turn_and_rest(mut driver: Driver) -> thread::JoinHandle<(bool, Driver)> {
    thread::spawn(move || {
        driver.turn();
        (driver.falls_asleep(), driver)
    })
}

#[test]
fn a_worker_sees_a_cancel_or_is_woken_by_it() {
    let mutants = [no_release("engine/state.rs deregister"), mutant("CancelWithoutPush")];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (timeout, _) = driven.schedule_placed(5);
        let worker = turn_and_rest(driven.driver);
        assert!(timeout.cancel());
        let (asleep, mut driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_something()));
        driver.turn();
        assert!(timeout.is_the_only_handle(), "its entry was given back");
    });
}

#[test]
fn a_worker_sees_a_reset_or_is_woken_by_it() {
    let mutants = [
        mutant("SleepWithoutSecondLook"),
        no_release("engine/sleep.rs publish_and_read"),
        no_acquire("engine/sleep.rs fall_asleep"),
    ];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (timeout, _) = driven.schedule_placed(5);
        let worker = turn_and_rest(driven.driver);
        assert!(timeout.reset(TICK));
        let (asleep, driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_something()));
    });
}

#[test]
fn a_worker_sees_two_new_timeouts_or_is_woken_by_them() {
    explore(Some(3), [mutant("SleepWithoutCompare")], || {
        let driven = Driven::new();
        let producers = [driven.timer.clone(), driven.timer.clone()]
            .map(|timer| thread::spawn(move || drop(timer.new_timeout(|_| (), TICK).unwrap())));
        let mut driver = driven.driver;
        driver.turn();
        let asleep = driver.falls_asleep();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert!(!(asleep && driver.misses_something()));
    });
}

/// The count of those admitted runs over, in a model after four: with as many on their way it looks as if there were none.
#[test]
fn a_worker_sees_so_many_new_timeouts_that_their_count_runs_over() {
    explore(Some(3), [no_release("engine/state.rs register")], || {
        let driven = Driven::new();
        let worker = turn_and_rest(driven.driver);
        for _ in 0..4 {
            driven.timer.new_timeout(|_| (), TICK).unwrap();
        }
        let (asleep, driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_something()));
    });
}
