//! Periodic tasks: their runs, on the worker or on an executor's thread, and their end.

use super::dispatch::ThreadPerTask;
use super::*;
use hashed_wheel::{ExpiredTask, Periodic, PeriodicRun, Schedule};
use std::ops::ControlFlow;

/// Counts of what happened to a periodic task.
#[derive(Default)]
struct RunLog {
    runs: AtomicUsize,
    drops: AtomicUsize,
}

/// Is dropped with the task.
struct DropCounter(Arc<RunLog>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

/// The action of the first run of a task.
#[derive(Clone, Copy)]
enum Run {
    Continues,
    Panics,
    Breaks,
}

/// Schedules a task for each tick from the next one on, and lets the worker put it into the wheel.
/// The first run is due on return.
fn schedule_in_wheel(driven: &mut Driven, run: Run) -> (Periodic, Arc<RunLog>) {
    schedule_on(driven, run, Schedule::at_fixed_rate(TICK))
}

fn schedule_on(driven: &mut Driven, run: Run, schedule: Schedule) -> (Periodic, Arc<RunLog>) {
    let log = Arc::new(RunLog::default());
    let counter = DropCounter(Arc::clone(&log));
    let task = move |_: &PeriodicRun<'_>| {
        counter.0.runs.fetch_add(1, Relaxed);
        match run {
            Run::Continues => ControlFlow::Continue(()),
            // A panic without a message, because each execution has one.
            Run::Panics => std::panic::resume_unwind(Box::new(())),
            Run::Breaks => ControlFlow::Break(()),
        }
    };
    let periodic = driven.timer.schedule_periodic(schedule, task).unwrap();
    assert_eq!(driven.driver.turn(), 0);
    driven.clock.advance(TICK);
    (periodic, log)
}

impl RunLog {
    fn runs(&self) -> usize {
        self.runs.load(Relaxed)
    }

    #[track_caller]
    fn assert_ended(&self, timer: &HashedWheelTimer) {
        assert_eq!(timer.pending_timeouts(), 0);
        assert_eq!(self.drops.load(Relaxed), 1, "the task is dropped once");
    }

    /// Checks too that the task does not run again.
    #[track_caller]
    fn assert_does_not_run_again(
        &self,
        mut driver: Driver,
        clock: &ManualClock,
        timer: &HashedWheelTimer,
    ) {
        self.assert_ended(timer);
        let runs = self.runs();
        clock.advance(TICK * 3);
        assert_eq!(driver.turn(), 0);
        assert_eq!(self.runs(), runs);
        assert_eq!(driver.next_turn(), None, "the wheel is empty");
    }
}

#[test]
fn cancel_during_run_is_final() {
    let mutants = [
        mutant("CancelTakesRunningTask"),
        mutant("RunRevivesCancelled"),
        no_release("node/word.rs finish_run"),
    ];
    explore(None, mutants, || {
        let mut driven = Driven::new();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Continues);
        let turn = Driven::turn(driven.driver);
        assert!(periodic.cancel());
        let (runs, driver) = turn.join().unwrap();
        assert_eq!(log.runs(), runs);
        log.assert_does_not_run_again(driver, &driven.clock, &driven.timer);
    });
}

#[test]
fn cancel_during_run_on_executor_is_final() {
    let mutants = [
        mutant("CancelTakesRunningTask"),
        mutant("RunRevivesCancelled"),
        no_release("node/word.rs finish_run"),
    ];
    explore(None, mutants, || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Continues);
        assert_eq!(driven.driver.turn(), 1);
        assert!(periodic.cancel());
        executor.join();
        assert!(log.runs() <= 1, "at most the run that had begun");
        log.assert_does_not_run_again(driven.driver, &driven.clock, &driven.timer);
    });
}

