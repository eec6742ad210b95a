//! Tasks on a tokio runtime, which may be dropped before them.
#![cfg(feature = "tokio")]

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Driven, Ends, Gate, TEST_TIMEOUT, TICK, ends, eventually};
use hashed_wheel::{HashedWheelTimer, TaskExecutor};
use hashed_wheel_util::executor::{TokioSpawn, TokioSpawnBlocking};
use tokio::runtime::{Builder, Handle, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap()
}

fn driven(executor: impl TaskExecutor) -> Driven {
    Driven::with(|builder| builder.task_executor(executor))
}

fn wait_until_dropped(timer: &HashedWheelTimer, count: u64) -> bool {
    let begin = Instant::now();
    while timer.stats().dropped_tasks < count && begin.elapsed() < TEST_TIMEOUT {
        thread::yield_now();
    }
    let stats = timer.stats();
    (stats.dropped_tasks, stats.panics) == (count, 0)
}

/// Schedules a task that panics, and one that reports whether it runs inside a runtime.
fn schedule_both(timer: &HashedWheelTimer, sender: &Sender<bool>) {
    let sender = sender.clone();
    timer
        .new_timeout(|_| panic!("in the runtime"), TICK)
        .unwrap();
    timer
        .new_timeout(
            move |_| sender.send(Handle::try_current().is_ok()).unwrap(),
            TICK,
        )
        .unwrap();
}

/// A panic on a thread of tokio is printed there, and the test does not need the output.
fn disable_panic_output() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| ())));
}

#[test]
fn spawn_blocking_runs_tasks_in_the_runtime() {
    disable_panic_output();
    let runtime = runtime();
    let mut t = driven(TokioSpawnBlocking::new(runtime.handle().clone()));
    let (sender, receiver) = channel();
    schedule_both(&t.timer, &sender);
    assert_eq!(t.pass(TICK), 2);
    assert!(receiver.recv_timeout(TEST_TIMEOUT).unwrap());
    assert_eq!(
        (t.timer.stats().panics, t.timer.stats().dropped_tasks),
        (1, 0)
    );
}

#[test]
fn spawn_runs_tasks_in_the_runtime() {
    disable_panic_output();
    let runtime = runtime();
    let mut t = driven(TokioSpawn::new(runtime.handle().clone()));
    let (sender, receiver) = channel();
    schedule_both(&t.timer, &sender);
    assert_eq!(t.pass(TICK), 2);
    assert!(
        receiver.try_recv().is_err(),
        "no thread drives this runtime"
    );
    // One yield per task of the runtime.
    (0..2).for_each(|_| runtime.block_on(tokio::task::yield_now()));
    assert!(receiver.recv_timeout(TEST_TIMEOUT).unwrap());
    assert_eq!(
        (t.timer.stats().panics, t.timer.stats().dropped_tasks),
        (1, 0)
    );
}

/// The worker thread continues, and ends when the timer is stopped.
#[test]
fn tasks_for_a_dropped_runtime_are_dropped_and_counted() {
    fn check(executor: impl TaskExecutor) {
        let builder = HashedWheelTimer::builder().tick(Duration::from_millis(1));
        let timer = builder.task_executor(executor).build().unwrap();
        let ends = Ends::new();
        for count in 1..=3 {
            timer.new_timeout_task(ends.task(), TICK).unwrap();
            assert!(wait_until_dropped(&timer, count), "{:?}", timer.stats());
            assert_eq!((ends.runs(), ends.hooks()), (0, 0));
        }
        let later = timer.new_timeout(|_| (), TEST_TIMEOUT * 100).unwrap();
        assert_eq!(timer.stop(), [later]);
        assert_eq!(ends.drops(), 3);
    }

    let dropped_runtime = || {
        let runtime = runtime();
        runtime.handle().clone()
    };
    ends(move || check(TokioSpawnBlocking::new(dropped_runtime())));
    ends(move || check(TokioSpawn::new(dropped_runtime())));
}

