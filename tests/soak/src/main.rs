//! A soak test: timers under load for a given time. Everything that a timer is given is accounted
//! for.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-soak -- --duration 20m --producers 4 --bursts 40
//! ```
//!
//! Five timers live for the whole time. Two have only plain timeouts, one with each wheel. Three
//! have all kinds of use: plain timeouts, sleeps, intervals, periodic tasks, maps with a handler
//! and with receivers, and a `DelayQueue`. They have a thread or a driver, or run on tokio. Each
//! thread uses all five, and so do threads that end soon. Plain timeouts are cancelled twice or by
//! another thread, reset, stall the worker, panic, and schedule other timeouts.
//!
//! From time to time a burst of a million timeouts comes, which are cancelled or fire, and then a
//! pause, in which no thread uses a timer.
//!
//! At the same time other timers are created and dropped, with every kind of executor, and end in
//! every possible way.
//!
//! Checks:
//!
//! - Everything that is registered ends once: it expires, is cancelled or rejected, is dropped by
//!   an executor, or was left when the timer ended. The timers' own counts agree.
//! - Nothing is early or late. Nothing that was due long before is cancelled, dropped or removed.
//!   Before a pause the threads wait for what is due, so that a lost wake-up is noticed.
//! - Periodic tasks do not overlap, and run as often as they should.
//! - Memory does not grow in steady traffic. After the last pause it is at most what it was before
//!   the first burst, and a reserve.
//! - In the last pause the threads that turn timers sleep.
//! - The number of threads is bounded. At the end no thread and no part of a timer is left.
//!
//! At the end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL,
//! 2 is bad options.

mod kinds;
mod machine;
mod phases;
mod tally;
mod timers;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use fastrand::Rng;
use hashed_wheel_ledger::{Count, KINDS, Kind};
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::positive_duration;

use crate::kinds::{Loads, Shared};
use crate::phases::{Observer, Phase};
use crate::tally::{Tally, wait_until};
use crate::timers::{Ending, Executor, Plan, TurnedBy};

/// Timers under load for a given time; each timeout is accounted for
#[derive(Debug, Parser)]
#[command(
    name = "soak",
    args_override_self = true,
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options."
)]
struct Options {
    /// The running time without the last pause
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = positive_duration)]
    duration: Duration,

    /// How many threads use the five permanent timers for the whole time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    producers: u32,

    /// How many bursts of timeouts come, each followed by a pause; 0 is none
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=1_000))]
    bursts: u32,

    /// How many timeouts a burst has on each of the two timers with plain timeouts
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    burst_size: u32,

    /// The last pause, after which memory is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    quiet: Duration,

    /// FAIL if after the last pause more MiB are in use than before the first burst
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    reserve: u64,

    /// FAIL if memory in steady traffic grows by more MiB after the first fifth of the time
    #[arg(long, value_name = "MIB", default_value_t = 24)]
    max_growth: u64,

    /// FAIL if anything is later: the effect of stalls and of a busy machine
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    max_late: Duration,

    /// Do something wrong, to show that it is detected
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    Busy,       // A timer has work during pauses.
    ExtraRun,   // Periodic tasks run once more than recorded.
    Half, // Schedules have half the recorded period after their first run, values half the delay.
    Hoard, // Keeps the handles of all bursts, and with them the memory of their nodes.
    Late, // Keys that are used once, values and first runs are due a day later than recorded.
    Leak, // Leaks memory: 8 MiB at each sample.
    LostCancel, // Does not count a successful cancel.
    LostTask, // An executor loses a task without a report.
    LostValue, // Loses values that are removed from a queue.
    LostWake, // Sleeps and intervals do not notice that they are woken.
    Overlap, // Has two runs of a periodic task at the same time.
    Stall, // Some tasks block the worker for longer than the permitted lateness.
    Thread, // Leaks a timer with its thread.
    Threads, // Has more threads than expected, which end.
}

/// How long the end of the program and each burst may take.
const END_TIMEOUT: Duration = Duration::from_secs(120);
const TIME_PER_BURST: Duration = Duration::from_secs(30);

