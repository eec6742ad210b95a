//! Each race that a reviewer would ask about, explored over every interleaving that the memory model allows (where `explore`
//! is given a number: over those with at most so many preemptions); and for most a negative twin, the same model over code
//! with one thing taken out, which has to fail.
//!
//! Everything runs the library's own code: the timer is driven, so that a turn of the worker is a call, and its clock stands
//! where the model puts it. Only the models of starting and sleeping have a real (loom) worker thread.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

use hashed_wheel::{
    Clock, Driver, Fault, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask, take_spawned,
};
use loom::thread;

const TICK: Duration = Duration::from_millis(1);

/// Explores `model` whole, or (for two producers) every interleaving with at most `preemptions` of them.
#[track_caller]
fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    // Neither may cut a model short, whatever the environment says: it would pass.
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.max_branches = 10_000;
    builder.preemption_bound = preemptions;
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        model();
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!("{name}: {} executions", executions.load(Relaxed));
}

/// Runs a model in a process of its own, over code with a fault in it: it has to fail.
#[track_caller]
fn twin(model: &str, fault: Fault) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([model, "--exact", "--nocapture"])
        .env("HASHED_WHEEL_FAULT", format!("{fault:?}"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{model} passes with {fault:?}: it does not see what it is there for");
    assert!(errors.contains("panicked at"), "{model} did not get to the end with {fault:?}: {errors}");
}

/// What became of one timeout: each count is of calls, and all together may make one.
#[derive(Default)]
struct Ends {
    runs: AtomicUsize,
    hooks: AtomicUsize,
    drops: AtomicUsize,
}

struct Task(Arc<Ends>);

impl TimerTask for Task {
    fn run(self, _: &Timeout) {
        self.0.runs.fetch_add(1, Relaxed);
    }

    fn cancelled(self, _: &Timeout) {
        self.0.hooks.fetch_add(1, Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

impl Ends {
    #[track_caller]
    fn assert(&self, runs: usize, hooks: usize) {
        let ends = (self.runs.load(Relaxed), self.hooks.load(Relaxed), self.drops.load(Relaxed));
        assert_eq!(ends, (runs, hooks, 1), "exactly one end");
    }
}

struct Driven {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
}

impl Driven {
    fn new() -> Self {
        Self::with_limit(0)
    }

    fn with_limit(limit: usize) -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = HashedWheelTimer::builder()
            .tick(TICK)
            .ticks_per_wheel(2)
            .max_pending_timeouts(limit)
            .clock(clock.clone())
            .build_driven()
            .unwrap();
        Self { timer, driver, clock }
    }

    fn schedule(&self, ticks: u32) -> (Timeout, Arc<Ends>) {
        let ends = Arc::new(Ends::default());
        (self.timer.new_timeout_task(Task(Arc::clone(&ends)), TICK * ticks).unwrap(), ends)
    }

    /// A timeout that the worker has put into the wheel.
    fn schedule_placed(&mut self, ticks: u32) -> (Timeout, Arc<Ends>) {
        let scheduled = self.schedule(ticks);
        assert_eq!(self.driver.turn(), 0);
        scheduled
    }
}

// --- cancel against expire ------------------------------------------------------------------------------------------

#[test]
fn one_of_cancel_and_expire_wins() {
    explore(None, || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || driver.turn());
        let cancelled = timeout.cancel();
        let expired = turn.join().unwrap();

        assert_eq!(usize::from(cancelled) + expired, 1, "exactly one wins");
        ends.assert(expired, usize::from(cancelled));
        assert_eq!((timeout.is_cancelled(), timeout.is_expired()), (cancelled, !cancelled));
        assert_eq!(driven.timer.pending_timeouts(), 0);
    });
}

#[test]
fn one_of_cancel_and_expire_wins_twin() {
    twin("one_of_cancel_and_expire_wins", Fault::ChangeWithoutCompare);
}

// --- cancel against cancel ------------------------------------------------------------------------------------------

#[test]
fn one_of_two_cancels_wins() {
    explore(None, || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        let cancelled = timeout.cancel();

        assert_ne!(cancelled, cancel.join().unwrap(), "exactly one wins");
        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        assert_eq!(driven.driver.next_turn(), None);
    });
}

#[test]
fn one_of_two_cancels_wins_twin() {
    twin("one_of_two_cancels_wins", Fault::ChangeWithoutCompare);
}

// --- new_timeout against stop ---------------------------------------------------------------------------------------

