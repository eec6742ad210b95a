//! A cancel that gives up its handle. The tasks are closures: they have no hook, which would need
//! the handle. The thread that has scheduled the timeout discards it: others have no cache of the
//! timer, and cancel and drop it.

use hashed_wheel::inside::Nodes;
use hashed_wheel::{Cancel, PeriodicRun, Schedule};

use super::sleep::turn_and_idle;
use super::*;

/// Schedules a closure.
fn schedule_closure(timer: &HashedWheelTimer, ticks: u32) -> (Timeout, Arc<Outcome>) {
    let outcome = Arc::new(Outcome::default());
    let task = Task(Arc::clone(&outcome));
    let run = move |_: &Timeout| _ = task.0.runs.fetch_add(1, Relaxed);
    (timer.new_timeout(run, TICK * ticks).unwrap(), outcome)
}

fn closure_in_wheel(driven: &mut Driven, ticks: u32) -> (Timeout, Arc<Outcome>) {
    let scheduled = schedule_closure(&driven.timer, ticks);
    assert_eq!(driven.driver.turn(), 0);
    scheduled
}

/// All timeouts so far have ended. Two new ones get different nodes, and fire. Returns whether the
/// first one gets a node that was used before. (In a model, a page has one node.)
#[track_caller]
fn reuses(timer: &HashedWheelTimer, driver: &mut Driver, clock: &ManualClock) -> bool {
    driver.turn();
    assert_eq!(driver.next_turn(), None, "the wheel is empty");
    let made = driver.made_nodes();
    let first = schedule_closure(timer, 1);
    let is_used_again = driver.made_nodes() == made;
    let second = schedule_closure(timer, 1);
    assert_ne!(first.0, second.0, "a node is recycled once");
    driver.turn();
    clock.advance(TICK);
    assert_eq!(driver.turn(), 2);
    [first, second]
        .iter()
        .for_each(|(_, outcome)| outcome.assert(1, 0));
    is_used_again
}

/// The message is in the lane of this thread. The other thread has a clone, and may have dropped
/// it.
#[test]
fn discard_or_cancel_of_a_clone_wins() {
    let mutants = [
        mutant("DiscardIgnoresHandles"),
        mutant("DiscardReadsWordFirst"),
        no_acquire("node/refs.rs is_only_handle"),
    ];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (timeout, outcome) = schedule_closure(&driven.timer, 5);
        let clone = timeout.clone();
        let cancel = thread::spawn(move || clone.cancel());
        let discarded = timeout.cancel_and_drop();
        assert_ne!(
            discarded,
            cancel.join().unwrap(),
            "exactly one of the two wins"
        );
        outcome.assert(0, 0);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        reuses(&driven.timer, &mut driven.driver, &driven.clock);
    });
}

