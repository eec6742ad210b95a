//! Compares the wheels and other queues of deadlines by operation and by the delays.
//!
//! `cargo bench -p hashed-wheel-benches --bench which` prints a table in about two minutes. Append
//! `-- --quick` for approximate values in a quarter of the time.

mod measure;
mod memory;
mod table;

use std::process::Command;
use std::{env, fs};

use hashed_wheel_benches::wheel::SLOTS;
use measure::{Costs, Each, Scope, measure};

/// The largest of the short delays, in ticks: less than one round of the wheel.
const SHORT: u64 = 500;

/// The largest of the long delays, in ticks: 2 048 rounds.
const LONG: u64 = 1 << 20;

/// The mean delays, in rounds of the wheel, for the costs of expiry by delay.
const MEAN_DELAYS: [f64; 3] = [1.0, 100.0, 10_000.0];

/// Numbers of pending entries, each with its number of repetitions.
struct Plan {
    all: (usize, usize),
    by_delay: (usize, usize),
}

const FULL: Plan = Plan {
    all: (1_000_000, 7),
    by_delay: (100_000, 9),
};

const QUICK: Plan = Plan {
    all: (1_000_000, 1),
    by_delay: (100_000, 1),
};

const TEST: Plan = Plan {
    all: (40, 1),
    by_delay: (100, 1),
};

struct Results {
    /// The number of pending entries in `short` and `long`.
    pending: usize,
    short: Costs<Each>,
    long: Costs<Each>,
    /// The number of pending entries in `by_delay`.
    pending_by_delay: usize,
    /// Mean delays in rounds of the wheel, each with its costs.
    by_delay: [(f64, Costs<Each>); 3],
}

impl Plan {
    fn execute(&self) -> Results {
        let (pending, repetitions) = self.all;
        let (pending_by_delay, repetitions_by_delay) = self.by_delay;
        let by_delay = |rounds| {
            let max_delay = (2.0 * rounds * SLOTS as f64) as u64;
            let repetitions = repetitions_by_delay;
            let costs = measure(Scope::Expiry, pending_by_delay, max_delay, repetitions);
            (rounds, costs)
        };
        Results {
            pending,
            short: measure(Scope::All, pending, SHORT, repetitions),
            long: measure(Scope::All, pending, LONG, repetitions),
            pending_by_delay,
            by_delay: MEAN_DELAYS.map(by_delay),
        }
    }
}

/// Returns the first line that a command prints.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map_or_else(|_| Vec::new(), |output| output.stdout);
    let text = String::from_utf8_lossy(&text);
    text.lines().next().unwrap_or("unknown").to_owned()
}

/// Returns the machine, the compiler, the commit and the date as one line.
fn environment() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let models = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = models
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(env::consts::ARCH, |(_, model)| model);
    let commit = first_line("git", &["describe", "--always", "--dirty"]);
    let date = first_line("date", &["--utc", "+%F"]);
    let rustc = first_line("rustc", &["--version"]);
    format!("{cores} cores of an {model}; {rustc}; commit {commit}, {date}")
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let has_option = |option| arguments.iter().any(|argument| argument == option);
    // `cargo bench` passes the same filter to all benchmarks: this one selects other benchmarks.
    if arguments
        .iter()
        .any(|argument| !argument.starts_with('-') && !"which".contains(&**argument))
    {
        return;
    }
    measure::assert_same_behaviour();
    let plan = if has_option("--test") {
        TEST
    } else if has_option("--quick") {
        QUICK
    } else {
        FULL
    };
    let results = plan.execute();
    println!("{}\n\n{}", environment(), table::markdown(&results));
}
