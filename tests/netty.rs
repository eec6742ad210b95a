//! Netty's own test suite, ported: asks everything that Netty's `HashedWheelTimerTest` asks, in our own words and
//! code. Each test names the one it answers to.
//!
//! What is about behaviour is asked on a `ManualClock`, where the answers are exact and nothing sleeps. What is about
//! the real thread and the real clock is asked of them: lower bounds are strict, upper bounds only guard against
//! hanging, for the machine may be busy.
//!
//! Where the answers differ from Netty's, it is on purpose:
//!
//! * `cancel` counts at once, also while the worker is busy: `pending_timeouts` has fallen, the hook was called (on
//!   the cancelling thread) and the place under the limit is free when it returns. Netty's worker sees to that a tick
//!   later.
//! * `stop` returns a `Vec`, and all that was pending is in it.
//! * Errors are values: `Stopped` for `IllegalStateException`, `TooManyPending` for `RejectedExecutionException`.

mod common;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::{TEST_TIMEOUT, ends, ms};
use hashed_wheel::{Driver, ExpiredTask, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout, TimerTask};

/// Longer than any test runs.
const FAR: Duration = Duration::from_secs(3_600);

const MOMENT: Duration = Duration::from_nanos(1);

/// A short tick, so that the tests on the real clock are short.
fn running() -> HashedWheelTimer {
    HashedWheelTimer::new(ms(10), 512)
}

/// Netty's defaults, but for the thread and the clock.
fn driven() -> (HashedWheelTimer, Driver, ManualClock) {
    let clock = ManualClock::new();
    let (timer, driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven().unwrap();
    (timer, driver, clock)
}

fn limited(tick: Duration, ticks_per_wheel: usize, limit: usize) -> HashedWheelTimer {
    let builder = HashedWheelTimer::builder().tick(tick).ticks_per_wheel(ticks_per_wheel);
    builder.max_pending_timeouts(limit).build().unwrap()
}

fn stop(timer: &HashedWheelTimer) -> Vec<Timeout> {
    let timer = timer.clone();
    ends(move || timer.stop())
}

/// Nothing was sent yet, and somebody still could.
fn is_silent<T>(events: &Receiver<T>, during: Duration) -> bool {
    matches!(events.recv_timeout(during), Err(RecvTimeoutError::Timeout))
}

/// Nobody can send any more: the task is gone.
fn is_over<T>(events: &Receiver<T>) -> bool {
    matches!(events.recv_timeout(TEST_TIMEOUT), Err(RecvTimeoutError::Disconnected))
}

fn is_full(answer: &Result<Timeout, NewTimeoutError>, at: usize) -> bool {
    matches!(answer, Err(NewTimeoutError::TooManyPending { limit }) if *limit == at)
}

/// A panic in a task reaches no test by itself.
fn assert_quiet(timer: &HashedWheelTimer) {
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.dropped), (0, 0), "{stats:?}");
    assert_eq!(stats.scheduled, stats.expired + stats.cancelled + stats.pending, "{stats:?}");
}

/// Says how it ended, and on which thread.
struct Told {
    end: Sender<(&'static str, ThreadId)>,
}

impl TimerTask for Told {
    fn run(self, timeout: &Timeout) {
        assert!(timeout.is_expired());
        self.end.send(("run", thread::current().id())).unwrap();
    }

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.end.send(("cancelled", thread::current().id())).unwrap();
    }
}

/// Netty: `testScheduleTimeoutShouldNotRunBeforeDelay`.
#[test]
fn does_not_run_before_its_delay() {
    let (timer, mut driver, clock) = driven();
    let timeout = timer.new_timeout(|_| (), Duration::from_secs(10)).unwrap();
    clock.advance(Duration::from_secs(3));
    assert_eq!(driver.turn(), 0);
    clock.advance(Duration::from_secs(7) - MOMENT);
    assert_eq!(driver.turn(), 0);
    assert!(!timeout.is_expired() && !timeout.is_cancelled());
    assert_eq!(timeout.remaining(), MOMENT);
    assert_eq!(timer.pending_timeouts(), 1);
    assert_quiet(&timer);
}

/// Netty: `testScheduleTimeoutShouldNotRunBeforeDelay`, of the real thread and clock.
#[test]
fn the_thread_does_not_run_it_before_its_delay() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    let timeout = timer.new_timeout(move |_| ran.send(()).unwrap(), FAR).unwrap();
    assert!(is_silent(&events, ms(300)));
    assert!(!timeout.is_expired());
    assert_eq!(stop(&timer), [timeout]);
    assert!(is_over(&events), "the task is dropped, not run");
    assert_quiet(&timer);
}

