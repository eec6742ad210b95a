//! The hand-off to a task executor: what it has taken is its own affair, what it refuses has ended all the same.

use super::*;

/// Runs each task on a (loom) thread of its own.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<std::sync::Mutex<Vec<thread::JoinHandle<()>>>>);

impl Pool {
    pub(crate) fn driven(&self) -> Driven {
        let pool = self.clone();
        Driven::build(|builder| {
            builder.task_executor(move |task: ExpiredTask| {
                // First, for loom may go elsewhere here, and it does not see the lock.
                let thread = thread::spawn(move || task.run());
                pool.0.lock().unwrap().push(thread);
            })
        })
    }

    pub(crate) fn join(self) {
        let threads = std::mem::take(&mut *self.0.lock().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Refuses everything: by dropping it, or by a panic.
fn refusing(panics: bool) -> Driven {
    Driven::build(|builder| {
        builder.task_executor(move |task: ExpiredTask| {
            if panics {
                // As a panic does, but says nothing: there is one in each execution.
                std::panic::resume_unwind(Box::new(task));
            }
        })
    })
}

#[test]
fn of_cancel_and_the_hand_off_one_wins() {
    explore(None, [mutant("ChangeWithoutCompare")], || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let cancelled = timeout.cancel();
        let (expired, _driver) = turn.join().unwrap();
        pool.join();
        assert_eq!(usize::from(cancelled) + expired, 1, "exactly one wins");
        ends.assert(expired, usize::from(cancelled));
    });
}

/// One is in the executor's hands, perhaps, the other was to follow.
#[test]
fn stop_leaves_alone_what_the_executor_has_taken() {
    explore(Some(3), [mutant("StopWithoutDue")], || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (_, first) = driven.schedule(1);
        let (_, second) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        let rest = driven.timer.stop();
        assert_eq!(driven.timer.pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        pool.join();
        assert_eq!(rest.len() + expired, 2, "each ends once");
        first.assert(usize::from(expired > 0), usize::from(expired == 0));
        second.assert(usize::from(expired > 1), usize::from(expired < 2));
    });
}

#[test]
fn the_last_drop_leaves_alone_what_the_executor_has_taken() {
    explore(Some(3), [mutant("StopWithoutDue")], || {
        let pool = Pool::default();
        let mut driven = pool.driven();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let turn = Driven::turn(driven.driver);
        drop(driven.timer);
        assert_eq!(timeout.timer().pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        pool.join();
        ends.assert(expired, 1 - expired);
    });
}

#[test]
fn of_cancel_and_a_refusal_one_wins() {
    for panics in [false, true] {
        explore(None, [mutant("ChangeWithoutCompare")], move || {
            let mut driven = refusing(panics);
            let (timeout, ends) = driven.schedule_placed(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let cancelled = timeout.cancel();
            let (expired, _driver) = turn.join().unwrap();
            assert_eq!(usize::from(cancelled) + expired, 1, "exactly one wins");
            ends.assert(0, usize::from(cancelled));
            assert_eq!(timeout.is_expired(), !cancelled, "refused is expired, though nothing ran");
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
fn a_refusal_keeps_nothing_from_stop() {
    for panics in [false, true] {
        explore(None, [mutant("StopWithoutDue")], move || {
            let mut driven = refusing(panics);
            let (_, first) = driven.schedule(1);
            let (_, second) = driven.schedule_placed(1);
            driven.clock.advance(TICK);
            let turn = Driven::turn(driven.driver);
            let rest = driven.timer.stop();
            assert_eq!(driven.timer.pending_timeouts(), 0);
            let (expired, _driver) = turn.join().unwrap();
            assert_eq!(rest.len() + expired, 2, "each ends once");
            first.assert(0, usize::from(expired == 0));
            second.assert(0, usize::from(expired < 2));
            assert_eq!(driven.timer.stats().dropped_tasks, expired as u64);
        });
    }
}
