//! `shutdown`: what falls due within the grace runs, the rest is returned, and nobody waits for longer than that takes.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Driven, Ends, Gate, Log, PATIENCE, TICK, ends, ms, quietly};
use hashed_wheel::{
    Builder, Clock, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};

/// Longer than any of these tests may take.
const HOUR: Duration = Duration::from_secs(3_600);

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::new(ms(1), 64)
}

#[track_caller]
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(ms(1));
    }
}

/// Shuts the timer down on a thread of its own, and waits until that has begun.
fn begin_shutdown(timer: &HashedWheelTimer, grace: Duration) -> thread::JoinHandle<Vec<Timeout>> {
    let other = timer.clone();
    let shutdown = thread::spawn(move || other.shutdown(grace));
    eventually("it has begun", || timer.start().is_err());
    shutdown
}

fn is_refused(refused: Result<Timeout, NewTimeoutError>) -> bool {
    matches!(refused, Err(NewTimeoutError::Stopped))
}

// --- a driven timer -------------------------------------------------------------------------------------------------

#[test]
fn a_driven_timer_runs_what_is_due_and_waits_for_nothing() {
    let t = Driven::new();
    let (task_ends, log) = (Ends::new(), Log::default());
    let later = t.timer.new_timeout_task(task_ends.task(), ms(21)).unwrap();
    t.timer.new_timeout(log.task(2), ms(20)).unwrap();
    t.timer.new_timeout(log.task(1), ms(10)).unwrap();
    t.clock.advance(ms(20));

    let rest = t.timer.shutdown(HOUR);
    assert_eq!(rest, [later]);
    assert_eq!(log.take(), [1, 2]);
    assert!(rest[0].is_cancelled());
    assert_eq!((task_ends.runs(), task_ends.hooks(), task_ends.drops()), (0, 1, 1));
    assert!(t.timer.is_stopped() && t.driver.is_stopped());
    assert_eq!(t.timer.pending_timeouts(), 0);
    assert!(is_refused(t.timer.new_timeout(|_| (), TICK)));
    assert!(t.timer.shutdown(HOUR).is_empty() && t.timer.stop().is_empty(), "once");
}

#[test]
fn however_many_are_due_all_run() {
    let t = Driven::new();
    let task_ends = Ends::new();
    // More than a turn takes over.
    for _ in 0..100_001 {
        t.timer.new_timeout_task(task_ends.task(), TICK).unwrap();
    }
    let later = t.timer.new_timeout(|_| (), TICK * 2).unwrap();
    t.clock.advance(TICK);
    assert_eq!(t.timer.shutdown(Duration::ZERO), [later]);
    assert_eq!(task_ends.runs(), 100_001);
}

#[test]
fn while_it_closes_it_is_not_stopped_and_refuses() {
    let t = Driven::new();
    let seen = Arc::new(Mutex::new(None));
    let see = seen.clone();
    let task = move |timeout: &Timeout| {
        let timer = timeout.timer();
        let refused = timer.new_timeout(|_| (), Duration::ZERO);
        *see.lock().unwrap() = Some((timer.is_stopped(), is_refused(refused), format!("{timer:?}")));
    };
    t.timer.new_timeout(task, TICK).unwrap();
    t.clock.advance(TICK);
    assert!(t.timer.shutdown(Duration::ZERO).is_empty());
    let (is_stopped, refuses, debug) = seen.lock().unwrap().take().unwrap();
    assert!(!is_stopped && refuses);
    assert!(debug.contains("life: Closing"), "{debug}");
    assert_eq!(t.timer.stats().rejected, 1);
    assert!(format!("{:?}", t.timer).contains("life: Stopped"));
}

