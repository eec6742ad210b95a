//! Turns that hand the due tasks out: `Driver::turn_into`.
// Futures are among what they hand out.
#![cfg(feature = "async")]

use crate::common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{AsyncTask, Driven, Ends, Log, TICK, accepts_all, ends, eventually, ms};
use hashed_wheel::{Driver, ExpiredTask, HashedWheelTimer};

/// Advances the clock, and returns what a turn hands out.
fn hand_out(t: &mut Driven, time: Duration) -> Vec<ExpiredTask> {
    t.clock.advance(time);
    let mut tasks = Vec::new();
    assert_eq!(t.driver.turn_into(&mut tasks), tasks.len());
    tasks
}

fn run_all(tasks: Vec<ExpiredTask>) {
    tasks.into_iter().for_each(ExpiredTask::run);
}

#[test]
fn due_tasks_are_appended_in_order_and_do_not_run() {
    let (mut t, log) = (Driven::new(), Log::default());
    for number in [3, 1, 2] {
        t.timer
            .new_timeout(log.task(number), TICK * number as u32)
            .unwrap();
    }
    let later = t.timer.new_timeout(log.task(4), TICK * 4).unwrap();
    let mut tasks = hand_out(&mut t, TICK);
    t.clock.advance(TICK * 2);
    assert_eq!(t.driver.turn_into(&mut tasks), 2);
    assert_eq!(log.take(), []);
    assert_eq!(t.timer.pending_timeouts(), 1);
    assert!(
        tasks
            .iter()
            .all(|task| task.timeout().is_expired() && !task.timeout().cancel())
    );
    run_all(tasks);
    assert_eq!(log.take(), [1, 2, 3]);
    assert_eq!(t.timer.stop(), [later]);
    assert_eq!(t.timer.stats().expired, 3);
}

#[test]
fn tasks_that_would_run_on_the_worker_are_handed_out() {
    let mut t = Driven::new();
    let (task, mut sleep) = (AsyncTask::new(), pin!(t.timer.sleep(TICK)));
    let waker = Waker::from(Arc::clone(&task));
    let mut poll = |waker: &Waker| sleep.as_mut().poll(&mut Context::from_waker(waker));
    assert!(poll(&waker).is_pending());
    let tasks = hand_out(&mut t, TICK);
    assert_eq!((tasks.len(), task.wakes()), (1, 0));
    run_all(tasks);
    assert_eq!(task.wakes(), 1);
    assert_eq!(poll(&waker), Poll::Ready(Ok(())));
}

#[test]
fn executor_gets_nothing_that_is_handed_out() {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&executed);
    let executor = accepts_all(move |task| {
        count.fetch_add(1, SeqCst);
        task.run();
    });
    let mut t = Driven::with(|builder| builder.task_executor(executor));
    let task_ends = Ends::new();
    for expired in [0, 1] {
        let timeout = t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
        run_all(hand_out(&mut t, TICK));
        assert_eq!(
            (task_ends.runs(), executed.load(SeqCst)),
            (expired * 2 + 1, expired)
        );
        assert!(!timeout.cancel_and_wait());
        t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
        assert_eq!(t.pass(TICK), 1, "the next turn has the executor again");
        assert_eq!(
            (task_ends.runs(), executed.load(SeqCst)),
            (expired * 2 + 2, expired + 1)
        );
    }
}

#[test]
fn dropped_task_does_not_run_and_is_counted() {
    let (mut t, task_ends) = (Driven::new(), Ends::new());
    let timeout = t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
    drop(hand_out(&mut t, TICK));
    assert_eq!(
        (task_ends.runs(), task_ends.hooks(), task_ends.drops()),
        (0, 0, 1)
    );
    assert_eq!(t.timer.stats().dropped_tasks, 1);
    assert!(!timeout.cancel_and_wait());
}

#[test]
fn tasks_may_outlive_the_timer() {
    let (mut t, task_ends) = (Driven::new(), Ends::new());
    t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
    let tasks = hand_out(&mut t, TICK);
    assert_eq!(t.timer.stop(), []);
    drop(t);
    run_all(tasks);
    assert_eq!((task_ends.runs(), task_ends.drops()), (1, 1));
}

#[test]
fn stopped_timer_hands_nothing_out() {
    let (mut t, task_ends) = (Driven::new(), Ends::new());
    t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
    t.timer.stop();
    assert!(hand_out(&mut t, TICK).is_empty());
    assert_eq!(task_ends.hooks(), 1);
}

#[test]
fn cancel_and_wait_waits_until_the_caller_has_run_the_task() {
    for (expected_runs, end) in [(1, ExpiredTask::run as fn(_)), (0, drop)] {
        ends(move || {
            let (mut t, task_ends) = (Driven::new(), Ends::new());
            let timeout = t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
            let tasks = hand_out(&mut t, TICK);
            let waiter = thread::spawn(move || timeout.cancel_and_wait());
            thread::sleep(ms(5));
            assert!(!waiter.is_finished());
            tasks.into_iter().for_each(end);
            assert!(!waiter.join().unwrap());
            assert_eq!((task_ends.runs(), task_ends.drops()), (expected_runs, 1));
        });
    }
}

/// A driver may make turns of both kinds. Only what was handed out is awaited.
#[test]
fn cancel_and_wait_does_not_wait_for_tasks_that_a_turn_has_run() {
    ends(|| {
        let (mut t, task_ends) = (Driven::new(), Ends::new());
        let timeouts = [1, 2].map(|tick| {
            t.timer
                .new_timeout_task(task_ends.task(), TICK * tick)
                .unwrap()
        });
        assert_eq!(t.pass(TICK), 1);
        run_all(hand_out(&mut t, TICK));
        assert!(!timeouts.iter().any(|timeout| timeout.cancel_and_wait()));
    });
}

