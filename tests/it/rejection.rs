//! The policies for tasks that the executor refuses, on the manual clock.

use crate::common;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Driven, Ends, TICK, quietly};
use hashed_wheel::{ExpiredTask, HashedWheelTimer, ManualClock, RejectionPolicy};

/// A timer whose executor has room for one task and refuses the others.
fn with(policy: RejectionPolicy) -> (Driven, Receiver<ExpiredTask>) {
    let (queue, tasks) = sync_channel::<ExpiredTask>(1);
    let executor = move |task| drop(queue.try_send(task));
    let driven = Driven::with(|builder| builder.rejection_policy(policy).task_executor(executor));
    (driven, tasks)
}

fn schedule(driven: &Driven, number: usize) -> Arc<Ends> {
    let task_ends = Ends::new();
    for _ in 0..number {
        driven.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
    }
    task_ends
}

#[test]
fn refused_task_is_dropped_and_counted_by_default() {
    let (mut t, tasks) = with(RejectionPolicy::default());
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    tasks.recv().unwrap().run();
    assert_eq!((task_ends.runs(), task_ends.drops()), (1, 3));
    assert_eq!(t.timer.stats().dropped_tasks, 2);
}

#[test]
fn refused_task_runs_on_the_worker() {
    let (mut t, tasks) = with(RejectionPolicy::RunOnWorker);
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    assert_eq!(task_ends.runs(), 2);
    tasks.recv().unwrap().run();
    assert_eq!((task_ends.runs(), task_ends.drops()), (3, 3));
    assert_eq!(t.timer.stats().dropped_tasks, 0);
}

#[test]
fn refused_task_is_offered_again_after_the_delay() {
    let (mut t, tasks) = with(RejectionPolicy::Retry(TICK * 3));
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
    assert_eq!((t.timer.stats().dropped_tasks, t.timer.pending_timeouts()), (0, 0));
}

#[test]
fn retried_task_is_dropped_and_counted_if_the_timer_ends() {
    let (mut t, tasks) = with(RejectionPolicy::Retry(TICK));
    let task_ends = schedule(&t, 2);
    t.pass(TICK);
    assert_eq!(t.timer.stop().len(), 1);
    assert_eq!((task_ends.runs(), task_ends.drops(), task_ends.hooks()), (0, 1, 0));
    assert_eq!(t.timer.stats().dropped_tasks, 1);
    drop(tasks);
    assert_eq!((task_ends.drops(), t.timer.stats().dropped_tasks), (2, 2));
}

