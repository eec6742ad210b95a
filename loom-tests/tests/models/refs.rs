//! References to nodes: the thread that releases the last one may fill the node again.

use super::*;

/// Does nothing.
struct EmptyTask;

impl TimerTask for EmptyTask {
    fn run(self, _: &Timeout) {}
}

/// Returns a timer whose nodes the model fills.
fn nodes() -> (Nodes, Driven) {
    let driven = Driven::new();
    (Nodes::of(&driven.timer), driven)
}

/// Reads what every owner of a reference may read.
fn read_all(timeout: &Timeout) {
    // The deadline, the state, and the name of the task.
    let _ = format!("{timeout:?}");
}

/// Fills a node, if it is free. loom reports if another thread may still read it.
fn reuse(nodes: &Nodes, free: Option<FreeNode>) -> Option<Timeout> {
    let (again, _wheel_ref) = nodes.fill(free?, EmptyTask, TICK);
    assert!(!again.is_cancelled() && !again.is_expired());
    assert_eq!(again.references(), 2);
    Some(again)
}

#[test]
fn last_of_handle_and_wheel_ref_frees_the_node() {
    explore(
        None,
        [
            mutant("ReleaseWithoutCompare"),
            no_release("node/refs.rs release"),
            no_acquire("node/refs.rs release"),
        ],
        || {
            let (nodes, _driven) = nodes();
            let (timeout, wheel_ref) = nodes.fill(nodes.free(), EmptyTask, TICK);
            let other = nodes.clone();
            let user = thread::spawn(move || {
                read_all(&timeout);
                reuse(&other, timeout.release())
            });
            // The worker reads the name too, to report a panic.
            let _ = wheel_ref.name();
            let mine = reuse(&nodes, wheel_ref.release());
            assert_ne!(
                mine.is_some(),
                user.join().unwrap().is_some(),
                "one thread frees the node"
            );
        },
    );
}

#[test]
fn last_of_handle_clone_and_wheel_ref_frees_the_node() {
    explore(
        None,
        [
            mutant("ReleaseWithoutCompare"),
            no_release("node/refs.rs release"),
            no_acquire("node/refs.rs release"),
        ],
        || {
            let (nodes, _driven) = nodes();
            let (timeout, wheel_ref) = nodes.fill(nodes.free(), EmptyTask, TICK);
            let (other, third) = (nodes.clone(), nodes.clone());
            let user = thread::spawn(move || {
                let clone = timeout.clone();
                let second = thread::spawn(move || {
                    read_all(&clone);
                    reuse(&third, clone.release())
                });
                (reuse(&other, timeout.release()), second)
            });
            let worker = reuse(&nodes, wheel_ref.release());
            let (first, second) = user.join().unwrap();
            let have = [worker, first, second.join().unwrap()];
            assert_eq!(
                have.iter().flatten().count(),
                1,
                "one thread frees the node"
            );
        },
    );
}

/// One thread counts down to one. Another thread then frees the node, fills it again, and takes the
/// new message back. The first thread must not read `merged` of the new timeout.
#[test]
fn release_does_not_read_a_recycled_node() {
    explore(None, [mutant("MergedReadAfterRelease")], || {
        let (nodes, _driven) = nodes();
        let (timeout, wheel_ref) = nodes.fill(nodes.free(), EmptyTask, TICK);
        let user = thread::spawn(move || timeout.release().is_some());
        let worker = wheel_ref.release();
        let is_freed_here = worker.is_some();
        if let Some(free) = worker {
            let (again, wheel_ref) = nodes.fill(free, EmptyTask, TICK);
            again.merge(wheel_ref);
            assert!(again.release().is_some(), "it is the only reference");
        }
        assert_ne!(
            user.join().unwrap(),
            is_freed_here,
            "one thread frees the node"
        );
    });
}

