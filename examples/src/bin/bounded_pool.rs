//! A pool of threads with a queue that is bounded, and what becomes of the timeouts that it refuses: nothing vanishes.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin bounded_pool
//! ```
//!
//! Many timeouts fall due at once, far more than the pool takes. What to do then is for the program to say, so this one tries
//! three ways: it drops what was refused, which the timer reports and counts; it runs it on the timer's worker, which holds
//! up the others but loses nothing; or it asks the pool again a little later, by means of a second timer. Some
//! timeouts are cancelled before, and some are left to `stop`. Each task knows its own fate; the timer's counters have to
//! say the same, and all of it has to add up.
//!
//! At the end it says PASS or FAIL and why. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options. `Refused::executor` is the
//! part to copy.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use hashed_wheel::{ExpiredTask, HashedWheelTimer, Timeout, TimerTask};
use hashed_wheel_examples::Verdict;
use hashed_wheel_examples::top::Top;

const TICK: Duration = Duration::from_millis(5);

/// When all that expires does so: there is time to schedule and cancel before.
const DUE: Duration = Duration::from_millis(200);

/// When the pool is asked again.
const AGAIN: Duration = Duration::from_millis(10);

/// The threads of the pool are called so.
const POOL: &str = "pool";

/// How long it may take beside the work itself, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bounded pool that runs a timer's tasks, and three answers to its refusals.
#[derive(Debug, Parser)]
#[command(name = "bounded_pool", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many timeouts are scheduled; one in ten is cancelled, and one in ten left to `stop`
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    timeouts: u64,

    /// How many threads the pool has
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// How many tasks can wait for them
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    queue: u16,

    /// How many milliseconds a task takes
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    work: u64,

    #[command(flatten)]
    top: Top,
}

/// What becomes of a task that the pool refuses.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Refused {
    Drop,
    RunHere,
    AskAgain,
}

impl Refused {
    /// Hands tasks to the pool's queue. Counts how often that was full.
    fn executor(
        self,
        pool: SyncSender<ExpiredTask>,
        refusals: Arc<AtomicU64>,
    ) -> Box<dyn Fn(ExpiredTask) + Send + Sync> {
        match self {
            Self::Drop => Box::new(move |task| {
                if pool.try_send(task).is_err() {
                    // The error had the task, and is dropped.
                    refusals.fetch_add(1, Relaxed);
                }
            }),
            Self::RunHere => Box::new(move |task| {
                if let Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) = pool.try_send(task)
                {
                    refusals.fetch_add(1, Relaxed);
                    task.run();
                }
            }),
            Self::AskAgain => {
                // One without an executor: what runs there takes no time.
                let timer = HashedWheelTimer::new(TICK, 64);
                Box::new(move |task| offer(&timer, &pool, &refusals, task))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop it",
            Self::RunHere => "run it on the worker",
            Self::AskAgain => "ask again later",
        }
    }
}

fn offer(
    timer: &HashedWheelTimer,
    pool: &SyncSender<ExpiredTask>,
    refusals: &Arc<AtomicU64>,
    task: ExpiredTask,
) {
    // (Of a pool that is gone there is nothing to ask.)
    let Err(TrySendError::Full(task)) = pool.try_send(task) else { return };
    refusals.fetch_add(1, Relaxed);
    let (pool, refusals) = (pool.clone(), Arc::clone(refusals));
    let again = move |timeout: &Timeout| offer(&timeout.timer(), &pool, &refusals, task);
    // If this timer refuses, the task goes with the closure, and is counted as dropped.
    let _ = timer.new_timeout(again, AGAIN);
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
                    // The timer is stopped, and has dropped the other end.
                    Err(_) => return,
                }
            }
        };
        thread::Builder::new().name(POOL.into()).spawn(work).expect("a thread can be had")
    });
    (queue, threads.collect())
}

/// What became of all tasks, as they see it.
#[derive(Debug, Default)]
struct Fates {
    in_pool: AtomicU64,
    on_worker: AtomicU64,
    dropped: AtomicU64,
    /// Their hooks were called: by `cancel` or by `stop`.
    cancelled: AtomicU64,
}

struct Task {
    fates: Arc<Fates>,
    work: Duration,
    has_ended: bool,
}

impl TimerTask for Task {
    fn run(mut self, _: &Timeout) {
        self.has_ended = true;
        thread::sleep(self.work);
        let is_in_pool = thread::current().name() == Some(POOL);
        let fate = if is_in_pool { &self.fates.in_pool } else { &self.fates.on_worker };
        fate.fetch_add(1, Relaxed);
    }

