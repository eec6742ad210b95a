//! The orders of the atomic operations: a thread that learns of an operation sees what was written
//! before it. Each order is needed by a model, or is listed with the reason why it stays.

use std::collections::BTreeSet;
use std::path::Path;

use hashed_wheel::Cancel;

use super::explore::sources;
use super::*;

/// A flag that is set without any order. Another thread sees it only if some other operation orders
/// it.
#[derive(Clone, Default)]
struct Flag(Arc<loom::sync::atomic::AtomicUsize>);

impl Flag {
    fn set(&self) {
        self.0.store(1, Relaxed);
    }

    /// Sets the flag on another thread, which then cancels the timeout.
    fn set_before_cancel(&self, timeout: &Timeout) -> thread::JoinHandle<bool> {
        let (flag, timeout) = (self.clone(), timeout.clone());
        thread::spawn(move || {
            flag.set();
            timeout.cancel()
        })
    }

    #[track_caller]
    fn assert_seen(&self) {
        assert_eq!(self.0.load(Relaxed), 1, "the flag was set before");
    }
}

/// A task that reads a flag when it runs, or when its hook is called.
struct ReadingTask {
    flag: Flag,
    saw: Arc<AtomicUsize>,
}

impl ReadingTask {
    /// Returns the task, and the place for the value that it reads.
    fn of(flag: &Flag) -> (Self, Arc<AtomicUsize>) {
        let saw = Arc::new(AtomicUsize::new(usize::MAX));
        (
            Self {
                flag: flag.clone(),
                saw: Arc::clone(&saw),
            },
            saw,
        )
    }

    // No assertion here, because the timer catches panics of a task.
    fn read(self) {
        self.saw.store(self.flag.0.load(Relaxed), Relaxed);
    }
}

impl TimerTask for ReadingTask {
    fn run(self, _: &Timeout) {
        self.read();
    }

    fn cancelled(self, _: &Timeout) {
        self.read();
    }
}

#[test]
fn thread_that_finds_an_alarm_cancelled_sees_writes_before_that() {
    let mutants = [
        no_release("alarm/runs.rs cancel"),
        no_acquire("alarm/runs.rs is_cancelled"),
    ];
    explore(bound(2, None), mutants, || {
        let driven = Driven::new();
        let alarm = driven.timer.new_alarm(|_| ());
        let flag = Flag::default();
        let (set, other) = (flag.clone(), alarm.clone());
        let cancel = thread::spawn(move || {
            set.set();
            other.cancel()
        });
        if alarm.is_cancelled() {
            flag.assert_seen();
        }
        assert!(cancel.join().unwrap());
    });
}

#[test]
fn task_sees_writes_before_reset() {
    explore(
        bound(5, None),
        [
            no_release("node/word.rs reset"),
            no_acquire("node/word.rs expire"),
        ],
        || {
            let (flag, mut driven) = (Flag::default(), Driven::new());
            let (task, saw) = ReadingTask::of(&flag);
            let timeout = driven.timer.new_timeout_task(task, TICK).unwrap();
            driven.driver.turn();
            let reset = thread::spawn(move || {
                flag.set();
                timeout.reset(TICK * 3)
            });
            driven.clock.advance(TICK);
            driven.driver.turn();
            driven.clock.advance(TICK * 3);
            driven.driver.turn();
            if reset.join().unwrap() {
                assert_eq!(saw.load(Relaxed), 1, "the flag was set before");
            }
        },
    );
}

/// Reads a flag when it is asked.
struct AskedTask(ReadingTask);

impl TimerTask for AskedTask {
    const POSTPONES: bool = true;

    fn postpone(&self, _: &Timeout) -> Option<Duration> {
        let ReadingTask { flag, saw } = &self.0;
        saw.store(flag.0.load(Relaxed), Relaxed);
        None
    }

    fn run(self, _: &Timeout) {}
}

#[test]
fn task_that_is_asked_sees_writes_before_reset() {
    let mutants = [
        no_release("node/word.rs reset"),
        no_acquire("node/word.rs begin_run"),
    ];
    explore(bound(5, None), mutants, || {
        sees_writes_before_reset(AskedTask)
    });
}

#[test]
fn task_sees_writes_before_reset_to_the_same_deadline() {
    let mutants = [
        mutant("EqualResetWithoutChange"),
        no_release("node/word.rs reset"),
        no_acquire("node/word.rs expire"),
    ];
    explore(None, mutants, || sees_writes_before_reset(|task| task));
}

/// Another thread sets the flag, and resets the timeout to the same deadline.
fn sees_writes_before_reset<T: TimerTask>(task_of: impl Fn(ReadingTask) -> T) {
    let (flag, mut driven) = (Flag::default(), Driven::new());
    let (task, saw) = ReadingTask::of(&flag);
    let task = task_of(task);
    let timeout = driven.timer.new_timeout_task(task, TICK).unwrap();
    driven.driver.turn();
    let reset = thread::spawn(move || {
        flag.set();
        timeout.reset_at(timeout.deadline())
    });
    driven.clock.advance(TICK);
    assert_eq!(driven.driver.turn(), 1, "the deadline is the same");
    if reset.join().unwrap() {
        assert_eq!(saw.load(Relaxed), 1, "the flag was set before");
    }
}

