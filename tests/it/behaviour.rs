//! The documented behaviour of a timer, statement by statement, with a clock that moves only when
//! the test moves it. Tests that need real threads or real time are in `threads.rs`. Races are in
//! `races.rs` and `loom-tests/`.

#![allow(clippy::mutable_key_type, reason = "a timeout is hashed by identity")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Driven, Ends, FULL, Log, STOPPED, Schedules, TICK, accepts_all, basics, built_driven, ms,
    quietly,
};
use hashed_wheel::wheel::MAX_TICKS_PER_WHEEL;
use hashed_wheel::{
    BuildError, Builder, Clock, DynTimerTask, ExpiredTask, HashedWheelTimer, ManualClock,
    NewTimeoutError, TaskExecutor, Timeout, TimerTask,
};

/// Longer than any wheel, and not on a tick boundary.
const FAR: Duration = ms(123_456);

// --- exactly one end -----------------------------------------------------------------------------

#[test]
fn a_task_runs_once() {
    let mut t = Driven::new();
    let ends = Ends::new();
    let timeout = t.schedule_task(ends.task(), TICK);
    assert!(!timeout.is_expired() && !timeout.is_cancelled());
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(t.pass(TICK * 100), 0);
    assert_eq!(ends.counts(), (1, 0, 1));
    assert!(timeout.is_expired() && !timeout.is_cancelled());
    assert!(!timeout.cancel());
    assert!(t.timer.stop().is_empty());
}

#[test]
fn a_cancelled_task_never_runs() {
    let mut t = Driven::new();
    let ends = Ends::new();
    let in_lane = t.schedule_task(ends.task(), TICK);
    assert!(in_lane.cancel());
    assert!(!in_lane.cancel(), "true for exactly one caller");
    let in_wheel = t.schedule_task(ends.task(), TICK);
    t.turn();
    assert!(in_wheel.cancel() && !in_wheel.cancel());
    assert_eq!(ends.counts(), (0, 2, 2));
    assert_eq!(t.pass(FAR), 0);
    assert!(in_wheel.is_cancelled() && !in_wheel.is_expired());
    assert!(t.timer.stop().is_empty());
}

#[test]
fn stop_returns_the_rest() {
    let mut t = Driven::new();
    let ends = Ends::new();
    let schedule = |delay| t.schedule_task(ends.task(), delay);
    let _expired = schedule(TICK);
    let cancelled = schedule(FAR);
    let mut rest = HashSet::from([schedule(TICK * 2), schedule(FAR), schedule(Duration::MAX)]);
    assert_eq!(t.pass(TICK), 1);
    cancelled.cancel();
    // The worker has not read the message of this timeout.
    rest.insert(t.schedule_task(ends.task(), Duration::ZERO));

    let returned = t.timer.stop();
    assert!(returned.iter().all(Timeout::is_cancelled));
    assert_eq!(returned.len(), 4);
    assert_eq!(HashSet::from_iter(returned), rest);
    assert_eq!(ends.counts(), (1, 5, 6));
    assert!(t.timer.stop().is_empty(), "a second stop returns nothing");
    assert_eq!(t.pass(FAR), 0);
    assert_eq!(t.next_turn(), None);
}

#[test]
fn a_rejected_task_is_dropped_and_the_error_states_the_reason() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let ends = Ends::new();
    t.schedule_task(ends.task(), TICK);
    let rejected = t.timer.new_timeout_task(ends.task(), TICK).unwrap_err();
    assert_eq!(rejected, FULL);
    let text = "too many timeouts are pending: the limit is 1";
    assert_eq!(rejected.to_string(), text);
    assert_eq!(ends.counts(), (0, 0, 1), "it is dropped without its hook");
    assert_eq!(t.pending(), 1, "a rejection leaves the timer unchanged");

    assert_eq!(t.timer.stop().len(), 1);
    let rejected = t.timer.new_timeout_task(ends.task(), TICK).unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::Stopped));
    assert_eq!(rejected.to_string(), "the timer is stopped");
    assert!(matches!(t.timer.start(), Err(NewTimeoutError::Stopped)));
    assert_eq!((ends.drops(), t.pending()), (3, 0));
    assert_eq!(t.stats().rejected, 2);
}

// --- never early, at most one tick late ----------------------------------------------------------

#[test]
fn a_timeout_fires_at_the_first_boundary_at_or_after_its_deadline() {
    for (delay, boundary) in [
        (0, 1),
        (1, 1),
        (9_999, 1),
        (10_000, 1),
        (10_001, 2),
        (79_999, 8),
        (80_000, 8),
        (80_001, 9),
    ] {
        let mut t = Driven::new();
        t.schedule(|_| (), Duration::from_micros(delay));
        for tick in 1..boundary {
            assert_eq!(t.pass(TICK), 0, "delay of {delay} µs, tick {tick}");
        }
        let early = t.pass(TICK - Duration::from_nanos(1));
        assert_eq!(early, 0, "delay of {delay} µs is not early");
        assert_eq!(t.pass(Duration::from_nanos(1)), 1, "{delay} µs is not late");
    }
}

#[test]
fn the_deadline_counts_from_the_call_and_not_from_the_tick() {
    let mut t = Driven::new();
    t.pass(ms(5));
    t.schedule(|_| (), ms(10));
    assert_eq!(t.pass(ms(5)), 0, "at 10 ms: the timeout is due at 15 ms");
    assert_eq!(t.pass(ms(9)), 0);
    assert_eq!(t.pass(ms(1)), 1);
}

#[test]
fn zero_delay_means_the_next_boundary() {
    let mut t = Driven::new();
    t.pass(ms(12));
    t.schedule(|_| (), Duration::ZERO);
    assert_eq!(t.turn(), 0);
    assert_eq!(t.pass(ms(7)), 0);
    assert_eq!(t.pass(ms(1)), 1);

    // At a boundary that has been processed: the timeout fires at the next one.
    t.schedule(|_| (), Duration::ZERO);
    assert_eq!(t.turn(), 0);
    assert_eq!(t.pass(TICK), 1);

    // At a boundary that has not been processed.
    t.clock.advance(TICK);
    t.schedule(|_| (), Duration::ZERO);
    assert_eq!(t.turn(), 1);
}

#[test]
fn a_task_that_reschedules_itself_with_zero_delay_does_not_extend_the_turn() {
    struct Rescheduling(Arc<AtomicUsize>);
    impl TimerTask for Rescheduling {
        fn run(self, timeout: &Timeout) {
            self.0.fetch_add(1, SeqCst);
            timeout.timer().schedule_task(self, Duration::ZERO);
        }
    }
    let mut t = Driven::new();
    let runs = Arc::new(AtomicUsize::new(0));
    t.schedule_task(Rescheduling(runs.clone()), Duration::ZERO);
    for tick in 1..=20 {
        assert_eq!(t.pass(TICK), 1, "one run per tick, tick {tick}");
    }
    assert_eq!(t.pass(TICK * 1_000), 1, "also after a delay of the worker");
    assert_eq!(runs.load(SeqCst), 21);
}

