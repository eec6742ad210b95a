//! Many timeouts at once: one fence, one look and one count per group. A group has two timeouts in
//! a model. What a group does to each of them is a cancel, a discard or a reset.

use super::announce::{two_resets_beside_an_announcement, with_turn_in_five_ticks};
use super::sleep::turn_and_idle;
use super::*;

/// A timeout in the wheel and one in the lane, with tasks that have hooks.
fn two(driven: &mut Driven, ticks: u32) -> [(Timeout, Arc<Outcome>); 2] {
    [driven.schedule_in_wheel(ticks), driven.schedule(ticks)]
}

/// The same, with tasks that leave nothing.
fn two_plain(driven: &mut Driven, ticks: u32) -> [Timeout; 2] {
    let schedule = |driven: &Driven| driven.timer.new_timeout(|_| (), TICK * ticks).unwrap();
    let in_wheel = schedule(driven);
    assert_eq!(driven.driver.turn(), 0);
    [in_wheel, schedule(driven)]
}

#[test]
fn group_or_stop_cancels_each() {
    let mutants = ["GroupCountedFirst", "ChangeWithoutCompare"].map(mutant);
    explore(bound(2, Some(4)), mutants, || {
        let mut driven = Driven::new();
        let [first, second] = two(&mut driven, 5);
        let timer = driven.timer.clone();
        let stop = thread::spawn(move || timer.stop().len());
        let cancelled = Timeout::cancel_each([first.0, second.0]);
        assert_eq!(
            stop.join().unwrap() + cancelled,
            2,
            "each is cancelled once"
        );
        [first.1, second.1]
            .iter()
            .for_each(|outcome| outcome.assert(0, 1));
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn group_of_discards_or_stop_cancels_each() {
    let mutants = [
        mutant("GroupCountedAsOne").never_ends(),
        mutant("DiscardWithoutCompare"),
    ];
    explore(bound(2, Some(4)), mutants, || {
        let mut driven = Driven::new();
        let two = two_plain(&mut driven, 5);
        let timer = driven.timer.clone();
        let stop = thread::spawn(move || timer.stop().len());
        let cancelled = Timeout::cancel_each(two);
        assert_eq!(
            stop.join().unwrap() + cancelled,
            2,
            "each is cancelled once"
        );
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn group_or_expiry_ends_each() {
    explore(
        bound(2, Some(4)),
        [mutant("GroupCountedAsOne"), mutant("ChangeWithoutCompare")],
        || {
            let mut driven = Driven::new();
            let [first, second] = two(&mut driven, 1);
            driven.clock.advance(TICK * 2);
            let turn = Driven::turn(driven.driver);
            let cancelled = Timeout::cancel_each([first.0, second.0]);
            let (expired, mut driver) = turn.join().unwrap();
            driven.clock.advance(TICK);
            let later = driver.turn();
            assert_eq!(cancelled + expired + later, 2, "each ends once");
            assert_eq!(driven.timer.pending_timeouts(), 0);
            let runs = |outcome: &Outcome| outcome.runs.load(Relaxed);
            for outcome in [first.1, second.1] {
                outcome.assert(runs(&outcome), 1 - runs(&outcome));
            }
            driver.turn();
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
        },
    );
}

/// The groups are of the same two timeouts, in the other order. One is of clones.
#[test]
fn one_of_two_groups_cancels_each() {
    let mutants = ["GroupCountedAsOne", "ChangeWithoutCompare"].map(mutant);
    explore(bound(2, Some(4)), mutants, || {
        let mut driven = Driven::new();
        let [first, second] = two(&mut driven, 5);
        let clones = [second.0.clone(), first.0.clone()];
        let other = thread::spawn(move || Timeout::cancel_each(clones));
        let cancelled = Timeout::cancel_each([first.0, second.0]);
        assert_eq!(
            other.join().unwrap() + cancelled,
            2,
            "each is cancelled once"
        );
        [first.1, second.1]
            .iter()
            .for_each(|outcome| outcome.assert(0, 1));
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driven.driver.turn();
        assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
    });
}

/// The clone of the first one may be dropped before the group, and may cancel it.
#[test]
fn group_of_discards_or_cancel_of_a_clone_wins() {
    let mutants = [mutant("DiscardIgnoresHandles")];
    explore(bound(2, Some(4)), mutants, || {
        let mut driven = Driven::new();
        let [in_wheel, in_lane] = two_plain(&mut driven, 5);
        let clone = in_lane.clone();
        let cancel = thread::spawn(move || usize::from(clone.cancel()));
        let cancelled = Timeout::cancel_each([in_wheel, in_lane]);
        assert_eq!(
            cancel.join().unwrap() + cancelled,
            2,
            "each is cancelled once"
        );
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driven.driver.turn();
        assert_eq!(driven.driver.next_turn(), None, "the wheel is empty");
    });
}

/// One of the group has ended, so that there is one message: the worker sleeps for a limited time
/// after another one.
fn cancel_while_the_worker_falls_asleep(mut driven: Driven, group: [Timeout; 2], ended: usize) {
    assert!(group[ended].cancel());
    assert_eq!(driven.driver.turn(), 0);
    let worker = turn_and_idle(driven.driver);
    assert_eq!(Timeout::cancel_each(group), 1);
    let (asleep, driver) = worker.join().unwrap();
    assert!(!(asleep && driver.misses_messages()));
}

#[test]
fn worker_sees_a_group_or_is_woken() {
    let mutants = ["PushWithoutFence", "ChangeWithoutFence", "GroupWithoutWake"].map(mutant);
    explore(bound(3, None), mutants, || {
        let driven = Driven::new();
        let group = [driven.schedule(5).0, driven.schedule(5).0];
        cancel_while_the_worker_falls_asleep(driven, group, 0);
    });
}

#[test]
fn worker_sees_a_group_of_discards_or_is_woken() {
    let mutants = ["PushWithoutFence", "ChangeWithoutFence", "GroupWithoutWake"].map(mutant);
    explore(bound(3, None), mutants, || {
        let driven = Driven::new();
        let group = [0, 1].map(|_| driven.timer.new_timeout(|_| (), TICK * 5).unwrap());
        cancel_while_the_worker_falls_asleep(driven, group, 1);
    });
}

#[test]
fn group_of_resets_reaches_the_worker() {
    explore(bound(2, Some(4)), [mutant("ResetsWithoutPush")], || {
        let mut driven = Driven::new();
        let [first, second] = two(&mut driven, 5);
        let deadline = driven.timer.now() + TICK * 2;
        let turn = Driven::turn(driven.driver);
        assert_eq!(Timeout::reset_each([&first.0, &second.0], deadline), 2);
        let (expired, mut driver) = turn.join().unwrap();
        driven.clock.advance(TICK);
        assert_eq!(expired + driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 2, "at the new deadline");
        [first.1, second.1]
            .iter()
            .for_each(|outcome| outcome.assert(1, 0));
        assert_eq!(driver.next_turn(), None);
    });
}

#[test]
fn group_of_resets_wakes_a_loop_that_announced_a_later_turn() {
    let mutants = [
        "ResetsWithoutLook",
        "PushWithoutFence",
        "ChangeWithoutFence",
    ]
    .map(mutant);
    explore(bound(2, Some(4)), mutants, || {
        let (mut driven, woken) = with_turn_in_five_ticks();
        let two = [driven.schedule(20).0, driven.schedule(20).0];
        driven.driver.turn();
        let deadline = driven.timer.now() + TICK;
        let reset = thread::spawn(move || assert_eq!(Timeout::reset_each(&two, deadline), 2));
        let announced = driven.driver.next_turn().unwrap();
        reset.join().unwrap();
        assert!(
            announced <= TICK || woken.load(Relaxed) == 1,
            "{announced:?}, {woken:?}"
        );
    });
}

/// The first group may be about to push a node when the second one finds it in flight.
#[test]
fn two_groups_of_resets_wake_a_loop_that_announced_a_later_turn() {
    explore(
        bound(2, Some(3)),
        [
            mutant("EarlierResetsWithoutLook"),
            mutant("ResetsTrustTheirDeadline"),
        ],
        || {
            two_resets_beside_an_announcement(|timeout, begin, delay| {
                Timeout::reset_each([timeout], begin + delay) == 1
            });
        },
    );
}
