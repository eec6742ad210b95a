//! The tests of the lock, on the copy in which each safeguard can be omitted: for each sabotage its
//! test fails, and without one it passes.

use std::collections::BTreeMap;
use std::env;
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::testing;
use redis_lock::sabotages::{self, Row, VARIABLE};

#[path = "../../tests/integration/blocking.rs"]
mod blocking;
#[path = "../../tests/integration/builder.rs"]
mod builder;
#[path = "../../tests/integration/closure.rs"]
mod closure;
#[path = "../../tests/integration/cluster.rs"]
mod cluster;
#[path = "../../tests/integration/common.rs"]
mod common;
#[path = "../../tests/integration/connections.rs"]
mod connections;
#[path = "../../tests/integration/lock.rs"]
mod lock;
#[path = "../../tests/integration/losses.rs"]
mod losses;
#[path = "../../tests/integration/multi.rs"]
mod multi;
#[path = "../../tests/integration/queue.rs"]
mod queue;
#[path = "../../tests/integration/refusals.rs"]
mod refusals;
#[path = "../../tests/integration/remains.rs"]
mod remains;
#[path = "../../tests/integration/replicas.rs"]
mod replicas;
#[path = "../../tests/integration/runtimes.rs"]
mod runtimes;
#[path = "../../tests/integration/shared.rs"]
mod shared;
#[path = "../../tests/integration/state.rs"]
mod state;
#[path = "../../tests/integration/writers.rs"]
mod writers;

/// How many sabotages run at the same time per core. Most of them wait for what never happens.
const PER_CORE: usize = 8;

/// How often a test may fail without a sabotage. So many at the same time exceed a bound on time
/// where the machine is busy. (The lock's own run of its tests has one attempt.)
const ATTEMPTS: usize = 3;

#[test]
fn each_sabotage_is_detected() {
    // In the process of a sabotage, or without Redis.
    if env::var_os(VARIABLE).is_some()
        || run(
            "",
            "lock::one_owner_at_a_time_with_increasing_tokens",
            common::PATIENCE,
        )
        .is_none()
    {
        return;
    }
    let mut rows_of: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in sabotages::rows() {
        rows_of.entry(test_of(row)).or_default().push(row.name);
    }
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (permits, wrong) = (Permits::new(cores * PER_CORE), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for (test, sabotages) in &rows_of {
            let (permits, wrong) = (&permits, &wrong);
            scope.spawn(move || {
                let permit = permits.get();
                let Some(took) = (0..ATTEMPTS).find_map(|_| passes(test)) else {
                    return wrong.lock().unwrap().push((test, "without a sabotage"));
                };
                let patience = patience(took);
                drop(permit);
                for sabotage in sabotages {
                    scope.spawn(move || {
                        let _permit = permits.get();
                        if run(sabotage, test, patience) != Some(false) {
                            wrong.lock().unwrap().push((test, sabotage));
                        }
                    });
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "not detected, or failed without a sabotage: {wrong:?}, of {}",
        sabotages::rows().count()
    );
}

/// Returns how long a test takes without a sabotage, or `None` if it fails.
fn passes(test: &str) -> Option<Duration> {
    let begin = Instant::now();
    (run("", test, common::PATIENCE) == Some(true)).then(|| begin.elapsed())
}

/// Returns how long a test waits for an event in the process of a sabotage, if the whole test took
/// this time without one, on this machine with its present load. A test that waits longer would
/// only find later that the event does not happen. `.ci/deep` waits as long as without a sabotage.
fn patience(took: Duration) -> Duration {
    let shorter = Duration::from_secs(3) + took * 3;
    if testing::is_deep() {
        common::PATIENCE
    } else {
        shorter.min(common::PATIENCE)
    }
}

/// How many more processes may run.
struct Permits(Mutex<usize>, Condvar);

/// One of them, until it is dropped.
struct Permit<'a>(&'a Permits);

impl Permits {
    fn new(count: usize) -> Self {
        Self(Mutex::new(count), Condvar::new())
    }

    /// Waits until a process may run.
    fn get(&self) -> Permit<'_> {
        *self
            .1
            .wait_while(self.0.lock().unwrap(), |left| *left == 0)
            .unwrap() -= 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Permits(left, changed) = self.0;
        *left.lock().unwrap() += 1;
        changed.notify_one();
    }
}

/// Returns the test of the lock that must fail.
fn test_of(row: &Row) -> String {
    if row.test.contains("::") {
        row.test.to_owned()
    } else {
        format!("lock::{}", row.test)
    }
}

/// Returns whether the test passes, or `None` if Redis is not installed.
fn run(sabotage: &str, test: &str, patience: Duration) -> Option<bool> {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(VARIABLE, sabotage)
        .stdin(Stdio::null());
    let output = command
        .env(common::SHORTER, patience.as_millis().to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("running 1 test"),
        "{sabotage}: there is no test {test}:\n{text}"
    );
    assert!(
        !text.contains("Error compiling script"),
        "{sabotage} is no valid script:\n{text}"
    );
    (!text.contains("SKIPPED")).then(|| output.status.success())
}