/// How many threads there are at most, apart from the producers and those at the start: 10 of the
/// permanent timers, their pools and the runtime; 8 of a temporary timer and its users; two that
/// run the temporary timers and the visitors, a visitor, and two of a burst. The others may have
/// ended, and are still listed.
const MAX_OTHER_THREADS: usize = 40;

/// How often per second the threads that turn timers may wake up in the last pause.
const MAX_WAKE_UPS: f64 = 100.0;

/// The time between two threads that end soon.
const VISITOR_INTERVAL: Duration = Duration::from_millis(2);

/// How many operations with plain timeouts a thread does that ends soon.
const VISITOR_WORK: usize = 200;

/// The permanent timers. Bursts come on those with plain timeouts.
fn permanent(sabotage: Option<Sabotage>) -> [Plan; 5] {
    // In mixed timers, other kinds of use would wait for a lost task.
    let pool = match sabotage {
        Some(Sabotage::LostTask) => Executor::None,
        _ => Executor::Pool,
    };
    let mixed = Plan {
        is_mixed: true,
        ..Plan::PERMANENT
    };
    [
        Plan::PERMANENT,
        Plan {
            hierarchical: true,
            executor: Executor::Pool,
            ..Plan::PERMANENT
        },
        Plan {
            executor: Executor::Refuses,
            ending: Ending::Shutdown,
            ..mixed
        },
        Plan {
            turned_by: TurnedBy::Loop,
            hierarchical: true,
            executor: pool,
            ending: Ending::Awaited,
            ..mixed
        },
        Plan {
            turned_by: TurnedBy::Tokio,
            ending: Ending::Stop,
            ..mixed
        },
    ]
}

const WITH_BURSTS: usize = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    machine::start_with_one_heap();
    machine::silence_intentional_panics();
    let limit = options.duration + options.quiet + TIME_PER_BURST * options.bursts + END_TIMEOUT;
    // Otherwise a timer that never stops would block the program.
    thread::spawn(move || {
        thread::sleep(limit);
        println!(
            "\nFAIL\n  the program has not ended {limit:?} after its start: a stop or a worker hangs"
        );
        std::process::exit(1);
    });
    let Options {
        duration,
        producers,
        bursts,
        burst_size,
        ..
    } = options;
    println!(
        "{duration:?}, {producers} producers, {bursts} bursts of {burst_size} timeouts on two timers."
    );
    let outcome = run(&options);
    outcome.report();
    outcome.verdict(&options).print()
}

struct Outcome<'a> {
    /// The counts of all timers.
    total: Arc<Tally>,
    timers: usize,
    /// The plans of the timers of which a part is left.
    timers_left: Vec<String>,
    visitors: u64,
    observer: Observer<'a>,
    /// At the start, and at the end.
    threads: [Option<usize>; 2],
    time: Duration,
}

