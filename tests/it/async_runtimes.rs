//! The futures on runtimes that do not know the timer: tokio with one thread and with several, and
//! smol. These tests use real time, so lower bounds are strict and upper bounds generous.
#![cfg(feature = "async")]

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Instant;

use crate::common::{TEST_TIMEOUT, built_driven, ends, ms};
use hashed_wheel::{HashedWheelTimer, MissedTick, NewTimeoutError, Schedule, TimeoutError};

/// The number of tasks that sleep at the same time.
const MANY: u64 = if cfg!(miri) { 20 } else { 5_000 };

/// The number of tasks that sleep until they are cancelled.
const TASKS: usize = if cfg!(miri) { 20 } else { 100 };

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::builder().tick(ms(1)).build().unwrap()
}

/// A runtime without its own timer.
fn tokio(threads: usize) -> tokio::runtime::Runtime {
    tokio_builder(threads).build().unwrap()
}

fn tokio_builder(threads: usize) -> tokio::runtime::Builder {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads);
    builder
}

/// Sleeps in one of four ways, depending on the number.
async fn sleeper(timer: HashedWheelTimer, number: u64) -> &'static str {
    let (begin, delay) = (Instant::now(), ms(1 + number % 50));
    match number % 4 {
        0 => {
            timer.sleep(delay).await.unwrap();
            assert!(begin.elapsed() >= delay, "early");
            timer.sleep_until(begin + delay * 2).await.unwrap();
            assert!(begin.elapsed() >= delay, "early");
            "slept"
        }
        1 => {
            let late = timer.timeout(delay, pending::<()>()).await;
            assert!(matches!(late, Err(TimeoutError::Elapsed)) && begin.elapsed() >= delay);
            "elapsed"
        }
        2 => {
            timer
                .timeout(TEST_TIMEOUT, timer.sleep(delay))
                .await
                .unwrap()
                .unwrap();
            assert!(begin.elapsed() >= delay, "early");
            "in time"
        }
        _ => {
            let mut interval = timer.interval(delay);
            interval.tick().await.unwrap();
            interval.tick().await.unwrap();
            assert!(begin.elapsed() >= delay, "early");
            "ticked"
        }
    }
}

#[track_caller]
fn assert_all_ended(timer: &HashedWheelTimer, begin: Instant) {
    assert!(begin.elapsed() < TEST_TIMEOUT);
    assert_eq!((timer.pending_timeouts(), timer.stats().panics), (0, 0));
}

