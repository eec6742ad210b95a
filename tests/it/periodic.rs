//! Periodic tasks. The clock moves only when the test moves it, except in the tests that need
//! threads.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Driven, FULL, RewindableClock, Schedules, TEST_TIMEOUT, TICK, accepts_all, built_driven, ms,
    quietly,
};
use hashed_wheel::{
    Clock, ExpiredTask, HashedWheelTimer, ManualClock, MissedTick, NewTimeoutError, Periodic,
    PeriodicRun, Schedule, Timeout,
};

/// A task that does not look at its run.
fn without_run(mut task: impl FnMut()) -> impl FnMut(&PeriodicRun<'_>) {
    move |_| task()
}

const PERIOD: Duration = ms(100);

/// The start times of the runs, in milliseconds.
#[derive(Clone, Default)]
struct StartTimes(Arc<Mutex<Vec<u128>>>);

impl StartTimes {
    fn task(&self, clock: &ManualClock) -> impl FnMut() + Send + 'static {
        let (starts, clock) = (self.clone(), clock.clone());
        move || starts.0.lock().unwrap().push(clock.now().as_millis())
    }

    fn take(&self) -> Vec<u128> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Dropped {
    fn new() -> (Self, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&dropped)), dropped)
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Panics when it is dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

// --- schedules -----------------------------------------------------------------------------------

#[test]
fn a_fixed_rate_does_not_drift() {
    for is_hierarchical in [false, true] {
        let mut t = Driven::with(|builder| builder.hierarchical(is_hierarchical));
        let starts = StartTimes::default();
        let periodic = t.fixed_rate(starts.task(&t.clock), ms(30), PERIOD);
        let expected = if cfg!(miri) { 7 } else { 70 };
        for _ in 0..expected * 100 / 7 {
            // Each step is late by a different amount.
            t.pass(ms(7));
        }
        let runs = starts.take();
        assert_eq!(runs.len() as u64, expected);
        assert_eq!(periodic.runs(), expected);
        for (run, &at) in runs.iter().enumerate() {
            let due = 30 + 100 * run as u128;
            assert!((due..due + 7).contains(&at), "run {run} at {at}");
        }
    }
}

#[test]
fn the_first_run_is_after_the_initial_delay() {
    let mut t = Driven::new();
    let now = t.fixed_rate(|| (), Duration::ZERO, PERIOD);
    let later = t.fixed_delay(|| (), ms(50), PERIOD);
    assert_eq!(t.turn(), 0, "zero delay means the next tick");
    assert_eq!(t.pass(TICK), 1);
    assert_eq!((now.runs(), later.runs()), (1, 0));
    assert_eq!(t.pass(ms(39)), 0);
    assert_eq!(t.pass(ms(1)), 1);
    assert_eq!((now.runs(), later.runs()), (1, 1));
    // Each task runs one period after its last deadline.
    t.pass(ms(50));
    assert_eq!((now.runs(), later.runs()), (2, 1));
    t.pass(ms(50));
    assert_eq!((now.runs(), later.runs()), (2, 2));
}

#[test]
fn a_start_time_fixes_the_multiples_of_the_period() {
    let mut t = Driven::new();
    let start = t.timer.now() + ms(250);
    let schedule = Schedule::at_fixed_rate(PERIOD).start_at(start);
    let (first, second) = (StartTimes::default(), StartTimes::default());
    t.periodic(schedule, without_run(first.task(&t.clock)));
    t.pass(ms(123));
    t.periodic(schedule, without_run(second.task(&t.clock)));
    for _ in 0..60 {
        t.pass(ms(10));
    }
    assert_eq!(first.take(), second.take());
    // The later of the two settings decides.
    let plain = Schedule::at_fixed_rate(PERIOD);
    assert_eq!(schedule.initial_delay(PERIOD), plain);
    assert_eq!(plain.initial_delay(ms(1)).start_at(start), schedule);
}

#[test]
fn runs_since_a_start_that_has_passed_are_missed() {
    for (policy, expected) in [
        (MissedTick::Burst, vec![1_010, 1_010, 1_010, 1_040, 1_140]),
        (MissedTick::Delay, vec![1_010, 1_110]),
        (MissedTick::Skip, vec![1_010, 1_040, 1_140]),
    ] {
        let mut t = Driven::new();
        t.pass(ms(1_000));
        let starts = StartTimes::default();
        let schedule = Schedule::at_fixed_rate(PERIOD)
            .missed_tick(policy)
            .start_at(t.timer.now() - ms(260));
        t.periodic(schedule, without_run(starts.task(&t.clock)));
        assert_eq!(t.turn(), 0, "the first run is due at the next tick");
        for _ in 0..18 {
            t.pass(TICK);
        }
        assert_eq!(starts.take(), expected, "{policy:?}");
    }

    // A start before the timer was built means the moment at which it was built.
    let clock = ManualClock::new();
    let before = clock.instant();
    clock.advance(ms(1_030));
    let (timer, mut driver) = built_driven(|builder| builder.tick(TICK).clock(clock.clone()));
    let starts = StartTimes::default();
    let schedule = Schedule::at_fixed_rate(PERIOD).start_at(before);
    timer.periodic(schedule, without_run(starts.task(&clock)));
    for _ in 0..12 {
        clock.advance(TICK);
        driver.turn();
    }
    assert_eq!(starts.take(), [1_040, 1_130]);
}

#[test]
fn missed_runs_are_made_up_for_in_one_turn_and_in_order() {
    let mut t = Driven::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = |name: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(name)
    };
    t.fixed_rate(log("periodic"), PERIOD, PERIOD);
    let between = log("between");
    t.schedule(move |_| between(), ms(250));
    assert_eq!(t.pass(ms(450)), 5);
    let expected = ["periodic", "periodic", "between", "periodic", "periodic"];
    assert_eq!(*order.lock().unwrap(), expected);
    assert_eq!(t.next_turn(), Some(ms(50)));
}

