//! A thread pool with a bounded queue, and three ways to handle the tasks that it rejects. No task
//! is lost.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin bounded_pool
//! ```
//!
//! Many timeouts are due at the same time, far more than the pool accepts. This example tries three
//! policies for the rejected tasks. The timer drops them, which it reports and counts. The worker
//! runs them (`or_run_here`), which delays other timeouts. Or they are offered to the pool again a
//! little later (`or_retry`).
//!
//! Some timeouts are cancelled earlier, and some are still pending when the timer is stopped. Each
//! task records how it ended. The counters of the timer must agree with that, and all numbers must
//! add up.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options. `builder` is the part to copy.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use hashed_wheel::{Builder, ExpiredTask, HashedWheelTimer, Timeout, TimerTask, executor};
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::positive_duration;
use hashed_wheel_util::executor::TaskExecutorExt;

const TICK: Duration = Duration::from_millis(5);

/// The delay of all timeouts that expire. It leaves enough time to schedule and cancel before.
const DUE: Duration = Duration::from_millis(200);

/// The delay before a task is offered to the pool again.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// The name of the pool's threads.
const POOL: &str = "pool";

/// The time that a busy machine gets in addition to the work itself.
const EXTRA_TIME: Duration = Duration::from_secs(60);

/// A bounded pool that runs a timer's tasks, and three ways to handle the tasks that it rejects.
#[derive(Debug, Parser)]
#[command(name = "bounded_pool", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many timeouts are scheduled; one in ten is cancelled, and one in ten is pending at
    /// `stop`
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    timeouts: u64,

    /// The number of threads of the pool
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// The length of the pool's queue
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    queue: u16,

    /// How long a task takes
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = positive_duration)]
    work: Duration,

    #[command(flatten)]
    top: Top,
}

/// What happens to a task that the pool refuses.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Drop,
    RunHere,
    Retry,
}

/// Returns the builder of a timer that sends its tasks to the pool's queue. Counts how often the
/// queue was full.
fn builder(pool: SyncSender<ExpiredTask>, rejections: Arc<AtomicU64>, policy: Policy) -> Builder {
    let pool = executor::from_fn(move |task| {
        pool.try_send(task).map_err(|(TrySendError::Full(task) | TrySendError::Disconnected(task))| {
            rejections.fetch_add(1, Relaxed);
            task
        })
    });
    let builder = HashedWheelTimer::builder().tick(TICK);
    match policy {
        Policy::Drop => builder.task_executor(pool),
        Policy::RunHere => builder.task_executor(pool.or_run_here()),
        Policy::Retry => builder.task_executor(pool.or_retry(RETRY_DELAY)),
    }
}

/// The name of a policy in the table.
fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::Drop => "drop it",
        Policy::RunHere => "run it on the worker",
        Policy::Retry => "try again later",
    }
}

fn start_pool(options: &Options) -> (SyncSender<ExpiredTask>, Vec<JoinHandle<()>>) {
    let (queue, tasks) = sync_channel::<ExpiredTask>(options.queue.into());
    let tasks = Arc::new(Mutex::new(tasks));
    let threads = (0..options.threads).map(|_| {
        let tasks = Arc::clone(&tasks);
        let work = move || {
            loop {
                let task = tasks.lock().unwrap().recv();
                match task {
                    Ok(task) => task.run(),
                    // The timer is stopped and has dropped the sender.
                    Err(_) => return,
                }
            }
        };
        thread::Builder::new().name(POOL.into()).spawn(work).expect("the thread starts")
    });
    (queue, threads.collect())
}

/// Counts how the tasks ended, as seen by the tasks.
#[derive(Debug, Default)]
struct Outcomes {
    in_pool: AtomicU64,
    on_worker: AtomicU64,
    dropped: AtomicU64,
    /// Tasks whose `cancelled` hook was called, by `cancel` or by `stop`.
    cancelled: AtomicU64,
}

struct Task {
    outcomes: Arc<Outcomes>,
    work: Duration,
    is_recorded: bool,
}

impl TimerTask for Task {
    fn run(mut self, _: &Timeout) {
        self.is_recorded = true;
        thread::sleep(self.work);
        let is_in_pool = thread::current().name() == Some(POOL);
        let outcome = if is_in_pool { &self.outcomes.in_pool } else { &self.outcomes.on_worker };
        outcome.fetch_add(1, Relaxed);
    }

