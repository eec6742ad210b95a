//! Timeouts that are armed again after they have fired. The clock moves only when the test moves
//! it, except in those of threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crate::common::{
    self, Driven, FULL, Gate, Schedules, TEST_TIMEOUT, TICK, accepts_all, ends, ms, quietly,
};
use hashed_wheel::{
    Alarm, Cancel, CancelOnDrop, ExpiredTask, HashedWheelTimer, NewTimeoutError, executor,
};

/// Counts the runs of an alarm.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn alarm(&self, timer: &HashedWheelTimer) -> Alarm {
        let runs = self.clone();
        timer.new_alarm(move |_| _ = runs.0.fetch_add(1, SeqCst))
    }

    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn counted() -> (Driven, Alarm, Runs) {
    let (t, runs) = (Driven::new(), Runs::default());
    let alarm = runs.alarm(&t.timer);
    (t, alarm, runs)
}

#[test]
fn it_runs_once_per_arming() {
    let (mut t, alarm, runs) = counted();
    for arming in 1..=5 {
        assert!(!alarm.is_armed());
        assert_eq!(t.pending(), 0);
        alarm.arm(TICK * 2).unwrap();
        assert!(alarm.is_armed());
        assert_eq!(t.pending(), 1);
        assert_eq!((t.pass(TICK), t.pass(TICK), t.pass(TICK * 20)), (0, 1, 0));
        assert_eq!(runs.get(), arming);
    }
}

#[test]
fn an_armed_alarm_moves_to_later_and_to_earlier() {
    let (mut t, alarm, runs) = counted();
    alarm.arm(TICK * 2).unwrap();
    t.turn_until_quiet();
    t.clock.advance(TICK);
    alarm.arm(TICK * 5).unwrap();
    assert_eq!(t.pass(TICK * 4), 0);
    alarm.arm(TICK * 90).unwrap();
    t.turn_until_quiet();
    alarm.arm(TICK * 2).unwrap();
    assert_eq!(t.pending(), 1);
    assert_eq!((t.pass(TICK), t.pass(TICK), t.pass(TICK * 100)), (0, 1, 0));
    assert_eq!(runs.get(), 1);
}

/// In the lane the worker has not seen the timeout.
#[test]
fn an_alarm_that_the_worker_has_not_seen_moves_too() {
    let (mut t, alarm, runs) = counted();
    alarm.arm(TICK * 9).unwrap();
    alarm.arm(TICK).unwrap();
    assert_eq!((t.pass(TICK), t.pass(TICK * 9), runs.get()), (1, 0, 1));
}

#[test]
fn arm_at_takes_a_deadline() {
    let (mut t, alarm, runs) = counted();
    let begin = t.timer.now();
    alarm.arm_at(begin + TICK * 3).unwrap();
    assert_eq!((t.pass(TICK * 2), t.pass(TICK)), (0, 1));
    alarm.arm_at(begin).unwrap();
    assert_eq!((t.pass(ms(0)), t.pass(TICK)), (0, 1), "at the next tick");
    assert_eq!(runs.get(), 2);
}

#[test]
fn a_disarmed_alarm_does_not_run_and_can_be_armed() {
    let (mut t, alarm, runs) = counted();
    assert!(!alarm.disarm(), "it was never armed");
    for _ in 0..3 {
        alarm.arm(TICK).unwrap();
        let other = alarm.clone();
        assert!(other.disarm());
        assert!(!alarm.disarm() && !alarm.is_armed());
        assert_eq!(t.pending(), 0);
        assert_eq!(t.pass(TICK * 2), 0);
    }
    alarm.arm(TICK).unwrap();
    assert_eq!((t.pass(TICK), runs.get()), (1, 1));
    assert!(!alarm.disarm(), "it has run");
}