#[test]
fn missed_runs_are_skipped_or_delayed() {
    for (policy, runs) in [
        (MissedTick::Skip, [100, 730, 800, 900]),
        (MissedTick::Delay, [100, 730, 830, 930]),
    ] {
        let mut t = Driven::new();
        let starts = StartTimes::default();
        let schedule = Schedule::at_fixed_rate(PERIOD).missed_tick(policy);
        t.periodic(schedule, without_run(starts.task(&t.clock)));
        t.pass(ms(100));
        t.pass(ms(630));
        for _ in 0..20 {
            t.pass(ms(10));
        }
        assert_eq!(starts.take(), runs, "{policy:?}");
    }
}

#[test]
fn a_fixed_delay_is_a_pause_between_two_runs() {
    let mut t = Driven::new();
    let starts = StartTimes::default();
    let (mut task, clock) = (starts.task(&t.clock), t.clock.clone());
    let takes_long = move || {
        task();
        clock.advance(ms(35));
    };
    t.fixed_delay(takes_long, Duration::ZERO, PERIOD);
    for _ in 0..100 {
        t.pass(ms(5));
    }
    // Due 100 ms after the end of the previous run, at 45, 185 and 325 ms. Each runs at the next
    // tick.
    let runs = starts.take();
    assert_eq!(runs[..3], [10, 150, 290]);
}

/// Otherwise a turn would last until the clock has caught up.
#[test]
fn a_clock_that_steps_back_does_not_extend_a_turn() {
    let (on, back) = (ManualClock::new(), ManualClock::new());
    let builder = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(RewindableClock(on.clone(), back.clone()));
    let (timer, mut driver) = builder.build_driven().unwrap();
    let handle = Arc::new(OnceLock::<Periodic>::new());
    let task = {
        let handle = Arc::clone(&handle);
        move || {
            let handle = handle.get().unwrap();
            if handle.runs() == 1 {
                back.advance(PERIOD * 5);
            } else if handle.runs() == 1_000 {
                handle.cancel();
            }
        }
    };
    let periodic = handle.get_or_init(|| timer.fixed_delay(task, PERIOD * 9, PERIOD));
    on.advance(PERIOD * 10);
    driver.turn();
    assert_eq!(periodic.runs(), 2, "at 900 and at 1 000 ms");
    on.advance(PERIOD * 5);
    assert_eq!(driver.turn(), 0, "the clock is back at 1 000 ms");
    on.advance(PERIOD);
    assert_eq!(driver.turn(), 1);
}

#[test]
fn a_period_below_a_tick_keeps_its_rate() {
    let mut t = Driven::new();
    let burst = t.fixed_rate(|| (), ms(1), ms(1));
    let skip = Schedule::at_fixed_rate(ms(1)).missed_tick(MissedTick::Skip);
    let skip = t.periodic(skip, |_| ());
    for _ in 0..10 {
        t.pass(TICK);
    }
    assert_eq!((burst.runs(), skip.runs()), (100, 10));
    t.pass(TICK * 10);
    assert_eq!((burst.runs(), skip.runs()), (200, 11));
}

/// Compares random schedules and random steps with a naive loop.
#[test]
fn runs_agree_with_a_naive_model() {
    for seed in 0..if cfg!(miri) { 2 } else { 300 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut t = Driven::with(|builder| builder.hierarchical(random.bool()));
        let tick = TICK.as_nanos() as u64;
        let mut models: Vec<_> = (0..random.usize(1..5))
            .map(|_| {
                let period = random.u64(1..500_000_000).max(500_000);
                let initial = random.u64(..1_000_000_000);
                let policy = match random.u8(..4) {
                    0 => None,
                    1 => Some(MissedTick::Burst),
                    2 => Some(MissedTick::Delay),
                    _ => Some(MissedTick::Skip),
                };
                let schedule = match policy {
                    None => Schedule::with_fixed_delay(Duration::from_nanos(period)),
                    Some(policy) => {
                        Schedule::at_fixed_rate(Duration::from_nanos(period)).missed_tick(policy)
                    }
                };
                let schedule = schedule.initial_delay(Duration::from_nanos(initial));
                let periodic = t.periodic(schedule, |_| ());
                // The first run is at tick 1 or later, never at the tick of the timer's creation.
                (periodic, policy, period, initial, tick.max(initial), 0_u64)
            })
            .collect();
        let mut now = 0;
        for _ in 0..random.usize(1..60) {
            let longest = if random.u8(..8) == 0 {
                3_000_000_000
            } else {
                30_000_000
            };
            let step = random.u64(..longest);
            now += step;
            t.pass(Duration::from_nanos(step));
            for (periodic, policy, period, due, at, runs) in &mut models {
                while at.div_ceil(tick) <= now / tick {
                    *runs += 1;
                    *due = match policy {
                        None => now + *period,
                        Some(MissedTick::Burst) => *due + *period,
                        Some(_) if *due + *period > now / tick * tick => *due + *period,
                        Some(MissedTick::Delay) => now + *period,
                        Some(_) => {
                            let mut next = *due;
                            while next <= now / tick * tick {
                                next += *period;
                            }
                            next
                        }
                    };
                    *at = *due;
                }
                assert_eq!(periodic.runs(), *runs, "seed {seed}, at {now}");
            }
        }
        assert_eq!(t.pending(), models.len());
    }
}