#[test]
fn hook_sees_writes_before_reset() {
    explore(
        None,
        [
            no_release("node/word.rs reset"),
            no_acquire("node/word.rs cancel"),
        ],
        || {
            let (flag, mut driven) = (Flag::default(), Driven::new());
            let (task, saw) = ReadingTask::of(&flag);
            let timeout = driven.timer.new_timeout_task(task, TICK).unwrap();
            driven.driver.turn();
            let reset = thread::spawn(move || {
                flag.set();
                timeout.reset(TICK * 3)
            });
            assert_eq!(driven.timer.stop().len(), 1);
            if reset.join().unwrap() {
                assert_eq!(saw.load(Relaxed), 1, "the flag was set before");
            }
        },
    );
}

#[test]
fn is_cancelled_sees_writes_before_stop() {
    explore(None, [no_acquire("node/word.rs end")], || {
        let (flag, mut driven) = (Flag::default(), Driven::new());
        let (timeout, _) = driven.schedule_in_wheel(1);
        let (copy, timer) = (flag.clone(), driven.timer.clone());
        let stop = thread::spawn(move || {
            copy.set();
            timer.stop()
        });
        if timeout.is_cancelled() {
            flag.assert_seen();
        }
        assert_eq!(stop.join().unwrap().len(), 1);
    });
}

#[test]
fn is_cancelled_sees_writes_before_cancel() {
    explore(
        None,
        [
            no_release("node/word.rs cancel_seen"),
            no_acquire("node/word.rs end"),
        ],
        || {
            let (flag, mut driven) = (Flag::default(), Driven::new());
            let (timeout, _) = driven.schedule_in_wheel(1);
            let cancel = flag.set_before_cancel(&timeout);
            if timeout.is_cancelled() {
                flag.assert_seen();
            }
            assert!(cancel.join().unwrap());
        },
    );
}

#[test]
fn is_cancelled_sees_writes_before_discard() {
    let mutants = [
        no_release("node/word.rs cancel_unchanged"),
        no_acquire("node/word.rs end"),
    ];
    explore(None, mutants, || {
        let (flag, mut driven) = (Flag::default(), Driven::new());
        let timeout = driven.timer.new_timeout(|_| (), TICK).unwrap();
        driven.driver.turn();
        let (copy, clone) = (flag.clone(), timeout.clone());
        let reader = thread::spawn(move || {
            if clone.is_cancelled() {
                copy.assert_seen();
            }
        });
        flag.set();
        assert!(timeout.cancel_and_drop());
        reader.join().unwrap();
    });
}

#[test]
fn is_expired_sees_writes_before_the_turn() {
    explore(
        None,
        [
            no_release("node/word.rs expire"),
            no_acquire("node/word.rs end"),
        ],
        || {
            let (flag, mut driven) = (Flag::default(), Driven::new());
            let (timeout, _) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            let (copy, mut driver) = (flag.clone(), driven.driver);
            let turn = thread::spawn(move || {
                copy.set();
                driver.turn();
                driver
            });
            if timeout.is_expired() {
                flag.assert_seen();
            }
            turn.join().unwrap();
        },
    );
}

#[test]
fn late_cancel_sees_writes_before_the_end() {
    explore(
        None,
        [
            no_release("node/word.rs cancel_seen"),
            no_acquire("node/word.rs not_ended"),
            no_acquire("node/word.rs cancel_seen"),
        ],
        || {
            let (flag, mut driven) = (Flag::default(), Driven::new());
            let (timeout, _) = driven.schedule_in_wheel(1);
            let cancel = flag.set_before_cancel(&timeout);
            if !timeout.cancel() {
                flag.assert_seen();
            }
            let _either = cancel.join().unwrap();
        },
    );
}

#[test]
fn late_reset_sees_writes_before_the_end() {
    explore(
        None,
        [
            no_release("node/word.rs cancel_seen"),
            no_acquire("node/word.rs reset"),
        ],
        || {
            let (flag, mut driven) = (Flag::default(), Driven::new());
            let (timeout, _) = driven.schedule_in_wheel(1);
            let cancel = flag.set_before_cancel(&timeout);
            if !timeout.reset(TICK * 3) {
                flag.assert_seen();
            }
            assert!(cancel.join().unwrap());
        },
    );
}

#[test]
fn is_stopped_sees_writes_before_stop() {
    explore(
        None,
        [
            no_release("engine/end.rs stop"),
            no_acquire("engine/state.rs snapshot"),
        ],
        || {
            let (flag, driven) = (Flag::default(), Driven::new());
            let (copy, other) = (flag.clone(), driven.timer.clone());
            let stop = thread::spawn(move || {
                copy.set();
                other.stop()
            });
            if driven.timer.is_stopped() {
                flag.assert_seen();
            }
            assert!(stop.join().unwrap().is_empty());
        },
    );
}

