//! `cancel_all`, `cancel_and_wait`, a rejected task that comes back, an end on a thread of its own.

use super::dispatch::ThreadPerTask;
use super::*;

/// `cancel_all` with two pending timeouts, one of which another thread has.
fn cancel_all_beside(other: fn(Timeout) -> bool) {
    let mut driven = Driven::new();
    let (in_wheel, in_wheel_outcome) = driven.schedule_in_wheel(1);
    let (in_lane, in_lane_outcome) = driven.schedule(1);
    let handle = in_wheel.clone();
    let other = thread::spawn(move || other(handle));
    let all = driven.timer.cancel_all();
    let ended_by_other = other.join().unwrap();

    assert_eq!(
        all + usize::from(ended_by_other),
        2,
        "each timeout ends once"
    );
    assert!(in_wheel.is_cancelled() && in_lane.is_cancelled());
    in_wheel_outcome.assert(0, 1);
    in_lane_outcome.assert(0, 1);
    assert_eq!(driven.timer.pending_timeouts(), 0);
    assert_eq!(driven.driver.turn(), 0);
}

#[test]
fn cancel_or_cancel_all_wins() {
    explore(
        Some(3),
        [
            mutant("CancelAllIgnoresLanes"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            cancel_all_beside(|timeout| timeout.cancel());
        },
    );
}

#[test]
fn reset_does_not_revive_what_cancel_all_has_cancelled() {
    explore(
        Some(3),
        [
            mutant("CancelAllIgnoresLanes"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            cancel_all_beside(|timeout| {
                _ = timeout.reset(Duration::ZERO);
                false
            });
        },
    );
}

#[test]
fn cancel_all_or_expiry_wins() {
    explore(
        Some(3),
        [
            mutant("CancelAllIgnoresLanes"),
            mutant("ChangeWithoutCompare"),
        ],
        || {
            let mut driven = Driven::new();
            let (_, in_wheel) = driven.schedule_in_wheel(1);
            let (_, in_lane) = driven.schedule(2);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let all = driven.timer.cancel_all();
            let (expired, _driver) = turn.join().unwrap();
            assert_eq!(all + expired, 2, "each timeout ends once");
            in_wheel.assert(expired, 1 - expired);
            in_lane.assert(0, 1);
        },
    );
}

#[test]
fn new_timeout_beside_cancel_all_ends_once() {
    explore(Some(3), [mutant("CancelAllIgnoresLanes")], || {
        let mut driven = Driven::new();
        let (_, before) = driven.schedule(1);
        let outcome = Arc::new(Outcome::default());
        let (other, task) = (driven.timer.clone(), Task(Arc::clone(&outcome)));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK).unwrap());
        let all = driven.timer.cancel_all();
        let timeout = schedule.join().unwrap();
        before.assert(0, 1);
        assert_eq!(all, 1 + usize::from(timeout.is_cancelled()));
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 2 - all);
        outcome.assert(2 - all, all - 1);
    });
}

/// A timeout whose task sets a flag, which loom sees.
fn flagging(driven: &Driven) -> (Timeout, Arc<loom::sync::atomic::AtomicUsize>) {
    let flag = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
    let task = Arc::clone(&flag);
    (
        driven
            .timer
            .new_timeout(move |_| task.store(1, Relaxed), TICK)
            .unwrap(),
        flag,
    )
}

#[test]
fn task_on_the_worker_is_over_after_cancel_and_wait() {
    explore(Some(3), [mutant("WaitForNoTurn")], || {
        let mut driven = Driven::new();
        let (timeout, flag) = flagging(&driven);
        assert_eq!(driven.driver.turn(), 0);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let is_cancelled = timeout.cancel_and_wait();
        assert_eq!(
            flag.load(Relaxed),
            usize::from(!is_cancelled),
            "the task is over"
        );
        turn.join().unwrap();
    });
}

#[test]
fn task_on_an_executor_is_over_after_cancel_and_wait() {
    let mutants = [
        mutant("RunEndWithoutWake"),
        mutant("WaitForNoRun"),
        no_release("node/refs.rs end_run"),
        no_acquire("node/refs.rs await_run"),
    ];
    explore(Some(3), mutants, || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (timeout, flag) = flagging(&driven);
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 1);
        assert!(!timeout.cancel_and_wait());
        assert_eq!(flag.load(Relaxed), 1, "the task is over");
        executor.join();
    });
}

#[test]
fn two_threads_wait_for_a_task_on_an_executor() {
    explore(
        Some(2),
        [mutant("RunEndWithoutWake"), mutant("RunEndWakesOneWaiter")],
        || {
            let executor = ThreadPerTask::default();
            let mut driven = executor.driven();
            let (timeout, outcome) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            assert_eq!(driven.driver.turn(), 1);
            let other = timeout.clone();
            let second = thread::spawn(move || other.cancel_and_wait());
            assert!(!timeout.cancel_and_wait());
            outcome.assert(1, 0);
            assert!(!second.join().unwrap());
            executor.join();
        },
    );
}

/// The end of either task wakes both threads.
#[test]
fn two_threads_wait_for_different_tasks_on_an_executor() {
    explore(Some(2), [mutant("AnotherRunEndsTheWait")], || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let [first, second] = [flagging(&driven), flagging(&driven)];
        driven.clock.advance(TICK);
        assert_eq!(driven.driver.turn(), 2);
        let wait = |(timeout, flag): (Timeout, Arc<loom::sync::atomic::AtomicUsize>)| {
            assert!(!timeout.cancel_and_wait());
            assert_eq!(flag.load(Relaxed), 1, "the task is over");
        };
        let other = thread::spawn(move || wait(second));
        wait(first);
        other.join().unwrap();
        executor.join();
    });
}

#[test]
fn rejected_task_comes_back_or_stop_has_it() {
    explore(bound(5, None), [mutant("NewTimeoutNotWithdrawn")], || {
        let Driven { timer, driver, .. } = Driven::new();
        let outcome = Arc::new(Outcome::default());
        let (other, task) = (timer.clone(), Task(Arc::clone(&outcome)));
        let schedule = thread::spawn(move || other.try_new_timeout_task(task, TICK));
        let rest = timer.stop();
        match schedule.join().unwrap() {
            Ok(timeout) => {
                assert_eq!(rest, [timeout], "stop returns an accepted timeout");
                outcome.assert(0, 1);
            }
            Err(rejected) => {
                assert!(rest.is_empty());
                assert_eq!(outcome.drops.load(Relaxed), 0, "the task is the caller's");
                drop(rejected.task);
                outcome.assert(0, 0);
            }
        }
        drop(driver);
    });
}

#[test]
fn thread_that_waits_for_the_end_is_woken() {
    explore(Some(3), [mutant("EndWithoutWake")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let (timeout, outcome) = schedule(&timer, 1);
        let rest = timer.begin_stop().wait_timeout(Duration::MAX).unwrap();
        assert_eq!(rest, [timeout]);
        outcome.assert(0, 1);
    });
}

/// The drop of the last handle leaves the end to its thread, and loses nothing.
#[test]
fn last_drop_leaves_the_end_to_its_thread() {
    explore(Some(3), [mutant("EndWithoutWake")], || {
        let Driven {
            timer,
            driver: _driver,
            ..
        } = Driven::new();
        let (timeout, outcome) = schedule(&timer, 1);
        let rest = match timer.begin_stop().wait_timeout(Duration::ZERO) {
            Ok(rest) => rest,
            Err(ending) => {
                drop(timer);
                ending.wait()
            }
        };
        assert_eq!(rest, [timeout]);
        outcome.assert(0, 1);
    });
}