/// A reset of what is due brings it out of reach, one of what is not brings it back.
#[test]
fn tasks_of_a_timer_that_closes_may_cancel_and_reset() {
    let mut t = Driven::new();
    let log = Log::default();
    let [due, later, cancelled] = [(2, TICK * 2), (3, TICK * 5), (4, TICK * 2)]
        .map(|(name, delay)| t.timer.new_timeout(log.task(name), delay).unwrap());
    let [of_due, of_later] = [due.clone(), later.clone()];
    let task = move |_: &Timeout| {
        assert!(of_due.reset(TICK) && of_later.reset(Duration::ZERO) && cancelled.cancel());
    };
    t.timer.new_timeout(task, TICK).unwrap();
    t.driver.turn();
    // The deadlines are counted from now, so both are for ticks after this one.
    t.clock.advance(TICK * 2);
    let mut rest = t.timer.shutdown(Duration::ZERO);
    rest.sort_by_key(|timeout| *timeout == later);
    assert_eq!(rest, [due, later]);
    assert!(log.take().is_empty());
}

#[test]
fn a_clock_that_steps_back_hangs_nobody() {
    /// Goes back to zero, for good, after so many looks at it.
    struct Back {
        looks: AtomicUsize,
        after: usize,
    }

    impl Clock for Back {
        fn now(&self) -> Duration {
            let look = self.looks.fetch_add(1, SeqCst);
            if (1..self.after).contains(&look) { TICK * 5 } else { Duration::ZERO }
        }
    }

    for after in 0..10 {
        let clock = Back { looks: AtomicUsize::new(0), after };
        let (timer, _driver) = HashedWheelTimer::builder().tick(TICK).clock(clock).build_driven().unwrap();
        let timeout = timer.new_timeout(|_| (), Duration::ZERO).unwrap();
        let rest = ends(move || timer.shutdown(HOUR));
        assert_eq!(rest.len() + usize::from(timeout.is_expired()), 1, "it ends once");
    }
}

#[test]
fn a_driven_timer_waits_for_the_turn_in_progress() {
    let t = Driven::new();
    let (gate, wait) = Gate::new();
    let log = Log::default();
    t.timer.new_timeout(move |_| wait(), TICK).unwrap();
    let (first, second) = (log.task(1), log.task(2));
    t.timer.new_timeout(first, TICK).unwrap();
    t.timer.new_timeout(second, TICK * 2).unwrap();
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
    assert_eq!(expired, 2, "the turn goes on to its end");
    assert_eq!(log.take(), [1, 2], "and what has become due since runs after it");
}

#[test]
fn the_waker_is_called_when_it_is_over() {
    let woken = Arc::new(AtomicBool::new(false));
    let wake = woken.clone();
    let t = Driven::with(|builder| builder.waker(move || wake.store(true, SeqCst)));
    let timeout = t.timer.new_timeout(|_| (), HOUR).unwrap();
    assert!(t.driver.next_turn().is_some());
    assert_eq!(t.timer.shutdown(HOUR), [timeout]);
    assert!(woken.load(SeqCst) && t.driver.next_turn().is_none());
}

// --- called from where it would wait for itself ---------------------------------------------------------------------

#[test]
fn a_task_on_the_worker_cannot_shut_its_timer_down() {
    let mut t = Driven::new();
    let (other, task_ends) = (t.timer.clone(), Ends::new());
    t.timer.new_timeout(move |_| drop(other.shutdown(HOUR)), TICK).unwrap();
    quietly(|| assert_eq!(t.pass(TICK), 1));
    assert_eq!(t.timer.stats().panics, 1);
    t.timer.new_timeout_task(task_ends.task(), TICK).expect("nothing has changed");
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(task_ends.runs(), 1);
}

#[test]
fn the_panic_says_what_to_do() {
    let mut t = Driven::new();
    let (said, hear) = channel();
    t.timer
        .new_timeout(
            move |timeout| {
                let timer = timeout.timer();
                let shutdown = std::panic::AssertUnwindSafe(|| timer.shutdown(HOUR));
                let panic = std::panic::catch_unwind(shutdown).unwrap_err();
                said.send(*panic.downcast::<String>().unwrap()).unwrap();
            },
            TICK,
        )
        .unwrap();
    quietly(|| t.pass(TICK));
    let said = hear.recv().unwrap();
    assert!(
        said.starts_with("HashedWheelTimer::shutdown was called by a task on the timer's own worker"),
        "{said}"
    );
    assert!(said.contains("call it from another thread"), "{said}");
}

