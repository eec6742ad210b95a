//! The end of one timeout, which comes exactly once.

use super::*;

#[test]
fn cancel_or_expiry_wins() {
    explore(
        None,
        [
            mutant("ChangeWithoutCompare"),
            mutant("ReleaseLeftReference"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule_in_wheel(1);
            let clone = timeout.clone();
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let cancelled = timeout.cancel();
            let (expired, mut driver) = turn.join().unwrap();

            assert_eq!(
                usize::from(cancelled) + expired,
                1,
                "exactly one of the two wins"
            );
            outcome.assert(expired, usize::from(cancelled));
            assert_eq!(
                (timeout.is_cancelled(), timeout.is_expired()),
                (cancelled, !cancelled)
            );
            assert_eq!(driven.timer.pending_timeouts(), 0);
            // If the node was due before the message arrived, the wheel's reference was left to the
            // message.
            driver.turn();
            assert_eq!(
                clone.references(),
                2,
                "the wheel's reference is released once"
            );
        },
    );
}

#[test]
fn one_of_two_cancels_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(1);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        let cancelled = timeout.cancel();

        assert_ne!(
            cancelled,
            cancel.join().unwrap(),
            "exactly one of the two wins"
        );
        outcome.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert_eq!(driven.driver.next_turn(), None);
    });
}

/// Two threads may borrow one handle. It is counted once, and neither thread has the node alone.
#[test]
fn one_of_two_cancels_through_one_handle_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let driven = Driven::new();
        // The message is in the lane of this thread, which can take it back.
        let (timeout, outcome) = driven.schedule(5);
        let timeout = Arc::new(timeout);
        let other = Arc::clone(&timeout);
        let cancel = thread::spawn(move || (other.cancel(), other));
        let cancelled = timeout.cancel();
        let (others, _borrowed) = cancel.join().unwrap();

        assert_ne!(cancelled, others, "exactly one of the two wins");
        outcome.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

/// A cancel that has taken its message back releases the wheel's reference without counting down.
/// The thread that drops the last handle sees that. A thread that drops another handle does not
/// take it for the last one.
#[test]
fn merged_wheel_ref_is_not_taken_for_a_handle() {
    explore(
        None,
        [
            mutant("TakeBackWithoutMerge"),
            mutant("ReleaseWithoutCompare"),
        ],
        || {
            let driven = Driven::new();
            let (timeout, outcome) = driven.schedule(5);
            let clone = timeout.clone();
            let drops = thread::spawn(move || clone.release().is_some());
            assert!(timeout.cancel());
            let was_last = timeout.release().is_some();
            let was_also_last = drops.join().unwrap();

            assert_ne!(was_last, was_also_last, "one thread frees the node");
            outcome.assert(0, 1);
        },
    );
}

#[test]
fn cancel_or_stop_wins() {
    explore(
        None,
        [
            mutant("ChangeWithoutCompare"),
            mutant("StopTakesLeftReference"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule_in_wheel(5);
            let other = timeout.clone();
            let cancel = thread::spawn(move || (other.cancel(), other));
            let rest = driven.timer.stop();
            let pending = driven.timer.pending_timeouts();
            let (cancelled, _other) = cancel.join().unwrap();

            assert_eq!(
                pending, 0,
                "stop waits for a cancel that has not deregistered yet"
            );
            assert_eq!(
                rest.len() + usize::from(cancelled),
                1,
                "exactly one of the two wins"
            );
            outcome.assert(0, 1);
            // (A message that is pushed after the last look of `stop` stays in its lane, with the
            // reference.)
            assert!(
                timeout.references() as usize >= 2 + rest.len(),
                "no reference is released twice"
            );
        },
    );
}

/// The message is in the lane. The cancel takes it back, or `stop` takes it.
#[test]
fn cancel_in_lane_or_stop_wins() {
    explore(
        None,
        [
            mutant("TakeBackWithoutCompare"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let Driven {
                timer,
                driver: _driver,
                ..
            } = Driven::new();
            let outcome = Arc::new(Outcome::default());
            let timeout = timer
                .new_timeout_task(Task(Arc::clone(&outcome)), TICK)
                .unwrap();
            let other = timer.clone();
            let stop = thread::spawn(move || {
                let rest = other.stop();
                assert_eq!(
                    other.pending_timeouts(),
                    0,
                    "stop waits for a cancel that has taken its message back"
                );
                rest
            });
            let cancelled = timeout.cancel();
            let rest = stop.join().unwrap();
            assert_eq!(
                rest.len() + usize::from(cancelled),
                1,
                "exactly one of the two wins"
            );
            outcome.assert(0, 1);
            assert_eq!(
                timeout.references() as usize,
                1 + rest.len(),
                "the wheel's reference is released once"
            );
        },
    );
}

#[test]
fn cancel_during_drain_leaves_nothing() {
    explore(None, [mutant("CancelWithoutPush")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(5);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            driver.turn();
            driver
        });
        assert!(timeout.cancel());
        let mut driver = turn.join().unwrap();

        outcome.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driver.turn();
        assert_eq!(driver.next_turn(), None, "the wheel is empty");
        drop(timeout);
        assert_eq!(Arc::strong_count(&outcome), 1);
    });
}

