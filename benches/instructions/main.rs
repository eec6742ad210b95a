//! How many instructions does each hot path take, and is it more than it was?
//!
//! `cargo bench -p hashed-wheel-benches --bench instructions` counts them under callgrind, and compares them with those
//! in baseline.txt: exit status 1 if anything takes over 2 % more, or if that cannot be said. Behind it `-- --write` to
//! make these the baseline, or `-- NAME` for the paths whose names contain it.
//!
//! Counts are the same in each run, on a busy machine too. What they depend on, beside the code, is the compiler and
//! the C library, which has `malloc`: the baseline says which.

mod baseline;
mod paths;

use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};

use baseline::Counts;
use paths::{BATCH, MOST, PATHS, Path};

const RUN: &str = "--run";

const NO_VALGRIND: &str = "no valgrind: it is in your system's package of that name";

/// Does so many operations and nothing else: this is what callgrind looks at.
fn run(name: &str, n: usize) -> Result<(), Box<dyn Error>> {
    let (_, path) = PATHS.iter().find(|(known, _)| *known == name).ok_or("no such path")?;
    path(n);
    Ok(())
}

/// The instructions of a whole run.
fn counted(name: &str, n: usize) -> Result<u64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?)
        .args([RUN, name, &n.to_string()])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let count = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| format!("{name}: {log}").into())
}

/// Those of one operation: what a run takes that has `MOST` and not half as many, and all else the same.
fn count(&(name, _): &Path) -> Result<(String, f64), Box<dyn Error>> {
    let half = MOST / 2;
    let difference = counted(name, MOST)? as f64 - counted(name, half)? as f64;
    // As exact as the baseline.
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
    let asked = |option| arguments.iter().any(|argument| argument == option);
    let is_meant = |name: &str| {
        let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| format!("instructions/{name}").contains(&**filter))
    };
    let meant: Vec<_> = PATHS.iter().filter(|(name, _)| is_meant(name)).collect();
    if meant.is_empty() {
        // A filter for Criterion's benches.
        return Ok(ExitCode::SUCCESS);
    }
    if asked("--test") {
        meant.iter().for_each(|(_, path)| path(BATCH));
        println!("Testing instructions\nSuccess\n");
        return Ok(ExitCode::SUCCESS);
    }

    let is_to_write = asked("--write");
    if is_to_write && meant.len() < PATHS.len() {
        return Err("a baseline has all paths: --write goes without a name".into());
    }
    if !has_valgrind() {
        if is_to_write {
            return Err(NO_VALGRIND.into());
        }
        println!("instructions: SKIPPED, {NO_VALGRIND}");
        return Ok(ExitCode::SUCCESS);
    }
    let counts: Vec<_> = meant.into_iter().map(count).collect::<Result<_, _>>()?;
    let now = Counts::now(counts);
    if is_to_write {
        print!("{now}");
        now.write()?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_as_good = now.compare(&Counts::read()?);
    Ok(if is_as_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