    fn cancelled(mut self, _: &Timeout) {
        self.has_ended = true;
        self.fates.cancelled.fetch_add(1, Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.has_ended {
            self.fates.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Fates {
    /// In the pool, on the worker, dropped, cancelled.
    fn counts(&self) -> [u64; 4] {
        [&self.in_pool, &self.on_worker, &self.dropped, &self.cancelled].map(|count| count.load(Relaxed))
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    println!(
        "{} timeouts, of which most fall due at once. The pool has {} threads and a queue of {}; each task takes {} ms.\n",
        options.timeouts, options.threads, options.queue, options.work
    );
    println!(
        "{:<22}{:>10}{:>14}{:>11}{:>10}{:>11}{:>10}{:>10}",
        "when the pool refuses",
        "refusals",
        "ran in pool",
        "on worker",
        "dropped",
        "cancelled",
        "stopped",
        "sum"
    );
    let mut verdict = Verdict::default();
    for refused in [Refused::Drop, Refused::RunHere, Refused::AskAgain] {
        trial(refused, &options, &mut verdict);
    }
    verdict.pronounce()
}

fn trial(refused: Refused, options: &Options, verdict: &mut Verdict) {
    let (queue, threads) = start_pool(options);
    let refusals = Arc::default();
    let executor = refused.executor(queue, Arc::clone(&refusals));
    let timer = HashedWheelTimer::builder().tick(TICK).task_executor(executor).build();
    let timer = timer.expect("it can be built");
    options.top.watch(refused.name(), &timer);
    let fates = Arc::new(Fates::default());

    let work = Duration::from_millis(options.work);
    let (mut cancelled, mut to_be_stopped) = (0, 0);
    for number in 0..options.timeouts {
        let task = Task { fates: Arc::clone(&fates), work, has_ended: false };
        let is_far = number % 10 == 1;
        let delay = if is_far { Duration::from_secs(3_600) } else { DUE };
        let timeout = timer.new_timeout_task(task, delay).expect("the timer takes all");
        to_be_stopped += u64::from(is_far);
        cancelled += u64::from(number % 10 == 0 && timeout.cancel());
    }

    let begin = Instant::now();
    let patience = PATIENCE + work * options.timeouts as u32;
    let ended = || fates.counts().iter().sum::<u64>();
    while ended() < options.timeouts - to_be_stopped && begin.elapsed() < patience {
        thread::sleep(Duration::from_millis(1));
    }
    // Drops the executor, and with it the queue's end: the threads end once it is empty.
    let stopped = timer.stop().len() as u64;
    threads.into_iter().for_each(|thread| thread.join().expect("tasks that panic are the timer's affair"));

    let refusals = refusals.load(Relaxed);
    let counts @ [in_pool, on_worker, dropped, hooks] = fates.counts();
    let sum: u64 = counts.iter().sum();
    println!(
        "{:<22}{refusals:>10}{in_pool:>14}{on_worker:>11}{dropped:>10}{cancelled:>11}{stopped:>10}{sum:>10}",
        refused.name()
    );

    let stats = timer.stats();
    let mut expect = |holds, otherwise: String| {
        verdict.expect(holds, format!("{}: {otherwise}", refused.name()));
    };
    expect(sum == options.timeouts, format!("{sum} of {} tasks have a fate", options.timeouts));
    expect(hooks == cancelled + stopped, format!("{hooks} hooks were called"));
    expect(stopped == to_be_stopped, format!("stop returned {stopped}, and should have {to_be_stopped}"));
    expect(
        (stats.scheduled, stats.pending) == (options.timeouts, 0),
        format!("the timer counts {} timeouts, {} of them pending", stats.scheduled, stats.pending),
    );
    expect(
        (stats.expired, stats.cancelled) == (in_pool + on_worker + dropped, hooks),
        format!("the timer counts {} expired, {} cancelled", stats.expired, stats.cancelled),
    );
    expect(stats.dropped_tasks == dropped, format!("the timer counts {} as dropped", stats.dropped_tasks));
    expect(stats.panics == 0, format!("{} tasks panicked", stats.panics));
    expect(
        refusals > 0,
        "the pool refused nothing: more --timeouts, or a shorter --queue, would show more".into(),
    );
    let is_as_asked = match refused {
        Refused::Drop => (on_worker, dropped) == (0, refusals),
        Refused::RunHere => (on_worker, dropped) == (refusals, 0),
        Refused::AskAgain => (on_worker, dropped) == (0, 0),
    };
    expect(is_as_asked, "what was refused had another fate".into());
}
