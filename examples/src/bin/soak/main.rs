//! A soak: timers under load for as long as is asked, and each timeout accounted for.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin soak -- --seconds 1200 --producers 4
//! ```
//!
//! Two timers, one on each wheel, live from the beginning to the end, and all producers work on both: they schedule, cancel
//! nine in ten, some of them twice or for each other, and re-arm. Tasks stall the worker, panic, and schedule others.
//! Beside them other timers come and go, with every kind of executor (one that refuses, one that panics, a pool, none),
//! with a thread or driven, with a limit or without, and end in every way that a timer can: one stop, two at once, the last
//! handle dropped, by a task too, or the driver.
//!
//! Nothing is sampled: each timeout keeps count of what became of it, and when the last of it is gone there has to
//! have been exactly one end. What the timers say of themselves has to agree; nothing may be early, nor overdue; memory has to
//! stay flat; and at the end no thread and nothing else may be left.
//!
//! At the end it says PASS or FAIL and why. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.

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

/// Timers under load for as long as is asked, and each timeout accounted for.
#[derive(Debug, Parser)]
#[command(name = "soak", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How long it runs
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// How many threads schedule and cancel on the two timers that stay
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    producers: u64,

    /// FAIL if memory grows by more than so many MiB after the first fifth of the time
    #[arg(long, value_name = "MIB", default_value_t = 24)]
    max_growth: u64,

    /// FAIL if a timeout is later than so many milliseconds: what stalls and a busy machine may cost
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    max_late: u64,

    /// What is done, and when
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    top: Top,

    /// Does something wrong, to show that it is noticed
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    /// Memory is not given back: 8 MiB at each look at it.
    Leak,
    /// Nobody hears that a cancel was won.
    LostCancel,
    /// An executor loses a task, and says nothing.
    LostTask,
    /// Some tasks hold the worker up for longer than anything may be late.
    Stall,
    /// A timer is forgotten with its thread.
    Thread,
}

/// How long the end may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let options = Options::parse();
    machine::share_one_heap();
    machine::silence_provoked_panics();
    give_up_after(Duration::from_secs(options.seconds) + PATIENCE);
    println!(
        "{} s with {} producers on two timers that stay; others come and go (seed {}).",
        options.seconds, options.producers, options.seed
    );
    run(&options).report(&options)
}

/// A timer that never stops would keep everybody waiting.
fn give_up_after(time: Duration) {
    thread::spawn(move || {
        thread::sleep(time);
        println!(
            "\nFAIL\n  it has not come to its end {PATIENCE:?} after the time: a stop hangs, or a worker"
        );
        std::process::exit(1);
    });
}

struct Outcome {
    total: Total,
    timers: u64,
    timers_left: u64,
    memory: Memory,
    /// In the beginning, at most, and at the end.
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
    let staying =
        [false, true].map(|hierarchical| Plan::staying(hierarchical, max_late, options.sabotage).start());
    for (name, running) in ["hashed", "hierarchical"].into_iter().zip(&staying) {
        options.top.watch(name, &running.timer);
    }
    let producers: Vec<JoinHandle<_>> = (0..options.producers)
        .map(|n| {
            let places = staying.each_ref().map(Running::place);
            let (over, seed) = (over.clone(), options.seed << 32 | n);
            let producer = move || {
                // One at a time, for a while: the other one's worker may fall asleep.
                let mut producers = places.map(|place| Producer::new(place, seed));
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
    let passing = {
        let (over, seed, sabotage) = (over.clone(), options.seed, options.sabotage);
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut total, mut timers) = (Total::default(), 0);
            while !over.load(SeqCst) {
                let plan = Plan::passing(&mut random, max_late, sabotage);
                total.add(&timers::come_and_go(&plan, &mut random));
                timers += 1;
            }
            (total, timers)
        })
    };

