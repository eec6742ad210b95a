//! Counts the instructions of each hot path and compares them with a baseline.
//!
//! `cargo bench -p hashed-wheel-benches --bench instructions` counts under callgrind and compares
//! the counts with baseline.txt. The exit status is 1 if a path takes over 1 % more, or if the
//! counts are not comparable. Append `-- --write` to store the counts as the baseline, or `-- NAME`
//! to select the paths whose names contain NAME.
//!
//! The counts are identical in every run, even on a busy machine. They depend on the code, the
//! compiler and the C library, which contains `malloc`. The baseline records the latter two.
//!
//! Not on gungraun (once iai-callgrind), though that excludes the setup and can fail at 1 %: it
//! needs Rust 1.88, each machine has to install its runner in the same version, and it compares
//! with an earlier run in `target/`, not with numbers in the repository.

mod baseline;
mod paths;

use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};

use baseline::Counts;
use paths::{BATCH, MAX_OPERATIONS, PATHS, Path};

const RUN: &str = "--run";

const NO_VALGRIND: &str = "valgrind is not installed: install the package `valgrind`";

/// Performs `n` operations of the path `name` and nothing else. callgrind observes this function's
/// process.
fn run(name: &str, n: usize) -> Result<(), Box<dyn Error>> {
    let (_, path) = PATHS.iter().find(|(known, _)| *known == name).ok_or("unknown path")?;
    path(n);
    Ok(())
}

/// Returns the instructions of a whole process that performs `n` operations.
fn count_process(name: &str, n: usize) -> Result<u64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?)
        .args([RUN, name, &n.to_string()])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let count = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| format!("{name}: {log}").into())
}

/// Returns the instructions of one operation: the difference between a process with
/// `MAX_OPERATIONS` operations and one with half as many, divided by the difference in operations.
/// Everything else is identical in both.
fn count(&(name, _): &Path) -> Result<(String, f64), Box<dyn Error>> {
    let half = MAX_OPERATIONS / 2;
    let difference = count_process(name, MAX_OPERATIONS)? as f64 - count_process(name, half)? as f64;
    // The baseline has one decimal place.
    Ok((name.into(), (difference / half as f64 * 10.0).round() / 10.0))
}

fn has_valgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [option, name, n] = &*arguments {
        if option == RUN {
            run(name, n.parse()?)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let has_option = |option| arguments.iter().any(|argument| argument == option);
    let is_selected = |name: &str| {
        let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| format!("instructions/{name}").contains(&**filter))
    };
    let selected: Vec<_> = PATHS.iter().filter(|(name, _)| is_selected(name)).collect();
    if selected.is_empty() {
        // `cargo bench` passes the same filter to all benchmarks: this one is for Criterion's.
        return Ok(ExitCode::SUCCESS);
    }
    if has_option("--test") {
        selected.iter().for_each(|(_, path)| path(BATCH));
        println!("Testing instructions\nSuccess\n");
        return Ok(ExitCode::SUCCESS);
    }

    let writes = has_option("--write");
    if writes && selected.len() < PATHS.len() {
        return Err("a baseline contains all paths: use --write without a name".into());
    }
    if !has_valgrind() {
        if writes {
            return Err(NO_VALGRIND.into());
        }
        println!("instructions: SKIPPED, {NO_VALGRIND}");
        return Ok(ExitCode::SUCCESS);
    }
    let counts: Vec<_> = selected.into_iter().map(count).collect::<Result<_, _>>()?;
    let now = Counts::now(counts);
    if writes {
        print!("{now}");
        now.write()?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_not_worse = now.compare(&Counts::read()?);
    Ok(if is_not_worse { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