#[test]
fn thousands_of_tasks_sleep_on_tokio() {
    for threads in [1, 4] {
        ends(move || {
            let (timer, begin) = (timer(), Instant::now());
            tokio(threads).block_on(async {
                let tasks: Vec<_> = (0..MANY)
                    .map(|number| tokio::spawn(sleeper(timer.clone(), number)))
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
            assert_all_ended(&timer, begin);
        });
    }
}

/// The timer has no thread. The drop of the runtime drops the driver.
#[test]
fn thousands_of_tasks_sleep_while_a_tokio_task_turns_the_timer() {
    for threads in [1, 4] {
        ends(move || {
            let notification = Arc::new(tokio::sync::Notify::new());
            let wake = Arc::clone(&notification);
            let builder = HashedWheelTimer::builder()
                .tick(ms(1))
                .waker(move || wake.notify_one());
            let (timer, mut driver) = builder.build_driven().unwrap();
            let begin = Instant::now();
            let runtime = tokio_builder(threads).enable_time().build().unwrap();
            runtime.spawn(async move {
                while !driver.is_stopped() {
                    driver.turn();
                    match driver.next_turn() {
                        Some(wait) => {
                            drop(tokio::time::timeout(wait, notification.notified()).await);
                        }
                        None => notification.notified().await,
                    }
                }
            });
            runtime.block_on(async {
                let tasks: Vec<_> = (0..MANY)
                    .map(|number| tokio::spawn(sleeper(timer.clone(), number)))
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
            assert_all_ended(&timer, begin);
            let waiting = timer.clone();
            runtime.spawn(async move { waiting.sleep(TEST_TIMEOUT).await });
            drop(runtime);
            assert!(timer.is_stopped() && timer.pending_timeouts() == 0);
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "smol uses system calls that Miri does not know")]
fn thousands_of_tasks_sleep_on_smol() {
    ends(|| {
        let (timer, begin) = (timer(), Instant::now());
        let executor = Arc::new(smol::Executor::new());
        let tasks: Vec<_> = (0..MANY)
            .map(|number| executor.spawn(sleeper(timer.clone(), number)))
            .collect();
        let (stop, stopped) = smol::channel::bounded::<()>(1);
        let threads = [(); 2].map(|()| {
            let (executor, stopped) = (Arc::clone(&executor), stopped.clone());
            std::thread::spawn(move || smol::block_on(executor.run(stopped.recv())))
        });
        smol::block_on(async {
            for task in tasks {
                task.await;
            }
        });
        drop(stop);
        threads
            .into_iter()
            .for_each(|thread| assert!(thread.join().unwrap().is_err()));
        assert_all_ended(&timer, begin);
    });
}

/// One task waits for all sleeps, so all have the same waker, and each poll polls all of them.
#[test]
#[cfg_attr(miri, ignore = "smol uses system calls that Miri does not know")]
fn one_task_waits_for_many_sleeps() {
    ends(|| {
        let timer = timer();
        let many = if cfg!(miri) { 10 } else { 300 };
        let waiting = smol::block_on(async {
            let mut sleeps: Vec<_> = (1..=many)
                .map(|n| Some(timer.sleep(ms(n % 20 + 1))))
                .collect();
            // On a slow machine some sleeps are over before their first poll. They need no timeout.
            let mut waiting = 0;
            let mut polls = 0;
            poll_fn(|context| {
                polls += 1;
                for sleep in &mut sleeps {
                    if sleep
                        .as_mut()
                        .is_some_and(|sleep| Pin::new(sleep).poll(context).is_ready())
                    {
                        *sleep = None;
                    }
                }
                if polls == 1 {
                    waiting = sleeps.iter().flatten().count() as u64;
                }
                if sleeps.iter().all(Option::is_none) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            waiting
        });
        let stats = timer.stats();
        let counts = (stats.scheduled, stats.expired, stats.pending);
        assert_eq!(counts, (waiting, waiting, 0), "each is scheduled once");
    });
}

#[test]
fn a_sleep_that_loses_a_select_is_cancelled() {
    ends(|| {
        let timer = timer();
        tokio(1).block_on(async {
            let mut idle = timer.sleep(TEST_TIMEOUT);
            let mut interval = timer.interval(ms(3));
            let mut ticks = 0;
            while ticks < 5 {
                tokio::select! {
                    // Without `biased`, a late tick could come first, and the others would not be
                    // polled.
                    biased;
                    _ = &mut idle => panic!("the idle timeout is reset after each tick"),
                    tick = interval.tick() => {
                        tick.unwrap();
                        ticks += 1;
                        idle.reset(TEST_TIMEOUT);
                    }
                    never = timer.sleep(TEST_TIMEOUT) => panic!("{never:?}"),
                }
                assert_eq!(timer.pending_timeouts(), 1, "only the idle one is pending");
            }
            let (first, second) =
                tokio::join!(timer.sleep(ms(5)), timer.timeout(ms(5), async { 5 }));
            assert!(first.is_ok() && matches!(second, Ok(5)));
        });
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn an_aborted_task_leaves_no_timeout() {
    ends(|| {
        let timer = timer();
        tokio(4).block_on(async {
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let timer = timer.clone();
                    tokio::spawn(async move { timer.sleep(TEST_TIMEOUT).await })
                })
                .collect();
            while timer.pending_timeouts() < TASKS {
                tokio::task::yield_now().await;
            }
            tasks.iter().for_each(|task| task.abort());
            for task in tasks {
                assert!(task.await.unwrap_err().is_cancelled());
            }
        });
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

#[test]
fn the_drop_of_a_runtime_cancels_its_sleeps() {
    ends(|| {
        let timer = timer();
        let runtime = tokio(2);
        for _ in 0..TASKS {
            let timer = timer.clone();
            runtime.spawn(async move { timer.sleep(TEST_TIMEOUT).await });
        }
        while timer.pending_timeouts() < TASKS {
            std::thread::yield_now();
        }
        drop(runtime);
        assert_eq!(timer.pending_timeouts(), 0);
        assert!(timer.stop().is_empty());
    });
}

#[test]
fn a_stop_ends_all_sleeps() {
    ends(|| {
        let (timer, runtime) = (timer(), tokio(4));
        let tasks: Vec<_> = (0..MANY)
            .map(|_| {
                let timer = timer.clone();
                runtime.spawn(async move { timer.sleep(TEST_TIMEOUT * 2).await })
            })
            .collect();
        while timer.pending_timeouts() < MANY as usize / 2 {
            std::thread::yield_now();
        }
        // Some tasks have not been polled yet.
        let begin = Instant::now();
        timer.stop();
        runtime.block_on(async {
            for task in tasks {
                assert!(matches!(task.await.unwrap(), Err(NewTimeoutError::Stopped)));
            }
        });
        assert_all_ended(&timer, begin);
    });
}

/// No two ticks are closer than the policy allows, and none is early.
#[test]
#[cfg_attr(miri, ignore = "smol uses system calls that Miri does not know")]
fn an_interval_keeps_its_period_in_real_time() {
    ends(|| {
        let timer = timer();
        for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
            let begin = Instant::now();
            let mut interval =
                timer.interval_on(Schedule::at_fixed_rate(ms(5)).missed_tick(policy));
            smol::block_on(async {
                for n in 1..=6 {
                    interval.tick().await.unwrap();
                    assert!(
                        begin.elapsed() >= ms(5 * n),
                        "{policy:?}: tick {n} was early"
                    );
                    if n == 3 {
                        // Long enough to miss the next two ticks.
                        std::thread::sleep(ms(12));
                    }
                }
            });
            if policy == MissedTick::Delay {
                assert!(
                    begin.elapsed() >= ms(15 + 12 + 10),
                    "{policy:?}: the period counts from the late tick"
                );
            }
        }
        assert_eq!(timer.pending_timeouts(), 0);
    });
}

/// One thread turns the driver and polls the futures.
#[test]
#[cfg_attr(miri, ignore = "smol uses system calls that Miri does not know")]
fn one_thread_turns_the_driver_and_runs_the_tasks() {
    ends(|| {
        let (timer, mut driver) = built_driven(|builder| builder.tick(ms(1)));
        let executor = smol::LocalExecutor::new();
        let done = Arc::new(AtomicUsize::new(0));
        for number in 0..40 {
            let (timer, done) = (timer.clone(), Arc::clone(&done));
            let task = executor.spawn(async move {
                sleeper(timer, number).await;
                done.fetch_add(1, SeqCst);
            });
            task.detach();
        }
        while done.load(SeqCst) < 40 {
            while executor.try_tick() {}
            if let Some(wait) = driver.next_turn() {
                std::thread::sleep(wait);
            }
            driver.turn();
        }
        assert_eq!(timer.pending_timeouts(), 0);
    });
}
