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

/// In kilobytes of address space, of which some tests need a lot for thread stacks. With a mutant, a
/// loop may never end, and allocate.
const MAX_MEMORY: &str = "16777216";

/// Returns a command that runs a test binary.
pub fn command(build: &Build, binary: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v $0 && exec \"$@\"", MAX_MEMORY]).arg(binary);
    command.current_dir(&build.copy).env("CARGO_MANIFEST_DIR", &build.copy).env("RUST_BACKTRACE", "0");
    command
}

/// Runs each test, several at a time.
pub fn measure(build: &Build) -> Coverage {
    let names: Vec<(PathBuf, String)> = build
        .tests
        .iter()
        .flat_map(|binary| names(build, binary).into_iter().map(|name| (binary.clone(), name)))
        .collect();
    println!("{} tests", names.len());
    let tests = in_parallel(names.len(), |index| {
        let (binary, name) = &names[index];
        measure_test(build, binary, name, index)
    });
    let mut coverage = Coverage { tests: Vec::new(), by_mutant: HashMap::new() };
    for test in tests.into_iter().flatten() {
        for id in &test.reached {
            coverage.by_mutant.entry(*id).or_default().push(coverage.tests.len());
        }
        coverage.tests.push(test);
    }
    coverage
}

fn names(build: &Build, binary: &Path) -> Vec<String> {
    let list = command(build, binary).arg("--list").output().expect("a test binary");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Returns `None` for a test that fails in this build, such as one that counts allocations, because
/// the switches allocate.
fn measure_test(build: &Build, binary: &Path, name: &str, index: usize) -> Option<Test> {
    let path = build.copy.join(format!("reached-{index}"));
    let start = Instant::now();
    let status = command(build, binary)
        .args(["--exact", name])
        .env("MUTANTS_REACHED", &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("a test binary");
    let time = start.elapsed();
    if !status.success() {
        println!("left out, because it fails without a mutant: {name}");
        return None;
    }
    let reached = fs::read_to_string(&path).unwrap_or_default();
    let reached = reached.lines().filter_map(|line| line.parse().ok()).collect();
    Some(Test { binary: binary.to_owned(), name: name.to_owned(), time, reached })
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
    results.into_inner().expect("no panic").into_iter().map(|result| result.expect("a result")).collect()
}
