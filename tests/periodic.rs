//! Tasks that run again and again: on a clock that stands still until it is told to move, but for what needs threads.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Back, Driven, PATIENCE, TICK, ms, quietly};
use hashed_wheel::{
    Clock, ExpiredTask, HashedWheelTimer, ManualClock, MissedTick, NewTimeoutError, Periodic, Schedule,
};

const PERIOD: Duration = ms(100);

/// When runs began, in milliseconds.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<u128>>>);

impl Begun {
    fn task(&self, clock: &ManualClock) -> impl FnMut() + Send + 'static {
        let (begun, clock) = (self.clone(), clock.clone());
        move || begun.0.lock().unwrap().push(clock.now().as_millis())
    }

    fn take(&self) -> Vec<u128> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Says when it is dropped.
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
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("when it was dropped");
    }
}

// --- when it runs -----------------------------------------------------------------------------------------------------

#[test]
fn a_fixed_rate_does_not_drift() {
    for is_hierarchical in [false, true] {
        let mut t = Driven::with(|builder| if is_hierarchical { builder.hierarchical() } else { builder });
        let begun = Begun::default();
        let periodic = t.timer.schedule_at_fixed_rate(begun.task(&t.clock), ms(30), PERIOD).unwrap();
        for _ in 0..1_000 {
            // Always late, and never by the same.
            t.pass(ms(7));
        }
        let runs = begun.take();
        assert_eq!(runs.len(), 70);
        assert_eq!(periodic.runs(), 70);
        for (run, &at) in runs.iter().enumerate() {
            let due = 30 + 100 * run as u128;
            assert!((due..due + 7).contains(&at), "run {run} at {at}");
        }
    }
}

#[test]
fn the_first_run_is_after_the_initial_delay() {
    let mut t = Driven::new();
    let now = t.timer.schedule_at_fixed_rate(|| (), Duration::ZERO, PERIOD).unwrap();
    let later = t.timer.schedule_with_fixed_delay(|| (), ms(50), PERIOD).unwrap();
    assert_eq!(t.driver.turn(), 0, "the next tick, as for a timeout");
    assert_eq!(t.pass(TICK), 1);
    assert_eq!((now.runs(), later.runs()), (1, 0));
    assert_eq!(t.pass(ms(39)), 0);
    assert_eq!(t.pass(ms(1)), 1);
    assert_eq!((now.runs(), later.runs()), (1, 1));
    // Each a period after it was due.
    t.pass(ms(50));
    assert_eq!((now.runs(), later.runs()), (2, 1));
    t.pass(ms(50));
    assert_eq!((now.runs(), later.runs()), (2, 2));
}

#[test]
fn what_was_missed_is_made_up_for_in_one_turn_and_in_its_order() {
    let mut t = Driven::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let say = |what: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(what)
    };
    t.timer.schedule_at_fixed_rate(say("periodic"), PERIOD, PERIOD).unwrap();
    let between = say("between");
    t.timer.new_timeout(move |_| between(), ms(250)).unwrap();
    assert_eq!(t.pass(ms(450)), 5);
    assert_eq!(*order.lock().unwrap(), ["periodic", "periodic", "between", "periodic", "periodic"]);
    assert_eq!(t.driver.next_turn(), Some(ms(50)));
}

#[test]
fn what_was_missed_is_left_out() {
    for (policy, runs) in
        [(MissedTick::Skip, [100, 730, 800, 900]), (MissedTick::Delay, [100, 730, 830, 930])]
    {
        let mut t = Driven::new();
        let begun = Begun::default();
        let schedule = Schedule::at_fixed_rate(PERIOD).missed_tick(policy);
        t.timer.schedule_periodic(begun.task(&t.clock), schedule).unwrap();
        t.pass(ms(100));
        t.pass(ms(630));
        for _ in 0..20 {
            t.pass(ms(10));
        }
        assert_eq!(begun.take(), runs, "{policy:?}");
    }
}

#[test]
fn a_fixed_delay_is_a_pause_between_two_runs() {
    let mut t = Driven::new();
    let begun = Begun::default();
    let (mut task, clock) = (begun.task(&t.clock), t.clock.clone());
    let takes_long = move || {
        task();
        clock.advance(ms(35));
    };
    t.timer.schedule_with_fixed_delay(takes_long, Duration::ZERO, PERIOD).unwrap();
    for _ in 0..100 {
        t.pass(ms(5));
    }
    // Due 100 ms after the end of the one before, at 45, 185, 325, and run at the tick after that.
    let runs = begun.take();
    assert_eq!(runs[..3], [10, 150, 290]);
}