#[test]
fn spawn_blocking_runs_or_drops_waiting_tasks_when_the_runtime_is_dropped() {
    let runtime = runtime();
    let mut t = driven(TokioSpawnBlocking::new(runtime.handle().clone()));
    let rest = Ends::new();
    let (gate, wait) = Gate::new();
    t.timer.new_timeout(move |_| wait(), TICK).unwrap();
    (0..3).for_each(|_| drop(t.timer.new_timeout_task(rest.task(), TICK).unwrap()));
    assert_eq!(t.pass(TICK), 4);
    gate.wait_for_arrival();
    // This does not wait for the task that has begun.
    runtime.shutdown_background();
    t.timer.new_timeout_task(rest.task(), TICK).unwrap();
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(
        (rest.drops(), t.timer.stats().dropped_tasks),
        (1, 1),
        "a later task is dropped"
    );
    gate.open();
    eventually("all tasks are dropped", || rest.drops() == 4);
    assert_eq!(rest.runs() as u64 + t.timer.stats().dropped_tasks, 4);
}

#[test]
fn spawn_drops_tasks_that_have_not_begun_when_the_runtime_is_dropped() {
    let runtime = runtime();
    let mut t = driven(TokioSpawn::new(runtime.handle().clone()));
    let rest = Ends::new();
    (0..3).for_each(|_| drop(t.timer.new_timeout_task(rest.task(), TICK).unwrap()));
    assert_eq!(t.pass(TICK), 3);
    drop(runtime);
    assert!(wait_until_dropped(&t.timer, 3), "{:?}", t.timer.stats());
    assert_eq!((rest.runs(), rest.drops()), (0, 3));
}

/// The runtime is dropped while tasks expire. Each task runs or is dropped, and the counts add up.
#[test]
fn no_task_is_lost_when_the_runtime_is_dropped_concurrently() {
    const MANY: u64 = if cfg!(miri) { 40 } else { 2_000 };

    fn check<E: TaskExecutor>(executor: fn(Handle) -> E) {
        let runtime = runtime();
        let executor = executor(runtime.handle().clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let stop_host = Arc::clone(&is_over);
        let mut host = Some(thread::spawn(move || {
            runtime.block_on(async {
                while !stop_host.load(SeqCst) {
                    tokio::task::yield_now().await;
                }
            });
        }));
        let builder = HashedWheelTimer::builder().tick(Duration::from_micros(100));
        let timer = builder.task_executor(executor).build().unwrap();
        let ends = Ends::new();
        for number in 0..MANY {
            is_over.store(number >= MANY / 2, SeqCst);
            if number == MANY - MANY / 20 {
                host.take().unwrap().join().unwrap();
            }
            timer
                .new_timeout_task(ends.task(), Duration::from_micros(number % 300))
                .unwrap();
            if number % (MANY / 40) == 0 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        eventually("all tasks are dropped", || ends.drops() == MANY as usize);
        let stats = timer.stats();
        assert_eq!((stats.expired, stats.pending, stats.panics), (MANY, 0, 0));
        assert_eq!(ends.runs() as u64 + stats.dropped_tasks, MANY);
        assert!(stats.dropped_tasks >= MANY / 20, "{stats:?}");
    }

    ends(|| check(TokioSpawnBlocking::new));
    ends(|| check(TokioSpawn::new));
}

#[test]
fn tokio_executors_implement_debug_and_clone() {
    let runtime = runtime();
    let [blocking, other] =
        [(); 2].map(|()| TokioSpawnBlocking::new(runtime.handle().clone()).clone());
    assert!(
        format!("{blocking:?}").starts_with("TokioSpawnBlocking"),
        "{other:?}"
    );
    assert!(
        format!("{:?}", TokioSpawn::new(runtime.handle().clone()).clone())
            .starts_with("TokioSpawn")
    );
}