#[test]
fn jitter_makes_runs_later_and_keeps_the_rate() {
    let mut t = Driven::new();
    let starts = StartTimes::default();
    let schedule = Schedule::at_fixed_rate(PERIOD).jitter(ms(50));
    t.periodic(schedule, without_run(starts.task(&t.clock)));
    // With 20, one time in a hundred no run would be within the first 20 ms.
    let runs = if cfg!(miri) { 50 } else { 100 };
    let step = if cfg!(miri) { 5 } else { 1 };
    for _ in 0..(runs * 100 + 100) / step {
        t.pass(ms(step as u64));
    }
    let expected = runs..=runs + 1;
    let runs = starts.take();
    assert!(expected.contains(&runs.len()));
    for (run, &at) in runs.iter().enumerate() {
        let due = 100 * (run as u128 + 1);
        assert!((due..=due + 60).contains(&at), "run {run} at {at}");
    }
    assert!(runs.iter().any(|at| at % 100 < 20) && runs.iter().any(|at| at % 100 > 30));
}

#[test]
fn an_infinite_period_runs_once() {
    let mut t = Driven::new();
    let once = t.fixed_rate(|| (), ms(10), Duration::MAX);
    let never = t.fixed_rate(|| (), Duration::MAX, ms(10));
    t.pass(ms(10));
    t.pass(Duration::from_secs(1 << 40));
    assert_eq!((once.runs(), never.runs()), (1, 0));
    assert!(once.cancel() && never.cancel());
    assert_eq!(t.pending(), 0);
}

// --- invalid input -------------------------------------------------------------------------------

#[test]
fn a_period_of_zero_is_rejected() {
    let t = Driven::new();
    let (held, dropped) = Dropped::new();
    let task = move || {
        let _held = &held;
    };
    let rejected = t
        .timer
        .schedule_at_fixed_rate(task, PERIOD, Duration::ZERO)
        .unwrap_err();
    assert_eq!(rejected, NewTimeoutError::ZeroPeriod);
    let text = "period is zero, but must be positive; a task runs at most once per tick";
    assert_eq!(rejected.to_string(), text);
    assert!(dropped.load(SeqCst));
    let rejected = t
        .timer
        .schedule_with_fixed_delay(|| (), PERIOD, Duration::ZERO)
        .unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::ZeroPeriod));
    assert_eq!(t.pending(), 0);
    let guard = PanicsWhenDropped;
    let task = move || {
        let _guard = &guard;
    };
    assert!(quietly(|| t.timer.schedule_at_fixed_rate(task, PERIOD, Duration::ZERO)).is_err());
    assert_eq!(t.stats().panics, 1);
}

#[test]
fn a_periodic_task_is_rejected_like_a_timeout() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let first = t.fixed_rate(|| (), PERIOD, PERIOD);
    let full = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD);
    assert_eq!(full.err(), Some(FULL));
    assert!(first.cancel());
    t.timer.stop();
    let stopped = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD);
    assert!(matches!(stopped, Err(NewTimeoutError::Stopped)));
}

// --- the count of pending timeouts ---------------------------------------------------------------

#[test]
fn a_periodic_task_is_pending_once() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    // Not captured by the task, where it would keep the timer running.
    let (timer, in_run) = (t.timer.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&in_run);
    let task = move || {
        let full = timer.new_timeout(|_| (), PERIOD);
        seen.lock()
            .unwrap()
            .push((timer.pending_timeouts(), full.is_err()));
    };
    let periodic = t.fixed_rate(task, PERIOD, PERIOD);
    for _ in 0..3 {
        assert_eq!(t.pending(), 1);
        t.pass(PERIOD);
        assert_eq!(t.pending(), 1);
        let other = t.timer.new_timeout(|_| (), PERIOD);
        assert!(other.is_err(), "the task keeps its place at all times");
    }
    assert_eq!(*in_run.lock().unwrap(), [(1, true); 3]);
    assert!(periodic.cancel());
    assert_eq!(t.pending(), 0);
    let stats = t.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.cancelled), (1, 0, 1));
    assert_eq!((stats.periodic_runs, stats.pending), (3, 0));
}

#[test]
fn the_drop_of_a_handle_does_not_cancel() {
    let mut t = Driven::new();
    let starts = StartTimes::default();
    drop(t.fixed_rate(starts.task(&t.clock), PERIOD, PERIOD));
    t.pass(PERIOD * 3);
    assert_eq!(starts.take().len(), 3);
    assert_eq!(t.timer.stop().len(), 1);
}

// --- the end -------------------------------------------------------------------------------------

#[test]
fn a_cancel_is_final_at_any_moment() {
    // Before the worker has read the message, before the first run, and between two runs.
    for turns in [0, 1, 3] {
        let mut t = Driven::new();
        let (held, dropped) = Dropped::new();
        let starts = StartTimes::default();
        let mut task = starts.task(&t.clock);
        let task = move || {
            let _held = &held;
            task();
        };
        let periodic = t.fixed_rate(task, PERIOD, PERIOD);
        let clone = periodic.clone();
        for turn in 0..turns {
            t.pass(if turn == 0 { Duration::ZERO } else { PERIOD });
        }
        let before = periodic.runs();
        assert!(!periodic.is_cancelled() && !dropped.load(SeqCst));
        assert!(clone.cancel());
        assert!(!periodic.cancel() && periodic.is_cancelled() && !periodic.has_panicked());
        assert!(dropped.load(SeqCst), "cancel drops the task immediately");
        assert_eq!(t.pending(), 0);
        t.pass(PERIOD * 10);
        let runs = (periodic.runs(), starts.take().len() as u64);
        assert_eq!(runs, (before, before));
        assert!(t.timer.stop().is_empty());
    }
}

/// The worker has taken both out of the wheel.
#[test]
fn a_task_can_cancel_a_periodic_one_of_the_same_tick() {
    let mut t = Driven::new();
    let periodic = Arc::new(OnceLock::<Periodic>::new());
    let other = Arc::clone(&periodic);
    t.schedule(move |_| assert!(other.get().unwrap().cancel()), PERIOD);
    let scheduled = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD);
    periodic.set(scheduled.unwrap()).unwrap();
    t.turn();
    assert_eq!((t.pass(PERIOD), t.pass(PERIOD)), (1, 0));
    assert_eq!(t.stats().panics, 0);
}

