//! The tests of the lock, on the copy in which each safeguard can be omitted: for each mutant its
//! test fails, and without one it passes. Otherwise they do nothing here: they run in the lock.

use std::collections::BTreeMap;
use std::env;
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::testing;
use mutants::{Ended, VARIABLE, in_parallel};
use redis_lock::list::ROWS;

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

/// How many tests run at the same time per core. Most of them wait for what never happens.
const PER_CORE: usize = 16;

/// How often a test may fail without a mutant. So many at the same time exceed a bound on time where
/// the machine is busy. (The lock's own run of its tests has one attempt.)
const ATTEMPTS: usize = 3;

/// Longer than a test takes that waits several times.
const LIMIT: Duration = Duration::from_secs(240);

/// The limit on the address space of a test.
const MEBIBYTES: u64 = 64 << 10;

#[test]
fn each_mutant_is_detected() {
    // In the process of a mutant, or without Redis.
    if env::var_os(VARIABLE).is_some() || run("", ROWS[0].test, common::PATIENCE).is_none() {
        return;
    }
    let threads = PER_CORE * thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let tests = ROWS.iter().map(|row| (row.test, OnceLock::new()));
    let tests: BTreeMap<_, _> = tests.collect();
    let wrong = in_parallel(ROWS.len(), threads, |index| {
        let (test, name) = (ROWS[index].test, ROWS[index].mutant.name.unwrap());
        let took = tests[test].get_or_init(|| (0..ATTEMPTS).find_map(|_| passes(test)));
        let Some(took) = *took else {
            return Some(format!("{test} fails without {name}"));
        };
        let is_detected = run(name, test, patience(took)) == Some(false);
        (!is_detected).then(|| format!("{test} does not detect {name}"))
    });
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "of {}: {wrong:#?}", ROWS.len());
}

/// Returns how long a test takes without a mutant, or `None` if it fails.
fn passes(test: &str) -> Option<Duration> {
    let begin = Instant::now();
    (run("", test, common::PATIENCE) == Some(true)).then(|| begin.elapsed())
}

/// Returns how long a test waits for an event in the process of a mutant, if the whole test took
/// this time without one, on this machine with its present load. A test that waits longer would
/// only find later that the event does not happen. `.ci/deep` waits as long as without a mutant.
fn patience(took: Duration) -> Duration {
    let shorter = Duration::from_secs(3) + took * 3;
    if testing::is_deep() {
        common::PATIENCE
    } else {
        shorter.min(common::PATIENCE)
    }
}

/// Returns whether the test passes, or `None` if Redis is not installed.
fn run(mutant: &str, test: &str, patience: Duration) -> Option<bool> {
    let mut command = mutants::test(test, mutant, MEBIBYTES);
    command.env(common::SHORTER, patience.as_millis().to_string());
    let Ended { status, output, .. } = mutants::run(&mut command, LIMIT, |_| false);
    assert!(
        output.contains("running 1 test"),
        "{mutant}: there is no test {test}:\n{output}"
    );
    assert!(
        !output.contains("Error compiling script"),
        "{mutant} is no valid script:\n{output}"
    );
    (!output.contains("SKIPPED")).then(|| status.is_some_and(|status| status.success()))
}