#[test]
fn the_task_arms_its_alarm() {
    let mut t = Driven::new();
    let (log, seen) = channel();
    let alarm = t.timer.new_alarm(move |alarm| {
        log.send((alarm.is_armed(), alarm.disarm())).unwrap();
        alarm.arm(TICK * 3).unwrap();
        alarm.arm(TICK * 2).unwrap();
    });
    alarm.arm(TICK).unwrap();
    assert_eq!([1, 1, 1, 2].map(|ticks| t.pass(TICK * ticks)), [1, 0, 1, 1]);
    assert!(seen.try_iter().eq([(false, false); 3]));
    assert!(alarm.disarm());
    assert_eq!(t.pass(TICK * 9), 0);
}

#[test]
fn a_panic_leaves_the_alarm_usable() {
    let mut t = Driven::new();
    let mut runs = 0;
    let alarm = t.timer.new_alarm(move |_| {
        runs += 1;
        assert_ne!(runs % 2, 1, "an odd run");
    });
    for _ in 0..4 {
        alarm.arm(TICK).unwrap();
        assert_eq!(quietly(|| t.pass(TICK)), 1);
        assert!(!alarm.is_armed());
    }
    assert_eq!(t.stats().panics, 2);
}

#[test]
fn stop_disarms_it_once_and_for_all() {
    let (t, alarm, runs) = counted();
    alarm.arm(TICK).unwrap();
    let stopped = t.timer.stop();
    assert_eq!(stopped.len(), 1);
    assert!(stopped[0].is_cancelled());
    assert!(!alarm.is_armed() && !alarm.disarm());
    assert_eq!(alarm.arm(TICK), Err(NewTimeoutError::Stopped));
    assert!(!alarm.is_armed());
    assert_eq!((runs.get(), t.pending()), (0, 0));
}

#[test]
fn cancel_all_disarms_it() {
    let (mut t, alarm, runs) = counted();
    alarm.arm(TICK).unwrap();
    assert_eq!(t.timer.cancel_all(), 1);
    assert!(!alarm.is_armed());
    alarm.arm(TICK).unwrap();
    assert_eq!((t.pass(TICK), runs.get()), (1, 1));
}

#[test]
fn a_shutdown_lets_it_run_and_move() {
    let (t, alarm, runs) = counted();
    let (moved, clock) = (alarm.clone(), t.clock.clone());
    let other = t.timer.new_alarm(|_| ());
    let task = move |_: &_| {
        moved.arm(TICK).unwrap();
        assert_eq!(other.arm(TICK), Err(NewTimeoutError::Stopped));
        clock.advance(TICK);
    };
    t.schedule(task, TICK);
    alarm.arm(TICK * 90).unwrap();
    t.clock.advance(TICK);
    assert_eq!(t.timer.shutdown(TEST_TIMEOUT), []);
    assert_eq!((runs.get(), t.stats().panics), (1, 0));
}

/// A task that arms its alarm at the end of each run; and code that runs before that.
fn arms_itself(t: &Driven) -> (Alarm, Runs, Sender<InRun>) {
    let (runs, (in_run, code)) = (Runs::default(), channel::<InRun>());
    let counted = runs.clone();
    let alarm = t.timer.new_alarm(move |alarm| {
        counted.0.fetch_add(1, SeqCst);
        code.try_iter().for_each(|code| code(alarm));
        match alarm.arm(TICK) {
            Ok(()) => assert!(!alarm.is_cancelled()),
            Err(error) => assert_eq!(error, NewTimeoutError::Cancelled),
        }
    });
    alarm.arm(TICK).unwrap();
    (alarm, runs, in_run)
}

type InRun = Box<dyn FnOnce(&Alarm) + Send>;

#[test]
fn a_disarm_during_a_run_does_not_end_a_task_that_arms_its_alarm() {
    let mut t = Driven::new();
    let (alarm, runs, in_run) = arms_itself(&t);
    in_run
        .send(Box::new(|alarm| assert!(!alarm.disarm(), "it runs")))
        .unwrap();
    assert_eq!((t.pass(TICK), t.pass(TICK)), (1, 1));
    assert_eq!((runs.get(), alarm.disarm()), (2, true));
}

// --- cancel --------------------------------------------------------------------------------------