#[test]
fn retry_takes_the_place_under_the_limit_or_drops_the_task() {
    let timer = Arc::new(Mutex::new(None::<HashedWheelTimer>));
    let other = Arc::clone(&timer);
    let mut t = Driven::with(|builder| {
        let builder = builder.rejection_policy(RejectionPolicy::Retry(TICK)).max_pending_timeouts(Some(1));
        builder.task_executor(move |task: ExpiredTask| {
            if let Some(timer) = &*other.lock().unwrap() {
                timer.new_timeout(|_| (), TICK).unwrap();
            }
            drop(task);
        })
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
fn refused_task_goes_to_the_handler() {
    let overflow = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&overflow);
    let (mut t, _tasks) = with(RejectionPolicy::handler(move |task| kept.lock().unwrap().push(task)));
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    let refused = std::mem::take(&mut *overflow.lock().unwrap());
    assert_eq!(refused.len(), 2);
    refused.into_iter().for_each(ExpiredTask::run);
    assert_eq!((task_ends.runs(), t.timer.stats().dropped_tasks), (2, 0));
}

#[test]
fn handler_may_drop_the_task_or_panic() {
    let (mut t, _tasks) = with(RejectionPolicy::handler(drop));
    let task_ends = schedule(&t, 2);
    t.pass(TICK);
    assert_eq!((task_ends.drops(), t.timer.stats().dropped_tasks), (1, 1));

    let (mut t, _tasks) = with(RejectionPolicy::handler(|_| panic!("the handler fails")));
    let task_ends = schedule(&t, 3);
    quietly(|| t.pass(TICK));
    assert_eq!(task_ends.drops(), 2);
    assert_eq!((t.timer.stats().dropped_tasks, t.timer.stats().panics), (2, 2));
}

/// The policy is for tasks that are refused, not for those that an executor loses later.
#[test]
fn task_that_is_dropped_later_or_by_a_panic_is_dropped_and_counted() {
    let (mut t, tasks) = with(RejectionPolicy::RunOnWorker);
    let task_ends = schedule(&t, 1);
    t.pass(TICK);
    drop(tasks);
    assert_eq!((task_ends.runs(), t.timer.stats().dropped_tasks), (0, 1));

    let mut t = Driven::with(|builder| {
        let builder = builder.rejection_policy(RejectionPolicy::RunOnWorker);
        builder.task_executor(|_task: ExpiredTask| panic!("the executor fails"))
    });
    let task_ends = schedule(&t, 1);
    quietly(|| t.pass(TICK));
    assert_eq!((task_ends.runs(), task_ends.drops()), (0, 1));
    assert_eq!((t.timer.stats().dropped_tasks, t.timer.stats().panics), (1, 1));
}

/// An executor that makes room by dropping the oldest task refuses that one.
#[test]
fn task_that_the_executor_evicts_is_refused() {
    let queue = Arc::new(Mutex::new(None::<ExpiredTask>));
    let kept = Arc::clone(&queue);
    let mut t = Driven::with(|builder| {
        let builder = builder.rejection_policy(RejectionPolicy::RunOnWorker);
        builder.task_executor(move |task| drop(kept.lock().unwrap().replace(task)))
    });
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    assert_eq!(task_ends.runs(), 2);
    let last = queue.lock().unwrap().take();
    last.unwrap().run();
    assert_eq!(task_ends.runs(), 3);
}

/// The policy holds for each of the tasks that an executor drops in one call.
#[test]
fn tasks_that_the_executor_evicts_together_are_refused() {
    let queue = Mutex::new(Vec::new());
    let mut t = Driven::with(|builder| {
        let builder = builder.rejection_policy(RejectionPolicy::RunOnWorker);
        builder.task_executor(move |task: ExpiredTask| {
            let mut queue = queue.lock().unwrap();
            queue.push(task);
            if queue.len() == 3 {
                queue.clear();
            }
        })
    });
    let task_ends = schedule(&t, 3);
    t.pass(TICK);
    assert_eq!((task_ends.runs(), t.timer.stats().dropped_tasks), (3, 0));
}

/// The executor of one timer runs its tasks immediately. One of these drops a task that the
/// executor of the other timer has kept.
#[test]
fn policy_is_not_applied_to_a_task_of_another_timer() {
    let (mut other, others_tasks) = with(RejectionPolicy::default());
    let others_end = schedule(&other, 1);
    other.pass(TICK);
    let mut t = Driven::with(|builder| {
        builder.rejection_policy(RejectionPolicy::RunOnWorker).task_executor(|task: ExpiredTask| task.run())
    });
    t.timer.new_timeout(move |_| drop(others_tasks), TICK).unwrap();
    assert_eq!(t.pass(TICK), 1);
    assert_eq!((others_end.runs(), others_end.drops()), (0, 1));
    assert_eq!((t.timer.stats().dropped_tasks, other.timer.stats().dropped_tasks), (0, 1));
}

/// The task of a timer, which turns another timer, is refused by the executor of that one's call.
#[test]
fn task_is_refused_within_a_call_of_another_executor() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let its_kept = Arc::clone(&kept);
    let mut t = Driven::with(|builder| {
        builder.rejection_policy(RejectionPolicy::RunOnWorker).task_executor(move |task: ExpiredTask| {
            let mut kept = its_kept.lock().unwrap();
            kept.push(task);
            if let [_, _] = kept[..] {
                let task = kept.pop().unwrap();
                drop(kept);
                task.run();
            }
        })
    });
    let (first, kept_by_inner) = (schedule(&t, 1), Arc::clone(&kept));
    let mut inner = Driven::with(|builder| {
        builder.rejection_policy(RejectionPolicy::RunOnWorker).task_executor(move |task: ExpiredTask| {
            drop(kept_by_inner.lock().unwrap().pop());
            task.run();
        })
    });
    inner.timer.new_timeout(|_| (), TICK).unwrap();
    t.timer.new_timeout(move |_| assert_eq!(inner.pass(TICK), 1), TICK).unwrap();
    t.pass(TICK);
    assert_eq!((first.runs(), first.drops()), (1, 1));
    assert_eq!(t.timer.stats().dropped_tasks, 0);
}

#[test]
fn refused_run_of_a_periodic_task_follows_the_policy() {
    for (policy, runs) in [
        (RejectionPolicy::Drop, 0),
        (RejectionPolicy::RunOnWorker, 3),
        (RejectionPolicy::Retry(Duration::ZERO), 0),
    ] {
        let refuse = |task: ExpiredTask| drop(task);
        let mut t = Driven::with(|builder| builder.rejection_policy(policy).task_executor(refuse));
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

/// The timer drops the executor when it stops, also if a retry waits.
#[test]
fn executor_is_dropped_with_a_waiting_retry() {
    let pool = Arc::new(());
    let held = Arc::clone(&pool);
    let mut t = Driven::with(|builder| {
        let builder = builder.rejection_policy(RejectionPolicy::Retry(TICK));
        builder.task_executor(move |task: ExpiredTask| {
            let _ = &held;
            drop(task);
        })
    });
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
    let (stop, stopped) = (Arc::new(Mutex::new(None::<HashedWheelTimer>)), Arc::new(AtomicUsize::new(0)));
    let mut t = Driven::with(|builder| {
        builder.rejection_policy(RejectionPolicy::RunOnWorker).task_executor(|task: ExpiredTask| drop(task))
    });
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
    let builder = builder.slow_task_threshold(TICK).task_executor(|task: ExpiredTask| drop(task));
    let (timer, mut driver) = builder.rejection_policy(RejectionPolicy::RunOnWorker).build_driven().unwrap();
    timer.new_timeout(move |_| its_clock.advance(TICK * 2), TICK).unwrap();
    clock.advance(TICK);
    driver.turn();
    assert_eq!(timer.stats().slow_tasks, 1);
}

#[test]
fn debug_output_shows_the_policy() {
    let text = |policy: RejectionPolicy| format!("{policy:?}");
    assert_eq!(text(RejectionPolicy::Drop), "Drop");
    assert_eq!(text(RejectionPolicy::RunOnWorker), "RunOnWorker");
    assert_eq!(text(RejectionPolicy::Retry(TICK)), "Retry(10ms)");
    let handler = RejectionPolicy::handler(drop);
    if let RejectionPolicy::Handler(function) = &handler {
        assert_eq!(format!("{function:?}"), "Handler { .. }");
    }
    assert_eq!(text(handler), "Handler(..)");
}
