//! A port of Netty's own test suite: it checks everything that Netty's `HashedWheelTimerTest`
//! checks, in our own words and code. Each test names the Netty test to which it corresponds.
//!
//! Tests of behaviour use a `ManualClock`: the results are exact and nothing sleeps. Tests of the
//! real thread and clock have strict lower bounds. Their upper bounds only guard against hanging,
//! because the machine may be busy.
//!
//! The results differ from Netty's on purpose in these points:
//!
//! * `cancel` takes effect immediately, also while the worker is busy. When it returns,
//!   `pending_timeouts` has fallen, the hook was called on the cancelling thread, and the place
//!   under the limit is free. Netty's worker does this a tick later.
//! * `stop` returns a `Vec` with all pending timeouts.
//! * Errors are values: `Stopped` for `IllegalStateException`, `TooManyPending` for
//!   `RejectedExecutionException`.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::common::{Schedules, TEST_TIMEOUT, accepts_all, built_driven, ends, ms};
use hashed_wheel::{
    Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask,
};

/// Longer than any test runs.
const FAR: Duration = Duration::from_secs(3_600);

const NANOSECOND: Duration = Duration::from_nanos(1);

/// A timer with a short tick, so that the tests on the real clock are short.
fn running() -> HashedWheelTimer {
    HashedWheelTimer::new(ms(10), 512)
}

/// A driven timer with a manual clock, and Netty's defaults otherwise.
fn driven() -> (HashedWheelTimer, Driver, ManualClock) {
    let clock = ManualClock::new();
    let (timer, driver) = built_driven(|builder| builder.clock(clock.clone()));
    (timer, driver, clock)
}

fn limited(tick: Duration, ticks_per_wheel: usize, limit: usize) -> HashedWheelTimer {
    let builder = HashedWheelTimer::builder()
        .tick(tick)
        .ticks_per_wheel(ticks_per_wheel);
    builder.max_pending_timeouts(Some(limit)).build().unwrap()
}

fn stop(timer: &HashedWheelTimer) -> Vec<Timeout> {
    let timer = timer.clone();
    ends(move || timer.stop())
}

/// Whether no event arrives in this time, although a sender still exists.
fn no_event_within<T>(events: &Receiver<T>, during: Duration) -> bool {
    matches!(events.recv_timeout(during), Err(RecvTimeoutError::Timeout))
}

/// Whether all senders are gone, because the task was dropped.
fn is_disconnected<T>(events: &Receiver<T>) -> bool {
    matches!(
        events.recv_timeout(TEST_TIMEOUT),
        Err(RecvTimeoutError::Disconnected)
    )
}

fn is_full(result: &Result<Timeout, NewTimeoutError>, at: usize) -> bool {
    matches!(result, Err(NewTimeoutError::TooManyPending { limit }) if *limit == at)
}

/// A panic in a task does not fail a test by itself, so the statistics are checked.
fn assert_no_panics(timer: &HashedWheelTimer) {
    let stats = timer.stats();
    assert_eq!((stats.panics, stats.dropped_tasks), (0, 0), "{stats:?}");
    assert_eq!(
        stats.scheduled,
        stats.expired + stats.cancelled + stats.pending,
        "{stats:?}"
    );
}

/// Sends how it ended, and on which thread.
struct Reporting {
    end: Sender<(&'static str, ThreadId)>,
}

impl TimerTask for Reporting {
    fn run(self, timeout: &Timeout) {
        assert!(timeout.is_expired());
        self.end.send(("run", thread::current().id())).unwrap();
    }

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.end
            .send(("cancelled", thread::current().id()))
            .unwrap();
    }
}

