//! What the orders of the atomic operations are for: what a thread did before is seen by who learns of it. And that each of
//! them is for something.

use std::collections::BTreeSet;
use std::path::Path;

use super::explore::sources;
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
    explore(None, [no_release("node/word.rs reset"), no_acquire("node/word.rs expire")], || {
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
    explore(None, [no_release("node/word.rs reset"), no_acquire("node/word.rs cancel")], || {
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
    explore(None, [no_release("node/word.rs cancel"), no_acquire("node/word.rs end")], || {
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
    explore(None, [no_release("node/word.rs cancel_seen"), no_acquire("node/word.rs end")], || {
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
    explore(None, [no_release("node/word.rs expire"), no_acquire("node/word.rs end")], || {
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
        [
            no_release("node/word.rs cancel_seen"),
            no_acquire("node/word.rs not_ended"),
            no_acquire("node/word.rs cancel_seen"),
        ],
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
    explore(None, [no_release("node/word.rs cancel_seen"), no_acquire("node/word.rs reset")], || {
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
    explore(None, [no_release("engine/end.rs stop"), no_acquire("engine/state.rs snapshot")], || {
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
    explore(None, [no_release("engine/end.rs drop_handle"), no_acquire("engine/end.rs drop_handle")], || {
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

// --- each order is needed ---------------------------------------------------------------------------------------------

/// Orders without which no model fails, and the reason for each of them.
const NEEDED_BY_NO_MODEL: &[(&str, &str)] = &[
    ("engine/end.rs stop acquire", "a later `stop` sees what the first one did under the worker's lock"),
    ("engine/sleep.rs fall_asleep release", "a thread that sees ASLEEP only unparks the worker"),
    ("engine/sleep.rs wake acquire", "what was pushed comes with an operation before this one"),
    ("engine/sleep.rs wake release", "the parker orders what the woken worker needs"),
    ("engine/state.rs deregister acquire", "the caller learns of ASLEEP, and the parker orders the rest"),
    ("engine/state.rs register acquire", "the caller learns of two bits and a count, and of nothing else"),
    ("engine/state.rs set_started acquire", "the caller has the lock of the thread's handle"),
    ("engine/state.rs set_started release", "a caller uses of the thread only what was there before"),
    ("engine/state.rs transfer acquire", "the caller learns of ASLEEP, as in `deregister`"),
    (
        "node/arena.rs at acquire",
        "a thread that has a node's number learnt it from a thread that had the chunk, or from a lane",
    ),
    ("node/arena.rs chunk acquire", "the pointer to a chunk is unmodelled, as a `OnceLock` would be"),
    ("node/arena.rs chunk release", "the pointer to a chunk is unmodelled, as a `OnceLock` would be"),
    ("node/word.rs begin_run acquire", "what an earlier run on another thread did came through a lane"),
    (
        "node/word.rs enter_wheel acquire",
        "`expire` acquires what `reset` released: `enter_wheel` carries it on",
    ),
    ("timer.rs from_timeout acquire", "it counts one more handle, as the clone of an `Arc` does"),
    ("timer.rs from_timeout release", "it counts one more handle, as the clone of an `Arc` does"),
];

/// Some model fails without each order in the library's source, one side of it at a time; or the list
/// above says why none does.
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
    let is_listed =
        |of: &str, side: &str| NEEDED_BY_NO_MODEL.iter().any(|(order, _)| *order == format!("{of} {side}"));
    let orders = orders();
    assert!(orders.len() > 20, "the source has more orders: {orders:?}");
    let wrong: Vec<_> =
        orders.iter().filter(|(of, side)| has_mutant(of, side) == is_listed(of, side)).collect();
    assert!(wrong.is_empty(), "each needs a mutant or a reason, and not both: {wrong:#?}");
    for (order, _) in NEEDED_BY_NO_MODEL {
        assert!(orders.iter().any(|(of, side)| *order == format!("{of} {side}")), "there is no {order}");
    }
}

/// Returns each function of the library that acquires or releases something:
/// "engine/state.rs deregister", "release".
fn orders() -> BTreeSet<(String, &'static str)> {
    // The primitives themselves, and files with unmodelled atomics alone.
    let is_left_out =
        |file: &str| file.starts_with("sync/") || ["clock.rs", "engine/counters.rs"].contains(&file);
    let mut orders = BTreeSet::new();
    for (file, source) in sources().into_iter().filter(|(file, _)| !is_left_out(file)) {
        let mut function = "";
        for line in source.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| !line.contains("//")) {
                function = rest.split(['(', '<']).next().unwrap_or_default();
            }
            // What these two acquire and release, they do for their callers.
            let is_for_callers = ["change", "change_seen"].contains(&function);
            let acquires = ["Ordering::Acquire", "Ordering::AcqRel", "self.change("];
            let releases = ["Ordering::Release", "Ordering::AcqRel"];
            for (side, signs) in [("acquire", &acquires[..]), ("release", &releases[..])] {
                if !is_for_callers && signs.iter().any(|sign| line.contains(sign)) {
                    orders.insert((format!("{file} {function}"), side));
                }
            }
        }
    }
    orders
}