/// An executor has the timeout of a periodic task, and keeps a clone of it.
#[test]
fn reset_of_a_periodic_task_is_refused_beside_its_run() {
    explore(Some(2), [mutant("PeriodicIsReset")], || {
        let kept = Arc::new(std::sync::Mutex::new(None));
        let keep = Arc::clone(&kept);
        let executor = executor::from_fn(move |task: ExpiredTask| {
            keep.lock().unwrap().get_or_insert(task.timeout().clone());
            task.run();
            Ok(())
        });
        let mut driven = Driven::build(|builder| builder.task_executor(executor));
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Continues);
        assert_eq!(driven.driver.turn(), 1);
        let timeout = kept.lock().unwrap().take().unwrap();
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        assert!(!timeout.reset(TICK * 5));
        assert!(!timeout.reset(Duration::ZERO));
        assert!(timeout.cancel() && periodic.is_cancelled());
        let (handed_over, driver) = turn.join().unwrap();
        assert!((1..=1 + handed_over).contains(&log.runs()));
        log.assert_does_not_run_again(driver, &driven.clock, &driven.timer);
    });
}

/// The message about the end of the run reaches the worker before, during or after its next turn.
#[test]
fn run_on_executor_is_followed_by_the_next() {
    explore(
        Some(3),
        [mutant("ResetWithoutPush"), no_release("node/lane.rs push")],
        || {
            let executor = ThreadPerTask::default();
            let mut driven = executor.driven();
            let (periodic, log) = schedule_in_wheel(&mut driven, Run::Continues);
            assert_eq!(driven.driver.turn(), 1);
            driven.clock.advance(TICK);
            let turned = driven.driver.turn();
            executor.clone().join();
            driven.clock.advance(TICK * 2);
            let turned_again = driven.driver.turn();
            executor.join();
            // The first run may have been late, and made up for the second one.
            assert!(turned + turned_again >= 1);
            assert_eq!(log.runs(), 4);
            assert!(periodic.cancel());
            driven.driver.turn();
            log.assert_ended(&driven.timer);
        },
    );
}

#[test]
fn stop_ends_a_task_that_runs_on_executor() {
    explore(Some(3), [mutant("CancelTakesRunningTask")], || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Continues);
        assert_eq!(driven.driver.turn(), 1);
        assert_eq!(
            driven.timer.stop().len(),
            1,
            "the timeout is pending during its run"
        );
        assert!(periodic.is_cancelled());
        assert_eq!(driven.timer.pending_timeouts(), 0);
        executor.join();
        assert!(log.runs() <= 1, "at most the run that had begun");
        log.assert_ended(&driven.timer);
    });
}

#[test]
fn stop_during_a_turn_ends_the_task_once() {
    explore(Some(3), [mutant("StopIgnoresUnfinishedTurn")], || {
        let mut driven = Driven::new();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Continues);
        let turn = Driven::turn(driven.driver);
        assert_eq!(driven.timer.stop().len(), 1);
        assert!(periodic.is_cancelled());
        let (runs, _driver) = turn.join().unwrap();
        assert_eq!(log.runs(), runs);
        log.assert_ended(&driven.timer);
    });
}

#[test]
fn cancel_or_panic_ends_the_task() {
    explore(None, [mutant("RunRevivesCancelled")], || {
        let mut driven = Driven::new();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Panics);
        let turn = Driven::turn(driven.driver);
        let cancelled = periodic.cancel();
        let (runs, driver) = turn.join().unwrap();
        assert_eq!(periodic.is_cancelled(), cancelled);
        assert!(cancelled || periodic.has_panicked());
        assert_eq!(log.runs(), runs);
        log.assert_does_not_run_again(driver, &driven.clock, &driven.timer);
    });
}

#[test]
fn cancel_or_panic_on_executor_ends_the_task() {
    explore(
        None,
        [
            mutant("RunRevivesCancelled"),
            mutant("CancelTakesRunningTask"),
        ],
        || {
            let executor = ThreadPerTask::default();
            let mut driven = executor.driven();
            let (periodic, log) = schedule_in_wheel(&mut driven, Run::Panics);
            assert_eq!(driven.driver.turn(), 1);
            let cancelled = periodic.cancel();
            executor.join();
            assert_eq!(periodic.is_cancelled(), cancelled);
            assert!(cancelled || periodic.has_panicked());
            assert_eq!(log.runs(), usize::from(periodic.has_panicked()));
            log.assert_does_not_run_again(driven.driver, &driven.clock, &driven.timer);
        },
    );
}

