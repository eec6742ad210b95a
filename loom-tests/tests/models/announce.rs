//! The turn that a driver's loop has announced: the loop is woken if it needs an earlier one.

use super::*;

/// Returns a driven timer, and the number of times that its loop was woken.
fn with_waker() -> (Driven, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let wakes = Arc::clone(&woken);
    (
        Driven::build(|builder| builder.waker(move || _ = wakes.fetch_add(1, Relaxed))),
        woken,
    )
}

/// Returns a timer whose next turn is in five ticks.
pub(crate) fn with_turn_in_five_ticks() -> (Driven, Arc<AtomicUsize>) {
    let (mut driven, woken) = with_waker();
    let _near = driven.schedule_in_wheel(5);
    (driven, woken)
}

#[test]
fn new_timeout_wakes_a_loop_that_announced_a_later_turn() {
    let mutants = [
        mutant("PushWithoutLook"),
        mutant("SleepWithoutSecondLook"),
        mutant("PushWithoutFence"),
        mutant("ChangeWithoutFence"),
    ];
    explore(None, mutants, || {
        let (driven, woken) = with_turn_in_five_ticks();
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), TICK).unwrap());
        let announced = driven.driver.next_turn().unwrap();
        caller.join().unwrap();
        assert!(
            announced == TICK || woken.load(Relaxed) == 1,
            "{announced:?}, {woken:?}"
        );
    });
}

#[test]
fn two_new_timeouts_wake_a_loop_that_turns_in_between() {
    explore(Some(2), [mutant("PushWithoutLook")], || {
        let (driven, woken) = with_turn_in_five_ticks();
        let callers = [1, 3].map(|ticks| {
            let timer = driven.timer.clone();
            thread::spawn(move || timer.new_timeout(|_| (), TICK * ticks).unwrap())
        });
        let mut driver = driven.driver;
        let mut announced = driver.next_turn();
        if woken.swap(0, Relaxed) > 0 {
            driver.turn();
            announced = driver.next_turn();
        }
        callers
            .into_iter()
            .for_each(|caller| drop(caller.join().unwrap()));
        assert!(
            announced == Some(TICK) || woken.load(Relaxed) > 0,
            "{announced:?}, {woken:?}"
        );
    });
}

/// Two threads make a deadline earlier while the loop announces a later turn. `reset` gets the
/// present of the clock, which stands still, and the delay from then.
pub(crate) fn two_resets_beside_an_announcement(reset: fn(&Timeout, Instant, Duration) -> bool) {
    let (mut driven, woken) = with_turn_in_five_ticks();
    let (timeout, _) = driven.schedule_in_wheel(20);
    let begin = driven.timer.now();
    let resets = [10, 1].map(|ticks| {
        let timeout = timeout.clone();
        thread::spawn(move || assert!(reset(&timeout, begin, TICK * ticks)))
    });
    let mut announced = driven.driver.next_turn().unwrap();
    if woken.swap(0, Relaxed) > 0 {
        announced = driven.driver.next_turn().unwrap();
    }
    resets.into_iter().for_each(|reset| reset.join().unwrap());
    let needed = timeout.remaining();
    assert!(
        announced <= needed || woken.load(Relaxed) > 0,
        "{announced:?}, {needed:?}, {woken:?}"
    );
}

/// The first reset may be about to push the node when the second one finds it in flight.
#[test]
fn two_resets_wake_a_loop_that_announced_a_later_turn() {
    explore(
        bound(2, Some(3)),
        [
            mutant("EarlierResetWithoutLook"),
            mutant("SleepWithoutSecondLook"),
        ],
        || {
            two_resets_beside_an_announcement(|timeout, _, delay| timeout.reset(delay));
        },
    );
}

/// The announced turn becomes unnecessary while it is announced. Another caller may have relied on
/// it.
#[test]
fn announced_turn_is_kept() {
    explore(Some(2), [mutant("AnnouncedTurnDropped")], || {
        let (mut driven, woken) = with_waker();
        let near = driven.schedule_in_wheel(5).0;
        let cancel = thread::spawn(move || assert!(near.cancel()));
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), TICK * 7).unwrap());
        let announced = driven.driver.next_turn();
        caller.join().unwrap();
        cancel.join().unwrap();
        let turns_in_time = announced.is_some_and(|announced| announced <= TICK * 7);
        assert!(
            turns_in_time || woken.load(Relaxed) > 0,
            "{announced:?}, and the loop is not woken"
        );
    });
}

#[test]
fn loop_is_woken_once_per_announced_sleep() {
    explore(Some(2), [mutant("WakeWithoutCheck")], || {
        let (driven, woken) = with_turn_in_five_ticks();
        assert_eq!(driven.driver.next_turn(), Some(TICK * 5));
        let callers = [1, 3].map(|ticks| {
            let timer = driven.timer.clone();
            thread::spawn(move || timer.new_timeout(|_| (), TICK * ticks).unwrap())
        });
        callers
            .into_iter()
            .for_each(|caller| drop(caller.join().unwrap()));
        assert_eq!(woken.load(Relaxed), 1);
    });
}
