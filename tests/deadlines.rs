//! Absolute deadlines, and how a clock converts an `Instant`.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Driven, Ends, Log, TEST_TIMEOUT, TICK, ms};
use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, MonotonicClock, NewTimeoutError};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_deadline_is_never_early_by_the_default_clock() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (fired, wait) = channel();
    let begin = Instant::now();
    let deadlines: Vec<_> = (0..40).map(|n| begin + Duration::from_micros(n * 1_237)).collect();
    for &deadline in &deadlines {
        let fired = fired.clone();
        let send_deadline = move |_: &_| fired.send((deadline, Instant::now())).unwrap();
        timer.new_timeout_at(send_deadline, deadline).unwrap();
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
    let first = timer.new_timeout_at(|_| (), deadline).unwrap();
    std::thread::sleep(ms(20));
    let second = timer.new_timeout_at(|_| (), deadline).unwrap();
    // Read in this order, because time passes between the two calls.
    let (first, second) = (first.remaining(), second.remaining());
    assert!(second <= first && first <= HOUR - ms(20), "{first:?}, {second:?}");
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
    let timeout = timer.new_timeout_at(|_| (), Instant::now() + HOUR).unwrap();
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
    assert!(timeout.deadline() <= Instant::now(), "also a deadline that has passed");
}

#[test]
fn a_manual_clock_converts_an_instant_exactly() {
    let clock = ManualClock::new();
    let origin = clock.instant();
    clock.advance(HOUR);
    // The clock's time is not zero when the timer is built.
    let builder = HashedWheelTimer::builder().tick(TICK).clock(Arc::new(clock.clone()));
    let (timer, mut driver) = builder.build_driven().unwrap();
    assert_eq!(timer.now(), origin + HOUR);

    let deadline = timer.now() + TICK * 3;
    let first = timer.new_timeout_at(|_| (), deadline).unwrap();
    clock.advance(TICK * 2);
    let second = timer.new_timeout_at(|_| (), deadline).unwrap();
    let third = timer.new_timeout(|_| (), TICK).unwrap();
    for timeout in [&first, &second, &third] {
        assert_eq!((timeout.remaining(), timeout.deadline()), (TICK, deadline));
    }
    assert_eq!(driver.turn(), 0);
    clock.advance(TICK);
    assert_eq!((clock.instant(), clock.clone().instant(), timer.now()), (deadline, deadline, deadline));
    assert_eq!(driver.turn(), 3, "the same tick");
    assert_eq!(first.deadline(), deadline, "an ended timeout keeps its deadline");

    // An instant from before the timer was built.
    let past = timer.new_timeout_at(|_| (), origin).unwrap();
    assert_eq!(past.deadline(), deadline, "a deadline that has passed is now");
}

/// The test uses hours, because the machine's time passes meanwhile.
#[test]
fn a_manual_clock_takes_an_instant_of_the_machine_by_its_distance() {
    let mut t = Driven::new();
    t.pass(HOUR);
    let timeout = t.timer.new_timeout_at(|_| (), Instant::now() + HOUR).unwrap();
    let left = timeout.remaining();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    assert_eq!(t.pass(HOUR / 2), 0, "real time does not count");
    assert_eq!(t.pass(HOUR / 2), 1);
}

#[test]
fn the_clock_of_the_machine_is_the_default_clock() {
    let clock = MonotonicClock::new();
    let (earlier, before) = (clock.now(), Instant::now());
    assert!(clock.now() >= earlier);
    let given = HashedWheelTimer::builder().clock(ManualClock::new()).clock(clock);
    for builder in [HashedWheelTimer::builder(), given] {
        let (timer, _driver) = builder.build_driven().unwrap();
        let now = timer.now();
        assert!(before <= now && now <= Instant::now());
        let timeout = timer.new_timeout_at(|_| (), now + HOUR).unwrap();
        assert_eq!(timeout.deadline(), now + HOUR);
        assert!(timeout.reset_at(now + HOUR * 2));
        assert_eq!(timeout.deadline(), now + HOUR * 2);
    }
    // Behind another clock it converts in the same way.
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock));
    let (timer, _driver) = builder.build_driven().unwrap();
    let deadline = Instant::now() + HOUR;
    assert_eq!(timer.new_timeout_at(|_| (), deadline).unwrap().deadline(), deadline);
}

