//! How one timeout ends: exactly once.

use super::*;

#[test]
fn one_of_cancel_and_expire_wins() {
    explore(None, [mutant("ChangeWithoutCompare"), mutant("GoneWithItsEntry")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        let clone = timeout.clone();
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let cancelled = timeout.cancel();
        let (expired, mut driver) = turn.join().unwrap();

        assert_eq!(usize::from(cancelled) + expired, 1, "exactly one wins");
        ends.assert(expired, usize::from(cancelled));
        assert_eq!((timeout.is_cancelled(), timeout.is_expired()), (cancelled, !cancelled));
        assert_eq!(driven.timer.pending_timeouts(), 0);
        // The entry was left to the message, if the wheel gave it out before that came.
        driver.turn();
        assert_eq!(clone.references(), 2, "its entry was given back, once");
    });
}

#[test]
fn one_of_two_cancels_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        let cancelled = timeout.cancel();

        assert_ne!(cancelled, cancel.join().unwrap(), "exactly one wins");
        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert_eq!(driven.driver.next_turn(), None);
    });
}

/// One handle can be lent to many threads: it is counted once, and none of them is alone with what it names.
#[test]
fn one_of_two_cancels_through_one_handle_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let driven = Driven::new();
        // In a lane, where the thread that has pushed it can take it back.
        let (timeout, ends) = driven.schedule(5);
        let timeout = Arc::new(timeout);
        let other = Arc::clone(&timeout);
        let cancel = thread::spawn(move || (other.cancel(), other));
        let cancelled = timeout.cancel();
        let (others, _lent) = cancel.join().unwrap();

        assert_ne!(cancelled, others, "exactly one wins");
        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// A cancel that has taken its message back gives the entry up without counting down: who drops the last handle knows,
/// and nobody else takes theirs for the last.
#[test]
fn an_entry_that_is_given_up_uncounted_is_not_counted_on() {
    explore(None, [mutant("TakeBackAsIfAlone"), mutant("ReleaseWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let clone = timeout.clone();
        let drops = thread::spawn(move || clone.release().is_some());
        assert!(timeout.cancel());
        let was_last = timeout.release().is_some();
        let was_also_last = drops.join().unwrap();

        assert_ne!(was_last, was_also_last, "the node is vacant, once");
        ends.assert(0, 1);
    });
}

#[test]
fn one_of_cancel_and_stop_wins() {
    explore(None, [mutant("ChangeWithoutCompare"), mutant("StopTakesTheEntry")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || (other.cancel(), other));
        let rest = driven.timer.stop();
        let pending = driven.timer.pending_timeouts();
        let (cancelled, _other) = cancel.join().unwrap();

        assert_eq!(pending, 0, "stop waits for a cancel that was counted");
        assert_eq!(rest.len() + usize::from(cancelled), 1, "exactly one wins");
        ends.assert(0, 1);
        // (What is pushed when `stop` has looked into the lanes for the last time stays there, and with it the entry.)
        assert!(timeout.references() as usize >= 2 + rest.len(), "its entry is not given back twice");
    });
}

/// It is in the lane: the one takes it back, the other takes it.
#[test]
fn one_of_cancel_in_the_queue_and_stop_wins() {
    explore(None, [mutant("TakeBackWithoutCompare"), mutant("ChangeWithoutCompare")], || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let ends = Arc::new(Ends::default());
        let timeout = timer.new_timeout_task(Task(Arc::clone(&ends)), TICK).unwrap();
        let other = timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(other.pending_timeouts(), 0, "stop waits for a cancel that has it");
            rest
        });
        let cancelled = timeout.cancel();
        let rest = stop.join().unwrap();
        assert_eq!(rest.len() + usize::from(cancelled), 1, "exactly one wins");
        ends.assert(0, 1);
        assert_eq!(timeout.references() as usize, 1 + rest.len(), "its entry was given back, once");
    });
}

#[test]
fn a_cancel_during_the_transfer_leaves_nothing() {
    explore(None, [mutant("CancelWithoutPush")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            driver.turn();
            driver
        });
        assert!(timeout.cancel());
        let mut driver = turn.join().unwrap();

        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driver.turn();
        assert_eq!(driver.next_turn(), None, "nothing of it is left in the wheel");
        drop(timeout);
        assert_eq!(Arc::strong_count(&ends), 1);
    });
}

/// By a thread that did not push it, and cannot take it back.
#[test]
fn a_cancel_elsewhere_during_the_transfer_leaves_nothing() {
    explore(None, [mutant("CancelWithoutPush"), mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || (other.cancel(), other));
        driven.driver.turn();
        let (cancelled, _other) = cancel.join().unwrap();
        assert!(cancelled);
        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driven.driver.turn();
        assert_eq!(driven.driver.next_turn(), None, "nothing of it is left in the wheel");
        assert_eq!(timeout.references(), 2, "its entry was given back, once");
        assert!(driven.driver.could_sleep());
    });
}

#[test]
fn one_of_cancel_and_the_last_drop_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        drop(driven.timer);
        assert_eq!(
            timeout.timer().pending_timeouts(),
            0,
            "the last drop waits for a cancel that was counted"
        );
        let _either = cancel.join().unwrap();
        assert!(timeout.is_cancelled());
        ends.assert(0, 1);
    });
}

/// It is in the queue, with another one behind it that comes just then.
#[test]
fn a_cancel_in_the_queue_takes_nothing_else_with_it() {
    explore(Some(2), [mutant("ChangeWithoutCompare"), mutant("CancelWithoutPush")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let turn = Driven::turn(driven.driver);
        let (other, behind) = (driven.timer.clone(), Arc::new(Ends::default()));
        let task = Task(Arc::clone(&behind));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).unwrap());
        assert!(timeout.cancel());
        schedule.join().unwrap();
        let (_, mut driver) = turn.join().unwrap();

        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 1);
        driver.turn();
        assert_eq!(driver.next_turn(), Some(TICK));
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        behind.assert(1, 0);
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
    });
}

/// The worker takes in two at a time here.
#[test]
fn what_two_threads_schedule_fires_in_the_order_of_each() {
    explore(Some(2), [mutant("LaneOutOfOrder"), no_release("node/lane.rs push")], || {
        let driven = Driven::new();
        let fired = Arc::new(std::sync::Mutex::new(Vec::new()));
        let producers = [0, 10].map(|first| {
            let (timer, fired) = (driven.timer.clone(), Arc::clone(&fired));
            thread::spawn(move || {
                for number in [first, first + 1] {
                    let fired = Arc::clone(&fired);
                    timer.new_timeout(move |_| fired.lock().unwrap().push(number), TICK).unwrap();
                }
            })
        });
        let mut driver = driven.driver;
        driver.turn();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        driver.turn();
        driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 4, "nothing is lost");
        let fired = fired.lock().unwrap();
        for first in [0, 10] {
            let of_one: Vec<_> = fired.iter().filter(|&number| number / 10 == first / 10).collect();
            assert_eq!(of_one, [&first, &(first + 1)]);
        }
    });
}
