//! The ends of timeouts and timers that do not wait, or wait in another way than `cancel` and
//! `stop`: `cancel_all`, `cancel_and_wait`, `begin_stop`, a drop that is detached,
//! a rejected task that comes back.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    self, Driven, Ends, FULL, Gate, STOPPED, Schedules, TICK, accepts_all, built, ends, eventually,
    ms, quietly,
};
use hashed_wheel::{
    Builder, Ending, ExpiredTask, HashedWheelTimer, NewTimeoutError, TaskExecutor, Timeout,
    TimerTask,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(ms(1), 64)
}

/// A timer with a task that runs until the gate is opened, and with one that is due in an hour.
fn busy(builder: Builder) -> (HashedWheelTimer, Gate, Timeout) {
    let timer = builder.tick(ms(1)).build().unwrap();
    let (gate, wait) = Gate::new();
    timer.schedule(move |_| wait(), Duration::ZERO);
    let later = timer.schedule(|_| (), HOUR);
    gate.wait_for_arrival();
    (timer, gate, later)
}

// --- cancel_all ----------------------------------------------------------------------------------

#[test]
fn cancel_all_ends_each_timeout_as_its_own_cancel() {
    let mut t = Driven::new();
    let task_ends = Ends::new();
    let in_wheel: Vec<_> = (1..20)
        .map(|n| t.schedule_task(task_ends.task(), TICK * n))
        .collect();
    t.turn();
    let in_lane = t.schedule_task(task_ends.task(), HOUR);
    let cancelled_before = t.schedule_task(task_ends.task(), HOUR);
    cancelled_before.cancel();
    // Its message of the earlier deadline is under way.
    assert!(in_wheel[18].reset(TICK));
    let sweep = t.fixed_rate(|| (), TICK, TICK);

    assert_eq!(t.timer.cancel_all(), 21);
    assert!(in_wheel.iter().chain([&in_lane]).all(Timeout::is_cancelled));
    assert!(sweep.is_cancelled());
    assert_eq!(task_ends.counts(), (0, 21, 21));
    assert_eq!(t.pending(), 0);
    assert_eq!(t.stats().cancelled, 22);
    assert_eq!(t.timer.cancel_all(), 0);
    assert_eq!(t.pass(TICK * 30), 0);
}

#[test]
fn timer_continues_after_cancel_all() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    t.schedule(|_| (), TICK);
    assert_eq!(t.timer.cancel_all(), 1);
    let task_ends = Ends::new();
    t.schedule_task(task_ends.task(), TICK);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(task_ends.runs(), 1);
    assert_eq!(t.stats().cancelled_not_reclaimed, 0);
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn cancel_all_reaches_more_messages_than_a_turn_takes() {
    let t = Driven::new();
    for _ in 0..100_010 {
        t.schedule(|_| (), HOUR);
    }
    assert_eq!(t.timer.cancel_all(), 100_010);
}

#[test]
fn cancel_all_does_nothing_on_a_timer_that_is_new_or_stopped() {
    let timer = timer();
    assert_eq!(timer.cancel_all(), 0);
    timer.stop();
    assert_eq!(timer.cancel_all(), 0);
}

#[test]
fn cancel_all_panics_on_the_worker_and_cancels_nothing() {
    let mut t = Driven::new();
    let later = t.schedule(|_| (), HOUR);
    t.schedule(|timeout| _ = timeout.timer().cancel_all(), TICK);
    quietly(|| t.pass(TICK));
    assert_eq!(t.stats().panics, 1);
    assert!(!later.is_cancelled());
}

#[test]
fn hook_of_cancel_all_can_use_the_timer() {
    struct Again;

    impl TimerTask for Again {
        fn run(self, _: &Timeout) {}

        fn cancelled(self, timeout: &Timeout) {
            let timer = timeout.timer();
            timer.schedule(|_| (), HOUR);
            assert_eq!(timer.cancel_all(), 1);
        }
    }

    let t = Driven::new();
    t.schedule_task(Again, TICK);
    assert_eq!(t.timer.cancel_all(), 1);
    assert_eq!((t.pending(), t.stats().panics), (0, 0));
}