/// Otherwise a turn would last until the clock is back where it was.
#[test]
fn a_clock_that_steps_back_makes_no_turn_endless() {
    let (on, back) = (ManualClock::new(), ManualClock::new());
    let builder = HashedWheelTimer::builder().tick(TICK).clock(Back(on.clone(), back.clone()));
    let (timer, mut driver) = builder.build_driven().unwrap();
    let itself = Arc::new(OnceLock::<Periodic>::new());
    let task = {
        let itself = Arc::clone(&itself);
        move || {
            let itself = itself.get().unwrap();
            if itself.runs() == 1 {
                back.advance(PERIOD * 5);
            } else if itself.runs() == 1_000 {
                itself.cancel();
            }
        }
    };
    let periodic = itself.get_or_init(|| timer.schedule_with_fixed_delay(task, PERIOD * 9, PERIOD).unwrap());
    on.advance(PERIOD * 10);
    driver.turn();
    assert_eq!(periodic.runs(), 2, "at 900 and at 1 000 ms");
    on.advance(PERIOD * 5);
    assert_eq!(driver.turn(), 0, "the clock is back at 1 000 ms");
    on.advance(PERIOD);
    assert_eq!(driver.turn(), 1);
}

#[test]
fn a_period_below_a_tick_runs_as_often_as_it_should() {
    let mut t = Driven::new();
    let burst = t.timer.schedule_at_fixed_rate(|| (), ms(1), ms(1)).unwrap();
    let skip = Schedule::at_fixed_rate(ms(1)).missed_tick(MissedTick::Skip);
    let skip = t.timer.schedule_periodic(|| (), skip).unwrap();
    for _ in 0..10 {
        t.pass(TICK);
    }
    assert_eq!((burst.runs(), skip.runs()), (100, 10));
    t.pass(TICK * 10);
    assert_eq!((burst.runs(), skip.runs()), (200, 11));
}

/// Any schedule, turned at any time, beside a loop that a child would write.
#[test]
fn it_runs_when_a_dumb_model_says_so() {
    for seed in 0..if cfg!(miri) { 5 } else { 300 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut t = Driven::with(|builder| if random.bool() { builder.hierarchical() } else { builder });
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
                    Some(policy) => Schedule::at_fixed_rate(Duration::from_nanos(period)).missed_tick(policy),
                };
                let schedule = schedule.initial_delay(Duration::from_nanos(initial));
                let periodic = t.timer.schedule_periodic(|| (), schedule).unwrap();
                // The first tick is never the one that the timer was built in.
                (periodic, policy, period, initial, tick.max(initial), 0_u64)
            })
            .collect();
        let mut now = 0;
        for _ in 0..random.usize(1..60) {
            let longest = if random.u8(..8) == 0 { 3_000_000_000 } else { 30_000_000 };
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
                        Some(MissedTick::Skip) => {
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
        assert_eq!(t.timer.pending_timeouts(), models.len());
    }
}

#[test]
fn jitter_makes_runs_later_and_keeps_the_rate() {
    let mut t = Driven::new();
    let begun = Begun::default();
    let schedule = Schedule::at_fixed_rate(PERIOD).jitter(ms(50));
    t.timer.schedule_periodic(begun.task(&t.clock), schedule).unwrap();
    let runs = if cfg!(miri) { 20 } else { 100 };
    for _ in 0..runs * 100 + 100 {
        t.pass(ms(1));
    }
    let expected = runs..=runs + 1;
    let runs = begun.take();
    assert!(expected.contains(&runs.len()));
    for (run, &at) in runs.iter().enumerate() {
        let due = 100 * (run as u128 + 1);
        assert!((due..=due + 60).contains(&at), "run {run} at {at}");
    }
    assert!(runs.iter().any(|at| at % 100 < 20) && runs.iter().any(|at| at % 100 > 30));
}

#[test]
fn a_period_that_never_ends_runs_once() {
    let mut t = Driven::new();
    let once = t.timer.schedule_at_fixed_rate(|| (), ms(10), Duration::MAX).unwrap();
    let never = t.timer.schedule_at_fixed_rate(|| (), Duration::MAX, ms(10)).unwrap();
    t.pass(ms(10));
    t.pass(Duration::from_secs(1 << 40));
    assert_eq!((once.runs(), never.runs()), (1, 0));
    assert!(once.cancel() && never.cancel());
    assert_eq!(t.timer.pending_timeouts(), 0);
}