#[test]
fn a_hook_of_a_shutdown_may_call_it_again() {
    struct Again(Arc<Mutex<Option<usize>>>);

    impl TimerTask for Again {
        fn run(self, _: &Timeout) {}

        fn cancelled(self, timeout: &Timeout) {
            let timer = timeout.timer();
            *self.0.lock().unwrap() = Some(timer.shutdown(HOUR).len() + timer.stop().len());
        }
    }

    let got = Arc::new(Mutex::new(None));
    let t = Driven::new();
    let timeout = t.timer.new_timeout_task(Again(got.clone()), TICK).unwrap();
    assert_eq!(t.timer.shutdown(Duration::ZERO), [timeout]);
    assert_eq!(*got.lock().unwrap(), Some(0));
}

/// `shutdown` turns a driven timer without its driver, which a task may have.
#[test]
fn a_task_may_have_the_driver() {
    ends(|| {
        let executor_is_there = Arc::new(());
        let held = Arc::downgrade(&executor_is_there);
        let t = Driven::with(|builder| {
            builder.task_executor(move |task: ExpiredTask| {
                let _held = &executor_is_there;
                task.run();
            })
        });
        let (far_ends, mut driver) = (Ends::new(), t.driver);
        let far = t.timer.new_timeout_task(far_ends.task(), HOUR).unwrap();
        let task = move |_: &Timeout| {
            assert!(!driver.is_stopped());
            assert_eq!((driver.next_turn(), driver.turn()), (None, 0), "this is a turn");
            drop(driver);
        };
        t.timer.new_timeout(task, TICK).unwrap();
        t.clock.advance(TICK);
        // The drop of the driver has stopped the timer, and so has all there is.
        assert!(t.timer.shutdown(HOUR).is_empty());
        assert_eq!((t.timer.stats().panics, far_ends.hooks()), (0, 1));
        assert!(far.is_cancelled() && t.timer.is_stopped());
        assert!(held.upgrade().is_none(), "the executor is let go of");
    });
}

// --- a timer with a thread ------------------------------------------------------------------------------------------

fn runs_what_falls_due(settings: impl FnOnce(Builder) -> Builder) {
    let timer = settings(HashedWheelTimer::builder().tick(ms(1)).ticks_per_wheel(16)).build().unwrap();
    let log = Log::default();
    let begin = Instant::now();
    for name in 1..=20 {
        timer.new_timeout(log.task(name), ms(name * 10)).unwrap();
    }
    let far = timer.new_timeout(|_| (), HOUR).unwrap();
    // Not for as long as it may.
    let rest = timer.shutdown(HOUR / 2);
    assert_eq!(rest, [far]);
    assert!(begin.elapsed() >= ms(200), "the last one was not early");
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!(log.take(), Vec::from_iter(1..=20));
    assert!(rest[0].is_cancelled() && timer.is_stopped() && is_refused(timer.new_timeout(|_| (), ms(1))));
}

#[test]
fn what_falls_due_within_the_grace_runs() {
    runs_what_falls_due(|builder| builder);
}

#[test]
fn what_falls_due_within_the_grace_runs_on_the_other_wheel() {
    runs_what_falls_due(Builder::hierarchical);
}

#[test]
fn with_nothing_to_wait_for_it_does_not_wait() {
    ends(|| assert!(timer().shutdown(Duration::MAX).is_empty(), "never started"));
    ends(|| {
        let timer = timer();
        timer.start().unwrap();
        assert!(timer.shutdown(Duration::MAX).is_empty(), "nothing pending");
    });
    ends(|| {
        let timer = timer();
        timer.new_timeout(|_| (), HOUR).unwrap().cancel();
        let far = timer.new_timeout(|_| (), HOUR * 2).unwrap();
        assert_eq!(timer.shutdown(HOUR), [far], "nothing in time");
        assert!(timer.shutdown(HOUR).is_empty(), "once");
    });
}

