//! Moving a deadline.

use super::*;

#[test]
fn a_reset_that_was_in_time_moves_the_deadline() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || (driver.turn(), driver));
        let reset = timeout.reset(TICK * 3);
        let (expired, mut driver) = turn.join().unwrap();

        assert_eq!(usize::from(reset) + expired, 1, "re-armed, or expired before");
        driven.clock.advance(TICK * 2);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), usize::from(reset), "at the new deadline");
        ends.assert(1, 0);
    });
}

#[test]
fn a_reset_to_an_earlier_deadline_reaches_the_worker() {
    explore(None, [mutant("ResetWithoutPush")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
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
        ends.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
    });
}

#[test]
fn a_reset_does_not_bring_back_what_was_cancelled() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK));
        assert!(timeout.cancel());
        reset.join().unwrap();

        assert!(timeout.is_cancelled(), "for good");
        ends.assert(0, 1);
        driven.clock.advance(TICK * 10);
        assert_eq!(driven.driver.turn(), 0, "cancelled for good");
        assert_eq!(driven.driver.next_turn(), None, "nothing of it is left in the wheel");
    });
}

/// Who cancels has its message back before it has ended.
#[test]
fn a_reset_does_not_bring_back_what_was_taken_back() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || (other.reset(TICK), other));
        assert!(timeout.cancel());
        let (_either, _other) = reset.join().unwrap();
        assert!(timeout.is_cancelled(), "for good");
        ends.assert(0, 1);
        assert_eq!(timeout.references(), 2, "its entry was given back, once");
        driven.driver.turn();
        assert_eq!(driven.driver.next_turn(), None, "nothing of it is left in the wheel");
        assert!(driven.driver.could_sleep());
    });
}

#[test]
fn a_reset_keeps_nothing_from_stop() {
    explore(None, [mutant("ChangeWithoutCompare"), mutant("StopTakesTheEntry")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || {
            other.reset(TICK);
            other
        });
        let rest = driven.timer.stop();
        let other = reset.join().unwrap();
        assert!(timeout.references() >= 3, "the entry that was left to a message is not given up twice");
        assert_eq!(rest, [timeout]);
        drop(other);
        ends.assert(0, 1);
    });
}

#[test]
fn a_reset_while_a_backlog_is_taken_in_does_not_put_it_in_twice() {
    explore(Some(5), [mutant("ResetTakenForNew")], || {
        let clock = Seen::default();
        let (timer, mut driver) = small().clock(clock.clone()).build_driven().unwrap();
        // As many as a turn takes in, in a model; the third is owed its tick.
        for _ in 0..2 {
            timer.new_timeout(|_| (), TICK).unwrap();
        }
        let ends = Arc::new(Ends::default());
        let owed = timer.new_timeout_task(Task(Arc::clone(&ends)), TICK * 2).unwrap();
        let reset = thread::spawn(move || owed.reset(TICK));
        for ticks in [4, 0, 0, 4] {
            clock.0.fetch_add(ticks, AcqRel);
            driver.turn();
        }
        reset.join().unwrap();
        clock.0.fetch_add(4, AcqRel);
        driver.turn();
        ends.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
        assert!(driver.could_sleep());
    });
}

#[test]
fn resets_both_ways_end_at_one_of_the_deadlines() {
    explore(Some(2), [mutant("ChangeWithoutCompare"), mutant("ResetWithoutPush")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(3);
        let resets = [1, 4].map(|ticks| {
            let timeout = timeout.clone();
            thread::spawn(move || timeout.reset(TICK * ticks))
        });
        driven.clock.advance(TICK);
        let mut expired = driven.driver.turn();
        resets.into_iter().for_each(|reset| assert!(reset.join().is_ok()));
        for _ in 0..6 {
            driven.clock.advance(TICK);
            expired += driven.driver.turn();
        }
        assert_eq!(expired, 1);
        ends.assert(1, 0);
        assert_eq!(driven.driver.next_turn(), None);
    });
}

#[test]
fn a_cancel_against_a_reset_against_a_turn_leaves_nothing() {
    explore(Some(3), [mutant("CancelWithoutPush")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
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
        ends.assert(0, 1);
        driver.turn();
        assert_eq!(driver.next_turn(), None);
    });
}

#[test]
fn a_reset_to_a_later_deadline_meets_the_transfer() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(1);
        let turn = Driven::turn(driven.driver);
        assert!(timeout.reset(TICK * 3));
        let (_, mut driver) = turn.join().unwrap();

        driven.clock.advance(TICK * 2);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1, "at the new deadline");
        ends.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
        assert!(driver.could_sleep());
    });
}

#[test]
fn a_reset_to_a_later_deadline_keeps_nothing_from_stop() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK * 9));
        assert_eq!(driven.timer.stop().len(), 1);
        reset.join().unwrap();
        assert!(timeout.is_cancelled(), "for good");
        ends.assert(0, 1);
    });
}

#[test]
fn a_reset_to_a_later_deadline_does_not_bring_back_what_was_cancelled() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK * 9));
        assert!(timeout.cancel());
        reset.join().unwrap();
        assert!(timeout.is_cancelled(), "for good");
        ends.assert(0, 1);
        driven.clock.advance(TICK * 10);
        assert_eq!(driven.driver.turn(), 0, "cancelled for good");
        assert_eq!(driven.driver.next_turn(), None, "nothing of it is left in the wheel");
    });
}

/// The caller has read the clock, and time passes before it gets on.
#[test]
fn a_reset_to_an_earlier_deadline_meets_the_expiry() {
    explore(None, [mutant("ChangeWithoutCompare"), mutant("ExpiryTakesTheEntry")], || {
        let clock = Seen::default();
        let (timer, mut driver) = small().clock(clock.clone()).build_driven().unwrap();
        let ends = Arc::new(Ends::default());
        let timeout = timer.new_timeout_task(Task(Arc::clone(&ends)), TICK * 2).unwrap();
        let clone = timeout.clone();
        driver.turn();
        let reset = thread::spawn(move || {
            timeout.reset(TICK);
            timeout
        });
        clock.0.fetch_add(2, AcqRel);
        assert!(driver.turn() <= 1);
        let _timeout = reset.join().unwrap();
        // By now the deadline of a reset that came late is over as well.
        clock.0.fetch_add(1, AcqRel);
        driver.turn();
        ends.assert(1, 0);
        assert_eq!(timer.pending_timeouts(), 0);
        driver.turn();
        assert_eq!(driver.next_turn(), None);
        assert_eq!(clone.references(), 2, "its entry was given back, once");
        assert!(driver.could_sleep());
    });
}