    let mut memory = Memory::new(time);
    let mut most_threads = threads;
    let mut reported = 0;
    while began.elapsed() < time {
        thread::sleep(Duration::from_millis(200).min(time.saturating_sub(began.elapsed())));
        if options.sabotage == Some(Sabotage::Leak) {
            std::mem::forget(vec![1_u8; 8 << 20]);
        }
        memory.sample(began.elapsed());
        most_threads = most_threads.max(machine::threads());
        let tenths = began.elapsed().as_secs() * 10 / options.seconds;
        if tenths > reported && tenths < 10 {
            reported = tenths;
            let asked: u64 = staying.iter().map(|running| running.ledger.opened()).sum();
            println!("{:>5} s: {} timeouts, {memory}", began.elapsed().as_secs(), HumanCount(asked));
        }
    }
    over.store(true, SeqCst);

    let mut entries = [Vec::new(), Vec::new()];
    for producer in producers {
        let mine = producer.join().expect("a producer does not panic");
        entries.iter_mut().zip(mine).for_each(|(all, mine)| all.extend(mine));
    }
    let (mut total, timers) = passing.join().expect("the passing timers do not panic");
    for (running, entries) in staying.into_iter().zip(entries) {
        total.add(&running.end(Ending::TwoStops, entries));
    }
    let time = began.elapsed();
    if options.sabotage == Some(Sabotage::Thread) {
        let timer = hashed_wheel::HashedWheelTimer::default();
        timer.start().expect("there are threads");
        std::mem::forget(timer);
    }
    // A thread that was joined is in the list for a moment longer.
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
        threads: [threads, most_threads, machine::threads()],
        time,
    }
}

impl Outcome {
    fn report(&self, options: &Options) -> ExitCode {
        let Self { total, timers, memory, threads, time, .. } = self;
        let count = HumanCount;
        let per_second = |n: u64| count((n as f64 / time.as_secs_f64()) as u64);
        println!();
        println!("timers       {}, made, ended and dropped", count(*timers));
        println!("timeouts     {}: {} per second", count(total.opened), per_second(total.opened));
        let share = |n: u64| n as f64 * 100.0 / total.opened.max(1) as f64;
        for (name, n) in [
            ("cancelled", total.cancelled),
            ("run", total.ran),
            ("in stop", total.swept),
            ("refused", total.refused),
            ("dropped", total.discarded),
        ] {
            println!("  {name:<10} {:>13} {:6.2} %", count(n).to_string(), share(n));
        }
        println!("re-armed     {} times", count(total.rearmed));
        println!("panics       {} of tasks and executors, all caught", count(total.provoked));
        println!("wake-ups     {}, in {} turns", count(total.wake_ups), count(total.turns));
        println!("lateness     {}", total.lateness);
        println!("memory       {memory}");
        if let [Some(before), Some(most), Some(after)] = threads {
            println!("threads      {before} before, {most} at most, {after} after");
        }
        self.verdict(options).pronounce()
    }

    fn verdict(&self, options: &Options) -> Verdict {
        let Self { total, timers_left, memory, threads, .. } = self;
        let mut verdict = Verdict::default();
        total.wrong.iter().for_each(|wrong| verdict.expect(false, wrong));
        verdict
            .expect(total.wrongs <= total.wrong.len() as u64, format!("{} such things in all", total.wrongs));
        let share = total.cancelled as f64 / (total.opened - total.refused) as f64;
        verdict.expect((0.3..0.95).contains(&share), format!("{share:.2} of all are cancelled"));
        for (what, n) in [("ran", total.ran), ("was re-armed", total.rearmed), ("panicked", total.provoked)] {
            verdict.expect(n > 0, format!("nothing {what}"));
        }
        let bound = options.max_growth << 20;
        verdict.expect(
            memory.growth().is_none_or(|growth| growth <= bound),
            format!("memory grew by more than {} MiB: {memory}", options.max_growth),
        );
        verdict.expect(*timers_left == 0, format!("{timers_left} timers are not gone"));
        let [before, _, after] = threads;
        verdict.expect(after <= before, format!("{after:?} threads are left of {before:?}"));
        verdict
    }
}
