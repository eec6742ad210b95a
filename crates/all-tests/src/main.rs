//! Runs all tests of the repository:
//!
//!     cargo run --package all-tests
//!
//! These are the programs and doc tests of `cargo test --workspace --all-features`, and
//! `cargo test --manifest-path loom-tests/Cargo.toml`. Cargo runs test programs one after the other.
//! Here they run side by side, because most of them wait: for a timer, a server or a process. The
//! models only compute. They run beside all the others, with low priority where `nice` exists.
//!
//! A program that fails beside the others runs once more when they have ended: on a busy machine a
//! test may exceed its time limit. Both outputs are printed, and such a program is named also if it
//! passes then.
//!
//! Prints the output of each program when it has ended, and at the end the programs that took
//! longest and those that failed.

use std::collections::VecDeque;
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread::{self, available_parallelism};
use std::time::Instant;

use serde_json::Value;

/// The programs that take longest, apart from the models. They begin first.
const LONGEST: [&str; 5] = ["mutants", "sabotages", "promises", "doc tests", "trial"];

/// Programs at the same time beside one per core. More of them delay each other by more than what
/// they wait.
const BESIDE: usize = 1;

/// What the end of the output names.
const SLOWEST: usize = 3;

/// A command that runs tests.
struct Program {
    name: String,
    command: Command,
}

/// How a program ended.
struct Ended {
    name: String,
    seconds: u64,
    /// The program, if it failed.
    failed: Option<Program>,
}

fn main() -> ExitCode {
    if let Some(argument) = env::args().nth(1) {
        eprintln!("all-tests: unknown argument {argument:?}; there are no options");
        return ExitCode::from(2);
    }
    let begin = Instant::now();
    let ended = Mutex::new(Vec::new());
    let is_built = thread::scope(|scope| {
        scope.spawn(|| run(models(), &ended));
        let Some(mut programs) = build() else {
            return false;
        };
        programs.push(doc_tests());
        programs.sort_by_key(|program| {
            let place = LONGEST.iter().position(|name| program.name.ends_with(name));
            place.unwrap_or(LONGEST.len())
        });
        let programs = Mutex::new(VecDeque::from(programs));
        let next = || programs.lock().unwrap().pop_front();
        thread::scope(|scope| {
            for _ in 0..BESIDE + available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some(program) = next() {
                        run(program, &ended);
                    }
                });
            }
        });
        true
    });

    let mut ended = ended.into_inner().unwrap();
    let alone = Mutex::new(Vec::new());
    for program in ended.iter_mut().filter_map(|ended| ended.failed.take()) {
        run(program, &alone);
    }
    let alone = alone.into_inner().unwrap();
    ended.sort_by_key(|ended| std::cmp::Reverse(ended.seconds));
    println!(
        "\n== {} programs in {} s; the slowest:",
        ended.len(),
        begin.elapsed().as_secs()
    );
    for Ended { name, seconds, .. } in ended.iter().take(SLOWEST) {
        println!("{seconds:>5} s  {name}");
    }
    let names = |passed: bool| {
        let which = alone
            .iter()
            .filter(|ended| ended.failed.is_none() == passed);
        let names: Vec<_> = which.map(|ended| ended.name.as_str()).collect();
        Some(names.join(", ")).filter(|names| !names.is_empty())
    };
    if let Some(names) = names(true) {
        println!("== FAILED beside the others, and passed alone: {names}");
    }
    let failed = names(false).or((!is_built).then(|| "the build".to_owned()));
    match failed {
        None => ExitCode::SUCCESS,
        Some(failed) => {
            println!("== FAILED: {failed}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program, and prints its output.
fn run(mut program: Program, ended: &Mutex<Vec<Ended>>) {
    let begin = Instant::now();
    let command = &mut program.command;
    let result = command.stdin(Stdio::null()).output();
    let seconds = begin.elapsed().as_secs();
    let (passed, text) = match result {
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            (output.status.success(), text)
        }
        Err(error) => (false, format!("{command:?} cannot be started: {error}")),
    };
    // One program at a time prints.
    let mut ended = ended.lock().unwrap();
    println!(
        "\n== {}: {seconds} s{}\n{text}",
        program.name,
        if passed { "" } else { ", FAILED" }
    );
    ended.push(Ended {
        name: program.name.clone(),
        seconds,
        failed: (!passed).then_some(program),
    });
}

fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root());
    command
}

/// The repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Builds all test programs of the workspace, and returns them. `None`: they do not compile.
fn build() -> Option<Vec<Program>> {
    let arguments = ["test", "--workspace", "--all-features", "--no-run"];
    let listing = cargo()
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    let messages = String::from_utf8(listing.stdout).expect("cargo prints UTF-8");
    let programs = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).expect("cargo prints JSON");
        let executable = message["executable"].as_str()?;
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let name = message["target"]["name"].as_str()?;
        let folder = package
            .strip_prefix(root().canonicalize().ok()?)
            .unwrap_or(package);
        let mut command = Command::new(executable);
        // As cargo does.
        command
            .current_dir(package)
            .env("CARGO_MANIFEST_DIR", package);
        Some(Program {
            name: format!("{}: {name}", folder.display()),
            command,
        })
    });
    let programs = programs.collect();
    listing.status.success().then_some(programs)
}

fn doc_tests() -> Program {
    let mut command = cargo();
    command.args(["test", "--workspace", "--all-features", "--doc"]);
    Program {
        name: "doc tests".to_owned(),
        command,
    }
}

fn models() -> Program {
    let mut command = if cfg!(unix) {
        let mut command = Command::new("nice");
        command
            .args(["-n", "19", env!("CARGO")])
            .current_dir(root());
        command
    } else {
        cargo()
    };
    command.args([
        "test",
        "--manifest-path",
        "loom-tests/Cargo.toml",
        "--",
        "--nocapture",
    ]);
    Program {
        name: "models".to_owned(),
        command,
    }
}
