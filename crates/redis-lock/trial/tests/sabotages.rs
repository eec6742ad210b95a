//! The tests of the lock, on the copy in which each safeguard can be omitted; and for each
//! sabotage, that its test fails.

// Each file of tests has its own `common`.
#![allow(clippy::duplicate_mod)]

use std::env;
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

/// How many sabotages run at the same time. Most of them wait.
const THREADS: usize = 8;

#[test]
fn each_sabotage_is_detected() {
    // In the process of a sabotage, or without Redis.
    if env::var_os(VARIABLE).is_some()
        || run("", "lock::one_owner_at_a_time_with_increasing_tokens").is_none()
    {
        return;
    }
    let (rows, undetected) = (Mutex::new(ROWS.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some(Row { name, test, .. }) = rows.lock().unwrap().next() else { return };
                    let test = if test.contains("::") { (*test).to_owned() } else { format!("lock::{test}") };
                    if run(name, &test) != Some(false) {
                        undetected.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let undetected = undetected.into_inner().unwrap();
    assert!(undetected.is_empty(), "not detected: {undetected:?}, of {}", ROWS.len());
}

/// Returns whether the test passes, or `None` if Redis is not installed.
fn run(sabotage: &str, test: &str) -> Option<bool> {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(VARIABLE, sabotage).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("running 1 test"), "{sabotage}: there is no test {test}:\n{text}");
    (!text.contains("SKIPPED")).then(|| output.status.success())
}