#[test]
fn cancel_and_wait_in_the_task_itself_does_not_wait() {
    ends(|| {
        let mut t = Driven::new();
        let result = Arc::new(Mutex::new(None));
        let task_result = Arc::clone(&result);
        let task = move |timeout: &hashed_wheel::Timeout| {
            *task_result.lock().unwrap() = Some(timeout.cancel_and_wait());
        };
        t.timer.new_timeout(task, TICK).unwrap();
        run_all(hand_out(&mut t, TICK));
        assert_eq!(*result.lock().unwrap(), Some(false));
    });
}

#[test]
fn periodic_task_is_due_again_after_its_run() {
    let (mut t, runs) = (Driven::new(), Arc::new(AtomicUsize::new(0)));
    let task_runs = Arc::clone(&runs);
    let task = move || _ = task_runs.fetch_add(1, SeqCst);
    let sweep = t.timer.schedule_at_fixed_rate(task, TICK, TICK).unwrap();
    let first = hand_out(&mut t, TICK);
    assert_eq!((first.len(), runs.load(SeqCst)), (1, 0));
    assert!(
        hand_out(&mut t, TICK).is_empty(),
        "the first run is not over"
    );
    run_all(first);
    let by_now = runs.load(SeqCst);
    assert!(by_now >= 1);
    drop(hand_out(&mut t, TICK));
    assert_eq!(
        (runs.load(SeqCst), t.timer.stats().dropped_tasks),
        (by_now, 1)
    );
    run_all(hand_out(&mut t, TICK));
    assert_eq!(runs.load(SeqCst), by_now + 1, "only one run was left out");
    assert!(sweep.cancel());
    assert!(hand_out(&mut t, TICK).is_empty());
    assert_eq!(t.timer.pending_timeouts(), 0);
}

/// The mark of a run that was handed out does not outlive the run.
#[test]
fn cancel_and_wait_of_a_periodic_task_waits_for_either_kind_of_run() {
    ends(|| {
        let mut t = Driven::new();
        let (gate, wait) = common::Gate::new();
        let (mut wait, runs) = (Some(wait), Arc::new(AtomicUsize::new(0)));
        let task_runs = Arc::clone(&runs);
        let task = move || {
            if task_runs.fetch_add(1, SeqCst) == 1 {
                wait.take().expect("there is one second run")();
            }
        };
        let sweep = t.timer.schedule_at_fixed_rate(task, TICK, TICK).unwrap();
        run_all(hand_out(&mut t, TICK));
        let cancelled = sweep.clone();
        let waiter = thread::spawn(move || {
            gate.wait_for_arrival();
            let opener = thread::spawn(move || {
                eventually("the task is cancelled", || cancelled.is_cancelled());
                thread::sleep(ms(5));
                gate.open();
            });
            assert!(sweep.cancel_and_wait());
            assert_eq!(Arc::strong_count(&runs), 1, "the task is dropped");
            opener.join().unwrap();
        });
        assert_eq!(t.pass(TICK), 1);
        waiter.join().unwrap();
    });
    ends(|| {
        let mut t = Driven::new();
        let sweep = t.timer.schedule_at_fixed_rate(|| (), TICK, TICK).unwrap();
        let run = hand_out(&mut t, TICK);
        let waiter = thread::spawn(move || sweep.cancel_and_wait());
        thread::sleep(ms(5));
        assert!(!waiter.is_finished());
        run_all(run);
        assert!(waiter.join().unwrap());
    });
}

/// Several threads turn one driver, and each task uses the reactor whose lock the turn had.
#[test]
fn reactor_that_several_threads_turn_runs_each_task_once_and_without_its_lock() {
    const TIMEOUTS: usize = if cfg!(miri) { 50 } else { 5_000 };

    struct Reactor(Mutex<Driver>);

    impl Reactor {
        fn turn(&self) -> usize {
            let mut due = Vec::new();
            self.0.lock().unwrap().turn_into(&mut due);
            let count = due.len();
            run_all(due);
            count
        }
    }

    impl Wake for Reactor {
        fn wake(self: Arc<Self>) {
            assert!(self.0.lock().is_ok());
        }
    }

    ends(|| {
        let (timer, driver) = HashedWheelTimer::builder()
            .tick(ms(1))
            .build_driven()
            .unwrap();
        let reactor = Arc::new(Reactor(Mutex::new(driver)));
        let mut sleep = pin!(timer.sleep(ms(2)));
        let waker = Waker::from(Arc::clone(&reactor));
        assert!(
            sleep
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let runs: Arc<Vec<AtomicUsize>> =
            Arc::new((0..TIMEOUTS).map(|_| AtomicUsize::new(0)).collect());
        for i in 0..TIMEOUTS {
            let (runs, reactor) = (Arc::clone(&runs), Arc::clone(&reactor));
            let task = move |_: &_| {
                let _ = reactor.0.lock().unwrap().next_turn();
                runs[i].fetch_add(1, SeqCst);
            };
            timer
                .new_timeout(task, Duration::from_micros(i as u64 * 3))
                .unwrap();
        }
        let handed_out = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while handed_out.load(SeqCst) < TIMEOUTS + 1 {
                        handed_out.fetch_add(reactor.turn(), SeqCst);
                    }
                });
            }
        });
        assert_eq!(handed_out.load(SeqCst), TIMEOUTS + 1);
        assert!(runs.iter().all(|runs| runs.load(SeqCst) == 1));
        assert_eq!((timer.stats().panics, timer.stats().dropped_tasks), (0, 0));
    });
}