#[test]
fn a_delay_too_large_to_represent_never_fires() {
    let mut t = Driven::new();
    let never = t.schedule(|_| (), Duration::MAX);
    let nearly = t.schedule(|_| (), Duration::from_secs(u64::MAX));
    assert_eq!(never.remaining(), Duration::MAX);
    for _ in 0..3 {
        assert_eq!(t.pass(Duration::from_secs(u32::MAX.into())), 0);
    }
    t.clock.advance(Duration::MAX);
    assert_eq!(t.turn_until_quiet(), 0, "nor at the clock's maximum");
    assert_eq!(t.pending(), 2);
    assert!(never.cancel() && nearly.cancel());
    assert_eq!(t.next_turn(), None);
}

#[test]
fn a_timer_is_exact_after_a_century() {
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    let mut t = Driven::new();
    t.pass(century);
    for boundary in 1..=20 {
        t.schedule(|_| (), TICK * boundary - ms(3));
    }
    for _ in 0..20 {
        assert_eq!(t.pass(TICK - ms(1)), 0);
        assert_eq!(t.pass(ms(1)), 1);
    }
}

#[test]
fn a_delay_of_a_century_is_exact() {
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    let mut t = Driven::new();
    t.schedule(|_| (), century);
    assert_eq!(t.pass(century - ms(1)), 0);
    assert_eq!(t.pass(ms(1)), 1);
}

#[test]
fn a_clock_that_steps_back_fires_nothing_early() {
    struct SettableClock(Mutex<Duration>);
    impl Clock for SettableClock {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }
    let clock = Arc::new(SettableClock(Mutex::new(ms(1_000))));
    let (timer, mut driver) = built_driven(|builder| builder.tick(TICK).clock(clock.clone()));
    timer.schedule(|_| (), ms(50));
    *clock.0.lock().unwrap() = ms(20);
    assert_eq!(driver.turn(), 0);
    *clock.0.lock().unwrap() = ms(1_049);
    assert_eq!(driver.turn(), 0);
    *clock.0.lock().unwrap() = ms(1_050);
    assert_eq!(driver.turn(), 1);
}

// --- order ---------------------------------------------------------------------------------------

#[test]
fn timeouts_of_one_tick_fire_in_the_order_of_scheduling_also_after_cancels() {
    const COUNT: u64 = if cfg!(miri) { 200 } else { 1_000 };

    let mut t = Driven::new();
    let log = Log::default();
    let timeouts: Vec<_> = (0..COUNT)
        .map(|name| t.schedule(log.task(name), ms(995) - ms(name % 5)))
        .collect();
    // Some are cancelled before the worker reads the messages, some after.
    assert!(timeouts.iter().step_by(3).all(Timeout::cancel));
    t.pass(TICK);
    let mut others = timeouts.iter().skip(1).step_by(3).step_by(2);
    assert!(others.all(Timeout::cancel));
    t.pass(ms(1_000));
    let left: Vec<_> = (0..COUNT)
        .filter(|name| name % 3 == 2 || name % 6 == 4)
        .collect();
    assert_eq!(log.take(), left);
}

#[test]
fn a_late_turn_catches_up_in_the_order_of_the_ticks() {
    let mut t = Driven::new();
    let log = Log::default();
    let mut names: Vec<_> = (1..200).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut names);
    for name in names {
        t.schedule(log.task(name), TICK * name as u32);
    }
    assert_eq!(t.pass(TICK * 500), 199);
    assert_eq!(log.take(), (1..200).collect::<Vec<_>>());
}

#[test]
fn a_late_turn_fires_a_reset_timeout_in_the_order_of_the_ticks() {
    let mut t = Driven::new();
    let log = Log::default();
    t.schedule(log.task(3), TICK * 3);
    t.schedule(log.task(9), TICK * 9);
    let moved = t.schedule(log.task(5), TICK);
    t.turn();
    assert!(moved.reset(TICK * 5));
    assert_eq!(t.pass(TICK * 100), 3);
    assert_eq!(log.take(), [3, 5, 9]);
}

#[test]
fn a_jump_of_a_year_takes_milliseconds() {
    const DAYS_BETWEEN: usize = if cfg!(miri) { 73 } else { 1 };

    let year = Duration::from_secs(365 * 24 * 3_600);
    let mut t = Driven::with(|builder| builder.tick(ms(1)).ticks_per_wheel(512));
    for day in (1..=365).step_by(DAYS_BETWEEN) {
        t.schedule(|_| (), Duration::from_secs(day * 24 * 3_600));
    }
    t.schedule(|_| (), year * 2);
    let begin = Instant::now();
    assert_eq!(t.pass(year), 365 / DAYS_BETWEEN);
    // A year has 31 536 000 000 ticks. One by one they would take minutes.
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    assert!(t.next_turn().unwrap() > year - TICK);
}

