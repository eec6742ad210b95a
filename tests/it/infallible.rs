//! Timers whose calls cannot fail.

use crate::common;

use std::sync::Arc;

use common::{Driven, TICK, ms};
use hashed_wheel::{HashedWheelTimer, InfallibleTimer, NewTimeoutError};

/// A task that has a part of `used`, and is larger than a node if `large`.
fn task(used: &Arc<()>, large: bool) -> Box<dyn FnOnce(&InfallibleTimer) -> hashed_wheel::Timeout> {
    let used = Arc::clone(used);
    match large {
        false => Box::new(move |timer| timer.new_timeout(move |_| drop(used), TICK)),
        true => {
            let many = [(); 9].map(|()| Arc::clone(&used));
            Box::new(move |timer| timer.new_timeout(move |_| drop((used, many)), TICK))
        }
    }
}

#[test]
fn timeouts_fire_and_are_cancelled() {
    let mut t = Driven::new();
    let timer = t.timer.infallible().unwrap();
    let used = Arc::new(());
    for large in [false, true] {
        let fires = task(&used, large)(&timer);
        let cancelled = task(&used, large)(&timer);
        assert!(cancelled.cancel());
        assert_eq!((timer.timer().pending_timeouts(), t.pass(TICK)), (1, 1));
        assert!(fires.is_expired());
        assert_eq!(Arc::strong_count(&used), 1);
    }
    let at = timer.timer().now() + TICK * 3;
    let fires = timer.new_timeout_at(|_| (), at);
    assert_eq!(
        (fires.deadline(), t.pass(TICK * 2), t.pass(TICK)),
        (at, 0, 1)
    );
}

#[test]
fn what_is_scheduled_after_the_end_is_cancelled() {
    let t = Driven::new();
    let timer = t.timer.infallible().unwrap();
    let used = Arc::new(());
    let before = task(&used, false)(&timer);
    assert_eq!(t.timer.stop(), [before]);
    for large in [false, true] {
        let after = task(&used, large)(&timer);
        assert!(after.is_cancelled() && !after.cancel());
        assert_eq!(Arc::strong_count(&used), 1, "the task was dropped");
    }
    assert_eq!(
        (t.timer.pending_timeouts(), t.timer.stats().rejected),
        (0, 2)
    );
}

#[test]
fn a_timer_that_may_reject_has_no_such_handle() {
    let limited = Driven::with(|builder| builder.max_pending_timeouts(Some(7)));
    let error = limited.timer.infallible().unwrap_err();
    assert_eq!(error, NewTimeoutError::TooManyPending { limit: 7 });
    let stopped = Driven::new();
    stopped.timer.stop();
    assert_eq!(
        stopped.timer.infallible().unwrap_err(),
        NewTimeoutError::Stopped
    );
}

#[test]
fn the_handle_keeps_the_timer_and_its_thread_runs() {
    let timer = HashedWheelTimer::new(ms(1), 8);
    let infallible = timer.infallible().unwrap();
    drop(timer);
    let fires = infallible.clone().new_timeout(|_| (), ms(1));
    common::eventually("it fires", || fires.is_expired());
    assert!(!infallible.timer().is_stopped());
}

#[cfg(feature = "async")]
mod sleep {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::common::AsyncTask;
    use super::*;

    fn poll(sleep: &mut (impl Future<Output = ()> + Unpin), task: &Arc<AsyncTask>) -> Poll<()> {
        Pin::new(sleep).poll(&mut Context::from_waker(&Arc::clone(task).into()))
    }

    #[test]
    fn a_sleep_has_no_result() {
        let mut t = Driven::new();
        let timer = t.timer.infallible().unwrap();
        let (mut sleep, task) = (timer.sleep(TICK), AsyncTask::new());
        assert_eq!(poll(&mut sleep, &task), Poll::Pending);
        sleep.reset(TICK * 2);
        assert_eq!((t.pass(TICK), t.pass(TICK), task.wakes()), (0, 1, 1));
        assert_eq!(poll(&mut sleep, &task), Poll::Ready(()));
        assert!(sleep.is_elapsed());
        let mut now = timer.sleep_until(timer.timer().now());
        assert_eq!(poll(&mut now, &task), Poll::Ready(()));
    }

    #[test]
    fn a_sleep_never_completes_after_the_end() {
        let t = Driven::new();
        let timer = t.timer.infallible().unwrap();
        let (mut before, task) = (timer.sleep(TICK), AsyncTask::new());
        assert_eq!(poll(&mut before, &task), Poll::Pending);
        assert_eq!(t.timer.stop().len(), 1);
        let mut after = timer.sleep(TICK);
        for _ in 0..3 {
            assert_eq!(
                (poll(&mut before, &task), poll(&mut after, &task)),
                (Poll::Pending, Poll::Pending)
            );
        }
    }
}
