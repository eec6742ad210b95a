//! Absolute deadlines. By a given clock only the distance counts, so on one that stands still nothing is exact to the time
//! that the test itself takes: there, all is in hours.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Driven, Log, PATIENCE, TICK, ms};
use hashed_wheel::{Clock, HashedWheelTimer, NewTimeoutError};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_deadline_is_never_early_by_the_default_clock() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let (fired, wait) = channel();
    let begin = Instant::now();
    let deadlines: Vec<_> = (0..40).map(|n| begin + Duration::from_micros(n * 1_237)).collect();
    for &deadline in &deadlines {
        let fired = fired.clone();
        let ring = move |_: &_| fired.send((deadline, Instant::now())).unwrap();
        timer.new_timeout_at(ring, deadline).unwrap();
    }
    for _ in &deadlines {
        let (deadline, now) = wait.recv_timeout(PATIENCE).unwrap();
        assert!(now >= deadline, "{:?} early", deadline - now);
    }
}

/// It does not move on with the time that passes before the call.
#[test]
fn a_deadline_is_the_same_whenever_the_call_is_made() {
    let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    let deadline = Instant::now() + HOUR;
    let first = timer.new_timeout_at(|_| (), deadline).unwrap();
    std::thread::sleep(ms(20));
    let second = timer.new_timeout_at(|_| (), deadline).unwrap();
    // In this order, for time passes in between.
    let (first, second) = (first.remaining(), second.remaining());
    assert!(second <= first && first <= HOUR - ms(20), "{first:?}, {second:?}");
}

#[test]
fn what_is_left_is_counted_from_now_by_a_given_clock() {
    let mut t = Driven::new();
    t.pass(HOUR);
    let timeout = t.timer.new_timeout_at(|_| (), Instant::now() + HOUR).unwrap();
    let left = timeout.remaining();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    assert_eq!(t.pass(HOUR / 2), 0, "real time does not count");
    assert_eq!(t.pass(HOUR / 2), 1);
}

/// Who is held up between two looks at the time is late and not early.
#[test]
fn what_passes_while_the_given_clock_is_asked_makes_it_later() {
    struct Clocked {
        origin: Instant,
        is_held_up: Arc<AtomicBool>,
    }

    impl Clock for Clocked {
        fn now(&self) -> Duration {
            let now = self.origin.elapsed();
            if self.is_held_up.swap(false, SeqCst) {
                std::thread::sleep(ms(20));
            }
            now
        }
    }

    let is_held_up = Arc::new(AtomicBool::new(false));
    let clock = Clocked { origin: Instant::now(), is_held_up: Arc::clone(&is_held_up) };
    let (timer, _driver) = HashedWheelTimer::builder().clock(clock).build_driven().unwrap();
    let deadline = Instant::now() + HOUR;
    is_held_up.store(true, SeqCst);
    let left = timer.new_timeout_at(|_| (), deadline).unwrap().remaining();
    assert!(!is_held_up.load(SeqCst), "the clock was asked");
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
    // From before the timer was built, too.
    timer.new_timeout_at(log.task(2), before.checked_sub(HOUR).unwrap_or(before)).unwrap();
    let late = timer.new_timeout_at(log.task(3), before).unwrap();
    assert_eq!(late.remaining(), Duration::ZERO);
    let begin = Instant::now();
    while timer.pending_timeouts() > 0 {
        driver.turn();
        assert!(begin.elapsed() < PATIENCE, "the next boundary does not come");
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
    assert_eq!(driver.next_turn(), None, "as with a delay");

    let mut t = Driven::new();
    let never = t.timer.new_timeout_at(|_| (), far).unwrap();
    assert_eq!(never.remaining(), Duration::MAX);
    assert_eq!(t.pass(Duration::MAX), 0);
}

#[test]
fn a_refusal_is_that_of_any_timeout() {
    let t = Driven::with(|builder| builder.max_pending_timeouts(1));
    let deadline = Instant::now() + HOUR;
    t.timer.new_timeout_at(|_| (), deadline).unwrap();
    let refused = t.timer.new_timeout_at(|_| (), deadline).unwrap_err();
    assert!(matches!(refused, NewTimeoutError::TooManyPending { limit: 1 }), "{refused}");
    t.timer.stop();
    let refused = t.timer.new_timeout_at(|_| (), deadline).unwrap_err();
    assert!(matches!(refused, NewTimeoutError::Stopped), "{refused}");
}