/// Netty: `testScheduleTimeoutShouldRunAfterDelay`.
#[test]
fn runs_at_the_first_tick_after_its_delay() {
    let (timer, mut driver, clock) = driven();
    let (ran, events) = mpsc::channel();
    let on_a_tick = timer.new_timeout(|_| (), Duration::from_secs(2)).unwrap();
    clock.advance(ms(30));
    // Due at 2.03 s, so at the tick of 2.1 s.
    let between = timer.new_timeout(move |_| ran.send(()).unwrap(), Duration::from_secs(2)).unwrap();

    clock.advance(ms(1_970));
    assert_eq!(driver.turn(), 1);
    assert!(on_a_tick.is_expired() && !between.is_expired());
    clock.advance(ms(100) - MOMENT);
    assert_eq!(driver.turn(), 0);
    clock.advance(MOMENT);
    assert_eq!(driver.turn(), 1);
    assert!(between.is_expired());
    assert_eq!(between.remaining(), Duration::ZERO);
    assert_eq!(events.try_recv(), Ok(()));
    assert_quiet(&timer);
}

/// Netty: `testScheduleTimeoutShouldRunAfterDelay`, of the real thread and clock.
#[test]
fn the_thread_runs_it_after_its_delay() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    let before = Instant::now();
    let timeout = timer.new_timeout(move |_| ran.send(Instant::now()).unwrap(), ms(200)).unwrap();
    let after = events.recv_timeout(TEST_TIMEOUT).unwrap() - before;
    assert!(after >= ms(200), "{after:?}");
    assert!(timeout.is_expired());
    assert!(!timeout.cancel(), "it is too late for that");
    assert!(stop(&timer).is_empty());
    assert_quiet(&timer);
}

