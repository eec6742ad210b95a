//! Futures on a timer whose clock moves only when the test moves it, with wakers that count their
//! calls. The tests on runtimes are in `async_runtimes.rs`.
#![cfg(feature = "async")]

use std::error::Error;
use std::future::{pending, poll_fn, ready};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{
    self, AsyncTask, Driven, FULL, STOPPED, Schedules, TEST_TIMEOUT, TICK, accepts_all, built,
    ends, eventually, ms, poll as poll_with, quietly,
};
use hashed_wheel::wheel::DelayQueue;
use hashed_wheel::{
    Driver, ExpiredTask, HashedWheelTimer, Interval, ManualClock, MissedTick, NewTimeoutError,
    Schedule, Sleep, TimeoutError, WithTimeout,
};

// --- tasks that poll -----------------------------------------------------------------------------

fn poll<F: Future + Unpin>(
    future: &mut F,
    task: &Arc<impl Wake + Send + Sync + 'static>,
) -> Poll<F::Output> {
    poll_with(future, &Waker::from(Arc::clone(task)))
}

/// An interval whose first tick is due after a period.
fn later(timer: &HashedWheelTimer, period: Duration) -> Interval {
    timer.interval_at(timer.now() + period, period)
}

fn tick(interval: &mut Interval, task: &Arc<AsyncTask>) -> Poll<Result<(), NewTimeoutError>> {
    interval
        .poll_tick(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
        .map_ok(|_| ())
}

fn is_ok<E>(poll: &Poll<Result<(), E>>) -> bool {
    matches!(poll, Poll::Ready(Ok(())))
}

fn is_stopped(poll: &Poll<Result<(), NewTimeoutError>>) -> bool {
    matches!(poll, Poll::Ready(Err(NewTimeoutError::Stopped)))
}

/// The recipe from the documentation: as long as the future is pending, the clock moves to the next
/// turn.
fn block_on<T>(driver: &mut Driver, clock: &ManualClock, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        clock.advance(
            driver
                .next_turn()
                .expect("the future waits for something other than the timer"),
        );
        driver.turn();
    }
}

// --- a sleep -------------------------------------------------------------------------------------

#[test]
fn a_sleep_is_woken_at_the_first_boundary_at_or_after_its_deadline() {
    for (delay, boundary) in [(1, 1), (9_999, 1), (10_000, 1), (10_001, 2), (80_001, 9)] {
        let (mut t, task) = (Driven::new(), AsyncTask::new());
        let mut sleep = t.timer.sleep(Duration::from_micros(delay));
        assert!(poll(&mut sleep, &task).is_pending());
        for _ in 1..boundary {
            assert_eq!(t.pass(TICK), 0, "{delay} µs");
        }
        let early = t.pass(TICK - Duration::from_nanos(1));
        assert_eq!(early, 0, "{delay} µs is not early");
        assert!(poll(&mut sleep, &task).is_pending() && !sleep.is_elapsed() && task.wakes() == 0);
        assert_eq!(t.pass(Duration::from_nanos(1)), 1, "{delay} µs is not late");
        assert!(task.wakes() == 1 && sleep.is_elapsed());
        assert!(is_ok(&poll(&mut sleep, &task)), "{delay} µs");
        assert!(is_ok(&poll(&mut sleep, &task)), "the result stays");
        assert_eq!((task.wakes(), t.pending()), (1, 0));
    }
}

#[test]
fn a_sleep_counts_from_its_creation_and_is_scheduled_at_the_first_poll() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let (mut first, mut second, never_polled) = (
        t.timer.sleep(TICK),
        t.timer.sleep(TICK * 3),
        t.timer.sleep(TICK),
    );
    assert_eq!((t.pending(), first.remaining()), (0, TICK));
    assert_eq!(t.pass(TICK * 2), 0);
    assert!(is_ok(&poll(&mut first, &task)), "no turn is needed");
    assert!(poll(&mut second, &task).is_pending());
    assert_eq!((t.pending(), second.remaining()), (1, TICK));
    assert_eq!(t.pass(TICK), 1);
    assert!(is_ok(&poll(&mut second, &task)));
    assert!(!never_polled.is_elapsed() && never_polled.remaining().is_zero());
    assert_eq!(t.stats().scheduled, 1);
}

#[test]
fn a_zero_sleep_is_ready_and_a_maximal_one_never_is() {
    let task = AsyncTask::new();
    let mut t = Driven::new();
    assert!(is_ok(&poll(&mut t.timer.sleep(Duration::ZERO), &task)));
    let mut never = t.timer.sleep(Duration::MAX);
    assert_eq!(never.remaining(), Duration::MAX);
    assert!(poll(&mut never, &task).is_pending());
    assert_eq!(t.pass(Duration::MAX), 0);
    assert!(poll(&mut never, &task).is_pending());

    // The same with the default clock.
    let timer = HashedWheelTimer::default();
    assert!(is_ok(&poll(&mut timer.sleep(Duration::ZERO), &task)));
}

#[test]
fn sleep_until_ends_at_an_instant() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let begin = t.timer.now();
    let mut sleep = t.timer.sleep_until(begin + TICK * 3);
    let seen = (sleep.remaining(), sleep.deadline());
    assert_eq!(seen, (TICK * 3, begin + TICK * 3));
    assert!(poll(&mut sleep, &task).is_pending());
    assert_eq!((t.pass(TICK * 2), t.pass(TICK)), (0, 1));
    assert!(
        is_ok(&poll(&mut t.timer.sleep_until(begin), &task)),
        "the instant has passed"
    );
    assert_eq!(t.timer.sleep_until(begin).deadline(), begin);
    assert_eq!(t.timer.sleep(Duration::ZERO).deadline(), t.timer.now());

    let timer = HashedWheelTimer::default();
    assert!(is_ok(&poll(&mut timer.sleep_until(Instant::now()), &task)));
    let hour = Duration::from_secs(3_600);
    let deadline = Instant::now() + hour;
    let left = timer.sleep_until(deadline).remaining();
    assert_eq!(timer.sleep_until(deadline).deadline(), deadline);
    assert!((hour - TEST_TIMEOUT..=hour).contains(&left), "{left:?}");
}

