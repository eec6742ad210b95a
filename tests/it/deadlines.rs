//! Absolute deadlines, and how a clock converts an `Instant`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::common::{Driven, Ends, FULL, Log, Schedules, TEST_TIMEOUT, TICK, built_driven, ms};
use hashed_wheel::{
    Builder, Clock, HashedWheelTimer, ManualClock, MonotonicClock, NewTimeoutError, Schedule,
    Timeout,
};

const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Both wheels.
const WHEELS: [fn(Builder) -> Builder; 2] =
    [|builder| builder, |builder| builder.hierarchical(true)];

#[test]
fn a_deadline_is_never_early_by_the_default_clock() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (fired, wait) = channel();
    let begin = Instant::now();
    let deadlines: Vec<_> = (0..40)
        .map(|n| begin + Duration::from_micros(n * 1_237))
        .collect();
    for &deadline in &deadlines {
        let fired = fired.clone();
        let send_deadline = move |_: &_| fired.send((deadline, Instant::now())).unwrap();
        timer.schedule_at(send_deadline, deadline);
    }
    for _ in &deadlines {
        let (deadline, now) = wait.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(now >= deadline, "{:?} early", deadline - now);
    }
}

/// The deadline does not move with the time that passes before the call.
#[test]
fn a_deadline_is_the_same_whenever_the_call_is_made() {
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let deadline = Instant::now() + HOUR;
    let first = timer.schedule_at(|_| (), deadline);
    std::thread::sleep(ms(20));
    let second = timer.schedule_at(|_| (), deadline);
    // Read in this order, because time passes between the two calls.
    let (first, second) = (first.remaining(), second.remaining());
    assert!(
        second <= first && first <= HOUR - ms(20),
        "{first:?}, {second:?}"
    );
}

/// A manual clock, of which the timer knows only the time.
struct NoInstants(ManualClock);

