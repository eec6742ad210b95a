//! tokio's own tests of `sleep`, `timeout` and `interval` (1.54.1: `tests/time_sleep.rs`,
//! `time_timeout.rs`, `time_interval.rs`), under their names and with their numbers, on a timer
//! with tokio's tick. `docs/ported-tests.md` lists those that were left out. These are written
//! differently:
//!
//! | test | difference | reason |
//! |---|---|---|
//! | `burst`, `delay`, `skip`, `reset*` | the ticks are counted | `async_code::an_interval_ticks_at_once_and_says_when_a_tick_was_due` compares their `Instant`s |
//! | `stream_with_interval_poll_tick_self_waking`, `…_no_waking` | one test without a stream: a poll that is ready leaves no waker | the two differ in the stream of the test alone |
//! | `reset_sleep_to_past` | also expects that the task is woken | tokio's test leaves it open |
//! | `deadline_now_elapses` | no millisecond passes before the poll | a deadline that is now has been reached, without rounding |
//! | `future_and_deadline_in_future`, `future_and_timeout_in_future`, `very_large_timeout` | a flag in place of a channel | the channel is not what they test |
//! | `timeout_is_not_exhausted_by_future` | a channel in place of `tokio::io::empty` | the tests do without tokio's `io`. Both consume tokio's budget |
#![cfg(feature = "async")]

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{self, ms};
use hashed_wheel::{HashedWheelTimer, Interval, MissedTick, Schedule, Sleep, TimeoutError};

/// Counts how often it is woken.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Task {
    fn is_woken(&self) -> bool {
        self.0.load(SeqCst) > 0
    }

    fn polls<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        common::poll(future, &Waker::from(Arc::clone(self)))
    }
}

/// A runtime on a paused clock.
struct Paused {
    driven: common::Driven,
    task: Arc<Task>,
}

impl Paused {
    fn new() -> Self {
        Self {
            driven: common::Driven::with(|builder| builder.tick(ms(1))),
            task: Arc::default(),
        }
    }

    fn timer(&self) -> &HashedWheelTimer {
        &self.driven.timer
    }

    fn now(&self) -> Instant {
        self.timer().now()
    }

    fn advance(&mut self, by: Duration) {
        self.driven.pass(by);
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        self.task.polls(future)
    }

    /// Runs a future that waits for nothing but the timer: tokio's auto-advance.
    fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = self.task.polls(&mut future) {
                return output;
            }
            let wait = self
                .driven
                .driver
                .next_turn()
                .expect("the future waits for the timer");
            self.advance(wait);
        }
    }

    /// tokio allows a millisecond more, too.
    #[track_caller]
    fn assert_elapsed(&self, since: Instant, expected: Duration) {
        let elapsed = self.now() - since;
        assert!(
            (expected..=expected + ms(1)).contains(&elapsed),
            "{elapsed:?}"
        );
    }

    /// The next `ready` polls return a tick, and the one after them does not.
    #[track_caller]
    fn check_ticks(&self, interval: &mut Interval, ready: usize) {
        for _ in 0..ready {
            assert!(poll_tick(interval, &self.task));
        }
        assert!(!poll_tick(interval, &self.task));
    }

    /// After a reset of an interval of 300 ms, one tick comes after `first`, and the next one a
    /// period later.
    #[track_caller]
    fn check_next_two_ticks(&mut self, interval: &mut Interval, first: Duration) {
        self.advance(first);
        self.check_ticks(interval, 1);
        self.advance(ms(100));
        self.check_ticks(interval, 0);
        self.advance(ms(200));
        self.check_ticks(interval, 1);
    }

    /// Returns an interval of 300 ms after its tick at 300 ms, at 400 ms.
    fn interval_at_400(&mut self) -> Interval {
        let start = self.now();
        self.advance(ms(1));
        let mut interval = self.timer().interval_at(start, ms(300));
        self.check_ticks(&mut interval, 1);
        self.advance(ms(100));
        self.check_ticks(&mut interval, 0);
        self.advance(ms(200));
        self.check_ticks(&mut interval, 1);
        self.advance(ms(100));
        self.check_ticks(&mut interval, 0);
        interval
    }
}