/// Each timeout is cancelled by `cancel_all`, or expires, or is cancelled by its own thread.
#[test]
fn each_timeout_ends_once_beside_cancel_all() {
    const TIMEOUTS: usize = if cfg!(miri) { 100 } else { 20_000 };

    let timer = timer();
    let (task_ends, own) = (Ends::new(), Arc::new(AtomicUsize::new(0)));
    let producers: Vec<_> = (0..2)
        .map(|_| {
            let (timer, task_ends, own) = (timer.clone(), Arc::clone(&task_ends), Arc::clone(&own));
            thread::spawn(move || {
                for n in 0..TIMEOUTS {
                    let timeout = timer.schedule_task(task_ends.task(), ms(n as u64 % 20));
                    if n % 3 == 0 {
                        _ = timeout.reset(ms(n as u64 % 7));
                        own.fetch_add(usize::from(timeout.cancel()), SeqCst);
                    }
                }
            })
        })
        .collect();
    let mut all = 0;
    while !producers.iter().all(thread::JoinHandle::is_finished) {
        all += timer.cancel_all();
    }
    producers
        .into_iter()
        .for_each(|producer| producer.join().unwrap());
    all += timer.cancel_all();
    assert_eq!(timer.pending_timeouts(), 0);
    assert_eq!(timer.stop(), []);
    assert_eq!(task_ends.hooks(), all + own.load(SeqCst));
    assert_eq!(task_ends.runs() + task_ends.hooks(), 2 * TIMEOUTS);
    assert_eq!(task_ends.drops(), 2 * TIMEOUTS);
}

#[cfg(feature = "async")]
#[test]
fn cancel_all_leaves_futures_alone() {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    let mut t = Driven::new();
    let mut sleep = t.timer.sleep(TICK);
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut sleep).poll(&mut context).is_pending());
    t.turn();
    assert_eq!(t.timer.cancel_all(), 0);
    assert_eq!(t.pending(), 1);
    t.pass(TICK);
    assert_eq!(Pin::new(&mut sleep).poll(&mut context), Poll::Ready(Ok(())));
}

// --- cancel_and_wait -----------------------------------------------------------------------------

/// An executor with a thread per task.
fn thread_per_task(builder: Builder) -> Builder {
    builder.task_executor(accepts_all(|task: ExpiredTask| {
        drop(thread::spawn(|| task.run()));
    }))
}

#[test]
fn cancel_and_wait_returns_what_cancel_returns() {
    let mut t = Driven::new();
    let task_ends = Ends::new();
    let timeout = t.schedule_task(task_ends.task(), TICK);
    assert!(timeout.cancel_and_wait());
    assert!(!timeout.cancel_and_wait());
    assert_eq!((task_ends.hooks(), task_ends.drops()), (1, 1));
    let expired = t.schedule_task(task_ends.task(), TICK);
    t.pass(TICK);
    assert!(!expired.cancel_and_wait());
}

#[test]
fn cancel_and_wait_waits_for_the_end_of_the_task() {
    for settings in [|builder| builder, thread_per_task] {
        ends(move || {
            let timer = built(|builder| settings(builder).tick(ms(1)));
            let (gate, wait) = Gate::new();
            let state = Arc::new(Mutex::new("pending"));
            let task_state = Arc::clone(&state);
            let task = move |_: &_| {
                *task_state.lock().unwrap() = "runs";
                wait();
                *task_state.lock().unwrap() = "over";
            };
            let timeout = timer.schedule(task, Duration::ZERO);
            gate.wait_for_arrival();
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let (timeout, state) = (timeout.clone(), Arc::clone(&state));
                    thread::spawn(move || {
                        assert!(!timeout.cancel_and_wait());
                        assert_eq!(*state.lock().unwrap(), "over");
                    })
                })
                .collect();
            thread::sleep(ms(20));
            assert!(!waiters.iter().any(thread::JoinHandle::is_finished));
            gate.open();
            waiters
                .into_iter()
                .for_each(|waiter| waiter.join().unwrap());
            // The task is dropped too.
            assert_eq!(Arc::strong_count(&state), 1);
        });
    }
}