#[track_caller]
fn assert_cancelled(t: &mut Driven, alarm: &Alarm) {
    assert!(alarm.is_cancelled() && !alarm.is_armed());
    assert!(!alarm.cancel() && !alarm.cancel_and_wait(), "once");
    assert!(!alarm.disarm());
    assert_eq!(alarm.arm(TICK), Err(NewTimeoutError::Cancelled));
    assert_eq!(alarm.arm_at(t.timer.now()), Err(NewTimeoutError::Cancelled));
    assert_eq!((alarm.deadline(), alarm.remaining()), (None, None));
    assert_eq!((t.pending(), t.pass(TICK * 9)), (0, 0));
    let stats = t.stats();
    let counts = (stats.panics, stats.rejected, stats.dropped_tasks);
    assert_eq!(counts, (0, 0, 0));
}

#[test]
fn cancel_ends_an_alarm_permanently() {
    for is_armed in [false, true] {
        let (mut t, alarm, runs) = counted();
        if is_armed {
            alarm.arm(TICK).unwrap();
        }
        assert!(!alarm.is_cancelled());
        assert!(alarm.clone().cancel());
        assert_cancelled(&mut t, &alarm);
        assert_eq!(runs.get(), 0);
    }
}

#[test]
fn every_way_to_cancel_an_alarm_is_a_cancel() {
    let ways: [fn(Alarm) -> bool; 6] = [
        |alarm| alarm.cancel(),
        |alarm| alarm.cancel_and_wait(),
        |alarm| alarm.cancel_and_drop(),
        |alarm| Cancel::cancel(&alarm),
        |alarm| {
            let dynamic: Box<dyn Cancel> = Box::new(alarm);
            dynamic.cancel_and_wait() && dynamic.is_cancelled()
        },
        |alarm| {
            let guard: CancelOnDrop<Alarm> = alarm.cancel_on_drop();
            assert!(Alarm::disarm(&guard) && !guard.is_cancelled());
            guard.arm(TICK).unwrap();
            drop(guard);
            true
        },
    ];
    for way in ways {
        let (mut t, alarm, runs) = counted();
        alarm.arm(TICK).unwrap();
        assert!(way(alarm.clone()));
        assert_cancelled(&mut t, &alarm);
        assert_eq!(runs.get(), 0);
    }
    let (mut t, alarm, runs) = counted();
    let alarm = alarm.cancel_on_drop().disarm();
    alarm.arm(TICK).unwrap();
    assert_eq!((t.pass(TICK), runs.get()), (1, 1));
}

#[test]
fn a_cancel_during_a_run_ends_a_task_that_arms_its_alarm() {
    let mut t = Driven::new();
    let (alarm, runs, in_run) = arms_itself(&t);
    assert_eq!((t.pass(TICK), t.pass(TICK)), (1, 1));
    in_run
        .send(Box::new(|alarm| assert!(alarm.cancel(), "it runs")))
        .unwrap();
    assert_eq!(t.pass(TICK), 1);
    assert_cancelled(&mut t, &alarm);
    assert_eq!(runs.get(), 3);
}

/// The error does not depend on a place under the limit.
#[test]
fn a_cancelled_alarm_needs_no_place_for_its_error() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let runs = Runs::default();
    let [one, other] = [(); 2].map(|()| runs.alarm(&t.timer));
    one.arm(TICK).unwrap();
    assert!(other.cancel());
    assert_eq!(other.arm(TICK), Err(NewTimeoutError::Cancelled));
    assert!(one.cancel());
    assert_cancelled(&mut t, &one);
}

#[test]
fn an_end_of_the_timer_is_no_cancel() {
    let (mut t, alarm, _) = counted();
    alarm.arm(TICK).unwrap();
    assert_eq!(t.timer.cancel_all(), 1);
    assert!(!alarm.is_cancelled());
    alarm.arm(TICK).unwrap();
    assert_eq!(t.timer.stop().len(), 1);
    assert_eq!(alarm.arm(TICK), Err(NewTimeoutError::Stopped));
    assert!(!alarm.is_cancelled() && alarm.cancel());
    assert_eq!(alarm.arm(TICK), Err(NewTimeoutError::Cancelled));
    assert_eq!(t.pass(TICK), 0);
}