// --- the worker's turns --------------------------------------------------------------------------

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_turn_reads_at_most_100_000_messages() {
    let mut t = Driven::new();
    let in_wheel = t.schedule(|_| (), TICK);
    t.turn();
    for _ in 0..250_000 {
        t.schedule(|_| (), FAR);
    }
    t.clock.advance(TICK);
    assert_eq!(t.turn(), 1, "no tight loop delays the wheel");
    assert!(in_wheel.is_expired());
    assert_eq!(t.next_turn(), Some(Duration::ZERO), "more are in the lane");
    assert_eq!(t.turn(), 0);
    assert_eq!(t.turn(), 0);
    assert_eq!(t.next_turn(), Some(ms(123_460) - TICK));
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn timeouts_behind_the_message_limit_are_not_a_tick_late() {
    let mut t = Driven::new();
    let log = Log::default();
    for name in 0..350_000 {
        t.schedule(log.task(name), Duration::ZERO);
    }
    t.clock.advance(TICK);
    assert_eq!(t.turn_until_quiet(), 350_000);
    assert_eq!(log.take(), (0..350_000).collect::<Vec<_>>(), "in order");
}

/// The order within a tick that `Timeout::reset` documents.
#[test]
fn order_of_timeouts_that_were_reset_to_the_tick_of_others() {
    let (mut t, log) = (Driven::new(), Log::default());
    let schedule = |t: &Driven, name, ticks| t.schedule(log.task(name), TICK * ticks);

    // To a later deadline: after those that were scheduled in between.
    let moved = schedule(&t, 0, 2);
    t.turn();
    assert!(moved.reset(TICK * 5));
    schedule(&t, 1, 5);
    t.pass(TICK * 2);
    schedule(&t, 2, 3);
    t.pass(TICK * 3);
    assert_eq!(log.take(), [1, 0, 2]);

    // To an earlier deadline: after those that were scheduled before.
    let moved = schedule(&t, 0, 5);
    schedule(&t, 1, 2);
    t.turn();
    assert!(moved.reset(TICK * 2));
    schedule(&t, 2, 2);
    t.pass(TICK * 2);
    assert_eq!(log.take(), [1, 0, 2]);

    // The worker has not taken it in: it keeps its place.
    let moved = schedule(&t, 0, 5);
    schedule(&t, 1, 2);
    assert!(moved.reset(TICK * 2));
    schedule(&t, 2, 2);
    t.pass(TICK * 2);
    assert_eq!(log.take(), [0, 1, 2]);
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn messages_behind_the_limit_fire_in_the_order_of_the_ticks() {
    let mut t = Driven::new();
    let log = Log::default();
    for name in 0..100_000 {
        t.schedule(log.task(name), TICK * 3);
    }
    for name in (1..20).rev() {
        t.schedule(log.task(1_000_000 + name), TICK * name as u32);
    }
    t.clock.advance(TICK * 50);
    assert_eq!(t.turn_until_quiet(), 100_019);
    let behind = log.take().split_off(100_000);
    assert_eq!(behind, (1_000_001..1_000_020).collect::<Vec<_>>());
}

#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn many_tasks_that_reschedule_with_zero_delay_run_once_per_tick() {
    fn reschedule(runs: Arc<AtomicUsize>, timeout: &Timeout) {
        runs.fetch_add(1, SeqCst);
        timeout
            .timer()
            .schedule(|timeout| reschedule(runs, timeout), Duration::ZERO);
    }
    const MANY: usize = 150_000;
    let mut t = Driven::new();
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..MANY {
        let runs = runs.clone();
        t.schedule(|timeout| reschedule(runs, timeout), Duration::ZERO);
    }
    for tick in 1..=5 {
        t.clock.advance(TICK);
        assert_eq!(t.turn_until_quiet(), MANY);
        assert_eq!(runs.load(SeqCst), MANY * tick);
    }
}

#[test]
fn next_turn_returns_the_time_until_the_next_deadline() {
    let mut t = Driven::new();
    assert_eq!(t.next_turn(), None);
    let far = t.schedule(|_| (), FAR);
    assert_eq!(t.next_turn(), Some(ms(123_460)), "the boundary of its tick");
    let near = t.schedule(|_| (), ms(25));
    assert_eq!(t.next_turn(), Some(ms(30)));
    t.clock.advance(ms(4));
    assert_eq!(t.next_turn(), Some(ms(26)));
    t.clock.advance(ms(40));
    assert_eq!(t.next_turn(), Some(Duration::ZERO));
    assert_eq!(t.turn(), 1);
    assert!(near.is_expired());
    assert_eq!(t.next_turn(), Some(ms(123_416)));
    far.cancel();
    assert_eq!(t.next_turn(), None, "no timeout is pending");
}

/// A loop that goes from turn to turn ends.
#[test]
fn a_timeout_that_never_fires_gives_no_next_turn() {
    for hierarchical in [false, true] {
        let mut t = Driven::with(|builder| builder.hierarchical(hierarchical));
        let never = t.schedule(|_| (), Duration::MAX);
        t.schedule(|_| (), FAR);
        let mut turns = 0;
        while let Some(wait) = t.next_turn() {
            t.pass(wait);
            turns += 1;
            // Each level of the hierarchical wheel may need one turn.
            assert!(turns <= 64, "{wait:?}, and no timeout can fire");
        }
        assert_eq!(t.stats().expired, 1);
        assert!(never.cancel());
    }
}

#[test]
fn a_loop_that_sleeps_until_the_next_turn_misses_nothing_and_never_spins() {
    for seed in if cfg!(miri) { 5..6 } else { 0..20 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut t = Driven::with(|builder| builder.ticks_per_wheel(1 << (seed % 10)));
        let mut timeouts = Vec::new();
        for _ in 0..200 {
            let bits = random.u32(0..40);
            let delay = Duration::from_nanos(random.u64(0..=1 << bits));
            timeouts.push(t.schedule(|_| (), delay));
        }
        for timeout in &timeouts {
            match random.u8(..3) {
                0 => drop(timeout.cancel()),
                1 => {
                    let bits = random.u32(0..40);
                    _ = timeout.reset(Duration::from_nanos(random.u64(0..=1 << bits)));
                }
                _ => {}
            }
        }
        let pending = t.pending();
        let (mut expired, mut turns) = (0, 0);
        while let Some(wait) = t.next_turn() {
            t.clock.advance(wait);
            expired += t.turn();
            turns += 1;
            // One turn per timeout, and one per earlier slot of a cancelled or reset timeout.
            assert!(turns <= 400, "seed {seed}");
        }
        assert_eq!(expired, pending, "seed {seed}");
    }
}

// --- cancel --------------------------------------------------------------------------------------

#[test]
fn cancel_takes_effect_immediately() {
    struct Hook(Arc<Mutex<Option<std::thread::ThreadId>>>, HashedWheelTimer);
    impl TimerTask for Hook {
        fn run(self, _: &Timeout) {}
        fn cancelled(self, timeout: &Timeout) {
            assert!(timeout.is_cancelled());
            assert_eq!(self.1.pending_timeouts(), 0, "it is deregistered already");
            // A place for another timeout is free already.
            self.1.schedule(|_| (), FAR);
            *self.0.lock().unwrap() = Some(std::thread::current().id());
        }
    }
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    for in_wheel in [false, true] {
        let called = Arc::new(Mutex::new(None));
        let timeout = t.schedule_task(Hook(called.clone(), t.timer.clone()), FAR);
        t.turn_if(in_wheel);
        assert!(timeout.cancel());
        let caller = *called.lock().unwrap();
        assert_eq!(caller, Some(thread::current().id()), "within cancel");
        assert_eq!(Arc::strong_count(&called), 1, "the task is dropped");
        assert_eq!(t.pending(), 1);
        // Let the timeout of the hook fire, which frees its place for the next iteration.
        t.pass(FAR + TICK);
        assert_eq!(t.pending(), 0);
    }
}

#[test]
fn a_timeout_can_be_cancelled_within_its_own_tick() {
    let mut t = Driven::new();
    let ends = Ends::new();
    let others = Arc::new(Mutex::new(Vec::<Timeout>::new()));
    let to_cancel = others.clone();
    let task = move |_: &Timeout| {
        assert!(to_cancel.lock().unwrap().iter().all(Timeout::cancel));
    };
    t.schedule(task, TICK);
    for _ in 0..10 {
        others
            .lock()
            .unwrap()
            .push(t.schedule_task(ends.task(), TICK));
    }
    assert_eq!(t.pass(TICK), 1, "each timeout of a tick expires separately");
    assert_eq!((ends.runs(), ends.hooks()), (0, 10));
    assert_eq!(t.pending(), 0);
}

#[test]
fn cancelled_timeouts_leak_no_memory() {
    let mut t = Driven::new();
    let memory = Arc::new(());
    for iteration in 0..3 {
        let timeouts: Vec<_> = (0..if cfg!(miri) { 150 } else { 1_000 })
            .map(|_| {
                let captured = memory.clone();
                t.schedule(move |_| drop(captured), FAR)
            })
            .collect();
        if iteration == 1 {
            t.turn();
        }
        assert!(timeouts.iter().all(Timeout::cancel));
        assert_eq!(Arc::strong_count(&memory), 1, "cancel drops the tasks");
        t.turn();
        assert_eq!(t.next_turn(), None, "the next turn removes their entries");
    }
}

#[test]
fn a_guard_cancels_when_it_is_dropped() {
    let t = Driven::new();
    let ends = Ends::new();
    let guard = t.schedule_task(ends.task(), TICK).cancel_on_drop();
    let timeout = guard.clone();
    assert!(guard.reset(FAR), "a guard derefs to its timeout");
    assert_eq!(t.pending(), 1);
    drop(guard);
    assert!(timeout.is_cancelled());
    assert_eq!((ends.hooks(), t.pending()), (1, 0));
}

/// As long as the documentation of `CancelOnDrop` allows with this stack.
#[test]
fn a_chain_of_guards_can_be_dropped() {
    let links = if cfg!(miri) {
        20
    } else if cfg!(debug_assertions) {
        1_000
    } else {
        4_000
    };
    let drop_chain = move || {
        let mut t = Driven::new();
        let mut first = t.schedule(|_| (), FAR).cancel_on_drop();
        for _ in 1..links {
            let next = first;
            first = t.schedule(move |_| drop(next), FAR).cancel_on_drop();
        }
        assert_eq!(t.pending(), links);
        drop(first);
        assert_eq!(t.pending(), 0);
        t.turn();
        assert_eq!(t.next_turn(), None);
    };
    thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(drop_chain)
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn the_drop_of_a_handle_does_not_cancel() {
    let mut t = Driven::new();
    let ends = Ends::new();
    drop(t.schedule_task(ends.task(), TICK));
    assert_eq!((t.pass(TICK), ends.runs()), (1, 1));
}

// --- pending and the limit -----------------------------------------------------------------------

#[test]
fn pending_counts_timeouts_that_have_not_ended() {
    let mut t = Driven::new();
    let counted = Arc::new(AtomicUsize::new(usize::MAX));
    let seen = counted.clone();
    let task = move |timeout: &Timeout| seen.store(timeout.timer().pending_timeouts(), SeqCst);
    t.schedule(task, TICK);
    let others: Vec<_> = (0..4).map(|_| t.schedule(|_| (), FAR)).collect();
    assert_eq!(t.pending(), 5);
    others[0].cancel();
    assert_eq!(t.pending(), 4);
    t.pass(TICK);
    assert_eq!(counted.load(SeqCst), 3, "a running timeout does not count");
    t.timer.stop();
    assert_eq!(t.pending(), 0);
}

#[test]
fn a_place_is_free_as_soon_as_a_timeout_ends() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(2)));
    let inside = Arc::new(AtomicUsize::new(0));
    let count = inside.clone();
    let task = move |timeout: &Timeout| {
        let next = timeout.timer().new_timeout(|_| (), TICK);
        count.store(usize::from(next.is_ok()), SeqCst);
    };
    t.schedule(task, TICK);
    let other = t.schedule(|_| (), FAR);
    assert!(t.timer.new_timeout(|_| (), TICK).is_err());
    t.pass(TICK);
    assert_eq!(inside.load(SeqCst), 1, "it ends before its task runs");
    assert!(t.timer.new_timeout(|_| (), TICK).is_err());
    other.cancel();
    assert!(t.timer.new_timeout(|_| (), TICK).is_ok());
}

