//! A task that postpones itself: the worker asks it, and callers do not wait for the worker's lock.

use super::*;

/// Postpones itself by three ticks, as often as this says.
struct Postponing {
    task: Task,
    times: Arc<AtomicUsize>,
}

impl TimerTask for Postponing {
    const POSTPONES: bool = true;

    fn postpone(&self, _: &Timeout) -> Option<Duration> {
        let times = self.times.load(Relaxed);
        self.times.store(times.saturating_sub(1), Relaxed);
        (times > 0).then_some(TICK * 3)
    }

    fn run(self, timeout: &Timeout) {
        self.task.run(timeout);
    }

    fn cancelled(self, timeout: &Timeout) {
        self.task.cancelled(timeout);
    }
}

/// Schedules a task for the next tick, which has come on return.
fn schedule_due(times: usize) -> (Driven, Timeout, Arc<Outcome>, Arc<AtomicUsize>) {
    let mut driven = Driven::new();
    let (outcome, left) = (Arc::default(), Arc::new(AtomicUsize::new(times)));
    let task = Postponing {
        task: Task(Arc::clone(&outcome)),
        times: Arc::clone(&left),
    };
    let timeout = driven.timer.new_timeout_task(task, TICK).unwrap();
    assert_eq!(driven.driver.turn(), 0);
    driven.clock.advance(TICK);
    (driven, timeout, outcome, left)
}

#[test]
fn cancel_of_a_task_that_is_asked_is_final() {
    let mutants = [
        mutant("CancelTakesRunningTask"),
        mutant("RunRevivesCancelled"),
    ];
    explore(None, mutants, || {
        let (driven, timeout, outcome, _) = schedule_due(1);
        let turn = Driven::turn(driven.driver);
        assert!(timeout.cancel());
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(expired, 0);
        outcome.assert(0, 1);
        driven.clock.advance(TICK * 3);
        assert_eq!(driver.turn(), 0);
        assert_eq!(driver.next_turn(), None, "the wheel is empty");
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn cancel_or_answer_wins() {
    let mutants = [
        mutant("CancelTakesRunningTask"),
        mutant("RunRevivesCancelled"),
    ];
    explore(None, mutants, || {
        let (driven, timeout, outcome, _) = schedule_due(0);
        let turn = Driven::turn(driven.driver);
        let is_cancelled = timeout.cancel();
        let (expired, mut driver) = turn.join().unwrap();
        assert_eq!(expired + usize::from(is_cancelled), 1);
        outcome.assert(expired, usize::from(is_cancelled));
        driver.turn();
        assert_eq!(driver.next_turn(), None, "the wheel is empty");
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn reset_waits_for_the_answer() {
    for in_group in [false, true] {
        let mutants = [mutant("AskedIsReset"), mutant("ResetOfAskedIsRefused")];
        explore(Some(4), mutants, move || {
            let (driven, timeout, outcome, times) = schedule_due(1);
            let turn = Driven::turn(driven.driver);
            let is_reset = match in_group {
                false => timeout.reset(TICK * 2),
                true => {
                    let deadline = driven.timer.now() + TICK * 2;
                    Timeout::reset_each([&timeout], deadline) == 1
                }
            };
            assert!(is_reset, "it has not ended");
            let (_, mut driver) = turn.join().unwrap();
            let was_asked = times.load(Relaxed) == 0;
            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), 0, "not before the new deadline");
            driven.clock.advance(TICK);
            assert_eq!(driver.turn(), usize::from(was_asked));
            driven.clock.advance(TICK * 3);
            assert_eq!(driver.turn(), usize::from(!was_asked));
            outcome.assert(1, 0);
        });
    }
}