#[test]
fn a_second_poll_by_the_same_task_changes_nothing() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let mut sleep = t.timer.sleep(TICK * 2);
    for _ in 0..3 {
        assert!(poll(&mut sleep, &task).is_pending());
        assert_eq!(Arc::strong_count(&task), 2, "it holds one clone of it");
        t.turn();
    }
    // Miri gives one function several addresses, so the timer may see a different waker.
    assert!(t.stats().scheduled == 1 || cfg!(miri));
}

#[test]
fn a_sleep_wakes_the_task_that_polled_last() {
    for in_wheel in [false, true] {
        let (mut t, [first, second, third]) = (Driven::new(), [(); 3].map(|()| AsyncTask::new()));
        let mut sleep = t.timer.sleep(TICK * 2);
        for task in [&first, &second, &third] {
            assert!(poll(&mut sleep, task).is_pending());
            if in_wheel {
                assert_eq!(t.turn(), 0);
            }
            assert_eq!(t.pending(), 1);
        }
        let counts = [&first, &second, &third].map(Arc::strong_count);
        assert_eq!(counts, [1, 1, 2], "the earlier wakers are dropped");
        assert_eq!(t.pass(TICK), 0);
        assert_eq!(t.pass(TICK), 1, "the deadline has not changed");
        let wakes = [&first, &second, &third].map(|task| task.wakes());
        assert_eq!(wakes, [0, 0, 1]);
        assert!(is_ok(&poll(&mut sleep, &first)));
        assert_eq!(common::basics(&t.stats()), (3, 1, 2, 0));
        assert_eq!(t.next_turn(), None, "no entry of a cancelled one is left");
    }
}

#[test]
fn the_drop_of_a_sleep_cancels_immediately_and_wakes_no_task() {
    for turns in 0..3 {
        let (mut t, task) = (
            Driven::with(|builder| builder.max_pending_timeouts(Some(1))),
            AsyncTask::new(),
        );
        let mut sleep = t.timer.sleep(TICK * 2);
        assert!(poll(&mut sleep, &task).is_pending());
        for _ in 0..turns {
            t.pass(TICK);
        }
        assert_eq!(t.pending(), usize::from(turns < 2));
        drop(sleep);
        assert_eq!((t.pending(), Arc::strong_count(&task)), (0, 1));
        assert_eq!(task.wakes(), usize::from(turns == 2));
        assert!(
            poll(&mut t.timer.sleep(TICK), &task).is_pending(),
            "the place is free for another sleep"
        );
        assert_eq!(t.pass(TICK * 5), 0);
    }
}

#[test]
fn wake_ups_come_in_the_order_of_expiry() {
    struct Named(usize, Arc<Mutex<Vec<usize>>>);
    impl Wake for Named {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }
    let (mut t, log) = (Driven::new(), Arc::default());
    let named = |name| Arc::new(Named(name, Arc::clone(&log)));
    let mut sleeps: Vec<_> = [3, 1, 2, 1, 3]
        .map(|ticks| t.timer.sleep(TICK * ticks))
        .into_iter()
        .collect();
    for (name, sleep) in sleeps.iter_mut().enumerate() {
        assert!(poll(sleep, &named(name)).is_pending());
    }
    // A poll by another task moves the sleep behind the others of its tick.
    assert!(poll(&mut sleeps[1], &named(10)).is_pending());
    assert_eq!(t.pass(TICK * 5), 5);
    assert_eq!(*log.lock().unwrap(), [3, 10, 2, 0, 4]);
}

#[test]
fn a_sleep_may_be_reset_at_any_time() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let mut sleep = t.timer.sleep(TICK);
    // Reset before the first poll.
    sleep.reset(TICK * 5);
    assert_eq!((sleep.remaining(), t.pending()), (TICK * 5, 0));
    assert!(poll(&mut sleep, &task).is_pending());
    // Reset while waiting, to later and earlier, in the lane and in the wheel.
    for ticks in [9, 4, 8, 3] {
        sleep.reset(TICK * ticks);
        assert_eq!(sleep.remaining(), TICK * ticks);
        if ticks < 9 {
            t.turn();
        }
    }
    assert_eq!((t.pass(TICK * 2), t.pass(TICK)), (0, 1));
    let counts = (task.wakes(), t.stats().scheduled);
    assert_eq!(counts, (1, 1), "the timeout stays the same");
    // Reset after the deadline and before a poll has seen that.
    sleep.reset(TICK);
    assert!(!sleep.is_elapsed() && poll(&mut sleep, &task).is_pending());
    assert_eq!(t.pass(TICK), 1);
    assert!(is_ok(&poll(&mut sleep, &task)));
    // Reset after a poll has seen that the sleep is over.
    sleep.reset(TICK * 2);
    assert!(poll(&mut sleep, &task).is_pending());
    // A reset also holds if another task polls next.
    sleep.reset(TICK * 4);
    let other = AsyncTask::new();
    assert!(poll(&mut sleep, &other).is_pending());
    assert_eq!((t.pass(TICK * 3), t.pass(TICK)), (0, 1));
    assert_eq!((task.wakes(), other.wakes()), (2, 1));
    sleep.reset(Duration::ZERO);
    assert!(is_ok(&poll(&mut sleep, &task)));
    t.timer.stop();
    sleep.reset(TICK);
    assert!(is_stopped(&poll(&mut sleep, &task)));
}

/// The task that waits need not be the one that resets. It is woken immediately, and once.
#[test]
fn a_reset_to_a_time_that_has_passed_ends_a_sleep() {
    type Reset = fn(&mut Sleep, Instant);
    let resets: [Reset; 3] = [
        |sleep, _| sleep.reset(Duration::ZERO),
        |sleep, begin| sleep.reset_at(begin),
        |sleep, begin| sleep.reset_at(begin + TICK / 2),
    ];
    for (reset, in_wheel) in resets
        .into_iter()
        .flat_map(|reset| [(reset, false), (reset, true)])
    {
        let (mut t, task) = (Driven::new(), AsyncTask::new());
        let begin = t.timer.now();
        let [mut waits, mut idle, mut elapsed] = [9, 9, 0].map(|ticks| t.timer.sleep(TICK * ticks));
        assert!(is_ok(&poll(&mut elapsed, &task)));
        assert!(poll(&mut waits, &task).is_pending());
        t.turn_if(in_wheel);
        t.clock.advance(TICK / 2);
        for sleep in [&mut waits, &mut idle, &mut elapsed] {
            reset(sleep, begin);
            assert!(sleep.is_elapsed() && sleep.deadline() <= t.timer.now());
            assert!(is_ok(&poll(sleep, &AsyncTask::new())));
        }
        let stats = t.stats();
        assert_eq!((task.wakes(), stats.pending, stats.cancelled), (1, 0, 1));
        assert_eq!(Arc::strong_count(&task), 1);
        assert_eq!(t.pass(TICK * 9), 0);
        assert_eq!(task.wakes(), 1);
    }
}

