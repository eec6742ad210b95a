//! Callers that execute no fence (`LIGHT`), with a heavy fence on the other side.
//!
//! loom does not know `membarrier`. In these models the caller's compiler fence, and the part of
//! the heavy fence that this thread executes, are read-modify-write operations of one atomic, which
//! belongs to this thread. So the caller's fence orders nothing but this thread against heavy
//! fences: not against ordinary fences, and not against other callers. This is less than
//! `membarrier(2)` promises, where the heavy fence is a full fence at some place of the thread. If
//! that place is not the caller's compiler fence, either the push or the look is on the same side
//! of both.

use hashed_wheel::inside::HeavyFence;

use super::pending::count_while_another_thread_cancels;
use super::sleep::{cancel_while_the_worker_idles, turn_and_idle};
use super::unlisted::{
    assert_expires, fall_asleep, schedule_during_turn, with_idle_lanes, with_unlisted_lanes,
};
use super::*;

/// Returns a timer with one timeout in its wheel. Its worker sets `LIGHT` when it falls asleep;
/// with `is_light` that is done already.
fn driven(is_light: bool) -> (HeavyFence, Driven, Timeout) {
    let fence = HeavyFence::new();
    let mut driven = Driven::new();
    let (timeout, _) = driven.schedule_in_wheel(5);
    if is_light {
        driven.driver.set_light();
    }
    (fence, driven, timeout)
}

/// `LIGHT` was set in an earlier sleep.
#[test]
fn worker_sees_a_cancel_or_is_woken() {
    explore(None, [mutant("PushWithoutLightFence"), mutant("ChangeWithoutHeavyFence")], || {
        let (_fence, driven, timeout) = driven(true);
        cancel_while_the_worker_idles(driven, &timeout);
    });
}

/// The caller has read the state before or after the worker has set `LIGHT`.
#[test]
fn worker_that_sets_light_sees_a_cancel_or_is_woken() {
    explore(None, [mutant("PushWithoutFence"), mutant("ChangeWithoutHeavyFence")], || {
        let (_fence, driven, timeout) = driven(false);
        cancel_while_the_worker_idles(driven, &timeout);
    });
}

#[test]
fn worker_sees_a_new_timeout_or_is_woken() {
    explore(None, [mutant("PushWithoutLightFence"), mutant("ChangeWithoutHeavyFence")], || {
        let (_fence, driven, _timeout) = driven(true);
        let timer = driven.timer.clone();
        let worker = turn_and_idle(driven.driver);
        let timeout = timer.new_timeout(|_| (), TICK).unwrap();
        let (asleep, driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_messages()));
        assert!(timeout.cancel());
    });
}

#[test]
fn new_timeout_is_not_lost_by_stop() {
    let mutants = [
        mutant("NewTimeoutNotWithdrawn"),
        mutant("PushWithoutLightFence"),
        mutant("ChangeWithoutHeavyFence"),
    ];
    explore(bound(5, None), mutants, || {
        let (_fence, Driven { timer, driver: _driver, .. }, _) = driven(true);
        let other = timer.clone();
        let schedule = thread::spawn(move || other.new_timeout(|_| (), TICK).is_ok());
        let rest = timer.stop();
        assert_eq!(rest.len(), 1 + usize::from(schedule.join().unwrap()), "stop returns what was accepted");
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

/// Whether `stop` needs the heavy fence is decided by the change itself.
#[test]
fn new_timeout_is_not_lost_by_stop_while_light_is_set() {
    let mutants = [mutant("FenceChosenBeforeChange"), mutant("PushWithLightFence")];
    explore(bound(2, Some(3)), mutants, || {
        let (_fence, Driven { timer, driver, .. }, _) = driven(false);
        let other = timer.clone();
        let schedule = thread::spawn(move || other.new_timeout(|_| (), TICK).is_ok());
        let worker = thread::spawn(move || {
            driver.set_light();
            driver
        });
        let rest = timer.stop();
        assert_eq!(rest.len(), 1 + usize::from(schedule.join().unwrap()), "stop returns what was accepted");
        drop(worker.join().unwrap());
    });
}

/// Without a fence, the count of ends itself releases the registration.
#[test]
fn count_includes_the_registration_of_what_another_thread_has_cancelled() {
    explore(Some(3), [no_release("engine/pending.rs cancel"), mutant("RegistrationsReadFirst")], || {
        let (_fence, driven) = (HeavyFence::new(), Driven::new());
        driven.driver.set_light();
        count_while_another_thread_cancels(&driven);
    });
}

// --- unlisted lanes ------------------------------------------------------------------------------

/// `LIGHT` was set in an earlier sleep. This turn announces none.
#[test]
fn turn_that_unlists_a_lane_sees_a_push_or_the_thread_lists_it() {
    let mutants = [
        mutant("UnlistWithoutHeavyFence"),
        mutant("UnlistAfterFence"),
        mutant("UnlistWithoutSecondLook"),
        mutant("UnlistedReadBeforeFence"),
        mutant("PushWithoutLightFence"),
        mutant("PushWithoutListing"),
    ];
    explore(None, mutants, || {
        let (_fence, (driven, _far)) = (HeavyFence::new(), with_idle_lanes());
        driven.driver.set_light();
        schedule_during_turn(driven);
    });
}

#[test]
fn sleep_that_unlists_a_lane_sees_a_push_or_the_thread_lists_it() {
    let mutants = [
        mutant("ChangeWithoutHeavyFence"),
        mutant("UnlistAfterFence"),
        mutant("UnlistWithoutSecondLook"),
        mutant("UnlistedReadBeforeFence"),
        mutant("PushWithoutLightFence"),
        mutant("PushWithoutListing"),
    ];
    explore(bound(5, None), mutants, || {
        let (_fence, (driven, _far)) = (HeavyFence::new(), with_idle_lanes());
        driven.driver.set_light();
        let worker = fall_asleep(driven.driver);
        let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        assert_expires(worker, &driven.clock);
    });
}

/// The worker has unlisted the lane in an earlier turn.
#[test]
fn push_to_an_unlisted_lane_wakes_a_worker_that_falls_asleep() {
    let mutants = ["PushWithoutListing", "ListingWithoutFence", "ChangeWithoutHeavyFence"].map(mutant);
    explore(None, mutants, || {
        let (_fence, (driven, _far)) = (HeavyFence::new(), with_unlisted_lanes());
        driven.driver.set_light();
        let worker = fall_asleep(driven.driver);
        let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        assert_expires(worker, &driven.clock);
    });
}

/// The worker unlists the lane with the ordinary fence, and then sets `LIGHT`. A caller that reads
/// `LIGHT` sees that its lane is unlisted.
#[test]
fn caller_that_reads_light_knows_that_its_lane_is_unlisted() {
    let mutants = [
        no_acquire("engine/state.rs snapshot"),
        mutant("UnlistWithoutFence"),
        mutant("PushWithoutFence"),
        mutant("PushWithoutListing"),
    ];
    explore(bound(5, None), mutants, || {
        let (_fence, (driven, _far)) = (HeavyFence::new(), with_idle_lanes());
        let mut driver = driven.driver;
        let worker = thread::spawn(move || {
            driver.turn();
            driver.set_light();
            driver
        });
        let _near = driven.timer.new_timeout(|_| (), TICK).unwrap();
        let mut driver = worker.join().unwrap();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1, "the worker finds the message");
    });
}