/// Netty: `testStopTimer`. (Netty asks for at least one of the unprocessed; here it is all of them.)
#[test]
fn stop_returns_what_has_not_run() {
    let processed = running();
    let (ran, events) = mpsc::channel();
    for _ in 0..3 {
        let ran = ran.clone();
        processed.new_timeout(move |_| ran.send(()).unwrap(), ms(1)).unwrap();
    }
    for _ in 0..3 {
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    assert!(stop(&processed).is_empty());

    let unprocessed = running();
    let mut timeouts: Vec<_> = (0..5).map(|_| unprocessed.new_timeout(|_| (), FAR).unwrap()).collect();
    // Some in the wheel, and one that is most likely still in the queue.
    thread::sleep(ms(100));
    timeouts.push(unprocessed.new_timeout(|_| (), FAR).unwrap());
    let rest = stop(&unprocessed);
    assert_eq!(rest.len(), timeouts.len());
    assert!(timeouts.iter().all(|timeout| rest.contains(timeout)));
    assert!(stop(&unprocessed).is_empty(), "each is returned once");
    for timer in [processed, unprocessed] {
        assert!(timer.is_stopped());
        assert_eq!(timer.pending_timeouts(), 0);
        assert_quiet(&timer);
    }
}

/// Netty: `testTimerShouldThrowExceptionAfterShutdownForNewTimeouts`. (An error, no exception; the same of `start`.)
#[test]
fn a_stopped_timer_refuses_new_timeouts() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    for _ in 0..3 {
        let ran = ran.clone();
        timer.new_timeout(move |_| ran.send(()).unwrap(), ms(1)).unwrap();
    }
    for _ in 0..3 {
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    stop(&timer);

    let refused = timer.new_timeout(move |_| ran.send(()).unwrap(), ms(1));
    assert!(matches!(refused, Err(NewTimeoutError::Stopped)), "{refused:?}");
    assert!(is_over(&events), "its task has been dropped");
    assert!(matches!(timer.start(), Err(NewTimeoutError::Stopped)));
    assert_eq!(timer.pending_timeouts(), 0);
    assert_eq!(timer.stats().refused, 1);
    assert_quiet(&timer);
}

/// Puts itself on the timer again.
struct Again {
    ran: Sender<()>,
    /// The delay before each further run, the next one last.
    delays: Vec<Duration>,
}

impl TimerTask for Again {
    fn run(mut self, timeout: &Timeout) {
        let ran = self.ran.clone();
        if let Some(delay) = self.delays.pop() {
            timeout.timer().new_timeout_task(self, delay).unwrap();
        }
        ran.send(()).unwrap();
    }
}

/// Netty: `testTimerOverflowWheelLength`.
#[test]
fn a_task_schedules_itself_again_on_the_thread() {
    let timer = HashedWheelTimer::new(ms(10), 32);
    let (ran, events) = mpsc::channel();
    // The last one is far off, or it might run before the timer is stopped.
    timer.new_timeout_task(Again { ran, delays: vec![FAR, ms(10), ms(10)] }, ms(10)).unwrap();
    for _ in 0..3 {
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    assert_eq!(stop(&timer).len(), 1);
    assert_quiet(&timer);
}

/// Netty: `testTimerOverflowWheelLength`. (Its name asks what its body does not: delays longer than the wheel.)
#[test]
fn delays_go_round_a_small_wheel_many_times() {
    let clock = ManualClock::new();
    let (timer, mut driver) =
        HashedWheelTimer::builder().ticks_per_wheel(32).clock(clock.clone()).build_driven().unwrap();
    let (ran, events) = mpsc::channel();
    // A tick, one short of a turn of the wheel, a turn, one more, and then a thousand turns.
    let turns = [31, 32, 33, 32_000].map(|ticks| ms(100) * ticks);
    timer.new_timeout_task(Again { ran, delays: turns.iter().rev().copied().collect() }, ms(100)).unwrap();
    for delay in [ms(100)].into_iter().chain(turns) {
        clock.advance(delay - MOMENT);
        assert_eq!(driver.turn(), 0, "before {delay:?}");
        assert_eq!(driver.next_turn(), Some(MOMENT));
        clock.advance(MOMENT);
        assert_eq!(driver.turn(), 1, "after {delay:?}");
        assert_eq!(events.try_recv(), Ok(()));
    }
    assert_eq!(driver.next_turn(), None);
    assert_quiet(&timer);
}

/// Netty: `testExecutionOnTime`. (Netty allows twice the tick and the delay; here it is the first tick, to the
/// nanosecond.)
#[test]
fn each_runs_on_the_first_tick_after_its_deadline() {
    let (tick, delay) = (ms(200), ms(125));
    let clock = ManualClock::new();
    let (timer, mut driver) =
        HashedWheelTimer::builder().tick(tick).clock(clock.clone()).build_driven().unwrap();
    let (ran, events) = mpsc::channel::<u64>();
    let scheduled = 1_000;
    for now in 0..scheduled + 400 {
        driver.turn();
        for start in events.try_iter() {
            assert_eq!(now, (start + 125).next_multiple_of(200), "scheduled at {start} ms");
        }
        if now < scheduled {
            let ran = ran.clone();
            timer.new_timeout(move |_| ran.send(now).unwrap(), delay).unwrap();
        }
        clock.advance(ms(1));
    }
    assert_eq!(timer.stats().expired, scheduled);
    assert_quiet(&timer);
}

/// Netty: `testExecutionOnTime`, of the real thread and clock. (No upper bound but that against hanging.)
#[test]
fn a_hundred_thousand_run_on_time() {
    let delay = ms(125);
    let timer = HashedWheelTimer::new(ms(200), 512);
    let (ran, events) = mpsc::channel();
    let scheduled = if cfg!(miri) { 100 } else { 100_000 };
    for _ in 0..scheduled {
        let ran = ran.clone();
        let start = Instant::now();
        timer.new_timeout(move |_| ran.send(start.elapsed()).unwrap(), delay).unwrap();
    }
    for _ in 0..scheduled {
        let after = events.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!((delay..TEST_TIMEOUT).contains(&after), "{after:?}");
    }
    drop(ran);
    assert!(is_over(&events), "each runs once");
    assert!(stop(&timer).is_empty());
    assert_eq!(timer.stats().expired, scheduled);
    assert_quiet(&timer);
}

/// Netty: `testExecutionOnTaskExecutor`.
#[test]
fn tasks_go_through_the_executor() {
    let (executed, executions) = mpsc::channel();
    let timer = HashedWheelTimer::builder()
        .tick(ms(10))
        .ticks_per_wheel(32)
        .max_pending_timeouts(2)
        .task_executor(move |task: ExpiredTask| {
            task.run();
            executed.send(thread::current().id()).unwrap();
        })
        .build()
        .unwrap();
    let (end, events) = mpsc::channel();
    timer.new_timeout_task(Told { end }, ms(10)).unwrap();
    let worker = executions.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(
        events.recv_timeout(TEST_TIMEOUT),
        Ok(("run", worker)),
        "an executor that runs it at once is the worker"
    );
    assert_ne!(worker, thread::current().id());
    assert!(stop(&timer).is_empty());
    assert!(is_over(&executions), "the executor was asked once, and is gone");
    assert_quiet(&timer);
}

/// Netty: `testExecutionOnTaskExecutor`. (Expired is what was handed over, whenever it runs.)
#[test]
fn the_executor_may_run_tasks_later_and_elsewhere() {
    let (to_pool, pool) = mpsc::channel::<ExpiredTask>();
    let clock = ManualClock::new();
    let (timer, mut driver) = HashedWheelTimer::builder()
        .clock(clock.clone())
        .task_executor(move |task| to_pool.send(task).unwrap())
        .build_driven()
        .unwrap();
    let (end, events) = mpsc::channel();
    let timeout = timer.new_timeout_task(Told { end }, ms(10)).unwrap();
    clock.advance(ms(100));
    assert_eq!(driver.turn(), 1);
    assert!(timeout.is_expired() && !timeout.cancel());
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(is_silent(&events, Duration::ZERO));

    let task = pool.try_recv().unwrap();
    let elsewhere = ends(move || {
        task.run();
        thread::current().id()
    });
    assert_eq!(events.try_recv(), Ok(("run", elsewhere)));
    assert_quiet(&timer);
}

/// Netty: `testRejectedExecutionExceptionWhenTooManyTimeoutsAreAddedBackToBack`. (An error, no exception.)
#[test]
fn one_above_the_limit_is_refused() {
    let timer = limited(ms(100), 32, 2);
    let kept = [(); 2].map(|()| timer.new_timeout(|_| (), FAR).unwrap());
    let (end, events) = mpsc::channel();
    assert!(is_full(&timer.new_timeout_task(Told { end }, ms(1)), 2));
    assert!(is_over(&events), "its task is dropped, and no hook called");
    assert_eq!(timer.pending_timeouts(), 2, "a refusal leaves the count");
    assert_eq!(timer.stats().refused, 1);
    assert_eq!(stop(&timer).len(), kept.len());
    assert_quiet(&timer);
}

/// Netty: `testNewTimeoutShouldStopThrowingRejectedExecutionExceptionWhenExistingTimeoutIsCancelled`. (Netty waits for
/// a few ticks; here the place is free when `cancel` returns.)
#[test]
fn a_cancelled_timeout_frees_its_place_at_once() {
    let timer = limited(ms(10), 32, 2);
    timer.new_timeout(|_| (), FAR).unwrap();
    for settled in [false, true] {
        let timeout = timer.new_timeout(|_| (), FAR).unwrap();
        assert!(is_full(&timer.new_timeout(|_| (), ms(1)), 2));
        if settled {
            // It is in the wheel by now, rather than in the queue; the answer is the same.
            thread::sleep(ms(100));
        }
        assert!(timeout.cancel());
    }
    let (end, events) = mpsc::channel();
    timer.new_timeout_task(Told { end }, ms(90)).unwrap();
    assert_eq!(events.recv_timeout(TEST_TIMEOUT).unwrap().0, "run");
    assert_eq!(stop(&timer).len(), 1);
    assert_quiet(&timer);
}

/// Netty: `testNewTimeoutShouldStopThrowingRejectedExecutionExceptionWhenExistingTimeoutIsExecuted`. (It is free before
/// the task runs: the task itself can have it.)
#[test]
fn an_expired_timeout_frees_its_place_before_it_runs() {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick(ms(25)).ticks_per_wheel(4).max_pending_timeouts(2);
    let (timer, mut driver) = builder.clock(clock.clone()).build_driven().unwrap();
    let (ran, events) = mpsc::channel();
    timer.new_timeout(|_| (), FAR).unwrap();
    timer.new_timeout_task(Again { ran, delays: vec![ms(90)] }, ms(90)).unwrap();
    assert!(is_full(&timer.new_timeout(|_| (), ms(90)), 2));
    for _ in 0..2 {
        assert_eq!(timer.pending_timeouts(), 2);
        clock.advance(ms(100));
        assert_eq!(driver.turn(), 1);
        assert_eq!(events.try_recv(), Ok(()));
    }
    assert_eq!(timer.pending_timeouts(), 1);
    timer.new_timeout(|_| (), ms(90)).unwrap();
    assert_quiet(&timer);
}

/// Netty: `testNewTimeoutShouldStopThrowingRejectedExecutionExceptionWhenExistingTimeoutIsExecuted`, of the real
/// thread.
#[test]
fn the_thread_frees_the_place_of_an_expired_timeout() {
    let timer = limited(ms(25), 4, 2);
    timer.new_timeout(|_| (), FAR).unwrap();
    for _ in 0..2 {
        let (ran, events) = mpsc::channel();
        timer.new_timeout(move |_| ran.send(()).unwrap(), ms(90)).unwrap();
        events.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    assert_eq!(stop(&timer).len(), 1);
    assert_quiet(&timer);
}

/// Netty: `reportPendingTimeouts`. (Netty's count falls when the worker comes round.)
#[test]
fn the_count_follows_each_end_at_once() {
    let (timer, mut driver, clock) = driven();
    let hundred_minutes = Duration::from_secs(100 * 60);
    let first = timer.new_timeout(|_| (), hundred_minutes).unwrap();
    let second = timer.new_timeout(|_| (), hundred_minutes).unwrap();
    let (counted, counts) = mpsc::channel();
    timer
        .new_timeout(move |timeout| counted.send(timeout.timer().pending_timeouts()).unwrap(), ms(90))
        .unwrap();

    assert_eq!(timer.pending_timeouts(), 3);
    assert!(first.cancel());
    assert_eq!(timer.pending_timeouts(), 2);
    assert!(second.cancel() && !second.cancel());
    assert_eq!(timer.pending_timeouts(), 1);
    clock.advance(ms(100));
    assert_eq!(driver.turn(), 1);
    assert_eq!(counts.try_recv(), Ok(0), "when the task runs, the timeout has ended");
    assert_eq!(timer.pending_timeouts(), 0);
    assert_quiet(&timer);
}

/// Netty: `reportPendingTimeouts`, of the real thread.
#[test]
fn the_count_is_zero_when_the_thread_has_run_the_last() {
    let timer = running();
    let cancelled = [(); 2].map(|()| timer.new_timeout(|_| (), FAR).unwrap());
    let (ran, events) = mpsc::channel();
    timer.new_timeout(move |_| ran.send(()).unwrap(), ms(90)).unwrap();
    for timeout in cancelled {
        assert!(timeout.cancel());
    }
    events.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(stop(&timer).is_empty());
    assert_quiet(&timer);
}

/// What Netty's test asks, what Rust's longest delay is, and what this crate cannot tell from never.
fn endless() -> [Duration; 3] {
    [Duration::from_millis(i64::MAX as u64), Duration::MAX, Duration::from_nanos(1 << 62)]
}

/// Netty: `testOverflow`.
#[test]
fn a_delay_that_cannot_be_counted_never_ends() {
    let (timer, mut driver, clock) = driven();
    // A clock at zero would hide an addition that runs over.
    clock.advance(ms(12_345));
    driver.turn();
    let timeouts = endless().map(|delay| timer.new_timeout(|_| (), delay).unwrap());
    for by in [Duration::ZERO, ms(100), Duration::from_secs(1 << 32), Duration::MAX] {
        clock.advance(by);
        assert_eq!(driver.turn(), 0, "after another {by:?}");
    }
    for timeout in timeouts {
        assert_eq!(timeout.remaining(), Duration::MAX);
        assert!(!timeout.is_expired() && timeout.cancel());
    }
    assert_eq!(timer.pending_timeouts(), 0);
    assert_quiet(&timer);
}

/// Netty: `testOverflow`, of the real thread and clock.
#[test]
fn the_thread_sleeps_through_a_delay_that_cannot_be_counted() {
    let timer = running();
    let (ran, events) = mpsc::channel();
    let timeouts = endless().map(|delay| {
        let ran = ran.clone();
        timer.new_timeout(move |_| ran.send(()).unwrap(), delay).unwrap()
    });
    assert!(is_silent(&events, ms(300)));
    for timeout in timeouts {
        assert!(timeout.cancel());
    }
    assert!(stop(&timer).is_empty());
    assert_quiet(&timer);
}

/// Netty: `testStopTimerCancelsPendingTasks`. (Their hooks have been called, too.)
#[test]
fn stop_cancels_what_it_returns() {
    let timer = running();
    let (end, events) = mpsc::channel();
    let timeouts = [(); 5].map(|()| timer.new_timeout_task(Told { end: end.clone() }, FAR).unwrap());
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
    assert!(is_over(&events));
    assert_quiet(&timer);
}

/// Netty: `testStopTimerCancelsPendingTasks`, where nothing but the order of the calls decides.
#[test]
fn stop_cancels_what_it_returns_of_a_driven_timer() {
    let (timer, mut driver, clock) = driven();
    let expired = timer.new_timeout(|_| (), ms(100)).unwrap();
    let in_the_wheel = timer.new_timeout(|_| (), ms(200)).unwrap();
    clock.advance(ms(100));
    assert_eq!(driver.turn(), 1);
    let due = timer.new_timeout(|_| (), ms(50)).unwrap();
    clock.advance(ms(100));

    let rest = timer.stop();
    assert_eq!(rest.len(), 2);
    assert!(
        [&in_the_wheel, &due].into_iter().all(|timeout| rest.contains(timeout) && timeout.is_cancelled())
    );
    assert!(expired.is_expired() && !expired.is_cancelled());
    assert_eq!(driver.turn(), 0);
    assert_quiet(&timer);
}

/// Netty: `cancelWillCallCallback`. (Which lacks its `@Test`, and so is not run there. Here it is the thread that
/// cancels that calls the hook, before `cancel` returns.)
#[test]
fn cancel_calls_the_hook() {
    let (timer, mut driver, clock) = driven();
    for settled in [false, true] {
        let (end, events) = mpsc::channel();
        let timeout = timer.new_timeout_task(Told { end }, ms(90)).unwrap();
        assert_eq!(timer.pending_timeouts(), 1);
        if settled {
            driver.turn();
        }
        assert!(timeout.cancel());
        assert_eq!(events.try_recv(), Ok(("cancelled", thread::current().id())));
        clock.advance(ms(1_000));
        assert_eq!(driver.turn(), 0);
        assert!(is_over(&events), "it is not run, nor cancelled again");
    }
    assert_quiet(&timer);
}

/// Netty: `testPendingTimeoutsShouldBeCountedCorrectlyWhenTimeoutCancelledWithinGoalTick`. (Due in the same tick, the
/// first task cancels the others.)
#[test]
fn what_is_due_can_be_cancelled_until_its_own_turn() {
    let (timer, mut driver, clock) = driven();
    let (hand_over, others) = mpsc::channel::<Vec<Timeout>>();
    let (counted, counts) = mpsc::channel();
    let first = move |timeout: &Timeout| {
        let won = others.try_recv().unwrap().iter().filter(|other| other.cancel()).count();
        counted.send((won, timeout.timer().pending_timeouts())).unwrap();
    };
    timer.new_timeout(first, ms(200)).unwrap();
    let (end, ends) = mpsc::channel();
    let others = [(); 10].map(|()| timer.new_timeout_task(Told { end: end.clone() }, ms(200)).unwrap());
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
    assert!(is_over(&ends));
    assert_quiet(&timer);
}

/// Netty: `testPendingTimeoutsShouldBeCountedCorrectlyWhenTimeoutCancelledWithinGoalTick`, of the real thread. (Netty
/// waits until the worker goes on; here the count falls while the worker is stuck.)
#[test]
fn cancelling_counts_while_the_thread_is_stuck() {
    let timer = running();
    let (entered, stuck) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let first = move |_: &Timeout| {
        entered.send(()).unwrap();
        released.recv_timeout(TEST_TIMEOUT).unwrap();
    };
    timer.new_timeout(first, ms(100)).unwrap();
    // Behind the first one, whether in its tick or the next.
    let (end, ends) = mpsc::channel();
    let others = [(); 10].map(|()| timer.new_timeout_task(Told { end: end.clone() }, ms(100)).unwrap());
    stuck.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(timer.pending_timeouts(), 10);
    for (other, left) in others.iter().zip((0..10).rev()) {
        assert!(other.cancel());
        assert_eq!(timer.pending_timeouts(), left);
    }
    assert!(ends.try_iter().eq([("cancelled", thread::current().id()); 10]));
    release.send(()).unwrap();

    // When the worker has gone on, nothing has changed.
    timer.new_timeout_task(Told { end }, ms(1)).unwrap();
    assert_eq!(ends.recv_timeout(TEST_TIMEOUT).unwrap().0, "run");
    assert_eq!(timer.pending_timeouts(), 0);
    assert!(stop(&timer).is_empty());
    assert!(is_over(&ends));
    assert_quiet(&timer);
}