/// Only a sleep that the timer had accepted before is ready.
#[test]
fn a_reset_to_a_time_that_has_passed_on_a_timer_that_ends() {
    let (t, task, (gate, wait)) = (Driven::new(), AsyncTask::new(), common::Gate::new());
    let [mut waits, mut other, mut idle, mut elapsed] =
        [9, 9, 9, 0].map(|ticks| t.timer.sleep(TICK * ticks));
    assert!(is_ok(&poll(&mut elapsed, &task)));
    assert!(poll(&mut waits, &task).is_pending() && poll(&mut other, &task).is_pending());
    // A due task holds up the shutdown.
    let timer = t.timer.clone();
    t.schedule(move |_| wait(), Duration::ZERO);
    t.clock.advance(TICK);
    let shutdown = std::thread::spawn(move || timer.shutdown(Duration::ZERO).len());
    gate.wait_for_arrival();
    for sleep in [&mut waits, &mut idle, &mut elapsed] {
        sleep.reset(Duration::ZERO);
    }
    assert!(waits.is_elapsed() && is_ok(&poll(&mut waits, &task)) && task.wakes() == 1);
    for sleep in [&mut idle, &mut elapsed] {
        assert!(!sleep.is_elapsed() && is_stopped(&poll(sleep, &task)));
    }
    gate.open();
    assert_eq!((shutdown.join().unwrap(), task.wakes()), (1, 2));
    other.reset(Duration::ZERO);
    assert!(is_stopped(&poll(&mut other, &task)));
}

