//! Tasks that the executor refuses, on the manual clock.

use crate::common;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Driven, Ends, TICK, accepts_all, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer, ManualClock, TaskExecutor, executor};
use hashed_wheel_util::executor::TaskExecutorExt;

/// An executor that has room for one task and refuses the others.
fn pool() -> (impl TaskExecutor, Receiver<ExpiredTask>) {
    let (queue, tasks) = sync_channel::<ExpiredTask>(1);
    let pool = executor::from_fn(move |task| {
        queue
            .try_send(task)
            .map_err(|(TrySendError::Full(task) | TrySendError::Disconnected(task))| task)
    });
    (pool, tasks)
}

fn with(executor: impl TaskExecutor) -> Driven {
    Driven::with(|builder| builder.task_executor(executor))
}

/// An executor that refuses all tasks.
fn refuses_all() -> impl TaskExecutor {
    executor::from_fn(Err)
}

fn schedule(driven: &Driven, number: usize) -> Arc<Ends> {
    let task_ends = Ends::new();
    for _ in 0..number {
        driven
            .timer
            .new_timeout_task(task_ends.task(), TICK)
            .unwrap();
    }
    task_ends
}

#[test]
fn refused_task_is_dropped_and_counted_by_default() {
    let (pool, tasks) = pool();
    let mut t = with(pool);
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    tasks.recv().unwrap().run();
    assert_eq!((task_ends.runs(), task_ends.drops()), (1, 3));
    assert_eq!(t.timer.stats().dropped_tasks, 2);
}

#[test]
fn refused_task_runs_on_the_worker() {
    let (pool, tasks) = pool();
    let mut t = with(pool.or_run_here());
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    assert_eq!(task_ends.runs(), 2);
    tasks.recv().unwrap().run();
    assert_eq!((task_ends.runs(), task_ends.drops()), (3, 3));
    assert_eq!(t.timer.stats().dropped_tasks, 0);
}

#[test]
fn refused_task_is_offered_again_after_the_delay() {
    let (pool, tasks) = pool();
    let mut t = with(pool.or_retry(TICK * 3));
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    for runs in 1..3 {
        tasks.try_recv().unwrap().run();
        t.pass(TICK * 2);
        assert!(tasks.try_recv().is_err());
        t.pass(TICK);
        assert_eq!(task_ends.runs(), runs);
    }
    tasks.try_recv().unwrap().run();
    assert_eq!((task_ends.runs(), task_ends.drops()), (3, 3));
    assert_eq!(
        (t.timer.stats().dropped_tasks, t.timer.pending_timeouts()),
        (0, 0)
    );
}

#[test]
fn task_that_is_refused_again_and_again_is_offered_once_per_tick() {
    let mut t = with(refuses_all().or_retry(Duration::ZERO));
    let task_ends = schedule(&t, 1);
    for _ in 0..3 {
        assert_eq!(t.pass(TICK), 1);
        assert_eq!((t.driver.turn(), t.driver.next_turn()), (0, Some(TICK)));
    }
    // A timer that is being shut down rejects the next retry, so its last turn ends too.
    t.clock.advance(TICK);
    assert_eq!(t.timer.shutdown(Duration::ZERO), []);
    assert_eq!((task_ends.drops(), t.timer.stats().dropped_tasks), (1, 1));
}

#[test]
fn retried_task_is_dropped_and_counted_if_the_timer_ends() {
    let (pool, tasks) = pool();
    let mut t = with(pool.or_retry(TICK));
    let task_ends = schedule(&t, 2);
    t.pass(TICK);
    assert_eq!(t.timer.stop().len(), 1);
    assert_eq!(
        (task_ends.runs(), task_ends.drops(), task_ends.hooks()),
        (0, 1, 0)
    );
    assert_eq!(t.timer.stats().dropped_tasks, 1);
    drop(tasks);
    assert_eq!((task_ends.drops(), t.timer.stats().dropped_tasks), (2, 2));
}

#[test]
fn retry_takes_the_place_under_the_limit_or_drops_the_task() {
    let timer = Arc::new(Mutex::new(None::<HashedWheelTimer>));
    let other = Arc::clone(&timer);
    let mut t = Driven::with(|builder| {
        let refuses = executor::from_fn(move |task| {
            if let Some(timer) = &*other.lock().unwrap() {
                timer.new_timeout(|_| (), TICK).unwrap();
            }
            Err(task)
        });
        builder
            .max_pending_timeouts(Some(1))
            .task_executor(refuses.or_retry(TICK))
    });
    let task_ends = schedule(&t, 1);
    t.pass(TICK);
    assert_eq!((task_ends.drops(), t.timer.pending_timeouts()), (0, 1));
    // Now another timeout takes the place of the one that has expired.
    *timer.lock().unwrap() = Some(t.timer.clone());
    t.pass(TICK);
    timer.lock().unwrap().take();
    assert_eq!((task_ends.drops(), t.timer.stats().dropped_tasks), (1, 1));
}