// --- reset ---------------------------------------------------------------------------------------

#[test]
fn reset_moves_the_deadline_either_way() {
    // Both deadlines in the same round of the wheel or in different ones, before and after the
    // worker has read the message.
    for (from, to) in [
        (3, 5),
        (5, 3),
        (3, 100),
        (100, 3),
        (100, 95),
        (95, 100),
        (1, 1),
        (3, 0),
    ] {
        for in_wheel in [false, true] {
            let mut t = Driven::new();
            let ends = Ends::new();
            let timeout = t.schedule_task(ends.task(), TICK * from);
            t.turn_if(in_wheel);
            assert!(timeout.reset(TICK * to));
            assert_eq!(timeout.remaining(), TICK * to);
            for tick in 1..to {
                assert_eq!(t.pass(TICK), 0, "{from} to {to}, tick {tick}, {in_wheel}");
            }
            assert_eq!(t.pass(TICK), 1, "{from} to {to}, {in_wheel}");
            let end = (t.pass(TICK * 500), ends.runs());
            assert_eq!(end, (0, 1), "{from} to {to}, {in_wheel}");
            assert_eq!(t.pending(), 0);
            assert_eq!(t.next_turn(), None);
        }
    }
}

#[test]
fn reset_of_an_ended_timeout_returns_false() {
    let mut t = Driven::new();
    let expired = t.schedule(|timeout| assert!(!timeout.reset(TICK)), TICK);
    let cancelled = t.schedule(|_| (), TICK);
    cancelled.cancel();
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(t.stats().panics, 0);
    assert!(!expired.reset(TICK) && !cancelled.reset(TICK));
    let stopped = t.schedule(|_| (), TICK);
    t.timer.stop();
    assert!(!stopped.reset(TICK));
    assert_eq!(t.pass(FAR), 0);
}

#[test]
fn an_idle_timeout_that_is_reset_often_fires_only_after_silence() {
    let mut t = Driven::new();
    let idle = t.schedule(|_| (), ms(100));
    for _ in 0..if cfg!(miri) { 50 } else { 1_000 } {
        assert_eq!(t.pass(ms(7)), 0);
        assert!(idle.reset(ms(100)));
    }
    assert_eq!(t.pass(ms(99)), 0);
    assert_eq!(t.pass(ms(11)), 1);
}

