//! Each number that `stats()` returns, with a clock that moves only when the test moves it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{
    self, Driven, Ends, RewindableClock, Schedules, TICK, accepts_all, built_driven, ms,
};
use hashed_wheel::{Builder, Clock, ExpiredTask, Lateness, ManualClock, Timeout};

impl Driven {
    /// Schedules a task that takes this long.
    fn slow(&self, takes: Duration, delay: Duration) -> Timeout {
        let clock = self.clock.clone();
        self.timer.schedule(move |_| clock.advance(takes), delay)
    }
}

/// Returns the buckets that are not empty.
fn counts(lateness: Lateness) -> Vec<(Option<Duration>, u64)> {
    lateness.buckets().filter(|(_, count)| *count > 0).collect()
}

fn us(micros: u64) -> Option<Duration> {
    Some(Duration::from_micros(micros))
}

// --- lateness ------------------------------------------------------------------------------------

#[test]
fn bounds_are_powers_of_two_of_a_tick() {
    let lateness = Driven::new().timer.stats().lateness;
    let bounds: Vec<_> = lateness.buckets().map(|(bound, _)| bound).collect();
    assert_eq!(bounds[..5], [625, 1_250, 2_500, 5_000, 10_000].map(us));
    assert_eq!(bounds[14..], [Some(TICK * 1_024), None]);
}

#[test]
fn each_lateness_is_counted_in_its_bucket() {
    const NANO: Duration = Duration::from_nanos(1);

    let cases = [
        (Duration::ZERO, us(625)),
        (Duration::from_micros(625), us(625)),
        (Duration::from_micros(625) + NANO, us(1_250)),
        (ms(5), us(5_000)),
        (TICK, us(10_000)),
        (TICK + NANO, us(20_000)),
        (ms(25), us(40_000)),
        (TICK * 1_024, us(10_240_000)),
        (TICK * 1_024 + NANO, None),
        (Duration::from_secs(86_400), None),
    ];
    for (late, bound) in cases {
        let mut t = Driven::new();
        // All three are due at 20 ms, because their deadlines are rounded up to a tick.
        _ = [11, 15, 20].map(|delay| t.schedule(|_| (), ms(delay)));
        assert_eq!(t.pass(ms(20) + late), 3);
        let lateness = t.stats().lateness;
        assert_eq!(counts(lateness), [(bound, 3)], "{late:?} late");
        assert_eq!(lateness.max, late);
    }
}

#[test]
fn a_turn_that_catches_up_counts_each_tick_separately() {
    let mut t = Driven::new();
    (1..=4).for_each(|ticks| drop(t.schedule(|_| (), TICK * ticks)));
    assert_eq!(t.pass(TICK * 4), 4);
    let lateness = t.stats().lateness;
    let expected = [625, 10_000, 20_000, 40_000].map(|bound| (us(bound), 1));
    assert_eq!(counts(lateness), expected);
    assert_eq!(lateness.max, TICK * 3);
}

#[test]
fn a_long_turn_is_visible_in_the_lateness() {
    let mut t = Driven::new();
    (0..200).for_each(|_| drop(t.slow(ms(1), TICK)));
    assert_eq!(t.pass(TICK), 200);
    // The worker reads the clock after the 64th, the 128th and the 192nd task.
    let lateness = t.stats().lateness;
    let expected = [(625, 64), (80_000, 64), (160_000, 64), (320_000, 8)];
    assert_eq!(
        counts(lateness),
        expected.map(|(bound, count)| (us(bound), count))
    );
    assert_eq!(lateness.max, ms(192));
}

#[test]
fn a_task_makes_the_next_tick_late() {
    let mut t = Driven::new();
    t.slow(ms(35), TICK);
    t.schedule(|_| (), TICK * 2);
    assert_eq!((t.pass(TICK), t.turn()), (1, 1));
    assert_eq!(t.stats().lateness.max, ms(25));
}

