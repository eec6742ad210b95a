//! A soak test: timers under load for a given time. Each timeout is accounted for.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin soak -- --duration 20m --producers 4
//! ```
//!
//! Two timers, one with each wheel, live for the whole time, and all producers use both. They
//! schedule timeouts, cancel nine in ten, and reset some. Some timeouts are cancelled twice, or by
//! another thread. Tasks stall the worker, panic, and schedule other timeouts.
//!
//! Three more timers have all kinds of load at once: plain timeouts, sleeps, intervals, periodic
//! tasks, a map with a handler, two with receivers of batches and of single entries, and a
//! `DelayQueue`. One has a thread, one a driver, and one runs on tokio. Each thread that uses one
//! of them uses all three. Threads that end soon use all five timers.
//!
//! From time to time a burst of a million timeouts comes, which are cancelled or fire, and then a
//! pause, in which no thread uses a timer.
//!
//! At the same time other timers are created and dropped. They have every kind of executor: one
//! that rejects tasks, which are dropped, or run by the worker or a handler; one that panics, a
//! pool, or none. Some cancel all that is pending. They have a thread or a driver, or run on tokio,
//! and have a limit or none. Half of them have all kinds of load. They end in every possible way:
//! one `stop`, two concurrent ones, a `stop` on a thread of its own, a `shutdown`, the drop of the
//! last handle, also by a task, or the drop of the driver.
//!
//! Every timeout is checked, not a sample. Each one counts how it ended, and when its last part is
//! dropped, there must have been exactly one end. The counters of the timers must agree. For each
//! other kind of load, everything that was registered has expired, was cancelled or rejected, or
//! was left when the timer was stopped.
//!
//! Nothing may be early or late. Nothing that was due long before may be cancelled, dropped or
//! removed. Before a pause the threads wait for what is due, so that a lost wake-up is noticed.
//! Periodic tasks may not overlap, and run as often as they should.
//!
//! Memory must not grow in steady traffic. After the last pause it must be at most what it was
//! before the first burst, and a reserve. In that pause the threads that turn timers must sleep.
//! The number of threads is bounded. At the end no thread and no part of a timer may be left.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options.

mod accounts;
mod burst;
mod ledger;
mod loads;
mod machine;
mod mixed;
mod phases;
mod producer;
mod timers;

use std::mem;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use hashed_wheel_examples::Verdict;
use hashed_wheel_examples::options::{duration, positive_duration};
use hashed_wheel_examples::top::Top;
use indicatif::HumanCount;

use crate::ledger::Total;
use crate::machine::Memory;
use crate::mixed::{Mixed, Visit};
use crate::phases::{Observer, Phase};
use crate::producer::{Producer, Target};
use crate::timers::{Ending, Left, Plan, Running};

/// Timers under load for a given time; each timeout is accounted for
#[derive(Debug, Parser)]
#[command(name = "soak", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// The running time without the last pause
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = positive_duration)]
    duration: Duration,

    /// How many threads schedule and cancel timeouts on the two permanent timers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    producers: u64,

    /// How many bursts of timeouts come, each followed by a pause; 0 is none
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=1_000))]
    bursts: u64,

    /// How many timeouts a burst has on each of the two permanent timers
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    burst_size: u64,

    /// The last pause, after which memory is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    quiet: Duration,

    /// FAIL if after the last pause more MiB are in use than before the first burst
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    reserve: u64,

    /// FAIL if memory in steady traffic grows by more MiB after the first fifth of the time
    #[arg(long, value_name = "MIB", default_value_t = 24)]
    max_growth: u64,

    /// FAIL if the threads that turn timers wake up more often per second in the last pause
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_wake_ups: u64,

    /// FAIL if anything is later: the effect of stalls and of a busy machine
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    max_late: Duration,

    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    top: Top,

    /// Do something wrong, to show that it is detected
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,
}