#[test]
fn a_task_can_cancel_itself() {
    let mut t = Driven::new();
    let (held, dropped) = Dropped::new();
    let handle = Arc::new(OnceLock::<Periodic>::new());
    let task = {
        let (handle, dropped) = (Arc::clone(&handle), Arc::clone(&dropped));
        move || {
            let _held = &held;
            assert!(handle.get().unwrap().cancel());
            assert!(!dropped.load(SeqCst), "a running task is not dropped");
        }
    };
    handle.set(t.fixed_rate(task, PERIOD, PERIOD)).unwrap();
    t.pass(PERIOD * 5);
    assert_eq!(handle.get().unwrap().runs(), 1);
    assert!(dropped.load(SeqCst), "the task is dropped after the run");
    assert_eq!((t.pending(), t.stats().panics), (0, 0));
    t.pass(PERIOD * 5);
    // The node is recycled.
    let next = t.fixed_rate(|| (), PERIOD, PERIOD);
    t.pass(PERIOD * 5);
    assert_eq!(next.runs(), 5);
}

#[test]
fn a_panic_ends_only_its_own_task() {
    quietly(|| {
        let mut t = Driven::new();
        let (held, dropped) = Dropped::new();
        let mut left = 2;
        let task = move || {
            let _held = &held;
            left -= 1;
            assert!(left > 0, "the second run panics");
        };
        let panicking = t.fixed_rate(task, PERIOD, PERIOD);
        let other = t.fixed_rate(|| (), PERIOD, PERIOD);
        t.pass(PERIOD * 5);
        assert_eq!((panicking.runs(), other.runs()), (2, 5));
        assert!(panicking.has_panicked() && !panicking.is_cancelled() && !panicking.cancel());
        assert!(!other.has_panicked());
        assert!(dropped.load(SeqCst));
        let stats = t.stats();
        let counts = (stats.panics, stats.pending, stats.expired, stats.cancelled);
        assert_eq!(counts, (1, 1, 1, 0));
        assert!(
            format!("{panicking:?}").contains("has_panicked: true"),
            "{panicking:?}"
        );
        assert_eq!(t.timer.stop().len(), 1);
    });
}

#[test]
fn panics_in_drops_of_a_task_are_caught() {
    quietly(|| {
        let mut t = Driven::new();
        let schedule = |task: Box<dyn FnMut(&PanicsWhenDropped) + Send>| {
            let (guard, mut task) = (PanicsWhenDropped, task);
            t.fixed_rate(move || task(&guard), PERIOD, PERIOD)
        };
        let cancelled = schedule(Box::new(|_| ()));
        let panics = schedule(Box::new(|_| panic!("in run")));
        let stopped = schedule(Box::new(|_| ()));
        assert!(cancelled.cancel());
        t.pass(PERIOD);
        assert!(panics.has_panicked());
        assert_eq!(t.timer.stop().len(), 1);
        assert!(stopped.is_cancelled());
        assert_eq!((t.stats().panics, t.pending()), (4, 0));
    });
}

/// A clock that panics on demand.
struct BreakableClock(ManualClock, Arc<AtomicBool>);

impl Clock for BreakableClock {
    fn now(&self) -> Duration {
        assert!(!self.1.load(SeqCst), "the clock is broken");
        self.0.now()
    }
}