/// The handle of a timeout in the wheel goes with the message, also if there is a clone.
#[test]
fn discard_in_the_wheel_leaves_a_clone_alone() {
    explore(
        bound(3, None),
        [
            mutant("HandleReleasedWithoutCount"),
            mutant("DiscardWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = closure_in_wheel(&mut driven, 5);
            let clone = timeout.clone();
            let cancel = thread::spawn(move || (clone.cancel(), clone));
            let discarded = timeout.cancel_and_drop();
            driven.driver.turn();
            let (cancelled, clone) = cancel.join().unwrap();
            assert_ne!(discarded, cancelled, "exactly one of the two wins");
            outcome.assert(0, 0);
            driven.driver.turn();
            let (next, _) = schedule_closure(&driven.timer, 1);
            assert!(
                clone.is_cancelled() && clone != next,
                "the clone keeps its node"
            );
            drop((clone, next));
            driven.clock.advance(TICK);
            driven.driver.turn();
            reuses(&driven.timer, &mut driven.driver, &driven.clock);
        },
    );
}

/// The worker takes the message, or puts the node into the wheel, or comes too late.
#[test]
fn discard_during_drain_leaves_nothing() {
    let mutants = [
        mutant("TakeBackWithoutCompare"),
        mutant("DiscardWithoutPush"),
        mutant("DiscardKeepsReference"),
    ];
    explore(None, mutants, || {
        let driven = Driven::new();
        let (timeout, outcome) = schedule_closure(&driven.timer, 5);
        let turn = Driven::turn(driven.driver);
        assert!(timeout.cancel_and_drop());
        outcome.assert(0, 0);
        let (_, mut driver) = turn.join().unwrap();
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert!(
            reuses(&driven.timer, &mut driver, &driven.clock),
            "the node is free"
        );
    });
}

#[test]
fn discard_or_expiry_wins() {
    explore(
        bound(5, None),
        [
            mutant("DiscardWithoutCompare"),
            mutant("ReleaseLeftReference"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = closure_in_wheel(&mut driven, 1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let discarded = timeout.cancel_and_drop();
            let (expired, mut driver) = turn.join().unwrap();
            assert_eq!(
                usize::from(discarded) + expired,
                1,
                "exactly one of the two wins"
            );
            outcome.assert(expired, 0);
            assert_eq!(driven.timer.pending_timeouts(), 0);
            assert!(
                reuses(&driven.timer, &mut driver, &driven.clock),
                "the node is free"
            );
        },
    );
}

fn discard_and_stop(timer: &HashedWheelTimer, timeout: Timeout, outcome: &Outcome) {
    let other = timer.clone();
    let stop = thread::spawn(move || other.stop().len());
    let discarded = timeout.cancel_and_drop();
    assert_eq!(
        stop.join().unwrap() + usize::from(discarded),
        1,
        "exactly one of the two wins"
    );
    outcome.assert(0, 0);
}

#[test]
fn discard_or_stop_wins() {
    explore(None, [mutant("DiscardWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = closure_in_wheel(&mut driven, 5);
        discard_and_stop(&driven.timer, timeout, &outcome);
    });
}

/// The discard takes the message back, or `stop` takes it.
#[test]
fn discard_in_lane_or_stop_wins() {
    explore(None, [mutant("TakeBackWithoutCompare")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let (timeout, outcome) = schedule_closure(&timer, 5);
        discard_and_stop(&timer, timeout, &outcome);
    });
}

/// `cancel_all` takes a handle of what it finds in the wheel.
#[test]
fn discard_or_cancel_all_wins() {
    explore(bound(3, None), [mutant("DiscardWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, outcome) = closure_in_wheel(&mut driven, 5);
        let other = driven.timer.clone();
        let cancel_all = thread::spawn(move || other.cancel_all());
        let discarded = timeout.cancel_and_drop();
        driven.driver.turn();
        assert_eq!(
            cancel_all.join().unwrap() + usize::from(discarded),
            1,
            "exactly one of the two wins"
        );
        outcome.assert(0, 0);
        reuses(&driven.timer, &mut driven.driver, &driven.clock);
    });
}

#[test]
fn worker_sees_a_discard_or_is_woken() {
    let mutants = [
        "PushWithoutFence",
        "ChangeWithoutFence",
        "DiscardWithoutWake",
    ]
    .map(mutant);
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (timeout, _) = closure_in_wheel(&mut driven, 5);
        let worker = turn_and_idle(driven.driver);
        assert!(timeout.cancel_and_drop());
        let (asleep, mut driver) = worker.join().unwrap();
        assert!(!(asleep && driver.misses_messages()));
        assert!(
            reuses(&driven.timer, &mut driver, &driven.clock),
            "the node is free"
        );
    });
}

/// The run does not begin, or the thread that runs the task drops it.
#[test]
fn discard_of_a_periodic_task_is_final() {
    explore(
        None,
        [
            mutant("DiscardTakesRunningTask"),
            mutant("DiscardWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (outcome, runs) = (Arc::new(Outcome::default()), Arc::new(AtomicUsize::new(0)));
            let (task, count) = (Task(Arc::clone(&outcome)), Arc::clone(&runs));
            let run = move |_: &PeriodicRun<'_>| {
                let _task = &task;
                count.fetch_add(1, Relaxed);
            };
            let periodic = driven
                .timer
                .schedule_periodic(Schedule::at_fixed_rate(TICK), run)
                .unwrap();
            assert_eq!(driven.driver.turn(), 0);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            assert!(periodic.cancel_and_drop());
            let (_, mut driver) = turn.join().unwrap();
            outcome.assert(0, 0);
            let begun = runs.load(Relaxed);
            driven.clock.advance(TICK * 3);
            assert_eq!((driver.turn(), runs.load(Relaxed)), (0, begun));
            assert_eq!(driven.timer.pending_timeouts(), 0);
        },
    );
}

/// The message has a handle's reference. The last of it, of a clone and of the wheel's reference
/// frees the node.
#[test]
fn handle_that_goes_with_a_message_is_released_once() {
    let mutants = [
        mutant("HandleReleasedWithoutCount"),
        no_acquire("node/refs.rs release_handle"),
    ];
    explore(None, mutants, || {
        let driven = Driven::new();
        let nodes = Nodes::of(&driven.timer);
        let (timeout, wheel_ref) = nodes.fill(nodes.free(), Task(Arc::default()), TICK);
        let (other, clone) = (nodes.clone(), timeout.clone());
        let fill = |nodes: &Nodes, free| nodes.fill(free, Task(Arc::default()), TICK);
        let user = thread::spawn(move || {
            let _ = format!("{clone:?}");
            clone.release().map(|free| fill(&other, free))
        });
        timeout.leave_to_message();
        wheel_ref.release_handle();
        let mine = wheel_ref.release().map(|free| fill(&nodes, free));
        assert_ne!(
            mine.is_some(),
            user.join().unwrap().is_some(),
            "one thread frees the node"
        );
    });
}
