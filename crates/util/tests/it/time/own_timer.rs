//! `time::Timer`: the calls of the module on a timer that the test turns.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::time::{Instant, Interval, MissedTickBehavior, Timer};

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

fn polls(interval: &mut Interval) -> Poll<Instant> {
    Task::new().with(|context| interval.poll_tick(context))
}

/// Returns the ticks of an interval of 10 ms that is first polled again after 37 ms, and then each
/// 5 ms.
fn ticks(behavior: MissedTickBehavior) -> Vec<Duration> {
    let (mut t, time) = driven();
    let start = time.now();
    let mut interval = time.interval(ms(10));
    interval.set_missed_tick_behavior(behavior);
    assert_eq!(interval.missed_tick_behavior(), behavior);
    assert_eq!(polls(&mut interval), Poll::Ready(start));
    assert!(polls(&mut interval).is_pending());
    t.pass(ms(37));
    let mut ticks = Vec::new();
    for _ in 0..6 {
        while let Poll::Ready(tick) = polls(&mut interval) {
            ticks.push(tick - start);
        }
        t.pass(ms(5));
    }
    ticks
}

#[test]
fn missed_ticks_come_at_once_or_later_or_not_at_all() {
    let [burst, delay, skip] = [
        MissedTickBehavior::Burst,
        MissedTickBehavior::Delay,
        MissedTickBehavior::Skip,
    ]
    .map(ticks);
    assert_eq!(burst, [10, 20, 30, 40, 50, 60].map(ms));
    assert_eq!(delay, [10, 47, 57].map(ms));
    assert_eq!(skip, [10, 40, 50, 60].map(ms));
}

/// The tick of this timer is longer than the time after which a tick is missed.
#[test]
fn a_timer_that_is_late_by_its_tick_misses_no_tick() {
    let mut t = Driven::with(|builder| builder.tick(ms(100)));
    let time = Timer::new(&t.timer);
    let start = time.now();
    let mut interval = time.interval(ms(250));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ticks = Vec::new();
    for _ in 0..100 {
        while let Poll::Ready(tick) = polls(&mut interval) {
            ticks.push(tick - start);
        }
        t.pass(ms(10));
    }
    assert_eq!(ticks, [0, 250, 500, 750].map(ms));
    // One that is as long as a period does.
    let mut interval = time.interval(ms(50));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    assert!(polls(&mut interval).is_ready() && polls(&mut interval).is_pending());
    t.pass(ms(100));
    assert!(polls(&mut interval).is_ready() && polls(&mut interval).is_pending());
}

#[test]
fn an_interval_is_reset_to_any_time() {
    let (mut t, time) = driven();
    let start = time.now();
    let mut interval = time.interval_at(start + ms(100), ms(10));
    assert!(polls(&mut interval).is_pending());
    interval.reset_immediately();
    assert_eq!(polls(&mut interval), Poll::Ready(start));
    assert!(polls(&mut interval).is_pending());
    t.pass(ms(4));
    interval.reset();
    assert!(polls(&mut interval).is_pending());
    interval.reset_at(start + ms(5));
    t.pass(ms(1));
    assert_eq!(polls(&mut interval), Poll::Ready(start + ms(5)));
    interval.reset_at(start);
    assert_eq!(polls(&mut interval), Poll::Ready(start));
    assert_eq!(interval.period(), ms(10));
}

#[test]
fn the_task_of_the_last_poll_is_woken() {
    let (mut t, time) = driven();
    let (first, last) = (Task::new(), Task::new());
    let mut sleep = pin!(time.sleep(ms(10)));
    let mut limited = pin!(time.timeout(ms(10), pending::<()>()));
    for task in [&first, &last] {
        assert!(task.poll(sleep.as_mut()).is_pending());
        assert!(task.poll(limited.as_mut()).is_pending());
    }
    t.pass(ms(10));
    assert_eq!((first.wakes(), last.wakes()), (0, 2));
    assert!(last.poll(sleep).is_ready() && last.poll(limited).is_ready());
}

#[test]
fn a_sleep_that_waits_is_moved_both_ways() {
    let (mut t, time) = driven();
    let (start, task) = (time.now(), Task::new());
    let mut sleep = pin!(time.sleep(ms(20)));
    assert!(task.poll(sleep.as_mut()).is_pending());
    sleep.as_mut().reset(start + ms(40));
    t.pass(ms(20));
    assert!(task.wakes() == 0 && task.poll(sleep.as_mut()).is_pending());
    sleep.as_mut().reset(start + ms(30));
    t.pass(ms(10));
    assert!(task.wakes() == 1 && task.poll(sleep.as_mut()).is_ready());
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