#[test]
fn refused_task_goes_to_the_other_executor() {
    let overflow = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&overflow);
    let (pool, _tasks) = pool();
    let mut t = with(pool.or_else(accepts_all(move |task| kept.lock().unwrap().push(task))));
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    let refused = std::mem::take(&mut *overflow.lock().unwrap());
    assert_eq!(refused.len(), 2);
    refused.into_iter().for_each(ExpiredTask::run);
    assert_eq!((task_ends.runs(), t.timer.stats().dropped_tasks), (2, 0));
}

#[test]
fn other_executor_may_refuse_or_drop_the_task_or_panic() {
    for other in [
        Box::new(refuses_all()) as Box<dyn TaskExecutor>,
        Box::new(accepts_all(drop)),
    ] {
        let (pool, _tasks) = pool();
        let mut t = with(pool.or_else(other));
        let task_ends = schedule(&t, 2);
        t.pass(TICK);
        assert_eq!((task_ends.drops(), t.timer.stats().dropped_tasks), (1, 1));
    }

    let (pool, _tasks) = pool();
    let mut t = with(pool.or_else(executor::from_fn(|_| panic!("the other executor fails"))));
    let task_ends = schedule(&t, 3);
    quietly(|| t.pass(TICK));
    assert_eq!(task_ends.drops(), 2);
    assert_eq!(
        (t.timer.stats().dropped_tasks, t.timer.stats().panics),
        (2, 2)
    );
}

/// A refused task is one that comes back, and not one that an executor loses.
#[test]
fn task_that_is_dropped_is_dropped_and_counted() {
    let (pool, tasks) = pool();
    let mut t = with(pool.or_run_here());
    let task_ends = schedule(&t, 1);
    t.pass(TICK);
    drop(tasks);
    assert_eq!((task_ends.runs(), t.timer.stats().dropped_tasks), (0, 1));

    let mut t = with(executor::from_fn(|_| panic!("the executor fails")).or_run_here());
    let task_ends = schedule(&t, 1);
    quietly(|| t.pass(TICK));
    assert_eq!((task_ends.runs(), task_ends.drops()), (0, 1));
    assert_eq!(
        (t.timer.stats().dropped_tasks, t.timer.stats().panics),
        (1, 1)
    );
}

/// An executor that makes room for a task returns another one, which is the refused one then.
#[test]
fn executor_may_refuse_the_oldest_task() {
    let queue = Arc::new(Mutex::new(None::<ExpiredTask>));
    let kept = Arc::clone(&queue);
    let evicts =
        executor::from_fn(move |task| kept.lock().unwrap().replace(task).map_or(Ok(()), Err));
    let mut t = with(evicts.or_run_here());
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    assert_eq!(task_ends.runs(), 2);
    let last = queue.lock().unwrap().take();
    last.unwrap().run();
    assert_eq!((task_ends.runs(), t.timer.stats().dropped_tasks), (3, 0));
}

/// The executor of one timer returns a task that another one's executor has kept. It runs, and
/// each timer counts its own.
#[test]
fn task_of_another_timer_may_come_back() {
    let (pool, others_tasks) = pool();
    let mut other = with(pool);
    let others_end = schedule(&other, 1);
    other.pass(TICK);
    let kept = Mutex::new(Some(others_tasks.recv().unwrap()));
    let swaps = executor::from_fn(move |task: ExpiredTask| {
        task.run();
        kept.lock().unwrap().take().map_or(Ok(()), Err)
    });
    let mut t = with(swaps);
    let task_ends = schedule(&t, 1);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(
        (task_ends.runs(), others_end.runs(), others_end.drops()),
        (1, 0, 1)
    );
    assert_eq!(
        (
            t.timer.stats().dropped_tasks,
            other.timer.stats().dropped_tasks
        ),
        (0, 1)
    );
}