#[test]
fn cancel_and_wait_waits_for_a_task_that_waits_in_a_pool() {
    ends(|| {
        let (pool, tasks) = channel::<ExpiredTask>();
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(move |task| drop(pool.send(task))))
        });
        let task_ends = Ends::new();
        for runs in [true, false] {
            let timeout = t.schedule_task(task_ends.task(), TICK);
            t.pass(TICK);
            let task = tasks.recv().unwrap();
            let waiter = thread::spawn(move || timeout.cancel_and_wait());
            thread::sleep(ms(5));
            assert!(!waiter.is_finished());
            if runs {
                task.run();
            } else {
                drop(task);
            }
            assert!(!waiter.join().unwrap());
        }
        assert_eq!((task_ends.runs(), task_ends.drops()), (1, 2));
    });
}

/// The end of a run wakes all threads that wait for any run. Those that wait for another one go on.
#[test]
fn cancel_and_wait_goes_on_when_another_task_ends() {
    ends(|| {
        let (pool, tasks) = channel::<ExpiredTask>();
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(move |task| drop(pool.send(task))))
        });
        let task_ends = [Ends::new(), Ends::new()];
        let timeouts = task_ends
            .each_ref()
            .map(|end| t.schedule_task(end.task(), TICK));
        t.pass(TICK);
        let waiters = timeouts.map(|timeout| thread::spawn(move || timeout.cancel_and_wait()));
        thread::sleep(ms(20));
        let [first, second] = waiters;
        let [first_task, second_task] = [tasks.recv().unwrap(), tasks.recv().unwrap()];
        second_task.run();
        assert!(!second.join().unwrap());
        thread::sleep(ms(20));
        assert!(!first.is_finished() && task_ends[0].runs() == 0);
        first_task.run();
        assert!(!first.join().unwrap());
    });
}

#[test]
fn cancel_and_wait_does_not_wait_for_the_calling_task() {
    for settings in [|builder| builder, thread_per_task] {
        ends(move || {
            let timer = built(|builder| settings(builder).tick(ms(1)));
            let (sender, receiver) = channel();
            let task = move |timeout: &Timeout| sender.send(timeout.cancel_and_wait()).unwrap();
            timer.schedule(task, Duration::ZERO);
            assert!(!receiver.recv().unwrap());
        });
    }
}

/// The executor drops the task, and the task cancels its own timeout when it is dropped.
#[test]
fn cancel_and_wait_in_the_drop_of_a_refused_task_does_not_wait() {
    struct Connection(Arc<Mutex<Option<Timeout>>>);

    impl Drop for Connection {
        fn drop(&mut self) {
            let timeout = self.0.lock().unwrap().take();
            assert!(!timeout.expect("dropped once").cancel_and_wait());
        }
    }

    ends(|| {
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(|task: ExpiredTask| drop(task)))
        });
        let place = Arc::new(Mutex::new(None));
        let connection = Connection(Arc::clone(&place));
        let timeout = t.schedule(move |_| drop(connection), TICK);
        *place.lock().unwrap() = Some(timeout);
        t.pass(TICK);
        assert_eq!((t.stats().dropped_tasks, t.stats().panics), (1, 0));
    });
}

