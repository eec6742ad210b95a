//! Tasks on a pool, and three answers to a pool that is full: here two of three tasks have a place.
//!
//! ```text
//! dropped if the pool is full: 2 ran, 1 dropped
//! run on the timer's thread if it is full: 3 ran, 0 dropped
//! tried again after 10 ms if it is full: 3 ran, 0 dropped
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use hashed_wheel::{ExpiredTask, HashedWheelTimer, ManualClock, TaskExecutor, executor};
use hashed_wheel_util::executor::TaskExecutorExt;

/// A queue with two places in front of a pool. It returns a task for which it has no place.
fn pool() -> (impl TaskExecutor, Receiver<ExpiredTask>) {
    let (queue, tasks) = sync_channel(2);
    let pool = executor::from_fn(move |task| {
        queue
            .try_send(task)
            .map_err(|(TrySendError::Full(task) | TrySendError::Disconnected(task))| task)
    });
    (pool, tasks)
}

fn three_tasks(
    name: &str,
    executor: impl TaskExecutor,
    tasks: Receiver<ExpiredTask>,
) -> Result<(), Box<dyn Error>> {
    let (clock, ms) = (ManualClock::new(), Duration::from_millis(10));
    let (timer, mut driver) = HashedWheelTimer::builder()
        .tick(ms)
        .clock(clock.clone())
        .task_executor(executor)
        .build_driven()?;
    let ran = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let ran = Arc::clone(&ran);
        timer.new_timeout(move |_| _ = ran.fetch_add(1, Ordering::Relaxed), ms)?;
    }
    clock.advance(ms);
    driver.turn(); // hands the tasks to the pool, whose thread has been busy until now
    let thread = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
    while ran.load(Ordering::Relaxed) + timer.stats().dropped_tasks < 3 {
        clock.advance(ms);
        driver.turn();
        thread::yield_now();
    }
    let dropped = timer.stats().dropped_tasks;
    timer.stop(); // drops the executor, and with it the sender
    drop((timer, driver));
    thread.join().expect("no task panics");
    println!(
        "{name}: {} ran, {dropped} dropped",
        ran.load(Ordering::Relaxed)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (full, tasks) = pool();
    three_tasks("dropped if the pool is full", full, tasks)?;
    let (full, tasks) = pool();
    three_tasks(
        "run on the timer's thread if it is full",
        full.or_run_here(),
        tasks,
    )?;
    let (full, tasks) = pool();
    three_tasks(
        "tried again after 10 ms if it is full",
        full.or_retry(Duration::from_millis(10)),
        tasks,
    )
}