#[test]
fn refused_run_of_a_periodic_task_follows_the_policy() {
    let policies: [(Box<dyn TaskExecutor>, usize); 3] = [
        (Box::new(refuses_all()), 0),
        (Box::new(refuses_all().or_run_here()), 3),
        (Box::new(refuses_all().or_retry(Duration::ZERO)), 0),
    ];
    for (executor, runs) in policies {
        let mut t = with(executor);
        let count = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&count);
        let task = move || _ = counts.fetch_add(1, SeqCst);
        let sweep = t.timer.schedule_at_fixed_rate(task, TICK, TICK).unwrap();
        for _ in 0..3 {
            t.pass(TICK);
            t.driver.turn();
        }
        assert_eq!(count.load(SeqCst), runs);
        assert!(sweep.cancel());
        t.timer.stop();
        assert_eq!(Arc::strong_count(&count), 1, "the task is dropped");
    }
}

/// Its run would not begin, so it need not wait until the executor accepts it.
#[test]
fn refused_run_of_a_cancelled_task_is_not_offered_again() {
    let mut t = with(refuses_all().or_retry(TICK));
    let held = Arc::new(());
    let its = Arc::clone(&held);
    let sweep = t
        .timer
        .schedule_at_fixed_rate(move || _ = &its, TICK, TICK)
        .unwrap();
    for _ in 0..3 {
        assert_eq!(t.pass(TICK), 1);
    }
    assert!(sweep.cancel());
    assert_eq!(Arc::strong_count(&held), 2, "the retry has the task");
    t.pass(TICK);
    assert_eq!(
        (Arc::strong_count(&held), t.timer.pending_timeouts()),
        (1, 0)
    );
    assert_eq!(t.timer.stats().dropped_tasks, 0, "no run is lost");
}

/// The timer drops the executor when it stops, also if a retry waits.
#[test]
fn executor_is_dropped_with_a_waiting_retry() {
    let pool = Arc::new(());
    let held = Arc::clone(&pool);
    let refuses = executor::from_fn(move |task| {
        let _ = &held;
        Err(task)
    });
    let mut t = with(refuses.or_retry(TICK));
    let task_ends = schedule(&t, 1);
    t.pass(TICK);
    assert_eq!(Arc::strong_count(&pool), 2);
    t.timer.stop();
    assert_eq!(Arc::strong_count(&pool), 1);
    assert_eq!(task_ends.drops(), 1);
}

/// A periodic task that is far behind, on a worker that runs it because the executor refuses it.
#[test]
fn stop_ends_the_runs_that_are_made_up_for() {
    let (stop, stopped) = (
        Arc::new(Mutex::new(None::<HashedWheelTimer>)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut t = with(refuses_all().or_run_here());
    let (its_stop, runs) = (Arc::clone(&stop), Arc::clone(&stopped));
    let task = move || {
        if runs.fetch_add(1, SeqCst) == 2 {
            // The last handle.
            drop(its_stop.lock().unwrap().take());
        }
    };
    let periodic = t.timer.schedule_at_fixed_rate(task, TICK, TICK).unwrap();
    *stop.lock().unwrap() = Some(t.timer);
    t.clock.advance(TICK * 100);
    t.driver.turn();
    assert_eq!((stopped.load(SeqCst), periodic.is_cancelled()), (3, true));
}

#[test]
fn refused_task_that_runs_on_the_worker_is_watched() {
    let clock = ManualClock::new();
    let its_clock = clock.clone();
    let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
    let builder = builder
        .slow_task_threshold(Some(TICK))
        .task_executor(refuses_all().or_run_here());
    let (timer, mut driver) = builder.build_driven().unwrap();
    timer
        .new_timeout(move |_| its_clock.advance(TICK * 2), TICK)
        .unwrap();
    clock.advance(TICK);
    driver.turn();
    assert_eq!(timer.stats().slow_tasks, 1);
}

/// An executor in an `Arc` or a `Box`, and a static one, are executors too.
#[test]
fn pointer_to_an_executor_is_one() {
    static STATIC: std::sync::OnceLock<Box<dyn TaskExecutor>> = std::sync::OnceLock::new();

    let runs: fn() -> Box<dyn TaskExecutor> = || Box::new(accepts_all(ExpiredTask::run));
    let (shared, fixed) = (Arc::new(runs()), STATIC.get_or_init(runs));
    for mut t in [
        with(runs()),
        with(Arc::clone(&shared)),
        with(shared as Arc<dyn TaskExecutor>),
        with(fixed),
    ] {
        let task_ends = schedule(&t, 1);
        t.pass(TICK);
        assert_eq!(task_ends.runs(), 1);
    }
}