/// The last drop of a handle sees what was written before the other drops, as with an `Arc`.
#[test]
fn last_drop_sees_writes_before_other_drops() {
    explore(None, [no_release("engine/state.rs remove")], || {
        let (
            flag,
            Driven {
                timer,
                driver: _driver,
                ..
            },
        ) = (Flag::default(), Driven::new());
        let (task, saw) = ReadingTask::of(&flag);
        let timeout = timer.new_timeout_task(task, TICK).unwrap();
        let other = timer.clone();
        let drops = thread::spawn(move || {
            flag.set();
            drop(other);
        });
        drop(timer);
        drops.join().unwrap();
        assert!(timeout.is_cancelled());
        assert_eq!(saw.load(Relaxed), 1, "the flag was set before");
    });
}

// --- each order is needed ------------------------------------------------------------------------

/// Orders without which no model fails, and the reason for each of them.
const NEEDED_BY_NO_MODEL: &[(&str, &str)] = &[
    (
        "engine/thread_cache.rs remove_stopped acquire",
        "a thread that sees the flag late keeps what it has cached of a stopped timer a little longer",
    ),
    (
        "engine/thread_cache.rs set_stopped release",
        "a thread that sees the flag late keeps what it has cached of a stopped timer a little longer",
    ),
    (
        "node/refs.rs await_run release",
        "loom takes the lock of the waiters' list in the order of execution",
    ),
    (
        "alarm/runs.rs cancel_and_wait release",
        "loom takes the lock of the waiters' list in the order of execution",
    ),
    (
        "node/refs.rs end_run acquire",
        "loom takes the lock of the waiters' list in the order of execution",
    ),
    (
        "engine/state.rs remove acquire",
        "the last drop is a `stop`, whose fence acquires",
    ),
    (
        "engine/counters.rs add release",
        "its thread has executed its fence before it counts the end of a timeout",
    ),
    (
        "engine/counters.rs raise release",
        "a maximum is for statistics alone",
    ),
    (
        "engine/pending.rs withdraw release",
        "its thread has executed its fence after the registration",
    ),
    (
        "engine/state.rs set_started acquire",
        "the caller has the lock of the thread's handle",
    ),
    (
        "clock/counter.rs synchronise acquire",
        "loom does no store before an earlier exchange, and an exchange of the floor reads the newest",
    ),
    (
        "engine/state.rs set_started release",
        "a caller uses of the thread only what was there before",
    ),
    (
        "node/arena.rs available acquire",
        "a thread that knows a page learnt of it from a thread that had the chunk, or from a lane",
    ),
    (
        "node/word.rs withdraw acquire",
        "no other thread has a handle: nothing was done through one",
    ),
    (
        "node/word.rs withdraw release",
        "no other thread has a handle that could learn of this end",
    ),
    (
        "node/word.rs cancel release",
        "`stop` calls it after its fence, which releases",
    ),
    (
        "node/word.rs enter_wheel acquire",
        "`expire` acquires what `reset` released: `enter_wheel` carries it on",
    ),
    (
        "engine/state.rs add_unless_zero acquire",
        "it counts one more handle, as the clone of an `Arc` does",
    ),
    (
        "engine/state.rs add_unless_zero release",
        "it counts one more handle, as the clone of an `Arc` does",
    ),
];

/// Some model fails without each order in the library's source, one side of it at a time; or the
/// list above says why none does.
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
        NEEDED_BY_NO_MODEL
            .iter()
            .any(|(order, _)| *order == format!("{of} {side}"))
    };
    let orders = orders();
    assert!(orders.len() > 20, "the source has more orders: {orders:?}");
    let wrong: Vec<_> = orders
        .iter()
        .filter(|(of, side)| has_mutant(of, side) == is_listed(of, side))
        .collect();
    assert!(
        wrong.is_empty(),
        "each needs a mutant or a reason, and not both: {wrong:#?}"
    );
    for (order, _) in NEEDED_BY_NO_MODEL {
        assert!(
            orders
                .iter()
                .any(|(of, side)| *order == format!("{of} {side}")),
            "there is no {order}"
        );
    }
}

/// Returns each function of the library that acquires or releases something: "engine/state.rs
/// deregister", "release".
fn orders() -> BTreeSet<(String, &'static str)> {
    // The primitives themselves.
    let is_left_out = |file: &str| file.starts_with("sync/");
    let mut orders = BTreeSet::new();
    for (file, source) in sources().into_iter().filter(|(file, _)| !is_left_out(file)) {
        let mut function = "";
        for line in source
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"))
        {
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| !line.contains("//")) {
                function = rest.split(['(', '<']).next().unwrap_or_default();
            }
            // These two acquire and release for their callers.
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
