//! A test for each row of the table "What is different" of the module.

use std::env;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::time::{self, Instant, Interval, Sleep, Timeout, Timer};
use tokio::runtime::{Builder, Runtime};

use super::Task;
use crate::common::ms;

fn with_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_time().build().unwrap()
}

#[test]
fn it_works_without_a_runtime_where_tokio_panics() {
    assert!(catch_unwind(|| tokio::time::sleep(ms(1))).is_err());
    smol::block_on(async {
        let begin = Instant::now();
        time::sleep(ms(5)).await;
        assert!(begin.elapsed() >= ms(5));
        assert!(time::timeout(ms(5), pending::<()>()).await.is_err());
        let mut interval = time::interval(ms(5));
        let first = interval.tick().await;
        assert_eq!(interval.tick().await, first + ms(5));
    });
    let without_time = Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    without_time.block_on(async {
        assert!(
            tokio::spawn(async { tokio::time::sleep(ms(1)).await })
                .await
                .is_err()
        );
        tokio::spawn(async { time::sleep(ms(1)).await })
            .await
            .unwrap();
    });
}

#[test]
fn it_ends_after_the_runtime_where_tokio_panics() {
    let (task, runtime) = (Task::new(), with_threads());
    let context = runtime.enter();
    let mut tokios = Box::pin(tokio::time::sleep(ms(5)));
    let mut sleep = pin!(time::sleep(ms(5)));
    assert!(task.poll(tokios.as_mut()).is_pending() && task.poll(sleep.as_mut()).is_pending());
    drop(context);
    drop(runtime);
    assert!(catch_unwind(std::panic::AssertUnwindSafe(|| task.poll(tokios.as_mut()))).is_err());
    smol::block_on(sleep);
}

#[test]
fn a_deadline_that_has_passed_does_not_wait() {
    with_threads().block_on(async {
        let task = Task::new();
        assert!(
            task.poll(pin!(tokio::time::sleep(Duration::ZERO)))
                .is_pending()
        );
        assert!(task.poll(pin!(time::sleep(Duration::ZERO))).is_ready());
        // Otherwise a millisecond is the resolution.
        let (begin, mut sleep) = (
            Instant::now(),
            pin!(time::sleep(Duration::from_micros(100))),
        );
        sleep.as_mut().await;
        assert!(begin.elapsed() >= Duration::from_micros(100));
    });
}

/// Notes the thread that wakes it.
#[derive(Default)]
struct WokenBy(std::sync::Mutex<Option<(ThreadId, Option<String>)>>);

impl std::task::Wake for WokenBy {
    fn wake(self: std::sync::Arc<Self>) {
        let thread = thread::current();
        *self.0.lock().unwrap() = Some((thread.id(), thread.name().map(str::to_owned)));
    }
}

#[test]
fn the_thread_of_the_timer_wakes_tasks() {
    let woken = std::sync::Arc::<WokenBy>::default();
    let mut sleep = pin!(time::sleep(ms(1)));
    let waker = std::sync::Arc::clone(&woken).into();
    let poll = sleep
        .as_mut()
        .poll(&mut std::task::Context::from_waker(&waker));
    assert!(poll.is_pending());
    crate::common::eventually("it is woken", || woken.0.lock().unwrap().is_some());
    let by = woken.0.lock().unwrap().take().unwrap();
    assert_eq!(by.1.as_deref(), Some("wheel-time"));
}

#[test]
fn a_sleep_need_not_be_pinned() {
    fn is_unpin<T: Unpin>() {}
    is_unpin::<Sleep>();
    is_unpin::<Interval>();
    is_unpin::<Timeout<std::future::Ready<()>>>();
    let mut sleep = time::sleep(ms(1));
    Pin::new(&mut sleep).reset(Instant::now());
    smol::block_on(&mut sleep);
}

#[test]
fn the_same_types_are_send_and_sync_as_in_tokio() {
    fn is_send_sync<T: Send + Sync + 'static>() {}
    is_send_sync::<Sleep>();
    is_send_sync::<tokio::time::Sleep>();
    is_send_sync::<Interval>();
    is_send_sync::<tokio::time::Interval>();
    is_send_sync::<Timeout<std::future::Ready<()>>>();
    is_send_sync::<tokio::time::Timeout<std::future::Ready<()>>>();
    is_send_sync::<time::Timer>();
    is_send_sync::<time::error::Elapsed>();
}

/// In a task, `coop` limits how often futures may be ready before the task has to yield.
#[test]
fn a_first_poll_that_is_ready_uses_the_budget() {
    with_threads().block_on(async {
        let polls = tokio::spawn(async {
            let (past, task) = (Instant::now() - ms(1), Task::new());
            let ready = |_: &usize| task.poll(pin!(time::sleep_until(past))).is_ready();
            let firsts = (0..1_000).take_while(ready).count();
            // A future that was polled before is ready without budget.
            let mut polled = pin!(time::sleep_until(past));
            assert!(task.poll(polled.as_mut()).is_pending());
            assert!(task.poll(polled).is_ready());
            firsts
        });
        assert_eq!(polls.await.unwrap(), 128);
        let resets = tokio::spawn(async {
            let (past, task) = (Instant::now() - ms(1), Task::new());
            let mut sleep = pin!(time::sleep(ms(60_000)));
            assert!(task.poll(sleep.as_mut()).is_pending());
            let ready = |_: &usize| {
                sleep.as_mut().reset(past);
                task.poll(sleep.as_mut()).is_ready()
            };
            (0..1_000).take_while(ready).count()
        });
        assert_eq!(resets.await.unwrap(), 128);
        let own = tokio::spawn(async {
            let timer = HashedWheelTimer::new(ms(1), 64);
            let (time, task) = (Timer::new(&timer), Task::new());
            let ready = |_: &usize| task.poll(pin!(time.sleep(Duration::ZERO))).is_ready();
            (0..1_000).take_while(ready).count()
        });
        assert_eq!(own.await.unwrap(), 128);
    });
}