#[test]
fn a_clock_that_steps_back_makes_nothing_late() {
    let (on, back) = (ManualClock::new(), ManualClock::new());
    let clock = RewindableClock(on.clone(), back.clone());
    let (timer, mut driver) = built_driven(|builder| builder.tick(TICK).clock(clock));
    (0..100).for_each(|_| {
        let back = back.clone();
        drop(timer.schedule(move |_| back.advance(ms(1)), TICK));
    });
    on.advance(TICK);
    assert_eq!(driver.turn(), 100);
    let stats = timer.stats();
    assert!(stats.lateness.max.is_zero() && stats.longest_turn.is_zero());
    assert_eq!(stats.long_turns, 0);
}

#[test]
fn a_quantile_is_an_upper_bound() {
    let mut t = Driven::new();
    let median = t.stats().lateness.quantile(0.5);
    assert_eq!(median, Duration::ZERO, "no timeout has expired");
    let late = |t: &mut Driven, many: usize, late: Duration| {
        (0..many).for_each(|_| drop(t.schedule(|_| (), TICK)));
        assert_eq!(t.pass(TICK + late), many);
        t.clock.advance(TICK - late);
    };
    late(&mut t, 90, ms(1));
    late(&mut t, 9, ms(2));
    late(&mut t, 1, ms(6));
    let lateness = t.stats().lateness;
    let [low, p50, p90, p91, p99, most] =
        [0.0, 0.5, 0.9, 0.91, 0.99, 1.0].map(|part| lateness.quantile(part));
    assert_eq!([low, p50, p90].map(Some), [us(1_250); 3]);
    assert_eq!([p91, p99].map(Some), [us(2_500); 2]);
    assert_eq!(most, ms(6), "at most the maximum");
    let odd =
        [-1.0, f64::NAN, f64::NEG_INFINITY, 2.0, f64::INFINITY].map(|part| lateness.quantile(part));
    assert_eq!(odd, [low, low, low, most, most]);
}

#[test]
fn lateness_and_expired_agree_when_a_task_stops_the_timer() {
    let t = Driven::new();
    let (timer, mut driver, clock) = (t.timer, t.driver, t.clock);
    let handle = Arc::new(Mutex::new(None));
    for at in 0..100 {
        let handle = handle.clone();
        let task = move |_: &Timeout| drop((at == 69).then(|| handle.lock().unwrap().take()));
        timer.schedule(task, TICK);
    }
    let last = timer.schedule(|_| (), TICK * 9);
    *handle.lock().unwrap() = Some(timer);
    clock.advance(TICK);
    assert_eq!(driver.turn(), 70);
    let timer = last.timer();
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.cancelled), (70, 31));
    assert_eq!(stats.cancelled_not_reclaimed, 0);
    assert_eq!(counts(stats.lateness), [(us(625), 70)]);
}

// --- turns ---------------------------------------------------------------------------------------

#[test]
fn the_longest_turn_is_recorded() {
    let mut t = Driven::new();
    for (takes, longest, long_turns) in [
        (3, 3, 0),
        (10, 10, 0),
        (7, 10, 0),
        (11, 11, 1),
        (30, 30, 2),
        (1, 30, 2),
    ] {
        t.slow(ms(takes), TICK);
        t.pass(TICK * 2);
        let stats = t.stats();
        assert_eq!(stats.longest_turn, ms(longest), "after {takes} ms");
        assert_eq!(stats.long_turns, long_turns, "after {takes} ms");
    }
}

#[test]
fn a_turn_includes_all_its_tasks_and_those_that_panic() {
    let mut t = Driven::new();
    for _ in 0..3 {
        let clock = t.clock.clone();
        let task = move |_: &Timeout| {
            clock.advance(ms(4));
            panic!("the task panics after 4 ms");
        };
        t.schedule(task, TICK);
    }
    common::quietly(|| t.pass(TICK));
    let stats = t.stats();
    assert_eq!((stats.longest_turn, stats.busy_time), (ms(12), ms(12)));
}