#[test]
fn nothing_is_lost_between_new_timeout_and_stop() {
    explore(None, || {
        let Driven { timer, driver, .. } = Driven::new();
        let ends = Arc::new(Ends::default());
        let (other, task) = (timer.clone(), Task(Arc::clone(&ends)));
        let schedule = thread::spawn(move || other.new_timeout_task(task, TICK));
        let rest = timer.stop();

        match schedule.join().unwrap() {
            Ok(timeout) => {
                assert_eq!(rest, [timeout], "accepted, so stop returned it");
                ends.assert(0, 1);
            }
            Err(NewTimeoutError::Stopped) => {
                assert!(rest.is_empty());
                ends.assert(0, 0);
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(timer.pending_timeouts(), 0);
        drop(driver);
    });
}

#[test]
fn nothing_is_lost_between_two_new_timeouts_and_stop_twin() {
    twin("nothing_is_lost_between_two_new_timeouts_and_stop", Fault::StopWithoutWaiting);
}

#[test]
fn nothing_is_lost_between_two_new_timeouts_and_stop() {
    explore(Some(3), || {
        let Driven { timer, driver: _driver, .. } = Driven::new();
        let producers = [timer.clone(), timer.clone()]
            .map(|timer| thread::spawn(move || timer.new_timeout(|_| (), TICK).is_ok()));
        let rest = timer.stop();
        let accepted = producers.map(|producer| usize::from(producer.join().unwrap()));
        assert_eq!(rest.len(), accepted.iter().sum::<usize>(), "what was accepted, stop returned");
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn nothing_is_lost_between_new_timeout_and_stop_twin_that_does_not_wait() {
    twin("nothing_is_lost_between_new_timeout_and_stop", Fault::StopWithoutWaiting);
}

#[test]
fn nothing_is_lost_between_new_timeout_and_stop_twin_as_in_netty() {
    twin("nothing_is_lost_between_new_timeout_and_stop", Fault::AdmitWithoutCompare);
}

// --- stop against stop, cancel and expire ---------------------------------------------------------------------------

#[test]
fn two_stops_share_what_is_left() {
    explore(None, || {
        let mut driven = Driven::new();
        let (placed, placed_ends) = driven.schedule_placed(5);
        let (queued, queued_ends) = driven.schedule(5);
        let other = driven.timer.clone();
        let stop = thread::spawn(move || {
            let rest = other.stop();
            assert_eq!(other.pending_timeouts(), 0, "both return when it is over");
            rest
        });
        let mut rest = driven.timer.stop();
        assert_eq!(driven.timer.pending_timeouts(), 0, "both return when it is over");
        let others = stop.join().unwrap();
        assert!(rest.is_empty() || others.is_empty(), "one gets all");
        rest.extend(others);

        assert_eq!(rest.len(), 2, "each once");
        assert!(rest.contains(&placed) && rest.contains(&queued));
        placed_ends.assert(0, 1);
        queued_ends.assert(0, 1);
    });
}

/// A loop that ends when it sees that somebody has stopped the timer, and drops its driver, which stops it too.
#[test]
fn who_stops_a_loop_gets_what_is_left() {
    explore(None, || {
        let Driven { timer, driver, .. } = Driven::new();
        let timeout = timer.new_timeout(|_| (), TICK).unwrap();
        let event_loop = thread::spawn(move || {
            if driver.is_stopped() {
                drop(driver);
                return None;
            }
            Some(driver)
        });
        assert_eq!(timer.stop(), [timeout]);
        let _driver = event_loop.join().unwrap();
    });
}

#[test]
fn who_stops_a_loop_gets_what_is_left_twin() {
    twin("who_stops_a_loop_gets_what_is_left", Fault::SecondStopTakes);
}

#[test]
fn one_of_cancel_and_stop_wins() {
    explore(None, || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let cancel = thread::spawn(move || other.cancel());
        let rest = driven.timer.stop();
        let pending = driven.timer.pending_timeouts();
        let cancelled = cancel.join().unwrap();

        assert_eq!(pending, 0, "stop waits for a cancel that was counted");
        assert_eq!(rest.len() + usize::from(cancelled), 1, "exactly one wins");
        ends.assert(0, 1);
    });
}

#[test]
fn one_of_cancel_and_stop_wins_twin() {
    twin("one_of_cancel_and_stop_wins", Fault::ChangeWithoutCompare);
}

#[test]
fn stop_takes_what_a_turn_has_not_expired() {
    explore(None, || {
        let mut driven = Driven::new();
        let (_, first) = driven.schedule(1);
        let (_, second) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        // A driver that is dropped stops the timer too, and would take the rest.
        let turn = thread::spawn(move || (driver.turn(), driver));
        let rest = driven.timer.stop();
        let (expired, _driver) = turn.join().unwrap();

        assert_eq!(rest.len() + expired, 2, "each ends once");
        first.assert(usize::from(expired > 0), usize::from(expired == 0));
        second.assert(usize::from(expired > 1), usize::from(expired < 2));
    });
}

// --- start against start --------------------------------------------------------------------------------------------

#[test]
fn two_starts_start_one_worker() {
    explore(None, || {
        take_spawned();
        let timer = HashedWheelTimer::builder()
            .tick(TICK)
            .ticks_per_wheel(2)
            .clock(ManualClock::new())
            .build()
            .unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || other.start().unwrap());
        timer.start().unwrap();
        start.join().unwrap();

        assert_eq!(take_spawned(), 1, "one worker");
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn two_starts_start_one_worker_twin() {
    twin("two_starts_start_one_worker", Fault::StartWithoutSecondLook);
}

#[test]
fn a_stop_ends_a_worker_that_is_being_started() {
    explore(None, || {
        let timer = HashedWheelTimer::builder()
            .tick(TICK)
            .ticks_per_wheel(2)
            .clock(ManualClock::new())
            .build()
            .unwrap();
        let other = timer.clone();
        let start = thread::spawn(move || other.start().is_ok());
        // Returns, and the thread, if there was one, is gone: loom sees to both.
        assert!(timer.stop().is_empty());
        start.join().unwrap();
        assert!(matches!(timer.start(), Err(NewTimeoutError::Stopped)));
    });
}

// --- cancel against transfer ----------------------------------------------------------------------------------------

#[test]
fn a_cancel_during_the_transfer_leaves_nothing() {
    explore(None, || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            driver.turn();
            driver
        });
        assert!(timeout.cancel());
        let mut driver = turn.join().unwrap();

        ends.assert(0, 1);
        assert_eq!(driven.timer.pending_timeouts(), 0);
        driver.turn();
        assert_eq!(driver.next_turn(), None, "nothing of it is left in the wheel");
        drop(timeout);
        assert_eq!(Arc::strong_count(&ends), 1);
    });
}

#[test]
fn a_cancel_during_the_transfer_leaves_nothing_twin() {
    twin("a_cancel_during_the_transfer_leaves_nothing", Fault::CancelWithoutPush);
}

// --- reset against expire, transfer and cancel ----------------------------------------------------------------------

#[test]
fn a_reset_that_was_in_time_moves_the_deadline() {
    explore(None, || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || (driver.turn(), driver));
        let reset = timeout.reset(TICK * 3);
        let (expired, mut driver) = turn.join().unwrap();

        assert_eq!(usize::from(reset) + expired, 1, "re-armed, or expired before");
        driven.clock.advance(TICK * 2);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), usize::from(reset), "at the new deadline");
        ends.assert(1, 0);
    });
}