#[test]
fn a_clock_that_panics_after_a_run_ends_the_task() {
    quietly(|| {
        let (clock, is_broken) = (ManualClock::new(), Arc::new(AtomicBool::new(false)));
        let builder = HashedWheelTimer::builder()
            .clock(BreakableClock(clock.clone(), Arc::clone(&is_broken)));
        let (timer, mut driver) = builder.tick(TICK).build_driven().unwrap();
        let break_clock = Arc::clone(&is_broken);
        let periodic = timer.fixed_rate(move || break_clock.store(true, SeqCst), PERIOD, PERIOD);
        clock.advance(PERIOD);
        assert_eq!(driver.turn(), 1);
        is_broken.store(false, SeqCst);
        assert!(periodic.has_panicked());
        assert_eq!(timer.pending_timeouts(), 0);
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn stop_returns_a_periodic_task() {
    for turns in [0, 2] {
        let mut t = Driven::new();
        let (held, dropped) = Dropped::new();
        let task = move || {
            let _held = &held;
        };
        let periodic = t.fixed_rate(task, PERIOD, PERIOD);
        for _ in 0..turns {
            t.pass(PERIOD);
        }
        let rest = t.timer.stop();
        assert!(rest.len() == 1 && rest[0].is_cancelled() && periodic.is_cancelled());
        assert!(dropped.load(SeqCst));
        assert_eq!(t.pending(), 0);
        assert!(!periodic.cancel());
    }
}

#[test]
fn shutdown_does_not_wait_for_a_periodic_task_and_returns_it() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    // Missed runs are skipped. On a slow machine, making up for them might never end.
    let often = Schedule::at_fixed_rate(ms(1)).missed_tick(MissedTick::Skip);
    let periodic = timer.periodic(often, |_| ());
    let last = timer.schedule(|_| (), ms(20));
    let rest = timer.shutdown(Duration::from_secs(3_600));
    assert!(rest.len() == 1 && rest[0].is_cancelled() && last.is_expired());
    assert!(periodic.is_cancelled() && periodic.runs() > 0, "it ran");
}

#[test]
fn a_task_that_drops_the_last_handle_does_not_run_again() {
    let clock = ManualClock::new();
    let (timer, mut driver) = built_driven(|builder| builder.clock(clock.clone()));
    let last = Arc::new(Mutex::new(None));
    let taken = Arc::clone(&last);
    let periodic = timer.fixed_rate(move || drop(taken.lock().unwrap().take()), PERIOD, PERIOD);
    *last.lock().unwrap() = Some(timer);
    clock.advance(PERIOD * 5);
    assert_eq!(driver.turn(), 1);
    assert!(driver.is_stopped() && periodic.is_cancelled());
    assert_eq!(periodic.runs(), 1);
}

// --- executors -----------------------------------------------------------------------------------

/// Returns a timer whose executor keeps the tasks until the test runs them.
fn held(
    settings: impl FnOnce(hashed_wheel::Builder) -> hashed_wheel::Builder,
) -> (Driven, mpsc::Receiver<ExpiredTask>) {
    let (sender, tasks) = mpsc::channel();
    (
        Driven::with(|builder| {
            settings(builder.task_executor(accepts_all(move |task| drop(sender.send(task)))))
        }),
        tasks,
    )
}

#[test]
fn an_executor_has_one_run_at_a_time() {
    let (mut t, tasks) = held(|builder| builder);
    let skip = Schedule::at_fixed_rate(PERIOD).missed_tick(MissedTick::Skip);
    let periodic = t.periodic(skip, |_| ());
    assert_eq!(t.pass(PERIOD), 1);
    assert_eq!(t.pass(PERIOD * 3), 0, "the first run has not happened yet");
    assert_eq!((t.pending(), periodic.runs()), (1, 0));
    tasks.try_recv().unwrap().run();
    assert!(tasks.try_recv().is_err());
    assert_eq!((t.pending(), periodic.runs()), (1, 1));
    assert_eq!(t.next_turn(), Some(PERIOD), "a multiple of the period");
    assert_eq!(t.pass(PERIOD), 1);
    tasks.try_recv().unwrap().run();
    assert_eq!(periodic.runs(), 2);
}

#[test]
fn an_executor_makes_up_for_missed_runs() {
    let (mut t, tasks) = held(|builder| builder);
    let periodic = t.fixed_rate(|| (), PERIOD, PERIOD);
    t.pass(PERIOD * 5);
    tasks.try_recv().unwrap().run();
    assert_eq!(periodic.runs(), 5);
    assert_eq!(t.next_turn(), Some(PERIOD));
    // The task ends immediately when it is cancelled during the runs that it makes up for.
    let handle = Arc::new(OnceLock::<Periodic>::new());
    let own_handle = Arc::clone(&handle);
    let task = move || assert!(own_handle.get().unwrap().cancel());
    handle.set(t.fixed_rate(task, PERIOD, PERIOD)).unwrap();
    assert!(periodic.cancel());
    t.pass(PERIOD * 5);
    tasks.try_recv().unwrap().run();
    assert_eq!(handle.get().unwrap().runs(), 1);
    assert_eq!(t.pending(), 0);
}

#[test]
fn an_executor_that_drops_a_task_skips_one_run() {
    let rejects = Arc::new(AtomicBool::new(true));
    let rejects_next = Arc::clone(&rejects);
    let mut t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task: ExpiredTask| {
            if !rejects_next.load(SeqCst) {
                task.run();
            }
        }))
    });
    let periodic = t.fixed_rate(|| (), PERIOD, PERIOD);
    quietly(|| assert_eq!(t.pass(PERIOD), 1));
    let counts = (periodic.runs(), t.stats().dropped_tasks, t.pending());
    assert_eq!(counts, (0, 1, 1));
    rejects.store(false, SeqCst);
    t.pass(PERIOD);
    assert_eq!((periodic.runs(), t.stats().dropped_tasks), (1, 1));
}

#[test]
fn a_run_in_an_executor_can_be_cancelled_and_stopped() {
    for by_stop in [false, true] {
        for panics in [false, true] {
            let (mut t, tasks) = held(|builder| builder);
            let (held, dropped) = Dropped::new();
            let (entered, leave) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicBool::new(false)),
            );
            let task = {
                let (entered, leave) = (Arc::clone(&entered), Arc::clone(&leave));
                move || {
                    let _held = &held;
                    entered.store(true, SeqCst);
                    while !leave.load(SeqCst) {
                        thread::yield_now();
                    }
                    assert!(!panics, "in a run that was cancelled");
                }
            };
            let periodic = t.fixed_rate(task, PERIOD, PERIOD);
            t.pass(PERIOD);
            let task = tasks.try_recv().unwrap();
            let run = thread::spawn(move || quietly(|| task.run()));
            while !entered.load(SeqCst) {
                thread::yield_now();
            }
            if by_stop {
                // Stop does not wait for a task in an executor.
                assert_eq!(t.timer.stop().len(), 1);
            } else {
                assert!(periodic.cancel());
            }
            assert!(periodic.is_cancelled() && !dropped.load(SeqCst));
            assert_eq!(t.pending(), 0);
            leave.store(true, SeqCst);
            run.join().unwrap();
            assert!(dropped.load(SeqCst));
            assert_eq!((periodic.runs(), periodic.has_panicked()), (1, panics));
            assert_eq!(t.pass(PERIOD * 3), 0);
        }
    }
}

#[test]
fn a_cancelled_task_in_an_executor_does_not_begin() {
    // The drop of a cancelled task is not counted as dropped by the executor, because no run is
    // lost.
    for end in [ExpiredTask::run, drop::<ExpiredTask>] {
        let (mut t, tasks) = held(|builder| builder);
        let (held, dropped) = Dropped::new();
        let task = move || {
            let _held = &held;
        };
        let periodic = t.fixed_rate(task, PERIOD, PERIOD);
        t.pass(PERIOD);
        assert!(periodic.cancel());
        end(tasks.try_recv().unwrap());
        assert_eq!(periodic.runs(), 0);
        assert!(dropped.load(SeqCst));
        assert_eq!((t.pending(), t.stats().dropped_tasks), (0, 0));
    }
}