#[test]
fn busy_time_is_the_sum_of_the_turns() {
    let mut t = Driven::new();
    for (takes, busy) in [(3, 3), (12, 15), (0, 15), (1, 16)] {
        t.slow(ms(takes), TICK);
        t.pass(TICK * 2);
        // Neither a turn with nothing to do nor the time between two turns is busy time.
        t.pass(Duration::from_secs(60));
        assert_eq!(t.stats().busy_time, ms(busy), "after {takes} ms");
    }
    assert!(t.timer.stop().is_empty());
    assert_eq!(t.stats().busy_time, ms(16));
}

/// Each reading of this clock takes a microsecond.
#[derive(Clone, Default)]
struct ReadingClock(Arc<AtomicU64>);

impl Clock for ReadingClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, SeqCst))
    }
}

#[test]
fn a_turn_that_only_moves_entries_is_busy_time() {
    let clock = ReadingClock::default();
    let (timer, mut driver) = built_driven(|builder| builder.tick(TICK).clock(clock.clone()));
    let timeout = timer.schedule(|_| (), TICK);
    driver.turn();
    let before = timer.stats().busy_time;
    assert!(timeout.reset(TICK * 5));
    driver.turn();
    assert_eq!(timer.stats().busy_time, before, "an empty turn");
    clock.0.fetch_add((TICK * 2).as_micros() as u64, SeqCst);
    assert_eq!(driver.turn(), 0);
    assert!(timer.stats().busy_time > before);
}

// --- cancelled, not reclaimed --------------------------------------------------------------------

#[test]
fn a_cancelled_timeout_is_not_reclaimed_until_the_next_turn() {
    for hierarchical in [false, true] {
        let mut t = Driven::with(|builder| builder.hierarchical(hierarchical));
        let not_reclaimed = |t: &Driven| t.stats().cancelled_not_reclaimed;
        let timeouts: Vec<_> = (0..10).map(|_| t.schedule(|_| (), ms(500))).collect();
        assert_eq!(not_reclaimed(&t), 0, "all timeouts are pending");
        assert!(timeouts[..3].iter().all(Timeout::cancel));
        assert_eq!(not_reclaimed(&t), 3, "the messages are in the lane");
        t.pass(TICK);
        assert_eq!(not_reclaimed(&t), 0);
        assert!(timeouts[3..8].iter().all(Timeout::cancel));
        assert_eq!(not_reclaimed(&t), 5, "in the wheel");
        assert!(t.next_turn().is_some());
        assert_eq!(not_reclaimed(&t), 0, "next_turn reads the messages");
        timeouts[8].cancel();
        assert_eq!(t.pass(TICK * 60), 1);
        assert_eq!((not_reclaimed(&t), t.stats().pending), (0, 0));
    }
}

#[test]
fn a_task_sees_the_number_not_reclaimed_during_its_turn() {
    let mut t = Driven::new();
    let far = t.schedule(|_| (), TICK * 9);
    let seen = Arc::new(Mutex::new(Vec::new()));
    for cancels in [false, false, true, false] {
        let (seen, far) = (seen.clone(), far.clone());
        let task = move |timeout: &Timeout| {
            assert!(!cancels || far.cancel());
            seen.lock()
                .unwrap()
                .push(timeout.timer().stats().cancelled_not_reclaimed);
        };
        t.schedule(task, TICK);
    }
    assert_eq!(t.pass(TICK), 4);
    assert_eq!(*seen.lock().unwrap(), [0, 0, 1, 1], "without expired ones");
    t.pass(TICK);
    assert_eq!(t.stats().cancelled_not_reclaimed, 0);
}

#[test]
fn a_stopped_timer_has_reclaimed_everything() {
    for turns in [0, 1, 3] {
        let mut t = Driven::new();
        let timeouts: Vec<_> = (1..=20)
            .map(|ticks| t.schedule(|_| (), TICK * ticks))
            .collect();
        assert!(timeouts.iter().step_by(3).all(Timeout::cancel));
        (0..turns).for_each(|_| _ = t.pass(TICK));
        timeouts
            .iter()
            .step_by(4)
            .for_each(|timeout| _ = timeout.cancel());
        t.timer.stop();
        let stats = t.stats();
        assert_eq!((stats.scheduled, stats.pending), (20, 0), "{turns} turns");
        assert_eq!(stats.cancelled_not_reclaimed, 0, "after {turns} turns");
        assert_eq!(stats.scheduled, stats.expired + stats.cancelled);
    }
}

