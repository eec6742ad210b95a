//! `shutdown` runs what falls due within the grace and returns the rest. It waits no longer than
//! necessary.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Driven, Ends, Gate, Log, Schedules, TEST_TIMEOUT, TICK, accepts_all, built, built_driven, ends,
    eventually, ms, quietly,
};
use hashed_wheel::{
    Builder, Clock, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};

/// Longer than any of these tests may take.
const HOUR: Duration = Duration::from_secs(3_600);

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(ms(1), 64)
}

/// Shuts the timer down on a separate thread, and waits until the shutdown has begun.
fn begin_shutdown(timer: &HashedWheelTimer, grace: Duration) -> thread::JoinHandle<Vec<Timeout>> {
    let other = timer.clone();
    let shutdown = thread::spawn(move || other.shutdown(grace));
    eventually("the shutdown has begun", || timer.start().is_err());
    shutdown
}

fn is_rejected(rejected: Result<Timeout, NewTimeoutError>) -> bool {
    matches!(rejected, Err(NewTimeoutError::Stopped))
}

// --- a driven timer ------------------------------------------------------------------------------

#[test]
fn shutdown_of_a_driven_timer_runs_due_tasks_and_does_not_wait() {
    let t = Driven::new();
    let (task_ends, log) = (Ends::new(), Log::default());
    let later = t.schedule_task(task_ends.task(), ms(21));
    t.schedule(log.task(2), ms(20));
    t.schedule(log.task(1), ms(10));
    t.clock.advance(ms(20));

    let rest = t.timer.shutdown(HOUR);
    assert_eq!(rest, [later]);
    assert_eq!(log.take(), [1, 2]);
    assert!(rest[0].is_cancelled());
    assert_eq!(task_ends.counts(), (0, 1, 1));
    assert!(t.timer.is_stopped() && t.driver.is_stopped());
    assert_eq!(t.pending(), 0);
    assert!(is_rejected(t.timer.new_timeout(|_| (), TICK)));
    assert!(
        t.timer.shutdown(HOUR).is_empty() && t.timer.stop().is_empty(),
        "only the first call returns timeouts"
    );
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn any_number_of_due_tasks_runs() {
    let t = Driven::new();
    let task_ends = Ends::new();
    // More messages than one turn reads.
    for _ in 0..100_001 {
        t.schedule_task(task_ends.task(), TICK);
    }
    let later = t.schedule(|_| (), TICK * 2);
    t.clock.advance(TICK);
    assert_eq!(t.timer.shutdown(Duration::ZERO), [later]);
    assert_eq!(task_ends.runs(), 100_001);
}

#[test]
fn a_timer_that_is_shutting_down_is_not_stopped_and_rejects() {
    let t = Driven::new();
    let seen = Arc::new(Mutex::new(None));
    let see = seen.clone();
    let task = move |timeout: &Timeout| {
        let timer = timeout.timer();
        let rejected = timer.new_timeout(|_| (), Duration::ZERO);
        *see.lock().unwrap() = Some((
            timer.is_stopped(),
            is_rejected(rejected),
            format!("{timer:?}"),
        ));
    };
    t.schedule(task, TICK);
    t.clock.advance(TICK);
    assert!(t.timer.shutdown(Duration::ZERO).is_empty());
    let (is_stopped, rejects, debug) = seen.lock().unwrap().take().unwrap();
    assert!(!is_stopped && rejects);
    assert!(debug.contains("life: Closing"), "{debug}");
    assert_eq!(t.stats().rejected, 1);
    assert!(format!("{:?}", t.timer).contains("life: Stopped"));
}

/// A reset moves a due timeout out of reach, or a far one closer.
#[test]
fn tasks_may_cancel_and_reset_during_a_shutdown() {
    let mut t = Driven::new();
    let log = Log::default();
    let [due, later, cancelled] = [(2, TICK * 2), (3, TICK * 5), (4, TICK * 2)]
        .map(|(name, delay)| t.schedule(log.task(name), delay));
    let [due_handle, later_handle] = [due.clone(), later.clone()];
    let task = move |_: &Timeout| {
        assert!(due_handle.reset(TICK) && later_handle.reset(Duration::ZERO) && cancelled.cancel());
    };
    t.schedule(task, TICK);
    t.turn();
    // The deadlines count from now, so both are for ticks after this one.
    t.clock.advance(TICK * 2);
    let mut rest = t.timer.shutdown(Duration::ZERO);
    rest.sort_by_key(|timeout| *timeout == later);
    assert_eq!(rest, [due, later]);
    assert!(log.take().is_empty());
}

#[test]
fn shutdown_ends_with_a_clock_that_steps_back() {
    /// Returns to zero permanently after this number of readings.
    struct RewindingClock {
        readings: AtomicUsize,
        after: usize,
    }

    impl Clock for RewindingClock {
        fn now(&self) -> Duration {
            let reading = self.readings.fetch_add(1, SeqCst);
            if (1..self.after).contains(&reading) {
                TICK * 5
            } else {
                Duration::ZERO
            }
        }
    }

    for after in 0..10 {
        let clock = RewindingClock {
            readings: AtomicUsize::new(0),
            after,
        };
        let (timer, _driver) = built_driven(|builder| builder.tick(TICK).clock(clock));
        let timeout = timer.schedule(|_| (), Duration::ZERO);
        let rest = ends(move || timer.shutdown(HOUR));
        let count = rest.len() + usize::from(timeout.is_expired());
        assert_eq!(count, 1, "the timeout ends once");
    }
}

#[test]
fn shutdown_of_a_driven_timer_waits_for_the_turn_in_progress() {
    let t = Driven::new();
    let (gate, wait) = Gate::new();
    let log = Log::default();
    t.schedule(move |_| wait(), TICK);
    let (first, second) = (log.task(1), log.task(2));
    t.schedule(first, TICK);
    t.schedule(second, TICK * 2);
    t.clock.advance(TICK);
    let mut driver = t.driver;
    let turn = thread::spawn(move || (driver.turn(), driver));
    gate.wait_for_arrival();
    t.clock.advance(TICK);
    let shutdown = begin_shutdown(&t.timer, Duration::ZERO);
    assert!(!t.timer.is_stopped());
    gate.open();
    assert!(shutdown.join().unwrap().is_empty());
    let (expired, _driver) = turn.join().unwrap();
    assert_eq!(expired, 2, "the turn completes");
    assert_eq!(log.take(), [1, 2], "what became due meanwhile runs too");
}

#[test]
fn shutdown_calls_the_waker_at_its_end() {
    let woken = Arc::new(AtomicBool::new(false));
    let wake = woken.clone();
    let t = Driven::with(|builder| builder.waker(move || wake.store(true, SeqCst)));
    let timeout = t.schedule(|_| (), HOUR);
    assert!(t.next_turn().is_some());
    assert_eq!(t.timer.shutdown(HOUR), [timeout]);
    assert!(woken.load(SeqCst) && t.next_turn().is_none());
}

// --- called where it would wait for itself -------------------------------------------------------

#[test]
fn shutdown_in_a_task_on_the_worker_panics() {
    let mut t = Driven::new();
    let (other, task_ends) = (t.timer.clone(), Ends::new());
    t.schedule(move |_| drop(other.shutdown(HOUR)), TICK);
    quietly(|| assert_eq!(t.pass(TICK), 1));
    assert_eq!(t.stats().panics, 1);
    t.timer
        .new_timeout_task(task_ends.task(), TICK)
        .expect("the panic changes nothing");
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(task_ends.runs(), 1);
}

#[test]
fn the_panic_message_of_shutdown_names_the_remedy() {
    let mut t = Driven::new();
    let (message, messages) = channel();
    let task = move |timeout: &Timeout| {
        let timer = timeout.timer();
        let shutdown = std::panic::AssertUnwindSafe(|| timer.shutdown(HOUR));
        let panic = std::panic::catch_unwind(shutdown).unwrap_err();
        message.send(*panic.downcast::<String>().unwrap()).unwrap();
    };
    t.schedule(task, TICK);
    quietly(|| t.pass(TICK));
    let message = messages.recv().unwrap();
    let text = "HashedWheelTimer::shutdown was called by a task on the timer's own worker";
    assert!(message.starts_with(text), "{message}");
    assert!(message.contains("call it from another thread"), "{message}");
}

#[test]
fn a_hook_of_a_shutdown_may_call_it_again() {
    struct ShutsDownInHook(Arc<Mutex<Option<usize>>>);

    impl TimerTask for ShutsDownInHook {
        fn run(self, _: &Timeout) {}

        fn cancelled(self, timeout: &Timeout) {
            let timer = timeout.timer();
            *self.0.lock().unwrap() = Some(timer.shutdown(HOUR).len() + timer.stop().len());
        }
    }

    let returned = Arc::new(Mutex::new(None));
    let t = Driven::new();
    let timeout = t.schedule_task(ShutsDownInHook(returned.clone()), TICK);
    assert_eq!(t.timer.shutdown(Duration::ZERO), [timeout]);
    assert_eq!(*returned.lock().unwrap(), Some(0));
}

/// `shutdown` turns a driven timer without its driver, because a task may own the driver.
#[test]
fn shutdown_runs_a_task_that_owns_the_driver() {
    ends(|| {
        let executor_memory = Arc::new(());
        let held = Arc::downgrade(&executor_memory);
        let t = Driven::with(|builder| {
            builder.task_executor(accepts_all(move |task: ExpiredTask| {
                let _held = &executor_memory;
                task.run();
            }))
        });
        let (far_ends, mut driver) = (Ends::new(), t.driver);
        let far = t.timer.schedule_task(far_ends.task(), HOUR);
        let task = move |_: &Timeout| {
            assert!(!driver.is_stopped());
            let inner = (driver.next_turn(), driver.turn());
            assert_eq!(inner, (None, 0), "a turn is already in progress");
            drop(driver);
        };
        t.timer.schedule(task, TICK);
        t.clock.advance(TICK);
        // The drop of the driver has stopped the timer and taken all timeouts.
        assert!(t.timer.shutdown(HOUR).is_empty());
        assert_eq!((t.timer.stats().panics, far_ends.hooks()), (0, 1));
        assert!(far.is_cancelled() && t.timer.is_stopped());
        assert!(held.upgrade().is_none(), "the executor is dropped");
    });
}

// --- a timer with a thread -----------------------------------------------------------------------

fn check_due_tasks_run(settings: impl FnOnce(Builder) -> Builder) {
    let timer = built(|builder| settings(builder.tick(ms(1)).ticks_per_wheel(16)));
    let log = Log::default();
    let begin = Instant::now();
    for name in 1..=20 {
        timer.schedule(log.task(name), ms(name * 10));
    }
    let far = timer.schedule(|_| (), HOUR);
    // The shutdown does not use up its whole grace.
    let rest = timer.shutdown(HOUR / 2);
    assert_eq!(rest, [far]);
    assert!(begin.elapsed() >= ms(200), "the last timeout was not early");
    assert!(begin.elapsed() < TEST_TIMEOUT);
    assert_eq!(log.take(), Vec::from_iter(1..=20));
    assert!(
        rest[0].is_cancelled()
            && timer.is_stopped()
            && is_rejected(timer.new_timeout(|_| (), ms(1)))
    );
}

#[test]
fn tasks_due_within_the_grace_run() {
    check_due_tasks_run(|builder| builder);
}

#[test]
fn tasks_due_within_the_grace_run_on_the_hierarchical_wheel() {
    check_due_tasks_run(|builder| builder.hierarchical(true));
}

#[test]
fn shutdown_with_nothing_due_does_not_wait() {
    ends(|| {
        assert!(timer().shutdown(Duration::MAX).is_empty(), "it never began");
    });
    ends(|| {
        let timer = timer();
        timer.start().unwrap();
        assert!(timer.shutdown(Duration::MAX).is_empty(), "none is pending");
    });
    ends(|| {
        let timer = timer();
        timer.schedule(|_| (), HOUR).cancel();
        let far = timer.schedule(|_| (), HOUR * 2);
        assert_eq!(timer.shutdown(HOUR), [far], "none is due in the grace");
        assert!(
            timer.shutdown(HOUR).is_empty(),
            "only the first call returns timeouts"
        );
    });
}

#[test]
fn shutdown_does_not_wait_for_a_timeout_that_never_fires() {
    let rest = ends(|| {
        let timer = timer();
        let never = timer.schedule(|_| (), Duration::MAX);
        let soon = timer.schedule(|_| (), ms(30));
        let rest = timer.shutdown(Duration::MAX);
        assert!(soon.is_expired());
        rest == [never]
    });
    assert!(rest);
}

/// At any part of a tick: a timeout scheduled for exactly the end of the grace runs.
#[test]
fn the_grace_includes_its_end() {
    for part in 0..10 {
        let timer = HashedWheelTimer::new(ms(20), 8);
        thread::sleep(ms(part * 2));
        let timeout = timer.schedule(|_| (), ms(50));
        assert!(timer.shutdown(ms(50)).is_empty());
        assert!(timeout.is_expired());
    }
}

#[test]
fn a_task_due_now_runs_with_zero_grace() {
    let timer = HashedWheelTimer::new(ms(20), 8);
    let now = timer.schedule(|_| (), Duration::ZERO);
    let later = timer.schedule(|_| (), HOUR);
    assert_eq!(timer.shutdown(Duration::ZERO), [later]);
    // Zero delay means the next tick. The current tick may have changed before the shutdown.
    assert!(now.is_expired());
}

/// A timeout that was reset to later is in the wheel at an earlier tick than its own.
#[test]
fn shutdown_does_not_wait_for_a_deadline_that_was_moved_past_the_grace() {
    let timer = timer();
    let begin = Instant::now();
    let idle = timer.schedule(|_| (), TEST_TIMEOUT);
    thread::sleep(ms(50));
    assert!(idle.reset(HOUR));
    let other = timer.schedule(|_| (), TEST_TIMEOUT + HOUR);
    let rest = timer.shutdown(HOUR / 2);
    assert!(begin.elapsed() < TEST_TIMEOUT);
    assert!(rest.len() == 2 && rest.contains(&idle) && rest.contains(&other));
}

#[test]
fn a_waiting_shutdown_sees_a_cancel_and_a_reset() {
    for moved in [false, true] {
        let timer = timer();
        let begin = Instant::now();
        let [in_time, late] = [TEST_TIMEOUT, HOUR].map(|delay| timer.schedule(|_| (), delay));
        let shutdown = begin_shutdown(&timer, HOUR / 2);
        thread::sleep(ms(50));
        assert!(!timer.is_stopped(), "the shutdown waits");
        assert!(if moved {
            in_time.reset(HOUR)
        } else {
            in_time.cancel()
        });
        let rest = shutdown.join().unwrap();
        assert!(begin.elapsed() < TEST_TIMEOUT);
        let seen = (rest.len(), rest.contains(&in_time), rest.contains(&late));
        assert_eq!(seen, (1 + usize::from(moved), moved, true));
    }
}

#[test]
fn a_deadline_that_is_moved_into_the_grace_runs() {
    let timer = timer();
    let [in_time, late] = [TEST_TIMEOUT, HOUR * 2].map(|delay| timer.schedule(|_| (), delay));
    let shutdown = begin_shutdown(&timer, HOUR);
    assert!(late.reset(ms(20)));
    eventually("the task runs", || late.is_expired());
    assert!(in_time.cancel());
    assert!(shutdown.join().unwrap().is_empty());
}

#[test]
fn shutdown_waits_for_a_running_task() {
    let timer = timer();
    let (gate, wait) = Gate::new();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let task = move |_: &Timeout| {
        wait();
        thread::sleep(ms(20));
        is_over.store(true, SeqCst);
    };
    timer.schedule(task, ms(1));
    gate.wait_for_arrival();
    let shutdown = begin_shutdown(&timer, Duration::ZERO);
    thread::sleep(ms(20));
    assert!(!shutdown.is_finished());
    gate.open();
    assert!(shutdown.join().unwrap().is_empty());
    assert!(over.load(SeqCst));
}

#[test]
fn shutdown_does_not_wait_for_tasks_in_the_executor() {
    let (pool, tasks) = channel::<ExpiredTask>();
    let timer = HashedWheelTimer::builder()
        .tick(ms(1))
        .task_executor(accepts_all(move |task| pool.send(task).unwrap()))
        .build()
        .unwrap();
    let task_ends = Ends::new();
    timer.schedule_task(task_ends.task(), ms(10));
    assert!(timer.shutdown(HOUR).is_empty());
    assert_eq!(task_ends.runs(), 0);
    tasks.into_iter().for_each(ExpiredTask::run);
    assert_eq!((task_ends.runs(), task_ends.drops()), (1, 1));
}

// --- concurrent stops ----------------------------------------------------------------------------

/// Starts a shutdown that has to wait, then calls `end`, which ends the timer. `end` returns how
/// many of the two timeouts it got.
fn check_concurrent_end(end: impl FnOnce(&HashedWheelTimer) -> usize) {
    let timer = timer();
    let begin = Instant::now();
    let task_ends = Ends::new();
    timer.schedule_task(task_ends.task(), TEST_TIMEOUT);
    timer.schedule_task(task_ends.task(), HOUR * 2);
    let shutdown = begin_shutdown(&timer, HOUR);
    assert_eq!(
        end(&timer),
        2,
        "the call that stops the timer returns all timeouts"
    );
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(
        shutdown.join().unwrap().is_empty(),
        "the waiting shutdown returns none"
    );
    assert!(begin.elapsed() < TEST_TIMEOUT);
    assert_eq!(task_ends.counts(), (0, 2, 2));
}

#[test]
fn a_stop_ends_a_shutdown() {
    check_concurrent_end(|timer| timer.stop().len());
}

#[test]
fn the_shutdown_with_less_grace_ends_both() {
    check_concurrent_end(|timer| timer.shutdown(ms(20)).len());
}

#[test]
fn a_timer_that_stops_by_itself_ends_a_shutdown() {
    struct BreakableClock(Arc<AtomicBool>, Instant);

    impl Clock for BreakableClock {
        fn now(&self) -> Duration {
            let is_worker = thread::current().name() == Some("hw-broken");
            assert!(!is_worker || !self.0.load(SeqCst), "the clock is broken");
            self.1.elapsed()
        }
    }

    let is_broken = Arc::new(AtomicBool::new(false));
    let clock = BreakableClock(is_broken.clone(), Instant::now());
    let timer = HashedWheelTimer::builder()
        .tick(ms(1))
        .thread_name("hw-broken")
        .clock(clock)
        .build()
        .unwrap();
    let far = timer.schedule(|_| (), TEST_TIMEOUT);
    let shutdown = begin_shutdown(&timer, HOUR);
    is_broken.store(true, SeqCst);
    assert!(far.reset(ms(5)), "the reset wakes the worker");
    assert!(shutdown.join().unwrap().is_empty());
    assert!(far.is_cancelled() && timer.is_stopped());
}

// --- the clock -----------------------------------------------------------------------------------

/// The worker has a thread, but its clock does not move.
#[test]
fn shutdown_ends_with_a_clock_that_stands_still() {
    let clock = ManualClock::new();
    let timer = built(|builder| builder.tick(ms(10)).clock(clock.clone()));
    let timeout = timer.schedule(|_| (), ms(50));
    let begin = Instant::now();
    assert_eq!(timer.shutdown(ms(100)), [timeout]);
    assert!(begin.elapsed() >= ms(100), "it waited in real time");
}

/// A timeout that is due now fires at the next tick, which never comes.
#[test]
fn shutdown_with_a_zero_delay_ends_with_a_clock_that_stands_still() {
    let timer = built(|builder| builder.tick(ms(1)).clock(ManualClock::new()));
    let timeout = timer.schedule(|_| (), Duration::ZERO);
    let begin = Instant::now();
    assert_eq!(timer.shutdown(Duration::ZERO), [timeout]);
    assert!(
        begin.elapsed() >= ms(11),
        "its tick has the real time that it should take, and 10 ms"
    );
}

/// All tasks are due by a clock that then stands still. They take longer than the grace in real
/// time.
#[test]
fn due_tasks_run_although_the_clock_stands_still() {
    let clock = ManualClock::new();
    let timer = built(|builder| builder.tick(ms(1)).clock(clock.clone()));
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let runs = Arc::clone(&runs);
        let slow = move |_: &Timeout| {
            thread::sleep(ms(20));
            runs.fetch_add(1, SeqCst);
        };
        timer.schedule(slow, ms(1));
    }
    clock.advance(ms(1));
    assert_eq!(timer.shutdown(Duration::ZERO), []);
    assert_eq!(runs.load(SeqCst), 4);
}