#[test]
fn the_last_of_several_resets_sets_the_deadline() {
    let mut t = Driven::new();
    let timeout = t.schedule(|_| (), TICK * 50);
    for in_wheel in [false, true, false, true] {
        assert!(timeout.reset(TICK * 3));
        t.turn_if(in_wheel);
        assert!(timeout.reset(TICK * 200));
        t.turn_if(in_wheel);
        assert!(timeout.reset(TICK * 20));
    }
    assert_eq!(t.pass(TICK * 20 - ms(1)), 0);
    assert_eq!(t.pass(ms(1)), 1);
    assert_eq!(t.next_turn(), None);
}

#[test]
fn a_reset_timeout_can_be_cancelled_and_stopped() {
    let mut t = Driven::new();
    let ends = Ends::new();
    for delays in [[5, 2], [2, 5]] {
        for turn_between in [false, true] {
            let schedule = || t.schedule_task(ends.task(), TICK * delays[0]);
            let (cancelled, stopped) = (schedule(), schedule());
            t.turn();
            assert!(cancelled.reset(TICK * delays[1]) && stopped.reset(TICK * delays[1]));
            t.turn_if(turn_between);
            assert!(cancelled.cancel());
            assert_eq!(t.timer.stop(), [stopped]);
            assert_eq!(t.pass(FAR), 0);
            t = Driven::new();
        }
    }
    assert_eq!(ends.counts(), (0, 8, 8));
}

#[test]
fn remaining_is_the_time_until_the_deadline() {
    let t = Driven::new();
    let timeout = t.schedule(|_| (), ms(105));
    assert_eq!(timeout.remaining(), ms(105));
    t.clock.advance(ms(100));
    assert_eq!(timeout.remaining(), ms(5));
    t.clock.advance(ms(7));
    // The deadline has passed, but the timeout fires at 110 ms.
    assert_eq!(timeout.remaining(), Duration::ZERO);
}

// --- stop and drop -------------------------------------------------------------------------------

#[test]
fn stop_of_an_unused_timer_returns_nothing() {
    assert!(Driven::new().timer.stop().is_empty());
    let timer = HashedWheelTimer::default();
    assert!(!timer.is_stopped());
    assert!(timer.stop().is_empty());
    assert!(timer.is_stopped());
}

#[test]
fn stop_inside_a_task_panics_and_changes_nothing() {
    let mut t = Driven::new();
    let message = Arc::new(Mutex::new(String::new()));
    let received = message.clone();
    let task = move |timeout: &Timeout| {
        let timer = timeout.timer();
        let panic = std::panic::catch_unwind(|| timer.stop()).unwrap_err();
        *received.lock().unwrap() = *panic.downcast::<String>().unwrap();
        assert!(!timer.is_stopped());
    };
    t.schedule(task, TICK);
    let later = t.schedule(|_| (), TICK * 2);
    assert_eq!(quietly(|| t.pass(TICK)), 1);
    let text = "stop was called by a task on the timer's own worker";
    assert!(message.lock().unwrap().contains(text));
    let seen = (t.pass(TICK), later.is_expired(), t.stats().panics);
    assert_eq!(seen, (1, true, 0));
}

#[test]
fn stop_inside_a_hook_of_stop_is_a_second_stop() {
    struct Service(HashedWheelTimer, Arc<AtomicUsize>);
    impl Drop for Service {
        fn drop(&mut self) {
            assert!(self.0.stop().is_empty());
            self.1.fetch_add(1, SeqCst);
        }
    }
    let t = Driven::new();
    let dropped = Arc::new(AtomicUsize::new(0));
    let service = Service(t.timer.clone(), dropped.clone());
    t.schedule(move |_| drop(service), FAR);
    assert_eq!(t.timer.stop().len(), 1);
    assert_eq!((dropped.load(SeqCst), t.stats().panics), (1, 0));
}

#[test]
fn the_last_handle_stops_the_timer() {
    let t = Driven::new();
    let ends = Ends::new();
    let timeout = t.schedule_task(ends.task(), FAR);
    let other = t.timer.clone();
    drop(t.timer);
    assert!(!timeout.is_cancelled(), "another handle exists");
    drop(other);
    assert!(timeout.is_cancelled(), "a timeout keeps no timer alive");
    assert_eq!((ends.hooks(), ends.drops()), (1, 1));
    assert!(timeout.timer().is_stopped());
    assert_eq!(timeout.timer().new_timeout(|_| (), TICK), Err(STOPPED));
}

#[test]
fn the_last_handle_dropped_inside_a_task_stops_the_timer() {
    let mut t = Driven::new();
    let ends = Ends::new();
    let last = t.timer.clone();
    t.schedule(move |_| drop(last), TICK);
    let due_with_it = t.schedule_task(ends.task(), TICK);
    t.schedule_task(ends.task(), FAR);
    drop(t.timer);
    t.clock.advance(TICK);
    assert_eq!(t.driver.turn(), 1);
    assert!(due_with_it.is_cancelled());
    assert_eq!(ends.counts(), (0, 2, 2));
}

#[test]
fn dropping_the_driver_stops_the_timer() {
    let t = Driven::new();
    let timeout = t.schedule(|_| (), TICK);
    drop(t.driver);
    assert!(timeout.is_cancelled() && t.timer.is_stopped());
    assert!(t.timer.new_timeout(|_| (), TICK).is_err());
    assert!(t.timer.stop().is_empty());
}

#[test]
fn a_stopped_timer_leaks_no_memory() {
    let memory = Arc::new(());
    let executor = memory.clone();
    let t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task: ExpiredTask| {
            let _ = &executor;
            task.run();
        }))
    });
    let timeouts: Vec<_> = (0..100).map(|_| t.schedule(|_| (), FAR)).collect();
    timeouts[0].cancel();
    t.timer.stop();
    // Operations after the stop: each of them finds that the timeout has ended.
    assert!(!timeouts[1].reset(TICK) && !timeouts[2].cancel());
    drop((t, timeouts));
    assert_eq!(Arc::strong_count(&memory), 1);
}

// --- panics --------------------------------------------------------------------------------------

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in drop");
        }
    }
}

struct PanicsWhenCancelled;

impl TimerTask for PanicsWhenCancelled {
    fn run(self, _: &Timeout) {}
    fn cancelled(self, _: &Timeout) {
        panic!("in cancelled");
    }
}

#[test]
fn a_panic_affects_no_other_timeout_and_no_count() {
    quietly(|| {
        let mut t = Driven::new();
        let ends = Ends::new();
        let captured = PanicsWhenDropped;
        t.schedule_task(ends.task(), TICK);
        t.schedule(|_| panic!("in run"), TICK);
        let task = |_: &Timeout| panic!("{}", String::from("with an owned payload"));
        t.schedule(task, TICK);
        t.schedule(|_| std::panic::panic_any(PanicsWhenDropped), TICK);
        t.schedule(move |_| drop(captured), TICK);
        t.schedule_task(ends.task(), TICK);
        let next = t.schedule_task(ends.task(), TICK * 2);
        assert_eq!(t.pass(TICK), 6);
        assert_eq!((ends.runs(), t.pending()), (2, 1));
        assert_eq!(t.stats().panics, 4);
        assert_eq!((t.pass(TICK), next.is_expired()), (1, true));
    });
}

