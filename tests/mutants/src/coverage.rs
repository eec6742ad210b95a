//! Which test reaches which mutants.

use crate::build::Build;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub struct Test {
    pub binary: PathBuf,
    pub name: String,
    pub time: Duration,
    reached: Vec<u32>,
}

pub struct Coverage {
    pub tests: Vec<Test>,
    /// The tests that reach each mutant.
    pub by_mutant: HashMap<u32, Vec<usize>>,
}

/// Tests that need more address space than [`MEBIBYTES`].
const NOT_FOR_MUTANTS: [&str; 1] = ["the_largest_wheel_uses_no_memory_until_it_is_used"];

/// How often a test may fail without a mutant, because the machine is busy.
const ATTEMPTS: usize = 3;

/// The limit of the address space, of which some tests need a lot for thread stacks. With a mutant,
/// a loop may never end, and allocate.
const MEBIBYTES: u64 = 16 << 10;

/// Returns a command that runs a test binary.
pub fn command(build: &Build, binary: &Path) -> Command {
    let mut command = mutants::command(binary, MEBIBYTES);
    command
        .current_dir(&build.copy)
        .env("CARGO_MANIFEST_DIR", &build.copy);
    command
}

/// Twice as many as the machine has cores: many tests wait for timers.
pub fn threads() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

/// Runs each test, several at a time.
pub fn measure(build: &Build) -> Coverage {
    let names: Vec<(PathBuf, String)> = build
        .tests
        .iter()
        .flat_map(|binary| {
            names(build, binary)
                .into_iter()
                .map(|name| (binary.clone(), name))
        })
        .collect();
    println!("{} tests", names.len());
    let tests = mutants::in_parallel(names.len(), threads(), |index| {
        let (binary, name) = &names[index];
        measure_test(build, binary, name, index)
    });
    let mut coverage = Coverage {
        tests: Vec::new(),
        by_mutant: HashMap::new(),
    };
    for test in tests {
        for id in &test.reached {
            coverage
                .by_mutant
                .entry(*id)
                .or_default()
                .push(coverage.tests.len());
        }
        coverage.tests.push(test);
    }
    coverage
}

fn names(build: &Build, binary: &Path) -> Vec<String> {
    let list = command(build, binary)
        .arg("--list")
        .output()
        .expect("a test binary");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    names
        .filter(|name| !NOT_FOR_MUTANTS.contains(name))
        .map(str::to_owned)
        .collect()
}

/// Fails, if a test fails in this build: mutants that only this test kills would survive.
fn measure_test(build: &Build, binary: &Path, name: &str, index: usize) -> Test {
    let path = build.copy.join(format!("reached-{index}"));
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        let status = command(build, binary)
            .args(["--exact", name])
            .env("MUTANTS_REACHED", &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("a test binary");
        if status.success() {
            let time = start.elapsed();
            let reached = fs::read_to_string(&path).unwrap_or_default();
            let reached = reached
                .lines()
                .filter_map(|line| line.parse().ok())
                .collect();
            return Test {
                binary: binary.to_owned(),
                name: name.to_owned(),
                time,
                reached,
            };
        }
        println!("fails without a mutant: {name}");
    }
    panic!("{name} fails without a mutant")
}
