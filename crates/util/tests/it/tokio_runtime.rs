//! Timers that a task of a tokio runtime turns, on the machine's clock and on tokio's paused clock.
#![cfg(feature = "tokio")]
#![cfg(not(miri))]

use crate::common;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{Ends, TEST_TIMEOUT, ends, ms};
use hashed_wheel::{BuildError, Builder, Clock, HashedWheelTimer, ManualClock, NewTimeoutError};
use hashed_wheel_util::tokio::{TokioClock, build_on};
use tokio::runtime::{self, Handle, Runtime};
use tokio::time::{self, Instant};

const HOUR: Duration = Duration::from_secs(3_600);

fn builder() -> Builder {
    HashedWheelTimer::builder().tick(ms(1))
}

fn timer() -> HashedWheelTimer {
    build_on(builder(), &Handle::current()).unwrap()
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads)
        .enable_time()
        .build()
        .unwrap()
}

/// tokio rounds a sleep up to a millisecond, and the timer to its tick of the same length.
#[track_caller]
fn assert_elapsed(begin: Instant, expected: Duration) {
    let elapsed = begin.elapsed();
    assert!(
        (expected..=expected + ms(2)).contains(&elapsed),
        "{elapsed:?}"
    );
}

#[test]
fn timeouts_and_sleeps_end_on_either_runtime() {
    for threads in [1, 2] {
        ends(move || {
            runtime(threads).block_on(async {
                let (timer, begin) = (timer(), std::time::Instant::now());
                let sleeps: Vec<_> = (0..500)
                    .map(|number| {
                        let timer = timer.clone();
                        tokio::spawn(async move { timer.sleep(ms(1 + number % 40)).await })
                    })
                    .collect();
                for sleep in sleeps {
                    sleep.await.unwrap().unwrap();
                }
                assert!(begin.elapsed() >= ms(40));
                let (send, receive) = tokio::sync::oneshot::channel();
                timer
                    .new_timeout(|_| send.send(thread::current().id()).unwrap(), ms(5))
                    .unwrap();
                let on = receive.await.unwrap();
                assert!(
                    threads > 1 || on == thread::current().id(),
                    "there is no other thread"
                );
                assert_eq!((timer.pending_timeouts(), timer.stats().panics), (0, 0));
            });
        });
    }
}

/// The task sleeps without a limit, and then for an hour: both sleeps are ended by the waker.
#[test]
fn other_threads_wake_the_task() {
    ends(|| {
        let runtime = runtime(1);
        let timer = build_on(builder(), runtime.handle()).unwrap();
        let (send, receive) = tokio::sync::oneshot::channel();
        let other = timer.clone();
        let thread = thread::spawn(move || {
            thread::sleep(ms(20));
            drop(other.new_timeout(|_| (), HOUR).unwrap());
            thread::sleep(ms(20));
            drop(
                other
                    .new_timeout(|_| send.send(()).unwrap(), ms(5))
                    .unwrap(),
            );
        });
        runtime.block_on(receive).unwrap();
        thread.join().unwrap();
    });
}

/// Each run schedules the next one for the next tick. The other task still makes progress.
#[test]
fn task_yields_to_the_runtime_between_turns() {
    fn again(timer: &HashedWheelTimer) {
        let _ = timer.new_timeout(|timeout| again(&timeout.timer()), Duration::ZERO);
    }

    ends(|| {
        runtime(1).block_on(async {
            let builder = HashedWheelTimer::builder().tick(Duration::from_micros(1));
            let timer = build_on(builder, &Handle::current()).unwrap();
            again(&timer);
            while timer.stats().expired < 1_000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(timer.stop().len(), 1);
        });
    });
}

