//! A task that repeats: its runs, here or with an executor, against whatever ends it.

use super::handoff::Pool;
use super::*;
use hashed_wheel::Periodic;

/// What became of a chain.
#[derive(Default)]
struct Chain {
    runs: AtomicUsize,
    drops: AtomicUsize,
}

/// Goes with the task.
struct Held(Arc<Chain>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

/// Each tick, from the next one on; in the wheel.
fn schedule_placed(driven: &mut Driven, panics: bool) -> (Periodic, Arc<Chain>) {
    let chain = Arc::new(Chain::default());
    let held = Held(Arc::clone(&chain));
    let task = move || {
        held.0.runs.fetch_add(1, Relaxed);
        if panics {
            // As a panic does, but says nothing: there is one in each execution.
            std::panic::resume_unwind(Box::new(()));
        }
    };
    let periodic = driven.timer.schedule_at_fixed_rate(task, TICK, TICK).unwrap();
    assert_eq!(driven.driver.turn(), 0);
    driven.clock.advance(TICK);
    (periodic, chain)
}

impl Chain {
    fn runs(&self) -> usize {
        self.runs.load(Relaxed)
    }

    #[track_caller]
    fn assert_over(&self, timer: &HashedWheelTimer) {
        assert_eq!(timer.pending_timeouts(), 0);
        assert_eq!(self.drops.load(Relaxed), 1, "dropped once");
    }

    /// And nothing runs any more.
    #[track_caller]
    fn assert_over_for_good(&self, mut driver: Driver, clock: &ManualClock, timer: &HashedWheelTimer) {
        self.assert_over(timer);
        let runs = self.runs();
        clock.advance(TICK * 3);
        assert_eq!(driver.turn(), 0);
        assert_eq!(self.runs(), runs);
        assert_eq!(driver.next_turn(), None, "nothing is left in the wheel");
    }
}

#[test]
fn a_cancel_during_a_run_is_for_good() {
    let mutants =
        [mutant("CancelTakesWhatRuns"), mutant("RearmBringsBack"), no_release("node/word.rs finish_run")];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (periodic, chain) = schedule_placed(&mut driven, false);
        let turn = Driven::turn(driven.driver);
        assert!(periodic.cancel());
        let (runs, driver) = turn.join().unwrap();
        assert_eq!(chain.runs(), runs);
        chain.assert_over_for_good(driver, &driven.clock, &driven.timer);
    });
}

#[test]
fn a_cancel_during_a_run_elsewhere_is_for_good() {
    let mutants =
        [mutant("CancelTakesWhatRuns"), mutant("RearmBringsBack"), no_release("node/word.rs finish_run")];
    explore(None, mutants, || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (periodic, chain) = schedule_placed(&mut driven, false);
        assert_eq!(driven.driver.turn(), 1);
        assert!(periodic.cancel());
        pool.join();
        assert!(chain.runs() <= 1, "not if it had not begun");
        chain.assert_over_for_good(driven.driver, &driven.clock, &driven.timer);
    });
}

/// The worker hears of the end of a run elsewhere, before its next turn, in the middle of it, or after.
#[test]
fn a_run_elsewhere_is_followed_by_the_next() {
    explore(Some(3), [mutant("ResetWithoutPush"), no_release("node/lane.rs push")], || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (periodic, chain) = schedule_placed(&mut driven, false);
        assert_eq!(driven.driver.turn(), 1);
        driven.clock.advance(TICK);
        let turned = driven.driver.turn();
        pool.clone().join();
        driven.clock.advance(TICK * 2);
        let turned_again = driven.driver.turn();
        pool.join();
        // (The first may have been behind, and made up for the second.)
        assert!(turned + turned_again >= 1);
        assert_eq!(chain.runs(), 4);
        assert!(periodic.cancel());
        driven.driver.turn();
        chain.assert_over(&driven.timer);
    });
}

#[test]
fn stop_ends_what_runs_elsewhere() {
    explore(Some(3), [mutant("CancelTakesWhatRuns")], || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (periodic, chain) = schedule_placed(&mut driven, false);
        assert_eq!(driven.driver.turn(), 1);
        assert_eq!(driven.timer.stop().len(), 1, "run or not, it is pending");
        assert!(periodic.is_cancelled());
        assert_eq!(driven.timer.pending_timeouts(), 0);
        pool.join();
        assert!(chain.runs() <= 1, "not if it had not begun");
        chain.assert_over(&driven.timer);
    });
}

#[test]
fn of_stop_and_a_turn_one_leaves_it_to_the_other() {
    explore(Some(3), [mutant("StopWithoutDue")], || {
        let mut driven = Driven::new();
        let (periodic, chain) = schedule_placed(&mut driven, false);
        let turn = Driven::turn(driven.driver);
        assert_eq!(driven.timer.stop().len(), 1);
        assert!(periodic.is_cancelled());
        let (runs, _driver) = turn.join().unwrap();
        assert_eq!(chain.runs(), runs);
        chain.assert_over(&driven.timer);
    });
}

#[test]
fn of_a_cancel_and_a_panic_one_ends_it() {
    explore(None, [mutant("RearmBringsBack")], || {
        let mut driven = Driven::new();
        let (periodic, chain) = schedule_placed(&mut driven, true);
        let turn = Driven::turn(driven.driver);
        let cancelled = periodic.cancel();
        let (runs, driver) = turn.join().unwrap();
        assert_eq!(periodic.is_cancelled(), cancelled);
        assert!(cancelled || periodic.has_panicked());
        assert_eq!(chain.runs(), runs);
        chain.assert_over_for_good(driver, &driven.clock, &driven.timer);
    });
}

#[test]
fn of_a_cancel_and_a_panic_elsewhere_one_ends_it() {
    explore(None, [mutant("RearmBringsBack"), mutant("CancelTakesWhatRuns")], || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (periodic, chain) = schedule_placed(&mut driven, true);
        assert_eq!(driven.driver.turn(), 1);
        let cancelled = periodic.cancel();
        pool.join();
        assert_eq!(periodic.is_cancelled(), cancelled);
        assert!(cancelled || periodic.has_panicked());
        assert_eq!(chain.runs(), usize::from(periodic.has_panicked()));
        chain.assert_over_for_good(driven.driver, &driven.clock, &driven.timer);
    });
}

/// The task, dropped at the end of its run, sees what was done before it was cancelled.
#[test]
fn a_task_that_is_dropped_sees_what_was_done_before_the_cancel() {
    struct Looks {
        done: Arc<loom::sync::atomic::AtomicUsize>,
        saw: Arc<AtomicUsize>,
    }
    impl Drop for Looks {
        fn drop(&mut self) {
            self.saw.store(self.done.load(Relaxed), Relaxed);
        }
    }
    explore(None, [no_acquire("node/word.rs finish_run"), no_release("node/word.rs cancel_seen")], || {
        let mut driven = Driven::new();
        let (done, saw) = (Arc::default(), Arc::new(AtomicUsize::new(usize::MAX)));
        let looks = Looks { done: Arc::clone(&done), saw: Arc::clone(&saw) };
        let task = move || {
            let _held = &looks;
        };
        let periodic = driven.timer.schedule_at_fixed_rate(task, TICK, TICK).unwrap();
        driven.driver.turn();
        driven.clock.advance(TICK);
        let cancel = thread::spawn(move || {
            done.store(1, Relaxed);
            assert!(periodic.cancel());
        });
        driven.driver.turn();
        cancel.join().unwrap();
        assert_eq!(saw.load(Relaxed), 1, "it was done before");
    });
}
