//! A driver's promise: its loop is woken for what needs an earlier turn.

use super::*;

/// A driven timer, and how often its loop was woken.
fn with_waker() -> (Driven, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let wakes = Arc::clone(&woken);
    (Driven::build(|builder| builder.waker(move || _ = wakes.fetch_add(1, Relaxed))), woken)
}

/// One whose loop has a turn to be promised in five ticks.
fn promising() -> (Driven, Arc<AtomicUsize>) {
    let (mut driven, woken) = with_waker();
    let _near = driven.schedule_placed(5);
    (driven, woken)
}

#[test]
fn a_new_timeout_wakes_a_loop_that_was_promised_a_later_turn() {
    let mutants = [
        mutant("PushWithoutLook"),
        mutant("PromiseWithoutSecondLook"),
        no_release("engine/sleep.rs publish_and_read"),
        no_acquire("engine/sleep.rs publish_and_read"),
        no_release("engine/sleep.rs announce_sleep"),
        no_acquire("engine/sleep.rs announce_sleep"),
    ];
    explore(None, mutants, || {
        let (driven, woken) = promising();
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), TICK).unwrap());
        let promised = driven.driver.next_turn().unwrap();
        caller.join().unwrap();
        assert!(promised == TICK || woken.load(Relaxed) == 1, "{promised:?}, {woken:?}");
    });
}

#[test]
fn two_new_timeouts_wake_a_loop_that_turns_in_between() {
    explore(Some(2), [mutant("PushWithoutLook")], || {
        let (driven, woken) = promising();
        let callers = [1, 3].map(|ticks| {
            let timer = driven.timer.clone();
            thread::spawn(move || timer.new_timeout(|_| (), TICK * ticks).unwrap())
        });
        let mut driver = driven.driver;
        let mut promised = driver.next_turn();
        if woken.swap(0, Relaxed) > 0 {
            driver.turn();
            promised = driver.next_turn();
        }
        callers.into_iter().for_each(|caller| drop(caller.join().unwrap()));
        assert!(promised == Some(TICK) || woken.load(Relaxed) > 0, "{promised:?}, {woken:?}");
    });
}

/// The first re-arm may have made it its own business to push the node when the second one finds it in the queue.
#[test]
fn two_resets_of_one_timeout_wake_a_loop_that_was_promised_a_later_turn() {
    explore(Some(3), [mutant("EarlierWithoutLook"), mutant("PromiseWithoutSecondLook")], || {
        let (mut driven, woken) = promising();
        let (timeout, _) = driven.schedule_placed(20);
        let resets = [10, 1].map(|ticks| {
            let timeout = timeout.clone();
            thread::spawn(move || assert!(timeout.reset(TICK * ticks)))
        });
        let mut promised = driven.driver.next_turn().unwrap();
        if woken.swap(0, Relaxed) > 0 {
            promised = driven.driver.next_turn().unwrap();
        }
        resets.into_iter().for_each(|reset| reset.join().unwrap());
        let needed = timeout.remaining();
        assert!(promised <= needed || woken.load(Relaxed) > 0, "{promised:?}, {needed:?}, {woken:?}");
    });
}

/// The turn that was promised becomes needless while the promise is made: somebody may rely on it all the same.
#[test]
fn a_promise_is_not_taken_back() {
    explore(Some(2), [mutant("PromiseBroken")], || {
        let (mut driven, woken) = with_waker();
        let near = driven.schedule_placed(5).0;
        let cancel = thread::spawn(move || assert!(near.cancel()));
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), TICK * 7).unwrap());
        let promised = driven.driver.next_turn();
        caller.join().unwrap();
        cancel.join().unwrap();
        let turns_in_time = promised.is_some_and(|promised| promised <= TICK * 7);
        assert!(turns_in_time || woken.load(Relaxed) > 0, "{promised:?} and nobody wakes it");
    });
}

#[test]
fn for_each_promise_the_loop_is_woken_once() {
    explore(Some(2), [mutant("WakeWithoutCompare")], || {
        let (driven, woken) = promising();
        assert_eq!(driven.driver.next_turn(), Some(TICK * 5));
        let callers = [1, 3].map(|ticks| {
            let timer = driven.timer.clone();
            thread::spawn(move || timer.new_timeout(|_| (), TICK * ticks).unwrap())
        });
        callers.into_iter().for_each(|caller| drop(caller.join().unwrap()));
        assert_eq!(woken.load(Relaxed), 1);
    });
}