#[test]
fn cancel_catches_a_panic_in_cancelled_or_drop() {
    quietly(|| {
        let t = Driven::new();
        let hook = t.schedule_task(PanicsWhenCancelled, TICK);
        let captured = PanicsWhenDropped;
        let dropped = t.schedule(move |_| drop(captured), TICK);
        assert!(hook.cancel() && dropped.cancel());
        assert_eq!((t.pending(), t.stats().panics), (0, 2));
    });
}

#[test]
fn stop_catches_a_panic_in_a_hook_and_calls_the_other_hooks() {
    quietly(|| {
        let t = Driven::new();
        let ends = Ends::new();
        t.schedule_task(ends.task(), TICK);
        t.schedule_task(PanicsWhenCancelled, TICK);
        t.schedule_task(ends.task(), TICK);
        assert_eq!(t.timer.stop().len(), 3);
        assert_eq!((ends.hooks(), t.stats().panics), (2, 1));
    });
}

#[test]
fn new_timeout_catches_a_panic_in_the_drop_of_a_rejected_task() {
    quietly(|| {
        let t = Driven::new();
        t.timer.stop();
        let captured = PanicsWhenDropped;
        assert!(t.timer.new_timeout(move |_| drop(captured), TICK).is_err());
        assert_eq!((t.stats().panics, t.stats().rejected), (1, 1));
    });
}

#[test]
fn a_panic_in_the_executor_affects_no_other_timeout() {
    quietly(|| {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let mut t = Driven::with(|builder| {
            builder.task_executor(accepts_all(move |task: ExpiredTask| {
                match count.fetch_add(1, SeqCst) {
                    1 => panic!("the pool is broken"),
                    _ => task.run(),
                }
            }))
        });
        let ends = Ends::new();
        for _ in 0..3 {
            t.schedule_task(ends.task(), TICK);
        }
        assert_eq!(t.pass(TICK), 3);
        assert_eq!((ends.runs(), ends.drops()), (2, 3));
        let stats = t.stats();
        let counts = (stats.panics, stats.dropped_tasks, stats.pending);
        assert_eq!(counts, (1, 1, 0));
    });
}

// --- task objects and constants ------------------------------------------------------------------

#[test]
fn tasks_of_different_types_can_be_kept_and_scheduled_as_objects() {
    struct Large([u8; 4_000], Arc<Ends>);

    impl TimerTask for Large {
        fn run(self, timeout: &Timeout) {
            assert!(self.0.iter().all(|&byte| byte == 7));
            self.1.task().run(timeout);
        }
    }

    let mut t = Driven::new();
    let (ends, in_large) = (Ends::new(), Ends::new());
    let tasks: [Box<dyn DynTimerTask>; 3] = [
        Box::new(ends.task()),
        Box::new(Large([7; 4_000], Arc::clone(&in_large))),
        Box::new(ends.task()),
    ];
    let timeouts = tasks.map(|task| t.schedule_task(task, TICK));
    assert!(timeouts[2].cancel());
    assert_eq!(ends.counts(), (0, 1, 1), "the hook of the task in the box");
    assert_eq!(t.pass(TICK), 2);
    assert_eq!(ends.counts(), (1, 1, 2));
    assert_eq!((in_large.runs(), in_large.drops()), (1, 1));
}

/// Tasks with both constants, of a size that fits into a node and of one that does not.
struct Internal<const SIZE: usize>(Arc<AtomicUsize>, [u8; SIZE]);

impl<const SIZE: usize> TimerTask for Internal<SIZE> {
    const RUNS_ON_WORKER: bool = true;
    const IS_AWAITED: bool = true;

    fn run(self, timeout: &Timeout) {
        assert!(timeout.timer().is_worker_thread());
        self.0.fetch_add(self.1.len(), SeqCst);
    }
}

#[test]
fn a_task_that_runs_on_the_worker_is_not_for_the_executor() {
    let offered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&offered);
    let mut t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task: ExpiredTask| {
            counted.fetch_add(1, SeqCst);
            task.run();
        }))
    });
    let runs = Arc::new(AtomicUsize::new(0));
    t.schedule_task(Internal(Arc::clone(&runs), [0; 1]), TICK);
    t.schedule_task(Internal(Arc::clone(&runs), [0; 1_000]), TICK);
    t.schedule(|_| (), TICK);
    assert_eq!(t.pass(TICK), 3);
    assert_eq!((runs.load(SeqCst), offered.load(SeqCst)), (1_001, 1));
    assert!(!t.timer.is_worker_thread());
}

#[test]
fn cancel_all_leaves_a_task_that_a_future_awaits() {
    let t = Driven::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let awaited = [
        t.schedule_task(Internal(Arc::clone(&runs), [0; 1]), TICK),
        t.schedule_task(Internal(runs, [0; 1_000]), TICK),
    ];
    t.schedule(|_| (), TICK);
    assert_eq!(t.timer.cancel_all(), 1);
    assert!(awaited.iter().all(|timeout| !timeout.is_cancelled()));
    assert_eq!(t.timer.stop().len(), 2, "the end of the timer cancels them");
}

// --- executors -----------------------------------------------------------------------------------

#[test]
fn the_executor_may_run_the_task_on_any_thread() {
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let queue = tasks.clone();
    let mut t = Driven::with(|builder| {
        builder.task_executor(accepts_all(move |task: ExpiredTask| {
            queue.lock().unwrap().push(task);
        }))
    });
    let ends = Ends::new();
    let timeout = t.schedule_task(ends.task(), TICK);
    assert_eq!(t.pass(TICK), 1);
    assert!(timeout.is_expired(), "the task was handed to the executor");
    assert_eq!((ends.runs(), t.pending()), (0, 0));
    let task = tasks.lock().unwrap().pop().unwrap();
    assert!(format!("{task:?}").contains("expired"));
    std::thread::spawn(move || task.run()).join().unwrap();
    let counts = (ends.runs(), ends.drops(), t.stats().dropped_tasks);
    assert_eq!(counts, (1, 1, 0));
}

#[test]
fn an_executor_may_be_shared() {
    fn runs(executor: impl TaskExecutor) -> usize {
        let mut t = Driven::with(|builder| builder.task_executor(executor));
        let ends = Ends::new();
        t.schedule_task(ends.task(), TICK);
        t.pass(TICK);
        ends.runs()
    }

    struct RunsHere;

    impl TaskExecutor for RunsHere {
        fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
            task.run();
            Ok(())
        }
    }

    assert_eq!([runs(Arc::new(RunsHere)), runs(Box::new(RunsHere))], [1; 2]);
    assert_eq!(runs(&RunsHere), 1);
}