#[test]
fn stop_ends_the_task_and_drops_the_clock() {
    /// Counts its drop: the task holds the timer, and the timer the clock.
    struct Dropped(Arc<AtomicUsize>);

    impl Clock for Dropped {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    ends(|| {
        runtime(1).block_on(async {
            let drops = Arc::new(AtomicUsize::new(0));
            let clock = Dropped(Arc::clone(&drops));
            let timer = build_on(builder().clock(clock), &Handle::current()).unwrap();
            let pending = timer.new_timeout(|_| (), HOUR).unwrap();
            tokio::task::yield_now().await;
            assert_eq!(timer.stop(), [pending]);
            drop(timer);
            // The thread's cache of a stopped timer is dropped by an operation on another one.
            HashedWheelTimer::default()
                .new_timeout(|_| (), HOUR)
                .unwrap();
            while drops.load(SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        });
    });
}

#[test]
fn end_of_the_runtime_stops_the_timer() {
    ends(|| {
        let runtime = runtime(2);
        let timer = build_on(builder(), runtime.handle()).unwrap();
        let ends = Ends::new();
        let pending = timer.new_timeout_task(ends.task(), HOUR).unwrap();
        let (slept, wait) = std::sync::mpsc::channel();
        let sleep = timer.sleep(HOUR);
        let other = Runtime::new().unwrap();
        other.spawn(async move { slept.send(sleep.await).unwrap() });
        while timer.pending_timeouts() < 2 {
            thread::yield_now();
        }
        drop(runtime);
        assert!(timer.is_stopped() && pending.is_cancelled());
        assert_eq!((ends.runs(), ends.hooks(), ends.drops()), (0, 1, 1));
        assert!(matches!(
            wait.recv_timeout(TEST_TIMEOUT).unwrap(),
            Err(NewTimeoutError::Stopped)
        ));
        assert!(matches!(
            timer.new_timeout(|_| (), HOUR),
            Err(NewTimeoutError::Stopped)
        ));
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn timer_on_a_dropped_runtime_is_stopped() {
    let handle = runtime(1).handle().clone();
    let timer = build_on(builder(), &handle).unwrap();
    assert!(timer.is_stopped());
}

#[test]
fn errors_of_the_builder_and_a_runtime_without_a_timer_are_reported_by_the_call() {
    let with_time = runtime(1);
    let wrong = build_on(builder().tick(Duration::ZERO), with_time.handle());
    assert!(matches!(wrong, Err(BuildError::ZeroTick)));
    let without_time = runtime::Builder::new_current_thread().build().unwrap();
    let handle = without_time.handle().clone();
    let panic = thread::spawn(move || common::quietly(|| build_on(builder(), &handle).is_ok()));
    let panic = panic.join().unwrap_err();
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref().map(String::as_str));
    assert!(text.unwrap().contains("enable_time"), "{text:?}");
}

// --- the paused clock ----------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn auto_advance_ends_sleeps_at_once() {
    let (real, begin, timer) = (std::time::Instant::now(), Instant::now(), timer());
    for delay in [ms(1), ms(10), HOUR, HOUR * 24 * 365] {
        let begin = Instant::now();
        timer.sleep(delay).await.unwrap();
        assert_elapsed(begin, delay);
    }
    let begin_of_timeout = Instant::now();
    assert!(
        timer
            .timeout(HOUR, std::future::pending::<()>())
            .await
            .is_err()
    );
    assert_elapsed(begin_of_timeout, HOUR);
    assert!(real.elapsed() < TEST_TIMEOUT && begin.elapsed() > HOUR * 24 * 365);
}

#[tokio::test(start_paused = true)]
async fn advance_fires_timeouts() {
    let (timer, begin) = (timer(), Instant::now());
    let timeout = timer.new_timeout(|_| (), HOUR).unwrap();
    // The first turn.
    tokio::task::yield_now().await;
    time::advance(HOUR - ms(1)).await;
    assert!(!timeout.is_expired());
    assert_eq!(timeout.remaining(), ms(1));
    time::advance(ms(2)).await;
    while !timeout.is_expired() {
        tokio::task::yield_now().await;
    }
    assert_elapsed(begin, HOUR + ms(1));
}

#[tokio::test(start_paused = true)]
async fn instants_are_those_of_tokio() {
    let timer = timer();
    assert_eq!(timer.now(), Instant::now().into_std());
    time::advance(HOUR).await;
    assert_eq!(timer.now(), Instant::now().into_std());
    let deadline = Instant::now() + HOUR;
    timer.sleep_until(deadline.into_std()).await.unwrap();
    assert_elapsed(deadline, ms(0));
    // Both timers measure the same time.
    let (ours, theirs) = (timer.sleep(HOUR), time::sleep(HOUR));
    let begin = Instant::now();
    let (result, ()) = tokio::join!(ours, theirs);
    result.unwrap();
    assert_elapsed(begin, HOUR);
}

#[tokio::test(start_paused = true)]
async fn threads_outside_the_runtime_see_the_paused_clock() {
    let timer = timer();
    time::advance(HOUR).await;
    let (other, now) = (timer.clone(), timer.now());
    let timeout = thread::spawn(move || {
        assert_eq!(other.now(), now);
        other.new_timeout(|_| (), HOUR).unwrap()
    });
    let timeout = timeout.join().unwrap();
    assert_eq!(timeout.deadline(), now + HOUR);
    timer.sleep(HOUR + ms(1)).await.unwrap();
    assert!(timeout.is_expired());
}

/// A clock that is paused after the timer is built has to be set.
#[tokio::test]
async fn clock_that_is_paused_later_is_followed_if_it_was_set() {
    let clock = TokioClock::new(Handle::current());
    let timer = build_on(builder().clock(clock.clone()), &Handle::current()).unwrap();
    timer.sleep(ms(5)).await.unwrap();
    time::pause();
    let begin = Instant::now();
    timer.sleep(HOUR).await.unwrap();
    assert_elapsed(begin, HOUR);
    assert!(clock.now() >= HOUR);
    time::resume();
    timer.sleep(ms(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clock_that_was_set_is_used() {
    let clock = ManualClock::new();
    let timer = build_on(builder().clock(clock.clone()), &Handle::current()).unwrap();
    assert_eq!(timer.now(), clock.instant());
}

/// A runtime that is not paused costs nothing: the timer has the machine's clock.
#[tokio::test]
async fn runtime_that_is_not_paused_leaves_the_machine_clock() {
    let timer = timer();
    time::pause();
    let before = timer.now();
    thread::sleep(ms(2));
    assert!(timer.now() >= before + ms(2));
}

/// The grace is real time, and tasks run on the runtime.
#[test]
fn shutdown_waits_for_the_task_of_the_runtime() {
    for threads in [1, 2] {
        ends(move || {
            runtime(threads).block_on(async {
                let (timer, (sent, received)) = (timer(), std::sync::mpsc::channel());
                let is_on_runtime = move |_: &_| sent.send(Handle::try_current().is_ok()).unwrap();
                timer.new_timeout(is_on_runtime, ms(30)).unwrap();
                let far = timer.new_timeout(|_| (), HOUR).unwrap();
                assert_eq!(timer.begin_shutdown(Duration::from_secs(30)).await, [far]);
                assert_eq!(received.try_recv(), Ok(true));
            });
        });
    }
}

/// The only thread of the runtime cannot turn the timer while it waits for it.
#[test]
fn shutdown_that_blocks_the_runtime_ends_with_the_grace() {
    ends(|| {
        runtime(1).block_on(async {
            let timer = timer();
            let near = timer.new_timeout(|_| (), ms(5)).unwrap();
            assert_eq!(timer.shutdown(ms(20)), [near]);
        });
    });
}

/// The last timeout within the grace has ten milliseconds more: the runtime may turn the timer a
/// little late.
#[test]
fn shutdown_gives_the_runtime_time_to_turn_the_timer() {
    ends(|| {
        runtime(1).block_on(async {
            let (timer, begin) = (timer(), std::time::Instant::now());
            let last = timer.new_timeout(|_| (), ms(50)).unwrap();
            assert_eq!(timer.shutdown(ms(50)), [last]);
            assert!(begin.elapsed() >= ms(60));
        });
    });
}

#[test]
fn task_ends_when_a_task_of_the_timer_drops_the_last_handle() {
    ends(|| {
        runtime(1).block_on(async {
            let timer = timer();
            let last = timer.clone();
            timer.new_timeout(move |_| drop(last), ms(5)).unwrap();
            drop(timer);
            while Handle::current().metrics().num_alive_tasks() > 0 {
                time::sleep(ms(1)).await;
            }
        });
    });
}

// --- the end of a thread -------------------------------------------------------------------------

/// Runs `last` in the destructor of a thread-local, after tokio's own have been destroyed. A panic
/// there ends the process.
fn in_destructor<T: Send + 'static>(last: impl FnOnce() -> T + Send + 'static) -> T {
    struct Last(Option<Box<dyn FnOnce()>>);

    impl Drop for Last {
        fn drop(&mut self) {
            let tokio = Handle::try_current();
            // Another platform may have another order.
            let is_destroyed = tokio.is_err_and(|error| error.is_thread_local_destroyed());
            assert!(is_destroyed || cfg!(not(target_os = "linux")));
            self.0.take().unwrap()();
        }
    }

    thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });

    let (send, receive) = channel();
    let thread = thread::spawn(move || {
        LAST.set(Some(Last(Some(Box::new(move || {
            send.send(last()).unwrap();
        })))));
        // As a rule, the thread-local that was used first is destroyed last.
        assert!(Handle::try_current().is_err());
    });
    thread.join().unwrap();
    receive.recv().unwrap()
}

#[test]
fn timer_on_a_paused_clock_can_be_used_in_a_destructor() {
    let mut paused = runtime::Builder::new_current_thread();
    let runtime = paused.enable_time().start_paused(true).build().unwrap();
    let timer = build_on(builder(), runtime.handle()).unwrap();
    runtime.block_on(time::advance(HOUR));
    let (its_timer, before) = (timer.clone(), timer.now());
    let timeout = in_destructor(move || {
        let timeout = its_timer.new_timeout(|_| (), HOUR).unwrap();
        assert!(its_timer.now() >= before && timeout.remaining() > HOUR / 2);
        assert!(timeout.reset(HOUR * 2) && timeout.reset_at(its_timer.now() + HOUR));
        assert!(its_timer.new_timeout(|_| (), HOUR).unwrap().cancel());
        timeout
    });
    assert!(timeout.deadline() >= before + HOUR);
    runtime.block_on(async {
        time::sleep(HOUR - ms(1)).await;
        assert!(!timeout.is_expired());
        time::sleep(TEST_TIMEOUT).await;
        assert!(timeout.is_expired());
    });
    // Its end stops the timer.
    in_destructor(|| drop(runtime));
    assert!(timer.is_stopped());
}

#[test]
fn clock_that_runs_is_exact_in_a_destructor() {
    runtime(1).block_on(async {
        let clock = TokioClock::new(Handle::current());
        time::pause();
        time::advance(HOUR).await;
        time::resume();
        let (before, its_clock) = (clock.now(), clock.clone());
        thread::sleep(ms(20));
        let now = in_destructor(move || its_clock.now());
        assert!(
            now >= before + ms(20) && now < before + TEST_TIMEOUT,
            "{now:?}, {before:?}"
        );
    });
}