#[test]
fn a_reset_that_was_in_time_moves_the_deadline_twin() {
    twin("a_reset_that_was_in_time_moves_the_deadline", Fault::ChangeWithoutCompare);
}

#[test]
fn a_reset_to_an_earlier_deadline_reaches_the_worker() {
    explore(None, || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            assert_eq!(driver.turn(), 0);
            driver
        });
        assert!(timeout.reset(TICK * 2));
        let mut driver = turn.join().unwrap();

        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 0, "not before the new deadline");
        driven.clock.advance(TICK);
        assert_eq!(driver.turn(), 1, "at the new deadline");
        ends.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
    });
}

#[test]
fn a_reset_to_an_earlier_deadline_reaches_the_worker_twin() {
    twin("a_reset_to_an_earlier_deadline_reaches_the_worker", Fault::ResetWithoutPush);
}

#[test]
fn a_reset_does_not_bring_back_what_was_cancelled() {
    explore(None, || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK));
        assert!(timeout.cancel());
        reset.join().unwrap();

        ends.assert(0, 1);
        driven.clock.advance(TICK * 10);
        assert_eq!(driven.driver.turn(), 0, "cancelled for good");
        assert_eq!(driven.driver.next_turn(), None, "nothing of it is left in the wheel");
    });
}

