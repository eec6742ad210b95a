//! What the orders of the atomic operations are for: what a thread did before is seen by who learns of it. And that each of
//! them is for something.

use std::collections::BTreeSet;
use std::path::Path;

use super::explore::source;
use super::*;

/// What a thread has done, to be seen by others only if some order says so.
#[derive(Clone, Default)]
struct Deed(Arc<loom::sync::atomic::AtomicUsize>);

impl Deed {
    fn done(&self) {
        self.0.store(1, Relaxed);
    }

    /// On a thread of its own, which then cancels.
    fn done_before_a_cancel(&self, timeout: &Timeout) -> thread::JoinHandle<bool> {
        let (deed, timeout) = (self.clone(), timeout.clone());
        thread::spawn(move || {
            deed.done();
            timeout.cancel()
        })
    }

    #[track_caller]
    fn assert_seen(&self) {
        assert_eq!(self.0.load(Relaxed), 1, "it was done before");
    }
}

/// Does its deed when it runs; sees what was done before when its hook is called, or it is run.
struct Witness {
    before: Deed,
    saw: Arc<AtomicUsize>,
}

impl Witness {
    /// And what it saw.
    fn of(before: &Deed) -> (Self, Arc<AtomicUsize>) {
        let saw = Arc::new(AtomicUsize::new(usize::MAX));
        (Self { before: before.clone(), saw: Arc::clone(&saw) }, saw)
    }

    // Asserts nothing, for the timer catches its panics.
    fn look(self) {
        self.saw.store(self.before.0.load(Relaxed), Relaxed);
    }
}

impl TimerTask for Witness {
    fn run(self, _: &Timeout) {
        self.look();
    }

    fn cancelled(self, _: &Timeout) {
        self.look();
    }
}

#[test]
fn a_task_sees_what_was_done_before_it_was_re_armed() {
    explore(None, [no_release("node.rs reset"), no_acquire("node.rs expire")], || {
        let (deed, mut driven) = (Deed::default(), Driven::new());
        let (task, saw) = Witness::of(&deed);
        let timeout = driven.timer.new_timeout_task(task, TICK).unwrap();
        driven.driver.turn();
        let reset = thread::spawn(move || {
            deed.done();
            timeout.reset(TICK * 3)
        });
        driven.clock.advance(TICK);
        driven.driver.turn();
        driven.clock.advance(TICK * 3);
        driven.driver.turn();
        if reset.join().unwrap() {
            assert_eq!(saw.load(Relaxed), 1, "it was done before");
        }
    });
}

/// A hook too.
#[test]
fn a_hook_sees_what_was_done_before_it_was_re_armed() {
    explore(None, [no_release("node.rs reset"), no_acquire("node.rs cancel")], || {
        let (deed, mut driven) = (Deed::default(), Driven::new());
        let (task, saw) = Witness::of(&deed);
        let timeout = driven.timer.new_timeout_task(task, TICK).unwrap();
        driven.driver.turn();
        let reset = thread::spawn(move || {
            deed.done();
            timeout.reset(TICK * 3)
        });
        assert_eq!(driven.timer.stop().len(), 1);
        if reset.join().unwrap() {
            assert_eq!(saw.load(Relaxed), 1, "it was done before");
        }
    });
}

#[test]
fn who_sees_it_cancelled_by_stop_sees_what_was_done_before() {
    explore(None, [no_release("node.rs cancel"), no_acquire("node.rs ended")], || {
        let (deed, mut driven) = (Deed::default(), Driven::new());
        let (timeout, _) = driven.schedule_placed(1);
        let (before, timer) = (deed.clone(), driven.timer.clone());
        let stop = thread::spawn(move || {
            before.done();
            timer.stop()
        });
        if timeout.is_cancelled() {
            deed.assert_seen();
        }
        assert_eq!(stop.join().unwrap().len(), 1);
    });
}

#[test]
fn who_sees_it_cancelled_sees_what_was_done_before() {
    explore(None, [no_release("node.rs cancel_with"), no_acquire("node.rs ended")], || {
        let (deed, mut driven) = (Deed::default(), Driven::new());
        let (timeout, _) = driven.schedule_placed(1);
        let cancel = deed.done_before_a_cancel(&timeout);
        if timeout.is_cancelled() {
            deed.assert_seen();
        }
        assert!(cancel.join().unwrap());
    });
}

#[test]
fn who_sees_it_expired_sees_what_was_done_before() {
    explore(None, [no_release("node.rs expire"), no_acquire("node.rs ended")], || {
        let (deed, mut driven) = (Deed::default(), Driven::new());
        let (timeout, _) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let (before, mut driver) = (deed.clone(), driven.driver);
        let turn = thread::spawn(move || {
            before.done();
            driver.turn();
            driver
        });
        if timeout.is_expired() {
            deed.assert_seen();
        }
        turn.join().unwrap();
    });
}

#[test]
fn who_cancels_too_late_sees_what_was_done_before() {
    explore(
        None,
        [no_release("node.rs cancel_with"), no_acquire("node.rs live"), no_acquire("node.rs cancel_with")],
        || {
            let (deed, mut driven) = (Deed::default(), Driven::new());
            let (timeout, _) = driven.schedule_placed(1);
            let cancel = deed.done_before_a_cancel(&timeout);
            if !timeout.cancel() {
                deed.assert_seen();
            }
            let _either = cancel.join().unwrap();
        },
    );
}

#[test]
fn who_resets_too_late_sees_what_was_done_before() {
    explore(None, [no_release("node.rs cancel_with"), no_acquire("node.rs reset")], || {
        let (deed, mut driven) = (Deed::default(), Driven::new());
        let (timeout, _) = driven.schedule_placed(1);
        let cancel = deed.done_before_a_cancel(&timeout);
        if !timeout.reset(TICK * 3) {
            deed.assert_seen();
        }
        assert!(cancel.join().unwrap());
    });
}