fn poll_tick(interval: &mut Interval, task: &Arc<Task>) -> bool {
    let waker = Waker::from(Arc::clone(task));
    match interval.poll_tick(&mut Context::from_waker(&waker)) {
        Poll::Ready(tick) => tick.map(|_| true).unwrap(),
        Poll::Pending => false,
    }
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

// --- time_sleep.rs -------------------------------------------------------------------------------

#[test]
fn immediate_sleep() {
    let mut t = Paused::new();
    let now = t.now();
    let sleep = t.timer().sleep_until(now);
    t.block_on(sleep).unwrap();
    t.assert_elapsed(now, ms(0));
}

#[test]
fn is_elapsed() {
    let mut t = Paused::new();
    let mut sleep = t.timer().sleep(ms(10));
    assert!(!sleep.is_elapsed());
    assert!(t.poll(&mut sleep).is_pending());
    assert!(!sleep.is_elapsed());
    t.block_on(&mut sleep).unwrap();
    assert!(sleep.is_elapsed());
}

#[test]
fn delayed_sleep_level_0() {
    let mut t = Paused::new();
    for millis in [1, 10, 60] {
        let now = t.now();
        let sleep = t.timer().sleep_until(now + ms(millis));
        t.block_on(sleep).unwrap();
        t.assert_elapsed(now, ms(millis));
    }
}

#[test]
fn sub_ms_delayed_sleep() {
    let mut t = Paused::new();
    for _ in 0..5 {
        let now = t.now();
        let sleep = t.timer().sleep_until(now + ms(1) + Duration::from_nanos(1));
        t.block_on(sleep).unwrap();
        t.assert_elapsed(now, ms(1));
    }
}

#[test]
fn delayed_sleep_wrapping_level_0() {
    let mut t = Paused::new();
    let sleep = t.timer().sleep(ms(5));
    t.block_on(sleep).unwrap();
    let now = t.now();
    let sleep = t.timer().sleep_until(now + ms(60));
    t.block_on(sleep).unwrap();
    t.assert_elapsed(now, ms(60));
}

#[test]
fn reset_future_sleep_before_fire() {
    let mut t = Paused::new();
    let now = t.now();
    let mut sleep = t.timer().sleep_until(now + ms(100));
    assert!(t.poll(&mut sleep).is_pending());
    sleep.reset_at(t.now() + ms(200));
    t.block_on(sleep).unwrap();
    t.assert_elapsed(now, ms(200));
}

#[test]
fn reset_past_sleep_before_turn() {
    let mut t = Paused::new();
    let now = t.now();
    let mut sleep = t.timer().sleep_until(now + ms(100));
    assert!(t.poll(&mut sleep).is_pending());
    sleep.reset_at(now + ms(80));
    t.block_on(sleep).unwrap();
    t.assert_elapsed(now, ms(80));
}

#[test]
fn reset_past_sleep_before_fire() {
    let mut t = Paused::new();
    let now = t.now();
    let mut sleep = t.timer().sleep_until(now + ms(100));
    assert!(t.poll(&mut sleep).is_pending());
    let other = t.timer().sleep(ms(10));
    t.block_on(other).unwrap();
    sleep.reset_at(now + ms(80));
    t.block_on(sleep).unwrap();
    t.assert_elapsed(now, ms(80));
}

#[test]
fn reset_future_sleep_after_fire() {
    let mut t = Paused::new();
    let now = t.now();
    let mut sleep = t.timer().sleep_until(now + ms(100));
    t.block_on(&mut sleep).unwrap();
    t.assert_elapsed(now, ms(100));
    sleep.reset_at(now + ms(110));
    t.block_on(sleep).unwrap();
    t.assert_elapsed(now, ms(110));
}

#[test]
fn reset_sleep_to_past() {
    let mut t = Paused::new();
    let now = t.now();
    let task = Arc::<Task>::default();
    let mut sleep = t.timer().sleep_until(now + ms(100));
    assert!(task.polls(&mut sleep).is_pending());
    let other = t.timer().sleep(ms(50));
    t.block_on(other).unwrap();
    assert!(!task.is_woken());
    sleep.reset_at(now + ms(40));
    assert!(task.is_woken(), "tokio wakes too, but may not have to");
    assert!(task.polls(&mut sleep).is_ready());
}

#[test]
fn greater_than_max() {
    let mut t = Paused::new();
    let sleep = t.timer().sleep_until(t.now() + YEAR * 5);
    t.block_on(sleep).unwrap();
}

#[test]
fn short_sleeps() {
    let mut t = Paused::new();
    for _ in 0..if cfg!(miri) { 10 } else { 10_000 } {
        let sleep = t.timer().sleep(ms(0));
        t.block_on(sleep).unwrap();
    }
}

#[test]
fn multi_long_sleeps() {
    let mut t = Paused::new();
    for _ in 0..5 {
        let sleep = t.timer().sleep(YEAR);
        t.block_on(sleep).unwrap();
    }
    let deadline = t.now() + YEAR * 10;
    let sleep = t.timer().sleep_until(deadline);
    t.block_on(sleep).unwrap();
    assert!(t.now() >= deadline);
}

#[test]
fn long_sleeps() {
    let mut t = Paused::new();
    let deadline = t.now() + YEAR * 10;
    let sleep = t.timer().sleep_until(deadline);
    t.block_on(sleep).unwrap();
    assert!(t.now() >= deadline && t.now() <= deadline + ms(1));
}

#[test]
fn reset_after_firing() {
    let mut t = Paused::new();
    let mut sleep = t.timer().sleep(ms(1));
    let deadline = sleep.deadline();
    t.block_on(&mut sleep).unwrap();
    assert!(t.poll(&mut sleep).is_ready());
    sleep.reset_at(t.now() + Duration::from_secs(600));
    assert_ne!(deadline, sleep.deadline());
    assert!(t.poll(&mut sleep).is_pending());
    assert!(t.poll(&mut sleep).is_pending());
}

/// The longest time of tokio's wheel.
const MAX_DURATION: Duration = ms((1 << 36) - 1);

#[test]
fn exactly_max() {
    let mut t = Paused::new();
    let sleep = t.timer().sleep(MAX_DURATION);
    t.block_on(sleep).unwrap();
}

#[test]
fn no_out_of_bounds_close_to_max() {
    let mut t = Paused::new();
    let sleep = t.timer().sleep(MAX_DURATION - ms(1));
    t.block_on(sleep).unwrap();
}

#[test]
fn issue_5183() {
    let mut t = Paused::new();
    let mut big = t.timer().sleep(Duration::from_secs(u64::MAX / 10));
    let mut short = t.timer().sleep(Duration::from_nanos(1));
    t.block_on(poll_fn(|context| match Pin::new(&mut big).poll(context) {
        Poll::Ready(_) => panic!("this sleep never ends"),
        Poll::Pending => Pin::new(&mut short).poll(context),
    }))
    .unwrap();
}

#[test]
fn drop_after_reschedule_at_new_scheduled_time() {
    let mut t = Paused::new();
    let start = t.now();
    let [mut a, mut b, mut c] = [5, 5, 10].map(|millis| t.timer().sleep(ms(millis)));
    for sleep in [&mut a, &mut b, &mut c] {
        assert!(t.poll(sleep).is_pending());
    }
    b.reset_at(start + ms(10));
    t.block_on(a).unwrap();
    drop(b);
    assert_eq!(t.timer().pending_timeouts(), 1);
}

#[test]
fn long_wait_sleep_does_not_break_other_timers() {
    let mut t = Paused::new();
    let mut long = t.timer().sleep(ms(10 << 36));
    assert!(t.poll(&mut long).is_pending());
    t.advance(ms((1 << 30) - 1));
    let start = t.now();
    let sleep = t.timer().sleep(ms(10));
    t.block_on(sleep).unwrap();
    t.assert_elapsed(start, ms(10));
}

#[test]
fn long_wait_sleep_does_not_corrupt_wheel() {
    let mut t = Paused::new();
    let mut long = t.timer().sleep(ms(10 << 36));
    assert!(t.poll(&mut long).is_pending());
    t.advance(ms((1 << 30) - 1));
    let [mut first, mut second] = [10, 20].map(|millis| t.timer().sleep(ms(millis)));
    assert!(t.poll(&mut first).is_pending() && t.poll(&mut second).is_pending());
    t.advance(ms(30));
    drop(first);
    t.advance(ms(1 << 31));
    drop(second);
    assert_eq!(t.timer().pending_timeouts(), 1);
}

#[test]
fn drop_from_wake() {
    /// Drops all sleeps, its own included.
    #[derive(Default)]
    struct DropsSleeps(Mutex<Vec<Sleep>>);

    impl Wake for DropsSleeps {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().clear();
        }
    }

    let mut t = Paused::new();
    let sleeps = Arc::<DropsSleeps>::default();
    let waker = Waker::from(Arc::clone(&sleeps));
    for _ in 0..100 {
        let mut sleep = t.timer().sleep(ms(10));
        assert!(common::poll(&mut sleep, &waker).is_pending());
        sleeps.0.lock().unwrap().push(sleep);
    }
    t.advance(ms(11));
    assert!(!sleeps.0.is_poisoned() && sleeps.0.lock().unwrap().is_empty());
    let counts = (t.timer().pending_timeouts(), t.timer().stats().panics);
    assert_eq!(counts, (0, 0));
}