// --- bad input --------------------------------------------------------------------------------------------------------

#[test]
fn a_period_of_zero_is_refused() {
    let t = Driven::new();
    let (held, dropped) = Dropped::new();
    let task = move || {
        let _held = &held;
    };
    let refused = t.timer.schedule_at_fixed_rate(task, PERIOD, Duration::ZERO).unwrap_err();
    assert!(matches!(refused, NewTimeoutError::ZeroPeriod), "{refused:?}");
    assert_eq!(refused.to_string(), "period is zero, but must be at least 1 ns");
    assert!(dropped.load(SeqCst));
    let refused = t.timer.schedule_with_fixed_delay(|| (), PERIOD, Duration::ZERO).unwrap_err();
    assert!(matches!(refused, NewTimeoutError::ZeroPeriod));
    assert_eq!(t.timer.pending_timeouts(), 0);
    let bomb = Bomb;
    let task = move || {
        let _bomb = &bomb;
    };
    assert!(quietly(|| t.timer.schedule_at_fixed_rate(task, PERIOD, Duration::ZERO)).is_err());
    assert_eq!(t.timer.stats().panics, 1);
}

#[test]
fn it_is_refused_like_a_timeout() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(1));
    let first = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD).unwrap();
    let full = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD);
    assert!(matches!(full, Err(NewTimeoutError::TooManyPending { limit: 1 })));
    assert!(first.cancel());
    t.timer.stop();
    let stopped = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD);
    assert!(matches!(stopped, Err(NewTimeoutError::Stopped)));
}

// --- one chain, counted once ------------------------------------------------------------------------------------------

#[test]
fn it_is_pending_once_whatever_it_does() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(1));
    // Not in the task: there it would keep the timer running.
    let (timer, in_run) = (t.timer.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&in_run);
    let task = move || {
        let full = timer.new_timeout(|_| (), PERIOD);
        seen.lock().unwrap().push((timer.pending_timeouts(), full.is_err()));
    };
    let periodic = t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap();
    for _ in 0..3 {
        assert_eq!(t.timer.pending_timeouts(), 1);
        t.pass(PERIOD);
        assert_eq!(t.timer.pending_timeouts(), 1);
        assert!(t.timer.new_timeout(|_| (), PERIOD).is_err(), "its place is not free for a moment");
    }
    assert_eq!(*in_run.lock().unwrap(), [(1, true); 3]);
    assert!(periodic.cancel());
    assert_eq!(t.timer.pending_timeouts(), 0);
    let stats = t.timer.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.cancelled), (1, 0, 1));
    assert_eq!((stats.periodic_runs, stats.pending), (3, 0));
}

#[test]
fn a_handle_that_is_dropped_cancels_nothing() {
    let mut t = Driven::new();
    let begun = Begun::default();
    drop(t.timer.schedule_at_fixed_rate(begun.task(&t.clock), PERIOD, PERIOD).unwrap());
    t.pass(PERIOD * 3);
    assert_eq!(begun.take().len(), 3);
    assert_eq!(t.timer.stop().len(), 1);
}

// --- the end ----------------------------------------------------------------------------------------------------------

#[test]
fn cancelled_is_for_good_at_any_moment() {
    // Before the worker has seen it; before the first run; between two.
    for turns in [0, 1, 3] {
        let mut t = Driven::new();
        let (held, dropped) = Dropped::new();
        let begun = Begun::default();
        let mut task = begun.task(&t.clock);
        let task = move || {
            let _held = &held;
            task();
        };
        let periodic = t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap();
        let clone = periodic.clone();
        for turn in 0..turns {
            t.pass(if turn == 0 { Duration::ZERO } else { PERIOD });
        }
        let before = periodic.runs();
        assert!(!periodic.is_cancelled() && !dropped.load(SeqCst));
        assert!(clone.cancel());
        assert!(!periodic.cancel() && periodic.is_cancelled() && !periodic.has_panicked());
        assert!(dropped.load(SeqCst), "at once");
        assert_eq!(t.timer.pending_timeouts(), 0);
        t.pass(PERIOD * 10);
        assert_eq!((periodic.runs(), begun.take().len() as u64), (before, before));
        assert!(t.timer.stop().is_empty());
    }
}