#[test]
fn a_sleep_serves_a_queue_of_one_owner() {
    let t = Driven::new();
    let (timer, mut driver, clock) = (t.timer, t.driver, t.clock);
    let begin = timer.now();
    let mut queue = DelayQueue::new(timer.sleep(Duration::ZERO), ms(1));
    for millis in [35, 5, 20] {
        queue.insert(millis, ms(millis));
    }
    let seventh = queue.insert_at(7, begin + ms(30));
    queue.reset_at(&seventh, begin + ms(7));
    let mut due = Vec::new();
    let all = async {
        while let Some(expired) = poll_fn(|context| queue.poll_expired(context)).await {
            assert_eq!(expired.deadline(), begin + ms(*expired.get_ref()));
            due.push((expired.into_inner(), timer.now() - begin));
        }
    };
    block_on(&mut driver, &clock, all);
    // The ticks of the timer are longer than those of the queue.
    assert_eq!(due, [(5, TICK), (7, TICK), (20, TICK * 2), (35, TICK * 4)]);
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn a_queue_panics_if_its_timer_is_stopped() {
    let (t, task) = (Driven::new(), AsyncTask::new());
    let mut queue = DelayQueue::new(t.timer.sleep(Duration::ZERO), TICK);
    queue.insert((), TICK * 5);
    let waker = Waker::from(task.clone());
    let mut poll = || queue.poll_expired(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    t.timer.stop();
    assert_eq!(task.wakes(), 1);
    assert!(common::panics(poll));
}

#[test]
fn debug_output_shows_the_state() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let mut sleep = t.timer.sleep(ms(15));
    let text = format!("{sleep:?}");
    assert_eq!(text, "Sleep { state: idle, remaining: 15ms, .. }");
    assert!(poll(&mut sleep, &task).is_pending());
    let text = format!("{sleep:?}");
    assert_eq!(text, "Sleep { state: waiting, remaining: 15ms, .. }");
    t.pass(TICK * 2);
    assert!(is_ok(&poll(&mut sleep, &task)));
    let text = format!("{sleep:?}");
    assert_eq!(text, "Sleep { state: elapsed, remaining: 0ns, .. }");
    sleep.reset(Duration::MAX);
    let text = format!("{sleep:?}");
    assert_eq!(text, "Sleep { state: idle, remaining: forever, .. }");
    assert!(format!("{:?}", later(&t.timer, TICK)).starts_with("Interval { "));
    assert!(format!("{:?}", t.timer.timeout(TICK, ready(1))).starts_with("WithTimeout { "));
}

#[test]
fn futures_are_send_sync_unpin_and_static() {
    fn check_bounds<T: Send + Sync + Unpin + 'static>() {}
    check_bounds::<Sleep>();
    check_bounds::<Interval>();
    check_bounds::<WithTimeout<std::future::Ready<()>>>();
    fn check_send<T: Send>(_: T) {}
    let t = Driven::new();
    let (timer, mut interval) = (&t.timer, later(&t.timer, TICK));
    check_send(async move {
        timer.sleep(TICK).await.unwrap();
        interval.tick().await.unwrap();
        timer.timeout(TICK, async {}).await.unwrap();
    });
}

// --- the limit -----------------------------------------------------------------------------------

#[test]
fn a_full_timer_rejects_a_new_sleep_and_keeps_its_own() {
    let [first, second] = [(); 2].map(|()| AsyncTask::new());
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let (mut sleep, mut rejected) = (t.timer.sleep(TICK), t.timer.sleep(TICK));
    assert!(poll(&mut sleep, &first).is_pending());
    for _ in 0..2 {
        let full = poll(&mut rejected, &first);
        assert_eq!(full, Poll::Ready(Err(FULL)));
        let count = Arc::strong_count(&first);
        assert_eq!(count, 2, "the waker of the rejected sleep is dropped");
    }
    for task in [&second, &first, &second] {
        assert!(poll(&mut sleep, task).is_pending(), "it keeps its place");
        assert_eq!(t.pending(), 1);
        t.turn();
    }
    assert_eq!(t.pass(TICK), 1);
    let counts = (first.wakes(), second.wakes(), t.stats().rejected);
    assert_eq!(counts, (0, 1, 2));
    rejected.reset(TICK);
    assert!(poll(&mut rejected, &first).is_pending(), "it tries again");
}

// --- the end of the timer ------------------------------------------------------------------------

#[test]
fn a_stop_wakes_waiting_sleeps_with_an_error() {
    type Stop = fn(HashedWheelTimer, Driver);
    let cases: [Stop; 3] = [
        |timer, _driver| assert_eq!(timer.stop().len(), 2),
        |timer, _driver| drop(timer),
        |_timer, driver| drop(driver),
    ];
    for stop in cases {
        let (mut t, task) = (Driven::new(), AsyncTask::new());
        let (mut in_wheel, mut in_lane, mut idle) = (
            t.timer.sleep(TICK),
            t.timer.sleep(TICK),
            t.timer.sleep(TICK),
        );
        let mut elapsed = t.timer.sleep(TICK / 2);
        assert!(poll(&mut in_wheel, &task).is_pending());
        assert!(poll(&mut elapsed, &task).is_pending());
        in_wheel.reset(TICK * 3);
        assert_eq!(t.pass(TICK), 1);
        in_lane.reset(TICK);
        assert!(poll(&mut in_lane, &task).is_pending());
        assert_eq!(task.wakes(), 1);
        let (timer, driver, clock) = (t.timer, t.driver, t.clock);
        // The interval has no handle that could keep the timer running.
        let mut interval = later(&timer, TICK);
        stop(timer, driver);
        assert_eq!(task.wakes(), 3, "each that waits once, and the elapsed one");
        assert_eq!(Arc::strong_count(&task), 1);
        clock.advance(TICK * 10);
        for sleep in [&mut in_wheel, &mut in_lane, &mut idle] {
            for _ in 0..2 {
                assert!(is_stopped(&poll(sleep, &task)), "the stop decides");
            }
            assert!(!sleep.is_elapsed());
        }
        assert!(is_ok(&poll(&mut elapsed, &task)), "elapsed before the stop");
        assert!(is_stopped(&tick(&mut interval, &task)));
    }
}

/// The rejection starts with the shutdown and includes sleeps whose deadline has passed at their
/// first poll. An interval that was rejected once stays rejected.
#[test]
fn a_timer_that_is_shutting_down_rejects_every_first_poll() {
    let (timer, task) = (
        HashedWheelTimer::builder().tick(ms(1)).build().unwrap(),
        AsyncTask::new(),
    );
    let mut interval = later(&timer, ms(1));
    let mut accepted = timer.sleep(ms(500));
    assert!(poll(&mut accepted, &task).is_pending());
    let other = timer.clone();
    let shutdown = std::thread::spawn(move || other.shutdown(TEST_TIMEOUT));
    eventually("the shutdown begins", || timer.start().is_err());
    assert!(is_stopped(&poll(&mut timer.sleep(ms(1)), &task)));
    assert!(is_stopped(&poll(&mut timer.sleep(Duration::ZERO), &task)));
    for _ in 0..3 {
        assert!(is_stopped(&tick(&mut interval, &task)));
        std::thread::sleep(ms(2));
    }
    // A sleep that was accepted before the shutdown completes.
    assert_eq!(shutdown.join().unwrap(), []);
    assert!(is_ok(&poll(&mut accepted, &task)));
}

/// A stop ends a timeout and its wake-up may reach a future that another task polls.
#[test]
fn a_poll_by_another_task_after_a_stop_returns_the_error() {
    let (t, [first, second]) = (Driven::new(), [(); 2].map(|()| AsyncTask::new()));
    let mut sleep = t.timer.sleep(TICK);
    assert!(poll(&mut sleep, &first).is_pending());
    t.timer.stop();
    assert!(is_stopped(&poll(&mut sleep, &second)));
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    assert_eq!([&first, &second].map(Arc::strong_count), [1, 1]);
}

// --- wakers --------------------------------------------------------------------------------------

/// The woken task polls immediately, on the thread that wakes it, and drops the sleep that it
/// waited for.
#[test]
fn a_waker_may_poll_and_drop_its_future() {
    struct Inline {
        sleep: Mutex<Option<Sleep>>,
        polls: AtomicUsize,
        outcome: Mutex<Option<Result<(), NewTimeoutError>>>,
    }
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            let mut sleep = self.sleep.lock().unwrap().take().unwrap();
            self.polls.fetch_add(1, SeqCst);
            match poll(&mut sleep, &self) {
                Poll::Ready(outcome) => *self.outcome.lock().unwrap() = Some(outcome),
                Poll::Pending => *self.sleep.lock().unwrap() = Some(sleep),
            }
        }
    }
    for stops in [false, true] {
        let mut t = Driven::new();
        let inline = Arc::new(Inline {
            sleep: Mutex::new(Some(t.timer.sleep(TICK))),
            polls: AtomicUsize::new(0),
            outcome: Mutex::new(None),
        });
        Arc::clone(&inline).wake();
        if stops {
            assert_eq!(t.timer.stop().len(), 1);
        } else {
            assert_eq!(t.pass(TICK), 1);
        }
        let outcome = inline.outcome.lock().unwrap().take().unwrap();
        assert_eq!(outcome.is_err(), stops);
        let counts = (inline.polls.load(SeqCst), Arc::strong_count(&inline));
        assert_eq!(counts, (2, 1));
        assert_eq!(t.stats().panics, 0);
    }
}

/// A waker that panics on demand, and counts the calls that do not panic.
#[derive(Default)]
struct PanickingWaker {
    on_clone: AtomicBool,
    on_wake: AtomicBool,
    on_drop: AtomicBool,
    wakes: AtomicUsize,
    clones: AtomicUsize,
}