/// A periodic task that continues never counts as expired, at any time of reading.
#[test]
fn a_periodic_task_that_continues_has_not_expired() {
    let mut t = Driven::new();
    let period = Duration::from_micros(if cfg!(miri) { 1_000 } else { 1 });
    for _ in 0..3 {
        t.fixed_rate(|| (), Duration::ZERO, period);
    }
    let (timer, is_over) = (t.timer.clone(), Arc::new(AtomicBool::new(false)));
    let both_run = Arc::new(Barrier::new(2));
    let readings = {
        let (is_over, both_run) = (Arc::clone(&is_over), Arc::clone(&both_run));
        thread::spawn(move || {
            both_run.wait();
            while !is_over.load(SeqCst) {
                let stats = timer.stats();
                assert_eq!((stats.expired, stats.cancelled, stats.pending), (0, 0, 3));
            }
        })
    };
    both_run.wait();
    for _ in 0..20 {
        t.pass(TICK);
    }
    is_over.store(true, SeqCst);
    readings.join().unwrap();
    // During a turn this is approximate.
    assert_eq!(t.stats().cancelled_not_reclaimed, 0);
}

// --- slow tasks ----------------------------------------------------------------------------------

fn with_threshold(threshold: Duration) -> Driven {
    Driven::with(|builder| builder.slow_task_threshold(Some(threshold)))
}

#[test]
fn a_task_above_the_threshold_is_slow() {
    let mut t = with_threshold(ms(5));
    for (takes, slow) in [(0, 0), (5, 0), (6, 1), (1, 1), (500, 2)] {
        t.slow(ms(takes), TICK);
        t.pass(TICK * 2);
        assert_eq!(t.stats().slow_tasks, slow, "after {takes} ms");
    }
    assert_eq!(t.stats().expired, 5);
}

#[test]
fn a_threshold_may_be_zero_and_no_task_exceeds_the_longest() {
    for (threshold, slow) in [(Duration::ZERO, 2), (Duration::MAX, 0)] {
        let mut t = with_threshold(threshold);
        _ = [0, 1, 100].map(|takes| t.slow(ms(takes), TICK));
        assert_eq!(t.pass(TICK), 3);
        assert_eq!(t.stats().slow_tasks, slow, "{threshold:?}");
    }
}

#[test]
fn without_a_threshold_no_task_is_slow() {
    let mut t = Driven::new();
    t.slow(Duration::from_secs(60), TICK);
    t.pass(TICK);
    assert_eq!(t.stats().slow_tasks, 0);
}

/// The worker waits for the executor's call, and not for the task.
#[test]
fn a_task_that_an_executor_runs_is_slow_if_the_worker_waits_for_it() {
    let mut t = Driven::with(|builder| {
        builder
            .slow_task_threshold(Some(ms(5)))
            .task_executor(accepts_all(ExpiredTask::run))
    });
    t.slow(ms(60), TICK);
    t.pass(TICK);
    assert_eq!((t.stats().slow_tasks, t.stats().longest_turn), (1, ms(60)));

    let (queue, tasks) = std::sync::mpsc::channel();
    let mut t = Driven::with(|builder| {
        let executor = accepts_all(move |task| queue.send(task).unwrap());
        builder
            .slow_task_threshold(Some(ms(5)))
            .task_executor(executor)
    });
    t.slow(ms(60), TICK);
    t.pass(TICK);
    tasks.recv().unwrap().run();
    assert_eq!((t.stats().slow_tasks, t.stats().longest_turn), (0, ms(0)));
}

