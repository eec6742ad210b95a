//! The dispatch to a task executor. A task that the executor has taken is no longer the timer's. A
//! timeout whose task the executor rejects has ended too.

use super::*;

/// An executor that runs each task on a loom thread of its own.
#[derive(Clone, Default)]
pub(crate) struct ThreadPerTask(Arc<std::sync::Mutex<Vec<thread::JoinHandle<()>>>>);

impl ThreadPerTask {
    pub(crate) fn driven(&self) -> Driven {
        let executor = self.clone();
        let execute = executor::from_fn(move |task| {
            // Before the lock is taken: loom may switch threads here, and does not see the lock.
            let thread = thread::spawn(move || task.run());
            executor.0.lock().unwrap().push(thread);
            Ok(())
        });
        Driven::build(|builder| builder.task_executor(execute))
    }

    pub(crate) fn join(self) {
        let threads = std::mem::take(&mut *self.0.lock().unwrap());
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

/// Returns a timer whose executor refuses each task: it returns the task, or panics.
fn rejecting(panics: bool) -> Driven {
    let refuse = executor::from_fn(move |task| {
        if panics {
            // A panic without a message, because each execution has one.
            std::panic::resume_unwind(Box::new(task));
        }
        Err(task)
    });
    Driven::build(|builder| builder.task_executor(refuse))
}

#[test]
fn cancel_or_dispatch_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (timeout, outcome) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let cancelled = timeout.cancel();
        let (expired, _driver) = turn.join().unwrap();
        executor.join();
        assert_eq!(
            usize::from(cancelled) + expired,
            1,
            "exactly one of the two wins"
        );
        outcome.assert(expired, usize::from(cancelled));
    });
}

/// The executor may have the first task when `stop` comes, while the second one has not expired.
#[test]
fn stop_leaves_dispatched_tasks_alone() {
    explore(Some(3), [mutant("StopIgnoresUnfinishedTurn")], || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (_, first) = driven.schedule(1);
        let (_, second) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let rest = driven.timer.stop();
        assert_eq!(driven.timer.pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        executor.join();
        assert_eq!(rest.len() + expired, 2, "each timeout ends once");
        first.assert(usize::from(expired > 0), usize::from(expired == 0));
        second.assert(usize::from(expired > 1), usize::from(expired < 2));
    });
}

#[test]
fn last_drop_leaves_dispatched_tasks_alone() {
    explore(Some(3), [mutant("StopIgnoresUnfinishedTurn")], || {
        let executor = ThreadPerTask::default();
        let mut driven = executor.driven();
        let (timeout, outcome) = driven.schedule_in_wheel(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        drop(driven.timer);
        assert_eq!(timeout.timer().pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        executor.join();
        outcome.assert(expired, 1 - expired);
    });
}

#[test]
fn cancel_or_rejection_by_executor_wins() {
    for panics in [false, true] {
        explore(None, [mutant("ChangeWithoutCompare")], move || {
            let mut driven = rejecting(panics);
            let (timeout, outcome) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let cancelled = timeout.cancel();
            let (expired, _driver) = turn.join().unwrap();
            assert_eq!(
                usize::from(cancelled) + expired,
                1,
                "exactly one of the two wins"
            );
            outcome.assert(0, usize::from(cancelled));
            assert_eq!(
                timeout.is_expired(),
                !cancelled,
                "a timeout whose task was rejected is expired"
            );
            let stats = driven.timer.stats();
            assert_eq!(
                (stats.dropped_tasks, stats.panics),
                (expired as u64, (expired as u64) * u64::from(panics))
            );
            assert_eq!(stats.pending, 0);
        });
    }
}

#[test]
fn rejecting_executor_keeps_nothing_from_stop() {
    for panics in [false, true] {
        explore(None, [mutant("StopIgnoresUnfinishedTurn")], move || {
            let mut driven = rejecting(panics);
            let (_, first) = driven.schedule(1);
            let (_, second) = driven.schedule_in_wheel(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let rest = driven.timer.stop();
            assert_eq!(driven.timer.pending_timeouts(), 0);
            let (expired, _driver) = turn.join().unwrap();
            assert_eq!(rest.len() + expired, 2, "each timeout ends once");
            first.assert(0, usize::from(expired == 0));
            second.assert(0, usize::from(expired < 2));
            assert_eq!(driven.timer.stats().dropped_tasks, expired as u64);
        });
    }
}