#[allow(unsafe_code, reason = "no safe waker has a clone or a drop of its own")]
impl PanickingWaker {
    fn waker(&'static self) -> Waker {
        fn this(data: *const ()) -> &'static PanickingWaker {
            // SAFETY: `waker` is the only function that uses this table, and `data` is its
            // `&'static self`.
            unsafe { &*data.cast::<PanickingWaker>() }
        }
        const TABLE: RawWakerVTable = RawWakerVTable::new(
            |data| {
                assert!(!this(data).on_clone.swap(false, SeqCst), "a clone");
                this(data).clones.fetch_add(1, SeqCst);
                RawWaker::new(data, &TABLE)
            },
            |data| {
                this(data).clones.fetch_sub(1, SeqCst);
                assert!(!this(data).on_wake.swap(false, SeqCst), "a wake-up");
                this(data).wakes.fetch_add(1, SeqCst);
            },
            |_| unreachable!(),
            |data| {
                this(data).clones.fetch_sub(1, SeqCst);
                assert!(!this(data).on_drop.swap(false, SeqCst), "a drop");
            },
        );
        self.clones.fetch_add(1, SeqCst);
        // SAFETY: `self` is valid for the static lifetime and `Sync`. The functions of the table
        // keep the contract of `RawWaker`.
        unsafe { Waker::from_raw(RawWaker::new(std::ptr::from_ref(self).cast(), &TABLE)) }
    }

    fn new() -> &'static Self {
        // Leaked, but reachable from a static, so that Miri and the leak sanitizer do not report
        // it.
        static ALL: Mutex<Vec<&PanickingWaker>> = Mutex::new(Vec::new());
        let new = Box::leak(Box::default());
        ALL.lock().unwrap().push(new);
        new
    }

    fn clones(&self) -> usize {
        self.clones.load(SeqCst)
    }
}

#[test]
fn a_future_that_another_thread_drops_does_not_wake_its_task() {
    let (t, task) = (Driven::new(), AsyncTask::new());
    let mut sleep = t.timer.sleep(TICK);
    assert!(poll(&mut sleep, &task).is_pending());
    std::thread::spawn(move || drop(sleep)).join().unwrap();
    assert_eq!((task.wakes(), t.pending()), (0, 0));
}

#[test]
fn a_panic_in_the_clone_of_a_waker_changes_nothing() {
    let (mut t, task, panicking) = (Driven::new(), AsyncTask::new(), PanickingWaker::new());
    let waker = panicking.waker();
    let mut sleep = t.timer.sleep(TICK);
    let poll_panics = |sleep: &mut Sleep| {
        panicking.on_clone.store(true, SeqCst);
        let poll = std::panic::AssertUnwindSafe(|| poll_with(sleep, &waker));
        assert!(quietly(|| std::panic::catch_unwind(poll)).is_err());
    };
    poll_panics(&mut sleep);
    assert_eq!((t.pending(), panicking.clones()), (0, 1));
    assert!(poll(&mut sleep, &task).is_pending());
    poll_panics(&mut sleep);
    assert_eq!((t.pending(), t.stats().scheduled), (1, 1));
    let counts = (t.pass(TICK), task.wakes());
    assert_eq!(counts, (1, 1), "the earlier waker is still registered");
}

#[test]
fn a_panic_in_a_waker_affects_no_other_sleep() {
    for stops in [false, true] {
        let (mut t, panicking) = (Driven::new(), PanickingWaker::new());
        let tasks = [(); 2].map(|()| AsyncTask::new());
        let mut sleeps = [(); 3].map(|()| t.timer.sleep(TICK));
        assert!(poll(&mut sleeps[0], &tasks[0]).is_pending());
        assert!(poll_with(&mut sleeps[1], &panicking.waker()).is_pending());
        assert!(poll(&mut sleeps[2], &tasks[1]).is_pending());
        panicking.on_wake.store(true, SeqCst);
        quietly(|| {
            if stops {
                assert_eq!(t.timer.stop().len(), 3);
            } else {
                assert_eq!(t.pass(TICK), 3);
            }
        });
        assert_eq!(tasks.map(|task| task.wakes()), [1, 1]);
        let counts = (t.stats().panics, t.pending(), panicking.clones());
        assert_eq!(counts, (1, 0, 0));
        for sleep in &mut sleeps {
            assert_eq!(is_stopped(&poll_with(sleep, Waker::noop())), stops);
        }
    }
}

#[test]
fn a_panic_in_the_drop_of_a_waker_is_caught() {
    type Drops = fn(&mut Driven, Sleep);
    let cases: [Drops; 2] = [
        // The waker is dropped with the future, and when another waker replaces it.
        |_, sleep| drop(sleep),
        |t, mut sleep| {
            let task = AsyncTask::new();
            assert!(poll(&mut sleep, &task).is_pending());
            assert_eq!((t.pass(TICK), task.wakes()), (1, 1));
        },
    ];
    for drops in cases {
        let (mut t, panicking) = (Driven::new(), PanickingWaker::new());
        let mut sleep = t.timer.sleep(TICK);
        assert!(poll_with(&mut sleep, &panicking.waker()).is_pending());
        panicking.on_drop.store(true, SeqCst);
        quietly(|| drops(&mut t, sleep));
        assert_eq!((panicking.clones(), panicking.wakes.load(SeqCst)), (0, 0));
        assert_eq!((t.stats().panics, t.pending()), (1, 0));
    }
    // The waker is dropped when its timeout is rejected.
    let (t, panicking) = (
        Driven::with(|builder| builder.max_pending_timeouts(Some(1))),
        PanickingWaker::new(),
    );
    let [mut first, mut rejected] = [(); 2].map(|()| t.timer.sleep(TICK));
    assert!(poll_with(&mut first, Waker::noop()).is_pending());
    let waker = panicking.waker();
    panicking.on_drop.store(true, SeqCst);
    let full = quietly(|| poll_with(&mut rejected, &waker));
    assert!(matches!(
        full,
        Poll::Ready(Err(NewTimeoutError::TooManyPending { .. }))
    ));
    let counts = (panicking.clones(), t.stats().panics, t.pending());
    assert_eq!(counts, (1, 1, 1));
}