/// Even if it has a handle of its own alarm, and while a handle is left.
#[test]
fn a_cancel_drops_the_task() {
    for during_run in [false, true] {
        let mut t = Driven::new();
        let used = Arc::new(());
        let uses = || Arc::strong_count(&used) - 1;
        let (own, captured) = (Arc::new(OnceLock::<Alarm>::new()), Arc::clone(&used));
        let in_task = Arc::clone(&own);
        let alarm = t.timer.new_alarm(move |_| {
            let before = Arc::strong_count(&captured);
            assert!(in_task.get().unwrap().cancel());
            assert_eq!(Arc::strong_count(&captured), before, "it runs");
        });
        own.set(alarm.clone()).unwrap();
        if during_run {
            alarm.arm(TICK).unwrap();
            assert_eq!((uses(), t.pass(TICK)), (1, 1));
        } else {
            assert!(alarm.cancel());
        }
        assert_eq!((uses(), Arc::strong_count(&own)), (0, 1));
        assert_cancelled(&mut t, &alarm);
    }
}

/// The drop of the task is user code.
#[test]
fn a_task_may_use_its_alarm_when_it_is_dropped() {
    struct UsesAlarm(Arc<OnceLock<Alarm>>);
    impl Drop for UsesAlarm {
        fn drop(&mut self) {
            let alarm = self.0.get().unwrap();
            assert!(alarm.is_cancelled() && !alarm.is_armed());
            assert!(!alarm.cancel_and_wait() && !alarm.disarm());
            assert_eq!(alarm.arm(TICK), Err(NewTimeoutError::Cancelled));
            assert_eq!(alarm.timer().pending_timeouts(), 0);
            panic!("in drop");
        }
    }
    ends(|| {
        let t = Driven::new();
        let own = Arc::new(OnceLock::new());
        let uses = UsesAlarm(Arc::clone(&own));
        let alarm = t.timer.new_alarm(move |_| _ = &uses);
        own.set(alarm.clone()).unwrap();
        alarm.arm(TICK).unwrap();
        assert!(quietly(|| alarm.cancel()));
        assert_eq!(Arc::strong_count(&own), 1);
        assert_eq!(t.stats().panics, 1, "that of the drop");
    });
}

#[test]
fn it_knows_its_deadline_while_it_is_armed() {
    let (mut t, alarm, _) = counted();
    let known = |alarm: &Alarm| (alarm.deadline(), alarm.remaining());
    assert_eq!(known(&alarm), (None, None));
    let at = t.timer.now() + TICK * 5;
    alarm.arm_at(at).unwrap();
    assert_eq!(known(&alarm), (Some(at), Some(TICK * 5)));
    t.clock.advance(TICK);
    assert_eq!(alarm.remaining(), Some(TICK * 4));
    alarm.arm(TICK * 2).unwrap();
    assert_eq!(known(&alarm), (Some(at - TICK * 2), Some(TICK * 2)));
    t.clock.advance(TICK * 2);
    assert_eq!(alarm.remaining(), Some(Duration::ZERO), "it is due");
    assert_eq!(t.pass(ms(0)), 1);
    assert_eq!(known(&alarm), (None, None));
    alarm.arm(Duration::MAX).unwrap();
    assert_eq!(alarm.remaining(), Some(Duration::MAX), "never");
    assert!(alarm.disarm());
    assert_eq!(known(&alarm), (None, None));
}

#[test]
fn an_armed_alarm_takes_one_place_under_the_limit() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let runs = Runs::default();
    let [one, other] = [(); 2].map(|()| runs.alarm(&t.timer));
    one.arm(TICK).unwrap();
    one.arm(TICK * 2).unwrap();
    one.arm(TICK).unwrap();
    assert_eq!(other.arm(TICK), Err(FULL));
    assert!(!other.is_armed());
    assert_eq!(t.pass(TICK), 1);
    other.arm(TICK).unwrap();
    assert_eq!((t.pass(TICK), runs.get()), (1, 2));
}