#[test]
fn it_can_cancel_itself() {
    let mut t = Driven::new();
    let (held, dropped) = Dropped::new();
    let itself = Arc::new(OnceLock::<Periodic>::new());
    let task = {
        let (itself, dropped) = (Arc::clone(&itself), Arc::clone(&dropped));
        move || {
            let _held = &held;
            assert!(itself.get().unwrap().cancel());
            assert!(!dropped.load(SeqCst), "what runs is not dropped");
        }
    };
    itself.set(t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap()).unwrap();
    t.pass(PERIOD * 5);
    assert_eq!(itself.get().unwrap().runs(), 1);
    assert!(dropped.load(SeqCst), "once the run is over");
    assert_eq!((t.timer.pending_timeouts(), t.timer.stats().panics), (0, 0));
    t.pass(PERIOD * 5);
    // Its node is used again.
    let next = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD).unwrap();
    t.pass(PERIOD * 5);
    assert_eq!(next.runs(), 5);
}

#[test]
fn a_panic_is_the_end_of_it_and_of_nothing_else() {
    quietly(|| {
        let mut t = Driven::new();
        let (held, dropped) = Dropped::new();
        let mut left = 2;
        let task = move || {
            let _held = &held;
            left -= 1;
            assert!(left > 0, "enough");
        };
        let dies = t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap();
        let lives = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD).unwrap();
        t.pass(PERIOD * 5);
        assert_eq!((dies.runs(), lives.runs()), (2, 5));
        assert!(dies.has_panicked() && !dies.is_cancelled() && !dies.cancel());
        assert!(!lives.has_panicked());
        assert!(dropped.load(SeqCst));
        let stats = t.timer.stats();
        assert_eq!((stats.panics, stats.pending, stats.expired, stats.cancelled), (1, 1, 1, 0));
        assert!(format!("{dies:?}").contains("has_panicked: true"), "{dies:?}");
        assert_eq!(t.timer.stop().len(), 1);
    });
}

#[test]
fn panics_elsewhere_in_it_are_caught() {
    quietly(|| {
        let mut t = Driven::new();
        let schedule = |task: Box<dyn FnMut(&Bomb) + Send>| {
            let (bomb, mut task) = (Bomb, task);
            t.timer.schedule_at_fixed_rate(move || task(&bomb), PERIOD, PERIOD).unwrap()
        };
        let cancelled = schedule(Box::new(|_| ()));
        let panics = schedule(Box::new(|_| panic!("in run")));
        let stopped = schedule(Box::new(|_| ()));
        assert!(cancelled.cancel());
        t.pass(PERIOD);
        assert!(panics.has_panicked());
        assert_eq!(t.timer.stop().len(), 1);
        assert!(stopped.is_cancelled());
        assert_eq!((t.timer.stats().panics, t.timer.pending_timeouts()), (4, 0));
    });
}

/// A clock that has had enough.
struct Tired(ManualClock, Arc<AtomicBool>);

impl Clock for Tired {
    fn now(&self) -> Duration {
        assert!(!self.1.load(SeqCst), "no more");
        self.0.now()
    }
}