#[test]
fn cancel_or_break_ends_the_task() {
    explore(None, [mutant("RunRevivesCancelled")], || {
        let mut driven = Driven::new();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Breaks);
        let turn = Driven::turn(driven.driver);
        let cancelled = periodic.cancel();
        let (runs, driver) = turn.join().unwrap();
        assert_eq!(periodic.is_cancelled(), cancelled);
        assert!(periodic.is_finished() && (cancelled || runs == 1));
        assert_eq!((log.runs(), periodic.next_run()), (runs, None));
        log.assert_does_not_run_again(driver, &driven.clock, &driven.timer);
    });
}

#[test]
fn cancel_or_break_on_executor_ends_the_task() {
    let mutants = [
        "RunRevivesCancelled",
        "CancelTakesRunningTask",
        "LastRunCountedFirst",
    ];
    explore(None, mutants.map(mutant), || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (periodic, log) = schedule_in_wheel(&mut driven, Run::Breaks);
        assert_eq!(driven.driver.turn(), 1);
        let cancelled = periodic.cancel();
        executor.join();
        assert_eq!(periodic.is_cancelled(), cancelled);
        assert!(periodic.is_finished() && (cancelled || log.runs() == 1));
        log.assert_does_not_run_again(driven.driver, &driven.clock, &driven.timer);
    });
}

#[test]
fn stop_or_break_ends_the_task() {
    explore(
        Some(3),
        [
            mutant("StopIgnoresUnfinishedTurn"),
            mutant("BreakRunsAgain"),
        ],
        || {
            let mut driven = Driven::new();
            let (periodic, log) = schedule_in_wheel(&mut driven, Run::Breaks);
            let turn = Driven::turn(driven.driver);
            let stopped = driven.timer.stop().len();
            let (runs, _driver) = turn.join().unwrap();
            assert_eq!(
                (stopped + runs, log.runs()),
                (1, runs),
                "it was stopped, or it ran"
            );
            assert_eq!(
                (periodic.is_cancelled(), periodic.is_finished()),
                (stopped == 1, true)
            );
            log.assert_ended(&driven.timer);
        },
    );
}

/// The task is pending until the `stop` at the end of the shutdown, whenever the turn sees it.
#[test]
fn shutdown_returns_a_task_that_does_not_continue() {
    explore(
        Some(3),
        [
            mutant("ShutdownForgetsTask"),
            mutant("StopIgnoresUnfinishedTurn"),
        ],
        || {
            let mut driven = Driven::new();
            let schedule = Schedule::at_fixed_rate(TICK).continue_after_shutdown(false);
            let (periodic, log) = schedule_on(&mut driven, Run::Continues, schedule);
            let turn = Driven::turn(driven.driver);
            assert_eq!(driven.timer.shutdown(Duration::ZERO).len(), 1);
            assert!(periodic.is_cancelled());
            turn.join().unwrap();
            assert!(log.runs() <= 1);
            log.assert_ended(&driven.timer);
        },
    );
}

/// The task is dropped at the end of its run, and its `Drop` sees what was written before the
/// cancel.
#[test]
fn dropped_task_sees_writes_before_cancel() {
    struct ReadsWhenDropped {
        written: Arc<loom::sync::atomic::AtomicUsize>,
        saw: Arc<AtomicUsize>,
    }
    impl Drop for ReadsWhenDropped {
        fn drop(&mut self) {
            self.saw.store(self.written.load(Relaxed), Relaxed);
        }
    }
    explore(
        None,
        [
            no_acquire("node/word.rs finish_run"),
            no_release("node/word.rs cancel_seen"),
        ],
        || {
            let mut driven = Driven::new();
            let (written, saw) = (Arc::default(), Arc::new(AtomicUsize::new(usize::MAX)));
            let reads = ReadsWhenDropped {
                written: Arc::clone(&written),
                saw: Arc::clone(&saw),
            };
            let task = move || {
                let _captured = &reads;
            };
            let periodic = driven
                .timer
                .schedule_at_fixed_rate(task, TICK, TICK)
                .unwrap();
            driven.driver.turn();
            driven.clock.advance(TICK);
            let cancel = thread::spawn(move || {
                written.store(1, Relaxed);
                assert!(periodic.cancel());
            });
            driven.driver.turn();
            cancel.join().unwrap();
            assert_eq!(saw.load(Relaxed), 1, "the write came before the cancel");
        },
    );
}