/// The task is dropped with its last use.
#[test]
fn an_alarm_without_a_handle_runs_once_more() {
    let mut t = Driven::new();
    let used = Arc::new(());
    let uses = || Arc::strong_count(&used) - 1;
    let make = || {
        let captured = Arc::clone(&used);
        t.timer.new_alarm(move |_| _ = &captured)
    };
    drop(make());
    assert_eq!(uses(), 0);
    make().arm(TICK).unwrap();
    let disarmed = make();
    disarmed.arm(TICK).unwrap();
    disarmed.disarm();
    drop(disarmed);
    assert_eq!(uses(), 1);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(uses(), 0);
}

#[test]
fn a_handle_does_not_keep_the_timer_from_ending() {
    let (t, alarm, _) = counted();
    assert!(!alarm.timer().is_stopped());
    alarm.arm(TICK).unwrap();
    drop(t);
    assert!(alarm.timer().is_stopped() && !alarm.is_armed());
}

#[test]
fn reports_name_the_closure() {
    let (_t, alarm, _) = counted();
    let text = format!("{alarm:?}");
    assert_eq!(text, "Alarm { last: None, is_cancelled: false, .. }");
    alarm.arm(TICK).unwrap();
    let text = format!("{alarm:?}");
    assert!(
        text.contains("pending") && text.contains("Runs::alarm"),
        "{text}"
    );
}

// --- executors -----------------------------------------------------------------------------------

/// A driven timer whose executor keeps the tasks until the test runs them.
fn with_queue() -> (Driven, impl Fn() -> Option<ExpiredTask>) {
    let (sender, tasks) = channel();
    let t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task| drop(sender.send(task))))
    });
    (t, move || tasks.try_recv().ok())
}

/// The pool helps with other tasks while it runs one.
#[test]
fn runs_do_not_overlap_on_one_thread() {
    let (mut t, next) = with_queue();
    let (helped, log) = (
        Arc::new(OnceLock::<ExpiredTask>::new()),
        Arc::new(Mutex::new(Vec::new())),
    );
    let help = {
        let (mut helped, log) = (Some(Arc::clone(&helped)), Arc::clone(&log));
        move |_: &Alarm| {
            log.lock().unwrap().push("begin");
            if let Some(helped) = helped.take() {
                Arc::into_inner(helped).unwrap().into_inner().unwrap().run();
            }
            log.lock().unwrap().push("end");
        }
    };
    let alarm = t.timer.new_alarm(help);
    alarm.arm(TICK).unwrap();
    assert_eq!(t.pass(TICK), 1);
    assert!(!alarm.is_armed(), "it waits for the executor");
    alarm.arm(TICK).unwrap();
    assert_eq!(t.pass(TICK), 1);
    let (first, second) = (next().unwrap(), next().unwrap());
    helped.set(second).unwrap();
    drop(helped);
    first.run();
    assert_eq!(*log.lock().unwrap(), ["begin", "end", "begin", "end"]);
}

#[test]
fn a_run_that_the_executor_drops_is_lost_and_the_alarm_usable() {
    let refuse = executor::from_fn(Err);
    let mut t = Driven::with(|builder| builder.task_executor(refuse));
    let runs = Runs::default();
    let alarm = runs.alarm(&t.timer);
    for _ in 0..2 {
        alarm.arm(TICK).unwrap();
        assert_eq!(t.pass(TICK), 1);
        assert!(!alarm.is_armed());
    }
    assert_eq!((runs.get(), t.stats().dropped_tasks), (0, 2));
}

#[test]
fn a_run_that_waits_for_the_executor_does_not_begin_after_a_cancel() {
    let (mut t, next) = with_queue();
    let runs = Runs::default();
    let alarm = runs.alarm(&t.timer);
    for _ in 0..2 {
        alarm.arm(TICK).unwrap();
        assert_eq!(t.pass(TICK), 1);
    }
    let (first, second) = (next().unwrap(), next().unwrap());
    first.run();
    assert!(alarm.cancel_and_wait(), "no run has begun");
    second.run();
    assert_eq!(runs.get(), 1);
    assert_cancelled(&mut t, &alarm);
}

// --- threads -------------------------------------------------------------------------------------