/// The executor may be full, and a wake-up must not be lost.
#[test]
fn wakers_do_not_go_through_the_task_executor() {
    let rejected = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&rejected);
    let reject = move |task: ExpiredTask| {
        counter.fetch_add(1, SeqCst);
        drop(task);
    };
    let mut t = Driven::with(|builder| builder.task_executor(accepts_all(reject)));
    let task = AsyncTask::new();
    let mut sleep = t.timer.sleep(TICK);
    assert!(poll(&mut sleep, &task).is_pending());
    t.schedule(|_| unreachable!(), TICK);
    assert_eq!(t.pass(TICK), 2);
    assert!(task.wakes() == 1 && is_ok(&poll(&mut sleep, &task)));
    assert_eq!((rejected.load(SeqCst), t.stats().dropped_tasks), (1, 1));
}

#[test]
fn a_poll_wakes_a_loop_that_announced_a_longer_sleep() {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let t = Driven::with(|builder| builder.waker(move || _ = counter.fetch_add(1, SeqCst)));
    let [first, second] = [(); 2].map(|()| AsyncTask::new());
    let mut sleep = t.timer.sleep(TICK * 3);
    assert_eq!((t.next_turn(), wakes.load(SeqCst)), (None, 0));
    assert!(poll(&mut sleep, &first).is_pending());
    assert_eq!(wakes.load(SeqCst), 1);
    assert_eq!(t.next_turn(), Some(TICK * 3));
    assert!(poll(&mut sleep, &second).is_pending());
    assert_eq!(wakes.load(SeqCst), 1, "it wakes in time for that one");
    drop(sleep);
    assert_eq!(wakes.load(SeqCst), 1, "a cancel needs no turn");
}

// --- a timeout -----------------------------------------------------------------------------------

#[test]
fn a_future_completes_before_its_deadline_or_fails() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let is_done = AtomicBool::new(false);
    let work = || {
        poll_fn(|_| {
            if is_done.load(SeqCst) {
                Poll::Ready("done")
            } else {
                Poll::Pending
            }
        })
    };

    // Ready at the first poll: nothing is scheduled.
    assert!(matches!(
        poll(&mut t.timer.timeout(TICK, ready(1)), &task),
        Poll::Ready(Ok(1))
    ));
    assert_eq!(t.stats().scheduled, 0);
    // Completed in time, which cancels the timeout.
    let mut in_time = t.timer.timeout(TICK * 2, work());
    assert!(poll(&mut in_time, &task).is_pending());
    t.pass(TICK);
    is_done.store(true, SeqCst);
    assert!(matches!(poll(&mut in_time, &task), Poll::Ready(Ok("done"))));
    let counts = (t.pending(), Arc::strong_count(&task), task.wakes());
    assert_eq!(counts, (0, 1, 0));
    // Completed and elapsed at the same poll.
    is_done.store(false, SeqCst);
    let mut both = t.timer.timeout(TICK, work());
    assert!(poll(&mut both, &task).is_pending());
    assert_eq!(t.pass(TICK), 1);
    is_done.store(true, SeqCst);
    assert!(matches!(poll(&mut both, &task), Poll::Ready(Ok("done"))));
    // Elapsed.
    is_done.store(false, SeqCst);
    let mut late = t.timer.timeout(TICK, work());
    assert!(poll(&mut late, &task).is_pending());
    assert_eq!(t.pass(TICK), 1);
    assert!(matches!(
        poll(&mut late, &task),
        Poll::Ready(Err(TimeoutError::Elapsed))
    ));
    is_done.store(true, SeqCst);
    assert!(
        matches!(poll(late.get_mut(), &task), Poll::Ready("done")),
        "the inner future still exists"
    );
    assert_eq!(poll(&mut late.into_inner(), &task), Poll::Ready("done"));
}

#[test]
fn a_timeout_that_cannot_be_scheduled_returns_an_error() {
    let (t, task) = (
        Driven::with(|builder| builder.max_pending_timeouts(Some(1))),
        AsyncTask::new(),
    );
    let [mut first, mut second] =
        [(); 2].map(|()| Box::pin(t.timer.timeout(TICK, pending::<()>())));
    assert!(poll(&mut first, &task).is_pending());
    let Poll::Ready(Err(full)) = poll(&mut second, &task) else {
        panic!("the timeout was not rejected")
    };
    assert_eq!(full, TimeoutError::Timer(FULL));
    let reason = "the timer cannot limit the time: too many timeouts are pending: the limit is 1";
    assert_eq!(full.to_string(), reason);
    assert_eq!(io::Error::from(full).kind(), io::ErrorKind::QuotaExceeded);
    t.timer.stop();
    assert_eq!(task.wakes(), 1);
    let stopped = poll(&mut first, &task);
    assert_eq!(stopped, Poll::Ready(Err(TimeoutError::Timer(STOPPED))));
    assert!(matches!(
        poll(&mut t.timer.timeout(TICK, ready(1)), &task),
        Poll::Ready(Ok(1))
    ));

    let elapsed = TimeoutError::Elapsed;
    assert!(elapsed.to_string() == "the deadline has elapsed" && elapsed.source().is_none());
    assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
}

#[test]
fn the_error_of_a_sleep_converts_to_the_error_of_a_timeout() {
    async fn sleep_then_timeout(timer: &HashedWheelTimer) -> Result<(), TimeoutError> {
        timer.sleep(TICK).await?;
        timer.timeout(TICK, ready(())).await
    }
    let (t, task) = (Driven::new(), AsyncTask::new());
    let mut future = Box::pin(sleep_then_timeout(&t.timer));
    assert!(poll(&mut future, &task).is_pending());
    t.timer.stop();
    let stopped = poll(&mut future, &task);
    assert_eq!(stopped, Poll::Ready(Err(TimeoutError::Timer(STOPPED))));
}

// --- an interval ---------------------------------------------------------------------------------

/// Returns the times of the ticks in ms. The task works this long after each tick.
fn ticks_of(schedule: Schedule, work: &[u64]) -> Vec<u64> {
    let t = Driven::with(|builder| builder.tick(ms(1)));
    let (timer, mut driver, clock) = (t.timer, t.driver, t.clock);
    let mut interval = timer.interval_on(schedule);
    let begin = hashed_wheel::Clock::now(&clock);
    let time = clock.clone();
    block_on(&mut driver, &clock, async {
        let mut ticks = Vec::new();
        for &work in work {
            interval.tick().await.unwrap();
            ticks.push((hashed_wheel::Clock::now(&time) - begin).as_millis() as u64);
            time.advance(ms(work));
        }
        ticks
    })
}

