//! `time::Timer`: the calls of the module on a timer that the test turns.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::time::{MissedTickBehavior, Timer};

use super::Task;
use crate::common::{Driven, ms};

fn driven() -> (Driven, Timer) {
    let driven = Driven::with(|builder| builder.tick(ms(1)));
    let time = Timer::new(&driven.timer);
    (driven, time)
}

#[test]
fn a_sleep_waits_for_the_clock_of_its_timer() {
    let (mut t, time) = driven();
    let (start, task) = (time.now(), Task::new());
    assert_eq!(start.into_std(), t.timer.now());
    let mut sleep = pin!(time.sleep(ms(10)));
    assert_eq!(sleep.deadline(), start + ms(10));
    assert!(task.poll(sleep.as_mut()).is_pending());
    t.pass(ms(9));
    assert!(task.poll(sleep.as_mut()).is_pending() && !sleep.is_elapsed());
    t.pass(ms(1));
    assert_eq!(task.wakes(), 1);
    assert!(task.poll(sleep.as_mut()).is_ready() && sleep.is_elapsed());
    sleep.as_mut().reset(start + ms(20));
    assert!(task.poll(sleep.as_mut()).is_pending());
    assert_eq!(t.timer.pending_timeouts(), 1);
}

#[test]
fn a_limit_leaves_the_timer_when_its_future_is_ready() {
    let (mut t, time) = driven();
    let (task, (open, gate)) = (Task::new(), tokio::sync::oneshot::channel());
    let mut limited = pin!(time.timeout(ms(10), gate));
    assert!(task.poll(limited.as_mut()).is_pending());
    assert_eq!(t.timer.pending_timeouts(), 1);
    open.send(7).unwrap();
    assert_eq!(task.poll(limited.as_mut()), Poll::Ready(Ok(Ok(7))));
    assert_eq!(t.timer.pending_timeouts(), 0);

    let mut late = pin!(time.timeout_at(time.now() + ms(10), pending::<()>()));
    assert!(task.poll(late.as_mut()).is_pending());
    t.pass(ms(10));
    assert!(matches!(task.poll(late), Poll::Ready(Err(_))));
    let mut endless = pin!(time.timeout(Duration::MAX, pending::<()>()));
    assert!(task.poll(endless.as_mut()).is_pending());
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn an_interval_ticks_by_the_clock_of_its_timer() {
    let (mut t, time) = driven();
    let (start, task) = (time.now(), Task::new());
    let mut interval = time.interval(ms(10));
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut poll = || task.with(|context| interval.poll_tick(context));
    assert_eq!(poll(), Poll::Ready(start));
    assert_eq!(t.timer.pending_timeouts(), 0);
    assert!(poll().is_pending());
    t.pass(ms(37));
    assert_eq!(poll(), Poll::Ready(start + ms(10)));
    assert!(poll().is_pending());
    t.pass(ms(3));
    assert_eq!(poll(), Poll::Ready(start + ms(40)));
    interval.reset_after(ms(25));
    let mut poll = || task.with(|context| interval.poll_tick(context));
    t.pass(ms(24));
    assert!(poll().is_pending());
    t.pass(ms(1));
    assert_eq!(poll(), Poll::Ready(start + ms(65)));
    let mut later = time.interval_at(start + ms(100), ms(10));
    assert!(task.with(|context| later.poll_tick(context)).is_pending());
    assert!(catch_unwind(|| time.interval(Duration::ZERO)).is_err());
}

#[test]
fn a_timer_that_is_stopped_panics_in_the_poll() {
    let timer = HashedWheelTimer::new(ms(1), 64);
    let mut sleep = pin!(Timer::new(&timer).sleep(ms(60_000)));
    let task = Task::new();
    assert!(task.poll(sleep.as_mut()).is_pending());
    timer.stop();
    assert_eq!(task.wakes(), 1, "it does not hang");
    let poll = catch_unwind(AssertUnwindSafe(|| task.poll(sleep.as_mut())));
    let text = *poll.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(text, "timer error: the timer is stopped");
}