#[test]
fn a_reset_without_a_poll_leaves_a_sleep_not_elapsed() {
    with_threads().block_on(async {
        let now = Instant::now();
        let mut tokios = pin!(tokio::time::sleep(ms(60_000)));
        tokios.as_mut().reset(now);
        let mut sleep = pin!(time::sleep(ms(60_000)));
        sleep.as_mut().reset(now);
        while !tokios.is_elapsed() {
            tokio::time::sleep(ms(1)).await;
        }
        assert!(!sleep.is_elapsed());
        assert!(Task::new().poll(sleep.as_mut()).is_ready() && sleep.is_elapsed());
        // One that waits is reset at once, and so is one of a `Timer`.
        sleep.as_mut().reset(now + ms(60_000));
        assert!(Task::new().poll(sleep.as_mut()).is_pending() && !sleep.is_elapsed());
        sleep.as_mut().reset(now);
        assert!(sleep.is_elapsed());
        let timer = HashedWheelTimer::new(ms(1), 64);
        let mut own = pin!(Timer::new(&timer).sleep(ms(60_000)));
        own.as_mut().reset(now);
        assert!(own.is_elapsed());
    });
}

/// A future that may be polled again after its output.
struct ReadyOnce(bool);

impl Future for ReadyOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Ready(()),
            true => Poll::Pending,
        }
    }
}

#[test]
fn a_limit_is_gone_with_the_output() {
    let task = Task::new();
    let mut limited = pin!(time::timeout(ms(1), ReadyOnce(false)));
    assert!(task.poll(limited.as_mut()).is_ready());
    thread::sleep(ms(5));
    assert!(task.poll(limited).is_pending());
    let mut paused = Builder::new_current_thread();
    let paused = paused.enable_time().start_paused(true).build().unwrap();
    paused.block_on(async {
        let mut limited = pin!(tokio::time::timeout(ms(1), ReadyOnce(false)));
        assert!(task.poll(limited.as_mut()).is_ready());
        tokio::time::advance(ms(5)).await;
        assert!(matches!(task.poll(limited), Poll::Ready(Err(_))));
    });
}

#[test]
#[cfg(feature = "stream")]
fn an_interval_is_a_stream() {
    use futures_core::Stream;
    let mut ticks = time::interval(ms(1));
    let next = |interval: &mut Interval| {
        smol::block_on(std::future::poll_fn(|context| {
            Pin::new(&mut *interval).poll_next(context)
        }))
    };
    let first = next(&mut ticks).unwrap();
    assert_eq!(next(&mut ticks), Some(first + ms(1)));
}

/// Where no timer of the runtime could be paused, none is asked for before something waits.
#[test]
fn a_runtime_without_time_panics_where_a_future_waits() {
    let without_time = Builder::new_current_thread().build().unwrap();
    without_time.block_on(async {
        let ready = time::timeout(ms(60_000), std::future::ready(7));
        assert_eq!(ready.await, Ok(7));
        let mut sleep = pin!(time::sleep(ms(60_000)));
        let poll = AssertUnwindSafe(|| Task::new().poll(sleep.as_mut()));
        assert!(catch_unwind(poll).is_err());
    });
}

#[test]
fn moments_and_behaviours_are_tokios_own() {
    let now: Instant = tokio::time::Instant::now();
    let _: tokio::time::Instant = time::sleep_until(now).deadline();
    let _: tokio::time::MissedTickBehavior = time::interval(ms(1)).missed_tick_behavior();
}

#[test]
fn the_error_has_the_traits_of_tokios() {
    fn is_error<T: std::error::Error + PartialEq + Into<std::io::Error>>(
        error: T,
    ) -> (String, String) {
        (error.to_string(), format!("{error:?}"))
    }
    let ours = smol::block_on(time::timeout(ms(1), pending::<()>())).unwrap_err();
    let tokios =
        with_threads().block_on(async { tokio::time::timeout(ms(1), pending::<()>()).await });
    assert_eq!(is_error(ours), is_error(tokios.unwrap_err()));
}

/// A future that waits on the module's timer is not moved by a clock that is paused elsewhere.
#[test]
fn a_future_is_on_the_clock_of_its_first_poll() {
    let task = Task::new();
    let mut sleep = pin!(time::sleep(ms(60_000)));
    assert!(task.poll(sleep.as_mut()).is_pending());
    let mut paused = Builder::new_current_thread();
    paused
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(async {
            time::advance(ms(120_000)).await;
            assert_eq!(task.poll(sleep.as_mut()), Poll::Pending);
            let mut here = pin!(time::sleep_until(Instant::now() + ms(1)));
            here.as_mut().await;
        });
}

#[test]
#[cfg_attr(windows, ignore = "the test harness needs a thread for the test there")]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_first_poll_panics_where_no_thread_can_be_started() {
    const CHILD: &str = "HASHED_WHEEL_TEST_NO_THREADS";
    if env::var_os(CHILD).is_none() {
        // A stack that is larger than the address space. (The harness then runs the test itself on
        // the main thread.)
        let stack: u64 = if usize::BITS < 64 { 3 << 30 } else { 1 << 50 };
        let test = "time::differences::the_first_poll_panics_where_no_thread_can_be_started";
        let child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--test-threads=1"])
            .env("RUST_MIN_STACK", stack.to_string())
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        return;
    }
    // Not over when the timer has been built.
    let mut sleep = pin!(time::sleep(ms(60_000)));
    let mut context = Context::from_waker(Waker::noop());
    let polled = catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(&mut context)));
    assert!(polled.is_err());
}