impl Clock for NoInstants {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

/// The clock stands still, so no result is exact to the time that the test itself takes.
#[test]
fn a_clock_converts_an_instant_by_the_present() {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(NoInstants(clock.clone()));
    let (timer, mut driver) = builder.build_driven().unwrap();
    clock.advance(HOUR);
    let timeout = timer.schedule_at(|_| (), Instant::now() + HOUR);
    let left = timeout.remaining();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    clock.advance(HOUR / 2);
    assert_eq!(driver.turn(), 0, "real time does not count");
    assert!(timeout.deadline() <= Instant::now() + HOUR / 2);

    let (before, now, after) = (Instant::now(), timer.now(), Instant::now());
    assert!(before <= now && now <= after);
    assert!(timeout.reset_at(timer.now() + HOUR));
    assert!(timeout.remaining() > HOUR / 2);
    clock.advance(HOUR);
    assert_eq!(driver.turn(), 1);
    assert!(
        timeout.deadline() <= Instant::now(),
        "also a deadline that has passed"
    );
}

#[test]
fn a_manual_clock_converts_an_instant_exactly() {
    let clock = ManualClock::new();
    let origin = clock.instant();
    clock.advance(HOUR);
    // The clock's time is not zero when the timer is built.
    let builder = HashedWheelTimer::builder()
        .tick(TICK)
        .clock(Arc::new(clock.clone()));
    let (timer, mut driver) = builder.build_driven().unwrap();
    assert_eq!(timer.now(), origin + HOUR);

    let deadline = timer.now() + TICK * 3;
    let first = timer.schedule_at(|_| (), deadline);
    clock.advance(TICK * 2);
    let second = timer.schedule_at(|_| (), deadline);
    let third = timer.schedule(|_| (), TICK);
    for timeout in [&first, &second, &third] {
        assert_eq!((timeout.remaining(), timeout.deadline()), (TICK, deadline));
    }
    assert_eq!(driver.turn(), 0);
    clock.advance(TICK);
    let instants = (clock.instant(), clock.clone().instant(), timer.now());
    assert_eq!(instants, (deadline, deadline, deadline));
    assert_eq!(driver.turn(), 3, "the same tick");
    assert_eq!(first.deadline(), deadline, "it keeps its deadline");

    // An instant from before the timer was built.
    let past = timer.schedule_at(|_| (), origin);
    assert_eq!(past.deadline(), origin + HOUR, "no deadline is before that");
}

/// The test uses hours, because the machine's time passes meanwhile.
#[test]
fn a_manual_clock_takes_an_instant_of_the_machine_by_its_distance() {
    let mut t = Driven::new();
    t.pass(HOUR);
    let nanos = HOUR.as_nanos() as u64;
    assert_eq!(t.timer.clock().now(), HOUR);
    assert_eq!(t.timer.now_bounds(), (nanos, nanos));
    let timeout = t.schedule_at(|_| (), Instant::now() + HOUR);
    let left = timeout.remaining();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    assert_eq!(t.pass(HOUR / 2), 0, "real time does not count");
    assert_eq!(t.pass(HOUR / 2), 1);
}

#[test]
fn the_clock_of_the_machine_is_the_default_clock() {
    let builder = HashedWheelTimer::builder();
    assert!(!builder.has_clock() && builder.clock(ManualClock::new()).has_clock());
    let clock = MonotonicClock::new();
    let (earlier, before) = (clock.now(), Instant::now());
    assert!(clock.now() >= earlier);
    let given = HashedWheelTimer::builder()
        .clock(ManualClock::new())
        .clock(clock);
    for builder in [HashedWheelTimer::builder(), given] {
        let (timer, _driver) = builder.build_driven().unwrap();
        let now = timer.now();
        assert!(before <= now && now <= Instant::now());
        let time = timer.clock().time_at(now + HOUR);
        assert!(time >= HOUR);
        assert_eq!(timer.clock().instant_at(time), now + HOUR);
        let timeout = timer.schedule_at(|_| (), now + HOUR);
        assert_eq!(timeout.deadline(), now + HOUR);
        assert!(timeout.reset_at(now + HOUR * 2));
        assert_eq!(timeout.deadline(), now + HOUR * 2);
    }
    // Behind another clock it converts in the same way.
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock));
    let (timer, _driver) = builder.build_driven().unwrap();
    let deadline = Instant::now() + HOUR;
    assert_eq!(timer.schedule_at(|_| (), deadline).deadline(), deadline);
}

#[test]
fn reset_at_moves_a_deadline_to_an_instant() {
    let mut t = Driven::new();
    let begin = t.timer.now();
    let timeout = t.schedule(|_| (), TICK * 5);
    for ticks in [8, 2, 6, 3] {
        assert!(timeout.reset_at(begin + TICK * ticks));
        assert_eq!(timeout.deadline(), begin + TICK * ticks);
        t.turn();
    }
    assert_eq!((t.pass(TICK * 2), t.pass(TICK)), (0, 1));
    assert!(!timeout.reset_at(begin + HOUR), "the timeout has expired");

    // A deadline that has passed is the next boundary.
    let timeout = t.schedule(|_| (), TICK * 5);
    assert!(timeout.reset_at(begin));
    let seen = (timeout.deadline(), timeout.remaining());
    assert_eq!(seen, (begin, Duration::ZERO));
    assert_eq!((t.turn(), t.pass(TICK)), (0, 1));
}

#[test]
fn a_task_is_scheduled_at_an_instant() {
    let (mut t, ends) = (Driven::new(), Ends::new());
    let deadline = t.timer.now() + TICK;
    t.timer.new_timeout_task_at(ends.task(), deadline).unwrap();
    let cancelled = t.timer.new_timeout_task_at(ends.task(), deadline).unwrap();
    assert!(cancelled.cancel());
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(ends.counts(), (1, 1, 2));
    t.timer.stop();
    let rejected = t
        .timer
        .new_timeout_task_at(ends.task(), deadline)
        .unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::Stopped), "{rejected}");
    assert_eq!((ends.hooks(), ends.drops()), (1, 3));
}