#[test]
fn what_never_falls_due_is_not_waited_for() {
    let rest = ends(|| {
        let timer = timer();
        let never = timer.new_timeout(|_| (), Duration::MAX).unwrap();
        let soon = timer.new_timeout(|_| (), ms(30)).unwrap();
        let rest = timer.shutdown(Duration::MAX);
        assert!(soon.is_expired());
        rest == [never]
    });
    assert!(rest);
}

/// On whatever part of a tick that is: what was scheduled for the end of the grace is within it.
#[test]
fn the_end_of_the_grace_belongs_to_it() {
    for part in 0..10 {
        let timer = HashedWheelTimer::new(ms(20), 8);
        thread::sleep(ms(part * 2));
        let timeout = timer.new_timeout(|_| (), ms(50)).unwrap();
        assert!(timer.shutdown(ms(50)).is_empty());
        assert!(timeout.is_expired());
    }
}

#[test]
fn what_is_due_now_runs_without_any_grace() {
    let timer = HashedWheelTimer::new(ms(20), 8);
    let now = timer.new_timeout(|_| (), Duration::ZERO).unwrap();
    let later = timer.new_timeout(|_| (), HOUR).unwrap();
    assert_eq!(timer.shutdown(Duration::ZERO), [later]);
    // Zero delay is for the next tick; that may have been another one by the time it was shut down.
    assert!(now.is_expired());
}

/// What was re-armed lies in the wheel at an earlier tick than its own.
#[test]
fn a_deadline_that_was_moved_out_of_reach_is_not_waited_for() {
    let timer = timer();
    let begin = Instant::now();
    let idle = timer.new_timeout(|_| (), PATIENCE).unwrap();
    thread::sleep(ms(50));
    assert!(idle.reset(HOUR));
    let beside = timer.new_timeout(|_| (), PATIENCE + HOUR).unwrap();
    let rest = timer.shutdown(HOUR / 2);
    assert!(begin.elapsed() < PATIENCE);
    assert!(rest.len() == 2 && rest.contains(&idle) && rest.contains(&beside));
}

#[test]
fn who_waits_sees_a_cancel_and_a_reset() {
    for moved in [false, true] {
        let timer = timer();
        let begin = Instant::now();
        let [in_time, late] = [PATIENCE, HOUR].map(|delay| timer.new_timeout(|_| (), delay).unwrap());
        let shutdown = begin_shutdown(&timer, HOUR / 2);
        thread::sleep(ms(50));
        assert!(!timer.is_stopped(), "it waits");
        assert!(if moved { in_time.reset(HOUR) } else { in_time.cancel() });
        let rest = shutdown.join().unwrap();
        assert!(begin.elapsed() < PATIENCE);
        assert_eq!(
            (rest.len(), rest.contains(&in_time), rest.contains(&late)),
            (1 + usize::from(moved), moved, true)
        );
    }
}

#[test]
fn a_deadline_that_is_moved_into_reach_runs() {
    let timer = timer();
    let [in_time, late] = [PATIENCE, HOUR * 2].map(|delay| timer.new_timeout(|_| (), delay).unwrap());
    let shutdown = begin_shutdown(&timer, HOUR);
    assert!(late.reset(ms(20)));
    eventually("it runs", || late.is_expired());
    assert!(in_time.cancel());
    assert!(shutdown.join().unwrap().is_empty());
}

#[test]
fn a_running_task_is_waited_for() {
    let timer = timer();
    let (gate, wait) = Gate::new();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    timer
        .new_timeout(
            move |_| {
                wait();
                thread::sleep(ms(20));
                is_over.store(true, SeqCst);
            },
            ms(1),
        )
        .unwrap();
    gate.wait_for_arrival();
    let shutdown = begin_shutdown(&timer, Duration::ZERO);
    thread::sleep(ms(20));
    assert!(!shutdown.is_finished());
    gate.open();
    assert!(shutdown.join().unwrap().is_empty());
    assert!(over.load(SeqCst));
}

