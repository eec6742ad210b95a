//! The limit of pending timeouts.

use super::*;

#[test]
fn limit_is_exact() {
    explore(
        None,
        [
            mutant("PlaceTakenWithoutCompare"),
            mutant("PlaceTakenBeforeCheck"),
        ],
        || {
            let driven = Driven::with_limit(1);
            let other = driven.timer.clone();
            let schedule = thread::spawn(move || {
                let accepted = other.new_timeout(|_| (), TICK).is_ok();
                assert!(
                    other.pending_timeouts() <= 1,
                    "a reader never sees more than the limit"
                );
                accepted
            });
            let accepted = driven.timer.new_timeout(|_| (), TICK).is_ok();
            assert!(
                driven.timer.pending_timeouts() <= 1,
                "a reader never sees more than the limit"
            );

            assert_ne!(
                accepted,
                schedule.join().unwrap(),
                "there is one place, and one caller gets it"
            );
            assert_eq!(driven.timer.pending_timeouts(), 1);
        },
    );
}

#[test]
fn cancel_makes_room_before_it_returns() {
    explore(None, [mutant("CancelKeepsPlace")], || {
        let driven = Driven::with_limit(1);
        let (timeout, _) = driven.schedule(5);
        let done = Arc::new(loom::sync::Mutex::new(false));
        let (other, seen) = (driven.timer.clone(), Arc::clone(&done));
        let schedule = thread::spawn(move || {
            let was_free = *seen.lock().unwrap();
            (was_free, other.new_timeout(|_| (), TICK).is_ok())
        });
        assert!(timeout.cancel());
        *done.lock().unwrap() = true;
        let (was_free, accepted) = schedule.join().unwrap();
        assert!(
            accepted || !was_free,
            "no caller is rejected while a place is free"
        );
        assert_eq!(driven.timer.pending_timeouts(), usize::from(accepted));
    });
}

/// Two callers schedule at the moment when a place becomes free.
#[test]
fn cancel_makes_room_for_one_of_two() {
    explore(
        Some(2),
        [
            mutant("PlaceTakenWithoutCompare"),
            mutant("CancelKeepsPlace"),
        ],
        || {
            let driven = Driven::with_limit(1);
            let (timeout, _) = driven.schedule(5);
            let producers = [driven.timer.clone(), driven.timer.clone()].map(|timer| {
                thread::spawn(move || {
                    let accepted = timer.new_timeout(|_| (), TICK).is_ok();
                    assert!(
                        timer.pending_timeouts() <= 1,
                        "a reader never sees more than the limit"
                    );
                    accepted
                })
            });
            assert!(timeout.cancel());
            let accepted: usize = producers
                .map(|producer| usize::from(producer.join().unwrap()))
                .iter()
                .sum();
            assert!(accepted <= 1, "there is one place");
            assert_eq!(driven.timer.pending_timeouts(), accepted);
            assert_eq!(
                driven.timer.new_timeout(|_| (), TICK).is_ok(),
                accepted == 0,
                "the place is free, or one of them has it"
            );
        },
    );
}

/// The task finds room for a timeout that it schedules.
#[test]
fn expiry_makes_room_before_the_task_runs() {
    explore(None, [mutant("PlaceTakenWithoutCompare")], || {
        let mut driven = Driven::with_limit(1);
        let accepted = Arc::new(AtomicUsize::new(0));
        let inside = Arc::clone(&accepted);
        let again = move |timeout: &Timeout| {
            let accepted = timeout.timer().new_timeout(|_| (), TICK * 5).is_ok();
            inside.fetch_add(accepted.into(), Relaxed);
        };
        driven.timer.new_timeout(again, TICK).unwrap();
        driven.driver.turn();
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let outside = driven.timer.new_timeout(|_| (), TICK * 5).is_ok();
        assert!(
            driven.timer.pending_timeouts() <= 1,
            "a reader never sees more than the limit"
        );
        let (expired, _driver) = turn.join().unwrap();

        assert_eq!(expired, 1);
        assert_eq!(
            usize::from(outside) + accepted.load(Relaxed),
            1,
            "there is one place, and one caller gets it"
        );
        assert_eq!(driven.timer.pending_timeouts(), 1);
    });
}

#[test]
fn rejection_leaves_the_count_unchanged() {
    explore(bound(4, None), [mutant("PlaceTakenBeforeCheck")], || {
        let driven = Driven::with_limit(1);
        let (timeout, outcome) = driven.schedule(5);
        let other = driven.timer.clone();
        let schedule = thread::spawn(move || other.new_timeout(|_| (), TICK));
        assert!(
            driven.timer.pending_timeouts() <= 1,
            "a reader never sees more than the limit"
        );
        let rest = driven.timer.stop();
        assert_eq!(driven.timer.pending_timeouts(), 0);
        let accepted = match schedule.join().unwrap() {
            // The stop has made room before the caller has learnt of it, and returns this one too.
            Ok(other) => vec![timeout, other],
            Err(NewTimeoutError::Stopped | NewTimeoutError::TooManyPending { limit: 1 }) => {
                vec![timeout]
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(rest.len(), accepted.len());
        assert!(
            accepted.iter().all(|timeout| rest.contains(timeout)),
            "stop returns what was accepted"
        );
        outcome.assert(0, 1);
        assert_eq!(driven.timer.stats().rejected, 2 - rest.len() as u64);
    });
}