#[test]
fn a_reset_does_not_bring_back_what_was_cancelled_twin() {
    twin("a_reset_does_not_bring_back_what_was_cancelled", Fault::ChangeWithoutCompare);
}

#[test]
fn a_reset_keeps_nothing_from_stop_twin() {
    twin("a_reset_keeps_nothing_from_stop", Fault::ChangeWithoutCompare);
}

#[test]
fn a_reset_keeps_nothing_from_stop() {
    explore(None, || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK));
        assert_eq!(driven.timer.stop(), [timeout]);
        reset.join().unwrap();
        ends.assert(0, 1);
    });
}

#[test]
fn a_reset_while_a_backlog_is_taken_in_does_not_put_it_in_twice() {
    explore(None, || {
        let clock = Seen(Arc::new(loom::sync::atomic::AtomicU64::new(0)));
        let builder = HashedWheelTimer::builder().tick(TICK).ticks_per_wheel(2).clock(clock.clone());
        let (timer, mut driver) = builder.build_driven().unwrap();
        // As many as a turn takes in, in a model; the third is owed its tick.
        for _ in 0..2 {
            timer.new_timeout(|_| (), TICK).unwrap();
        }
        let ends = Arc::new(Ends::default());
        let owed = timer.new_timeout_task(Task(Arc::clone(&ends)), TICK * 2).unwrap();
        let reset = thread::spawn(move || owed.reset(TICK));
        for ticks in [4, 0, 0, 4] {
            clock.0.fetch_add(ticks, AcqRel);
            driver.turn();
        }
        reset.join().unwrap();
        clock.0.fetch_add(4, AcqRel);
        driver.turn();
        ends.assert(1, 0);
        assert_eq!(driver.next_turn(), None);
        assert!(driver.could_sleep());
    });
}

#[test]
fn resets_both_ways_end_at_one_of_the_deadlines() {
    explore(Some(2), || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(3);
        let resets = [1, 4].map(|ticks| {
            let timeout = timeout.clone();
            thread::spawn(move || timeout.reset(TICK * ticks))
        });
        driven.clock.advance(TICK);
        let mut expired = driven.driver.turn();
        resets.into_iter().for_each(|reset| assert!(reset.join().is_ok()));
        for _ in 0..6 {
            driven.clock.advance(TICK);
            expired += driven.driver.turn();
        }
        assert_eq!(expired, 1);
        ends.assert(1, 0);
        assert_eq!(driven.driver.next_turn(), None);
    });
}

#[test]
fn a_cancel_against_a_reset_against_a_turn_leaves_nothing() {
    explore(Some(3), || {
        let mut driven = Driven::new();
        let (timeout, ends) = driven.schedule_placed(5);
        let other = timeout.clone();
        let reset = thread::spawn(move || other.reset(TICK));
        let mut driver = driven.driver;
        let turn = thread::spawn(move || {
            driver.turn();
            driver
        });
        assert!(timeout.cancel());
        reset.join().unwrap();
        let mut driver = turn.join().unwrap();
        ends.assert(0, 1);
        driver.turn();
        assert_eq!(driver.next_turn(), None);
    });
}

/// A clock whose time the model sees: a thread may have read it and not gone on.
#[derive(Clone)]
struct Seen(Arc<loom::sync::atomic::AtomicU64>);

impl Clock for Seen {
    fn now(&self) -> Duration {
        TICK * self.0.fetch_add(0, AcqRel) as u32
    }
}

// --- the worker's sleep ---------------------------------------------------------------------------------------------

/// Each look at this clock takes part of a tick, so that time passes in a model without anybody's doing.
#[derive(Default)]
struct Passing(AtomicU32);

impl Clock for Passing {
    fn now(&self) -> Duration {
        TICK / 4 * self.0.fetch_add(1, Relaxed)
    }
}

/// A timer with a (loom) thread, which may be anywhere between its first turn and its sleep. With nothing to wait for it
/// sleeps for ever: a wake-up that is lost is a deadlock, and loom says so.
fn threaded() -> HashedWheelTimer {
    let timer =
        HashedWheelTimer::builder().tick(TICK).ticks_per_wheel(2).clock(Passing::default()).build().unwrap();
    timer.start().unwrap();
    timer
}

/// Waited for, for as long as it takes.
#[derive(Default)]
struct Bell(loom::sync::Mutex<bool>, loom::sync::Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn ring_when_dropped(&self, handle: HashedWheelTimer) {
        drop(handle);
        self.ring();
    }

    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
    }
}