/// If a thread is delayed between its two readings of the time, the timeout is late and not early.
#[test]
fn time_that_passes_while_a_user_clock_is_read_makes_the_timeout_later() {
    struct Clocked {
        origin: Instant,
        delay_next: Arc<AtomicBool>,
    }

    impl Clock for Clocked {
        fn now(&self) -> Duration {
            let now = self.origin.elapsed();
            if self.delay_next.swap(false, SeqCst) {
                std::thread::sleep(ms(20));
            }
            now
        }
    }

    let delay_next = Arc::new(AtomicBool::new(false));
    let clock = Clocked {
        origin: Instant::now(),
        delay_next: Arc::clone(&delay_next),
    };
    let (timer, _driver) = built_driven(|builder| builder.clock(clock));
    let deadline = Instant::now() + HOUR;
    delay_next.store(true, SeqCst);
    let left = timer.schedule_at(|_| (), deadline).remaining();
    assert!(!delay_next.load(SeqCst), "the clock was read");
    assert!(Instant::now() + left >= deadline, "{left:?}");
}

#[test]
fn a_deadline_that_has_passed_is_no_delay() {
    let mut t = Driven::new();
    t.pass(HOUR);
    let log = Log::default();
    let before = Instant::now();
    t.schedule(log.task(1), Duration::ZERO);
    t.schedule_at(log.task(2), before);
    t.schedule_at(log.task(3), before.checked_sub(HOUR).unwrap_or(before));
    t.schedule(log.task(4), Duration::ZERO);
    assert_eq!(t.pass(TICK), 4, "at the next boundary");
    assert_eq!(log.take(), [1, 2, 3, 4], "in the order of scheduling");
}

#[test]
fn a_deadline_that_has_passed_is_no_delay_by_the_default_clock() {
    let (timer, mut driver) = built_driven(|builder| builder.tick(ms(1)));
    let log = Log::default();
    let before = Instant::now();
    timer.schedule(log.task(1), Duration::ZERO);
    // A deadline before the creation of the timer is no delay either.
    timer.schedule_at(log.task(2), before.checked_sub(HOUR).unwrap_or(before));
    let late = timer.schedule_at(log.task(3), before);
    assert_eq!(late.remaining(), Duration::ZERO);
    let begin = Instant::now();
    while timer.pending_timeouts() > 0 {
        driver.turn();
        assert!(
            begin.elapsed() < TEST_TIMEOUT,
            "the next tick boundary was not reached in time"
        );
    }
    // A tick may pass between the calls, and then the first one is due later than the others.
    let mut fired = log.take();
    fired.sort_unstable();
    assert_eq!(fired, [1, 2, 3]);
}

#[test]
fn a_deadline_too_far_to_represent_never_comes() {
    let Some(far) = Instant::now().checked_add(Duration::from_secs(200 * 366 * 86_400)) else {
        return;
    };
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let never = timer.schedule_at(|_| (), far);
    assert_eq!(never.remaining(), Duration::MAX);
    assert_eq!(driver.turn(), 0);
    assert_eq!(driver.next_turn(), None, "the same as for a delay");

    let mut t = Driven::new();
    let never = t.schedule_at(|_| (), far);
    assert_eq!(never.remaining(), Duration::MAX);
    // Its deadline is an `Instant` that is too far to represent, too.
    assert!(never.reset_at(never.deadline()));
    assert_eq!(never.remaining(), Duration::MAX);
    assert_eq!(t.pass(Duration::MAX), 0);
}

#[test]
fn new_timeout_at_is_rejected_like_new_timeout() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let deadline = Instant::now() + HOUR;
    t.schedule_at(|_| (), deadline);
    let rejected = t.timer.new_timeout_at(|_| (), deadline).unwrap_err();
    assert_eq!(rejected, FULL);
    t.timer.stop();
    let rejected = t.timer.new_timeout_at(|_| (), deadline).unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::Stopped), "{rejected}");
}