#[test]
fn the_timeout_that_an_executor_has_is_not_reset() {
    let (mut t, tasks) = held(|builder| builder);
    let periodic = t.fixed_rate(|| (), PERIOD, PERIOD);
    t.pass(PERIOD);
    let run = tasks.try_recv().unwrap();
    let timeout = run.timeout().clone();
    assert!(!timeout.is_expired() && !timeout.is_cancelled());
    let assert_refuses = || {
        let remaining = timeout.remaining();
        for delay in [Duration::ZERO, TICK, PERIOD, PERIOD * 9, Duration::MAX] {
            assert!(!timeout.reset(delay), "{delay:?}, {remaining:?} before");
        }
        assert!(!timeout.reset_at(t.timer.now() + PERIOD * 9));
        assert_eq!(timeout.remaining(), remaining);
    };
    assert_refuses(); // It runs, or is about to.
    run.run();
    assert_refuses(); // The worker does not know yet that the run is over.
    assert_eq!(t.driver.turn(), 0);
    assert_refuses(); // It is in the wheel.
    assert_eq!(timeout.remaining(), PERIOD);
    assert_eq!(t.pass(PERIOD - TICK), 0);
    assert_eq!(t.pass(TICK), 1);
    tasks.try_recv().unwrap().run();
    assert_eq!(periodic.runs(), 2);
    // It is the same timeout as that of the other handle.
    assert!(timeout.cancel() && periodic.is_cancelled() && !periodic.cancel());
    assert!(!timeout.reset(TICK));
    assert_eq!((t.pass(PERIOD * 3), t.pending()), (0, 0));
}

#[test]
fn a_panic_in_an_executor_ends_the_task() {
    let (mut t, tasks) = held(|builder| builder);
    let periodic = t.fixed_rate(|| panic!("in run"), PERIOD, PERIOD);
    t.pass(PERIOD);
    quietly(|| tasks.try_recv().unwrap().run());
    assert!(periodic.has_panicked() && !periodic.is_cancelled() && !periodic.cancel());
    let stats = t.stats();
    let counts = (stats.pending, stats.expired, stats.cancelled, stats.panics);
    assert_eq!(counts, (0, 1, 0, 1));
    // The worker reads the message about the end and recycles the node.
    t.turn();
    assert_eq!(t.next_turn(), None);
    assert!(t.timer.stop().is_empty());
}

// --- tasks that see their run --------------------------------------------------------------------

/// Number, deadline in milliseconds, and missed runs, of each run.
type Runs = Arc<Mutex<Vec<(u64, u128, u64)>>>;

/// Returns a task that records its runs, and the time at which the timer was built.
fn recorder(
    timer: &HashedWheelTimer,
) -> (
    Runs,
    impl FnMut(&PeriodicRun<'_>) -> ControlFlow<()> + Send + 'static,
) {
    let (runs, built) = (Runs::default(), timer.now());
    let recorded = Arc::clone(&runs);
    let task = move |run: &PeriodicRun<'_>| {
        let due = run.deadline() - built;
        recorded
            .lock()
            .unwrap()
            .push((run.number(), due.as_millis(), run.missed()));
        ControlFlow::Continue(())
    };
    (runs, task)
}

fn take(runs: &Runs) -> Vec<(u64, u128, u64)> {
    std::mem::take(&mut runs.lock().unwrap())
}

#[test]
fn a_task_sees_when_its_run_was_due_and_what_was_missed() {
    let rate = Schedule::at_fixed_rate(PERIOD);
    let delay = Schedule::with_fixed_delay(PERIOD);
    // On time twice, then 400 ms late.
    for (schedule, last) in [
        (
            rate,
            vec![
                (3, 300, 0),
                (4, 400, 0),
                (5, 500, 0),
                (6, 600, 0),
                (7, 700, 0),
            ],
        ),
        (
            rate.missed_tick(MissedTick::Skip),
            vec![(3, 300, 0), (4, 800, 4)],
        ),
        (
            rate.missed_tick(MissedTick::Delay),
            vec![(3, 300, 0), (4, 830, 4)],
        ),
        (delay, vec![(3, 300, 0), (4, 830, 0)]),
    ] {
        let mut t = Driven::new();
        let (runs, task) = recorder(&t.timer);
        let periodic = t.periodic(schedule, task);
        t.pass(PERIOD);
        t.pass(PERIOD);
        assert_eq!(take(&runs), [(1, 100, 0), (2, 200, 0)]);
        t.pass(ms(530));
        if last.len() < 5 {
            t.pass(ms(100));
        }
        assert_eq!(take(&runs), last, "{schedule:?}");
        assert_eq!(periodic.runs(), last.last().unwrap().0);
    }
}

#[test]
fn a_run_that_an_executor_has_dropped_is_missed() {
    let (mut t, tasks) = held(|builder| builder);
    let (runs, task) = recorder(&t.timer);
    t.periodic(Schedule::at_fixed_rate(PERIOD), task);
    for drops in [false, true, true, false, false] {
        t.pass(PERIOD);
        let task = tasks.try_recv().unwrap();
        quietly(|| if drops { drop(task) } else { task.run() });
    }
    assert_eq!(take(&runs), [(1, 100, 0), (2, 400, 2), (3, 500, 0)]);
}

#[test]
fn a_start_that_has_passed_is_the_first_deadline() {
    let mut t = Driven::new();
    let (runs, task) = recorder(&t.timer);
    t.clock.advance(ms(350));
    let start = t.timer.now() - ms(250);
    let skip = Schedule::at_fixed_rate(PERIOD).missed_tick(MissedTick::Skip);
    t.periodic(skip.start_at(start), task);
    t.pass(TICK);
    t.pass(PERIOD);
    assert_eq!(take(&runs), [(1, 100, 0), (2, 400, 2)]);
}

