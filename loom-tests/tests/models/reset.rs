//! `reset`: a deadline that moves.

use super::*;

#[test]
fn reset_in_time_moves_the_deadline() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || (driver.turn(), driver));
        let reset = timeout.reset(TICK * 3);
        let (expired, mut driver) = turn.join().unwrap();

        assert_eq!(
            usize::from(reset) + expired,
            1,
            "either the reset was in time or the expiry"
        );
        driven.clock.advance(TICK * 2);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), usize::from(reset), "at the new deadline");
        outcome.assert(1, 0);
    });
}

#[test]
fn reset_to_earlier_deadline_reaches_the_worker() {
    explore(None, [mutant("ResetWithoutPush")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(5);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            assert_eq!(driver.turn(), 0);
            driver
        });
        assert!(timeout.reset(TICK * 2));
        let mut driver = turn.join().unwrap();

        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1, "at the new deadline");
        outcome.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
    });
}

#[test]
fn reset_does_not_revive_a_cancelled_timeout() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK));
        assert!(timeout.cancel());
        reset.join().unwrap();

        assert!(timeout.is_cancelled(), "a cancel is final");
        outcome.assert(0, 1);
        driven.clock.advance(TICK * 10);
        assert_eq!(
            driven.driver.turn(),
            0,
            "a cancelled timeout does not expire"
        );
        assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
    });
}

/// The cancel takes its message back before it changes the state word.
#[test]
fn reset_does_not_revive_a_timeout_that_was_taken_back() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || (other.reset(TICK), other));
        assert!(timeout.cancel());
        let (_either, _other) = reset.join().unwrap();
        assert!(timeout.is_cancelled(), "a cancel is final");
        outcome.assert(0, 1);
        assert_eq!(
            timeout.references(),
            2,
            "the wheel's reference is released once"
        );
        driven.driver.turn();
        assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
        assert!(driven.driver.could_sleep());
    });
}

#[test]
fn reset_keeps_nothing_from_stop() {
    explore(
        bound(5, None),
        [
            mutant("ChangeWithoutCompare"),
            mutant("StopTakesLeftReference"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule_in_wheel(5);
            let other = timeout.clone();
            let reset = thread::spawn(move || {
                _ = other.reset(TICK);
                other
            });
            let rest = driven.timer.stop();
            let other = reset.join().unwrap();
            assert!(
                timeout.references() >= 3,
                "the reference that was left to a message is not released twice"
            );
            assert_eq!(rest, [timeout]);
            drop(other);
            outcome.assert(0, 1);
        },
    );
}

#[test]
fn reset_during_a_backlog_inserts_the_node_once() {
    explore(bound(4, Some(5)), [mutant("ResetTakenForNew")], || {
        let clock = ModelClock::default();
        let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
        // A turn takes two messages in a model. The third message is carried over to its tick.
        for _ in 0..2 {
            timer.new_timeout(|_| (), TICK).unwrap();
        }
        let outcome = Arc::new(Outcome::default());
        let carried = timer
            .new_timeout_task(Task(Arc::clone(&outcome)), TICK * 2)
            .unwrap();
        let reset = thread::spawn(move || carried.reset(TICK));
        for ticks in [4, 0, 0, 4] {
            clock.0.fetch_add(ticks, AcqRel);
            driver.turn();
        }
        reset.join().unwrap();
        clock.0.fetch_add(4, AcqRel);
        driver.turn();
        outcome.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
        assert!(driver.could_sleep());
    });
}

#[test]
fn resets_in_both_directions_leave_one_deadline() {
    explore(
        Some(2),
        [mutant("ChangeWithoutCompare"), mutant("ResetWithoutPush")],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule_in_wheel(3);
            let resets = [1, 4].map(|ticks| {
                let timeout = timeout.clone();
                thread::spawn(move || timeout.reset(TICK * ticks))
            });
            driven.clock.advance(TICK);
            let mut expired = driven.driver.turn();
            resets
                .into_iter()
                .for_each(|reset| assert!(reset.join().is_ok()));
            for _ in 0..6 {
                driven.clock.advance(TICK);
                expired += driven.driver.turn();
            }
            assert_eq!(expired, 1);
            outcome.assert(1, 0);
            assert_eq!(driven.driver.next_turn(), None);
        },
    );
}