/// A method that was given a deadline, and whether that has been due since, as far as the driver
/// has been turned.
type Method = (&'static str, Box<dyn FnMut() -> bool>);

/// Schedules something at `deadline` by each method that takes an `Instant`.
fn by_each_method(timer: &HashedWheelTimer, deadline: Instant) -> Vec<Method> {
    fn has_expired(timeout: Timeout) -> Box<dyn FnMut() -> bool> {
        Box::new(move || timeout.is_expired())
    }

    let ends = Ends::new();
    let reset = timer.schedule(|_| (), Duration::MAX);
    assert!(reset.reset_at(deadline));
    let periodic = Schedule::at_fixed_rate(HOUR).start_at(deadline);
    let periodic = timer.periodic(periodic, |_| ());

    let mut methods: Vec<Method> = vec![
        (
            "new_timeout_at",
            has_expired(timer.schedule_at(|_| (), deadline)),
        ),
        (
            "new_timeout_task_at",
            has_expired(timer.new_timeout_task_at(ends.task(), deadline).unwrap()),
        ),
        ("Timeout::reset_at", has_expired(reset)),
        ("Schedule::start_at", Box::new(move || periodic.runs() > 0)),
    ];
    methods.extend(futures_of_each_method(timer, deadline));
    methods
}

#[cfg(not(feature = "async"))]
fn futures_of_each_method(_: &HashedWheelTimer, _: Instant) -> [Method; 0] {
    []
}

#[cfg(feature = "async")]
fn futures_of_each_method(timer: &HashedWheelTimer, deadline: Instant) -> [Method; 5] {
    use std::future::{pending, poll_fn};
    use std::task::{Context, Waker};

    fn is_ready<T>(future: impl Future<Output = T> + 'static) -> Box<dyn FnMut() -> bool> {
        let mut future = Box::pin(future);
        Box::new(move || {
            future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        })
    }

    let mut sleep = timer.sleep(Duration::MAX);
    sleep.reset_at(deadline);
    let [mut started, mut reset] = [
        timer.interval_at(deadline, HOUR),
        timer.interval(Duration::MAX),
    ];
    reset.reset_at(deadline);
    [
        ("sleep_until", is_ready(timer.sleep_until(deadline))),
        ("Sleep::reset_at", is_ready(sleep)),
        (
            "timeout_at",
            is_ready(timer.timeout_at(deadline, pending::<()>())),
        ),
        (
            "interval_at",
            is_ready(poll_fn(move |context| started.poll_tick(context))),
        ),
        (
            "Interval::reset_at",
            is_ready(poll_fn(move |context| reset.poll_tick(context))),
        ),
    ]
}

/// Removes the methods that are due, and returns their names.
fn take_due(methods: &mut Vec<Method>) -> Vec<&'static str> {
    let mut due = Vec::new();
    methods.retain_mut(|(name, is_due)| {
        let is_due = is_due();
        due.extend(is_due.then_some(*name));
        !is_due
    });
    due
}

fn names_of(methods: &[Method]) -> Vec<&'static str> {
    methods.iter().map(|(name, _)| *name).collect()
}

/// Asserts that each method, if it is given `deadline` now, is due after `limit` and not before.
#[track_caller]
fn assert_due_after(t: &mut Driven, deadline: Instant, limit: Duration) {
    let mut methods = by_each_method(&t.timer, deadline);
    if limit > TICK {
        assert_eq!(take_due(&mut methods), [""; 0], "before any time passed");
        // The machine's time passes meanwhile.
        t.pass(limit - HOUR);
        assert_eq!(take_due(&mut methods), [""; 0], "an hour before");
        t.pass(HOUR);
    } else {
        take_due(&mut methods);
        t.pass(limit);
    }
    take_due(&mut methods);
    assert_eq!(names_of(&methods), [""; 0], "not due");
}

#[test]
fn an_instant_that_has_passed_is_due_at_once() {
    for wheel in WHEELS {
        let mut t = Driven::with(wheel);
        let zero = t.clock.instant();
        t.pass(HOUR);
        let now = t.timer.now();
        let passed = [
            Some(now),
            Some(now - HOUR),
            zero.checked_sub(Duration::from_nanos(1)),
            zero.checked_sub(HOUR),
            zero.checked_sub(YEAR * 1_000),
            Some(Instant::now()),
            Instant::now().checked_sub(HOUR),
        ];
        for deadline in passed.into_iter().flatten() {
            assert_due_after(&mut t, deadline, TICK);
            let timeout = t.schedule_at(|_| (), deadline);
            assert_eq!(timeout.remaining(), Duration::ZERO);
            assert!(timeout.deadline() <= t.timer.now());
        }
    }
}

