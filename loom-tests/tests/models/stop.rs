//! The end of the timer: `stop`, the last drop of a handle, the driver's drop.

use super::sleep::threaded;
use super::*;

#[test]
fn new_timeout_is_not_lost_by_stop() {
    let mutants = [
        mutant("NewTimeoutNotWithdrawn"),
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
    ];
    explore(bound(5, None), mutants, || {
        let Driven { timer, driver, .. } = Driven::new();
        let outcome = Arc::new(Outcome::default());
        let (other, task) = (timer.clone(), Task(Arc::clone(&outcome)));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK));
        let rest = timer.stop();

        match schedule.join().unwrap() {
            Ok(timeout) => {
                assert_eq!(rest, [timeout], "stop returns an accepted timeout");
                outcome.assert(0, 1);
            }
            Err(NewTimeoutError::Stopped) => {
                assert!(rest.is_empty());
                outcome.assert(0, 0);
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(timer.pending_timeouts(), 0);
        drop(driver);
    });
}

#[test]
fn two_new_timeouts_are_not_lost_by_stop() {
    explore(
        bound(2, Some(3)),
        [mutant("NewTimeoutNotWithdrawn")],
        || {
            let Driven {
                timer,
                driver: _driver,
                ..
            } = Driven::new();
            let producers = [timer.clone(), timer.clone()]
                .map(|timer| thread::spawn(move || timer.new_timeout(|_| (), TICK).is_ok()));
            let rest = timer.stop();
            let accepted = producers.map(|producer| usize::from(producer.join().unwrap()));
            assert_eq!(
                rest.len(),
                accepted.iter().sum::<usize>(),
                "stop returns all accepted timeouts"
            );
            assert_eq!(timer.pending_timeouts(), 0);
        },
    );
}

#[test]
fn one_of_two_stops_returns_all_and_the_other_waits() {
    explore(None, [mutant("SecondStopWithoutWaiting")], || {
        let mut driven = Driven::new();
        let (in_wheel, in_wheel_outcome) = driven.schedule_in_wheel(5);
        let (in_lane, in_lane_outcome) = driven.schedule(5);
        let other = driven.timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(
                other.pending_timeouts(),
                0,
                "both calls return after the end"
            );
            rest
        });
        let mut rest = driven.timer.stop();
        assert_eq!(
            driven.timer.pending_timeouts(),
            0,
            "both calls return after the end"
        );
        let others = stop.join().unwrap();
        assert!(
            rest.is_empty() || others.is_empty(),
            "one of the two returns all"
        );
        rest.extend(others);

        assert_eq!(rest.len(), 2, "each timeout is returned once");
        assert!(rest.contains(&in_wheel) && rest.contains(&in_lane));
        in_wheel_outcome.assert(0, 1);
        in_lane_outcome.assert(0, 1);
    });
}

#[test]
fn stop_returns_timeouts_that_a_turn_has_not_expired() {
    explore(None, [mutant("StopIgnoresUnfinishedTurn")], || {
        let mut driven = Driven::new();
        let (_, first) = driven.schedule(1);
        let (_, second) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        // The drop of a driver stops the timer too, and would end the rest.
        let turn = thread::spawn(move || (driver.turn(), driver));
        let rest = driven.timer.stop();
        let (expired, _driver) = turn.join().unwrap();

        assert_eq!(rest.len() + expired, 2, "each timeout ends once");
        first.assert(usize::from(expired > 0), usize::from(expired == 0));
        second.assert(usize::from(expired > 1), usize::from(expired < 2));
    });
}

#[test]
fn occupancy_sees_the_whole_wheel_or_nothing() {
    explore(None, [mutant("StateReadBeforeLock")], || {
        let mut driven = Driven::new();
        let (in_wheel, _) = driven.schedule_in_wheel(3);
        let other = driven.timer.clone();
        let look = thread::spawn(move || other.occupancy());
        assert_eq!(driven.timer.stop(), [in_wheel]);
        assert!(driven.timer.occupancy().is_err());
        if let Ok(wheel) = look.join().unwrap() {
            let nodes: usize = wheel.levels.iter().flat_map(|level| &level.slots).sum();
            assert_eq!(nodes, 1, "not the wheel that stop has emptied");
        }
    });
}

