//! hyper's view of a timer.
#![cfg(feature = "hyper")]

use crate::common;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{AsyncTask, Driven, TICK};
use hashed_wheel_util::HyperTimer;
use hyper::rt::{Sleep, Timer};

const SECOND: Duration = Duration::from_secs(1);

fn poll(sleep: &mut Pin<Box<dyn Sleep>>, task: &Arc<AsyncTask>) -> Poll<()> {
    sleep
        .as_mut()
        .poll(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
}

#[test]
fn hyper_sleeps_and_resets() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let hyper_timer = HyperTimer::new(&t.timer);
    let mut sleeps = [
        hyper_timer.sleep(TICK),
        hyper_timer.sleep_until(t.timer.now() + TICK),
    ];
    sleeps
        .iter_mut()
        .for_each(|sleep| assert!(poll(sleep, &task).is_pending()));
    assert_eq!(t.pass(TICK), 2);
    sleeps
        .iter_mut()
        .for_each(|sleep| assert!(poll(sleep, &task).is_ready()));
    // Reset after the sleep has elapsed, and then while it waits.
    for ticks in [9, 5, 7] {
        let [sleep, _] = &mut sleeps;
        hyper_timer.reset(sleep, hyper_timer.now() + TICK * ticks);
        assert!(poll(sleep, &task).is_pending());
    }
    assert_eq!(t.timer.pending_timeouts(), 1);
    assert_eq!((t.pass(TICK * 6), t.pass(TICK)), (0, 1));
    assert!(poll(&mut sleeps[0], &task).is_ready());
    // Reset to a time that has passed.
    let now = t.timer.now();
    hyper_timer.reset(&mut sleeps[0], now + TICK);
    assert!(poll(&mut sleeps[0], &task).is_pending());
    hyper_timer.reset(&mut sleeps[0], now);
    assert!(poll(&mut sleeps[0], &task).is_ready());
    assert_eq!(t.timer.pending_timeouts(), 0);
    // A `Sleep` of another timer.
    struct Other;
    impl Future for Other {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            unreachable!()
        }
    }
    impl hyper::rt::Sleep for Other {}
    let mut other: Pin<Box<dyn hyper::rt::Sleep>> = Box::pin(Other);
    hyper_timer.reset(&mut other, t.timer.now() + TICK);
    assert!(poll(&mut other, &task).is_pending());
}

/// A rejected sleep yields once, because hyper's pool sleeps in a loop and other tasks must run.
#[test]
fn a_sleep_for_hyper_that_cannot_be_scheduled_completes() {
    let (t, task) = (
        Driven::with(|builder| builder.max_pending_timeouts(Some(1))),
        AsyncTask::new(),
    );
    let hyper_timer = HyperTimer::new(&t.timer);
    let occupied = t.timer.new_timeout(|_| (), TICK).unwrap();
    let mut sleep = hyper_timer.sleep(TICK);
    assert!(
        poll(&mut sleep, &task).is_pending() && task.wakes() == 1,
        "the first poll wakes its own task"
    );
    assert!(poll(&mut sleep, &task).is_ready());
    hyper_timer.reset(&mut sleep, t.timer.now() + TICK);
    assert!(poll(&mut sleep, &task).is_pending() && task.wakes() == 2);
    occupied.cancel();
    assert!(
        poll(&mut sleep, &task).is_pending() && task.wakes() == 2,
        "the sleep is scheduled"
    );
    t.timer.stop();
    assert_eq!(task.wakes(), 3);
    assert!(poll(&mut sleep, &task).is_ready());
}

// --- how hyper's server and client use it, in the cases that test their timeouts
// ------------------

/// One on each wheel.
fn timers() -> [Driven; 2] {
    [
        Driven::new(),
        Driven::with(|builder| builder.hierarchical(true)),
    ]
}

fn is_over(sleep: &mut Pin<Box<dyn Sleep>>) -> bool {
    sleep
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

/// `header_read_timeout_starts_immediately`, `…_slow_writes`, `…_as_idle_timeout`: bytes that
/// arrive move no deadline.
#[test]
fn a_sleep_that_is_polled_often_ends_on_time() {
    for mut t in timers() {
        let hyper_timer = HyperTimer::new(&t.timer);
        let mut sleep = hyper_timer.sleep(SECOND * 5);
        for _ in 0..4 {
            assert!(!is_over(&mut sleep));
            t.pass(SECOND);
        }
        assert!(!is_over(&mut sleep));
        t.pass(SECOND);
        assert!(is_over(&mut sleep));
    }
}

/// `header_read_timeout_slow_writes_multiple_requests`, `http2_keep_alive_*`: each request or
/// ping resets the sleep, and a silent peer is noticed.
#[test]
fn a_sleep_that_is_reset_in_time_ends_after_the_last_reset() {
    for mut t in timers() {
        let hyper_timer = HyperTimer::new(&t.timer);
        let mut sleep = hyper_timer.sleep(SECOND * 5);
        for _ in 0..3 {
            assert!(!is_over(&mut sleep));
            t.pass(SECOND * 3);
            assert!(!is_over(&mut sleep));
            hyper_timer.reset(&mut sleep, hyper_timer.now() + SECOND * 5);
        }
        t.pass(SECOND * 4);
        assert!(!is_over(&mut sleep));
        t.pass(SECOND);
        assert!(is_over(&mut sleep));
        // A sleep that has ended is used again.
        hyper_timer.reset(&mut sleep, hyper_timer.now() + SECOND);
        assert!(!is_over(&mut sleep));
        t.pass(SECOND);
        assert!(is_over(&mut sleep));
    }
}