/// The grace counts in the timer's time, if that passes faster than real time.
#[test]
fn shutdown_follows_a_clock_that_runs_ahead() {
    let clock = ManualClock::new();
    let timer = built(|builder| builder.tick(ms(10)).clock(clock.clone()));
    let log = Log::default();
    let begin = Instant::now();
    timer.schedule(log.task(1), TEST_TIMEOUT);
    let far = timer.schedule(log.task(2), TEST_TIMEOUT * 2);
    let shutdown = begin_shutdown(&timer, TEST_TIMEOUT + ms(10));
    clock.advance(TEST_TIMEOUT);
    // The worker sleeps in real time, and this message wakes it.
    assert!(far.reset(TEST_TIMEOUT - ms(10)));
    assert_eq!(shutdown.join().unwrap(), [far]);
    assert_eq!(log.take(), [1]);
    assert!(begin.elapsed() < TEST_TIMEOUT);
}

/// The worker sleeps in real time for an hour.
#[test]
fn a_task_that_the_clock_jumped_over_runs() {
    for grace in [Duration::ZERO, ms(100)] {
        let clock = ManualClock::new();
        let timer = built(|builder| builder.tick(ms(10)).clock(clock.clone()));
        let log = Log::default();
        timer.schedule(log.task(1), Duration::from_secs(3_600));
        thread::sleep(ms(50));
        clock.advance(Duration::from_secs(3_601));
        assert_eq!(timer.shutdown(grace), []);
        assert_eq!(log.take(), [1]);
    }
}

