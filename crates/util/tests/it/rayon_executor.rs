//! Tasks in a pool of rayon, which outlives the timer's use of it.
// Miri: rayon's own dependencies make pointers of integers.
#![cfg(all(feature = "rayon", not(miri)))]

use crate::common;

use std::sync::mpsc::channel;
use std::sync::{Arc, Once};

use common::{Driven, Ends, Gate, TEST_TIMEOUT, TICK, ends, eventually};
use hashed_wheel::{HashedWheelTimer, TaskExecutor};
use hashed_wheel_util::executor::{RayonGlobal, RayonPool};
use rayon_core::{ThreadPool, ThreadPoolBuilder};

fn pool() -> Arc<ThreadPool> {
    Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap())
}

fn driven(executor: impl TaskExecutor) -> Driven {
    Driven::with(|builder| builder.task_executor(executor))
}

/// A panic in a job that rayon itself started would abort the process.
#[test]
fn tasks_run_in_the_pool_and_may_panic() {
    fn check(executor: impl TaskExecutor) {
        let mut t = driven(executor);
        let (sender, receiver) = channel();
        t.timer
            .new_timeout(|_| panic!("in the pool"), TICK)
            .unwrap();
        t.timer
            .new_timeout(
                move |_| sender.send(rayon_core::current_thread_index()).unwrap(),
                TICK,
            )
            .unwrap();
        assert_eq!(t.pass(TICK), 2);
        assert!(receiver.recv_timeout(TEST_TIMEOUT).unwrap().is_some());
        eventually("the panic is counted", || t.timer.stats().panics > 0);
        assert_eq!(t.timer.stats().dropped_tasks, 0);
    }

    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    check(RayonPool::new(pool()));
    check(RayonGlobal);
}

#[test]
fn tasks_in_the_pool_run_after_the_timer_and_the_pool_handle_are_dropped() {
    let pool = pool();
    let mut t = driven(RayonPool::new(Arc::clone(&pool)));
    let tasks = Ends::new();
    let (gate, wait) = Gate::new();
    t.timer.new_timeout(move |_| wait(), TICK).unwrap();
    (0..3).for_each(|_| drop(t.timer.new_timeout_task(tasks.task(), TICK).unwrap()));
    assert_eq!(t.pass(TICK), 4);
    gate.wait_for_arrival();
    // Neither the stop nor the drop of the pool's last handle here waits for the tasks.
    ends({
        let (timer, driver): (HashedWheelTimer, _) = (t.timer, t.driver);
        move || {
            drop(pool);
            assert!(timer.stop().is_empty());
            drop(driver);
        }
    });
    assert_eq!(tasks.drops(), 0);
    gate.open();
    eventually("all tasks are dropped", || tasks.drops() == 3);
    assert_eq!(tasks.runs(), 3);
}

/// The stop drops the pool on the pool's own thread.
#[test]
fn a_task_in_the_pool_may_stop_the_timer() {
    ends(|| {
        let mut t = driven(RayonPool::new(pool()));
        let tasks = Ends::new();
        let timer = t.timer.clone();
        let (done, wait) = channel();
        t.timer
            .new_timeout(move |_| done.send(timer.stop().len()).unwrap(), TICK)
            .unwrap();
        t.timer.new_timeout_task(tasks.task(), TICK * 2).unwrap();
        assert_eq!(t.pass(TICK), 1);
        assert_eq!(wait.recv_timeout(TEST_TIMEOUT).unwrap(), 1);
        assert_eq!((tasks.runs(), tasks.hooks()), (0, 1));
        drop(t.timer);
    });
}

#[test]
fn rayon_executors_implement_debug_and_clone() {
    assert!(format!("{:?}", RayonPool::new(pool()).clone()).starts_with("RayonPool"));
    assert_eq!(format!("{RayonGlobal:?}"), "RayonGlobal");
}
