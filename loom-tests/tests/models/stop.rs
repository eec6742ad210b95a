//! What ends the timer: `stop`, the last handle, the driver's drop.

use super::sleep::threaded;
use super::*;

#[test]
fn nothing_is_lost_between_new_timeout_and_stop() {
    explore(None, [mutant("StopWithoutWaiting"), mutant("AdmitWithoutCompare")], || {
        let Driven { timer, driver, .. } = Driven::new();
        let ends = Arc::new(Ends::default());
        let (other, task) = (timer.clone(), Task(Arc::clone(&ends)));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK));
        let rest = timer.stop();

        match schedule.join().unwrap() {
            Ok(timeout) => {
                assert_eq!(rest, [timeout], "accepted, so stop returned it");
                ends.assert(0, 1);
            }
            Err(NewTimeoutError::Stopped) => {
                assert!(rest.is_empty());
                ends.assert(0, 0);
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(timer.pending_timeouts(), 0);
        drop(driver);
    });
}

#[test]
fn nothing_is_lost_between_two_new_timeouts_and_stop() {
    explore(Some(3), [mutant("StopWithoutWaiting")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let producers = [timer.clone(), timer.clone()]
            .map(|timer| thread::spawn(move || timer.new_timeout(|_| (), TICK).is_ok()));
        let rest = timer.stop();
        let accepted = producers.map(|producer| usize::from(producer.join().unwrap()));
        assert_eq!(rest.len(), accepted.iter().sum::<usize>(), "what was accepted, stop returned");
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn of_two_stops_one_gets_all_and_the_other_waits() {
    explore(None, [mutant("SecondStopWithoutWaiting")], || {
        let mut driven = Driven::new();
        let (placed, placed_ends) = driven.schedule_placed(5);
        let (queued, queued_ends) = driven.schedule(5);
        let other = driven.timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(other.pending_timeouts(), 0, "both return when it is over");
            rest
        });
        let mut rest = driven.timer.stop();
        assert_eq!(driven.timer.pending_timeouts(), 0, "both return when it is over");
        let others = stop.join().unwrap();
        assert!(rest.is_empty() || others.is_empty(), "one gets all");
        rest.extend(others);

        assert_eq!(rest.len(), 2, "each once");
        assert!(rest.contains(&placed) && rest.contains(&queued));
        placed_ends.assert(0, 1);
        queued_ends.assert(0, 1);
    });
}

#[test]
fn stop_takes_what_a_turn_has_not_expired() {
    explore(None, [mutant("StopWithoutDue")], || {
        let mut driven = Driven::new();
        let (_, first) = driven.schedule(1);
        let (_, second) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        // A driver that is dropped stops the timer too, and would take the rest.
        let turn = thread::spawn(move || (driver.turn(), driver));
        let rest = driven.timer.stop();
        let (expired, _driver) = turn.join().unwrap();

        assert_eq!(rest.len() + expired, 2, "each ends once");
        first.assert(usize::from(expired > 0), usize::from(expired == 0));
        second.assert(usize::from(expired > 1), usize::from(expired < 2));
    });
}

#[test]
fn who_looks_at_the_wheel_sees_all_of_it_or_nothing() {
    explore(None, [mutant("OccupancyBeforeLock")], || {
        let mut driven = Driven::new();
        let (placed, _) = driven.schedule_placed(3);
        let other = driven.timer.clone();
        let look = thread::spawn(move || other.occupancy());
        assert_eq!(driven.timer.stop(), [placed]);
        assert_eq!(driven.timer.occupancy(), None);
        if let Some(wheel) = look.join().unwrap() {
            let full: usize = wheel.levels.iter().flat_map(|level| &level.slots).sum();
            assert_eq!(full, 1, "not what stop has left");
        }
    });
}

#[test]
fn the_last_handle_ends_what_is_left() {
    explore(None, [mutant("StopWithoutDue")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || (driver.turn(), driver));
        drop(driven.timer);
        assert!(timeout.timer().is_stopped());
        assert_eq!(timeout.timer().pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        ends.assert(expired, 1 - expired);
    });
}

#[test]
fn of_two_last_handles_one_stops_the_timer() {
    explore(None, [mutant("DropWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(1);
        let other = driven.timer.clone();
        let first = thread::spawn(move || drop(other));
        drop(driven.timer);
        first.join().unwrap();
        assert!(timeout.is_cancelled());
        ends.assert(0, 1);
    });
}

#[test]
fn a_task_that_drops_the_last_handle_ends_the_worker() {
    explore(Some(2), [mutant("DropWithoutAsking")], || {
        let timer = threaded();
        let ends = Arc::new(Ends::default());
        let far = timer.new_timeout_task(Task(Arc::clone(&ends)), Duration::MAX).unwrap();
        let (bell, handle) = (Arc::new(Bell::default()), timer.clone());
        let task = Arc::clone(&bell);
        let near = timer.new_timeout(move |_| task.ring_when_dropped(handle), TICK).unwrap();
        drop(timer);
        bell.wait();
        // Which of the two ends what is left, is open; the second waits until it has.
        assert!(near.timer().stop().iter().all(|timeout| *timeout == far));
        assert!(far.is_cancelled());
        ends.assert(0, 1);
    });
}

#[test]
fn a_handle_from_a_timeout_does_not_undo_the_last_drop() {
    explore(None, [mutant("DropWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let other = timeout.clone();
        let resurrect = thread::spawn(move || drop(other.timer()));
        drop(driven.timer);
        resurrect.join().unwrap();
        assert!(timeout.timer().is_stopped());
        assert!(timeout.is_cancelled());
        ends.assert(0, 1);
    });
}

/// Of a stop, a turn and a new timeout, all at once.
#[test]
fn what_comes_in_a_turn_that_is_stopped_ends_once() {
    explore(Some(2), [mutant("StopWithoutWaiting"), mutant("StopWithoutDue")], || {
        let mut driven = Driven::new();
        let (_, due) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let (new, other) = (Arc::new(Ends::default()), driven.timer.clone());
        let task = Task(Arc::clone(&new));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).is_ok());
        let rest = driven.timer.stop();
        assert_eq!(driven.timer.pending_timeouts(), 0);
        let ((expired, _driver), accepted) = (turn.join().unwrap(), schedule.join().unwrap());

        due.assert(expired, 1 - expired);
        new.assert(0, usize::from(accepted));
        assert_eq!(rest.len() + expired, 1 + usize::from(accepted), "each ends once");
    });
}

#[test]
fn a_stop_through_a_timeout_waits_for_the_last_drop() {
    explore(None, [mutant("SecondStopWithoutWaiting")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let ends = Arc::new(Ends::default());
        let timeout = timer.new_timeout_task(Task(Arc::clone(&ends)), TICK).unwrap();
        let drops = thread::spawn(move || drop(timer));
        let rest = timeout.timer().stop();
        assert_eq!(timeout.timer().pending_timeouts(), 0, "returns when it is over");
        drops.join().unwrap();
        assert!(rest.is_empty() || rest == [timeout]);
        ends.assert(0, 1);
    });
}

/// A handle that a timeout gives out keeps no timer alive, so what it schedules may meet the last drop.
#[test]
fn nothing_is_lost_between_a_new_timeout_through_a_timeout_and_the_last_drop() {
    explore(None, [mutant("StopWithoutWaiting"), mutant("AdmitWithoutCompare")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let timeout = timer.new_timeout(|_| (), TICK).unwrap();
        let ends = Arc::new(Ends::default());
        let (other, task) = (timeout.clone(), Task(Arc::clone(&ends)));
        let schedule = thread::spawn(move || other.timer().new_timeout_task(task, TICK).is_ok());
        drop(timer);
        let accepted = schedule.join().unwrap();
        // Of the two handles the second to go has stopped the timer.
        assert_eq!(timeout.timer().pending_timeouts(), 0);
        ends.assert(0, usize::from(accepted));
    });
}

#[test]
fn a_task_that_drops_the_last_handle_meets_a_stop() {
    explore(None, [mutant("DropWithoutAsking"), mutant("StopWithoutDue")], || {
        let mut driven = Driven::new();
        let (far, ends) = driven.schedule(5);
        let handle = driven.timer.clone();
        let near = driven.timer.new_timeout(move |_| drop(handle), TICK).unwrap();
        driven.driver.turn();
        driven.clock.advance(TICK);
        drop(driven.timer);
        let other = near.clone();
        let stop = thread::spawn(move || other.timer().stop());
        let expired = driven.driver.turn();
        let rest = stop.join().unwrap();

        assert_eq!(usize::from(near.is_expired()), expired);
        assert_eq!(rest.contains(&near), expired == 0, "stop takes it, or it has run");
        assert!(far.is_cancelled());
        assert_eq!(far.timer().pending_timeouts(), 0);
        ends.assert(0, 1);
    });
}

// --- the driver's drop ------------------------------------------------------------------------------------------------

#[test]
fn nothing_is_lost_between_new_timeout_and_the_drivers_drop() {
    explore(None, [mutant("StopWithoutWaiting"), mutant("AdmitWithoutCompare")], || {
        let Driven { timer, driver, .. } = Driven::new();
        let (ends, other) = (Arc::new(Ends::default()), timer.clone());
        let task = Task(Arc::clone(&ends));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).is_ok());
        drop(driver);
        ends.assert(0, usize::from(schedule.join().unwrap()));
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn one_of_cancel_and_the_drivers_drop_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        drop(driven.driver);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        let _either = cancel.join().unwrap();
        assert!(timeout.is_cancelled());
        ends.assert(0, 1);
    });
}

/// A loop that ends when it sees that somebody has stopped the timer, and drops its driver, which stops it too.
#[test]
fn who_stops_a_loop_gets_what_is_left() {
    explore(None, [mutant("SecondStopTakes")], || {
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
fn a_stop_and_the_drivers_drop_wait_for_each_other() {
    explore(None, [mutant("SecondStopWithoutWaiting")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = driven.timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(other.pending_timeouts(), 0, "both return when it is over");
            rest
        });
        drop(driven.driver);
        assert_eq!(driven.timer.pending_timeouts(), 0, "both return when it is over");
        let rest = stop.join().unwrap();
        assert!(rest.is_empty() || rest == [timeout]);
        ends.assert(0, 1);
    });
}
