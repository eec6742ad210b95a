//! Turns that run a limited number of tasks.

use super::*;

/// Does two turns of one task on another thread. Returns how many timeouts expired, and the driver.
fn two_portions(mut driver: Driver) -> thread::JoinHandle<(usize, Driver)> {
    thread::spawn(move || (driver.turn_at_most(1) + driver.turn_at_most(1), driver))
}

#[test]
fn stop_returns_what_a_portion_has_left() {
    explore(Some(3), [mutant("StopIgnoresUnfinishedTurn")], || {
        let mut driven = Driven::new();
        let (_, first) = driven.schedule(1);
        let (_, second) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let portions = two_portions(driven.driver);
        let rest = driven.timer.stop();
        let (expired, _driver) = portions.join().unwrap();
        assert_eq!(rest.len() + expired, 2, "each timeout ends once");
        first.assert(usize::from(expired > 0), usize::from(expired == 0));
        second.assert(usize::from(expired > 1), usize::from(expired < 2));
    });
}

/// The message of the cancel may be about a node that the first portion has left.
#[test]
fn cancel_or_second_portion_wins() {
    explore(Some(3), [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (_, first) = driven.schedule(1);
        let (timeout, second) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let portions = two_portions(driven.driver);
        let cancelled = usize::from(timeout.cancel());
        let (expired, mut driver) = portions.join().unwrap();
        assert_eq!(
            cancelled + expired,
            2,
            "exactly one of the two ends the timeout"
        );
        first.assert(1, 0);
        second.assert(1 - cancelled, cancelled);
        driver.turn();
        assert_eq!(driver.next_turn(), None);
        assert_eq!(
            timeout.references(),
            1,
            "the wheel has given its reference up"
        );
    });
}

/// A turn takes two messages in a model. So the last two timeouts are carried over to it when the
/// first portion ends. The second portion sorts them with the one that the first has left, about
/// which a message may come then.
#[test]
fn cancel_during_portions_of_owed_timeouts_ends_that_one() {
    let mutants = [mutant("MoveWithoutPosition"), mutant("NothingCarriedOver")];
    explore(Some(2), mutants, || {
        let mut driven = Driven::new();
        let [first, (victim, second), third, fourth] =
            [2, 2, 1, 1].map(|ticks| driven.schedule(ticks));
        driven.clock.advance(TICK * 2);
        let cancel = thread::spawn(move || victim.cancel());
        let portions: usize = (0..3).map(|_| driven.driver.turn_at_most(1)).sum();
        let cancelled = usize::from(cancel.join().unwrap());
        assert_eq!(
            portions + driven.driver.turn() + cancelled,
            4,
            "each timeout ends once"
        );
        [first, third, fourth]
            .iter()
            .for_each(|(_, outcome)| outcome.assert(1, 0));
        second.assert(1 - cancelled, cancelled);
    });
}