#[test]
fn a_task_that_panics_in_the_executor_does_not_affect_the_executor() {
    quietly(|| {
        let mut t = Driven::with(|builder| builder.task_executor(accepts_all(ExpiredTask::run)));
        t.schedule(|_| panic!("in run"), TICK);
        assert_eq!(t.pass(TICK), 1);
        let stats = t.stats();
        assert_eq!((stats.panics, stats.dropped_tasks), (1, 0));
    });
}

#[test]
fn a_task_that_the_executor_drops_is_counted() {
    let mut t =
        Driven::with(|builder| builder.task_executor(accepts_all(|task: ExpiredTask| drop(task))));
    let ends = Ends::new();
    let timeout = t.schedule_task(ends.task(), TICK);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(ends.counts(), (0, 0, 1), "it neither runs nor is cancelled");
    assert!(timeout.is_expired());
    assert_eq!(t.stats().dropped_tasks, 1);
}

// --- settings ------------------------------------------------------------------------------------

#[test]
fn the_defaults_are_those_of_netty() {
    let timer = HashedWheelTimer::default();
    let settings = (timer.tick_duration(), timer.ticks_per_wheel());
    assert_eq!(settings, (ms(100), 512));
}

#[test]
fn ticks_per_wheel_is_rounded_up_to_a_power_of_two() {
    let max = MAX_TICKS_PER_WHEEL;
    assert_eq!(max, 1 << if usize::BITS < 64 { 28 } else { 30 });
    for (requested, actual) in [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 8),
        (512, 512),
        (513, 1_024),
        (max - 1, max),
        (max, max),
    ] {
        let rounded = HashedWheelTimer::new(ms(1), requested).ticks_per_wheel();
        assert_eq!(rounded, actual);
    }
}

#[test]
fn ticks_of_a_microsecond_or_more_are_used_unchanged() {
    for (requested, actual) in [
        (1, 1_000),
        (999, 1_000),
        (1_000, 1_000),
        (1_001, 1_001),
        (1_500_000, 1_500_000),
    ] {
        let timer = HashedWheelTimer::new(Duration::from_nanos(requested), 8);
        assert_eq!(timer.tick_duration(), Duration::from_nanos(actual));
    }
    let mut t = Driven::with(|builder| builder.tick(Duration::from_micros(1)));
    t.schedule(|_| (), Duration::from_nanos(1_500));
    assert_eq!(t.pass(Duration::from_nanos(1_999)), 0);
    assert_eq!(t.pass(Duration::from_nanos(1)), 1);
}

#[test]
fn invalid_settings_are_rejected_with_a_reason() {
    let built = |tick, slots| {
        HashedWheelTimer::builder()
            .tick(tick)
            .ticks_per_wheel(slots)
            .build()
            .map(|_| ())
    };
    assert_eq!(built(Duration::ZERO, 8), Err(BuildError::ZeroTick));
    assert_eq!(built(TICK, 0), Err(BuildError::ZeroTicksPerWheel));
    let max = MAX_TICKS_PER_WHEEL;
    let too_many = Err(BuildError::TooManyTicksPerWheel { max });
    assert_eq!(built(TICK, max + 1), too_many);
    assert_eq!(built(TICK, usize::MAX), too_many);
    let Err(BuildError::TickTooLong { max }) = built(Duration::MAX, 512) else {
        panic!("the tick was accepted")
    };
    let too_long = built(max + Duration::from_nanos(1), 512);
    assert_eq!(too_long, Err(BuildError::TickTooLong { max }));
    assert_eq!(built(max, 512), Ok(()));
    assert_eq!(built(max, 511), Ok(()), "511 slots are rounded up to 512");
    let Err(BuildError::TickTooLong { max }) = built(Duration::MAX, 1) else {
        panic!("the tick was accepted")
    };
    assert_eq!(max, Duration::from_nanos((1 << 62) - 3), "the longest");
    let levels = HashedWheelTimer::builder().hierarchical(true);
    let built = levels.tick(max).ticks_per_wheel(1).build().map(|_| ());
    let half = BuildError::TickTooLong { max: max / 2 };
    assert_eq!(built, Err(half), "a level has at least two slots");
    let mut longest = Driven::with(|builder| builder.tick(max).ticks_per_wheel(1));
    longest.timer.schedule(|_| (), Duration::ZERO);
    assert_eq!(longest.pass(max), 1, "the first boundary is reached");

    let named = HashedWheelTimer::builder()
        .thread_name("a\0b")
        .build()
        .map(|_| ());
    assert_eq!(named, Err(BuildError::NulInThreadName));
    for error in [
        BuildError::ZeroTick,
        BuildError::ZeroTicksPerWheel,
        BuildError::TooManyTicksPerWheel { max: 7 },
        BuildError::TickTooLong { max: TICK },
        BuildError::NoMemory { bytes: 7 },
        BuildError::NulInThreadName,
        BuildError::NoClock,
        BuildError::ZeroLimit {
            option: "max_tasks_per_turn",
        },
    ] {
        let text = error.to_string();
        assert!(text.contains("must") && !text.ends_with('.'), "{text}");
        let kind = match error {
            BuildError::NoMemory { .. } => std::io::ErrorKind::OutOfMemory,
            BuildError::NoClock => std::io::ErrorKind::Unsupported,
            _ => std::io::ErrorKind::InvalidInput,
        };
        let error = std::io::Error::from(error);
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(&text));
    }
}

#[test]
fn limit_of_zero_is_an_error() {
    type Set = fn(Builder, Option<usize>) -> Builder;
    let options: [(&str, Set); 2] = [
        ("max_pending_timeouts", Builder::max_pending_timeouts),
        ("max_tasks_per_turn", Builder::max_tasks_per_turn),
    ];
    for (option, set) in options {
        let zero = set(HashedWheelTimer::builder(), Some(0))
            .build()
            .map(|_| ());
        assert_eq!(zero, Err(BuildError::ZeroLimit { option }));
        for limit in [None, Some(1), Some(usize::MAX)] {
            assert!(
                set(HashedWheelTimer::builder(), limit).build().is_ok(),
                "{option}, {limit:?}"
            );
        }
    }
}