fn run(options: &Options) -> Outcome<'_> {
    let (sabotage, max_late) = (options.sabotage, options.max_late);
    let began = Instant::now();
    let threads = machine::threads();
    let phase = Arc::new(Phase::default());
    let permanent = permanent(sabotage).map(|plan| plan.start(max_late, sabotage));
    let timers = permanent.each_ref().map(|running| running.shared.clone());
    let crowd = match sabotage {
        Some(Sabotage::Threads) => MAX_OTHER_THREADS,
        _ => 0,
    };
    let idle = |_| {
        let phase = Arc::clone(&phase);
        thread::spawn(move || {
            while phase.goes_on(|| ()) {
                thread::sleep(VISITOR_INTERVAL)
            }
        })
    };
    let idle: Vec<_> = (0..=crowd).skip(1).map(idle).collect();
    let busy = (sabotage == Some(Sabotage::Busy)).then(|| {
        let period = Duration::from_millis(1);
        let timer = &timers[2].timer;
        let busy = timer.schedule_at_fixed_rate(|| (), period, period);
        busy.expect("the timer is not stopped").cancel_on_drop()
    });
    let producers: Vec<_> = (0..options.producers)
        .map(|n| produce(&timers, &phase, n.into()))
        .collect();
    let visitors = visit(&timers, &phase);
    let temporary = {
        let (phase, total) = (
            Arc::clone(&phase),
            Tally::new("all temporary timers".into(), max_late, None),
        );
        thread::spawn(move || {
            let (mut random, mut number, mut ended) = (Rng::with_seed(1), 0, Vec::new());
            while phase.goes_on(|| ()) {
                ended.push(timers::run_temporary(&mut random, max_late, sabotage));
                total.add_all(&ended[ended.len() - 1]);
                ended.retain(Tally::is_in_use);
                number += 1;
            }
            (total, number, ended)
        })
    };

    let mut observer = Observer::new(options);
    observer.run(&phase, &timers[..WITH_BURSTS]);
    phase.end();
    drop((busy, timers));
    let join = |thread: JoinHandle<()>| thread.join().expect("the thread does not panic");
    idle.into_iter().for_each(join);
    let mut left: [Vec<Loads>; 5] = Default::default();
    for producer in producers {
        let loads: [Loads; 5] = producer.join().expect("a producer does not panic");
        for (all, loads) in left.iter_mut().zip(loads) {
            all.push(loads);
        }
    }
    let visitors = visitors.join().expect("a visitor does not panic");
    let temporary = temporary.join().expect("the timers do not panic");
    let (temporary, number, mut ended) = temporary;
    // The errors of the permanent timers come first: those of the temporary ones would hide them.
    let total = Tally::new(String::new(), max_late, None);
    for (running, left) in permanent.into_iter().zip(left) {
        ended.push(running.end(false, || left));
        total.add_all(&ended[ended.len() - 1]);
    }
    total.add_all(&temporary);
    machine::end_runtime();
    if sabotage == Some(Sabotage::Thread) {
        let timer = hashed_wheel::HashedWheelTimer::default();
        timer.start().expect("the thread starts");
        std::mem::forget(timer);
    }
    // A joined thread is listed for a short time after the join.
    let live = || {
        let live = ended.iter().filter(|tally| tally.is_in_use());
        live.map(|tally| &tally.name)
    };
    let is_free = || machine::threads() <= threads && live().next().is_none();
    wait_until(Duration::from_secs(5), is_free);

    let timers_left = live().cloned().collect();
    let (timers, threads, time) = (number + 5, [threads, machine::threads()], began.elapsed());
    Outcome {
        total,
        timers,
        timers_left,
        visitors,
        observer,
        threads,
        time,
    }
}