/// Netty: `testScheduleTimeoutShouldNotRunBeforeDelay`.
#[test]
fn a_task_does_not_run_before_its_delay() {
    let (timer, mut driver, clock) = driven();
    let timeout = timer.schedule(|_| (), Duration::from_secs(10));
    clock.advance(Duration::from_secs(3));
    assert_eq!(driver.turn(), 0);
    clock.advance(Duration::from_secs(7) - NANOSECOND);
    assert_eq!(driver.turn(), 0);
    assert!(!timeout.is_expired() && !timeout.is_cancelled());
    assert_eq!(timeout.remaining(), NANOSECOND);
    assert_eq!(timer.pending_timeouts(), 1);
    assert_no_panics(&timer);
}

/// Netty: `testScheduleTimeoutShouldNotRunBeforeDelay`, with the real thread and clock.
#[test]
fn the_thread_does_not_run_a_task_before_its_delay() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    let timeout = timer.schedule(move |_| ran.send(()).unwrap(), FAR);
    assert!(no_event_within(&events, ms(300)));
    assert!(!timeout.is_expired());
    assert_eq!(stop(&timer), [timeout]);
    assert!(is_disconnected(&events), "the task is dropped, not run");
    assert_no_panics(&timer);
}

/// Netty: `testScheduleTimeoutShouldRunAfterDelay`.
#[test]
fn a_task_runs_at_the_first_tick_after_its_delay() {
    let (timer, mut driver, clock) = driven();
    let (ran, events) = mpsc::channel();
    let on_a_tick = timer.schedule(|_| (), Duration::from_secs(2));
    clock.advance(ms(30));
    // The deadline is 2.03 s, so the task runs at the tick at 2.1 s.
    let between = timer.schedule(move |_| ran.send(()).unwrap(), Duration::from_secs(2));

    clock.advance(ms(1_970));
    assert_eq!(driver.turn(), 1);
    assert!(on_a_tick.is_expired() && !between.is_expired());
    clock.advance(ms(100) - NANOSECOND);
    assert_eq!(driver.turn(), 0);
    clock.advance(NANOSECOND);
    assert_eq!(driver.turn(), 1);
    assert!(between.is_expired());
    assert_eq!(between.remaining(), Duration::ZERO);
    assert_eq!(events.try_recv(), Ok(()));
    assert_no_panics(&timer);
}

/// Netty: `testScheduleTimeoutShouldRunAfterDelay`, with the real thread and clock.
#[test]
fn the_thread_runs_a_task_after_its_delay() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    let before = Instant::now();
    let timeout = timer.schedule(move |_| ran.send(Instant::now()).unwrap(), ms(200));
    let after = events.recv_timeout(TEST_TIMEOUT).unwrap() - before;
    assert!(after >= ms(200), "{after:?}");
    assert!(timeout.is_expired());
    assert!(!timeout.cancel(), "the timeout has already expired");
    assert!(stop(&timer).is_empty());
    assert_no_panics(&timer);
}