#[test]
fn a_new_timeout_wakes_a_worker_that_falls_asleep() {
    explore(Some(3), || {
        let timer = threaded();
        let bell = Arc::new(Bell::default());
        let task = Arc::clone(&bell);
        let timeout = timer.new_timeout(move |_| task.ring(), TICK).unwrap();
        bell.wait();
        assert!(timeout.is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn a_new_timeout_wakes_a_worker_that_falls_asleep_twin() {
    twin("a_new_timeout_wakes_a_worker_that_falls_asleep", Fault::SleepWithoutCompare);
}

#[test]
fn a_reset_to_an_earlier_deadline_wakes_a_worker_that_falls_asleep() {
    explore(Some(3), || {
        let timer = threaded();
        let bell = Arc::new(Bell::default());
        let task = Arc::clone(&bell);
        // For ever, so that the sleep is, unless the reset ends it.
        let timeout = timer.new_timeout(move |_| task.ring(), Duration::MAX).unwrap();
        assert!(timeout.reset(TICK));
        bell.wait();
        assert!(timeout.is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn a_reset_to_an_earlier_deadline_wakes_a_worker_that_falls_asleep_twin() {
    twin("a_reset_to_an_earlier_deadline_wakes_a_worker_that_falls_asleep", Fault::SleepWithoutSecondLook);
}

#[test]
fn a_stop_wakes_a_worker_that_falls_asleep() {
    explore(None, || {
        let timer = threaded();
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn two_new_timeouts_wake_a_worker_that_falls_asleep() {
    explore(Some(2), || {
        let timer = threaded();
        let bells = [Arc::new(Bell::default()), Arc::new(Bell::default())];
        let [mine, others] = bells.clone();
        let other = timer.clone();
        let producer = thread::spawn(move || other.new_timeout(move |_| others.ring(), TICK).unwrap());
        timer.new_timeout(move |_| mine.ring(), TICK).unwrap();
        bells.iter().for_each(|bell| bell.wait());
        assert!(producer.join().unwrap().is_expired());
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn two_new_timeouts_wake_a_worker_that_falls_asleep_twin() {
    twin("two_new_timeouts_wake_a_worker_that_falls_asleep", Fault::SleepWithoutCompare);
}

#[test]
fn a_stop_wakes_a_worker_that_falls_asleep_twin() {
    twin("a_stop_wakes_a_worker_that_falls_asleep", Fault::StopWithoutUnparking);
}

#[test]
fn a_cancel_wakes_a_worker_that_sleeps_for_long() {
    explore(Some(3), || {
        let timer = threaded();
        let memory = Arc::new(Ends::default());
        let timeout = timer.new_timeout_task(Task(Arc::clone(&memory)), Duration::MAX).unwrap();
        let node = timeout.clone();
        assert!(timeout.cancel());
        drop(timeout);
        // Until nobody but this handle holds the entry: the worker gives it back, and nothing else wakes it.
        while !node.is_the_only_handle() {
            thread::yield_now();
        }
        assert!(timer.stop().is_empty());
        memory.assert(0, 1);
    });
}

#[test]
fn a_cancel_wakes_a_worker_that_sleeps_for_long_twin() {
    twin("a_cancel_wakes_a_worker_that_sleeps_for_long", Fault::CancelWithoutPush);
}

// --- a driver's promise -----------------------------------------------------------------------------------------------

/// A driven timer whose loop has a turn to be promised in five ticks, and how often it was woken.
fn promising() -> (Driven, Arc<AtomicUsize>) {
    let (mut driven, woken) = with_waker();
    let _near = driven.schedule_placed(5);
    (driven, woken)
}

fn with_waker() -> (Driven, Arc<AtomicUsize>) {
    let (clock, woken) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let wakes = Arc::clone(&woken);
    let (timer, driver) = HashedWheelTimer::builder()
        .tick(TICK)
        .ticks_per_wheel(2)
        .clock(clock.clone())
        .waker(move || _ = wakes.fetch_add(1, Relaxed))
        .build_driven()
        .unwrap();
    (Driven { timer, driver, clock }, woken)
}

#[test]
fn a_new_timeout_wakes_a_loop_that_was_promised_a_later_turn() {
    explore(None, || {
        let (driven, woken) = promising();
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), TICK).unwrap());
        let promised = driven.driver.next_turn().unwrap();
        caller.join().unwrap();
        assert!(promised == TICK || woken.load(Relaxed) == 1, "{promised:?}, {woken:?}");
    });
}

#[test]
fn a_new_timeout_wakes_a_loop_that_was_promised_a_later_turn_twin() {
    twin("a_new_timeout_wakes_a_loop_that_was_promised_a_later_turn", Fault::PushWithoutLook);
}

#[test]
fn a_new_timeout_wakes_a_loop_that_was_promised_a_later_turn_second_twin() {
    twin("a_new_timeout_wakes_a_loop_that_was_promised_a_later_turn", Fault::PromiseWithoutSecondLook);
}

#[test]
fn two_new_timeouts_wake_a_loop_that_turns_in_between() {
    explore(Some(3), || {
        let (driven, woken) = promising();
        let callers = [1, 3].map(|ticks| {
            let timer = driven.timer.clone();
            thread::spawn(move || timer.new_timeout(|_| (), TICK * ticks).unwrap())
        });
        let mut driver = driven.driver;
        let mut promised = driver.next_turn();
        if woken.swap(0, Relaxed) > 0 {
            driver.turn();
            promised = driver.next_turn();
        }
        callers.into_iter().for_each(|caller| drop(caller.join().unwrap()));
        assert!(promised == Some(TICK) || woken.load(Relaxed) > 0, "{promised:?}, {woken:?}");
    });
}

#[test]
fn two_new_timeouts_wake_a_loop_that_turns_in_between_twin() {
    twin("two_new_timeouts_wake_a_loop_that_turns_in_between", Fault::PushWithoutLook);
}

/// The first re-arm may have made it its own business to push the node when the second one finds it in the queue.
#[test]
fn two_resets_of_one_timeout_wake_a_loop_that_was_promised_a_later_turn() {
    explore(Some(3), || {
        let (mut driven, woken) = promising();
        let (timeout, _) = driven.schedule_placed(20);
        let resets = [10, 1].map(|ticks| {
            let timeout = timeout.clone();
            thread::spawn(move || assert!(timeout.reset(TICK * ticks)))
        });
        let mut promised = driven.driver.next_turn().unwrap();
        if woken.swap(0, Relaxed) > 0 {
            promised = driven.driver.next_turn().unwrap();
        }
        resets.into_iter().for_each(|reset| reset.join().unwrap());
        let needed = timeout.remaining();
        assert!(promised <= needed || woken.load(Relaxed) > 0, "{promised:?}, {needed:?}, {woken:?}");
    });
}

#[test]
fn two_resets_of_one_timeout_wake_a_loop_that_was_promised_a_later_turn_twin() {
    twin("two_resets_of_one_timeout_wake_a_loop_that_was_promised_a_later_turn", Fault::EarlierWithoutLook);
}

#[test]
fn two_resets_of_one_timeout_wake_a_loop_that_was_promised_a_later_turn_second_twin() {
    twin(
        "two_resets_of_one_timeout_wake_a_loop_that_was_promised_a_later_turn",
        Fault::PromiseWithoutSecondLook,
    );
}

/// The turn that was promised becomes needless while the promise is made: somebody may rely on it all the same.
#[test]
fn a_promise_is_not_taken_back() {
    explore(Some(3), || {
        let (mut driven, woken) = with_waker();
        let near = driven.schedule_placed(5).0;
        let cancel = thread::spawn(move || assert!(near.cancel()));
        let timer = driven.timer.clone();
        let caller = thread::spawn(move || timer.new_timeout(|_| (), TICK * 7).unwrap());
        let promised = driven.driver.next_turn();
        caller.join().unwrap();
        cancel.join().unwrap();
        let turns_in_time = promised.is_some_and(|promised| promised <= TICK * 7);
        assert!(turns_in_time || woken.load(Relaxed) > 0, "{promised:?} and nobody wakes it");
    });
}

#[test]
fn a_promise_is_not_taken_back_twin() {
    twin("a_promise_is_not_taken_back", Fault::PromiseBroken);
}

#[test]
fn for_each_promise_the_loop_is_woken_once() {
    explore(Some(3), || {
        let (driven, woken) = promising();
        assert_eq!(driven.driver.next_turn(), Some(TICK * 5));
        let callers = [1, 3].map(|ticks| {
            let timer = driven.timer.clone();
            thread::spawn(move || timer.new_timeout(|_| (), TICK * ticks).unwrap())
        });
        callers.into_iter().for_each(|caller| drop(caller.join().unwrap()));
        assert_eq!(woken.load(Relaxed), 1);
    });
}

#[test]
fn for_each_promise_the_loop_is_woken_once_twin() {
    twin("for_each_promise_the_loop_is_woken_once", Fault::WakeWithoutCompare);
}

// --- the last handle ------------------------------------------------------------------------------------------------

#[test]
fn the_last_handle_ends_what_is_left() {
    explore(None, || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(1);
        driven.clock.advance(TICK);
        let mut driver = driven.driver;
        let turn = thread::spawn(move || (driver.turn(), driver));
        drop(driven.timer);
        assert!(timeout.timer().is_stopped());
        assert_eq!(timeout.timer().pending_timeouts(), 0);
        let (expired, _driver) = turn.join().unwrap();
        ends.assert(expired, 1 - expired);
    });
}

#[test]
fn of_two_last_handles_one_stops_the_timer() {
    explore(None, || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(1);
        let other = driven.timer.clone();
        let first = thread::spawn(move || drop(other));
        drop(driven.timer);
        first.join().unwrap();
        assert!(timeout.is_cancelled());
        ends.assert(0, 1);
    });
}

#[test]
fn a_task_that_drops_the_last_handle_ends_the_worker() {
    explore(Some(2), || {
        let timer = threaded();
        let ends = Arc::new(Ends::default());
        let far = timer.new_timeout_task(Task(Arc::clone(&ends)), Duration::MAX).unwrap();
        let (bell, handle) = (Arc::new(Bell::default()), timer.clone());
        let task = Arc::clone(&bell);
        let near = timer.new_timeout(move |_| task.ring_when_dropped(handle), TICK).unwrap();
        drop(timer);
        bell.wait();
        // Waits for the thread. Which of the two ends what is left, is open.
        assert!(near.timer().stop().iter().all(|timeout| *timeout == far));
        assert!(far.is_cancelled());
        ends.assert(0, 1);
    });
}

#[test]
fn of_two_last_handles_one_stops_the_timer_twin() {
    twin("of_two_last_handles_one_stops_the_timer", Fault::DropWithoutCompare);
}

#[test]
fn a_handle_from_a_timeout_does_not_undo_the_last_drop() {
    explore(Some(3), || {
        let driven = Driven::new();
        let (timeout, ends) = driven.schedule(5);
        let other = timeout.clone();
        let resurrect = thread::spawn(move || drop(other.timer()));
        drop(driven.timer);
        resurrect.join().unwrap();
        assert!(timeout.timer().is_stopped());
        assert!(timeout.is_cancelled());
        ends.assert(0, 1);
    });
}

// --- the limit ------------------------------------------------------------------------------------------------------

#[test]
fn the_limit_is_exact() {
    explore(None, || {
        let driven = Driven::with_limit(1);
        let other = driven.timer.clone();
        let schedule = thread::spawn(move || {
            let accepted = other.new_timeout(|_| (), TICK).is_ok();
            assert!(other.pending_timeouts() <= 1, "a reader never sees more");
            accepted
        });
        let accepted = driven.timer.new_timeout(|_| (), TICK).is_ok();
        assert!(driven.timer.pending_timeouts() <= 1, "a reader never sees more");

        assert_ne!(accepted, schedule.join().unwrap(), "one place, and it is not refused to both");
        assert_eq!(driven.timer.pending_timeouts(), 1);
    });
}

#[test]
fn the_limit_is_exact_twin() {
    twin("the_limit_is_exact", Fault::AdmitWithoutCompare);
}

#[test]
fn a_cancel_makes_room_before_it_returns() {
    explore(None, || {
        let driven = Driven::with_limit(1);
        let (timeout, _) = driven.schedule(5);
        let done = Arc::new(loom::sync::Mutex::new(false));
        let (other, seen) = (driven.timer.clone(), Arc::clone(&done));
        let schedule = thread::spawn(move || {
            let was_free = *seen.lock().unwrap();
            (was_free, other.new_timeout(|_| (), TICK).is_ok())
        });
        assert!(timeout.cancel());
        *done.lock().unwrap() = true;
        let (was_free, accepted) = schedule.join().unwrap();
        assert!(accepted || !was_free, "nobody is refused while a place is free");
        assert_eq!(driven.timer.pending_timeouts(), usize::from(accepted));
    });
}