// --- races ---------------------------------------------------------------------------------------

/// Each accepted timeout has run if it was due, and is returned otherwise, whichever operations
/// race.
#[test]
fn nothing_is_lost_between_new_timeouts_and_a_shutdown() {
    for iteration in 0..if cfg!(miri) { 5 } else { 100 } {
        let timer = timer();
        let ([due_ends, far_ends], [soon, far]) =
            ([Ends::new(), Ends::new()], [ms(iteration % 4), HOUR]);
        let producers = [(); 3].map(|()| {
            let (timer, due_ends, far_ends) = (timer.clone(), due_ends.clone(), far_ends.clone());
            thread::spawn(move || {
                let mut accepted = (0, 0);
                loop {
                    let Ok(_) = timer.new_timeout_task(due_ends.task(), soon) else {
                        return accepted;
                    };
                    accepted.0 += 1;
                    let Ok(_) = timer.new_timeout_task(far_ends.task(), far) else {
                        return accepted;
                    };
                    accepted.1 += 1;
                }
            })
        });
        thread::sleep(Duration::from_micros(iteration * 20));
        // The grace leaves no slack. Shutdown also waits for a timeout that missed its own tick.
        let rest = timer.shutdown(soon);
        let accepted = producers.map(|producer| producer.join().unwrap());
        let [due, far] = [accepted.map(|(due, _)| due), accepted.map(|(_, far)| far)]
            .map(|all| all.iter().sum());
        let due_counts = (due_ends.runs(), due_ends.hooks());
        assert_eq!(
            due_counts,
            (due, 0),
            "every task that is due in time has run"
        );
        let far_counts = (far_ends.runs(), far_ends.hooks(), rest.len());
        assert_eq!(far_counts, (0, far, far), "the rest is returned");
        let rejected = 3;
        let drops = due_ends.drops() + far_ends.drops();
        assert_eq!(drops, due + far + rejected, "each task is dropped once");
        assert_eq!(timer.pending_timeouts(), 0);
    }
}

/// The tasks run on the thread of the loop, and `shutdown` ends its sleep.
#[test]
fn a_hosted_timer_is_turned_by_its_loop_alone() {
    let (send, timers) = channel();
    let host = thread::spawn(move || {
        let host = thread::current();
        let builder = HashedWheelTimer::builder().tick(ms(1));
        let (timer, mut driver) = builder.build_hosted(move || host.unpark()).unwrap();
        send.send(timer).unwrap();
        while !driver.is_stopped() {
            driver.turn();
            match driver.next_turn() {
                _ if driver.is_stopped() => break,
                Some(wait) => thread::park_timeout(wait),
                None => thread::park(),
            }
        }
    });
    let timer = timers.recv().unwrap();
    let (ran, runs) = channel();
    let near = move |_: &Timeout| ran.send(thread::current().id()).unwrap();
    timer.schedule(near, ms(20));
    let far = timer.schedule(|_| (), HOUR);
    assert_eq!(timer.shutdown(TEST_TIMEOUT), [far]);
    assert_eq!(runs.try_recv(), Ok(host.thread().id()));
    host.join().unwrap();
}
