//! Absolute deadlines. With a user's clock, only the distance to the deadline counts. If such a
//! clock stands still, no result is exact to the time that the test itself takes. So those tests
//! use hours.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Driven, Log, TEST_TIMEOUT, TICK, ms};
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

#[test]
fn remaining_is_counted_from_now_with_a_user_clock() {
    let mut t = Driven::new();
    t.pass(HOUR);
    let timeout = t.timer.new_timeout_at(|_| (), Instant::now() + HOUR).unwrap();
    let left = timeout.remaining();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    assert_eq!(t.pass(HOUR / 2), 0, "real time does not count");
    assert_eq!(t.pass(HOUR / 2), 1);
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
