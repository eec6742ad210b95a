//! Which wheel, or which other queue, for how many entries and what delays?
//!
//! Says it in a table: `cargo bench -p hashed-wheel-benches --bench which`, and behind it `-- --quick` for rough figures
//! in half a minute, `-- --write` to put table, figure and all the figures behind them into docs/ and README.md.

mod figure;
mod measure;
mod memory;
mod table;

use std::error::Error;
use std::process::Command;
use std::{env, fs};

use hashed_wheel_benches::wheel::SLOTS;
use measure::{Asked, Costs, Each, measure};

const COMMAND: &str = "cargo bench -p hashed-wheel-benches --bench which --";

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The longest delay that is short: all are within one turn of the wheel.
const SHORT: u64 = 500;

/// The longest one that is long: 2 048 turns.
const LONG: u64 = 1 << 20;

/// What is measured. The repetitions make it some six minutes, or a third of one: ten million entries take half of the
/// time at once, and are a mean by themselves.
struct Plan {
    /// How many are pending, and how often that is measured.
    sizes: &'static [(usize, usize)],
    /// For the costs by delay: how many are pending, the mean delays in turns of the wheel, and how often.
    by_delay: (usize, &'static [f64], usize),
}

const TURNS: [f64; 11] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];

const FULL: Plan = Plan {
    sizes: &[(1_000, 21), (10_000, 21), (100_000, 21), (1_000_000, 7), (10_000_000, 1)],
    by_delay: (100_000, &TURNS, 9),
};

const QUICK: Plan =
    Plan { sizes: &[(1_000, 9), (10_000, 9), (100_000, 5), (1_000_000, 1)], by_delay: (100_000, &TURNS, 1) };

const TEST: Plan =
    Plan { sizes: &[(10, 1), (20, 1), (30, 1), (40, 1)], by_delay: (100, &[0.1, 1.0, 10.0], 1) };

/// What came out.
struct Found {
    by_size: Vec<BySize>,
    pending: usize,
    /// Beside the mean delay in turns.
    by_delay: Vec<(f64, Costs<Each>)>,
}

struct BySize {
    pending: usize,
    short: Costs<Each>,
    long: Costs<Each>,
}

impl Plan {
    fn carry_out(&self) -> Found {
        let by_size = self.sizes.iter().map(|&(pending, repetitions)| {
            let short = measure(Asked::Everything, pending, SHORT, repetitions);
            let long = measure(Asked::Everything, pending, LONG, repetitions);
            BySize { pending, short, long }
        });
        let (pending, turns, repetitions) = self.by_delay;
        let by_delay = turns.iter().map(|&turns| {
            let longest = (2.0 * turns * SLOTS as f64) as u64;
            (turns, measure(Asked::Expiry, pending, longest, repetitions))
        });
        Found { by_size: by_size.collect(), pending, by_delay: by_delay.collect() }
    }
}

/// The kind of machine, the compiler and the command.
fn circumstances(command: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let models = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = models.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(env::consts::ARCH, |(_, model)| model);
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc =
        rustc.map_or_else(|_| "rustc".into(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    // Without the commit.
    let rustc = rustc.split(" (").next().unwrap_or_default().trim();
    format!("{cores} cores of an {model}, {rustc}; `{command}`")
}

/// Puts `text` between the marks in the file.
fn replace(path: &str, text: &str) -> Result<(), Box<dyn Error>> {
    const BEGIN: &str = "<!-- which-wheel: begin -->\n";
    const END: &str = "<!-- which-wheel: end -->\n";

    let old = fs::read_to_string(path)?;
    let marks = old.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = marks.ok_or("the marks for the table are not there")?;
    fs::write(path, format!("{before}{BEGIN}{text}{END}{after}"))?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let asked = |option| arguments.iter().any(|argument| argument == option);
    // A filter that is meant for Criterion's benches.
    if arguments.iter().any(|argument| !argument.starts_with('-') && !"which".contains(&**argument)) {
        return Ok(());
    }

    measure::agree();
    if asked("--test") {
        let found = TEST.carry_out();
        table::markdown(&found);
        table::csv(&found);
        figure::svg(&found)?;
        println!("Testing which\nSuccess\n");
        return Ok(());
    }

    let (plan, option) = if asked("--quick") { (QUICK, " --quick") } else { (FULL, "") };
    let found = plan.carry_out();
    let command = format!("{COMMAND}{option} --write");
    let text = format!("{}\n\n{}", circumstances(&command), table::markdown(&found));
    println!("{text}");
    if asked("--write") {
        fs::create_dir_all(format!("{WORKSPACE}/docs"))?;
        fs::write(format!("{WORKSPACE}/docs/which-wheel.md"), &text)?;
        fs::write(format!("{WORKSPACE}/docs/which-wheel.csv"), table::csv(&found))?;
        fs::write(format!("{WORKSPACE}/docs/which-wheel.svg"), figure::svg(&found)?)?;
        replace(&format!("{WORKSPACE}/README.md"), &text)?;
    }
    Ok(())
}