#[test]
fn what_the_executor_has_taken_is_its_own_affair() {
    let (pool, tasks) = channel::<ExpiredTask>();
    let timer = HashedWheelTimer::builder()
        .tick(ms(1))
        .task_executor(move |task| pool.send(task).unwrap())
        .build()
        .unwrap();
    let task_ends = Ends::new();
    timer.new_timeout_task(task_ends.task(), ms(10)).unwrap();
    assert!(timer.shutdown(HOUR).is_empty());
    assert_eq!(task_ends.runs(), 0);
    tasks.into_iter().for_each(ExpiredTask::run);
    assert_eq!((task_ends.runs(), task_ends.drops()), (1, 1));
}

// --- others that stop it --------------------------------------------------------------------------------------------

/// Something that would keep a shutdown waiting, what ends the wait, and how many of the two are returned there.
fn meanwhile(end: impl FnOnce(&HashedWheelTimer) -> usize) {
    let timer = timer();
    let begin = Instant::now();
    let task_ends = Ends::new();
    timer.new_timeout_task(task_ends.task(), PATIENCE).unwrap();
    timer.new_timeout_task(task_ends.task(), HOUR * 2).unwrap();
    let shutdown = begin_shutdown(&timer, HOUR);
    assert_eq!(end(&timer), 2, "who stops it gets all");
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(shutdown.join().unwrap().is_empty(), "and who waited nothing");
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!((task_ends.runs(), task_ends.hooks(), task_ends.drops()), (0, 2, 2));
}

#[test]
fn a_stop_ends_a_shutdown() {
    meanwhile(|timer| timer.stop().len());
}

#[test]
fn of_two_shutdowns_the_one_with_less_grace_ends_both() {
    meanwhile(|timer| timer.shutdown(ms(20)).len());
}

#[test]
fn a_timer_that_stops_by_itself_ends_a_shutdown() {
    struct Breaks(Arc<AtomicBool>, Instant);

    impl Clock for Breaks {
        fn now(&self) -> Duration {
            let is_worker = thread::current().name() == Some("breaks");
            assert!(!is_worker || !self.0.load(SeqCst), "the clock is broken");
            self.1.elapsed()
        }
    }

    let is_broken = Arc::new(AtomicBool::new(false));
    let clock = Breaks(is_broken.clone(), Instant::now());
    let timer = HashedWheelTimer::builder().tick(ms(1)).thread_name("breaks").clock(clock).build().unwrap();
    let far = timer.new_timeout(|_| (), PATIENCE).unwrap();
    let shutdown = begin_shutdown(&timer, HOUR);
    is_broken.store(true, SeqCst);
    assert!(far.reset(ms(5)), "which wakes it");
    assert!(shutdown.join().unwrap().is_empty());
    assert!(far.is_cancelled() && timer.is_stopped());
}

// --- the clock ------------------------------------------------------------------------------------------------------

/// The worker has a thread, and its clock nobody who moves it.
#[test]
fn a_clock_that_stands_still_hangs_nobody() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().tick(ms(10)).clock(clock.clone()).build().unwrap();
    let timeout = timer.new_timeout(|_| (), ms(50)).unwrap();
    let begin = Instant::now();
    assert_eq!(timer.shutdown(ms(100)), [timeout]);
    assert!(begin.elapsed() >= ms(100), "real time has passed in its place");
}

/// What is due now fires at the next tick, which never comes.
#[test]
fn a_clock_that_stands_still_hangs_nobody_for_what_is_due_at_once() {
    let timer = HashedWheelTimer::builder().tick(ms(10)).clock(ManualClock::new()).build().unwrap();
    let timeout = timer.new_timeout(|_| (), Duration::ZERO).unwrap();
    assert_eq!(timer.shutdown(Duration::ZERO), [timeout]);
}

