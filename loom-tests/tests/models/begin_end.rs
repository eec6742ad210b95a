//! Threads that begin to use a timer, and threads that end: the worker finds a new lane and new
//! counts, and nothing that a thread leaves is lost.
//!
//! In all other models the worker knows all lanes and counts from the beginning, and a thread that
//! ends keeps what it has.

use hashed_wheel::inside::{Threads, TimerMemory, end_thread};

use super::*;

/// Returns a timer that no thread has used.
fn unused() -> (Threads, Driven) {
    (Threads::come_and_go(), Driven::new())
}

/// Lets the worker fall asleep on another thread.
fn fall_asleep(driver: Driver) -> thread::JoinHandle<(bool, Driver)> {
    thread::spawn(move || (driver.falls_asleep(), driver))
}

/// The worker has seen the message of a timeout that is due in the next tick, or was woken. Then
/// its next turn expires the timeout.
#[track_caller]
fn assert_expires(worker: thread::JoinHandle<(bool, Driver)>, clock: &ManualClock) {
    let (asleep, mut driver) = worker.join().unwrap();
    assert!(
        !(asleep && driver.misses_messages()),
        "the worker is not asleep, or has seen the message"
    );
    clock.advance(TICK);
    assert_eq!(driver.turn(), 1, "the worker finds the message");
}

// --- the first operation of a thread -------------------------------------------------------------

#[test]
fn worker_sees_a_new_lane_or_is_woken() {
    let mutants = [
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
        mutant("SleepWithoutSecondLook"),
        mutant("NewLanesAdoptedLate"),
    ];
    explore(None, mutants, || {
        let (_threads, driven) = unused();
        let worker = fall_asleep(driven.driver);
        let _first = driven.timer.new_timeout(|_| (), TICK).unwrap();
        assert_expires(worker, &driven.clock);
    });
}