#[test]
fn an_interval_ticks_at_once_and_says_when_a_tick_was_due() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let begin = t.timer.now();
    let mut interval = t.timer.interval(TICK);
    let mut next = || interval.poll_tick(&mut Context::from_waker(&Waker::from(Arc::clone(&task))));
    assert!(matches!(next(), Poll::Ready(Ok(due)) if due == begin));
    assert!(next().is_pending());
    t.pass(TICK * 5 / 2);
    for ticks in [1, 2] {
        assert!(
            matches!(next(), Poll::Ready(Ok(due)) if due == begin + TICK * ticks),
            "{ticks}"
        );
    }
    assert!(next().is_pending());
}

#[test]
fn an_interval_does_not_drift() {
    let second = Schedule::at_fixed_rate(ms(1_000));
    assert_eq!(ticks_of(second, &[0, 0, 0]), [1_000, 2_000, 3_000]);
    let ticks = ticks_of(second, &[999, 1, 500, 0]);
    assert_eq!(ticks, [1_000, 2_000, 3_000, 4_000]);
    let ticks = ticks_of(second.initial_delay(ms(0)), &[0, 0, 0]);
    assert_eq!(ticks, [0, 1_000, 2_000]);
}

#[test]
fn missed_ticks_follow_the_policy() {
    let on = |policy| Schedule::at_fixed_rate(ms(10)).missed_tick(policy);
    let work = [0, 35, 0, 2, 0, 0];
    let ticks = ticks_of(on(MissedTick::Burst), &work);
    assert_eq!(ticks, [10, 20, 55, 55, 57, 60]);
    let ticks = ticks_of(on(MissedTick::Delay), &work);
    assert_eq!(ticks, [10, 20, 55, 65, 75, 85]);
    let ticks = ticks_of(on(MissedTick::Skip), &work);
    assert_eq!(ticks, [10, 20, 55, 60, 70, 80]);
    let ticks = ticks_of(Schedule::with_fixed_delay(ms(10)), &work);
    assert_eq!(ticks, [10, 20, 65, 75, 87, 97]);
    let jitter = ticks_of(
        on(MissedTick::Skip).jitter(ms(5)),
        &[0; if cfg!(miri) { 5 } else { 100 }],
    );
    assert!(
        (1..)
            .zip(&jitter)
            .all(|(n, tick)| (10 * n..=10 * n + 5).contains(tick)),
        "{jitter:?}"
    );
}

/// An interval that is not awaited has no timeout on the timer, but its tick still becomes due.
#[test]
fn a_due_tick_is_returned_at_the_next_poll() {
    for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
        let (mut t, task) = (Driven::new(), AsyncTask::new());
        let mut interval = t
            .timer
            .interval_on(Schedule::at_fixed_rate(TICK).missed_tick(policy));
        for _ in 1..=5 {
            t.pass(TICK);
            assert!(is_ok(&tick(&mut interval, &task)), "{policy:?}: it is due");
        }
        t.pass(TICK * 5 / 2);
        assert!(is_ok(&tick(&mut interval, &task)), "{policy:?}: it is late");
        let again = is_ok(&tick(&mut interval, &task));
        assert_eq!(again, policy == MissedTick::Burst, "{policy:?}: missed");
    }
}

/// For periods shorter than a tick of the timer, and for any phase within it.
#[test]
fn a_delay_is_made_up_for_by_at_most_one_tick() {
    for policy in [MissedTick::Delay, MissedTick::Skip] {
        for (begin, period, late_by) in [
            (0, TICK / 10, TICK * 29 / 10),
            (5, TICK / 5, TICK * 2),
            (5, TICK, TICK * 2),
        ] {
            let (mut t, task) = (Driven::new(), AsyncTask::new());
            t.pass(ms(begin));
            let mut interval = t
                .timer
                .interval_on(Schedule::at_fixed_rate(period).missed_tick(policy));
            t.pass(late_by);
            assert!(is_ok(&tick(&mut interval, &task)), "{policy:?}: it is late");
            assert!(
                tick(&mut interval, &task).is_pending(),
                "{policy:?}, {period:?}: a second tick follows immediately"
            );
        }
    }
}

/// A tick future that is dropped before it completes does not consume the tick.
#[test]
fn a_dropped_tick_future_does_not_lose_its_tick() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let mut interval = later(&t.timer, TICK);
    for n in 1..=3 {
        for _ in 0..2 {
            let mut next = Box::pin(interval.tick());
            assert!(poll(&mut next, &task).is_pending());
        }
        assert_eq!((t.pass(TICK), task.wakes()), (1, n));
        // The tick future was woken, and is dropped before a poll.
        drop(Box::pin(interval.tick()));
        assert!(is_ok(&tick(&mut interval, &task)));
    }
    assert_eq!(t.pending(), 0, "a timeout only while a task waits");
    drop(interval);
    assert_eq!(Arc::strong_count(&task), 1);
}

/// tokio's tests of these methods are in `tokio.rs`.
#[test]
fn a_reset_of_an_interval_moves_the_tick_that_a_task_waits_for() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let mut interval = later(&t.timer, TICK * 10);
    assert_eq!(interval.period(), TICK * 10);
    assert!(tick(&mut interval, &task).is_pending());
    t.pass(TICK * 5);
    interval.reset();
    assert_eq!((t.pass(TICK * 9), t.pass(TICK), task.wakes()), (0, 1, 1));
    assert!(is_ok(&tick(&mut interval, &task)) && tick(&mut interval, &task).is_pending());
    interval.reset_after(TICK);
    assert_eq!((t.pass(TICK), task.wakes()), (1, 2));
    // Before the tick is polled.
    interval.reset_at(t.timer.now() + TICK * 3);
    assert!(tick(&mut interval, &task).is_pending());
    assert_eq!((t.pass(TICK * 2), t.pass(TICK), task.wakes()), (0, 1, 3));
    assert!(is_ok(&tick(&mut interval, &task)) && tick(&mut interval, &task).is_pending());
    interval.reset_immediately();
    let counts = (task.wakes(), t.pending());
    assert_eq!(counts, (4, 0), "the task is woken by the call");
    assert!(is_ok(&tick(&mut interval, &task)) && tick(&mut interval, &task).is_pending());
    interval.reset_after(Duration::MAX);
    assert_eq!(t.pass(TICK * 1_000), 0);

    let mut zero = t.timer.interval_at(t.timer.now(), Duration::ZERO);
    zero.reset_immediately();
    zero.reset();
    assert_eq!(zero.period(), Duration::ZERO);
    assert!(matches!(
        tick(&mut zero, &task),
        Poll::Ready(Err(NewTimeoutError::ZeroPeriod))
    ));
}