/// An executor that waits, within `execute`, for the task that it was given.
#[test]
fn cancel_and_wait_in_an_executor_does_not_wait_for_its_own_task() {
    ends(|| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let has_returned = Arc::new(AtomicBool::new(false));
        let returns = Arc::clone(&has_returned);
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(move |task: ExpiredTask| {
                let timeout = task.timeout().clone();
                keep.lock().unwrap().push(task);
                timeout.cancel_and_wait();
                returns.store(true, SeqCst);
            }))
        });
        let task_ends = Ends::new();
        let timeout = t.schedule_task(task_ends.task(), TICK);
        let sweep = t.fixed_rate(|| (), TICK, TICK);
        common::quietly(|| assert_eq!(t.pass(TICK), 2));
        assert_eq!(t.stats().panics, 2);
        assert!(!has_returned.load(SeqCst), "the task has not run");
        assert!(sweep.is_cancelled() && timeout.is_expired());
        // The tasks are as they were, and another thread can wait for them.
        let waiter = thread::spawn(move || (timeout.cancel_and_wait(), sweep.cancel_and_wait()));
        thread::sleep(ms(5));
        assert!(!waiter.is_finished());
        std::mem::take(&mut *kept.lock().unwrap())
            .into_iter()
            .for_each(ExpiredTask::run);
        assert_eq!(waiter.join().unwrap(), (false, false));
        assert_eq!((task_ends.runs(), t.stats().panics), (1, 2));
    });
}

#[test]
fn cancel_and_wait_in_an_executor_that_has_run_the_task_returns() {
    ends(|| {
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(|task: ExpiredTask| {
                let timeout = task.timeout().clone();
                task.run();
                assert!(!timeout.cancel_and_wait());
            }))
        });
        let task_ends = Ends::new();
        t.schedule_task(task_ends.task(), TICK);
        t.pass(TICK);
        assert_eq!((task_ends.runs(), t.stats().panics), (1, 0));
    });
}

#[test]
fn cancel_and_wait_of_a_periodic_task_waits_for_its_run() {
    for settings in [|builder| builder, thread_per_task] {
        ends(move || {
            let timer = built(|builder| settings(builder).tick(ms(1)));
            let (gate, wait) = Gate::new();
            let (mut wait, runs) = (Some(wait), Arc::new(AtomicUsize::new(0)));
            let task_runs = Arc::clone(&runs);
            let task = move || {
                wait.take().expect("there is one run")();
                task_runs.fetch_add(1, SeqCst);
            };
            let sweep = timer.fixed_rate(task, Duration::ZERO, ms(1));
            gate.wait_for_arrival();
            let cancelled = sweep.clone();
            let waiter = thread::spawn(move || cancelled.cancel_and_wait());
            eventually("the task is cancelled", || sweep.is_cancelled());
            thread::sleep(ms(5));
            assert!(!waiter.is_finished());
            gate.open();
            assert!(waiter.join().unwrap());
            assert_eq!(runs.load(SeqCst), 1);
            assert_eq!(Arc::strong_count(&runs), 1);
        });
    }
}

#[test]
fn cancel_and_wait_of_a_periodic_task_that_does_not_run_does_not_wait() {
    for settings in [|builder| builder, thread_per_task] {
        let mut t = Driven::with(settings);
        let sweep = t.fixed_rate(|| (), TICK, TICK);
        t.turn();
        assert!(sweep.cancel_and_wait());
        assert!(!sweep.cancel_and_wait());
    }
}

// --- begin_stop, begin_shutdown ------------------------------------------------------------------

#[test]
fn begin_stop_returns_the_rest_of_an_idle_timer() {
    let t = timer();
    let later = t.schedule(|_| (), HOUR);
    assert_eq!(t.begin_stop().wait_timeout(HOUR).unwrap(), [later]);
    assert!(t.is_stopped());
    assert_eq!(t.begin_stop().wait_timeout(HOUR).unwrap(), []);
}

