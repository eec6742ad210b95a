//! Compares the wheels and other queues of deadlines over the number of entries and the delays.
//!
//! `cargo bench -p hashed-wheel-benches --bench which` prints a table. Append `-- --quick` for
//! approximate values in about half a minute. Append `-- --write` to write the table, a figure and
//! all values to docs/. Append `-- --render` to write the table and the figure from these values
//! again, without a measurement.

mod figure;
mod measure;
mod memory;
mod table;

use std::error::Error;
use std::process::Command;
use std::{env, fs};

use hashed_wheel_benches::wheel::SLOTS;
use measure::{Costs, Each, Scope, measure};

const COMMAND: &str = "cargo bench -p hashed-wheel-benches --bench which --";

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The largest of the short delays, in ticks: less than one round of the wheel.
const SHORT: u64 = 500;

/// The largest of the long delays, in ticks: 2 048 rounds.
const LONG: u64 = 1 << 20;

/// The cases and the number of repetitions of each.
///
/// Ten million entries are measured once: one repetition takes half of the total time and averages
/// over many entries.
struct Plan {
    /// Numbers of pending entries, each with its number of repetitions.
    sizes: &'static [(usize, usize)],
    /// For the costs by delay: the number of pending entries, the mean delays in rounds of the
    /// wheel, and the number of repetitions.
    by_delay: (usize, &'static [f64], usize),
}

const MEAN_DELAYS: [f64; 11] = [
    0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0,
];

const FULL: Plan = Plan {
    sizes: &[
        (1_000, 21),
        (10_000, 21),
        (100_000, 21),
        (1_000_000, 7),
        (10_000_000, 1),
    ],
    by_delay: (100_000, &MEAN_DELAYS, 9),
};

const QUICK: Plan = Plan {
    sizes: &[(1_000, 9), (10_000, 9), (100_000, 5), (1_000_000, 1)],
    by_delay: (100_000, &MEAN_DELAYS, 1),
};

const TEST: Plan = Plan {
    sizes: &[(10, 1), (20, 1), (30, 1), (40, 1)],
    by_delay: (100, &[0.1, 1.0, 10.0], 1),
};

struct Results {
    by_size: Vec<BySize>,
    /// The number of pending entries in `by_delay`.
    pending: usize,
    /// Mean delays in rounds of the wheel, each with its costs.
    by_delay: Vec<(f64, Costs<Each>)>,
}

struct BySize {
    pending: usize,
    short: Costs<Each>,
    long: Costs<Each>,
}

impl Plan {
    fn execute(&self) -> Results {
        let by_size = self.sizes.iter().map(|&(pending, repetitions)| {
            let short = measure(Scope::All, pending, SHORT, repetitions);
            let long = measure(Scope::All, pending, LONG, repetitions);
            BySize {
                pending,
                short,
                long,
            }
        });
        let (pending, mean_delays, repetitions) = self.by_delay;
        let by_delay = mean_delays.iter().map(|&rounds| {
            let max_delay = (2.0 * rounds * SLOTS as f64) as u64;
            (
                rounds,
                measure(Scope::Expiry, pending, max_delay, repetitions),
            )
        });
        Results {
            by_size: by_size.collect(),
            pending,
            by_delay: by_delay.collect(),
        }
    }
}

/// Returns the processor, the compiler and the command as one line.
fn environment(command: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let models = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = models
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(env::consts::ARCH, |(_, model)| model);
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "rustc".into(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    // Omits the commit in parentheses.
    let rustc = rustc.split(" (").next().unwrap_or_default().trim();
    format!("{cores} cores of an {model}, {rustc}; `{command}`")
}

/// Returns the path and the text of each file that shows these values.
fn files(environment: &str, csv: &str) -> Result<[(String, String); 3], Box<dyn Error>> {
    let results = table::read(csv)?;
    let text = format!("{environment}\n\n{}", table::markdown(&results));
    let guide = format!("{WORKSPACE}/docs/guide/wheel.md");
    let old = fs::read_to_string(&guide)?;
    let new = splice(&old, &text).ok_or_else(|| format!("{guide}: no markers for the table"))?;
    let svg = (
        format!("{WORKSPACE}/docs/which-wheel.svg"),
        figure::svg(&results),
    );
    Ok([
        (format!("{WORKSPACE}/docs/which-wheel.md"), text),
        svg,
        (guide, new),
    ])
}

/// Returns what [`files`] returns for the values in docs/, on the machine that has measured them.
fn committed_files() -> Result<[(String, String); 3], Box<dyn Error>> {
    let read = |name| fs::read_to_string(format!("{WORKSPACE}/docs/{name}"));
    let environment = read("which-wheel.md")?;
    files(
        environment.lines().next().unwrap_or_default(),
        &read("which-wheel.csv")?,
    )
}

/// Replaces the text between the markers.
fn splice(old: &str, text: &str) -> Option<String> {
    const BEGIN: &str = "<!-- which-wheel: begin -->\n";
    const END: &str = "<!-- which-wheel: end -->\n";

    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{text}{END}{after}"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let has_option = |option| arguments.iter().any(|argument| argument == option);
    // `cargo bench` passes the same filter to all benchmarks: this one selects other benchmarks.
    if arguments
        .iter()
        .any(|argument| !argument.starts_with('-') && !"which".contains(&**argument))
    {
        return Ok(());
    }
    if has_option("--render") {
        return write(committed_files()?);
    }

    measure::assert_same_behaviour();
    if has_option("--test") {
        let csv = table::csv(&TEST.execute());
        assert_eq!(
            table::csv(&table::read(&csv)?),
            csv,
            "what was read differs from what was written"
        );
        files("", &csv)?;
        for (path, text) in committed_files()? {
            assert!(
                fs::read_to_string(&path)? == text,
                "{path} is not up to date: {COMMAND} --render"
            );
        }
        println!("Testing which\nSuccess\n");
        return Ok(());
    }

    let (plan, option) = if has_option("--quick") {
        (QUICK, " --quick")
    } else {
        (FULL, "")
    };
    let results = plan.execute();
    println!("{}", table::markdown(&results));
    if has_option("--write") {
        let csv = table::csv(&results);
        fs::write(format!("{WORKSPACE}/docs/which-wheel.csv"), &csv)?;
        write(files(
            &environment(&format!("{COMMAND}{option} --write")),
            &csv,
        )?)?;
    }
    Ok(())
}

fn write(files: [(String, String); 3]) -> Result<(), Box<dyn Error>> {
    for (path, text) in files {
        fs::write(path, text)?;
    }
    Ok(())
}