#[test]
fn reset_at_moves_a_deadline_to_an_instant() {
    let mut t = Driven::new();
    let begin = t.timer.now();
    let timeout = t.timer.new_timeout(|_| (), TICK * 5).unwrap();
    for ticks in [8, 2, 6, 3] {
        assert!(timeout.reset_at(begin + TICK * ticks));
        assert_eq!(timeout.deadline(), begin + TICK * ticks);
        t.driver.turn();
    }
    assert_eq!((t.pass(TICK * 2), t.pass(TICK)), (0, 1));
    assert!(!timeout.reset_at(begin + HOUR), "the timeout has expired");

    // A deadline that has passed is the next boundary.
    let timeout = t.timer.new_timeout(|_| (), TICK * 5).unwrap();
    assert!(timeout.reset_at(begin));
    assert_eq!(timeout.deadline(), t.timer.now());
    assert_eq!((t.driver.turn(), t.pass(TICK)), (0, 1));
}

#[test]
fn a_task_is_scheduled_at_an_instant() {
    let (mut t, ends) = (Driven::new(), Ends::new());
    let deadline = t.timer.now() + TICK;
    t.timer.new_timeout_task_at(ends.task(), deadline).unwrap();
    let cancelled = t.timer.new_timeout_task_at(ends.task(), deadline).unwrap();
    assert!(cancelled.cancel());
    assert_eq!(t.pass(TICK), 1);
    assert_eq!((ends.runs(), ends.hooks(), ends.drops()), (1, 1, 2));
    t.timer.stop();
    let rejected = t.timer.new_timeout_task_at(ends.task(), deadline).unwrap_err();
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
    let clock = Clocked { origin: Instant::now(), delay_next: Arc::clone(&delay_next) };
    let (timer, _driver) = HashedWheelTimer::builder().clock(clock).build_driven().unwrap();
    let deadline = Instant::now() + HOUR;
    delay_next.store(true, SeqCst);
    let left = timer.new_timeout_at(|_| (), deadline).unwrap().remaining();
    assert!(!delay_next.load(SeqCst), "the clock was read");
    assert!(Instant::now() + left >= deadline, "{left:?}");
}

#[test]
fn a_deadline_that_has_passed_is_no_delay() {
    let mut t = Driven::new();
    t.pass(HOUR);
    let log = Log::default();
    let before = Instant::now();
    t.timer.new_timeout(log.task(1), Duration::ZERO).unwrap();
    t.timer.new_timeout_at(log.task(2), before).unwrap();
    t.timer.new_timeout_at(log.task(3), before.checked_sub(HOUR).unwrap_or(before)).unwrap();
    t.timer.new_timeout(log.task(4), Duration::ZERO).unwrap();
    assert_eq!(t.pass(TICK), 4, "at the next boundary");
    assert_eq!(log.take(), [1, 2, 3, 4], "in the order of scheduling");
}

#[test]
fn a_deadline_that_has_passed_is_no_delay_by_the_default_clock() {
    let (timer, mut driver) = HashedWheelTimer::builder().tick(ms(1)).build_driven().unwrap();
    let log = Log::default();
    let before = Instant::now();
    timer.new_timeout(log.task(1), Duration::ZERO).unwrap();
    // A deadline before the creation of the timer is no delay either.
    timer.new_timeout_at(log.task(2), before.checked_sub(HOUR).unwrap_or(before)).unwrap();
    let late = timer.new_timeout_at(log.task(3), before).unwrap();
    assert_eq!(late.remaining(), Duration::ZERO);
    let begin = Instant::now();
    while timer.pending_timeouts() > 0 {
        driver.turn();
        assert!(begin.elapsed() < TEST_TIMEOUT, "the next tick boundary was not reached in time");
    }
    assert_eq!(log.take(), [1, 2, 3]);
}

#[test]
fn a_deadline_too_far_to_represent_never_comes() {
    let Some(far) = Instant::now().checked_add(Duration::from_secs(200 * 366 * 86_400)) else { return };
    let (timer, mut driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let never = timer.new_timeout_at(|_| (), far).unwrap();
    assert_eq!(never.remaining(), Duration::MAX);
    assert_eq!(driver.turn(), 0);
    assert_eq!(driver.next_turn(), None, "the same as for a delay");

    let mut t = Driven::new();
    let never = t.timer.new_timeout_at(|_| (), far).unwrap();
    assert_eq!(never.remaining(), Duration::MAX);
    // Its deadline is an `Instant` that is too far to represent, too.
    assert!(never.reset_at(never.deadline()));
    assert_eq!(never.remaining(), Duration::MAX);
    assert_eq!(t.pass(Duration::MAX), 0);
}

#[test]
fn new_timeout_at_is_rejected_like_new_timeout() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(1));
    let deadline = Instant::now() + HOUR;
    t.timer.new_timeout_at(|_| (), deadline).unwrap();
    let rejected = t.timer.new_timeout_at(|_| (), deadline).unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::TooManyPending { limit: 1 }), "{rejected}");
    t.timer.stop();
    let rejected = t.timer.new_timeout_at(|_| (), deadline).unwrap_err();
    assert!(matches!(rejected, NewTimeoutError::Stopped), "{rejected}");
}
