//! The number of pending timeouts: a sum over the counts of threads.

use std::ops::ControlFlow;

use hashed_wheel::inside::ModelledCounters;
use hashed_wheel::{PeriodicRun, Schedule};

use super::dispatch::ThreadPerTask;
use super::*;

#[test]
fn count_is_never_negative() {
    explore(
        None,
        [
            mutant("RegistrationsReadFirst"),
            no_acquire("engine/pending.rs ended"),
        ],
        || {
            let driven = Driven::new();
            let other = driven.timer.clone();
            let caller = thread::spawn(move || {
                let timeout = other.new_timeout(|_| (), TICK).unwrap();
                assert_eq!(
                    other.pending_timeouts(),
                    1,
                    "it includes what this thread did"
                );
                assert!(timeout.cancel());
                assert_eq!(
                    other.pending_timeouts(),
                    0,
                    "it includes what this thread did"
                );
            });
            // A negative sum overflows, and panics.
            assert!(driven.timer.pending_timeouts() <= 1);
            caller.join().unwrap();
            assert_eq!(driven.timer.pending_timeouts(), 0);
        },
    );
}

/// The count never includes an end without its registration, which the thread that ends the timeout
/// has learnt of from another one.
#[test]
fn count_includes_the_registration_of_what_another_thread_has_cancelled() {
    explore(Some(3), [mutant("RegistrationsReadFirst")], || {
        let driven = Driven::new();
        let (other, slot) = (driven.timer.clone(), Arc::new(loom::sync::Mutex::new(None)));
        let place = Arc::clone(&slot);
        let caller = thread::spawn(move || {
            *place.lock().unwrap() = Some(other.new_timeout(|_| (), TICK).unwrap())
        });
        let timer = driven.timer.clone();
        let reader = thread::spawn(move || assert!(timer.pending_timeouts() <= 1));
        let timeout = slot.lock().unwrap().take();
        if let Some(timeout) = &timeout {
            assert!(timeout.cancel());
        }
        caller.join().unwrap();
        reader.join().unwrap();
        assert_eq!(
            driven.timer.pending_timeouts(),
            usize::from(timeout.is_none())
        );
    });
}

/// Reads the count on another thread. The count never includes an end without its registration:
/// then it would be negative.
fn read_count(timer: &HashedWheelTimer) -> thread::JoinHandle<()> {
    let timer = timer.clone();
    thread::spawn(move || assert!(timer.pending_timeouts() <= 1))
}

/// The worker has learnt of the timeout from its message.
#[test]
fn count_includes_the_registration_of_what_has_expired() {
    let mutants = [
        mutant("RegistrationsReadFirst"),
        no_release("engine/counters.rs set_single_writer"),
        no_acquire("engine/counters.rs get"),
    ];
    explore(Some(3), mutants, || {
        let (_counters, mut driven) = (ModelledCounters::new(), Driven::new());
        driven.clock.advance(TICK);
        let reader = read_count(&driven.timer);
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), Duration::ZERO).unwrap());
        let expired = driven.driver.turn();
        let timeout = caller.join().unwrap();
        reader.join().unwrap();
        assert_eq!(driven.timer.pending_timeouts(), 1 - expired);
        assert_eq!(timeout.is_expired(), expired == 1);
    });
}

/// The thread that runs the task for the last time has learnt of the timeout from the worker.
#[test]
fn count_includes_the_registration_of_what_has_ended_on_an_executor() {
    let mutants = [
        mutant("RegistrationsReadFirst"),
        no_acquire("engine/counters.rs get"),
    ];
    explore(Some(3), mutants, || {
        let (_counters, executor) = (ModelledCounters::new(), ThreadPerTask::default());
        let mut driven = executor.driven();
        driven.clock.advance(TICK);
        let reader = read_count(&driven.timer);
        let once = |_: &PeriodicRun<'_>| ControlFlow::Break(());
        let _periodic = driven
            .timer
            .schedule_periodic(Schedule::at_fixed_rate(TICK), once)
            .unwrap();
        driven.driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        executor.join();
        reader.join().unwrap();
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// `stop` may have learnt of the timeout after its fence.
#[test]
fn count_includes_the_registration_of_what_stop_has_cancelled() {
    let mutants = [
        no_release("engine/pending.rs count_stopped"),
        no_acquire("engine/pending.rs ended"),
    ];
    explore(bound(2, Some(3)), mutants, || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let reader = read_count(&timer);
        let other = timer.clone();
        let caller = thread::spawn(move || other.new_timeout(|_| (), TICK).is_ok());
        let rest = timer.stop().len();
        assert_eq!(rest, usize::from(caller.join().unwrap()));
        reader.join().unwrap();
        assert_eq!(timer.pending_timeouts(), 0);
    });
}