/// Each thread arms and disarms. An arming that is neither replaced nor disarmed runs.
#[test]
fn threads_that_arm_one_alarm_leave_it_armed_once() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let runs = Runs::default();
    let alarm = runs.alarm(&timer);
    let rounds = if cfg!(miri) { 20 } else { 2_000 };
    thread::scope(|scope| {
        for thread in 0..3 {
            let alarm = &alarm;
            scope.spawn(move || {
                for round in 0..rounds {
                    alarm
                        .arm(Duration::from_micros((round * 7 + thread * 300) % 3_000))
                        .unwrap();
                    if round % 5 == thread {
                        alarm.disarm();
                    }
                }
            });
        }
    });
    alarm.disarm();
    assert_eq!(timer.pending_timeouts(), 0);
    common::eventually("no run is in progress", || {
        let before = runs.get();
        thread::sleep(ms(5));
        runs.get() == before
    });
    let before = runs.get();
    let (rang, rings) = channel();
    alarm.arm(ms(1)).unwrap();
    let last = timer.schedule(move |_| rang.send(()).unwrap(), ms(20));
    rings.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(last.is_expired() && !alarm.is_armed());
    assert_eq!(runs.get(), before + 1);
}

#[test]
fn cancel_and_wait_returns_after_the_run() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    for by_first in [true, false] {
        let (gate, wait) = Gate::new();
        let (over, used) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
        let (is_over, uses) = (Arc::clone(&over), Arc::clone(&used));
        let mut wait = Some(wait);
        let alarm = timer.new_alarm(move |alarm| {
            let _ = &uses;
            wait.take().unwrap()();
            is_over.store(true, SeqCst);
            // It does not wait for itself.
            assert!(!alarm.cancel_and_wait());
        });
        alarm.arm(ms(1)).unwrap();
        gate.wait_for_arrival();
        if !by_first {
            assert!(alarm.cancel(), "it does not wait");
        }
        let waiter = {
            let (alarm, over) = (alarm.clone(), Arc::clone(&over));
            thread::spawn(move || (alarm.cancel_and_wait(), over.load(SeqCst)))
        };
        common::eventually("it is cancelled", || alarm.is_cancelled());
        thread::sleep(ms(20));
        assert!(!waiter.is_finished());
        gate.open();
        assert_eq!(waiter.join().unwrap(), (by_first, true));
        assert_eq!(Arc::strong_count(&used), 1, "the task is dropped");
        assert_eq!(timer.stats().panics, 0);
    }
}

/// Each watchdog is dropped while its task runs, which arms it.
#[test]
fn no_watchdog_survives_the_drop_of_its_owner() {
    struct Watchdog(Alarm);
    impl Drop for Watchdog {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    let timer = HashedWheelTimer::new(Duration::from_micros(100), 512);
    let (runs, begun) = (Runs::default(), Arc::new(AtomicUsize::new(0)));
    let dropped = Arc::new(AtomicUsize::new(0));
    let wait_for = |word: &AtomicUsize, round| {
        while word.load(SeqCst) < round {
            thread::yield_now();
        }
    };
    let rounds = if cfg!(miri) { 20 } else { 2_000 };
    for round in 1..=rounds {
        let (begins, drops, counted) = (Arc::clone(&begun), Arc::clone(&dropped), runs.clone());
        let watchdog = Watchdog(timer.new_alarm(move |alarm| {
            begins.fetch_max(round, SeqCst);
            wait_for(&drops, round);
            let _cancelled = alarm.arm(Duration::from_micros(200));
            counted.0.fetch_add(1, SeqCst);
        }));
        watchdog.0.arm(Duration::ZERO).unwrap();
        wait_for(&begun, round);
        dropped.store(round, SeqCst);
    }
    common::eventually("each of them has ended", || timer.pending_timeouts() == 0);
    let (rang, rings) = channel();
    timer.schedule(move |_| rang.send(()).unwrap(), ms(1));
    // After this one, the run of the last watchdog is over.
    rings.recv_timeout(TEST_TIMEOUT).unwrap();
    let before = runs.get();
    thread::sleep(ms(30));
    assert_eq!((runs.get(), timer.pending_timeouts()), (before, 0));
}