impl Options {
    /// When the program must have ended.
    fn time_limit(&self) -> Duration {
        self.duration + self.quiet + TIME_PER_BURST * self.bursts as u32 + END_TIMEOUT
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    /// A timer has work during pauses.
    Busy,
    /// Periodic tasks run once more than recorded.
    ExtraRun,
    /// Schedules have half the recorded period after their first run, and the values of queues half
    /// the recorded delay.
    Half,
    /// Keeps the handles of all bursts, and with them the memory of their nodes.
    Hoard,
    /// The keys that are used once, the values of queues and the first runs of schedules are due a
    /// day later than recorded, as if their timeouts did not fire.
    Late,
    /// Leaks memory: 8 MiB at each sample.
    Leak,
    /// Does not count a successful cancel.
    LostCancel,
    /// An executor loses a task without a report.
    LostTask,
    /// Does not count the values that are removed from a queue.
    LostValue,
    /// Sleeps and intervals do not notice that they are woken.
    LostWake,
    /// Has two runs of a periodic task at the same time.
    Overlap,
    /// Some tasks block the worker for longer than the permitted lateness.
    Stall,
    /// Leaks a timer with its thread.
    Thread,
    /// Has more threads than expected, which end.
    Threads,
}

impl Sabotage {
    /// Whether other timers do without it, because their end would wait for what is late.
    fn is_of_permanent_timers(self) -> bool {
        matches!(self, Self::Late | Self::LostWake)
    }
}

/// The time limit for the end of the program.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// How many threads there are at most, apart from the producers and those at the start: 10 of the
/// permanent timers, their pools and the runtime; 8 of a temporary timer and its users; two that
/// run the temporary timers and the visitors, a visitor, and two of a burst. The others may have
/// ended, and are still listed.
const MAX_OTHER_THREADS: usize = 40;

/// The time between two threads that end soon.
const VISITOR_INTERVAL: Duration = Duration::from_millis(2);

/// A burst may make the running time longer by this time.
const TIME_PER_BURST: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let options = Options::parse();
    machine::share_one_heap();
    machine::silence_intentional_panics();
    abort_after(options.time_limit());
    println!(
        "{:?} with {} producers on two permanent timers, {} bursts of {} timeouts on each, and a pause of {:?}; three \
         timers have all kinds of load; other timers are created and dropped (seed {}).",
        options.duration,
        options.producers,
        options.bursts,
        HumanCount(options.burst_size),
        options.quiet,
        options.seed
    );
    run(&options).report(&options)
}

/// Ends the program after the time. Otherwise a timer that never stops would block it.
fn abort_after(time: Duration) {
    thread::spawn(move || {
        thread::sleep(time);
        println!("\nFAIL\n  the program has not ended {time:?} after its start: a stop or a worker hangs");
        std::process::exit(1);
    });
}

struct Outcome {
    total: Total,
    timers: u64,
    /// The plans of the timers of which a part was left.
    timers_left: Vec<String>,
    /// Threads that ended soon.
    visitors: u64,
    longest_burst: Duration,
    /// Per second, in the last pause.
    wake_ups: Option<f64>,
    memory: Memory,
    /// The numbers of threads: at the start, the maximum, and at the end.
    threads: [Option<usize>; 3],
    time: Duration,
}

fn run(options: &Options) -> Outcome {
    let began = Instant::now();
    options.top.start();
    let threads = machine::threads();

    let phase = Arc::new(Phase::default());
    let permanent = [false, true]
        .map(|hierarchical| Plan::permanent(hierarchical, options.max_late, options.sabotage).start());
    let mixed = Mixed::start(options);
    for (name, running) in ["hashed", "hierarchical"].into_iter().zip(&permanent).chain(mixed.named()) {
        options.top.watch(name, &running.timer);
    }
    let busy = (options.sabotage == Some(Sabotage::Busy)).then(|| mixed.keep_busy());
    let targets = || permanent.each_ref().map(Running::target);
    let producers: Vec<JoinHandle<_>> = (0..options.producers)
        .map(|n| {
            let (targets, phase, seed) = (targets(), phase.clone(), options.seed << 32 | n);
            thread::spawn(move || produce(targets, &phase, seed))
        })
        .collect();
    let mixed_producers = mixed.start_producers(options, &phase);
    let crowd = (options.sabotage == Some(Sabotage::Threads)).then(|| add_threads(&phase));
    let visitors = {
        let (targets, visits, phase, seed) = (targets(), mixed.visits(), phase.clone(), options.seed);
        thread::spawn(move || run_visitors(&targets, &visits, &phase, seed))
    };
    let temporary = {
        let (phase, seed, sabotage) = (phase.clone(), options.seed, options.sabotage);
        let max_late = options.max_late;
        thread::spawn(move || run_temporary_timers(&phase, seed, max_late, sabotage))
    };

    let all = || permanent.iter().chain(mixed.named().map(|(_, running)| running));
    let scheduled = || all().map(|running| running.ledger.scheduled()).sum();
    let mut observer = Observer::new(options, &scheduled);
    observer.run(&phase, &targets());
    phase.end();
    let Observer { memory, max_threads, longest_burst, wake_ups, .. } = observer;
    drop(busy);
    for thread in crowd.into_iter().flatten() {
        thread.join().expect("a thread that sleeps does not panic");
    }

    let mut left = <[Left; 2]>::default();
    for producer in producers {
        let mine = producer.join().expect("a producer does not panic");
        left.iter_mut().zip(mine).for_each(|(all, mine)| all.add(mine));
    }
    let visitors = visitors.join().expect("a short-lived thread does not panic");
    let (mut total, timers) = temporary.join().expect("the temporary timers do not panic");
    // Those of the timers with all kinds of load come first: there are many temporary timers, whose
    // errors would hide the others.
    let mut errors_of_temporary = mem::take(&mut total.errors);
    mixed.end(mixed_producers).for_each(|closed| total.add(&closed));
    for (running, left) in permanent.into_iter().zip(left) {
        total.add(&running.end(Ending::TwoStops, left));
    }
    total.add_errors(&mut errors_of_temporary);
    machine::end_runtime();
    let time = began.elapsed();
    if options.sabotage == Some(Sabotage::Thread) {
        let timer = hashed_wheel::HashedWheelTimer::default();
        timer.start().expect("the thread starts");
        mem::forget(timer);
    }
    // A joined thread is listed for a short time after the join.
    let since = Instant::now();
    while (machine::threads() > threads || !timers::live().is_empty())
        && since.elapsed() < Duration::from_secs(5)
    {
        thread::sleep(Duration::from_millis(10));
    }
    Outcome {
        total,
        timers: timers + 5,
        timers_left: timers::live(),
        visitors,
        longest_burst,
        wake_ups,
        memory,
        threads: [threads, max_threads, machine::threads()],
        time,
    }
}