/// A thread ends after the destructors of its thread-locals.
#[test]
fn a_wait_with_a_limit_waits_for_the_thread_that_stops_the_timer() {
    struct Leftover(Arc<AtomicUsize>);
    impl Drop for Leftover {
        fn drop(&mut self) {
            thread::sleep(ms(30));
            self.0.fetch_add(1, SeqCst);
        }
    }
    thread_local!(static LEFTOVER: Cell<Option<Leftover>> = const { Cell::new(None) });
    struct Leaving(Arc<AtomicUsize>);
    impl TimerTask for Leaving {
        fn run(self, _: &Timeout) {}

        fn cancelled(self, _: &Timeout) {
            LEFTOVER.set(Some(Leftover(self.0)));
        }
    }

    for limit in [HOUR, Duration::ZERO] {
        let (t, dropped) = (timer(), Arc::new(AtomicUsize::new(0)));
        t.schedule_task(Leaving(Arc::clone(&dropped)), HOUR);
        let left = t
            .begin_stop()
            .wait_timeout(limit)
            .unwrap_or_else(|ending| ending.wait());
        assert_eq!((left.len(), dropped.load(SeqCst)), (1, 1));
    }
}

#[test]
fn a_wait_with_a_limit_returns_in_time_and_says_what_runs() {
    for threshold in [Duration::ZERO, HOUR, Duration::MAX] {
        wait_with_a_limit_says_what_runs(threshold);
    }
}

fn wait_with_a_limit_says_what_runs(threshold: Duration) {
    ends(move || {
        let builder = HashedWheelTimer::builder().slow_task_threshold(Some(threshold));
        let (timer, gate, later) = busy(builder);
        let begin = Instant::now();
        let ending = timer.begin_stop().wait_timeout(ms(10)).unwrap_err();
        assert!(begin.elapsed() >= ms(10));
        assert!(!ending.is_finished());
        let running = ending.running_task().unwrap();
        assert!(running.task.contains("busy"), "{}", running.task);
        assert!(running.elapsed >= ms(10));
        let ending = ending.wait_timeout(ms(1)).unwrap_err();

        gate.open();
        assert_eq!(ending.wait(), [later]);
        assert_eq!(timer.stats().panics, 0);
    });
}

/// The thread that ends the timer drops the executor, which waits for the end.
#[test]
fn a_wait_on_the_thread_that_ends_the_timer_panics() {
    #[derive(Default)]
    struct Waits(Arc<Mutex<Option<Ending>>>);

    impl TaskExecutor for Waits {
        fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
            task.run();
            Ok(())
        }
    }

    impl Drop for Waits {
        fn drop(&mut self) {
            let ending = self.0.lock().unwrap().take();
            common::quietly(|| ending.expect("the timer ends").wait());
        }
    }

    ends(|| {
        let executor = Waits::default();
        let place = Arc::clone(&executor.0);
        let (timer, gate, later) = busy(HashedWheelTimer::builder().task_executor(executor));
        *place.lock().unwrap() = Some(timer.begin_stop());
        gate.open();
        eventually("the wait is over", || timer.stats().panics == 1);
        assert!(timer.is_stopped() && later.is_cancelled());
    });
}

#[test]
fn running_task_is_unknown_without_a_threshold() {
    let (timer, gate, _) = busy(HashedWheelTimer::builder());
    let ending = timer.begin_stop().wait_timeout(Duration::ZERO).unwrap_err();
    assert_eq!(ending.running_task(), None);
    gate.open();
    ending.wait();
}

#[test]
fn begin_shutdown_lets_due_tasks_run() {
    let timer = timer();
    let due = timer.schedule(|_| (), ms(20));
    let later = timer.schedule(|_| (), HOUR);
    let rest = timer.begin_shutdown(ms(20)).wait_timeout(HOUR).unwrap();
    assert_eq!(rest, [later]);
    assert!(due.is_expired());
}

#[test]
fn shutdown_goes_on_after_its_limit() {
    let timer = timer();
    let due = timer.schedule(|_| (), ms(50));
    let ending = timer
        .begin_shutdown(HOUR)
        .wait_timeout(Duration::ZERO)
        .unwrap_err();
    // The drop of the last handle does not cut the grace short.
    drop(timer);
    assert_eq!(ending.wait(), []);
    assert!(due.is_expired());
}