#[test]
fn who_sees_it_stopped_sees_what_was_done_before() {
    explore(None, [no_release("life.rs stop"), no_acquire("life.rs word")], || {
        let (deed, driven) = (Deed::default(), Driven::new());
        let (before, other) = (deed.clone(), driven.timer.clone());
        let stop = thread::spawn(move || {
            before.done();
            other.stop()
        });
        if driven.timer.is_stopped() {
            deed.assert_seen();
        }
        assert!(stop.join().unwrap().is_empty());
    });
}

/// As with an `Arc`: the last owner sees what the others did.
#[test]
fn the_last_drop_sees_what_was_done_before_the_others() {
    explore(None, [no_release("core.rs drop_handle"), no_acquire("core.rs drop_handle")], || {
        let (deed, Driven { timer, driver: _driver, .. }) = (Deed::default(), Driven::new());
        let (task, saw) = Witness::of(&deed);
        let timeout = timer.new_timeout_task(task, TICK).unwrap();
        let other = timer.clone();
        let drops = thread::spawn(move || {
            deed.done();
            drop(other);
        });
        drop(timer);
        drops.join().unwrap();
        assert!(timeout.is_cancelled());
        assert_eq!(saw.load(Relaxed), 1, "it was done before");
    });
}

// --- each order is for something --------------------------------------------------------------------------------------

/// Orders without which no model fails, and why they stand there.
const FOR_NOTHING_THAT_A_MODEL_SHOWS: &[(&str, &str)] = &[
    ("life.rs admit acquire", "it learns of two bits and a count, nothing that lies behind them"),
    ("life.rs leave acquire", "it learns of ASLEEP, and the parker does its own ordering"),
    ("life.rs readmit acquire", "it learns of ASLEEP, as `leave` does"),
    ("life.rs set_started acquire", "under the lock of the thread's handle"),
    ("life.rs set_started release", "what a caller needs of the thread was there before it"),
    ("life.rs sleep release", "who sees ASLEEP unparks, and needs nothing that the worker did"),
    ("life.rs stop acquire", "a second stop sees what the first did under the worker's lock"),
    ("life.rs wake acquire", "what was pushed comes with `admit`, `leave` or `look`, before"),
    ("life.rs wake release", "the same; and the parker does its own ordering"),
    (
        "node/arena.rs at acquire",
        "the same: who has a node's number learnt it from who had the chunk, or from a lane",
    ),
    (
        "node/arena.rs chunk acquire",
        "a chunk, by its address: std's own affair, as with a `OnceLock`, and loom does not see it",
    ),
    ("node/arena.rs chunk release", "the same"),
    (
        "node/arena.rs give_back acquire",
        "a count of references, as an `Arc`'s: loom does not see it, Miri and ThreadSanitizer do",
    ),
    ("node/arena.rs give_back release", "the same"),
    ("node.rs begin_run acquire", "what the run before did, if on another thread, came by way of a lane"),
    ("node.rs place acquire", "`expire` acquires what `reset` released, for `place` carries it on"),
    ("timer.rs from_timeout acquire", "a handle more, as a clone of an `Arc`: a count"),
    ("timer.rs from_timeout release", "the same"),
];

/// Every order in the library's source, one side of it at a time, is taken away by a mutant of some model, or in the list above.
#[test]
fn each_order_has_a_mutant() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let models: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    let has_mutant = |of: &str, side: &str| {
        let mutant = format!("no_{side}(\"{of}\")");
        models.iter().any(|source| source.contains(&mutant))
    };
    let is_listed = |of: &str, side: &str| {
        FOR_NOTHING_THAT_A_MODEL_SHOWS.iter().any(|(order, _)| *order == format!("{of} {side}"))
    };
    let orders = orders();
    assert!(orders.len() > 20, "they are found: {orders:?}");
    let neither: Vec<_> =
        orders.iter().filter(|(of, side)| has_mutant(of, side) == is_listed(of, side)).collect();
    assert!(neither.is_empty(), "neither a mutant nor a reason, or both: {neither:#?}");
    for (order, _) in FOR_NOTHING_THAT_A_MODEL_SHOWS {
        assert!(orders.iter().any(|(of, side)| *order == format!("{of} {side}")), "there is no {order}");
    }
}

/// Each function of the library that acquires or releases something: "life.rs leave", "release".
fn orders() -> BTreeSet<(String, &'static str)> {
    let mut orders = BTreeSet::new();
    for file in [
        "core.rs",
        "driver.rs",
        "keyed.rs",
        "lanes.rs",
        "life.rs",
        "local.rs",
        "node.rs",
        "node/arena.rs",
        "node/placed.rs",
        "node/task.rs",
        "periodic/mod.rs",
        "shutdown.rs",
        "task.rs",
        "thread.rs",
        "timeout.rs",
        "timer.rs",
        "worker.rs",
    ] {
        let source = source(file);
        let mut function = "";
        for line in source.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| !line.contains("//")) {
                function = rest.split(['(', '<']).next().unwrap_or_default();
            }
            // What `change` and the like acquire and release, they do for their callers.
            let acquires = ["Ordering::Acquire", "Ordering::AcqRel", "self.change(", "self.cancel_from("];
            let releases = ["Ordering::Release", "Ordering::AcqRel", "self.cancel_from("];
            let is_for_others = ["change", "change_from", "cancel_from"].contains(&function);
            for (side, signs) in [("acquire", &acquires[..]), ("release", &releases[..])] {
                if !is_for_others && signs.iter().any(|sign| line.contains(sign)) {
                    orders.insert((format!("{file} {function}"), side));
                }
            }
        }
    }
    orders
}