/// The cancel comes from a thread that did not push the message, so it cannot take it back.
#[test]
fn cancel_on_another_thread_during_drain_leaves_nothing() {
    explore(
        None,
        [mutant("CancelWithoutPush"), mutant("ChangeWithoutCompare")],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule(5);
            let other = timeout.clone();
            let cancel = thread::spawn(move || (other.cancel(), other));
            driven.driver.turn();
            let (cancelled, _other) = cancel.join().unwrap();
            assert!(cancelled);
            outcome.assert(0, 1);
            assert_eq!(driven.timer.pending_timeouts(), 0);
            driven.driver.turn();
            assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
            assert_eq!(
                timeout.references(),
                2,
                "the wheel's reference is released once"
            );
            assert!(driven.driver.could_sleep());
        },
    );
}

#[test]
fn cancel_or_last_drop_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = driven.schedule_in_wheel(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        drop(driven.timer);
        assert_eq!(
            timeout.timer().pending_timeouts(),
            0,
            "the last drop waits for a cancel that has not deregistered yet"
        );
        let _either = cancel.join().unwrap();
        assert!(timeout.is_cancelled());
        outcome.assert(0, 1);
    });
}

/// A cancel while another thread pushes a timeout behind it, and the worker drains the lanes.
#[test]
fn cancel_in_lane_keeps_the_timeout_behind_it() {
    explore(
        Some(2),
        [mutant("ChangeWithoutCompare"), mutant("CancelWithoutPush")],
        || {
            let driven = Driven::new();
            let (timeout, outcome) = driven.schedule(5);
            let turn = Driven::turn(driven.driver);
            let (other, behind) = (driven.timer.clone(), Arc::new(Outcome::default()));
            let task = Task(Arc::clone(&behind));
            let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).unwrap());
            assert!(timeout.cancel());
            schedule.join().unwrap();
            let (_, mut driver) = turn.join().unwrap();

            outcome.assert(0, 1);
            assert_eq!(driven.timer.pending_timeouts(), 1);
            driver.turn();
            assert_eq!(driver.next_turn(), Some(TICK));
            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), 1);
            behind.assert(1, 0);
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
        },
    );
}

/// In a model, a turn takes two messages.
#[test]
fn timeouts_of_two_threads_fire_in_order_of_each() {
    explore(
        Some(2),
        [mutant("LaneOutOfOrder"), no_release("node/lane.rs push")],
        || {
            let driven = Driven::new();
            let fired = Arc::new(std::sync::Mutex::new(Vec::new()));
            let producers = [0, 10].map(|first| {
                let (timer, fired) = (driven.timer.clone(), Arc::clone(&fired));
                thread::spawn(move || {
                    for number in [first, first + 1] {
                        let fired = Arc::clone(&fired);
                        timer
                            .new_timeout(move |_| fired.lock().unwrap().push(number), TICK)
                            .unwrap();
                    }
                })
            });
            let mut driver = driven.driver;
            driver.turn();
            producers
                .into_iter()
                .for_each(|producer| producer.join().unwrap());
            driver.turn();
            driver.turn();
            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), 4, "no timeout is lost");
            let fired = fired.lock().unwrap();
            for first in [0, 10] {
                let of_one: Vec<_> = fired
                    .iter()
                    .filter(|&number| number / 10 == first / 10)
                    .collect();
                assert_eq!(of_one, [&first, &(first + 1)]);
            }
        },
    );
}