/// Each option that concerns the thread or the event loop, with each kind of timer.
#[test]
fn option_that_a_timer_cannot_use_is_an_error() {
    type Set = fn(Builder) -> Builder;
    let options: [(&str, Set); 6] = [
        ("thread_name", |b| b.thread_name("timer")),
        ("thread_stack_size", |b| b.thread_stack_size(1 << 20)),
        ("on_thread_start", |b| b.on_thread_start(|| ())),
        ("on_thread_stop", |b| b.on_thread_stop(|| ())),
        ("max_tasks_per_turn", |b| b.max_tasks_per_turn(Some(1))),
        ("waker", |b| b.waker(|| ())),
    ];
    for (option, set) in options {
        // Only a driven timer has a waker, and the others are for a thread.
        let driven = option == "waker";
        let with_thread = !driven;
        let unused = |timer| BuildError::UnusedOption { option, timer };
        let result = |is_used, timer| if is_used { Ok(()) } else { Err(unused(timer)) };
        let threaded = set(HashedWheelTimer::builder()).build().map(|_| ());
        assert_eq!(threaded, result(with_thread, "a timer with a thread"));
        let turned = set(HashedWheelTimer::builder()).build_driven().map(|_| ());
        assert_eq!(turned, result(driven, "a driven timer"));
        let builder = set(HashedWheelTimer::builder());
        let hosted = builder.build_hosted(|| ()).map(|_| ());
        let is_used = option == "max_tasks_per_turn";
        assert_eq!(hosted, result(is_used, "a hosted timer"));
    }
    let text = BuildError::UnusedOption {
        option: "waker",
        timer: "a timer with a thread",
    }
    .to_string();
    assert_eq!(text, "waker is set, which a timer with a thread cannot use");
}

#[test]
fn new_panics_on_settings_that_build_rejects() {
    let too_many = format!("ticks_per_wheel must be at most {MAX_TICKS_PER_WHEEL}");
    for (tick, slots, reason) in [
        (Duration::ZERO, 8, "tick is zero, but must be at least 1 µs"),
        (TICK, 0, "ticks_per_wheel is zero, but must be at least 1"),
        (TICK, usize::MAX, &too_many),
    ] {
        let panic = quietly(|| std::panic::catch_unwind(|| HashedWheelTimer::new(tick, slots)))
            .unwrap_err();
        let message = *panic.downcast::<String>().unwrap();
        assert_eq!(message, format!("cannot build this timer: {reason}"));
    }
}

#[test]
fn the_longest_tick_works() {
    let longest = Duration::from_nanos(((1 << 62) - 1) / 8);
    let mut t = Driven::with(|builder| builder.tick(longest));
    t.schedule(|_| (), Duration::from_nanos(1));
    assert_eq!(t.pass(longest - Duration::from_nanos(1)), 0);
    assert_eq!(t.pass(Duration::from_nanos(1)), 1);
}

// --- the rest of the public API ------------------------------------------------------------------

#[test]
fn timeouts_are_equal_by_identity() {
    let t = Driven::new();
    let one = t.schedule(|_| (), TICK);
    let two = t.schedule(|_| (), TICK);
    assert_eq!(one, one.clone());
    assert_ne!(one, two);
    assert_eq!(HashSet::from([one.clone(), one.clone(), two]).len(), 2);
    assert_eq!(one.timer().ticks_per_wheel(), 8);
}

#[test]
fn the_handle_in_the_task_equals_the_returned_handle() {
    let mut t = Driven::new();
    let seen = Arc::new(Mutex::new(None));
    let inside = seen.clone();
    let task = move |timeout: &Timeout| *inside.lock().unwrap() = Some(timeout.clone());
    let timeout = t.schedule(task, TICK);
    t.pass(TICK);
    assert_eq!(seen.lock().unwrap().take(), Some(timeout));
}

#[test]
fn debug_output_shows_state_and_settings() {
    let mut t = Driven::new();
    let timeout = t.schedule(|_| (), ms(15));
    let text = format!("{timeout:?}");
    assert!(text.contains("pending") && text.contains("15ms"), "{text}");
    let text = format!("{:?}", t.timer);
    assert!(
        text.contains("Started") && text.contains("pending: 1") && text.contains("10ms"),
        "{text}"
    );
    assert!(
        text.contains("wheel: hashed, worker: driven") && !text.contains("limit"),
        "{text}"
    );
    t.pass(ms(20));
    let text = format!("{timeout:?}");
    assert!(
        text.contains("expired") && !text.contains("remaining"),
        "{text}"
    );
    assert!(format!("{:?}", t.timer).contains("expired: 1"));
    let never = t.schedule(|_| (), Duration::MAX);
    assert!(format!("{never:?}").contains("forever"));
    let builder = HashedWheelTimer::builder()
        .hierarchical(true)
        .max_pending_timeouts(Some(7))
        .thread_name("hw-shown");
    let text = format!("{:?}", builder.build().unwrap());
    for part in [
        "New",
        "limit: 7",
        "wheel: hierarchical",
        "worker: thread \"hw-shown\"",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    t.timer.stop();
    assert!(format!("{:?} {:?}", t.timer, t.driver).contains("Stopped"));
    assert!(format!("{:?}", t.driver).starts_with("Driver"));
    assert!(format!("{:?}", ManualClock::new()).contains("0ns"));
    assert!(format!("{:?}", HashedWheelTimer::builder()).contains("100ms"));
}

#[test]
fn stats_are_consistent() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(5)));
    let timeouts: Vec<_> = (1..=5)
        .map(|ticks| t.schedule(|_| (), TICK * ticks))
        .collect();
    assert!(t.timer.new_timeout(|_| (), TICK).is_err());
    t.pass(TICK * 2);
    timeouts[4].cancel();
    let stats = t.stats();
    assert_eq!(basics(&stats), (5, 2, 1, 2));
    let counts = (stats.rejected, stats.panics, stats.dropped_tasks);
    assert_eq!(counts, (1, 0, 0));
    assert_eq!((stats.turns, stats.wake_ups), (1, 0));
    t.timer.stop();
    let stats = t.stats();
    assert_eq!(basics(&stats), (5, 2, 3, 0));
}

#[test]
fn public_types_are_send_and_sync() {
    fn send_and_sync<T: Send + Sync>() {}
    fn send<T: Send>() {}
    send_and_sync::<HashedWheelTimer>();
    send_and_sync::<Timeout>();
    send_and_sync::<hashed_wheel::WeakTimer>();
    send_and_sync::<ManualClock>();
    fn unwind_safe<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    unwind_safe::<HashedWheelTimer>();
    unwind_safe::<Timeout>();
    unwind_safe::<hashed_wheel::WeakTimer>();
    unwind_safe::<ManualClock>();
    unwind_safe::<hashed_wheel::Driver>();
    unwind_safe::<ExpiredTask>();
    unwind_safe::<hashed_wheel::Ending>();
    send_and_sync::<hashed_wheel::Ending>();
    send::<hashed_wheel::Driver>();
    send::<ExpiredTask>();
    send::<hashed_wheel::CancelOnDrop>();
    send::<hashed_wheel::Builder>();
}