#[test]
fn drop_of_the_last_handle_does_not_wait_for_an_end_that_goes_on() {
    let (timer, gate, later) = busy(HashedWheelTimer::builder());
    let ending = timer.begin_stop().wait_timeout(Duration::ZERO).unwrap_err();
    ends(move || drop(timer));
    assert!(!ending.is_finished());
    gate.open();
    assert_eq!(ending.wait(), [later]);
}

#[test]
fn wait_for_the_end_panics_on_the_worker() {
    let mut t = Driven::new();
    let task = |timeout: &Timeout| _ = timeout.timer().begin_stop().wait_timeout(HOUR);
    t.schedule(task, TICK);
    quietly(|| t.pass(TICK));
    assert_eq!(t.stats().panics, 1);
    eventually("the end goes on", || t.timer.is_stopped());
}

#[test]
fn begin_shutdown_of_a_driven_timer_runs_what_is_due() {
    let t = Driven::new();
    let due = t.schedule(|_| (), TICK);
    let later = t.schedule(|_| (), HOUR);
    t.clock.advance(TICK);
    let rest = t.timer.begin_shutdown(HOUR).wait_timeout(HOUR).unwrap();
    assert_eq!(rest, [later]);
    assert!(due.is_expired());
}

mod with_futures {
    use std::task::{Poll, Waker};

    use super::*;
    use crate::common::AsyncTask;

    fn poll(ending: &mut Ending, task: &Arc<AsyncTask>) -> Poll<Vec<Timeout>> {
        let waker = Waker::from(Arc::clone(task));
        crate::common::poll(ending, &waker)
    }

    #[test]
    fn begin_stop_does_not_block_and_wakes_its_future() {
        let (timer, gate, later) = busy(HashedWheelTimer::builder());
        let mut ending = timer.begin_stop();
        let rejected = timer.new_timeout(|_| (), HOUR).unwrap_err();
        assert!(matches!(rejected, NewTimeoutError::Stopped), "{rejected}");
        let (first, last) = (AsyncTask::new(), AsyncTask::new());
        assert!(poll(&mut ending, &first).is_pending());
        assert!(poll(&mut ending, &last).is_pending());
        gate.open();
        eventually("the future is woken", || last.wakes() > 0);
        assert_eq!((first.wakes(), last.wakes()), (0, 1));
        assert_eq!(poll(&mut ending, &last), Poll::Ready(vec![later]));
        assert_eq!(poll(&mut ending, &last), Poll::Ready(vec![]));
    }

    #[test]
    fn future_of_a_shutdown_lets_due_tasks_run() {
        let timer = timer();
        let due = timer.schedule(|_| (), ms(10));
        let later = timer.schedule(|_| (), HOUR);
        let mut ending = timer.begin_shutdown(ms(10));
        let task = AsyncTask::new();
        if poll(&mut ending, &task).is_pending() {
            eventually("the future is woken", || task.wakes() > 0);
            assert_eq!(poll(&mut ending, &task), Poll::Ready(vec![later]));
        }
        assert!(due.is_expired());
    }

    #[test]
    fn end_goes_on_if_its_future_is_dropped() {
        let (timer, gate, later) = busy(HashedWheelTimer::builder());
        drop(timer.begin_stop());
        gate.open();
        eventually("the end goes on", || later.is_cancelled());
    }

    #[test]
    fn task_on_the_worker_can_begin_the_end() {
        let timer = timer();
        let (sender, receiver) = channel();
        let task = move |timeout: &Timeout| sender.send(timeout.timer().begin_stop()).unwrap();
        let later = timer.schedule(|_| (), HOUR);
        timer.schedule(task, Duration::ZERO);
        assert_eq!(receiver.recv().unwrap().wait(), [later]);
        assert_eq!(timer.stats().panics, 0);
    }
}