#[test]
fn a_threshold_changes_no_other_statistics() {
    let mut t = with_threshold(ms(5));
    let ends = Ends::new();
    let timeouts: Vec<_> = (0..100)
        .map(|_| t.schedule_task(ends.task(), TICK))
        .collect();
    assert!(timeouts[..40].iter().all(Timeout::cancel));
    let clock = t.clock.clone();
    let task = move |timeout: &Timeout| {
        clock.advance(ms(6));
        // The task schedules a timeout and then panics.
        timeout.timer().schedule(|_| (), TICK);
        panic!("slow, then a panic");
    };
    t.schedule(task, TICK);
    assert_eq!(common::quietly(|| t.pass(TICK)), 61);
    assert_eq!(ends.counts(), (60, 40, 100));
    assert!(timeouts[40..].iter().all(Timeout::is_expired));
    assert_eq!(t.pass(TICK * 2), 1);
    let stats = t.stats();
    assert_eq!((stats.slow_tasks, stats.panics), (1, 1));
    assert_eq!((stats.dropped_tasks, stats.cancelled_not_reclaimed), (0, 0));
    assert_eq!(t.timer.stop(), []);
}

/// The order is also unchanged after a delay of the worker: tasks run in the order of the ticks,
/// and each missed run is a separate run.
#[test]
fn a_threshold_changes_no_order() {
    let [without, with] = [None, Some(ms(5))].map(|threshold| {
        let mut t = threshold.map_or_else(Driven::new, with_threshold);
        let order = Arc::new(Mutex::new(String::new()));
        let log = |name| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(name)
        };
        t.fixed_rate(log('a'), TICK, TICK);
        t.fixed_rate(log('b'), TICK, TICK);
        let once = log('c');
        t.schedule(move |_| once(), TICK * 2);
        let expired = t.pass(TICK * 4);
        let order = order.lock().unwrap().clone();
        (order, expired, counts(t.stats().lateness), t.next_turn())
    });
    assert_eq!(without, with);
}

#[test]
fn a_run_of_a_periodic_task_can_be_slow() {
    let mut t = with_threshold(ms(5));
    let clock = t.clock.clone();
    let mut takes = [1, 6, 2, 7].into_iter();
    let task = move || clock.advance(ms(takes.next().unwrap()));
    t.fixed_delay(task, TICK, TICK);
    for (run, slow) in [0, 1, 1, 2].into_iter().enumerate() {
        assert_eq!(t.pass(TICK * 2), 1);
        assert_eq!(t.stats().slow_tasks, slow, "run {run}");
    }
}

/// The worker calls the waker itself, also if an executor runs the tasks.
#[cfg(feature = "async")]
#[test]
fn a_waker_can_be_slow() {
    use std::task::{Wake, Waker};

    struct Slow(ManualClock);
    impl Wake for Slow {
        fn wake(self: Arc<Self>) {
            self.0.advance(ms(6));
        }
    }
    for has_executor in [false, true] {
        let executor = accepts_all(|task| task.run());
        let mut t = Driven::with(|builder| {
            let builder = builder.slow_task_threshold(Some(ms(5)));
            if has_executor {
                builder.task_executor(executor)
            } else {
                builder
            }
        });
        let waker = Waker::from(Arc::new(Slow(t.clock.clone())));
        let mut sleep = t.timer.sleep(TICK);
        assert!(common::poll(&mut sleep, &waker).is_pending());
        assert_eq!(t.pass(TICK), 1);
        assert_eq!(t.stats().slow_tasks, 1);
    }
}

/// A run that makes up for a missed one is a separate task, in its place among the others.
#[test]
fn a_threshold_does_not_change_periodic_tasks() {
    let logs = [None, Some(Duration::MAX), Some(ms(5)), Some(Duration::ZERO)].map(|threshold| {
        let mut t = threshold.map_or_else(Driven::new, with_threshold);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (runs, clock) = (Arc::clone(&log), t.clock.clone());
        let task = move || {
            runs.lock().unwrap().push(0);
            clock.advance(ms(1));
        };
        let periodic = t.fixed_rate(task, TICK, TICK);
        for at in 1..10 {
            let log = Arc::clone(&log);
            t.schedule(move |_| log.lock().unwrap().push(at), TICK * at);
        }
        assert_eq!(t.pass(TICK * 10), 19);
        let slow = u64::from(threshold == Some(Duration::ZERO)) * 10;
        let counts = (periodic.runs(), t.stats().slow_tasks);
        assert_eq!(counts, (10, slow), "{threshold:?}");
        std::mem::take(&mut *log.lock().unwrap())
    });
    assert!(logs.iter().all(|log| *log == logs[0]), "{logs:?}");
}

