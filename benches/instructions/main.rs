//! Counts the instructions of each hot path and compares them with a baseline.
//!
//! `cargo bench -p hashed-wheel-benches --bench instructions` counts under callgrind and compares
//! the counts with baseline.txt. The exit status is 1 if a path takes over 1 % more instructions or
//! any more locked ones, or if the counts are not comparable. Append `-- --write` to store the
//! counts as the baseline, or `-- NAME` to select the paths whose names contain NAME.
//!
//! The counts are the same in every run, even on a busy machine. They depend on the code, the
//! compiler and the C library, which contains `malloc`. The baseline records the latter two.
//!
//! The worker's share of a path is what its turns execute. The caller's is the rest. Locked
//! instructions are callgrind's "global bus events": those with a `lock` prefix, and `xchg` with
//! memory. A fence is one of them (`lock or`), because rustc 1.95 generates no `mfence`.
//!
//! Not on gungraun (once iai-callgrind), though that excludes the setup and can fail at 1 %: it
//! needs Rust 1.88, each machine has to install its runner in the same version, and it compares
//! with an earlier run in `target/`, not with numbers in the repository.

mod baseline;
mod paths;

use std::error::Error;
use std::process::{Child, Command, ExitCode, Stdio};
use std::{env, io};

use baseline::{Cost, Counts};
use paths::{BATCH, MAX_OPERATIONS, PATHS, Path};

const RUN: &str = "--run";

const NO_VALGRIND: &str = "valgrind is not installed: install the package `valgrind`";

/// Starts a process that performs `n` operations. callgrind counts all of its instructions, or only
/// those of the worker's turns.
fn start(name: &str, n: usize, only_turns: bool) -> io::Result<Child> {
    Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--collect-bus=yes",
        ])
        .args(only_turns.then_some("--toggle-collect=*Driven::turn*"))
        .arg(env::current_exe()?)
        .args([RUN, name, &n.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

/// Returns the instructions of a process, and how many of them were locked.
fn finish(process: Child) -> Result<[f64; 2], Box<dyn Error>> {
    let output = process.wait_with_output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let numbers = |line: &str| {
        let mut numbers = line.split_once("Collected : ")?.1.split_whitespace();
        // callgrind omits zeros at the end.
        Some([(); 2].map(|()| numbers.next().map_or(Ok(0.0), str::parse)))
    };
    let counts = log
        .lines()
        .find_map(numbers)
        .filter(|_| output.status.success());
    let [instructions, locked] = counts.ok_or(log)?;
    Ok([instructions?, locked?])
}

/// Returns the cost of one operation: the difference between a process with `MAX_OPERATIONS`
/// operations and one with half as many, divided by the difference in operations. Everything else
/// is identical in both.
fn count(&(name, _): &Path) -> Result<Cost, Box<dyn Error>> {
    const HALF: usize = MAX_OPERATIONS / 2;

    // These run concurrently.
    let [all, turns] =
        [false, true].map(|only| [MAX_OPERATIONS, HALF].map(|n| start(name, n, only)));
    let per_operation = |[more, less]: [io::Result<Child>; 2]| {
        let (more, less) = (finish(more?)?, finish(less?)?);
        Ok::<_, Box<dyn Error>>([0, 1].map(|event| (more[event] - less[event]) / HALF as f64))
    };
    let (all, worker) = (per_operation(all)?, per_operation(turns)?);
    Ok(Cost::new(
        name,
        [
            all[0],
            all[0] - worker[0],
            worker[0],
            all[1] - worker[1],
            worker[1],
        ],
    ))
}

fn has_valgrind() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [option, name, n] = &*arguments {
        if option == RUN {
            // callgrind observes this process.
            let (_, path) = PATHS
                .iter()
                .find(|(known, _)| known == name)
                .ok_or("unknown path")?;
            path(n.parse()?);
            return Ok(ExitCode::SUCCESS);
        }
    }
    let has_option = |option| arguments.iter().any(|argument| argument == option);
    let is_selected = |name: &str| {
        let mut filters = arguments
            .iter()
            .filter(|argument| !argument.starts_with('-'))
            .peekable();
        filters.peek().is_none()
            || filters.any(|filter| format!("instructions/{name}").contains(&**filter))
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
    Ok(if is_not_worse {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