impl Outcome<'_> {
    fn report(&self) {
        let Self {
            total,
            timers,
            visitors,
            threads: [before, after],
            time,
            ..
        } = self;
        let Observer {
            memory,
            max_threads,
            wake_ups,
            ..
        } = &self.observer;
        println!("\n{timers} timers, {visitors} threads that ended soon");
        for kind in KINDS {
            println!("{}", total.line(kind));
        }
        let (resets, panics) = (total.total(Count::Reset), total.panics.load(SeqCst));
        let registered = total.get(Kind::Plain, Count::Registered) as f64;
        let rate = registered / time.as_secs_f64();
        println!("{rate:.0} plain timeouts per second");
        println!("{resets} resets; {panics} panics, all caught");
        println!("plain timeouts at most {:.1?} late", total.lateness());
        let wake_ups = wake_ups.unwrap_or(f64::NAN);
        println!("{wake_ups:.1} wake-ups per second in the last pause");
        println!("memory: {memory}");
        println!("threads: {before:?} before, {max_threads:?} at most, {after:?} after");
    }

    fn verdict(&self, options: &Options) -> Verdict {
        let Self {
            total,
            timers_left,
            threads: [before, after],
            ..
        } = self;
        let Observer {
            memory,
            max_threads,
            wake_ups,
            ..
        } = &self.observer;
        let mut verdict = Verdict::default();
        let (errors, count) = total.errors();
        errors.iter().for_each(|error| verdict.expect(false, error));
        let all_are_named = count <= errors.len() as u64;
        verdict.expect(all_are_named, format!("{count} errors in total"));
        let plain = |count| total.get(Kind::Plain, count);
        let accepted = plain(Count::Registered) - plain(Count::Rejected);
        let share = plain(Count::Cancelled) as f64 / accepted as f64;
        let is_usual = (0.3..0.95).contains(&share);
        verdict.expect(
            is_usual,
            format!("a share of {share:.2} of the timeouts was cancelled"),
        );
        let is_used = total.total(Count::Reset) > 0 && total.panics.load(SeqCst) > 0;
        verdict.expect(is_used, "nothing was reset, or panicked");
        let ends = [Count::Expired, Count::Cancelled];
        let is_unused = |kind: &Kind| ends.iter().any(|end| total.get(*kind, *end) == 0);
        let unused: Vec<_> = KINDS.into_iter().filter(is_unused).collect();
        verdict.expect(
            unused.is_empty(),
            format!("nothing expired or was cancelled of {unused:?}"),
        );
        let sleeps = wake_ups.is_none_or(|wake_ups| wake_ups <= MAX_WAKE_UPS);
        verdict.expect(
            sleeps,
            format!("more than {MAX_WAKE_UPS} wake-ups per second in the last pause"),
        );
        let Options {
            max_growth,
            reserve,
            producers,
            ..
        } = options;
        let is_bounded = memory.growth() <= max_growth << 20;
        verdict.expect(
            is_bounded,
            format!("memory grew by more than {max_growth} MiB: {memory}"),
        );
        let has_returned = memory.left() <= reserve << 20;
        let returned = "MiB were not returned after the last pause";
        verdict.expect(
            has_returned,
            format!("more than {reserve} {returned}: {memory}"),
        );
        verdict.expect(
            timers_left.is_empty(),
            format!("timers have not been dropped: {timers_left:#?}"),
        );
        let limit = before.map(|before| before + *producers as usize + MAX_OTHER_THREADS);
        verdict.expect(
            *max_threads <= limit,
            format!("{max_threads:?} threads at once, more than {limit:?}"),
        );
        verdict.expect(
            after <= before,
            format!("{after:?} threads are left, {before:?} at the start"),
        );
        verdict
    }
}

/// Starts a thread that uses all timers for the whole time, and returns its loads.
fn produce(timers: &[Shared; 5], phase: &Arc<Phase>, seed: u64) -> JoinHandle<[Loads; 5]> {
    let (mut loads, phase) = (timers.each_ref().map(Shared::loads), Arc::clone(phase));
    thread::spawn(move || {
        let mut random = Rng::with_seed(seed);
        while phase.goes_on(|| loads.iter_mut().for_each(Loads::rest)) {
            // Works on one timer for a while, so that the workers of the others can fall asleep.
            for loads in &mut loads {
                loads.work(10_usize.pow(random.u32(0..5)), &mut random);
                pause(&mut random);
            }
        }
        loads
    })
}

fn pause(random: &mut Rng) {
    match random.u8(0..20) {
        0..8 => thread::yield_now(),
        8..19 => thread::sleep(Duration::from_micros(random.u64(0..10_000))),
        // Long enough for an idle worker to fall asleep.
        _ => thread::sleep(Duration::from_millis(random.u64(0..200))),
    }
}

/// Starts a thread that starts threads which use all timers and end. It returns how many.
fn visit(timers: &[Shared; 5], phase: &Arc<Phase>) -> JoinHandle<u64> {
    let (timers, phase) = (timers.clone(), Arc::clone(phase));
    thread::spawn(move || {
        let mut visitors = 0;
        // In a pause, cancels what such threads have left.
        while phase.goes_on(|| timers.iter().for_each(|timer| timer.loads().rest())) {
            let loads = timers.each_ref().map(Shared::loads);
            let mut random = Rng::with_seed(visitors);
            let visitor = thread::spawn(move || {
                for mut loads in loads {
                    loads.work(VISITOR_WORK, &mut random);
                    loads.leave();
                }
            });
            visitor.join().expect("a short-lived thread does not panic");
            visitors += 1;
            thread::sleep(VISITOR_INTERVAL);
        }
        visitors
    })
}