// --- the clock -----------------------------------------------------------------------------------

/// Without a threshold the worker needs no reading per task, and a reading calls user code.
#[test]
fn the_clock_is_not_read_for_each_task() {
    #[derive(Clone, Default)]
    struct Counted(ManualClock, Arc<AtomicUsize>);
    impl Clock for Counted {
        fn now(&self) -> Duration {
            self.1.fetch_add(1, SeqCst);
            self.0.now()
        }
    }
    const COUNT: usize = if cfg!(miri) { 200 } else { 1_000 };

    for (threshold, most) in [
        (None, 2 + COUNT / 64 + 1),
        (Some(ms(1)), 2 + 2 * COUNT + COUNT / 64 + 1),
    ] {
        let clock = Counted::default();
        let settings = |builder: Builder| builder.tick(TICK).slow_task_threshold(threshold);
        let (timer, mut driver) = built_driven(|builder| settings(builder).clock(clock.clone()));
        (0..COUNT).for_each(|_| drop(timer.schedule(|_| (), TICK)));
        clock.0.advance(TICK);
        let before = clock.1.load(SeqCst);
        assert_eq!(driver.turn(), COUNT);
        let readings = clock.1.load(SeqCst) - before;
        assert!(
            (2..=most).contains(&readings),
            "{readings} readings, with {threshold:?}"
        );
        // A turn with nothing to do reads the clock once.
        let before = clock.1.load(SeqCst);
        driver.turn();
        assert_eq!(clock.1.load(SeqCst) - before, 1);
    }
}

#[test]
fn a_clock_that_panics_in_a_turn_loses_nothing() {
    #[derive(Clone, Default)]
    struct BreakableClock(ManualClock, Arc<AtomicBool>);
    impl Clock for BreakableClock {
        fn now(&self) -> Duration {
            assert!(!self.1.load(SeqCst), "the clock is broken");
            self.0.now()
        }
    }
    for threshold in [None, Some(ms(1))] {
        let clock = BreakableClock::default();
        let settings = |builder: Builder| builder.tick(TICK).slow_task_threshold(threshold);
        let (timer, mut driver) = built_driven(|builder| settings(builder).clock(clock.clone()));
        for at in 0..200 {
            let is_broken = clock.1.clone();
            let task = move |_: &Timeout| is_broken.store(at < 190, SeqCst);
            timer.schedule(task, TICK);
        }
        clock.0.advance(TICK);
        assert_eq!(common::quietly(|| driver.turn()), 200);
        let stats = timer.stats();
        assert_eq!((stats.expired, stats.pending), (200, 0));
        let late = counts(stats.lateness).into_iter().map(|(_, count)| count);
        assert_eq!(late.sum::<u64>(), 200);
        assert!(stats.panics > 0, "the panic is counted");
    }
}

// --- Debug ---------------------------------------------------------------------------------------

#[test]
fn debug_output_is_readable() {
    let mut t = Driven::new();
    t.slow(ms(3), TICK);
    t.schedule(|_| (), TICK * 3);
    t.pass(TICK);
    t.pass(Duration::from_secs(60));
    let text = format!("{:?}", t.stats());
    for part in [
        "scheduled: 2, expired: 2, periodic_runs: 0, cancelled: 0, pending: 0, cancelled_not_reclaimed: 0",
        "longest_turn: 3ms, busy_time: 3ms",
        "lateness: Lateness { max: 59.983s, up to 625µs: 1, more: 1 }",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn debug_output_of_a_guard_names_what_it_cancels() {
    let t = Driven::new();
    let guard = t.schedule(|_| (), TICK).cancel_on_drop();
    let text = format!("{guard:?}");
    assert_eq!(text, format!("CancelOnDrop({:?})", *guard));
}