#[test]
fn last_drop_ends_the_rest() {
    explore(None, [mutant("StopIgnoresUnfinishedTurn")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || (driver.turn(), driver));
        drop(driven.timer);
        assert!(timeout.timer().is_stopped());
        assert_eq!(timeout.timer().pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        outcome.assert(expired, 1 - expired);
    });
}

#[test]
fn one_of_two_last_handles_stops_the_timer() {
    explore(None, [mutant("DropHandleWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(1);
        let other = driven.timer.clone();
        let first = thread::spawn(move || drop(other));
        drop(driven.timer);
        first.join().unwrap();
        assert!(timeout.is_cancelled());
        outcome.assert(0, 1);
    });
}

#[test]
fn task_that_drops_the_last_handle_ends_the_worker() {
    explore(Some(2), [mutant("LastDropOnWorkerWaits")], || {
        let timer = threaded();
        let outcome = Arc::new(Outcome::default());
        let far = timer
            .new_timeout_task(Task(Arc::clone(&outcome)), Duration::MAX)
            .unwrap();
        let (event, handle) = (Arc::new(Event::default()), timer.clone());
        let task = Arc::clone(&event);
        let near = timer
            .new_timeout(move |_| task.set_after_drop(handle), TICK)
            .unwrap();
        drop(timer);
        event.wait();
        // Either of the two ends the rest. The other one waits for it.
        assert!(near.timer().stop().iter().all(|timeout| *timeout == far));
        assert!(far.is_cancelled());
        outcome.assert(0, 1);
    });
}

#[test]
fn handle_from_a_timeout_does_not_undo_the_last_drop() {
    explore(None, [mutant("DropHandleWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(5);
        let other = timeout.clone();
        let resurrect = thread::spawn(move || drop(other.timer()));
        drop(driven.timer);
        resurrect.join().unwrap();
        assert!(timeout.timer().is_stopped());
        assert!(timeout.is_cancelled());
        outcome.assert(0, 1);
    });
}

#[test]
fn upgraded_handle_keeps_the_timer_or_there_is_none() {
    explore(None, [mutant("UpgradeFromZero")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(5);
        let weak = driven.timer.downgrade();
        let upgrade = thread::spawn(move || weak.upgrade());
        drop(driven.timer);
        if let Some(timer) = upgrade.join().unwrap() {
            assert!(!timer.is_stopped() && !timeout.is_cancelled());
        }
        assert!(timeout.is_cancelled());
        outcome.assert(0, 1);
    });
}

/// A `stop`, a turn and a new timeout at the same time.
#[test]
fn new_timeout_during_a_stopped_turn_ends_once() {
    explore(
        Some(2),
        [
            mutant("NewTimeoutNotWithdrawn"),
            mutant("StopIgnoresUnfinishedTurn"),
        ],
        || {
            let mut driven = Driven::new();
            let (_, due) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let (new, other) = (Arc::new(Outcome::default()), driven.timer.clone());
            let task = Task(Arc::clone(&new));
            let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).is_ok());
            let rest = driven.timer.stop();
            assert_eq!(driven.timer.pending_timeouts(), 0);
            let ((expired, _driver), accepted) = (turn.join().unwrap(), schedule.join().unwrap());

            due.assert(expired, 1 - expired);
            new.assert(0, usize::from(accepted));
            assert_eq!(
                rest.len() + expired,
                1 + usize::from(accepted),
                "each timeout ends once"
            );
        },
    );
}

#[test]
fn stop_through_a_timeout_waits_for_the_last_drop() {
    explore(None, [mutant("SecondStopWithoutWaiting")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let outcome = Arc::new(Outcome::default());
        let timeout = timer
            .new_timeout_task(Task(Arc::clone(&outcome)), TICK)
            .unwrap();
        let drops = thread::spawn(move || drop(timer));
        let rest = timeout.timer().stop();
        assert_eq!(
            timeout.timer().pending_timeouts(),
            0,
            "stop returns after the end"
        );
        drops.join().unwrap();
        assert!(rest.is_empty() || rest == [timeout]);
        outcome.assert(0, 1);
    });
}