#[test]
fn drop_from_waker_drop() {
    struct SleepOwner(#[expect(dead_code, reason = "only dropped")] Sleep);

    impl Wake for SleepOwner {
        fn wake(self: Arc<Self>) {}
    }

    let t = Paused::new();
    let [mut secondary, mut primary] = [(); 2].map(|()| t.timer().sleep(ms(3_600_000)));
    assert!(t.poll(&mut secondary).is_pending());
    let waker = Waker::from(Arc::new(SleepOwner(secondary)));
    assert!(common::poll(&mut primary, &waker).is_pending());
    drop(waker);
    drop(primary);
    assert_eq!(t.timer().pending_timeouts(), 0);
}

// --- time_timeout.rs -----------------------------------------------------------------------------

#[test]
fn simultaneous_deadline_future_completion() {
    let t = Paused::new();
    let mut future = Box::pin(t.timer().timeout_at(t.now(), async {}));
    assert!(matches!(t.poll(&mut future), Poll::Ready(Ok(()))));
}

#[test]
fn completed_future_past_deadline() {
    let mut t = Paused::new();
    t.advance(ms(1_000));
    let mut future = Box::pin(t.timer().timeout_at(t.now() - ms(1_000), async {}));
    assert!(matches!(t.poll(&mut future), Poll::Ready(Ok(()))));
}

/// A future that is ready once it is told so: tokio's tests use a channel.
type Gate = Box<dyn Future<Output = ()> + Unpin>;

fn gate() -> (Arc<AtomicUsize>, Gate) {
    let open = Arc::new(AtomicUsize::new(0));
    let is_open = Arc::clone(&open);
    let future = poll_fn(move |_| match is_open.load(SeqCst) {
        0 => Poll::Pending,
        _ => Poll::Ready(()),
    });
    (open, Box::new(future))
}

/// The future becomes ready at this time, which is before the deadline.
fn is_ready_in_time<F>(limit: impl FnOnce(&Paused, Gate) -> F, at: Duration)
where
    F: Future<Output = Result<(), TimeoutError>> + Unpin,
{
    let mut t = Paused::new();
    let (open, future) = gate();
    let mut future = limit(&t, future);
    assert!(t.poll(&mut future).is_pending());
    t.advance(at);
    assert!(t.poll(&mut future).is_pending());
    open.store(1, SeqCst);
    assert_eq!(t.poll(&mut future), Poll::Ready(Ok(())));
}

#[test]
fn future_and_deadline_in_future() {
    is_ready_in_time(
        |t, future| t.timer().timeout_at(t.now() + ms(100), future),
        ms(90),
    );
}

#[test]
fn future_and_timeout_in_future() {
    is_ready_in_time(|t, future| t.timer().timeout(ms(100), future), ms(90));
}

#[test]
fn very_large_timeout() {
    is_ready_in_time(
        |t, future| t.timer().timeout(Duration::MAX, future),
        YEAR * 10,
    );
}

#[test]
fn deadline_now_elapses() {
    let t = Paused::new();
    let mut future = t.timer().timeout_at(t.now(), pending::<()>());
    // tokio's test lets a millisecond pass here.
    assert_eq!(t.poll(&mut future), Poll::Ready(Err(TimeoutError::Elapsed)));
}

#[test]
fn deadline_future_elapses() {
    let mut t = Paused::new();
    let mut future = t.timer().timeout_at(t.now() + ms(300), pending::<()>());
    assert!(t.poll(&mut future).is_pending());
    t.advance(ms(301));
    assert!(t.task.is_woken());
    assert_eq!(t.poll(&mut future), Poll::Ready(Err(TimeoutError::Elapsed)));
}

/// On a runtime of tokio: the future is always ready, until it has used up tokio's budget.
#[test]
#[cfg_attr(miri, ignore = "needs a runtime")]
fn timeout_is_not_exhausted_by_future() {
    let result = common::ends(|| {
        let timer = HashedWheelTimer::new(ms(1), 64);
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(timer.timeout(ms(1), async {
                let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
                loop {
                    send.send(()).unwrap();
                    receive.recv().await;
                }
            }))
    });
    assert!(matches!(result, Err::<(), _>(TimeoutError::Elapsed)));
}

// --- time_interval.rs ----------------------------------------------------------------------------

/// Returns an interval of 300 ms from now with this policy, and a clock that is a millisecond
/// ahead.
fn interval_with(t: &mut Paused, policy: MissedTick) -> Interval {
    let schedule = Schedule::at_fixed_rate(ms(300))
        .start_at(t.now())
        .missed_tick(policy);
    t.advance(ms(1));
    t.timer().interval_on(schedule)
}

/// Advances the clock step by step, and checks how many ticks there are after each step.
fn check_steps(policy: MissedTick, steps: &[(u64, usize)]) {
    let mut t = Paused::new();
    let mut interval = interval_with(&mut t, policy);
    t.check_ticks(&mut interval, 1);
    for &(millis, ticks) in steps {
        t.advance(ms(millis));
        t.check_ticks(&mut interval, ticks);
    }
}

#[test]
fn burst() {
    check_steps(
        MissedTick::Burst,
        &[
            (100, 0),
            (200, 1),
            (650, 2),
            (200, 0),
            (100, 1),
            (250, 1),
            (300, 1),
        ],
    );
}

#[test]
fn delay() {
    check_steps(
        MissedTick::Delay,
        &[
            (100, 0),
            (200, 1),
            (650, 1),
            (100, 0),
            (201, 1),
            (300, 1),
            (300, 1),
        ],
    );
}

#[test]
fn skip() {
    check_steps(
        MissedTick::Skip,
        &[(100, 0), (200, 1), (650, 1), (250, 1), (300, 1), (300, 1)],
    );
}

#[test]
fn reset_doesnt_panic_max_duration() {
    let t = Paused::new();
    t.timer().interval(Duration::MAX).reset();
    t.timer().interval(Duration::MAX).reset();
}

#[test]
fn reset_after_doesnt_panic_max_duration() {
    Paused::new()
        .timer()
        .interval(ms(1))
        .reset_after(Duration::MAX);
}

#[test]
fn reset() {
    let mut t = Paused::new();
    let mut interval = t.interval_at_400();
    interval.reset();
    t.advance(ms(250));
    t.check_ticks(&mut interval, 0);
    t.advance(ms(50));
    t.check_ticks(&mut interval, 1);
    t.advance(ms(300));
    t.check_ticks(&mut interval, 1);
}

#[test]
fn reset_immediately() {
    let mut t = Paused::new();
    let mut interval = t.interval_at_400();
    interval.reset_immediately();
    t.check_next_two_ticks(&mut interval, Duration::ZERO);
}

#[test]
fn reset_after() {
    let mut t = Paused::new();
    let mut interval = t.interval_at_400();
    interval.reset_after(ms(20));
    t.check_next_two_ticks(&mut interval, ms(20));
}

#[test]
fn reset_at() {
    let mut t = Paused::new();
    let mut interval = t.interval_at_400();
    interval.reset_at(t.now() + ms(40));
    t.check_next_two_ticks(&mut interval, ms(40));
}

#[test]
fn reset_at_bigger_than_interval() {
    let mut t = Paused::new();
    let mut interval = t.interval_at_400();
    interval.reset_at(t.now() + ms(1_000));
    for _ in 0..3 {
        t.advance(ms(300));
        t.check_ticks(&mut interval, 0);
    }
    t.advance(ms(100));
    t.check_ticks(&mut interval, 1);
    t.advance(ms(300));
    t.check_ticks(&mut interval, 1);
}

/// tokio's two tests with a stream that polls an interval: a poll that is ready leaves no waker.
#[test]
fn stream_with_interval_poll_tick() {
    let mut t = Paused::new();
    let mut interval = t.timer().interval(ms(10));
    for _ in 0..4 {
        let wakes = t.task.0.load(SeqCst);
        assert!(poll_tick(&mut interval, &t.task));
        t.advance(ms(10));
        assert_eq!(t.task.0.load(SeqCst), wakes, "none after a ready poll");
    }
    assert!(poll_tick(&mut interval, &t.task) && !poll_tick(&mut interval, &t.task));
    t.advance(ms(10));
    assert!(t.task.is_woken());
}

#[test]
fn interval_doesnt_panic_max_duration_when_polling() {
    let t = Paused::new();
    let mut interval = t.timer().interval(Duration::MAX);
    t.check_ticks(&mut interval, 1);
}