/// For sabotage: adds more threads than there may be, which end with the load.
fn add_threads(phase: &Arc<Phase>) -> Vec<JoinHandle<()>> {
    let add = |_| {
        let phase = Arc::clone(phase);
        thread::spawn(move || {
            while phase.goes_on(|| ()) {
                thread::sleep(VISITOR_INTERVAL)
            }
        })
    };
    (0..=MAX_OTHER_THREADS).map(add).collect()
}

/// A thread that uses both permanent timers for the whole time. Returns its timeouts.
fn produce(targets: [Target; 2], phase: &Phase, seed: u64) -> [Left; 2] {
    // Works on one timer for a while, so that the worker of the other one can fall asleep.
    let mut producers = targets.map(|target| Producer::new(target, seed));
    let [hashed, hierarchical] = &mut producers;
    while phase.goes_on(|| [&mut *hashed, &mut *hierarchical].into_iter().for_each(Producer::rest)) {
        hashed.work();
        hierarchical.work();
    }
    producers.map(|producer| Left { entries: producer.entries(), loads: Vec::new() })
}

/// Starts threads that use all permanent timers and end. Returns how many.
fn run_visitors(targets: &[Target; 2], visits: &[Visit], phase: &Phase, seed: u64) -> u64 {
    let mut visitors = 0;
    while phase.goes_on(|| visits.iter().for_each(Visit::rest)) {
        let producers = targets.clone().map(|target| Producer::new(target, seed ^ visitors));
        let (visits, mut random) = (visits.to_vec(), fastrand::Rng::with_seed(seed ^ visitors));
        let visitor = thread::spawn(move || {
            producers.into_iter().for_each(Producer::visit);
            visits.into_iter().for_each(|visit| visit.run(&mut random));
        });
        visitor.join().expect("a short-lived thread does not panic");
        visitors += 1;
        thread::sleep(VISITOR_INTERVAL);
    }
    visitors
}

/// Creates timers and ends them. Returns how many, and their ledgers.
fn run_temporary_timers(
    phase: &Phase,
    seed: u64,
    max_late: Duration,
    sabotage: Option<Sabotage>,
) -> (Total, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut total, mut timers) = (Total::default(), 0);
    while phase.goes_on(|| ()) {
        let plan = Plan::temporary(&mut random, max_late, sabotage);
        total.add(&timers::run_temporary(&plan, &mut random));
        timers += 1;
    }
    (total, timers)
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
        println!("other kinds");
        total.kinds.lines().for_each(|line| println!("{line}"));
        println!("resets       {}", count(total.rearmed));
        println!("panics       {} of tasks and executors, all caught", count(total.intentional_panics));
        println!("wake-ups     {}, in {} turns", count(total.wake_ups), count(total.turns));
        println!("lateness     {}", total.lateness);
        println!("bursts       {}, {:.1?} each at most", options.bursts, self.longest_burst);
        println!("visitors     {}, threads that ended soon", count(self.visitors));
        if let Some(wake_ups) = self.wake_ups {
            println!("last pause   {wake_ups:.1} wake-ups per second");
        }
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
        let unused = total.kinds.unused();
        verdict.expect(unused.is_empty(), format!("nothing expired or was cancelled of {unused:?}"));
        verdict.expect(
            self.wake_ups.is_none_or(|wake_ups| wake_ups <= options.max_wake_ups as f64),
            format!("more than {} wake-ups per second in the last pause", options.max_wake_ups),
        );
        let bound = options.max_growth << 20;
        verdict.expect(
            memory.growth().is_none_or(|growth| growth <= bound),
            format!("memory grew by more than {} MiB: {memory}", options.max_growth),
        );
        verdict.expect(
            memory.left().is_none_or(|left| left <= options.reserve << 20),
            format!("more than {} MiB were not returned after the last pause: {memory}", options.reserve),
        );
        verdict.expect(timers_left.is_empty(), format!("timers have not been dropped: {timers_left:#?}"));
        let [before, most, after] = threads;
        let producers = options.producers + options.producers.div_ceil(2);
        let limit = before.map(|before| before + producers as usize + MAX_OTHER_THREADS);
        verdict.expect(*most <= limit, format!("{most:?} threads at once, more than {limit:?}"));
        verdict.expect(after <= before, format!("{after:?} threads are left, {before:?} at the start"));
        verdict
    }
}
