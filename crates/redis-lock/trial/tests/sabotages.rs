//! The tests of the lock, on the copy in which each safeguard can be omitted: for each sabotage its
//! test fails, and without one it passes.

// Each file of tests has its own `common`.
#![allow(clippy::duplicate_mod)]

use std::collections::BTreeSet;
use std::env;
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use redis_lock::sabotages::{ROWS, Row, VARIABLE};

#[path = "../../tests/blocking.rs"]
mod blocking;
#[path = "../../tests/cluster.rs"]
mod cluster;
#[path = "../../tests/faults.rs"]
mod faults;
#[path = "../../tests/lock.rs"]
mod lock;

/// How many sabotages run at the same time per core. Most of them wait for what never happens.
const PER_CORE: usize = 8;

#[test]
fn each_sabotage_is_detected() {
    // In the process of a sabotage, or without Redis.
    if env::var_os(VARIABLE).is_some()
        || run("", "lock::one_owner_at_a_time_with_increasing_tokens").is_none()
    {
        return;
    }
    let tests: BTreeSet<_> = ROWS.iter().map(test_of).collect();
    let runs =
        ROWS.iter().map(|row| (row.name, test_of(row))).chain(tests.into_iter().map(|test| ("", test)));
    let (runs, wrong) = (Mutex::new(runs), Mutex::new(Vec::new()));
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..cores * PER_CORE {
            scope.spawn(|| {
                loop {
                    let Some((sabotage, test)) = runs.lock().unwrap().next() else { return };
                    // Without a sabotage the test passes.
                    if run(sabotage, &test) != Some(sabotage.is_empty()) {
                        wrong.lock().unwrap().push((sabotage, test));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "not detected, or failed without a sabotage: {wrong:?}, of {}", ROWS.len());
}

/// Returns the test in this file that must fail.
fn test_of(row: &Row) -> String {
    if row.test.contains("::") { row.test.to_owned() } else { format!("lock::{}", row.test) }
}

/// Returns whether the test passes, or `None` if Redis is not installed.
fn run(sabotage: &str, test: &str) -> Option<bool> {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(VARIABLE, sabotage).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("running 1 test"), "{sabotage}: there is no test {test}:\n{text}");
    assert!(!text.contains("Error compiling script"), "{sabotage} is no valid script:\n{text}");
    (!text.contains("SKIPPED")).then(|| output.status.success())
}