#[test]
fn cancel_during_reset_and_turn_leaves_nothing() {
    explore(Some(3), [mutant("CancelWithoutPush")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK));
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            driver.turn();
            driver
        });
        assert!(timeout.cancel());
        reset.join().unwrap();
        let mut driver = turn.join().unwrap();
        outcome.assert(0, 1);
        driver.turn();
        assert_eq!(driver.next_turn(), None);
    });
}

#[test]
fn reset_to_later_deadline_during_drain_moves_the_deadline() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(1);
        let turn = Driven::turn(driven.driver);
        assert!(timeout.reset(TICK * 3));
        let (_, mut driver) = turn.join().unwrap();

        driven.clock.advance(TICK * 2);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1, "at the new deadline");
        outcome.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
        assert!(driver.could_sleep());
    });
}

#[test]
fn reset_to_later_deadline_keeps_nothing_from_stop() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK * 9));
        assert_eq!(driven.timer.stop().len(), 1);
        reset.join().unwrap();
        assert!(timeout.is_cancelled(), "a cancel is final");
        outcome.assert(0, 1);
    });
}

#[test]
fn reset_to_later_deadline_does_not_revive_a_cancelled_timeout() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK * 9));
        assert!(timeout.cancel());
        reset.join().unwrap();
        assert!(timeout.is_cancelled(), "a cancel is final");
        outcome.assert(0, 1);
        driven.clock.advance(TICK * 10);
        assert_eq!(
            driven.driver.turn(),
            0,
            "a cancelled timeout does not expire"
        );
        assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
    });
}

#[test]
fn reset_to_the_same_deadline_during_drain_changes_nothing() {
    explore(
        None,
        [
            mutant("EqualResetTakesNode"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let driven = Driven::new();
            let (timeout, outcome) = driven.schedule(1);
            let turn = Driven::turn(driven.driver);
            assert!(timeout.reset(TICK));
            let (_, mut driver) = turn.join().unwrap();

            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), 1, "at the deadline");
            outcome.assert(1, 0);
            assert!(
                timeout.is_only_handle(),
                "the worker has released its reference"
            );
            assert_eq!(driver.next_turn(), None);
            assert!(driver.could_sleep());
        },
    );
}

/// The caller has read the clock, and time passes before it goes on.
#[test]
fn reset_to_earlier_deadline_during_expiry_ends_once() {
    explore(
        None,
        [
            mutant("ChangeWithoutCompare"),
            mutant("ExpiryTakesLeftReference"),
        ],
        || {
            let clock = ModelClock::default();
            let (timer, mut driver) = small_wheel().clock(clock.clone()).build_driven().unwrap();
            let outcome = Arc::new(Outcome::default());
            let timeout = timer
                .new_timeout_task(Task(Arc::clone(&outcome)), TICK * 2)
                .unwrap();
            let clone = timeout.clone();
            driver.turn();
            let reset = thread::spawn(move || {
                _ = timeout.reset(TICK);
                timeout
            });
            clock.0.fetch_add(2, AcqRel);
            assert!(driver.turn() <= 1);
            let _timeout = reset.join().unwrap();
            // Also the deadline of a reset that came late has passed now.
            clock.0.fetch_add(1, AcqRel);
            driver.turn();
            outcome.assert(1, 0);
            assert_eq!(timer.pending_timeouts(), 0);
            driver.turn();
            assert_eq!(driver.next_turn(), None);
            assert_eq!(
                clone.references(),
                2,
                "the wheel's reference is released once"
            );
            assert!(driver.could_sleep());
        },
    );
}