// --- WeakTimer -----------------------------------------------------------------------------------

#[test]
fn weak_handle_does_not_keep_the_timer() {
    let t = Driven::new();
    let timeout = t.schedule(|_| (), TICK);
    let weak = t.timer.downgrade();
    let other = weak.clone();
    // An upgraded handle keeps it, as any other.
    let timer = weak.upgrade().unwrap();
    drop(t.timer);
    assert!(!timer.is_stopped() && other.upgrade().is_some());
    drop(timer);
    assert!(timeout.is_cancelled());
    assert!(weak.upgrade().is_none() && other.upgrade().is_none());
    // The timeout still has a handle, which does not count.
    let stopped = timeout.timer();
    assert!(stopped.is_stopped() && stopped.downgrade().upgrade().is_none());
    assert_eq!(format!("{weak:?}"), "WeakTimer");
}

#[test]
fn weak_handle_of_a_stopped_timer_has_its_handles() {
    let t = timer();
    t.stop();
    assert!(
        t.downgrade()
            .upgrade()
            .is_some_and(|timer| timer.is_stopped())
    );
}

// --- detach_on_drop ------------------------------------------------------------------------------

#[test]
fn detached_drop_does_not_wait_for_a_running_task() {
    let (timer, gate, later) = busy(HashedWheelTimer::builder().detach_on_drop(true));
    ends(move || drop(timer));
    assert!(!later.is_cancelled(), "the task holds the end up");
    gate.open();
    eventually("the end goes on", || later.is_cancelled());
}

#[test]
fn detached_drop_lets_a_shutdown_go_on() {
    let timer = built(|builder| builder.tick(ms(1)).detach_on_drop(true));
    let near = timer.schedule(|_| (), ms(100));
    let far = timer.schedule(|_| (), ms(3_600_000));
    let ending = timer
        .begin_shutdown(ms(30_000))
        .wait_timeout(ms(0))
        .unwrap_err();
    drop(timer);
    assert_eq!(ending.wait(), [far]);
    assert!(near.is_expired());
}

#[test]
fn detached_drop_by_a_task_on_the_worker_ends_the_timer() {
    let timer = built(|builder| builder.tick(ms(1)).detach_on_drop(true));
    let later = timer.schedule(|_| (), HOUR);
    let (sender, receiver) = channel();
    let last = timer.clone();
    let task = move |_: &_| {
        drop(last);
        sender.send(()).unwrap();
    };
    timer.schedule(task, ms(20));
    drop(timer);
    receiver.recv().unwrap();
    assert_eq!(later.timer().stop(), []);
    assert!(later.is_cancelled());
}

// --- the task comes back -------------------------------------------------------------------------

struct Carrier(Arc<Ends>, u32);

impl TimerTask for Carrier {
    fn run(self, _: &Timeout) {
        self.0.runs.fetch_add(1, SeqCst);
    }

    fn cancelled(self, _: &Timeout) {
        self.0.hooks.fetch_add(1, SeqCst);
    }
}

#[test]
fn accepted_task_runs() {
    let mut t = Driven::new();
    let task_ends = Ends::new();
    t.timer
        .try_new_timeout_task(Carrier(Arc::clone(&task_ends), 7), TICK)
        .unwrap();
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(task_ends.runs(), 1);
}

#[test]
fn rejected_task_comes_back() {
    let task_ends = Ends::new();
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let carrier = |number| Carrier(Arc::clone(&task_ends), number);
    t.schedule(|_| (), HOUR);
    let rejected = t.timer.try_new_timeout_task(carrier(1), TICK).unwrap_err();
    assert_eq!(rejected.task.1, 1);
    assert_eq!(rejected.error, FULL);
    assert_eq!(rejected.to_string(), rejected.error.to_string());

    t.timer.stop();
    let rejected = t.timer.try_new_timeout_task(carrier(2), TICK).unwrap_err();
    assert_eq!(rejected.task.1, 2);
    assert_eq!(NewTimeoutError::from(rejected), STOPPED);
    assert_eq!((task_ends.runs(), task_ends.hooks()), (0, 0));
    assert_eq!(t.stats().rejected, 2);
}