/// The message is taken back through one of two handles. The last handle frees the node, whichever
/// it is.
#[test]
fn last_of_two_handles_frees_a_merged_node() {
    let mutants = [
        mutant("ReleaseWithoutCompare"),
        no_acquire("node/refs.rs release"),
    ];
    explore(None, mutants, || {
        let (nodes, _driven) = nodes();
        let (timeout, wheel_ref) = nodes.fill(nodes.free(), EmptyTask, TICK);
        let (other, clone) = (nodes.clone(), timeout.clone());
        let user = thread::spawn(move || {
            read_all(&clone);
            reuse(&other, clone.release())
        });
        timeout.merge(wheel_ref);
        let mine = reuse(&nodes, timeout.release());
        assert_ne!(
            mine.is_some(),
            user.join().unwrap().is_some(),
            "one thread frees the node"
        );
    });
}

/// The worker finds that it has the last reference. It sees what was done through the handle
/// before.
#[test]
fn reset_survives_drop_of_its_handle() {
    let mutants = [
        no_acquire("node/refs.rs is_last_reference"),
        no_release("node/refs.rs release"),
    ];
    explore(None, mutants, || {
        let (nodes, _driven) = nodes();
        let (timeout, wheel_ref) = nodes.fill(nodes.free(), EmptyTask, TICK);
        let before = wheel_ref.deadline();
        let user = thread::spawn(move || {
            assert!(timeout.reset(TICK * 3));
            timeout.release().is_some()
        });
        let entered_at = wheel_ref.enter_wheel().expect("the timeout has not ended");
        assert!(
            !user.join().unwrap(),
            "the wheel's reference is the last one"
        );
        assert!(entered_at == before || entered_at == before * 3);
        assert_eq!(
            wheel_ref.deadline(),
            before * 3,
            "the worker sees the reset"
        );
    });
}

/// The same while the worker expires the timeout.
#[test]
fn reset_and_drop_of_its_handle_move_the_deadline() {
    explore(
        None,
        [
            no_acquire("node/refs.rs is_last_reference"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let reset = timeout.reset(TICK * 3);
            drop(timeout);
            let (expired, mut driver) = turn.join().unwrap();
            assert_eq!(
                usize::from(reset) + expired,
                1,
                "either the reset was in time or the expiry"
            );
            driven.clock.advance(TICK * 3);
            assert_eq!(driver.turn(), usize::from(reset), "at the new deadline");
            outcome.assert(1, 0);
            assert_eq!(driver.next_turn(), None);
        },
    );
}

/// The user cancels a timeout and drops its handle while the worker takes it out of the wheel. The
/// node is recycled once, and then holds the next timeout.
#[test]
fn cancelled_or_expired_node_is_recycled_once() {
    explore(
        bound(5, None),
        [
            mutant("ReleaseLeftReference"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (timeout, outcome) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let cancelled = timeout.cancel();
            drop(timeout);
            let (next, next_outcome) = schedule(&driven.timer, 1);
            let (expired, mut driver) = turn.join().unwrap();
            assert_eq!(
                usize::from(cancelled) + expired,
                1,
                "exactly one of the two wins"
            );
            outcome.assert(expired, usize::from(cancelled));
            assert_eq!(driven.timer.pending_timeouts(), 1);
            let clone = next.clone();
            driver.turn();
            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), 1);
            next_outcome.assert(1, 0);
            assert!(clone.is_expired());
            assert_eq!(
                next.references(),
                2,
                "the wheel's reference is released once"
            );
            assert_eq!(driver.next_turn(), None, "the wheel is empty");
        },
    );
}

/// A message is taken back while the worker drains the lane. The node is recycled once.
#[test]
fn taken_back_node_is_recycled_once() {
    explore(None, [mutant("TakeBackWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, outcome) = driven.schedule(1);
        let turn = Driven::turn(driven.driver);
        assert!(timeout.cancel());
        drop(timeout);
        let (next, next_outcome) = schedule(&driven.timer, 2);
        let (_, mut driver) = turn.join().unwrap();
        outcome.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 1);
        driver.turn();
        let wheel = driven.timer.occupancy().unwrap();
        let nodes: usize = wheel.levels.iter().flat_map(|level| &level.slots).sum();
        assert_eq!(nodes, 1, "the wheel has the next timeout, once");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 0, "a cancelled timeout does not expire");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        next_outcome.assert(1, 0);
        assert!(next.is_expired() && next.is_only_handle());
        assert_eq!(driver.next_turn(), None, "the wheel is empty");
        assert!(driver.could_sleep());
    });
}