/// All of it is due by a clock that then stands still, and it takes longer than real time would have.
#[test]
fn what_is_due_runs_though_the_clock_stands_still() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().tick(ms(1)).clock(clock.clone()).build().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let runs = Arc::clone(&runs);
        let slow = move |_: &Timeout| {
            thread::sleep(ms(20));
            runs.fetch_add(1, SeqCst);
        };
        timer.new_timeout(slow, ms(1)).unwrap();
    }
    clock.advance(ms(1));
    assert_eq!(timer.shutdown(Duration::ZERO), []);
    assert_eq!(runs.load(SeqCst), 4);
}

/// The grace is the timer's time, where that passes faster.
#[test]
fn a_clock_that_runs_ahead_is_gone_by() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().tick(ms(10)).clock(clock.clone()).build().unwrap();
    let log = Log::default();
    let begin = Instant::now();
    timer.new_timeout(log.task(1), PATIENCE).unwrap();
    let far = timer.new_timeout(log.task(2), PATIENCE * 2).unwrap();
    let shutdown = begin_shutdown(&timer, PATIENCE + ms(10));
    clock.advance(PATIENCE);
    // The worker sleeps in real time: a message wakes it.
    assert!(far.reset(PATIENCE - ms(10)));
    assert_eq!(shutdown.join().unwrap(), [far]);
    assert_eq!(log.take(), [1]);
    assert!(begin.elapsed() < PATIENCE);
}

/// The worker sleeps in real time, for an hour.
#[test]
fn what_the_clock_has_jumped_over_runs() {
    for grace in [Duration::ZERO, ms(100)] {
        let clock = ManualClock::new();
        let timer = HashedWheelTimer::builder().tick(ms(10)).clock(clock.clone()).build().unwrap();
        let log = Log::default();
        timer.new_timeout(log.task(1), Duration::from_secs(3_600)).unwrap();
        thread::sleep(ms(50));
        clock.advance(Duration::from_secs(3_601));
        assert_eq!(timer.shutdown(grace), []);
        assert_eq!(log.take(), [1]);
    }
}

// --- races ----------------------------------------------------------------------------------------------------------

/// Each timeout that was accepted has run if it was due, and is returned if not, whatever races with what.
#[test]
fn nothing_is_lost_between_new_timeouts_and_a_shutdown() {
    for round in 0..100 {
        let timer = timer();
        let ([due_ends, far_ends], [soon, far]) = ([Ends::new(), Ends::new()], [ms(round % 4), HOUR]);
        let producers = [(); 3].map(|()| {
            let (timer, due_ends, far_ends) = (timer.clone(), due_ends.clone(), far_ends.clone());
            thread::spawn(move || {
                let mut accepted = (0, 0);
                loop {
                    let Ok(_) = timer.new_timeout_task(due_ends.task(), soon) else { return accepted };
                    accepted.0 += 1;
                    let Ok(_) = timer.new_timeout_task(far_ends.task(), far) else { return accepted };
                    accepted.1 += 1;
                }
            })
        });
        thread::sleep(Duration::from_micros(round * 20));
        // Also without any to spare: what comes too late for its own tick is waited for.
        let rest = timer.shutdown(soon);
        let accepted = producers.map(|producer| producer.join().unwrap());
        let [due, far] =
            [accepted.map(|(due, _)| due), accepted.map(|(_, far)| far)].map(|all| all.iter().sum());
        assert_eq!((due_ends.runs(), due_ends.hooks()), (due, 0), "what falls due in time has run");
        assert_eq!((far_ends.runs(), far_ends.hooks(), rest.len()), (0, far, far), "the rest is returned");
        let refused = 3;
        assert_eq!(due_ends.drops() + far_ends.drops(), due + far + refused, "each once");
        assert_eq!(timer.pending_timeouts(), 0);
    }
}