#[test]
fn a_clock_that_panics_after_a_run_ends_it_like_a_panic_of_its_own() {
    quietly(|| {
        let (clock, tired) = (ManualClock::new(), Arc::new(AtomicBool::new(false)));
        let builder = HashedWheelTimer::builder().clock(Tired(clock.clone(), Arc::clone(&tired)));
        let (timer, mut driver) = builder.tick(TICK).build_driven().unwrap();
        let now_it_is = Arc::clone(&tired);
        let periodic =
            timer.schedule_at_fixed_rate(move || now_it_is.store(true, SeqCst), PERIOD, PERIOD).unwrap();
        clock.advance(PERIOD);
        assert_eq!(driver.turn(), 1);
        tired.store(false, SeqCst);
        assert!(periodic.has_panicked());
        assert_eq!(timer.pending_timeouts(), 0);
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn stop_returns_it() {
    for turns in [0, 2] {
        let mut t = Driven::new();
        let (held, dropped) = Dropped::new();
        let task = move || {
            let _held = &held;
        };
        let periodic = t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap();
        for _ in 0..turns {
            t.pass(PERIOD);
        }
        let rest = t.timer.stop();
        assert!(rest.len() == 1 && rest[0].is_cancelled() && periodic.is_cancelled());
        assert!(dropped.load(SeqCst));
        assert_eq!(t.timer.pending_timeouts(), 0);
        assert!(!periodic.cancel());
    }
}

#[test]
fn a_shutdown_does_not_wait_for_it_and_returns_it() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    // (Not to make up for anything, lest a slow machine never do.)
    let often = Schedule::at_fixed_rate(ms(1)).missed_tick(MissedTick::Skip);
    let periodic = timer.schedule_periodic(|| (), often).unwrap();
    let last = timer.new_timeout(|_| (), ms(20)).unwrap();
    let rest = timer.shutdown(Duration::from_secs(3_600));
    assert!(rest.len() == 1 && rest[0].is_cancelled() && last.is_expired());
    assert!(periodic.is_cancelled() && periodic.runs() > 0, "it goes on meanwhile");
}

#[test]
fn a_task_that_drops_the_last_handle_runs_no_more() {
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
    let last = Arc::new(Mutex::new(None));
    let taken = Arc::clone(&last);
    let periodic =
        timer.schedule_at_fixed_rate(move || drop(taken.lock().unwrap().take()), PERIOD, PERIOD).unwrap();
    *last.lock().unwrap() = Some(timer);
    clock.advance(PERIOD * 5);
    assert_eq!(driver.turn(), 1);
    assert!(driver.is_stopped() && periodic.is_cancelled());
    assert_eq!(periodic.runs(), 1);
}

// --- executors --------------------------------------------------------------------------------------------------------

/// Holds what it is given until it is asked to run it.
fn held(
    settings: impl FnOnce(hashed_wheel::Builder) -> hashed_wheel::Builder,
) -> (Driven, mpsc::Receiver<ExpiredTask>) {
    let (give, tasks) = mpsc::channel();
    (Driven::with(|builder| settings(builder.task_executor(move |task| drop(give.send(task))))), tasks)
}

#[test]
fn an_executor_has_one_run_at_a_time() {
    let (mut t, tasks) = held(|builder| builder);
    let skip = Schedule::at_fixed_rate(PERIOD).missed_tick(MissedTick::Skip);
    let periodic = t.timer.schedule_periodic(|| (), skip).unwrap();
    assert_eq!(t.pass(PERIOD), 1);
    assert_eq!(t.pass(PERIOD * 3), 0, "it has not run yet");
    assert_eq!((t.timer.pending_timeouts(), periodic.runs()), (1, 0));
    tasks.try_recv().unwrap().run();
    assert!(tasks.try_recv().is_err());
    assert_eq!((t.timer.pending_timeouts(), periodic.runs()), (1, 1));
    assert_eq!(t.driver.next_turn(), Some(PERIOD), "the multiple after now");
    assert_eq!(t.pass(PERIOD), 1);
    tasks.try_recv().unwrap().run();
    assert_eq!(periodic.runs(), 2);
}

#[test]
fn an_executor_makes_up_for_what_was_missed() {
    let (mut t, tasks) = held(|builder| builder);
    let periodic = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD).unwrap();
    t.pass(PERIOD * 5);
    tasks.try_recv().unwrap().run();
    assert_eq!(periodic.runs(), 5);
    assert_eq!(t.driver.next_turn(), Some(PERIOD));
    // It ends at once when it is cancelled in the middle.
    let itself = Arc::new(OnceLock::<Periodic>::new());
    let this = Arc::clone(&itself);
    let task = move || assert!(this.get().unwrap().cancel());
    itself.set(t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap()).unwrap();
    assert!(periodic.cancel());
    t.pass(PERIOD * 5);
    tasks.try_recv().unwrap().run();
    assert_eq!(itself.get().unwrap().runs(), 1);
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn an_executor_that_refuses_leaves_one_run_out() {
    let refuses = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&refuses);
    let mut t = Driven::with(|builder| {
        builder.task_executor(move |task: ExpiredTask| {
            if !asked.load(SeqCst) {
                task.run();
            }
        })
    });
    let periodic = t.timer.schedule_at_fixed_rate(|| (), PERIOD, PERIOD).unwrap();
    quietly(|| assert_eq!(t.pass(PERIOD), 1));
    assert_eq!((periodic.runs(), t.timer.stats().dropped_tasks, t.timer.pending_timeouts()), (0, 1, 1));
    refuses.store(false, SeqCst);
    t.pass(PERIOD);
    assert_eq!((periodic.runs(), t.timer.stats().dropped_tasks), (1, 1));
}

#[test]
fn what_an_executor_has_can_be_cancelled_and_stopped() {
    for by_stop in [false, true] {
        for panics in [false, true] {
            let (mut t, tasks) = held(|builder| builder);
            let (held, dropped) = Dropped::new();
            let (entered, leave) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
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
            let periodic = t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap();
            t.pass(PERIOD);
            let task = tasks.try_recv().unwrap();
            let run = thread::spawn(move || quietly(|| task.run()));
            while !entered.load(SeqCst) {
                thread::yield_now();
            }
            if by_stop {
                // It does not wait for what an executor has.
                assert_eq!(t.timer.stop().len(), 1);
            } else {
                assert!(periodic.cancel());
            }
            assert!(periodic.is_cancelled() && !dropped.load(SeqCst));
            assert_eq!(t.timer.pending_timeouts(), 0);
            leave.store(true, SeqCst);
            run.join().unwrap();
            assert!(dropped.load(SeqCst));
            assert_eq!((periodic.runs(), periodic.has_panicked()), (1, panics));
            assert_eq!(t.pass(PERIOD * 3), 0);
        }
    }
}

#[test]
fn what_waits_in_an_executor_does_not_begin_once_it_is_cancelled() {
    // Dropped, it is not one more that the executor has refused: nothing is lost.
    for end in [ExpiredTask::run, drop::<ExpiredTask>] {
        let (mut t, tasks) = held(|builder| builder);
        let (held, dropped) = Dropped::new();
        let task = move || {
            let _held = &held;
        };
        let periodic = t.timer.schedule_at_fixed_rate(task, PERIOD, PERIOD).unwrap();
        t.pass(PERIOD);
        assert!(periodic.cancel());
        end(tasks.try_recv().unwrap());
        assert_eq!(periodic.runs(), 0);
        assert!(dropped.load(SeqCst));
        assert_eq!((t.timer.pending_timeouts(), t.timer.stats().dropped_tasks), (0, 0));
    }
}

#[test]
fn a_panic_in_an_executor_is_the_end_of_it() {
    let (mut t, tasks) = held(|builder| builder);
    let periodic = t.timer.schedule_at_fixed_rate(|| panic!("no"), PERIOD, PERIOD).unwrap();
    t.pass(PERIOD);
    quietly(|| tasks.try_recv().unwrap().run());
    assert!(periodic.has_panicked() && !periodic.is_cancelled() && !periodic.cancel());
    let stats = t.timer.stats();
    assert_eq!((stats.pending, stats.expired, stats.cancelled, stats.panics), (0, 1, 0, 1));
    // The worker learns of it, and uses the node again.
    t.driver.turn();
    assert_eq!(t.driver.next_turn(), None);
    assert!(t.timer.stop().is_empty());
}

// --- threads ----------------------------------------------------------------------------------------------------------

#[test]
fn in_real_time_no_run_is_early_and_none_is_missing() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (say, runs) = mpsc::channel();
    let begin = Instant::now();
    let periodic =
        timer.schedule_at_fixed_rate(move || say.send(Instant::now()).unwrap_or(()), ms(5), ms(5)).unwrap();
    for run in 1..=20 {
        let at = runs.recv_timeout(PATIENCE).unwrap();
        assert!(at - begin >= ms(5) * run, "run {run} after {:?}", at - begin);
    }
    assert!(periodic.cancel());
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn two_runs_never_overlap_and_none_begins_after_a_cancel() {
    let (rounds, enough) = if cfg!(miri) { (1, 2) } else { (20, 20) };
    for round in 0..rounds {
        let (give, tasks) = mpsc::channel::<ExpiredTask>();
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
        let give = Mutex::new(give);
        let timer = HashedWheelTimer::builder()
            .tick(Duration::from_micros(50))
            .task_executor(move |task| drop(give.lock().unwrap().send(task)))
            .build()
            .unwrap();
        let chains: Vec<_> = (0..8)
            .map(|chain| {
                let mine = AtomicUsize::new(0);
                let task = move || {
                    assert_eq!(mine.fetch_add(1, SeqCst), 0, "no overlap");
                    thread::yield_now();
                    mine.fetch_sub(1, SeqCst);
                };
                let period = Duration::from_micros(30 + 40 * chain);
                // (As above.)
                let often = Schedule::at_fixed_rate(period).missed_tick(MissedTick::Skip);
                timer.schedule_periodic(task, often).unwrap()
            })
            .collect();
        let until = Instant::now() + PATIENCE;
        while chains.iter().any(|chain| chain.runs() < enough) && Instant::now() < until {
            thread::sleep(ms(1));
        }
        let runs: Vec<_> = chains.iter().map(Periodic::runs).collect();
        let ended = if round % 2 == 0 {
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
            assert!(before >= enough && !chain.has_panicked(), "{before} runs");
        }
    }
}
