//! A soak test: timers under load for a given time. Each timeout is accounted for.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin soak -- --seconds 1200 --producers 4
//! ```
//!
//! Two timers, one with each wheel, live for the whole time, and all producers use both. They
//! schedule timeouts, cancel nine in ten, and reset some. Some timeouts are cancelled twice, or by
//! another thread. Tasks stall the worker, panic, and schedule other timeouts.
//!
//! At the same time other timers are created and dropped. They have every kind of executor: one
//! that rejects tasks, one that panics, a pool, or none. They have a thread or a driver, and a
//! limit or none. They end in every possible way: one `stop`, two concurrent ones, the drop of the
//! last handle, also by a task, or the drop of the driver.
//!
//! Every timeout is checked, not a sample. Each one counts how it ended, and when its last part is
//! dropped, there must have been exactly one end. The counters of the timers must agree. No timeout
//! may be early or overdue. Memory must not grow. At the end no thread and no part of a timer may
//! be left.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options.

mod ledger;
mod machine;
mod producer;
mod timers;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use hashed_wheel_examples::Verdict;
use hashed_wheel_examples::top::Top;
use indicatif::HumanCount;

use crate::ledger::Total;
use crate::machine::Memory;
use crate::producer::Producer;
use crate::timers::{Ending, Plan, Running};

/// Timers under load for a given time; each timeout is accounted for
#[derive(Debug, Parser)]
#[command(name = "soak", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// The running time in seconds
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// How many threads schedule and cancel timeouts on the two permanent timers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    producers: u64,

    /// FAIL if memory grows by more MiB after the first fifth of the time
    #[arg(long, value_name = "MIB", default_value_t = 24)]
    max_growth: u64,

    /// FAIL if a timeout is more milliseconds late: the effect of stalls and of a busy machine
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    max_late: u64,

    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    top: Top,

    /// Do something wrong, to show that it is detected
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    /// Leaks memory: 8 MiB at each sample.
    Leak,
    /// Does not count a successful cancel.
    LostCancel,
    /// An executor loses a task without a report.
    LostTask,
    /// Some tasks block the worker for longer than the permitted lateness.
    Stall,
    /// Leaks a timer with its thread.
    Thread,
}

/// The time limit for the end of the program.
const END_TIMEOUT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let options = Options::parse();
    machine::share_one_heap();
    machine::silence_intentional_panics();
    abort_after(Duration::from_secs(options.seconds) + END_TIMEOUT);
    println!(
        "{} s with {} producers on two permanent timers; other timers are created and dropped (seed {}).",
        options.seconds, options.producers, options.seed
    );
    run(&options).report(&options)
}

/// Ends the program after the time. Otherwise a timer that never stops would block it.
fn abort_after(time: Duration) {
    thread::spawn(move || {
        thread::sleep(time);
        println!(
            "\nFAIL\n  the program has not ended {END_TIMEOUT:?} after its running time: a stop or a worker hangs"
        );
        std::process::exit(1);
    });
}

struct Outcome {
    total: Total,
    timers: u64,
    timers_left: u64,
    memory: Memory,
    /// The numbers of threads: at the start, the maximum, and at the end.
    threads: [Option<usize>; 3],
    time: Duration,
}