#[test]
fn an_instant_that_has_passed_is_due_at_once_by_the_default_clock() {
    for wheel in WHEELS {
        let builder = wheel(HashedWheelTimer::builder()).tick(ms(1));
        let (timer, mut driver) = builder.build_driven().unwrap();
        let now = Instant::now();
        for deadline in [Some(now), now.checked_sub(HOUR), now.checked_sub(YEAR)]
            .into_iter()
            .flatten()
        {
            let mut methods = by_each_method(&timer, deadline);
            let begin = Instant::now();
            while !methods.is_empty() {
                assert!(
                    begin.elapsed() < TEST_TIMEOUT,
                    "not due: {:?}",
                    names_of(&methods)
                );
                take_due(&mut methods);
                driver.turn();
            }
        }
    }
}

#[test]
fn an_instant_of_the_machine_is_due_by_its_distance() {
    for wheel in WHEELS {
        for distance in [HOUR * 2, YEAR * 30, YEAR * 100] {
            let mut t = Driven::with(wheel);
            t.pass(HOUR);
            let Some(deadline) = Instant::now().checked_add(distance) else {
                continue;
            };
            assert_due_after(&mut t, deadline, distance);
        }
    }
}

/// The clocks differ by the time between their creation, and the test uses hours.
#[test]
fn an_instant_of_another_manual_clock_is_taken_for_one_of_the_same_time() {
    let clocks = [ManualClock::new(), ManualClock::new()];
    for (of_timer, other) in [(0, 1), (1, 0)] {
        let builder = HashedWheelTimer::builder().clock(clocks[of_timer].clone());
        let (timer, _driver) = builder.build_driven().unwrap();
        clocks[other].advance(HOUR * 2);
        let left = timer
            .schedule_at(|_| (), clocks[other].instant() - HOUR)
            .remaining();
        assert!(left > HOUR / 2 && left < HOUR * 3 / 2, "{left:?}");
        clocks[of_timer].advance(HOUR * 2);
    }
}

/// Deadlines that are too far away for a timer: 146 years are the most.
#[test]
fn an_instant_too_far_away_never_comes() {
    let far = [
        YEAR * 147,
        YEAR * 10_000,
        Duration::from_micros(u64::MAX),
        Duration::from_millis(u64::MAX),
    ];
    for wheel in WHEELS {
        let mut t = Driven::with(wheel);
        t.pass(HOUR);
        let ends = [t.timer.now(), Instant::now()];
        let deadlines = far
            .iter()
            .flat_map(|&distance| ends.map(|end| end.checked_add(distance)));
        let mut methods: Vec<_> = deadlines
            .flatten()
            .flat_map(|deadline| by_each_method(&t.timer, deadline))
            .collect();
        for _ in 0..2 {
            assert_eq!(take_due(&mut methods), [""; 0]);
            assert_eq!(t.next_turn(), None);
            t.pass(YEAR * 72);
        }
    }
}

#[test]
fn an_instant_too_far_away_never_comes_by_the_default_clock() {
    let far = [YEAR * 147, YEAR * 10_000, Duration::from_millis(u64::MAX)];
    let deadlines = far
        .iter()
        .map(|&distance| Instant::now().checked_add(distance));
    // No time of the machine is near one of a manual clock.
    for deadline in deadlines.flatten().chain([ManualClock::new().instant()]) {
        for wheel in WHEELS {
            let (timer, mut driver) = wheel(HashedWheelTimer::builder()).build_driven().unwrap();
            let mut methods = by_each_method(&timer, deadline);
            assert_eq!(take_due(&mut methods), [""; 0]);
            driver.turn();
            assert_eq!(
                (take_due(&mut methods), driver.next_turn()),
                (Vec::new(), None)
            );
        }
    }
}
