//! Tasks on a pool, and three answers to a pool that is full: here two of three tasks have a place.
//!
//! ```text
//! dropped if the pool is full: 2 ran, 1 dropped
//! run on the timer's thread if it is full: 3 ran, 0 dropped
//! tried again after 10 ms if it is full: 3 ran, 0 dropped
//! ```

use std::error::Error;
use std::sync::mpsc::{Receiver, TrySendError, channel, sync_channel};
use std::thread;
use std::time::Duration;

use hashed_wheel::{ExpiredTask, HashedWheelTimer, ManualClock, TaskExecutor, executor};
use hashed_wheel_util::executor::TaskExecutorExt;

const TICK: Duration = Duration::from_millis(10);

/// A queue with two places in front of a pool. It returns a task for which it has no place.
fn pool() -> (impl TaskExecutor, Receiver<ExpiredTask>) {
    let (queue, tasks) = sync_channel(2);
    let refused = |(TrySendError::Full(task) | TrySendError::Disconnected(task))| task;
    let pool = executor::from_fn(move |task| queue.try_send(task).map_err(refused));
    (pool, tasks)
}

fn three_tasks(
    name: &str,
    executor: impl TaskExecutor,
    tasks: Receiver<ExpiredTask>,
) -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
    let (timer, mut driver) = builder.task_executor(executor).build_driven()?;
    let (done, ran) = channel();
    for _ in 0..3 {
        let done = done.clone();
        timer.new_timeout(move |_| _ = done.send(()), TICK)?;
    }
    clock.advance(TICK);
    driver.turn(); // hands the tasks to the pool, whose thread has been busy until now
    let thread = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
    while let Some(wait) = driver.next_turn() {
        clock.advance(wait); // until a refused task has been tried again
        driver.turn();
    }
    let dropped = timer.stats().dropped_tasks;
    timer.stop(); // drops the executor, and with it the sender
    thread.join().expect("no task panics");
    println!("{name}: {} ran, {dropped} dropped", ran.try_iter().count());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (full, tasks) = pool();
    three_tasks("dropped if the pool is full", full, tasks)?;
    let (full, tasks) = pool();
    let name = "run on the timer's thread if it is full";
    three_tasks(name, full.or_run_here(), tasks)?;
    let (full, tasks) = pool();
    let name = "tried again after 10 ms if it is full";
    three_tasks(name, full.or_retry(TICK), tasks)
}