/// Netty: `testStopTimer`. (Netty demands at least one of the unprocessed timeouts. Here all of
/// them are returned.)
#[test]
fn stop_returns_all_timeouts_that_have_not_run() {
    let processed = running();
    let (ran, events) = mpsc::channel();
    for _ in 0..3 {
        let ran = ran.clone();
        processed.schedule(move |_| ran.send(()).unwrap(), ms(1));
    }
    for _ in 0..3 {
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    assert!(stop(&processed).is_empty());

    let unprocessed = running();
    let mut timeouts: Vec<_> = (0..5).map(|_| unprocessed.schedule(|_| (), FAR)).collect();
    // Five are in the wheel, and one is most likely still in the lane.
    thread::sleep(ms(100));
    timeouts.push(unprocessed.schedule(|_| (), FAR));
    let rest = stop(&unprocessed);
    assert_eq!(rest.len(), timeouts.len());
    assert!(timeouts.iter().all(|timeout| rest.contains(timeout)));
    assert!(stop(&unprocessed).is_empty(), "each is returned once");
    for timer in [processed, unprocessed] {
        assert!(timer.is_stopped());
        assert_eq!(timer.pending_timeouts(), 0);
        assert_no_panics(&timer);
    }
}

/// Netty: `testTimerShouldThrowExceptionAfterShutdownForNewTimeouts`. (An error instead of an
/// exception, also from `start`.)
#[test]
fn a_stopped_timer_rejects_new_timeouts() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    for _ in 0..3 {
        let ran = ran.clone();
        timer.schedule(move |_| ran.send(()).unwrap(), ms(1));
    }
    for _ in 0..3 {
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    stop(&timer);

    let rejected = timer.new_timeout(move |_| ran.send(()).unwrap(), ms(1));
    assert_eq!(rejected, Err(NewTimeoutError::Stopped));
    assert!(is_disconnected(&events), "the task is dropped");
    assert!(matches!(timer.start(), Err(NewTimeoutError::Stopped)));
    assert_eq!(timer.pending_timeouts(), 0);
    assert_eq!(timer.stats().rejected, 1);
    assert_no_panics(&timer);
}

/// Schedules itself again.
struct Rescheduling {
    ran: Sender<()>,
    /// The delays of the further runs, the next one last.
    delays: Vec<Duration>,
}

impl TimerTask for Rescheduling {
    fn run(mut self, timeout: &Timeout) {
        let ran = self.ran.clone();
        if let Some(delay) = self.delays.pop() {
            timeout.timer().schedule_task(self, delay);
        }
        ran.send(()).unwrap();
    }
}

/// Netty: `testTimerOverflowWheelLength`.
#[test]
fn a_task_schedules_itself_again_on_the_thread() {
    let timer = HashedWheelTimer::new(ms(10), 32);
    let (ran, events) = mpsc::channel();
    // The last delay is long, so that the task does not run before the timer is stopped.
    let task = Rescheduling {
        ran,
        delays: vec![FAR, ms(10), ms(10)],
    };
    timer.schedule_task(task, ms(10));
    for _ in 0..3 {
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    assert_eq!(stop(&timer).len(), 1);
    assert_no_panics(&timer);
}

/// Netty: `testTimerOverflowWheelLength`. (The test's name suggests delays longer than the wheel,
/// which its body does not use.)
#[test]
fn delays_of_many_rounds_are_exact() {
    let clock = ManualClock::new();
    let (timer, mut driver) =
        built_driven(|builder| builder.ticks_per_wheel(32).clock(clock.clone()));
    let (ran, events) = mpsc::channel();
    // One tick, one tick less than a round of the wheel, a round, one tick more, and a thousand
    // rounds.
    let delays_in_rounds = [31, 32, 33, 32_000].map(|ticks| ms(100) * ticks);
    let task = Rescheduling {
        ran,
        delays: delays_in_rounds.iter().rev().copied().collect(),
    };
    timer.schedule_task(task, ms(100));
    for delay in [ms(100)].into_iter().chain(delays_in_rounds) {
        clock.advance(delay - NANOSECOND);
        assert_eq!(driver.turn(), 0, "before {delay:?}");
        assert_eq!(driver.next_turn(), Some(NANOSECOND));
        clock.advance(NANOSECOND);
        assert_eq!(driver.turn(), 1, "after {delay:?}");
        assert_eq!(events.try_recv(), Ok(()));
    }
    assert_eq!(driver.next_turn(), None);
    assert_no_panics(&timer);
}

/// Netty: `testExecutionOnTime`. (Netty allows the delay plus two ticks. Here the result is the
/// first tick, to the nanosecond.)
#[test]
fn each_task_runs_at_the_first_tick_after_its_deadline() {
    let (tick, delay) = (ms(200), ms(125));
    let clock = ManualClock::new();
    let (timer, mut driver) = built_driven(|builder| builder.tick(tick).clock(clock.clone()));
    let (ran, events) = mpsc::channel::<u64>();
    let scheduled = if cfg!(miri) { 100 } else { 1_000 };
    for now in 0..scheduled + 400 {
        driver.turn();
        for start in events.try_iter() {
            assert_eq!(now, (start + 125).next_multiple_of(200), "begun at {start}");
        }
        if now < scheduled {
            let ran = ran.clone();
            timer.schedule(move |_| ran.send(now).unwrap(), delay);
        }
        clock.advance(ms(1));
    }
    assert_eq!(timer.stats().expired, scheduled);
    assert_no_panics(&timer);
}

/// Netty: `testExecutionOnTime`, with the real thread and clock. (The only upper bound guards
/// against hanging.)
#[test]
fn a_hundred_thousand_tasks_run_on_time() {
    let delay = ms(125);
    let timer = HashedWheelTimer::new(ms(200), 512);
    let (ran, events) = mpsc::channel();
    let scheduled = if cfg!(miri) { 100 } else { 100_000 };
    for _ in 0..scheduled {
        let ran = ran.clone();
        let start = Instant::now();
        timer.schedule(move |_| ran.send(start.elapsed()).unwrap(), delay);
    }
    for _ in 0..scheduled {
        let after = events.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!((delay..TEST_TIMEOUT).contains(&after), "{after:?}");
    }
    drop(ran);
    assert!(is_disconnected(&events), "each task runs once");
    assert!(stop(&timer).is_empty());
    assert_eq!(timer.stats().expired, scheduled);
    assert_no_panics(&timer);
}

/// Netty: `testExecutionOnTaskExecutor`.
#[test]
fn tasks_go_through_the_executor() {
    let (executed, executions) = mpsc::channel();
    let timer = HashedWheelTimer::builder()
        .tick(ms(10))
        .ticks_per_wheel(32)
        .max_pending_timeouts(Some(2))
        .task_executor(accepts_all(move |task: ExpiredTask| {
            task.run();
            executed.send(thread::current().id()).unwrap();
        }))
        .build()
        .unwrap();
    let (end, events) = mpsc::channel();
    timer.schedule_task(Reporting { end }, ms(10));
    let worker = executions.recv_timeout(TEST_TIMEOUT).unwrap();
    let event = events.recv_timeout(TEST_TIMEOUT);
    assert_eq!(event, Ok(("run", worker)), "it runs on the worker");
    assert_ne!(worker, thread::current().id());
    assert!(stop(&timer).is_empty());
    assert!(is_disconnected(&executions), "called once, then dropped");
    assert_no_panics(&timer);
}

/// Netty: `testExecutionOnTaskExecutor`. (A timeout has expired when its task was handed over,
/// whenever the task runs.)
#[test]
fn the_executor_may_run_tasks_later_and_on_another_thread() {
    let (to_pool, pool) = mpsc::channel::<ExpiredTask>();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .task_executor(accepts_all(move |task| to_pool.send(task).unwrap()))
        .build_driven()
        .unwrap();
    let (end, events) = mpsc::channel();
    let timeout = timer.schedule_task(Reporting { end }, ms(10));
    clock.advance(ms(100));
    assert_eq!(driver.turn(), 1);
    assert!(timeout.is_expired() && !timeout.cancel());
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(no_event_within(&events, Duration::ZERO));

    let task = pool.try_recv().unwrap();
    let other_thread = ends(move || {
        task.run();
        thread::current().id()
    });
    assert_eq!(events.try_recv(), Ok(("run", other_thread)));
    assert_no_panics(&timer);
}

/// Netty: `testRejectedExecutionExceptionWhenTooManyTimeoutsAreAddedBackToBack`. (An error instead
/// of an exception.)
#[test]
fn a_timeout_above_the_limit_is_rejected() {
    let timer = limited(ms(100), 32, 2);
    let kept = [(); 2].map(|()| timer.schedule(|_| (), FAR));
    let (end, events) = mpsc::channel();
    assert!(is_full(
        &timer.new_timeout_task(Reporting { end }, ms(1)),
        2
    ));
    assert!(is_disconnected(&events), "it is dropped without its hook");
    assert_eq!(timer.pending_timeouts(), 2, "a rejection does not count");
    assert_eq!(timer.stats().rejected, 1);
    assert_eq!(stop(&timer).len(), kept.len());
    assert_no_panics(&timer);
}

/// Netty:
/// `testNewTimeoutShouldStopThrowingRejectedExecutionExceptionWhenExistingTimeoutIsCancelled`.
/// (Netty's test waits for a few ticks. Here the place is free when `cancel` returns.)
#[test]
fn a_cancelled_timeout_frees_its_place_immediately() {
    let timer = limited(ms(10), 32, 2);
    timer.schedule(|_| (), FAR);
    for in_wheel in [false, true] {
        let timeout = timer.schedule(|_| (), FAR);
        assert!(is_full(&timer.new_timeout(|_| (), ms(1)), 2));
        if in_wheel {
            // The timeout is in the wheel by now, not in the lane. The result is the same.
            thread::sleep(ms(100));
        }
        assert!(timeout.cancel());
    }
    let (end, events) = mpsc::channel();
    timer.schedule_task(Reporting { end }, ms(90));
    assert_eq!(events.recv_timeout(TEST_TIMEOUT).unwrap().0, "run");
    assert_eq!(stop(&timer).len(), 1);
    assert_no_panics(&timer);
}

/// Netty:
/// `testNewTimeoutShouldStopThrowingRejectedExecutionExceptionWhenExistingTimeoutIsExecuted`. (The
/// place is free before the task runs, so the task itself can use it.)
#[test]
fn an_expired_timeout_frees_its_place_before_it_runs() {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder()
        .tick(ms(25))
        .ticks_per_wheel(4)
        .max_pending_timeouts(Some(2));
    let (timer, mut driver) = builder.clock(clock.clone()).build_driven().unwrap();
    let (ran, events) = mpsc::channel();
    timer.schedule(|_| (), FAR);
    let task = Rescheduling {
        ran,
        delays: vec![ms(90)],
    };
    timer.schedule_task(task, ms(90));
    assert!(is_full(&timer.new_timeout(|_| (), ms(90)), 2));
    for _ in 0..2 {
        assert_eq!(timer.pending_timeouts(), 2);
        clock.advance(ms(100));
        assert_eq!(driver.turn(), 1);
        assert_eq!(events.try_recv(), Ok(()));
    }
    assert_eq!(timer.pending_timeouts(), 1);
    timer.schedule(|_| (), ms(90));
    assert_no_panics(&timer);
}

/// Netty:
/// `testNewTimeoutShouldStopThrowingRejectedExecutionExceptionWhenExistingTimeoutIsExecuted`, with
/// the real thread.
#[test]
fn the_thread_frees_the_place_of_an_expired_timeout() {
    let timer = limited(ms(25), 4, 2);
    timer.schedule(|_| (), FAR);
    for _ in 0..2 {
        let (ran, events) = mpsc::channel();
        timer.schedule(move |_| ran.send(()).unwrap(), ms(90));
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    assert_eq!(stop(&timer).len(), 1);
    assert_no_panics(&timer);
}

/// Netty: `reportPendingTimeouts`. (Netty's count falls when the worker processes the
/// cancellation.)
#[test]
fn the_pending_count_falls_immediately_at_each_end() {
    let (timer, mut driver, clock) = driven();
    let hundred_minutes = Duration::from_secs(100 * 60);
    let first = timer.schedule(|_| (), hundred_minutes);
    let second = timer.schedule(|_| (), hundred_minutes);
    let (counted, counts) = mpsc::channel();
    let task = move |timeout: &Timeout| counted.send(timeout.timer().pending_timeouts()).unwrap();
    timer.schedule(task, ms(90));

    assert_eq!(timer.pending_timeouts(), 3);
    assert!(first.cancel());
    assert_eq!(timer.pending_timeouts(), 2);
    assert!(second.cancel() && !second.cancel());
    assert_eq!(timer.pending_timeouts(), 1);
    clock.advance(ms(100));
    assert_eq!(driver.turn(), 1);
    assert_eq!(counts.try_recv(), Ok(0), "it ends before its task runs");
    assert_eq!(timer.pending_timeouts(), 0);
    assert_no_panics(&timer);
}

/// Netty: `reportPendingTimeouts`, with the real thread.
#[test]
fn the_pending_count_is_zero_after_the_thread_ran_the_last_task() {
    let timer = running();
    let cancelled = [(); 2].map(|()| timer.schedule(|_| (), FAR));
    let (ran, events) = mpsc::channel();
    timer.schedule(move |_| ran.send(()).unwrap(), ms(90));
    for timeout in cancelled {
        assert!(timeout.cancel());
    }
    events.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(stop(&timer).is_empty());
    assert_no_panics(&timer);
}

/// Delays that never end: that of Netty's test, the longest of Rust, and the shortest that this
/// crate treats as infinite.
fn infinite_delays() -> [Duration; 3] {
    [
        Duration::from_millis(i64::MAX as u64),
        Duration::MAX,
        Duration::from_nanos(1 << 62),
    ]
}

/// Netty: `testOverflow`.
#[test]
fn an_infinite_delay_never_ends() {
    let (timer, mut driver, clock) = driven();
    // With a clock at zero, an overflow of the addition would not show.
    clock.advance(ms(12_345));
    driver.turn();
    let timeouts = infinite_delays().map(|delay| timer.schedule(|_| (), delay));
    for by in [
        Duration::ZERO,
        ms(100),
        Duration::from_secs(1 << 32),
        Duration::MAX,
    ] {
        clock.advance(by);
        assert_eq!(driver.turn(), 0, "after another {by:?}");
    }
    for timeout in timeouts {
        assert_eq!(timeout.remaining(), Duration::MAX);
        assert!(!timeout.is_expired() && timeout.cancel());
    }
    assert_eq!(timer.pending_timeouts(), 0);
    assert_no_panics(&timer);
}

/// Netty: `testOverflow`, with the real thread and clock.
#[test]
fn the_thread_does_not_run_a_task_with_an_infinite_delay() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    let timeouts = infinite_delays().map(|delay| {
        let ran = ran.clone();
        timer.schedule(move |_| ran.send(()).unwrap(), delay)
    });
    assert!(no_event_within(&events, ms(300)));
    for timeout in timeouts {
        assert!(timeout.cancel());
    }
    assert!(stop(&timer).is_empty());
    assert_no_panics(&timer);
}

/// Netty: `testStopTimerCancelsPendingTasks`. (The hooks have been called as well.)
#[test]
fn stop_cancels_the_timeouts_it_returns() {
    let timer = running();
    let (end, events) = mpsc::channel();
    let timeouts = [(); 5].map(|()| timer.schedule_task(Reporting { end: end.clone() }, FAR));
    drop(end);
    thread::sleep(ms(100));

    let rest = stop(&timer);
    assert_eq!(rest.len(), 5);
    for timeout in rest {
        assert!(timeout.is_cancelled() && !timeout.is_expired());
        assert!(!timeout.cancel() && !timeout.reset(FAR), "it has ended");
        assert!(timeouts.contains(&timeout));
    }
    assert!(events.try_iter().map(|(end, _)| end).eq(["cancelled"; 5]));
    assert!(is_disconnected(&events));
    assert_no_panics(&timer);
}

/// Netty: `testStopTimerCancelsPendingTasks`, where only the order of the calls decides.
#[test]
fn stop_of_a_driven_timer_cancels_the_timeouts_it_returns() {
    let (timer, mut driver, clock) = driven();
    let expired = timer.schedule(|_| (), ms(100));
    let in_the_wheel = timer.schedule(|_| (), ms(200));
    clock.advance(ms(100));
    assert_eq!(driver.turn(), 1);
    let due = timer.schedule(|_| (), ms(50));
    clock.advance(ms(100));

    let rest = timer.stop();
    assert_eq!(rest.len(), 2);
    assert!(
        [&in_the_wheel, &due]
            .into_iter()
            .all(|timeout| rest.contains(timeout) && timeout.is_cancelled())
    );
    assert!(expired.is_expired() && !expired.is_cancelled());
    assert_eq!(driver.turn(), 0);
    assert_no_panics(&timer);
}

/// Netty: `cancelWillCallCallback`. (It lacks `@Test` and does not run there. Here the cancelling
/// thread calls the hook before `cancel` returns.)
#[test]
fn cancel_calls_the_hook() {
    let (timer, mut driver, clock) = driven();
    for in_wheel in [false, true] {
        let (end, events) = mpsc::channel();
        let timeout = timer.schedule_task(Reporting { end }, ms(90));
        assert_eq!(timer.pending_timeouts(), 1);
        if in_wheel {
            driver.turn();
        }
        assert!(timeout.cancel());
        assert_eq!(events.try_recv(), Ok(("cancelled", thread::current().id())));
        clock.advance(ms(1_000));
        assert_eq!(driver.turn(), 0);
        assert!(is_disconnected(&events), "it neither runs nor ends again");
    }
    assert_no_panics(&timer);
}

/// Netty: `testPendingTimeoutsShouldBeCountedCorrectlyWhenTimeoutCancelledWithinGoalTick`. (All are
/// due in the same tick, and the first task cancels the others.)
#[test]
fn a_due_timeout_can_be_cancelled_until_it_expires() {
    let (timer, mut driver, clock) = driven();
    let (hand_over, others) = mpsc::channel::<Vec<Timeout>>();
    let (counted, counts) = mpsc::channel();
    let first = move |timeout: &Timeout| {
        let cancelled = others
            .try_recv()
            .unwrap()
            .iter()
            .filter(|other| other.cancel())
            .count();
        counted
            .send((cancelled, timeout.timer().pending_timeouts()))
            .unwrap();
    };
    timer.schedule(first, ms(200));
    let (end, ends) = mpsc::channel();
    let others = [(); 10].map(|()| timer.schedule_task(Reporting { end: end.clone() }, ms(200)));
    drop(end);
    hand_over.send(others.to_vec()).unwrap();
    assert_eq!(timer.pending_timeouts(), 11);

    clock.advance(ms(200));
    assert_eq!(driver.turn(), 1);
    assert_eq!(counts.try_recv(), Ok((10, 0)));
    assert!(others.iter().all(Timeout::is_cancelled));
    driver.turn();
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(ends.try_iter().map(|(end, _)| end).eq(["cancelled"; 10]));
    assert!(is_disconnected(&ends));
    assert_no_panics(&timer);
}

/// Netty: `testPendingTimeoutsShouldBeCountedCorrectlyWhenTimeoutCancelledWithinGoalTick`, with the
/// real thread. (Netty's test waits until the worker continues. Here the count falls while the
/// worker is blocked.)
#[test]
fn a_cancel_counts_immediately_while_the_thread_is_blocked() {
    let timer = running();
    let (entered, blocked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let first = move |_: &Timeout| {
        entered.send(()).unwrap();
        released.recv_timeout(TEST_TIMEOUT).unwrap();
    };
    timer.schedule(first, ms(100));
    // These are due behind the first one, in its tick or the next.
    let (end, ends) = mpsc::channel();
    let others = [(); 10].map(|()| timer.schedule_task(Reporting { end: end.clone() }, ms(100)));
    blocked.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(timer.pending_timeouts(), 10);
    for (other, left) in others.iter().zip((0..10).rev()) {
        assert!(other.cancel());
        assert_eq!(timer.pending_timeouts(), left);
    }
    assert!(
        ends.try_iter()
            .eq([("cancelled", thread::current().id()); 10])
    );
    release.send(()).unwrap();

    // The count does not change when the worker continues.
    timer.schedule_task(Reporting { end }, ms(1));
    assert_eq!(ends.recv_timeout(TEST_TIMEOUT).unwrap().0, "run");
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(stop(&timer).is_empty());
    assert!(is_disconnected(&ends));
    assert_no_panics(&timer);
}