    fn cancelled(mut self, _: &Timeout) {
        self.is_recorded = true;
        self.outcomes.cancelled.fetch_add(1, Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.outcomes.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Outcomes {
    /// Returns the counts: run in the pool, run on the worker, dropped, cancelled.
    fn counts(&self) -> [u64; 4] {
        [&self.in_pool, &self.on_worker, &self.dropped, &self.cancelled].map(|count| count.load(Relaxed))
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    println!(
        "{} timeouts, most of which are due at the same time. The pool has {} threads and a queue of {} tasks; each task takes {:?}.\n",
        options.timeouts, options.threads, options.queue, options.work
    );
    println!(
        "{:<22}{:>10}{:>14}{:>11}{:>10}{:>11}{:>10}{:>10}",
        "if the pool rejects",
        "rejections",
        "ran in pool",
        "on worker",
        "dropped",
        "cancelled",
        "stopped",
        "sum"
    );
    let mut verdict = Verdict::default();
    for policy in [Policy::Drop, Policy::RunHere, Policy::Retry] {
        trial(policy, &options, &mut verdict);
    }
    verdict.print()
}

fn trial(policy: Policy, options: &Options, verdict: &mut Verdict) {
    let (queue, threads) = start_pool(options);
    let rejections = Arc::default();
    let name = name(policy);
    let timer = builder(queue, Arc::clone(&rejections), policy).build().expect("the options are valid");
    options.top.watch(name, &timer);
    let outcomes = Arc::new(Outcomes::default());

    let work = options.work;
    let (mut cancelled, mut to_be_stopped) = (0, 0);
    for number in 0..options.timeouts {
        let task = Task { outcomes: Arc::clone(&outcomes), work, is_recorded: false };
        let is_far = number % 10 == 1;
        let delay = if is_far { Duration::from_secs(3_600) } else { DUE };
        let timeout = timer.new_timeout_task(task, delay).expect("the timer has no limit");
        to_be_stopped += u64::from(is_far);
        cancelled += u64::from(number % 10 == 0 && timeout.cancel());
    }

    let begin = Instant::now();
    let timeout = EXTRA_TIME + work * options.timeouts as u32;
    let ended = || outcomes.counts().iter().sum::<u64>();
    while ended() < options.timeouts - to_be_stopped && begin.elapsed() < timeout {
        thread::sleep(Duration::from_millis(1));
    }
    // Drops the executor and with it the sender of the queue. The threads end when the queue is
    // empty.
    let stopped = timer.stop().len() as u64;
    threads.into_iter().for_each(|thread| thread.join().expect("the timer catches panics of tasks"));

    let rejections = rejections.load(Relaxed);
    let counts @ [in_pool, on_worker, dropped, hooks] = outcomes.counts();
    let sum: u64 = counts.iter().sum();
    println!(
        "{:<22}{rejections:>10}{in_pool:>14}{on_worker:>11}{dropped:>10}{cancelled:>11}{stopped:>10}{sum:>10}",
        name
    );

    let stats = timer.stats();
    let mut expect = |holds, failure: String| {
        verdict.expect(holds, format!("{name}: {failure}"));
    };
    expect(sum == options.timeouts, format!("{sum} of {} tasks have ended", options.timeouts));
    expect(hooks == cancelled + stopped, format!("the hook was called {hooks} times"));
    expect(stopped == to_be_stopped, format!("stop returned {stopped} timeouts instead of {to_be_stopped}"));
    // Each retry is a timeout too.
    let retried = if policy == Policy::Retry { rejections } else { 0 };
    expect(
        (stats.scheduled, stats.pending) == (options.timeouts + retried, 0),
        format!("the timer counts {} timeouts, {} of them pending", stats.scheduled, stats.pending),
    );
    expect(
        (stats.expired, stats.cancelled) == (in_pool + on_worker + dropped + retried, hooks),
        format!("the timer counts {} expired, {} cancelled", stats.expired, stats.cancelled),
    );
    expect(stats.dropped_tasks == dropped, format!("the timer counts {} as dropped", stats.dropped_tasks));
    expect(stats.panics == 0, format!("{} tasks panicked", stats.panics));
    expect(rejections > 0, "the pool rejected nothing: use more --timeouts or a shorter --queue".into());
    let expected = match policy {
        Policy::Drop => (0, rejections),
        Policy::RunHere => (rejections, 0),
        Policy::Retry => (0, 0),
    };
    let is_as_selected = (on_worker, dropped) == expected;
    expect(is_as_selected, "rejected tasks did not end as selected".into());
}
