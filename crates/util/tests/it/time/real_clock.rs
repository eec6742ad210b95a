//! On the machine's clock: on runtimes with threads, where this module uses its own timer, and on a
//! current-thread runtime.

use std::future::pending;
use std::pin::pin;
use std::sync::mpsc;

use tokio::runtime::{Builder, Runtime};

use super::super::Task;
use super::time::{self, Duration, Instant, MissedTickBehavior};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// More than any of these tests needs on a busy machine.
const GENEROUS: Duration = Duration::from_secs(20);

fn runtimes() -> [Runtime; 3] {
    let with_threads = |threads| {
        Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_time()
            .build()
    };
    let current_thread = Builder::new_current_thread().enable_time().build();
    [with_threads(1), with_threads(4), current_thread].map(Result::unwrap)
}

#[test]
fn a_sleep_is_never_early() {
    for runtime in runtimes() {
        let (send, ended) = mpsc::channel();
        let sleeps = async move {
            for delay in [ms(1), ms(10), Duration::from_micros(1_500)] {
                let deadline = Instant::now() + delay;
                time::sleep_until(deadline).await;
                assert!(Instant::now() >= deadline);
                let begin = Instant::now();
                let sleep = time::sleep(delay);
                assert!(sleep.deadline() >= begin + delay);
                sleep.await;
                assert!(begin.elapsed() >= delay);
            }
            send.send(()).unwrap();
        };
        runtime
            .block_on(async { tokio::spawn(sleeps).await })
            .unwrap();
        ended.recv_timeout(GENEROUS).unwrap();
    }
}

#[test]
fn a_sleep_in_a_task_that_never_waits_ends() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let deadline = Instant::now() + ms(10);
            let mut sleep = pin!(time::sleep_until(deadline));
            std::future::poll_fn(|context| {
                let poll = sleep.as_mut().poll(context);
                context.waker().wake_by_ref();
                poll
            })
            .await;
            assert!(Instant::now() >= deadline);
        });
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_loop_over_sleeps_of_no_time_lets_other_tasks_run() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let busy = async {
        let past = Instant::now();
        let (send, mut other) = tokio::sync::oneshot::channel();
        tokio::spawn(async { send.send(()) });
        while other.try_recv().is_err() {
            time::sleep_until(past).await;
            assert!(time::timeout_at(past, pending::<()>()).await.is_err());
        }
    };
    runtime
        .block_on(async { tokio::spawn(busy).await })
        .unwrap();
}

#[test]
fn a_sleep_is_moved_while_it_waits() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (begin, task) = (Instant::now(), Task::new());
            let mut sleep = pin!(time::sleep(GENEROUS));
            assert!(task.poll(sleep.as_mut()).is_pending());
            sleep.as_mut().reset(begin + ms(10));
            sleep.as_mut().await;
            assert!((ms(10)..GENEROUS).contains(&begin.elapsed()));
            assert!(sleep.is_elapsed() && task.poll(sleep.as_mut()).is_ready());
            sleep.as_mut().reset(begin + 2 * GENEROUS);
            assert!(!sleep.is_elapsed() && task.poll(sleep.as_mut()).is_pending());
            sleep.as_mut().reset(begin);
            assert!(task.poll(sleep.as_mut()).is_ready());
        });
    }
}

#[test]
fn a_time_limit_ends_a_future_or_lets_it_pass() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let begin = Instant::now();
            assert!(time::timeout(ms(10), pending::<()>()).await.is_err());
            assert!((ms(10)..GENEROUS).contains(&begin.elapsed()));
            let work = async {
                time::sleep(ms(5)).await;
                7
            };
            assert_eq!(time::timeout(GENEROUS, work).await, Ok(7));
            assert_eq!(time::timeout_at(begin, async { 7 }).await, Ok(7));
            assert!(time::timeout_at(begin, pending::<()>()).await.is_err());
            let mut endless = pin!(time::timeout(Duration::MAX, pending::<()>()));
            assert!(Task::new().poll(endless.as_mut()).is_pending());
        });
    }
}

#[test]
fn an_interval_does_not_drift() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let start = Instant::now() + ms(3);
            let mut interval = time::interval_at(start, ms(5));
            for tick in 0..5 {
                let due = interval.tick().await;
                assert_eq!(due, start + tick * ms(5));
                assert!(Instant::now() >= due);
            }
        });
    }
}

#[test]
fn each_behaviour_catches_up_in_its_way() {
    use MissedTickBehavior::{Burst, Delay, Skip};

    for runtime in runtimes() {
        for behavior in [Burst, Delay, Skip] {
            runtime.block_on(async {
                let start = Instant::now();
                let mut interval = time::interval(ms(20));
                interval.set_missed_tick_behavior(behavior);
                assert!(interval.tick().await >= start);
                std::thread::sleep(ms(50));
                let missed = interval.tick().await;
                let next = interval.tick().await;
                let gap = next - missed;
                match behavior {
                    Burst => assert_eq!(gap, ms(20)),
                    Delay => assert!(next >= start + ms(70)),
                    Skip => {
                        assert_eq!(gap.as_nanos() % ms(20).as_nanos(), 0);
                        assert!(gap >= ms(40));
                    }
                    #[allow(unreachable_patterns, reason = "of a later version")]
                    _ => unreachable!(),
                }
                interval.reset_after(ms(10));
                let (now, next) = (Instant::now(), interval.tick().await);
                assert!(next > now && next <= now + ms(10));
            });
        }
    }
}

#[test]
fn many_sleeps_of_many_tasks_end_on_many_threads() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let tasks = (0..500).map(|task| async move {
        let mut random = fastrand::Rng::with_seed(task);
        for _ in 0..10 {
            time::sleep(Duration::from_micros(random.u64(..5_000))).await;
            let limit = Duration::from_micros(random.u64(..5_000));
            _ = time::timeout(limit, time::sleep(ms(2))).await;
        }
    });
    let tasks: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_sleep_may_move_to_another_thread() {
    let [runtime, other, _] = runtimes();
    let context = runtime.enter();
    let mut sleep = Box::pin(time::sleep(ms(5)));
    assert!(Task::new().poll(sleep.as_mut()).is_pending());
    drop(context);
    other.block_on(sleep);
}
