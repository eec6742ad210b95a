//! On a paused clock. The test moves it, or it moves by itself when all tasks wait.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::super::Task;
use super::time::{self, Duration, Instant, Interval, MissedTickBehavior, Sleep};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The clock has moved by `expected`, or by the millisecond more to which tokio rounds up.
#[track_caller]
fn assert_elapsed(since: Instant, expected: Duration) {
    let elapsed = since.elapsed();
    let range = expected..=expected + ms(1);
    assert!(range.contains(&elapsed), "{elapsed:?}, not {expected:?}");
}

// --- sleep ---------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_paused_clock_stands_still() {
    let now = Instant::now();
    for _ in 0..3 {
        std::thread::sleep(ms(1));
        assert_eq!(Instant::now(), now);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_until_now_is_elapsed_once_it_was_awaited() {
    let now = Instant::now();
    let mut sleep = pin!(time::sleep_until(now));
    assert!(!sleep.is_elapsed());
    sleep.as_mut().await;
    assert_elapsed(now, ms(0));
    assert!(sleep.is_elapsed());
}

#[tokio::test]
async fn a_sleep_is_not_elapsed_while_it_waits() {
    time::pause();
    let mut sleep = pin!(time::sleep(ms(10)));
    assert!(!sleep.is_elapsed());
    assert!(Task::new().poll(sleep.as_mut()).is_pending());
    assert!(!sleep.is_elapsed());
    sleep.as_mut().await;
    assert!(sleep.is_elapsed());
}

#[tokio::test(start_paused = true)]
async fn auto_advance_moves_to_the_deadline() {
    for delay in [ms(1), ms(10), ms(60), ms(1) + Duration::from_nanos(1), YEAR] {
        let now = Instant::now();
        time::sleep_until(now + delay).await;
        assert!(now.elapsed() >= delay);
        assert_elapsed(now, delay);
    }
}

#[tokio::test(start_paused = true)]
async fn sleeps_of_any_length_are_the_same_in_two_runs() {
    let mut runs = [vec![], vec![]];
    for run in &mut runs {
        let mut random = fastrand::Rng::with_seed(1);
        let start = Instant::now();
        for _ in 0..1_000 {
            time::sleep(Duration::from_nanos(random.u64(..1_000_000_000))).await;
            run.push(start.elapsed().as_millis());
        }
    }
    let steps = |run: &[u128]| {
        run.windows(2)
            .map(|two| two[1] - two[0])
            .collect::<Vec<_>>()
    };
    for (one, other) in steps(&runs[0]).into_iter().zip(steps(&runs[1])) {
        assert!(one.abs_diff(other) <= 1, "{one} and {other}");
    }
}

/// Resets a sleep of 100 ms that waits; `at` after its beginning.
async fn reset_while_waiting(at: Duration, to: Duration) {
    let now = Instant::now();
    let mut sleep = Box::pin(time::sleep_until(now + ms(100)));
    assert!(Task::new().poll(sleep.as_mut()).is_pending());
    time::sleep(at).await;
    sleep.as_mut().reset(now + to);
    assert_eq!(sleep.deadline(), now + to);
    sleep.await;
    assert_elapsed(now, to.max(at));
}

#[tokio::test(start_paused = true)]
async fn a_reset_moves_a_sleep_that_waits() {
    reset_while_waiting(ms(10), ms(200)).await;
    reset_while_waiting(ms(10), ms(80)).await;
    reset_while_waiting(ms(50), ms(40)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_re_arms_a_sleep_that_is_ready() {
    let now = Instant::now();
    let mut sleep = Box::pin(time::sleep(ms(100)));
    sleep.as_mut().await;
    let task = Task::new();
    assert!(task.poll(sleep.as_mut()).is_ready(), "it stays ready");
    sleep.as_mut().reset(now + ms(110));
    assert!(task.poll(sleep.as_mut()).is_pending());
    assert!(task.poll(sleep.as_mut()).is_pending());
    sleep.await;
    assert_elapsed(now, ms(110));
}

#[tokio::test(start_paused = true)]
async fn a_reset_to_the_past_is_ready() {
    let (now, task) = (Instant::now(), Task::new());
    let mut sleep = Box::pin(time::sleep(ms(100)));
    assert!(task.poll(sleep.as_mut()).is_pending());
    time::sleep(ms(50)).await;
    assert_eq!(task.wakes(), 0);
    sleep.as_mut().reset(now + ms(40));
    assert!(task.poll(sleep.as_mut()).is_ready());
}

#[tokio::test]
async fn a_thousand_sleeps_of_no_time_end() {
    for _ in 0..1_000 {
        time::sleep(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_too_large_is_thirty_years() {
    for delay in [Duration::MAX, Duration::MAX - ms(1)] {
        let now = Instant::now();
        time::sleep(delay).await;
        assert_elapsed(now, 30 * YEAR);
    }
}

#[tokio::test(start_paused = true)]
async fn a_very_long_sleep_delays_no_short_one() {
    let long = tokio::spawn(time::sleep(ms(10 << 36)));
    time::advance(ms((1 << 30) - 1)).await;
    let start = Instant::now();
    let mut first = pin!(time::sleep(ms(10)));
    assert!(Task::new().poll(first.as_mut()).is_pending());
    time::sleep(ms(20)).await;
    assert_elapsed(start, ms(20));
    first.await;
    assert_elapsed(start, ms(20));
    assert!(!long.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_was_moved_can_be_dropped_when_its_first_time_comes() {
    let (start, task) = (Instant::now(), Task::new());
    let [mut a, mut b, mut c] = [5, 5, 10].map(|delay| Box::pin(time::sleep(ms(delay))));
    for sleep in [&mut a, &mut b, &mut c] {
        assert!(task.poll(sleep.as_mut()).is_pending());
    }
    b.as_mut().reset(start + ms(10));
    a.await;
    drop(b);
    c.await;
    assert_elapsed(start, ms(10));
}

#[tokio::test(start_paused = true)]
async fn a_waker_may_drop_sleeps() {
    struct Drops(Mutex<Vec<Pin<Box<Sleep>>>>);
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().clear();
        }
    }
    let drops = Arc::new(Drops(Mutex::default()));
    let waker = Waker::from(Arc::clone(&drops));
    for _ in 0..100 {
        let mut sleep = Box::pin(time::sleep(ms(10)));
        let mut context = Context::from_waker(&waker);
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        drops.0.lock().unwrap().push(sleep);
    }
    time::sleep(ms(11)).await;
    assert!(drops.0.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_drop_of_a_waker_may_drop_a_sleep() {
    struct Owner(#[expect(dead_code, reason = "only dropped")] Pin<Box<Sleep>>);
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }
    let mut owned = Box::pin(time::sleep(ms(3_600_000)));
    assert!(Task::new().poll(owned.as_mut()).is_pending());
    let waker = Waker::from(Arc::new(Owner(owned)));
    let mut sleep = Box::pin(time::sleep(ms(3_600_000)));
    let mut context = Context::from_waker(&waker);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    drop(waker);
    drop(sleep);
}

// --- pause, advance, resume ----------------------------------------------------------------------

#[tokio::test]
async fn a_task_may_pause_the_clock() {
    tokio::spawn(async { time::pause() }).await.unwrap();
    let now = Instant::now();
    std::thread::sleep(ms(2));
    assert_eq!(Instant::now(), now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runtime_with_threads_cannot_be_paused() {
    assert!(tokio::spawn(async { time::pause() }).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn advance_moves_the_clock_exactly() {
    for micros in [1, 1_000, 51_592, 3_141_592] {
        let (now, step) = (Instant::now(), Duration::from_micros(micros));
        time::advance(step).await;
        assert_eq!(now.elapsed(), step);
    }
}

#[tokio::test(start_paused = true)]
async fn advance_wakes_no_sleep_before_its_time() {
    for is_polled in [true, false] {
        let task = Task::new();
        let mut sleep = pin!(time::sleep(ms(300)));
        assert!(!is_polled || task.poll(sleep.as_mut()).is_pending());
        time::advance(ms(100)).await;
        assert!(task.poll(sleep.as_mut()).is_pending());
        time::advance(Duration::from_micros(51_592)).await;
        assert!(task.poll(sleep.as_mut()).is_pending());
        assert_eq!(task.wakes(), 0);
        time::advance(ms(150)).await;
        assert!(task.poll(sleep.as_mut()).is_ready());
    }
}

#[tokio::test(start_paused = true)]
async fn advance_in_parts_of_a_millisecond_adds_up() {
    let task = Task::new();
    let mut sleep = pin!(time::sleep(ms(1)));
    for _ in 0..4 {
        assert!(task.poll(sleep.as_mut()).is_pending());
        time::advance(Duration::from_micros(250)).await;
    }
    assert_eq!(task.wakes(), 1);
    assert!(task.poll(sleep.as_mut()).is_ready());
}

#[tokio::test]
async fn a_sleep_from_before_the_pause_follows_the_paused_clock() {
    let (begin, task) = (std::time::Instant::now(), Task::new());
    let mut sleep = pin!(time::sleep(ms(3_600_000)));
    let mut interval = time::interval(ms(60_000));
    interval.tick().await;
    let waits = tokio::spawn(async move { interval.tick().await });
    tokio::task::yield_now().await;
    assert!(task.poll(sleep.as_mut()).is_pending());
    time::pause();
    time::advance(ms(3_599_000)).await;
    assert!(task.poll(sleep.as_mut()).is_pending());
    waits.await.unwrap();
    sleep.await;
    assert!(
        begin.elapsed() < ms(60_000),
        "it has not waited for an hour"
    );
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_resumed_runs() {
    time::advance(ms(3_600_000)).await;
    time::resume();
    let now = Instant::now();
    time::sleep(ms(5)).await;
    assert!(now.elapsed() >= ms(5));
}

#[tokio::test]
#[should_panic]
async fn a_clock_that_runs_cannot_be_resumed() {
    time::resume();
}

#[tokio::test(start_paused = true)]
#[should_panic]
async fn a_paused_clock_cannot_be_paused_again() {
    time::pause();
}

#[tokio::test]
#[should_panic]
async fn a_clock_that_runs_cannot_be_advanced() {
    time::advance(ms(1)).await;
}

#[tokio::test(start_paused = true)]
async fn messages_arrive_before_the_clock_moves() {
    let (start, (send, mut receive)) = (Instant::now(), mpsc::channel(1));
    let sender = tokio::spawn(async move {
        send.send(()).await.unwrap();
        time::sleep(ms(100)).await;
    });
    receive.recv().await.unwrap();
    assert_eq!(start.elapsed(), ms(0));
    sender.await.unwrap();
    assert_elapsed(start, ms(100));
}

// --- timeout -------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_future_that_is_ready_wins_at_the_deadline_and_after_it() {
    let task = Task::new();
    let mut now = Box::pin(time::timeout_at(Instant::now(), async {}));
    assert!(task.poll(now.as_mut()) == Poll::Ready(Ok(())));
    let past = Instant::now();
    time::advance(ms(1_000)).await;
    assert_eq!(time::timeout_at(past, async {}).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_future_may_be_ready_until_the_deadline() {
    for limit in [ms(100), Duration::MAX] {
        let (open, gate) = oneshot::channel();
        let task = Task::new();
        let mut limited = Box::pin(time::timeout(limit, gate));
        assert!(task.poll(limited.as_mut()).is_pending());
        time::advance(ms(90)).await;
        assert!(task.poll(limited.as_mut()).is_pending());
        open.send(7).unwrap();
        assert!(task.wakes() > 0);
        assert_eq!(limited.await, Ok(Ok(7)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_future_ends() {
    let (start, task) = (Instant::now(), Task::new());
    let mut limited = Box::pin(time::timeout(ms(300), pending::<()>()));
    assert!(task.poll(limited.as_mut()).is_pending());
    time::advance(ms(301)).await;
    assert!(task.wakes() > 0);
    let error = limited.await.unwrap_err();
    assert_elapsed(start, ms(301));
    assert_eq!(error.to_string(), "deadline has elapsed");
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_come_ends_a_future() {
    let mut limited = Box::pin(time::timeout_at(Instant::now(), pending::<()>()));
    time::advance(ms(1)).await;
    assert!(Task::new().poll(limited.as_mut()).is_ready());
}

#[tokio::test]
async fn a_future_that_uses_up_the_budget_does_not_outlive_its_time() {
    let busy = async {
        let (send, mut receive) = mpsc::unbounded_channel();
        loop {
            send.send(()).unwrap();
            receive.recv().await;
        }
    };
    let late: Result<(), _> = time::timeout(ms(5), busy).await;
    assert!(late.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_limit_takes_what_becomes_a_future_and_gives_it_back() {
    let mut limited = time::timeout(ms(1), std::future::ready(7));
    assert_eq!(limited.get_ref().clone().into_inner(), 7);
    *limited.get_mut() = std::future::ready(8);
    assert_eq!(limited.into_inner().into_inner(), 8);
    let (_open, gate) = oneshot::channel::<()>();
    assert!(time::timeout(ms(1), gate).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn limits_can_be_nested() {
    let start = Instant::now();
    let inner = time::timeout(ms(100), pending::<()>());
    let both = time::timeout(ms(300), inner).await;
    assert!(matches!(both, Ok(Err(_))));
    assert_elapsed(start, ms(100));
}

// --- interval ------------------------------------------------------------------------------------

#[tokio::test]
#[should_panic(expected = "`period` must be non-zero.")]
async fn an_interval_needs_a_period() {
    drop(time::interval_at(Instant::now(), ms(0)));
}

/// Polls until no tick is ready. Returns when the ticks were due, in milliseconds since `start`.
fn ticks(interval: &mut Interval, start: Instant) -> Vec<u128> {
    let (task, mut due) = (Task::new(), vec![]);
    while let Poll::Ready(tick) = task.with(|context| interval.poll_tick(context)) {
        due.push((tick - start).as_millis());
    }
    due
}

/// Advances the clock step by step. Each step has the ticks that are ready after it.
async fn check(behavior: MissedTickBehavior, steps: &[(u64, &[u128])]) {
    let start = Instant::now();
    // A sleep of tokio's ends a millisecond after a deadline that is between two of its ticks.
    time::advance(ms(1)).await;
    let mut interval = time::interval_at(start, ms(300));
    interval.set_missed_tick_behavior(behavior);
    assert_eq!(interval.missed_tick_behavior(), behavior);
    assert_eq!(ticks(&mut interval, start), [0]);
    for (step, due) in steps {
        time::advance(ms(*step)).await;
        assert_eq!(
            ticks(&mut interval, start),
            *due,
            "at {:?}",
            start.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn missed_ticks_come_in_a_burst() {
    let steps: [(u64, &[u128]); 7] = [
        (100, &[]),
        (200, &[300]),
        (650, &[600, 900]),
        (200, &[]),
        (100, &[1_200]),
        (250, &[1_500]),
        (300, &[1_800]),
    ];
    assert_eq!(MissedTickBehavior::default(), MissedTickBehavior::Burst);
    check(MissedTickBehavior::Burst, &steps).await;
}

#[tokio::test(start_paused = true)]
async fn missed_ticks_delay_the_following_ones() {
    let steps: [(u64, &[u128]); 7] = [
        (100, &[]),
        (200, &[300]),
        (650, &[600]),
        (100, &[]),
        (201, &[1_251]),
        (300, &[1_551]),
        (300, &[1_851]),
    ];
    check(MissedTickBehavior::Delay, &steps).await;
}

#[tokio::test(start_paused = true)]
async fn missed_ticks_are_skipped() {
    let steps: [(u64, &[u128]); 6] = [
        (100, &[]),
        (200, &[300]),
        (650, &[600]),
        (250, &[1_200]),
        (300, &[1_500]),
        (300, &[1_800]),
    ];
    check(MissedTickBehavior::Skip, &steps).await;
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_five_milliseconds_late_is_not_missed() {
    for behavior in [MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
        check(behavior, &[(304, &[300]), (296, &[600])]).await;
    }
}

/// Resets an interval 400 ms after its start, and checks its next two ticks, in milliseconds since
/// its start.
async fn check_reset(reset: impl FnOnce(&mut Interval), next: [u64; 2]) {
    let start = Instant::now();
    time::advance(ms(1)).await;
    let mut interval = time::interval_at(start, ms(300));
    time::advance(ms(399)).await;
    assert_eq!(ticks(&mut interval, start), [0, 300]);
    reset(&mut interval);
    for next in next {
        assert_eq!(ticks(&mut interval, start), []);
        time::advance(start + ms(next - 1) - Instant::now()).await;
        assert_eq!(ticks(&mut interval, start), [], "before {next}");
        time::advance(ms(1)).await;
        assert_eq!(ticks(&mut interval, start), [u128::from(next)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_sets_the_next_tick() {
    check_reset(Interval::reset, [700, 1_000]).await;
    check_reset(|interval| interval.reset_after(ms(20)), [420, 720]).await;
    let at = |interval: &mut Interval| interval.reset_at(Instant::now() + ms(1_000));
    check_reset(at, [1_400, 1_700]).await;
    let mut interval = time::interval(ms(300));
    interval.tick().await;
    interval.reset_immediately();
    let now = Instant::now();
    assert_eq!(interval.tick().await, now);
    assert_eq!(interval.tick().await, now + ms(300));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_a_tick_waits_for_the_new_one_after_a_reset() {
    let (start, task) = (Instant::now(), Task::new());
    let mut interval = time::interval_at(start + ms(300), ms(300));
    let poll = |interval: &mut Interval| task.with(|context| interval.poll_tick(context));
    assert!(poll(&mut interval).is_pending());
    interval.reset_after(ms(500));
    time::advance(ms(400)).await;
    assert!(poll(&mut interval).is_pending());
    time::advance(ms(101)).await;
    assert!(task.wakes() > 0);
    assert_eq!(poll(&mut interval), Poll::Ready(start + ms(500)));
}

#[tokio::test(start_paused = true)]
async fn the_largest_period_does_not_panic() {
    let mut interval = time::interval(Duration::MAX);
    interval.reset();
    interval.reset_after(Duration::MAX);
    interval.reset_immediately();
    interval.tick().await;
    assert!(
        Task::new()
            .with(|context| interval.poll_tick(context))
            .is_pending()
    );
    assert_eq!(time::interval(ms(7)).period(), ms(7));
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_is_ready_leaves_no_waker() {
    let (start, task) = (Instant::now(), Task::new());
    let mut interval = time::interval_at(start, ms(10));
    assert_eq!(ticks(&mut interval, start).len(), 1);
    for tick in 1..4 {
        time::advance(ms(10)).await;
        let poll = task.with(|context| interval.poll_tick(context));
        assert_eq!(poll, Poll::Ready(start + ms(10 * tick)));
        assert_eq!(task.wakes(), 0);
    }
}

// --- tasks ---------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn tasks_of_a_set_end_in_the_order_of_their_times() {
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for delay in [30, 10, 20] {
        tasks.spawn(async move {
            time::sleep(ms(delay)).await;
            delay
        });
    }
    for expected in [10, 20, 30] {
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), expected);
        assert_elapsed(start, ms(expected));
    }
    assert!(tasks.join_next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_set_can_be_limited_and_aborted() {
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        tasks.spawn(time::sleep(ms(10_000)));
    }
    assert!(time::timeout(ms(100), tasks.join_next()).await.is_err());
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        assert!(ended.unwrap_err().is_cancelled());
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_two_ends_a_select() {
    let start = Instant::now();
    let mut heartbeat = time::interval_at(start + ms(10), ms(10));
    let mut end = pin!(time::sleep(ms(35)));
    let mut beats = 0;
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            _ = heartbeat.tick() => beats += 1,
        }
    }
    assert_eq!(beats, 3);
    assert_elapsed(start, ms(35));
}

#[tokio::test(start_paused = true)]
async fn a_sleep_wakes_the_task_that_has_polled_it_last() {
    let mut sleep = Box::pin(time::sleep(ms(10)));
    let first = Task::new();
    assert!(first.poll(sleep.as_mut()).is_pending());
    let second = tokio::spawn(async move { poll_fn(|context| sleep.as_mut().poll(context)).await });
    second.await.unwrap();
    assert_eq!(first.wakes(), 0);
}