#[test]
fn an_interval_follows_its_schedule_after_a_reset() {
    // Ticks that were missed before the reset are forgotten, and others are not.
    for (policy, ready) in [
        (MissedTick::Burst, 3),
        (MissedTick::Delay, 1),
        (MissedTick::Skip, 1),
    ] {
        let (mut t, task) = (Driven::new(), AsyncTask::new());
        let schedule = Schedule::at_fixed_rate(TICK)
            .start_at(t.timer.now())
            .missed_tick(policy);
        let mut interval = t.timer.interval_on(schedule);
        t.pass(TICK * 9 / 2);
        interval.reset_immediately();
        assert!(is_ok(&tick(&mut interval, &task)) && tick(&mut interval, &task).is_pending());
        interval.reset_at(t.timer.now() - TICK * 2);
        for _ in 0..ready {
            assert!(is_ok(&tick(&mut interval, &task)), "{policy:?}");
        }
        assert!(tick(&mut interval, &task).is_pending(), "{policy:?}");
    }

    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let mut delay = t.timer.interval_on(Schedule::with_fixed_delay(TICK * 3));
    delay.reset_after(TICK);
    t.pass(TICK * 2);
    assert!(is_ok(&tick(&mut delay, &task)) && tick(&mut delay, &task).is_pending());
    let seen = (delay.period(), t.pass(TICK * 2), t.pass(TICK));
    assert_eq!(seen, (TICK * 3, 0, 1));

    let jitter = Schedule::at_fixed_rate(TICK * 20).jitter(TICK * 4);
    let mut interval = t.timer.interval_on(jitter);
    let mut waits = Vec::new();
    for _ in 0..20 {
        interval.reset_immediately();
        let begin = t.timer.now();
        block_on(&mut t.driver, &t.clock, interval.tick()).unwrap();
        waits.push(t.timer.now() - begin);
    }
    assert!(
        waits.iter().all(|wait| *wait <= TICK * 5) && waits.iter().any(|wait| !wait.is_zero()),
        "{waits:?}"
    );
}

#[test]
fn an_interval_returns_errors() {
    let (t, task) = (
        Driven::with(|builder| builder.max_pending_timeouts(Some(1))),
        AsyncTask::new(),
    );
    let mut zero = t.timer.interval(Duration::ZERO);
    for _ in 0..2 {
        assert!(matches!(
            tick(&mut zero, &task),
            Poll::Ready(Err(NewTimeoutError::ZeroPeriod))
        ));
    }
    let mut interval = later(&t.timer, TICK);
    let occupied = t.schedule(|_| (), TICK);
    let full = tick(&mut interval, &task);
    assert_eq!(full, Poll::Ready(Err(FULL)));
    occupied.cancel();
    assert!(tick(&mut interval, &task).is_pending(), "it tries again");
    t.timer.stop();
    assert_eq!(task.wakes(), 1);
    for _ in 0..2 {
        assert!(is_stopped(&tick(&mut interval, &task)));
    }
}

/// With a worker thread, and a minimal executor that parks its thread.
#[test]
fn a_sleep_wakes_an_executor_that_parks_its_thread() {
    struct Parked(std::thread::Thread);
    impl Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Parked(std::thread::current())));
        let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    }
    ends(|| {
        let timer = HashedWheelTimer::builder().tick(ms(1)).build().unwrap();
        let begin = Instant::now();
        block_on(async {
            timer.sleep(ms(20)).await.unwrap();
            let mut interval = later(&timer, ms(10));
            for _ in 0..3 {
                interval.tick().await.unwrap();
            }
            assert!(begin.elapsed() >= ms(50), "early");
            let late = timer.timeout(ms(10), pending::<()>()).await;
            assert!(matches!(late, Err(TimeoutError::Elapsed)));
            let stopper = timer.clone();
            let task = move |_: &_| drop(std::thread::spawn(move || stopper.stop()));
            timer.schedule(task, ms(10));
            let stopped = timer.sleep(TEST_TIMEOUT * 2).await;
            assert!(matches!(stopped, Err(NewTimeoutError::Stopped)));
        });
        assert!(begin.elapsed() >= ms(70));
    });
}

/// Two threads poll the same future alternately, each with its own waker, while a worker runs. No
/// wake-up is lost.
#[test]
fn a_sleep_polled_by_two_threads_is_woken() {
    ends(|| {
        let timer = built(|builder| builder.tick(Duration::from_micros(50)));
        let begin = Instant::now();
        for iteration in 0..if cfg!(miri) { 5 } else { 2_000 } {
            // On some systems a thread cannot sleep for less than 15 ms.
            if begin.elapsed() > TEST_TIMEOUT / 3 {
                break;
            }
            let sleep = Arc::new(Mutex::new(
                timer.sleep(Duration::from_micros(iteration % 150)),
            ));
            let tasks = [AsyncTask::new(), AsyncTask::new()];
            // The task that was the last to find the sleep pending is woken.
            let last = Arc::new(Mutex::new(None));
            let threads = [0, 1].map(|index| {
                let (sleep, last, task) = (
                    Arc::clone(&sleep),
                    Arc::clone(&last),
                    Arc::clone(&tasks[index]),
                );
                std::thread::spawn(move || {
                    for _ in 0..4 {
                        let mut sleep = sleep.lock().unwrap();
                        *last.lock().unwrap() =
                            poll(&mut *sleep, &task).is_pending().then_some(index);
                    }
                })
            });
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            if let Some(last) = *last.lock().unwrap() {
                while tasks[last].wakes() == 0 {
                    std::thread::yield_now();
                }
                assert!(is_ok(&poll(&mut *sleep.lock().unwrap(), &tasks[0])));
            }
        }
        assert_eq!(timer.pending_timeouts(), 0);
    });
}