#[test]
fn the_deadline_of_a_run_is_the_next_run_before_it_with_its_jitter() {
    let mut t = Driven::new();
    let built = t.timer.now();
    let (runs, task) = recorder(&t.timer);
    let jittered = Schedule::at_fixed_rate(PERIOD).jitter(ms(60));
    let periodic = t.periodic(jittered, task);
    for number in 1..=if cfg!(miri) { 15 } else { 50 } {
        let next = (periodic.next_run().unwrap() - built).as_millis();
        let earliest = u128::from(number) * 100;
        assert!((earliest..=earliest + 60).contains(&next));
        while periodic.runs() < number {
            t.pass(TICK);
        }
        assert_eq!(take(&runs), [(number, next, 0)]);
    }
}

#[test]
fn a_task_can_end_itself() {
    let (mut on_executor, tasks) = held(|builder| builder);
    for t in [&mut Driven::new(), &mut on_executor] {
        let (held, dropped) = Dropped::new();
        let task = move |run: &PeriodicRun<'_>| {
            let _held = &held;
            if run.number() < 3 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let periodic = t.periodic(Schedule::at_fixed_rate(PERIOD), task);
        for runs in 1..=3 {
            assert!(!periodic.is_finished() && !dropped.load(SeqCst));
            t.pass(PERIOD);
            tasks.try_iter().for_each(ExpiredTask::run);
            assert_eq!(periodic.runs(), runs);
        }
        assert!(periodic.is_finished() && dropped.load(SeqCst));
        assert!(!periodic.is_cancelled() && !periodic.has_panicked() && !periodic.cancel());
        assert_eq!((periodic.next_run(), t.pending()), (None, 0));
        t.pass(PERIOD * 5);
        assert!(tasks.try_recv().is_err());
        assert_eq!((periodic.runs(), t.stats().panics), (3, 0));
        assert!(t.timer.stop().is_empty());
    }
}

#[test]
fn a_cancel_in_the_last_run_counts() {
    let mut t = Driven::new();
    let handle = Arc::new(OnceLock::<Periodic>::new());
    let own_handle = Arc::clone(&handle);
    let task = move |_: &PeriodicRun<'_>| {
        assert!(own_handle.get().unwrap().cancel());
        ControlFlow::Break(())
    };
    let periodic = t.periodic(Schedule::at_fixed_rate(PERIOD), task);
    handle.set(periodic.clone()).unwrap();
    t.pass(PERIOD * 5);
    assert!(periodic.is_cancelled() && periodic.is_finished());
    assert_eq!((periodic.runs(), t.pending()), (1, 0));
}

#[test]
fn a_task_that_panics_is_finished_too() {
    let mut t = Driven::new();
    // (A closure that diverges has no return type of its own.)
    let plain = t.fixed_rate(|| panic!("plain"), PERIOD, PERIOD);
    let rate = Schedule::at_fixed_rate(PERIOD);
    let sees_run = t.periodic(rate, |_| -> () { panic!("with a run") });
    quietly(|| t.pass(PERIOD * 2));
    for periodic in [plain, sees_run] {
        assert!(periodic.is_finished() && periodic.has_panicked() && !periodic.is_cancelled());
        assert_eq!((periodic.runs(), periodic.next_run()), (1, None));
    }
    assert_eq!((t.stats().panics, t.pending()), (2, 0));
}

#[test]
fn reports_name_the_closure_of_the_user() {
    let t = Driven::new();
    let rate = Schedule::at_fixed_rate(PERIOD);
    for periodic in [
        t.periodic(rate, |_| ()),
        t.periodic(rate, |_| ControlFlow::Continue(())),
    ] {
        let shown = format!("{periodic:?}");
        assert!(
            shown.contains("periodic::reports_name_the_closure_of_the_user::{{closure}},"),
            "{shown}"
        );
    }
}

// --- handles -------------------------------------------------------------------------------------

#[test]
fn the_next_run_is_known_between_runs() {
    let (mut t, tasks) = held(|builder| builder);
    let begin = t.timer.now();
    let skip = Schedule::at_fixed_rate(PERIOD).missed_tick(MissedTick::Skip);
    let handle = Arc::new(OnceLock::<Periodic>::new());
    let own_handle = Arc::clone(&handle);
    let task = move || assert_eq!(own_handle.get().unwrap().next_run(), None, "during a run");
    let periodic = t.periodic(skip.initial_delay(ms(5)), without_run(task));
    handle.set(periodic.clone()).unwrap();
    assert_eq!(periodic.next_run(), Some(begin + ms(5)), "not its tick");
    t.pass(TICK);
    assert_eq!(periodic.next_run(), None, "the run is with the executor");
    t.clock.advance(PERIOD * 3);
    tasks.try_recv().unwrap().run();
    assert_eq!(periodic.next_run(), Some(begin + ms(405)));
    assert_eq!(t.stats().panics, 0);
    periodic.cancel();
    assert_eq!(periodic.next_run(), None);
    let never = t.periodic(Schedule::at_fixed_rate(Duration::MAX), |_| ());
    assert_eq!((never.next_run(), never.is_finished()), (None, false));
}

#[test]
fn a_guard_cancels_its_task() {
    let mut t = Driven::new();
    let guard = t.fixed_rate(|| (), PERIOD, PERIOD).cancel_on_drop();
    t.pass(PERIOD);
    let periodic = (*guard).clone();
    assert_eq!(guard.runs(), 1);
    drop(guard);
    assert!(periodic.is_cancelled());
    t.pass(PERIOD);
    assert_eq!((periodic.runs(), t.pending()), (1, 0));
}

// --- shutdown ------------------------------------------------------------------------------------