/// Also if the timer is closed after the task was sent to the worker. (In a model: each execution.)
#[test]
fn task_comes_back_or_is_returned_by_stop() {
    for _ in 0..if cfg!(miri) { 5 } else { 100 } {
        let timer = timer();
        timer.start().unwrap();
        let task_ends = Ends::new();
        let other = timer.clone();
        let task = Carrier(Arc::clone(&task_ends), 0);
        let producer = thread::spawn(move || {
            let (mut task, mut accepted) = (task, 0);
            loop {
                let counts = Arc::clone(&task.0);
                match other.try_new_timeout_task(task, HOUR) {
                    Ok(_) => accepted += 1,
                    Err(rejected) => return (accepted, rejected.task.1),
                }
                task = Carrier(counts, accepted);
            }
        });
        let rest = timer.stop().len();
        let (accepted, came_back) = producer.join().unwrap();
        assert_eq!(rest, accepted as usize);
        assert_eq!(came_back, accepted);
        assert_eq!(task_ends.hooks(), rest);
    }
}

#[test]
fn ending_tells_whether_it_is_finished() {
    let (timer, gate, later) = busy(HashedWheelTimer::builder());
    let ending = timer.begin_stop().wait_timeout(Duration::ZERO).unwrap_err();
    assert!(!ending.is_finished());
    let text = format!("{ending:?}");
    assert!(text.starts_with("Ending { is_finished: false, "), "{text}");
    gate.open();
    eventually("the end is finished", || ending.is_finished());
    assert_eq!(ending.wait_timeout(Duration::ZERO).unwrap(), [later]);
}

#[test]
fn errors_name_their_reason_and_convert_into_io_errors() {
    use std::io::{Error, ErrorKind};

    let (timer, ends) = (timer(), Ends::new());
    timer.stop();
    let rejected = timer.try_new_timeout_task(ends.task(), HOUR).unwrap_err();
    let text = format!("{rejected:?}");
    assert_eq!(text, "TryNewTimeoutError { error: Stopped, .. }");
    assert_eq!(rejected.to_string(), "the timer is stopped");
    let kind = ErrorKind::WouldBlock;
    for (error, kind, text) in [
        (
            rejected.error.clone(),
            ErrorKind::NotConnected,
            "the timer is stopped",
        ),
        (
            NewTimeoutError::TooManyPending { limit: 7 },
            ErrorKind::QuotaExceeded,
            "too many timeouts are pending: the limit is 7",
        ),
        (
            NewTimeoutError::ZeroPeriod,
            ErrorKind::InvalidInput,
            "period is zero",
        ),
        (
            NewTimeoutError::Spawn {
                kind,
                os_error: None,
            },
            kind,
            "the worker thread could not be started: ",
        ),
    ] {
        assert!(error.to_string().starts_with(text), "{error}");
        // The text that is printed is not the source too.
        assert!(std::error::Error::source(&error).is_none());
        assert_eq!(Error::from(error.clone()).kind(), kind);
        #[cfg(feature = "async")]
        {
            let timeout = hashed_wheel::TimeoutError::from(error.clone());
            assert!(
                timeout.to_string().ends_with(&error.to_string()),
                "{timeout}"
            );
            assert_eq!(Error::from(timeout).kind(), kind);
        }
    }
    let out_of_threads = NewTimeoutError::Spawn {
        kind,
        os_error: Some(11),
    };
    assert_eq!(Error::from(out_of_threads).raw_os_error(), Some(11));
    assert_eq!(Error::from(rejected).kind(), ErrorKind::NotConnected);
}
