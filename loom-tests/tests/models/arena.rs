//! Nodes that are used again: whoever gives up the last reference has the node, alone.

use super::*;

/// Does nothing.
struct Idle;

impl TimerTask for Idle {
    fn run(self, _: &Timeout) {}
}

/// A timer whose nodes are the model's to fill.
fn nodes() -> (Nodes, Driven) {
    let driven = Driven::new();
    (Nodes::of(&driven.timer), driven)
}

/// What every owner of a reference may do.
fn look_at(timeout: &Timeout) {
    // Its deadline, its state, the name of its task.
    let _ = format!("{timeout:?}");
}

/// What whoever has it alone may do: fill it. (loom sees that, and complains if somebody could still look.)
fn use_again(nodes: &Nodes, vacant: Option<FreeNode>) -> Option<Timeout> {
    let (again, _entry) = nodes.fill(vacant?, Idle, TICK);
    assert!(!again.is_cancelled() && !again.is_expired());
    assert_eq!(again.references(), 2);
    Some(again)
}

#[test]
fn of_a_handle_and_the_entry_the_last_to_go_has_the_node() {
    explore(
        None,
        [
            mutant("ReleaseWithoutCompare"),
            no_release("node/refs.rs release"),
            no_acquire("node/refs.rs release"),
        ],
        || {
            let (nodes, _driven) = nodes();
            let (timeout, entry) = nodes.fill(nodes.free(), Idle, TICK);
            let other = nodes.clone();
            let user = thread::spawn(move || {
                look_at(&timeout);
                use_again(&other, timeout.release())
            });
            // The worker looks at that too, to report a panic.
            let _ = entry.name();
            let mine = use_again(&nodes, entry.release());
            assert_ne!(mine.is_some(), user.join().unwrap().is_some(), "one has it");
        },
    );
}

#[test]
fn of_a_handle_its_clone_and_the_entry_the_last_to_go_has_the_node() {
    explore(
        None,
        [
            mutant("ReleaseWithoutCompare"),
            no_release("node/refs.rs release"),
            no_acquire("node/refs.rs release"),
        ],
        || {
            let (nodes, _driven) = nodes();
            let (timeout, entry) = nodes.fill(nodes.free(), Idle, TICK);
            let (other, third) = (nodes.clone(), nodes.clone());
            let user = thread::spawn(move || {
                let clone = timeout.clone();
                let second = thread::spawn(move || {
                    look_at(&clone);
                    use_again(&third, clone.release())
                });
                (use_again(&other, timeout.release()), second)
            });
            let worker = use_again(&nodes, entry.release());
            let (first, second) = user.join().unwrap();
            let have = [worker, first, second.join().unwrap()];
            assert_eq!(have.iter().flatten().count(), 1, "one has it");
        },
    );
}

/// Who is second to last does not look at a node that is used again, and taken back, meanwhile.
#[test]
fn a_node_that_is_merged_is_its_last_handles() {
    explore(None, [mutant("LookAfterRelease")], || {
        let (nodes, _driven) = nodes();
        let (timeout, entry) = nodes.fill(nodes.free(), Idle, TICK);
        let user = thread::spawn(move || timeout.release().is_some());
        let worker = entry.release();
        let is_workers = worker.is_some();
        if let Some(vacant) = worker {
            let (again, entry) = nodes.fill(vacant, Idle, TICK);
            again.merge(entry);
            assert!(again.release().is_some(), "nobody else has one");
        }
        assert_ne!(user.join().unwrap(), is_workers, "one has it");
    });
}

/// Of two handles of what was taken back, the last one has the node, whichever has taken it back.
#[test]
fn of_two_handles_of_a_merged_node_the_last_has_it() {
    let mutants = [mutant("ReleaseWithoutCompare"), no_acquire("node/refs.rs release")];
    explore(None, mutants, || {
        let (nodes, _driven) = nodes();
        let (timeout, entry) = nodes.fill(nodes.free(), Idle, TICK);
        let (other, clone) = (nodes.clone(), timeout.clone());
        let user = thread::spawn(move || {
            look_at(&clone);
            use_again(&other, clone.release())
        });
        timeout.merge(entry);
        let mine = use_again(&nodes, timeout.release());
        assert_ne!(mine.is_some(), user.join().unwrap().is_some(), "one has it");
    });
}

/// The worker finds that it has the last reference: it knows what the handle did that was there before.
#[test]
fn a_reset_is_not_undone_when_its_handle_goes() {
    let mutants = [no_acquire("node/refs.rs is_alone"), no_release("node/refs.rs release")];
    explore(None, mutants, || {
        let (nodes, _driven) = nodes();
        let (timeout, entry) = nodes.fill(nodes.free(), Idle, TICK);
        let before = entry.deadline();
        let user = thread::spawn(move || {
            assert!(timeout.reset(TICK * 3));
            timeout.release().is_some()
        });
        let placed = entry.enter_wheel().expect("it has not ended");
        assert!(!user.join().unwrap(), "the entry is there");
        assert!(placed == before || placed == before * 3);
        assert_eq!(entry.deadline(), before * 3, "the reset was in time");
    });
}

/// The same when it expires.
#[test]
fn a_reset_whose_handle_goes_moves_the_deadline() {
    explore(None, [no_acquire("node/refs.rs is_alone"), mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let reset = timeout.reset(TICK * 3);
        drop(timeout);
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(usize::from(reset) + expired, 1, "re-armed, or expired before");
        driven.clock.advance(TICK * 3);
        assert_eq!(driver.turn(), usize::from(reset), "at the new deadline");
        ends.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
    });
}

/// Of the user, who cancels and lets go, and the worker, who takes it out of the wheel, one has the node for the next
/// timeout.
#[test]
fn a_node_is_used_again_when_both_have_done_with_it() {
    explore(None, [mutant("GoneWithItsEntry"), mutant("ChangeWithoutCompare")], || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let cancelled = timeout.cancel();
        drop(timeout);
        let (next, next_ends) = schedule(&driven.timer, 1);
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(usize::from(cancelled) + expired, 1, "exactly one wins");
        ends.assert(expired, usize::from(cancelled));
        assert_eq!(driven.timer.pending_timeouts(), 1);
        let clone = next.clone();
        driver.turn();
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        next_ends.assert(1, 0);
        assert!(clone.is_expired());
        assert_eq!(next.references(), 2, "its entry was given back, once");
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
    });
}

/// And of one that is taken back, while the worker looks into the lane.
#[test]
fn a_node_that_was_taken_back_is_used_again() {
    explore(None, [mutant("TakeBackWithoutCompare")], || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(1);
        let turn = Driven::turn(driven.driver);
        assert!(timeout.cancel());
        drop(timeout);
        let (next, next_ends) = schedule(&driven.timer, 2);
        let (_, mut driver) = turn.join().unwrap();
        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 1);
        driver.turn();
        let wheel = driven.timer.occupancy().unwrap();
        assert_eq!(wheel.levels.iter().flat_map(|level| &level.slots).sum::<usize>(), 1, "the next one");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 0, "cancelled for good");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1);
        next_ends.assert(1, 0);
        assert!(next.is_expired() && next.is_the_only_handle());
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
        assert!(driver.could_sleep());
    });
}