#[test]
fn a_schedule_says_whether_its_task_continues_after_shutdown() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let often = Schedule::at_fixed_rate(ms(1)).missed_tick(MissedTick::Skip);
    let continues = timer.periodic(often, |_| ());
    let ends = timer.periodic(often.continue_after_shutdown(false), |_| ());
    let (begins, has_begun) = mpsc::channel();
    let waits_for_shutdown = move |timeout: &Timeout| {
        begins.send(()).unwrap();
        while let Ok(timeout) = timeout.timer().new_timeout(|_| (), PERIOD) {
            timeout.cancel();
            thread::sleep(ms(1));
        }
    };
    timer.schedule(waits_for_shutdown, ms(0));
    has_begun.recv().unwrap();
    // The worker is in a task until the shutdown begins.
    let before = [&continues, &ends].map(Periodic::runs);
    let last = timer.schedule(|_| (), ms(20));
    let rest = timer.shutdown(Duration::from_secs(3_600));
    assert!(last.is_expired() && rest.len() == 2);
    assert!(rest.iter().all(Timeout::is_cancelled));
    assert!(continues.is_cancelled() && ends.is_cancelled());
    assert!(continues.runs() > before[0], "it runs within the grace");
    assert_eq!(ends.runs(), before[1], "it runs no more");
}

#[test]
fn a_task_that_ends_at_shutdown_ends_in_a_driven_timer_too() {
    let mut t = Driven::new();
    let rate = Schedule::at_fixed_rate(PERIOD);
    let continues = t.periodic(rate.continue_after_shutdown(true), |_| ());
    let (held, dropped) = Dropped::new();
    let task = move || _ = &held;
    let ends = t.periodic(rate.continue_after_shutdown(false), without_run(task));
    t.pass(PERIOD);
    // Without it, nothing would be due that the shutdown waits for.
    t.schedule(|_| (), PERIOD);
    t.clock.advance(PERIOD);
    let rest = t.timer.shutdown(Duration::ZERO);
    assert_eq!((rest.len(), continues.runs(), ends.runs()), (2, 2, 1));
    assert!(dropped.load(SeqCst) && ends.is_cancelled());
    assert_eq!((t.pending(), t.stats().panics), (0, 0));
}

// --- threads -------------------------------------------------------------------------------------

#[test]
fn runs_in_real_time_are_never_early_and_none_is_missing() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (log, runs) = mpsc::channel();
    let begin = Instant::now();
    let periodic = timer.fixed_rate(move || log.send(Instant::now()).unwrap_or(()), ms(5), ms(5));
    for run in 1..=20 {
        let at = runs.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(at - begin >= ms(5) * run, "run {run}: {:?}", at - begin);
    }
    assert!(periodic.cancel());
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn two_runs_never_overlap_and_none_begins_after_a_cancel() {
    let (iterations, min_runs) = if cfg!(miri) { (1, 2) } else { (20, 20) };
    for iteration in 0..iterations {
        let (sender, tasks) = mpsc::channel::<ExpiredTask>();
        let tasks = Arc::new(Mutex::new(tasks));
        let pool: Vec<_> = (0..3)
            .map(|_| {
                let tasks = Arc::clone(&tasks);
                thread::spawn(move || {
                    loop {
                        let task = tasks.lock().unwrap().recv();
                        let Ok(task) = task else { return };
                        task.run();
                    }
                })
            })
            .collect();
        let sender = Mutex::new(sender);
        let timer = HashedWheelTimer::builder()
            .tick(Duration::from_micros(50))
            .task_executor(accepts_all(move |task| {
                drop(sender.lock().unwrap().send(task));
            }))
            .build()
            .unwrap();
        let chains: Vec<_> = (0..8)
            .map(|chain| {
                let running = AtomicUsize::new(0);
                let task = move || {
                    assert_eq!(running.fetch_add(1, SeqCst), 0, "two runs overlap");
                    thread::yield_now();
                    running.fetch_sub(1, SeqCst);
                };
                let period = Duration::from_micros(30 + 40 * chain);
                // Missed runs are skipped, because on a slow machine making up for them might never
                // end.
                let often = Schedule::at_fixed_rate(period).missed_tick(MissedTick::Skip);
                timer.periodic(often, without_run(task))
            })
            .collect();
        let until = Instant::now() + TEST_TIMEOUT;
        while chains.iter().any(|chain| chain.runs() < min_runs) && Instant::now() < until {
            thread::sleep(ms(1));
        }
        let runs: Vec<_> = chains.iter().map(Periodic::runs).collect();
        let ended = if iteration % 2 == 0 {
            chains.iter().filter(|chain| chain.cancel()).count()
        } else {
            timer.stop().len()
        };
        assert_eq!((ended, timer.pending_timeouts()), (chains.len(), 0));
        let at_the_end: Vec<_> = chains.iter().map(Periodic::runs).collect();
        drop(timer);
        pool.into_iter().for_each(|thread| thread.join().unwrap());
        for ((chain, &before), &at_the_end) in chains.iter().zip(&runs).zip(&at_the_end) {
            assert!(chain.runs() <= at_the_end + 1, "at most one had begun");
            assert!(before >= min_runs && !chain.has_panicked(), "{before} runs");
        }
    }
}

#[test]
fn debug_output_of_a_run_shows_what_is_known_of_it() {
    let mut t = Driven::new();
    let (send, texts) = mpsc::channel();
    let task = move |run: &PeriodicRun<'_>| {
        send.send(format!("{run:?}")).unwrap();
        ControlFlow::Continue(())
    };
    t.periodic(Schedule::at_fixed_rate(PERIOD), task);
    t.pass(PERIOD);
    let text = texts.try_recv().unwrap();
    assert!(
        text.starts_with("PeriodicRun { number: 1, deadline: "),
        "{text}"
    );
    assert!(text.ends_with("missed: 0 }"), "{text}");
}
