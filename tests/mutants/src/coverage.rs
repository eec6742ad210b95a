//! Which test reaches which mutants.

use crate::build::Build;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
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

/// Tests that need more address space than `MAX_MEMORY`.
const NOT_FOR_MUTANTS: [&str; 1] = ["the_largest_wheel_uses_no_memory_until_it_is_used"];

/// How often a test may fail without a mutant, because the machine is busy.
const ATTEMPTS: usize = 3;

/// In kilobytes of address space, of which some tests need a lot for thread stacks. With a mutant,
/// a loop may never end, and allocate.
const MAX_MEMORY: &str = "16777216";

/// Returns a command that runs a test binary.
pub fn command(build: &Build, binary: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v $0 && exec \"$@\"", MAX_MEMORY])
        .arg(binary);
    command
        .current_dir(&build.copy)
        .env("CARGO_MANIFEST_DIR", &build.copy)
        .env("RUST_BACKTRACE", "0");
    command
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
    let tests = in_parallel(names.len(), |index| {
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

/// Calls a function for each number below `n`, on twice as many threads as the machine has cores:
/// many tests wait for timers.
pub fn in_parallel<R: Send>(n: usize, function: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new((0..n).map(|_| None).collect::<Vec<_>>());
    let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= n {
                        return;
                    }
                    let result = function(index);
                    results.lock().expect("no panic")[index] = Some(result);
                }
            });
        }
    });
    results
        .into_inner()
        .expect("no panic")
        .into_iter()
        .map(|result| result.expect("a result"))
        .collect()
}