/// A handle from a timeout does not keep the timer alive, so its new timeouts may race with the
/// last drop.
#[test]
fn new_timeout_through_a_timeout_is_not_lost_by_last_drop() {
    explore(
        Some(4),
        [
            mutant("NewTimeoutNotWithdrawn"),
            mutant("PushWithoutFence"),
            mutant("ChangeWithoutFence"),
        ],
        || {
            let Driven {
                timer,
                driver: _driver,
                ..
            } = Driven::new();
            let timeout = timer.new_timeout(|_| (), TICK).unwrap();
            let outcome = Arc::new(Outcome::default());
            let (other, task) = (timeout.clone(), Task(Arc::clone(&outcome)));
            let schedule =
                thread::spawn(move || other.timer().new_timeout_task(task, TICK).is_ok());
            drop(timer);
            let accepted = schedule.join().unwrap();
            // The second of the two handles to be dropped has stopped the timer.
            assert_eq!(timeout.timer().pending_timeouts(), 0);
            outcome.assert(0, usize::from(accepted));
        },
    );
}

#[test]
fn stop_while_a_task_drops_the_last_handle_ends_each_once() {
    explore(
        None,
        [
            mutant("LastDropOnWorkerWaits"),
            mutant("StopIgnoresUnfinishedTurn"),
        ],
        || {
            let mut driven = Driven::new();
            let (far, outcome) = driven.schedule(5);
            let handle = driven.timer.clone();
            let near = driven
                .timer
                .new_timeout(move |_| drop(handle), TICK)
                .unwrap();
            driven.driver.turn();
            driven.clock.advance(TICK);
            drop(driven.timer);
            let other = near.clone();
            let stop = thread::spawn(move || other.timer().stop());
            let expired = driven.driver.turn();
            let rest = stop.join().unwrap();

            assert_eq!(usize::from(near.is_expired()), expired);
            assert_eq!(
                rest.contains(&near),
                expired == 0,
                "it was returned by stop, or it has run"
            );
            assert!(far.is_cancelled());
            assert_eq!(far.timer().pending_timeouts(), 0);
            outcome.assert(0, 1);
        },
    );
}

// --- the driver's drop ---------------------------------------------------------------------------

#[test]
fn new_timeout_is_not_lost_by_driver_drop() {
    explore(
        bound(5, None),
        [
            mutant("NewTimeoutNotWithdrawn"),
            mutant("PushWithoutFence"),
            mutant("ChangeWithoutFence"),
        ],
        || {
            let Driven { timer, driver, .. } = Driven::new();
            let (outcome, other) = (Arc::new(Outcome::default()), timer.clone());
            let task = Task(Arc::clone(&outcome));
            let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).is_ok());
            drop(driver);
            outcome.assert(0, usize::from(schedule.join().unwrap()));
            assert_eq!(timer.pending_timeouts(), 0);
        },
    );
}

#[test]
fn cancel_or_driver_drop_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        drop(driven.driver);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        let _either = cancel.join().unwrap();
        assert!(timeout.is_cancelled());
        outcome.assert(0, 1);
    });
}

/// A loop ends when it sees that the timer is stopped. It drops its driver, and that drop is a
/// second stop.
#[test]
fn stop_of_a_loop_returns_the_rest() {
    explore(None, [mutant("SecondStopDrains")], || {
        let Driven { timer, driver, .. } = Driven::new();
        let timeout = timer.new_timeout(|_| (), TICK).unwrap();
        let event_loop = thread::spawn(move || {
            if driver.is_stopped() {
                drop(driver);
                return None;
            }
            Some(driver)
        });
        assert_eq!(timer.stop(), [timeout]);
        let _driver = event_loop.join().unwrap();
    });
}

#[test]
fn stop_and_driver_drop_wait_for_each_other() {
    explore(None, [mutant("SecondStopWithoutWaiting")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = driven.timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(
                other.pending_timeouts(),
                0,
                "both calls return after the end"
            );
            rest
        });
        drop(driven.driver);
        assert_eq!(
            driven.timer.pending_timeouts(),
            0,
            "both calls return after the end"
        );
        let rest = stop.join().unwrap();
        assert!(rest.is_empty() || rest == [timeout]);
        outcome.assert(0, 1);
    });
}