fn run(options: &Options) -> Outcome {
    let began = Instant::now();
    let time = Duration::from_secs(options.seconds);
    options.top.start();
    let threads = machine::threads();
    let max_late = Duration::from_millis(options.max_late);

    let over = Arc::new(AtomicBool::new(false));
    let permanent =
        [false, true].map(|hierarchical| Plan::permanent(hierarchical, max_late, options.sabotage).start());
    for (name, running) in ["hashed", "hierarchical"].into_iter().zip(&permanent) {
        options.top.watch(name, &running.timer);
    }
    let producers: Vec<JoinHandle<_>> = (0..options.producers)
        .map(|n| {
            let targets = permanent.each_ref().map(Running::target);
            let (over, seed) = (over.clone(), options.seed << 32 | n);
            let producer = move || {
                // Works on one timer for a while, so that the worker of the other one can fall
                // asleep.
                let mut producers = targets.map(|target| Producer::new(target, seed));
                let [hashed, hierarchical] = &mut producers;
                while !over.load(SeqCst) {
                    hashed.work();
                    hierarchical.work();
                }
                producers.map(Producer::entries)
            };
            thread::spawn(producer)
        })
        .collect();
    let temporary = {
        let (over, seed, sabotage) = (over.clone(), options.seed, options.sabotage);
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut total, mut timers) = (Total::default(), 0);
            while !over.load(SeqCst) {
                let plan = Plan::temporary(&mut random, max_late, sabotage);
                total.add(&timers::run_temporary(&plan, &mut random));
                timers += 1;
            }
            (total, timers)
        })
    };

    let mut memory = Memory::new(time);
    let mut max_threads = threads;
    let mut reported = 0;
    while began.elapsed() < time {
        thread::sleep(Duration::from_millis(200).min(time.saturating_sub(began.elapsed())));
        if options.sabotage == Some(Sabotage::Leak) {
            std::mem::forget(vec![1_u8; 8 << 20]);
        }
        memory.sample(began.elapsed());
        max_threads = max_threads.max(machine::threads());
        let tenths = began.elapsed().as_secs() * 10 / options.seconds;
        if tenths > reported && tenths < 10 {
            reported = tenths;
            let asked: u64 = permanent.iter().map(|running| running.ledger.scheduled()).sum();
            println!("{:>5} s: {} timeouts, {memory}", began.elapsed().as_secs(), HumanCount(asked));
        }
    }
    over.store(true, SeqCst);

    let mut entries = [Vec::new(), Vec::new()];
    for producer in producers {
        let mine = producer.join().expect("a producer does not panic");
        entries.iter_mut().zip(mine).for_each(|(all, mine)| all.extend(mine));
    }
    let (mut total, timers) = temporary.join().expect("the temporary timers do not panic");
    for (running, entries) in permanent.into_iter().zip(entries) {
        total.add(&running.end(Ending::TwoStops, entries));
    }
    let time = began.elapsed();
    if options.sabotage == Some(Sabotage::Thread) {
        let timer = hashed_wheel::HashedWheelTimer::default();
        timer.start().expect("the thread starts");
        std::mem::forget(timer);
    }
    // A joined thread is listed for a short time after the join.
    let since = Instant::now();
    let timers_left = || timers::CLOCKS.load(SeqCst);
    while (machine::threads() > threads || timers_left() > 0) && since.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(10));
    }
    Outcome {
        total,
        timers: timers + 2,
        timers_left: timers_left(),
        memory,
        threads: [threads, max_threads, machine::threads()],
        time,
    }
}

impl Outcome {
    fn report(&self, options: &Options) -> ExitCode {
        let Self { total, timers, memory, threads, time, .. } = self;
        let count = HumanCount;
        let per_second = |n: u64| count((n as f64 / time.as_secs_f64()) as u64);
        println!();
        println!("timers       {}, created and dropped", count(*timers));
        println!("timeouts     {}: {} per second", count(total.scheduled), per_second(total.scheduled));
        let share = |n: u64| n as f64 * 100.0 / total.scheduled.max(1) as f64;
        for (name, n) in [
            ("cancelled", total.cancelled),
            ("run", total.ran),
            ("in stop", total.ended_by_stop),
            ("rejected", total.refused),
            ("dropped", total.task_dropped),
        ] {
            println!("  {name:<10} {:>13} {:6.2} %", count(n).to_string(), share(n));
        }
        println!("resets       {}", count(total.rearmed));
        println!("panics       {} of tasks and executors, all caught", count(total.intentional_panics));
        println!("wake-ups     {}, in {} turns", count(total.wake_ups), count(total.turns));
        println!("lateness     {}", total.lateness);
        println!("memory       {memory}");
        if let [Some(before), Some(most), Some(after)] = threads {
            println!("threads      {before} before, {most} maximum, {after} after");
        }
        self.verdict(options).print()
    }

    fn verdict(&self, options: &Options) -> Verdict {
        let Self { total, timers_left, memory, threads, .. } = self;
        let mut verdict = Verdict::default();
        total.errors.iter().for_each(|error| verdict.expect(false, error));
        verdict.expect(
            total.error_count <= total.errors.len() as u64,
            format!("{} errors in total", total.error_count),
        );
        let share = total.cancelled as f64 / (total.scheduled - total.refused) as f64;
        verdict.expect(
            (0.3..0.95).contains(&share),
            format!("a share of {share:.2} of the timeouts was cancelled"),
        );
        for (what, n) in
            [("ran", total.ran), ("was reset", total.rearmed), ("panicked", total.intentional_panics)]
        {
            verdict.expect(n > 0, format!("nothing {what}"));
        }
        let bound = options.max_growth << 20;
        verdict.expect(
            memory.growth().is_none_or(|growth| growth <= bound),
            format!("memory grew by more than {} MiB: {memory}", options.max_growth),
        );
        verdict.expect(*timers_left == 0, format!("{timers_left} timers have not been dropped"));
        let [before, _, after] = threads;
        verdict.expect(after <= before, format!("{after:?} threads are left, {before:?} at the start"));
        verdict
    }
}