/// Both the lane and the counts are new.
#[test]
fn first_timeout_of_a_thread_is_not_lost_by_stop() {
    let mutants = [
        mutant("NewTimeoutNotWithdrawn"),
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
    ];
    explore(bound(3, Some(4)), mutants, || {
        let (
            _threads,
            Driven {
                timer,
                driver: _driver,
                ..
            },
        ) = unused();
        let other = timer.clone();
        let stop = thread::spawn(move || other.stop());
        let accepted = timer.new_timeout(|_| (), TICK);
        assert_eq!(
            stop.join().unwrap(),
            Vec::from_iter(accepted),
            "stop returns an accepted timeout"
        );
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn counts_of_a_new_thread_are_seen_whole() {
    explore(
        None,
        [
            no_release("engine/pending.rs take"),
            no_acquire("engine/pending.rs all"),
        ],
        || {
            let (_threads, driven) = unused();
            let timer = driven.timer.clone();
            let reader = thread::spawn(move || timer.pending_timeouts());
            let _first = driven.timer.new_timeout(|_| (), TICK).unwrap();
            assert!(reader.join().unwrap() <= 1);
            assert_eq!(driven.timer.pending_timeouts(), 1);
        },
    );
}

#[test]
fn first_timeouts_of_two_threads_are_counted() {
    explore(Some(4), [mutant("SecondCountsNotListed")], || {
        let (_threads, driven) = unused();
        let timer = driven.timer.clone();
        let other = thread::spawn(move || timer.new_timeout(|_| (), TICK).unwrap());
        let _mine = driven.timer.new_timeout(|_| (), TICK).unwrap();
        let _others = other.join().unwrap();
        assert_eq!(driven.timer.pending_timeouts(), 2);
    });
}

// --- the end of a thread -------------------------------------------------------------------------

/// A turn takes two messages in a model. So one is left in a lane that is retired.
#[test]
fn timeouts_of_an_ended_thread_fire() {
    explore(
        None,
        [
            mutant("RetiredLaneDroppedEarly"),
            mutant("IdleLaneNotRetired"),
        ],
        || {
            let (_threads, driven) = unused();
            let scheduled = [(); 3].map(|()| driven.schedule(1));
            let turn = Driven::turn(driven.driver);
            end_thread();
            let (_, mut driver) = turn.join().unwrap();
            driven.clock.advance(TICK);
            assert_eq!(driver.turn() + driver.turn(), 3);
            scheduled
                .iter()
                .for_each(|(_, outcome)| outcome.assert(1, 0));
            assert_eq!(driver.lanes(), 0, "the lane is dropped");
        },
    );
}

/// The thread ends by itself, so its thread-locals are destroyed during the turns.
#[test]
fn timeouts_of_a_thread_that_ends_fire() {
    explore(None, [mutant("RetiredLaneDroppedEarly")], || {
        let (_threads, mut driven) = unused();
        let timer = driven.timer.clone();
        let ending = thread::spawn(move || [(); 3].map(|()| schedule(&timer, 1)));
        let scheduled = ending.join().unwrap();
        driven.driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn() + driven.driver.turn(), 3);
        scheduled
            .iter()
            .for_each(|(_, outcome)| outcome.assert(1, 0));
    });
}

#[test]
fn nodes_of_an_ended_thread_are_used_again() {
    explore(
        None,
        [mutant("EndForgetsNodes"), mutant("IdleNodesNotRecycled")],
        || {
            let (_threads, driven) = unused();
            let (timeout, _) = driven.schedule(1);
            assert!(timeout.cancel());
            drop(timeout);
            let turn = Driven::turn(driven.driver);
            end_thread();
            let (_, mut driver) = turn.join().unwrap();
            driver.turn();
            let made = driver.made_nodes();
            let _next = schedule(&driven.timer, 1);
            assert_eq!(
                driver.made_nodes(),
                made,
                "the next thread finds the free node"
            );
        },
    );
}

/// It goes on with the lane, the nodes and the counts, or opens its own, or the worker has retired
/// them.
#[test]
fn next_thread_goes_on_with_what_an_ended_thread_has_left() {
    explore(Some(4), [mutant("CountsStartAtZero")], || {
        let (_threads, mut driven) = unused();
        let timer = driven.timer.clone();
        let ending = thread::spawn(move || {
            let (_, outcome) = schedule(&timer, 1);
            end_thread();
            outcome
        });
        driven.driver.turn();
        let (_, second) = driven.schedule(1);
        let first = ending.join().unwrap();
        assert_eq!(driven.timer.pending_timeouts(), 2);
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 2);
        [first, second]
            .iter()
            .for_each(|outcome| outcome.assert(1, 0));
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// To take a message back needs no fence. So the count of ends itself releases the registration,
/// which the ended thread has made.
#[test]
fn count_includes_the_registration_of_what_the_next_thread_takes_back() {
    explore(
        Some(3),
        [
            no_release("engine/pending.rs cancel"),
            mutant("RegistrationsReadFirst"),
        ],
        || {
            let (_threads, driven) = unused();
            let timer = driven.timer.clone();
            let ending = thread::spawn(move || {
                let (timeout, _) = schedule(&timer, 1);
                end_thread();
                timeout
            });
            let timer = driven.timer.clone();
            let reader = thread::spawn(move || assert!(timer.pending_timeouts() <= 1));
            assert!(ending.join().unwrap().cancel());
            reader.join().unwrap();
            assert_eq!(driven.timer.pending_timeouts(), 0);
        },
    );
}

/// The thread that goes on with the lane is the one that has left it.
#[test]
fn worker_sees_a_push_of_the_next_thread_or_is_woken() {
    explore(
        None,
        [mutant("PushWithoutFence"), mutant("ChangeWithoutFence")],
        || {
            let (_threads, mut driven) = unused();
            let _far = driven.schedule_in_wheel(9);
            end_thread();
            let worker = fall_asleep(driven.driver);
            let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
            assert_expires(worker, &driven.clock);
        },
    );
}

#[test]
fn worker_sees_what_a_thread_leaves_or_is_woken() {
    let mutants = [
        mutant("ThreadEndWithoutWake"),
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
        mutant("SleepWithoutSecondLook"),
    ];
    explore(None, mutants, || {
        let (_threads, mut driven) = unused();
        let _far = driven.schedule_in_wheel(9);
        let worker = fall_asleep(driven.driver);
        end_thread();
        let (asleep, driver) = worker.join().unwrap();
        assert!(
            !(asleep && driver.misses_idle_nodes()),
            "the worker is not asleep, or has seen them"
        );
    });
}

/// The nodes that the thread has left do not keep the timer.
#[test]
fn end_of_a_thread_during_stop_leaves_nothing() {
    explore(
        bound(3, Some(4)),
        [
            mutant("EndKeepsReferences"),
            mutant("NewTimeoutNotWithdrawn"),
        ],
        || {
            let (_threads, Driven { timer, driver, .. }) = unused();
            let memory = TimerMemory::of(&timer);
            let other = timer.clone();
            let ending = thread::spawn(move || {
                let accepted = other.new_timeout(|_| (), TICK);
                end_thread();
                accepted
            });
            let rest = timer.stop();
            assert_eq!(
                rest,
                Vec::from_iter(ending.join().unwrap()),
                "stop returns an accepted timeout"
            );
            assert_eq!(timer.pending_timeouts(), 0);
            drop((rest, timer, driver));
            assert!(memory.is_freed());
        },
    );
}
