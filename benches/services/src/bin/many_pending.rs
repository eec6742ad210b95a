//! Measures what many pending timeouts on one timer cost: time, and memory.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-services --bin many_pending -- --pending 100000000
//! ```
//!
//! One thread schedules the timeouts and drops the handles. The deadlines are spread at random over
//! an hour, which begins in an hour. Then the worker takes in what it has not taken in yet. With
//! all of them pending, other timeouts are scheduled and cancelled, and the counters are read.
//! `stop` ends the timer.
//!
//! 10^8 timeouts need 9 GB of memory and a minute. The program prints PASS, or FAIL and the
//! reasons. Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::Verdict;
use hashed_wheel_trial::options::duration;
use indicatif::HumanCount;

/// The cost of many pending timeouts on one timer
#[derive(Debug, Parser)]
#[command(
    name = "many_pending",
    after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options."
)]
struct Options {
    /// How many timeouts are pending; each needs about 90 bytes of memory
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=2_000_000_000))]
    pending: u64,

    /// The timer's tick
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    tick: Duration,

    /// How many slots the wheel has
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,

    /// Use the hierarchical wheel
    #[arg(long)]
    hierarchical: bool,
}

/// How many timeouts are scheduled and cancelled while all others are pending.
const CANCELLED: u32 = 1_000_000;

/// How often the counters are read.
const READ: u32 = 1_000;

const HOUR: Duration = Duration::from_secs(3_600);

fn main() -> ExitCode {
    let options = Options::parse();
    let mut builder = HashedWheelTimer::builder()
        .tick(options.tick)
        .ticks_per_wheel(options.slots as usize);
    if options.hierarchical {
        builder = builder.hierarchical(true);
    }
    let timer = match builder.build() {
        Ok(timer) => timer,
        Err(error) => {
            eprintln!("error: --tick, --slots: {error}");
            return ExitCode::from(2);
        }
    };
    measure(&options, &timer).print()
}

fn measure(options: &Options, timer: &HashedWheelTimer) -> Verdict {
    let mut verdict = Verdict::default();
    let n = options.pending;
    println!(
        "{} timeouts, tick {:?}, {} slots",
        HumanCount(n),
        options.tick,
        options.slots
    );

    let (before, began) = (resident(), Instant::now());
    schedule(timer, n);
    let took = began.elapsed();
    println!("new_timeout           {:>7.1}ns each", nanos(took, n));

    let began = Instant::now();
    take_in(timer);
    println!(
        "taken in by the worker {:>8.1?} later, at a tick",
        began.elapsed()
    );
    let pending = timer.pending_timeouts() as u64;
    verdict.expect(pending == n, format!("{pending} timeouts are pending"));
    if let (Some(before), Some(after)) = (before, resident()) {
        let bytes = after.saturating_sub(before);
        println!(
            "resident memory       {:>6.2} GB, {:.1} bytes each",
            bytes as f64 / 1e9,
            bytes as f64 / n as f64
        );
    }

    let began = Instant::now();
    let cancelled = (0..CANCELLED).filter(|_| {
        timer
            .new_timeout(|_| (), HOUR)
            .expect("the timer is not stopped")
            .cancel()
    });
    let cancelled = cancelled.count();
    println!(
        "new_timeout, cancel   {:>7.1}ns each",
        nanos(began.elapsed(), CANCELLED.into())
    );
    let all = cancelled == CANCELLED as usize;
    verdict.expect(all, format!("{cancelled} timeouts were cancelled"));

    let began = Instant::now();
    (0..READ).for_each(|_| _ = std::hint::black_box(timer.stats()));
    println!(
        "stats                 {:>7.1}ns",
        nanos(began.elapsed(), READ.into())
    );

    let began = Instant::now();
    let left = timer.stop().len() as u64;
    println!(
        "stop                  {:>9.1?}, returns all",
        began.elapsed()
    );
    verdict.expect(left == n, format!("stop returned {left} timeouts"));
    verdict
}

/// Waits until the worker has taken in what this thread has scheduled. The last few timeouts do not
/// wake it: it may sleep until the first deadline, which is in an hour. One that is due does, at
/// the next tick, and it is taken in after them.
fn take_in(timer: &HashedWheelTimer) {
    let (sender, woken) = mpsc::channel();
    timer
        .new_timeout(move |_| _ = sender.send(()), Duration::ZERO)
        .expect("the timer is not stopped, and has no limit");
    woken.recv().expect("the worker runs the task");
}

/// The deadlines come between one hour and two hours from now.
fn schedule(timer: &HashedWheelTimer, count: u64) {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..count {
        let delay = HOUR + Duration::from_micros(random.u64(..HOUR.as_micros() as u64));
        timer
            .new_timeout(|_| (), delay)
            .expect("the timer is not stopped, and has no limit");
    }
}

fn nanos(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count as f64
}

/// The resident memory of this process in bytes, where the system says it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}
